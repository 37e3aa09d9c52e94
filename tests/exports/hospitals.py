"""A user's own table: numbers that may be missing, a category, a text, three clients."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

HEAD = ["hospital", "age", "chol", "sex", "note", "ill"]
TOML = """format = "csv"
path = "patients.csv"
client = "hospital"
target = "ill"
classes = ["0", "1"]
names = ["healthy", "ill"]
[features]
number = ["age", "chol"]
category = ["sex"]
text = ["note"]
[preprocess]
fit = "client"
buckets = 50
length = 4
"""


def write_patients(folder: Path, n: int = 120) -> Path:
    """The data.toml of a table next to it."""
    rng = np.random.default_rng(0)
    with (folder / "patients.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(HEAD)
        for k in range(n):
            ill = int(rng.random() < 0.5)
            chol = "" if rng.random() < 0.2 else f"{200 + 40 * ill + 20 * rng.normal():.0f}"
            sex = ["f", "m", "?"][rng.integers(3)]
            note = ["chest pain", "no pain at all"][rng.integers(2)]
            writer.writerow(
                [["va", "cleveland", "basel"][k % 3], f"{50 + 9 * ill + rng.normal():.1f}", chol, sex, note, ill]
            )
    (folder / "data.toml").write_text(TOML, encoding="utf-8")
    return folder / "data.toml"
