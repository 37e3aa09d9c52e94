"""``headwise site``: a place with clients, their data and their personal models."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any

import click

from ...disk.files import failing_clearly, write_bytes
from ...disk.jsontext import to_json, to_toml
from ...errors import ConfigError, RunError
from ...settings.experiment import Choice, experiment_from, read_toml
from ..options import PORT, json_option
from ..paths import INPUT_FILE, INPUT_FOLDER, OUTPUT_FOLDER
from .export import LICENCE

HOME = click.argument("folder", type=INPUT_FOLDER)
RUN = click.option("--run", required=True, help="name of the run, see headwise site list")
CLIENT = click.option("--client", required=True, type=click.IntRange(0, 10**9), help="number of the client")

TOML = """# What this site decides for itself; the server can't change it.
name = {name}
data = {data}                  # the data set's name in experiments

[allow]                        # more settings: docs/flower.md
methods = {methods}                   # empty: all methods of the installed Headwise
labels = {labels}                 # whether to tell the server how many samples of each class there are
# scores = false               # whether to send scores; default: only without an epsilon
# epsilon = 3.0                # the most one run may spend per client; default: runs need no privacy
# epsilon_total = 3.0          # the most all runs together may spend per client; default: the same as epsilon

[[clients]]
id = {client}
source = {source}
folder = {folder}
"""


@click.group(name="site")
def command() -> None:
    """Set up and start a site; list, export and erase its personal models."""


@command.command(name="init")
@click.argument("folder", type=OUTPUT_FOLDER)
@click.option("--client", required=True, type=click.IntRange(0, 10**9), help="the client's number in the federation")
@click.option("--data", required=True, help="its data: a source with options, or your own file.py")
@click.option("--data-dir", default=".", type=INPUT_FOLDER, help="folder of its files")
@click.option("--name", help="the site's name in reports; default: the folder's name")
@click.option("--method", "methods", multiple=True, help="a method that may run here; repeatable; default: all")
@click.option("--tell-labels", is_flag=True, help="tell the server how many samples of each class there are")
@click.option("--check", "config", type=INPUT_FILE, help="check that this experiment can run here")
def init(
    folder: Path,
    client: int,
    data: str,
    data_dir: Path,
    name: str | None,
    methods: tuple[str, ...],
    tell_labels: bool,
    config: Path | None,
) -> None:
    """Create FOLDER with a key pair and a site.toml, and check the data; nothing is sent."""
    choice = Choice.parse(data, "data")
    own = choice.name.endswith(".py")
    source = data.replace(choice.name, str(Path(choice.name).absolute()), 1) if own else data
    with failing_clearly(folder):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise RunError(f"{folder} already exists and is not an empty folder: choose another one.")
    values: dict[str, Any] = {
        "name": name or folder.absolute().name, "data": Path(choice.name).stem, "methods": list(methods),
        "labels": tell_labels, "client": client, "source": source, "folder": str(data_dir.absolute()),
    }  # fmt: skip
    text = TOML.format(**{k: to_toml(v) for k, v in values.items()})
    asked = None if config is None else experiment_from(read_toml(config))
    from ...engine.mechanism import UNPROTECTED
    from ...sites.facts import for_sites
    from ...sites.site.own_data import tell
    from ...sites.site.policy import OwnPolicy
    from ...sites.site.signing import node_key
    from ...sites.site.site_file import check_site

    site = check_site(tomllib.loads(text), folder / "site.toml")
    policy = OwnPolicy(site, folder.absolute())
    found = policy.look(None if asked is None else for_sites(asked))
    with failing_clearly(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_bytes(folder / "site.toml", text.encode())
    node_key(folder / "site.key")
    for told in tell(site, found, UNPROTECTED):
        click.echo(f"client {told.client}: {sum(told.sizes)} samples of shape {told.shape} in {told.classes} classes")
    checked = "" if asked is None else f"; {config} can run here"
    click.echo(f"wrote {folder / 'site.toml'}{checked}; give {folder / 'site.key.pub'} to the server")


@command.command(name="start")
@HOME
@click.option("--superlink", required=True, help="address of the server, for instance server.example:8000")
@click.option("--ca", type=INPUT_FILE, help="the server's ca.crt; not needed with --insecure-loopback")
@click.option(
    "--port", default=9094, type=PORT, show_default=True, help="port for this site's own processes, on loopback"
)
@click.option("--insecure-loopback", "insecure", is_flag=True, help="no TLS and no keys; this machine only")
def start(folder: Path, superlink: str, ca: Path | None, port: int, insecure: bool) -> None:
    """Connect the site in FOLDER to a server and work until stopped.

    It only runs the installed Headwise, and refuses any code that the server sends.
    """
    from ...engine.host.devices import check_kind
    from ...sites.site.site_file import read_site
    from ...sites.transport.processes import attend, check_insecure, environment, split_address, supernode

    check_kind("flower")
    check_insecure(split_address(superlink)[0], insecure)
    home = folder.absolute()
    read_site(home / "site.toml")
    if not insecure and (ca is None or not ca.is_file()):
        raise ConfigError(f"--ca is {str(ca)!r}, but must be the server's ca.crt, which proves who it is.")
    root = None if insecure or ca is None else ca.absolute()

    def failed() -> None:
        why = "its key may not be registered, --ca may be wrong, or the site was killed less than a minute ago"
        click.echo(f"headwise: the server refuses this site: {why}. Trying again.", err=True)

    sys.exit(attend(supernode(home, superlink, root, port), environment(home, guarded=True), failed=failed))


@command.command(name="list")
@HOME
@json_option
def list_(folder: Path, as_json: bool) -> None:
    """List the personal models of the site in FOLDER, and the privacy each client has spent."""
    from ...sites.site.holdings import holdings, spent

    found, told = holdings(folder / "site.toml"), spent(folder / "site.toml")
    if as_json:
        click.echo(to_json({"models": [m._asdict() for m in found], "spent": [s._asdict() for s in told]}))
        return
    for each in found:
        click.echo(f"{each.run}  client {each.client}  round {each.t}  {each.bytes / 1024:,.1f} KB")
    if not found:
        click.echo("no personal models")
    for each in told:
        limit = "no limit" if each.left is None else f"{each.left:.3g} of {each.total:g} left"
        bare = f"; {each.unprotected} answers without privacy" * bool(each.unprotected)
        unit = f" (of {'an example' if each.unit == 'example' else 'the client'})" * bool(each.unit)
        click.echo(
            f"client {each.client}  spent epsilon {each.epsilon:.3g}{unit} at delta {each.delta:g}, {limit}{bare}"
        )


@command.command(name="export")
@HOME
@RUN
@CLIENT
@click.option(
    "--format", type=click.Choice(["onnx", "torch"]), help="write a folder with a program, as headwise export"
)
@click.option(
    "--moment", type=click.Choice(["pre", "post"]), default="pre", help="as after a download or training  [pre]"
)
@LICENCE
@click.option("-o", "--out", required=True, help="folder to write with --format, else a safetensors file of weights")
def export(folder: Path, run: str, client: int, format: Any, moment: str, licence: str, out: str) -> None:
    """Write a client's current personal model."""
    from ...disk.paths import output_file, output_folder
    from ...sites.site import holdings

    path = output_folder(out, "--out") if format else output_file(out, "--out")
    holdings.export(folder / "site.toml", run, client, path, format, moment, licence)
    click.echo(f"wrote {out}")


@command.command(name="erase")
@HOME
@RUN
@CLIENT
@click.option("--yes", is_flag=True, help="confirm: this can't be undone")
def erase(folder: Path, run: str, client: int, yes: bool) -> None:
    """Erase everything the site has of a client in a run; the ledger stays."""
    from ...sites.site import holdings

    if not yes:
        raise ConfigError(f"client {client}'s model of {run} would be gone for good: add --yes to erase it.")
    holdings.erase(folder / "site.toml", run, client)
    click.echo(f"erased client {client} of {run}")
