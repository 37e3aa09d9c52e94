"""The moments of a round at which models are measured. Results differ a lot between them, so each has a name.

pre      what every client would use right after a download
post     what the participants have right after training
stale    what every client had after its own last training; its pre score if it never trained
global   the one global model on everybody's test samples, where the method has one
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import cast

from ..contract.averaging import Shared
from ..log.metrics import Metric
from ..log.schema import MOMENTS, ClientLine, Figures, Measured, PartScores
from ..records import Record, nbytes
from .client.jobs import Answer, Job
from .client.scoring import summarize_clients
from .events import Observer
from .executors.base import Executor, collect
from .plan import Plan
from .server_bench import ServerBench, broadcasts


class Evaluation:
    def __init__(
        self,
        plan: Plan,
        executor: Executor,
        tell: Observer,
        server: Record,
        t: int,
        answers: Mapping[int, Answer],
        last: Mapping[int, PartScores],
        measured: Set[int] = frozenset(),
    ) -> None:
        """`measured` are the participants that were measured after training."""
        self.plan = plan
        self.executor = executor
        self.tell = tell
        self.server = server
        self.t = t
        self.answers = answers
        self.scores: dict[str, dict[int, PartScores]] = {}
        if "post" in plan.experiment.evaluate.moments:
            self.scores["post"] = {c: _parts(a) for c, a in answers.items() if c in measured}
        self.last = {**last, **self.scores.get("post", {})}
        """each client's scores after its last training"""

    def measure(self) -> Measured:
        """The round's metrics by moment, and the bytes sent only to evaluate."""
        moments = self.plan.experiment.evaluate.moments
        everyone = self.plan.measured
        sent = self._ask(everyone) if "pre" in moments else 0
        if "post" in moments:
            untrained = [c for c in everyone if c not in self.last]
            sent += 0 if "pre" in moments or not untrained else self._ask(untrained)
            fallback = {c: self.scores["pre"][c] for c in untrained if c in self.scores["pre"]}
            among = set(everyone)
            self.scores["stale"] = {c: parts for c, parts in self.last.items() if c in among} | fallback
        if "global" in moments:
            sent += self._ask_global(everyone)
        due = [m for m in MOMENTS if m in self.scores and (m in moments or m == "stale")]
        summaries = {m: _summary(self.scores[m], self.plan.metric) for m in due}
        if "stale" in summaries:
            summaries["stale"]["untrained"] = sum(c not in self.last for c in self.scores["stale"])
        return cast(Measured, {**summaries, "bytes_evaluation": sent})

    def lines(self, traffic: Mapping[int, Mapping[str, int]]) -> list[ClientLine]:
        by_moment = {m: s for m, s in self.scores.items() if m != "stale"}
        clients = sorted({*self.answers, *(c for scores in by_moment.values() for c in scores)})
        lines: list[ClientLine] = []
        for c in clients:
            trained = {**traffic[c], "samples": self.answers[c].samples} if c in traffic else {}
            scores = {m: s[c] for m, s in by_moment.items() if c in s}
            lines.append(cast(ClientLine, {"round": self.t, "client": c, **trained, **scores}))
        return lines

    def _ask(self, clients: Iterable[int]) -> int:
        """Let these clients measure the model they would get now; return the bytes sent."""
        central = ServerBench(self.plan, self.t, "evaluate")
        downs = broadcasts(self.plan, self.server, clients, central)
        return self._send([Job("pre", c, self.t, down) for c, down in downs.items()])

    def _ask_global(self, clients: Iterable[int]) -> int:
        model = self.plan.method.global_model(self.server, ServerBench(self.plan, self.t, "evaluate"))
        if model is None:
            return 0
        down = Shared(model.params())
        return self._send([Job("global", c, self.t, down) for c in clients])

    def _send(self, jobs: list[Job]) -> int:
        self.scores[jobs[0].kind] = {c: _parts(a) for c, a in collect(self.executor, jobs, self.tell).items()}
        return sum(nbytes(job.down) for job in jobs)


def _parts(answer: Answer) -> PartScores:
    return {"test": answer.test, "val": answer.val}


def _summary(scores: Mapping[int, PartScores], main: Metric) -> Figures:
    """The metrics over all clients that have test samples, and the main metric on validation samples."""
    figures = summarize_clients({c: parts["test"] for c, parts in scores.items() if parts["test"]}, main)
    judged = summarize_clients({c: parts["val"] for c, parts in scores.items() if parts["val"]}, main)
    return {**figures, main.validation: judged[main.name]} if main.name in judged else figures
