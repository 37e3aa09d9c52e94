"""Federations with awkward memory layouts, run in several orders, and each at its own site: the bits must agree.

python awkward_shapes.py        # prints how many it tried; test_instruction_sets.py runs it with other kernels
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import torch

from headwise.app import registry
from headwise.data.federated import Clients
from headwise.engine.plan import Plan
from headwise.models.base import Task
from headwise.models.split import channels_last, lay_out
from headwise.settings.experiment import Experiment
from headwise.settings.options import Train
from headwise.testing.toy import need_equal, play
from headwise.testing.watching import Apart, Backwards

SIZES = (1, 2, 3, 15, 16, 17, 31, 33, 65)
"""training samples of the clients; each has some test samples too"""
DENSE = [
    # method, model, inputs, classes, batch, clients
    ("fedavg", "linear", 1, 2, 1, 5),
    ("fedavg", "mlp:30", 5, 5, 10, 9),
    ("fedavg", "mlp:16", 30, 7, 31, 9),
    ("fedrep", "mlp:17", 6, 8, 3, 3),
    ("fedah", "mlp:13", 13, 3, 10, 9),
    ("fedgmh", "mlp:63", 64, 10, 33, 8),
    ("fedgh", "mlp:65", 15, 5, 2, 7),
    ("ditto", "mlp:31:2", 33, 17, 16, 8),
]
IMAGES = [
    ("fedavg", "cnn", (1, 28, 28), 10, 5, 3),
    ("fedrep", "cnn", (3, 32, 32), 7, 3, 2),
    ("fedper", "lenet5", (3, 32, 32), 3, 2, 3),
    ("fedbn", "resnet18", (3, 8, 8), 3, 2, 2),
]


def network(name: str) -> object:
    model, *options = name.split(":")
    fields = dataclasses.fields(registry.find("model", model))
    return registry.find("model", model)(**{f.name: int(o) for f, o in zip(fields, options, strict=False)})


def plan(
    method: str, model: str, shape: tuple[int, ...], classes: int, batch: int, sizes: tuple[int, ...], rounds: int = 2
) -> Plan:
    """Clients with these numbers of training samples, and some test samples."""
    torch.manual_seed(1)
    task = Task(shape, classes)
    net = lay_out(network(model).build(task).eval())  # pyright: ignore
    tests = [1 + k % 4 for k in range(len(sizes))]
    ends = list(itertools.accumulate(n for pair in zip(sizes, tests, strict=True) for n in pair))
    x = torch.randn(ends[-1], *shape)
    x = x.contiguous(memory_format=torch.channels_last) if channels_last(net) else x
    data = Clients(
        task,
        x,
        torch.randint(classes, (ends[-1],)),
        np.array([[a, a, b] for a, b in zip(ends[::2], ends[1::2], strict=True)]),
    )
    experiment = Experiment(rounds=rounds, train=Train(batch=batch, lr=0.1))
    return Plan(experiment, registry.find("method", method)(), (net,), data)


def agree(made: Plan) -> None:
    """In order, backwards, and each at its own site."""
    expected = play(made).trace()
    for executor in (Backwards(made), Apart(made)):
        need_equal(
            expected, play(made, executor).trace(), f"{made.method} on {made.data.task}: {type(executor).__name__}"
        )


def first_sample_anywhere() -> None:
    """The same client after 0 to 15 samples of one number: at every four-byte offset in a cache line."""
    made = plan("fedavg", "mlp:5", (1,), 3, 4, (11,))
    alone = play(made).trace()
    for before in range(1, 17):
        x = torch.cat([torch.randn(before, 1), made.data.x])[before:]
        moved = dataclasses.replace(made, data=dataclasses.replace(made.data, x=x))
        need_equal(alone, play(moved).trace(), f"behind {before} samples")


def main() -> None:
    for method, model, inputs, classes, batch, clients in DENSE:
        agree(plan(method, model, (inputs,), classes, batch, SIZES[:clients]))
    for method, model, shape, classes, batch, clients in IMAGES:
        agree(plan(method, model, shape, classes, batch, SIZES[1 : 1 + clients], rounds=1))
    first_sample_anywhere()
    print(f"{len(DENSE) + len(IMAGES)} federations agree with {torch.backends.cpu.get_cpu_capability()}")


if __name__ == "__main__":
    main()
