"""What commands print: tables of plain text (never rich's markup), and the status of what runs in a folder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import click

from ..disk.jsontext import to_json


def table_text(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    title: str | None = None,
    numbers_from: int,
    width: int,
    wrapped: bool = False,
) -> str:
    """Right-aligns columns from `numbers_from` on; `width` is used outside a terminal.

    Without a title, there is no frame, and cells stay in one line unless they are `wrapped`.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    plain = title is None
    table = Table(box=None, padding=(0, 1)) if plain else Table(title=Text(title), title_justify="left")
    for i, name in enumerate(head):
        table.add_column(Text(name), justify="right" if i >= numbers_from else "left", no_wrap=plain and not wrapped)
    for row in rows:
        table.add_row(*map(Text, row))
    console = Console(width=None if Console().is_terminal else width)
    with console.capture() as text:  # printed by the caller, so that `exit_handler` handles a closed output
        console.print(table)
    return text.get().rstrip("\n")


class Status(Protocol):
    def to_plain(self) -> dict[str, Any]: ...

    def lines(self) -> Iterable[str]: ...


def stop_in(folder: Path) -> None:
    from ..sites.transport import supervisor

    click.echo("stopped" if supervisor.stop_command(folder.absolute()) else "it was not running")


def show_status(status: Status, as_json: bool) -> None:
    click.echo(to_json(status.to_plain()) if as_json else "\n".join(status.lines()))
