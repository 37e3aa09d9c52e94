"""Imports go down only, and some rooms keep out of some things altogether."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rooms import FILES, HOME, imports, name_of, room_of, tree

from headwise.log import metrics

# what each room may import of Headwise itself; the ground floor first
ALLOWED = {
    "errors": set(),
    "jsontext": set(),
    "log": {"log", "errors"},
    "memory": {"errors"},
    "paths": {"errors"},
    "seeds": set(),
    "params": set(),
    "layout": set(),
    "robust": {"params"},
    "wire": {"layout"},
    "records": {"params", "wire"},
    "settings": {"errors"},
    "models": {"models", "memory", "params", "errors", "settings"},
    "benches": {"models", "params", "records"},
    "method": {"benches", "models", "records"},
    "averaging": {"errors", "method", "models", "params", "records", "settings"},
    "measures": set(),
    "methods": {"averaging", "measures", "method", "models", "params", "records", "settings"},
    "data": {"data", "errors", "jsontext", "layout", "memory", "models", "settings", "seeds"},
    "engine": {
        "engine",
        "averaging",
        "benches",
        "data",
        "errors",
        "jsontext",
        "layout",
        "log",
        "method",
        "models",
        "params",
        "records",
        "robust",
        "seeds",
        "settings",
    },
    "runs": {"runs", "engine", "errors", "jsontext", "log", "method", "paths", "records", "params", "headwise"},
    "catalog": {"errors", "settings"},
    "config": {"catalog", "engine", "errors", "settings"},
    "privacy": {
        "privacy",
        "averaging",
        "benches",
        "config",
        "data",
        "engine",
        "errors",
        "method",
        "models",
        "params",
        "records",
        "seeds",
    },
    "trackers": {"trackers", "engine", "errors", "runs"},
    "report": {"report", "catalog", "config", "errors", "headwise", "jsontext", "log", "paths", "runs", "settings"},
}
# and what the engine's sub-rooms may import; whatever is not of the engine, only where it is allowed above
SUB_ROOMS = {
    "engine/kernels": {"engine.kernels", "engine.clock", "layout", "models"},
    "engine/executors": {
        *("engine.executors", "engine.clock", "engine.devices", "engine.events", "engine.options", "engine.plan"),
        *("engine.process", "engine.state", "engine.worker"),
        *("averaging", "data", "errors", "jsontext", "method", "records", "seeds"),
    },
}
FORBIDDEN_IN_METHODS = {
    "logging", "time", "random", "numpy", "os", "sys", "pickle", "multiprocessing", "flwr", "io", "pathlib",
    "subprocess", "threading", "socket", "concurrent",
}  # fmt: skip
WORDS_IN_METHODS = (
    r"\bdevice\b|\.to\(|\bcuda\b|\bprint\(|\bopen\(|\blogging\b|\bnumpy\b|\bflwr\b|\bsuper\(\)|\bhasattr\("
)

METHODS = [p for p in FILES if p.parent.name == "methods" and p.stem != "__init__"]


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_go_down_only(path: Path) -> None:
    room = name_of(path).split("/")[0].removesuffix(".py")
    own = {room_of(m) for m in imports(path) if m.split(".")[0] == "headwise"}
    if room in ALLOWED:
        assert own <= ALLOWED[room], f"{name_of(path)} must not import {sorted(own - ALLOWED[room])}"


@pytest.mark.parametrize("room", SUB_ROOMS)
def test_sub_rooms_import_little_and_say_what_lives_there(room: str) -> None:
    files = [p for p in FILES if name_of(p).startswith(f"{room}/")]
    assert len(files) > 5
    used = {m.removeprefix("headwise.") for p in files for m in imports(p) if m.startswith("headwise.")}
    assert {m for m in used if not any(f"{m}.".startswith(f"{known}.") for known in SUB_ROOMS[room])} == set()
    assert len((ast.get_docstring(tree(HOME / room / "__init__.py")) or "").splitlines()) == 3


def test_every_room_is_known() -> None:
    """A new file on the lower floors must be given its place in the table above."""
    upper = {"audit", "launch", "plans", "comparing", "cli", "testing", "flower", "papers", "__init__", "__main__"}
    rooms = {name_of(p).split("/")[0].removesuffix(".py") for p in FILES}
    assert rooms <= upper | ALLOWED.keys()


def test_the_walls_stand() -> None:
    """The table itself says what the design says."""
    closed = {"methods", "privacy", "runs", "report", "flower", "cli", "config", "launch", "plans", "testing"}
    assert not ALLOWED["engine"] & closed
    assert not ALLOWED["methods"] & (closed | {"engine", "data", "methods"})


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_only_two_files_import_flower(path: Path) -> None:
    """Flower's API moves: one file to touch, and one for the primitives that it brings."""
    if name_of(path) not in ("flower/grid.py", "flower/primitives.py"):
        assert not {m.split(".")[0] for m in imports(path)} & {"flwr", "ray"}


@pytest.mark.parametrize("path", METHODS, ids=name_of)
def test_methods_are_mathematics_only(path: Path) -> None:
    outside = {m.split(".")[0] for m in imports(path)}
    assert not outside & FORBIDDEN_IN_METHODS
    code = ast.unparse(_without_texts(path))
    assert not re.findall(WORDS_IN_METHODS, code)


def _without_texts(path: Path) -> ast.Module:
    """The code alone: comments are gone in a tree, documentation is taken out."""

    class Stripper(ast.NodeTransformer):
        def visit_Expr(self, node: ast.Expr) -> ast.AST:
            text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
            return ast.Pass() if text else self.generic_visit(node)

    return Stripper().visit(ast.parse(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_nothing_is_unpickled_or_evaluated(path: Path) -> None:
    """Bytes from elsewhere must never become code."""
    if name_of(path) == "data/pickles.py":  # reads the public archives of CIFAR with a list of allowed names
        return
    assert not {m.split(".")[0] for m in imports(path)} & {"pickle", "dill", "cloudpickle", "shelve", "marshal"}
    calls = [ast.unparse(n.func) for n in ast.walk(tree(path)) if isinstance(n, ast.Call)]
    assert not set(calls) & {"eval", "exec", "torch.load", "np.load", "numpy.load", "__import__"}


EXACT_SCALARS = ("wire.py", "runs/checkpoint.py", "testing/toy.py")
"""records whose floats must come back as they were, NaN included, and the rows that tests compare by them"""


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_there_is_one_writer_of_json(path: Path) -> None:
    """`json.dumps` writes NaN, which is not JSON; `jsontext.to_json` can't."""
    calls = {ast.unparse(n.func) for n in ast.walk(tree(path)) if isinstance(n, ast.Call)}
    if name_of(path) not in ("jsontext.py", *EXACT_SCALARS):
        assert not calls & {"json.dumps", "json.dump", "dumps", "JSONResponse"}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_zip_says_whether_it_is_strict(path: Path) -> None:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "zip":
            assert "strict" in [k.arg for k in node.keywords], f"{name_of(path)}:{node.lineno}"


@pytest.mark.parametrize(
    "code",
    [
        "import headwise",
        "import headwise.log.schema",
        "import headwise.runs.query",
        "import headwise.config",
        "import headwise.cli",
        "import headwise.report.page",
        "from headwise.cli import cli; cli.main(['list', 'methods'], standalone_mode=False)",
        "from headwise.cli import cli; cli.main(['list', 'partitions', '--json'], standalone_mode=False)",
    ],
)
def test_quick_things_do_not_wait_for_torch(code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; sys.exit('torch' in sys.modules)"],
        capture_output=True,
        text=True,
        check=False,
        cwd=HOME,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_names_of_metrics_stand_in_the_registry_only(path: Path) -> None:
    """A number has one home: whoever needs one of them takes its name from there."""
    room = name_of(path).split("/")[0]
    if room in ("log", "testing", "papers"):  # the contract looks at losses, papers name metrics
        return
    texts = {n.value for n in ast.walk(tree(path)) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    names = {m.name for m in metrics.OURS} - {metrics.ACCURACY.name} | {metrics.VALIDATION}
    assert not texts & (names - {"loss"} if room == "privacy" else names), "there, loss is what a bench computes"
    asked = [ast.unparse(n) for n in ast.walk(tree(path)) if isinstance(n, ast.Compare)]
    assert not [text for text in asked if text.startswith("'bytes_evaluation' in")], "ask `evaluated(row)`"


def test_the_reader_of_imports_reads_them() -> None:
    """Or all of the above would pass on nothing."""
    found = set(imports(HOME / "engine" / "executors" / "pool.py"))
    assert {"headwise.averaging", "headwise.records", "headwise.engine.plan", "torch", "functools"} <= found
    assert "headwise.runs.query" in set(imports(HOME / "launch.py"))
    assert "headwise.engine.events" in set(imports(HOME / "engine" / "executors" / "base.py"))
    assert room_of("headwise.engine.executors.pool") == "engine"
