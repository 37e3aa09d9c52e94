"""The messages of a masked round, beside the order and the report: plain data, checked by whoever reads them.

keys     every site is asked for its public keys
shares   every site gets all public keys (the roster) and deals shares of its secrets, sealed for the others
fit      the order, with the shares that were sealed for the site; its report has a masked vector in place of records
help     every site in the sum is told which those are, and gives what takes their masks off

Bytes are hexadecimal texts, parties are numbered by their place in the roster.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TypeVar

from ...disk.jsontext import to_json
from ...settings.fields import Natural, build, convert
from ..transport.messages import Letter, SiteMessage, reading, said_in

T = TypeVar("T")


@dataclass(frozen=True)
class PartyKeys:
    """A party of the roster: its clients in this round, and its public keys."""

    clients: tuple[Natural, ...]
    cipher: str
    mask: str


@dataclass(frozen=True)
class KeysAsked:
    """The first message of a round."""

    t: Natural
    clients: tuple[Natural, ...]
    """those that the site is asked to train in this round: by them it is known"""


@dataclass(frozen=True)
class KeysSaid:
    """A site's public keys."""

    cipher: str
    mask: str
    opened: tuple[tuple[Natural, ...], ...] | None = None
    """whose sum it helped to open in this round before: for each site, the clients; it will help for no other"""


@dataclass(frozen=True)
class SharesAsked:
    """The second message."""

    t: Natural
    clients: tuple[Natural, ...]
    asked: Natural
    """sites that were asked for keys, also those that gave none"""
    roster: tuple[PartyKeys, ...]


@dataclass(frozen=True)
class SharesSaid:
    """A site's shares for all others."""

    sealed: tuple[Letter, ...]


@dataclass(frozen=True)
class Counted:
    """A party whose vector is in the sum, and the clients that are in its vector."""

    party: Natural
    clients: tuple[Natural, ...]


@dataclass(frozen=True)
class HelpAsked:
    """The last message."""

    t: Natural
    clients: tuple[Natural, ...]
    survivors: tuple[Counted, ...]


@dataclass(frozen=True)
class HelpSaid:
    """Shares of the keys of those that were lost, and of the seeds of those in the sum."""

    keys: tuple[Letter, ...]
    seeds: tuple[Letter, ...]


Asked = KeysAsked | SharesAsked | HelpAsked
STAGES: dict[str, type[Asked]] = {"keys": KeysAsked, "shares": SharesAsked, "help": HelpAsked}
"""all but `fit`, which is an order"""


def pack_stage(run: str, experiment: str, asked: Asked) -> SiteMessage:
    """What a site is asked, as one message."""
    stage = next(name for name, cls in STAGES.items() if isinstance(asked, cls))
    return SiteMessage(to_json({"run": run, "experiment": experiment, "stage": stage, "asked": asdict(asked)}), [])


def stage_in(message: SiteMessage) -> tuple[str, Asked] | None:
    """The run, and what is asked for a stage of it; none if this is an order."""
    with reading("stage"):
        values = json.loads(message.text)
        if "stage" not in values:
            return None
        return convert(values["run"], str, "run"), build(STAGES[values["stage"]], values["asked"])


def pack_said(said: KeysSaid | SharesSaid | HelpSaid) -> SiteMessage:
    """An answer, as one message."""
    return SiteMessage(to_json(asdict(said)), [])


def unpack_said(message: SiteMessage, cls: type[T]) -> T:
    """The answer that this message holds, or its error raised here."""
    with reading("answer"):
        return build(cls, said_in(message))


def letters(texts: Mapping[int, bytes]) -> tuple[Letter, ...]:
    """As messages hold them."""
    return tuple(Letter(party, text.hex()) for party, text in sorted(texts.items()))


def by_party(found: tuple[Letter, ...]) -> dict[int, bytes]:
    """As they are used; nobody twice."""
    with reading("letter"):
        texts = {letter.party: unhex(letter.text) for letter in found}
        if len(texts) < len(found):
            raise ValueError("a party is named twice")
        return texts


def unhex(text: str) -> bytes:
    """The bytes that this text stands for."""
    with reading("letter"):
        return bytes.fromhex(text)
