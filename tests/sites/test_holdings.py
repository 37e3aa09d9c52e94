"""A site lists, exports and erases its personal models without a server."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
import safetensors.torch
import torch
from federations import DATA, LocalTransport, experiment, run_deployment, write_site

from headwise.cli import main
from headwise.contract.method import record_types
from headwise.engine.client.state import decode_state
from headwise.exports.loading import load_model
from headwise.methods.fedper import FedPer
from headwise.sites.server import nodes
from headwise.sites.site.models import export, list_holdings
from headwise.sites.site.own_data import own_data
from headwise.sites.site.policy import read_policy
from headwise.sites.site.site_file import read_site


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(nodes, "LAST_PAUSE", 0.0)
    sites = {c: write_site(tmp_path / f"site{c}", [c]) for c in range(5)}
    run_deployment(LocalTransport(sites), experiment(sampling={"ratio": 1.0}), tmp_path / "run")
    return tmp_path / "site3"


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    with pytest.raises(SystemExit) as stop:
        main(list(words))
    out, err = capsys.readouterr()
    assert stop.value.code == code, err
    return err if code else out


def test_list_export_erase(site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = json.loads(said(capsys, "site", "list", str(site), "--json"))["models"]
    assert (found["client"], found["t"], found["method"]) == (3, 3, "fedper")
    assert datetime.fromisoformat(found["trained"]) <= datetime.now(UTC)
    flags = ("--run", found["run"], "--client", "3")
    assert "client 3" in said(capsys, "site", "list", str(site))
    said(capsys, "site", "export", str(site), *flags, "-o", str(tmp_path / "model.safetensors"))
    model = safetensors.torch.load_file(tmp_path / "model.safetensors")
    newest = max((site / "states" / found["run"] / "client-3").glob("round-*"))
    head = decode_state(record_types(FedPer).client, newest.read_bytes()).me.h
    assert head.keys() < model.keys()
    assert all(torch.equal(model[k], t) for k, t in head.items())
    assert "add --yes to erase it" in said(capsys, "site", "erase", str(site), *flags, code=2)
    assert newest.exists()
    said(capsys, "site", "erase", str(site), *flags, "--yes")
    assert list((site / "states").iterdir()) == []
    assert said(capsys, "site", "list", str(site)) == (
        "no personal models\nclient 3  spent epsilon 0 at delta 1e-05, no limit; 3 answers without privacy\n"
    )


def test_odd_folders_do_not_hide_the_models(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (each,) = list_holdings(site / "site.toml")
    (site / "states" / "backup").mkdir()
    (site / "states" / each.run / "client-9").mkdir()
    (site / "states" / each.run / "experiment.json").write_text("{")
    out = said(capsys, "site", "list", str(site))
    assert f"{each.run}  1970-01-01T00:00:00+00:00  ?  client 9  round 0  0.0 KB\n{each.run}" in out


def test_an_exported_model_predicts_what_the_client_would(site: Path, tmp_path: Path) -> None:
    """Its accuracy on the site's own test samples is the one in the run."""
    (each,) = list_holdings(site / "site.toml")
    export(site / "site.toml", each.run, 3, tmp_path / "model.safetensors")
    plan = read_policy(site / "site.toml").plan((site / "states" / each.run / "experiment.json").read_text())
    model = plan.models[0]
    model.load_state_dict(safetensors.torch.load_file(tmp_path / "model.safetensors"))
    test = plan.data.client(3).test
    right = (model(test.x).argmax(1) == test.y).double().mean().item()
    lines = [json.loads(line) for line in (tmp_path / "run" / "clients.jsonl").read_text().splitlines()]
    last = next(line for line in lines if (line["round"], line["client"]) == (3, 3))
    assert right == last["pre"]["test"]["accuracy"]


def test_a_folder_of_a_sites_model_needs_no_headwise_to_train(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its predictions are those of the weights, its accuracy the one in the run."""
    (each,) = list_holdings(site / "site.toml")
    flags = ("--run", each.run, "--client", "3", "--format", "onnx", "--licence", "ours", "-o", str(tmp_path / "out"))
    said(capsys, "site", "export", str(site), *flags)
    loaded = load_model(tmp_path / "out")
    settings, home = read_site(site / "site.toml"), site
    plan = read_policy(site / "site.toml").plan((site / "states" / each.run / "experiment.json").read_text())
    data = own_data(settings, home, plan.experiment)
    test = data.parts[3].test
    right = (loaded.infer(data.dataset.x[test]).scores.argmax(1) == data.dataset.y[test]).mean()
    lines = [json.loads(line) for line in (tmp_path / "run" / "clients.jsonl").read_text().splitlines()]
    last = next(line for line in lines if (line["round"], line["client"]) == (3, 3))
    assert right == last["pre"]["test"]["accuracy"]
    card = loaded.card
    assert (card["licence"], card["privacy"]["unprotected"], card["training"]["run"]) == ("ours", 3, each.run)
    assert "already exists" in said(capsys, "site", "export", str(site), *flags, code=2)


@pytest.mark.parametrize(
    ("run", "client", "why"),
    [("run-x", "3", "there is no run 'run-x' in"), ("", "2", "client 2 has nothing in")],
)
def test_what_is_not_there_is_said(
    run: str, client: str, why: str, site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run or list_holdings(site / "site.toml")[0].run
    out = tmp_path / "model.safetensors"
    assert why in said(capsys, "site", "export", str(site), "--run", run, "--client", client, "-o", str(out), code=2)
    assert not out.exists()


def test_what_others_put_beside_the_states_is_left_alone(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = list_holdings(site / "site.toml")[0].run
    for name in ("client-abc", "client-", "client--1", "client-\u0663", "masks"):
        (site / "states" / run / name).mkdir()
    (site / "states" / run / "client-7").write_text("a file")
    (site / "states" / run / "client-3" / "round-x.safetensors").write_text("no state")
    (site / "states" / "Lost and found").mkdir()
    (site / "states" / "notes").write_text("a file")
    assert [(b.run, b.client, b.t) for b in list_holdings(site / "site.toml")] == [(run, 3, 3)]
    assert "there is no run 'notes'" in said(
        capsys, "site", "erase", str(site), "--run", "notes", "--client", "3", "--yes", code=2
    )


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda p: p.unlink(), "holds no experiment.json."),
        (lambda p: p.write_bytes(b"\xff"), "experiment.json is damaged: it is not valid UTF-8."),
        (lambda p: p.write_text("["), "can't read this experiment"),
    ],
)
def test_a_model_whose_experiment_is_lost_is_not_exported(
    spoil: Callable[[Path], object], why: str, site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = list_holdings(site / "site.toml")[0].run
    spoil(site / "states" / run / "experiment.json")
    out = tmp_path / "model.safetensors"
    assert why in said(capsys, "site", "export", str(site), "--run", run, "--client", "3", "-o", str(out), code=2)
    assert not out.exists()


@pytest.mark.parametrize("name", ["", ".", "/", "a-file", "a-file/site", "x" * 5000])
def test_init_needs_a_folder_that_can_be_made(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a-file").write_text("kept")
    folder = name if name in ("", ".", "/") else str(tmp_path / name)
    text = said(capsys, "site", "init", folder, "--client", "2", "--data", f"{DATA}:only=2", code=2)
    assert text.startswith("headwise: ")
    assert (tmp_path / "a-file").read_text() == "kept"
    assert [p.name for p in tmp_path.iterdir()] == ["a-file"]


def test_init_makes_a_site_that_only_its_owner_can_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--client", "2", "--data", f"{DATA}:only=2", "--method", "fedper", "--allow-labels")
    text = said(capsys, "site", "init", str(tmp_path / "here"), *flags)
    assert "client 2:" in text
    policy = read_policy(tmp_path / "here" / "site.toml")
    assert (policy.name, policy.settings.data, policy.allow.methods) == (
        "here",
        "synthetic",
        ("fedper",),
    )
    assert policy.settings.allow.labels
    assert (tmp_path / "here" / "site.key").stat().st_mode & 0o077 == 0
    assert (tmp_path / "here" / "site.key.pub").read_text().startswith("ecdsa-sha2-nistp384 ")
    assert "is not an empty folder" in said(capsys, "site", "init", str(tmp_path / "here"), *flags, code=2)


def test_init_refuses_an_experiment_that_could_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "exp.toml").write_text('method = "fedavg"\ndata = "synthetic"\npartition = "natural"\nclients = 5\n')
    flags = ("--client", "2", "--data", f"{DATA}:only=2", "--method", "fedper", "--check", str(tmp_path / "exp.toml"))
    text = said(capsys, "site", "init", str(tmp_path / "here"), *flags, code=2)
    assert text == "headwise: here does not allow the method 'fedavg': allowed are fedper.\n"
    assert not (tmp_path / "here").exists()
