"""`data.toml`: where a user's own data are, whose rows they are, and what is to be predicted from what."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from ...errors import ConfigError
from ...settings.fields import Count, Range, build
from ..splits import parse

Format = Literal["csv", "parquet", "jsonl", "images", "npz", "arrays"]
Task = Literal["classification", "multilabel", "regression", "segmentation"]
TABLES = ("csv", "parquet", "jsonl")
KINDS = ("number", "category", "text", "image")
MISSING = ("", "?", "NA", "N/A", "NaN", "nan", "null", "None")
PARTS = ("train", "val", "test")

Side = Annotated[int, Range(1, 4096)]


@dataclass(frozen=True)
class Features:
    """Which columns are features, by what they hold."""

    number: tuple[str, ...] = ()
    """columns of numbers"""
    category: tuple[str, ...] = ()
    """columns of categories, whatever they are written as"""
    text: tuple[str, ...] = ()
    """columns of texts"""
    image: tuple[str, ...] = ()
    """one column with the paths of image files, from the table's own folder"""

    def names(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.number, *self.category, *self.text, *self.image)


@dataclass(frozen=True)
class OwnSplit:
    """How each client's samples are divided into training, validation and test."""

    by: Literal["ratio", "column", "time", "files"] = "ratio"
    """at random by ratio; by what a column says; by ratio in the order of a column; by files called train, val, test"""
    ratio: str = "75/25"
    """train/test or train:validation:test"""
    column: str = ""
    """for column: its cells say the part; for time: earlier rows are for training"""
    train: tuple[str, ...] = ("train",)
    """the cells that mean training"""
    val: tuple[str, ...] = ("val", "validation", "valid")
    """the cells that mean validation"""
    test: tuple[str, ...] = ("test",)
    """the cells that mean test"""


@dataclass(frozen=True)
class Preprocess:
    """What happens to the features before a network sees them."""

    fit: Literal["pooled", "client"] = "pooled"
    """means, deviations and fillings from the sums of all clients' training samples, or from each client's own"""
    numbers: Literal["standardise", "none"] = "standardise"
    """to mean 0 and standard deviation 1, or as they are"""
    fill: Literal["mean", "zero"] = "mean"
    """what a missing number becomes, before it is standardised"""
    flag: bool = True
    """whether a column that has missing numbers gets a second one that says where"""
    size: tuple[Side, ...] = ()
    """height and width that images are resized to; none: all have one size already"""
    channels: Literal[0, 1, 3] = 0
    """1 for grey, 3 for colour; 0: as the first image has them"""
    images: Literal["standardise", "unit"] = "standardise"
    """each channel to mean 0 and standard deviation 1, or from 0 to 1"""
    texts: Literal["auto", "tokens", "bag"] = "auto"
    """tokens: the words in their order, for networks of texts; bag: how often each occurs; auto: bag"""
    length: Annotated[int, Range(1, 10_000)] = 100
    """words per text, for tokens: longer texts are cut, shorter ones filled up"""
    buckets: Annotated[int, Range(2, 10_000_000)] = 10_000
    """words are hashed to so many numbers; a bag has at most 4,096"""


@dataclass(frozen=True)
class Description:
    """Everything that `data.toml` says."""

    format: Format
    """of the files"""
    path: str
    """a table, or a folder with one folder or one file per client; from the folder of data.toml"""
    client: str = ""
    """the column that says whose row it is; none: each folder or file is a client"""
    target: tuple[str, ...] = ()
    """the column to predict, or several; images have it in their folders' names, arrays in y"""
    task: Task | None = None
    """what kind of prediction; none: guessed from the target"""
    classes: tuple[str, ...] = ()
    """the classes as the files write them, in the order of their numbers; none: all that occur, sorted"""
    names: tuple[str, ...] = ()
    """how reports call the classes; none: as the files write them"""
    separator: str = ""
    """between the labels of one cell, for multilabel"""
    missing: tuple[str, ...] = MISSING
    """cells that stand for a missing value"""
    delimiter: str = ","
    """the character between the cells of a CSV file"""
    header: tuple[str, ...] = ()
    """the columns' names, for CSV files whose first line is data already"""
    few: Count = 10
    """`headwise data check` warns of clients with fewer samples"""
    sha256: str = ""
    """of the files, where they must not change"""
    features: Features = field(default_factory=Features)
    split: OwnSplit = field(default_factory=OwnSplit)
    preprocess: Preprocess = field(default_factory=Preprocess)

    @property
    def place(self) -> Path:
        """The table or folder."""
        return Path(self.path)

    @property
    def is_table(self) -> bool:
        """Whether samples are rows with named columns."""
        return self.format in TABLES


def read_description(path: Path) -> Description:
    """What a `data.toml` says, or one sentence that names the file, the key, the value and what is allowed."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.") from error
    try:
        return description_from(values, path.parent)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def description_from(values: dict[str, Any], folder: Path) -> Description:
    """From plain values; paths begin at `folder`."""
    values = dict(values)
    if isinstance(values.get("target"), str):
        values["target"] = [values["target"]]
    described = build(Description, values)
    _check(described)
    return replace(described, path=str((folder / described.path).absolute()))


def _check(d: Description) -> None:
    """What one key means for another."""
    if d.is_table:
        _check_table(d)
    elif unused := [k for k in ("client", "delimiter", "header") if getattr(d, k) != getattr(_PLAIN, k)]:
        raise ConfigError(f"{unused[0]} is {getattr(d, unused[0])!r}, but only tables (csv, parquet, jsonl) have it.")
    if len(d.delimiter) != 1:
        raise ConfigError(f"delimiter is {d.delimiter!r}, but must be one character.")
    if len(set(d.classes)) < len(d.classes) or len(d.classes) == 1:
        raise ConfigError(f"classes is {list(d.classes)}, but must name at least two, each once.")
    if d.names and len(d.names) != len(d.classes):
        raise ConfigError(
            f"names has {len(d.names)} entries, but must have one for each of the {len(d.classes)} classes."
        )
    if d.preprocess.size and len(d.preprocess.size) != 2:
        raise ConfigError(f"preprocess.size is {list(d.preprocess.size)}, but must be [height, width].")
    if d.split.by in ("column", "time") and not (d.is_table and d.split.column):
        raise ConfigError(f"split.by is {d.split.by!r}, but split.column names no column of a table.")
    if parse(d.split.ratio).official or parse(d.split.ratio).own:
        raise ConfigError(f"split.ratio is {d.split.ratio!r}, but must be like 75/25 or 8:1:1.")


def _check_table(d: Description) -> None:
    if not d.target:
        raise ConfigError("target is missing: it names the column to predict.")
    if not d.features.names():
        raise ConfigError(f"features is empty: name columns under {', '.join(KINDS)}.")
    used = [*d.features.names(), *d.target, *([d.client] if d.client else [])]
    if twice := [name for name in used if used.count(name) > 1]:
        raise ConfigError(f"{twice[0]!r} is named twice: a column is a feature, the target or the client.")
    if d.features.image and len(d.features.names()) > 1:
        raise ConfigError("features.image can't be mixed with other features: name one column of images alone.")


_PLAIN = Description("npz", "")
