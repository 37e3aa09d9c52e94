"""Turns names into classes: methods, models, data sets, partitions and executors, and a user's own functions.

They live in the package, in other packages (entry points) or in a user's file. Below this room, nothing imports by
string; this module itself imports nothing heavy, so that listing names and starting workers need no torch.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import importlib
import importlib.machinery
import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.executors.crew import start_server
from ..errors import ConfigError, HeadwiseError, closest, nearest
from ..settings.choices import NETWORK, Choice
from ..settings.experiment import Experiment
from ..settings.fields import build, dump, field_types, help_in, literal
from ..settings.names import ENGINES, EXECUTORS, SITES, Kind, find_built_ins, is_named, list_names, package_of, plugins

if TYPE_CHECKING:
    from ..engine.executors.base import Executor, Setup

BASES: dict[Kind, str] = {
    "method": "headwise.contract.method:Method",
    "model": "headwise.models.base:Model",
    "data": "headwise.data.dataset:Source",
    "partition": "headwise.data.partition.base:Partition",
}
"""the class from which each kind is derived"""


@dataclass(frozen=True)
class Card:
    """A file's description of itself, parsed without importing it."""

    name: str
    title: str
    """first paragraph of the module's docstring"""
    summary: str
    """first line of the class's docstring"""
    facts: dict[str, Any]
    """the class's literal class variables (family, travels, stays, ...)"""
    fields: dict[str, str]
    """its options with their help texts"""
    bases: tuple[str, ...]
    functions: tuple[str, ...]


def make(kind: Kind, choice: Choice | str) -> Any:
    """An instance of this choice, which may be a string as a user would write it, with its options checked."""
    choice = Choice.parse(choice, kind)
    if choice.name == NETWORK and kind == "model":
        return _make_network(choice)
    name, _, preset = choice.name.partition("@")
    cls = find(kind, name)
    fields = [f.name for f in dataclasses.fields(cls) if not f.kw_only]
    if len(choice.values) > len(fields):
        raise ConfigError(
            f"{kind} is {':'.join([choice.name, *choice.values])!r}, but {choice.name} has "
            f"{len(fields)} options ({', '.join(fields) or 'none'})."
        )
    positional = dict(zip(fields, map(literal, choice.values), strict=False))
    return build(cls, {**_preset(cls, preset, choice.name, kind), **positional, **choice.options}, kind)


def resolve(kind: Kind, choice: Choice | str) -> Choice:
    """The same choice with every option spelled out and a user's own file as an absolute path."""
    choice = Choice.parse(choice, kind)
    made = make(kind, choice)
    if choice.name == NETWORK and kind == "model":
        return dataclasses.replace(choice, options=dump(getattr(made, "stored", made)))
    name = choice.name.partition("@")[0]
    return Choice(str(Path(name).resolve()) if name.endswith(".py") else name, dump(made))


def resolve_all(experiment: Experiment) -> Experiment:
    """The same experiment with every option of its choices spelled out."""
    return dataclasses.replace(
        experiment,
        method=resolve("method", experiment.method),
        data=resolve("data", experiment.data),
        partition=resolve("partition", experiment.partition),
        model=tuple(resolve("model", m) for m in experiment.model),
        server_model=experiment.server_model and resolve("model", experiment.server_model),
    )


def find(kind: Kind, name: str) -> type[Any]:
    """The class with this name, which meets the contract of its kind; a user's own is named by `path/to/file.py`."""
    try:
        cls = _import_class(kind, name)
    except HeadwiseError:
        raise
    except Exception as error:  # a user's own file can raise anything
        raise ConfigError(f"{kind} is {name!r}, which can't be imported: {_text(error)}.") from error
    base = _load(BASES[kind])
    if not issubclass(cls, base) or not dataclasses.is_dataclass(cls):
        message = f"its {cls.__name__} must be a dataclass derived from {base.__name__}"
        raise ConfigError(f"{kind} is {name!r}, but {message}.")
    if missing := sorted(getattr(cls, "__abstractmethods__", ())):
        raise ConfigError(f"{kind} is {name!r}, but its {cls.__name__} does not define {', '.join(missing)}.")
    try:
        field_types(cls)  # evaluates the annotations
    except Exception as error:  # and those can raise anything
        message = f"its {cls.__name__} has a type that can't be resolved: {_text(error)}"
        raise ConfigError(f"{kind} is {name!r}, but {message}.") from error
    return cls


def find_executor(name: str) -> Callable[[Setup], Executor]:
    if name in EXECUTORS:
        return _load(EXECUTORS[name])
    try:
        return plugins("executor")[name].load()
    except Exception as error:  # another package can fail in any way
        raise ConfigError(f"engine.kind is {name!r}, which can't be imported: {_text(error)}.") from error


def check_installed(kind: str) -> None:
    """Raise if what this kind of engine needs is not installed, before anything starts."""
    if kind in SITES and any(importlib.util.find_spec(name) is None for name in ("flwr", "ray")):
        raise ConfigError(f"engine.kind is {kind!r}, which needs: pip install 'headwise[flower]'.")
    if kind not in ENGINES:
        find_executor(kind)


def expect_workers(experiment: Experiment) -> None:
    """If the experiment asks for several processes, let them import what they need while its data is loaded."""
    engine = experiment.engine
    if engine.kind == "local" and engine.workers.kind == "processes" and engine.workers.count > 1:
        start_server("headwise.app.prepare")


def load_function(name: str, at: str) -> Callable[..., Any]:
    """The function or class that ``package.module:name`` or ``file.py:name`` refers to; `at` is the setting."""
    place, _, attribute = name.rpartition(":")
    try:
        module = (
            _run_file(Path(place), _module_name(Path(place)))
            if place.endswith(".py")
            else importlib.import_module(place)
        )
    except ModuleNotFoundError as error:
        raise ConfigError(f"{at} is {name!r}, but there is no module {error.name!r}.") from error
    except Exception as error:  # another's file can raise anything
        raise ConfigError(f"{at} is {name!r}, which can't be imported: {_text(error)}.") from error
    function = getattr(module, attribute, None)
    if not callable(function):
        raise ConfigError(f"{at} is {name!r}, but {place} has no function or class {attribute!r}.")
    return function


def with_loaded_functions(experiment: Experiment) -> Experiment:
    """The experiment with the functions that its augmentations name; those of a session must be passed."""
    changes = tuple(
        a
        if a.is_built_in or a.is_of_session or a.given is not None
        else dataclasses.replace(a, given=load_function(a.name, "train.augment"))
        for a in experiment.train.augment
    )
    return dataclasses.replace(experiment, train=dataclasses.replace(experiment.train, augment=changes))


def read_card(kind: Kind, name: str) -> Card:
    """The card of a class that settings can name."""
    path = find_built_ins(kind).get(name)
    class_name = name.replace("-", "_")
    if path is None:
        cls = _import_class(kind, name)
        path = Path(sys.modules[cls.__module__].__file__ or "")
        class_name = cls.__name__
    tree = ast.parse(path.read_text(encoding="utf-8"))
    node = next(n for n in tree.body if isinstance(n, ast.ClassDef) and is_named(n.name, class_name))
    return Card(
        name,
        title=(ast.get_docstring(tree) or "").split("\n\n")[0].replace("\n", " "),
        summary=(ast.get_docstring(node) or "").split("\n")[0],
        facts=_read_class_variables(node),
        fields=help_in(node),
        bases=tuple(ast.unparse(b).split("[")[0] for b in node.bases),
        functions=tuple(n.name for n in node.body if isinstance(n, ast.FunctionDef)),
    )


def _import_class(kind: Kind, name: str) -> type[Any]:
    if name.endswith(".py"):
        return _from_file(kind, Path(name))
    if name in plugins(kind):
        return _from_plugin(kind, name)
    if name not in find_built_ins(kind):
        if kind == "data":
            _refuse_path(Path(name))
        raise ConfigError(f"{kind} is {name!r}, which is not known: {nearest(name, list_names(kind))}")
    stem = name.replace("-", "_")
    return _main_class(importlib.import_module(f"{package_of(kind)}.{stem}"), stem)


def _refuse_path(path: Path) -> None:
    """Say what is wrong with data that is a path, or looks like one."""
    if path.exists():
        how = f"headwise data init {path} writes a data.toml, which data takes"
        raise ConfigError(f"data is {str(path)!r}, which is not a data set but a path: {how}.")
    beside = [p.name for p in path.parent.glob("*.toml")]
    near = "" if closest(str(path), list_names("data")) else closest(path.name, beside)
    if near or path.suffix or len(path.parts) > 1:
        hint = "headwise data init makes a data.toml from a table."
        if near:
            hint = f"did you mean '{path.with_name(near)}'?"
        raise ConfigError(f"data is {str(path)!r}, but there is no such file: {hint}")


def _from_plugin(kind: Kind, name: str) -> type[Any]:
    point = plugins(kind)[name]
    try:
        return point.load()
    except Exception as error:  # another package can fail in any way
        package = point.dist.name if point.dist else point.value
        message = f"{name!r} of the package {package}, which can't be imported: {_text(error)}"
        raise ConfigError(f"{kind} is {message}.") from error


def _from_file(kind: Kind, path: Path) -> type[Any]:
    if not path.is_file():
        raise ConfigError(f"{kind} is {str(path)!r}, but there is no such file.")
    try:
        module = _run_file(path, f"headwise_user_{path.stem}")
    except SyntaxError as error:
        raise ConfigError(f"{kind} is {str(path)!r}, which is not valid Python: {error}.") from error
    except ImportError as error:
        if "relative import" not in str(error):
            raise
        raise ConfigError(
            f"{kind} is {str(path)!r}, which has a relative import: write 'from headwise.models.base import ...' "
            f"instead of 'from .base import ...', since the file is not in Headwise's folder."
        ) from error
    return _main_class(module, path.stem)


def _main_class(module: Any, stem: str) -> type[Any]:
    for name, value in vars(module).items():
        if isinstance(value, type) and is_named(name, stem) and value.__module__ == module.__name__:
            return value
    expected = "".join(part[:1].upper() + part[1:] for part in stem.split("_"))
    raise ConfigError(f"{module.__file__} must define a class named after the file: {expected}.")


def _make_network(choice: Choice) -> Any:
    """A user's own network: an object, what a factory returns, or a file in a run's folder."""
    module = importlib.import_module("headwise.models.network")
    stored = build(module.OwnNetwork, choice.options, "model")
    given = choice.given
    if given is None and stored.factory:
        given = load_function(stored.factory, "model")
    elif given is None and stored.path and not stored.session:
        given = module.rebuild_network(module.read_stored(stored), stored.path, load_layer)
    return stored if given is None else module.GivenNetwork(given, stored)


def load_layer(name: str) -> Any:
    """The class that a stored network calls ``module:Class``."""
    try:
        return pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"the network has a {name}, which can't be imported here.") from error


def _preset(cls: type[Any], preset: str, name: str, kind: str) -> Mapping[str, Any]:
    if not preset:
        return {}
    presets: Mapping[str, Mapping[str, Any]] = getattr(cls, "presets", {})
    if preset not in presets:
        raise ConfigError(f"{kind} is {name!r}, which has no such preset: {nearest(preset, presets)}")
    return presets[preset]


def _load(value: str) -> Any:
    return EntryPoint("", value, "").load()


class _SourceLoader(importlib.machinery.SourceFileLoader):
    """Compiles a file each time: bytecode on disk may come from an earlier edit in the same second."""

    def get_code(self, fullname: str) -> Any:
        return self.source_to_code(self.get_data(self.path), self.path)


def _module_name(path: Path) -> str:
    """The name under which other processes look for the classes of a file."""
    return f"headwise_network_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"


def _run_file(path: Path, name: str) -> Any:
    """Run a user's file as a module of this name; it enters `sys.modules` first, where its dataclasses look."""
    spec = importlib.util.spec_from_file_location(name, path, loader=_SourceLoader(name, str(path)))
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _read_class_variables(node: ast.ClassDef) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for item in node.body:
        option = isinstance(item, ast.AnnAssign) and not ast.unparse(item.annotation).startswith("ClassVar")
        if isinstance(item, ast.Assign | ast.AnnAssign) and item.value is not None and not option:
            target = item.targets[0] if isinstance(item, ast.Assign) else item.target
            try:
                values[ast.unparse(target)] = ast.literal_eval(item.value)
            except ValueError:  # not a literal, so a listing can't show it
                continue
    return values


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
