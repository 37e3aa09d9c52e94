"""Whether a file that claims to be a model is one: no code, no pickle, nothing outside of it."""

from __future__ import annotations

import io
import json
import re
import zipfile
from typing import Any

PARTS = re.compile(
    r"[^/]+/(data/weights/(weight_\d+|model_weights_config\.json)|data/constants/(tensor_\d+|model_constants_config\.json)"
    r"|data/sample_inputs/model\.pt|models/model\.json|archive_format|archive_version|byteorder|\.data/\w+)"
)
"""of an archive of `torch.export`: no compiled code, no objects"""
TARGETS = re.compile(r"torch\.ops\.aten\.(?!from_file\b)\w+(\.\w+)?|_operator\.\w+|torch\.sym_\w+|math\.\w+")
"""what its graph may call; torch would look up any name"""
SIZE = re.compile(
    r"([a-z]\d{1,9}|((Symbol|Integer|Mul|Add|FloorDiv|Mod|Max|Min)\(|'[a-z]\d{1,9}'|(positive|integer|nonnegative)=True"
    r"|-?\d{1,18}|[), ])+)"
)
"""sizes in it, which torch passes to sympy, which evaluates them as Python: whole numbers and sums of them"""
EXTERNAL = b"\x0a\x08location"
"""how ONNX begins to name another file that holds its weights"""


def check_archive(data: bytes) -> None:
    """Raise `ValueError` if torch would unpickle, import or evaluate anything in this archive."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            found = archive.infolist()
            if len({i.filename for i in found}) < len(found):
                raise ValueError("it holds a file twice")
            for info in found:
                empty = not info.filename.endswith("sample_inputs/model.pt") or not info.file_size
                if not PARTS.fullmatch(info.filename) or info.compress_type != zipfile.ZIP_STORED or not empty:
                    raise ValueError(f"it holds {info.filename!r}, which no model needs")
                if info.filename.endswith(".json"):
                    _check_values(json.loads(archive.read(info)))
    except (zipfile.BadZipFile, RecursionError, OSError, NotImplementedError) as error:
        raise ValueError(f"it is not an archive of torch.export: {error}") from error


def _check_values(value: Any) -> None:
    level = [value]
    while level:
        for each in level:
            if isinstance(each, dict):
                _check_object(each)
        level = [v for each in level if isinstance(each, dict | list) for v in _values(each)]


def _values(each: dict[str, Any] | list[Any]) -> list[Any]:
    return list(each.values()) if isinstance(each, dict) else each


def _check_object(each: dict[str, Any]) -> None:
    if each.get("use_pickle"):
        raise ValueError("it holds a pickle")
    if isinstance(target := each.get("target"), str) and not TARGETS.fullmatch(target):
        raise ValueError(f"it calls {target[:60]!r}")
    if "expr_str" in each and not (len(size := str(each["expr_str"])) < 1000 and SIZE.fullmatch(size)):
        raise ValueError(f"it computes a size by {size[:60]!r}")


def check_onnx(data: bytes) -> None:
    """Raise `ValueError` if onnxruntime would read another file for these bytes."""
    if EXTERNAL in data:
        raise ValueError("it takes weights from other files")
