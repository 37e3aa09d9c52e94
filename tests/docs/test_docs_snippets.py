"""Every snippet of README.md and docs/ runs, every command parses, and what a page shows as printed is printed.

How to write a page, in a few rules:

- **```python** blocks are executed in the order of the page, in one namespace and in an empty folder.
- **A block with a title** (```toml title="data.toml", ```python title="mymethod.py", ```csv title="patients.csv") is
  not executed but written to that file, before anything below it runs.
- **```sh** blocks, and lines indented by four spaces that begin with `headwise`: each `headwise` command is parsed
  (options, settings, methods and partitions exist), each extra of `pip install 'headwise[...]'` and each target of
  `make` exists.
- `<!-- test: run -->` anywhere in a page: its commands are executed as well, together with its Python blocks and in
  the same folder. All but `headwise`, `make` and `pip` go to bash; `make` and `pip` are never executed.
- **```text** is what the block before it prints (of a block in sh: all its commands together, stdout and stderr). Use
  `...` for what changes from run to run; see `snippets.same`. Use another language, or none, for text that is not
  output, such as a tree of files.
- `<!-- test: setup` with Python in the lines below it, up to `-->`: executed, but readers don't see it. For data
  that a page takes as given; never for what the reader would need.
- `<!-- test: not run, WHY -->` right above a block: Python is only compiled, commands are only parsed, text is not
  compared. For what needs a GPU, a cluster, a server or a download.
- `<!-- test: run, long -->` or `<!-- test: long -->`: only in `make test-all`. For pages of more than a few seconds.
- A page that needs more than that has a test of its own, in `snippets.ELSEWHERE`.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from snippets import ELSEWHERE, PAGES, ROOT, Page, commands, page, parse, same

from headwise.app import registry
from headwise.cli import cli, main
from headwise.cli.options import FLAGS, experiment_of
from headwise.errors import HeadwiseError
from headwise.settings.experiment import read_toml

ALL = [page(path) for path in PAGES]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
TARGETS = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
LINES = [(p, b, words) for p in ALL for b in p.blocks if b.language == "sh" for words in commands(b)]


def _executed(page: Page) -> bool:
    shown = [b for b in page.blocks if not b.title and b.language in (("python", "sh") if page.runs else ("python",))]
    return bool(shown) and page.name not in ELSEWHERE


def _mark(page: Page) -> Any:
    return pytest.param(page, id=page.name, marks=[pytest.mark.long] if page.long else [])


@pytest.mark.parametrize("page", [_mark(p) for p in ALL if _executed(p)])
def test_page_runs(page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    run_page(page)


def run_page(page: Page) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = None
    for block in page.blocks:
        where = f"{page.name}:{block.line}"
        if block.title:
            Path(block.title).parent.mkdir(parents=True, exist_ok=True)
            Path(block.title).write_text(block.code, encoding="utf-8")
        elif block.language == "text" and block.runs:
            assert printed is not None, f"{where} shows output, but nothing above it was run"
            assert same(block.code, printed), f"{where} shows\n{block.code}\nbut this was printed:\n{printed}"
        elif block.language == "python":
            code = compile("\n" * (block.line - 1) + block.code, str(page.path), "exec")
            with _heard() as heard:
                if block.runs:
                    exec(code, names)
            printed = heard.getvalue() if block.runs else None
        elif block.language == "sh" and block.runs and page.runs:
            with _heard() as heard:
                for words in commands(block):
                    _do(words, where)
            printed = heard.getvalue()


@contextlib.contextmanager
def _heard() -> Iterator[io.StringIO]:
    heard = io.StringIO()
    with contextlib.redirect_stdout(heard), contextlib.redirect_stderr(heard):
        yield heard


def _do(words: list[str], where: str) -> None:
    if words[0] == "headwise":
        with pytest.raises(SystemExit) as stop:
            main(words[1:])
        assert stop.value.code == 0, f"{where}: {' '.join(words)} ended with {stop.value.code}"
    elif words[0] not in ("make", "pip"):
        done = subprocess.run(["bash", "-ec", " ".join(words)], capture_output=True, text=True)
        assert done.returncode == 0, f"{where}: {done.stderr}"
        print(done.stdout + done.stderr, end="")


@pytest.mark.parametrize("words", [w for _, _, w in LINES], ids=[f"{p.name}:{b.line}" for p, b, _ in LINES])
def test_command_exists(words: list[str]) -> None:
    check(words)


def check(words: list[str]) -> None:
    """Whether this line could be typed: what it names is there."""
    if words[0] == "make":
        assert [w for w in words[1:] if "=" not in w and w not in TARGETS] == []
    elif words[0] == "pip":
        given = [
            name for word in words for extras in re.findall(r"headwise\[(.+?)\]", word) for name in extras.split(",")
        ]
        assert [name for name in given if name not in EXTRAS] == []
    elif words[0] == "headwise":
        _parses(words[1:])


def _parses(words: list[str]) -> None:
    command, name = cli, "headwise"
    context = click.Context(command, info_name=name, **command.context_settings)  # click keeps the help option
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name, *words = words
        command = command.get_command(context, name)
        assert command is not None, f"there is no command {name}"
        context = click.Context(command, parent=context, info_name=name)
    given, left, _ = command.make_parser(context).parse_args([*words])
    assert isinstance(command, click.Group) or not left, f"{left} is too much"
    required = [p.name for p in command.get_params(context) if isinstance(p, click.Argument) and p.required]
    if "--help" not in words and not isinstance(command, click.Group):
        assert [n for n in required if not (isinstance(value := given[n or ""], (str, list, tuple)) and value)] == []
    if "changes" in given or FLAGS.keys() & given.keys():
        _is_experiment(name, given)


def _is_experiment(name: str, given: dict[str, Any]) -> None:
    """Settings and choices are known; files of the reader's own need not be there."""
    changes = tuple(given.get("changes") or ())
    flags = {k: given.get(k) for k in FLAGS if not re.search(r"\.(py|toml)(:|$)", str(given.get(k)))}
    if name == "run" and not given.get("origin") and not any(change.startswith("method.") for change in changes):
        registry.resolve_all(experiment_of(None, tuple(c for c in changes if not c.startswith("data.")), flags))


def test_toml_files_are_valid(tmp_path: Path) -> None:
    for block in (b for p in ALL for b in p.blocks if b.language == "toml"):
        (tmp_path / "shown.toml").write_text(block.code, encoding="utf-8")
        assert read_toml(tmp_path / "shown.toml")


@pytest.mark.parametrize("name", ELSEWHERE)
def test_the_tests_elsewhere_run_their_page(name: str) -> None:
    assert name in {p.name for p in ALL}
    assert f'"{name}"' in (ROOT / ELSEWHERE[name]).read_text(encoding="utf-8")


def test_there_is_something_to_run() -> None:
    assert sum(map(_executed, ALL)) >= 2
    assert len(LINES) > 60


def shown(text: str) -> Page:
    return parse(ROOT / "docs" / "page.md", text)


def test_a_page_may_write_a_file_and_use_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told = '```python title="a/b.py"\nx = 3\n```\n<!-- test: setup\nfrom pathlib import Path\n-->\n'
    told += '```python\nprint(Path("a/b.py").read_text(), 2)\n```\n'
    run_page(shown(told + "```text\nx = 3 2\n```\n"))
    with pytest.raises(AssertionError, match="but this was printed"):
        run_page(shown(told + "```text\nx = 4 2\n```\n"))


def test_commands_are_run_in_marked_pages_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told = "```sh\nheadwise list papers\nheadwise describe nothing\n```\n"
    run_page(shown(told))
    run_page(shown(f"<!-- test: run -->\n<!-- test: not run, it fails -->\n{told}"))
    with pytest.raises(AssertionError, match="describe nothing ended with 2"):
        run_page(shown(f"<!-- test: run -->\n{told}"))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("headwise runn", "'runn' is not a command"),
        ("headwise run --no-such-option", "No such option"),
        ("headwise run --set train.momentun=1", "momentun"),
        ("headwise run --method fedrepp", "'fedrepp', which is not known"),
        ("headwise run --partition dirichlet:-1", "alpha"),
        ("headwise describe", "what"),
        ("headwise data showw", "there is no command showw"),
        ("make nothing", "nothing"),
        ("pip install 'headwise[nothing]'", "nothing"),
    ],
)
def test_what_is_not_there_is_noticed(line: str, problem: str) -> None:
    with pytest.raises((AssertionError, click.ClickException, HeadwiseError)) as said:
        check(next(commands(shown(f"```sh\n{line}\n```\n").blocks[0])))
    assert problem in str(said.value)


def test_a_block_that_is_not_run_says_why() -> None:
    with pytest.raises(AssertionError, match="does not say why"):
        shown("<!-- test: not run -->\n```sh\nheadwise run\n```\n")


@pytest.mark.parametrize(
    ("shown", "printed", "alike"),
    [
        ("a b\nc", "a  b c\n", True),
        ("a ... c", "a b b c", True),
        ("a\n...", "a b b c", True),
        ("...\nc", "a b b c", True),
        ("a ... c", "a b b d", False),
        ("a", "a b", False),
        ("a b", "a", False),
        ("last 0.9512, 3 rounds", "last 0.9624, 3 rounds", True),
        ("last 0.9512, 3 rounds", "last 0.8512, 3 rounds", False),
        ("last 0.9512, 3 rounds", "last 0.9512, 4 rounds", False),
    ],
)
def test_what_counts_as_the_same_output(shown: str, printed: str, alike: bool) -> None:
    assert same(shown, printed) == alike
