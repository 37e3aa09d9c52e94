"""Reads what a run measured on clients that never trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..disk.files import read_json
from ..log.metrics import Metric
from .shapes import JOINED, check

NEW_CLIENTS = "new_clients.json"
JOINED_AS = ("joined", "alone", "standalone")
"""what they are measured with: what joining gives, what as many epochs alone give, and what training alone for as long
as the run gives"""


def read_new_clients(folder: Path) -> dict[str, Any] | None:
    """As `engine.joining.join_all` gave it; None if the run has no such clients or has not ended."""
    path = folder / NEW_CLIENTS
    if not path.exists():
        return None
    found = read_json(path)
    check(found, JOINED, path)
    return found


def by_epochs(found: dict[str, Any], metric: Metric) -> dict[str, Any]:
    """This metric of each kind of model, by epochs on the clients' own samples."""
    rows = [row for row in found["rows"] if isinstance(row.get(metric.name), float | int)]
    kinds = {m: {str(r["epochs"]): r[metric.name] for r in rows if r["model"] == m} for m in JOINED_AS}
    return {"clients": found["clients"], **kinds}
