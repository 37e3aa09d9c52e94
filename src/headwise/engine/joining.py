"""New clients, which took no part in training: the model that each gets, and how good it is.

An epoch of adaptation is one of `train.epochs` in the method's own training, at the learning rate without decay. Other
training phases of a method, such as FedRep's `head_epochs`, also run here. `passes` counts everything.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ..contract.benches import Predictor
from ..log.metrics import Score
from ..params import Params
from ..records import Record, map_tensors
from ..seeds import seed_of
from .client.client_bench import ClientBench
from .client.jobs import make_first_state, measure_model
from .client.scoring import summarize_clients
from .host import move_to
from .plan import Plan
from .server_bench import ServerBench, broadcasts

EPOCHS = (0, 1, 5)
"""epochs of adaptation after which newcomers are measured"""


class Adapted(NamedTuple):
    """A newcomer's model, and how many passes over its samples it took."""

    model: Predictor
    passes: float


class Offer(NamedTuple):
    """What the server has for a new client."""

    down: Record
    """its first download"""
    whole: Params | None
    """the global model, if the method has one that fits every client"""


def offer(plan: Plan, server: Record, client: int, t: int) -> Offer:
    """The server's half, after round t: what it sends a new client."""
    central = ServerBench(plan, t, "join")
    down = broadcasts(plan, server, [client], central)[client]
    one = len(plan.models) == 1 and plan.server_model is None  # else it may not fit this client's network
    common = plan.method.global_model(server, central) if one else None
    return Offer(down, None if common is None else common.params())


def accept(plan: Plan, given: Offer, client: int, t: int, epochs: int) -> Adapted:
    """The client's half: its model after this many epochs on its own samples. It seeds torch's own generator."""
    local = _make_bench(plan, client, t, epochs)
    me, down = (map_tensors(r, lambda x: move_to(x, plan.device)) for r in (make_first_state(plan, client), given.down))
    whole = given.whole and given.whole.map(lambda x: move_to(x, plan.device))
    torch.default_generator.manual_seed(seed_of(plan.experiment.seed, "torch", "join", client, t))
    model = plan.method.join(me, down, whole, local)  # it stays with the client, so it needs no protection
    return Adapted(model, local.samples[0] / max(local.n, 1))


def join(plan: Plan, server: Record, client: int, t: int, epochs: int) -> Adapted:
    """The model of a new client, from the server's state after round t and its own samples."""
    return accept(plan, offer(plan, server, client, t), client, t, epochs)


def measure_client(plan: Plan, client: int, model: Predictor) -> Score | None:
    """Its scores on the client's test samples."""
    return measure_model(plan, client, plan.experiment.rounds, model)[0]


def join_all(plan: Plan, server: Record, t: int) -> dict[str, Any]:
    """Scores of every newcomer after each number of `EPOCHS`, next to local training on the same samples."""
    rows: list[dict[str, Any]] = []
    for epochs in EPOCHS:
        rows.append(_row(plan, "joined", epochs, lambda c, e=epochs: join(plan, server, c, t, e)))
    for epochs in EPOCHS[1:]:
        rows.append(_row(plan, "alone", epochs, lambda c, e=epochs: _train_alone(plan, c, t, e)))
    rounds = max(1, round(plan.experiment.rounds * plan.experiment.sampling.average))
    rows.append(_row(plan, "standalone", rounds * plan.experiment.train.epochs, lambda c: _standalone(plan, c, rounds)))
    return {"round": t, "clients": list(plan.newcomers), "rows": rows}


def _row(plan: Plan, who: str, epochs: float, make: Any) -> dict[str, Any]:
    """One kind of model over all newcomers: its metrics, and each newcomer's own."""

    def one(client: int) -> tuple[float, Score | None]:
        adapted: Adapted = make(client)
        return adapted.passes, measure_client(plan, client, adapted.model)

    with torch.random.fork_rng(devices=[]):
        done = [one(c) for c in plan.newcomers]
    scores = {c: score for c, (_, score) in zip(plan.newcomers, done, strict=True) if score}
    passes = sum(p for p, _ in done) / len(done)
    own = [scores.get(c) for c in plan.newcomers]
    return {
        "model": who,
        "epochs": epochs,
        "passes": round(passes, 2),
        **summarize_clients(scores, plan.metric),
        "each": own,
    }


def _make_bench(plan: Plan, client: int, t: int, epochs: int) -> ClientBench:
    local = ClientBench(plan, client, t, purpose="join", kept=Params(), trained=0, epochs=epochs)
    local.lr = plan.experiment.train.lr  # its own training begins only now
    return local


def _train_alone(plan: Plan, client: int, t: int, epochs: int) -> Adapted:
    """Local training: the initial model after as many epochs on the same samples, in the same order."""
    local = _make_bench(plan, client, t, epochs)
    m = local.init()
    local.sgd(m)
    return Adapted(m, local.samples[0] / max(local.n, 1))


def _standalone(plan: Plan, client: int, rounds: int) -> Adapted:
    """Bit for bit the model of the method standalone, if this client trains in each of these rounds."""
    state = None
    passes = 0.0
    for t in range(1, rounds + 1):
        local = ClientBench(plan, client, t, purpose="fit", kept=Params(), trained=t - 1)
        m = local.init() if state is None else local.model(state)
        local.sgd(m)
        state = m.state()
        passes = passes + local.samples[0] / max(local.n, 1)
    return Adapted(m, passes)  # pyright: ignore[reportPossiblyUnboundVariable]
