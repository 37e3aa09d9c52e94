"""What leaks on digits, with and without noise on what leaves a client.

    python benchmarks/audit.py        # writes docs/results/privacy-audit.md; a quarter of an hour on one core

20 clients, Dir(0.3), 30 rounds of 1 epoch with batches of 10, the small fully connected network; ten clients are
attacked, by messages that they would send next. Found and guessed are correlations of images, areas under the curve, F1
of label sets, or agreement of label shares: 1 is all there is to know. Guessing is what somebody comes to who has seen
no message but has samples of other clients.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import headwise as hw
from headwise.audit.auditing import Audit, audit
from headwise.errors import ConfigError

PAGE = Path(__file__).parent.parent / "docs" / "results" / "privacy-audit.md"
METHODS = ("fedavg", "fedper", "fedgh", "fedgmh")
NOISE: dict[str, dict[str, Any]] = {
    "no noise": {},
    "weak noise": {"clip": 1.0, "noise": 0.3},
    "strong noise": {"clip": 1.0, "noise": 2.0},
}


def audits(room: Path) -> Iterator[tuple[str, str, hw.Run | str, Audit | None]]:
    """Method, noise, the run or why there is none, and what was found."""
    for method in METHODS:
        for name, privacy in NOISE.items():
            folder = room / f"{method} {name}"
            settings: dict[str, Any] = {"partition": "dirichlet:0.3", "rounds": 30, "evaluate": {"every": 30}}
            try:
                run = hw.run(hw.Experiment(method=method, privacy=privacy, **settings), folder)
            except ConfigError as error:
                yield method, name, str(error), None
            else:
                yield method, name, run, audit(folder)


def section(method: str, name: str, run: hw.Run | str, found: Audit | None) -> str:
    if isinstance(run, str) or found is None:
        return f"### {name}\n\nRefused: {run}\n"
    spent = run.manifest.get("privacy")
    promise = f", epsilon {spent['epsilon']:.3g} at delta {spent['delta']:g}" if spent else ""
    lines = [
        f"### {name}{promise}\n\nAccuracy {100 * run.accuracy('pre'):.1f} % before training, "
        f"{100 * run.accuracy('stale'):.1f} % of the clients' own last models.\n",
        "| attack | knowing | measure | found | guessed | cases |\n|---|---|---|---|---|---|",
        *(
            f"| {f.attack} | {f.knowing} | {f.measure} | {f.found:.3f} | {f.guess:.3f} | {f.cases} |"
            for f in found.findings
        ),
    ]
    return "\n".join(lines) + "\n"


def leaving(found: Audit) -> str:
    rows = [f"| {f.name} | {f.what} | {f.bytes:,.0f} | {'yes' if f.per_client else 'no'} |" for f in found.fields]
    return "| leaves a client | what | bytes a round | seen per client |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"


def main() -> None:
    said = " ".join((__doc__ or "").split("\n\n")[2].split())
    parts = [f"# What leaks\n\nMade by `python benchmarks/audit.py`. {said}\n"]
    with tempfile.TemporaryDirectory() as room:
        for method, name, run, found in audits(Path(room)):
            if name == "no noise" and found is not None:
                parts.append(f"## {method}\n\n{leaving(found)}")
            parts.append(section(method, name, run, found))
            print(parts[-1], flush=True)
    PAGE.write_text("\n".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
