"""The apps that `flwr run` starts; the generated pyproject.toml names them."""

from __future__ import annotations

from pathlib import Path

from .server.deployment import serve
from .site.site import open_site
from .transport import grid
from .transport.messages import SiteMessage, experiment_in


def _opened(path: str) -> tuple[grid.Answering, grid.Answering]:
    site, policy = open_site(Path(path))

    def introduce(question: SiteMessage) -> SiteMessage:
        return policy.introduce(experiment_in(question))

    return site.answer, introduce


client_app = grid.node_app(_opened)
server_app = grid.server_app(serve)
