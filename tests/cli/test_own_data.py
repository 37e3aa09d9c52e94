"""As a new user would: describe, check, show and run data of one's own."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from headwise.app.prepare import divide
from headwise.cli import main
from headwise.data.own.guess import guess_description
from headwise.errors import ConfigError
from headwise.runs.query import Run
from headwise.settings.experiment import Experiment

RNG = np.random.default_rng(0)


@pytest.fixture
def patients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table of four hospitals, one of which writes no ages."""
    rows = ["id,hospital,age,sex,when,ill"]
    for k in range(160):
        name = ("va", "rome", "oslo", "lima")[k % 4]
        age = RNG.normal(50, 10)
        sick = "yes" if age + RNG.normal(0, 5) > 50 else "no"
        rows.append(
            f"{k},{name},{'' if name == 'lima' else round(age, 2)},{'fm'[k // 4 % 2]},2024-01-{k % 28 + 1:02},{sick}"
        )
    (tmp_path / "patients.csv").write_text("\n".join(rows))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(capsys: pytest.CaptureFixture[str], *command: str, code: int = 0) -> str:
    with pytest.raises(SystemExit) as end:
        main(list(command))
    assert end.value.code == code
    captured = capsys.readouterr()
    return captured.out if code == 0 else captured.out + captured.err


def test_from_a_table_to_a_run(patients: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = call(capsys, "data", "init", "patients.csv", "--clients", "hospital", "--target", "ill")
    assert "data.toml describes 4 clients with 160 samples of 2 features, 2 classes." in out
    assert "Task is classification: the target has 2 different values." in out
    text = (patients / "data.toml").read_text()
    assert 'number = ["age"]' in text
    assert '# "id" is left out: looks like an identifier' in text
    assert '# "when" is left out: a date' in text
    assert 'classes = ["no", "yes"]' in text
    assert "No errors" in call(capsys, "data", "check", "data.toml")
    shown = call(capsys, "data", "show", "data.toml")
    assert [line.split()[:4] for line in shown.splitlines()[2:6]] == [
        [str(c), name, "30", "10"] for c, name in enumerate(("va", "rome", "oslo", "lima"))
    ]
    run = ("run", "--data", "data.toml", "--method", "fedah", "--rounds", "2", "--quiet", "--out", "out")
    output = call(capsys, *run)
    assert "fedah on own, 2 rounds" in output
    scores = Run(Path("out")).last_scores()["pre"]
    assert f"va {scores[0]:.4f}, rome {scores[1]:.4f}" in output
    manifest = json.loads((patients / "out" / "manifest.json").read_text())
    assert manifest["experiment"]["data"]["path"] == str(patients / "data.toml")
    assert manifest["experiment"]["partition"] == {"name": "natural"}


def test_a_run_goes_on_only_with_the_same_files(patients: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call(capsys, "data", "init", "patients.csv", "--clients", "hospital", "--target", "ill")
    call(capsys, "run", "--data", "data.toml", "--rounds", "1", "--quiet", "--out", "out")
    manifest = json.loads((patients / "out" / "manifest.json").read_text())
    data = manifest["experiment"]["data"]
    (patients / "patients.csv").write_text((patients / "patients.csv").read_text().replace("va,", "vb,", 1))
    changed = ("run", "--data", f"own:path={data['path']}:sha256={data['sha256']}", "--quiet", "--out", "out2")
    assert "data.toml or its files have changed: their sha256 no longer starts with" in call(capsys, *changed, code=2)
    assert not (patients / "out2").exists()


def test_a_comparison_of_other_data_is_not_continued(patients: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("first", "second"):
        (patients / f"{name}.csv").write_bytes((patients / "patients.csv").read_bytes())
        call(capsys, "data", "init", f"{name}.csv", "--clients", "hospital", "--target", "ill", "-o", f"{name}.toml")
    compare = ("compare", "standalone", "fedavg", "--draws", "1", "--rounds", "1", "--quiet", "--out", "out", "--data")
    call(capsys, *compare, "first.toml")
    call(capsys, *compare, "first.toml")
    said = call(capsys, *compare, "second.toml", code=2)
    run = "out/standalone-d0-s0"
    assert said == f"headwise: {run} holds a run on other data, {patients / 'first.toml'}: choose another --out.\n"


def test_names_parts_and_fitted_numbers_of_clients(patients: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call(capsys, "data", "init", "patients.csv", "--clients", "hospital", "--target", "ill")
    toml = patients / "data.toml"
    toml.write_text(
        toml.read_text().replace('by = "ratio"', 'by = "time"\ncolumn = "when"').replace('"pooled"', '"client"')
    )
    data = divide(Experiment(data=str(toml)), patients)
    assert data.names == ("va", "rome", "oslo", "lima")
    assert data.task.shape == (4,)
    for c, parts in enumerate(data.parts):
        assert (len(parts.train), len(parts.test)) == (30, 10)
        x = data.client(c).train.x
        assert abs(float(x[:, 0].mean())) < 1e-6
        assert x[:, 1].tolist() == [float(data.names[c] == "lima")] * 30
    assert data.fitted is not None
    assert data.fitted.mean.shape == (4, 1)


def test_large_data_give_the_same_bits(
    patients: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from headwise.data.own import raw

    call(capsys, "data", "init", "patients.csv", "--clients", "hospital", "--target", "ill")
    experiment = Experiment(data="data.toml")
    small = divide(experiment, patients).clients()
    monkeypatch.setattr(raw, "LARGE", 50)
    mapped = divide(experiment, patients).clients()
    assert mapped.x.numpy().tobytes() == small.x.numpy().tobytes()


def test_other_partitions_and_splits_can_be_asked_for(patients: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call(capsys, "data", "init", "patients.csv", "--clients", "hospital", "--target", "ill")
    data = divide(Experiment(data="data.toml", partition="iid", clients=5, split="1:1:2"), patients)
    assert data.names == ()
    assert [len(p.test) for p in data.parts] == [16] * 5
    usual = Experiment(data="digits")
    assert (usual.partition.name, usual.partition.values, usual.split) == ("dirichlet", ("0.1",), "75/25")


def test_what_is_wrong_ends_the_check_with_2(patients: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call(capsys, "data", "init", "patients.csv", "--clients", "hospital", "--target", "ill")
    with (patients / "patients.csv").open("a") as file:
        file.write("\n160,va,old,f,2024-01-01,maybe\n")
    out = call(capsys, "data", "check", "data.toml", code=2)
    assert f"error    {patients}/patients.csv, row 162, column 'age': 'old' is not a number" in out
    assert "'maybe' is not one of the classes: no, yes." in out
    assert "headwise: data.toml has 2 errors: correct the data or this file." in out
    out = call(capsys, "data", "check", "data.toml", "--json", code=2)
    report = json.loads(out.splitlines()[0])
    assert (report["errors"], report["findings"][0]["row"]) == (2, 162)
    assert "column 'age': 'old' is not a number" in call(capsys, "run", "--data", "data.toml", "--out", "out", code=2)
    assert not (patients / "out").exists()


def test_a_table_without_a_header_line_and_new_rows_without_the_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line with numbers where the others have numbers is no header, whatever words it has."""
    monkeypatch.chdir(tmp_path)
    for folder, name in enumerate(("lima", "oslo")):
        rows = [
            f"{40 + k}.5,{k % 2},{'?' if k == 3 else k / 8},{'sick' if (k + folder) % 3 else 'well'}" for k in range(40)
        ]
        (tmp_path / "h" / f"{name}.csv").parent.mkdir(exist_ok=True)
        (tmp_path / "h" / f"{name}.csv").write_text("\n".join(rows))
    out = call(capsys, "data", "init", "h", "--target", "column 4")
    assert "no header line: columns are named column 1 to column 4\n" in out
    call(capsys, "run", "--data", "data.toml", "--rounds", "1", "--quiet", "--out", "out")
    call(capsys, "export", "out", "--client", "oslo", "--format", "torch", "-o", "oslo")
    lines = {"without": "50.5,1,2.5", "with": "50.5,1,2.5,well", "named": "column 3,column 2,column 1\n2.5,1,50.5"}
    answers = set[str]()
    for name, text in lines.items():
        Path(f"{name}.csv").write_text(text)
        call(capsys, "predict", "oslo", f"{name}.csv", "-o", f"{name}-out.csv")
        answers.add(Path(f"{name}-out.csv").read_text().splitlines()[1].partition(",")[2])
    assert len(answers) == 1
    Path("short.csv").write_text("50.5,1")
    output = call(capsys, "predict", "oslo", "short.csv", "-o", "short-out.csv", code=2)
    assert "short.csv, row 1: it has 2 cells, but there are 4 columns." in output


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        (["63.0,1.0,?,healthy", "67.0,1.0,4.0,sick"], False),
        (["3,Oil prices rise,Markets", "1,Peace talks,World"], False),
        (["age,ill", "63,yes"], True),
        ([",hospital,text,label", "0,va,a long text,yes", "1,va,another,no"], True),
        (["hospital,2019,2020,label", "va,1,2,yes"], True),
        (["a,b,label", "x,y,yes"], True),
    ],
)
def test_the_first_line_is_a_header_or_a_row(lines: list[str], named: bool, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("\n".join(lines))
    target = "label" if "label" in lines[0] else "ill" if "ill" in lines[0] else f"column {lines[0].count(',') + 1}"
    assert (guess_description(tmp_path / "x.csv", "", [target], one_client=True).description.header == ()) == named


def test_a_word_of_the_target_is_no_missing_number(tmp_path: Path) -> None:
    rows = [f"{'unknown' if k == 3 else k},{k / 8},{('yes', 'no', 'unknown')[k % 3]}" for k in range(30)]
    (tmp_path / "x.csv").write_text("\n".join(["age,dose,ill", *rows]))
    guess = guess_description(tmp_path / "x.csv", "", ["ill"], one_client=True)
    assert "unknown" not in guess.description.missing
    assert guess.left_out == {"age": "numbers, but 1 of 30 cells are not, such as 'unknown'"}


def test_words_among_numbers_are_missing_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [f"{k},{'unknown' if k % 20 == 3 else k},{'n/a' if k == 7 else k / 8},{k % 2}" for k in range(40)]
    prices = [f"{row},{'free' if k == 5 else k}{' EUR' if k % 13 == 4 else ''}" for k, row in enumerate(rows)]
    (tmp_path / "shop.csv").write_text("\n".join(["id,age,price,left,sum", *prices]))
    out = call(capsys, "data", "init", "shop.csv", "--one-client", "--target", "left")
    assert "number    age, price\n" in out
    assert "left out  id: looks like an identifier\n" in out
    assert "left out  sum: numbers, but 4 of 40 cells are not, such as '4 EUR'\n" in out
    assert "missing   'unknown', where other cells of the column are numbers\n" in out
    checked = call(capsys, "data", "check", "data.toml")
    assert "2 of 40 values are missing" in checked
    assert "only one client" not in checked
    assert checked.endswith("headwise site init FOLDER --data data.toml\n")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["patients.csv"], "--target is missing: name the column to predict, one of id, hospital, age"),
        (["patients.csv", "--target", "ill"], "--clients is missing: name the column with each row's client"),
        (["patients.csv", "--target", "il", "--clients", "hospital"], "--target is 'il', which is not a column of"),
        (["nothing.csv", "--target", "ill"], "nothing.csv: there is no such file or folder."),
        (["patients.csv", "--target", "ill", "-o", "patients.csv"], "patients.csv exists already: choose another -o"),
    ],
)
def test_mistakes_of_init(patients: Path, capsys: pytest.CaptureFixture[str], command: list[str], message: str) -> None:
    assert message in call(capsys, "data", "init", *command, code=2)
    assert not (patients / "data.toml").exists()


def test_other_tasks_are_shown_and_refused_to_methods_that_need_classes(
    patients: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = call(capsys, "data", "init", "patients.csv", "--clients", "hospital", "--target", "id")
    assert "Task is regression: the target has 160 different numbers." in output
    shown = call(capsys, "data", "show", "data.toml")
    assert "regression: mean ± deviation in training samples" in shown
    assert ["0", "va", "30", "0", "10"] in [line.split()[:5] for line in shown.splitlines()]
    refused = call(capsys, "run", "--data", "data.toml", "--method", "fedgh", "--out", "out", code=2)
    assert "task is 'regression', but fedgh can only do classification: choose one of apfl, " in refused
    assert not (patients / "out").exists()


def test_init_looks_at_all_kinds_of_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    news = ["paper;text;topic;part"]
    news += [f"p{k % 3};the news of day {k} is good;{'ab'[k % 2]};{'train' if k < 9 else 'test'}" for k in range(12)]
    (tmp_path / "news.csv").write_text("\n".join(news))
    call(capsys, "data", "init", "news.csv", "--clients", "paper", "--target", "topic", "-o", "news.toml")
    text = (tmp_path / "news.toml").read_text()
    assert (
        'delimiter = ";"' in text
        and 'text = ["text"]' in text
        and 'by = "column"' in text
        and 'column = "part"' in text
    )
    (tmp_path / "arrays").mkdir()
    for name in ("ann", "bob"):
        parts = {"x_train": np.eye(4), "y_train": [0, 1, 0, 1], "x_test": np.eye(4), "y_test": [0, 1, 0, 1]}
        np.savez(tmp_path / "arrays" / f"{name}.npz", **parts)
    call(capsys, "data", "init", "arrays", "-o", "arrays.toml")
    assert 'by = "files"' in (tmp_path / "arrays.toml").read_text()
    with pytest.raises(
        ConfigError, match="split is '6:2:2', but the data already defines which samples are for training"
    ):
        divide(Experiment(data="arrays.toml", split="6:2:2"), tmp_path)
    for client in ("ann", "bob"):
        for k in range(4):
            picture(tmp_path / "pets" / client / ("cat", "dog")[k % 2] / f"{k}.png", (8 + k, 8), k)
    call(capsys, "data", "init", "pets", "-o", "pets.toml")
    assert "size = [8, 8]" in (tmp_path / "pets.toml").read_text()
    for name in ("news", "arrays", "pets"):
        assert "No errors" in call(capsys, "data", "check", f"{name}.toml")


def test_columns_without_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "raw").mkdir()
    for name in ("va", "rome"):
        (tmp_path / "raw" / f"{name}.data").write_text("".join(f"{k}.5,?,{k % 2}\n" for k in range(12)))
    call(capsys, "data", "init", "raw", "--target", "column 3")
    text = (tmp_path / "data.toml").read_text()
    assert 'header = ["column 1", "column 2", "column 3"]' in text
    assert '# "column 2" is left out: empty' in text


def picture(path: Path, shape: tuple[int, int], value: int) -> None:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full(shape, value, np.uint8)).save(path)
