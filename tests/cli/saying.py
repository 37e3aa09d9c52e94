"""The command line's output, and how a refusal must look."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

SMALL = {
    "data": "synthetic:120:3:5:sites=2",
    "partition": "iid",
    "model": "mlp:4",
    "clients": "3",
    "rounds": "2",
}
"""a fast experiment"""


class Said(NamedTuple):
    """Exit code, stdout, stderr."""

    code: Any
    out: str
    err: str


Headwise = Callable[..., Said]
"""the fixture `headwise`: called with arguments"""


def small(verb: str = "run", *more: str, **changes: str) -> list[str]:
    flags = {**SMALL, **changes}
    return [verb, *more, *(text for k, v in flags.items() for text in (f"--{k.replace('_', '-')}", v))]


def assert_refused(said: Said, *parts: str) -> None:
    """Exit code 2, and one line that contains all parts."""
    assert said.out == ""
    lines = said.err.splitlines()
    assert len(lines) == 1, said.err
    assert lines[0].startswith("headwise: ")
    assert lines[0].endswith((".", "?", ")")), "a whole sentence"
    missing = [part for part in parts if part not in lines[0]]
    assert not missing, lines[0]
    assert said.code == 2


def snapshot(folder: Path) -> dict[str, bytes | None]:
    """Every file below the folder, byte for byte."""
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}
