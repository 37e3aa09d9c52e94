"""One self-contained page: it needs no network, and names in runs can't inject markup."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from .. import __version__
from ..disk.files import write_bytes
from ..disk.jsontext import to_json
from ..errors import counted
from .data import FEDERATION_COLUMNS, command, federation, joined_table, page_data
from .results import Setting
from .tables import Table, results
from .words import client_words, failure_words, words

SCRIPTS = ("core.js", "charts.js", "costs.js", "panels.js")
ASSETS = Path(__file__).parent / "assets"
PARTS = {
    "summary": "Summary",
    "accuracy": "Accuracy",
    "clients": "Clients",
    "partition": "Who holds what",
    "traffic": "What travels",
    "federation": "Federation",
    "inside": "Inside the methods",
    "cost": "Cost",
    "runs": "Run it again",
}


def write_page(settings: Sequence[Setting], out: Path, damaged: Sequence[str] = ()) -> Path:
    """Write the page; `damaged` has a sentence for each run that could not be read."""
    write_bytes(out, render(settings, damaged=damaged).encode())
    return out


class Live(NamedTuple):
    """Where a live page polls for updates, and the version that it shows."""

    address: str
    version: str


def render(settings: Sequence[Setting], live: Live | None = None, damaged: Sequence[str] = ()) -> str:
    data = page_data(settings)
    sites = [federation(run for line in s.lines for run in line.runs) for s in settings]
    judged = {s.metric.label for s in settings}
    metric = judged.pop() if len(judged) == 1 else "score"
    shows = any(line["inside"] for setting in data for line in setting["lines"])
    return render_page(
        title=title(settings),
        subtitle=_subtitle(settings),
        metric=metric,
        parts={
            k: v
            for k, v in (PARTS | {"accuracy": capital(metric)}).items()
            if {"inside": shows, "federation": any(sites)}.get(k, True)
        },
        settings=[{**_section(s), "sites": rows} for s, rows in zip(settings, sites, strict=True)],
        data=data,
        live=live,
        damaged=damaged,
    )


def render_page(
    *, parts: dict[str, str], data: Any, live: Live | None = None, damaged: Sequence[str] = (), **more: Any
) -> str:
    return _templates().get_template("page.html.j2").render(
        **more,
        live=live,
        damaged=damaged,
        parts=parts.items(),
        has_lines="accuracy" in parts,
        data=script_safe(data),
        css=Markup(_asset("report.css")),
        echarts=Markup(_asset("vendor/echarts.min.js")),
        script=Markup("\n".join(_asset(name) for name in SCRIPTS)),
        again=command,
        capital=capital,
        federation_head=FEDERATION_COLUMNS,
        manifest=lambda run: to_json(run.manifest, indent=1, ensure_ascii=False),
        version=__version__,
    )  # fmt: skip


def render_sections(settings: Sequence[Setting]) -> str:
    """Only the summary, for updates of a live page."""
    return _templates().get_template("sections.html.j2").render(settings=[_section(s) for s in settings])


def render_list(root: str, rows: Sequence[dict[str, Any]]) -> str:
    return _templates().get_template("list.html.j2").render(root=root, rows=rows, css=Markup(_asset("report.css")))


def render_judged(**more: Any) -> str:
    """How good one model is."""
    template = _templates().get_template("judged.html.j2")
    return template.render(**more, css=Markup(_asset("report.css")), version=__version__)


def render_table(title: str, intro: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """One table, with a sentence about it."""
    template = _templates().get_template("table.html.j2")
    return template.render(title=title, intro=intro, head=head, rows=rows, css=Markup(_asset("report.css")))


def script_safe(data: Any) -> Markup:
    """JSON that is safe inside a script element, whatever strings it contains."""
    text = to_json(data)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def title(settings: Sequence[Setting]) -> str:
    if len(settings) > 1:
        return f"{len(settings)} settings"
    setting = settings[0]
    names = [line.name for line in setting.lines]
    return f"{names[0] if len(names) == 1 else f'{len(names)} methods'} on {setting.title}"


def _subtitle(settings: Sequence[Setting]) -> str:
    runs = [run for s in settings for line in s.lines for run in line.runs]
    days = sorted(str(run.manifest.get("created", ""))[:10] for run in runs)
    when = days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
    unfinished = sum(not run.complete for run in runs)
    rest = f"; {unfinished} of them not finished" if unfinished else ""
    return f"{counted(len(runs), 'run')}, {when}{rest}"


def _section(setting: Setting) -> dict[str, Any]:
    lines = setting.ranking or setting.lines
    head, rows = _without_blanks(results(lines, setting.floor), len(lines))
    seeds = f"mean ± standard deviation over {setting.seeds} seeds" if setting.seeds > 1 else "one seed"
    return {
        "title": setting.title,
        "words": words(setting) + client_words(setting) + failure_words(setting),
        "caption": f"{setting.title}; {seeds}",
        "head": head,
        "rows": rows,
        "joined": joined_table(setting),
        "lines": setting.lines,
    }


def _without_blanks(table: Table, lines: int) -> Table:
    """The table without columns that no method has a value in: of moments that were not measured."""
    head, rows = table
    kept = [i for i in range(len(head)) if any(row[i] for row in rows[:lines])]
    return [head[i] for i in kept], [[row[i] for i in kept] for row in rows]


@cache
def _templates() -> Environment:
    loader = PackageLoader("headwise.report", "assets")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


@cache
def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")
