"""``headwise new`` and ``check``: start a method of your own, and check that it meets the contract."""

from __future__ import annotations

import keyword
import re
from pathlib import Path

import click

from ...app import registry
from ...disk.files import make_folder, write_bytes
from ...disk.paths import output_folder
from ...errors import ConfigError

TEMPLATES = Path(__file__).parents[1] / "templates"


@click.group(name="new")
def command() -> None:
    """Start a file of your own."""


@command.command(name="method")
@click.argument("name")
@click.option("-o", "--out", default=".", show_default=True, metavar="FOLDER", help="where to write the two files")
def method(name: str, out: str) -> None:
    """Write NAME.py, a small method that runs, and test_NAME.py, a round of it computed by hand."""
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,99}", name) or keyword.iskeyword(name):
        raise ConfigError(
            f"NAME is {name!r}, but must be a Python name in lower case of at most 100 letters, such as mymethod."
        )
    folder = output_folder(out, "--out")
    files = {folder / f"{name}.py": "method.txt", folder / f"test_{name}.py": "test_method.txt"}
    for path in files:
        if path.exists():
            raise ConfigError(f"{path} exists already: choose another NAME or another --out.")
    make_folder(folder)
    for path, template in files.items():
        text = (TEMPLATES / template).read_text(encoding="utf-8")
        class_name = "".join(part.capitalize() for part in name.split("_"))
        write_bytes(path, text.replace("mymethod", name).replace("MyMethod", class_name).encode())
    path = next(iter(files))
    click.echo(f"wrote {' and '.join(map(str, files))}. Now change them, and:")
    click.echo(f"  headwise check {path}\n  pytest {folder / f'test_{name}.py'}\n  headwise run --method {path}")


@click.command(name="check")
@click.argument("method", metavar="METHOD|FILE.py")
def check(method: str) -> int:
    """Check that METHOD, for example ./mymethod.py, meets the contract; exit code 1 if it does not."""
    cls = registry.find("method", method)
    from ...testing import CHECKS, failures

    failed = 0
    for name, failure in failures(cls):
        click.echo(f"{'✗' if failure else '✓'} {name}" + (f"\n    {failure.partition(': ')[2]}" if failure else ""))
        failed += bool(failure)
    click.echo(f"{cls.__name__} fails {failed} of {len(CHECKS)} checks." if failed else f"{cls.__name__} passes.")
    return 1 if failed else 0
