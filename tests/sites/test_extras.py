"""Before anything is imported or fetched: what a command needs is checked, and a site stays offline."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headwise.cli import main
from headwise.data import files

WITHOUT = (
    "import sys; sys.modules.update(flwr=None, cryptography=None, ray=None); from headwise.cli import main; main()"
)
COMMANDS = [
    ("server", "start", "server"),
    ("server", "register", ".", "site.key.pub"),
    ("server", "sign", "exp.toml", "--key", "board.key", "--out", "list.json"),
    ("site", "init", "va", "--client", "0", "--data", "digits"),
    ("site", "start", ".", "--superlink", "127.0.0.1:8000"),
    ("site", "list", "."),
    ("deploy", "exp.toml", "--server", ".", "--out", "run"),
]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda w: " ".join(w[:2]))
def test_without_flower_a_sentence_says_what_to_install(words: tuple[str, ...], tmp_path: Path) -> None:
    for name in ("site.key.pub", "exp.toml", "site.toml"):
        (tmp_path / name).touch()
    before = sorted(tmp_path.iterdir())
    done = subprocess.run([sys.executable, "-c", WITHOUT, *words], cwd=tmp_path, capture_output=True, text=True)
    said = "flwr is not installed, which servers and sites need: run pip install 'headwise[flower]'."
    assert (done.returncode, done.stderr.removeprefix("headwise: ").strip()) == (2, said)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("words", [(), ("--download",)])
def test_a_site_downloads_only_what_it_is_told_to(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def retrieve(url: str, *_: object, **__: object) -> None:
        asked.append(url)
        raise OSError("there is no network here")

    monkeypatch.setattr("pooch.retrieve", retrieve)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main(["site", "init", "va", "--client", "0", "--data", "heart-disease:hospital=va", *words])
    assert end.value.code == 2
    assert not (tmp_path / "va").exists()
    said = capsys.readouterr().err
    if words:
        assert asked
        assert "could not be downloaded" in said
    else:
        assert not asked
        assert "is missing, and a site downloads nothing: put it there, or check --data-dir." in said


def test_offline_ends_with_its_block() -> None:
    with files.forbid_downloads():
        assert not files._online.get()
    assert files._online.get()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--ca is missing: give the server's ca.crt, which proves who it is."),
        (("--ca", "site.toml"), "--ca is 'site.toml', but must be the server's ca.crt: it has no certificate."),
    ],
)
def test_the_certificate_is_checked_first(
    words: tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "site.toml").write_text('name = "va"\n')
    with pytest.raises(SystemExit):
        main(["site", "start", ".", "--superlink", "127.0.0.1:8000", *words])
    assert said in capsys.readouterr().err
