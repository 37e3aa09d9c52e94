"""A client's workbench: a method's `Local`, with the order of its samples and the experiment's optimizer."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from ...contract.benches import ClassMeans, Predictor, split_epochs
from ...data.federated import Samples
from ...models.split import SplitModel, has_batchnorm
from ...params import Params, gradient, step
from ...seeds import seed_of
from ...tasks.weights import WeightedObjective, weigh
from ..host import Clock, move_to, samples_on
from ..kernels.optimizer import Optimizer, Terms, rates_of
from ..kernels.training import Feed, choose
from ..plan import Plan
from ..workbench import Workbench
from .augmenting import augment
from .scoring import compute_outputs

FEATURE_BATCH = 100
"""samples per pass without gradients; with many more, activations no longer fit the cache"""
WIDEST = 1024
"""largest size to which a batch is padded if it is larger than the client's data"""
NO_FEATURES: tuple[dict[str, Tensor], Tensor] = {"": torch.empty(0)}, torch.empty(0)


class ClientBench(Workbench):
    """Implements `Local`, which documents each primitive."""

    def __init__(
        self,
        plan: Plan,
        client: int,
        t: int,
        *,
        purpose: str,
        kept: Params,
        trained: int,
        clock: Clock | None = None,
        epochs: float | None = None,
    ) -> None:
        data = plan.client(client, t)
        template = plan.models[client % len(plan.models)]
        super().__init__(plan, t, template, kept, fast=plan.fast and plan.device == "cpu")
        t = self.t
        self.rng = torch.Generator().manual_seed(seed_of(plan.experiment.seed, purpose, client, t))
        self.clock = clock or Clock()
        self.kept = kept
        self._data = data
        self._train = samples_on(data.train, plan.device)
        self.client = client
        self.n = len(self._train)
        self.objective = plan.objective(self._train.y)
        if self._train.weight is not None:
            self._train = Samples(self._train.x, weigh(self._train.y, self._train.weight / self._train.weight.mean()))
            self.objective = WeightedObjective(self.objective)
        settings = self._settings = plan.experiment.train
        self._epochs = epochs
        decays = max(t - 1, 0) if settings.lr_decay_per == "round" else trained
        self.lr = settings.lr * settings.lr_decay**decays
        self._changes = torch.Generator()
        if settings.augment:  # apart from `rng`, so that the order of samples stays the same
            self._changes.manual_seed(seed_of(plan.experiment.seed, "augment", purpose, client, t))
        self.ratio = plan.experiment.sampling.average
        self._features = NO_FEATURES
        """the last body whose features were computed, and its features"""
        self._batch: tuple[Tensor, Tensor] | None = None
        """the current batch of samples, and its indices"""
        self.samples = [0]
        """samples trained on, for the speed display; a list, shared with all benches made from this one"""
        self.flops = [0.0]
        """floating-point operations of kernels that count them; shared in the same way"""

    @property
    def epochs(self) -> float:
        if self._epochs is not None:
            return self._epochs
        steps = self._settings.steps
        rows = count_batches(self.n, self._settings.batch, drop_last=self._settings.drop_last)
        return self._settings.epochs if steps is None else steps / rows if rows else 0

    @property
    def class_counts(self) -> Tensor:
        return self.objective.counts(self._train.y)

    def batches(
        self,
        epochs: float | None = None,
        *,
        through: nn.Module | None = None,
        train: Sequence[nn.Module] = (),
        size: int | None = None,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        changes = self._settings.augment  # with them, cached features would be those of other samples
        frozen = None if self._plan.fast and not changes else through
        x = self._train.x if through is None or frozen else self.features(through)
        norms = any(has_batchnorm(m) for m in train)
        for m in train:  # a single sample has no variance to normalize with
            m.train(not (norms and self.n == 1))
        for i in self._draw_lazily(epochs, size or self._settings.batch, drop_single=norms):
            batch = x[i]
            y = self._train.y[i]
            if changes:
                batch, y = augment(batch, y, changes, self._changes)
            self._batch = None if changes or through else (batch, i)
            yield batch if frozen is None else _compute_frozen(frozen, batch), y
        for m in train:
            m.eval()

    def loss(self, model: Predictor, x: Tensor, y: Tensor) -> Tensor:
        return self.objective.loss(model(x), y)

    def loss_of(self, scores: Tensor, y: Tensor) -> Tensor:
        return self.objective.loss(scores, y)

    def divergence(self, p: Tensor, q: Tensor) -> Tensor:
        return self.objective.divergence(p, q)

    def sgd(
        self,
        *models: nn.Module,
        only: nn.Module | Sequence[nn.Module] | None = None,
        epochs: float | None = None,
        lr: float | None = None,
        loss: Callable[[Tensor, Tensor], Tensor] | None = None,
        project: Callable[[], None] | None = None,
        clip: float | None = None,
        pull: tuple[float, Params] | None = None,
        shift: Params | None = None,
    ) -> int:
        parts = parts_of(models, only)
        network, through = halves(models, parts) if loss is None else (models[0], None)
        kernel = choose(
            *(network, parts, loss, rates_of(self._settings, self.lr if lr is None else lr, clip)),
            models=models,
            project=project,
            fast=self._plan.fast,
            objective=self.objective,
            whole=not self._settings.augment,
            terms=terms_of(models[0], pull, shift),
        )
        feed = Feed(
            partial(self.batches, epochs, through=through, train=parts), partial(self._collect_all, epochs, through)
        )
        with self.clock(f"training.{kernel.name}"):
            steps = kernel.train(feed)
        self.flops[0] += kernel.flops
        return steps

    def distance(self, steps: int) -> float:
        at = torch.zeros(())
        optimizer = Optimizer([at], rates_of(self._settings, self.lr)._replace(clip=None))
        for _ in range(steps):
            optimizer.step_along([torch.ones(())])
        return -at.item()

    def _collect_all(self, epochs: float | None, through: nn.Module | None) -> tuple[Tensor, Tensor, Tensor]:
        """All samples or their features, the labels, and the indices of all batches."""
        x = self._train.x if through is None else self.features(through)
        batches = self._draw_batches(epochs, self._settings.batch)
        padding = int((batches < 0).sum()) if self.n % self._settings.batch else 0
        self.samples[0] += batches.numel() - padding
        return x, self._train.y, move_to(batches, self._plan.device)

    def descend(
        self,
        start: Params,
        loss: Callable[[Params, Tensor, Tensor], Tensor],
        *,
        epochs: float | None = None,
        lr: float | None = None,
        project: Callable[[Params], Params] | None = None,
        through: nn.Module | None = None,
        train: Sequence[nn.Module] = (),
        size: int | None = None,
        weights: Collection[str] = (),
    ) -> Params:
        lr = self.lr if lr is None else lr
        names = [k for k in start if k in set(weights)]
        optimizer = Optimizer([start[k] for k in names], rates_of(self._settings, lr))
        now = start
        with self.clock("training"):
            for x, y in self.batches(epochs, through=through, train=train, size=size):
                slope = gradient(lambda p, x=x, y=y: loss(p, x, y), now)
                ends = optimizer.step_from([now[k] for k in names], [slope[k] for k in names])
                moved = dict(zip(names, ends, strict=True))
                others = Params({k: t for k, t in now.items() if k not in moved})
                now = Params({**now, **moved, **step(others, slope.restrict(others), lr)})
                now = now if project is None else project(now)
        return now

    def window(self, share: float) -> ClientBench:
        size = max(1, int(share * self.n))
        first = int(torch.randint(self.n - size + 1, (), generator=self.rng))
        return self._with(torch.arange(first, first + size))

    def hold_out(self, share: float) -> tuple[ClientBench, tuple[Tensor, Tensor]]:
        held = int(share * self.n)
        if not held:
            return self, (self._train.x, self._train.y)
        rng = torch.Generator().manual_seed(seed_of(self._plan.experiment.seed, "hold out", self.client))
        order = torch.randperm(self.n, generator=rng)
        out = order[:held].sort().values
        return self._with(order[held:].sort().values), (self._train.x[out], self._train.y[out])

    def _with(self, indices: Tensor) -> ClientBench:
        """The same bench, with the same generator, for these training samples only."""
        other = copy.copy(self)
        other._train = Samples(self._train.x[indices], self._train.y[indices])
        other.n = len(indices)
        other._features = NO_FEATURES
        other._batch = None
        return other

    def freeze(self, module: nn.Module) -> Predictor:
        known: list[Tensor] = []
        module.eval()

        def outputs(x: Tensor) -> Tensor:
            batch, indices = self._batch or (None, None)
            if x is not batch or not self._plan.fast:
                return _compute_frozen(module, x)
            if not known:
                with self.clock("features"):
                    known.append(compute_outputs(module, self._train.x, FEATURE_BATCH, fast=True))
            return known[0][indices]

        return outputs

    def features(self, body: nn.Module) -> Tensor:
        state = body.state_dict()
        known, features = self._features if self._plan.fast else NO_FEATURES
        if known.keys() == state.keys() and all(torch.equal(t, state[k]) for k, t in known.items()):
            return features  # the phases of a round often need the same body
        mode = body.training
        with self.clock("features"):
            features = compute_outputs(body, self._train.x, FEATURE_BATCH, fast=self._plan.fast)
        body.train(mode)
        self._features = {k: t.clone() for k, t in state.items()}, features
        return features

    @property
    def labels(self) -> Tensor:
        return self._train.y.clone()

    def class_means(self, body: nn.Module) -> ClassMeans:
        features = self.features(body)
        y = self._train.y
        labels = self.class_counts.nonzero().flatten()
        means = torch.stack([features[y == label].mean(0) for label in labels])
        return ClassMeans(labels.int(), means)

    def _draw_batches(self, epochs: float | None, size: int) -> Tensor:
        epochs = self.epochs if epochs is None else epochs
        return draw_batches(self.n, size, epochs, drop_last=self._settings.drop_last, rng=self.rng)

    def _draw_lazily(self, epochs: float | None, size: int, *, drop_single: bool) -> Iterator[Tensor]:
        """Batch by batch. An epoch's order is drawn when it begins, after anything a loss drew before it."""
        for part in split_epochs(self.epochs if epochs is None else epochs):
            for row in self._draw_batches(part, size):
                i = row[row >= 0] if row[-1] < 0 else row
                if drop_single and len(i) == 1 and self.n > 1:
                    continue
                self.samples[0] += len(i)
                yield move_to(i, self._plan.device)


def terms_of(model: nn.Module, pull: tuple[float, Params] | None, shift: Params | None) -> Terms | None:
    """What `sgd` adds to gradients, by the ids of the model's parameters."""
    if pull is None and shift is None:
        return None
    own = model.weights() if isinstance(model, SplitModel) else dict(model.named_parameters())
    strength, anchor = pull or (0.0, Params())
    anchors = {id(own[k]): t for k, t in anchor.items()}
    return Terms(strength, anchors, {id(own[k]): t for k, t in (shift or Params()).items()})


def count_batches(n: int, size: int, *, drop_last: bool) -> int:
    return n // size if drop_last else -(-n // size)


def draw_batches(n: int, size: int, epochs: float, *, drop_last: bool, rng: torch.Generator) -> Tensor:
    """[steps, size]: the indices of each batch, a short one padded with -1; each epoch has a new order."""
    steps = math.ceil(epochs * count_batches(n, size, drop_last=drop_last) - 1e-9)  # `train.steps` may have rounded up
    full = n % size == 0
    size = min(size, max(n, WIDEST))
    orders = [torch.randperm(n, generator=rng) for _ in range(math.ceil(epochs))]
    if not full:
        orders = [torch.cat([order, torch.full((-n % size,), -1)]) for order in orders]
    end = -1 if drop_last and not full else None
    rows = [order.view(-1, size)[:end] for order in orders]
    batches = torch.cat(rows) if len(rows) > 1 else rows[0] if rows else torch.empty(0, size, dtype=torch.int64)
    return batches[:steps]


def parts_of(models: tuple[nn.Module, ...], only: nn.Module | Sequence[nn.Module] | None) -> tuple[nn.Module, ...]:
    """What `sgd` trains: the models, or `only` these parts of them."""
    return models if only is None else (only,) if isinstance(only, nn.Module) else tuple(only)


def halves(models: tuple[nn.Module, ...], parts: tuple[nn.Module, ...]) -> tuple[nn.Module, nn.Module | None]:
    """What trains with the task's loss: the only model, or just its head, and the frozen body below it."""
    (model,) = models
    if isinstance(model, SplitModel) and parts == (model.head,):
        return model.head, model.body
    return model, None


@torch.no_grad()
def _compute_frozen(body: nn.Module, x: Tensor) -> Tensor:
    return body(x)
