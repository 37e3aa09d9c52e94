"""Parameter types for paths, which are checked before a command starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ..disk import paths


class PathType(click.ParamType):
    """A path that passes one of the checks in `headwise.disk.paths`."""

    name = "path"

    def __init__(self, check: Callable[[str | Path, str], Path]) -> None:
        self.check = check

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        return self.check(value, "a path" if param is None else param.opts[-1])


INPUT_FILE = PathType(paths.input_file)
INPUT_FOLDER = PathType(paths.input_folder)
OUTPUT_FILE = PathType(paths.output_file)
OUTPUT_FOLDER = PathType(paths.output_folder)
OUTPUT_PATH = PathType(paths.output_path)
KEPT_FILE = PathType(paths.kept_file)
