"""What a run's rounds come to: the last, best and selected value of its metric, and how often clients failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from ..log.choosing import combined
from ..log.metrics import Metric
from ..log.schema import Round, figures


def summarize(rows: list[Round], moment: str, main: Metric) -> dict[str, Any]:
    """A curve's last and best value, its mean over the last ten, and the value in the round chosen by validation."""
    by_round = {row["round"]: found for row in rows if (found := figures(row, moment, main))}
    if not by_round:
        return {}
    curve = {t: found[main.name] for t, found in by_round.items()}
    best, last = _best(curve, main), by_round[max(by_round)]
    others = [m.name for m in combined(main) if m.name != main.name]
    known = [name for other in (main.name, *others) for name in (other, f"{other}_clients") if name in last]
    summary = {
        "last": last[main.name],
        "best": curve[best],
        "best_round": best,
        "last_ten": fmean(list(curve.values())[-10:]),
        **{name: last[name] for name in known if name != main.name},
    }
    if judged := {t: found[main.validation] for t, found in by_round.items() if found.get(main.validation) is not None}:
        chosen = _best(judged, main)
        summary |= {"selected": curve[chosen], "selected_round": chosen, main.validation: judged[max(judged)]}
    return summary


def _best(curve: Mapping[int, float], main: Metric) -> int:
    """The first round with the best value."""
    return min(curve, key=lambda t: (-main.gain(curve[t], 0.0), t))


def failures(rows: list[Round]) -> dict[str, int]:
    """Number of client failures by reason."""
    found = Counter[str]()
    for row in rows:
        found.update({reason: len(who) for reason, who in row.get("failed", {}).items()})
    return dict(found)
