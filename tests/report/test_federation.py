"""The table of sites on the report page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from browser import browser
from made_runs import make_run

from headwise.report.data import tabulate_sites
from headwise.report.page import render, write_page
from headwise.report.results import collect
from headwise.runs.query import Run

HOSTILE = "<script>document.title='owned'</script>"


def line(site: str, t: int, clients: list[int], **more: Any) -> dict[str, Any]:
    usual = {"round": t, "task": "fit", "node": 7, "clients": clients, "site": site}
    return {**usual, "seconds": 2.0, "bytes_down": 2048, "bytes_up": 1024, **more}


def with_sites(folder: Path, *, reported: bool = True) -> Path:
    run = make_run(folder)
    lost = line("va", 1, [3], failure="it was killed", bytes_up=0, seconds=60.0)
    lines = [
        line("va", 1, [3]), lost, line("va", 2, [3], seconds=4.0), line(HOSTILE, 1, [0, 4]),
        line(HOSTILE, 1, [0, 4], task="pre"),
    ]  # fmt: skip
    (run / "sites.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    if not reported:
        (run / "partition.json").write_text(json.dumps({"train": [], "val": [], "test": []}))
    return run


def test_sites_are_counted(tmp_path: Path) -> None:
    rows = tabulate_sites([Run(with_sites(tmp_path / "run"))])
    assert rows == [
        (HOSTILE, "0, 4", "1", "2", "0", "4.0", "2.0", "2.0"),
        ("va", "3", "2", "3", "1", "6.0", "2.0", "3.0"),
    ]


def test_the_page_has_the_part_only_where_there_are_sites(tmp_path: Path) -> None:
    page = render(collect([with_sites(tmp_path / "sites")]))
    assert 'id="federation"' in page
    assert "Rounds trained in" in page
    assert HOSTILE not in page
    assert 'id="federation"' not in render(collect([make_run(tmp_path / "local")]))


def test_the_page_of_sites_that_tell_no_labels_opens(tmp_path: Path) -> None:
    page = write_page(collect([with_sites(tmp_path / "run", reported=False)]), tmp_path / "page.html")
    with browser(tmp_path / "browser") as tab:
        tab.open(page)
        tab.draw_everything()
        assert tab.js("return document.querySelectorAll('#federation tbody tr').length") == 2
        assert tab.complaints() == []
        assert tab.violations() == []
        assert "owned" not in tab.js("return document.title")
