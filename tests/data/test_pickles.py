"""The reader of pickles: reads arrays, lists and dictionaries, runs nothing."""

from __future__ import annotations

import os
import pickle
import re
import tracemalloc
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.data.pickles import read_pickle
from headwise.data.sources.cifar10 import read_batch, read_names
from headwise.errors import DataError


def sentence(part: str) -> str:
    return rf"\A[^\n]*{re.escape(part)}[^\n]*\.\Z"


def images(n: int) -> np.ndarray[Any, Any]:
    return np.arange(n * 3072).astype(np.uint8).reshape(n, 3072)


def write(folder: Path, content: Any, protocol: int = 2) -> Path:
    path = folder / "batch"
    path.write_bytes(content if isinstance(content, bytes) else pickle.dumps(content, protocol))
    return path


class Calls:
    """Pickles as a call of `function`."""

    def __init__(self, function: Any, *given: Any) -> None:
        self.call = function, given

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.call


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("key", ["data", b"data"])
def test_a_batch_is_read_back(tmp_path: Path, protocol: int, key: str | bytes) -> None:
    path = write(tmp_path, {key: images(2), "labels": [3, 9]}, protocol)
    x, y = read_batch(path, "labels", 10)
    assert x.shape == (2, 3, 32, 32)
    assert x.dtype == np.uint8
    np.testing.assert_array_equal(x.reshape(2, -1), images(2))
    np.testing.assert_array_equal(y, [3, 9])


def test_a_pickle_of_python_2_is_read(tmp_path: Path) -> None:
    """The opcodes of the public files: byte strings and numpy's old names."""
    head = b"\x80\x02}q\x01(U\x06labels]K\x07aU\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n"
    kind = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    pixels = images(1).tobytes()
    state = b"(K\x01K\x01M\x00\x0c\x86" + kind + b"\x89T" + len(pixels).to_bytes(4, "little") + pixels + b"tb"
    x, y = read_batch(write(tmp_path, head + b"K\x00\x85U\x01b\x87R" + state + b"u."), "labels", 10)
    np.testing.assert_array_equal(x.reshape(1, -1), images(1))
    assert y.tolist() == [7]


@pytest.mark.parametrize(
    ("function", "given", "name"),
    [
        (os.system, ("touch {marker}",), "posix.system"),
        (eval, ("1",), "builtins.eval"),
        (OrderedDict, (), "collections.OrderedDict"),
        (np.fromfile, ("/etc/passwd",), "fromfile"),
    ],
)
@pytest.mark.parametrize("protocol", [2, 4])
def test_calls_are_refused_by_name(
    tmp_path: Path, function: Any, given: tuple[str, ...], name: str, protocol: int
) -> None:
    marker = tmp_path / "marker"
    call = Calls(function, *(each.format(marker=marker) for each in given))
    path = write(tmp_path, {"data": call}, protocol)
    expected = name if protocol == 4 else name.replace("builtins", "__builtin__")
    with pytest.raises(DataError, match=sentence(expected)) as caught:
        read_pickle(path)
    assert str(path) in str(caught.value)
    assert not marker.exists()


def test_no_file_changes_how_the_next_is_read(tmp_path: Path) -> None:
    """Setting an attribute of what stands for `numpy.dtype` must not last."""
    poison = b"\x80\x02cnumpy\ndtype\nN}U\x05givenK\x01s\x86b0cnumpy\ndtype\nN}U\x0c__setstate__Ns\x86b."
    with pytest.raises(DataError):
        read_pickle(write(tmp_path, poison))
    assert len(read_batch(write(tmp_path, {"data": images(1), "labels": [0]}), "labels", 10)[0]) == 1


@pytest.mark.parametrize(
    "content",
    [
        {"labels": [0]},
        {"data": [1, 2], "labels": [0]},
        {"data": images(1)},
        {"data": images(1), "labels": [10]},
        {"data": images(1), "labels": [-1]},
        {"data": images(1), "labels": [0, 1]},
        {"data": images(1), "labels": [10**30]},
        {"data": images(1), "labels": ["0"]},
        {"data": images(1), "labels": [True]},
        {"data": images(1), "labels": 0},
        {"data": images(1)[:, :-1], "labels": [0]},
        {"data": images(0), "labels": []},
        {"data": images(1).astype(np.int64), "labels": [0]},
        {"data": np.array([None, images]), "labels": [0]},
        [1, 2],
        b"",
        b"garbage",
        pickle.dumps({"data": images(1), "labels": [0]}, 2)[:-100],
        b"\x80\x02}(U\x04data\x8e\xff\xff\xff\xff\xff\xff\xff\x7f",
    ],
)
def test_wrong_content_is_one_sentence(tmp_path: Path, content: Any) -> None:
    path = write(tmp_path, content)
    with pytest.raises(DataError, match=sentence(str(path))):
        read_batch(path, "labels", 10)


def test_names_are_read_and_counted(tmp_path: Path) -> None:
    path = write(tmp_path, {"names": [b"a", "b"]})
    assert read_names(path, "names", 2) == ("a", "b")
    with pytest.raises(DataError, match=sentence("a list of 3 names")):
        read_names(path, "names", 3)


VALID = pickle.dumps({"data": images(1), "labels": [0]}, 2)


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.binary(max_size=200), st.tuples(st.integers(0, 150), st.binary(min_size=1, max_size=4))))
def test_any_bytes_give_a_batch_or_a_data_error(tmp_path_factory: pytest.TempPathFactory, noise: Any) -> None:
    """Random bytes, and a valid file with some of its bytes replaced."""
    if isinstance(noise, tuple):
        at, patch = noise
        noise = VALID[:at] + patch + VALID[at + len(patch) :]
    path = write(tmp_path_factory.getbasetemp(), noise)
    try:
        x, y = read_batch(path, "labels", 10)
    except DataError:
        return
    assert x.shape == (len(y), 3, 32, 32)


@pytest.mark.parametrize(
    "bomb",
    [
        b"\x80\x02}r\x80\x96\x98\x00.",
        b"}p10000000\n.",
        b"\x80\x05\x96\x80\x96\x98\x00\x00\x00\x00\x00.",
        b"\x80\x04\x8e\x80\x96\x98\x00\x00\x00\x00\x00.",
    ],
    ids=["a far place", "a far place in words", "a long array", "long bytes"],
)
def test_a_small_file_takes_little_memory(tmp_path: Path, bomb: bytes) -> None:
    """A reader that believes these few bytes asks for a hundred megabytes; with a few other ones, for gigabytes."""
    path = write(tmp_path, bomb)
    tracemalloc.start()
    with pytest.raises(DataError, match=sentence(str(path))):
        read_batch(path, "labels", 10)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("kind", ["bool", "i1", "<u2", ">i4", "i8", "f2", ">f4", "f8"])
def test_arrays_of_numbers_are_read_back(tmp_path: Path, protocol: int, kind: str) -> None:
    array = np.arange(12).reshape(3, 4).astype(kind)
    content = {"c": array, "f": np.asfortranarray(array), "empty": array[:0], "one": array[1, 1], "list": [array[0]]}
    read = read_pickle(write(tmp_path, content, protocol))
    for name in ("c", "f", "empty"):
        assert np.array_equal(read[name].numbers, content[name])
        assert read[name].numbers.dtype == array.dtype
    assert read["one"] == array[1, 1]
    assert np.array_equal(read["list"][0].numbers, array[0])


def test_arrays_of_objects_are_lists(tmp_path: Path) -> None:
    read = read_pickle(write(tmp_path, {"x": np.array([[[1, 2], None]], dtype=object)}))["x"]
    assert (read.shape, read.items, read.numbers) == ((1, 2), [[1, 2], None], None)


def repeat_text() -> bytes:
    """A text of a hundred kilobytes, and many calls that make bytes of it."""
    text = b"X" + (100_000).to_bytes(4, "little") + b"a" * 100_000
    call = b"c_codecs\nencode\n" + b"h\x00X\x06\x00\x00\x00latin1\x86R"
    return b"\x80\x02]" + text + b"q\x00(" + call * 2_000 + b"e."


def nest_keys() -> bytes:
    """A key whose hash has 2^100 parts."""
    pairs = b"".join(b"h" + bytes([k]) + b"\x86q" + bytes([k + 1]) for k in range(100))  # each of the last one, twice
    return b"\x80\x02}K\x01\x85q\x00" + pairs + b"K\x01s."


def use_long_keys() -> bytes:
    number = b"\x8b" + (50_000).to_bytes(4, "little") + b"\x01" * 50_000
    return b"\x80\x02}" + number + b"q\x00K\x01s" + b"h\x00K\x01s" * 100_000 + b"."


@pytest.mark.parametrize("bomb", [repeat_text, nest_keys, use_long_keys])
def test_a_small_file_is_refused_before_it_multiplies(tmp_path: Path, bomb: Any) -> None:
    """An unpickler would take gigabytes, or forever."""
    path = write(tmp_path, bomb())
    tracemalloc.start()
    with pytest.raises(DataError, match=sentence(str(path))):
        read_pickle(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**22


@pytest.mark.parametrize("operation", [b"2", b"Pid\n", b"\x82\x01", b"\x81", b"\x92", b"\x8f", b"(ios\nsystem\n"])
def test_other_ways_to_make_objects_are_refused(tmp_path: Path, operation: bytes) -> None:
    with pytest.raises(DataError, match=sentence("which arrays don't need")):
        read_pickle(write(tmp_path, b"\x80\x04)" + operation + b"."))
