"""``python -m headwise`` is the command line too."""

from .cli import main

main()
