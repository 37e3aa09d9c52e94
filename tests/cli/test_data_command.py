"""``headwise data show``: the partition before training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from saying import Headwise, assert_refused, small

import headwise as hw

ARGS = ["--data", "synthetic:120:3:5:sites=2", "--partition", "dirichlet:0.5", "--clients", "4"]


def test_it_is_what_a_run_would_get(headwise: Headwise, here: Path) -> None:
    result = headwise("data", "show", *ARGS, "--json")
    assert (result.code, result.err) == (0, "")
    shown = json.loads(result.out)
    headwise(*small(out="run", partition="dirichlet:0.5", clients="4", rounds="1"), "--quiet")
    assert {**shown["samples"], "classes": shown["class_names"]} == json.loads(
        (here / "run" / "partition.json").read_text()
    )
    assert shown["hash"] == hw.Run(here / "run").manifest["partition"]["hash"]
    assert shown["floor"]["weighted"] == hw.Run(here / "run").floor


def test_a_person_sees_a_table_and_words(headwise: Headwise, here: Path) -> None:
    result = headwise("data", "show", *ARGS)
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[0] == "synthetic:120:3, dirichlet:0.5, 4 clients"
    shown = json.loads(headwise("data", "show", *ARGS, "--json").out)
    rows = [line.split() for line in lines[2:6]]
    for c, row in enumerate(rows):
        train = shown["samples"]["train"][c]
        test = shown["samples"]["test"][c]
        assert row == [str(c), str(sum(train)), str(sum(test)), *(str(n) if n else "·" for n in train)]
    train, test = (sum(map(sum, shown["samples"][part])) for part in ("train", "test"))
    assert f"4 clients share {train} training, 0 validation and {test} test samples." in result.out
    assert list(here.iterdir()) == []


def test_the_picture_is_a_page(headwise: Headwise, here: Path) -> None:
    assert headwise("data", "show", *ARGS, "-o", "p.html").out.endswith("The picture is in p.html.\n")
    text = (here / "p.html").read_text()
    assert "fig-labels" in text
    assert "fig-accuracy" not in text.split("<script")[0]


def test_too_many_clients_for_a_table_are_said(headwise: Headwise) -> None:
    result = headwise("data", "show", "--data", "synthetic:600:3:5:sites=2", "--partition", "iid", "--clients", "50")
    assert "50 clients and 3 classes are too many for a table here" in result.out
    assert "50 clients share" in result.out


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["--partition", "dirichlt:0.5"], ["dirichlt", "did you mean 'dirichlet'?"]),
        (["--clients", "0"], ["clients is 0", "from 1 to"]),
        (["--data", "digit"], ["digit", "did you mean 'digits'?"]),
    ],
)
def test_mistakes_are_refused(args: list[str], parts: list[str], headwise: Headwise, here: Path) -> None:
    assert_refused(headwise("data", "show", *args, "-o", "p.html"), *parts)
    assert list(here.iterdir()) == []
