"""``headwise server`` and ``deploy``: what sites connect to, and training with clients at sites."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from ...settings.experiment import experiment_from, override, read_toml
from ...settings.fields import NonNegative, convert, literal
from ...sites.transport.superlink import check_flower
from ..options import (
    EXISTING_OR_NEW_FILE,
    HOME,
    INPUT_FILE,
    INPUT_FOLDER,
    OUTPUT_FILE,
    OUTPUT_FOLDER,
    PORT,
    health_option,
    insecure_option,
    json_option,
    set_option,
)
from ..output import show_status, stop_in
from .run import show


@click.group(name="server")
def command() -> None:
    """Start a server for sites, register sites, sign experiments."""


@command.command(name="start")
@click.argument("folder", type=OUTPUT_FOLDER)
@click.option("--host", default="127.0.0.1", show_default=True, help="address to listen on")
@click.option("--port", default=8000, type=PORT, show_default=True, help="port to listen on")
@click.option("--name", "names", multiple=True, help="a name or address that sites use for this server; repeatable")
@insecure_option
@health_option
def start(folder: Path, host: str, port: int, names: tuple[str, ...], insecure: bool, health: int | None) -> None:
    """Start Flower's SuperLink with TLS and node authentication; FOLDER holds its keys and its database.

    Creates a certificate if FOLDER has none; sites need FOLDER/ca.crt.
    """
    check_flower()
    from ...disk.files import make_folder
    from ...sites.keys import check_certificate, write_certificates
    from ...sites.server.control import run_server
    from ...sites.transport.superlink import check_insecure, check_name

    check_insecure(host, insecure)
    for option, name in (("--host", host), *(("--name", name) for name in names)):
        check_name(option, name)
    home = folder.absolute()
    make_folder(home)

    def certify() -> None:
        if not insecure and not (home / "ca.crt").exists():
            write_certificates(home, list(dict.fromkeys([*names, host, "127.0.0.1", "localhost"])))
            _say(f"created a certificate: give {home / 'ca.crt'} to the sites")
        if not insecure:
            check_certificate(home / "server.pem")

    sys.exit(run_server(home, host, port, insecure, _say, health, certify))


@command.command(name="stop")
@HOME
def stop(folder: Path) -> None:
    """Stop the server in FOLDER, wherever it was started."""
    stop_in(folder)


@command.command(name="status")
@HOME
@json_option
def status(folder: Path, as_json: bool) -> None:
    """Show which sites are connected to the server in FOLDER, and how far its latest run is."""
    check_flower()
    from ...sites.server.control import server_status

    show_status(server_status(folder.absolute()), as_json)


@command.command(name="register")
@HOME
@click.argument("keys", nargs=-1, required=True, type=INPUT_FILE)
def register(folder: Path, keys: tuple[Path, ...]) -> None:
    """Let in the sites with these public KEYS (their site.key.pub); FOLDER is the server's."""
    check_flower()
    from ...sites.server.control import register_site

    for key in keys:
        name, new = register_site(folder.absolute(), key.absolute())
        click.echo(f"registered {name} ({key})" if new else f"{name} ({key}) is already registered")


@command.command(name="sign")
@click.argument("configs", nargs=-1, required=True, type=INPUT_FILE)
@click.option("--key", required=True, type=EXISTING_OR_NEW_FILE, help="Ed25519 key; created if it does not exist")
@click.option("--out", required=True, type=OUTPUT_FILE, help="file for the signed list, which sites need")
def sign(configs: tuple[Path, ...], key: Path, out: Path) -> None:
    """Sign a list of the experiments CONFIGS; sites that require the list run no others."""
    check_flower()
    experiments = [experiment_from(read_toml(config)) for config in configs]
    from ...sites.facts import resolve_for_sites
    from ...sites.keys import sign_list

    listed = sign_list([resolve_for_sites(e) for e in experiments], key, out)
    click.echo(f"{out} allows {len(listed)} experiments; sites need it and {key}.pub")


@click.command(name="deploy")
@click.argument("config", type=INPUT_FILE)
@click.option("--server", required=True, type=INPUT_FOLDER, help="folder of the server, see headwise server start")
@click.option("--out", required=True, type=OUTPUT_FOLDER, help="folder for the results; an existing run is resumed")
@click.option("--wait", default="600", help="seconds to wait for sites before the first round  [600]")
@set_option("rounds=5")
@json_option
def deploy(config: Path, server: Path, out: Path, wait: str, changes: tuple[str, ...], as_json: bool) -> None:
    """Train the experiment CONFIG at the sites of a server on this machine."""
    check_flower()
    patience = convert(literal(wait), NonNegative, "wait")
    experiment = experiment_from(override(read_toml(config), changes))
    from ...sites.facts import resolve_for_sites
    from ...sites.server.control import submit

    portable = resolve_for_sites(experiment)  # report mistakes here, not at the sites
    show(submit(server.absolute(), portable, Path(os.path.abspath(out)), patience, _say), as_json)


def _say(line: str) -> None:
    click.echo(line, err=True)
