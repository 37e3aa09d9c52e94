"""What leaks on digits, with and without noise on what leaves a client.

    python benchmarks/audit.py        # writes docs/results/privacy-audit.md and what `headwise site review` quotes of
                                      # it; a quarter of an hour on one core

20 clients, Dir(0.3), 30 rounds of 1 epoch with batches of 10, the small fully connected network; ten clients are
attacked, by messages that they would send next. The last columns are what was found without noise, and with noise on
all that leaves a client at two strengths (epsilon of a client at delta 1e-5), in brackets the accuracy before training.
A measure of 1 is all there is to know; guessing is what somebody comes to who has seen no message, but has other
clients' samples and as many tries.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import headwise as hw
from headwise.audit.auditing import Audit, audit
from headwise.audit.findings import SHIPPED
from headwise.disk.files import write_json
from headwise.errors import ConfigError

PAGE = Path(__file__).parent.parent / "docs" / "results" / "privacy-audit.md"
METHODS = ("fedavg", "fedper", "fedgh", "fedgmh")
NOISE: tuple[dict[str, Any], ...] = ({}, {"clip": 1.0, "noise": 0.3}, {"clip": 1.0, "noise": 2.0})


class Audited(NamedTuple):
    """A run and what was found out about it."""

    run: hw.Run
    audit: Audit

    @property
    def head(self) -> str:
        """Of its column: what is promised, and what the models are worth."""
        spent = self.run.manifest.get("privacy")
        promise = f"epsilon {spent['epsilon']:.3g}" if spent else "no noise"
        return f"{promise} ({100 * self.run.accuracy('pre'):.0f} %)"


def run_audit(method: str, privacy: dict[str, Any], folder: Path) -> Audited | None:
    """None where the method can't be run with this protection."""
    settings: dict[str, Any] = {"partition": "dirichlet:0.3", "rounds": 30, "evaluate": {"every": 30}}
    try:
        run = hw.run(hw.Experiment(method=method, privacy=privacy, **settings), folder)
    except ConfigError as error:
        print(error)
        return None
    return Audited(run, audit(folder))


def describe_uploads(audit: Audit) -> str:
    rows = [f"| {f.name} | {f.what} | {f.bytes:,.0f} | {'yes' if f.per_client else 'no'} |" for f in audit.fields]
    return "| leaves a client | what | bytes a round | seen per client |\n|---|---|---|---|\n" + "\n".join(rows)


def attacks(runs: list[Audited]) -> str:
    """A line per attack, a column per run."""
    lines = [
        f"| attack | knowing | measure | guess | {' | '.join(r.head for r in runs)} |",
        "|---" * (4 + len(runs)) + "|",
    ]
    by_run = [{(f.attack, f.knowing, f.measure): f.score for f in r.audit.findings} for r in runs]
    for f in runs[0].audit.findings:
        key = f.attack, f.knowing, f.measure
        cells = [f"{values[key]:.2f}" if key in values else "" for values in by_run]
        lines.append(f"| {f.attack} | {f.knowing} | {f.measure} | {f.guess:.2f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def quote(page: str) -> dict[str, Any]:
    """The attacks on each method, as the page has them: what ships with Headwise can't differ from it."""
    reports: dict[str, Any] = {}
    for method, text in re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL):
        head, _, *rows = [line[2:-2].split(" | ") for line in text.strip().split("\n\n")[1].splitlines()]
        strengths = [float(m[1]) if (m := re.match(r"epsilon (\S+)", title)) else None for title in head[4:]]
        attacks = [
            {
                "attack": row[0],
                "knowing": row[1],
                "measure": row[2],
                "guess": float(row[3]),
                "score": [float(value) if value else None for value in row[4:]],
            }
            for row in rows
        ]
        reports[method] = {"epsilon": strengths, "attacks": attacks}
    return reports


def main() -> None:
    about = " ".join((__doc__ or "").split("\n\n")[2].split())
    parts = [f"# What leaks\n\nMade by `python benchmarks/audit.py`. {about}\n"]
    with tempfile.TemporaryDirectory() as room:
        for method in METHODS:
            tried = [run_audit(method, privacy, Path(room) / f"{method}-{k}") for k, privacy in enumerate(NOISE)]
            runs = [audit for audit in tried if audit is not None]
            parts.append(f"## {method}\n\n{describe_uploads(runs[0].audit)}\n\n{attacks(runs)}\n")
            print(parts[-1], flush=True)
    PAGE.write_text("\n".join(parts), encoding="utf-8")
    write_json(SHIPPED, quote("\n".join(parts)))


if __name__ == "__main__":
    main()
