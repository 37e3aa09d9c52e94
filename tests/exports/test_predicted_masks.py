"""`headwise predict` of a segmentation: PNG files beside the images, or one NPZ file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import headwise as hw
from headwise.cli import main
from headwise.errors import HeadwiseError
from headwise.exports.model import TrainedModel
from headwise.exports.predicting import predict_file
from headwise.exports.quality import measure_quality


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two clients with images of two sizes, and a model of images with 8 x 8 pixels."""
    room = tmp_path_factory.mktemp("masks")
    rng = np.random.default_rng(0)
    for client, size in (("a", (8, 8)), ("b", (16, 24))):
        for name in ("images", "masks"):
            (room / "home" / client / name).mkdir(parents=True)
        for k in range(4):
            mask = np.zeros(size, np.uint8)
            mask[:, k + 1 :] = 1
            picture = (mask * 150 + rng.integers(0, 50, size)).astype(np.uint8)
            for name, each in (("images", picture), ("masks", mask)):
                Image.fromarray(each).save(room / "home" / client / name / f"{k}.png")
    text = 'format = "images"\npath = "home"\ntask = "segmentation"\n[preprocess]\nsize = [8, 8]\n'
    (room / "data.toml").write_text(text)
    experiment = hw.Experiment(method="fedavg", data=str(room / "data.toml"), rounds=3)
    hw.run(experiment, room / "run").model("a").save(room / "model", "torch")
    return room


@pytest.fixture(scope="module")
def model(room: Path) -> TrainedModel:
    return hw.load_model(room / "model")


def write(model: TrainedModel, data: Path, out: Path, client: str = "") -> int:
    return predict_file(model, data, out, on_progress=lambda n: None, client=client)


def predict_one(model: TrainedModel, path: Path) -> np.ndarray:
    return model.predict([path])[0]


def test_a_mask_for_each_image_in_its_size(
    room: Path, model: TrainedModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside the images they are masks again, of which every pixel is as the model says."""
    with pytest.raises(SystemExit) as end:
        main(["predict", str(room / "model"), str(room / "data.toml"), "-o", str(tmp_path / "masks")])
    assert (end.value.code, capsys.readouterr().out) == (0, f"wrote 8 predictions to {tmp_path / 'masks'}\n")
    assert json.loads((tmp_path / "masks" / "classes.json").read_text()) == list(model.classes)
    small = Image.open(tmp_path / "masks" / "a" / "2.png")
    assert (np.asarray(small) == predict_one(model, room / "home" / "a" / "images" / "2.png")).all()
    seen = np.unique(np.asarray(small.convert("RGB")).reshape(-1, 3), axis=0)
    assert len(seen) == len(np.unique(np.asarray(small))), "classes differ in colour"
    large = np.asarray(Image.open(tmp_path / "masks" / "b" / "2.png"))
    expected = predict_one(model, room / "home" / "b" / "images" / "2.png")
    assert (large == expected.repeat(2, 0).repeat(3, 1)).all()
    for client in ("a", "b"):
        (tmp_path / "new" / client).mkdir(parents=True)
        (tmp_path / "new" / client / "images").symlink_to(room / "home" / client / "images")
        (tmp_path / "masks" / client).rename(tmp_path / "new" / client / "masks")
    text = (room / "data.toml").read_text().replace('"home"', '"new"')
    (tmp_path / "new.toml").write_text(text)
    judged = measure_quality(model, tmp_path / "new.toml")
    assert (judged.scores["accuracy"], judged.scores["n"]) == (1, 8)


def test_folders_images_and_one_client(room: Path, model: TrainedModel, tmp_path: Path) -> None:
    """What lies in a folder masks is no image to predict."""
    write(model, room / "home", tmp_path / "all")
    names = sorted(p.relative_to(tmp_path / "all").as_posix() for p in (tmp_path / "all").rglob("*.png"))
    assert names == [f"{c}/{k}.png" for c in "ab" for k in range(4)]
    write(model, room / "home" / "b" / "images" / "3.png", tmp_path / "one")
    one, of_all = (np.asarray(Image.open(tmp_path / p)) for p in ("one/3.png", "all/b/3.png"))
    assert (one == of_all).all()
    write(model, room / "data.toml", tmp_path / "b", "b")
    assert [p.name for p in sorted((tmp_path / "b").iterdir())] == ["b", "classes.json"]


def test_arrays(room: Path, model: TrainedModel, tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (3, 1, 8, 8)).astype(np.uint8)
    np.savez(tmp_path / "x.npz", x_train=x[:2], x_test=x[2:])
    write(model, tmp_path / "x.npz", tmp_path / "masks.npz")
    with np.load(tmp_path / "masks.npz") as written:
        assert written["samples"].tolist() == ["train-0", "train-1", "test-0"]
        assert (written["masks"] == model.predict(x)).all()
        assert (written["masks"].dtype, written["classes"].tolist()) == (np.uint8, list(model.classes))
    write(model, tmp_path / "x.npz", tmp_path / "png")
    assert (np.asarray(Image.open(tmp_path / "png" / "test-0.png")) == model.predict(x)[2]).all()


def test_mistakes_get_a_sentence_and_leave_nothing(room: Path, model: TrainedModel, tmp_path: Path) -> None:
    (tmp_path / "two").mkdir()
    for ending in ("png", "bmp"):
        Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "two" / f"x.{ending}")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("")
    before = sorted(tmp_path.rglob("*"))
    for data, out, why in [
        (room / "home", "m.csv", "masks need a folder for PNG files, or a file that ends in .npz"),
        (room / "home", "full", "already exists and is not an empty folder"),
        (tmp_path / "two", "m", "would have the same mask x.png"),
        (tmp_path / "none.npz", "m.npz", "none.npz"),
    ]:
        with pytest.raises(HeadwiseError, match=why):
            write(model, data, tmp_path / out)
    assert sorted(tmp_path.rglob("*")) == before
