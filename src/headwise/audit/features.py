"""Samples from the mean features of classes, which some methods send instead of models.

With the client's body, one looks for an input whose features are the mean that was sent (Mahendran and Vedaldi, 2015).
Without it, one can use a body that is like it: the initial one, which all clients start from, or another client's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import fmean

import torch
from torch import Tensor

from ..data.federated import Samples
from ..models.split import SplitModel
from .scene import Scene, Sent, personal, sent
from .scores import Finding, best_match

STEPS = 500
RATE = 0.05
FEW = 3
"""samples up to which a class mean is nearly a sample"""


def from_features(body: Callable[[Tensor], Tensor], wanted: Tensor, start: Tensor) -> Tensor:
    """Inputs whose features are the wanted ones, as far as a descent from the start finds them."""
    x = start.clone().requires_grad_()
    adam = torch.optim.Adam([x], lr=RATE)
    for _ in range(STEPS):
        adam.zero_grad()
        (body(x) - wanted).square().sum().backward()
        adam.step()
    return x.detach()


def attack(scene: Scene, clients: Sequence[int]) -> list[Finding]:
    """Feature inversion of what these clients send, by what is known of their bodies.

    The attacker has samples of the class from elsewhere: their mean is where it looks from, and what guessing is.
    """
    rows: dict[tuple[str, bool], list[tuple[float, float]]] = {}
    for client in clients:
        message = sent(scene, client)
        labels, means = getattr(message.up, "labels", None), getattr(message.up, "means", None)
        if labels is None or means is None:
            return []
        own, others = ([_of(s, k) for k in labels.tolist()] for s in (scene.train(client), scene.others(client)))
        known = [i for i in range(len(labels)) if len(own[i]) and len(others[i])]
        if not known:
            continue
        guesses = torch.stack([others[i].mean(0) for i in known])
        for knowing, model in _models(scene, client, message):
            through = model.body if means.shape[1] == model.width else model  # some send mean logits instead
            made = from_features(through, means[known], guesses)
            for i, *images in zip(known, made, guesses, strict=True):
                near = [float(best_match(own[i], x[None]).max()) for x in images]
                rows.setdefault((knowing, len(own[i]) <= FEW), []).append((near[0], near[1]))
    found: list[Finding] = []
    for (knowing, few), cases in rows.items():
        name = f"feature inversion, {'up to' if few else 'more than'} {FEW} samples of the class"
        made, guess = (fmean(part) for part in zip(*cases, strict=True))
        found.append(Finding(name, knowing, "correlation with the nearest sample", made, guess, len(cases)))
    return found


def _models(scene: Scene, client: int, message: Sent) -> Iterator[tuple[str, SplitModel]]:
    """Networks like the client's, by what must be known to have them."""
    other = next((c for c in scene.states if c != client and _alike(scene, c, client)), None)
    models = {
        "the client's body": message.model,
        "another client's body": None if other is None else personal(scene, other),
        "the initial body": scene.plan.models[client % len(scene.plan.models)],
    }
    for knowing, model in models.items():
        if isinstance(model, SplitModel):
            yield knowing, model.eval()


def _alike(scene: Scene, one: int, other: int) -> bool:
    """Whether two clients have the same architecture."""
    return one % len(scene.plan.models) == other % len(scene.plan.models)


def _of(samples: Samples, label: int) -> Tensor:
    return samples.x[samples.y == label]
