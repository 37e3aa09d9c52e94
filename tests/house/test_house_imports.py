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
from headwise.tasks.registry import TASKS

ALLOWED = {
    "errors": set(),
    "seeds": set(),
    "params": set(),
    "memory": {"errors"},
    "records": {"memory", "params"},
    "disk": {"errors"},
    "stats": {"errors"},
    "tasks": {"errors"},
    "settings": {"errors", "tasks"},
    "log": {"errors", "tasks"},
    "models": {"disk", "errors", "memory", "params", "settings", "tasks"},
    "contract": {"errors", "models", "params", "records", "settings", "tasks"},
    "authoring": {"contract", "models", "params", "records", "settings"},
    "methods": {"authoring"},
    "data": {"disk", "errors", "memory", "models", "settings", "tasks"},
    "engine": {
        *("contract", "data", "disk", "errors", "log", "memory", "models", "params", "records", "seeds"),
        *("settings", "tasks"),
    },
    "privacy": {"contract", "data", "engine", "errors", "models", "params", "records", "seeds", "settings", "tasks"},
    "runs": {"contract", "disk", "engine", "errors", "log", "params", "records", "tasks"},
    "trackers": {"disk", "engine", "errors", "log", "runs"},
    "report": {"disk", "errors", "log", "runs", "settings", "stats"},
    "app": {
        *("contract", "data", "disk", "engine", "errors", "log", "models", "params", "privacy", "records", "report"),
        *("runs", "seeds", "settings", "stats", "tasks"),
    },
    "exports": {
        *("app", "contract", "data", "disk", "engine", "errors", "log", "memory", "models", "records"),
        *("report", "runs", "settings", "tasks"),
    },
}
"""what each room may import of Headwise itself, beside its own files; the lowest layer first"""
FOR_TYPE_CHECKERS = {"runs/query.py": {"exports"}}
"""imports that never run: runs are read without torch"""
UPPER = {"audit", "cli", "league", "papers", "sites", "testing", "__init__", "__main__"}
"""rooms that may import any other, but for what `NEVER` says"""
NEVER = {
    "audit": {"cli", "testing"},
    "league": {"cli", "exports", "papers", "sites", "testing"},
    "papers": {"cli", "sites", "testing"},
    "sites": {"cli", "testing", "papers"},
    "testing": {"cli"},
}
SUB_ROOMS = {
    "engine/kernels": {"engine.host", "memory", "models", "settings.options", "tasks"},
    "engine/client": {
        *("contract", "data", "engine.host", "engine.kernels", "engine.plan", "engine.workbench", "errors", "log"),
        *("models", "params", "records", "seeds", "settings.choices", "settings.options", "tasks"),
    },
    "engine/executors": {
        *("contract", "data", "disk", "engine.client", "engine.events", "engine.host", "engine.plan", "errors"),
        *("records", "seeds", "settings"),
    },
    "sites/transport": {"contract", "disk", "engine.client", "errors", "log", "records", "settings"},
    "sites/secagg": {
        *("contract", "disk", "engine.answers", "engine.client", "engine.plan", "errors", "records", "settings"),
        *("sites.states", "sites.transport"),
    },
    "sites/server": {
        *("app", "contract", "data", "disk", "engine", "errors", "log", "models", "records", "runs", "settings"),
        *("sites.facts", "sites.secagg", "sites.states", "sites.transport"),
    },
    "sites/site": {
        *("app", "audit", "contract", "data", "disk", "engine", "errors", "exports", "log", "models", "params"),
        *("privacy", "records", "seeds", "settings", "tasks"),
        *("sites.facts", "sites.keys", "sites.offers", "sites.secagg", "sites.states", "sites.transport"),
    },
}
"""and what sub-rooms may import, beside their own files"""
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
    used = {room_of(m) for m in imports(path) if m.split(".")[0] == "headwise"} - {room}
    wrong = used - ALLOWED[room] if room in ALLOWED else used & NEVER.get(room, set())
    wrong -= FOR_TYPE_CHECKERS.get(name_of(path), set())
    assert not wrong, f"{name_of(path)} must not import {sorted(wrong)}"


BY_STRING = {"import_module", "__import__", "spec_from_file_location", "resolve_name", "load"}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_nothing_below_app_imports_by_string(path: Path) -> None:
    """`app.registry` turns names into classes; decision 25 says why `log.metrics` may load entry points."""
    room = name_of(path).split("/")[0].removesuffix(".py")
    if room not in ALLOWED or list(ALLOWED).index(room) >= list(ALLOWED).index("app"):
        return
    calls = [n.func for n in ast.walk(tree(path)) if isinstance(n, ast.Call)]
    used = {f.attr if isinstance(f, ast.Attribute) else f.id for f in calls if isinstance(f, ast.Attribute | ast.Name)}
    if {"importlib", "pkgutil"} & {m.split(".")[0] for m in imports(path)} and name_of(path) != "log/metrics.py":
        assert not used & BY_STRING


@pytest.mark.parametrize("room", SUB_ROOMS)
def test_sub_rooms_import_little(room: str) -> None:
    files = [p for p in FILES if name_of(p).startswith(f"{room}/")]
    assert len(files) > 2
    used = {m.removeprefix("headwise.") for p in files for m in imports(p) if m.startswith("headwise.")}
    known = {*SUB_ROOMS[room], room.replace("/", ".")}
    assert {m for m in used if not any(f"{m}.".startswith(f"{each}.") for each in known)} == set()


@pytest.mark.parametrize("init", [p for p in FILES if p.name == "__init__.py" and p.parent != HOME], ids=name_of)
def test_a_room_says_what_lives_there(init: Path) -> None:
    """In a few lines and no code, but where importing it must do something; sub-rooms get a paragraph each."""
    text = ast.get_docstring(tree(init)) or ""
    sub_rooms = len([*init.parent.glob("*/__init__.py")])
    assert len(text.splitlines()) <= 4 + 6 * sub_rooms, "a line, an empty one, and two; six for each sub-room"
    assert len(text.split()) >= 8


def test_the_map_fits_on_a_screen() -> None:
    assert len({name_of(p).split("/")[0] for p in FILES}) <= 31
    one_file_each = {"methods", "models", "data/sources", "data/partition", "cli/commands"}
    rooms = {p.parent for p in FILES if p.parent != HOME}
    full = {name_of(r): n for r in rooms if (n := len([*r.glob("*.py")])) > 16 and name_of(r) not in one_file_each}
    assert full == {}


def test_every_room_is_known() -> None:
    """A new room must be given its place in the tables above."""
    rooms = {name_of(p).split("/")[0].removesuffix(".py") for p in FILES}
    assert rooms == UPPER | ALLOWED.keys()


def test_the_walls_stand() -> None:
    """The table itself says what the design says."""
    closed = {"methods", "privacy", "runs", "report", "sites", "cli", "app", "testing"}
    assert not ALLOWED["engine"] & closed
    assert not ALLOWED["methods"] & (closed | {"engine", "data", "methods"})
    layers = list(ALLOWED)
    assert all(layers.index(lower) < k for k, room in enumerate(layers) for lower in ALLOWED[room] - {"headwise"})


FLOWER_PUBLIC = {"flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.simulation"}
FLOWER = {
    "sites/transport/grid.py": {*FLOWER_PUBLIC, "ray._private"},
    "sites/transport/node.py": {"flwr.proto", "flwr.supercore", "flwr.supernode"},
}
"""Flower's public API is used in one file, its private one in another: those to change when Flower moves"""


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_two_files_import_flower(path: Path) -> None:
    modules = {".".join(m.split(".")[:2]) for m in imports(path) if m.split(".")[0] in ("flwr", "ray")}
    assert modules == FLOWER.get(name_of(path), set())


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
def test_what_a_card_says_of_traffic_steers_nothing(path: Path) -> None:
    """Formulas are documentation: only the checks of a card and those who print it read them."""
    if name_of(path).split("/")[0] not in ("contract", "methods", "testing", "cli"):
        read = {n.attr for n in ast.walk(tree(path)) if isinstance(n, ast.Attribute)}
        assert not read & {"traffic_down", "traffic_up"}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_there_is_one_round_loop(path: Path) -> None:
    """Whoever aggregates runs rounds: only the driver does, and the checks of a method's single functions."""
    if name_of(path).split("/")[0] not in ("contract", "methods", "testing") and name_of(path) != "engine/driver.py":
        calls = {ast.unparse(n.func) for n in ast.walk(tree(path)) if isinstance(n, ast.Call)}
        assert not {call for call in calls if call.endswith(("method.aggregate", "calls.aggregate"))}
        imported = [n for n in ast.walk(tree(path)) if isinstance(n, ast.ImportFrom) and n.module == "contract.calls"]
        assert "aggregate" not in [alias.name for n in imported for alias in n.names]


TASK_NAMES = ("tasks", "settings", "methods", "data/sources")
"""where tasks are named: in their room, in the types of settings, and on the cards of methods and data sets"""


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_only_tasks_know_their_names(path: Path) -> None:
    """Everyone else asks the `TaskKind`, so that a new task is one file."""
    if not name_of(path).startswith(TASK_NAMES):
        texts = {n.value for n in ast.walk(tree(path)) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
        assert not texts & set(TASKS)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_nothing_is_unpickled_or_evaluated(path: Path) -> None:
    """Bytes from elsewhere must never become code."""
    assert not {m.split(".")[0] for m in imports(path)} & {"pickle", "dill", "cloudpickle", "shelve", "marshal"}
    calls = [ast.unparse(n.func) for n in ast.walk(tree(path)) if isinstance(n, ast.Call)]
    assert not set(calls) & {"eval", "exec", "torch.load", "np.load", "numpy.load", "__import__"}


EXACT_SCALARS = ("records.py", "runs/checkpoint.py", "testing/toy.py")
"""records whose floats must come back as they were, NaN included, and the rows that tests compare by them"""


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_there_is_one_writer_of_json(path: Path) -> None:
    """`json.dumps` writes NaN, which is not JSON; `jsontext.to_json` can't."""
    calls = {ast.unparse(n.func) for n in ast.walk(tree(path)) if isinstance(n, ast.Call)}
    if name_of(path) not in ("disk/jsontext.py", *EXACT_SCALARS):
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
        "import headwise.settings.experiment",
        "import headwise.cli",
        "import headwise.report.page",
        "import headwise.sites.apps",
        "import headwise.sites.transport.node",
        "import headwise.sites.site.running",
        "import headwise.sites.server.control",
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
    if room in ("log", "tasks", "testing", "papers"):  # the contract looks at losses, papers name metrics
        return
    texts = {n.value for n in ast.walk(tree(path)) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    names = {m.name for m in metrics.OURS} - {metrics.ACCURACY.name} | {metrics.ACCURACY.validation}
    names -= {"balanced"}  # so are class weights
    assert not texts & (names - {"loss"} if room == "privacy" else names), "there, loss is what a bench computes"
    asked = [ast.unparse(n) for n in ast.walk(tree(path)) if isinstance(n, ast.Compare)]
    assert not [text for text in asked if text.startswith("'bytes_evaluation' in")], "ask `was_evaluated(row)`"


def test_the_reader_of_imports_reads_them() -> None:
    """Or all of the above would pass on nothing."""
    found = set(imports(HOME / "engine" / "executors" / "pool.py"))
    assert {"headwise.contract.method", "headwise.records", "headwise.engine.plan", "torch", "functools"} <= found
    assert "headwise.runs.query" in set(imports(HOME / "app/launch.py"))
    assert "headwise.engine.events" in set(imports(HOME / "engine" / "executors" / "base.py"))
    assert room_of("headwise.engine.executors.pool") == "engine"
