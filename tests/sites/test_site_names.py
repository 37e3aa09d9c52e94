"""Reports of deployed runs call clients by their sites' names."""

from __future__ import annotations

from pathlib import Path

import pytest
from federations import Inside, experiment, served, write_site

import headwise as hw
from headwise.report.page import render
from headwise.report.results import collect
from headwise.sites.server.elsewhere import client_names
from headwise.sites.server.nodes import Roster


@pytest.mark.parametrize("allow", ["labels = true", "labels = false"])
def test_a_deployed_run_knows_its_sites_names(allow: str, tmp_path: Path) -> None:
    sites = {
        7: write_site(tmp_path / "oslo", [0], allow),
        8: write_site(tmp_path / "bergen", [1, 2], allow),
        9: write_site(tmp_path / "tromso", [3], allow),
        10: write_site(tmp_path / "bodo", [4], allow),
    }
    run = served(Inside(sites), experiment(evaluate={"moments": ["post"]}, sampling={"ratio": 1.0}), tmp_path / "run")
    assert run.names == ("oslo", "bergen 1", "bergen 2", "tromso", "bodo")
    assert hw.Run(tmp_path / "run").names == run.names
    (setting,) = collect([tmp_path / "run"])
    page = render([setting])
    assert setting.title == "synthetic, at sites, 5 clients"
    assert '"bergen 1"' in page
    assert "Clients train with fedper: they get" in page
    assert "best models" not in page
    assert "accuracy (pre)" not in page, "a column without values"


def test_clients_without_a_site_keep_their_number() -> None:
    known = Roster({}, {0: 7, 2: 8}, {7: "oslo", 8: "oslo"})
    assert client_names(known, 4) == ("oslo 0", "client 1", "oslo 2", "client 3")
    assert client_names(Roster({}, {}), 2) == ()


def test_names_that_clash_are_left_out() -> None:
    known = Roster({}, {0: 7, 1: 7, 2: 8}, {7: "oslo", 8: "oslo 1"})
    assert client_names(known, 3) == ()
