"""What an exported model weighs, its CPU seconds, and how far its programs are from the run, for every method.

python benchmarks/export.py [--data digits] [--model mlp] [--methods fedrep,fedrod] [-o table.md]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import headwise as hw
from headwise.exports.personal import Models
from headwise.settings import catalog

ELSEWHERE = """
import sys, time
import numpy as np
folder = sys.argv[1]
x = np.load(f"{folder}/x.npy")
begun = time.process_time()
import onnxruntime
onnx = onnxruntime.InferenceSession(f"{folder}/onnx/model.onnx").run(["probabilities"], {"x": x})[0]
took = time.process_time() - begun
import torch
said = torch.export.load(f"{folder}/torch/model.pt2").module()(torch.from_numpy(x))[1].detach().numpy()
np.savez(f"{folder}/said.npz", onnx=onnx, torch=said, took=took)
assert not [name for name in sys.modules if name.startswith("headwise")]
"""


def measure(method: str, data: str, model: str | None, home: Path) -> list[str]:
    """A row of the table: the first client's model after three rounds."""
    made = {} if model is None else {"model": model}
    run = hw.run(hw.Experiment(method=method, data=data, clients=10, rounds=3, **made), home / "run")
    models = Models(run)
    begun = time.process_time()
    trained = models.of(0)
    took = [time.process_time() - begun]
    for format in ("onnx", "torch"):
        begun = time.process_time()
        trained.save(home / format, format)
        took.append(time.process_time() - begun)
    part = models.data.parts[0]
    x = trained.inputs.encode(models.data.dataset.x[part.test])
    np.save(home / "x.npy", x)
    subprocess.run([sys.executable, "-W", "ignore", "-c", ELSEWHERE, str(home)], check=True)
    said, wanted = np.load(home / "said.npz"), trained.answer(x).probabilities
    sizes = [(home / name).stat().st_size / 1024 for name in ("onnx/model.onnx", "torch/model.pt2")]
    off = [float(np.abs(said[name] - wanted).max()) for name in ("onnx", "torch")]
    cells = [*(f"{s:,.0f}" for s in sizes), *(f"{t:.2f}" for t in took), f"{float(said['took']):.2f}"]
    return [method, type(trained.module).__name__, *cells, *(f"{d:.1e}" for d in off)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--model")
    parser.add_argument("--methods", default=",".join(catalog.names("method")))
    parser.add_argument("-o", "--out", type=Path)
    flags = parser.parse_args()
    head = [
        "method", "module", "ONNX, KB", "torch, KB", "model, CPU s", "to ONNX", "to torch", "onnxruntime",
        "ONNX, largest difference", "torch, largest difference",
    ]  # fmt: skip
    lines = [f"| {' | '.join(head)} |", f"|---|---|{'---:|' * (len(head) - 2)}"]
    print("\n".join(lines))
    for method in flags.methods.split(","):
        with tempfile.TemporaryDirectory() as home:
            lines.append(f"| {' | '.join(measure(method, flags.data, flags.model, Path(home)))} |")
        print(lines[-1], flush=True)
    if flags.out:
        flags.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
