"""A site's part in masked sums: it deals shares, masks what its clients send, and helps to open one sum per round.

Between messages, its secrets are in one file in the run's folder, readable by its owner only. Key and seed are deleted
from it once they have masked a vector; the file is deleted once the site has helped. A note of whose sum was opened
stays: the site never helps with a second sum of that round, since the difference of two sums is a message.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ...disk.files import explain_write_errors, read_json, write_json
from ...engine.answers import judge
from ...engine.client.jobs import Answer, Failure
from ...engine.plan import Plan
from ...errors import ClientError, RunError
from ...records import Packed
from ...settings.fields import Natural, build
from ..states import SiteStates
from ..transport.messages import Order
from .fixed_point import add_up, find_misfit, flatten, unflatten
from .protocol import Member, Secrets, deal_shares, mask_vector, new_secrets, parties_needed, read_share
from .stages import (
    HelpReply,
    HelpRequest,
    KeysReply,
    KeysRequest,
    Opened,
    SharesReply,
    SharesRequest,
    StageReply,
    StageRequest,
)

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
    """The masked sums of one run at one site."""

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
        """Make fresh keys; what is left of earlier attempts and rounds is deleted, so it can never be opened."""
        for path in self._folder.glob("round-*.json"):
            name = ROUND.fullmatch(path.name)
            if name and (int(name[1]) < request.t or path == self._path("round", request)):
                path.unlink(missing_ok=True)
        secrets = new_secrets()
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
        sealed = deal_shares(kept.secrets, me, request.roster, enough)
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
            read_share(kept.cipher, kept.me, u, kept.roster, letter)
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
        hidden = mask_vector(flatten(total), kept.secrets, kept.me, kept.roster, used.dealt, where)
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
        shares = {u: read_share(kept.cipher, kept.me, u, kept.roster, letter) for u, letter in kept.dealt.items()}
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
    """The context that the masks of a round are bound to."""
    return f"run {run}, round {t}"
