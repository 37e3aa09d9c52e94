"""Heart Disease — Janosi, Steinbrunn, Pfisterer, Detrano, UCI, 1989. https://doi.org/10.24432/C52P4X.

Hospitals share no statistics: numbers are centred and scaled by textbook constants; a missing number becomes 0 and is
marked in an extra column; categories are one-hot, all zeros if missing. A blood pressure or cholesterol of 0, which
some hospitals wrote, also counts as missing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from ...errors import DataError
from ..dataset import Dataset, Source
from ..files import Download, Layout, locate, read_text

HASHES = {
    "cleveland": "a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8",
    "hungarian": "d1ad108f785768cd3d7e82dc522e6f5a61eea93cccfb3a46ee8076f73fc3d796",
    "switzerland": "834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314",
    "va": "e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f",
}
HOSPITALS = tuple(HASHES)
URL = "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease/"


def layout_of(hospitals: tuple[str, ...]) -> Layout:
    downloads = tuple(Download(f"{URL}processed.{h}.data", HASHES[h]) for h in hospitals)
    return Layout(("heart-disease", "heart+disease"), tuple(d.name for d in downloads), downloads)


@dataclass(frozen=True)
class _Number:
    name: str
    centre: float
    scale: float
    may_miss: bool = True
    zero_is_missing: bool = False

    def encode(self, value: float | None) -> list[float]:
        if value is None or (self.zero_is_missing and value == 0):
            return [0.0, 1.0]
        scaled = (value - self.centre) / self.scale
        return [scaled, 0.0] if self.may_miss else [scaled]


@dataclass(frozen=True)
class _Category:
    name: str
    values: tuple[int, ...]
    may_miss: bool = True

    def encode(self, value: float | None) -> list[float]:
        if value is not None and value not in self.values:
            raise ValueError
        return [float(value == each) for each in self.values]


COLUMNS = (
    _Number("age", 55, 10, may_miss=False),
    _Category("sex", (0, 1), may_miss=False),
    _Category("chest pain", (1, 2, 3, 4), may_miss=False),
    _Number("resting blood pressure", 130, 20, zero_is_missing=True),
    _Number("cholesterol", 240, 60, zero_is_missing=True),
    _Category("fasting blood sugar", (0, 1)),
    _Category("resting ECG", (0, 1, 2)),
    _Number("maximal heart rate", 140, 25),
    _Category("exercise angina", (0, 1)),
    _Number("ST depression", 1, 1),
    _Category("ST slope", (1, 2, 3)),
    _Number("coloured vessels", 1, 1),
    _Category("thallium scan", (3, 6, 7)),
)


@dataclass(frozen=True)
class HeartDisease(Source):
    """920 patients of four hospitals, which differ in their patients and in their measurements."""

    default_model: ClassVar[str] = "linear"

    target: Literal["disease", "severity"] = "disease"
    "what to predict: whether a patient has heart disease, or how severe it is (0 to 4)"
    hospital: Literal["all", "cleveland", "hungarian", "switzerland", "va"] = "all"
    "all, or the one hospital whose file is read: a hospital only has its own file"

    def load(self, folder: Path) -> Dataset:
        """Read the processed files; each hospital is a natural client."""
        hospitals = HOSPITALS if self.hospital == "all" else (self.hospital,)
        sites = [_read(path) for path in locate(folder, layout_of(hospitals))]
        severity = np.array([num for site in sites for _, num in site], np.int64)
        severe = self.target == "severity"
        return Dataset(
            np.array([features for site in sites for features, _ in site], np.float32),
            severity if severe else (severity > 0).astype(np.int64),
            ("healthy", "grade 1", "grade 2", "grade 3", "grade 4") if severe else ("healthy", "diseased"),
            owner=np.repeat(np.arange(len(sites)), [len(site) for site in sites]),
            owners=hospitals,
        )


def _read(path: Path) -> list[tuple[list[float], int]]:
    """Features and severity of each patient."""
    rows: list[tuple[list[float], int]] = []
    try:
        for line in read_text(path).splitlines():
            *cells, num = line.split(",")
            rows.append((_encode_features([_parse_cell(cell) for cell in cells]), ("0", "1", "2", "3", "4").index(num)))
    except ValueError:
        raise DataError(f"{path}: line {len(rows) + 1} is not a patient's record of 14 known values.") from None
    return rows


def _encode_features(values: list[float | None]) -> list[float]:
    features: list[float] = []
    for column, value in zip(COLUMNS, values, strict=True):
        if value is None and not column.may_miss:
            raise ValueError
        features += column.encode(value)
    return features


def _parse_cell(cell: str) -> float | None:
    if cell in ("?", "-9", "-9.0"):
        return None
    value = float(cell)
    if not math.isfinite(value):
        raise ValueError
    return value
