"""``python -m headwise`` runs the command line."""

from .cli import main

main()
