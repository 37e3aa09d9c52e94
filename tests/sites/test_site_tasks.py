"""Sites can learn labels and masks as well as classes: the same bits as in a simulation, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from federations import Inside, bits, served

import headwise as hw
from headwise.errors import RunError
from headwise.sites.facts import ClientFacts

PART = """
from dataclasses import dataclass, replace

import numpy as np

from headwise.data.sources.shapes import Shapes
from headwise.settings.fields import Natural


@dataclass(frozen=True)
class Part(Shapes):
    '''The shapes of one site.'''

    only: Natural = 0

    def load(self, folder):
        found = super().load(folder)
        mine = np.flatnonzero(found.owner == self.only)
        return replace(found.subset(mine), owner=None)
"""


def site(folder: Path, client: int, source: str, name: str) -> Path:
    folder.mkdir(parents=True)
    own = f'[[clients]]\nid = {client}\nsource = "{source}"\n'
    (folder / "site.toml").write_text(f'name = "{folder.name}"\ndata = "{name}"\n[allow]\nlabels = true\n{own}')
    return folder / "site.toml"


@pytest.mark.parametrize("task", ["multilabel", "segmentation"])
def test_other_tasks_have_the_bits_of_a_simulation(task: str, tmp_path: Path) -> None:
    (tmp_path / "part.py").write_text(PART)
    labels = task == "multilabel"
    whole = "synthetic:90:3:6:sites=3:task=multilabel" if labels else "shapes:30:8:3"
    part = whole if labels else f"{tmp_path / 'part.py'}:30:8:3"
    name, model = whole.split(":")[0], "mlp:4" if labels else "fcn:4"
    usual: dict[str, Any] = {"method": "fedavg", "partition": "natural", "model": model, "clients": 3, "rounds": 2}
    sites = {k: site(tmp_path / f"site{k}", k, f"{part}:only={k}", name) for k in range(3)}
    there = served(Inside(sites), hw.Experiment(data=whole, **usual), tmp_path / "there")
    here = hw.run(hw.Experiment(data=whole, **usual), tmp_path / "here", data_dir=tmp_path)
    one, other = bits(tmp_path / "there"), bits(tmp_path / "here")
    assert all(one[part] == other[part] for part in ("server", "rows", "lines"))
    assert there.metric == here.metric, "the report judges by the usual metric of the task"
    assert there.manifest["experiment"]["task"] == task


def test_sites_with_another_task_are_told_so(tmp_path: Path) -> None:
    source = "synthetic:90:3:6:sites=3:only={k}"
    sites = {
        k: site(tmp_path / f"site{k}", k, source.format(k=k) + (":task=multilabel" if k else ""), "synthetic")
        for k in range(2)
    }
    asked = hw.Experiment(method="fedavg", data="synthetic", partition="natural", model="mlp:4", clients=2, rounds=1)
    with pytest.raises(RunError, match="has data for multilabel, but other sites have data for classification"):
        served(Inside(sites), asked, tmp_path / "out")


def test_regression_is_refused_with_the_reason(tmp_path: Path) -> None:
    path = site(tmp_path / "site0", 0, "synthetic:90:3:6:sites=3:only=0:task=regression", "synthetic")
    asked = hw.Experiment(method="fedavg", data="synthetic", partition="natural", model="mlp:4", clients=1, rounds=1)
    with pytest.raises(RunError, match="regression, which sites can't do yet: it needs the mean and deviation"):
        served(Inside({1: path}), asked, tmp_path / "out")
    lies = ClientFacts(0, (6,), 1, 0, (8, 1, 1), None, kind="regression")
    assert lies.problem == "has data for regression, which sites can't do yet"
