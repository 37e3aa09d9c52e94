"""The command line, one file per verb. A command parses its flags, calls the library and prints."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import click

from .. import __version__
from ..errors import nearest
from .exit_handler import GlobalOptions, check_texts, exit_code

VERBS = {
    "run": "train with one method",
    "resume": "continue a run that was interrupted",
    "site": "set up a site with clients, and start it",
    "server": "start the server that sites connect to",
    "adapt": "a model for a client that was not there",
    "retrain": "repeat a run as if a client had never been there",
    "deploy": "train with clients at sites",
    "compare": "run several methods on the same draws of a partition",
    "tune": "search settings on validation samples",
    "reproduce": "run a published table and compare with the printed numbers",
    "export": "write a run's models as folders that load anywhere",
    "predict": "predict samples with an exported model",
    "evaluate": "measure an exported model on samples with known classes",
    "report": "turn runs into a page, tables and figures",
    "audit": "show what leaves a run's clients, and what attacks learn from it",
    "watch": "follow runs live in a browser",
    "data": "show which client would hold which data",
    "list": "list methods, models, data, partitions, papers or runs",
    "describe": "show a method, a published table, or what a run was made with",
    "new": "begin a method of your own: its file and its test",
    "check": "check that a method keeps the contract",
    "doctor": "show what is installed here, and what is missing",
}


class Verbs(click.Group):
    """Imports a command when it is used, so that help is fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*VERBS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        if cmd_name not in VERBS:
            raise click.UsageError(f"{cmd_name!r} is not a command: {nearest(cmd_name, VERBS)}")
        return importlib.import_module(f"headwise.cli.commands.{cmd_name}").command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([*VERBS.items()])


def _version(ctx: click.Context, param: click.Parameter, is_given: bool) -> None:
    if is_given:
        from ..engine.kernels.native.library import LIMIT, find

        kernels = find(os.environ.get(LIMIT, ""), compiling=False)
        click.echo(f"headwise, version {__version__}\nkernels of chains: {kernels}")
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


def main(args: list[str] | None = None) -> Any:
    """Runs the command line; a user's mistake is one sentence on stderr and exit code 2."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before importing torch, so that waiting threads do not spin
    arguments, options = sys.argv[1:] if args is None else args, GlobalOptions()

    def command() -> Any:
        check_texts(arguments)
        with cli.make_context("headwise", [*arguments], obj=options) as ctx:  # unlike `cli.main`, handles no errors
            return cli.invoke(ctx)

    sys.exit(exit_code(command, options))
