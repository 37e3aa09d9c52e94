"""Re-type the published numbers as the tables of `headwise.papers`: one TOML file per paper.

    python scripts/retype_tables.py ../shared/published    # writes src/headwise/papers/*.numbers.toml

The settings beside them are written by hand; only numbers, and words that stand in their place, are made here.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HOME = Path(__file__).resolve().parents[1] / "src" / "headwise" / "papers"
NAMES = {
    "fedah_text": "text", "fedgh_text": "text", "fedgmh_text_rounds": "rounds", "fedgmh_text_sizes": "sizes",
}  # fmt: skip
WORDS = {
    "total_time_min": "minutes in all", "time_per_iter_min": "minutes per round", "iterations": "rounds to convergence",
    "params_per_iter": "parameters per client and round", "time_per_iter_s": "seconds per round",
    "Acc": "accuracy", "CO/c/r KB": "KB per client and round", "Rounds to target": "rounds to target",
    "CO total KB": "KB to target", "FedROD": "FedRoD",
}  # fmt: skip


def tables(source: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Paper, table and facts of every file that has numbers."""
    for path in sorted(source.glob("fed*.json")):
        paper, _, rest = path.stem.partition("_")
        facts = json.loads(path.read_text(encoding="utf-8"))
        if facts.get("rows") or facts.get("claims"):
            yield paper, NAMES.get(path.stem, rest.removeprefix("table")), facts


def renamed(text: str) -> str:
    """A column's or method's name as we write it."""
    text = re.sub(r"^(pat|dir0\.1):(.+)$", lambda m: f"{m[2]} {'pathological' if m[1] == 'pat' else 'Dir(0.1)'}", text)
    text = re.sub(r"\bCifar(\d+)", r"CIFAR-\1", text)
    for old, new in WORDS.items():
        text = re.sub(rf"(^|\s){re.escape(old)}$", rf"\1{new}", text)
    return text


def printed(row: dict[str, Any]) -> str:
    """What stands in a cell: `88.3 ± 0.95`, `149.07 MB`, a formula, or `-` and why."""
    if row.get("printed"):
        return row["printed"]
    if row.get("text"):
        return row["text"]
    if row["mean"] is None:
        return f"- {row.get('note', '')}".strip()
    return f"{row['mean']:.10g}" if row["std"] is None else f"{row['mean']:.2f} ± {row['std']:.2f}"


def grid(facts: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Columns, and rows that begin with the method's name; the claims of a text are rows of one column."""
    if "claims" in facts:
        return ["value"], [[renamed(claim["what"]), f"{claim['value']:.10g}"] for claim in facts["claims"]]
    columns = list(dict.fromkeys(row["column"] for row in facts["rows"]))
    methods = list(dict.fromkeys(row["method"] for row in facts["rows"]))
    found = {(row["method"], row["column"]): printed(row) for row in facts["rows"]}
    rows = [[renamed(m), *(found.get((m, c), "-") for c in columns)] for m in methods]
    return [renamed(c) for c in columns], rows


def toml(paper: str, found: list[tuple[str, dict[str, Any]]]) -> str:
    """The file of one paper."""

    def listed(values: list[str]) -> str:
        return f"[{', '.join(json.dumps(v, ensure_ascii=False) for v in values)}]"

    parts = [f"# The printed numbers of {paper}. Made by scripts/retype_tables.py: change them there."]
    for name, facts in found:
        columns, rows = grid(facts)
        body = "".join(f"  {listed(row)},\n" for row in rows)
        parts.append(f'[[tables]]\nname = "{name}"\ncolumns = {listed(columns)}\nrows = [\n{body}]')
    return "\n\n".join(parts) + "\n"


def files(source: Path) -> dict[str, str]:
    """The text of every file, by its name."""
    found: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    titles: dict[str, str] = {}
    for paper, name, facts in tables(source):
        found.setdefault(paper, []).append((name, facts))
        titles[paper] = facts["paper"]
    return {f"{paper}.numbers.toml": toml(titles[paper], entries) for paper, entries in found.items()}


if __name__ == "__main__":
    for name, text in files(Path(sys.argv[1])).items():
        (HOME / name).write_text(text, encoding="utf-8")
