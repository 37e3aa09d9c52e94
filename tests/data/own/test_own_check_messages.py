"""The rarer messages of `headwise data check`, each with the broken file that triggers it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from own_files import HEAD, ROWS, TABLE, describe, findings, npz, picture, pictures, table

from headwise.data.own import images as reader
from headwise.data.own.description import Description, read_description
from headwise.data.own.load import load
from headwise.data.own.objects import store
from headwise.errors import ConfigError
from headwise.settings.options import TargetRange

X = np.arange(12.0).reshape(6, 2)
Y = np.array([0, 1, 0, 1, 0, 1])
NPZ = 'format = "npz"\npath = "clients"\n'
IMAGES = 'format = "images"\npath = "clients"\n'


def errors(d: Description) -> list[str]:
    return [str(f) for f in findings(d) if f.level == "error"]


def test_a_client_without_values_in_a_column(tmp_path: Path) -> None:
    rows = [f"va,{k},{'fm'[k % 2]},{'no' if k % 3 else 'yes'}" for k in range(12)]
    rows += [f"rome,,{'fm'[k % 2]},{'no' if k % 3 else 'yes'}" for k in range(12)]
    messages = [str(f) for f in findings(table(tmp_path, rows)) if f.kind == "constant at a client"]
    assert messages[0].endswith("column 'age', client 'rome': this client has no values.")


def test_missing_categories(tmp_path: Path) -> None:
    messages = [str(f) for f in findings(table(tmp_path, [*ROWS, "va,3,,no"])) if f.column == "sex"]
    assert messages[0].endswith("1 of 7 values are missing, here the first: they are in no category.")


def test_a_client_with_one_sample(tmp_path: Path) -> None:
    messages = [str(f) for f in findings(table(tmp_path, [*ROWS, "oslo,3,f,no"])) if f.kind == "too few samples"]
    assert messages[-1].endswith("client 'oslo': it has 1 sample, fewer than 10.")


@pytest.mark.parametrize(
    ("text", "row", "message"),
    [
        (TABLE.replace('"ill"', '["ill", "sex"]').replace('category = ["sex"]', 'task = "classification"'), "va,1,f,no",
         "task is 'classification', but there are several targets: name one, or choose another task."),
        (TABLE.replace('target = "ill"', 'target = "ill"\ntask = "regression"'), "va,1,f,high",
         "row 2, column 'ill', client 'va': 'high' is not a number."),
        (TABLE.replace('target = "ill"', 'target = "ill"\ntask = "multilabel"\nseparator = "+"\nclasses = ["a", "b"]'),
         "va,1,f,a+c", "row 2, column 'ill', client 'va': 'c' is not one of the labels: a, b."),
        (TABLE.replace('"ill"', '["ill", "age"]\ntask = "multilabel"').replace('number = ["age"]', ""), "va,7,f,1",
         "row 2, column 'age', client 'va': 7 is not 0 or 1, as every label must be."),
        (TABLE, "va,1,f,", "no sample has a target."),
        (TABLE.replace('["sex"]', '["sex"]\ntext = ["hospital"]').replace('client = "hospital"', "one_client = true")
         + '[preprocess]\ntexts = "tokens"\n', "va,1,f,no",
         "preprocess.texts is 'tokens', which needs a text as the only feature: choose 'bag'."),
    ],
)  # fmt: skip
def test_targets_that_do_not_fit_the_task(tmp_path: Path, text: str, row: str, message: str) -> None:
    text = text.replace('category = ["sex"]\ntask', "task")
    if 'task = "classification"' in text:  # keys before tables
        text = text.replace('task = "classification"', "").replace("[features]", 'task = "classification"\n[features]')
    messages = errors(table(tmp_path, [row], text=text))
    assert any(each.endswith(message) for each in messages), messages


QUANTITY = 'target = "ill"\ntask = "regression"\ntarget_range = '


def test_targets_outside_their_range(tmp_path: Path) -> None:
    d = table(
        tmp_path,
        ["va,1,f,350", "va,2,m,0", "va,3,f,412.5"],
        text=TABLE.replace('target = "ill"', f"{QUANTITY}[0, 350]"),
    )
    messages = [str(f) for f in findings(d) if f.kind == "outside target_range"]
    message = "row 4, column 'ill', client 'va': 412.5 is outside target_range, which is 0 to 350."
    assert messages == [f"{d.place}, {message}"]
    load(d)  # a scale, not a filter: a run does not mind


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ("[350, 0]", "target_range is [350, 0], but must be [lowest, highest], or a list with such a pair"),
        ('"0-350"', "target_range is '0-350', but must be [lowest, highest]"),
        ("[]", "target_range is [], but must be"),
        ("[0, inf]", "target_range is [0, inf], but must be"),
        ("[[0, 1], 2]", "target_range is [[0, 1], 2], but must be"),
        ("[[0, 1], [0, 2]]", "target_range is [[0.0, 1.0], [0.0, 2.0]], but needs a pair for each target: ill."),
    ],
)
def test_ranges_that_are_none(tmp_path: Path, declared: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(table(tmp_path, ["va,1,f,5", "va,2,m,6"], text=TABLE.replace('target = "ill"', QUANTITY + declared)))
    assert message in str(error.value)


def test_ranges_of_no_quantities_or_of_others(tmp_path: Path) -> None:
    classes = table(tmp_path, text=TABLE.replace('target = "ill"', 'target = "ill"\ntarget_range = [0, 1]'))
    with pytest.raises(
        ConfigError, match=r"target_range is \[\[0.0, 1.0\]\], but task is 'classification', which has no"
    ):
        load(classes)
    d = table(tmp_path, ["va,1,f,5", "va,2,m,6"], text=TABLE.replace('target = "ill"', f"{QUANTITY}[0, 9]"))
    with pytest.raises(ConfigError, match=r"target_range is \[\[0.0, 8.0\]\], but the data declares \[\[0.0, 9.0\]\]."):
        load(d).dataset.with_range(TargetRange(((0.0, 8.0),)))


@pytest.mark.parametrize(
    ("y", "task", "message"),
    [
        (np.zeros((6, 2, 2)), "regression", "task is 'regression', but targets have the shape [2, 2]."),
        (
            Y,
            "segmentation",
            "task is 'segmentation', but targets are not masks: whole numbers [samples, height, width].",
        ),
        (np.zeros((6, 3, 3), int), "segmentation", "masks have 3 x 3 pixels, but images 4 x 4."),
    ],
)
def test_arrays_of_targets_that_do_not_fit_the_task(tmp_path: Path, y: np.ndarray, task: str, message: str) -> None:
    x = np.zeros((6, 1, 4, 4), np.uint8)
    assert errors(npz(tmp_path, f'{NPZ}task = "{task}"\n', ann={"x": x, "y": y})) == [message]


def test_files_that_name_no_part(tmp_path: Path) -> None:
    d = npz(tmp_path, f'{NPZ}[split]\nby = "files"\n', ann={"x": X, "y": Y}, bob={"x": X, "y": Y})
    assert errors(d) == [f"{d.place}: split.by is 'files', but no file is named train, val or test."]
    (d.place / "eve").mkdir()
    np.savez(d.place / "eve" / "later.npz", x=X, y=Y)
    message = "split.by is 'files', but its name is not one of train, val, test."
    assert errors(d)[0] == f"{d.place / 'eve' / 'later.npz'}: {message}"


def test_folders_without_files(tmp_path: Path) -> None:
    (tmp_path / "clients").mkdir()
    place = tmp_path / "clients"
    assert errors(describe(tmp_path, NPZ)) == [f"{place} has no npz file (.npz) and no folder."]
    message = "has no folders: each client needs one, with one folder of images per class."
    assert errors(describe(tmp_path, IMAGES)) == [f"{place} {message}"]
    one = TABLE.replace("patients.csv", "clients").replace('client = "hospital"', "one_client = true")
    with pytest.raises(ConfigError, match=r"one_client is true, but path is '.*/clients', which is not a table"):
        findings(describe(tmp_path, one))


def test_tables_that_can_not_be_read(tmp_path: Path) -> None:
    d = table(tmp_path)
    d.place.write_text(f'{HEAD}\nva,1,f,"{"x" * 200_000}"\n')
    assert errors(d)[0].startswith(f"{d.place}: it is not valid CSV: field larger than field limit")
    d.place.unlink()
    d.place.mkdir()
    (d.place / "va.csv").symlink_to(tmp_path / "nowhere.csv")
    assert errors(d) == [f"{d.place} has no samples that can be read."]


def test_large_pictures_and_masks_of_other_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    d = pictures(tmp_path)
    monkeypatch.setattr(reader, "LARGEST", 15)
    first = d.place / "ann" / "cat" / "0.png"
    assert errors(d)[0] == f"{first}: it has more than 15 pixels."
    monkeypatch.undo()
    for k, side in enumerate((4, 5)):
        picture(tmp_path / "shapes" / "ann" / "images" / f"{k}.png", value=k)
        picture(tmp_path / "shapes" / "ann" / "masks" / f"{k}.png", (side, side), value=k)
    text = IMAGES.replace("clients", "shapes") + 'task = "segmentation"\n'
    message = "the mask has 5 x 5 pixels, but images 4 x 4: set preprocess.size to resize all."
    assert errors(describe(tmp_path, text)) == [f"{tmp_path / 'shapes' / 'ann' / 'masks' / '1.png'}: {message}"]


def test_stored_arrays_that_were_damaged(tmp_path: Path) -> None:
    toml = store({"va": (X, Y), "rome": (X, Y)}, tmp_path)
    d = read_description(toml)
    toml.write_text(toml.read_text().replace(d.sha256, ""))
    np.save(d.place / "y.npy", Y)
    message = f"{d.place} has 12 samples, but 6 targets for 12 owners."
    assert errors(read_description(toml)) == [message]
    (d.place / "names.json").write_text("{")
    assert errors(read_description(toml))[0].startswith(f"{d.place / 'names.json'} can't be read: ")
