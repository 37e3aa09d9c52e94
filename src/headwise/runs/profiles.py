"""Where a run's time went, from the seconds logged with each round."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

SECTIONS = {
    "data": ("data", "pass samples to clients: smaller samples or fewer clients would help"),
    "training": ("forward and backward", "train: more workers, a larger batch or a smaller network would help"),
    "features": ("feature extraction", "extract features once per frozen body: a smaller body would help"),
    "method": (
        "the method itself",
        "run the method's own code, such as copying and mixing models: look for work done at every step",
    ),
    "transport": ("transport", "pass messages between processes: fewer workers, or threads:N, would help"),
    "server": ("broadcast and aggregation", "wait for the server, which broadcasts and aggregates in a single process"),
    "evaluation": ("evaluation", "evaluate: a larger evaluate.every would help"),
    "stored": ("checkpoint and lines", "write rounds to disk: a faster disk or less state per client would help"),
    "idle": ("idle", "wait: clients differ a lot in size, or there are too few for this many workers"),
}
"""each section's title, and what workers mostly do if it takes the most time; ``training.stacked`` is the part of
``training`` spent in that kernel"""


class Section(NamedTuple):
    name: str
    seconds: float
    share: float
    advice: str


def profile(rows: Iterable[Mapping[str, Any]]) -> list[Section]:
    """Seconds by section, summed over all workers, largest first."""
    spent: dict[str, float] = defaultdict(float)
    for row in rows:
        seconds = row["seconds"]
        for section, value in seconds.get("workers", {}).items():
            spent[section] += value
        for lap in ("server", "stored"):
            spent[lap] += seconds.get(lap, 0.0)
    total = sum(spent.values())
    lines: list[Section] = []
    for part, (name, advice) in SECTIONS.items():
        for section in (s for s, value in spent.items() if value and s.partition(".")[0] == part):
            kernel = section.removeprefix(part).replace(".", ", ", 1)
            lines.append(Section(name + kernel, spent[section], spent[section] / total, advice))
    return sorted(lines, key=lambda line: -line.seconds)


def native_rate(rows: Iterable[Mapping[str, Any]]) -> float:
    """GFLOP/s of a core in the native kernels, as if no gradient were zero; 0 where they did not run."""
    work = [
        (row["gflop"], row["seconds"].get("workers", {}).get("training.native", 0.0)) for row in rows if "gflop" in row
    ]
    seconds = sum(s for _, s in work)
    return sum(g for g, _ in work) / seconds if seconds else 0.0


def sgemm_rate(size: int = 768, turns: int = 5) -> float:
    """GFLOP/s of one core of this machine in torch's product of two matrices."""
    import torch  # reading runs must not import torch

    threads = torch.get_num_threads()
    a = torch.ones(size, size)
    torch.set_num_threads(1)
    times: list[float] = []
    for _ in range(1 + turns):
        begun = time.perf_counter()
        a.mm(a)
        times.append(time.perf_counter() - begun)
    torch.set_num_threads(threads)
    return 2e-9 * size**3 / min(times[1:])


def format_profile(lines: list[Section]) -> str:
    """The profile as a table, and a sentence about the bottleneck."""
    if not lines:
        return "  no profile: no round has ended."
    table = [f"  {line.name:30} {line.seconds:9.2f} s {line.share:6.1%}" for line in lines]
    return "\n".join([*table, f"  next bottleneck: {lines[0].name}. Workers mostly {lines[0].advice}."])
