"""Feature inversion: recovers samples from class means of features, which some methods send instead of models.

With the client's body, the attacker searches for an input whose features equal the mean that was sent (Mahendran and
Vedaldi, 2015). Without it, a similar body may do: the initial one, from which all clients start, or another client's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import fmean

import torch
from torch import Tensor

from ..data.federated import Samples
from ..models.split import SplitModel
from .findings import Finding, best_match
from .scene import Scene, Sent, personal, sent

STEPS = 500
RATE = 0.05
FEW = 3
"""up to this many samples, a class mean is nearly a sample"""


def from_features(body: Callable[[Tensor], Tensor], features: Tensor, start: Tensor) -> Tensor:
    """Search for inputs with the wanted features by gradient descent from `start`."""
    x = start.clone().requires_grad_()
    adam = torch.optim.Adam([x], lr=RATE)
    for _ in range(STEPS):
        adam.zero_grad()
        (body(x) - features).square().sum().backward()
        adam.step()
    return x.detach()


def attack(scene: Scene, clients: Sequence[int]) -> list[Finding]:
    """Invert the class means that these clients send, by what the attacker knows of their bodies.

    The attacker has samples of the class from other clients: the search starts at their mean, which is also the guess.
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
            through = model.body if means.shape[1] == model.width else model  # some methods send mean logits
            made = from_features(through, means[known], guesses)
            for i, *images in zip(known, made, guesses, strict=True):
                near = [float(best_match(own[i], x[None]).max()) for x in images]
                rows.setdefault((knowing, len(own[i]) <= FEW), []).append((near[0], near[1]))
    findings: list[Finding] = []
    for (knowing, few), cases in rows.items():
        name = f"feature inversion, {'up to' if few else 'more than'} {FEW} samples of the class"
        made, guess = (fmean(part) for part in zip(*cases, strict=True))
        findings.append(Finding(name, knowing, "correlation with the nearest sample", made, guess, len(cases)))
    return findings


def _models(scene: Scene, client: int, message: Sent) -> Iterator[tuple[str, SplitModel]]:
    """Networks like the client's, by what the attacker must know to have them."""
    kinds = len(scene.plan.models)  # clients have these architectures in turn
    other = next((c for c in scene.states if c != client and c % kinds == client % kinds), None)
    models = {
        "the client's body": message.model,
        "another client's body": None if other is None else personal(scene, other),
        "the initial body": scene.plan.models[client % kinds],
    }
    for knowing, model in models.items():
        if isinstance(model, SplitModel):
            yield knowing, model.eval()


def _of(samples: Samples, label: int) -> Tensor:
    return samples.x[samples.y == label]
