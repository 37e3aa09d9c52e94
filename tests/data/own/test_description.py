"""data.toml: a mistake is one sentence that names the file, the key, the value and what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest
from own_files import TABLE, describe, table

from headwise.errors import ConfigError


def test_a_description_is_read_and_paths_begin_beside_it(tmp_path: Path) -> None:
    d = table(tmp_path)
    assert d.place == tmp_path / "patients.csv"
    assert (d.client, d.target, d.features.names()) == ("hospital", ("ill",), ("age", "sex"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("csv", "xls"), "format is 'xls': allowed are"),
        (('target = "ill"', 'targt = "ill"'), "targt is not a setting: did you mean 'target'?"),
        (('target = "ill"', ""), "target is missing: it names the column to predict."),
        (('target = "ill"', 'target = "age"'), "'age' is named twice"),
        (('client = "hospital"', 'task = "xyz"'), "task is 'xyz': allowed are"),
        (('client = "hospital"', 'classes = ["yes"]'), "classes is ['yes'], but must name at least two"),
        (
            ('client = "hospital"', 'names = ["ill"]'),
            "names has 1 entries, but must have one for each of the 0 classes",
        ),
        (
            ('client = "hospital"', 'delimiter = ";;"'),
            "delimiter is ';;', but must be one character, like a comma or a tab.",
        ),
        (('number = ["age"]', 'number = "age"'), "features.number is 'age', but must be a list."),
        (('number = ["age"]', 'image = ["age"]'), "features.image can't be combined"),
        (('number = ["age"]\ncategory = ["sex"]', ""), "features is empty"),
        (("[features]", '[split]\nby = "time"\n[features]'), "split.by is 'time', but split.column does not name"),
        (("[features]", '[split]\nratio = "official"\n[features]'), "split.ratio is 'official', but must be like"),
        (("[features]", "[preprocess]\nsize = [8]\n[features]"), "preprocess.size is [8], but must be [height, width]"),
        (("[features]", '[preprocess]\nfill = "median"\n[features]'), "preprocess.fill is 'median'"),
        (("format", "format ="), "is not valid TOML"),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        describe(tmp_path, TABLE.replace(*change))
    assert str(error.value).startswith(str(tmp_path / "data.toml"))
    assert message in str(error.value)


def test_only_tables_have_columns(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="client is 'who', but only tables"):
        describe(tmp_path, 'format = "npz"\npath = "x"\nclient = "who"\n')


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    from headwise.data.own.description import read_description

    with pytest.raises(ConfigError, match="can't be read: No such file"):
        read_description(tmp_path / "data.toml")
