"""Every source: its format on tiny files, what it draws, and the real data where HEADWISE_DATA has it."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_diabetes, load_digits
from tiny_files import (
    assert_sound,
    sentence,
    write_cifar10,
    write_cifar100,
    write_heart,
    write_mnist,
    write_news,
    write_office,
    write_tiny,
)

from headwise.app import registry
from headwise.data.dataset import merge_parts
from headwise.data.sources.ag_news import AGNews, split_words
from headwise.data.sources.cifar10 import CIFAR10
from headwise.data.sources.cifar100 import CIFAR100
from headwise.data.sources.diabetes import Diabetes
from headwise.data.sources.digits import Digits
from headwise.data.sources.fashion_mnist import FashionMNIST
from headwise.data.sources.heart_disease import HeartDisease
from headwise.data.sources.mnist import MNIST
from headwise.data.sources.office_caltech10 import DOMAINS, OfficeCaltech10
from headwise.data.sources.synthetic import Synthetic
from headwise.data.sources.tiny_imagenet import TinyImageNet
from headwise.errors import DataError
from headwise.settings.fields import check, field_help
from headwise.settings.names import list_names

PUBLIC = [name for name in list_names("data") if name != "own"]
"""a user's own data has no default, and its own tests"""
FROM_FILES = [name for name in PUBLIC if hasattr(sys.modules[registry.find("data", name).__module__], "locate")]


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ConnectionError

    monkeypatch.setattr("pooch.retrieve", refuse)


@pytest.mark.parametrize("name", PUBLIC)
def test_each_source_is_found_and_describes_itself(name: str) -> None:
    source = registry.find("data", name)
    about = registry.read_card("data", name)
    check(source())
    assert re.search(r" — .*\d{4}", about.title)
    assert about.summary.endswith(".")
    assert field_help(source).keys() == {field.name for field in dataclasses.fields(source)}


@pytest.mark.parametrize("name", FROM_FILES)
def test_what_is_missing_is_said_in_one_sentence(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=sentence(f"please provide {tmp_path}/")):
        registry.find("data", name)().load(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("home", "pack"), [("mnist", True), ("MNIST/raw", False), ("", True)])
def test_mnist(tmp_path: Path, home: str, pack: bool) -> None:
    train, _, test, _ = write_mnist(tmp_path / home, pack)
    data = MNIST().load(tmp_path)
    assert_sound(data)
    np.testing.assert_array_equal(data.x[:, 0], np.concatenate([train, test]))
    assert data.y.tolist() == [0, 1, 2, 3, 4, 9, 0]
    assert data.official_test is not None
    assert data.official_test.tolist() == [False] * 5 + [True] * 2


def test_fashion_mnist_is_not_taken_for_mnist(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    with pytest.raises(DataError):
        FashionMNIST().load(tmp_path)
    write_mnist(tmp_path / "FashionMNIST/raw")
    assert_sound(FashionMNIST().load(tmp_path))
    assert_sound(FashionMNIST().load(tmp_path / "FashionMNIST/raw"))


@pytest.mark.parametrize(
    ("home", "binary"),
    [("cifar-10-batches-bin", True), ("cifar-10-batches-py", False), ("cifar-10", True), ("", False)],
)
def test_cifar10(tmp_path: Path, home: str, binary: bool) -> None:
    x = write_cifar10(tmp_path / home, binary)
    data = CIFAR10().load(tmp_path)
    assert_sound(data)
    np.testing.assert_array_equal(data.x, x.reshape(12, 3, 32, 32))
    assert set(data.y) == {3}
    assert data.official_test is not None
    assert data.official_test.nonzero()[0].tolist() == [10, 11]


def test_cifar100_has_fine_and_coarse_labels(tmp_path: Path) -> None:
    write_cifar100(tmp_path / "cifar-100-python")
    fine = CIFAR100().load(tmp_path)
    coarse = CIFAR100(labels="coarse").load(tmp_path)
    assert_sound(fine)
    assert_sound(coarse)
    assert fine.y.tolist() == [0, 1, 2, 3, 0, 1]
    assert set(coarse.y) == {19}
    assert (fine.classes[99], coarse.classes[19]) == ("f99", "c19")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Don't stop!", "don ' t stop !"),
        ('Say "hi"; (ok): 1,5?<br />x.y', "say hi ( ok ) 1 , 5 ? x . y"),
        ("  #39;s\t\\$5\n", "#39 s \\$5"),
        ("", ""),
    ],
)
def test_words_are_those_of_basic_english(text: str, expected: str) -> None:
    assert split_words(text) == expected.split()


def test_ag_news_numbers_words_by_frequency_then_alphabet(tmp_path: Path) -> None:
    write_news(tmp_path / "ag_news_csv")
    data = AGNews(length=8).load(tmp_path)
    assert_sound(data)
    order = ["<unk>", "the", "cat", "mat", ".", "a", "dog", "on", "sat"]
    assert data.vocabulary == len(order)
    read = [[order[i] for i in row if i] for row in data.x]
    assert read == [["the", "cat", "sat", "on", "the", "mat", "."], ["a", "dog", "the", "cat"], ["the", "mat"]]
    assert data.y.tolist() == [2, 0, 3]
    assert data.notes == ("train.csv is a subset: 2 of 120,000 rows.",)


def test_ag_news_cuts_texts_and_vocabulary(tmp_path: Path) -> None:
    write_news(tmp_path / "ag_news_csv")
    data = AGNews(length=3, vocabulary=3).load(tmp_path)
    assert data.vocabulary == 3
    assert data.x.tolist() == [[1, 2, 0], [0, 0, 1], [1, 0, 0]]


def test_heart_disease_encodes_each_patient_alone(tmp_path: Path) -> None:
    write_heart(tmp_path / "heart-disease")
    data = HeartDisease().load(tmp_path)
    assert_sound(data)
    expected = [0.8, 0, 1, 0, 0, 0, 1, 0.5, 0, 1 / 3, 0, 1, 0, 0, 1, 0, -1.12, 0, 0, 1, 2, 0, 0, 1, 0, 0, 1, 0, 0, 0]
    np.testing.assert_allclose(data.x[0], expected, rtol=1e-5)
    assert data.owner is not None
    assert np.bincount(data.owner).tolist() == [1, 2, 3, 4]
    assert set(data.y) == {1}
    assert set(HeartDisease(target="severity").load(tmp_path).y) == {2}


def test_a_hospital_needs_no_file_but_its_own(tmp_path: Path) -> None:
    write_heart(tmp_path / "all")
    (tmp_path / "own").mkdir()
    shutil.copy(tmp_path / "all" / "processed.switzerland.data", tmp_path / "own")
    data = HeartDisease(hospital="switzerland").load(tmp_path / "own")
    assert_sound(data)
    assert (len(data.y), data.owners) == (3, ("switzerland",))


def test_heart_disease_has_the_same_width_whatever_is_missing(tmp_path: Path) -> None:
    write_heart(tmp_path, "63,1,4,0,0,-9,?,?,?,?,?,?,?,0\n")
    data = HeartDisease().load(tmp_path)
    assert data.x.shape == (10, 30)
    assert data.x[0].sum() == pytest.approx(0.8 + 2 + 5)  # age, sex and pain, five numbers marked as missing


def test_office_caltech10_scales_each_sample_by_itself(tmp_path: Path) -> None:
    write_office(tmp_path / "office-caltech10")
    data = OfficeCaltech10().load(tmp_path)
    assert_sound(data)
    np.testing.assert_allclose((data.x**2).mean(axis=1), 1, rtol=1e-5)
    assert data.y.tolist() == [0, 1, 1, 2, 2, 2, 3, 3, 3, 3]
    assert data.owners == DOMAINS


def test_tiny_imagenet(tmp_path: Path) -> None:
    write_tiny(tmp_path / "tiny-imagenet-200")
    data = TinyImageNet().load(tmp_path)
    assert_sound(data)
    assert data.x.shape == (4, 3, 64, 64)
    assert data.classes == ("goldfish", "frog")
    assert data.y.tolist() == [0, 0, 1, 1]
    more = TinyImageNet(include_val=True).load(tmp_path)
    assert_sound(more)
    assert more.y.tolist() == [0, 0, 1, 1, 1]
    assert more.official_test is not None
    assert more.official_test.tolist() == [False] * 4 + [True]


def test_missing_pillow_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tiny(tmp_path)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(DataError, match=r"headwise\[images\]"):
        TinyImageNet().load(tmp_path)


def test_digits() -> None:
    data = Digits().load(Path("nowhere"))
    assert_sound(data)
    assert data.x.shape == (1797, 1, 8, 8)
    assert (data.x.min(), data.x.max()) == (-1, 1)


def test_synthetic_depends_on_its_seed_alone() -> None:
    first, again, other = (Synthetic(seed=seed).load(Path()) for seed in (1, 1, 2))
    assert_sound(first)
    np.testing.assert_array_equal(first.x, again.x)
    assert not np.array_equal(first.x, other.x)


def sizes(**options: Any) -> np.ndarray[Any, Any]:
    owner = Synthetic(**options).load(Path()).owner
    assert owner is not None
    return np.bincount(owner)


def test_synthetic_sizes_follow_the_quantity_skew() -> None:
    assert sizes(samples=1000, quantity_skew=0.0).tolist() == [100] * 10
    skewed = sizes(samples=1000, quantity_skew=2.0)
    assert skewed.sum() == 1000
    assert skewed.max() > 5 * skewed.min() >= 5
    assert sizes(samples=10, quantity_skew=10.0).tolist() == [1] * 10


def test_synthetic_labels_follow_alpha() -> None:
    def classes_per_site(alpha: float) -> float:
        data = Synthetic(label_alpha=alpha, quantity_skew=0.0).load(Path())
        assert data.owner is not None
        return float(np.mean([len(set(data.y[data.owner == site])) for site in range(10)]))

    assert classes_per_site(0.001) < 2
    assert classes_per_site(1e6) == 10


@pytest.mark.parametrize("features", [1, 7])
def test_synthetic_feature_skew_keeps_distances_within_a_site(features: int) -> None:
    plain, skewed = (
        Synthetic(samples=50, sites=1, features=features, feature_skew=skew).load(Path()) for skew in (0.0, 2.0)
    )
    assert not np.allclose(plain.x, skewed.x)
    between = [np.linalg.norm(data.x[:, None] - data.x[None], axis=2) for data in (plain, skewed)]
    np.testing.assert_allclose(*between, atol=1e-4)


def test_synthetic_needs_a_sample_per_site() -> None:
    with pytest.raises(DataError, match=sentence("samples is 3")):
        Synthetic(samples=3).load(Path())


@pytest.fixture
def real() -> Path:
    if not os.environ.get("HEADWISE_DATA"):
        pytest.skip("HEADWISE_DATA names no folder with the real data")
    return Path(os.environ["HEADWISE_DATA"])


def test_real_mnist(real: Path) -> None:
    data = MNIST().load(real)
    assert_sound(data)
    assert np.bincount(data.y).tolist() == [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958]
    assert data.official_test is not None
    assert data.official_test.sum() == 10_000


def test_real_ag_news(real: Path) -> None:
    data = AGNews().load(real)
    assert_sound(data)
    assert data.official_test is not None
    assert np.bincount(data.y[data.official_test]).tolist() == [1900] * 4
    assert bool(data.notes) == (len(data.y) < 127_600)


def test_real_heart_disease(real: Path) -> None:
    data = HeartDisease().load(real)
    assert_sound(data)
    assert data.owner is not None
    assert np.bincount(data.owner).tolist() == [303, 294, 123, 200]
    assert np.bincount(data.y).tolist() == [411, 509]


def test_real_office_caltech10(real: Path) -> None:
    data = OfficeCaltech10().load(real)
    assert_sound(data)
    assert data.owner is not None
    assert np.bincount(data.owner).tolist() == [958, 1123, 157, 295]


@pytest.mark.parametrize(("source", "home"), [(CIFAR10(), "cifar-10-batches-bin"), (CIFAR100(), "cifar-100-python")])
def test_real_cifar(real: Path, source: CIFAR10 | CIFAR100, home: str) -> None:
    if not (real / home).is_dir():
        pytest.skip(f"{real / home} is not unpacked")
    data = source.load(real)
    assert_sound(data)
    assert set(np.bincount(data.y)) == {60_000 // len(data.classes)}


def test_digits_are_scikit_learns() -> None:
    images, labels = load_digits(return_X_y=True)
    got = Digits().load(Path())
    assert np.array_equal(got.x, (images / 8 - 1).astype(np.float32).reshape(-1, 1, 8, 8))
    assert np.array_equal(got.y, labels)


def test_digits_need_no_scikit_learn() -> None:
    code = "import sys; sys.modules['sklearn'] = None\nfrom pathlib import Path\n"
    code += "from headwise.data.sources.digits import Digits\nprint(len(Digits().load(Path()).y))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["1797"], done.stderr


def test_diabetes_are_scikit_learns() -> None:
    x, y = map(np.asarray, load_diabetes(return_X_y=True))
    got = Diabetes().load(Path())
    np.testing.assert_allclose(got.x, x * np.sqrt(len(x)), rtol=1e-6)
    assert np.array_equal(got.y[:, 0], y)


def test_diabetes_have_the_same_bits_everywhere() -> None:
    got = Diabetes().load(Path())
    assert hashlib.sha256(got.x.tobytes() + got.y.tobytes()).hexdigest()[:16] == "95901a4a4b0bc373"


def test_diabetes_without_scikit_learn_are_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(DataError, match="diabetes needs scikit-learn, whose copy it reads: pip install"):
        Diabetes().load(Path())


def test_images_are_never_in_memory_twice() -> None:
    """One array for all of them, and at most one part besides."""
    count = 20
    tracemalloc.start()
    try:
        parts = [(np.full((100, 3, 32, 32), k, np.uint8), np.full(100, k)) for k in range(count)]
        before, _ = tracemalloc.get_traced_memory()
        dataset = merge_parts(parts, tuple(map(str, range(count))), tests=2)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert not parts
    assert after < 1.1 * before
    assert np.array_equal(dataset.x[:, 0, 0, 0], dataset.y)
    assert dataset.official_test is not None
    assert np.array_equal(dataset.official_test, dataset.y >= count - 2)
