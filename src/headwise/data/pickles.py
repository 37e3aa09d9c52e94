"""Pickles of arrays, read without running anything they name.

A pickle is a program. Here a small machine interprets its operations: it makes plain values, knows the names that NumPy
writes for arrays, and refuses every other name and every other way to make an object.
"""

from __future__ import annotations

import pickletools
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from .files import read_bytes

NAMES = (
    "__builtin__.bytes",
    "_codecs.encode",
    "numpy.dtype",
    "numpy.ndarray",
    *(
        f"numpy.{core}.{name}"
        for core in ("core", "_core")
        for name in ("multiarray._reconstruct", "multiarray.scalar", "numeric._frombuffer")
    ),
)
"""types that a pickle of arrays may have"""


@dataclass
class PickledArray:
    """An array: numbers, or the objects that are its elements."""

    shape: tuple[int, ...] = ()
    numbers: NDArray[Any] | None = None
    items: list[Any] | None = None


@dataclass
class _Type:
    """A NumPy type, such as f4."""

    code: str
    order: str = "|"


@dataclass(frozen=True)
class _Name:
    text: str


def read_pickle(path: Path, data: bytes | None = None, what: str = "images and labels") -> dict[str, Any]:
    """The dictionary in a pickle, which is the file's content or `data`; strings of Python 2 are bytes."""
    data = read_bytes(path) if data is None else data
    try:
        content = _Machine(data).run()
        if isinstance(content, PickledArray) and content.items and content.shape == ():  # as `np.savez` writes it
            content = content.items[0]
        if not isinstance(content, dict):
            raise TypeError
        return {to_text(key): value for key, value in content.items()}
    except DataError as error:
        raise DataError(f"{path} is refused: {error}") from None
    except Exception:  # hostile bytes can raise anything
        raise DataError(f"{path} is not a pickle of {what}, or is damaged.") from None


def to_text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


class _Machine:
    """Interprets operations in time and memory proportional to their number, whatever they are."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.marks: list[int] = []
        self.encoded = 0

    def run(self) -> Any:
        for operation, argument, _ in pickletools.genops(self.data):
            if operation.name not in OPERATIONS:
                raise DataError(f"it uses the operation {operation.name}, which arrays don't need.")
            OPERATIONS[operation.name](self, argument)
        return self.stack.pop()

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def push_string(self, value: str) -> None:
        """Strings of Python 2 are bytes."""
        self.push(value.encode("latin-1"))

    def push_name(self, text: str) -> None:
        name = text.replace(" ", ".")
        if name not in NAMES:
            raise DataError(f"it names {name}, which arrays don't need.")
        self.push(_Name(name))

    def pop(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise ValueError
        values = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return values

    def pop_to_mark(self) -> list[Any]:
        return self.pop(len(self.stack) - self.marks.pop())

    def append(self, values: list[Any]) -> None:
        if not isinstance(self.stack[-1], list):
            raise TypeError
        self.stack[-1].extend(values)

    def set_items(self, values: list[Any]) -> None:
        if not isinstance(self.stack[-1], dict):
            raise TypeError
        self.stack[-1].update(_to_dict(values))

    def reduce(self) -> None:
        """Make the value that a name and its arguments stand for."""
        name, arguments = self.pop(2)
        make = name.text.rpartition(".")[2]
        if make == "_reconstruct":
            self.push(PickledArray())  # its shape and content follow
        elif make == "dtype":
            self.push(_Type(_read_code(arguments[0])))
        elif make == "scalar":
            self.push(_read_numbers(arguments[1], arguments[0])[0].item())
        elif make == "_frombuffer":
            raw, kind, shape, order = arguments
            self.push(PickledArray(shape, _read_numbers(raw, kind).reshape(shape, order=order)))
        elif make == "bytes" and arguments == ():
            self.push(b"")
        elif make == "encode" and arguments[1] == "latin1":  # how Python 3 writes bytes in protocol 2
            self.push(self.encode(arguments[0]))
        else:
            raise ValueError

    def encode(self, text: str) -> bytes:
        """Each text once: a text that is repeated by its place in the memo could fill any memory."""
        self.encoded += len(text)
        if self.encoded > len(self.data):
            raise ValueError
        return text.encode("latin1")

    def build(self) -> None:
        """Set the state of a type or an array."""
        (state,) = self.pop(1)
        made = self.stack[-1]
        if isinstance(made, _Type):
            made.order = _read_code(state[1])
            return
        if not isinstance(made, PickledArray):
            raise TypeError
        _, made.shape, kind, is_fortran, content = state
        if isinstance(content, list):
            made.items = content
        else:
            made.numbers = _read_numbers(content, kind).reshape(made.shape, order="F" if is_fortran else "C")


def _read_code(value: str | bytes) -> str:
    if len(value) > 2:
        raise ValueError
    return to_text(value)


def _to_dict(values: list[Any]) -> dict[Any, Any]:
    """Keys and values in turn; hashing other keys could take forever."""
    for key in values[::2]:
        if not isinstance(key, str | bytes) and not (isinstance(key, int) and abs(key) < 1 << 63):
            raise TypeError
    return dict(zip(values[::2], values[1::2], strict=True))


def _read_numbers(raw: bytes, kind: _Type) -> NDArray[Any]:
    if not re.fullmatch(r"[|<>=]", kind.order) or not re.fullmatch(r"b1|[iu][1248]|f[248]", kind.code):
        raise ValueError
    return np.frombuffer(raw, np.dtype(kind.order.replace("|", "=") + kind.code))


def _assign_step(names: str, step: Callable[[_Machine, Any], None]) -> dict[str, Callable[[_Machine, Any], None]]:
    return dict.fromkeys(names.split(), step)


OPERATIONS: dict[str, Callable[[_Machine, Any], None]] = {
    **_assign_step("PROTO FRAME STOP", lambda m, _: None),
    **_assign_step("INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT", _Machine.push),
    **_assign_step("UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8", _Machine.push),
    **_assign_step("BINBYTES SHORT_BINBYTES BINBYTES8 BYTEARRAY8", _Machine.push),
    **_assign_step("STRING BINSTRING SHORT_BINSTRING", _Machine.push_string),
    "NONE": lambda m, _: m.push(None),
    "NEWTRUE": lambda m, _: m.push(True),
    "NEWFALSE": lambda m, _: m.push(False),
    "EMPTY_TUPLE": lambda m, _: m.push(()),
    "EMPTY_LIST": lambda m, _: m.push([]),
    "EMPTY_DICT": lambda m, _: m.push({}),
    "MARK": lambda m, _: m.marks.append(len(m.stack)),
    "TUPLE": lambda m, _: m.push(tuple(m.pop_to_mark())),
    "TUPLE1": lambda m, _: m.push(tuple(m.pop(1))),
    "TUPLE2": lambda m, _: m.push(tuple(m.pop(2))),
    "TUPLE3": lambda m, _: m.push(tuple(m.pop(3))),
    "LIST": lambda m, _: m.push(m.pop_to_mark()),
    "DICT": lambda m, _: m.push(_to_dict(m.pop_to_mark())),
    "APPEND": lambda m, _: m.append(m.pop(1)),
    "APPENDS": lambda m, _: m.append(m.pop_to_mark()),
    "SETITEM": lambda m, _: m.set_items(m.pop(2)),
    "SETITEMS": lambda m, _: m.set_items(m.pop_to_mark()),
    "GLOBAL": _Machine.push_name,
    "STACK_GLOBAL": lambda m, _: m.push_name(" ".join(m.pop(2))),
    "REDUCE": lambda m, _: m.reduce(),
    "BUILD": lambda m, _: m.build(),
    **_assign_step("PUT BINPUT LONG_BINPUT", lambda m, place: m.memo.__setitem__(place, m.stack[-1])),
    "MEMOIZE": lambda m, _: m.memo.__setitem__(len(m.memo), m.stack[-1]),
    **_assign_step("GET BINGET LONG_BINGET", lambda m, place: m.push(m.memo[place])),
}
