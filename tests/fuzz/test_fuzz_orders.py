"""Orders in any sequence, for any run, to a site with a limit; Opacus alone adds up what leaves."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

from opacus.accountants import RDPAccountant

import headwise as hw
from headwise.contract.averaging import Shared
from headwise.engine.client.jobs import Job, JobKind
from headwise.sites.facts import resolve_for_sites
from headwise.sites.site.policy import read_policy
from headwise.sites.site.site import open_site
from headwise.sites.transport.messages import Order, SiteJob, pack_order

DATA = "synthetic:60:4:6:sites=1"
SITE = f"""name = "site"
data = "synthetic"
clients = [{{ id = 0, source = "{DATA}:only=0" }}]
allow = {{ epsilon = 3.4, epsilon_total = 6.0 }}
"""
COUNT = int(os.environ.get("HEADWISE_FUZZ", "60"))


def asked(rounds: int, noise: float) -> str:
    """An experiment, as a server sends it."""
    found = hw.Experiment(
        method="fedavg", data=DATA, partition="natural", model="mlp:6", clients=1, rounds=rounds,
        privacy={"clip": 1.0, "noise": noise},
    )  # fmt: skip
    return json.dumps(resolve_for_sites(found).to_plain())


def left(path: Path, run: str, t: int, text: str, kind: JobKind) -> bool:
    """Whether an upload leaves the site. The site is reopened, so it only knows what is on disk."""
    job = Job(kind, 0, t, Shared(read_policy(path).plan(text).models[0].params()))
    return bool(open_site(path).answer("train", pack_order(Order(run, text, [SiteJob(job, "")]))).records)


def test_whatever_a_server_asks_in_whatever_order_no_more_leaves_than_is_allowed(tmp_path: Path) -> None:
    rng, path = random.Random(18), tmp_path / "site.toml"
    path.write_text(SITE)
    texts = {(r, s): asked(r, s) for r, s in ((1, 2.0), (2, 2.0), (2, 4.0), (3, 8.0))}
    given: list[tuple[str, int, float]] = []
    kinds: list[JobKind] = ["fit", "fit", "fit", "idle", "pre"]
    for _ in range(COUNT):
        run, (most, noise) = f"run-{rng.randrange(6)}", rng.choice([*texts])
        t = rng.randrange(most + 2)
        if left(path, run, t, texts[most, noise], rng.choice(kinds)):
            given.append((run, t, noise))
    accountant = RDPAccountant()
    accountant.history = [(noise, 1.0, 1) for _, _, noise in given]
    assert 2.0 < accountant.get_epsilon(1e-5) <= 6.0
    assert len({(run, t) for run, t, _ in given}) == len(given) >= 3
    assert all(len({noise for r, _, noise in given if r == run}) == 1 for run, _, _ in given)
