"""`headwise server start`: Flower's SuperLink, and the process that starts the servers of runs. They end together."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from ... import __version__
from ...disk.files import write_json
from ...errors import RunError
from ..transport.envelope import now
from ..transport.family import STATUS, Family, claim, how
from ..transport.health import Health, health_endpoint
from ..transport.ports import listens, wait_until_free
from ..transport.processes import bind_server_app, bound, environment, flower_config, here, superexec, superlink

LOG = "flower.log"
PAUSE = 0.2


def run_server(
    home: Path,
    host: str,
    port: int,
    insecure: bool,
    say: Callable[[str], None],
    health: int | None = None,
    certify: Callable[[], None] = lambda: None,
) -> int:
    """Serve until told to stop; the exit code. `certify` is called once folder and port are ours."""
    with claim(home, "server"):
        wait_until_free("--port", host, port)
        certify()
        flower_config(home, host, port, insecure)
        bind_server_app(home)
        status = {"pid": os.getpid(), "since": now(), "address": f"{host}:{port}", "version": __version__}
        write_json(home / STATUS, status)
        family, settings = Family(home / LOG), environment(home)
        ready = False

        def look() -> Health:
            return Health("" if ready else "does not listen yet")

        with family.alive(), health_endpoint(health, look):
            say("Flower's SuperLink starts")
            family.start("superlink", bound(superlink(home, host, port, insecure)), settings)
            family.start("superexec", bound(superexec(home, host, port, insecure)), settings)
            while True:
                news = family.next(None if ready else PAUSE)
                if news is None:
                    ready = listens(here(host).strip("[]"), port)
                    if ready:
                        say(f"listens on {host}:{port}; Flower's log is in {home / LOG}")
                elif "told" in news.event:
                    say("told to stop: sites try to come back until it starts again")
                    return 0
                elif "ended" in news.event:
                    ended = how(news.event["ended"])
                    raise RunError(f"flower-{news.name} {ended}, so the server has stopped: see {home / LOG}.")
