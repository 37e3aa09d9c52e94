"""The server's part in masked sums: it relays keys and shares between sites, and opens one sum of them all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from ...contract.method import record_types
from ...engine.client.jobs import Answer
from ...engine.plan import Plan
from ...errors import ClientError
from ...records import Packed, Record, RecordError
from ..transport.messages import Lost, Order, Report, SiteJob, SiteMessage, UnopenedError, pack_order
from .fixed_point import flat, kind_of, mean_of, shaped, weight_of
from .masking import Opened, members, where
from .protocol import Help, needed, opened
from .stages import (
    Asked,
    Counted,
    HelpAsked,
    HelpSaid,
    KeysAsked,
    KeysSaid,
    PartyKeys,
    SharesAsked,
    SharesSaid,
    by_party,
    letters,
    pack_stage,
    unpack_said,
)

T = TypeVar("T")

Exchange = Callable[
    [str, Mapping[int, SiteMessage]], Iterator[tuple[int, SiteMessage | Lost, Callable[[str | None], None]]]
]
"""sends the messages of a stage; each reply comes with a function that logs it"""
Reading = Callable[[int, SiteMessage], T]
"""parses a node's reply"""


class MaskedRound:
    """One round of training with masked sums."""

    def __init__(self, plan: Plan, run: str, experiment: str, site_jobs: Mapping[int, Sequence[SiteJob]]) -> None:
        self._plan, self._run, self._experiment, self._visits = plan, run, experiment, site_jobs
        self._t = next(iter(site_jobs.values()))[0].job.t
        self._clients = {n: tuple(sorted(v.job.client for v in each)) for n, each in site_jobs.items()}
        self._asked = len(site_jobs)
        self._before: Opened | None = None
        """whose sum an earlier attempt at this round opened: no other may be"""
        self.lost: dict[int, Lost] = {}
        """nodes that did not answer a stage before the last"""
        self.silent: list[int] = []
        """nodes that did not answer the last stage; they are in the sum all the same"""
        self.refused: dict[int, str] = {}
        """nodes whose answer was an error or unusable"""

    def play(self, exchange: Exchange, read: Reading[Report]) -> list[tuple[Answer, str]]:
        """Run all stages; return the answers of the nodes that stayed, with the mean in place of each upload.

        Raises `UnopenedError` if too few stayed.
        """
        self._exchange = exchange
        said = self._keys()
        nodes = sorted(said, key=self._clients.__getitem__)
        roster = tuple(PartyKeys(self._clients[n], said[n].cipher, said[n].mask) for n in nodes)
        dealt = self._shares(nodes, roster)
        reports = self._fit(nodes, dealt, read)
        sums = self._alike({n: r.masked for n, r in reports.items() if r.masked is not None})
        self._need("fit", len(sums))
        average = self._open(nodes, roster, dealt, reports, sums)
        found: list[tuple[Answer, str]] = []
        for node, report in reports.items():
            if node in sums:
                found += [(a if a.failure else replace(a, up=average), digest) for a, digest in report.answers]
            elif node not in self.refused:  # all of its clients failed
                found += [each for each in report.answers if each[0].failure]
        return found

    def _keys(self) -> dict[int, KeysSaid]:
        asked = {n: KeysAsked(self._t, clients) for n, clients in self._clients.items()}
        said = self._ask("keys", self._packed(asked), lambda node, message: unpack_said(message, KeysSaid))
        before = {s.opened for s in said.values()} - {None}
        if len(before) > 1:
            raise UnopenedError(f"the sites have opened round {self._t} for different clients: {before}")
        self._before = next(iter(before), None)
        if self._before is not None:  # leave out the same sites again
            known = {c for clients in self._before for c in clients}
            for node in [n for n in said if not known & set(self._clients[n])]:
                del said[node]
                self._asked -= 1
                self.lost[node] = Lost(f"round {self._t} was opened without it", "dropped")
        self._need("keys", len(said))
        return said

    def _shares(self, nodes: Sequence[int], roster: tuple[PartyKeys, ...]) -> dict[int, dict[int, bytes]]:
        """Shares by dealer and recipient, both as indices in the roster."""
        asked = {n: SharesAsked(self._t, self._clients[n], self._asked, roster) for n in nodes}

        def read(node: int, message: SiteMessage) -> dict[int, bytes]:
            found = by_party(unpack_said(message, SharesSaid).sealed)
            if found.keys() != set(range(len(nodes))) - {nodes.index(node)}:
                raise RecordError("these shares are not for all other sites")
            return found

        dealt = {nodes.index(n): found for n, found in self._ask("shares", self._packed(asked), read).items()}
        self._need("shares", len(dealt))
        return dealt

    def _fit(
        self, nodes: Sequence[int], dealt: Mapping[int, Mapping[int, bytes]], read: Reading[Report]
    ) -> dict[int, Report]:
        orders: dict[int, SiteMessage] = {}
        for me in dealt:
            sealed = letters({u: shares[me] for u, shares in dealt.items() if u != me})
            order = Order(self._run, self._experiment, self._visits[nodes[me]], sealed)
            orders[nodes[me]] = pack_order(order)

        def checked(node: int, message: SiteMessage) -> Report:
            report = read(node, message)
            if any(a.up is not None for a, _ in report.answers):
                raise RecordError("this report contains unmasked messages")
            if (report.masked is None) != all(a.failure for a, _ in report.answers):
                raise RecordError("this report has a masked sum but no successful client, or the reverse")
            if report.masked is not None:
                kind_of(report.masked)
            return report

        return self._ask("fit", orders, checked)

    def _alike(self, sums: dict[int, Packed]) -> dict[int, Packed]:
        """Keep the sums with the most common layout: others can't be added."""
        kinds = {n: kind_of(s) for n, s in sums.items()}
        most = Counter(kinds.values()).most_common(1)
        for node in [n for n, kind in kinds.items() if kind != most[0][0]]:
            self._refuse(node, "this masked sum has another layout than those of most sites")
        return {n: s for n, s in sums.items() if n not in self.refused}

    def _open(
        self,
        nodes: Sequence[int],
        roster: tuple[PartyKeys, ...],
        dealt: Mapping[int, Any],
        reports: Mapping[int, Report],
        sums: Mapping[int, Packed],
    ) -> Record:
        """The mean message of all clients in `sums`."""
        counted = {n: {a.client: a.n for a, _ in reports[n].answers if not a.failure} for n in sums}
        parties = {n: nodes.index(n) for n in sums}
        survivors = tuple(Counted(parties[n], tuple(sorted(counted[n]))) for n in sums)
        now = tuple(sorted(each.clients for each in survivors))
        if self._before not in (None, now):
            raise UnopenedError(f"round {self._t} can be opened for the clients {self._before} only, not for {now}")
        asked = {n: HelpAsked(self._t, self._clients[n], survivors) for n in sums}
        rest = dealt.keys() - set(parties.values())

        def read(node: int, message: SiteMessage) -> Help:
            said = unpack_said(message, HelpSaid)
            found = Help(by_party(said.keys), by_party(said.seeds))
            if found.keys.keys() != rest or found.seeds.keys() != set(parties.values()):
                raise RecordError("these are not the shares that were asked for")
            return found

        before = dict(self.lost), dict(self.refused)
        helped = {parties[n]: found for n, found in self._ask("help", self._packed(asked), read).items()}
        self._need("help", len(helped), least=True)
        self.silent = sorted(self.lost.keys() - before[0].keys())
        self.lost, self.refused = before
        vectors = {parties[n]: flat(s) for n, s in sums.items()}
        enough, method = needed(self._plan.experiment.secure.threshold, self._asked), self._plan.method
        try:
            row = opened(vectors, members(roster), dealt, helped, enough, where(self._run, self._t))
            total = shaped(row, next(iter(sums.values())))
            weight = sum(weight_of(method.needs(), n) for each in counted.values() for n in each.values())
            return mean_of(record_types(type(method)).up, total, method.needs(), weight)
        except RecordError as error:
            raise UnopenedError(f"the sum of round {self._t} can't be opened: {error}") from error

    def _packed(self, asked: Mapping[int, Asked]) -> dict[int, SiteMessage]:
        return {n: pack_stage(self._run, self._experiment, each) for n, each in asked.items()}

    def _ask(self, stage: str, messages: Mapping[int, SiteMessage], read: Reading[T]) -> dict[int, T]:
        """The nodes' parsed answers, without nodes that are lost or refused."""
        found: dict[int, T] = {}
        for node, reply, note in self._exchange(stage, messages):
            if isinstance(reply, Lost):
                self.lost[node] = reply
                continue
            try:
                found[node] = read(node, reply)
                note(None)
            except (ClientError, RecordError) as error:
                note(str(error))
                self._refuse(node, str(error))
        return found

    def _refuse(self, node: int, why: str) -> None:
        if self._plan.experiment.faults.reaction == "stop":
            raise ClientError(why)
        self.refused[node] = why

    def _need(self, stage: str, left: int, *, least: bool = False) -> None:
        """Under the policy stop, all sites must stay until their sums have arrived; else as many as the threshold."""
        enough = needed(self._plan.experiment.secure.threshold, self._asked)
        wanted = enough if least or self._plan.experiment.faults.reaction != "stop" else max(enough, self._asked)
        if left < wanted:
            why = next((f": {w}" for w in (*(lost.why for lost in self.lost.values()), *self.refused.values())), "")
            raise UnopenedError(
                f"round {self._t} has {left} of {self._asked} sites after the stage {stage!r}, but needs {wanted} "
                f"to open its masked sum{why}"
            )
