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

from ...disk.files import failing_clearly, read_json, write_json
from ...engine.answers import judge
from ...engine.client.jobs import Answer, Failure
from ...engine.plan import Plan
from ...errors import ClientError, RunError
from ...records import Packed
from ...settings.fields import Natural, build
from ..states import SiteStates
from ..transport.messages import (
    HelpReply,
    HelpRequest,
    KeysReply,
    KeysRequest,
    Letter,
    Order,
    PartyKeys,
    SharesReply,
    SharesRequest,
    StageReply,
    StageRequest,
    pack_letters,
    unhex,
    unpack_letters,
)
from .fixed_point import add_up, find_misfit, flatten, unflatten
from .protocol import (
    Member,
    Secrets,
    Share,
    deal_shares,
    mask_vector,
    new_secrets,
    parties_needed,
    read_share,
)

ROUND = re.compile(r"round-(\d{7,10})-\d{1,10}\.json", re.ASCII)
AnswerAndState = tuple[Answer, str]
"""an answer, and the digest of the client's new state"""
Opened = tuple[tuple[int, ...], ...]
"""whose sum was opened: the clients of each site in it"""


@dataclass(frozen=True)
class RoundSecrets:
    """What a site stores during a round; an empty string is not set yet, or already deleted."""

    clients: tuple[Natural, ...]
    cipher: str
    mask: str
    seed: str
    roster: tuple[PartyKeys, ...] = ()
    me: Natural = 0
    """this site's index in the roster"""
    enough: Natural = 0
    """shares needed to restore a secret"""
    share: tuple[str, ...] = ()
    """this site's share of its own key and seed"""
    sealed: tuple[Letter, ...] = ()
    """the shares that other sites sealed for this one"""
    counted: tuple[Natural, ...] = ()
    """the clients in this site's masked vector"""

    @property
    def secrets(self) -> Secrets:
        return Secrets(unhex(self.cipher), unhex(self.mask), unhex(self.seed))


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
        if isinstance(request, KeysRequest):
            return self._make_keys(request)
        return self._deal(request) if isinstance(request, SharesRequest) else self._help(request)

    def _make_keys(self, request: KeysRequest) -> KeysReply:
        """Make fresh keys; what is left of earlier attempts and rounds is deleted, so it can never be opened."""
        for path in self._folder.glob("round-*.json"):
            name = ROUND.fullmatch(path.name)
            if name and (int(name[1]) < request.t or path == self._path("round", request)):
                path.unlink(missing_ok=True)
        secrets = new_secrets()
        self._write(
            request, RoundSecrets(request.clients, secrets.cipher.hex(), secrets.mask.hex(), secrets.seed.hex())
        )
        return KeysReply(*(part.hex() for part in secrets.member), opened=self._read_opened(request))

    def _deal(self, request: SharesRequest) -> SharesReply:
        """Deal shares of this site's secrets, once per round."""
        kept = self._read(request)
        if kept.roster:
            raise RunError(f"this site has already dealt its shares of round {request.t}.")
        mine = PartyKeys(kept.clients, *(part.hex() for part in kept.secrets.member))
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
        share, sealed = deal_shares(kept.secrets, me, members(request.roster), enough)
        own = tuple(part.hex() for part in share)
        self._write(request, replace(kept, roster=request.roster, me=me, enough=enough, share=own))
        return SharesReply(pack_letters(sealed))

    def mask(self, order: Order, answers: Sequence[AnswerAndState]) -> tuple[list[AnswerAndState], Packed | None]:
        """The answers without their uploads, and the masked sum of the uploads; None if there are none."""
        request = self.check_order(order)
        kept = self._read(request)
        dealt = unpack_letters(order.sealed or ())
        if not set(dealt) <= set(range(len(kept.roster))) - {kept.me} or len(dealt) + 1 < kept.enough:
            raise RunError(f"round {request.t} has shares of {len(dealt)} other sites, but needs {kept.enough - 1}.")
        roster = members(kept.roster)
        for u, letter in dealt.items():  # fail now rather than in the last stage
            read_share(kept.secrets.cipher, kept.me, u, roster, letter)
        judged = [(self._check_answer(order, a, len(kept.roster) * len(answers)), digest) for a, digest in answers]
        ups = {a.client: a.up for a, _ in judged if a.failure is None and a.up is not None}
        bare = [(replace(a, up=None), digest) for a, digest in judged]
        used = replace(kept, mask="", seed="", sealed=order.sealed or (), counted=tuple(sorted(ups)))
        self._write(request, used)  # before anything leaves: these secrets must never mask anything else
        if not ups:
            return bare, None
        total = add_up(ups, self._plan.method.needs(), {a.client: a.n for a, _ in judged})
        hidden = mask_vector(flatten(total), kept.secrets, kept.me, roster, dealt, mask_context(self._run, request.t))
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
        survivors = {each.party: each.clients for each in request.survivors}
        dealt = {kept.me, *(letter.party for letter in kept.sealed)}
        if not kept.counted or survivors.get(kept.me) != kept.counted or len(survivors) < len(request.survivors):
            raise RunError(f"the sum of round {request.t} does not match what this site sent.")
        if not survivors.keys() <= dealt or len(survivors) < kept.enough:
            raise RunError(
                f"round {request.t} has {len(survivors)} sites in its sum, but needs {kept.enough} that dealt shares."
            )
        now: Opened = tuple(sorted(survivors.values()))
        before = self._read_opened(request)
        if before not in (None, now):
            raise RunError(
                f"this site has helped to open round {request.t} for the clients {before}, and helps no others."
            )
        write_json(self._path("opened", request), now)
        roster = members(kept.roster)
        sealed = unpack_letters(kept.sealed)
        shares = {u: read_share(unhex(kept.cipher), kept.me, u, roster, letter) for u, letter in sealed.items()}
        shares[kept.me] = Share(*map(unhex, kept.share))
        self._path("round", request).unlink()
        keys = {v: share.key for v, share in shares.items() if v not in survivors}
        return HelpReply(pack_letters(keys), pack_letters({u: shares[u].seed for u in survivors}))

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
        with failing_clearly(self._folder):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(self._path("round", request), asdict(kept), private=True)

    def _read_opened(self, request: StageRequest) -> Opened | None:
        path = self._path("opened", request)
        return tuple(tuple(map(int, clients)) for clients in read_json(path)) if path.exists() else None


def members(roster: Sequence[PartyKeys]) -> list[Member]:
    return [Member(unhex(entry.cipher), unhex(entry.mask), unhex(entry.seed)) for entry in roster]


def mask_context(run: str, t: int) -> str:
    """The context that the masks of a round are bound to."""
    return f"run {run}, round {t}"
