"""Runs with masked sums: the same models, whichever sites are lost, and no single message is visible."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from federations import LocalTransport, experiment, relative_distance, run_deployment, use_local_nodes, write_site

import headwise as hw
from headwise.app import registry
from headwise.authoring import Shared, Update
from headwise.cli import main
from headwise.errors import ClientError, ConfigError, RunError
from headwise.methods.fedper import FedPer
from headwise.params import Params
from headwise.records import Nothing, Record, pack
from headwise.settings.experiment import experiment_from
from headwise.settings.names import list_names
from headwise.sites.facts import resolve_for_sites
from headwise.sites.secagg import round as masked_round
from headwise.sites.secagg.protocol import SCALAR, SEED
from headwise.sites.server import nodes
from headwise.sites.site.policy import read_policy
from headwise.sites.site.site import open_site
from headwise.sites.transport.envelope import Lost, SiteMessage

HOMES = {101: [0, 4], 102: [1], 103: [2], 104: [3]}
DATA = "synthetic:160:4:6:sites=5"
MASKED = {"sums": True}
SEED_DIGITS = 2 * SEED
KEY_DIGITS = 2 * SCALAR
"""hexadecimal digits of a share: a share is as long as its secret"""
STAGES = ("keys", "shares", "fit", "help")
METHODS = {name: registry.find("method", name) for name in list_names("method")}
MASKABLE = [m for m, cls in METHODS.items() if cls.sums in ("samples", "clients") and cls.census is Nothing]
THREE = ("fedavg", "fedper", "scaffold")


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "LAST_PAUSE", 0.0)
    monkeypatch.setattr(nodes, "PATIENCE", 0.0)  # sites in this process answer at once or never


def four(folder: Path, allow: str = "labels = true") -> LocalTransport:
    return LocalTransport({node: write_site(folder / f"site{node}", own, allow) for node, own in HOMES.items()})


def asked(method: str = "fedper", policy: str = "stop", **changes: Any) -> hw.Experiment:
    usual = {
        "sampling": {"ratio": 1.0},
        "evaluate": {"moments": ["post"], "start": False},
        "faults": {"on_failure": policy},
    }
    return experiment(method, **{**usual, "secure": MASKED, **changes})


def stage_of(message: SiteMessage) -> str:
    """The stage of a masked round that this message belongs to."""
    values = json.loads(message.text)
    return values.get("stage") or values["site_jobs"][0]["kind"]


def round_of(message: SiteMessage) -> int:
    values = json.loads(message.text)
    return values["request"]["t"] if "stage" in values else values["site_jobs"][0]["t"]


def losing(transport: LocalTransport, lost: Callable[[int, str, int], bool]) -> None:
    """Lose the replies of these nodes at these stages of these rounds."""

    def meddle(node: int, kind: str, reply: SiteMessage) -> SiteMessage | Lost:
        question = transport.sent[-1][2]
        gone = kind == "train" and lost(node, stage_of(question), round_of(question))
        return Lost("it was killed") if gone else reply

    transport.meddle = meddle


def failures(run: hw.Run) -> list[Any]:
    return [row.get("failed") for row in run.rounds]


# -- the same models


@pytest.mark.parametrize(
    "method", [m if m in (*THREE, "fml") else pytest.param(m, marks=pytest.mark.all_methods) for m in MASKABLE]
)
def test_a_masked_run_is_the_plain_run(method: str, tmp_path: Path) -> None:
    masked = run_deployment(four(tmp_path / "a"), asked(method), tmp_path / "masked")
    plain = run_deployment(four(tmp_path / "b"), asked(method, secure={}), tmp_path / "plain")
    sizes = [t["sizes"][0] for t in json.loads((tmp_path / "plain" / "sites.json").read_text())["facts"]]
    assert len(set(sizes)) > 2  # else weights would not matter
    assert relative_distance(tmp_path / "masked", tmp_path / "plain") < 1e-6
    assert [row["post"]["accuracy"] for row in masked.rounds] == [row["post"]["accuracy"] for row in plain.rounds]
    assert failures(masked) == [None] * 3


@pytest.mark.parametrize("method", THREE)
@pytest.mark.parametrize("stage", STAGES)
def test_a_site_that_is_lost_at_any_stage_is_as_lost_as_in_a_plain_run(method: str, stage: str, tmp_path: Path) -> None:
    transport, other = four(tmp_path / "a"), four(tmp_path / "b")
    losing(transport, lambda node, at, t: (node, at, t) == (101, stage, 2))
    masked = run_deployment(transport, asked(method, "skip"), tmp_path / "masked")
    losing(other, lambda node, at, t: (node, t) == (101, 2) and stage != "help")
    plain = run_deployment(other, asked(method, "skip", secure={}), tmp_path / "plain")
    assert relative_distance(tmp_path / "masked", tmp_path / "plain") < 1e-6
    # a site that has sent its masked vector is in the sum, even if it is lost later
    assert failures(masked) == ([None] * 3 if stage == "help" else [None, {"dropped": [0, 4]}, None])
    assert [set(row.get("failed", {"": []})) for row in plain.rounds] == (
        [{""}] * 3 if stage == "help" else [{""}, {"no answer"}, {""}]
    )


def test_a_site_may_be_lost_that_has_never_come(tmp_path: Path) -> None:
    transport = four(tmp_path)
    gone = transport.sites.pop(104)
    assert gone.exists()
    run = run_deployment(transport, asked(policy="retry"), tmp_path / "run")
    assert failures(run) == [{"dropped": [3]}] * 3


def test_under_stop_a_round_is_repeated_until_all_are_in_it(tmp_path: Path) -> None:
    transport, seen = four(tmp_path / "a"), list[str]()

    def once(node: int, at: str, t: int) -> bool:
        seen.append(at)
        return at in ("keys", "fit") and node == 103 and seen.count(at) == 4 + 3  # in the second round, once each

    losing(transport, once)
    run = run_deployment(transport, asked(), tmp_path / "masked")
    run_deployment(four(tmp_path / "b"), asked(secure={}), tmp_path / "plain")
    assert failures(run) == [None] * 3
    assert seen.count("fit") > 3 * 4
    assert relative_distance(tmp_path / "masked", tmp_path / "plain") < 1e-6


def test_under_stop_no_sum_is_opened_without_a_site_that_is_gone(tmp_path: Path) -> None:
    transport = four(tmp_path)

    def leave(node: int, kind: str, reply: SiteMessage) -> SiteMessage:
        if kind == "train" and stage_of(transport.sent[-1][2]) == "help" and node == 103:
            transport.sites.pop(104)  # before it can help in the first round
        return reply

    transport.meddle = leave
    with pytest.raises(ClientError, match=r"clients .* gave no answer in 3 attempts: (its site|node 104) is"):
        run_deployment(transport, asked(), tmp_path / "run")
    assert {round_of(p) for _, kind, p in transport.sent if kind == "train" and stage_of(p) == "help"} == {1}
    assert len(hw.Run(tmp_path / "run").rounds) == 1


def test_privacy_and_masks_go_together(tmp_path: Path) -> None:
    private = {"clip": 1.0, "noise": 1.0, "source": "seed"}
    run_deployment(four(tmp_path / "a"), asked("fedavg", privacy=private), tmp_path / "masked")
    run_deployment(four(tmp_path / "b"), asked("fedavg", privacy=private, secure={}), tmp_path / "plain")
    assert relative_distance(tmp_path / "masked", tmp_path / "plain") < 1e-6
    assert hw.Run(tmp_path / "masked").manifest["privacy"]["epsilon"] > 0


# -- too few


def test_where_too_few_stay_nothing_is_opened(tmp_path: Path) -> None:
    transport = four(tmp_path)
    losing(transport, lambda node, at, t: node in (102, 103) and at == "fit" and t == 2)
    with pytest.raises(ClientError, match=r"round 2 has 0 replies, but faults.min_replies is 1 \(no answer: 5\)"):
        run_deployment(transport, asked(policy="skip"), tmp_path / "run")
    helped = [round_of(p) for _, kind, p in transport.sent if kind == "train" and stage_of(p) == "help"]
    assert helped == [1] * 4


def test_the_sentence_says_how_many_and_why(tmp_path: Path) -> None:
    transport = four(tmp_path)
    losing(transport, lambda node, at, t: node == 103 and at == "shares")
    with pytest.raises(ClientError) as error:
        run_deployment(transport, asked(), tmp_path / "run")
    assert str(error.value) == (
        "clients [0, 1, 2, 3, 4] gave no answer in 3 attempts: round 1 has 3 of 4 sites after the stage "
        "'shares', but needs 4 to open its masked sum: it was killed."
    )


def test_a_round_without_enough_helpers_can_be_left_out(tmp_path: Path) -> None:
    transport = four(tmp_path)
    losing(transport, lambda node, at, t: node in (102, 103) and at == "help" and t == 2)
    faults = {"on_failure": "skip", "min_replies": 0}
    run = run_deployment(transport, asked(faults=faults), tmp_path / "run")
    assert failures(run) == [None, {"no answer": [0, 1, 2, 3, 4]}, None]
    assert run.ended == "finished"


def test_three_sites_are_the_least(tmp_path: Path) -> None:
    transport = four(tmp_path)
    del transport.sites[103], transport.sites[104]
    with pytest.raises(ClientError, match=r"round 1 has 0 replies"):
        run_deployment(transport, asked(policy="skip"), tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "sites.jsonl").read_text().splitlines()]
    assert {row["task"] for row in rows} == {"keys"}


# -- what the server sees


def heard(transport: LocalTransport) -> list[bytes]:
    """Record everything that sites send from now on."""
    said: list[bytes] = []

    def listen(node: int, kind: str, reply: SiteMessage) -> SiteMessage:
        said.extend([reply.text.encode(), *reply.records])
        return reply

    transport.meddle = listen
    return said


def test_no_single_message_is_to_be_seen_by_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[Record] = []
    plainly = FedPer.local_update

    def remember(self: FedPer, me: Any, down: Any, local: Any) -> Any:
        update = plainly(self, me, down, local)
        messages.append(update.up)
        return update

    monkeypatch.setattr(FedPer, "local_update", remember)
    totals: list[Any] = []
    add_up = masked_round.add_up
    monkeypatch.setattr(masked_round, "add_up", lambda *a: totals.append(add_up(*a)) or totals[-1])

    def shown(secure: dict[str, Any], name: str) -> list[int]:
        """How often rows of a client's message, or of a site's sum, occur in what the server received."""
        messages.clear()
        totals.clear()
        transport = four(tmp_path / f"sites-{name}")
        said = heard(transport)
        run_deployment(transport, asked(secure=secure), tmp_path / name)
        assert len(messages) == 15
        tensors = [t for m in messages for t in pack(m).tensors.values()]
        rows = [row for t in tensors for row in t.reshape(-1, t.shape[-1])]
        sums = [row for total in totals for t in total.tensors.values() for row in t.reshape(-1, t.shape[-1])]
        pieces = [row.contiguous().numpy().tobytes() for row in rows + sums if row.any()]
        return [sum(piece in text for text in said) for piece in pieces]

    assert min(shown({}, "plain")) > 0  # else the search can't find anything
    found = shown(MASKED, "masked")
    assert len(totals) == 12
    assert max(found) == 0


def test_a_site_keeps_secrets_for_itself_and_no_longer_than_needed(tmp_path: Path) -> None:
    transport, seen = four(tmp_path), list[tuple[str, int, bool]]()

    def look(node: int, kind: str, reply: SiteMessage) -> SiteMessage:
        for path in tmp_path.glob(f"site{node}/states/*/masks/round-*.json"):
            kept = json.loads(path.read_text())
            seen.append((stage_of(transport.sent[-1][2]), stat.S_IMODE(path.stat().st_mode), bool(kept["seed"])))
            assert bool(kept["mask"]) == bool(kept["seed"])
        return reply

    transport.meddle = look
    run_deployment(transport, asked(), tmp_path / "run")
    assert set(seen) == {("keys", 0o600, True), ("shares", 0o600, True), ("fit", 0o600, False)}
    assert len(seen) == 3 * 3 * 4
    assert not list(tmp_path.glob("site*/states/*/masks/round-*"))


def test_the_stages_are_in_the_notes_of_the_run(tmp_path: Path) -> None:
    run_deployment(four(tmp_path), asked(rounds=1), tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "sites.jsonl").read_text().splitlines()]
    assert [row["task"] for row in rows] == [stage for stage in STAGES for _ in range(4)]
    assert all(row["bytes_up"] > 0 and "failure" not in row for row in rows)


# -- a site helps once


def transcript(folder: Path, **changes: Any) -> tuple[LocalTransport, Path]:
    transport = four(folder)
    run_deployment(transport, asked(rounds=1, **changes), folder / "run")
    return transport, folder / "run"


def say(transport: LocalTransport, node: int, message: SiteMessage) -> dict[str, Any]:
    return json.loads(open_site(transport.sites[node]).answer("train", message).text)


def changed(message: SiteMessage, **changes: Any) -> SiteMessage:
    values = json.loads(message.text)
    values["request"] |= changes
    return SiteMessage(json.dumps(values), message.records)


def sent(transport: LocalTransport, node: int, stage: str) -> SiteMessage:
    return next(p for n, kind, p in transport.sent if kind == "train" and n == node and stage_of(p) == stage)


def again(transport: LocalTransport, leave_out: Sequence[int] = ()) -> dict[int, dict[str, Any]]:
    """Replay the first round, like a server that wants a sum without these nodes; return the others' answers."""
    ready = {n: say(transport, n, sent(transport, n, "keys")) for n in HOMES}
    old = json.loads(sent(transport, 101, "shares").text)["request"]["roster"]
    order = [next(n for n, own in HOMES.items() if own == entry["clients"]) for entry in old]
    roster = [ready[n]["member"] for n in order]
    dealt = {n: say(transport, n, changed(sent(transport, n, "shares"), roster=roster))["sealed"] for n in HOMES}
    for me, n in enumerate(order):
        values = json.loads(sent(transport, n, "fit").text) | {"sealed": [dealt[m][me] for m in order]}
        assert "masked" in say(transport, n, SiteMessage(json.dumps(values), sent(transport, n, "fit").records))
    survivors = [[] if n in leave_out else HOMES[n] for n in order]
    left = sorted(set(HOMES) - set(leave_out))
    return {n: say(transport, n, changed(sent(transport, n, "help"), survivors=survivors)) for n in left}


def test_a_site_helps_to_open_one_sum_of_a_round_and_no_other(tmp_path: Path) -> None:
    transport, _ = transcript(tmp_path)
    for said in again(transport, [102]).values():
        assert said["error"] == (
            "this site has helped to open round 1 for the clients ((0, 4), (1,), (2,), (3,)), and helps no others."
        )


def test_the_same_sum_may_be_opened_again(tmp_path: Path) -> None:
    transport, _ = transcript(tmp_path)
    for said in again(transport).values():
        assert [len(share) for share in said["shares"]] == [SEED_DIGITS] * 4


def test_a_site_never_gives_both_shares_of_a_party(tmp_path: Path) -> None:
    """Once a site has helped, nothing of the round is left: it can't even help again."""
    transport, _ = transcript(tmp_path)
    said = say(transport, 102, sent(transport, 102, "help"))
    assert said["error"] == "this site has no masks for round 1."
    transport = four(tmp_path / "other")
    losing(transport, lambda node, at, t: (node, at) == (103, "fit"))
    said = []
    meddle = transport.meddle

    def listen(node: int, kind: str, reply: SiteMessage) -> Any:
        if kind == "train" and stage_of(transport.sent[-1][2]) == "help":
            said.append(json.loads(reply.text))
        return meddle(node, kind, reply)

    transport.meddle = listen
    run_deployment(transport, asked(policy="skip", rounds=1), tmp_path / "other" / "run")
    assert len(said) == 3
    for one in said:
        assert sorted(len(share) for share in one["shares"]) == [SEED_DIGITS] * 3 + [KEY_DIGITS]


class Killed(BaseException):
    """Ends a server at once, like a signal."""


@pytest.mark.parametrize("stage", STAGES)
def test_a_server_that_was_killed_at_any_stage_goes_on(stage: str, tmp_path: Path) -> None:
    transport, seen = four(tmp_path / "a"), list[str]()

    def die(node: int, kind: str, reply: SiteMessage) -> SiteMessage:
        at = stage_of(transport.sent[-1][2]) if kind == "train" else "query"
        seen.append(at)
        if at == stage and seen.count(at) == 4 + 4:  # in the second round, when all have answered
            raise Killed
        return reply

    transport.meddle = die
    with pytest.raises(Killed):
        run_deployment(transport, asked(), tmp_path / "masked")
    transport.meddle = lambda node, kind, reply: reply
    run_deployment(transport, asked(), tmp_path / "masked")
    run_deployment(four(tmp_path / "b"), asked(secure={}), tmp_path / "plain")
    assert relative_distance(tmp_path / "masked", tmp_path / "plain") < 1e-6


def test_a_sum_that_was_opened_without_a_site_stays_without_it(tmp_path: Path) -> None:
    """A server killed before it stored a round gets the same sum again, though more sites are there now."""
    transport, other = four(tmp_path / "a"), four(tmp_path / "b")

    def die(node: int, kind: str, reply: SiteMessage) -> SiteMessage | Lost:
        question = transport.sent[-1][2]
        if kind == "train" and round_of(question) == 2:
            if (
                stage_of(question) == "help"
                and len([1 for *_, p in transport.sent if '"stage": "help"' in p.text]) == 7
            ):
                raise Killed
            return Lost("it was killed") if node == 104 else reply
        return reply

    transport.meddle = die
    with pytest.raises(Killed):
        run_deployment(transport, asked(policy="skip"), tmp_path / "masked")
    transport.meddle = lambda node, kind, reply: reply
    masked = run_deployment(transport, asked(policy="skip"), tmp_path / "masked")
    assert failures(masked) == [None, {"dropped": [3]}, None]
    losing(other, lambda node, at, t: (node, t) == (104, 2))
    run_deployment(other, asked(policy="skip", secure={}), tmp_path / "plain")
    assert relative_distance(tmp_path / "masked", tmp_path / "plain") < 1e-6


def test_a_sum_that_could_not_be_opened_is_the_only_one_that_may_be(tmp_path: Path) -> None:
    """Sites have helped, but their answers were lost: a repeated round opens the same sum or none."""
    transport, seen = four(tmp_path / "a"), list[str]()

    def lose(node: int, at: str, t: int) -> bool:
        seen.append(at)
        attempt = (seen.count("keys") + 3) // 4
        return t == 2 and ((attempt, at) == (2, "help") or (attempt, at, node) == (3, "fit", 104))

    losing(transport, lose)
    run = run_deployment(transport, asked(policy="retry"), tmp_path / "masked")
    run_deployment(four(tmp_path / "b"), asked(secure={}), tmp_path / "plain")
    assert failures(run) == [None] * 3
    assert [seen.count(stage) for stage in STAGES] == [5 * 4, 5 * 4, 5 * 4, 4 * 4]
    assert relative_distance(tmp_path / "masked", tmp_path / "plain") < 1e-6


def test_masks_are_used_once(tmp_path: Path) -> None:
    transport, _ = transcript(tmp_path)
    fit, keys, shares = (sent(transport, 102, stage) for stage in ("fit", "keys", "shares"))
    assert say(transport, 102, fit)["error"] == "this site has no masks for round 1."
    said = say(transport, 102, keys)
    assert said["opened"] == [[0, 4], [1], [2], [3]]
    assert say(transport, 102, fit)["error"] == "this site has no unused masks for round 1."
    assert (
        "must have this one and at least 3 in all" in say(transport, 102, shares)["error"]
    )  # the roster has its old keys
    roster = json.loads(shares.text)["request"]["roster"]
    mine = [said["member"] if e["clients"] == [1] else e for e in roster]
    assert "sealed" in say(transport, 102, changed(shares, roster=mine))
    assert (
        say(transport, 102, changed(shares, roster=mine))["error"]
        == "this site has already dealt its shares of round 1."
    )


# -- what a site refuses


def test_nothing_leaves_unmasked_where_masks_are_asked_for(tmp_path: Path) -> None:
    transport, _ = transcript(tmp_path)
    values = json.loads(sent(transport, 102, "fit").text)
    for sealed in (None, []):
        message = SiteMessage(json.dumps(values | {"sealed": sealed}), sent(transport, 102, "fit").records)
        say(transport, 102, sent(transport, 102, "keys"))
        assert "error" in say(transport, 102, message)
    del values["sealed"]
    said = say(transport, 102, SiteMessage(json.dumps(values), sent(transport, 102, "fit").records))
    assert said["error"] == "secure.sums is true, but this order asks for unmasked messages: nothing is trained."


def test_no_stage_is_answered_where_nothing_is_masked(tmp_path: Path) -> None:
    transport, _ = transcript(tmp_path)
    values = json.loads(sent(transport, 102, "keys").text)
    values["experiment"] = json.dumps(resolve_for_sites(asked(secure={})).to_plain())
    said = say(transport, 102, SiteMessage(json.dumps(values), []))
    assert said["error"] == "this experiment has no masked sums: secure.sums is false."


@pytest.mark.parametrize(
    ("stage", "change", "why"),
    [
        ("keys", {"t": -1}, "this message is not a valid stage: ConfigError: t is -1"),
        ("keys", {"clients": ["1"]}, "this message is not a valid stage: ConfigError: clients[0] is '1'"),
        ("keys", {"clients": []}, "a masked sum needs clients, but this message names none."),
        ("keys", {"clients": [2]}, "site102 does not have the clients [2]."),
        ("keys", {"more": 1}, "this message is not a valid stage: ConfigError: more is not a setting"),
        ("shares", {"roster": []}, "round 1 has 0 of 4 sites, but must have this one and at least 3"),
        ("shares", {"sites": 3}, "round 1 has 4 of 3 sites"),
        ("shares", {"sites": 40}, "round 1 has 4 of 40 sites, but must have this one and at least 27"),
        ("shares", {"roster": "mine*4"}, "must have this one and at least 3 in all."),
        ("shares", {"roster": "twice"}, "the roster of round 1 names a client or a key twice."),
        ("shares", {"roster": "bad key"}, "this is not a valid key"),
        ("help", {"t": 2}, "site102 got an order for round 2, but the rounds are 1 to 1."),
        ("help", {"survivors": []}, "the sum of round 1 does not match what this site sent."),
        ("help", {"survivors": "few"}, "round 1 has 2 sites in its sum, but needs 3 that dealt shares."),
        ("help", {"survivors": "other clients"}, "the sum of round 1 does not match what this site sent."),
        ("help", {"survivors": "strangers"}, "round 1 has 5 sites in its sum, but needs 3 that dealt shares."),
    ],
)
def test_a_stage_outside_the_rules_is_refused(stage: str, change: dict[str, Any], why: str, tmp_path: Path) -> None:
    said: list[dict[str, Any]] = []

    class Done(BaseException):
        pass

    class Lying(LocalTransport):
        def send(self, node: int, message: SiteMessage, kind: str, seconds: float | None = None) -> str | None:
            if node == 102 and kind == "train" and stage_of(message) == stage:
                said.append(say(self, node, changed(message, **made(json.loads(message.text)["request"], change))))
                raise Done
            return super().send(node, message, kind, seconds)

    with pytest.raises(Done):
        run_deployment(Lying(four(tmp_path).sites), asked(rounds=1), tmp_path / "run")
    assert why in said[0]["error"]


def made(real: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """The change, in which words stand for values derived from the real message."""
    ((name, value),) = change.items()
    if name == "survivors" and isinstance(value, str):
        clients: list[list[int]] = real[name]
        few = [[1], next(each for each in clients if each != [1])]
        return {
            name: {
                "few": [each if each in few else [] for each in clients],
                "other clients": [[1, 2] if each == [1] else each for each in clients],
                "strangers": [*clients, [9]],
            }[value]
        }
    if isinstance(value, str):
        own = next(e for e in real[name] if e["clients"] == [1])
        others = [e for e in real[name] if e["clients"] != [1]]
        return {
            name: {
                "mine*4": [own] * 4,
                "twice": [own, others[0], others[0]],
                "bad key": [own, *({**e, "cipher": "02" + "ff" * 48} for e in others[:1]), *others[1:]],
            }[value]
        }
    return change


def test_a_site_can_insist_on_masks(tmp_path: Path) -> None:
    site = read_policy(write_site(tmp_path / "site", [0], "plain = false"))
    with pytest.raises(RunError) as error:
        site.plan(json.dumps(resolve_for_sites(asked(secure={})).to_plain()))
    assert str(error.value) == "site only sends masked sums, but secure.sums is false in the experiment."
    assert site.plan(json.dumps(resolve_for_sites(asked()).to_plain())).experiment.secure.sums


# -- values and reports that can't be used


def spoilt(monkeypatch: pytest.MonkeyPatch, client: int, value: float) -> None:
    honest = FedPer.local_update

    def lie(self: FedPer, me: Any, down: Any, local: Any) -> Any:
        update = honest(self, me, down, local)
        if local.client == client and local.t == 2:
            wrong = Params({k: torch.full_like(t, value) for k, t in update.up.w.items()})
            return Update(Shared(wrong), update.me, update.model)
        return update

    monkeypatch.setattr(FedPer, "local_update", lie)


@pytest.mark.parametrize(("value", "reason"), [(float("nan"), "not finite"), (1e9, "too large")])
def test_a_site_judges_its_clients_itself(
    value: float, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoilt(monkeypatch, 4, value)
    run = run_deployment(four(tmp_path), asked(policy="skip"), tmp_path / "run")
    assert failures(run) == [None, {reason: [4]}, None]
    with pytest.raises(ClientError, match=r"client 4 sent values in w/\S+ .* in round 2\."):
        run_deployment(four(tmp_path / "again"), asked(), tmp_path / "stopped")


def test_the_limit_of_norms_holds_at_the_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoilt(monkeypatch, 1, 1000.0)
    run = run_deployment(four(tmp_path), asked(faults={"on_failure": "skip", "max_norm": 500.0}), tmp_path / "run")
    assert failures(run) == [None, {"norm": [1]}, None]


def test_a_client_that_raises_is_not_in_the_sum_and_its_neighbour_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = FedPer.local_update

    def fail(self: FedPer, me: Any, down: Any, local: Any) -> Any:
        if local.client in (1, 4) and local.t == 2:
            raise ZeroDivisionError("by hand")
        return honest(self, me, down, local)

    monkeypatch.setattr(FedPer, "local_update", fail)
    run = run_deployment(four(tmp_path / "a"), asked(policy="skip"), tmp_path / "masked")
    run_deployment(four(tmp_path / "b"), asked(policy="skip", secure={}), tmp_path / "plain")
    assert failures(run) == [None, {"raised": [1, 4]}, None]
    assert relative_distance(tmp_path / "masked", tmp_path / "plain") < 1e-6


@pytest.mark.parametrize(
    ("stage", "change"),
    [
        ("keys", {"member": 7}),
        ("keys", {"member": {"clients": [1], "cipher": 7, "mask": "", "seed": ""}}),
        ("keys", {"more": 1}),
        ("shares", {"sealed": []}),
        ("shares", {"sealed": ["", "", "", ""]}),
        ("shares", {"sealed": [7, 7, 7, 7]}),
        ("shares", {"sealed": "first twice"}),
        ("fit", {"masked": 9}),
        ("fit", {"masked": None}),
        ("fit", {"answers": []}),
        ("fit", {"records": "cut"}),
        ("fit", {"records": "other"}),
    ],
)
def test_a_site_that_lies_is_left_out(stage: str, change: dict[str, Any], tmp_path: Path) -> None:
    transport = four(tmp_path)

    def lie(node: int, kind: str, reply: SiteMessage) -> SiteMessage:
        if node != 102 or kind != "train" or stage_of(transport.sent[-1][2]) != stage:
            return reply
        if change.get("records") == "cut":
            return SiteMessage(reply.text, [r[:-1] for r in reply.records])
        if change.get("records") == "other":
            return SiteMessage(reply.text, [r.replace(b'"shape": [6]', b'"shape": [6,1]') for r in reply.records])
        said = json.loads(reply.text)
        twice = change.get("sealed") == "first twice"
        said |= {"sealed": [said["sealed"][0], *said["sealed"]]} if twice else change
        return SiteMessage(json.dumps(said), reply.records)

    transport.meddle = lie
    run = run_deployment(transport, asked(policy="skip"), tmp_path / "run")
    assert failures(run) == [{"refused": [1]}] * 3


@pytest.mark.parametrize("shares", [[], [""] * 4, [7] * 4, ["00"] * 5])
def test_a_site_that_lies_when_it_helps_is_done_without(shares: list[Any], tmp_path: Path) -> None:
    transport = four(tmp_path / "a")

    def lie(node: int, kind: str, reply: SiteMessage) -> SiteMessage:
        if node != 102 or kind != "train" or stage_of(transport.sent[-1][2]) != "help":
            return reply
        return SiteMessage(json.dumps({"shares": shares}), [])

    transport.meddle = lie
    run = run_deployment(transport, asked(policy="skip"), tmp_path / "masked")
    run_deployment(four(tmp_path / "b"), asked(secure={}), tmp_path / "plain")
    assert failures(run) == [None] * 3
    assert relative_distance(tmp_path / "masked", tmp_path / "plain") < 1e-6


# -- in a simulation


def test_nodes_of_a_simulation_mask_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_local_nodes(monkeypatch, nodes=4)
    changes: dict[str, Any] = {"engine": {"kind": "flower-sim"}, "sampling": {"ratio": 0.8}}
    hw.run(asked("scaffold", **changes), tmp_path / "masked")
    hw.run(asked("scaffold", secure={}, **changes), tmp_path / "plain")
    assert relative_distance(tmp_path / "masked", tmp_path / "plain") < 1e-6
    assert relative_distance(tmp_path / "masked", tmp_path / "plain") > 0  # else nothing was masked


# -- what is refused before anything is run


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": "fedgh"}, "the server of fedgh needs every single message."),
        ({"method": "fednova"}, "the server of fednova needs every single message."),
        ({"method": "fedproto"}, "the server of fedproto needs sums label by label, which can't be masked here."),
        ({"robust": {"rule": "median"}}, "robust.rule is 'median', which looks at single messages."),
        ({"faults": {"inject": "drop=0.3"}}, "faults.inject spoils single messages."),
        ({"engine": {}}, "engine.kind is 'local', which has no sites: it must be flower-sim."),
    ],
)
def test_what_can_not_be_masked_is_refused_before_it_begins(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    plain = {**asked("fedavg", engine={"kind": "flower-sim"}).to_plain(), **changes}
    with pytest.raises(ConfigError) as error:
        hw.run(experiment_from(plain), tmp_path / "run")
    assert str(error.value) == f"secure.sums is true, but {said}"
    assert not (tmp_path / "run").exists()


def test_the_threshold_is_more_than_half() -> None:
    with pytest.raises(ConfigError, match=r"secure.threshold is 0.5, but must be above 0.5 and at most 1\."):
        asked(secure={"sums": True, "threshold": 0.5})


def test_a_mistake_on_the_command_line_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["run", "--method", "fedavg", "--data", DATA, "--set", "secure.sums=true"])
    assert stop.value.code == 2
    assert capsys.readouterr().err == (
        "headwise: secure.sums is true, but engine.kind is 'local', which has no sites: it must be flower-sim.\n"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("fedavg", "only the mean of the messages, weighted by samples: it can be masked"),
        ("scaffold", "only the unweighted mean of the messages: it can be masked"),
        ("fedproto", "only sums of the messages, label by label"),
        ("fedgh", "every client's message"),
    ],
)
def test_describe_says_what_the_server_needs(method: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["describe", method])
    assert f"server needs        {said}\n" in capsys.readouterr().out
