"""A run's code: an edited file gives right numbers or a refusal, never those of another version."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import headwise as hw
from headwise.app.code import NUMERICS, REVISED, CodeChangedError, collect_code, metric_modules, read_code
from headwise.app.compare import Comparison
from headwise.cli import cli
from headwise.engine.events import Event, RoundEnded
from headwise.errors import ConfigError, RunError
from headwise.log.metrics import metrics
from headwise.runs.manifest import read_manifest
from headwise.settings.choices import Choice
from headwise.settings.experiment import Experiment
from headwise.settings.names import list_names

X = np.random.default_rng(0).standard_normal((40, 3)).astype("float32")
Y = np.arange(40) % 2
METHOD = Path(hw.__file__).parent / "methods" / "fedavg.py"
NETWORK = """
from torch import nn


def small(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0], 8), nn.ReLU(), nn.Linear(8, classes))
"""
CHANGE = """
def louder(x, rng):
    return x * 1.0
"""
EDITS: dict[str, Callable[[str], str]] = {
    "method": lambda text: text.replace("local.sgd(m)", "pass"),
    "network": lambda text: text.replace("8", "3"),
    "augmentation": lambda text: text.replace("1.0", "0.0"),
    "helper": lambda text: text.replace("1.0", "0.00"),
    "helper of a method": lambda text: text.replace("True", "False"),
    "package": lambda text: text.replace("8", "3"),
}
"""a change to each kind of file that changes the numbers"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a method, a network, an augmentation and a module that another augmentation imports."""
    shutil.copy(METHOD, tmp_path / "fed_avg.py")
    (tmp_path / "nets.py").write_text(NETWORK)
    (tmp_path / "louder.py").write_text(CHANGE)
    (tmp_path / "factor.py").write_text("FACTOR = 1.0\n")
    text = "from factor import FACTOR\n\n\ndef scaled(x, rng):\n    return x * FACTOR\n"
    (tmp_path / "scaled.py").write_text(text)
    (tmp_path / "trains.py").write_text("TRAINS = True\n")
    text = (
        METHOD.read_text().replace("class FedAvg", "class FedIdle").replace("local.sgd(m)", "TRAINS and local.sgd(m)")
    )
    (tmp_path / "fed_idle.py").write_text(
        text.replace("\nfrom headwise", "\nfrom trains import TRAINS\nfrom headwise", 1)
    )
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package" / "__init__.py").write_text("")
    (tmp_path / "own_package" / "width.py").write_text("WIDTH = 8\n")
    text = NETWORK.replace("8", "WIDTH").replace(
        "from torch import nn", "from torch import nn\nfrom .width import WIDTH"
    )
    (tmp_path / "own_package" / "nets.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    forget_modules()
    return tmp_path


def forget_modules() -> None:
    """As another process would begin."""
    for name in ("factor", "trains", "own_package", "own_package.nets", "own_package.width"):
        sys.modules.pop(name, None)


SETTINGS: dict[str, dict[str, Any]] = {
    "method": {},
    "network": {"model": "nets.py:small"},
    "augmentation": {"train": {"augment": ["louder.py:louder"]}},
    "helper": {"train": {"augment": ["scaled.py:scaled"]}},
    "helper of a method": {},
    "package": {"model": "own_package.nets:small"},
}
METHODS = {"method": "fed_avg.py", "helper of a method": "fed_idle.py"}
FILES = {
    **{"method": "fed_avg.py", "network": "nets.py", "augmentation": "louder.py", "helper": "factor.py"},
    **{"helper of a method": "trains.py", "package": "own_package/width.py"},
}


def experiment(kind: str, rounds: int = 2) -> hw.Experiment:
    common = {"data": "synthetic:80:4:8", "clients": 3, "engine": {"workers": 1}, "rounds": rounds}
    return hw.Experiment(method=METHODS.get(kind, "fedavg"), **common, **SETTINGS[kind])


def compare(kind: str, out: str) -> Comparison:
    return hw.compare(experiment(kind), [experiment(kind).method.name], 1, out)


def edit(kind: str) -> None:
    path = Path(FILES[kind])
    before = path.read_text()
    path.write_text(EDITS[kind](before))
    assert path.read_text() != before
    forget_modules()


def scores(comparison: Comparison) -> list[Any]:
    return [row["runs"][0]["accuracy"] for row in comparison.to_plain()["methods"]]


@pytest.mark.parametrize("kind", EDITS)
def test_comparing_again_after_an_edit_runs_again(kind: str, here: Path) -> None:
    first = scores(compare(kind, "out"))
    assert scores(compare(kind, "out")) == first
    assert len([*Path("out").glob("*/manifest.json")]) == 1, "finished runs are reused"
    edit(kind)
    second = scores(compare(kind, "out"))
    assert second == scores(compare(kind, "fresh"))
    assert second != first
    assert len([*Path("out").glob("*/manifest.json")]) == 2


def stop(event: Event) -> None:
    if isinstance(event, RoundEnded):
        raise KeyboardInterrupt


@pytest.mark.parametrize("kind", EDITS)
def test_resuming_after_an_edit_is_refused_with_the_difference(kind: str, here: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        hw.run(experiment(kind), "run", observers=[stop])
    edit(kind)
    with pytest.raises(CodeChangedError) as error:
        hw.resume("run")
    how = "resume it --with-new-code, or start a new run"
    name = Path(FILES[kind]).name
    assert str(error.value) == f"run was run with other code ({name} has changed since): {how}."
    (note,) = error.value.__notes__
    assert note.startswith(f"--- {name} (of the run)")
    assert any(line.startswith("+") for line in note.splitlines()[2:])
    assert len(hw.Run("run").rounds) == 1


@pytest.mark.parametrize("kind", ["method", "network"])
def test_a_search_or_choice_with_edited_code_is_refused(kind: str, here: Path) -> None:
    """They repeat no finished run, so that they would answer with the numbers of the earlier code."""
    own = experiment(kind)
    methods = [own.method.name]
    base = hw.Experiment(**{**own.to_plain(), "method": "fedavg"})
    hw.tune(own, trials=1, out="search")
    hw.choose(base, methods=methods, draws=1, trials=0, out="choice")
    edit(kind)
    with pytest.raises(ConfigError, match="search holds a search that differs in code: choose another --out"):
        hw.tune(own, trials=1, out="search")
    with pytest.raises(ConfigError, match="choice holds a choice that differs in code: choose another --out"):
        hw.choose(base, methods=methods, draws=1, trials=0, out="choice")


def test_with_new_code_a_run_continues_and_says_so(here: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        hw.run(experiment("method"), "run", observers=[stop])
    old = Path("fed_avg.py").read_bytes()
    edit("method")
    assert hw.resume("run", with_new_code=True).complete
    entries = read_code(Path("run"), read_manifest(Path("run")))
    assert [(t, code.files["fed_avg.py"]) for t, code in entries] == [
        (0, old),
        (1, Path("fed_avg.py").read_bytes()),
    ]


def test_an_unchanged_run_resumes_as_if_it_had_not_been_interrupted(here: Path) -> None:
    whole = hw.run(experiment("network"), "whole")
    with pytest.raises(KeyboardInterrupt):
        hw.run(experiment("network"), "run", observers=[stop])
    assert hw.resume("run").summary()["accuracy"] == whole.summary()["accuracy"]


def test_a_run_keeps_what_ran(here: Path) -> None:
    text = Path("scaled.py").read_bytes()
    hw.run(experiment("helper"), "run")
    edit("helper")
    ((_, code),) = read_code(Path("run"), read_manifest(Path("run")))
    assert code.files == {"scaled.py": text, "factor.py": b"FACTOR = 1.0\n"}
    (copy,) = Path("run/inputs/code").glob("*/factor.py")
    copy.write_text("FACTOR = 2.0\n")
    with pytest.raises(RunError, match=r"factor.py is damaged: it is not the code that ran"):
        read_code(Path("run"), read_manifest(Path("run")))


def test_a_hostile_manifest_reads_no_file_outside(here: Path) -> None:
    hw.run(experiment("method"), "run")
    manifest = json.loads(Path("run/manifest.json").read_text())
    manifest["code"][0]["files"] = {"../../../../secret": "0" * 64}
    with pytest.raises(RunError, match="which is outside"):
        read_code(Path("run"), manifest)


def test_built_in_methods_have_no_code_of_the_users(here: Path) -> None:
    assert collect_code(hw.Experiment(method="fedrep")).label == ""
    assert not Path("run").exists()


def test_a_module_edited_after_its_import_is_refused(here: Path) -> None:
    hw.run(experiment("helper", rounds=1), "first")
    Path("factor.py").write_text("FACTOR = 0.0\n")
    with pytest.raises(ConfigError, match=r"has changed since this session imported factor: start a new session"):
        hw.run(experiment("helper", rounds=1), "second")
    assert not Path("second").exists()
    importlib.reload(sys.modules["factor"])
    assert hw.run(experiment("helper", rounds=1), "second").complete


METRIC = """
from headwise.log.metrics import Metric, weighted


def constant(predictions):
    return 0.25


MINE = Metric("mine", "mine", constant, weighted)
"""


@pytest.fixture
def metric(here: Path) -> Iterator[Path]:
    """A metric of the user's own, as an editable package would offer it."""
    info = here / "mine-1.0.dist-info"
    info.mkdir()
    (here / "own_metric.py").write_text(METRIC)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[headwise.metrics]\nmine = own_metric:MINE\n")
    forget_metrics()
    yield here / "own_metric.py"
    forget_metrics()


def forget_metrics() -> None:
    """As another process would begin."""
    sys.modules.pop("own_metric", None)
    metrics.cache_clear()
    metric_modules.cache_clear()


def test_an_edited_metric_measures_again_or_is_refused(metric: Path) -> None:
    def last(comparison: Comparison) -> float:
        return comparison.setting.lines[0].runs[0].rounds[-1]["pre"]["mine"]

    own = experiment("network")
    assert last(hw.compare(own, ["fedavg"], 1, "out")) == 0.25
    with pytest.raises(KeyboardInterrupt):
        hw.run(own, "run", observers=[stop])
    metric.write_text(METRIC.replace("0.25", "0.125"))
    forget_metrics()
    assert last(hw.compare(own, ["fedavg"], 1, "out")) == 0.125
    with pytest.raises(CodeChangedError, match=r"own_metric\.py has changed since"):
        hw.resume("run")


def test_describe_prints_the_code_that_ran(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hw.run(experiment("helper", rounds=1), "run")
    edit("helper")
    cli.main(["describe", "run", "--code"], standalone_mode=False)
    printed = capsys.readouterr().out
    assert "factor.py" in printed
    assert "FACTOR = 1.0" in printed


def test_describe_shows_the_settings_and_the_scores_of_a_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = hw.run(experiment("helper", rounds=2), "run")
    cli.main(["describe", "run"], standalone_mode=False)
    printed = capsys.readouterr().out
    assert "rounds = 2" in printed
    assert f"last {run.accuracy():.4f}" in printed
    assert "FACTOR" not in printed


def test_models_of_a_run_with_edited_code_come_with_a_warning(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    hw.run(experiment("method", rounds=1), "run")
    edit("method")
    _ = hw.Run("run").model(0)
    assert "fed_avg.py has changed since" in caplog.text


def test_an_edited_data_file_is_refused_or_runs_again(here: Path) -> None:
    rows = [f"{k % 2},{k % 3},{k % 2}" for k in range(60)]
    table = Path("t.csv")
    table.write_text("\n".join(["a,clinic,y", *rows]) + "\n")
    cli.main(["data", "init", "t.csv", "--clients", "clinic", "--target", "y"], standalone_mode=False)
    own = hw.Experiment(data="data.toml", rounds=2, engine={"workers": 1})
    with pytest.raises(KeyboardInterrupt):
        hw.run(own, "run", observers=[stop])
    hw.compare(own, ["fedavg"], 1, "out")
    hw.choose(own, methods=["fedper"], draws=1, trials=0, out="choice")
    table.write_text("\n".join(["a,clinic,y", *(f"{k % 2},{k % 3},{(k + 1) % 2}" for k in range(60))]) + "\n")
    with pytest.raises(ConfigError, match="choice holds a choice that differs in experiment"):
        hw.choose(own, methods=["fedper"], draws=1, trials=0, out="choice")
    with pytest.raises((RunError, hw.HeadwiseError), match=r"t\.csv"):
        hw.resume("run")
    with pytest.raises((RunError, hw.HeadwiseError), match=r"t\.csv|another folder"):
        hw.compare(own, ["fedavg"], 1, "out")


def test_a_network_that_was_passed_as_an_object_names_its_classes(here: Path) -> None:
    (here / "own_layers.py").write_text("from torch import nn\n\n\nclass Wide(nn.Linear):\n    pass\n")
    wide = importlib.import_module("own_layers").Wide
    hw.fit({"a": (X, Y), "b": (X, Y)}, model=nn.Sequential(wide(3, 4), nn.ReLU(), nn.Linear(4, 2)), rounds=1, out="run")
    ((_, code),) = read_code(Path("run"), read_manifest(Path("run")))
    assert [*code.files] == ["own_layers.py"]
    sys.modules.pop("own_layers")


def test_a_revised_method_alone_has_another_version() -> None:
    numbers = {
        name: collect_code(Experiment(method=Choice.parse(name, "method"))).numerics for name in list_names("method")
    }
    assert {*REVISED} <= {*numbers}
    assert {n - NUMERICS for name, n in numbers.items() if name not in REVISED} == {0}
    assert {name: numbers[name] - NUMERICS for name in REVISED} == REVISED
