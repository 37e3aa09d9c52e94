"""A registered site that lies: whatever it sends, the server refuses it in a sentence or the run ends in one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from federations import LocalTransport, experiment, relative_distance, run_deployment, write_site

import headwise as hw
from headwise.errors import ClientError
from headwise.records import from_bytes, to_bytes
from headwise.sites.facts import ClientFacts, resolve_for_sites
from headwise.sites.server import nodes, remote
from headwise.sites.server.nodes import Nodes, Roster
from headwise.sites.transport import messages
from headwise.sites.transport.envelope import SiteMessage
from headwise.sites.transport.messages import unpack_report

HOMES = {101: [0, 4], 102: [1], 103: [2], 104: [3]}
LIAR = 102
LONG = "\x1b[2J" + "x" * 10**5


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "LAST_PAUSE", 0.0)
    monkeypatch.setattr(nodes, "PATIENCE", 0.0)


def make_study(policy: str = "skip", **changes: Any) -> hw.Experiment:
    """Two rounds of all clients, the first message of which trains."""
    usual: dict[str, Any] = {
        "rounds": 2,
        "sampling": {"ratio": 1.0},
        "evaluate": {"moments": ["post"], "start": False},
        "faults": {"on_failure": policy},
    }
    return experiment("fedavg", **{**usual, **changes})


def run_with(folder: Path, lie: Callable[[SiteMessage, SiteMessage], SiteMessage], study: hw.Experiment) -> hw.Run:
    """A run in which one site's replies to orders go through `lie`, which gets the order as well."""
    transport = LocalTransport({node: write_site(folder / f"site{node}", own) for node, own in HOMES.items()})

    def meddle(node: int, kind: str, reply: SiteMessage) -> SiteMessage:
        return lie(transport.sent[-1][2], reply) if (node, kind) == (LIAR, "train") else reply

    transport.meddle = meddle
    return run_deployment(transport, study, folder / "run")


def change_report(path: str, value: Any) -> Callable[[SiteMessage, SiteMessage], SiteMessage]:
    """Set the value at this path, such as ``answers.0.n``; NaN and Infinity are written as Python reads them."""

    def lie(order: SiteMessage, reply: SiteMessage) -> SiteMessage:
        values = json.loads(reply.text)
        *tables, last = path.split(".")
        place = values
        for table in tables:
            place = place[int(table) if table.isdigit() else table]
        place[last] = value
        return SiteMessage(json.dumps(values), reply.records)

    return lie


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("seconds.training", float("nan")),
        ("seconds.training", float("inf")),
        ("seconds.training", -1.0),
        ("seconds.training", 10**400),
        ("seconds.\x1b[2J", 1.0),
        ("seconds", {f"section {'abcdefghijklmnop'[k // 16]}{'abcdefghijklmnop'[k % 16]}": 1.0 for k in range(200)}),
        ("seconds", []),
        ("process", -1),
        ("process", float("inf")),
        ("memory", 10**400),
        ("memory", float("nan")),
        ("answers.0.test.n", float("inf")),
        ("answers.0.test.n", -3),
        ("answers.0.test.n", 10**30),
        ("answers.0.test.loss", 10**400),
        ("answers.0.flops", float("inf")),
        ("answers.0.state", "../../etc/passwd"),
        ("answers.0.state", "0" * 10**6),
        ("answers.0.n", 10**9),
        ("answers.0.n", 0),
        ("answers.0.n", 1),
        ("answers.0.up", 10**9),
        ("masked", -1),
    ],
)
def test_a_report_with_such_a_value_is_refused(path: str, value: Any, tmp_path: Path) -> None:
    run = run_with(tmp_path, change_report(path, value), make_study())
    assert [row["failed"] for row in run.rounds] == [{"refused": [1]}] * 2
    assert run.ended == "finished"


def test_the_number_of_samples_is_the_one_announced(tmp_path: Path) -> None:
    with pytest.raises(ClientError, match=r"client 1 reports 999 samples, but its site announced \d+"):
        run_with(tmp_path, change_report("answers.0.n", 999), make_study("stop"))


def test_a_failure_is_printed_safely(tmp_path: Path) -> None:
    run = run_with(tmp_path, change_report("answers.0.failure", [LONG, LONG]), make_study())
    lines = (tmp_path / "run" / "sites.jsonl").read_text()
    assert len(lines) < 50_000
    assert "\\u001b" not in lines
    (reason,) = run.rounds[0]["failed"]
    assert len(reason) <= 2000
    assert reason.isprintable()


def test_an_error_is_printed_safely(tmp_path: Path) -> None:
    with pytest.raises(ClientError) as stop:
        run_with(tmp_path, lambda order, reply: SiteMessage(json.dumps({"error": LONG}), []), make_study("stop"))
    assert str(stop.value).isprintable()
    assert len(str(stop.value)) < 3000


def spoil_upload(value: float) -> Callable[[SiteMessage, SiteMessage], SiteMessage]:
    """Fill the first tensor of the upload with this value."""

    def lie(order: SiteMessage, reply: SiteMessage) -> SiteMessage:
        records = [from_bytes(data) for data in reply.records]
        for record in records:
            next(iter(record.tensors.values())).fill_(value)
        return SiteMessage(reply.text, [to_bytes(record) for record in records])

    return lie


@pytest.mark.parametrize(
    ("value", "faults", "reason"),
    [
        (float("nan"), {}, "not finite"),
        (float("-inf"), {}, "not finite"),
        (3e38, {"max_norm": 100.0}, "norm"),
        (1e4, {"max_norm": 100.0}, "norm"),
    ],
)
def test_an_upload_with_such_a_value_is_refused(
    value: float, faults: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    study = make_study(faults={"on_failure": "skip", **faults})
    run = run_with(tmp_path, spoil_upload(value), study)
    assert [row["failed"] for row in run.rounds] == [{reason: [1]}] * 2


def test_another_sites_report_is_refused(tmp_path: Path) -> None:
    transport = LocalTransport({node: write_site(tmp_path / f"site{node}", own) for node, own in HOMES.items()})
    stolen: dict[int, SiteMessage] = {}

    def replay(node: int, kind: str, reply: SiteMessage) -> SiteMessage:
        if kind == "train":
            stolen[node] = reply
        return stolen[101] if (node, kind) == (LIAR, "train") else reply

    transport.meddle = replay
    run = run_deployment(transport, make_study(), tmp_path / "run")
    assert [row["failed"] for row in run.rounds] == [{"refused": [1]}] * 2


def test_a_report_of_an_earlier_round_is_refused(tmp_path: Path) -> None:
    first: list[SiteMessage] = []

    def replay(order: SiteMessage, reply: SiteMessage) -> SiteMessage:
        first.append(reply)
        return first[0]

    run = run_with(tmp_path, replay, make_study())
    assert [row.get("failed") for row in run.rounds] == [None, {"refused": [1]}]


def test_texts_are_bounded_before_they_are_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MOST_TEXT", 10**5)

    def lie(order: SiteMessage, reply: SiteMessage) -> SiteMessage:
        return SiteMessage(reply.text[:-1] + ', "more": [' + "[]," * 10**5 + "[]]}", reply.records)

    run = run_with(tmp_path, lie, make_study())
    assert [row["failed"] for row in run.rounds] == [{"refused": [1]}] * 2


@pytest.mark.parametrize("more", ["text", "records"])
def test_a_reply_that_is_far_too_large_is_refused_before_it_is_parsed(
    more: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    monkeypatch.setattr(remote, "unpack_report", lambda m, types: read.append(m.size) or unpack_report(m, types))

    def lie(order: SiteMessage, reply: SiteMessage) -> SiteMessage:
        filled = reply.text.replace("{", "{" + " " * 10**6, 1)
        return SiteMessage(filled, reply.records) if more == "text" else SiteMessage(reply.text, [bytes(10**6)])

    run = run_with(tmp_path, lie, make_study())
    assert [row["failed"] for row in run.rounds] == [{"refused": [1]}] * 2
    assert 0 < max(read) < 10**6
    assert "are accepted" in (tmp_path / "run" / "sites.jsonl").read_text()


# -- introductions


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[" * 10**5, "its introduction can't be read"),
        ("[]", "its introduction can't be read"),
        ('{"name": "\\u001b[2J", "clients": [1], "facts": [], "version": "1"}', "runs Headwise 1, but the server runs"),
        ("9" * 5000, "its introduction can't be read"),
        ("records", "its introduction can't be read: it has records"),
    ],
)
def test_an_introduction_that_is_none_is_refused_in_a_printable_sentence(text: str, why: str, tmp_path: Path) -> None:
    transport = LocalTransport({node: write_site(tmp_path / f"site{node}", own) for node, own in HOMES.items()})
    transport.meddle = lambda node, kind, reply: (
        reply if node != LIAR else SiteMessage(text, []) if text != "records" else SiteMessage(reply.text, [b"more"])
    )
    lines: list[str] = []
    link = Nodes(transport, resolve_for_sites(make_study()), Roster({}, {}), lines.append)
    link.wait(range(5), 0.0)
    assert why in str(link.statuses[LIAR].refusal)
    assert all(line.isprintable() for line in lines)


def test_a_shape_of_a_million_dimensions_is_refused_at_once() -> None:
    """Its product would have millions of digits, and take hours."""
    facts = ClientFacts(0, (10**9,) * 10**6, 2, 0, (8, 1, 1), None)
    assert facts.problem == "reports data of an implausible size"


# -- masked sums


def lie_in(stage: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Change the liar's reply to this stage."""

    def lie(order: SiteMessage, reply: SiteMessage) -> SiteMessage:
        if json.loads(order.text).get("stage", "fit") != stage:
            return reply
        return SiteMessage(json.dumps(change(json.loads(reply.text))), reply.records)

    return lie


@pytest.mark.parametrize(
    "change",
    [
        lambda member: {**member, "cipher": "02" + "ff" * 48},
        lambda member: {**member, "mask": ""},
        lambda member: {**member, "mask": "00"},
        lambda member: {**member, "mask": member["cipher"]},
        lambda member: {**member, "seed": "00"},
        lambda member: {**member, "clients": [2]},
    ],
    ids=["off the curve", "empty", "infinity", "twice", "short", "another site's clients"],
)
def test_a_site_without_keys_of_its_own_is_left_out(change: Any, tmp_path: Path) -> None:
    """Every honest site would refuse a roster with them, and no sum could be opened."""
    lie = lie_in("keys", lambda reply: {**reply, "member": change(reply["member"])})
    run = run_with(tmp_path, lie, make_study(secure={"sums": True}))
    assert [row["failed"] for row in run.rounds] == [{"refused": [1]}] * 2


def test_the_key_of_another_site_is_not_used(tmp_path: Path) -> None:
    transport = LocalTransport({node: write_site(tmp_path / f"site{node}", own) for node, own in HOMES.items()})
    keys: dict[int, str] = {}

    def steal(node: int, kind: str, reply: SiteMessage) -> SiteMessage:
        if kind == "train" and json.loads(transport.sent[-1][2].text).get("stage") == "keys":
            values = json.loads(reply.text)
            keys[node] = values["member"]["cipher"]
            if node == LIAR:  # as only a server that helps it could arrange
                values["member"]["cipher"] = keys[101]
                return SiteMessage(json.dumps(values), [])
        return reply

    transport.meddle = steal
    study = make_study(secure={"sums": True}, faults={"on_failure": "skip", "min_replies": 1})
    with pytest.raises(ClientError, match="has 0 replies"):  # of four sites two are left, which is too few
        run_deployment(transport, study, tmp_path / "run")


def test_wrong_shares_of_a_seed_are_noticed(tmp_path: Path) -> None:
    """They would restore another seed, and noise would be taken for the sum."""

    def spoil(reply: dict[str, Any]) -> dict[str, Any]:
        return {"shares": [share[:-1] + ("0" if share.endswith("1") else "1") for share in reply["shares"]]}

    with pytest.raises(ClientError, match="do not restore its seed"):
        run_with(tmp_path, lie_in("help", spoil), make_study("stop", secure={"sums": True, "threshold": 1.0}))


def test_shares_that_nobody_can_open_stop_the_round_in_a_sentence(tmp_path: Path) -> None:
    def spoil(reply: dict[str, Any]) -> dict[str, Any]:
        return {"sealed": ["00"] * len(reply["sealed"])}

    with pytest.raises(ClientError, match=r"round 1 has 0 replies|is not a valid sealed message"):
        run_with(tmp_path, lie_in("shares", spoil), make_study(secure={"sums": True}))


def test_a_site_that_leaves_in_the_middle_of_a_sum_changes_nothing_for_the_others(tmp_path: Path) -> None:
    """Its masks are removed with the shares of the others, to the value of a plain run without it."""
    for name, stage in (("shares", "fit"), ("fit", "help")):
        masked, plain = tmp_path / f"{name}-masked", tmp_path / f"{name}-plain"
        run_with(masked, _fail_in(stage), make_study(secure={"sums": True}))
        run_with(plain, _fail_in("fit") if stage == "fit" else lambda order, reply: reply, make_study())
        assert relative_distance(masked / "run", plain / "run") < 1e-6


def _fail_in(stage: str) -> Callable[[SiteMessage, SiteMessage], SiteMessage]:
    def lie(order: SiteMessage, reply: SiteMessage) -> SiteMessage:
        here = json.loads(order.text).get("stage", "fit")
        return SiteMessage('{"error": "gone"}', []) if here == stage else reply

    return lie
