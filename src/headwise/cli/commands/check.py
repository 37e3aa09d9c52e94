"""``headwise check``: the contract's checks on one method, all of them, with a sentence for each failure."""

from __future__ import annotations

import click

from ...app import registry


@click.command(name="check")
@click.argument("method", metavar="METHOD|FILE.py")
def command(method: str) -> int:
    """Check that METHOD, for example ./mymethod.py, keeps the contract; exit code 1 if it does not."""
    cls = registry.find("method", method)
    from ...testing import CHECKS, failures

    failed = 0
    for name, failure in failures(cls):
        click.echo(f"{'✗' if failure else '✓'} {name}" + (f"\n    {failure.partition(': ')[2]}" if failure else ""))
        failed += bool(failure)
    click.echo(f"{cls.__name__} fails {failed} of {len(CHECKS)} checks." if failed else f"{cls.__name__} passes.")
    return 1 if failed else 0
