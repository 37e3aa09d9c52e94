"""Where the native library comes from, and that everything runs without it."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from native_chains import BUILDS, some_feed
from torch import nn

from headwise.engine.kernels.native import chain, library
from headwise.engine.kernels.native.chain import predict
from headwise.engine.kernels.optimizer import Rates
from headwise.engine.kernels.training import choose

RATES = Rates(0.1, 0.0, 0.0)


def dense() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 3))


def convolutional() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3))


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a new process."""
    monkeypatch.delenv(library.LIMIT, raising=False)
    for known in (library._path, library._open, chain._check):
        known.cache_clear()
    yield
    for known in (library._path, library._open, chain._check):
        known.cache_clear()


@pytest.fixture
def unbuilt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A package without a library, and an empty cache, which is returned."""
    name_of = library.name_of
    monkeypatch.setattr(library, "name_of", lambda *more: name_of("unbuilt", *more))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "headwise" / "native"


def compiler(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> Path:
    """A C compiler that does this, and counts how often it is called."""
    path = folder / "cc"
    path.write_text(f"#!/bin/sh\necho . >> {folder / 'calls'}\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("CC", str(path))
    return folder / "calls"


def test_without_a_compiler_everything_runs_on_torch(monkeypatch: pytest.MonkeyPatch, unbuilt: Path) -> None:
    monkeypatch.setenv("CC", str(unbuilt / "none"))
    assert str(chain.native()) == "torch: there is no native library, and no C compiler that can build it"
    assert predict(dense(), torch.randn(2, 4)) is None
    for made, shape in ((dense, (4,)), (convolutional, (1, 4, 4))):
        network = made()
        kernel = choose(network, [network], None, RATES, models=[network])
        assert (kernel.name, kernel.train(some_feed(shape, 3))) == ("plain", 2)


def test_a_compiler_that_fails_is_asked_once(monkeypatch: pytest.MonkeyPatch, unbuilt: Path, tmp_path: Path) -> None:
    calls = compiler(monkeypatch, tmp_path, "exit 1")
    for _ in range(2):
        assert library.find("").library is None
        asked = calls.read_text() if calls.exists() else ""
        library._path.cache_clear()
    assert calls.exists() == bool(library.builds())
    assert asked == (calls.read_text() if calls.exists() else "")
    assert all(path.stat().st_size == 0 for path in unbuilt.glob("*"))


def test_what_a_compiler_leaves_that_is_no_library_is_not_used(
    monkeypatch: pytest.MonkeyPatch, unbuilt: Path, tmp_path: Path
) -> None:
    compiler(monkeypatch, tmp_path, 'while [ $# -gt 1 ]; do [ "$1" = -o ] && echo broken > "$2"; shift; done')
    found = chain.native()
    assert found.library is None
    if library.builds():
        assert "can't be loaded" in found.why
        assert [p.suffix for p in unbuilt.glob("*")] == [".so"], "no half-made file is left"


def test_a_cache_that_cannot_be_written_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, unbuilt: Path, tmp_path: Path
) -> None:
    (tmp_path / "headwise").write_text("a file where the folder should be")
    compiler(monkeypatch, tmp_path, "exit 1")
    assert library.find("").library is None


def test_asking_what_there_is_compiles_nothing(monkeypatch: pytest.MonkeyPatch, unbuilt: Path, tmp_path: Path) -> None:
    calls = compiler(monkeypatch, tmp_path, "exit 1")
    assert library.find("", compiling=False).library is None
    assert not calls.exists()


def test_a_library_that_is_wrong_is_switched_off_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(chain, "difference", lambda _: 0.25)
    with caplog.at_level(logging.WARNING, "headwise"):
        found = [chain.native() for _ in range(2)]
    assert all(f.library is None for f in found)
    assert len(caplog.messages) == bool(BUILDS)
    if BUILDS:
        assert caplog.messages[0].endswith(f"its {BUILDS[-1]} kernels are off by 0.2 from torch's.")


@pytest.mark.parametrize("name", BUILDS)
def test_every_build_passes_its_check(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(library.LIMIT, name)
    found = chain.native()
    assert found.library is not None
    assert found.library.build == name
    assert 0 < chain.difference(found.library) < chain.CLOSE


def test_the_check_draws_nothing_and_leaves_no_mode_behind() -> None:
    before = torch.random.get_rng_state()
    with torch.no_grad():
        chain.native()
        assert not torch.is_grad_enabled()
    assert torch.equal(torch.random.get_rng_state(), before)


def test_an_unknown_limit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = library.find("mmx")
    assert found.library is None
    assert not BUILDS or found.why == f"{library.LIMIT} is 'mmx', but this CPU has: off, {', '.join(BUILDS)}"
    assert str(library.find("off")) == f"torch: {library.LIMIT} is off"


def test_another_source_makes_another_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    name = library.name_of()
    for source in library.SOURCES:
        (tmp_path / source).write_text((library.HOME / source).read_text())
    monkeypatch.setattr(library, "HOME", tmp_path)
    assert library.name_of() == name
    (tmp_path / "cpu.c").write_text("int x;")
    assert library.name_of() != name
    assert os.path.sep not in name
