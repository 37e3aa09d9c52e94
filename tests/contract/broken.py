"""Broken — methods that break the contract on purpose, each in one way; `check_method` must catch every one."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from headwise.authoring import Central, Local, Method, Nothing, Params, Predictor, Record, Reply, Shared, Update, mean
from headwise.methods.fedavg import FedAvg
from headwise.methods.fedgh import FedGH
from headwise.methods.fedper import FedPer, OwnHead
from headwise.methods.fedproto import FedProto
from headwise.methods.lg_fedavg import LGFedAvg
from headwise.methods.scaffold import Scaffold
from headwise.methods.standalone import OwnModel, Standalone
from headwise.settings.fields import NonNegative


class Mean:
    """FedAvg's server half in its shortest form, so that the breakage is the only difference."""

    shares = ""

    def server_init(self, central: Central) -> Shared:
        return Shared(central.init().params(self.shares))

    def broadcast(self, server: Shared, client: int, central: Central) -> Shared:
        return server

    def aggregate(self, server: Shared, replies: Sequence[Reply[Any]], central: Central) -> Shared:
        return Shared(mean((r.up.w for r in replies), (r.n for r in replies)))


@dataclass(frozen=True)
class Simple(Mean, Method[Shared, Nothing, Shared, Shared]):
    """FedAvg."""

    family: ClassVar[str] = "one global model"
    travels, stays, traffic_down, traffic_up, sums = "whole model", "nothing", "P", "P", "samples"
    client_init, local_update, personalize = FedAvg.client_init, FedAvg.local_update, FedAvg.personalize


class ChangesItsState(FedPer):
    def local_update(self, me: OwnHead, down: Shared, local: Local) -> Update[Shared, OwnHead]:
        me.h["head.bias"].add_(1)
        return FedPer.local_update(self, me, down, local)


class ChangesItsDownload(FedPer):
    def personalize(self, me: OwnHead, down: Shared, local: Local) -> Predictor:
        for t in down.w.values():
            t.mul_(0.9)
        return FedPer.personalize(self, me, down, local)


class ChangesTheServer(Simple):
    def aggregate(self, server: Shared, replies: Sequence[Reply[Shared]], central: Central) -> Shared:
        found = Mean.aggregate(self, server, replies, central)
        for name, t in server.w.items():
            t.copy_(found.w[name])
        return server


class ChangesAReply(Simple):
    def aggregate(self, server: Shared, replies: Sequence[Reply[Shared]], central: Central) -> Shared:
        replies[0].up.w["head.bias"].zero_()
        return Mean.aggregate(self, server, replies, central)


class ChangesTheInitialModel(FedAvg):
    def local_update(self, me: Nothing, down: Shared, local: Local) -> Update[Shared, Nothing]:
        next(iter(local._plan.models[0].parameters())).data.add_(0.1)  # type: ignore[attr-defined]
        return FedAvg.local_update(self, me, down, local)


class BodyAndHead(Record):
    w: Params
    h: Params


class Flat(Record):
    w: Params
    extra: torch.Tensor


class Leaks(Mean, Method[Shared, OwnHead, Shared, BodyAndHead]):
    """FedPer that uploads the head it says stays."""

    shares = "body"
    client_init, personalize = FedPer.client_init, FedPer.personalize

    def local_update(self, me: OwnHead, down: Shared, local: Local) -> Update[Any, OwnHead]:
        u = FedPer.local_update(self, me, down, local)  # type: ignore[arg-type]
        return Update(BodyAndHead(u.up.w, u.me.h), u.me, u.model)


class DropsRenamedKeys(FedAvg):
    """Its clients look for another name than the server sends, and keep the initial head."""

    def local_update(self, me: Nothing, down: Shared, local: Local) -> Update[Shared, Nothing]:
        m = local.model(down.w.select("body.") | down.w.select("classifier."))
        local.sgd(m)
        return Update(Shared(m.params()), me, m)

    def personalize(self, me: Nothing, down: Shared, local: Local) -> Predictor:
        return local.model(down.w.select("body."))


class LeaksOneRow(Mean, Method[Shared, OwnHead, Shared, Flat]):
    """The same, but one row of the head inside a longer tensor."""

    shares = "body"
    client_init, personalize = FedPer.client_init, FedPer.personalize

    def local_update(self, me: OwnHead, down: Shared, local: Local) -> Update[Any, OwnHead]:
        u = FedPer.local_update(self, me, down, local)  # type: ignore[arg-type]
        row = u.me.h["head.weight"][1]
        return Update(Flat(u.up.w, torch.cat([torch.zeros(3), row])), u.me, u.model)


class ServerDice(Simple):
    def aggregate(self, server: Shared, replies: Sequence[Reply[Shared]], central: Central) -> Shared:
        return Shared(Mean.aggregate(self, server, replies, central).w.map(lambda t: t + 0.01 * torch.randn_like(t)))


class ClientDice(FedAvg):
    def local_update(self, me: Nothing, down: Shared, local: Local) -> Update[Shared, Nothing]:
        u = FedAvg.local_update(self, me, down, local)
        return Update(Shared(u.up.w * (1 + 0.01 * random.random())), me, u.model)


class KeepsOnSelf(FedAvg):
    """Counts its trainings on self, and trains less and less."""

    def local_update(self, me: Nothing, down: Shared, local: Local) -> Update[Shared, Nothing]:
        calls = getattr(self, "calls", 0) + 1
        object.__setattr__(self, "calls", calls)
        m = local.model(down.w)
        local.sgd(m, lr=local.lr / calls)
        return Update(Shared(m.params()), me, m)


class ForgetsAtTheStart(Simple):
    """Keeps the step size on self, but resets it in round 1, so that whole runs look the same."""

    def aggregate(self, server: Shared, replies: Sequence[Reply[Shared]], central: Central) -> Shared:
        seen = 1 if central.t == 1 else getattr(self, "seen", 1) + 1
        object.__setattr__(self, "seen", seen)
        new = Mean.aggregate(self, server, replies, central)
        return Shared(server.w + (new.w - server.w) / seen)


class Gossips(FedAvg):
    """A client starts where the previous one ended, through a class variable."""

    last: ClassVar[dict[int, Params]] = {}

    def local_update(self, me: Nothing, down: Shared, local: Local) -> Update[Shared, Nothing]:
        u = FedAvg.local_update(self, me, Shared(self.last.get(local.t, down.w)), local)
        self.last.clear()
        self.last[local.t] = u.up.w
        return u


class Overhears(Simple):
    """The server uses what clients learned before their messages are checked."""

    heard: ClassVar[dict[int, Params]] = {}

    def local_update(self, me: Nothing, down: Shared, local: Local) -> Update[Shared, Nothing]:
        u = FedAvg.local_update(self, me, down, local)  # type: ignore[arg-type]
        self.heard[local.client] = u.up.w
        return u

    def aggregate(self, server: Shared, replies: Sequence[Reply[Shared]], central: Central) -> Shared:
        found = Shared(mean(self.heard[c] for c in sorted(self.heard)))
        self.heard.clear()
        return found


@dataclass(frozen=True)
class DeadOption(Simple):
    """FedAvg with an option that nothing reads."""

    mu: NonNegative = 0.1
    """does nothing"""


@dataclass(frozen=True)
class DeadChoice(Simple):
    """FedAvg with a choice that does the same as the default."""

    how: Literal["well", "slowly", "fast"] = "well"
    """nothing is faster"""

    def local_update(self, me: Nothing, down: Shared, local: Local) -> Update[Shared, Nothing]:
        m = local.model(down.w)
        local.sgd(m, lr=local.lr / 2 if self.how == "slowly" else None)
        return Update(Shared(m.params()), me, m)


class WrongDown(FedPer):
    traffic_down = "P"


class WrongUp(FedPer):
    traffic_up = "F + 1"


class NoFormula(FedPer):
    traffic_up = "2F"


class Disguised(Mean, Method[Shared, OwnModel, Shared, Shared]):
    """Sends and averages whole models, and never uses them."""

    travels, stays, uploaded_fields = "whole model", "whole model", ("w",)
    client_init, personalize = Standalone.client_init, Standalone.personalize

    def local_update(self, me: OwnModel, down: Shared, local: Local) -> Update[Shared, OwnModel]:
        m = local.model(me.w)
        local.sgd(m)
        return Update(Shared(m.params()), OwnModel(m.state()), m)


class DisguisedAndSlow(Disguised):
    """The same with another step size, so that it is not quite Standalone."""

    def local_update(self, me: OwnModel, down: Shared, local: Local) -> Update[Shared, OwnModel]:
        m = local.model(me.w)
        local.sgd(m, lr=local.lr / 2)
        return Update(Shared(m.params()), OwnModel(m.state()), m)


class OtherRecord(Simple):
    def local_update(self, me: Nothing, down: Shared, local: Local) -> Update[Any, Nothing]:
        u = FedAvg.local_update(self, me, down, local)  # type: ignore[arg-type]
        return Update(OwnModel(u.up.w), me, u.model)


@dataclass(frozen=True)
class WrongStays(FedPer):
    stays: ClassVar[str] = "nothing"


@dataclass(frozen=True)
class WrongTravels(Standalone):
    travels: ClassVar[str] = "head"


@dataclass(frozen=True)
class WrongLeaves(FedPer):
    uploaded_fields: ClassVar[tuple[str, ...]] = ("w",)


@dataclass(frozen=True)
class WrongShows(FedPer):
    shows: ClassVar[dict[str, str]] = {"me.w": "client"}


@dataclass
class Thawed(Method[Nothing, OwnModel, Nothing, Nothing]):
    family, travels, stays = "no sharing", "nothing", "whole model"
    server_init, broadcast, aggregate = Standalone.server_init, Standalone.broadcast, Standalone.aggregate
    client_init, local_update, personalize = Standalone.client_init, Standalone.local_update, Standalone.personalize


@dataclass(frozen=True)
class Undocumented(FedAvg):
    mu: float = 1.0
    """an option"""


@dataclass(frozen=True)
class NoHelp(FedAvg):
    """An option without help text."""

    mu: float = 1.0


@dataclass(frozen=True)
class Talkative(FedAvg):
    """Says one thing. And then another."""


class NeedsEverybody(Simple):
    def aggregate(self, server: Shared, replies: Sequence[Reply[Shared]], central: Central) -> Shared:
        return Shared(mean((replies[c].up.w for c in range(central.N)), [1.0] * central.N))


class Heads(Record):
    w: Params
    heads: dict[int, Params]


class KnowsOnlyItsOwn(Method[Heads, Nothing, Shared, Shared]):
    """Sends a client its last model, which a client that never took part does not have."""

    def server_init(self, central: Central) -> Heads:
        return Heads(central.init().params(), {})

    def broadcast(self, server: Heads, client: int, central: Central) -> Shared:
        return Shared(server.w if central.t == 1 and not server.heads else server.heads[client])

    def aggregate(self, server: Heads, replies: Sequence[Reply[Shared]], central: Central) -> Heads:
        return Heads(server.w, {**server.heads, **{r.client: r.up.w for r in replies}})

    client_init, local_update, personalize = FedAvg.client_init, FedAvg.local_update, FedAvg.personalize


class DividesByTheSpread(FedAvg):
    """Normalizes by the spread of a client's features, which a single sample does not have."""

    def local_update(self, me: Nothing, down: Shared, local: Local) -> Update[Shared, Nothing]:
        m = local.model(down.w)
        features = local.features(m.body)
        scale = features.std(0).mean() if len(features) > 1 else features.new_tensor(float("nan"))
        return Update(Shared(m.params().map(lambda t: t * scale / scale)), me, m)


class SendsStatistics(FedAvg):
    def local_update(self, me: Nothing, down: Shared, local: Local) -> Update[Shared, Nothing]:
        m = local.model(down.w)
        local.sgd(m)
        return Update(Shared(m.state()), me, m)


class FalselyFlexible(FedAvg):
    heterogeneous = "any"


class FalselyFlexibleHead(LGFedAvg):
    heterogeneous = "any"


class OneScoreTooMany(FedAvg):
    def personalize(self, me: Nothing, down: Shared, local: Local) -> Predictor:
        m = local.model(down.w)
        return lambda x: torch.nn.functional.pad(m(x), (0, 1), value=-9.0)


class NeverTrains(FedAvg):
    def local_update(self, me: Nothing, down: Shared, local: Local) -> Update[Shared, Nothing]:
        return Update(down, me, local.model(down.w))


class KnowsTooMuch(FedGH):
    sums = "labels"


class KnowsLessThanItSays(Simple):
    sums = "none"


class CountsOtherwise(Simple):
    sums = "clients"


class CountsBySamples(Scaffold):
    sums = "samples"


class HasNoMean(FedProto):
    sums = "clients"


class ClaimsQuantities(FedProto):
    tasks = ("classification", "regression")


class ClaimsLabels(FedAvg):
    """Climbs where it should descend."""

    def local_update(self, me: Nothing, down: Shared, local: Local) -> Update[Shared, Nothing]:
        m = local.model(down.w)
        local.sgd(m, loss=lambda x, y: -local.loss(m, x, y))
        return Update(Shared(m.params()), me, m)


class Misspelt(FedAvg):
    tasks: ClassVar[Any] = ("clasification",)


class LooksAtTheOthers(Simple):
    """Reads other clients' samples, which works in one process but not at sites."""

    def local_update(self, me: Nothing, down: Shared, local: Any) -> Update[Shared, Nothing]:
        update = Simple.local_update(self, me, down, local)
        return dataclasses.replace(update, up=Shared(update.up.w * float(1 + local._plan.data.x.mean())))


BREAKAGES: dict[type[Method[Any, Any, Any, Any]], tuple[str, str]] = {
    ChangesItsState: ("inputs stay unchanged", "local_update changed the record 'me'"),
    ChangesItsDownload: ("inputs stay unchanged", "personalize changed the record 'down'"),
    ChangesTheServer: ("inputs stay unchanged", "aggregate changed the record 'server'"),
    ChangesAReply: ("inputs stay unchanged", "aggregate changed the record 'reply of client 0'"),
    ChangesTheInitialModel: ("inputs stay unchanged", "initial model"),
    DropsRenamedKeys: ("download is used", "no client uses w/head.weight, w/head.bias of its download"),
    Leaks: ("nothing private is sent", "client 0 sends its 'h'"),
    LeaksOneRow: ("nothing private is sent", "client 0 sends its 'h'"),
    ServerDice: ("same seed, same bits", "a second run differs"),
    ClientDice: ("same seed, same bits", "a second run differs"),
    KeepsOnSelf: ("same seed, same bits", "a second run differs"),
    ForgetsAtTheStart: ("resumed run, same bits", "another result than an uninterrupted run"),
    Gossips: ("any order of answers, same bits", "the order of answers changes the result"),
    LooksAtTheOthers: ("any group of clients, same bits", "another result at its own site than among others"),
    DeadOption: ("every hyperparameter counts", "no value of 'mu' changes anything"),
    DeadChoice: ("every hyperparameter counts", "how = 'fast' changes nothing"),
    WrongDown: ("bytes as the card says", "down is 'P', which is 236 bytes, but 140 were sent"),
    WrongUp: ("bytes as the card says", "up is 'F [+] 1', which is 144 bytes, but 140 were sent"),
    NoFormula: ("bytes as the card says", "the formula '2F' can't be read"),
    KnowsTooMuch: ("sums as the card says", "sums is 'labels', but what the server needs is 'none'"),
    KnowsLessThanItSays: ("sums as the card says", "sums is 'none', but what the server needs is 'samples'"),
    CountsOtherwise: ("sums as the card says", "sums is 'clients', but what the server needs is 'samples'"),
    CountsBySamples: ("sums as the card says", "sums is 'samples', but what the server needs is 'clients'"),
    HasNoMean: ("sums as the card says", "sums is 'clients', but what the server needs is 'labels'"),
    Disguised: ("differs from local training", "the models they would have alone"),
    DisguisedAndSlow: ("differs from local training", "makes no difference to any other"),
    OtherRecord: ("messages survive encoding", "whose up is a Shared, but returned one with an Own"),
    WrongStays: ("card", "stays is 'nothing', but it keeps OwnHead"),
    WrongTravels: ("card", "travels is 'head', but it sends Nothing down and Nothing up"),
    WrongLeaves: ("card", "uploaded_fields names ..w"),
    WrongShows: ("card", "shows names ..me.w"),
    Thawed: ("card", "frozen=True"),
    Undocumented: ("documentation", "docstring of one sentence"),
    Talkative: ("documentation", "docstring of one sentence"),
    NoHelp: ("documentation", "write a string below mu"),
    NeedsEverybody: ("partial participation", "IndexError"),
    Overhears: ("failed clients leave no trace", "clients whose fault was 'stale' change the server's state"),
    KnowsOnlyItsOwn: ("clients that join late", "KeyError"),
    DividesByTheSpread: ("clients with few samples", "not finite"),
    OneScoreTooMany: ("clients with few samples", "shape .3, 5. for .3, 4."),
    SendsStatistics: ("BatchNorm", "sends 'body.1.num_batches_tracked' in 'w', but was not sent it"),
    FalselyFlexible: ("different networks", "FalselyFlexible failed at client .*body.0.weight has the shape"),
    FalselyFlexibleHead: ("different networks", "head.weight has the shape"),
    ClaimsQuantities: ("tasks as the card says", "failed at the server in round 1 .broadcast"),
    ClaimsLabels: ("tasks as the card says", "its card says multilabel, but its loss is .*, where a constant gives"),
    Misspelt: ("tasks as the card says", "tasks is .'clasification',., but must name some of classification"),
    NeverTrains: ("learns", "its best accuracy is 0.1"),
}
"""which check must catch each one, and a pattern for what it says"""
