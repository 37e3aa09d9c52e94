"""How far our figures are from the printed ones, in words."""

from __future__ import annotations

from .schema import Printed

SPREAD = 2
"""how many published standard deviations count as the published spread"""


def of_accuracy(printed: Printed, ours: float, floor: float | None) -> str:
    below = floor is not None and ours < floor
    as_printed = below and printed.mean is not None and printed.mean < (floor or 0)
    tail = f", below the floor{' as in print' if as_printed else ''}" if below else ""
    if printed.mean is None:
        return f"nothing printed to compare with{tail}"
    return _distance(printed, ours) + tail


def _distance(printed: Printed, ours: float) -> str:
    assert printed.mean is not None
    gap = abs(ours - printed.mean)
    if printed.std is not None and gap <= max(SPREAD * printed.std, printed.last_digit):
        return "within the published spread"
    if gap <= 1:
        return "within 1 point"
    side = "above" if ours > printed.mean else "below"
    spread = f", {gap / printed.std:.0f} published standard deviations" if printed.std else ""
    return f"off: {gap:.2f} points {side}{spread}"


def of_rounds(printed: Printed, ours: float | None, rounds: int) -> str:
    if ours is None:
        return f"not reached in {rounds} rounds"
    if printed.mean is None:
        return "nothing printed to compare with"
    gap = ours - printed.mean
    if not gap:
        return "the same round"
    return f"{abs(gap):g} rounds {'later' if gap > 0 else 'earlier'}"


def of_ratio(printed: Printed, ours: float) -> str:
    if printed.mean is None:
        return "nothing printed to compare with"
    share = ours / printed.mean - 1
    if abs(share) <= 0.1:
        return "within a tenth of print"
    return f"{abs(share):.0%} {'above' if share > 0 else 'below'} print"


def of_exact(printed: Printed, ours: float | str, tolerance: float, agrees: str = "exact") -> str:
    """Nothing is trained: it must agree to the last printed digit. Only a quantity of our own can be `exact`."""
    if isinstance(ours, str) or printed.mean is None:
        return agrees if ours == printed.text else f"differs: {ours}"
    if abs(ours - printed.mean) <= tolerance + 1e-9:
        return agrees
    return f"differs by {ours - printed.mean:+.2f}"
