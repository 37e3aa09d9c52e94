"""What a server and its sites parse of each other's bytes, for `guided.py`: each is refused by a declared error."""

from __future__ import annotations

import io
import json
import logging
import socket
import sys
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from flwr.supercore.task_identity import TaskIdentity
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
from headwise.sites.facts import ClientFacts, Introduction, resolve_for_sites, write_for_sites
from headwise.sites.keys import check_certificate, read_signed_list, sign_list, write_certificates, write_node_key
from headwise.sites.offers import read_offer
from headwise.sites.secagg import protocol
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
from headwise.sites.server.control import APP, site_name
from headwise.sites.server.nodes import Nodes, Roster
from headwise.sites.site import worker
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
from headwise.sites.transport.node import explain_refusal, read_site_key
from headwise.sites.transport.superlink import APPS, check_app, find_problem, load_authority

sys.path.append(str(Path(__file__).parents[1] / "sites"))
from superlink import SuperLink, connected, echo

TYPES = record_types(FedAvg)
DATA = "synthetic:60:4:6:sites=2"
STUDY = resolve_for_sites(
    hw.Experiment(method="fedavg", data=DATA, partition="natural", model="mlp:6", clients=2, rounds=3)
)
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
    keys = protocol.Member((0,), "02", "03", "04")
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
    assert experiment_from(experiment.to_plain()) == experiment
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


# -- a site's worker: whatever a server sends, it answers, and what it prints is one line


def workers(data: bytes, room: Path) -> None:
    kind = ("train", "query", "query.refused")[data[0] % 3 if data else 0]
    message = SiteMessage(make_text(data[1:], [each.text for k in (0, 2) for each in GOOD[k]]), GOOD[0][0].records)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "report_event", lambda **event: (to_json(event) + "\n").encode())
        reply = worker.SiteWorker(room / "site" / "site.toml").answer(kind, message)
    assert isinstance(json.loads(reply.text), dict)


def worker_seeds(room: Path) -> list[bytes]:
    (room / "site").mkdir(exist_ok=True)
    own = f'[[clients]]\nid = 0\nsource = "{DATA}:only=0"\n'
    (room / "site" / "site.toml").write_text(f'name = "site"\ndata = "synthetic"\n{own}')
    texts = [GOOD[0][0].text, GOOD[2][0].text, to_json({"refused": "why"})]
    return [*(bytes([k]) + text.encode() for k, text in enumerate(texts)), bytes([0, 255, 0, 1, 2, 3])]


# -- what a stranger's server answers before a site connects: raw HTTP, or Flower's refusal


def server_answers(data: bytes) -> None:
    near, far = socket.socketpair()
    with near, far, pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "create_connection", lambda *_: near)
        far.sendall(data[:60_000])
        far.shutdown(socket.SHUT_WR)
        problem = find_problem("server.example", 9000, None)
        assert problem is None or problem.why
    response = httpx.Response(400, content=data, request=httpx.Request("POST", "https://server.example"))
    assert explain_refusal(httpx.HTTPStatusError("refused", request=response.request, response=response)).why


def server_answer_seeds() -> list[bytes]:
    date = b"Date: Mon, 01 Jan 2024 00:00:00 GMT\r\n"
    refusal = to_json({"code": 1, "message": "no", "public_details": "why"}).encode()
    return [b"HTTP/1.1 401 Unauthorized\r\n" + date + b"Content-Length: 0\r\n\r\n", refusal]


# -- a message of Flower's server, one of whose pieces is anything: the first byte says which


def server_messages(data: bytes) -> None:
    link = SuperLink(SiteMessage("text", [b"record"]), SiteMessage("text", [bytes(600_000)]))
    pieces: list[str] = []
    whole = link.pull

    def pull(run: int, number: str) -> bytes:
        pieces.append(number)
        return data[1:] if len(pieces) - 1 == (data[0] if data else 0) % 6 else whole(run, number)

    link.pull = pull  # type: ignore[method-assign]
    connection = connected(link, echo)
    while connection.answer_next():
        pass
    assert not link.waiting


def server_message_seeds() -> list[bytes]:
    logging.disable(logging.CRITICAL)  # each message that can't be read would be logged
    for name in ("_task_id", "_run_id", "_node_id"):
        setattr(TaskIdentity, name, 1)
    link = SuperLink(SiteMessage("text", [b"record"]), SiteMessage("text", [bytes(600_000)]))
    seeds: list[bytes] = []
    while link.receive() is not None:
        seeds += [bytes([k]) + piece[:8000] for k, piece in enumerate(link.objects.values(), len(seeds))]
    return seeds


# -- keys, certificates and signed lists: the first byte says of which kind


def keys(data: bytes, room: Path) -> None:
    path = room / "key"
    path.write_bytes(data[1:])
    readers = (
        lambda: read_signed_list(path, room / "signer.pub"),
        lambda: read_signed_list(room / "list.json", path),
        lambda: check_certificate(path),
        lambda: load_authority(path),
        lambda: site_name(path),
        lambda: read_site_key(room),
    )
    if data[:1] == b"\x05":
        path.rename(room / "site.key")
    with suppress(RunError, ConfigError):
        readers[data[0] % len(readers) if data else 0]()


def key_seeds(room: Path) -> list[bytes]:
    sign_list([STUDY], room / "signer", room / "list.json")
    write_certificates(room, ["server.example"])
    write_node_key(room / "site.key", "a site")
    names = ("list.json", "signer.pub", "server.pem", "ca.crt", "site.key.pub", "site.key")
    return [bytes([k]) + (room / name).read_bytes() for k, name in enumerate(names)]


# -- what other sites send through the server in a masked sum: keys, shares, and what is sealed in a letter


SECRETS = protocol.new_secrets()
ROSTER = [SECRETS.member((0,)), SECRETS.member((1,))]
SECRET = protocol.agree(SECRETS.cipher, ROSTER[1].cipher)


def shares(data: bytes) -> None:
    kind, text = data[0] % 4 if data else 0, data[1:].decode(errors="replace")
    with suppress(RecordError):
        if kind == 0:
            protocol.read_public_key(text)
        elif kind == 1:
            protocol.restore_secret(dict(enumerate(text.split(","))))
        elif kind == 2:
            protocol.read_share(SECRETS.cipher, 0, 1, ROSTER, text)
        else:
            protocol.read_share(SECRETS.cipher, 0, 1, ROSTER, protocol.seal(SECRET, data[1:]))


def share_seeds() -> list[bytes]:
    letter = to_json({"from": 1, "to": 0, "key": "00" * 48, "seed": "00" * 32}).encode()
    parts = ",".join(protocol.split_secret(SECRETS.seed, 2, 3)).encode()
    whole = [ROSTER[0].mask.encode(), parts, protocol.seal(SECRET, letter).encode(), letter]
    return [bytes([kind]) + data for kind, data in enumerate(whole)]
