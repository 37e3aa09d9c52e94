"""The way of somebody who writes a method: `new`, `check`, and slips that are told at their own line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import headwise as hw
from headwise.app import registry
from headwise.authoring import Method
from headwise.cli import main
from headwise.errors import ClientError, ConfigError, ServerError
from headwise.testing import run_check
from headwise.testing.toy import play, toy_plan


def new(tmp_path: Path) -> Path:
    with pytest.raises(SystemExit) as end:
        main(["new", "method", "slow_head", "-o", str(tmp_path)])
    assert end.value.code == 0
    return tmp_path / "slow_head.py"


def changed(path: Path, old: str, new: str) -> type[Method]:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return registry.find("method", str(path))


def test_a_new_method_keeps_the_contract_and_passes_its_own_test(tmp_path: Path) -> None:
    cls = registry.find("method", str(new(tmp_path)))
    assert cls.__name__ == "SlowHead"
    for check in (
        "card",
        "same seed, same bits",
        "bytes as the card says",
        "every hyperparameter counts",
        "documentation",
    ):
        run_check(check, cls)
    command = [sys.executable, "-m", "pytest", "-q", "-k", "not contract", str(tmp_path / "test_slow_head.py")]
    assert "2 passed" in subprocess.run(command, capture_output=True, text=True, cwd=tmp_path).stdout


def test_new_overwrites_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = new(tmp_path)
    path.write_text("mine")
    for name, said in (("slow_head", "exists already"), ("Slow Head", "must be a Python name in lower case")):
        with pytest.raises(SystemExit) as end:
            main(["new", "method", name, "-o", str(tmp_path)])
        assert end.value.code == 2
        assert said in capsys.readouterr().err
    assert path.read_text() == "mine"


SLIPS = {
    "return Update(Shared": (
        "Update(Shared",
        ClientError,
        "local_update must return an Update, but returned None: a `return` may be missing.",
    ),
    "Head(h), m)": ("h, m)", ClientError, "an Update whose me is a Head, but returned one with a Params"),
    'm.params("body")': ("m.params()", ClientError, "local_update sends 'head.bias' in 'w', but was not sent it"),
    "return Head(local": ("Head(local", ClientError, "client_init must return a Head, but returned None"),
    "        return central.init": ("        central.init", ServerError, "None"),
}


@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_is_told_at_the_authors_own_line(slip: str, tmp_path: Path) -> None:
    text, error, said = SLIPS[slip]
    cls = changed(new(tmp_path), slip, text)
    with pytest.raises(error, match=r"slow_head.py, line \d+|averaging.py") as caught:
        play(toy_plan(cls(), rounds=1))
    assert said in str(caught.value)


def test_a_run_names_the_authors_file_but_not_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = new(tmp_path), tmp_path / "run"
    capsys.readouterr()
    setting = ("--data=synthetic:60:3:4", "--partition=iid", "--clients=2", "--rounds=1", "--quiet")
    with pytest.raises(SystemExit) as end:
        main(["run", "--method", str(path), *setting, "--out", str(out)])
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith("slow_head.py on synthetic, 1 round,")


def test_a_model_copied_from_headwise_is_told_how_to_import(tmp_path: Path) -> None:
    path = tmp_path / "linear.py"
    path.write_text((Path(hw.__file__).parent / "models" / "linear.py").read_text())
    with pytest.raises(ConfigError, match=r"relative import: write 'from headwise\.models"):
        registry.find("model", str(path))


def test_check_lists_all_failures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = new(tmp_path)
    changed(path, 'stays: ClassVar[str] = "head"', 'stays: ClassVar[str] = "nothing"')
    changed(path, "self.keep * me.h + (1 - self.keep) * m", "m")
    with pytest.raises(SystemExit) as end:
        main(["check", str(path)])
    assert end.value.code == 1
    printed = capsys.readouterr().out
    assert "✗ card\n    stays is 'nothing', but it keeps Head" in printed
    assert "✗ every hyperparameter counts" in printed
    assert "✓ messages survive encoding" in printed


def test_doctor_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "opacus" else real(name, *a))
    with pytest.raises(SystemExit) as end:
        main(["doctor", "--data-dir", str(tmp_path)])
    assert end.value.code == 0
    printed = capsys.readouterr().out
    assert "- [privacy]    needs opacus: pip install 'headwise[privacy]'" in printed
    assert "✓ [figures]    installed" in printed
    assert hw.__version__ in printed and "kernels" in printed
    assert "✗" not in printed, "nothing that is optional stops work"


@pytest.mark.long
def test_a_plain_script_needs_no_guard(tmp_path: Path) -> None:
    """It runs a pool of workers, and checks its own method, whose class the workers import from this very script."""
    path = new(tmp_path)
    with path.open("a") as file:
        file.write("\n\nfrom headwise.testing import run_check\n")
        file.write("run_check('processes and threads, same bits', SlowHead)\nprint('done')\n")
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "done", done.stderr
