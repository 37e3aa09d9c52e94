"""A site's worker: lives as long as the site does, keeps data, networks and caches, and answers what the node brings.

Run as `python -m headwise.sites.site.worker FOLDER` by `headwise site start`. It can be killed at any time: states and
ledger are on disk before an answer leaves.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ...disk.files import write_json
from ...errors import ConfigError, pluralize
from ...settings.fields import build
from ..transport.envelope import SiteMessage, make_printable, now, serve_node
from ..transport.messages import UNREADABLE, load_text, pack_error
from ..transport.supervisor import bind_life, read_secret, report_event
from .policy import forget_data
from .running import ACTIVITY, Activity, read_activity
from .site import open_site


class SiteWorker:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._home = path.parent
        self._activity = read_activity(self._home)

    def answer(self, kind: str, message: SiteMessage) -> SiteMessage:
        """Answer a message. The site's file is read again for each one, so that changes apply at once."""
        if kind == "query":
            forget_data()  # a run begins, or this site comes back to it
        try:
            reply = SiteMessage("{}", []) if kind == "query.refused" else open_site(self._path).answer(kind, message)
        except ConfigError as error:
            reply = pack_error(error)
        try:
            order = load_text(message)
            report = json.loads(reply.text)
            line = describe_query(order, report) if kind.startswith("query") else self._note(order, report, reply.size)
        except UNREADABLE:
            line = "refused a message that is not an order"
        if line:
            report_event(say=line)
        return reply

    def _note(self, order: dict[str, Any], report: dict[str, Any], size: int) -> str:
        """Record what was done in the file that `headwise site status` reads; return a line about it."""
        line = describe_order(order, report, size)
        self._activity = update_activity(self._activity, order, size, line)
        write_json(self._home / ACTIVITY, asdict(self._activity))
        return line


def describe_query(question: dict[str, Any], answer: dict[str, Any]) -> str:
    """One line for the people at the site if they or the server refuse; else empty."""
    if "refused" in question:
        return f"the server does not use this site: it {question['refused']}."
    refusal = answer.get("refusal") or answer.get("error")
    return f"refused an experiment: {refusal}" if refusal else ""


def describe_order(order: dict[str, Any], report: dict[str, Any], size: int) -> str:
    """One line for the people at the site; empty for the stages around a masked message."""
    if "error" in report:
        return f"round {_round(order)}: refused: {report['error']}"
    if "stage" in order:
        return ""
    failures = [answer["failure"][1] for answer in report["answers"] if answer["failure"]]
    done = [answer for answer in report["answers"] if answer["kind"] == "fit" and not answer["failure"]]
    samples = f" on {pluralize(sum(a['n'] for a in done), 'sample')}" if all(a["samples"] for a in done) else ""
    what = f"trained{samples}" if done else "failed" if failures else "evaluated"
    masked = ", masked" if "masked" in report else ""
    why = f" ({failures[0]})" if failures else ""
    return f"round {_round(order)}: {what}{why}, sent {size / 1000:,.1f} KB{masked}"


def update_activity(activity: Activity, order: dict[str, Any], size: int, line: str) -> Activity:
    experiment = json.loads(order["experiment"])
    run = make_printable(order["run"])
    before = activity if activity.run == run else Activity(run)
    after = replace(
        before,
        method=make_printable(experiment["method"]["name"]),
        data=make_printable(experiment["data"]["name"]),
        round=_round(order),
        rounds=experiment["rounds"],
        sent=before.sent + size,
        messages=before.messages + 1,
        at=now(),
        line=make_printable(line) or before.line,
    )
    return build(Activity, asdict(after))


def _round(order: dict[str, Any]) -> int:
    return order["request"]["t"] if "stage" in order else max(job["t"] for job in order["site_jobs"])


class ForwardWarnings(logging.Handler):
    """Prints warnings where the site was started, such as that a client does not return; the log has them anyway."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.WARNING:
            report_event(say=make_printable(record.getMessage()))


def main() -> None:
    bind_life(signal.SIGKILL)  # at once: nothing trains at a site that was stopped
    secret = read_secret()
    home = Path(sys.argv[1])
    os.chdir(home)
    logging.basicConfig(level=logging.WARNING)
    logging.getLogger("headwise").addHandler(ForwardWarnings(logging.WARNING))
    try:
        open_site(home / "site.toml")
    except ConfigError as error:
        report_event(wrong=str(error))
        sys.exit(1)
    serve_node(secret, SiteWorker(home / "site.toml").answer, ready=lambda: report_event(ready=True))


if __name__ == "__main__":
    main()
