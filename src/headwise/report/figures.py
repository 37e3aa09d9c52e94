"""Figures for papers, as SVG and PDF: the page's numbers, drawn with matplotlib."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..disk.files import make_folder, write_bytes
from ..errors import explain_missing
from .data import COLOURS, setting_data
from .results import Setting
from .tables import names_in_paper

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PALETTE = ["#0072b2", "#d55e00", "#007a5a", "#b3478c", "#9a6a00", "#2b8cc4", "#5c3d99", "#8a1c1c"]
"""the page's light theme"""
DASHES = ["-", "--", ":", "-."]
STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
    "svg.fonttype": "none",
    "svg.hashsalt": "headwise",
    "pdf.fonttype": 42,
    "text.parse_math": False,
}
"""text stays text, names are never parsed as formulas, and the same runs give the same bytes"""
FORMATS: dict[str, dict[str, None]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None, "ModDate": None}}

NAMED = 20
"""up to this many clients have their names under the partition"""

Data = dict[str, Any]


def write_figures(settings: Sequence[Setting], folder: Path, names: Mapping[str, str] | None = None) -> list[Path]:
    """Write every figure in both formats and return the paths; `names` are display names by method."""
    written: list[Path] = []
    for number, setting in enumerate(settings, 1):
        data = setting_data(setting)
        shown = names_in_paper(setting.lines, names or {})
        data["order"] = [shown[name] for name in data["order"]]
        data["lines"] = [{**line, "name": shown[line["name"]]} for line in data["lines"]]
        for name, paint in FIGURES.items():
            file = f"{name}-{number}" if len(settings) > 1 else name
            written += draw(folder, file, paint, data)
    return written


def draw(folder: Path, name: str, paint: Callable[..., None], *about: Any) -> list[Path]:
    """Write what `paint` draws as SVG and PDF; return the paths."""
    with explain_missing("figures need matplotlib, which is not installed: pip install 'headwise[figures]'."):
        import matplotlib
        from matplotlib.figure import Figure
    make_folder(folder)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.5, 3.4), layout="constrained")
        paint(figure.subplots(), *about)
        written: list[Path] = []
        for form, metadata in FORMATS.items():
            image = io.BytesIO()
            figure.savefig(image, format=form, metadata=metadata)
            written.append(folder / f"{name}.{form}")
            write_bytes(written[-1], image.getvalue())
    return written


def _draw_over_rounds(axes: Axes, data: Data) -> None:
    _curves(axes, data, "round", "round")
    axes.locator_params(axis="x", integer=True)


def _draw_over_traffic(axes: Axes, data: Data) -> None:
    _curves(axes, data, "mb", "megabytes sent, up and down")


def _curves(axes: Axes, data: Data, along: str, title: str) -> None:
    for line in _lines_with_scores(data):
        curve = line["curves"][line["moment"]]
        mean, spread = (_scale(data, curve[part]) for part in ("mean", "std"))
        axes.plot(curve[along], mean, label=_shorten(line["name"]), **_style(line))
        low = [m - s for m, s in zip(mean, spread, strict=True)]
        high = [m + s for m, s in zip(mean, spread, strict=True)]
        axes.fill_between(curve[along], low, high, color=_style(line)["color"], alpha=0.15, linewidth=0)
    if data["floor"] is not None:
        [floor] = _scale(data, [data["floor"]])
        axes.axhline(floor, color="#8c959f", linewidth=0.8, linestyle=":", label="floor: guessing")
    axes.set_xlabel(title)
    axes.set_ylabel(_label(data))
    axes.legend(fontsize=7, frameon=False, ncols=1 + len(data["lines"]) // 10)


def _clients(axes: Axes, data: Data) -> None:
    lines = _lines_with_scores(data)
    for i, line in enumerate(lines):
        scores = _scale(data, line["clients"].get(line["moment"], []))
        heights = [i + ((c * 0.618034) % 1 - 0.5) * 0.5 for c in range(len(scores))]
        axes.scatter(scores, heights, s=9, alpha=0.6, color=_style(line)["color"], linewidths=0)
        if line["worst"] is not None:
            axes.plot(_scale(data, [line["worst"]]), [i], "k|", markersize=12)
    axes.set_yticks(range(len(lines)), [_shorten(line["name"]) for line in lines])
    axes.invert_yaxis()
    axes.set_xlabel(f"{_label(data)} of each client; | is the worst tenth")


def _partition(axes: Axes, data: Data) -> None:
    counts = data["partition"]["train"]
    cells = [(c, k, n) for c, row in enumerate(counts) for k, n in enumerate(row) if n]
    most = max((n for _, _, n in cells), default=1)
    room = min(180.0, 30000 / max(1, len(counts) * len(counts[0])))
    sizes = [room * n / most for _, _, n in cells]
    axes.scatter(
        [c for c, _, _ in cells], [k for _, k, _ in cells], s=sizes, color=PALETTE[0], alpha=0.75, linewidths=0
    )
    axes.locator_params(integer=True)
    if data["names"] and len(data["names"]) <= NAMED:
        axes.set_xticks(range(len(data["names"])), map(_shorten, data["names"]), rotation=30, ha="right")
    axes.set_xlabel("client")
    axes.set_ylabel("class")


def _traffic(axes: Axes, data: Data) -> None:
    lines = data["lines"]
    ways = ("up", "down")
    for i, way in enumerate(ways):
        kilobytes = [sum(x["traffic"][way].values()) / max(1, x["traffic"]["clients"]) / 1024 for x in lines]
        axes.barh([k + (i - 0.5) * 0.38 for k in range(len(lines))], kilobytes, 0.36, label=way, color=PALETTE[i])
    axes.set_yticks(range(len(lines)), [_shorten(line["name"]) for line in lines])
    axes.invert_yaxis()
    axes.set_xlabel("KB per client and round")
    axes.legend(frameon=False)


FIGURES: dict[str, Callable[[Axes, Data], None]] = {
    "accuracy-over-rounds": _draw_over_rounds,
    "accuracy-over-traffic": _draw_over_traffic,
    "clients": _clients,
    "partition": _partition,
    "traffic": _traffic,
}


def _scale(data: Data, values: Sequence[float | None]) -> list[float]:
    """The values that are not None, shares in percent."""
    return [(100 if data["metric"]["percent"] else 1) * v for v in values if v is not None]


def _label(data: Data) -> str:
    return f"{data['metric']['label']}{' in %' if data['metric']['percent'] else ''}"


def _lines_with_scores(data: Data) -> list[Data]:
    by_name = {line["name"]: line for line in data["lines"]}
    return [by_name[name] for name in data["order"]]


def _style(line: Data) -> dict[str, Any]:
    slot = line["slot"]
    if slot < 0:
        return {"color": "#6e7781", "linestyle": "-"}
    return {"color": PALETTE[slot % COLOURS], "linestyle": DASHES[slot // COLOURS % len(DASHES)]}


def _shorten(name: str) -> str:
    text = " ".join(name.split())
    return text if len(text) <= 40 else f"{text[:39]}…"
