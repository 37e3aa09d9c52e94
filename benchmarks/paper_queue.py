"""Runs the papers' tables at their printed scale in the background, one cell per core, at the lowest priority.

    python benchmarks/paper_queue.py start      in the background: what benchmarks/paper_queue.toml lists, in order
    python benchmarks/paper_queue.py pause      freeze the running cells, for example while speed is measured
    python benchmarks/paper_queue.py go         continue after a pause
    python benchmarks/paper_queue.py stop       end; interrupted cells resume at the next start
    python benchmarks/paper_queue.py status     which cells are finished, running, failed or waiting, and their cost
    python benchmarks/paper_queue.py collect    copy finished cells into docs/results/claims/cells of this checkout

`HEADWISE_QUEUE` names the queue's folder (default: runs/queue). Runs are in its `runs`, finished cells in `results`:
for each a CSV with every evaluation, and a JSON file with the experiment, each client's accuracy, the CPU seconds, the
machine and the commit; where clients learn numbers beside their weights, such as FedAFK's mu, `collect` adds a CSV with
each client's. Cells run the checkout that `HEADWISE_QUEUE/code` links to, or else this one, so that work in
other checkouts does not disturb them. `HEADWISE_QUEUE_SLOTS` is the number of cells at once (default: 2). With
`HEADWISE_QUEUE_HOURS`, only cells that will probably end within so many hours from `start` are begun.
"""

from __future__ import annotations

import csv
import fcntl
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from headwise.papers.cells import Cell
    from headwise.runs.query import Run

QUEUE = Path(os.environ.get("HEADWISE_QUEUE", "runs/queue")).absolute()
RUNS = QUEUE / "runs"
RESULTS = QUEUE / "results"
RUNNING = QUEUE / "running"
"""one file per running cell, named by its process"""
FAILED = QUEUE / "failed"
ATTEMPTS = QUEUE / "attempts.jsonl"
"""one line per process that ran a cell: its CPU seconds, commit and machine"""
PAUSED = QUEUE / "paused"
MANAGER = QUEUE / "manager.pid"
LIST = Path("benchmarks/paper_queue.toml")
CLAIMS = Path(__file__).parent.parent / "docs" / "results" / "claims"
SLOTS = int(os.environ.get("HEADWISE_QUEUE_SLOTS", "2"))
"""cells at once, each on one core"""
HOURS = "HEADWISE_QUEUE_HOURS"
UNTIL = "HEADWISE_QUEUE_UNTIL"
"""when these hours are over, in seconds since 1970: what the manager tells its cells"""
NOTHING_LEFT = 3
"""exit code of a cell process that found every cell finished, running or failed"""


def code() -> Path:
    """The checkout whose code runs the cells."""
    frozen = QUEUE / "code"
    return (frozen if frozen.exists() else Path(__file__).parent.parent).resolve()


def manage() -> None:
    """Keep `SLOTS` cell processes alive until nothing is left or `stop` is sent."""
    for folder in (RUNS, RESULTS, RUNNING, FAILED):
        folder.mkdir(parents=True, exist_ok=True)
    MANAGER.write_text(str(os.getpid()))
    if HOURS in os.environ:
        os.environ[UNTIL] = str(time.time() + 3600 * float(os.environ[HOURS]))
    stopping = False

    def stop(number: int, frame: object) -> None:
        nonlocal stopping
        stopping = True
        for child in children:
            with suppress(ProcessLookupError):  # it has just ended by itself
                os.killpg(child, signal.SIGCONT)
                os.killpg(child, signal.SIGINT)  # the cell ends after its round

    children: dict[int, dict[str, Any]] = {}
    signal.signal(signal.SIGTERM, stop)
    idle_until = 0.0
    while children or not stopping:
        if not stopping and not PAUSED.exists() and len(children) < SLOTS and time.monotonic() >= idle_until:
            process = _start_cell()
            children[process] = {"code": str(code()), "started": time.strftime("%Y-%m-%dT%H:%M:%S")}
        pid, status, usage = os.wait4(-1, os.WNOHANG) if children else (0, 0, None)
        if pid and usage:
            if _note_end(pid, children.pop(pid), status, usage.ru_utime + usage.ru_stime) == NOTHING_LEFT:
                idle_until = time.monotonic() + 60  # the list may have grown by then
        else:
            time.sleep(2)
    MANAGER.unlink()


def _start_cell() -> int:
    home = code()
    environment = {**os.environ, "PYTHONPATH": str(home / "src"), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    with (QUEUE / "log.txt").open("a") as log:
        return subprocess.Popen(
            [sys.executable, str(home / "benchmarks" / "paper_queue.py"), "cell"],
            cwd=home, env=environment, stdout=log, stderr=log, start_new_session=True,
        ).pid  # fmt: skip


def _note_end(pid: int, start: dict[str, Any], status: int, seconds: float) -> int:
    """Add the process to the attempts; returns its exit code."""
    note = RUNNING / f"{pid}.json"
    result = os.waitstatus_to_exitcode(status)
    if note.exists():
        line = {**start, **json.loads(note.read_text()), "exit": result, "cpu": round(seconds, 1)}
        with ATTEMPTS.open("a") as file:
            file.write(json.dumps(line) + "\n")
        note.unlink()
        if (RUNS / line["cell"] / "result.json").exists():
            write_result(RUNS / line["cell"])
    return result


def run_cell() -> int:
    """Run, or continue, the first cell that nobody else runs."""
    from headwise.app.launch import run_or_resume
    from headwise.papers.cells import with_workers
    from headwise.runs.manifest import describe_machine
    from headwise.settings.options import Workers

    for entry, cell, _ in open_cells():
        (QUEUE / "locks").mkdir(exist_ok=True)
        with (QUEUE / "locks" / cell.folder).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
            about = {"cell": cell.folder, "entry": entry, "commit": commit.stdout.strip()}
            about["machine"] = describe_machine()
            (RUNNING / f"{os.getpid()}.json").write_text(json.dumps(about))
            os.nice(19)
            if (group := Path("/proc/self/autogroup")).exists():  # or a session of its own gets a share like any other
                group.write_text("19")
            try:
                run_or_resume(with_workers(cell.experiment, Workers.parse("1", "workers")), RUNS / cell.folder)
            except Exception:
                (FAILED / cell.folder).write_text(traceback.format_exc())
                raise
            return 0
    return NOTHING_LEFT


def open_cells() -> Iterator[Listed]:
    """Those that are neither finished nor failed, and that there is time for."""
    from headwise.runs.query import Run

    hours_left = (float(os.environ[UNTIL]) - time.time()) / 3600 if UNTIL in os.environ else math.inf
    for listed in list_cells():
        name = listed.cell.folder
        run = Run(RUNS / name)
        finished = (run.path / "result.json").exists() and run.complete
        hours = listed.hours * (1 - len(run.rounds) / listed.cell.experiment.rounds)
        if not (finished or is_collected(name) or (FAILED / name).exists()) and hours <= hours_left:
            yield listed


class Listed(NamedTuple):
    entry: str
    """the entry that lists the cell, as a command"""
    cell: Cell
    hours: float
    """of CPU time: its share of the entry's"""


def list_cells() -> Iterator[Listed]:
    """The cells of the list, each once; Standalone is run only where it is listed."""
    from headwise.papers.cells import ask_for, cells_of, with_settings

    known: set[str] = set()
    for entry in tomllib.loads((code() / LIST).read_text())["cells"]:
        ask = ask_for(
            entry["table"], columns=entry.get("columns", ()), methods=entry["methods"],
            rules=entry.get("rules", "paper"), seeds=entry.get("seeds", 1),
        )  # fmt: skip
        ask = with_settings(ask, entry["set"]) if "set" in entry else ask
        cells = [cell for cell in cells_of(ask) if cell.method in entry["methods"]]
        for cell in cells:
            if cell.folder not in known:
                known.add(cell.folder)
                yield Listed(_command(entry), cell, entry["hours"] / len(cells))


def _command(entry: dict[str, Any]) -> str:
    """The entry as a command."""
    words = ["headwise reproduce", entry["table"]]
    words += [f"--columns '{';'.join(entry['columns'])}'"] if "columns" in entry else []
    words += [f"--methods '{','.join(entry['methods'])}'"]
    words += [f"--rules {entry['rules']}"] if "rules" in entry else []
    words += [f"--seeds {entry['seeds']}"] if "seeds" in entry else []
    return " ".join([*words, *(f"--set {setting}" for setting in entry.get("set", ()))])


def write_result(folder: Path) -> None:
    """The curves and the summary of a finished run, for the pages of claims."""
    from claims import summary

    from headwise.runs.query import Run

    run = Run(folder)
    if not run.complete:
        return
    attempts = [a for line in ATTEMPTS.read_text().splitlines() if (a := json.loads(line))["cell"] == folder.name]
    cost = {
        "entry": attempts[-1]["entry"],
        "cpu_seconds": round(sum(a["cpu"] for a in attempts)),
        "machine": list(dict.fromkeys(a["machine"] for a in attempts)),
        "commit": list(dict.fromkeys(a["commit"] for a in attempts)),
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{folder.name}.json").write_text(json.dumps({**summary(run), **cost}, indent=None) + "\n")
    lines = ["round,moment,accuracy,client_mean", *curves_of(run)]
    (RESULTS / f"{folder.name}.csv").write_text("\n".join(lines) + "\n")


def curves_of(run: Run) -> list[str]:
    """Every evaluation, as a line of a cell's CSV file."""
    from headwise.log.schema import figures

    return [
        f"{row['round']},{moment},{scores['accuracy']:.6f},{scores['client_mean']:.6f}"
        for row in run.rounds
        for moment in ("pre", "stale", "global")
        if (scores := figures(row, moment))
    ]


def is_collected(cell: str) -> bool:
    """Whether the cell's result is in the repository, so that a new machine does not run it again."""
    return (CLAIMS / "cells" / f"{cell}.json").exists()


def collect() -> None:
    """Copy what is finished into this checkout."""
    cells = CLAIMS / "cells"
    cells.mkdir(exist_ok=True)
    for file in sorted(RESULTS.glob("*.*")):
        if not (cells / file.name).exists():
            shutil.copy(file, cells / file.name)
            print(cells / file.name)
        if file.suffix == ".json" and not (cells / f"{file.stem}.learned.csv").exists():
            write_learned(RUNS / file.stem, cells / f"{file.stem}.learned.csv")


def write_learned(folder: Path, target: Path) -> None:
    """What each client has learned beside its weights, such as FedAFK's mu, at each evaluation; if there is any."""
    from headwise.runs.query import Run

    rows = [
        [row["round"], name, client, f"{value:.6f}"]
        for row in (Run(folder).diagnostics if folder.exists() else ())
        for name, quantity in row["quantities"].items()
        if quantity["axes"] == ["client"]
        for client, value in enumerate(quantity["values"])
        if value is not None
    ]
    if rows:
        with target.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([["round", "quantity", "client", "value"], *rows])
        print(target)


def status() -> None:
    """One line per entry of the list, then the running cells."""
    from headwise.runs.query import Run

    running = {json.loads(f.read_text())["cell"]: f.stem for f in RUNNING.glob("*.json")}
    entries: dict[str, list[str]] = {}
    for entry, cell, _ in list_cells():
        finished = (RESULTS / f"{cell.folder}.json").exists() or is_collected(cell.folder)
        failed = (FAILED / cell.folder).exists()
        state = "finished" if finished else "failed" if failed else "running" if cell.folder in running else "waiting"
        entries.setdefault(entry, []).append(state)
    for entry, states in entries.items():
        print(", ".join(f"{states.count(s)} {s}" for s in dict.fromkeys(states)), "|", entry)
    for name, pid in running.items():
        run = Run(RUNS / name)
        print(f"running as {pid}: {name}, round {len(run.rounds)} of {run.manifest['experiment']['rounds']}")
    hours = (
        sum(json.loads(line)["cpu"] for line in ATTEMPTS.read_text().splitlines()) / 3600 if ATTEMPTS.exists() else 0
    )
    state = "paused" if PAUSED.exists() else "running" if _manager() else "stopped"
    print(f"The queue is {state}; {hours:.1f} CPU hours so far.")


def _manager() -> int | None:
    """The process that keeps the queue going; None if there is none."""
    if not MANAGER.exists():
        return None
    pid = int(MANAGER.read_text())
    return pid if Path(f"/proc/{pid}").exists() else None


def start() -> None:
    """Start the manager in the background."""
    if _manager() is not None:
        raise SystemExit("The queue is already running.")
    QUEUE.mkdir(parents=True, exist_ok=True)
    PAUSED.unlink(missing_ok=True)
    for pid in _running():  # left by a manager that was killed
        (RUNNING / f"{pid}.json").unlink()
    with (QUEUE / "log.txt").open("a") as log:
        manager = [sys.executable, str(code() / "benchmarks" / "paper_queue.py"), "manage"]
        environment = {**os.environ, "PYTHONPATH": str(code() / "src"), "HEADWISE_QUEUE": str(QUEUE)}
        subprocess.Popen(manager, env=environment, stdout=log, stderr=log, start_new_session=True)


def stop() -> None:
    """Ask the manager to end; its cells end after their round."""
    pid = _manager()
    if pid is None:
        raise SystemExit("The queue is not running.")
    os.kill(pid, signal.SIGTERM)


def pause() -> None:
    PAUSED.touch()
    for pid in _running():
        os.killpg(pid, signal.SIGSTOP)


def go() -> None:
    PAUSED.unlink(missing_ok=True)
    for pid in _running():
        os.killpg(pid, signal.SIGCONT)


def _running() -> list[int]:
    """The processes of running cells."""
    return [int(f.stem) for f in RUNNING.glob("*.json")]


COMMANDS = {
    "start": start, "pause": pause, "go": go, "stop": stop, "status": status, "collect": collect, "manage": manage,
    "cell": run_cell,
}  # fmt: skip

if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in COMMANDS:
        raise SystemExit(__doc__)
    raise SystemExit(COMMANDS[sys.argv[1]]())
