"""`sampling.trace`: a file says who is there in each round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headwise as hw
from headwise.engine.sampling import read_trace
from headwise.errors import ConfigError, HeadwiseError, RunError
from same_runs import stop

RNG = np.random.default_rng(0)
NAMES = ("va", "rome", "San Jose, CA", "3")
CLIENTS = {name: (RNG.normal(size=(12, 3)), np.arange(12) % 2) for name in NAMES}
TEXT = '# who is up\nva, rome\n0,2\n\n"San Jose, CA",3\n'
ROUNDS = [[0, 1], [0, 2], [], [2, 3]]


def chosen(run: hw.Run) -> list[list[int]]:
    return [row.get("clients", []) for row in run.rounds]


def test_text_and_json_and_names_and_numbers(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(TEXT)
    (tmp_path / "t.json").write_text('[["va", 1], [0, "2"], [], ["San Jose, CA", "3"]]')
    for name in ("t.csv", "t.json"):
        found = read_trace(tmp_path / name, 4, NAMES, 4)
        assert [list(row) for row in found] == ROUNDS
    assert read_trace(tmp_path / "t.csv", 4, NAMES, 2) == read_trace(tmp_path / "t.csv", 4, NAMES, 4)


def test_exactly_these_take_part(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text(TEXT)
    trace = {"trace": str(tmp_path / "t.txt")}
    run = hw.fit(CLIENTS, method="fedah", rounds=4, out=tmp_path / "run", sampling=trace)
    assert chosen(run) == ROUNDS
    assert [row["bytes_up"] > 0 for row in run.rounds] == [True, True, False, True]
    half = hw.fit(CLIENTS, rounds=4, out=tmp_path / "half", sampling={**trace, "ratio": 0.5})
    assert [len(row) for row in chosen(half)] == [1, 1, 0, 1]
    assert all(set(a) <= set(b) for a, b in zip(chosen(half), ROUNDS, strict=True))


def cut(folder: Path, trace: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        hw.fit(CLIENTS, rounds=4, out=folder, sampling={"trace": str(trace)}, observers=[stop])


def test_a_resumed_run_sees_the_same_clients(tmp_path: Path) -> None:
    trace = tmp_path / "t.txt"
    trace.write_text(TEXT)
    whole = hw.fit(CLIENTS, rounds=4, out=tmp_path / "whole", sampling={"trace": str(trace)})
    cut(tmp_path / "cut", trace)
    trace.unlink()
    again = hw.resume(tmp_path / "cut")
    assert chosen(again) == ROUNDS
    assert [row.get("pre") for row in again.rounds] == [row.get("pre") for row in whole.rounds]


def test_a_changed_trace_is_refused_on_resume(tmp_path: Path) -> None:
    trace = tmp_path / "t.txt"
    trace.write_text(TEXT)
    cut(tmp_path / "cut", trace)
    (copy,) = (tmp_path / "cut" / "inputs").glob("trace-*.txt")
    copy.write_text("va\nva\nva\nva\n")
    with pytest.raises(RunError, match="is damaged: it has changed since the run began"):
        hw.resume(tmp_path / "cut")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("t.txt", b"va\nvaa\n", "whose round 2 names the client 'vaa', which does not exist: did you mean 'va'?"),
        ("t.txt", b"0\n9\n", "whose round 2 names the client '9', which does not exist: they are 3, "),
        ("t.txt", b"va,0\nva\n", "whose round 1 names client 0 twice."),
        ("t.txt", b"va\n", "which has 1 round, but rounds is 2."),
        ("t.txt", b"\xff\xfe\n", "which is not text in UTF-8."),
        ("t.json", b"[[0], [1]", "which is not valid JSON: "),
        ("t.json", b'{"1": [0]}', "which must hold a list with one list of clients per round."),
        ("t.json", b"[[0], [true]]", "whose round 2 names the client True, which does not exist"),
        ("t.json", b"[[0], [1.5]]", "whose round 2 names the client 1.5, which does not exist"),
        ("t.json", b"[[0], [null]]", "whose round 2 names the client None, which does not exist"),
        ("t.csv", b'"' + b"x" * 200_000, "which is not valid CSV: field larger than field limit"),
        ("t.txt", None, "which can't be read: No such file or directory."),
    ],
)
def test_a_bad_trace_is_one_sentence(tmp_path: Path, name: str, content: bytes | None, said: Any) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(HeadwiseError) as error:
        hw.fit(CLIENTS, rounds=2, out=tmp_path / "run", sampling={"trace": str(tmp_path / name)})
    assert str(error.value).startswith("sampling.trace is ")
    assert said in str(error.value)
    assert not (tmp_path / "run").exists()


def test_without_names_there_are_numbers(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("0\nva\n")
    with pytest.raises(ConfigError, match=r"round 2 names the client 'va', which does not exist: they are 0 to 2\."):
        read_trace(tmp_path / "t.txt", 3, (), 2)
