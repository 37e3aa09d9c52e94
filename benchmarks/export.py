"""What an exported model weighs, its CPU seconds, and how far it is from the run, for every method.

    python benchmarks/export.py [--data digits] [--model mlp] [--methods fedrep,fedrod] [-o docs/results/export.md]

Fails if an exported model differs from the run by more than 1e-5.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import headwise as hw
from headwise.exports.run_models import Models
from headwise.models.split import Composed
from headwise.settings.experiment import experiment_from
from headwise.settings.names import list_names

ELSEWHERE = """
import sys, time
import numpy as np, onnxruntime
for folder in sys.argv[1:]:
    x = np.load(f"{folder}/x.npy")
    begun = time.process_time()
    session = onnxruntime.InferenceSession(f"{folder}/onnx/model.onnx")
    x = x.astype(np.float32) if session.get_inputs()[0].type == "tensor(float)" else x
    onnx = session.run(["probabilities"], {"x": x})[0]
    took = time.process_time() - begun
    np.savez(f"{folder}/said.npz", onnx=onnx, took=took)
assert not [name for name in sys.modules if name.startswith(("headwise", "torch"))]
"""
BOUND = 1e-5
"""largest difference of a probability"""
CLIENTS = 10
ROUNDS = 3
PAGE = """# Exported models of every method

`{command}` writes this page. After {rounds} rounds on {data} with {clients} clients, the first client's model is
exported as ONNX and, if it is a single network, as weights (torch). A process that imports onnxruntime but neither
Headwise nor torch predicts this client's test samples, and so does the network that `hw.load_model` builds again.
*Difference*: the largest between a probability there and in the run; the script fails above {bound:g}.
*Model*: CPU seconds to make the model from the run's checkpoint; *to ONNX*, *to torch*: to export it, check it
against the network and write its folder; *onnxruntime*: to load it and predict. The first export also
imports torch's exporter, and methods whose models have the same graph reuse its translation. torch {torch},
onnxruntime {onnxruntime}, AMD EPYC with AVX512, one core.

{table}

{count} methods; the largest difference is {onnx:.1e} with ONNX and {torch_off:.1e} with torch.
"""


class Exported(NamedTuple):
    """A model as ONNX and, if it is a single network, as weights; and probabilities of the samples in `home`."""

    home: Path
    module: str
    took: list[float]
    """CPU seconds to make the model, and to write it in each format"""
    probabilities: Any
    """in the run"""
    rebuilt: Any
    """by the network that was loaded from its weights; none if it is not a single network"""


def export(method: str, data: str, model: str | None, home: Path) -> Exported:
    """The first client's model after three rounds."""
    settings = {"method": method, "data": data, "clients": CLIENTS, "rounds": ROUNDS}
    run = hw.run(experiment_from({**settings, "model": model} if model else settings), home / "run")
    models = Models(run)
    begun = time.process_time()
    trained = models.of(0)
    took = [time.process_time() - begun]
    single = not isinstance(trained.module, Composed)
    for format in ("onnx", "torch") if single else ("onnx",):
        begun = time.process_time()
        trained.save(home / format, format)
        took.append(time.process_time() - begun)
    x = trained.inputs.encode(models.data.dataset.x[models.data.parts[0].test])
    np.save(home / "x.npy", x)
    rebuilt = hw.load_model(home / "torch").answer(x).probabilities if single else None
    return Exported(home, type(trained.module).__name__, took, trained.answer(x).probabilities, rebuilt)


def row(method: str, exported: Exported) -> tuple[list[str], list[float]]:
    """The cells of a method, and how far each format is from the run."""
    predictions = np.load(exported.home / "said.npz")
    each = [(exported.home / "onnx" / "model.onnx", predictions["onnx"])]
    if exported.rebuilt is not None:
        each.append((exported.home / "torch" / "weights.safetensors", exported.rebuilt))
    sizes = [f"{path.stat().st_size / 1024:,.0f}" for path, _ in each]
    off = [float(np.abs(p - exported.probabilities).max()) for _, p in each]
    if not max(off) <= BOUND:
        raise SystemExit(f"{method}: exported models differ from the run by {max(off):.1e}, more than {BOUND:g}.")
    took = [f"{t:.2f}" for t in exported.took]
    none = ["-"] * (2 - len(each))
    cells = [*sizes, *none, *took, *none, f"{float(predictions['took']):.2f}", *(f"{d:.1e}" for d in off), *none]
    return [method, exported.module, *cells], off


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--model")
    parser.add_argument("--methods", default=",".join(list_names("method")))
    parser.add_argument("-o", "--out", type=Path)
    flags = parser.parse_args()
    head = [
        "method", "module", "ONNX, KB", "torch, KB", "model, s", "to ONNX, s", "to torch, s", "onnxruntime, s",
        "ONNX, difference", "torch, difference",
    ]  # fmt: skip
    methods = flags.methods.split(",")
    with tempfile.TemporaryDirectory() as name:
        homes = {method: Path(name) / method for method in methods}
        exported = {method: export(method, flags.data, flags.model, home) for method, home in homes.items()}
        subprocess.run([sys.executable, "-W", "ignore", "-c", ELSEWHERE, *map(str, homes.values())], check=True)
        rows = [row(method, each) for method, each in exported.items()]
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *(cells for cells, _ in rows))]
    table = "\n".join([lines[0], f"|---|---|{'---:|' * (len(head) - 2)}", *lines[1:]])
    print(table)
    if flags.out:
        page = PAGE.format(
            command=f"python benchmarks/export.py {' '.join(sys.argv[1:])}", rounds=ROUNDS, clients=CLIENTS,
            data=flags.data, bound=BOUND, torch=version("torch"), onnxruntime=version("onnxruntime"), table=table,
            count=len(rows), onnx=max(off[0] for _, off in rows),
            torch_off=max((off[1] for _, off in rows if len(off) > 1), default=0.0),
        )  # fmt: skip
        flags.out.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
