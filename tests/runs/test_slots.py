"""States in slots: nothing a checkpoint needs is overwritten, and files stop growing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwise.runs.checkpoint import GRAIN, Slot, Slots


@pytest.fixture
def slots(tmp_path: Path) -> Iterator[Slots]:
    with closing(Slots(tmp_path)) as found:
        yield found


def test_what_is_written_is_read(slots: Slots) -> None:
    found_slots = {data: slots.write(data) for data in (b"", b"a", b"b" * GRAIN, b"c" * (GRAIN + 1), b"d" * 10)}
    slots.flush()
    assert {data: slots.read(slot) for data, slot in found_slots.items()} == {data: data for data in found_slots}
    assert sorted(p.name for p in slots.folder.iterdir()) == [f"states-{GRAIN}.bin", f"states-{2 * GRAIN}.bin"]


def test_files_are_closed_when_nobody_reads_them_any_more(tmp_path: Path) -> None:
    """A run's models are made from states that are read lazily: no one could say when to close them."""
    slots = Slots(tmp_path)
    slots.write(b"state")
    (number,) = slots._files.values()
    os.fstat(number)
    del slots
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)


def test_a_released_slot_is_used_again_and_no_other(slots: Slots) -> None:
    first, second = slots.write(b"first"), slots.write(b"second")
    slots.release([first])
    third = slots.write(b"third")
    assert third.number == first.number
    assert slots.read(second) == b"second"
    assert slots.write(b"fourth").number == 2


def test_after_a_restart_all_but_the_living_is_free(tmp_path: Path) -> None:
    with closing(Slots(tmp_path)) as before:
        kept = [before.write(bytes([k])) for k in range(5)][1::2]
    with closing(Slots(tmp_path)) as after:
        after.restart(kept)
        assert sorted(after.write(b"new").number for _ in range(4)) == [0, 2, 4, 5]
        assert [after.read(slot) for slot in kept] == [b"\1", b"\3"]


@pytest.mark.parametrize("wrong", [{"crc": 1}, {"length": 3}, {"number": 7}])
def test_a_place_that_does_not_hold_what_it_should_is_found_out(wrong: dict[str, int], slots: Slots) -> None:
    slot = slots.write(b"state")
    with pytest.raises(ValueError, match="is damaged: slot"):
        slots.read(slot._replace(**wrong))


def test_a_named_pipe_in_place_of_states_is_not_waited_for(tmp_path: Path) -> None:
    """In a folder from elsewhere: without a writer, opening it would never return."""
    os.mkfifo(tmp_path / f"states-{GRAIN}.bin")
    with closing(Slots(tmp_path)) as slots, pytest.raises(OSError, match="Illegal seek"):
        slots.read(Slot(GRAIN, 0, 5, 0))


@given(history=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3 * GRAIN)), max_size=60))
def test_any_history_keeps_every_clients_newest_state(
    tmp_path_factory: pytest.TempPathFactory, history: list[tuple[int, int]]
) -> None:
    with closing(Slots(tmp_path_factory.mktemp("slots"))) as slots:
        newest: dict[int, tuple[Slot, bytes]] = {}
        for step, (client, size) in enumerate(history):
            data = bytes([step]) * size
            slot = slots.write(data)
            if client in newest:
                slots.release([newest[client][0]])
            newest[client] = slot, data
        for slot, data in newest.values():
            assert slots.read(slot) == data
        used = [(slot.size, slot.number) for slot, _ in newest.values()]
        assert len(set(used)) == len(used)
