"""Sites with a data.toml of their own, and data sets that are dealt out to sites for a rehearsal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federations import LocalTransport, experiment, run_deployment, server_of, write_site

import headwise as hw
from headwise.app.prepare import divide
from headwise.cli import main
from headwise.data.own.description import description_from, read_description
from headwise.data.own.load import load
from headwise.errors import ConfigError, DataError
from headwise.records import same
from headwise.sites.site.own_data import own_data
from headwise.sites.site.site_file import read_site


def told(capsys: pytest.CaptureFixture[str], *command: str, code: int = 0) -> str:
    with pytest.raises(SystemExit) as end:
        main(list(command))
    assert end.value.code == code
    captured = capsys.readouterr()
    return captured.out if code == 0 else captured.err


def dealt(capsys: pytest.CaptureFixture[str], out: Path, *command: str) -> dict[int, Path]:
    """Sites made by the commands that `deal` prints."""
    said = told(capsys, "data", "deal", *command, "-o", str(out)).splitlines()
    for line in said[:-1]:
        told(capsys, *line.split()[1:])
    assert said[-1].startswith(f"headwise deploy {out / 'experiment.toml'}")
    return {k: Path(line.split()[3]) / "site.toml" for k, line in enumerate(said[:-1])}


SIMULATED: dict[str, Any] = {
    "data": "digits", "fraction": 0.2, "partition": "dirichlet:0.5", "clients": 3, "split": "8:1:1",
    "model": "mlp:8", "rounds": 2,
}  # fmt: skip


def test_a_dealt_federation_gives_the_bits_of_its_simulation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--partition", "dirichlet:0.5", "--clients", "3", "--split", "8:1:1", "--set", "fraction=0.2")
    sites = dealt(capsys, tmp_path / "sites", "digits", *flags)
    whole = divide(hw.Experiment(**SIMULATED), Path())
    for c, path in sites.items():
        asked = hw.Experiment(**{"data": "own", "clients": 3})
        mine, theirs = own_data(read_site(path), path.parent, asked).client(c), whole.client(c)
        for part in ("train", "val", "test"):
            a, b = getattr(mine, part), getattr(theirs, part)
            assert torch.equal(a.x, b.x)
            assert torch.equal(a.y, b.y)
    hw.run(hw.Experiment(method="fedper", **SIMULATED), tmp_path / "simulated")  # type: ignore[arg-type]
    asked = hw.Experiment(**{"method": "fedper", "data": "own", "clients": 3, "model": "mlp:8", "rounds": 2})
    run_deployment(LocalTransport(sites), asked, tmp_path / "out")
    assert same(server_of(tmp_path / "out"), server_of(tmp_path / "simulated"))


def test_sample_weights_count_at_sites_as_in_a_simulation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"{k % 7},{(k * 5) % 11},{'ab'[k % 2]},{k % 4},{(k // 2) % 2}" for k in range(80)]
    (tmp_path / "t.csv").write_text("\n".join(["u,v,who,trust,y", *rows]))
    text = 'format = "csv"\npath = "t.csv"\nclient = "who"\ntarget = "y"\n[features]\nnumber = ["u", "v"]\n'
    (tmp_path / "plain.toml").write_text(text)
    (tmp_path / "data.toml").write_text(f'weight = "trust"\n{text}')
    servers: dict[str, Any] = {}
    for name in ("plain", "data"):
        sites = dealt(capsys, tmp_path / f"{name}-sites", str(tmp_path / f"{name}.toml"))
        asked = hw.Experiment(**{"method": "fedper", "data": "own", "clients": 2, "model": "mlp:8", "rounds": 2})
        run_deployment(LocalTransport(sites), asked, tmp_path / f"{name}-out")
        own = hw.Experiment(method="fedper", data=str(tmp_path / f"{name}.toml"), model="mlp:8", rounds=2)
        hw.run(own, tmp_path / f"{name}-simulated")
        servers[name] = server_of(tmp_path / f"{name}-out")
        assert same(servers[name], server_of(tmp_path / f"{name}-simulated"))
    assert not same(servers["plain"], servers["data"])


def test_texts_are_dealt_as_tokens_and_clients_keep_their_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"{who},{'good' if k % 2 else 'bad'} {k},{k % 2}" for k in range(8) for who in ("A/B", "Oslo")]
    (tmp_path / "t.csv").write_text("\n".join(["who,said,label", *rows]))
    described = 'format = "csv"\npath = "t.csv"\nclient = "who"\ntarget = "label"\n[features]\ntext = ["said"]\n'
    described += '[preprocess]\ntexts = "tokens"\n'
    (tmp_path / "data.toml").write_text(described)
    sites = dealt(capsys, tmp_path / "sites", str(tmp_path / "data.toml"))
    assert [path.parent.parent.name for path in sites.values()] == ["A_B", "Oslo"]
    found = load(read_description(tmp_path / "sites" / "Oslo" / "data.toml")).dataset
    whole = load(read_description(tmp_path / "data.toml")).dataset
    assert (found.vocabulary, found.classes, found.owners) == (whole.vocabulary, whole.classes, ("Oslo",))
    assert sorted(found.x.tolist()) == sorted(whole.x[whole.owner == 1].tolist())


def hospital(folder: Path, seed: int, names: tuple[str, ...] = ()) -> Path:
    """The table of one hospital; with `names`, of several."""
    rng = np.random.default_rng(seed)
    folder.mkdir()
    lines = ["age,sex,ill,who"]
    for k in range(24):
        who = names[k % len(names)] if names else "x"
        lines.append(f"{rng.normal(50 + 5 * seed, 9):.1f},{'fm'[k % 2]},{'yes' if k % 3 else 'no'},{who}")
    (folder / "patients.csv").write_text("\n".join(lines))
    whose = 'client = "who"' if names else "one_client = true"
    text = f'format = "csv"\npath = "patients.csv"\n{whose}\ntarget = "ill"\nclasses = ["no", "yes"]\n'
    (folder / "data.toml").write_text(text + '[features]\nnumber = ["age"]\ncategory = ["sex"]\n')
    return folder / "data.toml"


def test_hospitals_with_their_own_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sites: dict[int, Path] = {}
    for k in range(2):
        data = hospital(tmp_path / f"h{k}", k)
        said = told(capsys, "site", "init", str(tmp_path / f"site{k}"), "--client", str(k), "--data", str(data))
        assert f"client {k}: 24 samples of shape [3], 2 classes" in said
        sites[k] = tmp_path / f"site{k}" / "site.toml"
    asked = hw.Experiment(**{"method": "fedavg", "data": "own", "clients": 2, "model": "mlp:4", "rounds": 2})
    run = run_deployment(LocalTransport(sites), asked, tmp_path / "out")
    assert [row["clients"] for row in run.rounds] == [[0, 1]] * 2
    assert run.rounds[0]["samples"] == 36  # 75 of 100, at each of them


def test_a_site_has_one_clients_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = hospital(tmp_path / "h", 0, ("va", "oslo"))
    said = told(capsys, "site", "init", str(tmp_path / "site"), "--client", "0", "--data", str(data), code=2)
    assert f"{data} has 2 clients (va, oslo), but must have one: this site's own." in said
    assert not (tmp_path / "site").exists()


def test_own_data_without_a_path_is_for_sites(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = told(capsys, "run", "--data", "own", "--out", str(tmp_path / "out"), code=2)
    assert "data is 'own' without a path, which is for clients at sites: name a data.toml." in said
    assert not (tmp_path / "out").exists()


def test_nothing_is_dealt_over_what_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sites").mkdir()
    (tmp_path / "sites" / "notes.txt").touch()
    said = told(capsys, "data", "deal", "digits", "--clients", "2", "-o", str(tmp_path / "sites"), code=2)
    assert "sites already exists" in said
    assert [path.name for path in (tmp_path / "sites").iterdir()] == ["notes.txt"]


def test_a_table_of_one_client(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = hospital(tmp_path / "h", 0).parent / "patients.csv"
    monkeypatch.chdir(tmp_path)
    assert "--one-client says" in told(capsys, "data", "init", str(table), "--target", "ill", code=2)
    told(capsys, "data", "init", str(table), "--target", "ill", "--one-client")
    assert "one_client = true" in Path("data.toml").read_text()
    assert load(read_description(Path("data.toml"))).dataset.owners == ("patients",)
    both = ("data", "init", str(table), "--target", "ill", "--one-client", "--clients", "who", "-o", "b.toml")
    assert "--clients is 'who', but --one-client is also given" in told(capsys, *both, code=2)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"client": "who"}, "one_client is true, but client is 'who'"),
        ({"path": "."}, "one_client is true, but path is"),
        ({"format": "npz"}, "one_client is True, but only tables"),
    ],
)
def test_one_client_that_can_not_be(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    hospital(tmp_path / "h", 0)
    usual = {
        "format": "csv",
        "path": "patients.csv",
        "one_client": True,
        "target": "ill",
        "features": {"number": ["age"]},
    }
    with pytest.raises(ConfigError, match=said):
        load(description_from({**usual, **changes}, tmp_path / "h"))


@pytest.mark.parametrize("other", ["synthetic:160:5:6:sites=5:only=1", "synthetic:160:4:7:sites=5:only=1"])
def test_the_clients_of_a_site_have_the_same_kind_of_data(other: str, tmp_path: Path) -> None:
    path = write_site(tmp_path, [0])
    path.write_text(f'{path.read_text()}[[clients]]\nid = 1\nsource = "{other}"\n')
    with pytest.raises(DataError, match="have data of different shape, type, classes or scale"):
        own_data(read_site(path), tmp_path, experiment())
