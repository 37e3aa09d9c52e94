"""A run's folder can be moved: what was passed as objects lies in it, and its manifest has relative paths."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import headwise as hw
from headwise.report.results import collect
from same_runs import rows, stop

RNG = np.random.default_rng(0)
CLIENTS = {name: (RNG.normal(size=(20, 3)).astype(np.float32), np.arange(20) % 2) for name in ("va", "rome")}


def fitted(out: Path, **settings: Any) -> hw.Run:
    (out.parent / "trace.txt").write_text("va,rome\nva\nrome\n")
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    for k, p in enumerate(net.parameters()):
        p.data = torch.linspace(-1, 1 + k, p.numel()).view(p.shape)
    trace = {"trace": str(out.parent / "trace.txt")}
    return hw.fit(CLIENTS, model=net, rounds=3, out=out, sampling=trace, **settings)


def test_a_moved_run_resumes(tmp_path: Path) -> None:
    whole = fitted(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        fitted(tmp_path / "cut", observers=[stop])
    (tmp_path / "elsewhere").mkdir()
    moved = (tmp_path / "cut").rename(tmp_path / "elsewhere" / "cut")
    (tmp_path / "trace.txt").unlink()
    again = hw.resume(moved)
    assert again.complete
    assert rows(again) == rows(whole)
    assert str(tmp_path / "cut") not in json.dumps(again.manifest["experiment"])


def test_the_manifest_names_no_other_place(tmp_path: Path) -> None:
    fitted(tmp_path / "run")
    stored = json.loads((tmp_path / "run" / "manifest.json").read_text())["experiment"]
    places = [stored["data"]["path"], stored["sampling"]["trace"], stored["model"][0]["path"]]
    assert all(place.startswith("inputs/") and (tmp_path / "run" / place).is_file() for place in places)
    read = hw.Run(tmp_path / "run").manifest["experiment"]
    assert read["data"]["path"] == str(tmp_path / "run" / places[0])


def test_seeds_on_the_same_objects_are_one_line(tmp_path: Path) -> None:
    """Although each run has its own copy of them."""
    (tmp_path / "runs").mkdir()
    for seed in (0, 1):
        fitted(tmp_path / "runs" / str(seed), seed=seed)
    (setting,) = collect([tmp_path / "runs"])
    assert [(line.name, len(line.runs)) for line in setting.lines] == [("fedavg", 2)]
