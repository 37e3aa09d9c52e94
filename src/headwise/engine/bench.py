"""The workbenches that a method is handed: `ServerBench` is its `Central`, `ClientBench` its `Local`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..data.federated import Samples
from ..method import ClassMeans, Predictor
from ..models.split import SplitModel, has_batchnorm
from ..params import Params
from ..seeds import seed_of
from .plan import Plan

FEATURE_BATCH = 500  # samples per pass where no gradient is needed


class ServerBench:
    """What the server's half may ask for."""

    def __init__(self, plan: Plan, t: int, purpose: str = "server") -> None:
        self._plan, self.t, self.T, self.N = plan, t, plan.rounds, len(plan.data)
        self.classes = plan.data.task.classes
        self.rng = torch.Generator().manual_seed(seed_of(plan.seed, purpose, t))
        self._template = plan.models[0]
        self.kept = Params()

    def init(self) -> SplitModel:
        """A copy of the initial model."""
        return copy.deepcopy(self._template).to(self._plan.device)

    def model(self, params: Params) -> SplitModel:
        """A model with these parameters; what they leave open is what the client kept, else the initial."""
        m = self.init()
        known = m.state_dict()
        if unknown := params.keys() - known.keys():
            raise KeyError(f"the model has no {sorted(unknown)}")
        m.load_state_dict({**known, **self.kept, **params})
        return m


class ClientBench(ServerBench):
    """What a client's half may ask for."""

    def __init__(self, plan: Plan, client: int, t: int, *, purpose: str, kept: Params, trained: int) -> None:
        ServerBench.__init__(self, plan, t)
        self._template = plan.models[client % len(plan.models)]
        self.kept = kept
        self.rng = torch.Generator().manual_seed(seed_of(plan.seed, purpose, client, t))
        data = plan.data.client(client)
        self._train = _on(data.train, plan.device)
        self.n = len(data.train)
        self.class_counts = torch.bincount(data.train.y, minlength=self.classes).to(plan.device)
        val = _on(data.val, plan.device)
        self.validation = (val.x, val.y) if len(val) else None
        decays = max(t - 1, 0) if plan.train.lr_decay_per == "round" else trained
        self.lr = plan.train.lr * plan.train.lr_decay**decays
        self.samples = 0
        """samples that gradients were taken on, for the speed display"""

    def batches(
        self, epochs: int | None = None, *, through: nn.Module | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Freshly shuffled batches; `through` a frozen body, they are features."""
        x, y = self._train.x if through is None else self.features(through), self._train.y
        for i in self._shuffles(epochs, drop_single=False):
            yield x[i], y[i]

    def loss(self, model: Predictor, x: Tensor, y: Tensor) -> Tensor:
        """The mean cross-entropy."""
        return cross_entropy(model(x), y)

    def sgd(
        self,
        model: SplitModel,
        *,
        only: nn.Module | None = None,
        epochs: int | None = None,
        lr: float | None = None,
        loss: Callable[[Tensor, Tensor], Tensor] | None = None,
        project: Callable[[], None] | None = None,
    ) -> int:
        """Train the model, or `only` a part of it with the rest frozen; return the steps taken."""
        part = model if only is None else only
        settings = self._plan.train
        weights = list(part.parameters())
        if not weights:
            return 0
        step = torch.optim.SGD(
            weights,
            lr=self.lr if lr is None else lr,
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
        )
        steps = 0
        with _training(model, part, alone=self.n == 1):
            for i in self._shuffles(epochs, drop_single=has_batchnorm(part)):
                x, y = self._train.x[i], self._train.y[i]
                step.zero_grad()
                (self.loss(model, x, y) if loss is None else loss(x, y)).backward()
                step.step()
                if project is not None:
                    with torch.no_grad():
                        project()
                steps += 1
        return steps

    def descend(
        self,
        start: Params,
        loss: Callable[[Params, Tensor, Tensor], Tensor],
        *,
        epochs: int | None = None,
        lr: float | None = None,
        project: Callable[[Params], Params] | None = None,
        through: nn.Module | None = None,
    ) -> Params:
        """Plain gradient descent on quantities that are no module."""
        rate, now = self.lr if lr is None else lr, start
        for x, y in self.batches(epochs, through=through):
            point = now.map(lambda t: t.detach().requires_grad_())
            slopes = torch.autograd.grad(loss(point, x, y), list(point.values()))
            with torch.no_grad():
                now = point - rate * Params(dict(zip(point, slopes, strict=True)))
                now = now if project is None else project(now)
        return now.map(lambda t: t.detach())

    def features(self, body: nn.Module) -> Tensor:
        """[n, K]: the training samples through this body, in evaluation mode, in the order of the data."""
        mode = body.training
        body.eval()
        with torch.no_grad():
            found = torch.cat([body(x) for x in self._train.x.split(FEATURE_BATCH)])
        body.train(mode)
        return found

    def class_means(self, body: nn.Module) -> ClassMeans:
        """The exact mean feature of each class that this client holds."""
        features, y = self.features(body), self._train.y
        labels = self.class_counts.nonzero().flatten()
        means = torch.stack([features[y == label].mean(0) for label in labels])
        return ClassMeans(labels.int(), means)

    def _shuffles(self, epochs: int | None, *, drop_single: bool) -> Iterator[Tensor]:
        """The indices of each batch; every epoch is a new order."""
        size = self._plan.train.batch
        for _ in range(self._plan.train.epochs if epochs is None else epochs):
            for i in torch.randperm(self.n, generator=self.rng).split(size):
                too_small = len(i) < size and self._plan.train.drop_last
                if too_small or (drop_single and len(i) == 1 and self.n > 1):
                    continue
                self.samples += len(i)
                yield i.to(self._plan.device)


@contextmanager
def _training(model: SplitModel, part: nn.Module, *, alone: bool) -> Iterator[None]:
    """`part` learns, the rest is frozen: no gradients, and evaluation mode, so that its statistics stay as they are.

    A client `alone` with one sample has no variance to normalise with: its BatchNorm stays in evaluation mode.
    """
    model.eval().requires_grad_(False)
    part.train(not (alone and has_batchnorm(part))).requires_grad_(True)
    try:
        yield
    finally:
        model.eval().requires_grad_(True)


def _on(samples: Samples, device: str) -> Samples:
    return samples if device == "cpu" else Samples(samples.x.to(device), samples.y.to(device))
