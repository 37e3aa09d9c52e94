"""`headwise site review`: what it says is what a run then does, and nothing is written or sent."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from federations import LocalTransport, experiment, run_deployment, write_site

from headwise.audit.findings import read_known_audits, strongest
from headwise.cli import main
from headwise.disk.jsontext import to_toml
from headwise.sites.site.review import review

ROOT = Path(__file__).parents[2]
EVERYBODY: dict[str, Any] = {"sampling": {"ratio": 1.0}}
NOISY: dict[str, Any] = {"privacy": {"clip": 1.0, "noise": 2.0}}


@pytest.mark.parametrize("method", ["fedper", "fedgmh", "fedfomo"])
def test_as_many_bytes_leave_as_were_announced(method: str, tmp_path: Path) -> None:
    asked = experiment(method, **EVERYBODY, rounds=2)
    path = write_site(tmp_path / "oslo", range(5))
    found = review(asked, path.parent)
    last = run_deployment(LocalTransport({7: path}), asked, tmp_path / "run").rounds[-1]
    for name in found.sent:
        assert sum(each.fields[name] for each in found.traffic) == last["fields"]["up"][name]
    assert {each.varies for each in found.traffic} == {method == "fedfomo"}


def test_masked_numbers_have_eight_bytes(tmp_path: Path) -> None:
    home = write_site(tmp_path / "oslo", [0]).parent
    plain, masked = (review(experiment(secure={"sums": s}), home).traffic[0].fields["w"] for s in (False, True))
    assert masked == 2 * plain > 0


@pytest.mark.parametrize(
    ("setting", "allow", "changes"),
    [
        ("allow.methods", 'methods = ["fedavg"]', {}),
        ("allow.fields", 'fields = ["means"]', {}),
        ("allow.plain", "plain = false", {}),
        ("allow.epsilon", "epsilon = 3.0", {}),
        ("allow.epsilon", "epsilon = 3.0", NOISY),
        ("allow.experiments", 'experiments = "none.json"\nsigner = "none.pub"', {}),
        ("allow.labels", "labels = false", {"method": "fedgmh"}),
        ("", "", {"data": "digits"}),
        ("", "", {"clients": 1}),
    ],
)
def test_the_setting_that_refuses_is_named(setting: str, allow: str, changes: dict[str, Any], tmp_path: Path) -> None:
    home = write_site(tmp_path / "oslo", [2], allow).parent
    found = review(experiment(**changes), home)
    assert found.refusals is not None
    assert [each.setting for each in found.refusals] == [setting]
    assert "This site refuses it; nothing was sent" in list(found.lines())


def test_a_network_that_is_too_large_is_never_built(tmp_path: Path) -> None:
    home = write_site(tmp_path / "oslo", [0], "largest = 1").parent
    found = review(experiment(model="mlp:65536"), home)
    assert [each.setting for each in found.refusals or ()] == ["allow.largest"]
    assert found.traffic == ()


def test_every_setting_that_refuses_is_named(tmp_path: Path) -> None:
    home = write_site(tmp_path / "oslo", [0], 'methods = ["fedavg"]\nplain = false\nepsilon = 1.0').parent
    found = review(experiment(), home).refusals or ()
    assert [each.setting for each in found] == ["allow.methods", "allow.plain", "allow.epsilon"]


def test_the_budget_is_the_runs_and_nothing_is_spent_or_written(tmp_path: Path) -> None:
    asked = experiment("fedavg", **EVERYBODY, **NOISY)
    path = write_site(tmp_path / "oslo", range(5), "epsilon = 100.0")
    found = review(asked, path.parent)
    assert [p.name for p in path.parent.iterdir()] == ["site.toml"]
    assert (found.refusals, found.promise is not None) == ((), True)
    run = run_deployment(LocalTransport({7: path}), asked, tmp_path / "run")
    assert found.promise is not None
    assert found.promise["epsilon"] == run.manifest["privacy"]["epsilon"]
    assert {each.left for each in found.spent} == {100.0}
    again = review(asked, path.parent)
    assert all(each.left is not None and each.left < 100 for each in again.spent)


def test_findings_are_those_of_the_page() -> None:
    spec = importlib.util.spec_from_file_location("audit_bench", ROOT / "benchmarks" / "audit.py")
    assert spec is not None and spec.loader is not None
    bench = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)
    assert read_known_audits() == bench.quote(bench.PAGE.read_text(encoding="utf-8"))
    assert all(len(read_known_audits()[method]["attacks"]) > 3 for method in bench.METHODS)


def test_findings_are_never_of_a_stronger_protection() -> None:
    strengths = sorted(e for e in read_known_audits()["fedavg"]["epsilon"] if e is not None)
    assert {each.epsilon for each in strongest("fedavg", strengths[0])} == {strengths[0]}
    assert {each.epsilon for each in strongest("fedavg", strengths[0] + 0.1)} == {strengths[1]}
    assert {each.epsilon for each in strongest("fedavg", strengths[-1] + 1)} == {None}
    assert {each.epsilon for each in strongest("fedavg", None)} == {None}


def test_without_a_site_only_what_holds_everywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = {"method": "fedper", "data": "synthetic", "partition": "natural", "clients": 5, "rounds": 3}
    (tmp_path / "study.toml").write_text("\n".join(f"{k} = {to_toml(v)}" for k, v in plain.items()))
    with pytest.raises(SystemExit) as end:
        main(["site", "review", str(tmp_path / "study.toml")])
    said = capsys.readouterr().out
    assert end.value.code == 0
    assert "w: The part of the model that all clients share" in said
    assert "stays here: head" in said
    assert "give --site" in said


@pytest.mark.parametrize("name", ["method", "data", "model"])
def test_a_study_that_names_a_file_is_refused_unread(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bait.py").write_text("raise SystemExit('this file was run')")
    (tmp_path / "study.toml").write_text(f'{name} = "{tmp_path / "bait.py"}"\npartition = "natural"\nclients = 3\n')
    with pytest.raises(SystemExit) as end:
        main(["site", "review", str(tmp_path / "study.toml")])
    assert end.value.code == 2
    assert f"{name} must hold numbers and the names of what is installed" in capsys.readouterr().err


def test_a_simulations_experiment_is_refused_in_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "study.toml").write_text('method = "fedper"\npartition = "iid"\n')
    with pytest.raises(SystemExit) as end:
        main(["site", "review", str(tmp_path / "study.toml")])
    assert end.value.code == 2
    assert "partition is 'iid', but must be natural" in capsys.readouterr().err


def test_help_lists_the_settings_that_site_toml_points_to(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["site", "settings"])
    said = capsys.readouterr().out
    for name in ("states", "epsilon_total", "experiments", "folder"):
        assert f"\n  {name}  (" in said
