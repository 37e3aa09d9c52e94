"""Deals a divided data set out to folders, one per client, as if each were a site with data of its own."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from ...disk.jsontext import to_toml
from ...errors import RunError
from ..federated import FederatedData
from .description import Preprocess
from .storing import StoredPiece, toml_of, write_arrays


def deal(found: FederatedData, model: str, out: Path) -> list[Path]:
    """Write NAME/data.toml and its arrays for every client, and the experiment.toml of a rehearsal, into a new folder.

    Samples are as the network takes them, and in the parts that they would have in a simulation.
    """
    if out.exists():
        raise RunError(f"{out} exists already: choose another -o, or remove it.")
    out.parent.mkdir(parents=True, exist_ok=True)
    called = found.names or tuple(map(str, range(len(found))))
    names = [_folder(name) for name in called]
    names = [f"{name}-{c}" if names.count(name) > 1 else name for c, name in enumerate(names)]
    with tempfile.TemporaryDirectory(prefix=".dealing-", dir=out.parent) as draft:
        whole = Path(draft) / "whole"
        for c, name in enumerate(names):
            home = whole / name
            home.mkdir(parents=True)
            _write(found, c, called[c], home)
        asked = {"method": "fedavg", "data": "own", "model": model, "clients": len(found), "rounds": 10}
        (whole / "experiment.toml").write_text("".join(f"{k} = {to_toml(v)}\n" for k, v in asked.items()), "utf-8")
        whole.rename(out)
    return [out / name for name in names]


def _folder(name: str) -> str:
    return "".join(ch if ch.isalnum() or ch in "-_." else "_" for ch in name).strip(".") or "_"


def _write(found: FederatedData, c: int, name: str, home: Path) -> None:
    data, dataset, parts = found.client(c), found.dataset, found.parts[c]
    samples, rows = (data.train, data.val, data.test), (parts.train, parts.val, parts.test)
    pieces = [
        StoredPiece(name, k, s.x.contiguous().numpy(), dataset.y[i])
        for k, (s, i) in enumerate(zip(samples, rows, strict=True))
        if len(i)
    ]
    tokens = dataset.vocabulary
    how = Preprocess(numbers="none", **({"texts": "tokens", "buckets": tokens} if tokens else {}))
    known, written = dataset.classes, tuple(map(str, range(len(dataset.classes))))
    classes = {"classification": (written, known), "regression": ((), known)}.get(dataset.task, (known, known))
    d = replace(write_arrays(pieces, home), preprocess=how, task=dataset.task, classes=classes[0], names=classes[1])
    d = replace(d, target_range=dataset.target_range)
    (home / "data.toml").write_text(toml_of(d, "."), "utf-8")
