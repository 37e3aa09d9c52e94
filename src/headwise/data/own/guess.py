"""`headwise data init`: guesses a data.toml from a table or a folder, and writes it with comments."""

from __future__ import annotations

import csv
import os
import re
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import numpy as np

from ...disk.jsontext import to_toml
from ...errors import ConfigError, DataError, nearest
from ...settings.fields import dump, field_help
from ...tasks.registry import TASKS, kind_of
from ...tasks.segmentation import Segmentation
from .arrays import load_npz
from .description import MISSING, Description, Features, Format, OwnSplit, Preprocess
from .findings import Findings
from .images import read_sizes
from .layout import IMAGES, SUFFIXES, list_files, list_subfolders, stem_of, suffix_of
from .tables import COLUMNS, COMMA, columns_of, lines_of, list_dictionaries, open_text, read_blocks, with_point
from .values import are_dates, to_number

ROWS = 5000
"""rows per column that are sampled"""
FILES = 20
"""files that are sampled"""
CATEGORIES = 10
"""a column with at most this many different integers is a category"""
WORDS = 4
"""a column with this many words per cell is a text"""
MARKERS = 3
"""at most this many different words are missing values in a column of numbers"""
FEW = 0.1
"""and at most this share of its cells"""


@dataclass(frozen=True)
class Guess:
    description: Description
    left_out: dict[str, str]
    """columns that are not features, and why"""


def guess_description(
    path: Path,
    client: str,
    target: Sequence[str],
    *,
    one_client: bool = False,
    kinds: Mapping[str, str] | None = None,
    weight: str = "",
) -> Guess:
    """Guess a description; its `path` is as given. `kinds` are columns that need no guess."""
    format = _guess_format(path)
    d = Description(format, str(path), one_client=one_client)
    if format == "images":
        return Guess(replace(d, **_guess_images(path)), {})
    if format == "npz":
        return Guess(replace(d, split=OwnSplit("files" if _is_parted(path, d) else "ratio")), {})
    return _guess_table(replace(d, weight=weight), client, target, kinds or {})


def _guess_format(path: Path) -> Format:
    """By the file's extension, or that of the first file in the folder with a known one."""
    inside = sorted(path.rglob("*")) if os.path.isdir(path) else []
    for file in [path] if os.path.isfile(path) else [p for p in inside if os.path.isfile(p) and p.name[0] not in "._"]:
        for format in get_args(Format)[:-1]:
            if suffix_of(file) in SUFFIXES[format]:
                return format
    endings = ", ".join(e for f in get_args(Format)[:-1] for e in SUFFIXES[f])
    what = "no such file or folder" if not os.path.exists(path) else f"no file with a known extension ({endings})"
    raise DataError(f"{path}: there is {what}.")


def _guess_images(path: Path) -> dict[str, Any]:
    """Settings for parts, masks and images of different sizes, if there are any."""
    inner = {p.name for client in list_subfolders(path) for p in list_subfolders(client)}
    parted = bool(inner) and inner <= OwnSplit().part_of.keys()
    if parted:
        inner = {p.name for part in path.glob("*/*") if part.is_dir() for p in list_subfolders(part)}
    settings: dict[str, Any] = {"split": OwnSplit("files")} if parted else {}
    if inner == {"images", "masks"}:
        settings["task"] = Segmentation.name
    paths = sorted(p for p in path.rglob("*") if p.suffix.lower() in IMAGES)
    sizes = read_sizes(paths[:: len(paths) // ROWS + 1])
    if len(sizes) > 1:
        settings["preprocess"] = Preprocess(size=(min(h for h, _ in sizes), min(w for _, w in sizes)))
    return settings


def _is_parted(path: Path, d: Description) -> bool:
    """Whether all files are named like the parts: train, val, test."""
    if os.path.isfile(path):
        return False
    files = list_files(path, d)
    if d.format == "npz" and "x_train" in load_npz(files[0]):
        return True
    return {stem_of(p) for p in files} <= OwnSplit().part_of.keys()


def _guess_table(d: Description, client: str, target: Sequence[str], declared: Mapping[str, str]) -> Guess:
    place = d.place
    files = [place] if os.path.isfile(place) else list_files(place, d)
    if d.format == "csv":
        d = replace(d, **_guess_dialect(files[0], (client, *target)))
    columns = _read_columns(files[0], d, client, target)
    cells = _sample_cells(files, d, columns)
    if d.format == "csv" and d.delimiter != "," and any(map(_has_decimal_commas, cells.values())):
        d = replace(d, decimal=",")
        cells = {name: [with_point(cell) for cell in column] for name, column in cells.items()}
    used = {str(c).strip() for n in (client, *target) if n for c in cells[n]}
    others = [n for n in columns if n not in (client, *target) and not _has_texts_only(cells[n], d)]
    if markers := _find_markers([cells[n] for n in others], used):
        d = replace(d, missing=(*d.missing, *markers))
        cells = {name: [c for c in column if str(c).strip() not in markers] for name, column in cells.items()}
    split = _guess_split(cells, parted=_is_parted(place, d), used=(client, *target))
    kinds = {n: _guess_kind(n, cells[n], d) for n in columns if n not in (client, *target, split.column, d.weight)}
    if d.format == "parquet":  # pandas writes categories as dictionaries
        declared = {**dict.fromkeys(list_dictionaries(files[0]), "category"), **declared}
    kinds |= {n: kind for n, kind in declared.items() if n in kinds and cells[n]}
    features = Features(*(tuple(n for n, kind in kinds.items() if kind == k) for k in ("number", "category", "text")))
    pictures = tuple(n for n, kind in kinds.items() if kind == "image")[:1]
    if pictures:
        features = Features(image=pictures)
    if not features.names():
        reasons = "; ".join(f"{n}: {why}" for n, why in islice(kinds.items(), 3)) or "there is none"
        raise DataError(f"{files[0]} has no column that can be a feature ({reasons}).")
    used_names = {*features.names()}
    left_out = {n: kind for n, kind in kinds.items() if n not in used_names}
    return Guess(replace(d, client=client, target=tuple(target), features=features, split=split), left_out)


def _read_columns(path: Path, d: Description, client: str, target: Sequence[str]) -> list[str]:
    """The columns of the first file, which must have those that are named, each once."""
    try:
        columns = columns_of(path, d)
    except (OSError, UnicodeDecodeError, csv.Error):
        raise DataError(f"{path} can't be read as {d.format.upper()} in UTF-8.") from None
    if twice := [name for name, n in Counter(columns).items() if n > 1]:
        raise DataError(f"{path} has several columns called {twice[0]!r}: give each a name of its own.")
    for at, name in [("--target", t) for t in target] + ([("--clients", client)] if client else []):
        if name not in columns:
            hint = nearest(name, columns, COLUMNS)
            raise ConfigError(f"{at} is {name!r}, which is not a column of {path}: {hint}")
    if not target:
        raise ConfigError(f"--target is missing: name the column to predict, one of {', '.join(columns)}.")
    if os.path.isfile(d.place) and not client and not d.one_client:
        other = "--one-client says that all rows belong to one client"
        raise ConfigError(
            f"--clients is missing: name the column with each row's client, one of {', '.join(columns)}; {other}."
        )
    return columns


def _guess_dialect(path: Path, named: Sequence[str]) -> dict[str, Any]:
    """The delimiter, and column names if the file has no header line."""
    try:
        with open_text(path) as file:
            head = [line for line in islice(lines_of(file, path), 20) if line.strip()]
    except (OSError, EOFError, zlib.error, UnicodeDecodeError):
        raise DataError(f"{path} can't be read as UTF-8 text.") from None
    if not head:
        raise DataError(f"{path} is empty.")
    delimiter = max(",;\t|", key=head[0].count)
    try:
        first, *others = csv.reader(head, delimiter=delimiter)
    except csv.Error as error:
        raise DataError(f"{path} is not valid CSV: {error}.") from None
    has_names = bool({*named} & {*first} - {""}) or _has_names(first, others)
    numbered = tuple(f"column {k}" for k in range(1, len(first) + 1))
    return {"delimiter": delimiter, "header": () if has_names else numbered}


def _has_names(first: Sequence[str], others: Sequence[Sequence[str]]) -> bool:
    """Whether a file's first line has the columns' names: no numbers, or a word where the others have only numbers."""
    known = [(cell, column) for cell, *column in zip(first, *others, strict=False) if cell.strip() not in MISSING]
    words = [column for cell, column in known if to_number(cell) is None]
    gaps = [[c for c in column if c.strip() not in MISSING] for column in words]
    return len(words) == len(known) or any(g and all(to_number(c) is not None for c in g) for g in gaps)


def _sample_cells(files: Sequence[Path], d: Description, columns: Sequence[str]) -> dict[str, list[Any]]:
    """Some cells of each column, from several files."""
    sample: dict[str, list[Any]] = {name: [] for name in columns}
    for path in files[:: max(1, len(files) // FILES)]:
        for block in islice(read_blocks(path, d, columns, Findings()), 1):
            for name, cells in block.columns.items():
                rows = max(200, ROWS // min(len(files), FILES))
                sample[name] += [c for c in cells[:rows].tolist() if not _is_missing(c)]
    return sample


def _has_decimal_commas(cells: Sequence[str]) -> bool:
    """Whether a column has only such numbers; 1,234 may mean a thousand, unless another cell rules that out."""
    texts = [cell.strip() for cell in cells]
    with_comma = [t for t in texts if COMMA.fullmatch(t)]
    plain = all(COMMA.fullmatch(t) or re.fullmatch(r"[+-]?\d+", t) for t in texts)
    return plain and any(not re.fullmatch(r"[+-]?\d{1,3},\d{3}", t) for t in with_comma)


def _find_markers(columns: Sequence[Sequence[Any]], used: set[str]) -> list[str]:
    """Words among numbers, such as `unknown`, that no other column uses: they must stand for missing values."""
    words = [Counter(t for c in cells if to_number(t := str(c).strip()) is None) for cells in columns]
    numbers = [len(w) <= MARKERS and w.total() <= FEW * len(cells) for w, cells in zip(words, columns, strict=True)]
    used = used | {t for w, mostly in zip(words, numbers, strict=True) if not mostly for t in w}
    return sorted({t for w, mostly in zip(words, numbers, strict=True) if mostly for t in w} - used)


def _is_missing(cell: Any) -> bool:
    return cell is None or cell != cell or str(cell).strip() in MISSING


def _guess_split(cells: dict[str, list[Any]], *, parted: bool, used: Sequence[str]) -> OwnSplit:
    default = OwnSplit()
    for name, values in cells.items():
        cells_used = {str(v) for v in values}  # a sample of rows may not have all parts
        if name not in used and cells_used and cells_used <= default.part_of.keys():
            return OwnSplit("column", column=name)
    return OwnSplit("files") if parted else default


def _has_texts_only(cells: Sequence[Any], d: Description) -> bool:
    """Whether a file with types declares a column of texts, which are not numbers even if they look like numbers."""
    return d.format != "csv" and all(isinstance(c, str) for c in cells)


def _guess_kind(name: str, cells: Sequence[Any], d: Description) -> str:
    """number, category, text or image; anything else is the reason why the column is left out."""
    if not cells:
        return "empty"
    if any(isinstance(c, list | dict) for c in cells):
        return "its cells are lists or objects"
    texts = [str(c).strip() for c in cells]
    return _kind_of_texts(texts) if _has_texts_only(cells, d) else _kind_of_numbers(name, cells, texts, d)


def _kind_of_numbers(name: str, cells: Sequence[Any], texts: Sequence[str], d: Description) -> str:
    """The kind of a column that may hold numbers; in a file without types, a few whole numbers are categories."""
    numbers = [float(c) if isinstance(c, bool) else to_number(t) for c, t in zip(cells, texts, strict=True)]
    different = len(set(texts))
    if None not in numbers:
        whole = all(n == int(n) for n in numbers if n is not None and np.isfinite(n))
        if re.search(r"(^|[_ ])(id|index|nr|no)$", name.lower()) and different == len(texts):
            return "looks like an identifier"
        return "category" if whole and different <= CATEGORIES and d.format == "csv" else "number"
    strange = [t for t, n in zip(texts, numbers, strict=True) if n is None]
    if len(strange) <= FEW * len(texts):
        return f"numbers, but {len(strange)} of {len(texts)} cells are not, such as {strange[0]!r}"
    return _kind_of_texts(texts)


def _kind_of_texts(texts: Sequence[str]) -> str:
    different = len(set(texts))
    if all(Path(t).suffix.lower() in IMAGES for t in texts):
        return "image"
    if are_dates([*dict.fromkeys(texts)]):
        return 'a date; [split] by = "time" can use it'
    if np.mean([len(t.split()) for t in texts]) >= WORDS:
        return "text"
    if different > max(CATEGORIES, len(texts) // 2):
        numbers = all(to_number(t) is not None for t in texts)
        return "texts that look like numbers: convert them to numbers" if numbers else "looks like an identifier"
    return "category"


def write_comments(guess: Guess, path: str, classes: tuple[str, ...], task: str, label_type: str) -> str:
    """The text of a data.toml: relevant settings with their help as comments."""
    d = guess.description
    target = d.target[0] if len(d.target) == 1 else list(d.target)
    settings = {**dump(d), "path": path, "target": target, "classes": list(classes), "label_type": label_type}
    plain = Description(d.format, "")
    used = [name for name in ("client", "one_client", "target") if getattr(d, name)]
    typed = ["classes", "label_type"] if classes else []
    written = [name for name in ("delimiter", "decimal", "header") if getattr(d, name) != getattr(plain, name)]
    lines = [
        "# Guessed from the files. Correct what is wrong, then run headwise data check with this file.",
        *_write_settings(Description, settings, ["format", "path", *used]),
        f"task = {to_toml(d.task)}" if d.task else f"# task = {to_toml(task)}  # one of {', '.join(TASKS)}; guessed",
    ]
    if kind_of(task).quantitative:
        lines.append(f"# target_range = [0, 100]  # {field_help(Description)['target_range']}")
    lines += _write_settings(Description, settings, [*typed, *(["missing"] if d.is_table else []), *written])
    if d.is_table:
        lines += ["", "[features]", *_write_settings(Features, dump(d.features), [f.name for f in fields(Features)])]
        lines += [f"# {to_toml(name)} is left out: {why}" for name, why in guess.left_out.items()]
    split = {"column": ["by", "column"], "files": ["by"]}.get(d.split.by, ["by", "ratio"])
    lines += ["", "[split]", *_write_settings(OwnSplit, dump(d.split), split)]
    lines += ["", "[preprocess]", *_write_settings(Preprocess, dump(d.preprocess), _list_preprocessing(d))]
    return "\n".join(lines) + "\n"


def _list_preprocessing(d: Description) -> list[str]:
    """The preprocessing settings that these features have."""
    if d.format == "images" or d.features.image:
        return ["fit", "size", "channels", "images"]
    texts = ["texts", "length", "buckets"] if d.features.text else []
    if d.format == "npz":
        return ["fit", "numbers", "fill"]
    return [*(["fit", "numbers", "fill", "flag"] if d.features.number or d.features.category else []), *texts]


def _write_settings(cls: type[Any], values: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """One line per setting, with its help as a comment."""
    helps = field_help(cls)
    return [f"{name} = {to_toml(values[name])}  # {helps[name]}" for name in names]
