"""DP-SGD, which protects every single example: the training itself is private. By Opacus.

Abadi et al., *Deep Learning with Differential Privacy*, CCS 2016. https://arxiv.org/abs/1607.00133
What leaves a client may then be anything, for it is made of parameters trained this way and of nothing else: whatever
else a method asks of the data is refused.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..contract.benches import Local
from ..engine.client.client_bench import ClientBench
from ..engine.host.devices import on, samples_on
from ..engine.kernels.plain import learning
from ..engine.mechanism import Mechanism, Releases
from ..engine.plan import Plan
from ..errors import AccountingError, ConfigError
from ..models.split import SplitModel
from ..records import Record
from ..settings.options import Train
from .fence import fenced
from .gaussian import messages_of
from .randomness import chosen, gaussian, source_of

ALLOWS = frozenset(
    {"t", "T", "N", "classes", "rng", "init", "model", "draw", "random_head", "client", "n", "lr", "epochs", "loss"}
    | {"ratio", "sgd"}  # the latter in its private form
)
"""what a method may use of a client's bench; of these, only `sgd` looks at the data"""
REFUSES = {
    "validation": "samples to validate on",
    "class_counts": "the number of samples of each class",
    "batches": "batches",
    "descend": "gradients of something that is no network",
    "window": "a part of the samples",
    "hold_out": "samples to validate on",
    "features": "features",
    "class_means": "class means",
}
"""words for what is refused; what has no words is refused by its name"""


class DPSGD(Mechanism):
    """Clipped gradients of single examples, noise on their sum, and batches drawn by Poisson sampling."""

    unit = "example"
    messages = (Record,)
    relation = "one example of a client without effect, the number of its examples known"
    hides_sizes = False

    def protect(self, down: Record, up: Record, *, classes: int, seed: int, client: int, t: int) -> Record:
        """The message itself: it was made by private training."""
        return up

    def bench(self, plan: Plan, local: ClientBench, kind: str) -> Local:
        """A bench whose only way to the data is private training; outside a round's training nobody counts it."""
        training = PrivateTraining(self, plan, local, plan.epochs_accounted if kind == "fit" else 0)
        return fenced(local, ALLOWS, {"sgd": training.sgd}, _refusal)

    def cost(self, plan: Plan, client: int) -> Releases:
        """The steps of a round. That examples are drawn is a credit: each by itself in every step, in secret."""
        n = plan.data.sizes(client)[0]
        if not n:  # of clients elsewhere nothing is known, and they answer for themselves
            return Releases(self.noise, 1.0, 0)
        if plan.epochs_accounted is None:
            raise ConfigError("privacy.level is 'example', but how often clients train was not rehearsed.")
        steps = messages_of(plan) * plan.epochs_accounted * steps_per_epoch(n, plan.experiment.train)
        return Releases(self.noise, batch_size(n, plan.experiment.train) / n, steps)


def _refusal(name: str) -> str:
    return f"its clients need {REFUSES.get(name, name)}, and only plain training protects single examples"


def steps_per_epoch(n: int, train: Train) -> int:
    """How many steps stand for one pass over `n` samples."""
    return n // train.batch if train.drop_last else -(-n // train.batch)


def batch_size(n: int, train: Train) -> int:
    """How many of `n` samples are in a step's batch on average: each of them is drawn by itself."""
    return min(n, train.batch)


class PrivateTraining:
    """The training of one client in one round; more than `epochs` are refused, none stands for any number."""

    def __init__(self, mechanism: DPSGD, plan: Plan, local: ClientBench, epochs: int | None) -> None:
        self._mechanism, self._plan, self._local, self._left = mechanism, plan, local, epochs
        self._data = samples_on(plan.data.client(local.client).train, plan.device)
        self._secret = source_of(mechanism.source, plan.experiment.seed, local.client, local.t)

    def sgd(
        self,
        *models: nn.Module,
        only: nn.Module | Sequence[nn.Module] | None = None,
        epochs: int | None = None,
        lr: float | None = None,
        loss: Callable[[Tensor, Tensor], Tensor] | None = None,
        project: Callable[[], None] | None = None,
        clip: float | None = None,
    ) -> int:
        """Train the model, or `only` parts of it; every step draws its batch anew, example by example."""
        model, *others = models
        if loss is not None or project is not None or clip is not None or others:
            raise AccountingError("it trains in a way of its own, of which single examples' gradients are not known")
        parts = models if only is None else (only,) if isinstance(only, nn.Module) else tuple(only)
        if not any(True for part in parts for _ in part.parameters()):
            return 0
        passes = self._spend(self._local.epochs if epochs is None else epochs)
        x = self._data.x
        if isinstance(model, SplitModel) and parts == (model.head,):
            model, x = model.head, self._local.features(model.body)
        steps = passes * steps_per_epoch(len(x), self._plan.experiment.train)
        with self._local.clock("training"), learning(models, parts):
            self._descend(model, parts, x, steps, self._local.lr if lr is None else lr)
        return steps

    def _spend(self, epochs: int) -> int:
        if self._left is not None:
            self._left -= epochs
            if self._left < 0:
                raise AccountingError("it trains for more epochs than in the rehearsal that epsilon was reckoned from")
        return epochs

    def _descend(self, model: nn.Module, parts: Sequence[nn.Module], x: Tensor, steps: int, lr: float) -> None:
        from opacus import GradSampleModule
        from opacus.optimizers import DPOptimizer
        from opacus.validators import ModuleValidator

        train, n = self._plan.experiment.train, len(x)
        size = batch_size(n, train)
        for part in parts:
            part.train()
            if ModuleValidator.validate(part):
                raise AccountingError("its network has layers that look at several examples at once, such as BatchNorm")
        weights = [p for part in parts for p in part.parameters()]
        optimiser = DPOptimizer(
            torch.optim.SGD(weights, lr=lr, momentum=train.momentum, weight_decay=train.weight_decay),
            noise_multiplier=0.0,  # Opacus draws from torch's generators, which can be predicted: noise is added below
            max_grad_norm=self._mechanism.clip,
            expected_batch_size=size,
        )
        optimiser.attach_step_hook(lambda _: self._add_noise(weights, size))
        sampled = GradSampleModule(model)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Full backward hook is firing")  # inputs need no gradient
            for _ in range(steps):
                i = on(chosen(n, size / n, self._secret), self._plan.device)
                self._local.samples[0] += size  # how many were drawn is nobody's business
                optimiser.zero_grad()
                _slopes(sampled, weights, x[i], self._data.y[i])
                optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        sampled.to_standard_module()

    def _add_noise(self, weights: Sequence[nn.Parameter], size: int) -> None:
        """To the mean of the clipped gradients, of which one example moves the sum by at most the clip."""
        scale = self._mechanism.noise * self._mechanism.clip / size
        for p in weights:
            assert p.grad is not None  # Opacus has just written it
            p.grad += on(scale * gaussian(p.shape, self._secret), self._plan.device).to(p.dtype)


def _slopes(model: nn.Module, weights: Sequence[nn.Parameter], x: Tensor, y: Tensor) -> None:
    """Let each weight have its gradient for each example; what is not finite, and no clip could hold, is nothing."""
    if len(x):
        cross_entropy(model(x), y).backward()
    for p in weights:
        slopes: Tensor = getattr(p, "grad_sample") if len(x) else p.new_zeros(0, *p.shape)  # noqa: B009
        p.grad_sample = slopes.nan_to_num(0.0, 0.0, 0.0)  # pyright: ignore[reportAttributeAccessIssue]
