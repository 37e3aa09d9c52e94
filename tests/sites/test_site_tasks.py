"""Sites can learn every task: the same bits as in a simulation, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federations import LocalTransport, bits, run_deployment

import headwise as hw
from headwise.errors import RunError
from headwise.sites.facts import ClientFacts
from headwise.sites.site.policy import Policy
from headwise.sites.site.site_file import read_site

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


@pytest.mark.parametrize("task", ["multilabel", "regression", "segmentation"])
def test_other_tasks_have_the_bits_of_a_simulation(task: str, tmp_path: Path) -> None:
    (tmp_path / "part.py").write_text(PART)
    masks = task == "segmentation"
    whole = "shapes:30:8:3" if masks else f"synthetic:90:3:6:sites=3:task={task}"
    part = f"{tmp_path / 'part.py'}:30:8:3" if masks else whole
    name, model = whole.split(":")[0], "fcn:4" if masks else "mlp:4"
    usual: dict[str, Any] = {"method": "fedavg", "partition": "natural", "model": model, "clients": 3, "rounds": 2}
    if task == "regression":
        usual["target_range"] = [[-20, 20]] * 3
    sites = {k: site(tmp_path / f"site{k}", k, f"{part}:only={k}", name) for k in range(3)}
    there = run_deployment(LocalTransport(sites), hw.Experiment(data=whole, **usual), tmp_path / "there")
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
    with pytest.raises(RunError, match="has data for multilabel, but site0 has data for classification"):
        run_deployment(LocalTransport(sites), asked, tmp_path / "out")


def test_a_regression_without_a_scale_is_refused(tmp_path: Path) -> None:
    path = site(tmp_path / "site0", 0, "synthetic:90:3:6:sites=3:only=0:task=regression", "synthetic")
    asked = hw.Experiment(method="fedavg", data="synthetic", partition="natural", model="mlp:4", clients=1, rounds=1)
    said = "site0 has data for regression, which needs a scale of the targets that is the same for all sites: "
    with pytest.raises(RunError, match=f"{said}set target_range in the experiment.$"):
        run_deployment(LocalTransport({1: path}), asked, tmp_path / "out")


def table(folder: Path, clients: dict[str, int], extra: str = "") -> Path:
    """The stays of these clients' patients, each with its own way of counting days."""
    folder.mkdir(parents=True)
    lines = ["who,age,stay"]
    for name, k in clients.items():
        rng = np.random.default_rng(k)
        lines += [f"{name},{age:.2f},{age / 7 + 3 * k + rng.normal():.3f}" for age in rng.normal(50, 12, 16 + k)]
    (folder / "t.csv").write_text("\n".join(lines))
    (folder / "data.toml").write_text(
        'format = "csv"\npath = "t.csv"\nclient = "who"\ntarget = "stay"\ntask = "regression"\n'
        f'{extra}[features]\nnumber = ["age"]\n'
    )
    return folder / "data.toml"


HOSPITALS = {"lima": 0, "oslo": 1, "rome": 2}


def hospitals(home: Path, extra: str = "", sums: bool = True) -> dict[int, Path]:
    found = {k: table(home / name, {name: k}, extra) for name, k in HOSPITALS.items()}
    sites = {k: site(home / f"site{k}", k, str(toml), "own") for k, toml in found.items()}
    for path in sites.values() if sums else ():
        path.write_text(path.read_text().replace("[allow]", "[allow]\nsums = true"))
    return sites


OWN: dict[str, Any] = {"method": "fedavg", "clients": 3, "model": "mlp:4", "rounds": 2}


@pytest.mark.parametrize("told", ["sums", "range"])
def test_own_quantities_have_the_bits_of_a_simulation(told: str, tmp_path: Path) -> None:
    """Measured by the mean and deviation of all sites, or by a range, with which no sums of targets leave."""
    declared = {"target_range": [0, 20]} if told == "range" else {}
    there = run_deployment(
        LocalTransport(hospitals(tmp_path)), hw.Experiment(**OWN, **declared, data="own"), tmp_path / "there"
    )
    together = hw.Experiment(**OWN, **declared, data=str(table(tmp_path / "together", HOSPITALS)))
    here = hw.run(together, tmp_path / "here")
    one, other = bits(tmp_path / "there"), bits(tmp_path / "here")
    assert one["rows"] == other["rows"]
    assert one["server"] == other["server"]
    assert ("targets" in there.manifest["experiment"]["data"]["statistics"]) == (told == "sums")
    cells = {"age": [30, 70]}
    assert np.array_equal(there.global_model().predict(cells), here.global_model().predict(cells))


def test_sites_without_sums_need_a_range_that_all_declare_alike(tmp_path: Path) -> None:
    silent = hospitals(tmp_path, sums=False)
    with pytest.raises(RunError, match=r"set target_range in the experiment, or allow.sums = true in each site.toml"):
        run_deployment(LocalTransport(silent), hw.Experiment(**OWN, data="own"), tmp_path / "out")
    other = hospitals(tmp_path / "declared", "target_range = [0, 30]\n")
    said = r"site0 declares target_range = \[\[0.0, 30.0\]\], but the experiment has none: both must be the same"
    with pytest.raises(RunError, match=said):
        run_deployment(LocalTransport(other), hw.Experiment(**OWN, data="own"), tmp_path / "out")


def test_private_quantities_at_sites_need_a_range(tmp_path: Path) -> None:
    path = hospitals(tmp_path)[0]
    policy = Policy(read_site(path), path.parent)
    for declared, refused in (({}, True), ({"target_range": [0, 20]}, False)):
        asked = hw.Experiment(**OWN, **declared, data="own", privacy={"clip": 1.0})
        said = json.loads(policy.introduce(json.dumps(asked.to_plain())).text)
        assert ("privacy.clip is 1, but task is 'regression'" in (said["refusal"] or "")) == refused
        assert not any(told["sums"] for told in said["facts"])


def test_sums_of_other_targets_than_told_are_found() -> None:
    sums = '{"of":{"form":"array","shape":[1],"options":{},"columns":[]},"n":1,"numbers":[[1],[1],[1]],"values":{}'
    facts = ClientFacts(0, (1,), 1, 0, (8, 1, 1), None, f'{sums},"targets":[[1],[2],[4]]}}', "regression")
    assert facts.problem is None
    assert replace(facts, classes=2).problem == "reports sums of other targets than it has"
    wrong = replace(facts, sums=f'{sums},"targets":[[1],[2],[-4]]}}')
    assert str(wrong.problem).endswith("sums for preprocessing can't be used: they are not counts and sums.")
