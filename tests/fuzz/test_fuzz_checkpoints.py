"""A checkpoint folder with anything wrong in it: resume falls back to an older round, or fails in one sentence."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest
from fuzzing import damaged, fuzzed, try_call
from hypothesis import given
from hypothesis import strategies as st

import headwise as hw
from headwise.contract.method import record_types
from headwise.engine.client.state import decode_state, encode_state
from headwise.errors import RunError
from headwise.methods.fedper import FedPer
from headwise.records import RecordError, from_bytes
from headwise.runs.checkpoint import Checkpoints
from headwise.runs.query import Run

TYPES = record_types(FedPer)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good") / "run"
    small = {"data": "synthetic:80:3:4:sites=2", "partition": "iid", "model": "mlp:3", "clients": 3, "rounds": 2}
    hw.run(hw.Experiment(method="fedper", **small), folder)
    return folder


@fuzzed
@given(data=st.data())
def test_damaged_checkpoints(good: Path, tmp_path: Path, data: st.DataObject) -> None:
    folder = tmp_path / "checkpoint"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(good / "checkpoint", folder)
    path = data.draw(st.sampled_from(sorted(p for p in folder.iterdir() if p.is_file())))
    path.write_bytes(data.draw(damaged(path.read_bytes())))
    with closing(Checkpoints(folder, TYPES)) as checkpoints:
        if found := try_call(checkpoints.load, RunError, str(folder)):
            assert found.progress.t in (1, 2)
            assert [found.states[c].trained for c in found.states] == [found.progress.t] * 3


@fuzzed
@given(data=st.data())
def test_damaged_lines_and_manifests(good: Path, tmp_path: Path, data: st.DataObject) -> None:
    folder = tmp_path / "run"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name in ("manifest.json", "rounds.jsonl", "clients.jsonl", "result.json"):
        shutil.copy(good / name, folder)
    path = folder / data.draw(st.sampled_from(["manifest.json", "rounds.jsonl", "clients.jsonl", "result.json"]))
    path.write_bytes(data.draw(damaged(path.read_bytes())))
    run = Run(folder)
    for read in (lambda: run.manifest, lambda: run.ended, lambda: run.rounds, lambda: run.clients):
        try_call(read, RunError, str(folder))


@fuzzed
@given(data=st.data())
def test_damaged_states(good: Path, data: st.DataObject) -> None:
    with closing(Checkpoints(good / "checkpoint", TYPES)) as checkpoints:
        assert checkpoints.load() is not None
        whole = checkpoints.read(0)
    assert whole is not None
    changed = data.draw(damaged(whole))
    if state := try_call(lambda: decode_state(TYPES.client, changed), RecordError):
        assert from_bytes(encode_state(state)).scalars == from_bytes(changed).scalars
