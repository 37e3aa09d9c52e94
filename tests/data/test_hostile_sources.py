"""Damaged and hostile files: each leads to one sentence that names it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiny_files import (
    PATIENT,
    idx_bytes,
    noise,
    sentence,
    write,
    write_cifar10,
    write_gzip,
    write_heart,
    write_jpeg,
    write_mnist,
    write_news,
    write_office,
    write_tiny,
)

from headwise.data.sources.ag_news import AGNews
from headwise.data.sources.cifar10 import CIFAR10
from headwise.data.sources.heart_disease import HeartDisease
from headwise.data.sources.mnist import MNIST, NAMES, read_idx
from headwise.data.sources.office_caltech10 import OfficeCaltech10
from headwise.data.sources.tiny_imagenet import TinyImageNet
from headwise.errors import DataError


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (NAMES[0], b""),
        (NAMES[0], write_gzip(idx_bytes(noise(5, 28, 28)))[:-20]),
        (NAMES[0], write_gzip(idx_bytes(noise(5, 28, 28))[:-1])),
        (NAMES[0], write_gzip(idx_bytes(noise(5, 28, 28)) + b"x")),
        (NAMES[0], write_gzip(b"\0\0\x0d\x03" + idx_bytes(noise(5, 28, 28))[4:])),
        (NAMES[0], write_gzip(idx_bytes(noise(5, 28)))),
        (NAMES[0], write_gzip(idx_bytes(noise(5, 27, 28)))),
        (NAMES[0], write_gzip(b"\0\0\x08\x03\0\0")),
        (NAMES[0], write_gzip(b"\0\0\x08\x03" + b"\xff" * 12)),
        (NAMES[1], write_gzip(idx_bytes(np.zeros(4, np.uint8)))),
        (NAMES[1], write_gzip(idx_bytes(np.full(5, 10, np.uint8)))),
    ],
)
def test_a_wrong_idx_file_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    write_mnist(tmp_path / "mnist")
    path = write(tmp_path / "mnist" / name, content)
    with pytest.raises(DataError, match=sentence(str(path))):
        MNIST().load(tmp_path)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=40) | st.binary(max_size=9).map(lambda rest: b"\0\0\x08\x01\0\0\0" + rest))
@example(b"\0\0\x08\x01\0\0\0\x02ab")
def test_any_bytes_give_an_array_or_a_data_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = write(tmp_path_factory.getbasetemp() / "idx", content)
    try:
        array = read_idx(path, dimensions=1)
    except DataError:
        return
    assert idx_bytes(array) == content


@pytest.mark.parametrize("content", [b"", b"\0" * 3072, b"\x0a" + b"\0" * 3072])
def test_a_wrong_binary_batch_is_named(tmp_path: Path, content: bytes) -> None:
    write_cifar10(tmp_path, binary=True)
    path = write(tmp_path / "data_batch_2.bin", content)
    with pytest.raises(DataError, match=sentence(str(path))):
        CIFAR10().load(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b'"5","title","text"\n',
        b'"0","title","text"\n',
        b'"1","title"\n',
        b'"1","a","b","c"\n',
        b"\n",
        b'"1","caf\xe9","text"\n',
        b'"1","' + b"x" * 140_000 + b'","text"\n',
    ],
)
def test_a_wrong_csv_is_named(tmp_path: Path, content: bytes) -> None:
    write_news(tmp_path)
    path = write(tmp_path / "test.csv", content)
    with pytest.raises(DataError, match=sentence(str(path))):
        AGNews().load(tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "\n",
        PATIENT.replace("63,", "nan,"),
        PATIENT.replace("63,", "?,"),
        PATIENT.replace("63,", "inf,"),
        PATIENT.replace(",4,", ",5,"),
        PATIENT.replace("63,", ""),
        PATIENT.replace(",2\n", ",5\n"),
        "1," + PATIENT,
    ],
)
def test_a_wrong_record_is_named(tmp_path: Path, line: str) -> None:
    write_heart(tmp_path, line)
    with pytest.raises(DataError, match=sentence(f"{tmp_path}/processed.cleveland.data")):
        HeartDisease().load(tmp_path)


@pytest.mark.parametrize(
    "changed",
    [
        {"fts": np.ones((2, 799))},
        {"fts": np.full((1, 800), np.nan)},
        {"fts": -np.ones((1, 800))},
        {"fts": "text"},
        {"fts": np.zeros((0, 800))},
        {"labels": np.array([[0]])},
        {"labels": np.array([[11]])},
        {"labels": np.array([[1, 2]])},
        {"labels": np.array([[np.nan]])},
        {"labels": {"a": 1}},
    ],
)
def test_a_wrong_mat_file_is_named(tmp_path: Path, changed: dict[str, Any]) -> None:
    write_office(tmp_path, **changed)
    with pytest.raises(DataError, match=sentence(f"{tmp_path}/amazon.mat")):
        OfficeCaltech10().load(tmp_path)


@pytest.mark.parametrize("change", [lambda _: b"", lambda _: b"junk" * 100, lambda data: data[: len(data) // 2]])
def test_a_damaged_mat_file_is_named(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    write_office(tmp_path)
    path = tmp_path / "amazon.mat"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError, match=sentence(str(path))):
        OfficeCaltech10().load(tmp_path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("wnids.txt", b""),
        ("wnids.txt", b"../../etc\n"),
        ("wnids.txt", b"n00000003\n"),
        ("words.txt", b"\xff\xfe"),
        ("val/val_annotations.txt", b"../../x.JPEG\tn00000001\n"),
        ("val/val_annotations.txt", b"val_0.JPEG\tn00000009\n"),
        ("val/val_annotations.txt", b"\n"),
        ("val/images/val_0.JPEG", b"\xff\xd8\xff"),
        ("train/n00000001/images/n00000001_0.JPEG", b""),
        ("train/n00000001/images/n00000001_0.JPEG", b"GIF89a"),
    ],
)
def test_a_wrong_tiny_imagenet_file_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    write_tiny(tmp_path)
    write(tmp_path / name, content)
    with pytest.raises(DataError, match=sentence(str(tmp_path))):
        TinyImageNet(include_val=True).load(tmp_path)


def test_an_image_of_the_wrong_size_is_named(tmp_path: Path) -> None:
    write_tiny(tmp_path)
    write_jpeg(tmp_path / "val/images/val_0.JPEG", side=32)
    with pytest.raises(DataError, match=sentence("64 × 64")):
        TinyImageNet(include_val=True).load(tmp_path)
