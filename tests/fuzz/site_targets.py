"""What a server and its sites parse of each other's bytes, for `guided.py`: each is refused by a declared error."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from test_fuzz_models import places

import headwise as hw
from headwise.contract.method import record_types
from headwise.disk.files import digest, seal, write_json
from headwise.disk.jsontext import to_json
from headwise.engine.client.jobs import Answer, Job
from headwise.errors import ClientError, ConfigError, HeadwiseError, RunError
from headwise.exports.card import DOWN, WHOLE, write_folder
from headwise.methods.fedavg import FedAvg
from headwise.params import Params
from headwise.records import Packed, RecordError, encode, to_bytes
from headwise.settings.experiment import experiment_from
from headwise.settings.foreign import read_foreign
from headwise.sites.facts import ClientFacts, Introduction, for_sites, write_for_sites
from headwise.sites.offers import read_offer
from headwise.sites.secagg.protocol import Member
from headwise.sites.secagg.round import (
    HelpReply,
    HelpRequest,
    KeysReply,
    KeysRequest,
    SharesReply,
    SharesRequest,
    pack_reply,
    pack_request,
    unpack_reply,
    unpack_request,
)
from headwise.sites.server.control import APP
from headwise.sites.server.nodes import Nodes, Roster
from headwise.sites.site.policy import Policy
from headwise.sites.site.site_file import OwnClient, SiteSettings
from headwise.sites.transport.envelope import NodeSeen, SiteMessage
from headwise.sites.transport.messages import (
    Order,
    Report,
    SiteJob,
    pack_order,
    pack_report,
    unpack_order,
    unpack_report,
)
from headwise.sites.transport.superlink import APPS, check_app

TYPES = record_types(FedAvg)
DATA = "synthetic:60:4:6:sites=2"
STUDY = for_sites(hw.Experiment(method="fedavg", data=DATA, partition="natural", model="mlp:6", clients=2, rounds=3))
TEXT = write_for_sites(STUDY)
WEIGHTS = Params(a=torch.arange(3.0))
PRIVATE = {**json.loads(TEXT), "privacy": {"clip": 1.0, "noise": 1.0}, "secure": {"sums": True}}
EXPERIMENTS = [TEXT, json.dumps(PRIVATE)]
SITE = SiteSettings("site", "synthetic", (OwnClient(0, f"{DATA}:only=0"),))


HOSTILE: list[Any] = [
    None, True, -1, 0, 1, 10**9, 10**30, 10**400, 0.5, -0.0, 1e308, float("nan"), float("inf"), "", "none", "0", "00ff",
    "../x.py", "x.py:zz", "\x1b[2J", "x" * 5000, [], [[]], [0] * 300, {}, {"name": "mlp", "values": ["9"]},
]  # fmt: skip
"""values that are put in the place of others"""


def make_text(data: bytes, seeds: Sequence[str]) -> str:
    """These bytes as text; if they begin with 255, a good text, and each three bytes say how to change a value."""
    if data[:1] != b"\xff":
        return data.decode(errors="replace")
    values: Any = json.loads(seeds[data[1] % len(seeds) if len(data) > 1 else 0])
    for where, what, how in zip(data[2:26:3], data[3:26:3], data[4:26:3], strict=False):
        paths = [path for path in places(values) if path]
        if not paths:
            break
        *tables, last = paths[where % len(paths)]
        table = values
        for key in tables:
            table = table[key]
        if how % 8 == 7:
            del table[last]
        elif how % 8 == 6 and isinstance(table, list):
            table.append(deepcopy(table[last]))
        else:
            table[last] = deepcopy(HOSTILE[what % len(HOSTILE)])
    return json.dumps(values)


# -- messages: the first byte says of which kind, and a zero byte ends the text


READERS = (
    lambda message: unpack_order(message, TYPES),
    lambda message: unpack_report(message, TYPES),
    unpack_request,
    lambda message: unpack_reply(message, KeysReply),
    lambda message: unpack_reply(message, HelpReply),
    lambda message: unpack_reply(message, SharesReply),
)


def messages(data: bytes) -> None:
    kind = data[0] % len(READERS) if data else 0
    good = GOOD[kind]
    text, _, record = data[1:].partition(b"\0")
    if text[:1] == b"\xff":
        text, record = data[1:], good[0].records[0] if good[0].records else b""
    message = SiteMessage(make_text(text, [each.text for each in good]), [record] if record else [])
    with suppress(RecordError, ClientError):
        READERS[kind](message)


def _make_messages() -> dict[int, list[SiteMessage]]:
    down = TYPES.down(WEIGHTS)
    keys = Member((0,), "02", "03", "04")
    answer = Answer("fit", 0, 5, TYPES.up(WEIGHTS), {"n": 2, "accuracy": 0.5}, None, 10, 1)
    letters = ("00ff", "")
    return {
        0: [pack_order(Order("run-1", TEXT, [SiteJob(Job("fit", 0, 1, down), "")], letters))],
        1: [pack_report(Report([(answer, "")], {"training": 1.0}, 7, 8))],
        2: [
            pack_request("run-1", TEXT, request)
            for request in (
                KeysRequest(1, (0,)),
                SharesRequest(1, (0,), 3, (keys,)),
                HelpRequest(1, (0,), ((0,), ())),
            )
        ],
        3: [pack_reply(KeysReply(keys, ((0,),)))],
        4: [pack_reply(HelpReply(letters))],
        5: [pack_reply(SharesReply(letters))],
    }


GOOD = _make_messages()


def message_seeds() -> list[bytes]:
    whole = [bytes([k]) + m.text.encode() + b"\0" + b"".join(m.records) for k, each in GOOD.items() for m in each]
    return [*whole, *(bytes([k, 255, 0, 1, 2, 3]) for k in GOOD)]


# -- experiments: as a site reads them, up to the methods and networks that they name


def experiments(data: bytes) -> None:
    text = make_text(data, EXPERIMENTS)
    try:
        experiment = read_foreign(text)
    except ConfigError:
        return
    assert experiment_from(experiment.plain()) == experiment
    with suppress(HeadwiseError):
        Policy(SITE, Path("/nowhere")).permit(text)


def experiment_seeds() -> list[bytes]:
    return [*(text.encode() for text in EXPERIMENTS), bytes([255, 0, 1, 2, 3]), bytes([255, 1, 4, 5, 6])]


# -- introductions: as the server reads them


class OneReply:
    """A transport with one node, whose reply is always `text`."""

    def __init__(self) -> None:
        self.text = ""

    def nodes(self) -> Mapping[int, NodeSeen]:
        return {1: NodeSeen()}

    def send(self, node: int, message: SiteMessage, kind: str, seconds: float) -> str:
        return "number"

    def collect(self, numbers: Sequence[str]) -> list[tuple[str, SiteMessage]]:
        return [(number, SiteMessage(self.text, [])) for number in numbers]


TRANSPORT = OneReply()


def introductions(data: bytes) -> None:
    TRANSPORT.text = make_text(data, INTRODUCTIONS)
    lines: list[str] = []
    link = Nodes(TRANSPORT, STUDY, Roster({}, {}), lines.append)
    link.look()
    assert all(line.isprintable() for line in lines)
    assert link.roster.facts.keys() <= {0, 1}


def introduction_seeds() -> list[bytes]:
    return [*(text.encode() for text in INTRODUCTIONS), bytes([255, 0, 1, 2, 3]), bytes([255, 1, 4, 5, 6])]


def _make_introductions() -> list[str]:
    sums = '{"of":{"form":"array","shape":[1],"options":{},"columns":[]},"n":1,"numbers":[[1],[1],[1]],"values":{}}'
    plain = ClientFacts(0, (4,), 6, 0, (8, 1, 1), ((1,) * 6,) * 3)
    pooled = ClientFacts(1, (1,), 1, 0, (8, 1, 1), None, sums, "regression")
    replies = [Introduction("site", (f.client,), (f,), hw.__version__) for f in (plain, pooled)]
    return [to_json(asdict(reply)) for reply in replies]


INTRODUCTIONS = _make_introductions()


# -- offers: a card, sealed again, or one of its files


def offers(data: bytes, room: Path) -> None:
    folder = room / "offer"
    card: Any = json.loads((room / "good.json").read_text())
    if data[:1] in (b"{", b"\xff"):
        try:
            card = json.loads(make_text(data, [(room / "good.json").read_text()]))
        except (ValueError, RecursionError):
            (folder / "card.json").write_bytes(data)
            card = None
    else:
        (folder / DOWN).write_bytes(data)
        card["files"][DOWN] = {"bytes": len(data), "sha256": digest(data)}
    if isinstance(card, dict):
        write_json(folder / "card.json", seal(card))
    with suppress(RunError):
        read_offer(folder).offer(TYPES.down)


def offer_seeds(room: Path) -> list[bytes]:
    files = {DOWN: encode(TYPES.down(WEIGHTS)), WHOLE: to_bytes(Packed(dict(WEIGHTS), {}))}
    card = {"kind": "offer", "experiment": json.loads(TEXT), "run": "run-1", "client": 2, "round": 3, "download": ["w"]}
    write_folder(room / "offer", card, files)
    data = (room / "offer" / "card.json").read_bytes()
    (room / "good.json").write_bytes(data)
    return [data, files[DOWN], bytes([255, 0, 1, 2, 3])]


# -- apps that Flower delivers


def apps(data: bytes) -> None:
    with suppress(RunError):
        check_app(data)


def app_seeds() -> list[bytes]:
    bundles: list[bytes] = []
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        bundle = io.BytesIO()
        with zipfile.ZipFile(bundle, "w", method) as file:
            file.writestr("pyproject.toml", APP.format(order='"{}"', **APPS))
        bundles.append(bundle.getvalue())
    return bundles
