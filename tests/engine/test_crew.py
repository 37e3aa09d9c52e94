"""How worker processes begin."""

from __future__ import annotations

from contextlib import closing

import pytest
from crew_tasks import failing, reading

from headwise.app import registry
from headwise.engine.executors.crew import Crew
from headwise.errors import ConfigError
from headwise.settings.experiment import Experiment


def test_workers_see_the_environment_as_it_is_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not as it was when the first of them began."""
    for value in ("before", "now"):
        monkeypatch.setenv("HEADWISE_TRIED", value)
        with closing(Crew(1, reading)) as crew:
            assert list(crew.run(["HEADWISE_TRIED"])) == [value]


def test_a_worker_that_cannot_begin_says_so_when_it_is_needed() -> None:
    with closing(Crew(1, failing)) as crew:
        for _ in range(2):
            with pytest.raises(ConfigError, match=r"worker 0 can't begin\."):
                list(crew.run(["anything"]))


@pytest.mark.parametrize(
    ("workers", "expected"), [(2, ["headwise.app.prepare"]), (1, []), ("auto", []), ("threads:2", [])]
)
def test_only_processes_that_were_asked_for_are_expected(
    workers: int | str, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    monkeypatch.setattr(registry, "start_server", started.append)
    registry.expect_workers(Experiment(engine={"workers": workers}))  # pyright: ignore[reportArgumentType]
    assert started == expected
