"""The command line: a command parses its flags, calls the library and prints."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from .. import __version__
from ..errors import nearest
from .exit_handler import GlobalOptions, check_texts, exit_code

VERBS = {
    "run": "train with one method",
    "resume": "continue an interrupted run",
    "site": "set up and start a site, where clients keep their data",
    "server": "start the server that sites connect to",
    "adapt": "make a model for a new client",
    "retrain": "repeat a run as if a client had never taken part",
    "deploy": "train with clients at sites",
    "choose": "find out which method suits your data",
    "compare": "run several methods on the same partitions",
    "tune": "search settings on validation samples",
    "league": "compare all methods on small federations that differ in kind",
    "reproduce": "run a published table and compare with its printed numbers",
    "export": "write a run's models as folders that load anywhere",
    "predict": "predict samples with an exported model",
    "evaluate": "measure an exported model on labelled samples",
    "report": "turn runs into a page, tables and figures",
    "cite": "print BibTeX of the methods in runs",
    "audit": "show what leaves a run's clients, and what attacks learn from it",
    "watch": "follow runs live in a browser",
    "data": "describe, check and divide data before training",
    "list": "list methods, models, data, partitions, papers or runs",
    "describe": "show a method, a published table or a run",
    "new": "start a method of your own: its file and its test",
    "check": "check that a method meets the contract",
    "doctor": "show what is installed and what is missing",
}
HOMES = {
    "resume": "run",
    "retrain": "run",
    "deploy": "server",
    "tune": "choose",
    "evaluate": "predict",
    "cite": "report",
    "check": "new",
}
"""verbs that share a file; every other verb has one of its own"""


class Verbs(click.Group):
    """Imports a command when it is used, so that help is fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*VERBS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        if cmd_name not in VERBS:
            raise click.UsageError(f"{cmd_name!r} is not a command: {nearest(cmd_name, VERBS)}")
        home = HOMES.get(cmd_name, cmd_name)
        module = importlib.import_module(f"headwise.cli.commands.{home}")
        return getattr(module, "command" if home == cmd_name else cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([*VERBS.items()])


def _version(ctx: click.Context, param: click.Parameter, is_given: bool) -> None:
    if is_given:
        from ..engine.kernels.native.library import LIMIT, find

        kernels = find(os.environ.get(LIMIT, ""), compiling=False)
        click.echo(f"headwise, version {__version__}\nkernels: {kernels}")
        ctx.exit()


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="show the version and exit"
)
@click.option("--traceback", is_flag=True, help="show the traceback of an error, for example in your own file.py")
@click.pass_context
def cli(ctx: click.Context, traceback: bool) -> None:
    """Personalized federated learning: one good model per client."""
    ctx.ensure_object(GlobalOptions).traceback = traceback
    ctx.with_resource(_warn_once())


@contextmanager
def _warn_once() -> Iterator[None]:
    """Print a warning once, however many runs of a comparison or a search have it."""
    printed: set[str] = set()

    def is_new(record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if text in printed:
            return False
        printed.add(text)
        return True

    log = logging.getLogger("headwise")
    log.addFilter(is_new)
    try:
        yield
    finally:
        log.removeFilter(is_new)


def main(args: list[str] | None = None) -> Any:
    """Runs the command line; a user's mistake is one sentence on stderr and exit code 2."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before importing torch, so that waiting threads do not spin
    arguments = sys.argv[1:] if args is None else args
    options = GlobalOptions()

    def command() -> Any:
        check_texts(arguments)
        with cli.make_context("headwise", [*arguments], obj=options) as ctx:  # unlike `cli.main`, handles no errors
            return cli.invoke(ctx)

    sys.exit(exit_code(command, options))
