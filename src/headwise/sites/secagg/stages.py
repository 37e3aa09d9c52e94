"""The messages of a round with masked sums, which has four stages; the third is an order and its report.

    keys     every site sends its public keys
    shares   every site gets all public keys (the roster) and deals shares of its secrets, sealed for each party
    fit      the order, with the shares sealed for the site; the report has a masked vector in place of records
    help     every site in the sum learns who else is in it, and sends the shares that remove the masks

A party is an index in the roster.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TypeVar

from ...disk.jsontext import to_json
from ...settings.fields import Natural, build, convert
from ..transport.envelope import SiteMessage
from ..transport.messages import load_text, read_reply, refuse_invalid
from .protocol import Member

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
