"""A site that comes after the last round: the server's operator hands over an offer, and the site adapts by itself."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federations import DATA, LocalTransport, experiment, run_deployment, write_site

import headwise as hw
from headwise.app import registry
from headwise.cli import main
from headwise.contract.method import record_types
from headwise.disk.files import seal, write_json
from headwise.engine.joining import join
from headwise.errors import HeadwiseError, RunError
from headwise.exports.card import DOWN, write_folder
from headwise.exports.run_models import Models
from headwise.records import Packed, from_bytes, to_bytes
from headwise.runs.checkpoint import Checkpoints
from headwise.settings.experiment import experiment_from
from headwise.settings.names import list_names
from headwise.sites.facts import experiment_hash, resolve_for_sites
from headwise.sites.offers import read_offer, write_offer
from headwise.sites.server import nodes
from headwise.sites.site.models import adapt
from headwise.sites.site.policy import Policy
from headwise.sites.site.site_file import read_site

SOME = ("fedftha", "fedgmh")
"""one with a global model that a round does not send, one whose download depends on a client's labels"""


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "LAST_PAUSE", 0.0)


def deployed(home: Path, method: str, **changes: Any) -> hw.Run:
    """Four of five clients train; the fifth comes too late, with a number of its own."""
    sites = {c: write_site(home / f"site{c}", [c]) for c in range(4)}
    site = write_site(home / "late", [4])
    site.write_text(site.read_text().replace("id = 4", "id = 17"))
    return run_deployment(
        LocalTransport(sites), experiment(method, clients=4, rounds=1, sampling={"ratio": 1.0}, **changes), home / "run"
    )


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The server's run, its offer, and the late site."""
    home = tmp_path_factory.mktemp("late")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nodes, "LAST_PAUSE", 0.0)
        write_offer(Models(deployed(home, "fedper")), home / "offer")
    return home


@pytest.mark.parametrize(
    "method", [*SOME, *(pytest.param(m, marks=pytest.mark.all_methods) for m in list_names("method"))]
)
def test_it_gets_what_joining_gives_where_all_data_are(method: str, tmp_path: Path) -> None:
    """`join` on a plan with the newcomer's samples, which the server of a simulation has.

    APPLE's server counts a newcomer's samples, FD and FedProto send what fits its labels: an offer knows neither.
    """
    run = deployed(tmp_path, method)
    write_offer(Models(run), tmp_path / "offer")
    late = tmp_path / "late" / "site.toml"
    here = {e: adapt(late, tmp_path / "offer", None, e) for e in (0, 2)}
    plan = Policy(read_site(write_site(tmp_path / "all", range(5))), tmp_path / "all").plan(
        json.dumps(hw.Experiment(**{**run.manifest["experiment"], "clients": 5}).to_plain())
    )
    plan = replace(plan, data=replace(plan.data, absent=frozenset({4})))
    kept = Checkpoints(run.path / "checkpoint", record_types(type(plan.method))).load()
    assert kept is not None
    for epochs, found in here.items():
        wanted: Any = join(plan, kept.progress.server, 4, 1, epochs).model
        states = [model.state_dict() for model in (found.model.module, wanted)]
        same = all(torch.equal(states[0][k], t) for k, t in states[1].items())
        assert same or method in ("apple", "fd", "fedproto")
        assert found.scores[epochs]["n"] == len(plan.data.client(4).test)
    assert here[2].model.card["of"]["client"] == 17


def say(capsys: pytest.CaptureFixture[str], *words: Any) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main([*map(str, words)])
    said = capsys.readouterr()
    assert isinstance(end.value.code, int)
    return end.value.code, said.out, said.err


def test_the_two_commands(late: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = say(capsys, "export", late / "run", "--newcomer", "-o", tmp_path / "offer")
    assert code == 0, err
    fingerprint = out.split()[-1]
    assert {p.name for p in (tmp_path / "offer").iterdir()} == {"card.json", "download.safetensors"}
    asked = ["site", "adapt", late / "late", tmp_path / "offer", "--format", "torch", "-o", tmp_path / "mine"]
    code, out, err = say(capsys, *asked, "--fingerprint", fingerprint[:12], "--epochs", 2, "--json")
    assert code == 0, err
    told = json.loads(out)
    assert (told["fingerprint"], {*told["scores"]}) == (fingerprint, {"0", "2"})
    model = hw.load_model(tmp_path / "mine")
    assert (model.card["of"]["kind"], model.card["training"]["site"]) == ("adapted", "late")
    assert model.predict(np.zeros((2, 6), np.float32)).shape == (2,)
    states = [p for p in (late / "late").rglob("*") if p.is_file()]
    assert [p.name for p in states] == ["site.toml"], "no state, and nothing in the ledger"
    for more, why in (
        (["--fingerprint", "abc"], "--fingerprint is 'abc', but that of"),
        (["--client", "3"], "--client is 3, but late has the clients [17]"),
    ):
        code, _, err = say(capsys, *asked[:-1], tmp_path / "other", *more)
        assert (code, why in err) == (2, True), err
    assert not (tmp_path / "other").exists()
    code, _, err = say(capsys, "export", late / "run", "--newcomer", "--global", "-o", tmp_path / "two")
    assert (code, "--newcomer is given with" in err) == (2, True)


@pytest.mark.parametrize(
    ("allow", "why"),
    [
        ('methods = ["fedavg"]', "late does not allow the method 'fedper'"),
        ("epsilon = 1.0", "requires an epsilon of at most 1"),
        ("plain = false", "only sends masked sums"),
    ],
)
def test_the_site_decides_as_in_a_round(allow: str, why: str, late: Path, tmp_path: Path) -> None:
    site = write_site(tmp_path / "late", [4], allow)
    with pytest.raises(HeadwiseError, match=why):
        adapt(site, late / "offer", None, 0)


def test_a_signed_list_covers_the_offer(late: Path) -> None:
    """It is of the study as the operator wrote it, before anything was filled in."""
    asked = resolve_for_sites(experiment("fedper", clients=4, rounds=1, sampling={"ratio": 1.0}))
    assert experiment_hash(experiment_from(json.loads(read_offer(late / "offer").experiment))) == experiment_hash(asked)


def test_an_offer_may_be_as_large_as_a_message(late: Path, tmp_path: Path) -> None:
    """Which its card says, before its files are read."""
    copy = shutil.copytree(late / "offer", tmp_path / "offer")
    card = json.loads((copy / "card.json").read_text())
    card["files"][DOWN]["bytes"] = 10**15
    write_json(copy / "card.json", seal(card))
    with pytest.raises(RunError, match="late accepts messages of at most"):
        adapt(late / "late" / "site.toml", copy, None, 0)


def test_damaged_and_foreign_offers_get_a_sentence(late: Path, tmp_path: Path) -> None:
    site, copy = late / "late" / "site.toml", shutil.copytree(late / "offer", tmp_path / "offer")
    data = (copy / "download.safetensors").read_bytes()
    (copy / "download.safetensors").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(RunError, match="its sha256 is not what its card says"):
        adapt(site, copy, None, 0)
    given = read_offer(late / "offer")
    other = from_bytes(given.down)
    small = to_bytes(Packed({k: t[:1] for k, t in other.tensors.items()}, other.scalars))
    kind = record_types(registry.find("method", "fedper")).down
    with pytest.raises(RunError, match="is damaged: these bytes are not a valid record"):
        given._replace(down=b"x").offer(kind)
    card = json.loads((late / "offer" / "card.json").read_text())
    write_folder(tmp_path / "small", {k: v for k, v in card.items() if k != "checksum"}, {DOWN: small})
    with pytest.raises(RunError, match="does not fit the experiment that it names"):
        adapt(site, tmp_path / "small", None, 0)
    bait = tmp_path / "bait.py"
    bait.write_text("raise SystemExit('this file was run')")
    for k, name in enumerate((str(bait), f"{bait}:zz", str(tmp_path / "absent.py"))):
        asked = {**card["experiment"], "model": [name]}
        files = {DOWN: (late / "offer" / DOWN).read_bytes()}
        write_folder(tmp_path / f"path-{k}", {**card, "checksum": "", "experiment": asked}, files)
        with pytest.raises(RunError, match=r"model\[0\] must hold numbers and the names of what is installed, never a"):
            adapt(site, tmp_path / f"path-{k}", None, 0)
    for folder, why in ((late / "run", "has no card.json"), (tmp_path / "none", "does not exist")):
        with pytest.raises(RunError, match=why):
            adapt(site, folder, None, 0)
    (copy / "card.json").write_text("{}")
    with pytest.raises(RunError, match=r"card\.json is damaged"):
        adapt(site, copy, None, 0)
    simulated = hw.run(experiment("fedper", data=DATA, rounds=1), tmp_path / "run")
    with pytest.raises(RunError, match="has its clients here: use headwise adapt"):
        write_offer(Models(simulated), tmp_path / "new")
