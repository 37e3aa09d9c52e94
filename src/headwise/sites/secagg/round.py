"""A round with masked sums: its messages, a site's part in it and the server's.

A round has four stages; the third is an order and its report. A party is an index in the roster.

    keys     every site sends its public keys
    shares   every site gets all public keys (the roster) and deals shares of its secrets, sealed for each party
    fit      the order, with the shares sealed for the site; the report has a masked vector in place of records
    help     every site in the sum learns who else is in it, and sends the shares that remove the masks

`Masking` is a site's part: it deals shares, masks what its clients send, and helps to open one sum per round. Between
messages, its secrets are in one file in the run's folder, readable by its owner only. Key and seed are deleted from it
once they have masked a vector; the file is deleted once the site has helped. A note of whose sum was opened stays: the
site never helps with a second sum of that round, since the difference of two sums is a message.

`MaskedRound` is the server's part: it relays keys and shares between sites, and opens one sum of them all.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from ...contract.method import record_types
from ...disk.files import explain_write_errors, read_json, write_json
from ...disk.jsontext import to_json
from ...engine.answers import judge
from ...engine.client.jobs import Answer, Failure
from ...engine.plan import Plan
from ...errors import ClientError, RunError
from ...records import Packed, Record, RecordError
from ...settings.fields import Natural, build, convert
from ..states import SiteStates
from ..transport.envelope import Lost, SiteMessage
from ..transport.messages import Order, Report, SiteJob, load_text, pack_order, read_reply, refuse_invalid
from . import protocol
from .protocol import Member, Secrets, add_up, find_misfit, flatten, layout_of, parties_needed, unflatten, weight_of

T = TypeVar("T")

Opened = tuple[tuple[Natural, ...], ...]
"""whose sum was opened: the clients of each site in it"""


@dataclass(frozen=True)
class StageRequest:
    t: Natural
    clients: tuple[Natural, ...]
    """the clients that the site will train in this round; they identify it"""


class KeysRequest(StageRequest): ...


@dataclass(frozen=True)
class KeysReply:
    member: Member
    opened: Opened | None = None
    """the sum that this site has already helped to open; it helps with no other"""


@dataclass(frozen=True)
class SharesRequest(StageRequest):
    sites: Natural
    """how many got a request for keys, with or without an answer"""
    roster: tuple[Member, ...]


@dataclass(frozen=True)
class SharesReply:
    sealed: tuple[str, ...]
    """the share for each party, which only it can open"""


@dataclass(frozen=True)
class HelpRequest(StageRequest):
    survivors: tuple[tuple[Natural, ...], ...]
    """each party's clients in the sum; none of a party that was lost"""


@dataclass(frozen=True)
class HelpReply:
    shares: tuple[str, ...]
    """of each party's seed if it is in the sum, else of its key: never of both; empty if it dealt none"""


StageReply = KeysReply | SharesReply | HelpReply
STAGES: dict[str, type[StageRequest]] = {"keys": KeysRequest, "shares": SharesRequest, "help": HelpRequest}


def pack_request(run: str, experiment: str, request: StageRequest) -> SiteMessage:
    stage = next(name for name, cls in STAGES.items() if type(request) is cls)
    return SiteMessage(to_json({"run": run, "experiment": experiment, "stage": stage, "request": asdict(request)}), [])


def unpack_request(message: SiteMessage) -> tuple[str, StageRequest] | None:
    """The run and the request; None if this message is an order."""
    with refuse_invalid("stage"):
        values = load_text(message)
        if "stage" not in values:
            return None
        return convert(values["run"], str, "run"), build(STAGES[values["stage"]], values["request"])


def pack_reply(reply: StageReply) -> SiteMessage:
    return SiteMessage(to_json(asdict(reply)), [])


def unpack_reply(message: SiteMessage, cls: type[T]) -> T:
    """The reply to a stage; raises the site's own error as a `ClientError`."""
    with refuse_invalid("answer"):
        return build(cls, read_reply(message))


# -- a site's part

ROUND = re.compile(r"round-(\d{7,10})-\d{1,10}\.json", re.ASCII)
AnswerAndState = tuple[Answer, str]
"""an answer, and the digest of the client's new state"""


@dataclass(frozen=True)
class RoundSecrets:
    """What a site stores during a round; an empty string is not set yet, or already deleted."""

    clients: tuple[Natural, ...]
    cipher: str
    mask: str
    seed: str
    roster: tuple[Member, ...] = ()
    me: Natural = 0
    """this site's index in the roster"""
    enough: Natural = 0
    """shares needed to restore a secret"""
    sealed: tuple[str, ...] = ()
    """the share that each party sealed for this site"""
    counted: tuple[Natural, ...] = ()
    """the clients in this site's masked vector"""

    @property
    def secrets(self) -> Secrets:
        return Secrets(self.cipher, self.mask, self.seed)

    @property
    def dealt(self) -> dict[int, str]:
        """The sealed shares by party, without parties that dealt none."""
        return {party: letter for party, letter in enumerate(self.sealed) if letter}


class Masking:
    def __init__(self, plan: Plan, kept: SiteStates) -> None:
        if not plan.experiment.secure.sums:
            raise RunError("this experiment has no masked sums: secure.sums is false.")
        self._plan = plan
        self._run = kept.folder.name
        self._folder = kept.folder / "masks"

    def answer(self, request: StageRequest) -> StageReply:
        if not request.clients:
            raise RunError("a masked sum needs clients, but this message names none.")
        if isinstance(request, SharesRequest):
            return self._deal(request)
        return self._help(request) if isinstance(request, HelpRequest) else self._make_keys(request)

    def _make_keys(self, request: StageRequest) -> KeysReply:
        """Make fresh keys; leftovers of earlier attempts and rounds are deleted, so they can never be opened."""
        for path in self._folder.glob("round-*.json"):
            name = ROUND.fullmatch(path.name)
            if name and (int(name[1]) < request.t or path == self._path("round", request)):
                path.unlink(missing_ok=True)
        secrets = protocol.new_secrets()
        self._write(request, RoundSecrets(request.clients, *secrets))
        return KeysReply(secrets.member(request.clients), self._read_opened(request))

    def _deal(self, request: SharesRequest) -> SharesReply:
        """Deal shares of this site's secrets, once per round."""
        kept = self._read(request)
        if kept.roster:
            raise RunError(f"this site has already dealt its shares of round {request.t}.")
        mine = kept.secrets.member(kept.clients)
        enough = parties_needed(self._plan.experiment.secure.threshold, request.sites)
        if request.roster.count(mine) != 1 or not enough <= len(request.roster) <= request.sites:
            raise RunError(
                f"the roster of round {request.t} has {len(request.roster)} of {request.sites} sites, "
                f"but must have this one and at least {enough} in all."
            )
        clients = [c for entry in request.roster for c in entry.clients]
        keys = [k for entry in request.roster for k in (entry.cipher, entry.mask, entry.seed)]
        if len(set(clients)) < len(clients) or len(set(keys)) < len(keys):
            raise RunError(f"the roster of round {request.t} names a client or a key twice.")
        me = request.roster.index(mine)
        sealed = protocol.deal_shares(kept.secrets, me, request.roster, enough)
        self._write(request, replace(kept, roster=request.roster, me=me, enough=enough))
        return SharesReply(sealed)

    def mask(self, order: Order, answers: Sequence[AnswerAndState]) -> tuple[list[AnswerAndState], Packed | None]:
        """The answers without their uploads, and the masked sum of the uploads; None if there are none."""
        request = self.check_order(order)
        kept = self._read(request)
        used = replace(kept, mask="", seed="", sealed=order.sealed or ())
        if len(used.sealed) != len(kept.roster) or len(used.dealt) < kept.enough:
            raise RunError(f"round {request.t} has shares of {len(used.dealt)} sites, but needs {kept.enough}.")
        for u, letter in used.dealt.items():  # fail now rather than in the last stage
            protocol.read_share(kept.cipher, kept.me, u, kept.roster, letter)
        judged = [(self._check_answer(order, a, len(kept.roster) * len(answers)), digest) for a, digest in answers]
        ups = {a.client: a.up for a, _ in judged if a.failure is None and a.up is not None}
        bare = [(replace(a, up=None), digest) for a, digest in judged]
        self._write(
            request, replace(used, counted=tuple(sorted(ups)))
        )  # before anything leaves: these secrets must never mask anything else
        if not ups:
            return bare, None
        total = add_up(ups, self._plan.method.needs(), {a.client: a.n for a, _ in judged})
        where = mask_context(self._run, request.t)
        hidden = protocol.mask_vector(flatten(total), kept.secrets, kept.me, kept.roster, used.dealt, where)
        return bare, unflatten(hidden, total)

    def check_order(self, order: Order) -> KeysRequest:
        """Check that the answers to this order can be masked, before anybody trains; return its round."""
        rounds = {v.job.t for v in order.site_jobs}
        clients = tuple(sorted(v.job.client for v in order.site_jobs))
        if order.sealed is None or len(rounds) != 1 or any(v.job.kind != "fit" for v in order.site_jobs):
            raise RunError("secure.sums is true, but this order asks for unmasked messages: nothing is trained.")
        request = KeysRequest(rounds.pop(), clients)
        kept = self._read(request)
        if not kept.roster or not kept.seed:
            raise RunError(f"this site has no unused masks for round {request.t}.")
        return request

    def _check_answer(self, order: Order, answer: Answer, parts: int) -> Answer:
        """Only the site can check a single message: the server never sees it."""
        if answer.up is None or answer.failure:
            return answer
        misfit = find_misfit(answer.up, self._plan.method.needs(), answer.n, parts)
        why = misfit and f"client {answer.client} sent {misfit} in round {answer.t}."
        if self._plan.experiment.faults.reaction == "stop":
            if why:
                raise ClientError(why)
            return answer
        down = next(v.job.down for v in order.site_jobs if v.job.client == answer.client)
        failures = [failure for _, failure in judge(self._plan, {answer.client: answer}, {answer.client: down})]
        failure = next(iter(failures), Failure("too large", why) if why else None)
        return answer if failure is None else replace(answer, up=None, failure=failure)

    def _help(self, request: HelpRequest) -> HelpReply:
        """Shares that open the survivors' sum: of their seeds, and of the other parties' keys; never both."""
        kept = self._read(request)
        survivors = dict(enumerate(request.survivors))
        if not kept.counted or survivors.get(kept.me) != kept.counted:
            raise RunError(f"the sum of round {request.t} does not match what this site sent.")
        in_sum = {party for party, clients in survivors.items() if clients}
        if not in_sum <= kept.dealt.keys() or len(in_sum) < kept.enough:
            raise RunError(
                f"round {request.t} has {len(in_sum)} sites in its sum, but needs {kept.enough} that dealt shares."
            )
        now: Opened = tuple(sorted(filter(None, request.survivors)))
        before = self._read_opened(request)
        if before not in (None, now):
            raise RunError(
                f"this site has helped to open round {request.t} for the clients {before}, and helps no others."
            )
        write_json(self._path("opened", request), now)
        shares = {
            u: protocol.read_share(kept.cipher, kept.me, u, kept.roster, letter) for u, letter in kept.dealt.items()
        }
        self._path("round", request).unlink()
        parts = {u: share.seed if u in in_sum else share.key for u, share in shares.items()}
        return HelpReply(tuple(parts.get(u, "") for u in range(len(kept.roster))))

    def _path(self, what: str, request: StageRequest) -> Path:
        """Named by client as well, because the nodes of a simulation share a folder."""
        return self._folder / f"{what}-{request.t:07}-{min(request.clients)}.json"

    def _read(self, request: StageRequest) -> RoundSecrets:
        path = self._path("round", request)
        if not path.exists():
            raise RunError(f"this site has no masks for round {request.t}.")
        kept = build(RoundSecrets, read_json(path))
        if kept.clients != request.clients:
            raise RunError(
                f"this site has masks for the clients {kept.clients} in round {request.t}, not for {request.clients}."
            )
        return kept

    def _write(self, request: StageRequest, kept: RoundSecrets) -> None:
        with explain_write_errors(self._folder):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(self._path("round", request), asdict(kept), private=True)

    def _read_opened(self, request: StageRequest) -> Opened | None:
        path = self._path("opened", request)
        return tuple(tuple(map(int, clients)) for clients in read_json(path)) if path.exists() else None


def mask_context(run: str, t: int) -> str:
    return f"run {run}, round {t}"


# -- the server's part

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
        """nodes that did not answer the last stage; they are in the sum anyway"""
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
        sums = self._keep_most_alike({n: r.masked for n, r in reports.items() if r.masked is not None})
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
        """A site's keys, checked here because no honest site can deal shares to a party with invalid keys."""
        reply = unpack_reply(message, KeysReply)
        for key in (reply.member.cipher, reply.member.mask):
            protocol.read_public_key(key)
        if len(reply.member.seed) != 2 * protocol.SEED or reply.member.clients != _clients_of(jobs):
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

    def _keep_most_alike(self, sums: dict[int, Packed]) -> dict[int, Packed]:
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
            row = protocol.open_sum(vectors, roster, dealt, helpers, self._enough, context)
            total = unflatten(row, next(iter(sums.values())))
            weight = sum(weight_of(method.needs(), n) for each in samples.values() for n in each.values())
            return protocol.mean_of(record_types(type(method)).up, total, method.needs(), weight)
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
