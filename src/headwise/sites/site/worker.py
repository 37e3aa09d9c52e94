"""A site's worker: lives as long as the site does, keeps data, networks and caches, and answers what the node brings.

Run as `python -m headwise.sites.site.worker FOLDER` by `headwise site start`. It keeps nothing that it can't lose:
states and ledger are on disk before an answer leaves.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ...disk.files import read_json, write_json
from ...errors import ConfigError, HeadwiseError, RunError, counted
from ...records import RecordError
from ...settings.fields import Natural, build
from ..transport.envelope import SiteMessage, now, printable, serve_node
from ..transport.messages import experiment_in, pack_error
from ..transport.supervisor import bind_life, read_secret, report_event
from .policy import forget_data
from .running import ACTIVITY
from .site import open_site


@dataclass(frozen=True)
class Activity:
    """What the site has done in its latest run."""

    run: str = ""
    method: str = ""
    data: str = ""
    round: Natural = 0
    rounds: Natural = 0
    sent: Natural = 0
    """bytes in this run"""
    messages: Natural = 0
    at: str = ""
    """when the latest message was answered"""
    line: str = ""
    """what was said about it"""

    def after(self, message: SiteMessage, reply: SiteMessage, line: str) -> Activity:
        asked = json.loads(message.text)
        experiment, run = json.loads(asked["experiment"]), printable(asked["run"])
        same = self if self.run == run else Activity(run)
        told = asked["asked"]["t"] if "stage" in asked else max(job["t"] for job in asked["site_jobs"])
        new = replace(
            same,
            method=printable(experiment["method"]["name"]),
            data=printable(experiment["data"]["name"]),
            round=told,
            rounds=experiment["rounds"],
            sent=same.sent + reply.size,
            messages=same.messages + 1,
            at=now(),
            line=printable(line) or same.line,
        )
        return build(Activity, asdict(new))


def activity(home: Path) -> Activity:
    try:
        return build(Activity, read_json(home / ACTIVITY))
    except (FileNotFoundError, HeadwiseError):
        return Activity()


def line_about(message: SiteMessage, reply: SiteMessage) -> str:
    """One line for the people at the site; empty for the stages around a masked message."""
    asked, said = json.loads(message.text), json.loads(reply.text)
    if "stage" in asked:
        return f"round {asked['asked']['t']}: refused: {said['error']}" if "error" in said else ""
    t = max((job["t"] for job in asked["site_jobs"]), default=0)
    if "error" in said:
        return f"round {t}: refused: {said['error']}"
    trained = [answer for answer in said["answers"] if answer["kind"] == "fit"]
    failed = [answer["failure"][1] for answer in said["answers"] if answer["failure"]]
    done = [answer for answer in trained if not answer["failure"]]
    samples = f" on {counted(sum(a['n'] for a in done), 'sample')}" if all(a["samples"] for a in done) else ""
    what = f"trained{samples}" if done else "failed" if failed else "evaluated"
    masked = ", masked" if "masked" in said else ""
    why = f" ({failed[0]})" if failed else ""
    return f"round {t}: {what}{why}, sent {reply.size / 1000:,.1f} KB{masked}"


class SiteWorker:
    def __init__(self, path: Path) -> None:
        self._path, self._home = path, path.parent
        self._done = activity(self._home)

    def answer(self, kind: str, message: SiteMessage) -> SiteMessage:
        """The site's file is read again for each message: what it says counts at once."""
        try:
            site, policy = open_site(self._path)
            if kind == "query.refused":
                report_event(say=f"the server does not use this site: it {json.loads(message.text)['refused']}.")
                return SiteMessage("{}", [])
            if kind == "query":
                forget_data()  # a run begins, or this site comes back to it
                reply = policy.introduce(experiment_in(message))
                if refusal := json.loads(reply.text)["refusal"]:
                    report_event(say=f"refused an experiment: {refusal}")
                return reply
            reply = site.answer(message)
        except (HeadwiseError, RecordError) as error:
            reply = pack_error(error)
        except Exception as error:  # as in `Site.answer`: an error text may reveal data
            logging.getLogger(__name__).exception("a message failed")
            reply = pack_error(RunError(f"this is a bug in Headwise ({type(error).__name__}): see the site's log."))
        self._note(message, reply)
        return reply

    def _note(self, message: SiteMessage, reply: SiteMessage) -> None:
        try:
            line = line_about(message, reply)
            self._done = self._done.after(message, reply, line)
        except (ValueError, LookupError, TypeError, AttributeError, ConfigError):  # not an order: the reply says so
            line = "refused a message that is not an order"
        write_json(self._home / ACTIVITY, asdict(self._done))
        if line:
            report_event(say=line)


def main() -> None:
    bind_life(signal.SIGKILL)  # at once: nothing trains that was told to leave
    secret = read_secret()
    home = Path(sys.argv[1])
    os.chdir(home)
    logging.basicConfig(level=logging.WARNING)
    try:
        open_site(home / "site.toml")
    except ConfigError as error:
        report_event(wrong=str(error))
        sys.exit(1)
    serve_node(secret, SiteWorker(home / "site.toml").answer, ready=lambda: report_event(ready=True))


if __name__ == "__main__":
    main()
