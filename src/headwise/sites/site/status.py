"""`headwise site status`: whether it runs and is connected, what it has done, what privacy is left."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...errors import counted
from ..transport.envelope import readable
from ..transport.supervisor import read_status
from .holdings import PrivacySpent, spent
from .worker import Activity, activity


@dataclass(frozen=True)
class SiteStatus:
    running: Mapping[str, Any] | None
    """what the running command says; None if none runs"""
    done: Activity
    spent: tuple[PrivacySpent, ...]

    def plain(self) -> dict[str, Any]:
        return {"running": self.running, "activity": asdict(self.done), "spent": [s._asdict() for s in self.spent]}

    def lines(self) -> Iterator[str]:
        here, done = self.running, self.done
        if here is None:
            yield "not running"
        else:
            since, at = readable(str(here.get("since"))), here.get("connected")
            yield f"running since {since} (process {here.get('pid')}), server {here.get('server')}"
            yield f"connected since {readable(at)}" if at else f"not connected: {here.get('why')}"
        if done.run:
            latest = f"round {done.round} of {done.rounds} at {readable(done.at)}"
            yield f"{done.run}: {done.method} on {done.data}, {latest}"
            yield f"sent {done.sent / 1000:,.1f} KB in {counted(done.messages, 'message')} of this run"
        else:
            yield "nothing was asked yet, and nothing sent"
        yield from map(privacy_line, self.spent)


def privacy_line(each: PrivacySpent) -> str:
    limit = "no limit" if each.left is None else f"{each.left:.3g} of {each.total:g} left"
    bare = f"; {each.unprotected} answers without privacy" * bool(each.unprotected)
    unit = f" (of {'an example' if each.unit == 'example' else 'the client'})" * bool(each.unit)
    return f"client {each.client}  spent epsilon {each.epsilon:.3g}{unit} at delta {each.delta:g}, {limit}{bare}"


def site_status(home: Path) -> SiteStatus:
    return SiteStatus(read_status(home), activity(home), tuple(spent(home / "site.toml")))
