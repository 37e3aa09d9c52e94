"""``headwise report`` as a user runs it."""

from __future__ import annotations

from pathlib import Path

import pytest
from saying import Headwise, assert_refused, snapshot


def test_a_run_becomes_a_page(headwise: Headwise, here: Path, run: str) -> None:
    assert headwise("report", run) == (0, "The report is in report.html.\n", "")
    assert "fedavg on synthetic:120:3, iid, 3 clients" in (here / "report.html").read_text()
    assert headwise("report", run, "-o", "other.html").out == "The report is in other.html.\n"
    assert (here / "other.html").read_bytes() == (here / "report.html").read_bytes()


def test_a_table_goes_to_stdout_alone(headwise: Headwise, here: Path, run: str) -> None:
    before = snapshot(here)
    said = headwise("report", run, "--table", "markdown")
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("| method |")
    assert snapshot(here) == before, "no page was asked for"
    both = headwise("report", run, "--table", "csv", "-o", "page.html")
    assert both.out.startswith("method,")
    assert both.err == "The report is in page.html.\n"


def test_figures_are_named(headwise: Headwise, here: Path, run: str) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install 'headwise[figures]'")
    said = headwise("report", run, "--figures", "figures")
    assert said.code == 0
    assert [Path(line) for line in said.out.splitlines()] == [
        Path("figures") / f"{name}.{form}"
        for name in ("accuracy-over-rounds", "accuracy-over-traffic", "clients", "partition", "traffic")
        for form in ("svg", "pdf")
    ]
    assert all((here / line).stat().st_size > 1000 for line in said.out.splitlines())


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["nowhere"], ["nowhere", "there is no such folder"]),
        (["."], ["holds no runs", "manifest.json"]),
        ([], ["Missing argument"]),
    ],
)
def test_what_is_no_run_is_refused(args: list[str], parts: list[str], headwise: Headwise, here: Path) -> None:
    assert_refused(headwise("report", *args), *parts)
    assert list(here.iterdir()) == []


def test_mistakes_write_nothing(headwise: Headwise, here: Path, run: str) -> None:
    before = snapshot(here)
    assert_refused(headwise("report", run, "--table", "latx"), "table is 'latx'", "did you mean 'latex'?")
    assert_refused(
        headwise("report", run, "-o", "no/such/folder/page.html"), "no/such/folder/page.html", "can't be written"
    )
    (here / "run" / "rounds.jsonl").write_text('{"round": 1}\n')
    assert_refused(headwise("report", run, "-o", "page.html"), "run/rounds.jsonl is damaged")
    (here / "run" / "rounds.jsonl").write_bytes(before["run/rounds.jsonl"] or b"")
    assert snapshot(here) == before
