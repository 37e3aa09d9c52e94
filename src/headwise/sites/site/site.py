"""A site: takes an order, checks it against its policy, runs its clients' jobs, keeps their states, reports."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ...app.prepare import prepare
from ...contract.method import record_types
from ...engine.client.jobs import Answer, Job
from ...engine.client.state import States
from ...engine.executors.local import Serial
from ...engine.host import peak_memory, use_one_thread
from ...engine.plan import Plan
from ...errors import HeadwiseError, RunError
from ...records import Record, RecordError, encode
from ...settings.experiment import experiment_from
from ..secagg.round import Masking, pack_reply, unpack_request
from ..states import SiteStates
from ..transport.messages import (
    Order,
    Report,
    SiteJob,
    SiteMessage,
    experiment_in,
    pack_error,
    pack_report,
    unpack_order,
)
from .policy import Policy, read_policy


@dataclass(frozen=True)
class OpenPolicy:
    """For the nodes of a simulation, which trust the run that started them: all data, no rules, no ledger."""

    data_dir: Path

    def plan(self, experiment: str) -> Plan:
        return _plan_simulated(experiment, self.data_dir)

    def admit(self, size: int) -> None: ...

    def check_order(self, plan: Plan, clients: Sequence[int], rounds: Iterable[int]) -> None: ...

    def charge(self, plan: Plan, order: Order, kept: SiteStates) -> None: ...

    def release(self, plan: Plan, job: Job, answer: Answer, before: Record | None, after: Record | None) -> Answer:
        return answer


@dataclass(frozen=True)
class Site:
    folder: Path
    policy: Policy | OpenPolicy
    exports: bool = False
    """whether to keep downloads beside the states, so that personal models can be exported"""

    def answer(self, kind: str, message: SiteMessage) -> SiteMessage:
        """Answer a query, which asks who the site is, or an order or a stage of one; an error becomes a report."""
        try:
            self.policy.admit(message.size)
            experiment = experiment_in(message)
            if kind == "query" and isinstance(self.policy, Policy):
                return self.policy.introduce(experiment)
            plan = self.policy.plan(experiment)
            if stage := unpack_request(message):
                run, request = stage
                self.policy.check_order(plan, request.clients, [request.t])
                return pack_reply(Masking(plan, SiteStates(self.folder, run)).answer(request))
            return pack_report(self._carry_out(plan, unpack_order(message, record_types(type(plan.method)))))
        except (HeadwiseError, RecordError) as error:
            return pack_error(error)
        except Exception as error:  # no message may stop the site, and an error text may reveal data
            logging.getLogger(__name__).exception("a message failed")
            return pack_error(RunError(f"this is a bug in Headwise ({type(error).__name__}): see the site's log."))

    def _carry_out(self, plan: Plan, order: Order) -> Report:
        kept = SiteStates(self.folder, order.run)
        jobs = {site_job.job.client: site_job.job for site_job in order.site_jobs}
        self.policy.check_order(plan, [site_job.job.client for site_job in order.site_jobs], _rounds(jobs.values()))
        masking = None
        if order.sealed is not None or (plan.experiment.secure.sums and any(j.kind == "fit" for j in jobs.values())):
            masking = Masking(plan, kept)
            masking.check_order(order)
        states = States(record_types(type(plan.method)).client)
        for job, digest in order.site_jobs:
            if (data := kept.take(job.client, digest)) is not None:
                states[job.client] = data
        self.policy.charge(plan, order, kept)
        before = {c: states[c].me for c in states}
        executor = Serial(plan, states)
        with use_one_thread():
            done = list(executor.run(jobs.values()))
        after = {c: states[c].me for c in states}
        if self.exports:
            _keep_downloads(kept, order)
        answers = [
            self.policy.release(plan, jobs[a.client], a, before.get(a.client), after.get(a.client)) for a in done
        ]
        executor.clock.to("transport")
        digests = _keep_states(kept, order, answers, states)
        named = [(answer, digests.get(answer.client, "")) for answer in answers]
        masked = None
        if masking is not None:
            named, masked = masking.mask(order, named)
        executor.clock.stop()
        return Report(named, dict(executor.clock.seconds), os.getpid(), peak_memory(), masked)


def _rounds(jobs: Iterable[Job]) -> list[int]:
    """The rounds that the experiment must have; before the first, a client only measures or answers a census."""
    jobs = [job for job in jobs if job.t or job.kind in ("fit", "idle", "census")]
    return [1 if (job.kind, job.t) == ("census", 0) else job.t for job in jobs]


def _keep_downloads(kept: SiteStates, order: Order) -> None:
    kept.remember(order.experiment)
    for job, _ in order.site_jobs:
        if job.kind not in ("census", "global"):
            kept.put_download(job.client, encode(job.down))


def _keep_states(kept: SiteStates, order: Order, answers: Iterable[Answer], states: States) -> dict[int, str]:
    """Write the states of clients that trained; return their digests."""
    site_jobs: dict[int, SiteJob] = {site_job.job.client: site_job for site_job in order.site_jobs}
    digests: dict[int, str] = {}
    for answer in answers:
        job, before = site_jobs[answer.client]
        if answer.failure is None and job.kind in ("fit", "idle") and (data := states.encode(job.client)):
            digests[job.client] = kept.put(job.client, job.t, data, before)
    return digests


def open_site(path: Path) -> Site:
    policy = read_policy(path)
    return Site(policy.states, policy, exports=True)


@lru_cache(maxsize=1)
def _plan_simulated(experiment: str, data_dir: Path) -> Plan:
    """Cached: the next message is usually from the same run."""
    return prepare(experiment_from(json.loads(experiment)), data_dir).plan
