"""For MkDocs, called by `make docs`: adds pages that are written from the code, and files from outside of docs/."""

from __future__ import annotations

import posixpath
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))

import docs_cards
import docs_reference

from headwise.settings.names import list_names

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = {
    "SECURITY.md": "project/security.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
}
"""files beside docs/, and where the site has them"""
FIRST = ("README", "league", "new-clients", "drift", "privacy", "privacy-audit", "robustness", "speed")
"""the results that most readers look for"""


def pages() -> dict[str, str]:
    """All added pages, by path below docs/."""
    cards = {f"methods/{name}.md": docs_cards.card(name) for name in list_names("method")}
    return {
        "methods/index.md": docs_cards.overview(),
        "methods/references.md": docs_cards.references(),
        **cards,
        "reference/commands.md": docs_reference.commands(),
        "reference/settings.md": docs_reference.settings(),
        "reference/names.md": docs_reference.names(),
        **{there: (ROOT / here).read_text(encoding="utf-8") for here, there in OUTSIDE.items()},
    }


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill those parts of the navigation that are lists of files."""
    nav: dict[str, list[Any]] = {title: items for entry in config.nav or [] for title, items in entry.items()}
    nav["Methods"] += [f"methods/{name}.md" for name in list_names("method")]
    found = sorted((ROOT / "docs" / "results").glob("*.md"), key=lambda p: (_place(p.stem), p.stem))
    nav["Results"] += [f"results/{p.name}" for p in found if not p.stem.startswith("claim-")]
    nav["Results"].append({"Claims": [f"results/{p.name}" for p in found if p.stem.startswith("claim-")]})
    decisions = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    nav["Project"][-1]["Decisions"] += [f"decisions/{p.name}" for p in decisions]
    return config


def _place(stem: str) -> int:
    return FIRST.index(stem) if stem in FIRST else len(FIRST)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_post_page(output: str, page: Page, **_: Any) -> str:
    return _mended(output, "../" * page.file.dest_uri.count("/"))


def on_post_template(output_content: str, template_name: str, **_: Any) -> str:
    return _mended(output_content, "")


def _mended(html: str, up: str) -> str:
    """Name the search for screen readers, and don't load a script from the network where ours does the same."""
    html = html.replace("https://unpkg.com/iframe-worker/shim", f"{up}assets/worker.js")
    return html.replace(
        'data-md-component="search" role="dialog"', 'data-md-component="search" role="dialog" aria-label="Search"'
    )


def on_post_build(config: MkDocsConfig) -> None:
    """Nobody reads an English site with stemmers of other languages, or the theme's source maps."""
    site = Path(config.site_dir)
    shutil.rmtree(site / "assets" / "javascripts" / "lunr", ignore_errors=True)
    for path in site.rglob("*.map"):
        path.unlink()


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Without what comments say to the tests."""
    return linked(re.sub(r"<!-- test:.*?-->\n*", "", markdown, flags=re.DOTALL), page.file.src_uri)


def linked(markdown: str, at: str) -> str:
    """Links between docs/ and the files beside it, as they must be in the site; those to code become plain text."""
    beside = at in OUTSIDE.values()

    def link(found: re.Match[str]) -> str:
        words, target, anchor = found[1], found[2], found[3] or ""
        whole = posixpath.normpath(posixpath.join("." if beside else posixpath.dirname(f"docs/{at}"), target))
        if whole in OUTSIDE:
            there = OUTSIDE[whole]
        elif whole.startswith("docs/") and (beside or whole.endswith((".md", ".png", ".svg"))):
            there = whole.removeprefix("docs/")
        else:
            return words if (ROOT / whole).exists() else found[0]
        return f"[{words}]({posixpath.relpath(there, posixpath.dirname(at) or '.')}{anchor})"

    return re.sub(r"\[([^\]]*)\]\((?![a-z]+:)([^)#\s]+)(#[^)\s]*)?\)", link, markdown)
