"""A site: takes an order, runs its clients' jobs, keeps their states, reports."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...contract.method import record_types
from ...engine.client.state import States
from ...engine.executors.serial import Serial
from ...engine.host.clock import peak_memory
from ...engine.host.process import one_thread
from ...engine.plan import Plan
from ...errors import HeadwiseError, RunError
from ...records import RecordError, encode
from ..states import SiteStates
from ..transport.messages import (
    Order,
    Report,
    SiteMessage,
    experiment_in,
    pack_error,
    pack_reply,
    pack_report,
    unpack_order,
    unpack_request,
)
from .policy import OwnPolicy, SitePolicy
from .site_file import read_site

if TYPE_CHECKING:
    from ..secagg.masking import Masking


@dataclass(frozen=True)
class Site:
    folder: Path
    policy: SitePolicy
    exports: bool = False
    """whether to keep downloads beside the states, so that personal models can be exported"""

    def answer(self, message: SiteMessage) -> SiteMessage:
        """Answer an order or a stage; an error becomes a report."""
        try:
            self.policy.admit(message.size)
            plan = self.policy.plan(experiment_in(message))
            if stage := unpack_request(message):
                run, request = stage
                self.policy.expect(plan, request.clients, [request.t])
                return pack_reply(_masking(plan, SiteStates(self.folder, run)).answer(request))
            order = unpack_order(message, record_types(type(plan.method)))
            return pack_report(self._do(plan, order))
        except (HeadwiseError, RecordError) as error:
            return pack_error(error)
        except Exception as error:  # no message may stop the site, and an error text may reveal data
            logging.getLogger(__name__).exception("an order failed")
            return pack_error(RunError(f"this is a bug in Headwise ({type(error).__name__}): see the site's log."))

    def _do(self, plan: Plan, order: Order) -> Report:
        kept = SiteStates(self.folder, order.run)
        jobs = [site_job.job for site_job in order.site_jobs]
        # before round 1 it only measures, or answers a census
        told = [(job.kind, job.t) for job in jobs if job.t or job.kind in ("fit", "idle", "census")]
        rounds = [1 if told_of == ("census", 0) else told_of[1] for told_of in told]
        self.policy.expect(plan, [job.client for job in jobs], rounds)
        masking = None
        if order.sealed is not None or (plan.experiment.secure.sums and any(job.kind == "fit" for job in jobs)):
            masking = _masking(plan, kept)
            masking.check_order(order)
        states = States(record_types(type(plan.method)).client)
        site_jobs = {site_job.job.client: site_job for site_job in order.site_jobs}
        for client, site_job in site_jobs.items():
            if (data := kept.take(client, site_job.state)) is not None:
                states[client] = data
        self.policy.charge(plan, order, kept)
        before = {c: states[c].me for c in states}
        executor = Serial(plan, states)
        with one_thread():
            done = list(executor.run(jobs))
        after = {c: states[c].me for c in states}
        if self.exports:
            kept.remember(order.experiment)
            for job in jobs:
                if job.kind not in ("census", "global"):
                    kept.put_download(job.client, encode(job.down))
        answers = [
            self.policy.leaving(plan, site_jobs[a.client], a, before.get(a.client), after.get(a.client)) for a in done
        ]
        executor.clock.to("transport")
        new: dict[int, str] = {}
        for answer in answers:
            job, state = site_jobs[answer.client]
            if answer.failure is None and job.kind in ("fit", "idle") and (data := states.encode(job.client)):
                new[job.client] = kept.put(job.client, job.t, data, state)
        named, masked = [(answer, new.get(answer.client, "")) for answer in answers], None
        if masking is not None:
            named, masked = masking.mask(order, named)
        executor.clock.stop()
        return Report(named, dict(executor.clock.seconds), os.getpid(), peak_memory(), masked)


def open_site(path: Path) -> tuple[Site, OwnPolicy]:
    home, settings = path.absolute().parent, read_site(path)
    policy = OwnPolicy(settings, home)
    return Site(home / settings.states, policy, exports=True), policy


def _masking(plan: Plan, kept: SiteStates) -> Masking:
    from ..secagg.masking import Masking  # imported here because only masking needs Flower

    return Masking(plan, kept)
