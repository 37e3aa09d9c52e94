"""Tables for a terminal; what stands in them is text, whatever brackets it has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text


def table_text(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, title: str | None = None, numbers_from: int, width: int
) -> str:
    """Columns from `numbers_from` on are to the right; without a title there is no frame; `width` is for files."""
    plain = title is None
    table = Table(box=None, padding=(0, 1)) if plain else Table(title=Text(title), title_justify="left")
    for i, name in enumerate(head):
        table.add_column(Text(name), justify="right" if i >= numbers_from else "left", no_wrap=plain)
    for row in rows:
        table.add_row(*map(Text, row))
    console = Console(width=None if Console().is_terminal else width)
    with console.capture() as text:  # printed by whoever asks: a terminal that is gone is the door's affair
        console.print(table)
    return text.get().rstrip("\n")
