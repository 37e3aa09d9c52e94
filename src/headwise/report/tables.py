"""The table of results, for the terminal, the page or a paper."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Sequence

from ..disk.jsontext import csv_cell
from ..errors import ConfigError, nearest
from ..log.metrics import LESS, WORST_DECILE, Metric, extra_columns, is_majority
from .results import OWN, Line, Setting

Table = tuple[list[str], list[list[str]]]
"""headings, and rows of cells"""

WORST = WORST_DECILE.name
COSTS = ["KB up / round", "KB down", "s / round"]


def results(lines: Sequence[Line], floor: float | None) -> Table:
    """What each method achieves and costs: mean and standard deviation over the seeds."""
    main = lines[0].metric
    more = [
        m
        for m in extra_columns(main, lines[0].runs[0].listed_metrics)
        if m.name == WORST or any(_extra(x, m) for x in lines)
    ]
    few = ["clients measured"] * any(_few(line) for line in lines)
    judged = next((line.moment for line in lines if _validation_cell(line)), "")
    head = [
        "method",
        f"{main.heading} (pre)",
        "own model (stale)",
        *[f"validation ({judged})"] * bool(judged),
        *(m.label if m.source == main.name else m.heading for m in more),
        *few,
        *COSTS,
    ]
    rows = [_cells(line, more, bool(few), bool(judged)) for line in lines]
    last = [] if floor is None else [[_floor_name(lines[0]), *[main.form(floor)] * 2, *[""] * (len(head) - 3)]]
    return head, [*rows, *last]


def _floor_name(line: Line) -> str:
    """What the floor is called."""
    task = line.runs[0].manifest["experiment"]["task"]
    return "majority floor" if is_majority(line.metric, task) else "dummy floor"


def _cells(line: Line, more: Sequence[Metric], few: bool, judged: bool) -> list[str]:
    shown = [_with_spread(line, m) if line.values("last", m) else "" for m in OWN]
    others = [*[_validation_cell(line)] * judged, *(_extra(line, m) for m in more), *[_few(line)] * few]
    traffic = [f"{line.per_round(f'bytes_{way}') / 1024:,.1f}" for way in ("up", "down")]
    return [line.name, *shown, *others, *traffic, f"{line.per_round('seconds'):.2f}"]


def _extra(line: Line, metric: Metric) -> str:
    """The metric of what clients download, else of what they keep; empty if not measured."""
    return next((metric.form(line.mean(metric.name, m)) for m in OWN if line.values(metric.name, m)), "")


def _few(line: Line) -> str:
    """How many clients have the metric, if not all that have test samples do."""
    name = f"{line.metric.name}_clients"
    return next((f"{line.mean(name, m):g}" for m in OWN if line.values(name, m)), "")


def _validation_cell(line: Line) -> str:
    """The metric on validation samples, at the moment that ranks the line; empty without such samples."""
    what = line.metric.validation
    return _with_spread(line, line.moment, what) if line.measured_moments and line.values(what, line.moment) else ""


def _with_spread(line: Line, moment: str, what: str = "last") -> str:
    text, spread = line.metric.form(line.mean(what, moment)), line.spread(what, moment)
    if len(line.runs) < 2:
        return text
    return f"{text} ± {line.metric.form(spread).removesuffix(' %')}"


def markdown(table: Table) -> str:
    head, rows = table
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    cells = [[_one_line(cell).replace("|", "\\|") for cell in line] for line in lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def latex(table: Table) -> str:
    """For the LaTeX package booktabs; the best scores are bold."""
    head, rows = table
    best = {i: sorted((_value(row[i]) for row in rows if row[i]), reverse=LESS in head[1]) for i in (1, 2)}
    body: list[str] = []
    for row in rows:
        cells = [_tex(_one_line(cell)) for cell in row]
        for i, values in best.items():
            if row[i] and _value(row[i]) == values[-1]:
                cells[i] = f"\\textbf{{{cells[i]}}}"
        body.append(f"{' & '.join(cells)} \\\\")
    return "\n".join([
        "% \\usepackage{booktabs}",
        f"\\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}",
        "\\toprule",
        f"{' & '.join(map(_tex, head))} \\\\",
        "\\midrule",
        *body,
        "\\bottomrule",
        "\\end{tabular}",
        "",
    ])  # fmt: skip


def to_csv(table: Table) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(map(csv_cell, row) for row in (table[0], *table[1]))
    return text.getvalue()


FORMATS: dict[str, Callable[[Table], str]] = {"latex": latex, "markdown": markdown, "csv": to_csv}


def tables(settings: Sequence[Setting], form: str) -> str:
    """The results of all settings in one format, each under its title if there are several."""
    if form not in FORMATS:
        raise ConfigError(f"table is {form!r}: {nearest(form, FORMATS)}")
    mark = {"latex": "% ", "markdown": "### ", "csv": "# "}[form]
    texts = [(s.title, FORMATS[form](results(s.ranking or s.lines, s.floor))) for s in settings]
    return "\n".join(f"{mark}{_one_line(title)}\n\n{text}" if len(texts) > 1 else text for title, text in texts)


def _value(text: str) -> float:
    number = re.match(r"-?[\d.]+", text)
    return float(number.group()) if number else -math.inf


def _one_line(text: str) -> str:
    return " ".join(text.split())


_TEX = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "·": r"$\cdot$",
}


def _tex(text: str) -> str:
    return "".join(_TEX.get(c, c) for c in text)
