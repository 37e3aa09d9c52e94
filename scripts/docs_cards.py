"""A page per method, written from its code, the league table and the pages of results."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from docs_reference import options_table, table

from headwise.app import registry
from headwise.app.citing import to_bibtex
from headwise.cli.commands.describe import NEEDS
from headwise.cli.commands.list import method_facts
from headwise.contract.method import Method, record_types
from headwise.records import Nothing, Record, fields_of
from headwise.settings.fields import field_types, summary_of
from headwise.settings.names import list_names, name_of

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
LEAGUE = "small federations that differ in kind, default settings"
LETTERS = (
    "Numbers are per client and round: P those of the model, F of its body, L of its head; K features, C classes, "
    "c the client's own classes."
)
SUITS = {
    "no sharing": "Clients with enough data of their own. It sends nothing, and is the baseline: a method that does "
    "not beat it is not worth its traffic.",
    "one global model": "Clients with similar data, or anyone who needs exactly one model.",
    "shared body": "Clients with the same kind of inputs but different classes or class frequencies. The server never "
    "sees the personal head.",
    "shared head": "Clients with different inputs or networks with the same last layer; messages are small.",
    "aggregated head": "Clients that want a personal head that also uses the other clients' heads.",
    "mixed body": "Clients whose inputs differ so much that the body must also be personalized.",
    "two heads": "Clients that need a personalized model, and a global one for samples from elsewhere.",
    "server-trained head": "Clients with private bodies, even different networks, and limited bandwidth: class means "
    "are small. They also reveal to the server which labels a client has.",
    "prototypes": "Clients with entirely different networks and limited bandwidth. Prototypes also reveal to the "
    "server which labels a client has.",
    "distillation by class": "Clients with entirely different networks and the least bandwidth.",
    "distillation": "Clients with the same network and differing labels: a generator that the server trains replaces "
    "the data of the others. The server learns how often each label occurs.",
    "mutual distillation": "Clients with private networks of any kind that can afford to train a second, shared one.",
    "global and own model": "Clients that can afford to train two models, and want a personalized and a global one.",
    "meta-learning": "Clients that join later with few samples: the shared initialization adapts quickly.",
    "partial sharing": "Clients that differ in a known part of the network, such as BatchNorm statistics or channels.",
    "personal aggregation": "Clients that resemble some of the others, but not all of them.",
    "clusters": "Clients that fall into a few groups, which nobody knows in advance.",
}
"""by family: what the method was designed for, not what was measured"""


@dataclass(frozen=True)
class Header:
    """What a method's file says above its code."""

    title: str
    citation: str
    address: str
    symbols: tuple[tuple[str, str, str], ...]
    departures: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def year(self) -> str:
        years = re.findall(r"\b(?:19|20)\d\d\b", self.citation)
        return years[-1] if years else ""


def header(text: str) -> Header:
    first, *rest = re.split(r"\n\s*\n", inspect.cleandoc(text))
    title, _, citation = " ".join(first.split()).partition(" — ")
    found = re.search(r"https?://\S+", citation)
    symbols = next((part for part in rest if part.split()[:2] == ["paper", "here"]), "")
    prose = [_paragraph(part) for part in rest if part != symbols]
    departs = tuple(p for p in prose if p.startswith("Depart"))
    return Header(
        title,
        citation.replace(found[0], "").strip() if found else citation,
        found[0] if found else "",
        tuple(_symbols(symbols)),
        departs,
        tuple(p for p in prose if p not in departs),
    )


def references() -> str:
    """A page with all papers as BibTeX."""
    entries = "\n".join(filter(None, map(to_bibtex, list_names("method"))))
    return f"""# References of all methods

The paper of each method, as BibTeX. [Citing](../citing.md) has the entry for Headwise itself.

```bibtex
{entries}```
"""


def _paragraph(text: str) -> str:
    """Equations stand indented, and stay as they are."""
    return f"```\n{inspect.cleandoc(text)}\n```" if text.startswith("    ") else " ".join(text.split())


def _symbols(block: str) -> list[tuple[str, str, str]]:
    """The rows of the table of symbols, by the places of its headings; a line without a symbol continues the last."""
    head, *lines = block.splitlines() or [""]
    here, meaning = head.find("here"), head.find("meaning")
    rows: list[tuple[str, str, str]] = []
    for line in lines:
        cells = line[:here].strip(), line[here:meaning].strip(), line[meaning:].strip()
        if not cells[0]:
            last = rows.pop()
            cells = last[0], last[1], f"{last[2]} {cells[2]}"
        rows.append(cells)
    return rows


def card(name: str) -> str:
    cls: type[Method[Any, Any, Any, Any]] = registry.find("method", name)
    head = header(inspect.getmodule(cls).__doc__ or "")
    paper = f"**Paper.** {head.citation} [{head.address}]({head.address})" if head.address else head.citation
    parts = [
        f"# {head.title}\n\n{inspect.getdoc(cls)}\n\n{paper}",
        f"```sh\nheadwise run --method {name} --data digits --partition dirichlet:0.1\nheadwise describe {name}\n```",
        "## At a glance\n\n" + table(("fact", "value"), _facts(cls)) + f"\n\n{LETTERS}",
        f"## Who it suits\n\n{SUITS[cls.family]}\n\nThis is what it was designed for. "
        "[Which method should I use?](../which-method.md) has what we measured.",
        "## What is stored and sent\n\n" + table(("record", "fields", "what it is"), _records(cls)),
    ]
    if head.symbols:
        rows = [(f"`{p}`", f"`{h}`", m) for p, h, m in head.symbols]
        parts.append("## Symbols\n\n" + table(("in the paper", "in the code", "meaning"), rows))
    parts.append("## Options\n\n" + (options_table(cls) if field_types(cls) else "None."))
    if cls.presets:
        rows = [(f"`{name}@{k}`", ", ".join(f"`{o} = {v}`" for o, v in p.items())) for k, p in cls.presets.items()]
        parts.append("Presets:\n\n" + table(("name", "sets"), rows))
    if head.departures:
        said = "\n\n".join(_linked(p) for p in (*head.departures, *head.notes))
        parts.append(f"## How it departs from the paper\n\n{said}")
    elif head.notes:
        parts.append("## Notes\n\n" + "\n\n".join(map(_linked, head.notes)))
    parts.append(_results(name))
    if entry := to_bibtex(name):
        parts.append(f"## Cite\n\n```bibtex\n{entry}```")
    parts.append(f"Source: `src/headwise/methods/{name.replace('-', '_')}.py`")
    return "\n\n".join(parts) + "\n"


def _facts(cls: type[Method[Any, Any, Any, Any]]) -> list[tuple[str, str]]:
    listed = method_facts(registry.read_card("method", name_of("method", cls)))
    return [
        ("family", cls.family),
        ("travels", cls.travels),
        ("stays", cls.stays),
        ("numbers down", f"`{cls.traffic_down}`"),
        ("numbers up", f"`{cls.traffic_up}`"),
        ("the server needs", NEEDS[cls.sums]),
        ("different networks", cls.heterogeneous),
        ("a global model", listed["global model"]),
        ("tasks", ", ".join(cls.tasks)),
        ("cost of a round", f"{cls.cost:g} times FedAvg's, in passes over the data"),
        ("client optimizers", cls.optimizers),
    ]


def _records(cls: type[Method[Any, Any, Any, Any]]) -> list[tuple[str, str, str]]:
    types = record_types(cls)
    kinds = {"server keeps": types.server, "client keeps": types.client, "message down": types.down}
    kinds |= {"message up": types.up, "census, before round 1": types.census}
    return [(name, *_record(kind)) for name, kind in kinds.items() if kind is not Nothing or "census" not in name]


def _record(kind: type[Record]) -> tuple[str, str]:
    if kind is Nothing:
        return "", "nothing"
    return ", ".join(f"`{f}`" for f in fields_of(kind)), summary_of(kind) + "."


def _linked(text: str) -> str:
    """With decisions as links."""

    def link(found: re.Match[str]) -> str:
        page = next((ROOT / "docs" / "decisions").glob(f"{int(found[1]):04}-*.md"))
        return f"[{found[0]}](../decisions/{page.name})"

    return re.sub(r"decision (\d+)", link, text)


@cache
def _rows(page: Path) -> list[list[str]]:
    lines = page.read_text(encoding="utf-8").splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]


def _method_of(cell: str) -> str:
    """`FedGMH`, `fedgmh@code` and `fedgmh, beta 0.7` are all rows of fedgmh."""
    plain = re.sub(r"\[(.*?)\]\(.*?\)|[*`]", r"\1", cell).strip().lower()
    return re.split(r"[\s,:@(]", plain)[0]


def league(name: str) -> list[list[str]]:
    """The header of the league's first table, this method's row, and that of local training."""
    rows = _rows(RESULTS / "league.md")
    head = next(row for row in rows if row[0] == "method")
    first = [row for row in rows if len(row) == len(head)][1:]
    first = first[: next((k for k, row in enumerate(first) if row[0] == "method"), len(first))]
    own = [row for row in first if row[0] == name]
    return [head, *own, *(row for row in first if row[0] == "standalone" and name != "standalone")] if own else []


def _results(name: str) -> str:
    said = "## Results\n\n"
    if shown := league(name):
        said += f"In [the league](../results/league.md) ({LEAGUE}):\n\n"
        said += table(shown[0], shown[1:])
    else:
        said += "Not in [the league](../results/league.md) yet."
    pages = [p for p in sorted(RESULTS.glob("*.md")) if p.stem not in ("league", "README")]
    seen = [p for p in pages if any(_method_of(row[0]) == name for row in _rows(p))]
    if seen:
        said += "\n\nAlso measured in: " + ", ".join(f"[{p.stem}](../results/{p.name})" for p in seen) + "."
    return said


def overview() -> str:
    rows: list[tuple[str, ...]] = []
    for name in list_names("method"):
        cls = registry.find("method", name)
        year = header(inspect.getmodule(cls).__doc__ or "").year
        facts = (cls.family, cls.travels, cls.stays, inspect.getdoc(cls) or "")
        rows.append((f"[`{name}`]({name}.md)", year, *facts))
    return (
        f"---\nhide: [toc]\n---\n\n# Methods\n\nThere are {len(rows)}. Each has a card, generated from its code. "
        "`headwise list methods` and `headwise describe NAME` print the same. If you are not sure, start with "
        "[Which method should I use?](../which-method.md)\n\n"
        + table(("name", "year", "family", "travels", "stays", "in a sentence"), rows)
        + "\n\nAll papers [as BibTeX](references.md). Your own method is [one file](../tutorials/write-a-method.md).\n"
    )
