"""Does the wheel work without the repository?  python scripts/try_wheel.py dist/headwise-*.whl python3.11 python3.12

For each Python, in a folder of its own: install the wheel into a fresh venv (or into the venv that the Python belongs
to), and do what a newcomer does in the first ten minutes. Ends with a line per Python, and exit code 1 if one failed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

OWN = """
import headwise as hw, numpy as np
rng = np.random.default_rng(0)
x, y = rng.normal(size=(300, 5)), np.arange(300) % 2
x[:, 0] += 2 * y
run = hw.fit({"va": (x[:200], y[:200]), "rome": (x[200:], y[200:])}, method="fedah", rounds=3, lr=0.1, out="mine")
print(f"{run.accuracy():.1%} right, {run.floor:.1%} by guessing")
np.savez("new.npz", x=x[:5])
"""
NOT_NEEDED = (
    "import importlib.util as u, sys; sys.exit(any(u.find_spec(m) for m in ('sklearn', 'scipy', 'flwr', 'onnx')))"
)
STEPS = [
    ["headwise", "--version"],
    ["python", "-c", NOT_NEEDED],
    ["headwise", "doctor"],
    ["headwise", "list", "methods"],
    ["headwise", "describe", "fedah"],
    ["headwise", "data", "show", "--partition", "dirichlet:0.3", "--clients", "10"],
    ["headwise", "compare", "standalone", "fedah", "--clients", "5", "--rounds", "3", "--out", "first", "--quiet"],
    ["headwise", "report", "first", "-o", "report.html"],
    ["python", "-c", OWN],
    ["headwise", "export", "mine", "--client", "va", "--format", "torch", "-o", "va"],
    ["headwise", "predict", "va", "new.npz", "-o", "out.csv"],
    ["headwise", "new", "method", "mymethod"],
    ["headwise", "run", "--method", "mymethod.py", "--rounds", "2", "--clients", "4", "--quiet"],
]


def scripts_of(python: str, folder: Path) -> Path:
    """Where the venv has its programs: that of this Python, or a new one."""
    told = "import sys, sysconfig; print(sys.prefix != sys.base_prefix, sysconfig.get_path('scripts'))"
    is_venv, where = subprocess.check_output([python, "-c", told], text=True).split(maxsplit=1)
    if is_venv == "True":
        return Path(where.strip())
    subprocess.run([python, "-m", "venv", folder / "venv"], check=True)
    return folder / "venv" / ("Scripts" if os.name == "nt" else "bin")


def try_wheel(wheel: Path, python: str, folder: Path) -> str:
    """What went wrong, or nothing."""
    bins = scripts_of(python, folder)
    free = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    install = ["python", "-m", "pip", "install", "--quiet", "--force-reinstall", "--no-deps", str(wheel)]
    for step in [["python", "-m", "pip", "install", "--quiet", str(wheel)], install, *STEPS]:
        done = subprocess.run([bins / step[0], *step[1:]], cwd=folder, env=free, capture_output=True, text=True)
        said = done.stdout.strip().splitlines()[-1:] or [""]
        print(
            f"  {' '.join(step)[:70].splitlines()[0] if step[1] != '-c' else 'python -c ...'}: {said[0][:90]}",
            flush=True,
        )
        if done.returncode:
            return f"{' '.join(step)[:60]}: exit code {done.returncode}\n{done.stdout[-500:]}{done.stderr[-1500:]}"
    return ""


def main() -> None:
    wheel, pythons = Path(sys.argv[1]).resolve(), sys.argv[2:]
    results: dict[str, str] = {}
    for python in pythons:
        with tempfile.TemporaryDirectory(prefix="try-wheel-") as folder:
            print(f"{python}, in {folder}")
            results[python] = try_wheel(wheel, python, Path(folder))
    for python, wrong in results.items():
        print(f"{python}: {wrong or f'all {len(STEPS)} steps work'}")
    sys.exit(any(results.values()))


if __name__ == "__main__":
    main()
