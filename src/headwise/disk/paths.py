"""Checks paths that a user names before any work begins, so that a mistake costs a sentence and not a result."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

from ..errors import ConfigError, HeadwiseError, RunError

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
}


def path_of(text: str | Path, at: str) -> Path:
    """A path that the file system and JSON files can represent; `at` names the setting in errors."""
    name = str(text)
    if not name:
        raise ConfigError(f"{at} is '', but must be a path.")
    if not is_text(name):
        raise ConfigError(f"{at} is {name!r}, but must be a path in UTF-8 without NUL.")
    return Path(text)


def is_text(text: str) -> bool:
    """Whether files, messages and paths can hold this string: valid UTF-8 without NUL."""
    return "\0" not in text and not any("\ud800" <= c <= "\udfff" for c in text)


def input_file(text: str | Path, at: str) -> Path:
    """A readable regular file."""
    path = path_of(text, at)
    kind = _kind(path, _make_read_error)
    if kind is None or kind == stat.S_IFDIR:
        raise _make_read_error(path, os.strerror(errno.EISDIR if kind else errno.ENOENT))
    if kind != stat.S_IFREG:
        raise _make_read_error(path, f"it is {_KINDS[kind]}, not a file")
    if not os.access(path, os.R_OK):
        raise _make_read_error(path, os.strerror(errno.EACCES))
    return path


def input_folder(text: str | Path, at: str) -> Path:
    """A folder to read from. It need not exist: whoever reads it says what is missing."""
    path = path_of(text, at)
    if _kind(path, _make_read_error) not in (None, stat.S_IFDIR):
        raise _make_read_error(path, os.strerror(errno.ENOTDIR))
    return path


def output_file(text: str | Path, at: str) -> Path:
    """A regular file that can be replaced, or a new one in an existing folder."""
    path = path_of(text, at)
    target = follow_links(path)
    _kind(draft_of(target), lambda _, why: _make_write_error(path, why))  # its name is longer
    _check_place(path, target.parent)
    return path


def output_folder(text: str | Path, at: str) -> Path:
    """A folder to write to: one that exists or can be created."""
    path = path_of(text, at)
    if not Path(os.path.abspath(path)).name:
        raise ConfigError(f"{at} is {str(path)!r}, but must be a folder with a name.")
    if _kind(path, _make_write_error) not in (None, stat.S_IFDIR):
        raise RunError(f"{path} exists already and is not a folder: choose another one.")
    nearest = next(p for p in (path, *path.absolute().parents) if _kind(p, _make_write_error) is not None)
    _check_place(path, nearest)
    longest = os.pathconf(nearest, "PC_NAME_MAX") - 10  # names derived from it are a little longer
    if any(len(part.encode()) > longest for part in path.parts):
        raise _make_write_error(path, os.strerror(errno.ENAMETOOLONG))
    return path


def output_path(text: str | Path, at: str) -> Path:
    """A file to write, or a folder if the name has no ending."""
    return output_file(text, at) if path_of(text, at).suffix else output_folder(text, at)


def existing_or_new_file(text: str | Path, at: str) -> Path:
    """A file that is read if it exists and created otherwise."""
    path = path_of(text, at)
    return output_file(path, at) if _kind(path, _make_read_error) is None else input_file(path, at)


def follow_links(path: Path) -> Path:
    """The regular file, behind all links, that writing to `path` replaces or creates; refuses anything else."""
    kind = _kind(path, _make_write_error)
    if kind is not None and kind != stat.S_IFREG:
        raise _make_write_error(path, f"it is {_KINDS[kind]}, not a file")
    return Path(os.path.realpath(path))


def folder_name(text: str) -> str:
    """The text as the name of a folder: whatever is unusual in a name becomes a hyphen."""
    return re.sub(r"[^\w.=-]+", "-", text)


def draft_of(path: Path) -> Path:
    """The temporary name under which a file is written before it is renamed."""
    return path.with_name(f".{path.name}.tmp")


def _check_place(path: Path, folder: Path) -> None:
    if not folder.is_dir():
        raise _make_write_error(path, os.strerror(errno.ENOTDIR if folder.exists() else errno.ENOENT))
    if not os.access(folder, os.W_OK | os.X_OK):
        raise _make_write_error(path, os.strerror(errno.EACCES))


def _kind(path: Path, failed: Callable[[Path, str], HeadwiseError]) -> int | None:
    """The type of file behind all links; None if nothing exists there."""
    try:
        return stat.S_IFMT(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise failed(path, error.strerror or str(error)) from error


def _make_read_error(path: Path, why: str) -> HeadwiseError:
    return ConfigError(f"{path} can't be read: {why}.")


def _make_write_error(path: Path, why: str) -> HeadwiseError:
    return RunError(f"{path} can't be written: {why}.")
