"""Pages of results whose sections are measured at different times."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path


def put(page: Path, title: str, lines: Sequence[str]) -> None:
    """Replace the section with this title, or add it at the end."""
    parts = re.split(r"^(?=## )", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    section = "\n".join([f"## {title}", "", *lines, ""])
    at = next((k for k, part in enumerate(parts) if part.startswith(f"## {title}\n")), len(parts))
    parts[at : at + 1] = [section]
    page.write_text("\n\n".join(part.rstrip("\n") for part in parts) + "\n", encoding="utf-8")
