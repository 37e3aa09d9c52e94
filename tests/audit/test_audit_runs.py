"""Audits of whole runs: disclosed bytes match what the run counted, and attacks find what can be found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import headwise as hw
from headwise.audit import reconstruction
from headwise.audit.auditing import Audit, audit
from headwise.audit.inference import infer_labels, infer_members
from headwise.audit.scene import make_message, scene_of
from headwise.cli import main
from headwise.errors import RunError
from headwise.settings.names import list_names

SMALL = {"data": "synthetic:240:4:6:sites=2", "partition": "dirichlet:0.5", "model": "mlp:16", "clients": 5}


def made(folder: Path, method: str, **settings: Any) -> Path:
    usual = {**SMALL, "rounds": 2, "engine": {"workers": 1}}
    return hw.run(hw.Experiment(method=method, **{**usual, **settings}), folder).path


def value(found: Audit, attack: str, knowing: str = "", measure: str = "") -> float:
    chosen = [f for f in found.findings if attack in f.attack and knowing in f.knowing and measure in f.measure]
    assert len(chosen) == 1, found.findings
    return chosen[0].score


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few steps: enough to check that everything is connected."""
    monkeypatch.setattr(reconstruction, "GRADIENT_STEPS", 3)
    monkeypatch.setattr(reconstruction, "FEATURE_STEPS", 3)


@pytest.mark.usefixtures("quickly")
@pytest.mark.parametrize("method", list_names("method"))
def test_every_method_can_be_audited(method: str, tmp_path: Path) -> None:
    run = made(tmp_path / "run", method)
    found = audit(run, clients=2)
    names = [f.name for f in found.fields if not f.name.startswith("(")]
    rows = hw.Run(run).rounds
    assert set(names) >= rows[0]["fields"]["up"].keys()
    sizes = {f.name: f.bytes for f in found.fields}
    replies = sum(len(row["clients"]) for row in rows)
    assert sum(sizes[n] for n in names) == pytest.approx(sum(row["bytes_up"] for row in rows) / replies)
    assert all(f.what for f in found.fields)
    assert all(-1 <= f.score <= 1 + 1e-9 and f.cases > 0 for f in found.findings)
    assert [f for f in found.findings if f.attack == "membership inference"], "there is a model, whatever is sent"


@pytest.mark.usefixtures("quickly")
@pytest.mark.parametrize("method", ["fedavg", "fedper", "fedftha", "fedmeta"])
def test_whatever_moves_with_the_first_layer_gives_a_sample_away(method: str, tmp_path: Path) -> None:
    """Also if it has another name, or is itself a gradient."""
    found = audit(made(tmp_path / "run", method), clients=3)
    assert value(found, "batch of 1, ratios") == pytest.approx(1.0, abs=1e-3)


@pytest.mark.usefixtures("quickly")
def test_one_step_on_one_sample_gives_it_away_unless_there_is_noise(tmp_path: Path) -> None:
    plain = audit(made(tmp_path / "plain", "fedper"), clients=3)
    assert value(plain, "batch of 1, ratios") == pytest.approx(1.0, abs=1e-3)
    noise = {"clip": 1.0, "noise": 1.0, "source": "seed"}
    private = audit(made(tmp_path / "private", "fedper", privacy=noise), clients=3)
    assert value(private, "batch of 1, ratios") < 0.9
    assert (plain.private, private.private) == (False, True)


@pytest.mark.usefixtures("quickly")
def test_labels_leak_as_the_methods_say(tmp_path: Path) -> None:
    gmh = audit(made(tmp_path / "gmh", "fedgmh"), clients=5)
    assert value(gmh, "label", "requested", "F1") == 1.0
    assert value(gmh, "label", "requested", "agreement") < 1.0, "not how many of each"
    gh = audit(made(tmp_path / "gh", "fedgh"), clients=5)
    assert not [f for f in gh.findings if f.knowing == "what is requested"]
    assert "(requested)" not in [f.name for f in gh.fields]
    proto = audit(made(tmp_path / "proto", "fedproto"), clients=5)
    assert value(proto, "label", "in the message", "agreement") == 1.0, "their counts are sent"


def test_the_head_tells_which_single_class_a_client_holds(tmp_path: Path) -> None:
    run = made(tmp_path / "run", "fedavg", partition="pathological:1", clients=4)
    with scene_of(run) as scene:
        found = infer_labels(scene, range(4))
    assert [f.score for f in found] == [1.0, pytest.approx(1.0)]
    assert [f.cases for f in found] == [4, 4]


def test_members_are_found_where_models_know_them_by_heart(tmp_path: Path) -> None:
    noisy = {"data": "synthetic:60:4:30:sites=2", "partition": "iid", "clients": 2, "model": "mlp:64"}
    by_heart = made(tmp_path / "a", "standalone", train={"epochs": 100, "lr": 0.3}, rounds=4, **noisy)
    hardly = made(tmp_path / "b", "standalone", train={"epochs": 1, "lr": 1e-6}, rounds=1, **noisy)
    with scene_of(by_heart) as learned, scene_of(hardly) as fresh:
        found = [infer_members(scene, range(2))[0].score for scene in (learned, fresh)]
    assert found[0] > 0.75 > found[1]


def test_a_message_on_few_samples_is_of_those(tmp_path: Path) -> None:
    with scene_of(made(tmp_path / "run", "fedgh")) as scene:
        for client in range(5):
            own = scene.train(client)
            message = make_message(scene, client, torch.tensor([len(own) - 1]))
            up: Any = message.up
            assert message.n == 1
            assert up.labels.tolist() == [own.y[-1].item()]
            assert make_message(scene, client).n == len(own)


def test_feature_inversion_needs_the_body(tmp_path: Path) -> None:
    """With many dissimilar samples per class, the client's own body is worth more than others'."""
    with scene_of(made(tmp_path / "run", "fedgh", model="mlp:64", rounds=3)) as scene:
        found = {(f.knowing, "up to" in f.attack): f.score for f in reconstruction.invert_features(scene, range(5))}
    assert found["the client's body", True] > 0.9
    assert found["the client's body", True] > found["the initial body", True]


def test_audits_are_repeated_by_their_seed(tmp_path: Path) -> None:
    run = made(tmp_path / "run", "fedper")
    assert audit(run, clients=2, seed=1) == audit(run, clients=2, seed=1) != audit(run, clients=2, seed=2)


@pytest.mark.usefixtures("quickly")
def test_the_command_shows_fields_and_attacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = made(tmp_path / "run", "fedgmh")
    for more in ((), ("--json",)):
        with pytest.raises(SystemExit) as stop:
            main(["audit", str(run), "--clients", "2", *more])
        assert stop.value.code == 0
    shown, _, last = capsys.readouterr().out.rpartition("\n{")
    found = json.loads("{" + last)
    assert shown.startswith("fedgmh after 2 rounds, without noise on what leaves\n")
    for f in found["fields"]:
        assert f"{f['name']:16}{f['bytes']:14,.0f}  yes" in shown
    for a in found["findings"]:
        assert a["attack"] in shown and f"{a['score']:7.3f}{a['guess']:7.3f}" in shown


def test_runs_that_cannot_be_audited(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not the folder of a run"):
        audit(tmp_path)
    run = made(tmp_path / "run", "fedavg")
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["experiment"]["engine"]["kind"] = "flower"
    del manifest["checksum"]
    (tmp_path / "sites").mkdir()
    (tmp_path / "sites" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(RunError, match="has its clients at sites: an audit needs their data"):
        audit(tmp_path / "sites")
    for path in (run / "checkpoint").iterdir():
        path.unlink()
    with pytest.raises(RunError, match="has no complete round to audit yet"):
        audit(run)


@pytest.mark.usefixtures("quickly")
def test_an_audit_of_a_run_that_diverged_is_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = made(tmp_path / "run", "fedavg", train={"lr": 1e6})

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    with pytest.raises(SystemExit) as end:
        main(["audit", str(run), "--clients", "2", "--json"])
    assert end.value.code == 0
    found = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert None in [f["score"] for f in found["findings"]], "something could not be measured"
