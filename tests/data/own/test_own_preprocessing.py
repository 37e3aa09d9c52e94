"""Preprocessing: fitted from sums that add up, the same state after JSON, and what it does to samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from own_files import TABLE, npz, pictures, table

from headwise.data.own.load import Loaded, load
from headwise.data.preprocessing import (
    Fitted,
    Preprocessing,
    encode_samples,
    fit,
    fit_all,
    from_state,
    measure,
    no_sums,
    to_state,
)
from headwise.disk.jsontext import to_json
from headwise.errors import DataError

RNG = np.random.default_rng(0)


def apply(fitted: Fitted, raw: Any) -> NDArray[Any]:
    """Raw samples as the network takes them, by a state that was saved and read again."""
    state = from_state(to_state(fitted))
    return state.transform(encode_samples(state, raw))


def big(tmp_path: Path, more: str = "", clients: int = 7) -> Loaded:
    rows = [f"c{k % clients},{RNG.normal(50, 12):.3f},{'fmx'[k % 3]},{'no' if k % 2 else 'yes'}" for k in range(300)]
    rows[5] = "c5,,,no"
    return load(table(tmp_path, rows, text=TABLE + more))


def trains(loaded: Loaded) -> list[Any]:
    return [np.flatnonzero(loaded.raw.owner == c) for c in range(len(loaded.raw.owners))]


def recipe_of(loaded: Loaded) -> Preprocessing:
    assert loaded.dataset.recipe is not None
    return loaded.dataset.recipe


def same(a: Fitted, b: Fitted) -> bool:
    pairs = ((a.mean, b.mean), (a.std, b.std), (a.fill, b.fill), (a.flags, b.flags))
    return all(x.tobytes() == y.tobytes() for x, y in pairs) and dict(a.values) == dict(b.values)


@pytest.mark.parametrize("how", ["pooled", "client"])
def test_one_round_of_sums_comes_to_the_same_bits(tmp_path: Path, how: str) -> None:
    loaded = big(tmp_path, f'[preprocess]\nfit = "{how}"\n')
    recipe = recipe_of(loaded)
    x = loaded.dataset.x
    sums = [measure(recipe, x[t]) for t in trains(loaded)]
    total = no_sums(recipe)
    for each in sums:
        total = total + each
    assert same(fit(recipe, total, sums if how == "client" else ()), fit_all(recipe, x, trains(loaded)))
    assert total.values == {"sex": {"f": 100, "m": 100, "x": 99}}


def test_means_and_deviations_are_those_of_the_numbers(tmp_path: Path) -> None:
    loaded = big(tmp_path)
    ages = loaded.dataset.x[:, 0]
    fitted = fit_all(recipe_of(loaded), loaded.dataset.x, trains(loaded))
    np.testing.assert_allclose(fitted.mean, [[np.nanmean(ages)]], rtol=1e-12)
    np.testing.assert_allclose(fitted.std, [[np.nanstd(ages)]], rtol=1e-9)
    out = fitted.transform(loaded.dataset.x)
    assert fitted.shape == out.shape[1:] == (5,)  # age, where it is missing, f, m, x
    assert out.dtype == np.float32
    np.testing.assert_allclose(out[:, 0].mean(), 0, atol=1e-6)
    assert out[5].tolist() == [0, 1, 0, 0, 0]
    assert out[6, 1:].tolist() == [0, 1, 0, 0]


def test_each_client_by_itself(tmp_path: Path) -> None:
    loaded = big(tmp_path, '[preprocess]\nfit = "client"\n')
    fitted = fit_all(recipe_of(loaded), loaded.dataset.x, trains(loaded))
    out = fitted.transform(loaded.dataset.x, loaded.raw.owner)
    for c, mine in enumerate(trains(loaded)):
        np.testing.assert_allclose(out[mine, 0].mean(), 0, atol=1e-6)
        assert fitted.for_client(c).transform(loaded.dataset.x[mine]).tobytes() == out[mine].tobytes()


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ('numbers = "as they are"\nflag = false\n', [10, 30, 20]),
        ('numbers = "as they are"\nfill = "zero"\nflag = false\n', [10, 30, 0]),
        ('fill = "zero"\nflag = false\n', [-1, 1, -2]),
    ],
)
def test_what_a_missing_number_becomes(tmp_path: Path, more: str, expected: list[float]) -> None:
    loaded = load(table(tmp_path, ["va,10,f,no", "va,30,m,yes", "va,,m,yes"], text=f"{TABLE}[preprocess]\n{more}"))
    fitted = fit_all(recipe_of(loaded), loaded.dataset.x, trains(loaded))
    assert fitted.transform(loaded.dataset.x)[:, 0].tolist() == expected


def test_a_state_comes_back_from_json_and_takes_cells_as_they_are(tmp_path: Path) -> None:
    loaded = big(tmp_path)
    fitted = fit_all(recipe_of(loaded), loaded.dataset.x, trains(loaded))
    again = from_state(json.loads(to_json(to_state(fitted))))
    assert same(fitted, again)
    cells = {"age": [61.5, None, "?"], "sex": ["m", "unheard of", None], "unused": [1, 2, 3]}
    out = apply(again, cells)
    assert out[0, 2:].tolist() == [0, 1, 0]
    assert out[0, 0] == np.float32((61.5 - fitted.mean[0, 0]) / fitted.std[0, 0])
    assert out[1:].tolist() == [[0, 1, 0, 0, 0]] * 2
    for wrong, why in (
        (
            {"age": [1], "Sex": ["f"]},
            "column 'sex', which the model was trained on, is missing: the columns are age, Sex",
        ),
        ({"age": ["old"], "sex": ["f"]}, "row 0, column 'age': 'old' is not a number"),
        ({"age": [1, 2], "sex": ["f"]}, "columns differ in length: age has 2, sex has 1"),
        ({"age": 61, "sex": "f"}, "column 'age' is 61, but must be a list with a cell for each sample"),
        ([[61, "f"]], "samples are list, but must be a DataFrame or a mapping of columns: age, sex"),
        ("age,sex", "samples are str, but must be a DataFrame or a mapping of columns: age, sex"),
    ):
        with pytest.raises(DataError, match=why):
            apply(again, wrong)


def test_images_are_normalized_by_channel_and_read_again(tmp_path: Path) -> None:
    loaded = load(pictures(tmp_path))
    fitted = fit_all(recipe_of(loaded), loaded.dataset.x, trains(loaded))
    np.testing.assert_allclose(fitted.mean, [[(loaded.dataset.x / 255).mean()]])
    out = fitted.transform(loaded.dataset.x)
    np.testing.assert_allclose([out.mean(), out.std()], [0, 1], atol=1e-5)
    path = tmp_path / "clients" / "ann" / "cat" / "1.png"
    assert apply(fitted, [path]).tobytes() == out[1:2].tobytes()
    with pytest.raises(
        DataError, match=r"samples have the shape \[1, 2, 2\], but the model was trained on \[1, 4, 4\]"
    ):
        apply(fitted, np.zeros((1, 1, 2, 2), np.uint8))


def test_texts_beside_numbers_become_bags(tmp_path: Path) -> None:
    text = TABLE.replace('category = ["sex"]', 'text = ["note"]') + "[preprocess]\nlength = 5\nbuckets = 30\n"
    loaded = load(table(tmp_path, ["va,1,to be to,no", "va,2,,yes"], "hospital,age,note,ill", text))
    fitted = fit_all(recipe_of(loaded), loaded.dataset.x, trains(loaded))
    out = fitted.transform(loaded.dataset.x)
    assert out.shape == (2, 31) == (2, *fitted.shape)
    np.testing.assert_allclose(sorted(out[0, 1:])[-2:], 12 * np.sqrt([1, 2]) / np.sqrt(3), rtol=1e-6)
    assert not out[1, 1:].any()
    assert apply(fitted, {"age": [1], "note": ["to be to"]}).tobytes() == out[:1].tobytes()


def test_arrays_are_standardized_by_channel(tmp_path: Path) -> None:
    x = RNG.normal(3, 2, (20, 2, 5))
    loaded = load(npz(tmp_path, ann={"x": x, "y": np.arange(20) % 2}))
    fitted = fit_all(recipe_of(loaded), loaded.dataset.x, trains(loaded))
    np.testing.assert_allclose(fitted.transform(loaded.dataset.x).mean((0, 2)), [0, 0], atol=1e-6)
    assert fitted.mean.shape == (1, 2)


def test_what_does_not_vary_is_only_centred(tmp_path: Path) -> None:
    loaded = load(table(tmp_path, ["va,1e9,f,no", "va,1e9,m,yes"]))
    fitted = fit_all(recipe_of(loaded), loaded.dataset.x, trains(loaded))
    assert fitted.transform(loaded.dataset.x)[:, 0].tolist() == [0, 0]
