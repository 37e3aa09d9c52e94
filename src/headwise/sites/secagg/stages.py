"""The messages of a masked round, in four stages:

keys     every site sends its public keys
shares   every site gets all public keys (the roster) and deals shares of its secrets, sealed for the others
fit      the order, with the shares sealed for the site; the report has a masked vector in place of records
help     every site in the sum learns who else is in it, and sends the shares that remove the masks

Bytes are hexadecimal strings; a party is its index in the roster. Readers check everything.
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
    """A roster entry: a party's clients in this round and its public keys."""

    clients: tuple[Natural, ...]
    cipher: str
    mask: str


@dataclass(frozen=True)
class KeysAsked:
    t: Natural
    clients: tuple[Natural, ...]
    """the clients that the site will train in this round; they identify it"""


@dataclass(frozen=True)
class KeysSaid:
    cipher: str
    mask: str
    opened: tuple[tuple[Natural, ...], ...] | None = None
    """the clients, by site, of the sum that this site has already helped to open; it helps with no other"""


@dataclass(frozen=True)
class SharesAsked:
    t: Natural
    clients: tuple[Natural, ...]
    asked: Natural
    """number of sites that were asked for keys, with or without an answer"""
    roster: tuple[PartyKeys, ...]


@dataclass(frozen=True)
class SharesSaid:
    sealed: tuple[Letter, ...]


@dataclass(frozen=True)
class Counted:
    """A party in the sum, and the clients in its vector."""

    party: Natural
    clients: tuple[Natural, ...]


@dataclass(frozen=True)
class HelpAsked:
    t: Natural
    clients: tuple[Natural, ...]
    survivors: tuple[Counted, ...]


@dataclass(frozen=True)
class HelpSaid:
    """Shares of the keys of lost parties, and of the seeds of parties in the sum."""

    keys: tuple[Letter, ...]
    seeds: tuple[Letter, ...]


Asked = KeysAsked | SharesAsked | HelpAsked
STAGES: dict[str, type[Asked]] = {"keys": KeysAsked, "shares": SharesAsked, "help": HelpAsked}
"""all but `fit`, which is an order"""


def pack_stage(run: str, experiment: str, asked: Asked) -> SiteMessage:
    stage = next(name for name, cls in STAGES.items() if isinstance(asked, cls))
    return SiteMessage(to_json({"run": run, "experiment": experiment, "stage": stage, "asked": asdict(asked)}), [])


def stage_in(message: SiteMessage) -> tuple[str, Asked] | None:
    """The run, and what the stage asks; None if this message is an order."""
    with reading("stage"):
        values = json.loads(message.text)
        if "stage" not in values:
            return None
        return convert(values["run"], str, "run"), build(STAGES[values["stage"]], values["asked"])


def pack_said(said: KeysSaid | SharesSaid | HelpSaid) -> SiteMessage:
    return SiteMessage(to_json(asdict(said)), [])


def unpack_said(message: SiteMessage, cls: type[T]) -> T:
    """The answer; raises the site's own error as a `ClientError`."""
    with reading("answer"):
        return build(cls, said_in(message))


def letters(texts: Mapping[int, bytes]) -> tuple[Letter, ...]:
    return tuple(Letter(party, text.hex()) for party, text in sorted(texts.items()))


def by_party(found: tuple[Letter, ...]) -> dict[int, bytes]:
    """The letters' bytes; a `RecordError` if a party occurs twice."""
    with reading("letter"):
        texts = {letter.party: unhex(letter.text) for letter in found}
        if len(texts) < len(found):
            raise ValueError("a party is named twice")
        return texts


def unhex(text: str) -> bytes:
    with reading("letter"):
        return bytes.fromhex(text)
