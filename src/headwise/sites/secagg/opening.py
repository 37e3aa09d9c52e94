"""The server's part in masked sums: it relays keys and shares between sites, and opens one sum of them all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from ...contract.method import record_types
from ...engine.client.jobs import Answer
from ...engine.plan import Plan
from ...errors import ClientError
from ...records import Packed, Record, RecordError
from ..transport.envelope import Lost, SiteMessage
from ..transport.messages import Order, Report, SiteJob, pack_order
from .fixed_point import flatten, layout_of, mean_of, unflatten, weight_of
from .masking import mask_context
from .protocol import SEED, Member, open_sum, parties_needed, read_public_key
from .stages import (
    HelpReply,
    HelpRequest,
    KeysReply,
    KeysRequest,
    Opened,
    SharesReply,
    SharesRequest,
    StageRequest,
    pack_request,
    unpack_reply,
)

T = TypeVar("T")

Read = Callable[[Sequence[SiteJob], SiteMessage], T]
"""parses the reply of the node with these jobs; a `ClientError` or `RecordError` refuses it"""


class Exchange(Protocol):
    def __call__(
        self, task: str, messages: Mapping[int, SiteMessage], site_jobs: Mapping[int, Sequence[SiteJob]], read: Read[T]
    ) -> Iterator[tuple[int, T | Lost]]:
        """Send the messages of a stage; yield the nodes' replies as `read` understands them."""
        ...


class UnopenedError(ClientError):
    """A masked sum stays closed: too few sites, or unusable shares."""


class MaskedRound:
    """One round of training with masked sums."""

    def __init__(self, plan: Plan, run: str, experiment: str, site_jobs: Mapping[int, Sequence[SiteJob]]) -> None:
        self._plan = plan
        self._run = run
        self._experiment = experiment
        self._site_jobs = site_jobs
        self._t = next(iter(site_jobs.values()))[0].job.t
        self._clients = {n: _clients_of(jobs) for n, jobs in site_jobs.items()}
        self._sites = len(site_jobs)
        self._before: Opened | None = None
        """whose sum an earlier attempt at this round opened: no other may be"""
        self.lost: dict[int, Lost] = {}
        """nodes that did not answer a stage before the last"""
        self.silent: list[int] = []
        """nodes that did not answer the last stage; they are in the sum all the same"""
        self.refused: dict[int, str] = {}
        """nodes whose answer was an error or unusable"""

    def play(self, exchange: Exchange, read: Read[Report]) -> list[tuple[Answer, str]]:
        """Run all stages; return the answers of the nodes that stayed, with the mean in place of each upload.

        Raises `UnopenedError` if too few stayed.
        """
        self._exchange = exchange
        keys = self._collect_keys()
        nodes = sorted(keys, key=self._clients.__getitem__)
        roster = tuple(keys[n].member for n in nodes)
        dealt = self._relay_shares(nodes, roster)
        reports = self._fit(nodes, dealt, read)
        sums = self._most_alike({n: r.masked for n, r in reports.items() if r.masked is not None})
        self._check_enough("fit", len(sums))
        average = self._open(nodes, roster, dealt, reports, sums)
        answers: list[tuple[Answer, str]] = []
        for node, report in reports.items():
            if node in sums:
                answers += [(a if a.failure else replace(a, up=average), digest) for a, digest in report.answers]
            elif node not in self.refused:  # all of its clients failed
                answers += [each for each in report.answers if each[0].failure]
        return answers

    def _collect_keys(self) -> dict[int, KeysReply]:
        requests = {n: KeysRequest(self._t, clients) for n, clients in self._clients.items()}
        keys = self._ask("keys", self._pack(requests), self._read_keys)
        own = {n: (r.member.cipher, r.member.mask, r.member.seed) for n, r in keys.items()}
        counts = Counter(key for each in own.values() for key in each)
        for node in [n for n, each in own.items() if max(counts[key] for key in each) > 1]:
            del keys[node]
            self._refuse(node, "these keys are not a site's own: they were sent twice")
        before = {reply.opened for reply in keys.values()} - {None}
        if len(before) > 1:
            raise UnopenedError(f"the sites have opened round {self._t} for different clients: {before}")
        self._before = next(iter(before), None)
        if self._before is not None:  # leave out the same sites again
            known = {c for clients in self._before for c in clients}
            for node in [n for n in keys if not known & set(self._clients[n])]:
                del keys[node]
                self._sites -= 1
                self.lost[node] = Lost(f"round {self._t} was opened without it", "dropped")
        self._check_enough("keys", len(keys))
        return keys

    def _read_keys(self, jobs: Sequence[SiteJob], message: SiteMessage) -> KeysReply:
        """A site's keys, checked here: no honest site can deal its shares to a party whose keys are none."""
        reply = unpack_reply(message, KeysReply)
        for key in (reply.member.cipher, reply.member.mask):
            read_public_key(key)
        if len(reply.member.seed) != 2 * SEED or reply.member.clients != _clients_of(jobs):
            raise RecordError("the hash of the seed has another length, or these keys are for other clients")
        return reply

    def _relay_shares(self, nodes: Sequence[int], roster: tuple[Member, ...]) -> dict[int, tuple[str, ...]]:
        """Each dealer's sealed shares for all parties, both as indices in the roster."""
        requests = {n: SharesRequest(self._t, self._clients[n], self._sites, roster) for n in nodes}

        def read(jobs: Sequence[SiteJob], message: SiteMessage) -> tuple[str, ...]:
            sealed = unpack_reply(message, SharesReply).sealed
            if len(sealed) != len(roster) or not all(sealed):
                raise RecordError("these shares are not for all sites")
            return sealed

        dealt = {nodes.index(n): sealed for n, sealed in self._ask("shares", self._pack(requests), read).items()}
        self._check_enough("shares", len(dealt))
        return dealt

    def _fit(self, nodes: Sequence[int], dealt: Mapping[int, tuple[str, ...]], read: Read[Report]) -> dict[int, Report]:
        orders: dict[int, SiteMessage] = {}
        for me in dealt:
            sealed = tuple(dealt[u][me] if u in dealt else "" for u in range(len(nodes)))
            orders[nodes[me]] = pack_order(Order(self._run, self._experiment, self._site_jobs[nodes[me]], sealed))

        def read_masked(jobs: Sequence[SiteJob], message: SiteMessage) -> Report:
            report = read(jobs, message)
            if any(a.up is not None for a, _ in report.answers):
                raise RecordError("this report contains unmasked messages")
            if (report.masked is None) != all(a.failure for a, _ in report.answers):
                raise RecordError("this report has a masked sum but no successful client, or the reverse")
            if report.masked is not None:
                layout_of(report.masked)
            return report

        return self._ask("fit", orders, read_masked)

    def _most_alike(self, sums: dict[int, Packed]) -> dict[int, Packed]:
        """The sums with the most common layout: others can't be added."""
        layouts = {n: layout_of(s) for n, s in sums.items()}
        most = Counter(layouts.values()).most_common(1)
        for node in [n for n, layout in layouts.items() if layout != most[0][0]]:
            self._refuse(node, "this masked sum has another layout than those of most sites")
        return {n: s for n, s in sums.items() if n not in self.refused}

    def _open(
        self,
        nodes: Sequence[int],
        roster: tuple[Member, ...],
        dealt: Mapping[int, Any],
        reports: Mapping[int, Report],
        sums: Mapping[int, Packed],
    ) -> Record:
        """The mean message of all clients in `sums`."""
        samples = {n: {a.client: a.n for a, _ in reports[n].answers if not a.failure} for n in sums}
        parties = {n: nodes.index(n) for n in sums}
        survivors = tuple(tuple(sorted(samples.get(n, ()))) for n in nodes)
        now = tuple(sorted(filter(None, survivors)))
        if self._before not in (None, now):
            raise UnopenedError(f"round {self._t} can be opened for the clients {self._before} only, not for {now}")
        requests = {n: HelpRequest(self._t, self._clients[n], survivors) for n in sums}

        def read(jobs: Sequence[SiteJob], message: SiteMessage) -> tuple[str, ...]:
            shares = unpack_reply(message, HelpReply).shares
            if len(shares) != len(nodes) or not all(shares[u] for u in dealt):
                raise RecordError("these are not the shares that were requested")
            return shares

        lost = dict(self.lost)
        refused = dict(self.refused)
        helpers = {parties[n]: shares for n, shares in self._ask("help", self._pack(requests), read).items()}
        self._check_enough("help", len(helpers), least=True)
        self.silent = sorted(self.lost.keys() - lost.keys())
        self.lost = lost
        self.refused = refused
        vectors = {parties[n]: flatten(s) for n, s in sums.items()}
        method = self._plan.method
        context = mask_context(self._run, self._t)
        try:
            row = open_sum(vectors, roster, dealt, helpers, self._enough, context)
            total = unflatten(row, next(iter(sums.values())))
            weight = sum(weight_of(method.needs(), n) for each in samples.values() for n in each.values())
            return mean_of(record_types(type(method)).up, total, method.needs(), weight)
        except RecordError as error:
            raise UnopenedError(f"the sum of round {self._t} can't be opened: {error}") from error

    def _pack(self, requests: Mapping[int, StageRequest]) -> dict[int, SiteMessage]:
        return {n: pack_request(self._run, self._experiment, request) for n, request in requests.items()}

    def _ask(self, stage: str, messages: Mapping[int, SiteMessage], read: Read[T]) -> dict[int, T]:
        """The nodes' parsed answers, without nodes that are lost or refused."""
        answers: dict[int, T] = {}
        for node, reply in self._exchange(stage, messages, self._site_jobs, read):
            if not isinstance(reply, Lost):
                answers[node] = reply
            elif reply.reason == "refused":
                self._refuse(node, reply.why)
            else:
                self.lost[node] = reply
        return answers

    def _refuse(self, node: int, why: str) -> None:
        if self._plan.experiment.faults.reaction == "stop":
            raise ClientError(why)
        self.refused[node] = why

    @property
    def _enough(self) -> int:
        return parties_needed(self._plan.experiment.secure.threshold, self._sites)

    def _check_enough(self, stage: str, left: int, *, least: bool = False) -> None:
        """Under the policy stop, all sites must stay until their sums have arrived; else as many as the threshold."""
        all_stay = not least and self._plan.experiment.faults.reaction == "stop"
        enough = max(self._enough, self._sites) if all_stay else self._enough
        if left < enough:
            why = next((f": {w}" for w in (*(lost.why for lost in self.lost.values()), *self.refused.values())), "")
            raise UnopenedError(
                f"round {self._t} has {left} of {self._sites} sites after the stage {stage!r}, but needs {enough} "
                f"to open its masked sum{why}"
            )


def _clients_of(jobs: Sequence[SiteJob]) -> tuple[int, ...]:
    return tuple(sorted(site_job.job.client for site_job in jobs))
