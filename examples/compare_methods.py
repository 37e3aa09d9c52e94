"""Compare two methods on two draws of a partition, and read the numbers behind the page.

python examples/compare_methods.py
"""

from __future__ import annotations

import headwise as hw


def main() -> None:
    base = hw.Experiment(
        data="synthetic:400",
        partition="dirichlet:0.3",
        clients=8,
        rounds=8,
        train={"lr": 0.1},
        engine={"workers": 1},
    )
    comparison = hw.compare(base, ["fedavg", "fedah"], draws=2)

    print("\n".join(comparison.words()))  # who won, and whether that is more than chance
    for line in comparison.setting.lines:
        print(
            f"{line.name:10} {line.mean():.1%} ± {line.spread():.1%} (pre), {line.per_round('bytes_up'):,.0f} bytes up"
        )

    run = comparison.setting.lines[1].runs[0]  # one seed of fedah
    curve = [(row["round"], row["pre"]["accuracy"]) for row in run.rounds if "pre" in row]
    print("accuracy by round:", ", ".join(f"{t}: {accuracy:.1%}" for t, accuracy in curve))
    worst, score = min(run.last_scores()["pre"].items(), key=lambda pair: pair[1])
    print(f"client {worst} does worst: {score:.1%}, where guessing gives {run.floors[worst] or 0:.1%}")
    print(f"the page: {comparison.report}")


if __name__ == "__main__":
    main()
