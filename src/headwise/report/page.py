"""One self-contained page: it needs no network, and names in runs can't inject markup."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from .. import __version__
from ..disk.files import write_bytes
from ..disk.jsontext import to_json
from ..errors import capitalize, pluralize
from ..log.metrics import ACCURACY, Metric, percent
from ..runs.query import Run, client_label
from .data import (
    COLOURS,
    FEDERATION_COLUMNS,
    command_of,
    in_table,
    metric_data,
    page_data,
    parts_with_samples,
    tabulate_newcomers,
    tabulate_sites,
)
from .recommendation import Recommendation
from .results import Setting
from .tables import Table, tabulate_differences, tabulate_results
from .words import describe_clients, describe_failures, describe_results

SIDE = 420
"""of a picture of samples, in pixels"""
MARGIN = 12
SCRIPTS = ("core.js", "charts.js", "costs.js", "panels.js")
ASSETS = Path(__file__).parent / "assets"
PARTS = {
    "summary": "Summary",
    "accuracy": "Accuracy",
    "clients": "Clients",
    "partition": "Who holds what",
    "confusion": "Confusion of classes",
    "features": "Features",
    "traffic": "What travels",
    "federation": "Federation",
    "inside": "Inside the methods",
    "cost": "Cost",
    "runs": "Run it again",
}


class Captioned(NamedTuple):
    """A table and what it shows."""

    caption: str
    table: Table


class Scatter(NamedTuple):
    """Samples in two dimensions, coloured by class."""

    caption: str
    points: Sequence[tuple[float, float, int]]
    classes: Sequence[str]

    def circles(self) -> list[tuple[float, float, int]]:
        """The points within the picture, whose sides are `SIDE` long."""
        axes = [[point[axis] for point in self.points] for axis in (0, 1)]
        low = [min(values) for values in axes]
        width = [max(max(values) - min(values), 1e-30) for values in axes]
        room = SIDE - 2 * MARGIN
        return [
            (
                round(MARGIN + room * (x - low[0]) / width[0], 1),
                round(SIDE - MARGIN - room * (y - low[1]) / width[1], 1),
                label,
            )
            for x, y, label in self.points
        ]

    def legend(self) -> list[tuple[int, str]]:
        return [(k, self.classes[k]) for k in sorted({label for *_, label in self.points})]

    def look(self, label: int) -> str:
        """The CSS classes of a class's circles: each that occurs has its own colour, the ninth and later are rings."""
        place = [k for k, _ in self.legend()].index(label)
        return f"class-{place % COLOURS}" + " ring" * (place >= COLOURS)


class Extras(NamedTuple):
    """What a page shows beside its settings' results."""

    overview: Captioned | None = None
    """of a grid, before all settings"""
    tried: Sequence[Captioned] = ()
    """of a grid, a table for each setting"""
    confusions: Sequence[Sequence[Captioned]] = ()
    """what each setting additionally shows"""
    scatters: Sequence[Sequence[Scatter]] = ()


NO_EXTRAS = Extras()


def write_page(settings: Sequence[Setting], out: Path, damaged: Sequence[str] = (), extras: Extras = NO_EXTRAS) -> Path:
    """Write the page; `damaged` has a sentence for each run that could not be read."""
    write_bytes(out, render(settings, None, damaged, extras).encode())
    return out


class Live(NamedTuple):
    """Where a live page polls for updates, and the version that it shows."""

    address: str
    version: str


def render(
    settings: Sequence[Setting], live: Live | None = None, damaged: Sequence[str] = (), extras: Extras = NO_EXTRAS
) -> str:
    data = page_data(settings)
    overview, tried, confusions, scatters = extras
    sites = [tabulate_sites(run for line in s.lines for run in line.runs) for s in settings]
    judged = {s.metric.label for s in settings}
    metric = judged.pop() if len(judged) == 1 else "score"
    is_shown = {
        "inside": any(line["inside"] for setting in data for line in setting["lines"]),
        "federation": any(sites),
        "confusion": any(confusions),
        "features": any(scatters),
    }
    return render_page(
        title=page_title(settings),
        subtitle=_subtitle(settings),
        metric=metric,
        parts={k: v for k, v in (PARTS | {"accuracy": capitalize(metric)}).items() if is_shown.get(k, True)},
        settings=[
            {
                **_section(s, tried[k : k + 1]),
                "sites": rows,
                "confusions": confusions[k] if confusions else (),
                "scatters": scatters[k] if scatters else (),
            }
            for k, (s, rows) in enumerate(zip(settings, sites, strict=True))
        ],
        overview=overview,
        data=data,
        live=live,
        damaged=damaged,
    )


def render_page(
    *, parts: dict[str, str], data: Any, live: Live | None = None, damaged: Sequence[str] = (), **more: Any
) -> str:
    return fill_template(
        "page.html.j2",
        **more,
        live=live,
        damaged=damaged,
        parts=parts.items(),
        has_lines="accuracy" in parts,
        data=script_safe(data),
        echarts=_read_asset("vendor/echarts.min.js"),
        script=Markup("\n").join(_read_asset(name) for name in SCRIPTS),
        again=command_of,
        capitalize=capitalize,
        federation_head=FEDERATION_COLUMNS,
        manifest=lambda run: to_json(run.manifest, indent=1, ensure_ascii=False),
        side=SIDE,
    )


def render_sections(settings: Sequence[Setting]) -> str:
    """Only the summary, for updates of a live page."""
    return fill_template("sections.html.j2", settings=[_section(s) for s in settings])


def render_recommendation(answer: Recommendation, folder: Path, seconds: float) -> str:
    """Which method to use: the answer, what decided, everything that was tried, and the commands to repeat it."""
    return fill_template(
        "choice.html.j2",
        title=f"Which method for {answer.setting.title}?",
        words=answer.words(),
        tables=[
            (_describe_decision(answer), *answer.table()),
            ("The first draw of everything that was tried", *answer.screened),
        ],
        best=str(folder / "best.toml"),
        commands=answer.commands(),
        minutes=f"{seconds / 60:.1f}",
    )


def _describe_decision(answer: Recommendation) -> str:
    over = pluralize(answer.draws, "draw")
    return f"{answer.setting.title}: {answer.metric.heading} over {over}, all clients with the same weight"


def script_safe(data: Any) -> Markup:
    """JSON that is safe inside a script element, whatever strings it contains."""
    text = to_json(data)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)


def page_title(settings: Sequence[Setting]) -> str:
    names = [*dict.fromkeys(line.name for setting in settings for line in setting.lines)]
    methods = {run.method for setting in settings for line in setting.lines for run in line.runs}
    what = names[0] if len(names) == 1 else pluralize(len(methods), "method")
    return f"{what} on {settings[0].title if len(settings) == 1 else f'{len(settings)} settings'}"


def _subtitle(settings: Sequence[Setting]) -> str:
    runs = [run for s in settings for line in s.lines for run in line.runs]
    days = sorted(str(run.manifest.get("created", ""))[:10] for run in runs)
    when = days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
    unfinished = sum(not run.complete for run in runs)
    rest = f"; {unfinished} of them not finished" if unfinished else ""
    return f"{pluralize(len(runs), 'run')}, {when}{rest}"


def _section(setting: Setting, tried: Sequence[Captioned] = ()) -> dict[str, Any]:
    lines = setting.ranking or setting.lines
    runs = max(len(line.runs) for line in setting.lines)
    seeds = f"mean ± standard deviation over {setting.repeats}" if runs > 1 else "one run"
    results = _without_blanks(tabulate_results(lines, setting.floor), len(lines))
    tables = [Captioned(f"{setting.title}; {seeds}", results), *tried]
    if behind := tabulate_differences(setting):
        tables.append(Captioned("How far each method is behind the best, on the same draws and clients", behind))
    if joined := tabulate_newcomers(setting):
        tables.append(Captioned("Clients that never trained: accuracy by epochs on their own samples", joined))
    return {
        "title": setting.title,
        "words": describe_results(setting) + describe_clients(setting) + describe_failures(setting),
        "tables": tables,
        "lines": setting.lines,
    }


def _without_blanks(table: Table, lines: int) -> Table:
    """The table without empty columns, such as those of moments that were not measured."""
    head, rows = table
    kept = [i for i in range(len(head)) if any(row[i] for row in rows[:lines])]
    return [head[i] for i in kept], [[row[i] for i in kept] for row in rows]


def fill_template(name: str, *, folder: Path = ASSETS, **values: Any) -> str:
    """The page of a template in this folder, with these values and our style."""
    return _templates_in(folder).get_template(name).render(
        **values, css=_read_asset("report.css"), version=__version__
    )  # fmt: skip


@cache
def _templates_in(folder: Path) -> Environment:
    loader = FileSystemLoader(folder)
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


@cache
def _read_asset(name: str) -> Markup:
    return Markup((ASSETS / name).read_text(encoding="utf-8"))


Histograms = dict[str, list[list[int]]]
"""each client's sample counts by class, for each part"""


def describe_partition(summary: dict[str, Any]) -> list[str]:
    """How much data there is, how uneven it is, and what guessing would score."""
    sizes = summary["sizes"]
    classes = summary["classes"]
    floor = summary["floor"]["weighted"]
    who = f"{summary['clients']} clients share" if summary["clients"] > 1 else "One client has"
    sentences = [
        f"{who} {summary['train']:,} training, {summary['val']:,} validation and {summary['test']:,} test samples.",
        f"A client has {sizes['median']:g} samples (median), from {sizes['min']:g} to {sizes['max']:g}, of "
        f"{classes['median']:g} classes, from {classes['min']:g} to {classes['max']:g}.",
    ]
    if floor is not None:
        sentences.append(
            f"Always guessing a client's most frequent class is right for {percent(floor)} of the test samples: "
            f"a model must beat that."
        )
    return [*sentences, f"The partition's fingerprint is {summary['hash'][:12]}."]


def tabulate_partition(counts: Histograms, classes: list[str], names: Sequence[str] = ()) -> Table:
    """A row per client: its number, its name if it has one, its sample counts, and its training samples by class."""
    parts = parts_with_samples(counts)
    head = ["client", *(["name"] if names else []), *parts, *classes]
    rows = [
        [
            str(c),
            *names[c : c + 1],
            *(str(sum(part[c])) for part in parts.values()),
            *(str(n) if n else "·" for n in train),
        ]
        for c, train in enumerate(counts["train"])
    ]
    return head, rows


def render_partition(
    title: str, summary: dict[str, Any], counts: Histograms, classes: list[str], names: Sequence[str] = ()
) -> str:
    data = {
        "title": title,
        "metric": metric_data(ACCURACY),
        "lines": [],
        "order": [],
        "classes": classes,
        "names": list(names) or None,
        "floor": None,
        "floors": [],
        "partition": parts_with_samples(counts),
    }
    parts = {name: PARTS[name] for name in ("summary", "partition")}
    setting = {"title": title, "words": describe_partition(summary), "tables": [], "lines": []}
    return render_page(
        title=title, subtitle="nothing trained yet", parts=parts, settings=[setting], data=[data], overview=None
    )


MOMENTS = {"pre": "after a download", "stale": "after its last training"}


def tabulate_forgotten(before: Run, after: Run) -> Table:
    """The run's metric of each other client in both runs, and the difference; their mean comes last."""
    metric = after.metric
    then = before.last_scores()
    now = after.last_scores()
    moments = [m for m in MOMENTS if m in then and m in now]
    head = ["client", "test samples"]
    head += [f"{MOMENTS[m]}, {what}" for m in moments for what in ("with", "without", "change")]
    others = sorted({c for m in moments for c in now[m]})
    sizes = [sum(row) for row in after.partition["test"]]
    rows: list[list[str]] = []
    for c in others:
        cells = [cell for m in moments for cell in _cells(then[m].get(c), now[m].get(c), metric)]
        rows.append([client_label(c, after.names), str(sizes[c]), *cells])
    means = [_cells(_mean(then[m], others), _mean(now[m], others), metric) for m in moments if others]
    return head, [*rows, ["mean", str(sum(sizes[c] for c in others)), *(cell for cells in means for cell in cells)]]


def write_forgotten(before: Run, after: Run, out: Path) -> Path:
    head, rows = tabulate_forgotten(before, after)
    gone = ", ".join(after.manifest["experiment"]["without"])
    same = "the others keep their numbers, samples and random draws"
    metric = f"{capitalize(after.metric.heading)} on own test samples{', in %' * (after.metric.form is percent)}"
    intro = f"The run {before.path.name} as if {gone} had never taken part: {same}. {metric}."
    title = f"{before.method} without {gone}"
    text = fill_template("table.html.j2", title=title, intro=intro, head=head, rows=rows)
    write_bytes(out, text.encode())
    return out


def _mean(scores: dict[int, float], clients: list[int]) -> float:
    return fmean(scores[c] for c in clients if c in scores)


def _cells(then: float | None, now: float | None, metric: Metric) -> list[str]:
    cells = ["" if v is None else in_table(v, metric) for v in (then, now)]
    return [*cells, "" if then is None or now is None else in_table(now - then, metric, "+")]
