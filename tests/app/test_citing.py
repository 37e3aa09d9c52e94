"""Names and references of methods: parsed from their files, which are never run."""

from __future__ import annotations

from pathlib import Path

import pytest

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


def test_what_cites_nothing_is_named() -> None:
    text = cite_methods(["fedah", "standalone", "fedah"])
    assert text.startswith("@software{headwise,")
    assert text.count("@misc{fedah,") == 1
    assert "% Local training (standalone) cites no paper\n" in text
