"""The moments of a round at which models are measured; they change the numbers a lot, so each has a name.

pre      what every client would use right after a download
post     what the participants have right after training
stale    what every client had after its own last training; one that never trained counts with its pre
global   the one global model on everybody's test samples, where the method has one
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from ..averaging import Shared
from ..records import Record, nbytes
from .events import Observer
from .executors.base import Executor, collect
from .plan import Plan
from .scores import Score, over_clients
from .server import ServerBench, broadcasts
from .worker import Answer, Job, Task

Plain = dict[str, Any]
"""a client's scores on its test and validation samples, as they are stored: {"test": {...}, "val": {...}}"""


class Evaluation:
    """What is measured after the training of one round."""

    def __init__(
        self,
        plan: Plan,
        executor: Executor,
        tell: Observer,
        server: Record,
        t: int,
        answers: Mapping[int, Answer],
        last: Mapping[int, Plain],
    ) -> None:
        self.plan, self.executor, self.tell, self.server, self.t = plan, executor, tell, server, t
        self.answers = answers
        self.scores: dict[str, dict[int, Plain]] = {}
        if "post" in plan.evaluate.moments:
            self.scores["post"] = {c: _plain(a) for c, a in answers.items()}
        self.last = {**last, **self.scores.get("post", {})}
        """each client's scores after its last training, by client"""

    def measure(self) -> dict[str, Any]:
        """The round's metrics by moment, and the bytes that only the evaluation sent."""
        moments, everyone = self.plan.evaluate.moments, range(len(self.plan.data))
        sent = self._ask("pre", everyone) if "pre" in moments else 0
        if "post" in moments:
            untrained = [c for c in everyone if c not in self.last]
            sent += 0 if "pre" in moments or not untrained else self._ask("pre", untrained)
            fallback = {c: self.scores["pre"][c] for c in untrained if c in self.scores["pre"]}
            self.scores["stale"] = self.last | fallback
        if "global" in moments:
            sent += self._ask_global(everyone)
        wanted = [m for m in ("pre", "post", "stale", "global") if m in self.scores and (m in moments or m == "stale")]
        found: dict[str, Any] = {m: _summary(self.scores[m]) for m in wanted}
        if "stale" in found:
            found["stale"]["untrained"] = len(self.scores["stale"]) - len(self.last)
        return {**found, "bytes_evaluation": sent}

    def lines(self, traffic: Mapping[int, Mapping[str, int]]) -> list[dict[str, Any]]:
        """What this round found out about each client."""
        found = {m: s for m, s in self.scores.items() if m != "stale"}
        clients = sorted({*self.answers, *(c for scores in found.values() for c in scores)})
        lines: list[dict[str, Any]] = []
        for c in clients:
            trained = {**traffic[c], "samples": self.answers[c].samples} if c in traffic else {}
            scores = {m: s[c] for m, s in found.items() if c in s}
            lines.append({"round": self.t, "client": c, **trained, **scores})
        return lines

    def _ask(self, task: Task, clients: Iterable[int]) -> int:
        """Let these clients measure what they would be sent now; return the bytes that took."""
        central = ServerBench(self.plan, self.t, "evaluate")
        downs = broadcasts(self.plan, self.server, clients, central)
        return self._send([Job(task, c, self.t, down) for c, down in downs.items()])

    def _ask_global(self, clients: Iterable[int]) -> int:
        model = self.plan.method.global_model(self.server, ServerBench(self.plan, self.t, "evaluate"))
        if model is None:
            return 0
        down = Shared(model.params())
        return self._send([Job("global", c, self.t, down) for c in clients])

    def _send(self, jobs: list[Job]) -> int:
        self.scores[jobs[0].task] = {c: _plain(a) for c, a in collect(self.executor, jobs, self.tell).items()}
        return sum(nbytes(job.down) for job in jobs)


def _plain(answer: Answer) -> Plain:
    return {"test": asdict(answer.test) if answer.test else None, "val": asdict(answer.val) if answer.val else None}


def _summary(scores: Mapping[int, Plain]) -> dict[str, Any]:
    """The metrics over all clients that have test samples; validation beside them where there is any."""
    found: dict[str, Any] = over_clients({c: Score(**p["test"]) for c, p in scores.items() if p["test"]})
    judged = {c: Score(**p["val"]) for c, p in scores.items() if p["val"]}
    return {**found, "val_accuracy": over_clients(judged)["accuracy"]} if judged else found
