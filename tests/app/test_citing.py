"""Names and references of methods: parsed from their files, which are never run."""

from __future__ import annotations

from pathlib import Path

import pytest

import headwise as hw
from headwise.app.citing import cite_methods, display_name, to_bibtex
from headwise.settings.names import list_names

OWN = '''"""FedMine — Doe et al., *Learning from Mines*, ICML 2025. https://example.org/mine"""
raise RuntimeError("never run")
'''


@pytest.mark.parametrize("name", list_names("method"))
def test_built_in_methods_have_the_name_of_their_paper(name: str) -> None:
    """But the baseline, which has the same name in all words and tables."""
    if name == "standalone":
        assert display_name(name) == "Local training"
        return
    letters = "".join(c for c in display_name(name).lower() if c.isalnum())
    assert name.replace("-", "").startswith(letters[:4]) or name in letters


def test_a_methods_own_file_is_parsed_and_not_run(tmp_path: Path) -> None:
    file = tmp_path / "fed_mine.py"
    file.write_text(OWN)
    assert display_name(str(file)) == "FedMine"
    assert to_bibtex(str(file)).splitlines()[:2] == ["@misc{fedmine,", "  title = {{Learning from Mines}},"]
    file.write_text('class FedMine:\n    title = "FedMine*"\n')
    assert display_name(str(file)) == "FedMine*"
    assert to_bibtex(str(file)) == ""
    file.write_text("not python (")
    assert display_name(str(file)) == "fed_mine"
    assert display_name(str(tmp_path / "gone.py")) == "gone"


def test_what_latex_would_not_print_is_escaped(tmp_path: Path) -> None:
    file = tmp_path / "fed_mine.py"
    file.write_text('"""FedMine — Doe & Roe, *50 % of $x_1$ {is #1*, A & B 2025. https://example.org/a_b?c=1%20"""')
    assert to_bibtex(str(file)).splitlines()[1:] == [
        r"  title = {{50 \% of \$x\_1\$ \textbraceleft{}is \#1}},",
        r"  author = {Doe \& Roe},",
        r"  howpublished = {A \& B},",
        r"  year = {2025},",
        r"  url = {https://example.org/a_b?c=1%20},",
        "}",
    ]
    file.write_text('"""FedMine — Doe, *Mines*, ICML 2025. https://example.org/a}{b"""')
    assert "url = {https://example.org/a%7D%7Bb}," in to_bibtex(str(file))


def test_headwise_is_cited_with_its_version() -> None:
    assert f"  version = {{{hw.__version__}}},\n" in cite_methods([])


def test_a_file_without_a_title_between_stars_is_told_how_to_begin(tmp_path: Path) -> None:
    file = tmp_path / "fed_mine.py"
    file.write_text('"""FedMine — Doe, Learning from Mines, ICML 2025."""')
    assert 'the first line of its file must be """Name — Authors, *Title*, venue' in cite_methods([str(file)])
    assert "the file no longer exists\n" in cite_methods([str(tmp_path / "gone.py")])


def test_what_cites_nothing_is_named() -> None:
    text = cite_methods(["fedah", "standalone", "fedah"])
    assert text.startswith("@software{headwise,")
    assert text.count("@misc{fedah,") == 1
    assert "% Local training (standalone) cites no paper\n" in text
