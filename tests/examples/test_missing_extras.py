"""Without an extra, what needs it says so in one sentence that names it; nothing else needs it."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headwise.app.tune import tune
from headwise.data.own import images, tables
from headwise.errors import HeadwiseError
from headwise.exports import network, programs
from headwise.methods.fedavg import FedAvg
from headwise.privacy.mechanisms import rehearse
from headwise.report.figures import draw
from headwise.settings.experiment import Experiment
from headwise.sites.transport.superlink import check_flower
from headwise.testing.toy import toy_plan
from headwise.trackers import make_trackers

ROOT = Path(__file__).parents[2]
ABSENT: list[tuple[str, str, Callable[[], Any]]] = [
    ("export", "onnx", lambda: network.to_onnx(None, {})),  # type: ignore[arg-type]
    ("export", "onnxscript", lambda: network.to_onnx(None, {})),  # type: ignore[arg-type]
    ("export", "onnxruntime", lambda: programs.load_program(Path("model.onnx"), b"", (2,))),
    ("figures", "matplotlib", lambda: draw(Path("figures"), "name", print)),
    ("flower", "flwr", check_flower),
    ("images", "PIL", lambda: images.read_sizes([Path("a.png")])),
    ("mlflow", "mlflow", lambda: make_trackers(["mlflow"], Path())),
    ("privacy", "opacus", lambda: rehearse(toy_plan(FedAvg()))),
    ("tables", "pyarrow.parquet", lambda: tables._open_parquet(Path("a.parquet"))),
    ("tune", "optuna", lambda: tune(Experiment())),
    ("tensorboard", "torch.utils.tensorboard.writer", lambda: make_trackers(["tensorboard"], Path())),
    ("wandb", "wandb", lambda: make_trackers(["wandb"], Path())),
]
ELSEWHERE = {"watch": "tests/cli/test_watch_command.py"}
FOR_US = {"dev", "docs", "fuzz"}


def test_every_extra_is_tried() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = set(tomllib.load(file)["project"]["optional-dependencies"]) - FOR_US
    assert extras == {extra for extra, *_ in ABSENT} | ELSEWHERE.keys()
    assert all(f"headwise[{extra}]" in (ROOT / path).read_text(encoding="utf-8") for extra, path in ELSEWHERE.items())


@pytest.mark.parametrize(("extra", "module", "use"), ABSENT, ids=[module for _, module, _ in ABSENT])
def test_its_absence_is_a_sentence_that_names_it(
    extra: str, module: str, use: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(HeadwiseError) as said:
        use()
    assert f"pip install 'headwise[{extra}]'" in str(said.value)
