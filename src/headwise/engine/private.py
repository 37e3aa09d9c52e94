"""Training in which every single example is protected: DP-SGD, by Opacus.

Abadi et al., *Deep Learning with Differential Privacy*, CCS 2016. https://arxiv.org/abs/1607.00133
What leaves a client may then be anything, for it is made of parameters trained this way and of nothing else: whatever
a method asks of the data but plain training is refused.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..errors import AccountingError
from ..models.split import SplitModel
from .bench import ClientBench
from .devices import on
from .kernels.plain import learning
from .options import Train
from .randomness import chosen, gaussian, source_of


def steps_per_epoch(n: int, train: Train) -> int:
    """How many steps stand for one pass over `n` samples."""
    return n // train.batch if train.drop_last else -(-n // train.batch)


def batch_size(n: int, train: Train) -> int:
    """How many of `n` samples are in a step's batch on average: each of them is drawn by itself."""
    return min(n, train.batch)


class PrivateBench(ClientBench):
    """A client's workbench whose only way to the data is plain training, and that is private."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        ClientBench.__init__(self, *args, **settings)
        self._secret = source_of(self._plan.privacy, self._plan.seed, self.client, self.t)
        self._left = self._plan.epochs_accounted if settings["purpose"] == "fit" else 0  # no other training is counted
        self._clip = self._plan.privacy.clip or 0.0  # there is one, or this bench would not be asked for

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
        passes = self._spend(self.epochs if epochs is None else epochs)
        x = self._train.x
        if isinstance(model, SplitModel) and parts == (model.head,):
            model, x = model.head, ClientBench.features(self, model.body)
        steps = passes * steps_per_epoch(self.n, self._plan.train)
        with self.clock("training"), learning(models, parts):
            self._descend(model, parts, x, steps, self.lr if lr is None else lr)
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

        train, size = self._plan.train, batch_size(self.n, self._plan.train)
        for part in parts:
            part.train()
            if ModuleValidator.validate(part):
                raise AccountingError("its network has layers that look at several examples at once, such as BatchNorm")
        weights = [p for part in parts for p in part.parameters()]
        optimiser = DPOptimizer(
            torch.optim.SGD(weights, lr=lr, momentum=train.momentum, weight_decay=train.weight_decay),
            noise_multiplier=0.0,  # Opacus draws from torch's generators, which can be predicted: noise is added below
            max_grad_norm=self._clip,
            expected_batch_size=size,
        )
        optimiser.attach_step_hook(lambda _: self._add_noise(weights, size))
        sampled = GradSampleModule(model)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Full backward hook is firing")  # inputs need no gradient
            for _ in range(steps):
                i = on(chosen(self.n, size / self.n, self._secret), self._plan.device)
                self.samples[0] += size  # how many were drawn is nobody's business
                optimiser.zero_grad()
                _slopes(sampled, weights, x[i], self._train.y[i])
                optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        sampled.to_standard_module()

    def _add_noise(self, weights: Sequence[nn.Parameter], size: int) -> None:
        """To the mean of the clipped gradients, of which one example moves the sum by at most the clip."""
        scale = self._plan.privacy.noise * self._clip / size
        for p in weights:
            assert p.grad is not None  # Opacus has just written it
            p.grad += on(scale * gaussian(p.shape, self._secret), self._plan.device).to(p.dtype)

    # -- everything else that a method can ask of the data
    @property
    def class_counts(self) -> Tensor:
        """Refused."""
        self._refuse("the number of samples of each class")

    @property
    def validation(self) -> NoReturn:
        """Refused."""
        self._refuse("samples to validate on")

    def batches(self, *args: Any, **settings: Any) -> NoReturn:
        """Refused."""
        self._refuse("batches")

    def descend(self, *args: Any, **settings: Any) -> NoReturn:
        """Refused."""
        self._refuse("gradients of something that is no network")

    def window(self, share: float) -> NoReturn:
        """Refused."""
        self._refuse("a part of the samples")

    def hold_out(self, share: float) -> NoReturn:
        """Refused."""
        self._refuse("samples to validate on")

    def features(self, body: nn.Module) -> NoReturn:
        """Refused."""
        self._refuse("features")

    def class_means(self, body: nn.Module) -> NoReturn:
        """Refused."""
        self._refuse("class means")

    def _refuse(self, what: str) -> NoReturn:
        raise AccountingError(f"its clients need {what}, and only plain training protects single examples")


def _slopes(model: nn.Module, weights: Sequence[nn.Parameter], x: Tensor, y: Tensor) -> None:
    """Let each weight have its gradient for each example; what is not finite, and no clip could hold, is nothing."""
    if len(x):
        cross_entropy(model(x), y).backward()
    for p in weights:
        slopes: Tensor = getattr(p, "grad_sample") if len(x) else p.new_zeros(0, *p.shape)  # noqa: B009
        p.grad_sample = slopes.nan_to_num(0.0, 0.0, 0.0)  # pyright: ignore[reportAttributeAccessIssue]
