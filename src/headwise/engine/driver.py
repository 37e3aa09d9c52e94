"""The only round loop. Who, when and in which order; never what: that is the method's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, Protocol

from ..averaging import Shared
from ..method import Reply
from ..records import Record, nbytes
from .bench import ServerBench
from .evaluation import Score, over_clients
from .events import ClientDone, Observer, Progress, Reason, RoundEnded, RoundStarted, RunEnded, RunStarted
from .plan import Plan
from .sampling import sample
from .state import ClientState
from .worker import Answer, Job


class Executor(Protocol):
    """Where clients live: in this process, in a pool of processes, on other machines."""

    @property
    def states(self) -> Mapping[int, ClientState]:
        """The states of the clients that have trained, as far as they are kept here."""
        ...

    def run(self, jobs: Iterable[Job]) -> Iterator[Answer]:
        """Do the jobs, in any order; training also renews the client's state."""
        ...


def drive(
    plan: Plan,
    executor: Executor,
    observers: Iterable[Observer] = (),
    *,
    start: Progress | None = None,
    interrupted: Callable[[], bool] = lambda: False,
) -> Reason:
    """Run the rounds that are left, and say why it ended."""
    observers = tuple(observers)

    def tell(event: Any) -> None:
        for observe in observers:
            observe(event)

    now = start or Progress(0, plan.method.server_init(ServerBench(plan, 0)), {"stale": {}, "best": None, "waited": 0})
    begun = time.monotonic()
    tell(RunStarted(plan.rounds, len(plan.data), now.t))
    reason: Reason = "finished"
    while now.t < plan.rounds:
        ended = _round(plan, executor, now, tell)
        now = ended.progress
        tell(ended)
        if now.t < plan.rounds and (early := _stops(plan, now, begun, interrupted)):
            reason = early
            break
    tell(RunEnded(reason))
    return reason


def _stops(plan: Plan, now: Progress, begun: float, interrupted: Callable[[], bool]) -> Reason | None:
    if interrupted():
        return "interrupted"
    if plan.stop.patience is not None and now.carry["waited"] >= plan.stop.patience:
        return "patience"
    if plan.stop.budget is not None and time.monotonic() - begun >= plan.stop.budget:
        return "budget"
    return None


def _round(plan: Plan, executor: Executor, now: Progress, tell: Observer) -> RoundEnded:
    """One round: draw clients, send, train, aggregate in client order, evaluate."""
    t, begun = now.t + 1, time.perf_counter()
    central = ServerBench(plan, t)
    chosen = sample(plan.sampling, len(plan.data), plan.seed, t)
    tell(RoundStarted(t, tuple(chosen)))
    measured = t % plan.evaluate.every == 0 or t == plan.rounds
    downs = {c: plan.method.broadcast(now.server, c, central) for c in chosen}
    # post is measured in every round, or a client's stale value would not be that of its last training
    jobs = [Job("fit", c, t, downs[c], measure="post" in plan.evaluate.moments) for c in chosen]
    answers = _collect(executor, jobs, tell)
    trained = time.perf_counter()
    replies = [Reply(a.client, _up(a), a.n) for a in answers.values()]
    server = plan.method.aggregate(now.server, replies, central)

    traffic = {c: (nbytes(_up(answers[c])), nbytes(downs[c])) for c in chosen}
    evaluation = _Evaluation(plan, executor, tell, server, t, now.carry["stale"], answers)
    row: dict[str, Any] = {"round": t, "clients": chosen, **_totals(traffic)}
    if measured:
        row |= evaluation.measure()
    row["seconds"] = {"train": trained - begun, "round": time.perf_counter() - begun}
    row["samples"] = sum(a.samples for a in answers.values())
    carry = {"stale": evaluation.stale, **_patience(now.carry, row, plan.data.has_validation)}
    return RoundEnded(row, evaluation.lines(traffic), Progress(t, server, carry), executor.states)


def _collect(executor: Executor, jobs: list[Job], tell: Observer) -> dict[int, Answer]:
    """All answers in client order, whatever the order they came in."""
    answers: dict[int, Answer] = {}
    for a in executor.run(jobs):
        answers[a.client] = a
        tell(ClientDone(jobs[0].t, a.client, a.task, a.samples))
    return dict(sorted(answers.items()))


def _up(answer: Answer) -> Record:
    assert answer.up is not None
    return answer.up


def _totals(traffic: Mapping[int, tuple[int, int]]) -> dict[str, int]:
    return {"bytes_up": sum(u for u, _ in traffic.values()), "bytes_down": sum(d for _, d in traffic.values())}


def _patience(carry: Mapping[str, Any], row: Mapping[str, Any], has_validation: bool) -> dict[str, Any]:
    """The best evaluation so far and how many there were since; on validation samples where there are any."""
    name = next((m for m in ("pre", "stale", "global") if m in row), None)
    if name is None:
        return {"best": carry["best"], "waited": carry["waited"]}
    value = row[name].get("val_accuracy" if has_validation else "accuracy", 0.0)
    if carry["best"] is None or value > carry["best"]:
        return {"best": value, "waited": 0}
    return {"best": carry["best"], "waited": carry["waited"] + 1}


class _Evaluation:
    """The moments of one round (METHODS §11): pre on all clients, post on participants, stale where nobody trained."""

    def __init__(
        self,
        plan: Plan,
        executor: Executor,
        tell: Observer,
        server: Record,
        t: int,
        stale: Mapping[str, Any],
        answers: Mapping[int, Answer],
    ) -> None:
        self.plan, self.executor, self.tell, self.server, self.t = plan, executor, tell, server, t
        self.answers, self.scores = answers, dict[str, dict[int, Answer]]()
        fresh = {str(c): _plain(a) for c, a in answers.items() if a.test or a.val}
        self.stale: dict[str, Any] = {**stale, **fresh}

    def measure(self) -> dict[str, Any]:
        """The round's metrics by moment, and the bytes that only the evaluation sent."""
        moments, everyone = self.plan.evaluate.moments, range(len(self.plan.data))
        found: dict[str, Any] = {}
        sent = 0
        if "pre" in moments:
            sent += self._ask("pre", everyone)
            found["pre"] = self._summary(self.scores["pre"])
        if "post" in moments:
            found["post"] = self._summary(self.answers)
            unseen = [c for c in everyone if str(c) not in self.stale]
            if "pre" not in moments and unseen:
                sent += self._ask("pre", unseen)
            found["stale"] = self._stale_summary(unseen)
        if "global" in moments:
            sent += self._ask_global(everyone)
        if "global" in self.scores:
            found["global"] = self._summary(self.scores["global"])
        return {**found, "bytes_evaluation": sent}

    def lines(self, traffic: Mapping[int, tuple[int, int]]) -> list[dict[str, Any]]:
        """What is known of each client after this round."""
        touched = sorted({*self.answers, *(c for scores in self.scores.values() for c in scores)})
        lines: list[dict[str, Any]] = []
        for c in touched:
            line: dict[str, Any] = {"round": self.t, "client": c}
            if c in traffic:
                line |= {"bytes_up": traffic[c][0], "bytes_down": traffic[c][1], "samples": self.answers[c].samples}
            line |= {moment: _plain(scores[c]) for moment, scores in self.scores.items() if c in scores}
            if c in self.answers and self.answers[c].test:
                line["post"] = _plain(self.answers[c])
            lines.append(line)
        return lines

    def _ask(self, task: Any, clients: Iterable[int]) -> int:
        """Let these clients evaluate what they would be sent now; return the bytes that took."""
        central = ServerBench(self.plan, self.t, "evaluate")
        jobs = [Job(task, c, self.t, self.plan.method.broadcast(self.server, c, central)) for c in clients]
        self.scores[task] = _collect(self.executor, jobs, self.tell)
        return sum(nbytes(job.down) for job in jobs)

    def _ask_global(self, clients: Iterable[int]) -> int:
        """Let the clients evaluate the one global model, where the method has one."""
        model = self.plan.method.global_model(self.server, ServerBench(self.plan, self.t, "evaluate"))
        if model is None:
            return 0
        down = Shared(model.params())
        jobs = [Job("global", c, self.t, down) for c in clients]
        self.scores["global"] = _collect(self.executor, jobs, self.tell)
        return nbytes(down) * len(jobs)

    def _summary(self, answers: Mapping[int, Answer]) -> dict[str, Any]:
        tests = {c: a.test for c, a in answers.items() if a.test}
        vals = {c: a.val for c, a in answers.items() if a.val}
        return _with_validation(tests, vals)

    def _stale_summary(self, unseen: Iterable[int]) -> dict[str, Any]:
        """Every client's last personal model; one that never trained counts with what it would use now."""
        plain = {int(c): s for c, s in self.stale.items()}
        plain |= {c: _plain(self.scores["pre"][c]) for c in unseen}
        tests = {c: Score(**s["test"]) for c, s in plain.items() if s["test"]}
        vals = {c: Score(**s["val"]) for c, s in plain.items() if s["val"]}
        return {**_with_validation(tests, vals), "untrained": len(list(unseen))}


def _with_validation(tests: Mapping[int, Score], vals: Mapping[int, Score]) -> dict[str, Any]:
    found: dict[str, Any] = over_clients(tests)
    if vals:
        found["val_accuracy"] = over_clients(vals)["accuracy"]
    return found


def _plain(answer: Answer) -> dict[str, Any]:
    return {"test": asdict(answer.test) if answer.test else None, "val": asdict(answer.val) if answer.val else None}
