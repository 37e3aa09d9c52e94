"""FedAvg's server half, for the many methods that only change the client half; optionally with a server optimizer.

A method defines what it shares (`shared`). How clients are weighted in the mean is an option: by their samples, unless
the method has another default. Robust rules, server optimizers and masked sums then work without further code.

Server optimizers: Reddi et al., *Adaptive Federated Optimization*, ICLR 2021, Algorithm 2. https://arxiv.org/abs/2003.00295
The clients' mean change serves as a gradient: momentum is FedAvgM (Hsu et al., 2019), adagrad is FedAdagrad,
adam is FedAdam, yogi is FedYogi.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, Literal, final

import torch
from torch import Tensor

from ..errors import ConfigError
from ..models.split import SplitModel
from ..params import Params
from ..records import Record
from ..settings.fields import Positive, Unit
from .benches import Central
from .method import C, Method, Reply, Sums, U

TAU = 1e-3  # adaptivity: keeps the adaptive optimizers' steps finite, as in the paper's experiments
BETA_2 = 0.99


class Shared(Record):
    """The part of the model that all clients share.

    >>> Shared(Params(a=torch.zeros(2))).w
    Params(a: (2,))
    """

    w: Params


class Averaged(Record):
    """The shared part, and the server optimizer's moments if it has any.

    >>> Averaged(Params(), m=None, v=None).m
    """

    w: Params
    m: Params | None
    v: Params | None


class GlobalModel(Method[Shared, C, Shared, U], Generic[C, U]):
    """One model for everybody, which the server keeps and sends to all clients; `aggregate` updates it.

    >>> class Slow(GlobalModel[Nothing, Shared]):  # what a client keeps, and sends
    ...     def aggregate(self, server, replies, central):
    ...         return Shared(0.5 * server.w + 0.5 * mean(r.up.w for r in replies))
    """

    def server_init(self, central: Central) -> Shared:
        return Shared(central.init().params())

    def global_model(self, server: Shared, central: Central) -> SplitModel | None:
        return central.model(server.w)


@dataclass(frozen=True, kw_only=True)
class Averaging(Method[Averaged, C, Shared, Shared], Generic[C]):
    """The server keeps what is shared and replaces it with the clients' mean.

    >>> @dataclass(frozen=True)
    ... class Plain(Averaging[Nothing]):  # what a client keeps
    ...     def local_update(self, me, down, local):
    ...         m = local.model(down.w)
    ...         local.sgd(m)
    ...         return Update(Shared(m.params()), me, m)
    >>> Plain(weights="clients").needs()
    'clients'
    """

    traffic_down: ClassVar[str] = "P"
    traffic_up: ClassVar[str] = traffic_down
    """as `traffic_down` unless a method says otherwise: clients return what they were sent, trained"""
    sums: ClassVar[Sums] = "samples"
    """the default of `weights`"""

    weights: Literal["samples", "clients"] = "samples"
    """how clients count in the server's mean: by their samples, or equally"""
    server_opt: Literal["none", "momentum", "adagrad", "adam", "yogi"] = "none"
    """how the server applies the clients' mean: directly, or as a step of FedAvgM, FedAdagrad, FedAdam or FedYogi"""
    server_lr: Positive = 1.0
    """learning rate of the server: 1 takes the mean itself; adaptive optimizers need about 0.01"""
    server_momentum: Unit = 0.9
    """momentum of the server's optimizer, if it has one"""

    def __init_subclass__(cls) -> None:
        if "traffic_down" in vars(cls):
            cls.traffic_up = vars(cls).get("traffic_up", cls.traffic_down)
        if "sums" in vars(cls):
            raise ConfigError(
                f"{cls.__name__}.sums is {cls.sums!r}, but how clients count in a mean is an option: "
                f'weights: Literal["samples", "clients"] = {cls.sums!r} makes it the default.'
            )
        cls.sums = cls.weights

    def shared(self, central: Central) -> Params:
        """The initial value of what all clients share; by default the whole model."""
        return central.init().params()

    @final
    def needs(self) -> Sums:
        """A mean, with this run's weights."""
        return self.weights

    @final
    def server_init(self, central: Central) -> Averaged:
        w = self.shared(central)
        moments = w.map(lambda t: torch.zeros_like(t, dtype=t.dtype if t.is_floating_point() else torch.float32))
        m = moments if self.server_opt != "none" else None
        v = moments.map(lambda t: t + TAU**2) if self.server_opt in ("adagrad", "adam", "yogi") else None
        return Averaged(w, m, v)

    @final
    def broadcast(self, server: Averaged, client: int, central: Central) -> Shared:
        return Shared(server.w)

    @final
    def aggregate(self, server: Averaged, replies: Sequence[Reply[Shared]], central: Central) -> Averaged:
        """w <- sum_k p_k w_k over this round's clients, with p_k = n_k/n or 1/K, or a robust rule instead.

        A round without replies changes nothing.
        """
        if not replies:
            return server
        server = _cut(server, replies[0].up.w)
        weights = [1 if self.weights == "clients" else r.n for r in replies]
        average = central.mean([r.up.w for r in replies], weights, server.w)
        if self.server_opt == "none" and self.server_lr == 1:
            return Averaged(average, None, None)
        return self._optimize(server, average)

    def global_model(self, server: Averaged, central: Central) -> SplitModel | None:
        """The shared model; a method with its own `shared` must override this if that is a whole model."""
        return central.model(server.w) if type(self).shared is Averaging[C].shared else None

    def _optimize(self, server: Averaged, average: Params) -> Averaged:
        """Algorithm 2: a step along the clients' mean change; integer counters are taken from the mean."""
        change = average - server.w
        beta = self.server_momentum
        if server.m is None:
            return Averaged(_move(server.w, change, self.server_lr, average), None, None)
        if server.v is None:  # FedAvgM: m <- beta m + change
            m = (beta * server.m).zip(change, torch.add)
            return Averaged(_move(server.w, m, self.server_lr, average), m, None)
        m = (beta * server.m).zip(change, lambda m, d: m + (1 - beta) * d)
        v = server.v.zip(change, self._second_moment)
        direction = m.zip(v, lambda m, v: m / (v.sqrt() + TAU))
        return Averaged(_move(server.w, direction, self.server_lr, average), m, v)

    def _second_moment(self, v: Tensor, d: Tensor) -> Tensor:
        if self.server_opt == "adagrad":
            return v + d * d
        if self.server_opt == "adam":
            return BETA_2 * v + (1 - BETA_2) * d * d
        return v - (1 - BETA_2) * d * d * torch.sign(v - d * d)


def _cut(server: Averaged, like: Params) -> Averaged:
    """The state without what clients no longer share: the last channels of each tensor, which they keep."""

    def cut(params: Params) -> Params:
        return Params({k: t[tuple(map(slice, like[k].shape))] for k, t in params.items() if k in like})

    return Averaged(cut(server.w), server.m and cut(server.m), server.v and cut(server.v))


def _move(w: Params, direction: Params, lr: float, average: Params) -> Params:
    return Params({k: t + lr * direction[k] if t.is_floating_point() else average[k] for k, t in w.items()})
