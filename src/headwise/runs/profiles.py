"""Where a run's time went, from the seconds that each round's line holds."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

SECTIONS = {
    "data": ("data", "hand samples to clients: keep them smaller, or clients fewer"),
    "training": ("forward and backward", "train: more workers, a larger batch or a smaller network would help"),
    "features": ("feature extraction", "extract features once per frozen body: a smaller body would help"),
    "method": ("the method itself", "copy and mix models in the method's own code: look for work per step there"),
    "transport": ("transport", "carry messages between processes: fewer workers or threads:N carry less"),
    "server": ("broadcast and aggregation", "make and mix messages on the server, which one process does alone"),
    "evaluation": ("evaluation", "evaluate: a larger evaluate.every measures less often"),
    "stored": ("checkpoint and lines", "write rounds to disk: a faster disk, or less state per client, would help"),
    "idle": ("idle", "wait: clients of very different size, or too few for so many workers"),
}
"""what each section is called, and what its workers do who spend most of their time there; ``training.stacked`` is the
part of ``training`` that this kernel took"""


class Section(NamedTuple):
    """One line of a profile."""

    name: str
    seconds: float
    share: float
    advice: str


def profile(rows: Iterable[Mapping[str, Any]]) -> list[Section]:
    """Seconds by section, all workers together, those of most time first; rounds of older runs have none."""
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
    found = [
        (row["gflop"], row["seconds"].get("workers", {}).get("training.native", 0.0)) for row in rows if "gflop" in row
    ]
    seconds = sum(s for _, s in found)
    return sum(g for g, _ in found) / seconds if seconds else 0.0


def sgemm_rate(size: int = 768, turns: int = 5) -> float:
    """GFLOP/s of one core of this machine in torch's product of two matrices."""
    import torch  # whoever only reads runs need not wait for it

    threads, a = torch.get_num_threads(), torch.ones(size, size)
    torch.set_num_threads(1)
    times: list[float] = []
    for _ in range(1 + turns):
        begun = time.perf_counter()
        a.mm(a)
        times.append(time.perf_counter() - begun)
    torch.set_num_threads(threads)
    return 2e-9 * size**3 / min(times[1:])


def in_words(lines: list[Section]) -> str:
    """The profile as a table, and the next bottleneck in a sentence."""
    if not lines:
        return "  no profile: this run was made by an older version."
    table = [f"  {line.name:30} {line.seconds:9.2f} s {line.share:6.1%}" for line in lines]
    return "\n".join([*table, f"  next bottleneck: {lines[0].name}. Workers mostly {lines[0].advice}."])
