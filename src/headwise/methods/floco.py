"""Floco — Grinwald et al., *Federated Learning over Connected Modes*, NeurIPS 2024. https://arxiv.org/abs/2403.03333

    paper     here         meaning
    theta_m   down.ends    endpoint m of a simplex of heads
    alpha     alpha        a point of the simplex: the head sum_m alpha_m theta_m
    tau       tau          the round in which clients get a subregion, as a share of all rounds
    rho       rho          radius of a subregion
    beta_i    down.centre  client i's subregion: its centre

    (1)  until tau, a client draws alpha uniformly from the simplex for every batch, and uses the centre to predict
    (2)  in round tau everybody trains; kappa_i are the scores of client i's endpoints in a PCA with M components
    (3)  beta_i = projection of kappa_i on the simplex of size z, divided by z; z in (0, 1] has the lowest Riesz
         energy log mean over pairs of 1 / |beta_i - beta_j|^2
    (4)  then a client draws alpha from the L1 ball of radius rho around beta_i, and uses beta_i to predict

From its abstract and its authors' code (https://github.com/dennis-grinwald/floco, `server/floco.py`; FL-bench's file
has the same simplex and projection); the numbers are ours.

Departs from it: round tau counts as a round (code: everybody trains once more, for (2) only). The whole head is mixed
(code: the matrix of its last layer; all endpoints share its bias). Clients that were not there in round tau stay at
the centre. Floco+, which also trains a personal simplex, is left out.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from headwise.authoring import (
    Central, Count, Local, Method, Nothing, Params, Predictor, Record, Reply, Share, SplitModel, Unit, Update, mean,
    project_to_simplex,
)  # fmt: skip

SIZES = torch.linspace(1e-4, 1, 1000, dtype=torch.float64)
NEAREST = 1e-4  # a distance below counts as this

Eigen = tuple[Tensor, Tensor]


class Server(Record):
    """The shared body, the endpoints of the simplex, and the clients' subregions."""

    w: Params
    ends: dict[int, Params]
    centres: dict[int, Params]


class Down(Record):
    """The body, the endpoints, and the client's point [M]; whether it has a subregion."""

    w: Params
    ends: dict[int, Params]
    centre: Tensor
    placed: bool


class Up(Record):
    """A client's body and endpoints."""

    w: Params
    ends: dict[int, Params]


@dataclass(frozen=True)
class Floco(Method[Server, Nothing, Down, Up]):
    """A shared body with a simplex of shared heads, in which each client has a region of its own."""

    family = "aggregated head"
    tasks = ("classification",)
    travels = "body, several heads"
    stays = "nothing"
    traffic_down = "F + endpoints * L + endpoints + 1 / 4"  # a boolean takes one byte
    traffic_up = "F + endpoints * L"

    endpoints: Count = 5
    """M: heads at the corners of the simplex"""
    tau: Share = 0.4
    """when everybody trains and clients get their subregions, as a share of the rounds"""
    rho: Unit = 0.1
    """radius of a subregion"""

    def draws_everyone(self, t: int, rounds: int) -> bool:
        return t == math.ceil(self.tau * rounds)

    def server_init(self, central: Central) -> Server:
        ends = {i: central.random_head("floco", i) for i in range(self.endpoints)}
        return Server(central.init().params("body"), ends, {})

    def broadcast(self, server: Server, client: int, central: Central) -> Down:
        placed = client in server.centres
        centre = server.centres[client]["beta"] if placed else torch.full((self.endpoints,), 1 / self.endpoints)
        return Down(server.w, server.ends, centre, placed)

    def aggregate(self, server: Server, replies: Sequence[Reply[Up]], central: Central) -> Server:
        if not replies:
            return server
        n = [r.n for r in replies]
        ends = {i: mean((r.up.ends[i] for r in replies), n) for i in range(self.endpoints)}
        due = self.draws_everyone(central.t, central.T)
        centres = _place(replies) if due else server.centres
        return Server(mean((r.up.w for r in replies), n), ends, centres)

    def global_model(self, server: Server, central: Central) -> SplitModel | None:
        return central.model(server.w | mean(server.ends.values()))

    def local_update(self, me: Nothing, down: Down, local: Local) -> Update[Up, Nothing]:
        models = [local.model(down.w | head) for head in down.ends.values()]
        m = models[0]

        def loss(x: Tensor, y: Tensor) -> Tensor:
            heads = [a * other.live("head") for a, other in zip(self._draw(down, local), models, strict=True)]
            mixed = sum(heads[1:], start=heads[0])
            return local.loss_of(m.head_given(mixed)(m.body(x)), y)

        local.sgd(*models, only=[m.body, *(other.head for other in models)], loss=loss)
        ends = {i: other.params("head") for i, other in enumerate(models)}
        trained = local.model(m.params("body") | mean(ends.values(), map(float, down.centre)))
        return Update(Up(m.params("body"), ends), me, trained, keep=m)

    def personalize(self, me: Nothing, down: Down, local: Local) -> Predictor:
        return local.model(down.w | mean(down.ends.values(), map(float, down.centre)))

    def _draw(self, down: Down, local: Local) -> Tensor:
        """Eqs. (1) and (4)."""
        if not down.placed:
            point = torch.empty(self.endpoints).exponential_(generator=local.rng)
            return point / point.sum()
        direction = torch.rand(self.endpoints, generator=local.rng) * 2 - 1
        length = self.rho * torch.rand((), generator=local.rng)
        return down.centre + length * direction / direction.abs().sum()


def _place(replies: Sequence[Reply[Up]]) -> dict[int, Params]:
    """Eqs. (2) and (3)."""
    points = torch.stack([torch.cat([head.flatten() for head in r.up.ends.values()]) for r in replies]).double()
    kappa = _scores(points - points.mean(0), len(replies[0].up.ends))
    beta = min((project_to_simplex(kappa, z) / z for z in SIZES), key=_energy)
    return {r.client: Params(beta=b.float()) for r, b in zip(replies, beta, strict=True)}


def _scores(points: Tensor, components: int) -> Tensor:
    """[n, components]: the scores of centred points in a PCA; a component's largest score is positive."""
    values, vectors = cast(Eigen, torch.linalg.eigh(points @ points.T))  # pyright: ignore[reportUnknownMemberType]
    scores = (vectors * values.clamp(min=0).sqrt()).flip(1)[:, :components]
    largest = scores.gather(0, scores.abs().argmax(0, keepdim=True))
    padded = torch.zeros(len(points), components, dtype=points.dtype)
    padded[:, : scores.shape[1]] = scores * torch.where(largest < 0, -1.0, 1.0)
    return padded


def _energy(points: Tensor) -> float:
    if len(points) < 2:
        return 0.0
    apart = torch.pdist(points).clamp(min=NEAREST)
    return float(apart.square().reciprocal().mean().log())
