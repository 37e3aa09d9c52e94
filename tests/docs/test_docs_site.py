"""The generated pages say what the code says; `make docs` builds a site without broken links or the network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import docs_cards
import docs_examples
import docs_hook
import docs_reference
import pytest
from browser import Browser, browser
from snippets import ROOT

import headwise
from headwise import authoring
from headwise.app import registry
from headwise.cli import VERBS
from headwise.settings.experiment import Experiment
from headwise.settings.fields import field_types
from headwise.settings.names import list_names

NAMES = list_names("method")
LOADED = re.compile(
    r"<(?:script|img|link|iframe)[^>]*(?:src|href)=\"?(?:https?:)?//[^\s>]*|url\(\"?(?:https?:)?//[^)]*"
)


@pytest.mark.parametrize("name", NAMES)
def test_a_card_says_what_the_method_says(name: str) -> None:
    cls = registry.find("method", name)
    text = docs_cards.card(name)
    assert all(f"`{option}`" in text for option in field_types(cls))
    assert all(f"`{name}@{preset}`" in text for preset in cls.presets)
    assert f"| travels | {cls.travels} |" in text
    assert f"| stays | {cls.stays} |" in text
    assert text.count("\n## ") >= 5
    head = docs_cards.header(sys.modules[cls.__module__].__doc__ or "")
    if name != "standalone":
        assert head.address.startswith("https://") and head.year
        assert all(paper and meaning for paper, _, meaning in head.symbols)
    assert ("## Symbols" in text) == bool(head.symbols)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "standalone"])
def test_every_method_can_be_cited(name: str) -> None:
    entry = docs_cards.to_bibtex(name)
    assert re.match(r"@misc\{[a-z0-9]+,\n", entry)
    assert all(re.search(rf"^  {key} = \{{.+\}},$", entry, re.MULTILINE) for key in ("title", "author", "year", "url"))
    assert entry in docs_cards.card(name)
    assert entry in docs_cards.references()


def test_headwise_is_cited_as_its_citation_file_says() -> None:
    file = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    page = (ROOT / "docs" / "citing.md").read_text(encoding="utf-8")
    for key in ("title", "version", "license"):
        value = re.search(rf"^{key}: \"?(.+?)\"?$", file, re.MULTILINE)
        assert value and re.search(rf"^  {key} *= \{{{re.escape(value[1])}\}},$", page, re.MULTILINE)


def test_cards_have_symbols() -> None:
    assert sum("## Symbols" in docs_cards.card(name) for name in NAMES) > 30


def test_the_league_on_a_card_is_that_of_its_page() -> None:
    rows = docs_cards.league("fedah")
    assert [row[0] for row in rows] == ["method", "fedah", "standalone"]
    page = (ROOT / "docs" / "results" / "league.md").read_text(encoding="utf-8")
    assert f"| {' | '.join(rows[1])} |" in page
    assert len(rows[0]) == len(rows[1]) == len(rows[2])
    assert sum(bool(docs_cards.league(name)) for name in NAMES) >= 30


def test_every_family_suits_somebody() -> None:
    assert {registry.find("method", name).family for name in NAMES} == docs_cards.SUITS.keys()


def test_overview_lists_all_methods() -> None:
    rows = re.findall(r"^\| \[`(.+?)`\]\((.+?)\.md\)", docs_cards.overview(), re.MULTILINE)
    assert rows == [(name, name) for name in NAMES]


def test_reference_is_complete() -> None:
    assert re.findall(r"^## (\w+)$", docs_reference.commands(), re.MULTILINE) == [*VERBS]
    said = docs_reference.settings()
    assert _settings(Experiment) == re.findall(r"^\| `([\w.]+)` \|", said, re.MULTILINE)


def _settings(cls: type, prefix: str = "") -> list[str]:
    """All settings below a dataclass, its own before those of its tables."""
    kinds = field_types(cls)
    tables = [
        name for name in kinds if hasattr(kinds[name], "__dataclass_fields__") and not hasattr(kinds[name], "parse")
    ]
    own = [f"{prefix}{name}" for name in kinds if name not in tables]
    return own + [s for name in tables for s in _settings(kinds[name], f"{prefix}{name}.")]


@pytest.mark.parametrize(
    ("page", "public"),
    [("python.md", headwise.__all__), ("writing-methods.md", [*authoring.__all__, "check_method"])],
)
def test_api_reference_has_every_public_name(page: str, public: list[str]) -> None:
    text = (ROOT / "docs" / "reference" / page).read_text(encoding="utf-8")
    shown = re.findall(r"^::: headwise\.([\w.]+)$", text, re.MULTILINE)
    assert sorted(name.rpartition(".")[2] for name in shown) == sorted(public)


@pytest.mark.parametrize("cls", [authoring.Bench, authoring.Central, authoring.Local, authoring.Params])
def test_the_reference_lists_everything_a_bench_has(cls: type) -> None:
    text = (ROOT / "docs" / "reference" / "writing-methods.md").read_text(encoding="utf-8")
    names = {name for name in (*vars(cls), *getattr(cls, "__annotations__", {})) if not name.startswith("_")}
    shown = set(re.findall(r"`(\w+)(?:\(.*?\))?`", text))
    assert names and names <= shown


CITING = ("which-method.md", "concepts/floors.md", "concepts/moments.md", "concepts/threat-model.md")
"""pages whose figures come from the pages of results that they link"""
CLAUSES = [
    (page, part)
    for page in CITING
    for part in re.split(r"\n\n|(?<=\))[.;] |(?<=\)) *\| |\n- ", (ROOT / "docs" / page).read_text(encoding="utf-8"))
    if re.search(r"\]\((?:\.\./)?results/(?!README)", part)
]


@pytest.mark.parametrize(("page", "clause"), CLAUSES, ids=[f"{page}-{k}" for k, (page, _) in enumerate(CLAUSES)])
def test_figures_of_a_page_stand_on_the_results_that_it_links(page: str, clause: str) -> None:
    """So that whoever measures again finds every sentence that rested on the old figure."""
    pages = [ROOT / "docs" / "results" / name for name in re.findall(r"\]\((?:\.\./)?results/([\w-]+\.md)", clause)]
    text = "".join(p.read_text(encoding="utf-8") for p in pages)
    there = {f"{float(number):.1f}" for number in re.findall(r"\d+\.\d+", text)}
    said = re.findall(r"\d+\.\d+", re.sub(r"\]\(.*?\)|Dir\(.*?\)|`.*?`", "", clause))
    assert [figure for figure in said if f"{float(figure):.1f}" not in there] == []


@pytest.mark.parametrize("page", CITING)
def test_the_page_has_figures(page: str) -> None:
    assert any(re.search(r"\d+\.\d", clause) for where, clause in CLAUSES if where == page)


@pytest.mark.parametrize(
    ("at", "text", "becomes"),
    [
        ("flower.md", "[S](../SECURITY.md#a)", "[S](project/security.md#a)"),
        ("decisions/1.md", "[S](../../SECURITY.md)", "[S](../project/security.md)"),
        ("project/security.md", "[F](docs/flower.md)", "[F](../flower.md)"),
        ("project/contributing.md", "[f](src/headwise/params.py)", "f"),
        ("index.md", "[s](start.md)", "[s](start.md)"),
        ("index.md", "[x](https://x.org/y)", "[x](https://x.org/y)"),
    ],
)
def test_links_fit_the_site(at: str, text: str, becomes: str) -> None:
    assert docs_hook.linked(text, at) == becomes


def test_examples_in_docstrings_are_code() -> None:
    """Markdown took them for quotations, and their lists for links."""
    text = "Do it.\n\nReturns:\n    The list.\n\n"
    examples = ">>> [c for c in x]\n[1, 2]"
    indented = "    >>> [c for c in x]\n    [1, 2]"
    assert docs_examples.mark_examples(text + examples) == f"{text}Examples:\n{indented}"
    assert docs_examples.mark_examples(text) == text


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.long
def test_site_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = [*site.rglob("*.html"), *site.rglob("*.css")]
    assert len(pages) > 100
    loaded = {(p.name, found) for p in pages for found in LOADED.findall(p.read_text(encoding="utf-8"))}
    assert loaded == set()


@pytest.mark.long
def test_site_has_no_words_of_ours(site: Path) -> None:
    """Nothing that only we could understand: numbers of our issues, folders of our machines."""
    ours = re.compile(r"\bissue \d+|/work/|\bMETHODS [§H]|PUBLIC_CODE|/root/|docs-[ab]\b")
    said = {(p.name, found) for p in site.rglob("*.html") for found in ours.findall(p.read_text(encoding="utf-8"))}
    assert said == set()


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.mark.long
@pytest.mark.parametrize(("width", "theme"), [(390, "light"), (390, "dark"), (1280, "light"), (1280, "dark")])
@pytest.mark.parametrize("page", ["index", "start", "which-method", "methods/fedah", "results/league"])
def test_page_can_be_read_by_everyone(page: str, width: int, theme: str, site: Path, tab: Browser) -> None:
    tab.open(site / f"{page}.html", width=width, theme=theme)
    scheme = {"light": "default", "dark": "slate"}[theme]
    assert tab.js("return document.body.dataset.mdColorScheme") == scheme
    assert tab.js("return document.documentElement.scrollWidth") <= width, "nothing sticks out"
    assert tab.violations() == []
    assert tab.requests() == []


@pytest.mark.long
def test_search_works_from_the_disk(site: Path, tab: Browser) -> None:
    tab.open(site / "start.html")
    tab.js("document.querySelector('[data-md-toggle=search]').click()")
    box = tab.driver.find_element("css selector", "input.md-search__input")
    tab.js("arguments[0].focus()", box)
    box.send_keys("FedGMH")
    found = "[...document.querySelectorAll('.md-search-result__item a')].map(a => a.href)"
    assert any("methods/fedgmh.html" in link for link in tab.wait(f"const f = {found}; return f.length ? f : null"))
    assert tab.requests() == []
