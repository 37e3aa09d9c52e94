"""Deals a divided data set out to folders, one per client, as if each were a site with data of its own."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from ...disk.jsontext import to_toml
from ...errors import RunError
from ...tasks.registry import kind_of
from ..federated import FederatedData
from .description import Preprocess, to_text
from .objects import StoredPiece, write_arrays


def deal(data: FederatedData, model: str, out: Path) -> list[Path]:
    """Write NAME/data.toml and its arrays for every client, and the experiment.toml of a rehearsal, into a new folder.

    Samples are as the network takes them, and in the parts that they would have in a simulation.
    """
    if out.exists():
        raise RunError(f"{out} exists already: choose another -o, or remove it.")
    out.parent.mkdir(parents=True, exist_ok=True)
    called = data.names or tuple(map(str, range(len(data))))
    names = [_folder(name) for name in called]
    names = [f"{name}-{c}" if names.count(name) > 1 else name for c, name in enumerate(names)]
    with tempfile.TemporaryDirectory(prefix=".dealing-", dir=out.parent) as draft:
        whole = Path(draft) / "whole"
        for c, name in enumerate(names):
            home = whole / name
            home.mkdir(parents=True)
            _write(data, c, called[c], home)
        settings = {"method": "fedavg", "data": "own", "model": model, "clients": len(data), "rounds": 10}
        (whole / "experiment.toml").write_text("".join(f"{k} = {to_toml(v)}\n" for k, v in settings.items()), "utf-8")
        whole.rename(out)
    return [out / name for name in names]


def _folder(name: str) -> str:
    return "".join(ch if ch.isalnum() or ch in "-_." else "_" for ch in name).strip(".") or "_"


def _write(data: FederatedData, c: int, name: str, home: Path) -> None:
    dataset = data.dataset
    client = data.client(c)
    parts = data.parts[c]
    samples = [(client.train, parts.train), (client.val, parts.val), (client.test, parts.test)]
    pieces = [
        StoredPiece(name, k, s.x.contiguous().numpy(), dataset.y[rows])
        for k, (s, rows) in enumerate(samples)
        if len(rows)
    ]
    tokens = {"texts": "tokens", "buckets": dataset.vocabulary} if dataset.vocabulary else {}
    d = replace(write_arrays(pieces, home), preprocess=Preprocess(numbers="as they are", **tokens), task=dataset.task)
    if kind_of(dataset.task).one_class:
        d = replace(d, classes=tuple(map(str, range(len(dataset.classes)))), names=dataset.classes)
    elif kind_of(dataset.task).quantitative:
        d = replace(d, names=dataset.classes, target_range=dataset.target_range)
    else:
        d = replace(d, classes=dataset.classes, names=dataset.classes)
    (home / "data.toml").write_text(to_text(d, "."), "utf-8")
