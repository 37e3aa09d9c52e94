"""Data that is a path: what is wrong with it is said, not which data sets there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwise.app import registry
from headwise.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("data.tml", "data is 'data.tml', but there is no such file: did you mean 'data.toml'?"),
        ("sub/dta.tml", "data is 'sub/dta.tml', but there is no such file: headwise data init makes"),
        ("dato", "data is 'dato', but there is no such file: did you mean 'data.toml'?"),
        (
            "shops.csv",
            "data is 'shops.csv', but there is no such file: headwise data init makes a data.toml from a table.",
        ),
        ("table.csv", "data is 'table.csv', which is not a data set but a path: headwise data init table.csv"),
        ("digitz", "data is 'digitz', which is not known: did you mean 'digits'?"),
        ("zzz", "data is 'zzz', which is not known: allowed are "),
    ],
)
def test_data_that_looks_like_a_file(name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.toml").write_text("")
    (tmp_path / "table.csv").write_text("")
    with pytest.raises(ConfigError) as error:
        registry.find("data", name)
    assert str(error.value).startswith(said)
