"""Small data of one's own, as files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from headwise.data.own.check import check
from headwise.data.own.description import Description, read_description
from headwise.data.own.findings import DataFinding

TABLE = """
format = "csv"
path = "patients.csv"
client = "hospital"
target = "ill"
[features]
number = ["age"]
category = ["sex"]
"""
HEAD = "hospital,age,sex,ill"
ROWS = ["va,61,f,yes", "va,44,m,no", "rome,50,f,no", "rome,,m,yes", "va,70,m,yes", "rome,38,f,no"]


def describe(folder: Path, text: str) -> Description:
    (folder / "data.toml").write_text(text, "utf-8")
    return read_description(folder / "data.toml")


def table(folder: Path, rows: list[str] = ROWS, head: str = HEAD, text: str = TABLE) -> Description:
    (folder / "patients.csv").write_text("\n".join([head, *rows]) + "\n", "utf-8")
    return describe(folder, text)


def npz(folder: Path, text: str = 'format = "npz"\npath = "clients"\n', **clients: dict[str, object]) -> Description:
    (folder / "clients").mkdir(exist_ok=True)
    for name, arrays in clients.items():
        np.savez(folder / "clients" / f"{name}.npz", **{k: np.asarray(v) for k, v in arrays.items()})
    return describe(folder, text)


def picture(path: Path, shape: tuple[int, ...] = (4, 4), value: int = 0) -> None:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full(shape, value, np.uint8)).save(path)


def pictures(folder: Path, text: str = 'format = "images"\npath = "clients"\n') -> Description:
    for client in ("ann", "bob"):
        for label in ("cat", "dog"):
            for k in range(3):
                picture(folder / "clients" / client / label / f"{k}.png", value=40 * k + len(label) + len(client) * k)
    return describe(folder, text)


def findings(d: Description) -> list[DataFinding]:
    return check(d)[1]
