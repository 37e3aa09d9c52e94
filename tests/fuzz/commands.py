"""Bad inputs for every verb, derived from the commands' own parameters: hostile paths, numbers and strings."""

from __future__ import annotations

import dataclasses
import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click

from headwise.app import registry
from headwise.cli import cli
from headwise.cli.options import INPUT_FOLDER, OUTPUT_FOLDER, PathType
from headwise.settings.experiment import Experiment
from headwise.settings.fields import field_types
from headwise.settings.names import ROOMS, list_names

SMALL = {
    "data": "synthetic:120:3:5:sites=2",
    "partition": "iid",
    "model": "mlp:4",
    "clients": "3",
    "rounds": "2",
}
QUIET: dict[str, Any] = {"quiet": True}
GOOD: dict[str, dict[str, Any]] = {
    "run": {**SMALL, "out": "new", **QUIET},
    "resume": {"run": "run", **QUIET},
    "site init": {"folder": "newsite", "client": "0", "data": SMALL["data"]},
    "site start": {"folder": "site", "superlink": "127.0.0.1:9", "insecure": True},
    "site list": {"folder": "site"},
    "site export": {"folder": "site", "run": "none", "client": "0", "out": "model.safetensors"},
    "site adapt": {"folder": "site", "offer": "folder", "out": "adapted"},
    "site erase": {"folder": "site", "run": "none", "client": "0", "yes": True},
    "server start": {"folder": "server"},
    "server register": {"folder": "server", "keys": "site/site.key.pub"},
    "server sign": {"configs": "sites.toml", "key": "key", "out": "list.json"},
    "deploy": {"config": "sites.toml", "server": "server", "out": "deployed"},
    "compare": {"what": "fedavg", **SMALL, "out": "compared", **QUIET},
    "choose": {**SMALL, "budget": "1s", "trials": "0", "draws": "2", "out": "chosen", **QUIET},
    "tune": {**SMALL, "trials": "1", "out": "tuned", **QUIET},
    "reproduce": {"table": "fedgmh/2", "scale": "quick", "out": "table", "cells": "cells", **QUIET},
    "report": {"runs": "run", "out": "page.html"},
    "cite": {"runs": "run"},
    "audit": {"run": "run", "clients": "1"},
    "watch": {"folder": "run", "port": "0"},
    "data show": {**{k: v for k, v in SMALL.items() if k not in ("model", "rounds")}, "out": "page.html"},
    "data init": {"path": "patients.csv", "clients": "hospital", "target": "ill", "out": "new.toml"},
    "data check": {"file": "patients.toml"},
    "data import": {"layout": "pfllib", "folder": "folder", "out": "imported"},
    "league": {"methods": "fedavg", "draws": "2", "out": "leagued", "no_run": True, **QUIET},
    "list": {"kind": "methods"},
    "describe": {"what": "fedavg"},
    "site review": {"config": "sites.toml", "folder": "site"},
    "site settings": {},
    "site status": {"folder": "site"},
    "site stop": {"folder": "site"},
    "server status": {"folder": "server"},
    "server stop": {"folder": "server"},
    "adapt": {"run": "run", "data": "patients.toml"},
    "retrain": {"run": "run", "without": "0", "out": "again", **QUIET},
    "export": {"run": "run", "everyone": True, "out": "models", **QUIET},
    "predict": {"model": "folder", "data": "patients.csv", "out": "said.csv", **QUIET},
    "evaluate": {"model": "folder", "data": "patients.csv", **QUIET},
    "data deal": {"data": SMALL["data"], "clients": "2", "out": "dealt"},
    "new method": {"name": "mymethod", "out": "newfolder"},
    "check": {"method": "fedavg"},
    "doctor": {},
}
"""parameters with which each verb works; the fixture `room` creates what they name"""
PATIENTS = 'format = "csv"\npath = "patients.csv"\nclient = "hospital"\ntarget = "ill"\n[features]\nnumber = ["age"]\n'
REFUSED_ANYWAY = {"site export", "site adapt", "site erase", "predict", "evaluate", "adapt", "data import"}
"""because the site has no run, the folder no model, offer or clients, and the run other inputs than the table"""

PATHS = {
    "missing": "not/there", "a folder": "folder", "a file": "file", "in a file": "file/x",
    "a pipe": "pipe", "a socket": "socket", "a loop": "loop", "to nowhere": "nowhere", "to a device": "device",
    "closed": "closed", "long": "x" * 5000, "a long name": "x" * 300, "a rather long name": "x" * 253,
    "deep": "x/" * 3000, "new and long": f"new/{'x' * 300}", "empty": "", "root": "/", "here": ".", "above": "..",
    "NUL": "a\0b", "not UTF-8": "a\udcffb", "markup": "[/x]", "lines": "a\nb\x1b[31m", "a dash": "-", "home": "~",
    "quotes": "a\"b'c\\", "emoji": "😀\x7f",
}  # fmt: skip
NUMBERS = ("0", "-1", str(10**9), str(10**30), "9" * 5000, "nan", "inf", "-inf", "1e999", "0.5", "", "many", "1_0", "٣")
TEXTS = {
    "empty": "", "space": " ", "markup": "[/x]", "control": "\x1b[31m\x07", "lines": "a\nb\r\nc", "long": "x" * 5000,
    "deep": "[" * 5000, "NUL": "a\0b", "not UTF-8": "a\udcffb", "emoji": "😀\x7f", "umlaut": "ü.example",
    "format": "{}%s{0.__class__}", "quotes": "a\"b'c\\", "up": "../../x", "signs": ":=,;@/.", "own file": "file.py",
    "date": "1979-05-27", "table": "{a=1}", "list": "[1]", "true": "true", "none": "none", "dashes": "--",
}  # fmt: skip
KEYS = ("", "a.b", "train", "train.", ".lr", "method.", "model.x", "data.samples.x", "engine.flower.x", "[/x]", "ü")


class Case(NamedTuple):
    """One parameter of a verb with a hostile value; all others are good."""

    verb: str
    parameter: str
    form: str
    value: str

    @property
    def arguments(self) -> list[str]:
        return typed(self.verb, {**GOOD[self.verb], self.parameter: self.value})

    def __str__(self) -> str:
        return f"{self.verb} {self.parameter} {self.form}"[:80].encode("ascii", "backslashreplace").decode()


def typed(verb: str, values: dict[str, Any]) -> list[str]:
    words, command = verb.split(), leaves()[verb]
    for parameter in command.params:
        if (value := values.get(parameter.name or "")) is None:
            continue
        if isinstance(parameter, click.Argument):
            words.append(value)
        else:
            words += [parameter.opts[-1]] if value is True else [parameter.opts[-1], value]
    return words


def leaves() -> dict[str, click.Command]:
    """Every verb that does something."""
    return dict(_leaves(cli, ""))


def _leaves(group: click.Group, at: str) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        path = f"{at} {name}".strip()
        if isinstance(command, click.Group):
            yield from _leaves(command, path)
        else:
            yield path, command


def every_case() -> list[Case]:
    cases: list[Case] = []
    for verb, command in leaves().items():
        for p in command.params:
            if isinstance(p, click.Option) and p.is_flag:
                continue
            assert p.name is not None
            cases += [Case(verb, p.name, form, value) for form, value in _forms(verb, p).items()]
    return [*cases, *_settings("run"), *_settings("deploy"), *_options()]


def _forms(verb: str, parameter: click.Parameter) -> dict[str, str]:
    numbers = {n[:40] or "no number": n for n in NUMBERS}
    if isinstance(parameter.type, PathType):
        searched = parameter.type is INPUT_FOLDER and verb in ("report", "list", "watch")  # would search the whole disk
        written = parameter.type is OUTPUT_FOLDER  # a bug in the code under test must not write there
        left_out = {"/", ".."} if searched else {"/"} if written else set()
        return {k: v for k, v in PATHS.items() if v not in left_out}
    if isinstance(parameter.type, click.types.StringParamType):
        return TEXTS | numbers | ({"as a file": "file.toml"} if verb == "compare" else {})
    return numbers


def _settings(verb: str) -> Iterator[Case]:
    """Every setting of an experiment with each number, and keys that are not settings."""
    for key in (*_keys(Experiment), *KEYS):
        for value in (*NUMBERS, "[]", "{}"):
            yield Case(verb, "changes", f"{key}={value[:20]}", f"{key}={value}")


def _keys(cls: Any, at: str = "") -> Iterator[str]:
    for name, kind in field_types(cls).items():
        yield f"{at}{name}"
        if dataclasses.is_dataclass(kind) and kind.__module__ == "headwise.settings.options":
            yield from _keys(kind, f"{at}{name}.")


def _options() -> Iterator[Case]:
    """Every option of every method, network, data set and partition with each number."""
    for kind in ROOMS:
        for name in list_names(kind):
            for option in registry.read_card(kind, name).fields:
                for number in NUMBERS:
                    yield Case("run", kind, f"{name}:{option}={number[:20]}", f"{name}:{option}={number}")


def drawn(count: int) -> list[Case]:
    """`count` cases: one for each parameter of each verb, then others at random."""
    rng, cases = random.Random(18), every_case()
    rng.shuffle(cases)
    first: dict[tuple[str, str], Case] = {}
    for case in cases:
        first.setdefault((case.verb, case.parameter), case)
    chosen = set(first.values())
    return [*first.values(), *[c for c in cases if c not in chosen][: max(count - len(first), 0)]]


def furnish(folder: Path) -> tuple[int, int]:
    """Create what hostile paths lead to and good parameters name, except runs and sites.

    Returns the two ends of a terminal, which is a device while they are open.
    """
    (folder / "folder").mkdir()
    (folder / "folder" / "thesis.txt").write_text("four years of work")
    (folder / "server").mkdir()
    for name in ("file", "closed", "file.py", "file.toml"):
        (folder / name).write_text("four years of work")
    (folder / "closed").chmod(0)
    rows = [f"{'ab'[k % 2]},{k % 7},{'yes' if k % 3 else 'no'}" for k in range(40)]
    (folder / "patients.csv").write_text("\n".join(["hospital,age,ill", *rows]))
    (folder / "patients.toml").write_text(PATIENTS)
    (folder / "sites.toml").write_text(
        f'rounds = 2\nclients = 2\ndata = "{SMALL["data"]}"\npartition = "natural"\nmodel = "mlp:4"\n'
    )
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to("loop")
    (folder / "nowhere").symlink_to("not/there")
    terminal = os.openpty()  # a device of our own, which can't be replaced by a file
    (folder / "device").symlink_to(os.ttyname(terminal[1]))
    with socket.socket(socket.AF_UNIX) as made:
        before = os.getcwd()
        os.chdir(folder)  # socket addresses are limited to about 100 characters
        made.bind("socket")
        os.chdir(before)
    return terminal
