"""Differential privacy: what leaves a client, what it costs, and what is refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from opacus.accountants import RDPAccountant

import headwise as hw
from headwise.app.launch import data_folder
from headwise.app.prepare import prepare
from headwise.contract.averaging import Shared
from headwise.contract.benches import ClassMeans
from headwise.engine.client.jobs import Job, handle
from headwise.engine.mechanism import Releases
from headwise.errors import AccountingError, ConfigError
from headwise.methods.fd import FD, Logits
from headwise.methods.fedavg import FedAvg
from headwise.methods.fedgh import FedGH
from headwise.methods.fedgmh import FedGMH
from headwise.methods.fedproto import FedProto
from headwise.methods.scaffold import Global, Trained
from headwise.params import Params
from headwise.privacy import mechanisms
from headwise.privacy.accountant import account, compose
from headwise.privacy.gaussian import ClientGaussian, NoisyMeans, NoisyModels, gaussian
from headwise.privacy.mechanisms import mechanism_for
from headwise.records import Record, same
from headwise.settings.options import Privacy
from headwise.testing.toy import AnyMethod, Recorder, play, toy_plan

SIZE = 40_000
DOWN = Shared(Params(a=torch.zeros(SIZE), b=torch.zeros(2, 3)))


def sent(up: Shared, **settings: Any) -> Params:
    mechanism = NoisyModels(**{"clip": 1.0, "noise": 1.0, **settings})
    record = mechanism.protect(DOWN, up, classes=4, seed=0, client=3, t=1)
    assert isinstance(record, Shared)
    return record.w


def changed(size: float) -> Shared:
    """A change of this norm, all of it in the first number."""
    a = torch.zeros(SIZE)
    a[0] = size
    return Shared(Params(a=a, b=torch.zeros(2, 3)))


@pytest.mark.parametrize(("norm", "left"), [(0.0, 0.0), (0.5, 0.5), (2.0, 2.0), (50.0, 2.0), (1e30, 2.0)])
def test_changes_are_clipped(norm: float, left: float) -> None:
    w = sent(changed(norm), clip=2.0, noise=1e-6)
    assert w["a"][0].item() == pytest.approx(left, abs=1e-4)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nothing_is_told_by_a_model_that_diverged(value: float) -> None:
    w = sent(changed(value), noise=1e-6)
    assert w["a"].abs().max() < 1e-4


@pytest.mark.parametrize("source", ["system", "seed"])
def test_noise_has_the_stated_variance(source: str) -> None:
    """40,000 numbers of deviation s = noise x 2 clip, and bounds of six standard errors or more.

    Of the system's numbers, that fails by chance about once in a hundred million times.
    """
    w = sent(changed(0.0), clip=0.5, noise=3.0, source=source)
    s, error = 3.0, 3.0 / math.sqrt(SIZE)
    assert w["a"].std().item() == pytest.approx(s, abs=6 * error / math.sqrt(2))
    assert w["a"].mean().item() == pytest.approx(0, abs=6 * error)
    assert ((w["a"] / s).abs() < 1).double().mean().item() == pytest.approx(math.erf(1 / math.sqrt(2)), abs=0.015)
    assert ((w["a"] / s) ** 4).mean().item() == pytest.approx(3, abs=0.35)


def test_noise_of_the_system_is_never_the_same_and_that_of_the_seed_always() -> None:
    again = [sent(changed(1.0), source=source) for source in ("system", "system", "seed", "seed")]
    assert not torch.equal(again[0]["a"], again[1]["a"])
    assert same(Shared(again[2]), Shared(again[3]))


def test_large_models_are_drawn_in_pieces() -> None:
    drawn = gaussian(torch.Size([2**20 + 5]), None)
    assert drawn.shape == (2**20 + 5,)
    assert drawn.isfinite().all()
    assert drawn.unique().numel() > 2**20
    assert gaussian(torch.Size([0, 3]), None).shape == (0, 3)


def test_without_a_clip_nothing_is_changed() -> None:
    mechanism = mechanism_for(Privacy(), FedAvg())
    assert mechanism.protect(DOWN, up := changed(5.0), classes=4, seed=0, client=3, t=1) is up


def test_what_a_worker_answers_is_protected() -> None:
    """At the client, whatever the transport."""
    plan = toy_plan(FedAvg())
    down = Shared(plan.models[0].params())
    plain, _ = handle(plan, Job("fit", 0, 1, down), None)
    quiet, _ = handle(replace(plan, privacy=NoisyModels(1e-3, 1e-9)), Job("fit", 0, 1, down), None)
    assert isinstance(plain.up, Shared)
    assert isinstance(quiet.up, Shared)
    assert float((plain.up.w - down.w).sq_norm().sqrt()) > 1e-2
    assert float((quiet.up.w - down.w).sq_norm().sqrt()) == pytest.approx(1e-3, rel=1e-2)
    assert (plain.n, plain.samples) == (13, 13)
    assert (quiet.n, quiet.samples) == (1, 0), "how many samples a client has is nobody's business"


CLASSES, WIDTH = 4, 10_000
HELD = ClassMeans(torch.tensor([1, 3], dtype=torch.int32), torch.ones(2, WIDTH))


def sent_means(up: ClassMeans, **settings: Any) -> ClassMeans:
    mechanism = NoisyMeans(**{"clip": 1.0, "noise": 1e-9, **settings})
    record = mechanism.protect(DOWN, up, classes=CLASSES, seed=0, client=3, t=1)
    assert isinstance(record, type(up))
    return record


def test_class_means_leave_for_all_classes() -> None:
    """Otherwise labels would reveal which classes the client holds; the means of all others are zeros.

    The bound is fifty deviations of the noise.
    """
    found = sent_means(HELD, clip=1e6, noise=1e-10)
    assert found.labels.tolist() == [0, 1, 2, 3]
    assert found.labels.dtype == torch.int32
    assert torch.allclose(found.means, torch.tensor([0.0, 1.0, 0.0, 1.0])[:, None].expand(4, WIDTH), atol=1e-2)


@pytest.mark.parametrize("clip", [0.5, 3.0])
def test_class_means_are_clipped_together(clip: float) -> None:
    """Two rows of 10,000 ones have norm sqrt(20,000): together they are clipped to norm `clip`."""
    assert sent_means(HELD, clip=clip).means.norm().item() == pytest.approx(clip, rel=1e-3)


def test_no_class_at_all_looks_like_any_other_message() -> None:
    nobody, unknown = HELD.where(False), Logits(torch.tensor([-1, 2], dtype=torch.int32), torch.ones(2, WIDTH))
    assert sent_means(nobody).means.shape == sent_means(HELD).means.shape == (CLASSES, WIDTH)
    assert sent_means(unknown, clip=1e6).means.mean(1).round().tolist() == [0, 0, 1, 0]


def test_noise_on_class_means_has_the_stated_variance() -> None:
    """Also on the rows of classes that the client does not hold; bounds and chance as above."""
    means = sent_means(HELD.where(False), clip=0.5, noise=3.0).means
    assert means.std().item() == pytest.approx(3.0, abs=6 * 3.0 / math.sqrt(2 * means.numel()))
    assert means.std(1).min().item() == pytest.approx(3.0, abs=6 * 3.0 / math.sqrt(2 * WIDTH))


def test_any_two_clients_differ_by_at_most_the_sensitivity() -> None:
    """The noise is a multiple of twice the clip, the largest distance between two clipped messages."""
    far = [sent_means(ClassMeans(HELD.labels, s * HELD.means), clip=2.0).means for s in (1.0, -1.0)]
    assert (far[0] - far[1]).norm().item() == pytest.approx(4.0, rel=1e-3)


@pytest.mark.parametrize("method", [FedGH(), FedGMH(), FedProto(weights="equal"), FD()], ids=lambda m: type(m).__name__)
def test_what_the_server_does_not_see_of_labels(method: AnyMethod) -> None:
    """All clients send and receive the same number of bytes, whatever classes they hold."""
    recorder: Recorder = play(replace(toy_plan(method), privacy=NoisyMeans(1.0, 1.0)))
    lines = [json.loads(line) for line in recorder.trace().lines]
    sizes = {(line["bytes_up"], line["bytes_down"]) for line in lines if line["round"] == 1}
    assert len(lines) > 5
    assert len(sizes) == 1


def by_hand(noise: float, rounds: int, delta: float) -> float:
    """The Renyi divergence is order / (2 noise^2) per round, turned into epsilon by Balle et al. 2020, Theorem 21."""

    def at(a: float) -> float:
        return rounds * a / (2 * noise**2) + math.log((a - 1) / a) - (math.log(delta) + math.log(a)) / (a - 1)

    return min(at(1 + k / 1000) for k in range(1, 400_000, 7))


def spent(method: str = "fedavg", **settings: Any) -> dict[str, Any]:
    return account(prepare(hw.Experiment(method=method, clients=5, **settings), data_folder(None)).plan)


@pytest.mark.parametrize(
    ("noise", "rounds", "delta"), [(1.0, 1, 1e-5), (2.0, 10, 1e-5), (10.0, 50, 1e-6), (0.5, 3, 1e-3), (30.0, 100, 1e-5)]
)
def test_epsilon_is_what_the_formula_gives(noise: float, rounds: int, delta: float) -> None:
    found = spent(rounds=rounds, privacy={"clip": 1.0, "noise": noise, "delta": delta})
    assert found["epsilon"] == pytest.approx(by_hand(noise, rounds, delta), rel=0.01)
    assert (found["delta"], found["unit"]) == (delta, "client")


@pytest.mark.parametrize(
    ("noise", "rate", "steps", "golden"),
    [(2.0, 1.0, 10, 8.079406222420491), (1.0, 0.2, 250, 26.702820456063176), (3.0, 0.01, 10_000, 1.4398258970825584)],
)
def test_epsilon_is_what_the_library_gives(noise: float, rate: float, steps: int, golden: float) -> None:
    """Golden: Opacus 1.6.0 with its own orders; and its accountant here and now, step by step."""
    found = compose((Releases(noise, rate, steps),), 1e-5)
    assert found == pytest.approx(golden, rel=1e-4)
    accountant = RDPAccountant()
    for _ in range(steps):
        accountant.step(noise_multiplier=noise, sample_rate=rate)
    assert found == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-4)


def test_that_clients_are_drawn_is_not_counted_in_their_favour() -> None:
    few, all_of_them = (spent(sampling={"ratio": r}, privacy={"clip": 1.0}) for r in (0.2, 1.0))
    assert few == all_of_them


def test_who_sends_nothing_spends_nothing() -> None:
    assert spent("standalone", privacy={"clip": 1.0})["epsilon"] == 0


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"method": "scaffold"}, r"scaffold can't be accounted for: what it sends \(w, dc\) has no known sensitivity"),
        ({"method": "fedproto"}, "fedproto can't be accounted for: it sends counts besides class means"),
        ({"method": "cd2-pfed"}, r"what it sends \(w\) has no known sensitivity"),
        ({"buffers": "all"}, "buffers is 'all'"),
        ({"faults": {"on_failure": "retry"}}, "faults.on_failure is 'retry'"),
    ],
)
def test_what_cannot_be_accounted_for_is_refused(settings: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"privacy\.clip is 1, but .*" + says):
        hw.run(hw.Experiment(privacy={"clip": 1.0}, **settings), tmp_path / "run")
    assert not (tmp_path / "run").exists()


SMALL = {"data": "synthetic:60:3:4:sites=2", "partition": "iid", "model": "mlp:3", "clients": 3, "rounds": 2}


class NoisyControls(ClientGaussian):
    """A new mechanism: SCAFFOLD's model and control variate, protected as one vector."""

    name = "noisy-controls"
    messages = (Trained,)

    def add_noise(self, down: Record, up: Record, classes: int, rng: torch.Generator | None) -> Record:
        assert isinstance(down, Global)
        assert isinstance(up, Trained)
        both = Params({f"w/{k}": t - down.w[k] for k, t in up.w.items()} | {f"c/{k}": t for k, t in up.dc.items()})
        both = self.clip_and_add_noise(both, rng)
        w, dc = (Params({k: both[f"{part}/{k}"] for k in up.w}) for part in "wc")
        return Trained(down.w + w, dc)


def test_a_new_mechanism_is_one_class(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Once in the table, it is found, rehearsed, applied and accounted for."""
    monkeypatch.setattr(mechanisms, "MECHANISMS", (*mechanisms.MECHANISMS, NoisyControls))
    settings = {"method": "scaffold", "privacy": {"clip": 1.0, "noise": 5.0}, "engine": {"workers": 1}, **SMALL}
    run = hw.run(hw.Experiment(**settings), tmp_path / "run")
    assert run.manifest["privacy"]["epsilon"] == pytest.approx(by_hand(5.0, 2, 1e-5), rel=0.01)
    assert run.manifest["privacy"]["unit"] == "client"


@pytest.mark.parametrize("method", ["fedper", "fedgmh"])
def test_a_run_says_what_it_spent(method: str, tmp_path: Path) -> None:
    run = hw.run(hw.Experiment(method=method, privacy={"clip": 1.0, "noise": 5.0}, **SMALL), tmp_path / "run")
    found = json.loads((run.path / "manifest.json").read_text())["privacy"]
    assert found["epsilon"] == pytest.approx(by_hand(5.0, 2, 1e-5), rel=0.01)
    assert run.summary()["privacy"] == found
    assert run.privacy == f"epsilon {found['epsilon']:.3g}, delta 1e-05, of one client against the server"
    assert json.loads((run.path / "result.json").read_text())["privacy"] == found


def test_a_mechanism_can_be_named() -> None:
    named = Privacy(clip=1.0, mechanism="noisy-means")
    assert isinstance(mechanism_for(named, FedGMH()), NoisyMeans)
    with pytest.raises(AccountingError, match="no known sensitivity"):
        mechanism_for(named, FedAvg())
    with pytest.raises(ConfigError, match=r"privacy\.mechanism is 'noisy'"):
        mechanism_for(Privacy(clip=1.0, mechanism="noisy"), FedAvg())
