"""What Headwise is measured against, as plainly as possible: the loop that other libraries use, and a bare one."""

from __future__ import annotations

import copy
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from headwise.engine.plan import Plan
from headwise.engine.sampling import sample


class Naive:
    """A round of FedAvg as it is usually written: a loader of tuples, a copy of the model, an optimizer per client."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.model = _as_usual(copy.deepcopy(plan.models[0]))
        for p in self.model.parameters():  # as a network is made: `to` would leave kernels of one channel as they are
            p.data = p.data.clone(memory_format=torch.contiguous_format)
        parts = [plan.data.client(c).train for c in range(len(plan.data))]
        self.sets = [[(x.contiguous(), int(y)) for x, y in zip(p.x, p.y, strict=True)] for p in parts]

    def round(self, t: int) -> None:
        """One round."""
        plan = self.plan
        trained = list[tuple[int, dict[str, Tensor]]]()
        for c in sample(plan.experiment.sampling, len(plan.data), plan.experiment.seed, t):
            model = copy.deepcopy(self.model)
            model.train()
            optimizer = torch.optim.SGD(model.parameters(), lr=plan.experiment.train.lr)
            loader = DataLoader(self.sets[c], plan.experiment.train.batch, shuffle=True)
            for _ in range(plan.experiment.train.epochs):
                for x, y in loader:
                    optimizer.zero_grad()
                    cross_entropy(model(x), y).backward()
                    optimizer.step()
            trained.append((len(self.sets[c]), model.state_dict()))
        total = sum(n for n, _ in trained)
        mean = {k: sum(n / total * w[k] for n, w in trained) for k in trained[0][1]}
        self.model.load_state_dict(mean)


def _as_usual(network: nn.Module) -> nn.Module:
    """The network with ReLU before pooling, in place, as it is written elsewhere."""
    for part in network.modules():
        if isinstance(part, nn.Sequential):
            layers = list(part)
            for k, (layer, after) in enumerate(pairwise(list(part))):
                if isinstance(layer, nn.MaxPool2d) and isinstance(after, nn.ReLU):
                    layers[k : k + 2] = nn.ReLU(inplace=True), layer
            for k, layer in enumerate(layers):
                part[k] = layer
    return network


class Bare:
    """The same steps with the engine's kernels, client after client, and nothing federated around them."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.model = copy.deepcopy(plan.models[0]).train()

    def round(self, t: int) -> None:
        """As many steps as a round has."""
        plan = self.plan
        weights = list(self.model.parameters())
        rng = torch.Generator().manual_seed(t)
        for c in sample(plan.experiment.sampling, len(plan.data), plan.experiment.seed, t):
            data = plan.data.client(c).train
            for _ in range(plan.experiment.train.epochs):
                for i in torch.randperm(len(data), generator=rng).split(plan.experiment.train.batch):
                    slopes = torch.autograd.grad(cross_entropy(self.model(data.x[i]), data.y[i]), weights)
                    with torch.no_grad():
                        for w, g in zip(weights, slopes, strict=True):
                            w.add_(g, alpha=-plan.experiment.train.lr)
