"""``headwise site``: a place with clients, their data and their personal models."""

from __future__ import annotations

import sys
import tomllib
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from ...disk.files import check_new_folder, make_folder, write_bytes
from ...disk.jsontext import to_json, to_toml
from ...errors import ConfigError, pluralize
from ...settings.choices import Choice
from ...settings.experiment import read_toml
from ...settings.fields import field_help, field_types, type_words
from ...settings.foreign import parse_foreign
from ...sites.transport.superlink import check_flower
from ...tasks.registry import kind_of
from ..options import HOME, INPUT_FILE, INPUT_FOLDER, OUTPUT_FOLDER, health_option, insecure_option, json_option
from ..output import show_status, stop_in
from .export import FORMAT, LICENCE

RUN = click.option("--run", required=True, help="name of the run, see headwise site list")
CLIENT = click.option("--client", required=True, type=click.IntRange(0, 10**9), help="number of the client")

TOML = """# What this site decides for itself; the server can't change it.
name = {name}
data = {data}                  # the data set's name in experiments

[allow]                        # headwise site settings lists all settings
methods = {methods}                   # empty: all methods of the installed Headwise
labels = {labels}                 # whether to tell the server how many samples of each class there are
sums = {sums}                   # whether to tell sums of features and of a regression's targets, for all sites' scale
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
@click.option("--data", required=True, help="its data: a data.toml, a source, or your own file.py")
@click.option("--data-dir", default=".", type=INPUT_FOLDER, help="folder of its files")
@click.option("--name", help="the site's name in reports; default: the folder's name")
@click.option("--method", "methods", multiple=True, help="a method that may run here; repeatable; default: all")
@click.option("--allow-labels", is_flag=True, help="tell the server how many samples of each class there are")
@click.option("--allow-sums", is_flag=True, help="tell the server sums of features and of a regression's targets")
@click.option("--download", is_flag=True, help="download public data that are missing; without it, a site never does")
@click.option("--check", "config", type=INPUT_FILE, help="check that this experiment can run here")
def init(
    folder: Path,
    client: int,
    data: str,
    data_dir: Path,
    name: str | None,
    methods: tuple[str, ...],
    allow_labels: bool,
    allow_sums: bool,
    download: bool,
    config: Path | None,
) -> None:
    """Create FOLDER with a key pair and a site.toml, and check the data; nothing is sent."""
    check_flower()
    choice = Choice.parse(data, "data")
    own = choice.name.endswith(".py")
    source = data.replace(choice.name, str(Path(choice.name).absolute()), 1) if own else data
    source = str(Path(data).absolute()) if data.endswith(".toml") else source
    check_new_folder(folder)
    values: dict[str, Any] = {
        "name": name or folder.absolute().name, "data": Path(choice.name).stem, "methods": list(methods),
        "labels": allow_labels, "sums": allow_sums, "client": client, "source": source,
        "folder": str(data_dir.absolute()),
    }  # fmt: skip
    text = TOML.format(**{k: to_toml(v) for k, v in values.items()})
    experiment = None if config is None else parse_foreign(read_toml(config))
    from ...engine.mechanism import UNPROTECTED
    from ...sites.facts import resolve_for_sites
    from ...sites.keys import write_node_key
    from ...sites.site.own_data import report_facts
    from ...sites.site.policy import Policy
    from ...sites.site.site_file import check_site

    site = check_site(tomllib.loads(text), folder / "site.toml")
    policy = Policy(site, folder.absolute())
    view = policy.load_clients(None if experiment is None else resolve_for_sites(experiment), download=download)
    make_folder(folder)
    write_bytes(folder / "site.toml", text.encode())
    write_node_key(folder / "site.key", site.name)
    for facts in report_facts(site, view, UNPROTECTED):
        outputs = pluralize(facts.classes, kind_of(facts.kind).noun)
        samples = pluralize(sum(facts.sizes), "sample")
        click.echo(f"client {facts.client}: {samples} of shape {list(facts.shape)}, {outputs}")
    checked = "" if experiment is None else f"; {config} can run here"
    click.echo(f"wrote {folder / 'site.toml'}{checked}; give {folder / 'site.key.pub'} to the server")


@command.command(name="start")
@HOME
@click.option("--superlink", required=True, help="address of the server, for instance server.example:8000")
@click.option("--ca", type=INPUT_FILE, help="the server's ca.crt; not needed with --insecure-loopback")
@insecure_option
@health_option
def start(folder: Path, superlink: str, ca: Path | None, insecure: bool, health: int | None) -> None:
    """Connect the site in FOLDER to a server and work until stopped.

    It only runs the installed Headwise, and refuses any code that the server sends.
    """
    check_flower()
    from ...sites.site.running import RunningSite
    from ...sites.transport.superlink import check_insecure, load_authority, split_address

    check_insecure(split_address(superlink)[0], insecure)
    home = folder.absolute()
    read_toml(home / "site.toml")  # its worker also reads it, but only after importing torch
    trust = None if insecure else load_authority(ca)
    root = None if insecure or ca is None else ca.absolute()

    def say(line: str) -> None:
        click.echo(f"{datetime.now():%H:%M:%S}  {line}", err=True)

    sys.exit(RunningSite(home, superlink, root, trust, say, health).run())


@command.command(name="stop")
@HOME
def stop(folder: Path) -> None:
    """Stop the site in FOLDER, wherever it was started."""
    stop_in(folder)


@command.command(name="status")
@HOME
@json_option
def status(folder: Path, as_json: bool) -> None:
    """Show whether the site in FOLDER is running and connected, what it has sent, and the privacy that is left."""
    check_flower()
    from ...sites.site.running import site_status

    show_status(site_status(folder.absolute()), as_json)


@command.command(name="settings")
def settings() -> None:
    """List all settings of site.toml."""
    check_flower()
    from ...sites.site.site_file import Allow, OwnClient, SiteSettings

    for head, cls in (("", SiteSettings), ("[allow]", Allow), ("[[clients]]", OwnClient)):
        click.echo(head, nl=bool(head))
        for name, words in field_help(cls).items():
            click.echo(f"  {name}  ({type_words(field_types(cls)[name])})\n      {words}")


@command.command(name="review")
@click.argument("config", type=INPUT_FILE)
@click.option("--site", "folder", type=INPUT_FOLDER, help="the site's folder: also show bytes, budget and permission")
@json_option
def review_(config: Path, folder: Path | None, as_json: bool) -> None:
    """Show what the study in CONFIG would do here, before anything is allowed; nothing is sent.

    Shows the method, what would leave, the privacy budget, what attacks could learn, and whether site.toml permits it.
    """
    check_flower()
    experiment = parse_foreign(read_toml(config))
    from ...sites.site.review import review

    show_status(review(experiment, None if folder is None else folder.absolute()), as_json)


@command.command(name="list")
@HOME
@json_option
def list_(folder: Path, as_json: bool) -> None:
    """List the personal models of the site in FOLDER, and the privacy each client has spent."""
    check_flower()
    from ...sites.site.ledger import privacy_spent
    from ...sites.site.models import list_holdings

    models = list_holdings(folder / "site.toml")
    costs = privacy_spent(folder / "site.toml")
    if as_json:
        click.echo(to_json({"models": [m._asdict() for m in models], "spent": [s._asdict() for s in costs]}))
        return
    for line in [each.line() for each in models] or ["no personal models"]:
        click.echo(line)
    for each in costs:
        click.echo(each.line())


@command.command(name="export")
@HOME
@RUN
@CLIENT
@click.option(
    "--format", type=click.Choice(["onnx", "torch"]), help="write a folder with a program, like headwise export"
)
@click.option(
    "--moment", type=click.Choice(["pre", "post"]), default="pre", help="after a download, or after training  [pre]"
)
@LICENCE
@click.option("-o", "--out", required=True, help="folder to write with --format, else a safetensors file of weights")
def export(folder: Path, run: str, client: int, format: Any, moment: str, licence: str, out: str) -> None:
    """Write a client's current personal model."""
    check_flower()
    from ...disk.paths import output_file, output_folder
    from ...sites.site import models

    path = output_folder(out, "--out") if format else output_file(out, "--out")
    models.export(folder / "site.toml", run, client, path, format, moment, licence)
    click.echo(f"wrote {out}")


@command.command(name="erase")
@HOME
@RUN
@CLIENT
@click.option("--yes", is_flag=True, help="confirm: this can't be undone")
def erase(folder: Path, run: str, client: int, yes: bool) -> None:
    """Erase everything the site has of a client in a run; the ledger stays."""
    check_flower()
    from ...sites.site import models

    if not yes:
        raise ConfigError(f"client {client}'s model of {run} would be gone for good: add --yes to erase it.")
    models.erase(folder / "site.toml", run, client)
    click.echo(f"erased client {client} of {run}")


@command.command(name="adapt")
@HOME
@click.argument("offer", type=INPUT_FOLDER)
@click.option("--client", type=click.IntRange(0, 10**9), help="number of the client in site.toml, if it has several")
@click.option("--epochs", type=click.IntRange(0, 10_000), default=5, help="epochs on its training samples  [5]")
@click.option(
    "--fingerprint", default="", help="refuse an offer with another fingerprint; its first characters are enough"
)
@click.option("-o", "--out", required=True, type=OUTPUT_FOLDER, metavar="DIR", help="folder to write; it must be new")
@FORMAT
@LICENCE
@json_option
def adapt(
    folder: Path,
    offer: Path,
    client: int | None,
    epochs: int,
    fingerprint: str,
    out: Path,
    format: Any,
    licence: str,
    as_json: bool,
) -> None:
    """Make a model for a client of the site in FOLDER after the last round, from the server's OFFER.

    The server writes it with headwise export RUN --newcomer. Nothing is sent, and site.toml decides as in a round.
    """
    check_flower()
    check_new_folder(out)
    from ...exports.card import check_format
    from ...sites.site import models

    check_format(format)
    adapted = models.adapt(folder / "site.toml", offer, client, epochs, licence, fingerprint)
    adapted.model.save(out, format)
    if as_json:
        facts = {"metric": adapted.metric.name, "trained_on": adapted.trained_on, "scores": adapted.scores}
        click.echo(to_json({**facts, "model": str(out), "fingerprint": adapted.fingerprint}))
        return
    for e, score in adapted.scores.items():
        if (value := score.get(adapted.metric.name)) is not None:
            measured = f"{adapted.metric.label} {adapted.metric.form(value)} after {pluralize(e, 'epoch')}"
            click.echo(f"{measured}, on {pluralize(int(score['n']), 'test sample')}")
    click.echo(f"wrote {out}, trained on {pluralize(adapted.trained_on, 'sample')}")
    click.echo(f"the offer's fingerprint is {adapted.fingerprint}")
