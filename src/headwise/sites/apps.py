"""The apps that `flwr run` starts; the generated pyproject.toml names them.

Importing them is cheap: a SuperNode that was started by hand does so for each message.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .transport import grid
from .transport.envelope import AnswerMessage


def _open(node_config: Mapping[str, Any]) -> AnswerMessage:
    from .site.site import open_site

    return open_site(Path(str(node_config["site"]))).answer


def _serve(transport: grid.FlowerTransport, config: dict[str, Any]) -> None:
    from .server.deployment import serve

    serve(transport, config)


client_app = grid.client_app(_open)
server_app = grid.server_app(_serve)
