"""A CSV file of several hospitals, from the file to a model that runs elsewhere.

    python examples/hospitals.py

The same without Python: headwise data init, run --data, export, predict (docs/own-data.md).
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

import headwise as hw

DATA = """format = "csv"
path = "patients.csv"
client = "hospital"
target = "outcome"
[features]
number = ["age", "pressure"]
category = ["sex"]
"""


def write_table(path: Path) -> None:
    """240 patients of three hospitals; one in ten has no measured pressure."""
    rng = np.random.default_rng(0)
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["hospital", "age", "pressure", "sex", "outcome"])
        for k in range(240):
            age, pressure = rng.normal(60, 9), rng.normal(130, 15)
            ill = age + pressure + 5 * (k % 3) > 192
            cell = "" if rng.random() < 0.1 else f"{pressure:.0f}"
            rows.writerow([("va", "rome", "basel")[k % 3], f"{age:.0f}", cell, "fm"[k % 2], "ill" if ill else "well"])


def main() -> None:
    write_table(Path("patients.csv"))
    Path("data.toml").write_text(DATA, encoding="utf-8")
    run = hw.fit("data.toml", method="fedrep", rounds=5, lr=0.1, workers=1)
    print(f"right: {run.accuracy():.1%}, {run.floor:.1%} by guessing")

    folder = run.model("va").save("va", format="torch")  # the default, onnx, needs headwise[export]
    model = hw.load_model(folder)  # on another machine, without the data and without training
    patients = {"age": [71, 45], "pressure": ["", 118], "sex": ["f", "m"]}
    print(f"va's model says: {model.predict(patients).tolist()}")


if __name__ == "__main__":
    main()
