"""Experiments of any shape, drawn at random: the same bits for any number of workers, in threads, and at sites."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from federations import LocalTransport, bits, bits_at_sites, experiment, run_deployment, use_local_nodes, write_site
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from test_flower_simulation import ENGINE, RUNS, alone_works, run_alone

import headwise as hw
from headwise.app.registry import find
from headwise.settings.names import list_names
from headwise.sites.server import nodes
from headwise.testing.nervous import Nervous

WIDTHS = st.sampled_from([1, 2, 3, 5, 7, 13, 15, 16, 17, 30, 31, 32, 33, 63, 64, 65])


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, Any]:
    """A method and deliberately awkward sizes."""
    clients, classes, width = draw(st.integers(1, 12)), draw(st.integers(2, 17)), draw(WIDTHS)
    method = draw(st.sampled_from(list_names("method")))
    models = [f"mlp:{width}", f"mlp:{width}:2", *([] if find("method", method).without_body == "fails" else ["linear"])]
    return {
        "method": method,
        "data": f"synthetic:{20 * clients + draw(st.integers(0, 60))}:{classes}:{draw(WIDTHS)}:sites={clients}",
        "clients": clients,
        "model": draw(st.sampled_from(models)),
        "train": {"batch": draw(WIDTHS)},
        "seed": draw(st.integers(0, 99)),
        "rounds": 2,
    }


def examples(count: int) -> Any:
    """`count` examples, always the same; no shrinking, since each is slow and failures are small already."""
    return settings(
        max_examples=count,
        derandomize=True,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


def asked(shape: dict[str, Any], **engine: Any) -> hw.Experiment:
    return experiment(**shape, engine={"workers": 1, **engine})


def at_sites(shape: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Each client at its own site."""
    homes = {100 + c: write_site(folder / f"site{c}", [c], data=shape["data"]) for c in range(shape["clients"])}
    run_deployment(LocalTransport(homes), experiment(**shape), folder / "sites")
    return bits_at_sites(folder / "sites", folder)


@given(shape=shapes())
@examples(8)
def test_groups_nodes_and_sites_on_a_nervous_cpu(
    shape: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("any")
    with pytest.MonkeyPatch.context() as patch, Nervous():
        patch.setattr(nodes, "LAST_PAUSE", 0.0)
        hw.run(asked(shape), folder / "one")
        wanted = bits(folder / "one")
        assert at_sites(shape, folder) == wanted
        use_local_nodes(patch, nodes=3)
        hw.run(asked(shape, kind="flower-sim"), folder / "nodes")
        assert bits(folder / "nodes") == wanted


@pytest.mark.long
@pytest.mark.skipif(not alone_works(), reason="no network of its own can be made here")
def test_twenty_experiments_in_workers_threads_flower_and_sites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "LAST_PAUSE", 0.0)
    drawn: list[dict[str, Any]] = []

    @given(shape=shapes())
    @examples(20)
    def draw(shape: dict[str, Any]) -> None:
        drawn.append(shape)

    draw()
    flower = [(asked(s, **ENGINE).to_plain(), str(tmp_path / str(k) / "flower")) for k, s in enumerate(drawn)]
    done = run_alone("-c", RUNS, json.dumps(flower), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    for k, shape in enumerate(drawn):
        folder = tmp_path / str(k)
        for workers in (1, 2, 3, "threads:2"):
            hw.run(asked(shape, workers=workers), folder / str(workers))
        wanted = bits(folder / "1")
        for other in ("2", "3", "threads:2", "flower"):
            assert bits(folder / other) == wanted, (other, shape)
        assert at_sites(shape, folder) == wanted, shape
