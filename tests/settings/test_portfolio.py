"""What our league says of a method."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwise.settings import portfolio


def test_a_line_about_a_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "portfolio.toml"
    path.write_text(
        'federations = 2\nmethods = ["fedah"]\n[standings]\nfedah = { mean_rank = 3.5, ahead = 2, behind = 0 }'
    )
    monkeypatch.setattr(portfolio, "PORTFOLIO", path)
    portfolio._read.cache_clear()  # pyright: ignore[reportPrivateUsage]
    try:
        line = "mean rank 3.5 of 1 over 2 federations; ahead of local training in 2, behind in 0"
        assert portfolio.describe_standing("fedah") == line
        assert portfolio.describe_standing("mine.py") == ""
        assert portfolio.mean_rank("fedah") == 3.5
        assert portfolio.read_portfolio()[0] == "fedah"
    finally:
        portfolio._read.cache_clear()  # pyright: ignore[reportPrivateUsage]
