"""CIFAR's pickles, read without running anything they name.

A pickle may call any function, but these only hold arrays. The few names in an array's pickle get inert stand-ins that
record their arguments, from which the array is built afterwards; any other name is refused.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from .files import read_bytes


class _Recorded:
    """Stands for an array or its dtype: records its arguments and state, and does nothing."""

    def __init__(self, *given: Any) -> None:
        self.given = given
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Careful(pickle.Unpickler):
    known: dict[str, Any]
    path: Path

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        name = f"{module_name}.{global_name}"
        if name not in self.known:
            raise DataError(f"{self.path} is refused: it names {name}, which image files don't need.")
        return self.known[name]


def read_pickle(path: Path) -> dict[str, Any]:
    """The file's dictionary: arrays as uint8, Python 2 strings as bytes."""
    kept = type("Kept", (_Recorded,), {})  # a new class per file, so that nothing leaks into the next
    data = read_bytes(path)
    reader = _Careful(io.BytesIO(data), encoding="bytes")
    reader.path = path
    reader.known = {
        "numpy.core.multiarray._reconstruct": kept,
        "numpy._core.multiarray._reconstruct": kept,
        "numpy.ndarray": None,  # only handed to _reconstruct
        "numpy.dtype": kept,
        "_codecs.encode": _encode,
    }
    try:
        _check_sizes(data)
        content = {to_text(key): value for key, value in reader.load().items()}
        return {key: _to_array(value) if isinstance(value, _Recorded) else value for key, value in content.items()}
    except DataError:
        raise
    except Exception:  # hostile bytes can raise anything
        raise DataError(f"{path} is not a pickle of images and labels, or is damaged.") from None


def _check_sizes(data: bytes) -> None:
    """Refuse what would make the reader allocate much memory: strings longer than the file, huge memo indices."""
    for operation, argument, _ in pickletools.genops(data):
        if operation.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(argument or 0) > len(data):
            raise ValueError


def _to_array(kept: _Recorded) -> NDArray[np.uint8]:
    """A C-ordered array of bytes from numpy's pickled state."""
    _, shape, kind, is_fortran, raw = kept.state
    if kind.given[0] not in ("u1", b"u1") or is_fortran or not isinstance(raw, bytes):
        raise ValueError
    return np.frombuffer(raw, np.uint8).reshape(shape)


def _encode(text: str, encoding: str) -> bytes:
    """How Python 3 pickles bytes in protocol 2; it always uses latin1."""
    if encoding != "latin1":
        raise ValueError
    return text.encode("latin1")


def to_text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
