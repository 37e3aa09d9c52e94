"""A broadcast is one record, so that no executor stores or sends it twice."""

from __future__ import annotations

import pytest

from headwise.app import registry
from headwise.engine.server_bench import ServerBench, broadcasts
from headwise.testing.toy import play, toy_plan


@pytest.mark.parametrize(
    ("method", "alike"), [("fedavg", True), ("fedper", True), ("fedgh", True), ("scaffold", True), ("fedfomo", False)]
)
def test_records_of_the_very_same_things_are_one(method: str, alike: bool) -> None:
    plan = toy_plan(registry.find("method", method)(), rounds=2)
    server = play(plan).ended[-1].progress.server
    central = ServerBench(plan, 3)
    found = broadcasts(plan, server, range(len(plan.data)), central)
    assert list(found) == list(range(len(plan.data)))
    assert len({id(down) for down in found.values()}) == (1 if alike else len(found))
