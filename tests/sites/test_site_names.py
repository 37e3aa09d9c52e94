"""Reports of deployed runs call clients by their sites' names."""

from __future__ import annotations

from pathlib import Path

import pytest
from federations import LocalTransport, experiment, run_deployment, write_site

import headwise as hw
from headwise.errors import RunError
from headwise.report.page import render
from headwise.report.results import collect
from headwise.runs.query import name_by_site
from headwise.sites.transport.envelope import SiteMessage


@pytest.mark.parametrize("allow", ["labels = true", "labels = false"])
def test_a_deployed_run_knows_its_sites_names(allow: str, tmp_path: Path) -> None:
    sites = {
        7: write_site(tmp_path / "oslo", [0], allow),
        8: write_site(tmp_path / "bergen", [1, 2], allow),
        9: write_site(tmp_path / "tromso", [3], allow),
        10: write_site(tmp_path / "bodo", [4], allow),
    }
    run = run_deployment(
        LocalTransport(sites), experiment(evaluate={"moments": ["post"]}, sampling={"ratio": 1.0}), tmp_path / "run"
    )
    assert run.names == ("oslo", "bergen 1", "bergen 2", "tromso", "bodo")
    assert hw.Run(tmp_path / "run").names == run.names
    (setting,) = collect([tmp_path / "run"])
    page = render([setting])
    assert setting.title == "synthetic, at sites, 5 clients"
    assert '"bergen 1"' in page
    assert "Clients train with fedper: with their own last models (stale), they get" in page
    assert "best models" not in page
    assert "accuracy (pre)" not in page, "a column without values"


def test_clients_without_a_site_keep_their_number() -> None:
    assert name_by_site({0: 7, 2: 8}, {7: "oslo", 8: "oslo"}, 4) == ("oslo 0", "client 1", "oslo 2", "client 3")
    assert name_by_site({}, {}, 2) == ()


def test_names_that_clash_are_left_out() -> None:
    assert name_by_site({0: 7, 1: 7, 2: 8}, {7: "oslo", 8: "oslo 1"}, 3) == ()


def test_clients_of_sites_that_come_later_get_their_names(tmp_path: Path) -> None:
    transport, bergen = (
        LocalTransport({7: write_site(tmp_path / "oslo", [0, 1, 2])}),
        write_site(tmp_path / "bergen", [3, 4]),
    )

    def meddle(node: int, kind: str, message: SiteMessage) -> SiteMessage:
        if kind != "query":  # the run has begun
            transport.sites[8] = bergen
        return message

    transport.meddle = meddle
    rules = {"faults": {"on_failure": "skip"}, "sampling": {"ratio": 1.0}, "evaluate": {"start": False}}
    run = run_deployment(transport, experiment(**rules), tmp_path / "run")
    assert run.partition["names"] == ["oslo 0", "oslo 1", "oslo 2", "client 3", "client 4"], "when the run began"
    assert run.names == ("oslo 0", "oslo 1", "oslo 2", "bergen 3", "bergen 4")
    (tmp_path / "run" / "sites.json").write_text('{"homes": [1]}')
    with pytest.raises(RunError, match=r"sites.json is damaged: it does not name the clients' sites"):
        _ = hw.Run(tmp_path / "run").names
