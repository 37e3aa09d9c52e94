"""Publish a league: its table, the tables of its page, and the portfolio of `headwise choose`.

    headwise league --out runs/league                  # hours; what is finished is not run again
    python benchmarks/league.py runs/league            # seconds
    python benchmarks/league.py --unpack runs/league   # writes the published cells there, to continue elsewhere

Writes docs/results/league.csv, what is between the marks in docs/results/league.md, and settings/portfolio.toml.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median

from headwise.disk.files import make_folder, without_flushing, write_json
from headwise.league.cells import (
    KINDS,
    Kind,
    LeagueCell,
    Result,
    find_federations,
    hash_of,
    read_csv,
    read_result,
    to_csv,
)
from headwise.league.play import DRAWS
from headwise.league.standings import Group, Standings, federation_table, split_by_federation, standings_of
from headwise.report.recommendation import LOCAL, YARDSTICKS
from headwise.report.tables import Table, to_markdown
from headwise.settings.names import list_names

HOME = Path(__file__).parent.parent
PAGE = HOME / "docs" / "results" / "league.md"
CSV = HOME / "docs" / "results" / "league.csv"
PORTFOLIO = HOME / "src" / "headwise" / "settings" / "portfolio.toml"
BEGIN, END = "<!-- tables -->", "<!-- end of tables -->"
VERSION = "v1"
SEARCH = 5
"""a search costs about as much as this many cells: ten trials, most of them stopped early"""


def main(folder: Path) -> None:
    newest = newest_results(folder)
    if not newest:
        raise SystemExit(f"{folder} has no cells of a league: {__doc__}")
    CSV.write_text(to_csv(newest))
    results = read_csv(CSV)  # rounded
    standings = rank_defaults(results)
    before, _, rest = PAGE.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{tables(standings, results)}\n{END}{after}")
    PORTFOLIO.write_text(portfolio(standings))


def unpack(folder: Path) -> None:
    """Write the published cells that the folder lacks, but none whose federation or code has changed since."""
    federations = {federation.name: federation for federation in find_federations(VERSION, [])}
    for result in read_csv(CSV):
        federation = federations[result.federation]
        kind: Kind = "tuned" if result.setting == "tuned" else "default"
        cell = LeagueCell(federation, result.method, result.draw, kind)
        current = (result.federation_hash, result.numerics) == (hash_of(federation), cell.code.numerics)
        files = {cell.path(folder): result.to_plain()}
        if kind == "tuned" and not result.error:
            files[cell.settings_path(folder)] = result.settings
        for path, values in files.items():
            if current and not path.exists():
                make_folder(path.parent)
                write_json(path, values)


def rank_defaults(results: list[Result]) -> Standings:
    """The standings of default settings."""
    return standings_of([result for result in results if result.setting == "default"])


def newest_results(folder: Path) -> list[Result]:
    """One of each cell: where a method was revised, the results of its older versions stay in the folder."""
    newest: dict[tuple[str, str, str, int], Result] = {}
    for result in map(read_result, sorted((folder / "cells").glob("*/*.json"))):
        cell = (result.federation, result.method, result.setting, result.draw)
        if cell not in newest or result.numerics > newest[cell].numerics:
            newest[cell] = result
    return list(newest.values())


def tables(standings: Standings, results: list[Result]) -> str:
    parts = [
        "## All federations",
        "\n".join(f"- {sentence}" for sentence in standings.words()),
        "*near the best*: federations in which the method can't be told apart from the best. *against*: wins, "
        "undecided, losses by the 95 % interval of the difference.",
        markdown(standings.overview()),
        "## Which kind of federation favours which family",
        "Median lead over local training of each family's methods, in points; in brackets, how many methods.",
        markdown(standings.tabulate_families()),
    ]
    for group in standings.groups:
        first = group.first
        parts += [
            f"## {group.name}: {first.kind}",
            f"{first.clients} clients, {first.samples:g} training samples (median) of {first.classes:g} classes; "
            f"draws: {len(group.draws)}; guessing gives {100 * (first.floor or 0):.1f} %. A star marks what can't be "
            f"told apart from the best.",
            markdown(federation_table(group)),
        ]
    parts += [*tuning(results), *tuned_overview(results)]
    return "\n\n".join([*parts, "## What is not run", *missing(results)])


def tuning(results: list[Result]) -> list[str]:
    """What tuned settings change, in each federation where all methods have them."""
    rows: list[list[str]] = []
    for group in split_by_federation(results):
        pairs = [(f"tuned {name}", name) for name in group.scored if f"tuned {name}" in group.scored]
        if not pairs:
            continue
        leads = {name: group.cells.difference(tuned, name) for tuned, name in pairs}
        most = sorted(leads, key=lambda name: -leads[name].value)[:3]
        firsts = [max(entries, key=lambda entry: group.cells.mean(entry).value) for entries in zip(*pairs, strict=True)]
        rows.append(
            [
                *(group.name, str(len(group.draws)), str(len(pairs))),
                f"{100 * median(lead.value for lead in leads.values()):+.1f}",
                f"{sum(lead.low > 0 for lead in leads.values())}, {sum(lead.high < 0 for lead in leads.values())}",
                ", ".join(f"{name} {100 * leads[name].value:+.1f}" for name in most),
                *(f"{entry} {100 * group.cells.mean(entry).value:.1f}" for entry in reversed(firsts)),
            ]
        )
    if not rows:
        return []
    head = [
        "federation",
        "draws",
        "methods",
        "median gain",
        "surely better, worse",
        "most",
        "first by default",
        "first tuned",
    ]
    about = (
        "Settings are searched once, in ten trials on validation samples of a draw that does not count; the first "
        "trial has the default settings, and most trials are stopped early. Gains are of the mean client, in points, "
        "paired on the same draws."
    )
    return ["## What tuning changes", about, markdown((head, rows))]


def tuned_overview(results: list[Result]) -> list[str]:
    """The standings when every method is tuned, yardsticks too, beside each one's rank by default on the same draws.

    Federations in which some methods are not tuned yet are left out, or these methods would be.
    """
    methods = {r.method for r in results}
    groups = split_by_federation([replace(r, setting="default") for r in results if r.setting == "tuned"])
    whole = [group for group in groups if {*group.scored, *group.failed} == methods]
    if not whole:
        return []
    tuned = Standings(tuple(whole), tuple(group.name for group in groups if group not in whole))
    draws = {(group.name, draw) for group in whole for draw in group.draws}
    default = standings_of([r for r in results if r.setting == "default" and (r.federation, r.draw) in draws])
    by_default = {s.name: f"{s.mean_rank:.1f}" for s in default.table}
    (name, family, rank, *rest), rows = tuned.overview()
    kept = [k for k, title in enumerate(rest) if not title.startswith("p ")]
    head = [name, family, rank, f"{rank} by default", *(rest[k] for k in kept)]
    body = [[*row[:3], by_default[row[0]], *(row[3:][k] for k in kept)] for row in rows]
    words = "\n".join(f"- {sentence}" for sentence in tuned.describe())
    return ["## All federations, tuned", words, markdown((head, body))]


def markdown(table: Table) -> str:
    return to_markdown(table).strip()


def missing(results: list[Result]) -> list[str]:
    """Cells of v1 without a result, with a command and an estimate of the cost for each federation and setting."""
    done = {(r.federation, r.method, r.setting, r.draw) for r in results}
    mean = {name: _mean_cost(results, name) for name in {r.federation for r in results}}
    rows: list[list[str]] = []
    for federation in find_federations(VERSION, []):
        for setting in KINDS:
            cells = [
                LeagueCell(federation, method, draw, setting)
                for method in list_names("method")
                for draw in range(DRAWS)
                if (federation.name, method, setting, draw) not in done
            ]
            if cells:
                each = mean.get(federation.name, 0.0)
                searched = {m for f, m, s, _ in done if (f, s) == (federation.name, "tuned")}
                searches = len({c.method for c in cells} - searched) if setting == "tuned" else 0
                cost = f"{(len(cells) + SEARCH * searches) * each / 60:.0f}" if each else "?"
                command = f"`headwise league {federation.name} --settings {setting}`"
                draws = ", ".join(f"{n} of draw {d}" for d, n in sorted(Counter(c.draw for c in cells).items()))
                rows.append([federation.name, setting, str(len(cells)), draws, cost, command])
    if not rows:
        return ["Nothing."]
    return [markdown((["federation", "settings", "cells", "which", "CPU minutes, about", "command"], rows))]


def _mean_cost(results: list[Result], federation: str) -> float:
    costs = [r.cpu_seconds for r in results if r.federation == federation and r.cpu_seconds]
    return sum(costs) / len(costs) if costs else 0.0


def portfolio(standings: Standings) -> str:
    draws = [len(group.draws) for group in standings.groups]
    lines = [
        "# What `headwise choose` tries after its yardsticks, in this order, and what `describe` says of a method.",
        f"# Written by benchmarks/league.py: league {VERSION}, {min(draws)} to {max(draws)} draws of each federation.",
        f"federations = {len(standings.groups)}",
        f"methods = [{', '.join(repr(name) for name in order_portfolio(standings))}]".replace("'", '"'),
        "",
        "[standings]",
    ]
    for s in standings.table:
        wins, _, losses = s.against[LOCAL]
        lines.append(f"{s.name} = {{ mean_rank = {s.mean_rank:.1f}, ahead = {wins}, behind = {losses} }}")
    return "\n".join([*lines, ""])


def order_portfolio(standings: Standings) -> list[str]:
    """All methods but the yardsticks, which are always tried: first one of each family, then the others.

    Each is the one that brings the best of those tried so far nearest to the best of every federation; where none
    does, the one with the smallest regret.
    """
    groups = standings.groups
    left = [name for name in standings.entries if name not in YARDSTICKS]
    behind = [min((_regret(g, name) for name in YARDSTICKS), default=1.0) for g in groups]
    families = {standings.families[name] for name in YARDSTICKS if name in standings.families}
    order: list[str] = []
    while left:
        new = [name for name in left if standings.families[name] not in families] or left
        best = min(new, key=lambda name: (_after(groups, behind, name), _mean_regret(groups, name), name))
        behind = [min(b, _regret(g, best)) for b, g in zip(behind, groups, strict=True)]
        families.add(standings.families[best])
        left.remove(best)
        order.append(best)
    return order


def _after(groups: Sequence[Group], behind: Sequence[float], name: str) -> float:
    """The regret that is left if this one is tried, too."""
    return round(sum(min(b, _regret(g, name)) for b, g in zip(behind, groups, strict=True)), 4)


def _mean_regret(groups: Sequence[Group], name: str) -> float:
    return fmean(_regret(group, name) for group in groups)


def _regret(group: Group, name: str) -> float:
    """How far it is behind the best; as far as possible if it has no score here."""
    return group.regret(name) if name in group.scored else 1.0


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--unpack", given]:
            with without_flushing():
                unpack(Path(given))
        case [given]:
            main(Path(given))
        case _:
            raise SystemExit(__doc__)
