"""Seeds by name."""

from __future__ import annotations

import hashlib
import itertools
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwise.seeds import seed_of

parts = st.lists(st.one_of(st.integers(), st.text(), st.floats(allow_nan=False, allow_infinity=False)), max_size=4)


def test_is_a_hash_of_its_parts() -> None:
    """The first 63 bits of SHA-256 of the JSON text: a change here would change every run that was ever stored."""
    digest = hashlib.sha256(b'[0, "sample", 3]').hexdigest()
    assert seed_of(0, "sample", 3) == int(digest[:16], 16) >> 1


def test_same_in_another_process_with_other_hash_seeds() -> None:
    code = "from headwise.seeds import seed_of; print(seed_of(7, 'fit', 3, 12), seed_of('ü', 0.1))"
    found = [
        subprocess.run([sys.executable, "-c", code], env={"PYTHONHASHSEED": s}, capture_output=True, text=True).stdout
        for s in ("1", "2")
    ]
    assert found == [f"{seed_of(7, 'fit', 3, 12)} {seed_of('ü', 0.1)}\n"] * 2


def test_neighbours_differ() -> None:
    purposes = [(s, p, c, t) for s in range(3) for p in ("fit", "pre") for c in range(20) for t in range(20)]
    assert len({seed_of(*p) for p in purposes}) == len(purposes)


def test_parts_do_not_run_into_each_other() -> None:
    texts = [("ab", "c"), ("a", "bc"), ("abc",), ("a,b", "c"), ('a", "b', "c"), (1, 23), (12, 3), ("1", 23), (1.0, 23)]
    assert all(seed_of(*a) != seed_of(*b) for a, b in itertools.combinations(texts, 2))


@given(parts)
def test_fits_every_generator(values: list[int | str | float]) -> None:
    assert 0 <= seed_of(*values) < 2**63
    assert seed_of(*values) == seed_of(*values)


def test_what_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        seed_of(float("nan"))
    with pytest.raises(TypeError):
        seed_of(object())  # type: ignore[arg-type]
