"""The table of results, for the terminal, the page or a paper."""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..disk.jsontext import csv_cell
from ..errors import ConfigError, nearest
from ..log.metrics import WORST_DECILE, Metric, extra_columns, is_majority, percent
from ..stats import FEW
from .results import OWN, Line, Setting

Table = tuple[list[str], list[list[str]]]
"""headings, and rows of cells"""

WORST = WORST_DECILE.name
MOST_CLASSES = 20
"""in a table of confusions"""
COSTS = ["KB up / round", "KB down", "s / round"]


def tabulate_results(lines: Sequence[Line], floor: float | None) -> Table:
    """What each method achieves and costs: mean and standard deviation over the seeds."""
    main = lines[0].metric
    more = [
        m
        for m in extra_columns(main, lines[0].runs[0].listed_metrics)
        if m.name == WORST or any(_extra(x, m) for x in lines)
    ]
    few = ["clients measured"] * any(_count_measured(line) for line in lines)
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


def tabulate_differences(setting: Setting) -> Table | None:
    """How far each line is behind the best, in pairs; None if nothing was repeated."""
    lines = [line for line in setting.ranking if line.moment == setting.ranking[0].moment]
    cells = setting.cells(lines) if len(lines) > 1 else None
    if cells is None or not cells.repeated:
        return None
    best = cells.ranking[0]
    near = cells.not_worse_than_best()
    likely = cells.best_probabilities()
    rows: list[list[str]] = []
    for name in cells.scores:
        behind, low, high = (in_points(setting.metric, value) for value in cells.difference(best, name))
        verdict = "no" if name in near else "yes"
        difference = ["", "", ""] if name == best else [behind, f"{low} to {high}", verdict]
        rows.append([name, *difference, f"{likely[name]:.0%}"])
    unit = ", points" if setting.metric.form is percent else ""
    return ["method", f"behind{unit}", "95 % interval", "told apart (5 %, Holm)", "probability of being best"], rows


def tabulate_confusion(counts: Sequence[Sequence[int]], classes: Sequence[str]) -> Table:
    """True classes by predicted ones; of many classes, the pairs that are confused most often."""
    if len(classes) <= MOST_CLASSES:
        rows = [
            [name, *(str(n) if n or j == k else "" for j, n in enumerate(row)), _share(row[k], sum(row))]
            for k, (name, row) in enumerate(zip(classes, counts, strict=True))
        ]
        return ["class", *classes, "right"], rows
    pairs = [(n, i, j) for i, row in enumerate(counts) for j, n in enumerate(row) if i != j and n]
    worst = sorted(pairs, key=lambda pair: (-pair[0], pair[1], pair[2]))[:MOST_CLASSES]
    rows = [[classes[i], classes[j], str(n), _share(n, sum(counts[i]))] for n, i, j in worst]
    return ["class", "taken for", "samples", "of the class"], rows


def _share(part: int, whole: int) -> str:
    return percent(part / whole) if whole else ""


def in_points(metric: Metric, gain: float) -> str:
    return f"{100 * gain:.1f}" if metric.form is percent else f"{gain:.3f}"


def _floor_name(line: Line) -> str:
    task = line.runs[0].manifest["experiment"]["task"]
    return "majority floor" if is_majority(line.metric, task) else "dummy floor"


def _cells(line: Line, more: Sequence[Metric], few: bool, judged: bool) -> list[str]:
    shown = [_with_spread(line, m) if line.values("last", m) else "" for m in OWN]
    others = [*[_validation_cell(line)] * judged, *(_extra(line, m) for m in more), *[_count_measured(line)] * few]
    traffic = [f"{line.per_round(f'bytes_{way}') / 1024:,.1f}" for way in ("up", "down")]
    return [line.name, *shown, *others, *traffic, f"{line.per_round('seconds'):.2f}"]


def _extra(line: Line, metric: Metric) -> str:
    """The metric of what clients download, else of what they keep; empty if not measured."""
    return next((metric.form(line.mean(metric.name, m)) for m in OWN if line.values(metric.name, m)), "")


def _count_measured(line: Line) -> str:
    """How many clients have the metric, if not all that have test samples do."""
    name = f"{line.metric.name}_clients"
    return next((f"{line.mean(name, m):g}" for m in OWN if line.values(name, m)), "")


def _validation_cell(line: Line) -> str:
    """The metric on validation samples, at the moment that ranks the line; empty without such samples."""
    what = line.metric.validation
    return _with_spread(line, line.moment, what) if line.measured_moments and line.values(what, line.moment) else ""


def _with_spread(line: Line, moment: str, what: str = "last") -> str:
    text = line.metric.form(line.mean(what, moment))
    spread = line.spread(what, moment)
    if len(line.runs) < 2:
        return text
    return f"{text} ± {line.metric.form(spread).removesuffix(' %')}"


def to_markdown(table: Table) -> str:
    head, rows = table
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    cells = [[_one_line(cell).replace("|", "\\|") for cell in line] for line in lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


@dataclass(frozen=True)
class TableStyle:
    """What a table in a paper needs beyond the results."""

    names: Mapping[str, str] = field(default_factory=dict[str, str])
    """display names by method"""
    columns: Sequence[str] = ()
    """words of the headings to keep; empty: all"""
    caption: str = ""
    label: str = ""


def to_latex(setting: Setting, style: TableStyle) -> str:
    """For the LaTeX package booktabs: the best scores, and those that can't be told apart from the best, are bold."""
    lines = setting.table_lines
    head, rows = tabulate_results(lines, setting.floor)
    bold = {(row, column) for column in (1, 2) for row in _best_rows(setting, lines, rows, column)}
    kept = [0, *_choose_columns(head, rows, style.columns)]
    shown = names_in_paper(lines, style.names)
    names = [*(shown[line.name] for line in lines), *(row[0] for row in rows[len(lines) :])]
    columns = [_without_unit(head[i], [row[i] for row in rows]) for i in kept[1:]]
    titles = [escape_tex(title) for title in ("method", *(title for title, _ in columns))]
    body: list[list[str]] = []
    for r, name in enumerate(names):
        cells = [escape_tex(_one_line(values[r])) for _, values in columns]
        body.append(
            [
                escape_tex(_one_line(name)),
                *(f"\\textbf{{{c}}}" if (r, i) in bold else c for i, c in zip(kept[1:], cells, strict=True)),
            ]
        )
    few = f"% bold: the best of {setting.repeats}, which are too few to tell methods apart" * _has_few_draws(setting)
    return "\n".join([*filter(None, [few]), _booktabs(titles, body, style.caption, style.label)])


def format_captioned_latex(captioned: tuple[str, Table], style: TableStyle) -> str:
    """The table unchanged, except for display names in its first column and the style's caption, if there is one."""
    caption, (head, rows) = captioned
    columns = [_without_unit(title, [row[i] for row in rows]) for i, title in enumerate(head[1:], 1)]
    titles = [style.names.get(row[0], row[0]) for row in rows]
    titles = [f"{t} ({row[0]})" if titles.count(t) > 1 else t for t, row in zip(titles, rows, strict=True)]
    body = [[escape_tex(title), *(escape_tex(cells[r]) for _, cells in columns)] for r, title in enumerate(titles)]
    return _booktabs(
        [escape_tex(head[0]), *(escape_tex(title) for title, _ in columns)], body, style.caption or caption, style.label
    )


def format_captioned(captioned: tuple[str, Table], form: str, style: TableStyle) -> str:
    """The table, unchanged, in one of the formats."""
    if form == "latex":
        return format_captioned_latex(captioned, style)
    return to_markdown(captioned[1]) if form == "markdown" else to_csv(captioned[1])


def _booktabs(titles: Sequence[str], body: Sequence[Sequence[str]], caption: str, label: str) -> str:
    tabular = [
        f"\\begin{{tabular}}{{l{'r' * (len(titles) - 1)}}}",
        "\\toprule",
        f"{' & '.join(titles)} \\\\",
        "\\midrule",
        *(f"{' & '.join(row)} \\\\" for row in body),
        "\\bottomrule",
        "\\end{tabular}",
    ]
    if caption or label:
        above = [f"\\caption{{{escape_tex(caption)}}}"] if caption else []
        above += [f"\\label{{{_check_label(label)}}}"] if label else []
        tabular = ["\\begin{table}", "\\centering", *above, *tabular, "\\end{table}"]
    return "\n".join(["% \\usepackage{booktabs}", *tabular, ""])


def _without_unit(title: str, cells: Sequence[str]) -> tuple[str, list[str]]:
    """Per cent in the heading instead of in every cell: ``accuracy (pre, %)``."""
    known = [cell for cell in cells if cell]
    if not known or not all(" %" in cell for cell in known):
        return title, [*cells]
    titled = f"{title[:-1]}, %)" if title.endswith(")") else f"{title} (%)"
    return titled, [cell.replace(" %", "") for cell in cells]


def names_in_paper(lines: Sequence[Line], names: Mapping[str, str]) -> dict[str, str]:
    """By line: the method's display name, and in brackets its settings, and its file where two share a name."""
    shown = {line.name: _name_in_paper(line, names) for line in lines}
    often = Counter(shown.values())
    return {line.name: _name_in_paper(line, names, often[shown[line.name]] > 1) for line in lines}


def _name_in_paper(line: Line, names: Mapping[str, str], with_file: bool = False) -> str:
    name, _, settings = line.name.partition(" · ")
    method, *options = name.split(":")
    shown = [*[method] * with_file, *filter(None, options), *filter(None, settings.split(" · "))]
    title = names.get(line.runs[0].method, name)
    return f"{title} ({', '.join(shown)})" if shown else title


def _best_rows(setting: Setting, lines: Sequence[Line], rows: list[list[str]], column: int) -> set[int]:
    """The best value of a column; in the column that ranks, also all that can't be told apart from it."""
    values = {r: _value(rows[r][column]) for r in range(len(lines)) if rows[r][column]}
    if not values:
        return set()
    best = (min if setting.metric.better == "down" else max)(values.values())
    numbers = {r for r, value in values.items() if value == best}
    ranked = [line for line in lines if line.measured_moments and line.moment == OWN[column - 1]]
    cells = setting.cells(ranked) if len(ranked) > 1 and not _has_few_draws(setting) else None
    if cells is None or not cells.repeated:
        return numbers
    near = {*cells.not_worse_than_best()}
    return numbers | {r for r, line in enumerate(lines) if line in ranked and line.name in near}


def _has_few_draws(setting: Setting) -> bool:
    """Whether there are too few draws to tell methods apart: then everything would be as good as the best."""
    return 1 < setting.draws < FEW


def _choose_columns(head: list[str], rows: list[list[str]], words: Sequence[str]) -> list[int]:
    """The columns whose headings have these words, in that order; without words, as many as fit a page.

    These are the scores, including those of the worst clients, that have a value; ``all`` keeps every column with one.
    """
    known = [i for i in range(1, len(head)) if any(row[i] for row in rows)]
    if not words:
        return [i for i in known if i <= 2 or "worst" in head[i]]
    if [*words] == ["all"]:
        return known
    chosen: list[int] = []
    for text in words:
        hits = [i for i in range(1, len(head)) if text.lower() in head[i].lower()]
        if not hits:
            raise ConfigError(f"columns is {text!r}, which is in no heading: {nearest(text, head[1:])}")
        chosen += [i for i in hits if i not in chosen]
    return chosen


def _check_label(label: str) -> str:
    if not re.fullmatch(r"[\w:.+/-]+", label, re.ASCII):
        raise ConfigError(f"label is {label!r}, but may only have letters, digits and the signs _ : . + / -.")
    return label


def to_csv(table: Table) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(map(csv_cell, row) for row in (table[0], *table[1]))
    return text.getvalue()


FORMATS = ("latex", "markdown", "csv")


def format_tables(settings: Sequence[Setting], form: str, style: TableStyle | None = None) -> str:
    """The results of all settings in one format, each under its title if there are several."""
    if form not in FORMATS:
        raise ConfigError(f"table is {form!r}: {nearest(form, FORMATS)}")
    mark = {"latex": "% ", "markdown": "### ", "csv": "# "}[form]
    style = style or TableStyle()
    texts: list[tuple[str, str]] = []
    for number, setting in enumerate(settings, 1):
        own = style
        if len(settings) > 1:  # LaTeX refuses two tables with one label
            caption = f"{style.caption.rstrip('.')}: {setting.title}." if style.caption else setting.title
            own = replace(style, caption=caption, label=f"{style.label}-{number}" if style.label else "")
        texts.append((setting.title, _format(setting, form, own)))
    return "\n".join(f"{mark}{_one_line(title)}\n\n{text}" if len(texts) > 1 else text for title, text in texts)


def _format(setting: Setting, form: str, style: TableStyle) -> str:
    if form == "latex":
        return to_latex(setting, style)
    table = tabulate_results(setting.table_lines, setting.floor)
    return to_markdown(table) if form == "markdown" else to_csv(table)


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


def escape_tex(text: str) -> str:
    """The text as LaTeX prints it."""
    return "".join(_TEX.get(c, c) for c in text)
