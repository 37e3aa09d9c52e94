"""The workbenches that a method is handed: `ServerBench` is its `Central`, `ClientBench` its `Local`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..data.federated import Samples
from ..method import ClassMeans, Predictor
from ..models.split import SplitModel, has_batchnorm
from ..params import Params, gradient, step
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

    def random_head(self, *key: int | str) -> Params:
        """A freshly drawn head; the same key gives the same head everywhere and in every round."""
        m = self.init()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of(self._plan.seed, "head", *key))
            for layer in m.head.modules():
                if isinstance(layer, nn.Linear):
                    layer.reset_parameters()
        return m.state("head")

    def labels(self, client: int) -> tuple[int, ...]:
        """The classes of this client's training samples."""
        return tuple(self._plan.data.client(client).train.y.unique().tolist())


class ClientBench(ServerBench):
    """What a client's half may ask for."""

    def __init__(self, plan: Plan, client: int, t: int, *, purpose: str, kept: Params, trained: int) -> None:
        ServerBench.__init__(self, plan, t)
        self._template = plan.models[client % len(plan.models)]
        self.kept = kept
        self.rng = torch.Generator().manual_seed(seed_of(plan.seed, purpose, client, t))
        data = plan.data.client(client)
        self._train = _on(data.train, plan.device)
        self.client, self.n = client, len(data.train)
        self.class_counts = torch.bincount(data.train.y, minlength=self.classes).to(plan.device)
        val = _on(data.val, plan.device)
        self.validation = (val.x, val.y) if len(val) else None
        decays = max(t - 1, 0) if plan.train.lr_decay_per == "round" else trained
        self.lr = plan.train.lr * plan.train.lr_decay**decays
        self.epochs = plan.train.epochs
        self._features: tuple[dict[str, Tensor], Tensor] = {"": torch.empty(0)}, torch.empty(0)
        """the last body whose features were asked for, and these"""
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
        inputs = self._train.x
        if loss is None:  # under a frozen body, the head sees the same features in every epoch
            learner, inputs = (model.head, self.features(model.body)) if only is model.head else (model, inputs)
            loss = partial(self.loss, learner)
        optimiser = torch.optim.SGD(
            weights,
            lr=self.lr if lr is None else lr,
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
        )
        steps = 0
        with _training(model, part, alone=self.n == 1):
            for i in self._shuffles(epochs, drop_single=has_batchnorm(part)):
                optimiser.zero_grad()
                loss(inputs[i], self._train.y[i]).backward()
                optimiser.step()
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
        train: Sequence[nn.Module] = (),
    ) -> Params:
        """Plain gradient descent on quantities that are no module, all from their values before the batch."""
        rate, now = self.lr if lr is None else lr, start
        x, y = self._train.x if through is None else self.features(through), self._train.y
        norms = any(has_batchnorm(m) for m in train)
        for m in train:
            m.train(not (norms and self.n == 1))
        for i in self._shuffles(epochs, drop_single=norms):
            now = step(now, gradient(lambda p, i=i: loss(p, x[i], y[i]), now), rate)
            now = now if project is None else project(now)
        for m in train:
            m.eval()
        return now

    def features(self, body: nn.Module) -> Tensor:
        """[n, K]: the training samples through this body, in evaluation mode, in the order of the data."""
        state = body.state_dict()
        known, found = self._features
        if known.keys() == state.keys() and all(torch.equal(t, state[k]) for k, t in known.items()):
            return found  # phases of a round often ask for the same body
        mode = body.training
        body.eval()
        with torch.no_grad():
            found = torch.cat([body(x) for x in self._train.x.split(FEATURE_BATCH)])
        body.train(mode)
        self._features = {k: t.clone() for k, t in state.items()}, found
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
        for _ in range(self.epochs if epochs is None else epochs):
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
