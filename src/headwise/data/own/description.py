"""`data.toml`: where a user's data is, which client each row belongs to, and what to predict from which features."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from ...disk.jsontext import to_toml
from ...disk.paths import input_file, is_text
from ...errors import ConfigError
from ...settings.experiment import read_toml
from ...settings.fields import Count, Range, build, difference, dump
from ...settings.options import TargetRange, TaskName
from ..dataset import LabelType
from ..splits import parse_split

Format = Literal["csv", "parquet", "jsonl", "images", "npz", "arrays"]
TABLES = ("csv", "parquet", "jsonl")
KINDS = ("number", "category", "text", "image")
MISSING = ("", "?", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "null", "NULL", "None")
"""as pandas reads them, and the question mark of the UCI repository"""
PARTS = ("train", "val", "test")
ONLY_TABLES = ("weight", "client", "one_client", "delimiter", "decimal", "header")
"""settings of tables"""

Side = Annotated[int, Range(1, 4096)]


@dataclass(frozen=True)
class Features:
    """The feature columns, by type."""

    number: tuple[str, ...] = ()
    """columns of numbers"""
    category: tuple[str, ...] = ()
    """columns of categories, written as text or numbers"""
    text: tuple[str, ...] = ()
    """columns of texts"""
    image: tuple[str, ...] = ()
    """one column with the paths of image files, relative to the table's folder"""

    def names(self) -> tuple[str, ...]:
        return (*self.number, *self.category, *self.text, *self.image)


@dataclass(frozen=True)
class OwnSplit:
    """How to divide each client's samples into training, validation and test."""

    by: Literal["ratio", "column", "time", "files"] = "ratio"
    """ratio: at random; column: as a column says; time: by ratio in a column's order; files: named train, val, test"""
    ratio: str = "75/25"
    """train/test or train:validation:test"""
    column: str = ""
    """for column (the default if it is set): its cells name the part; for time: earlier rows are for training"""
    format: str = ""
    """for time: how dates are written, such as %d/%m/%Y; empty: numbers, or dates that can only be read one way"""
    train: tuple[str, ...] = ("train",)
    """the cells that mean training"""
    val: tuple[str, ...] = ("val", "validation", "valid")
    """the cells that mean validation"""
    test: tuple[str, ...] = ("test",)
    """the cells that mean test"""

    @property
    def part_of(self) -> dict[str, int]:
        """0, 1 or 2 for each cell that means a part."""
        return {**dict.fromkeys(self.train, 0), **dict.fromkeys(self.val, 1), **dict.fromkeys(self.test, 2)}


@dataclass(frozen=True)
class Preprocess:
    """How to preprocess the features."""

    fit: Literal["pooled", "client"] = "pooled"
    """the source of means, deviations and fill values: sums over all clients' training samples, or each client's own"""
    numbers: Literal["standardize", "as they are"] = "standardize"
    """standardize: to mean 0 and standard deviation 1; as they are: no scaling"""
    fill: Literal["mean", "zero"] = "mean"
    """what replaces a missing number, before standardizing"""
    flag: bool = True
    """whether a column with missing numbers gets a second one that marks them"""
    size: tuple[Side, ...] = ()
    """height and width to resize images to; empty: all images have the same size already"""
    channels: Literal[0, 1, 3] = 0
    """1 for grey, 3 for colour; 0: like the first image"""
    images: Literal["standardize", "unit"] = "standardize"
    """each channel to mean 0 and standard deviation 1, or to the range 0 to 1"""
    texts: Literal["auto", "tokens", "bag"] = "auto"
    """tokens: the words in order, for networks of texts; bag: how often each word occurs; auto: bag"""
    length: Annotated[int, Range(1, 10_000)] = 100
    """words per text: longer texts are truncated, shorter ones padded"""
    buckets: Annotated[int, Range(2, 10_000_000)] = 10_000
    """number of hash buckets for words; a bag uses at most 4,096"""


@dataclass(frozen=True)
class Description:
    """The contents of a `data.toml`."""

    format: Format
    """format of the files"""
    path: str
    """a table, or a folder with one folder or file per client; relative to the folder of data.toml"""
    weight: str = ""
    """the column with each row's weight in the loss of training, from 0; empty: all rows count the same"""
    client: str = ""
    """the column that names each row's client; empty: each folder or file is a client"""
    one_client: bool = False
    """whether all rows of one table belong to one client, as at a site"""
    target: tuple[str, ...] = ()
    """the column or columns to predict; images are labelled by their folders' names, arrays by y"""
    task: TaskName | None = None
    """the kind of prediction; none: guessed from the target"""
    target_range: TargetRange | None = None
    """the lowest and highest value that a regression's target can have, or a list of such pairs; none: measured"""
    classes: tuple[str, ...] = ()
    """the classes as written in the files, in the order of their labels; empty: all that occur, sorted"""
    label_type: LabelType | None = None
    """the type in which predictions return classes: str, int, float, bool or datetime; none: that of the target"""
    names: tuple[str, ...] = ()
    """the classes' names in reports; empty: as written in the files"""
    separator: str = ""
    """between the labels of one cell, for multilabel"""
    missing: tuple[str, ...] = MISSING
    """cells that stand for a missing value"""
    delimiter: str = ","
    """the character between the cells of a CSV file"""
    decimal: Literal[".", ","] = "."
    """the decimal mark of a CSV file's numbers"""
    header: tuple[str, ...] = ()
    """column names, for CSV files without a header line"""
    few: Count = 10
    """`headwise data check` warns of clients with fewer samples"""
    sha256: str = ""
    """hash of the files, if they must not change"""
    features: Features = field(default_factory=Features)
    split: OwnSplit = field(default_factory=OwnSplit)
    preprocess: Preprocess = field(default_factory=Preprocess)

    @property
    def place(self) -> Path:
        return Path(self.path)

    @property
    def is_table(self) -> bool:
        """Whether samples are rows with named columns."""
        return self.format in TABLES


def read_description(path: Path) -> Description:
    """Read a `data.toml`; a ConfigError names the file, the key, the value and what is allowed."""
    values = read_toml(input_file(path, "data"))
    try:
        return description_from(values, path.parent)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


USED = {
    "ratio": ("by", "ratio"),
    "column": ("by", "column", "train", "val", "test"),
    "time": ("by", "column", "ratio", "format"),
    "files": ("by", "train", "val", "test"),
}
"""the settings of each way to split"""


def complete_split(split: Any) -> Any:
    """Fill in `by` where a column implies it; settings that would be ignored are refused."""
    if not isinstance(split, Mapping):
        return split
    by = split.get("by", "column" if "column" in split else "ratio")
    for name in split if by in USED else ():
        if name not in USED[by] and hasattr(OwnSplit, name):
            allowed = " or ".join(repr(way) for way, names in USED.items() if name in names)
            raise ConfigError(f"split.{name} is {split[name]!r}, but split.by is {by!r}: it must be {allowed}.")
    return {"by": by, **split}


def description_from(values: dict[str, Any], folder: Path) -> Description:
    """From plain values; paths are relative to `folder`."""
    values = dict(values)
    if isinstance(values.get("target"), str):
        values["target"] = [values["target"]]
    if "split" in values:
        values["split"] = complete_split(values["split"])
    described = build(Description, values)
    _check(described)
    return replace(described, path=str((folder / described.path).absolute()))


def to_text(d: Description, path: str) -> str:
    """A data.toml with the settings that differ from their defaults."""
    defaults = dump(Description(d.format, ""))
    settings = {"format": d.format, **difference({**dump(d), "path": path}, defaults)}
    lines = [f"{k} = {to_toml(v)}" for k, v in settings.items() if not isinstance(v, Mapping)]
    for table, values in settings.items():
        if isinstance(values, Mapping):
            lines += ["", f"[{table}]", *(f"{k} = {to_toml(v)}" for k, v in values.items())]
    return "\n".join(lines) + "\n"


def _check(d: Description) -> None:
    """Check the keys that depend on each other."""
    if d.is_table:
        _check_table(d)
    elif unused := [k for k in ONLY_TABLES if getattr(d, k) != getattr(_PLAIN, k)]:
        raise ConfigError(f"{unused[0]} is {getattr(d, unused[0])!r}, but only tables (csv, parquet, jsonl) take it.")
    if not is_text(d.path):
        raise ConfigError(f"path is {d.path!r}, but must be a path in UTF-8 without NUL.")
    if len(d.delimiter) != 1 or d.delimiter in '\r\n"\0':
        raise ConfigError(f"delimiter is {d.delimiter!r}, but must be one character, like a comma or a tab.")
    if len(set(d.classes)) < len(d.classes) or len(d.classes) == 1:
        raise ConfigError(f"classes is {list(d.classes)}, but must name at least two classes, each once.")
    if d.names and len(d.names) != len(d.classes):
        raise ConfigError(
            f"names has {len(d.names)} entries, but must have one for each of the {len(d.classes)} classes."
        )
    if d.preprocess.size and len(d.preprocess.size) != 2:
        raise ConfigError(f"preprocess.size is {list(d.preprocess.size)}, but must be [height, width].")
    if d.split.by in ("column", "time") and not (d.is_table and d.split.column):
        raise ConfigError(f"split.by is {d.split.by!r}, but split.column does not name a column of a table.")
    if parse_split(d.split.ratio).official or parse_split(d.split.ratio).own:
        raise ConfigError(f"split.ratio is {d.split.ratio!r}, but must be like 75/25 or 8:1:1.")


def _check_table(d: Description) -> None:
    if d.one_client and d.client:
        raise ConfigError(f"one_client is true, but client is {d.client!r}: set only one of them.")
    if not d.target:
        raise ConfigError("target is missing: it names the column to predict.")
    if not d.features.names():
        raise ConfigError(f"features is empty: name columns under {', '.join(KINDS)}.")
    used = [*d.features.names(), *d.target, *filter(None, (d.client, d.weight))]
    if twice := [name for name, n in Counter(used).items() if n > 1]:
        raise ConfigError(
            f"{twice[0]!r} is named twice: a column can only be a feature, a target, the weight or the client."
        )
    if d.features.image and len(d.features.names()) > 1:
        raise ConfigError("features.image can't be combined with other features: name a single column of images.")


_PLAIN = Description("npz", "")
