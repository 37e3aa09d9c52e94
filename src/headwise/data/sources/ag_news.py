"""AG News — Gulli; as split by Zhang, Zhao, LeCun, 2015. https://arxiv.org/abs/1509.01626.

Texts are split into words like torchtext's `basic_english`, and words are numbered by frequency (then alphabetically)
over all the data, like the public generators do; 0 stands for unknown words and pads short texts.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ...memory import check_memory
from ...settings.fields import Range
from ..dataset import Dataset, Source
from ..files import Download, Layout, locate, read_text

MIRROR = "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv/"
FILES = Layout(
    ("ag_news_csv", "AG_NEWS"),
    ("train.csv", "test.csv"),
    (
        Download(MIRROR + "train.csv", "76a0a2d2f92b286371fe4d4044640910a04a803fdd2538e0f3f29a5c6f6b672e"),
        Download(MIRROR + "test.csv", "521465c2428ed7f02f8d6db6ffdd4b5447c1c701962353eb2c40d548c3c85699"),
    ),
)
ALL_TRAINING_ROWS = 120_000

CLASSES = ("World", "Sports", "Business", "Sci/Tech")
_SPACED = str.maketrans({**{mark: f" {mark} " for mark in "'.,()!?"}, ";": " ", ":": " "})


@dataclass(frozen=True)
class AGNews(Source):
    """127,600 short news texts about the world, sports, business or technology."""

    default_model: ClassVar[str] = "fasttext"

    length: Annotated[int, Range(1, 10_000)] = 200
    "words per text: longer texts are truncated, shorter ones padded"
    vocabulary: Annotated[int, Range(2, 10_000_000)] = 98_635
    "maximum size of the vocabulary, including the unknown word; the rarest words are dropped"

    def load(self, folder: Path) -> Dataset:
        """Read train.csv and test.csv, and number their words."""
        train, test = map(_read, locate(folder, FILES))
        rows = train + test
        index = _number_words([text for _, text in rows], self.vocabulary)
        subset = f"train.csv is a subset: {len(train):,} of {ALL_TRAINING_ROWS:,} rows."
        return Dataset(
            _encode([text for _, text in rows], index, self.length),
            np.array([label for label, _ in rows], np.int64),
            CLASSES,
            official_test=np.arange(len(rows)) >= len(train),
            vocabulary=1 + len(index),
            notes=(subset,) if len(train) < ALL_TRAINING_ROWS else (),
        )


def split_words(text: str) -> list[str]:
    """Lower-case words and punctuation; quotation marks, semicolons, colons and line breaks are dropped."""
    return text.lower().replace('"', "").replace("<br />", " ").translate(_SPACED).split()


def _read(path: Path) -> list[tuple[int, str]]:
    """Label and text of each row, which holds a class from 1 to 4, a title and a description."""
    rows: list[tuple[int, str]] = []
    try:
        for row in csv.reader(io.StringIO(read_text(path), newline="")):
            label, title, description = row
            rows.append((("1", "2", "3", "4").index(label), f"{title} {description}"))
    except (csv.Error, ValueError):
        raise DataError(f"{path}: row {len(rows) + 1} is not a class from 1 to 4, a title and a text.") from None
    return rows


def _number_words(texts: list[str], limit: int) -> dict[str, int]:
    """The number of each word, from 1, the most frequent first."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(split_words(text))
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return {word: rank for rank, word in enumerate(ranked[: limit - 1], start=1)}


def _encode(texts: list[str], index: dict[str, int], length: int) -> NDArray[np.int32]:
    check_memory(12 * len(texts) * length, f"data with length = {length}")  # int32 here, int64 for the model
    x = np.zeros((len(texts), length), np.int32)
    for row, text in zip(x, texts, strict=True):
        numbers = [index.get(word, 0) for word in split_words(text)[:length]]
        row[: len(numbers)] = numbers
    return x
