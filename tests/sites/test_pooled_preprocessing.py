"""Preprocessing that is fitted on the sums of all sites: the same bits as in a simulation, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from federations import LocalTransport, run_deployment, server_of

import headwise as hw
from headwise.app.prepare import divide, prepare
from headwise.cli import main
from headwise.data.own.description import Description, Preprocess
from headwise.data.preprocessing import (
    FeatureColumn,
    Preprocessing,
    add_sums,
    describe_difference,
    fit,
    no_sums,
    sums_from_json,
    sums_to_json,
)
from headwise.errors import ConfigError, DataError, RunError
from headwise.exports.quality import measure_quality
from headwise.exports.run_models import Models
from headwise.exports.samples import _name_classes
from headwise.records import same
from headwise.sites.facts import experiment_hash
from headwise.sites.offers import write_offer
from headwise.sites.site.models import adapt
from headwise.sites.site.own_data import own_data
from headwise.sites.site.policy import Policy
from headwise.sites.site.site_file import read_site

HOSPITALS = {"lima": "ab", "oslo": "bc", "rome": "ad"}
"""and the wards that each of them knows"""
HEAD = "age,dose,ward,ill"
FEATURES = 'target = "ill"\nclasses = ["no", "yes"]\n[features]\nnumber = ["age", "dose"]\ncategory = ["ward"]\n'


def rows(k: int) -> list[str]:
    """The ages of the second hospital are often missing, and all doses have other scales."""
    rng, wards = np.random.default_rng(k), [*HOSPITALS.values()][k]
    ages = ["" if k == 1 and i % 3 == 0 else f"{rng.normal(40 + 10 * k, 8):.2f}" for i in range(20 + k)]
    return [f"{a},{rng.normal(10**k, k + 1):.3f},{wards[i % 2]},{'yes' if i % 3 else 'no'}" for i, a in enumerate(ages)]


def write(folder: Path, lines: list[str], whose: str, extra: str = "") -> Path:
    folder.mkdir(parents=True)
    (folder / "t.csv").write_text("\n".join(lines))
    (folder / "data.toml").write_text(f'format = "csv"\npath = "t.csv"\n{whose}\n{FEATURES}{extra}')
    return folder / "data.toml"


def site(home: Path, k: int, extra: str = "", *flags: str) -> Path:
    data = write(home / f"data{k}", [HEAD, *rows(k)], "one_client = true", extra)
    with pytest.raises(SystemExit) as end:
        main(["site", "init", str(home / f"site{k}"), "--client", str(k), "--data", str(data), *flags])
    assert end.value.code == 0
    return home / f"site{k}" / "site.toml"


def together(home: Path, extra: str = "") -> Path:
    lines = [f"{line},{name}" for k, name in enumerate(HOSPITALS) for line in rows(k)]
    return write(home / "together", [f"{HEAD},who", *lines], 'client = "who"', extra)


USUAL: dict[str, Any] = {"method": "fedper", "clients": 3, "model": "mlp:4", "rounds": 2}


def asked(**changes: Any) -> hw.Experiment:
    return hw.Experiment(**{**USUAL, "data": "own", **changes})


@pytest.mark.parametrize("extra", ["", '[preprocess]\nfit = "client"\n'], ids=["pooled", "client"])
def test_sites_have_the_bits_of_a_simulation(extra: str, tmp_path: Path) -> None:
    sites = {k: site(tmp_path, k, extra, "--allow-sums") for k in range(3)}
    run = run_deployment(LocalTransport(sites), asked(), tmp_path / "out")
    simulated = hw.Experiment(**{**USUAL, "data": str(together(tmp_path, extra))})
    hw.run(simulated, tmp_path / "simulated")
    assert same(server_of(tmp_path / "out"), server_of(tmp_path / "simulated"))
    whole, told = divide(simulated, Path()), hw.Experiment(**run.manifest["experiment"])
    assert whole.task.shape == (2 + 1 + 4,), "two numbers, a flag for missing ages, four wards"
    for k, path in sites.items():
        mine, theirs = own_data(read_site(path), path.parent, told).client(k).train, whole.client(k).train
        assert torch.equal(mine.x, theirs.x)
    known = json.loads((tmp_path / "out" / "sites.json").read_text())["facts"]
    assert add_sums([t["sums"] for t in known]) == run.manifest["experiment"]["data"]["statistics"]
    assert fit(*sums_from_json(run.manifest["experiment"]["data"]["statistics"])).shape == (7,)


def test_a_run_goes_on_with_the_sums_that_it_began_with(tmp_path: Path) -> None:
    sites = {k: site(tmp_path, k, "", "--allow-sums") for k in range(3)}
    patient: dict[str, Any] = {"faults": {"on_failure": "skip"}}
    first = run_deployment(
        LocalTransport({k: sites[k] for k in (0, 1)}), asked(**patient, stop={"budget": 1e-6}), tmp_path / "out"
    )
    before = first.manifest["experiment"]["data"]["statistics"]
    assert len(first.rounds) == 1
    after = run_deployment(LocalTransport(sites), asked(**patient, stop={"budget": 1e-6}), tmp_path / "out")
    assert len(after.rounds) == 2
    assert after.manifest["experiment"]["data"]["statistics"] == before
    assert sums_from_json(before)[1].n == 15 + 15  # 75 of 100 at two of them


def test_without_sums_sites_of_another_shape_are_told_so(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="has data of the form"):
        run_deployment(LocalTransport({k: site(tmp_path, k) for k in range(3)}), asked(), tmp_path / "out")


def test_all_sites_share_sums_or_none_does(tmp_path: Path) -> None:
    sites = {k: site(tmp_path, k, "", *(["--allow-sums"] if k else [])) for k in range(3)}
    with pytest.raises(RunError, match=r"differ in whether they share sums of their features: set allow.sums"):
        run_deployment(LocalTransport(sites), asked(), tmp_path / "out")


def test_sites_with_other_preprocessing_are_refused(tmp_path: Path) -> None:
    sites = {k: site(tmp_path, k, "[preprocess]\nflag = false\n" if k == 2 else "", "--allow-sums") for k in range(3)}
    with pytest.raises(
        RunError,
        match="site2 has other features or preprocessing than site0: flag is False, not True; all sites must describe",
    ):
        run_deployment(LocalTransport(sites), asked(), tmp_path / "out")


def test_under_privacy_no_sums_leave_a_site(tmp_path: Path) -> None:
    path = site(tmp_path, 0, "", "--allow-sums")
    policy = Policy(read_site(path), path.parent)
    for privacy, tells in ((None, True), ({"clip": 1.0}, False)):
        changes: dict[str, Any] = {"privacy": privacy} if privacy else {}
        said = json.loads(policy.introduce(json.dumps(asked(**changes).to_plain())).text)
        assert said["refusal"] is None
        assert bool(said["facts"][0]["sums"]) == tells


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ("", "preprocess.fit is 'pooled': set it to 'client'"),
        (
            '[preprocess]\nfit = "client"\n',
            "preprocess.flag reveals which columns have missing values: set it to false",
        ),
        ('[preprocess]\nfit = "client"\nflag = false\n', "the categories of all clients become inputs"),
    ],
)
def test_in_a_simulation_sums_are_refused_under_privacy(extra: str, said: str, tmp_path: Path) -> None:
    experiment = hw.Experiment(**{**USUAL, "data": str(together(tmp_path, extra)), "privacy": {"clip": 1.0}})
    with pytest.raises(ConfigError, match=f"^privacy.clip is 1, but in the data.toml, {said}"):
        prepare(experiment, Path())


def test_what_stays_at_a_client_goes_with_privacy(tmp_path: Path) -> None:
    data = together(tmp_path, '[preprocess]\nfit = "client"\nflag = false\n')
    data.write_text(data.read_text().replace('category = ["ward"]\n', ""))
    prepare(hw.Experiment(**{**USUAL, "data": str(data), "privacy": {"clip": 1.0}}), Path())


GOOD = '{"of":{"form":"array","shape":[2],"options":{},"columns":[]},"n":3,"numbers":[[3,3],[1,2],[1,4]],"values":{}}'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        GOOD[:-1],
        GOOD.replace("[1,4]", "[1]"),
        GOOD.replace("[1,4]", "[1,-4]"),
        GOOD.replace("[1,4]", "[1,NaN]"),
        GOOD.replace('"n":3', '"n":-3'),
        GOOD.replace("{}}", '{"ward":{"a":1}}}'),
        GOOD.replace('"options":{}', '"options":{"fit":"mine"}'),
        GOOD + " " * 10**7,
    ],
    ids=range(11),
)
def test_sums_from_elsewhere_are_checked(text: str) -> None:
    assert sums_from_json(GOOD)[1].n == 3
    with pytest.raises(DataError, match=r"^sums for preprocessing can't be used"):
        sums_from_json(text)


def test_a_signed_list_covers_all_but_sums_and_the_machine() -> None:
    usual = experiment_hash(asked())
    assert usual == experiment_hash(asked(data={"name": "own", "statistics": GOOD}, engine={"workers": 3}))
    for changed in (
        {"data": {"name": "own", "classes": ["a"]}},
        {"train": {"clip": 1.0}},
        {"target_range": [0, 1]},
        {"engine": {"kernels": "plain"}},
    ):
        assert usual != experiment_hash(asked(**changed))


def test_the_servers_global_model_takes_raw_rows(tmp_path: Path) -> None:
    """Preprocessed by the sums of all sites, as in a simulation; where each site has its own, there is none."""
    sites = {k: site(tmp_path, k, "", "--allow-sums") for k in range(3)}
    run = run_deployment(LocalTransport(sites), asked(method="fedavg"), tmp_path / "out")
    simulated = hw.Experiment(**{**USUAL, "method": "fedavg", "data": str(together(tmp_path))})
    wanted = hw.run(simulated, tmp_path / "simulated").global_model()
    cells = {"age": [40, ""], "dose": [9.5, 110], "ward": ["d", "z"]}
    assert np.array_equal(run.global_model().predict_proba(cells), wanted.predict_proba(cells))
    own = {k: site(tmp_path / "own", k, '[preprocess]\nfit = "client"\n', "--allow-sums") for k in range(3)}
    with pytest.raises(RunError, match="each site has its own preprocessing"):
        run_deployment(LocalTransport(own), asked(method="fedavg"), tmp_path / "other").global_model()


def test_what_differs_between_two_sites_is_said() -> None:
    def told(*columns: tuple[str, Literal["number", "category"]], **options: Any) -> str:
        recipe = Preprocessing("table", (3,), Preprocess(**options), tuple(FeatureColumn(n, k) for n, k in columns))
        return sums_to_json(recipe, no_sums(recipe))

    usual = told(("age", "number"), ("plan", "category"))
    assert describe_difference(usual, usual) == ""
    said = "'age' is a category, not a number, 'plan' is missing, 'shop' is only there, flag is False, not True"
    assert describe_difference(told(("age", "category"), ("shop", "number"), flag=False), usual) == said


@pytest.mark.parametrize("named", [["no", "yes"], []])
def test_the_servers_global_model_has_the_studys_classes(named: list[str], tmp_path: Path) -> None:
    """Where the study names none, a data.toml's own classes count in their order; a late site adapts either way."""
    sites = {k: site(tmp_path, k, "", "--allow-sums") for k in range(3)}
    study = asked(method="fedavg", rounds=1, clients=2, data={"name": "own", "classes": named})
    run = run_deployment(LocalTransport({k: sites[k] for k in (0, 1)}), study, tmp_path / "out")
    model = run.global_model()
    assert model.classes == (tuple(named) or ("0", "1"))
    judged = measure_quality(model, tmp_path / "data0" / "data.toml")
    assert np.sum(judged.confusion, axis=1).tolist() == [7, 13]
    write_offer(Models(run), tmp_path / "offer")
    late = adapt(sites[2], tmp_path / "offer", None, 1).model
    assert late.classes == ("no", "yes")
    assert set(late.predict({"age": [40, ""], "dose": [9.5, 110], "ward": ["a", "z"]})) <= {"no", "yes"}


def test_only_a_model_without_names_is_judged_by_the_order_of_classes() -> None:
    d = Description("csv", "x.csv", classes=("1", "0"))
    card: dict[str, Any] = {"classes": ["0", "1"], "reading": {"classes": []}, "of": {"kind": "personal"}}
    assert _name_classes(card, d) == card
    assert _name_classes({**card, "of": {"numbered": True}}, d)["reading"] == {"classes": ["1", "0"]}


def test_a_site_declares_the_range_of_its_targets(tmp_path: Path) -> None:
    """Without a study that asks for it."""
    (tmp_path / "x.csv").write_text("\n".join(["age,dose", *(f"{k % 9},{k / 4}" for k in range(20))]))
    text = 'format = "csv"\npath = "x.csv"\none_client = true\ntarget = "dose"\ntask = "regression"\n'
    (tmp_path / "data.toml").write_text(f'{text}target_range = [0, 10]\n[features]\nnumber = ["age"]\n')
    with pytest.raises(SystemExit) as end:
        main(["site", "init", str(tmp_path / "site"), "--client", "0", "--data", str(tmp_path / "data.toml")])
    assert end.value.code == 0


def test_a_site_with_other_classes_than_the_study_is_refused(tmp_path: Path) -> None:
    study = asked(rounds=1, clients=1, data={"name": "own", "classes": ["yes", "no"]})
    said = "data.classes is yes, no, but site0 has others: names and order in its data.toml must be the same"
    with pytest.raises(RunError, match=said):
        run_deployment(LocalTransport({0: site(tmp_path, 0)}), study, tmp_path / "out")
    assert experiment_hash(study) != experiment_hash(asked(rounds=1, clients=1))
