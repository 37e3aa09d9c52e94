"""Writes a description as a commented data.toml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ...disk.jsontext import to_toml
from ...settings.fields import dump, field_help
from .description import Description, Features, OwnSplit, Preprocess
from .looking import Look

USED = {
    "csv": ("fit", "numbers", "fill", "flag"),
    "images": ("fit", "size", "channels", "images"),
    "npz": ("fit", "numbers", "fill"),
}


def commented(found: Look, path: str, classes: tuple[str, ...], guess: str) -> str:
    """The text of a data.toml: relevant settings with their help as comments."""
    d = found.description
    head = {**dump(d), "path": path, "classes": list(classes), "target": _target(d)}
    lines = [
        "# Guessed from the files. Correct what is wrong, then run: headwise data check data.toml",
        *_lines(Description, head, ["format", "path"]),
        *(_lines(Description, head, ["client"]) if d.client else []),
        *(_lines(Description, head, ["one_client"]) if d.one_client else []),
        *(_lines(Description, head, ["target"]) if d.target else []),
        f"# task = {to_toml(guess)}  # classification, multilabel, regression or segmentation; guessed"
        if d.task is None
        else f"task = {to_toml(d.task)}",
        *([f"# target_range = [0, 100]  # {field_help(Description)['target_range']}"] if guess == "regression" else []),
        *(_lines(Description, head, ["classes"]) if classes else []),
        *(_lines(Description, head, ["missing"]) if d.is_table else []),
        *(_lines(Description, head, ["delimiter"]) if d.delimiter != "," else []),
        *(_lines(Description, head, ["header"]) if d.header else []),
    ]
    if d.is_table:
        lines += ["", "[features]", *_lines(Features, dump(d.features), [f.name for f in fields(Features)])]
        lines += [f"# {to_toml(name)} is left out: {why}" for name, why in found.left_out.items()]
    split = [
        "by",
        *(["column"] if d.split.by == "column" else []),
        *([] if d.split.by in ("column", "files") else ["ratio"]),
    ]
    lines += ["", "[split]", *_lines(OwnSplit, dump(d.split), split)]
    lines += ["", "[preprocess]", *_lines(Preprocess, dump(d.preprocess), _preprocess(d))]
    return "\n".join(lines) + "\n"


def _preprocess(d: Description) -> list[str]:
    if d.format == "images" or d.features.image:
        return list(USED["images"])
    texts = ["texts", "length", "buckets"] if d.features.text else []
    numbers = d.format == "npz" or d.features.number or d.features.category
    return [*(USED["npz" if d.format == "npz" else "csv"] if numbers else []), *texts]


def _target(d: Description) -> Any:
    return d.target[0] if len(d.target) == 1 else list(d.target)


def _lines(cls: type[Any], values: Mapping[str, Any], names: list[str]) -> list[str]:
    """One line per setting, with its help as a comment."""
    helps = field_help(cls)
    return [f"{name} = {to_toml(values[name])}  # {helps[name]}" for name in names]
