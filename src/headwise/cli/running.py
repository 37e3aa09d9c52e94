"""What `site` and `server` share: stopping what runs in a folder, and showing its status."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import click

from ..disk.jsontext import to_json


class Status(Protocol):
    def plain(self) -> dict[str, Any]: ...

    def lines(self) -> Iterable[str]: ...


def stop_in(folder: Path) -> None:
    from ..sites.transport import family

    click.echo("stopped" if family.stop(folder.absolute()) else "it was not running")


def show_status(found: Status, as_json: bool) -> None:
    click.echo(to_json(found.plain()) if as_json else "\n".join(found.lines()))
