"""The Python half of docs/own-data.md runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_fit import frame

PAGE = Path(__file__).parents[2] / "docs" / "own-data.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_the_snippets_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng, y = np.random.default_rng(0), np.arange(20) % 2
    given: dict[str, Any] = {
        "x_va": rng.normal(size=(20, 3)),
        "x_rome": rng.normal(size=(20, 3)),
        "y_va": y,
        "y_rome": y,
    }
    given["frame"] = frame(hospital=["va", "rome"] * 10)
    np.save("va.npy", given["x_va"])
    np.save("rome.npy", given["x_rome"])
    assert len(BLOCKS) == 6
    for block in BLOCKS:
        exec(compile(block, str(PAGE), "exec"), given)
        assert given["run"].names == ("va", "rome")
        assert len(given["run"].rounds) == 5
    assert given["grown"].names == ("va", "rome", "oslo")
