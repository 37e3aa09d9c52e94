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
from ..transport.messages import Letter, Order
from .fixed_point import flat, shaped, summed, unfit
from .protocol import Member, Secrets, Share, deal, masked, needed, new_secrets, read_share
from .stages import (
    Asked,
    HelpAsked,
    HelpSaid,
    KeysAsked,
    KeysSaid,
    PartyKeys,
    SharesAsked,
    SharesSaid,
    by_party,
    letters,
    unhex,
)

ROUND = re.compile(r"round-(\d{7,10})-\d{1,10}\.json", re.ASCII)
Named = tuple[Answer, str]
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
        self._plan, self._run, self._folder = plan, kept.folder.name, kept.folder / "masks"

    def answer(self, asked: Asked) -> KeysSaid | SharesSaid | HelpSaid:
        if not asked.clients:
            raise RunError("a masked sum needs clients, but this message names none.")
        if isinstance(asked, KeysAsked):
            return self._keys(asked)
        return self._shares(asked) if isinstance(asked, SharesAsked) else self._help(asked)

    def _keys(self, asked: KeysAsked) -> KeysSaid:
        """Make fresh keys; what is left of earlier attempts and rounds is deleted, so it can never be opened."""
        for path in self._folder.glob("round-*.json"):
            name = ROUND.fullmatch(path.name)
            if name and (int(name[1]) < asked.t or path == self._path("round", asked)):
                path.unlink(missing_ok=True)
        secrets = new_secrets()
        self._keep(asked, RoundSecrets(asked.clients, secrets.cipher.hex(), secrets.mask.hex(), secrets.seed.hex()))
        cipher, mask = secrets.member
        return KeysSaid(cipher.hex(), mask.hex(), self._opened(asked))

    def _shares(self, asked: SharesAsked) -> SharesSaid:
        """Deal shares of this site's secrets, once per round."""
        kept = self._kept(asked)
        if kept.roster:
            raise RunError(f"this site has already dealt its shares of round {asked.t}.")
        cipher, mask = kept.secrets.member
        mine = PartyKeys(kept.clients, cipher.hex(), mask.hex())
        enough = needed(self._plan.experiment.secure.threshold, asked.asked)
        if asked.roster.count(mine) != 1 or not enough <= len(asked.roster) <= asked.asked:
            raise RunError(
                f"the roster of round {asked.t} has {len(asked.roster)} of {asked.asked} sites, "
                f"but must have this one and at least {enough} in all."
            )
        clients = [c for entry in asked.roster for c in entry.clients]
        keys = [k for entry in asked.roster for k in (entry.cipher, entry.mask)]
        if len(set(clients)) < len(clients) or len(set(keys)) < len(keys):
            raise RunError(f"the roster of round {asked.t} names a client or a key twice.")
        me = asked.roster.index(mine)
        share, sealed = deal(kept.secrets, me, members(asked.roster), enough)
        own = tuple(part.hex() for part in share)
        self._keep(asked, replace(kept, roster=asked.roster, me=me, enough=enough, share=own))
        return SharesSaid(letters(sealed))

    def mask(self, order: Order, answers: Sequence[Named]) -> tuple[list[Named], Packed | None]:
        """The answers without their uploads, and the masked sum of the uploads; None if there are none."""
        asked = self.begun(order)
        kept, dealt = self._kept(asked), by_party(order.sealed or ())
        if not set(dealt) <= set(range(len(kept.roster))) - {kept.me} or len(dealt) + 1 < kept.enough:
            raise RunError(f"round {asked.t} has shares of {len(dealt)} other sites, but needs {kept.enough - 1}.")
        roster = members(kept.roster)
        for u, letter in dealt.items():  # fail now rather than when asked to help
            read_share(kept.secrets.cipher, kept.me, u, roster, letter)
        judged = [(self._judged(order, a, len(kept.roster) * len(answers)), digest) for a, digest in answers]
        ups = {a.client: a.up for a, _ in judged if a.failure is None and a.up is not None}
        bare = [(replace(a, up=None), digest) for a, digest in judged]
        used = replace(kept, mask="", seed="", sealed=order.sealed or (), counted=tuple(sorted(ups)))
        self._keep(asked, used)  # before anything leaves: these secrets must never mask anything else
        if not ups:
            return bare, None
        total = summed(ups, self._plan.method.needs(), {a.client: a.n for a, _ in judged})
        hidden = masked(flat(total), kept.secrets, kept.me, roster, dealt, where(self._run, asked.t))
        return bare, shaped(hidden, total)

    def begun(self, order: Order) -> KeysAsked:
        """Check that the answers to this order can be masked, before anybody trains; return its round."""
        rounds, clients = {v.job.t for v in order.site_jobs}, tuple(sorted(v.job.client for v in order.site_jobs))
        if order.sealed is None or len(rounds) != 1 or any(v.job.kind != "fit" for v in order.site_jobs):
            raise RunError("secure.sums is true, but this order asks for unmasked messages: nothing is trained.")
        asked = KeysAsked(rounds.pop(), clients)
        kept = self._kept(asked)
        if not kept.roster or not kept.seed:
            raise RunError(f"this site has no unused masks for round {asked.t}.")
        return asked

    def _judged(self, order: Order, answer: Answer, parts: int) -> Answer:
        """Only the site can check a single message: the server never sees it."""
        if answer.up is None or answer.failure:
            return answer
        why = unfit(answer.up, self._plan.method.needs(), answer.n, parts)
        said = why and f"client {answer.client} sent {why} in round {answer.t}."
        if self._plan.experiment.faults.reaction == "stop":
            if said:
                raise ClientError(said)
            return answer
        down = next(v.job.down for v in order.site_jobs if v.job.client == answer.client)
        found = [failure for _, failure in judge(self._plan, {answer.client: answer}, {answer.client: down})]
        failure = next(iter(found), Failure("too large", said) if said else None)
        return answer if failure is None else replace(answer, up=None, failure=failure)

    def _help(self, asked: HelpAsked) -> HelpSaid:
        """Shares that open the survivors' sum: of their seeds, and of the other parties' keys; never both."""
        kept, survivors = self._kept(asked), {each.party: each.clients for each in asked.survivors}
        dealt = {kept.me, *(letter.party for letter in kept.sealed)}
        if not kept.counted or survivors.get(kept.me) != kept.counted or len(survivors) < len(asked.survivors):
            raise RunError(f"the sum of round {asked.t} does not match what this site sent.")
        if not survivors.keys() <= dealt or len(survivors) < kept.enough:
            raise RunError(
                f"round {asked.t} has {len(survivors)} sites in its sum, but needs {kept.enough} that dealt shares."
            )
        now: Opened = tuple(sorted(survivors.values()))
        before = self._opened(asked)
        if before not in (None, now):
            raise RunError(
                f"this site has helped to open round {asked.t} for the clients {before}, and helps no others."
            )
        write_json(self._path("opened", asked), now)
        roster, sealed = members(kept.roster), by_party(kept.sealed)
        shares = {u: read_share(unhex(kept.cipher), kept.me, u, roster, letter) for u, letter in sealed.items()}
        shares[kept.me] = Share(*map(unhex, kept.share))
        self._path("round", asked).unlink()
        keys = {v: share.key for v, share in shares.items() if v not in survivors}
        return HelpSaid(letters(keys), letters({u: shares[u].seed for u in survivors}))

    def _path(self, what: str, asked: Asked) -> Path:
        """Named by client as well, because the nodes of a simulation share a folder."""
        return self._folder / f"{what}-{asked.t:07}-{min(asked.clients)}.json"

    def _kept(self, asked: Asked) -> RoundSecrets:
        path = self._path("round", asked)
        if not path.exists():
            raise RunError(f"this site has no masks for round {asked.t}.")
        kept = build(RoundSecrets, read_json(path))
        if kept.clients != asked.clients:
            raise RunError(
                f"this site has masks for the clients {kept.clients} in round {asked.t}, not for {asked.clients}."
            )
        return kept

    def _keep(self, asked: Asked, kept: RoundSecrets) -> None:
        with failing_clearly(self._folder):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(self._path("round", asked), asdict(kept), private=True)

    def _opened(self, asked: Asked) -> Opened | None:
        path = self._path("opened", asked)
        return tuple(tuple(map(int, clients)) for clients in read_json(path)) if path.exists() else None


def members(roster: Sequence[PartyKeys]) -> list[Member]:
    return [Member(unhex(entry.cipher), unhex(entry.mask)) for entry in roster]


def where(run: str, t: int) -> str:
    """The context that the masks of a round are bound to."""
    return f"run {run}, round {t}"
