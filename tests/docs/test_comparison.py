"""The page that compares Headwise with other libraries: what it says of methods is true of ours."""

from __future__ import annotations

import re
import tomllib
from typing import get_args, get_type_hints

import pytest
from snippets import ROOT

from headwise.settings.names import list_names
from headwise.settings.options import Robust
from headwise.tasks.registry import TASKS

PAGE = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
OURS = {name.replace("-", "") for name in list_names("method")}
PFLLIB = (
    "fedala fedamp apfl apple fedas fedavg fedbabu fedbn fedcac fedcp fedcross feddbe ditto feddyn fd fml fedfomo "
    "fedgc fedgen fedgh gpfl fedkd fedlc lgfedavg moon fedmtl fedntd pfedme fedpac fedper perfedavg fedphp fedproto "
    "fedprox fedrep fedrod scaffold standalone"
)
"""what PFLlib d832e76 has in system/flcore/servers, by our names; without serverpcl and serverda"""
FL_BENCH = (
    "apfl ccvr cfl ditto fedadmm fedah fedala fedap fedas fedavg fedbabu fedbn feddyn fedem fedfomo fedgen fedlc "
    "fedpac fedper fedproto fedprox fedrep fedrod floco flute knnper lgfedavg standalone moon perfedavg pfedfda pfedhn "
    "pfedla pfedme pfedsim scaffold"
)
"""what FL-bench 06e658b has in src/server, by our names; fedavgm and fedopt are our `server_opt`"""


def cells(row: str) -> list[str]:
    (line,) = re.findall(rf"^\| {row} \|(.*)\|$", PAGE, re.MULTILINE)
    return [cell.strip() for cell in line.split("|")]


def test_methods_are_counted() -> None:
    ours, pfllib, fl_bench = cells("methods shared with Headwise")[:3]
    assert int(ours) == len(OURS)
    assert {*PFLLIB.split(), *FL_BENCH.split()} <= OURS
    assert int(pfllib) == len(PFLLIB.split())
    assert int(fl_bench.split(",")[0]) == len(FL_BENCH.split()) + 2
    assert f"It has {len(PFLLIB.split()) + 2} methods" in PAGE


def test_what_is_said_to_lack_is_not_here() -> None:
    lacking = re.findall(r"[\w-]+", " ".join(cells("methods that Headwise lacks")))
    listed = re.findall(r"^\| ([^|]+) \| (?:PFLlib|FL-bench|HtFLlib) \|", PAGE, re.MULTILINE)
    assert len(listed) == 9
    assert not OURS & {re.sub(r"\W", "", name).lower() for name in [*lacking, *listed]}


@pytest.mark.parametrize("name", ["PeFLL", "MetaFed", "FedKTL", "FedFed", "ADCOL", "FedMD", "FedPCL", "PFL-DA"])
def test_what_is_not_here_has_a_reason(name: str) -> None:
    assert re.search(rf"^\| {name} \| \S+ \| \S.{{30,}} \|$", PAGE, re.MULTILINE)


def test_data_sets_are_counted() -> None:
    assert int(cells("data sets by name")[0]) == len({*list_names("data")} - {"own"})


def test_rules_tasks_and_versions_are_ours() -> None:
    words = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight")
    rules = [rule for rule in get_args(get_type_hints(Robust)["rule"]) if rule != "mean"]
    assert cells("robust aggregation")[0] == f"{words[len(rules)]} rules"
    assert len(cells("other tasks than classification")[0].split(",")) == len(TASKS) - 1
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    tested = re.findall(r"python: \[(.+)\]", (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    versions = re.findall(r"3\.\d+", tested[0])
    assert cells("Python")[0] == f"{versions[0]} to {versions[-1]}"
    assert project["requires-python"] == f">={versions[0]}"
    assert cells("licence")[0] == project["license"]


def test_test_functions_are_counted_roughly() -> None:
    files = (ROOT / "tests").rglob("test_*.py")
    count = sum(len(re.findall(r"^ *def test_", p.read_text(encoding="utf-8"), re.MULTILINE)) for p in files)
    said = int(re.sub(r"\D", "", cells("test functions, counted in the repository")[0]))
    assert abs(count - said) <= 150
