"""The apps that `flwr run` starts; the generated pyproject.toml names them.

Importing them is cheap: a SuperNode that was started by hand does so for each message.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .transport import grid
from .transport.envelope import SiteMessage


def _open(path: str) -> tuple[grid.AnswerOrder, grid.AnswerOrder]:
    from .site.site import open_site
    from .transport.messages import experiment_in

    site, policy = open_site(Path(path))

    def introduce(question: SiteMessage) -> SiteMessage:
        return policy.introduce(experiment_in(question))

    return site.answer, introduce


def _serve(transport: grid.FlowerTransport, config: dict[str, Any]) -> None:
    from .server.deployment import serve

    serve(transport, config)


client_app = grid.node_app(_open)
server_app = grid.server_app(_serve)
