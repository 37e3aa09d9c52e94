"""Reconstruction of samples from gradients, and from class means of features.

A fully connected first layer reveals its inputs: the gradients of a unit's weights and bias are g x and g, summed over
the batch. For any network, the attacker can search for samples whose gradient resembles the one that was sent (Zhu et
al., Deep Leakage from Gradients, 2019; by angle: Geiping et al., Inverting Gradients, 2020).

Some methods send class means of features instead. With the client's body, the attacker searches for an input whose
features equal the mean (Mahendran and Vedaldi, 2015). Without it, a similar body may do: the initial one, from
which all clients start, or another client's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import fmean

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..data.federated import Samples
from ..models.split import SplitModel
from ..params import Params
from ..seeds import seed_of
from .findings import Finding, best_match
from .scene import ClientMessage, Scene, find_change, load_personal_model, make_message

BATCHES = (1, 2, 8)
CANDIDATES = 64
GRADIENT_STEPS = 300
GRADIENT_RATE = 0.1

Case = tuple[Tensor, Tensor]
"""how close the reconstruction, and a guess, come to each sample"""


def first_layer(model: SplitModel) -> str | None:
    """The name of the first layer, if it is fully connected and has a bias."""
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear) and layer.bias is not None:
            return name
        if list(layer.parameters(recurse=False)):
            return None
    return None


def from_first_layer(weight: Tensor, bias: Tensor) -> Tensor:
    """Candidate samples from a first layer's gradients: their ratio, for each unit whose bias changed."""
    units = bias.abs().argsort(descending=True)[:CANDIDATES]
    units = units[bias[units] != 0]
    return weight[units] / bias[units, None]


def from_whole_gradient(model: SplitModel, w: Params, direction: Params, start: Tensor, y: Tensor) -> Tensor:
    """Search from `start` for samples with labels `y` whose gradient points in the wanted direction."""
    x = start.clone().requires_grad_()
    weights = {k: t.detach().requires_grad_() for k, t in w.items() if t.is_floating_point()}
    names = [k for k in weights if k in direction]
    goal = torch.cat([direction[k].flatten() for k in names])
    adam = torch.optim.Adam([x], lr=GRADIENT_RATE)
    for _ in range(GRADIENT_STEPS):
        loss = cross_entropy(model.given(Params(weights))(x), y)
        slopes = torch.autograd.grad(loss, [weights[k] for k in names], create_graph=True)
        mine = torch.cat([g.flatten() for g in slopes])
        adam.zero_grad()
        x.grad = torch.autograd.grad(1 - torch.cosine_similarity(mine, goal, dim=0), x)[0].sign()
        adam.step()
    return x.detach()


def invert_gradients(scene: Scene, clients: Sequence[int], seed: int = 0) -> list[Finding]:
    """Invert what these clients send after one step on a few samples, and after a whole round."""
    findings: list[Finding] = []
    for size in BATCHES:
        drawn = [(c, _draw_samples(scene, c, size, seed)) for c in clients if len(scene.train(c)) >= size]
        what = f"gradient inversion, batch of {size}"
        known = "the message and the labels"
        findings += _summarize(
            f"{what}, ratios", "the message", [_reconstruct_by_ratio(scene, c, only, seed) for c, only in drawn]
        )
        findings += _summarize(
            f"{what}, same direction", known, [_reconstruct_by_angle(scene, c, only, seed) for c, only in drawn]
        )
    whole = [_reconstruct_by_ratio(scene, c, None, seed) for c in clients]
    return [*findings, *_summarize("gradient inversion, whole round, ratios", "the message", whole)]


def _summarize(name: str, knowing: str, cases: Sequence[Case | None]) -> list[Finding]:
    done = [case for case in cases if case is not None]
    if not done:
        return []
    made, guess = (torch.cat(part) for part in zip(*done, strict=True))
    measure = "correlation with the nearest sample made"
    return [Finding(name, knowing, measure, float(made.mean()), float(guess.mean()), len(made))]


def _draw_samples(scene: Scene, client: int, size: int, seed: int) -> Tensor:
    rng = torch.Generator().manual_seed(seed_of(seed, "audit", client))
    return torch.randperm(len(scene.train(client)), generator=rng)[:size]


def _start(scene: Scene, client: int, count: int, seed: int) -> Tensor:
    """Where the search starts: the mean of all other clients' samples plus a little noise."""
    rng = torch.Generator().manual_seed(seed_of(seed, "start", client))
    mean = scene.others(client).x.mean(0, keepdim=True)
    return mean + 0.1 * torch.randn((count, *mean.shape[1:]), generator=rng)


def _reconstruct_by_ratio(scene: Scene, client: int, only: Tensor | None, seed: int) -> Case | None:
    update = find_change(scene, make_message(scene, client, only))
    layer = first_layer(scene.plan.common)
    if update is None or layer is None or f"{layer}.weight" not in update.moved:
        return None
    truth = scene.train(client).x if only is None else scene.train(client).x[only]
    made = from_first_layer(update.moved[f"{layer}.weight"], update.moved[f"{layer}.bias"])
    return best_match(truth, made), _compare_guess(scene, client, truth, len(made), seed)


def _reconstruct_by_angle(scene: Scene, client: int, only: Tensor, seed: int) -> Case | None:
    update = find_change(scene, make_message(scene, client, only))
    model = scene.plan.common
    if update is None or update.moved.keys() != model.weights().keys():  # part of the network stays at the client
        return None
    truth = scene.train(client).x[only]
    y = scene.train(client).y[only]
    made = from_whole_gradient(model, update.before, -1.0 * update.moved, _start(scene, client, len(only), seed), y)
    return best_match(truth, made), _compare_guess(scene, client, truth, len(made), seed)


def _compare_guess(scene: Scene, client: int, truth: Tensor, count: int, seed: int) -> Tensor:
    """How close `count` random samples of other clients come."""
    others = scene.others(client).x
    rng = torch.Generator().manual_seed(seed_of(seed, "guess", client))
    return best_match(truth, others[torch.randperm(len(others), generator=rng)[: max(count, 1)]])


FEATURE_STEPS = 500
FEATURE_RATE = 0.05
FEW = 3
"""up to this many samples, a class mean is nearly a sample"""


def from_features(body: Callable[[Tensor], Tensor], features: Tensor, start: Tensor) -> Tensor:
    """Search for inputs with the wanted features by gradient descent from `start`."""
    x = start.clone().requires_grad_()
    adam = torch.optim.Adam([x], lr=FEATURE_RATE)
    for _ in range(FEATURE_STEPS):
        adam.zero_grad()
        (body(x) - features).square().sum().backward()
        adam.step()
    return x.detach()


def invert_features(scene: Scene, clients: Sequence[int]) -> list[Finding]:
    """Invert the class means that these clients send, by what the attacker knows of their bodies.

    The attacker has samples of the class from other clients: the search starts at their mean, which is also the guess.
    """
    rows: dict[tuple[str, bool], list[tuple[float, float]]] = {}
    for client in clients:
        message = make_message(scene, client)
        labels = getattr(message.up, "labels", None)
        means = getattr(message.up, "means", None)
        if labels is None or means is None:
            return []
        own, others = (
            [_samples_of(s, k) for k in labels.tolist()] for s in (scene.train(client), scene.others(client))
        )
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


def _models(scene: Scene, client: int, message: ClientMessage) -> Iterator[tuple[str, SplitModel]]:
    """Networks like the client's, by what the attacker must know to have them."""
    kinds = len(scene.plan.models)  # clients have these architectures in turn
    other = next((c for c in scene.states if c != client and c % kinds == client % kinds), None)
    models = {
        "the client's body": message.model,
        "another client's body": None if other is None else load_personal_model(scene, other),
        "the initial body": scene.plan.models[client % kinds],
    }
    for knowing, model in models.items():
        if isinstance(model, SplitModel):
            yield knowing, model.eval()


def _samples_of(samples: Samples, label: int) -> Tensor:
    return samples.x[samples.y == label]
