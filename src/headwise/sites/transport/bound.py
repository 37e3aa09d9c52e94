"""Runs one of Flower's commands, bound to the life of ours: `python -m headwise.sites.transport.bound COMMAND ...`."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points

from .lifeline import bind


def main() -> None:
    bind()
    sys.argv = sys.argv[1:]
    (command,) = entry_points(group="console_scripts", name=sys.argv[0])
    command.load()()


if __name__ == "__main__":
    main()
