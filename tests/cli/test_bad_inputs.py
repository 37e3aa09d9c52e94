"""Bad input gets one sentence and exit code 2; nothing is lost or half-written.

Each case is a command and parts of its sentence: the field, the value, often what is allowed or meant.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from saying import Headwise, Said, assert_refused, small, snapshot

LONG = "9" * 5000
NAMES = [
    ("run --method fedavgg", "method", "'fedavgg'", "'fedavg'"),
    ("run --method=", "method is ''"),
    ("run --model mpl", "model", "'mpl'", "'mlp'"),
    ("run --model mlp,", "model[1] is ''"),
    ("run --data digit", "data", "'digit'", "'digits'"),
    ("run --partition dirichlett", "partition", "'dirichlett'", "'dirichlet'"),
    ("rnu", "'rnu'", "'run'"),
    ("run --round 3", "--round", "--rounds"),
    ("run --rounds", "--rounds"),
    ("list method", "kind", "'method'", "'methods'"),
    ("list", "KIND"),
    ("describe fedrepp", "method", "'fedrepp'", "'fedrep'"),
    ("resume", "RUN"),
    ("run --set train.lrr=1", "train.lrr", "'lr'"),
    ("run --set rouds=3", "rouds", "'rounds'"),
    ("run --set rounds", "--set", "'rounds'"),
    ("run --set =3", "--set", "'=3'"),
    ("run --set train=3", "train is 3", "epochs, steps, "),
    ("run --set rounds.deep=3", "rounds is {'deep': 3}"),
    ("run --set method.mu=3", "method is {'mu': 3}"),
    ("run --method fedrep:head_epoch=1", "method.head_epoch", "'head_epochs'"),
    ("run --method fedprox:mu=much", "method.mu is 'much'", "a number"),
    ("run --method fedprox:mu=-1", "method.mu is -1.0"),
    ("run --method standalone:1", "method is 'standalone:1'", "0 options"),
    ("run --partition dirichlet:0.1:2:3:4:5", "partition is 'dirichlet:0.1:2:3:4:5'", "3 options", "alpha"),
    ("run --set buffers=some", "buffers is 'some'", "params"),
    ("run --set evaluate.moments=pre", "evaluate.moments is 'pre'", "a list"),
    ('run --set evaluate.moments=["prae"]', "evaluate.moments[0] is 'prae'", "'pre'"),
    ("run --set engine.device=cuda:77", "engine.device", "'cuda:77'"),
    ("run --set engine.device=banana", "engine.device", "'banana'"),
    ("run --set engine.device=meta", "engine.device", "'meta'"),
    ("run --set engine.device=hpu", "engine.device", "'hpu'"),
    ("run --set engine.device=3", "engine.device is 3", "a string"),
]
NUMBERS = [
    *((f"run --rounds {v}", "rounds", v[:50]) for v in ("many", "1.5", "0", "-1", "nan", "inf", "1000001", LONG)),
    *((f"run --clients {v}", "clients", v) for v in ("few", "2.5", "0", "-3", "nan", "1798", "1000001")),
    *((f"run --lr {v}", "train.lr", v) for v in ("fast", "0.0", "-0.1", "nan", "inf", "-inf", "10000000.0")),
    ("run --lr 1e999", "train.lr is inf"),
    ("run --lr true", "train.lr is True"),
    ("run --rounds true", "rounds is True"),
    ("run --clients false", "clients is False"),
    *((f"run --batch {v}", "train.batch", v) for v in ("big", "1.5", "0", "-8", "nan", "10000000000")),
    *((f"run --epochs {v}", "train.epochs", v) for v in ("some", "0", "-1", "inf")),
    *((f"run --seed {v}", "seed", v) for v in ("luck", "1.5", "-1", "nan", "99999999999999999999999")),
    *((f"run --workers {v}", "engine.workers", v) for v in ("all", "0", "-1", "100000")),
    *((f"run --partition dirichlet:{v}", "partition.alpha", v) for v in ("x", "0.0", "-1.0", "nan", "inf")),
    *((f"run --ratio {v}", "sampling.ratio", v) for v in ("half", "0.0", "2.0", "-1.0", "nan", "inf")),
    ("run --ratio 1..0.1", "sampling.ratio_low is 1.0", "sampling.ratio, which is 0.1"),
    ("run --ratio 0..1", "sampling.ratio_low is 0.0", "above 0"),
    ("run --ratio ..1", "sampling.ratio_low is ''"),
    ("run --ratio 0.1..", "sampling.ratio is ''"),
    ("run --ratio 0.1..0.2..0.3", "sampling.ratio is '0.2..0.3'"),
    ("run --faults dorp=0.3", "faults.inject names 'dorp'", "did you mean 'drop'?"),
    ("run --faults drop=2", "faults.inject has 'drop=2'", "from 0 to 1"),
    ("run --faults drop=0.7,nan=0.7", "faults.inject", "add up to at most 1"),
    ("run --set faults.on_failure=panic", "faults.on_failure is 'panic'"),
    ("run --set faults.deadline=0", "faults.deadline is 0.0"),
    ("run --set robust.rule=krumm", "robust.rule is 'krumm'", "did you mean 'krum'?"),
    ("run --set robust.hostile=0.6", "robust.hostile is 0.6", "from 0 to 0.5"),
    ("run --method fedgh --set robust.rule=krum", "robust.rule is 'krum', but fedgh averages in its own way"),
    ("run --set privacy.clip=-1", "privacy.clip is -1.0", "above 0"),
    ("run --method scaffold --set privacy.clip=1", "privacy.clip is 1, but scaffold can't be accounted for"),
    ("run --set privacy.level=sample", "privacy.level is 'sample'", "did you mean 'example'?"),
    ("run --method fedgh --set privacy.clip=1 --set privacy.level=example", "privacy.level 'example', but fedgh can't"),
    ("run --set fraction=0", "fraction is 0.0", "above 0 and at most 1"),
    ("run --set fraction=1.5", "fraction is 1.5"),
    ("run --set data_seed=-1", "data_seed is -1"),
    ("run --set train.momentum=-1", "train.momentum is -1.0"),
    ("run --set train.lr_decay=1.01", "train.lr_decay is 1.01"),
    ("run --set train.drop_last=1", "train.drop_last is 1", "true or false"),
    ("run --set stop.patience=0", "stop.patience is 0"),
    ("run --set stop.budget=0", "stop.budget is 0.0"),
    ("run --set evaluate.every=0", "evaluate.every is 0"),
    ("run --set rounds=" + "[" * 5000, "rounds is '[["),
    ("run --epochs 10001", "train.epochs is 10001", "at most 10,000"),
    ("run --method fedrep:head_epochs=1000000000", "method.head_epochs is 1000000000", "from 0 to 10,000"),
    ("run --method fedmeta:inner_steps=1000000000", "method.inner_steps is 1000000000", "from 1 to 1,000"),
    ("run --data synthetic:1000000000:features=10000", "samples = 1000000000", "needs about 149,", "this machine has"),
    ("run --data synthetic --model mlp:65536:100", "hidden = 65536", "needs about 6,", "this machine has"),
    ("compare fedavg --seeds 1000000000", "seeds is 1000000000", "from 1 to 10,000"),
    ("reproduce fedgmh/2 --seeds 1000000000", "seeds is 1000000000", "from 1 to 10,000"),
    ("audit nowhere --seed 1000000001", "--seed", "0<=x<=1000000000"),
    *((f"server start s --port {v}", "--port", v) for v in ("0", "99999", "many")),
    *((f"server start s --name {v}", "--name", repr(v)) for v in ("ü.example", "-", "a..b", "x" * 65, "a." * 200)),
    ("server start s --name=", "--name is ''"),
    ("server start s --host=", "--host is ''"),
    ("site start s --superlink a:1 --health 99999", "--health", "99999"),
]
TOGETHER = [
    ("run --partition natural", "partition is 'natural'", "no natural clients"),
    ("run --data synthetic --partition natural --clients 3", "clients is 3", "10 natural clients"),
    ("run --split official", "split is 'official'", "no public test set"),
    *((f"run --split {s}", f"split is {s!r}", "75/25, 8:1:1") for s in ("banana", "8:1", "8:1:1:1", "0/1", "75/-25")),
    ("run --split 1.5/2", "split is '1.5/2'"),
    ("run --split official:0:1", "split is 'official:0:1'"),
    ("run --model cnn", "model is CNN", "at least 16 x 16", "(1, 8, 8)"),
    ("run --model fasttext", "model is FastText", "texts"),
    ("run --model mlp,linear", "model names 2 networks", "fedavg"),
    ("run --method lg-fedavg --model mlp:8,mlp:9", "model", "different heads", "lg-fedavg"),
    ("run --partition pathological:11", "classes_per_client is 11", "at most 10"),
    ("run --partition dirichlet:0.1:1000", "min_size is 1000", "20 clients"),
    ("run --data synthetic:5", "samples is 5", "10"),
    ("audit nowhere", "nowhere is not the folder of a run", "there is no such folder"),
    ("audit nowhere --clients 0", "--clients", "0 is not in the range 1<=x<=1000000000"),
    ("compare", "methods is ''", "at least one"),
    ("compare fedavg fedper fedavg", "methods is 'fedavg, fedper, fedavg'", "each once"),
    ("compare standalone fedavgg", "method", "'fedavgg'", "'fedavg'"),
    ("compare fedavg --seeds 0", "seeds is 0", "from 1"),
    ("compare fedavg --seeds some", "seeds is 'some'"),
    ("compare fedavg --seeds 2 --seed 1000000000", "seed is 1000000001"),
    ("compare fedavg one.toml two.toml", "2 TOML files"),
    ("compare standalone fedavg --model mlp,linear", "model names 2 networks", "fedavg"),
]


def shorten(value: object) -> str:
    return str(value)[:60]


@pytest.mark.parametrize(("command", "parts"), [(c, parts) for c, *parts in NAMES + NUMBERS + TOGETHER], ids=shorten)
def test_a_bad_command_is_one_sentence(command: str, parts: list[str], headwise: Headwise, here: Path) -> None:
    assert_refused(headwise(*command.split()), *parts)
    assert snapshot(here) == {}


TOML = [
    ("rouds = 3", "rouds", "'rounds'"),
    ("[train]\nlrr = 3", "train.lrr", "'lr'"),
    ("[trian]\nlr = 3", "trian", "'train'"),
    ("rounds = '3'", "rounds is '3'", "a whole number"),
    ("rounds = 3.0", "rounds is 3.0"),
    ("rounds = []", "rounds is []"),
    ("seed = 1979-05-27", "seed is datetime.date(1979, 5, 27)"),
    ("train = 3", "train is 3", "a table"),
    ("[train]\nlr = nan", "train.lr is nan"),
    ("[train]\nlr = true", "train.lr is True"),
    ("method = 3", "method is 3", "a name"),
    ("[method]\nmu = 3", "method is {'mu': 3}"),
    ("[method]\nname = 'fedrep'\nhead_epoch = 3", "method.head_epoch", "'head_epochs'"),
    ("[partition]\nname = 'dirichlet'\nvalues = 3", "partition.values is 3", "a list"),
    ("[partition]\nname = 'dirichlet'\nvalues = [1, 2, 3, 4]", "partition.values[0] is 1", "a string"),
    ("model = [3]", "model[0] is 3"),
    ("split = 3", "split is 3"),
    ("split = '3'", "split is '3'"),
    ("[sampling]\nratio = 0.1\nratio_low = 0.2", "sampling.ratio_low is 0.2"),
    (f"rounds = {LONG}", "bad.toml is not valid TOML"),
    (f"rounds = {'[' * 5000}", "bad.toml is not valid TOML"),
    ("rounds = 1\nrounds = 2", "bad.toml is not valid TOML"),
    ("this is no TOML", "bad.toml is not valid TOML", "line 1"),
    ("{'rounds': 3}", "bad.toml is not valid TOML"),
    (b"\x89PNG\r\n\x1a\n\0\xff\xfe", "bad.toml is not valid TOML"),
    ("rounds = 3".encode("utf-16"), "bad.toml is not valid TOML"),
]


@pytest.mark.parametrize(("text", "parts"), [(t, parts) for t, *parts in TOML], ids=shorten)
@pytest.mark.parametrize("verb", ["run", "compare fedavg"])
def test_a_bad_file_is_one_sentence(
    text: str | bytes, parts: list[str], verb: str, headwise: Headwise, here: Path
) -> None:
    (here / "bad.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
    before = snapshot(here)
    assert_refused(headwise(*verb.split(), "bad.toml"), *parts)
    assert snapshot(here) == before


def test_a_second_file_is_named(headwise: Headwise, here: Path) -> None:
    (here / "one.toml").write_text("")
    (here / "two.toml").write_text("")
    assert_refused(headwise("run", "one.toml", "two.toml"), "two.toml")


@pytest.mark.parametrize("wait", ["nan", "inf", "-1", "long", "1e30", ""])
def test_a_wait_that_never_ends_is_refused(wait: str, headwise: Headwise, here: Path) -> None:
    (here / "good.toml").write_text("")
    assert_refused(headwise("deploy", "good.toml", "--server", ".", "--out", "x", "--wait", wait), "wait is ")


def test_a_file_that_is_not_there_or_a_folder_is_named(headwise: Headwise, here: Path) -> None:
    assert_refused(headwise("run", "nowhere.toml"), "nowhere.toml can't be read", "No such file")
    (here / "folder.toml").mkdir()
    assert_refused(headwise("run", "folder.toml"), "folder.toml can't be read", "Is a directory")


MINE = [
    ("", "must define a class named after the file: Mine."),
    ("class Other:\n    pass", "must define a class named after the file: Mine."),
    ("class Mine\n    pass", "'mine.py'", "not valid Python", "line 1"),
    ("import nothing_of_this_name", "'mine.py'", "can't be imported", "nothing_of_this_name"),
    ("1 / 0", "'mine.py'", "can't be imported", "ZeroDivisionError"),
    ("class Mine:\n    pass", "'mine.py'", "Mine must be a dataclass derived from Method"),
    (
        "from dataclasses import dataclass\nfrom headwise.authoring import *\n@dataclass(frozen=True)\n"
        "class Mine(Averaging[Nothing]):\n    x: int = 3",
        "Mine does not define local_update",
    ),
]


@pytest.mark.parametrize(("text", "parts"), [(t, parts) for t, *parts in MINE], ids=shorten)
@pytest.mark.parametrize("command", ["run --method mine.py", "describe mine.py", "compare standalone mine.py"])
def test_a_method_of_ones_own_that_is_none_is_one_sentence(
    text: str, parts: list[str], command: str, headwise: Headwise, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (here / "mine.py").write_text(text)
    before = snapshot(here)
    assert_refused(headwise(*command.split()), *parts)
    assert snapshot(here) == before


def test_a_method_of_ones_own_that_is_not_there_is_named(headwise: Headwise, here: Path) -> None:
    assert_refused(headwise("run", "--method", "not/there.py"), "method is 'not/there.py'", "no such file")
    assert snapshot(here) == {}


UNDERSTOOD = """
from __future__ import annotations
from dataclasses import dataclass
from headwise.methods.fedavg import FedAvg

@dataclass(frozen=True, kw_only=True)
class Mine(FedAvg):
    '''Mine.'''

    x: {}
    '''of mine'''
"""


@pytest.mark.parametrize("command", ["run --method mine.py", "describe mine.py", "compare mine.py"])
def test_a_type_that_is_not_defined_is_one_sentence(command: str, headwise: Headwise, here: Path) -> None:
    (here / "mine.py").write_text(UNDERSTOOD.format("Nonsense = 3"))
    assert_refused(headwise(*command.split()), "'mine.py'", "Mine has a type", "NameError: name 'Nonsense'")


def test_the_class_that_a_file_needs_is_named(headwise: Headwise, here: Path) -> None:
    (here / "attr_error.py").write_text("class FedProx:\n    pass")
    assert_refused(headwise("describe", "attr_error.py"), "a class named after the file: AttrError.")


@pytest.mark.parametrize("run", ["fedavg", "lr=0.1/fedavg"])
@pytest.mark.parametrize("folder", ["both", "runs/both"])
def test_a_folder_of_several_runs_is_not_taken_for_a_method(
    headwise: Headwise, here: Path, folder: str, run: str
) -> None:
    (here / folder / run).mkdir(parents=True)
    (here / folder / run / "manifest.json").write_text("{}")
    parts = (f"headwise report {folder} ", f"headwise describe {folder}/{run} ")
    assert_refused(headwise("describe", folder), "is not the folder of a run, but contains runs", *parts)


def test_an_option_without_a_default_can_be_described(headwise: Headwise, here: Path) -> None:
    (here / "mine.py").write_text(UNDERSTOOD.format("int"))
    said = headwise("describe", "mine.py")
    assert (said.code, said.err) == (0, "")
    assert "  x  (a whole number)\n      of mine\n" in said.out
    assert_refused(headwise(*small(method="mine.py")), "method.x is missing: it has no default")


def test_brackets_in_a_name_are_no_markup(headwise: Headwise, here: Path) -> None:
    (here / "[" / "x]").mkdir(parents=True)
    own = here / "[" / "x]" / "mine.py"
    own.write_text(UNDERSTOOD.format("int = 3"))
    said = headwise(*small("compare", "[/x]/mine.py", out="out"), "--quiet")
    assert (said.code, said.err) == (0, "")
    assert "│ [/x]/mine.py" in said.out


def test_an_out_folder_that_is_in_use_is_left_alone(headwise: Headwise, here: Path) -> None:
    (here / "full").mkdir()
    (here / "full" / "thesis.txt").write_text("four years of work")
    before = snapshot(here)
    assert_refused(headwise(*small(out="full")), "full exists already and is not empty", "choose another folder")
    assert_refused(headwise(*small(out="full/thesis.txt")), "full/thesis.txt exists already")
    assert_refused(headwise(*small(out=".")), "exists already")
    assert snapshot(here) == before


def test_an_out_folder_that_can_not_be_made_is_named(headwise: Headwise, here: Path) -> None:
    (here / "file").write_text("")
    before = snapshot(here)
    assert_refused(headwise(*small(out="file/run")), "file/run can't be written", "Not a directory")
    assert_refused(
        headwise(*small("compare", "fedavg", out="file/table")), "file/table can't be written", "Not a directory"
    )
    for name in ("x" * 253, "x" * 300, "new/" + "x" * 300):
        assert_refused(headwise(*small(out=name)), f"{name} can't be written", "File name too long")
    assert snapshot(here) == before


def test_a_failing_client_is_one_sentence(headwise: Headwise, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headwise.methods.fedavg import FedAvg

    def fail(*_: object) -> None:
        raise ZeroDivisionError("over\nlines")

    monkeypatch.setattr(FedAvg, "local_update", fail)
    parts = ("FedAvg failed at client 0 in round 1 (fit, ", "ZeroDivisionError: over lines")
    assert_refused(headwise(*small(), "--quiet"), *parts)


def test_too_little_memory_is_one_sentence(headwise: Headwise, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headwise.data.sources.synthetic import Synthetic

    def fail(*_: object) -> None:
        raise MemoryError("Unable to allocate 7.28 TiB")

    monkeypatch.setattr(Synthetic, "load", fail)
    assert_refused(headwise(*small()), "memory", "7.28 TiB")
    assert snapshot(here) == {}


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        ("headwise run --method fedavgg", ("method is 'fedavgg'", "did you mean 'fedavg'?")),
        ("headwise run --ratio 1..0.1 --quiet", ("sampling.ratio_low is 1.0",)),
        ("python -m headwise resume nowhere --json", ("nowhere is not the folder of a run",)),
        ("python -m headwise rnu", ("'rnu' is not a command",)),
    ],
)
def test_a_real_process_says_the_same(command: str, parts: tuple[str, ...], tmp_path: Path) -> None:
    program, *args = command.split()
    path = os.path.join(os.path.dirname(sys.executable), program)
    done = subprocess.run([path, *args], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert_refused(Said(done.returncode, done.stdout, done.stderr), *parts)
    assert snapshot(tmp_path) == {}
