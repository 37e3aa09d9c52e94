"""The table of sites: what each took part in, what failed, what was sent and how long it took."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean
from typing import Any

from ..runs.query import Run
from .results import reading

HEAD = ("Site", "Clients", "Rounds trained in", "Messages", "Failures", "KB down", "KB up", "Seconds per message")


def federation(runs: Iterable[Run]) -> list[tuple[str, ...]]:
    """A row for each site of these runs; empty for simulations."""
    found: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        with reading(run):
            for line in run.sites:
                found.setdefault(str(line["site"]), []).append(line)
    return [_row(site, lines) for site, lines in sorted(found.items())]


def _row(site: str, lines: list[dict[str, Any]]) -> tuple[str, ...]:
    done = [line for line in lines if "failure" not in line]
    trained = {line["round"] for line in done if line["task"] == "fit"}
    kilobytes = (f"{sum(line[way] for line in lines) / 1024:,.1f}" for way in ("bytes_down", "bytes_up"))
    seconds = f"{fmean(line['seconds'] for line in done):.1f}" if done else "–"
    clients = ", ".join(map(str, sorted({c for line in lines for c in line["clients"]})))
    return site, clients, str(len(trained)), str(len(lines)), str(len(lines) - len(done)), *kilobytes, seconds
