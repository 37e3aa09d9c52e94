"""FedGMH — Sun and Ni, *FedGMH: research on label interference elimination via global multi-head*, 2026.
https://doi.org/10.11959/j.issn.1000-0801.2026005

    paper      here         meaning
    phi_m      me.phi       client m's own feature extractor; it never leaves the client
    h_m        me.h         its personal head
    psi_m      me.psi       its critical head parameters; None until it first takes part
    h_s        heads[s]     the global head of label s, trained only on class means of label s
    f_m^s      up.means     mean feature of client m's samples of label s
    beta       beta         share of critical parameters
    eta_h      head_lr      learning rate of the global heads

Departs from the paper: all heads share one random initialization; the paper only says random. Where the public code
differs from the paper, the paper is the default and the code's rule an option; the preset `fedgmh@code` sets them all.
The ablations with one head (`@o`, `@oa`) take one step per round on all class means: if every step of rate 1 pulled
the head to another label, the head and the bodies trained with it would grow without bound.

Read: the paper and its authors' code (https://github.com/youcaihua1/FedGMH).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from headwise.authoring import (
    Central, ClassMeans, Local, Method, NonNegative, Params, Predictor, Record, Reply, SplitModel, Unit, Update,
    descend, mark_largest,
)  # fmt: skip


class Heads(Record):
    """Global heads by label; a single global head has the label -1."""

    heads: dict[int, Params]


class Own(Record):
    """A client's body, its head, and which of the head's parameters are critical."""

    phi: Params
    h: Params
    psi: Params | None


ONE = -1  # the label of the single head, in variants that have one


@dataclass(frozen=True)
class FedGMH(Method[Heads, Own, Heads, ClassMeans]):
    """One global head per label; a client merges those of its labels into the critical parameters of its own head."""

    family = "server-trained head"
    tasks = ("classification",)
    travels = "heads of the client's labels down, class means up"
    stays = "whole model"
    traffic_down = "c * L if heads == 'per_label' else L"
    traffic_up = "c * (K + 1)"
    cost = 1.4
    shows = {"me.psi": "client class feature", "server.heads": "label class feature"}
    heterogeneous = "same head"
    presets = {
        "o": {"heads": "one", "server_step": "mean"},
        "a": {"merge": "average"},
        "oa": {"heads": "one", "merge": "average", "server_step": "mean"},
        "code": {
            "mask": "critical_local",
            "score": "squared",
            "scope": "tensor",
            "zero_fallback": True,
            "refresh": "all",
        },
    }

    beta: Unit = 0.5
    """share of the head's parameters that are critical"""
    head_lr: NonNegative = 1.0
    """learning rate of the global heads"""
    heads: Literal["per_label", "one"] = "per_label"
    """a global head for each label, or one for all (GMH-o)"""
    merge: Literal["critical", "average", "replace"] = "critical"
    """what a client takes: the critical parameters, half of each (GMH-a), or everything, as the code's GMH-a does"""
    mask: Literal["critical_global", "critical_local"] = "critical_global"
    """which parameters become global: the critical ones, or (code) the others"""
    score: Literal["product", "squared"] = "product"
    """importance |change x value|, or (code) |change^2 x value|"""
    scope: Literal["joint", "tensor"] = "joint"
    """rank weights and biases together, or (code) each on its own"""
    zero_fallback: bool = False
    """(code) if the threshold is 0, every parameter that changed at all is critical"""
    first: Literal["adopt", "keep"] = "adopt"
    """a client's head in its first participation: the global combination, or its own"""
    server_step: Literal["per_proto", "mean"] = "per_proto"
    """step the global heads on each class mean, or once on the mean loss of a round"""
    refresh: Literal["selected", "all"] = "selected"
    """which clients merge heads in a round: those selected, or (code) all"""

    def server_init(self, central: Central) -> Heads:
        labels = range(central.classes) if self.heads == "per_label" else [ONE]
        return Heads(dict.fromkeys(labels, central.init().params("head")))

    def broadcast(self, server: Heads, client: int, central: Central) -> Heads:
        labels = central.labels(client) if self.heads == "per_label" else [ONE]
        return Heads({s: server.heads[s] for s in labels})

    def client_init(self, local: Local) -> Own:
        m = local.init()
        return Own(m.state("body"), m.state("head"), None)

    def local_update(self, me: Own, down: Heads, local: Local) -> Update[ClassMeans, Own]:
        m = self._merge(me, down, local)
        before = m.state("head")
        trained = local.sgd(m) > 0  # the whole model; False if `drop_last` leaves no batch
        psi = self._critical(before, m.state("head")) if self.merge == "critical" else None
        up = local.class_means(m.body).where(trained)  # Eqs. (4), (5)
        return Update(up, Own(m.state("body"), m.state("head"), psi), m)

    def personalize(self, me: Own, down: Heads, local: Local) -> Predictor:
        return self._merge(me, down, local)

    def updates_idle(self) -> bool:
        return self.refresh == "all"

    def idle_update(self, me: Own, down: Heads, local: Local) -> Own:
        return Own(me.phi, self._merge(me, down, local).state("head"), me.psi)

    def aggregate(self, server: Heads, replies: Sequence[Reply[ClassMeans]], central: Central) -> Heads:
        m = central.init()
        heads = dict(server.heads)
        given: dict[int, list[tuple[Tensor, Tensor]]] = {}

        def loss(h: Params, proto: tuple[Tensor, Tensor]) -> Tensor:
            return cross_entropy(m.head_given(h)(proto[0]), proto[1])

        for r in replies:  # client order, then label order
            for i, label in enumerate(r.up.labels):
                proto = r.up.means[[i]], r.up.labels[[i]].long()
                given.setdefault(int(label) if self.heads == "per_label" else ONE, []).append(proto)
        for s, protos in given.items():
            if self.server_step == "mean":
                protos = [(torch.cat([f for f, _ in protos]), torch.cat([y for _, y in protos]))]
            heads[s] = descend(heads[s], loss, protos, self.head_lr)  # Eq. (6): h_s <- h_s - eta_h grad l(h_s; f, s)
        return Heads(heads)

    def _merge(self, me: Own, down: Heads, local: Local) -> SplitModel:
        """The client's model with its head updated from the global ones, Eq. (9), (10) or (11)."""
        combined = self._combine(down, local)
        if self.merge == "average":
            h = 0.5 * (me.h + combined)  # Eqs. (10), (11)
        elif me.psi is None or self.merge == "replace":
            h = me.h if self.merge == "critical" and self.first == "keep" else combined
        else:
            h = Params({k: torch.where(me.psi[k], combined[k], t) for k, t in me.h.items()})  # Eq. (9)
        return local.model(me.phi | h)

    def _combine(self, down: Heads, local: Local) -> Params:
        """The sum over the client's labels of |D_m^s| / |D_m| h_s, in Eq. (9)."""
        if self.heads == "one":
            return down.heads[ONE]
        total = next(iter(down.heads.values())).zeros()
        for s, h_s in down.heads.items():
            total = total + local.class_counts[s].item() / local.n * h_s
        return total

    def _critical(self, before: Params, after: Params) -> Params:
        """Algorithm 1: which parameters become global at the next merge."""
        moved = after - before  # Eq. (7)
        scores = (moved * moved if self.score == "squared" else moved) * after  # Eq. (8)
        flat = {k: t.abs().flatten() for k, t in scores.items()}
        if self.scope == "joint":
            chosen = torch.split(self._mark_top(torch.cat(list(flat.values()))), [len(t) for t in flat.values()])
        else:
            chosen = tuple(self._mark_top(t) for t in flat.values())
        critical = {k: t.view(after[k].shape) for k, t in zip(flat, chosen, strict=True)}
        return Params(critical if self.mask == "critical_global" else {k: ~t for k, t in critical.items()})

    def _mark_top(self, scores: Tensor) -> Tensor:
        """True at the floor(beta L) largest scores; ties go to the first."""
        chosen = mark_largest(scores, self.beta)
        if self.zero_fallback and chosen.any() and scores[chosen].min() <= 1e-10:
            return scores > 1e-20
        return chosen
