"""Pages of reference that are written from the code: commands, settings and everything with a name."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import click

from headwise.app import registry
from headwise.cli import VERBS, cli
from headwise.settings.experiment import Experiment
from headwise.settings.fields import dump, field_help, field_types, type_words
from headwise.settings.names import Kind, list_names

NAMED: dict[Kind, tuple[str, str]] = {
    "data": ("Data sets", "--data"),
    "partition": ("Partitions", "--partition"),
    "model": ("Networks", "--model"),
}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """In Markdown; columns of numbers are aligned to the right."""
    kept = [[_cell(cell) for cell in row] for row in rows]
    numbers = [all(re.fullmatch(r"[\d.,± %-]+", cell) for cell in column) for column in zip(*kept, strict=True)]
    lines = [head, ["---:" if number else "---" for number in numbers], *kept]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", " ".join(text.split()))


def options_table(cls: type[Any], prefix: str = "") -> str:
    """The fields of a dataclass that are not tables themselves."""
    rows = [
        (f"`{prefix}{field.name}`", _default(field), _allowed(field_types(cls)[field.name]), _help(cls, field.name))
        for field in dataclasses.fields(cls)
        if not _is_table(field_types(cls)[field.name])
    ]
    return table(("option", "default", "allowed", "what it does"), rows)


def _is_table(kind: Any) -> bool:
    return dataclasses.is_dataclass(kind) and not hasattr(kind, "parse")


def _allowed(kind: Any) -> str:
    return type_words(kind).replace("Choice", "a name with its options")


def _help(cls: type[Any], name: str) -> str:
    text = field_help(cls).get(name, "")
    return text[:1].upper() + text[1:]


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        value = dump(field.default_factory())
    elif field.default is dataclasses.MISSING:
        return "required"
    else:
        value = dump(field.default)
    return "none" if value in (None, "", []) else f"`{value}`"


def commands() -> str:
    said = ["# Commands", "The same as `headwise COMMAND --help`. A user's mistake ends with exit code 2."]
    for verb in VERBS:
        context = click.Context(cli, info_name="headwise", max_content_width=100, help_option_names=["-h", "--help"])
        command = cli.get_command(context, verb)
        assert command is not None
        said.append(f"## {verb}\n\n{VERBS[verb][:1].upper()}{VERBS[verb][1:]}.")
        said += [f"```\n{text}\n```" for text in _helps(command, verb, context)]
    return "\n\n".join(said) + "\n"


def _helps(command: click.Command, name: str, parent: click.Context) -> Iterator[str]:
    context = click.Context(command, info_name=name, parent=parent, max_content_width=100)
    yield command.get_help(context)
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            if inner := command.get_command(context, each):
                yield from _helps(inner, each, context)


def settings() -> str:
    said = [
        "# Settings",
        "All settings form one tree. Write them as TOML tables in an experiment's file, as keyword arguments of "
        "`hw.Experiment`, or as `--set train.momentum=0.5`. An unknown key is an error that suggests the nearest one.",
        "## Experiment",
        options_table(Experiment),
    ]
    for name, kind in _tables(Experiment):
        text = " ".join((kind.__doc__ or "").split())
        said += [f"## {name}", "" if text.startswith(f"{kind.__name__}(") else text, options_table(kind, f"{name}.")]
    return "\n\n".join(part for part in said if part) + "\n"


def _tables(cls: type[Any], prefix: str = "") -> Iterator[tuple[str, type[Any]]]:
    for name, kind in field_types(cls).items():
        if _is_table(kind):
            yield f"{prefix}{name}", kind
            yield from _tables(kind, f"{prefix}{name}.")


def names() -> str:
    said = [
        "# Data sets, partitions, networks",
        "Everything that you can choose by name. Options follow after colons: `--partition dirichlet:0.1`, "
        "`--model mlp:32`. The same as `headwise list data`, `headwise list partitions` and `headwise list models`.",
    ]
    for kind, (heading, flag) in NAMED.items():
        said.append(f"## {heading}\n\nChosen by `{flag}`.")
        for name in list_names(kind):
            cls = registry.find(kind, name)
            said.append(f"### {name}\n\n{registry.read_card(kind, name).summary}")
            if field_types(cls):
                said.append(options_table(cls))
    return "\n\n".join(said) + "\n"
