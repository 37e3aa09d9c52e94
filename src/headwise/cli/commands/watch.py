"""``headwise watch``: follow runs in a browser."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Annotated

import click

from ...errors import ConfigError
from ...settings.fields import Range, convert
from ..options import INPUT_FOLDER, literal


@click.command(name="watch")
@click.argument("folder", default="runs", type=INPUT_FOLDER)
@click.option("--port", default="8765", help="local port; 0 picks a free one  [8765]")
def command(folder: Path, port: str) -> None:
    """Follow the runs in and below FOLDER live in a browser.

    The page is read-only and available on this machine only. Ctrl-C stops it and leaves the runs alone.
    """
    number = convert(literal(port), Annotated[int, Range(0, 65535)], "port")
    if not folder.is_dir():
        raise ConfigError(f"folder is {str(folder)!r}, but there is no such folder.")
    try:
        import uvicorn

        from ...report.watch import watch_app
    except ImportError as error:
        raise ConfigError(
            f"watch needs {error.name}, which is not installed: pip install 'headwise[watch]'."
        ) from error
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", number))
        except OSError as error:
            raise ConfigError(f"port is {number}, which can't be opened: {error.strerror}; try --port 0.") from error
        click.echo(f"Follow the runs in {folder} at http://127.0.0.1:{listener.getsockname()[1]}/ (Ctrl-C stops)")
        uvicorn.Server(uvicorn.Config(watch_app(folder), log_level="warning")).run(sockets=[listener])
