"""DP-SGD: private training that protects every single example, with Opacus.

Abadi et al., *Deep Learning with Differential Privacy*, CCS 2016. https://arxiv.org/abs/1607.00133
Whatever leaves a client is then made of privately trained parameters and nothing else: any other use of the data is
refused.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..contract.benches import Local
from ..engine.client.client_bench import ClientBench, halves, parts_of, terms_of
from ..engine.host import move_to, samples_on
from ..engine.kernels.optimizer import Optimizer, Rates, Terms, rates_of
from ..engine.kernels.training import train_only
from ..engine.mechanism import Mechanism, Releases
from ..engine.plan import Plan
from ..errors import AccountingError, ConfigError
from ..params import Params
from ..records import Record
from ..settings.options import Train
from .gaussian import gaussian, messages_of, noise_source, poisson_sample, restrict_bench

ALLOWS = frozenset(
    {"t", "T", "N", "classes", "rng", "init", "model", "draw", "random_head", "client", "n", "lr", "epochs", "loss"}
    | {"loss_of", "divergence", "ratio", "clients", "distance", "sgd"}  # sgd is replaced by its private form
)
"""what a method may use of a client's bench; only `sgd` reads the data"""
REFUSES = {
    "class_counts": "the number of samples of each class",
    "batches": "batches",
    "descend": "gradients of parameters outside a network",
    "window": "a part of the samples",
    "hold_out": "samples to validate on",
    "freeze": "outputs of a network",
    "features": "features",
    "labels": "targets",
    "class_means": "class means",
}
"""how the refusal names each primitive; one that is in neither list is refused by its own name"""


class DPSGD(Mechanism):
    """Clips each example's gradient, adds noise to their sum, and draws batches by Poisson sampling."""

    name = "dp-sgd"
    unit = "example"
    messages = (Record,)
    relation = "one example of a client without effect, the number of its examples known"
    hides_sizes = False

    def protect(self, down: Record, up: Record, *, classes: int, seed: int, client: int, t: int) -> Record:
        return up  # it was made by private training

    def bench(self, plan: Plan, local: ClientBench, kind: str) -> Local:
        """A bench whose only access to the data is private training, and only in `fit`: epsilon covers no more."""
        training = PrivateTraining(self, plan, local, plan.epochs_accounted if kind == "fit" else 0)
        refusal = "its clients need {}, and only plain training protects single examples"
        return restrict_bench(
            local, ALLOWS, {"sgd": training.sgd}, lambda name: refusal.format(REFUSES.get(name, name))
        )

    def cost(self, plan: Plan, client: int) -> Releases:
        """The steps of a round, with credit for sampling: each step draws every example independently, in secret."""
        n = plan.data.sizes(client)[0]
        if not n:  # a client elsewhere, which does its own accounting
            return Releases(self.noise, 1.0, 0)
        if plan.epochs_accounted is None:
            raise ConfigError("privacy.level is 'example', but no rehearsal has counted how often clients train.")
        steps = messages_of(plan) * plan.epochs_accounted * steps_per_epoch(n, plan.experiment.train)
        return Releases(self.noise, batch_size(n, plan.experiment.train) / n, steps)


def steps_per_epoch(n: int, train: Train) -> int:
    return n // train.batch if train.drop_last else -(-n // train.batch)


def batch_size(n: int, train: Train) -> int:
    """The expected batch size with `n` samples, each drawn independently."""
    return min(n, train.batch)


class PrivateTraining:
    """One client's training in one round; refuses more than `epochs` epochs, unless that is None."""

    def __init__(self, mechanism: DPSGD, plan: Plan, local: ClientBench, epochs: int | None) -> None:
        self._mechanism = mechanism
        self._plan = plan
        self._local = local
        self._left = epochs
        self._data = samples_on(plan.data.client(local.client).train, plan.device)
        self._secret = noise_source(mechanism.source, plan.experiment.seed, local.client, local.t)

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
        """Train the model, or `only` parts of it; every step draws a new Poisson sample.

        `pull` and `shift` are added to gradients that are already private: a method can only compute them from private
        results.
        """
        if any(each is not None for each in (loss, project, clip)) or len(models) != 1:
            raise AccountingError("it trains in a way of its own, so the gradients of single examples are not known")
        parts = parts_of(models, only)
        if not any(True for part in parts for _ in part.parameters()):
            return 0
        passes = self._spend(int(self._local.epochs if epochs is None else epochs))
        model, body = halves(models, parts)
        x = self._data.x if body is None else self._local.features(body)
        steps = passes * steps_per_epoch(len(x), self._plan.experiment.train)
        with self._local.clock("training"), train_only(models, parts):
            rates = rates_of(self._plan.experiment.train, self._local.lr if lr is None else lr)
            self._descend(model, parts, x, steps, rates, terms_of(models[0], pull, shift))
        return steps

    def _spend(self, epochs: int) -> int:
        if self._left is not None:
            self._left -= epochs
            if self._left < 0:
                raise AccountingError("it trains for more epochs than in the rehearsal that epsilon was computed from")
        return epochs

    def _descend(
        self, model: nn.Module, parts: Sequence[nn.Module], x: Tensor, steps: int, rates: Rates, terms: Terms | None
    ) -> None:
        from opacus import GradSampleModule
        from opacus.optimizers import DPOptimizer
        from opacus.validators import ModuleValidator

        train = self._plan.experiment.train
        n = len(x)
        size = batch_size(n, train)
        for part in parts:
            part.train()
            if ModuleValidator.validate(part):
                raise AccountingError("its network has layers that look at several examples at once, such as BatchNorm")
        weights = [p for part in parts for p in part.parameters()]
        optimizer = DPOptimizer(
            _Steps(weights, Optimizer(weights, rates, terms)),
            noise_multiplier=0.0,  # Opacus uses torch's predictable generators: `_add_noise` adds it instead
            max_grad_norm=self._mechanism.clip,
            expected_batch_size=size,
        )
        optimizer.attach_step_hook(lambda _: self._add_noise(weights, size))
        sampled = GradSampleModule(model)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Full backward hook is firing")  # inputs need no gradient
            for _ in range(steps):
                i = move_to(poisson_sample(n, size / n, self._secret), self._plan.device)
                self._local.samples[0] += size  # the actual number is secret
                optimizer.zero_grad()
                if len(i):
                    self._local.objective.loss(sampled(x[i]), self._data.y[i]).backward()
                _tidy(weights, len(i))
                optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        sampled.to_standard_module()

    def _add_noise(self, weights: Sequence[nn.Parameter], size: int) -> None:
        """Add noise to the mean of the clipped gradients; one example changes their sum by at most the clip."""
        scale = self._mechanism.noise * self._mechanism.clip / size
        for p in weights:
            assert p.grad is not None  # Opacus has just written it
            p.grad += move_to(scale * gaussian(p.shape, self._secret), self._plan.device).to(p.dtype)


class _Steps(torch.optim.Optimizer):
    """Our optimizer, as Opacus calls one: it only sees gradients that are already private."""

    def __init__(self, weights: Sequence[nn.Parameter], ours: Optimizer) -> None:
        super().__init__(weights, {})
        self._weights = weights
        self._ours = ours

    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._ours.step_along([p.grad for p in self._weights])


def _tidy(weights: Sequence[nn.Parameter], n: int) -> None:
    """Each weight's gradient for each of `n` examples; non-finite values, which can't be clipped, become zero."""
    for p in weights:
        slopes: Tensor = getattr(p, "grad_sample") if n else p.new_zeros(0, *p.shape)  # noqa: B009
        p.grad_sample = slopes.nan_to_num(0.0, 0.0, 0.0)  # pyright: ignore[reportAttributeAccessIssue]
