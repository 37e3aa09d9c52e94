"""The code that decides a run's numbers: a user's own files, hashed and copied into the run's folder, and compared.

These are the files of a user's method, network, data set, partition, augmentation or metric, and the user's modules
that they import. A run whose code has changed is never silently reused or continued.
"""

from __future__ import annotations

import ast
import difflib
import importlib.metadata
import importlib.util
import inspect
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from ..disk.files import digest, read_bytes, read_json, seal, write_bytes, write_json
from ..disk.jsontext import to_json
from ..errors import ConfigError, RunError
from ..runs.manifest import INPUTS, hash_code, read_manifest
from ..settings.choices import NETWORK, SCRIPTS, Choice
from ..settings.experiment import Experiment
from ..settings.names import HOME, Kind, plugins

NUMERICS = 1
"""version of what Headwise itself computes; 1 is the first published one. It is raised with each entry under *Changes
results* in CHANGELOG.md, unless only last bits, or a method in `REVISED`, change"""
REVISED = {"fedfomo": 1, "fedgc": 1, "fedl2g": 1, "knn-per": 1}
"""number of changes to a single method, added to `NUMERICS`, so that the cells of all other methods stay valid"""
FOLDER = "code"
"""of the copies, below a run's inputs"""
_LIBRARIES = tuple(
    Path(path).resolve()
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
    if (path := sysconfig.get_path(name)) is not None
)
_IMPORTED: dict[str, tuple[Any, str]] = {}
"""for each of the user's modules: its spec, which a reload replaces, and its file's hash when it was first seen"""


@dataclass(frozen=True)
class RunCode:
    """What decides a run's numbers, besides its settings and its data."""

    files: dict[str, bytes]
    """the user's own, by a name that is unique among them"""
    packages: dict[str, str]
    """versions of other packages that the settings name"""
    numerics: int = NUMERICS

    def to_plain(self) -> dict[str, Any]:
        """For the manifest."""
        hashes = {name: digest(data) for name, data in sorted(self.files.items())}
        return {"numerics": self.numerics, "packages": dict(sorted(self.packages.items())), "files": hashes}

    @property
    def label(self) -> str:
        """For the name of a cell: empty if no code is the user's own and numerics is 1."""
        if not self.files and not self.packages and self.numerics == 1:
            return ""
        return hash_code(self.to_plain())


class CodeChangedError(RunError):
    """The code of a run has changed since; the note has the difference."""


def collect_code(experiment: Experiment) -> RunCode:
    """The code that this experiment names, as it is on disk now."""
    files: dict[Path | str, bytes] = {}
    packages: dict[str, str] = {}
    for place in _places(experiment):
        if isinstance(place, Path):
            _add_file(place, files)
        elif callable(place):
            _add_source(place, files)
        elif (path := _module_file(place)) is not None and not _is_own(path):
            packages |= _version(place)
        else:
            _add_module(place, files)
    name = experiment.method.name.partition("@")[0]
    return RunCode(_name_files(files), packages, NUMERICS + REVISED.get(name, 0))


def store_code(code: RunCode, folder: Path) -> None:
    """Copy the user's files into the run's folder."""
    home = folder / INPUTS / FOLDER / _key(code.to_plain())
    for name, data in code.files.items():
        write_bytes(home / name, data, parents=True)


def add_code(folder: Path, code: RunCode, rounds: int) -> None:
    """Note in the manifest that a run continues with new code after this many rounds."""
    store_code(code, folder)
    manifest = read_json(folder / "manifest.json")
    entries = [*manifest.get("code", []), {"round": rounds, **code.to_plain()}]
    write_json(folder / "manifest.json", seal({**manifest, "code": entries}))


def read_code(folder: Path, manifest: dict[str, Any]) -> list[tuple[int, RunCode]]:
    """The code that ran, with the round before its first: one entry, or several if a run continued with new code."""
    entries: list[tuple[int, RunCode]] = []
    for entry in manifest.get("code") or [{"round": 0, "numerics": 1, "packages": {}, "files": {}}]:
        home = folder / INPUTS / FOLDER / _key(entry)
        files = {name: _read_copy(home, name, sha256) for name, sha256 in entry["files"].items()}
        entries.append((entry["round"], RunCode(files, entry["packages"], entry["numerics"])))
    return entries


def difference_of(before: RunCode, now: RunCode) -> str:
    """What changed, as a unified diff; empty if nothing did."""
    lines: list[str] = []
    if before.numerics != now.numerics:
        lines += [f"-Headwise's numerics: version {before.numerics}", f"+Headwise's numerics: version {now.numerics}"]
    for name in sorted({*before.packages, *now.packages}):
        versions = (before.packages.get(name), now.packages.get(name))
        if versions[0] != versions[1]:
            lines += [f"-{name} {versions[0] or 'not used'}", f"+{name} {versions[1] or 'not used'}"]
    for name in sorted({*before.files, *now.files}):
        if before.files.get(name) != now.files.get(name):
            old, new = (code.files.get(name, b"").decode(errors="replace").splitlines() for code in (before, now))
            lines += difflib.unified_diff(old, new, f"{name} (of the run)", f"{name} (now)", lineterm="")
    return "\n".join(lines)


def check_unchanged(folder: Path, manifest: dict[str, Any], now: RunCode, how: str) -> None:
    """Raise if this run's code has changed since its first round; `how` ends the message."""
    for _, code in read_code(folder, manifest):
        if change := difference_of(code, now):
            names = [n for n in sorted({*code.files, *now.files}) if code.files.get(n) != now.files.get(n)]
            what = ", ".join(names) or "the version of what computes its numbers"
            error = CodeChangedError(f"{folder} was run with other code ({what} has changed since): {how}.")
            error.add_note(change)
            raise error


def list_changed_files(folder: Path, now: RunCode) -> list[str]:
    """The user's files that are not as they were in the run's last round."""
    _, before = read_code(folder, read_manifest(folder))[-1]
    return [name for name, data in sorted(before.files.items()) if name in now.files and now.files[name] != data]


def is_changed(folder: Path, manifest: dict[str, Any], now: RunCode) -> bool:
    return any(difference_of(code, now) for _, code in read_code(folder, manifest))


def _places(experiment: Experiment) -> Iterator[Any]:
    """Files, names of modules, and objects that only this session has, which the experiment names."""
    choices: list[tuple[Kind, Choice]] = [
        ("method", experiment.method),
        ("data", experiment.data),
        ("partition", experiment.partition),
        *(("model", choice) for choice in experiment.networks),
    ]
    for kind, choice in choices:
        name = choice.name.partition("@")[0]
        if kind == "model" and name == NETWORK:
            yield from _network_places(choice)
        elif name.endswith(".py"):
            yield Path(name)
        elif name in plugins(kind):
            yield plugins(kind)[name].module
    for change in experiment.train.augment:
        if change.is_of_session:
            yield from [change.given] if change.given is not None else []
        elif not change.is_built_in:
            yield _place(change.name)
    yield from metric_modules()


@cache
def metric_modules() -> tuple[str, ...]:
    """The modules of the metrics that other packages offer."""
    return tuple(sorted({point.module for point in importlib.metadata.entry_points(group="headwise.metrics")}))


def _network_places(choice: Choice) -> Iterator[Any]:
    from ..models.network import layer_classes  # imports torch, which a mere look at a run must not wait for

    if factory := choice.options.get("factory"):
        yield _place(factory)
    elif choice.given is not None:
        given: Any = choice.given
        layers: set[Any] = {given}
        if not inspect.isclass(given) and not inspect.isroutine(given):
            layers = {type(layer) for layer in given.modules()}
        yield from sorted((c for c in layers if not c.__module__.startswith("torch.")), key=lambda c: c.__qualname__)
    elif (path := choice.options.get("path")) and not choice.options.get("session"):
        for module in sorted({name.partition(":")[0] for name in layer_classes(read_bytes(Path(path)))}):
            if module.split(".")[0] != "torch":
                yield module


def _place(reference: str) -> Path | str:
    place = reference.rpartition(":")[0]
    return Path(place) if place.endswith(".py") else place


def _add_file(path: Path, files: dict[Path | str, bytes]) -> None:
    """Add a file and the user's own modules that it imports."""
    path = path.resolve()
    if path in files or not path.is_file():
        return
    files[path] = path.read_bytes()
    for module in _imports(files[path], ""):
        _add_module(module, files)


def _add_module(name: str, files: dict[Path | str, bytes]) -> None:
    """Add one of the user's modules, its packages, and what these import; other modules are ignored."""
    path = _module_file(name)
    if path is None or path in files or not _is_own(path):
        return
    files[path] = path.read_bytes()
    _check_imported(name, path, files[path])
    parent = name.rpartition(".")[0]
    if parent:
        _add_module(parent, files)
    package = name if path.name == "__init__.py" else parent
    for module in _imports(files[path], package):
        _add_module(module, files)


def _add_source(given: Any, files: dict[Path | str, bytes]) -> None:
    """Add the source of a class or function that only this session has, if Python knows it."""
    module = getattr(given, "__module__", "")
    if module and module not in SCRIPTS and module in sys.modules:
        _add_module(module, files)
        return
    try:
        text = inspect.getsource(given)
    except (OSError, TypeError):
        return
    files[f"session/{getattr(given, '__name__', 'object')}.py"] = text.encode()


def _imports(data: bytes, package: str) -> Iterator[str]:
    """The modules that a file may import, wherever in it: `from a import b` may be of a module or of a name."""
    try:
        tree = ast.parse(data)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            if module:
                yield module
                yield from (f"{module}.{alias.name}" for alias in node.names)


def _module_file(name: str) -> Path | None:
    """The source of a module, loaded or not; None if there is none."""
    module = sys.modules.get(name)
    try:
        spec = module.__spec__ if isinstance(module, ModuleType) else importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None
    origin = getattr(spec, "origin", None) or getattr(module, "__file__", None)
    path = Path(origin).resolve() if origin else None
    return path if path and path.suffix == ".py" and path.is_file() else None


def _is_own(path: Path) -> bool:
    """Whether a file is the user's: neither Headwise's, nor Python's, nor an installed package's."""
    return not any(folder in path.parents for folder in (HOME.resolve(), *_LIBRARIES))


def _check_imported(name: str, path: Path, data: bytes) -> None:
    """Raise if this session imported an earlier version of the module than the file now holds."""
    module = sys.modules.get(name)
    if module is None:
        return
    known = _IMPORTED.get(name)
    if known is None or known[0] is not module.__spec__:
        _IMPORTED[name] = (module.__spec__, digest(data))
    elif known[1] != digest(data):
        how = f"start a new session, or call importlib.reload({name})"
        raise ConfigError(f"{path} has changed since this session imported {name}: {how}.")


def _version(module: str) -> dict[str, str]:
    package = module.split(".")[0]
    try:
        return {package: importlib.metadata.version(package)}
    except importlib.metadata.PackageNotFoundError:
        return {package: "unknown"}


def _name_files(files: dict[Path | str, bytes]) -> dict[str, bytes]:
    """Each file by its name, with as much of its path as makes the names unique."""
    parts = {key: Path(key).parts[-8:] for key in files}
    depth = 1
    while depth < 8 and len({p[-depth:] for p in parts.values()}) < len(parts):
        depth += 1
    return {"/".join(parts[key][-depth:]).lstrip("/"): data for key, data in files.items()}


def _key(entry: dict[str, Any]) -> str:
    return digest(to_json(entry["files"], sort_keys=True).encode())[:16]


def _read_copy(home: Path, name: str, sha256: str) -> bytes:
    path = home / name
    if home.resolve() not in path.resolve().parents:
        raise RunError(f"{home} is damaged: the manifest names {name!r}, which is outside.")
    data = read_bytes(path)
    if digest(data) != sha256:
        raise RunError(f"{path} is damaged: it is not the code that ran.")
    return data
