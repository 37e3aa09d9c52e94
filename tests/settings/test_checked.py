"""Values given in Python are checked like those on the command line, with the same sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headwise.app import registry
from headwise.data.partition.dirichlet import Dirichlet
from headwise.data.sources.synthetic import Synthetic
from headwise.errors import ConfigError
from headwise.methods.fedafk import FedAFK
from headwise.methods.fedah import FedAH
from headwise.models.mlp import MLP
from headwise.settings.choices import Choice
from headwise.settings.names import Kind


@pytest.mark.parametrize(
    ("make", "kind", "typed"),
    [
        (lambda: FedAFK(lam=3.0), "method", "fedafk:lam=3.0"),
        (lambda: FedAFK(lam="much"), "method", "fedafk:lam=much"),  # pyright: ignore[reportArgumentType]
        (lambda: FedAH(weights="none"), "method", "fedah:weights=none"),  # pyright: ignore[reportArgumentType]
        (lambda: MLP(hidden=0), "model", "mlp:hidden=0"),
        (lambda: Dirichlet(-1.0), "partition", "dirichlet:-1.0"),
        (lambda: Synthetic(classes=1), "data", "synthetic:classes=1"),
    ],
)
def test_python_and_the_command_line_say_the_same(make: Callable[[], Any], kind: Kind, typed: str) -> None:
    with pytest.raises(ConfigError) as typing:
        registry.make(kind, Choice.parse(typed, kind))
    with pytest.raises(ConfigError) as calling:
        make()
    assert str(calling.value) == str(typing.value)
    assert str(calling.value).startswith(f"{kind}.")


def test_a_whole_number_becomes_a_number() -> None:
    assert isinstance(FedAFK(lam=1).lam, float)
