"""What authors import is documented, with examples that run."""

from __future__ import annotations

import doctest
import inspect
import re
from typing import Any

import pytest
import torch

from headwise import authoring
from headwise.contract import averaging, benches, method
from headwise.engine.client.client_bench import ClientBench
from headwise.records import nbytes
from headwise.testing import find_method
from headwise.testing.toy import toy_plan

CODE = {name: value for name, value in vars(authoring).items() if name in authoring.__all__}
FUNCTIONS = {name: value for name, value in CODE.items() if inspect.isfunction(value)}
CLASSES = {name: value for name, value in CODE.items() if inspect.isclass(value)}
WITHOUT_EXAMPLE = {"Bench", "Central", "Local", "Range"}
"""what a method is given, and the type of options' types: nobody makes one"""


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_says_what_it_takes_and_returns(name: str) -> None:
    text = inspect.getdoc(FUNCTIONS[name]) or ""
    arguments = text.partition("Args:")[2].partition("Returns:")[0]
    assert re.findall(r"^    (\w+): ", arguments, re.MULTILINE) == [*inspect.signature(FUNCTIONS[name]).parameters]
    assert "Returns:" in text


@pytest.mark.parametrize("name", [*FUNCTIONS, *sorted(CLASSES.keys() - WITHOUT_EXAMPLE)])
def test_its_example_runs(name: str) -> None:
    public = {**vars(authoring), **{k: v for m in (averaging, benches, method) for k, v in vars(m).items()}}
    names: dict[str, Any] = {**public, "torch": torch, "nn": torch.nn, "nbytes": nbytes}
    tests = doctest.DocTestFinder(recurse=False).find(CODE[name], name, globs=names)
    assert [len(test.examples) > 0 for test in tests] == [True]
    assert doctest.DocTestRunner().run(tests[0]).failed == 0


class Kept(authoring.Record):
    share: float


def test_a_method_that_keeps_more_must_say_how_it_begins() -> None:
    with pytest.raises(NotImplementedError, match="write `client_init`, which returns the first Kept of a client"):
        method.begin(Kept, local_bench())


def test_what_is_sent_and_kept_must_be_a_whole_model() -> None:
    local = local_bench()
    whole = local.init()
    m = method.assemble(authoring.OwnHead(whole.state("head")), authoring.Shared(whole.params("body")), local)
    assert torch.equal(m.head.weight, whole.head.weight)
    with pytest.raises(NotImplementedError, match=r"write `personalize`: 'head\.bias' is neither sent nor kept"):
        method.assemble(Kept(0.5), authoring.Shared(whole.params("body")), local)


def local_bench() -> Any:
    """Of a client of a small federation."""
    return ClientBench(toy_plan(find_method("fedavg")()), 0, 1, purpose="fit", kept=authoring.Params(), trained=0)
