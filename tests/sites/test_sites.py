"""Orders, reports and states at sites: the same bits as in one process, whatever gets lost."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from federations import FIVE, bits, experiment, use_local_nodes

import headwise as hw
from headwise.cli import main
from headwise.contract.method import record_types
from headwise.engine.events import Event, RoundEnded, RoundStarted
from headwise.errors import ClientError, RunError
from headwise.methods.fedper import FedPer
from headwise.settings.names import list_names
from headwise.sites.server import remote
from headwise.sites.site.site import OpenPolicy, Site
from headwise.sites.states import SiteStates
from headwise.sites.transport.envelope import Lost, SiteMessage
from headwise.sites.transport.messages import pack_error, unpack_report
from headwise.testing.nervous import Nervous

SIM = {"kind": "flower-sim"}


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("local") / "run"
    hw.run(experiment(), folder)
    return bits(folder)


@pytest.mark.parametrize(
    "method", [m if m in FIVE else pytest.param(m, marks=pytest.mark.all_methods) for m in list_names("method")]
)
def test_every_method_gives_the_same_bits(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_local_nodes(monkeypatch)
    monkeypatch.setattr(remote, "MODELS", 1)  # a tenth of what a reply may hold is enough for every method
    monkeypatch.setattr(remote, "TEXT", 4000)
    with Nervous():
        hw.run(experiment(method), tmp_path / "local")
        hw.run(experiment(method, engine=SIM), tmp_path / "sites")
    assert bits(tmp_path / "sites") == bits(tmp_path / "local")


def test_a_reply_that_got_lost_puts_no_client_ahead(
    wanted: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def lose_every_third(node: int, message: SiteMessage) -> SiteMessage | Lost:
        seen.append(node)
        return Lost("by hand") if len(seen) % 3 == 0 else message

    use_local_nodes(monkeypatch, lose_every_third)
    hw.run(experiment(engine=SIM), tmp_path / "run")
    assert len(seen) > 12
    assert bits(tmp_path / "run") == wanted


def test_a_node_that_never_answers_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_local_nodes(monkeypatch, lambda node, message: Lost(f"node {node} is gone") if node == 12 else message)
    with pytest.raises(ClientError, match=r"clients \[.*\] gave no answer in 3 attempts: node 12 is gone"):
        hw.run(experiment(engine=SIM), tmp_path / "run")


class Killed(BaseException):
    """Ends a server at once, like a signal."""


@pytest.mark.parametrize("moment", [RoundStarted, RoundEnded])
def test_a_server_that_was_killed_goes_on_with_what_the_sites_have(
    moment: type[Event], wanted: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds: list[int] = []

    def kill(event: Event) -> None:
        if isinstance(event, moment):
            rounds.append(1)
            if len(rounds) == 2:
                raise Killed

    use_local_nodes(monkeypatch)
    with pytest.raises(Killed):
        hw.run(experiment(engine=SIM), tmp_path / "run", observers=[kill])
    hw.resume(tmp_path / "run")
    assert bits(tmp_path / "run") == wanted


def test_a_server_that_was_killed_before_it_stored_a_round_trains_it_again(
    wanted: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def die(node: int, message: SiteMessage) -> SiteMessage:
        calls.append(node)
        if len(calls) == 9:  # in the second round, when some sites have stored their new states
            raise Killed
        return message

    use_local_nodes(monkeypatch, die)
    with pytest.raises(Killed):
        hw.run(experiment(engine=SIM), tmp_path / "run")
    hw.resume(tmp_path / "run")
    assert bits(tmp_path / "run") == wanted


def test_a_damaged_checkpoint_of_the_server_finds_the_sites_older_states(
    wanted: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(event: Event) -> None:
        if isinstance(event, RoundStarted) and event.t == 3:
            raise Killed

    use_local_nodes(monkeypatch)
    with pytest.raises(Killed):
        hw.run(experiment(engine=SIM), tmp_path / "run", observers=[kill])
    newest = max((tmp_path / "run" / "checkpoint").glob("round-*"))
    newest.write_bytes(newest.read_bytes()[:100])
    hw.resume(tmp_path / "run")
    assert bits(tmp_path / "run") == wanted


def test_a_site_that_lost_a_state_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(event: Event) -> None:
        if isinstance(event, RoundStarted) and event.t == 2:
            for path in (tmp_path / "run" / "sites").rglob("*.safetensors"):
                path.unlink()

    use_local_nodes(monkeypatch)
    with pytest.raises(ClientError, match=r"client-\d has no state [0-9a-f]{12}, which the server accepted last"):
        hw.run(experiment(engine=SIM), tmp_path / "run", observers=[forget])


def test_a_method_that_fails_is_told_as_in_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_local_nodes(monkeypatch)

    def fail(*_: object) -> None:
        raise ZeroDivisionError("by hand")

    monkeypatch.setattr(FedPer, "local_update", fail)
    said: list[str] = []
    for name, engine in (("local", {}), ("sites", SIM)):
        with pytest.raises(ClientError) as error:
            hw.run(experiment(engine=engine), tmp_path / name)
        said.append(str(error.value))
    assert said[0] == said[1]
    assert "by hand" in said[0]


@pytest.mark.parametrize("text", ["", "[", "7", "{}", '{"experiment": 7}', '{"experiment": "{}", "run": "a"}'])
def test_a_message_that_is_none_is_refused(text: str, tmp_path: Path) -> None:
    said = json.loads(Site(tmp_path, OpenPolicy(tmp_path)).answer("train", SiteMessage(text, [])).text)
    assert set(said) == {"error"}
    assert list(tmp_path.iterdir()) == []


def test_a_tampered_record_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site_answer = Site.answer

    def tamper(site: Site, kind: str, message: SiteMessage) -> SiteMessage:
        return site_answer(site, kind, SiteMessage(message.text, [data[:-1] for data in message.records]))

    use_local_nodes(monkeypatch)
    monkeypatch.setattr(Site, "answer", tamper)
    with pytest.raises(ClientError, match="these bytes are not a valid record"):
        hw.run(experiment(engine=SIM), tmp_path / "run")
    assert not list((tmp_path / "run").rglob("client-*"))


def test_an_error_becomes_the_servers() -> None:
    with pytest.raises(ClientError, match=r"^no$"):
        unpack_report(pack_error(RunError("no")), record_types(FedPer))


def test_states_are_kept_until_they_are_not_needed(tmp_path: Path) -> None:
    kept, digests = SiteStates(tmp_path, "run-1"), [""]
    for t in range(1, 6):
        digests.append(kept.put(3, t, b"state %d" % t, digests[-1]))
        assert [v.t for v in kept.versions(3)] == list(range(max(1, t - 2), t + 1))
    assert kept.take(3, digests[4]) == b"state 4"
    again = kept.put(3, 5, b"otherwise", digests[4])  # the server never accepted the fifth
    assert [v.digest for v in kept.versions(3)] == [*digests[3:5], again]
    assert kept.take(4, "") is None
    with pytest.raises(RunError, match="has no state"):
        kept.take(3, digests[5])


def test_states_of_an_unknown_reply_do_not_pile_up_and_earlier_ones_stay(tmp_path: Path) -> None:
    kept = SiteStates(tmp_path, "run-1")
    first = kept.put(0, 2, b"a", "")
    late = kept.put(0, 4, b"late", first)
    assert [v.digest for v in kept.versions(0)] == [first, late]
    taken = kept.put(0, 7, b"b", first)
    assert [v.digest for v in kept.versions(0)] == [first, taken]


def test_the_same_state_twice_is_one_file(tmp_path: Path) -> None:
    kept = SiteStates(tmp_path, "run-1")
    first = kept.put(0, 1, b"a", "")
    assert kept.put(0, 2, b"a", first) == first
    assert kept.take(0, first) == b"a"
    assert [v.t for v in kept.versions(0)] == [2]


def test_a_damaged_state_is_told(tmp_path: Path) -> None:
    kept = SiteStates(tmp_path, "run-1")
    digest = kept.put(0, 1, b"state", "")
    kept.versions(0)[0].path.write_bytes(b"other")
    with pytest.raises(RunError, match="is damaged: its content does not match the digest in its name"):
        kept.take(0, digest)
    assert digest == hashlib.sha256(b"state").hexdigest()


@pytest.mark.parametrize("run", ["", "..", "a/b", "A", "a" * 65])
def test_a_run_can_not_name_another_folder(run: str, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="must be 1 to 64 lower-case letters, digits and dashes"):
        SiteStates(tmp_path, run)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            ["--engine", "flower-sim", "--workers", "threads:2"],
            "engine.workers is 'threads:2', but engine.kind 'flower-sim' needs a number.",
        ),
        (["--engine", "flowr-sim"], "engine.kind is 'flowr-sim': did you mean 'flower-sim'?"),
        (["--engine", "flower"], "engine.kind is 'flower', which only headwise deploy can run."),
        (["--set", "engine.flower.nodes=0"], "engine.flower.nodes is 0, but must be from 1 to 1,000,000,000."),
        (["--set", "engine.flower.node=2"], "engine.flower.node is not a setting: did you mean 'nodes'?"),
    ],
)
def test_a_wrong_setting_is_one_sentence(
    flags: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["run", "--data", "synthetic:160:4:6", *flags, "--out", str(tmp_path / "run")])
    assert stop.value.code == 2
    assert capsys.readouterr().err == f"headwise: {said}\n"
    assert not (tmp_path / "run").exists()


def test_without_flower_nothing_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SystemExit) as stop:
        main(["run", "--data", "synthetic:160:4:6", "--engine", "flower-sim", "--out", str(tmp_path / "run")])
    assert stop.value.code == 2
    assert "engine.kind is 'flower-sim', which needs: pip install 'headwise[flower]'." in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
