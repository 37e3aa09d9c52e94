"""What `flwr run` starts: the apps that a generated pyproject.toml names."""

from __future__ import annotations

from . import grid
from .deployment import open_site, serve

client_app = grid.node_app(open_site)
server_app = grid.server_app(serve)
