"""Methods of Headwise next to the public code of others: same samples, same initial weights, one process.

    python benchmarks/side_by_side.py --peers FOLDER

FOLDER holds checkouts of https://github.com/TsingZ0/PFLlib (as `pfllib`), https://github.com/TsingZ0/HtFLlib
(`htfllib`), https://github.com/JianXu95/FedPAC (`fedpac`), https://github.com/cj-mclaughlin/pFedFDA (`pfedfda`) and
https://github.com/alpemreacar/FedDyn (`feddyn`). Their files are run as they are; packages that they import (cvxpy,
torchmin, statsmodels, h5py, torchvision) are replaced by a few lines below, so that nothing need be installed. They
write their data and results into FOLDER.

Clients have as many samples as a batch, so that nothing is shuffled and both sides must make the same models: what is
printed is the largest difference of any number in them, next to how far training moved any.
docs/results/side-by-side.md explains every line.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import os
import random
import shutil
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import scipy.optimize
import torch
from torch import Tensor, nn

from headwise.app import registry
from headwise.data.dataset import Dataset
from headwise.data.federated import FederatedData
from headwise.data.splits import Parts
from headwise.models.split import SplitModel
from headwise.settings.options import Train
from headwise.testing.toy import play, toy_plan

CLIENTS, CLASSES, WIDTH, TEST, ROUNDS, EPOCHS, LR = 6, 10, 16, 30, 4, 3, 0.1


class Scene:
    """Six clients with three or four digits each, and the network that both sides begin with."""

    def __init__(self, samples: int) -> None:
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
        rng = np.random.default_rng(0)
        self.samples = samples
        self.x = (x / 16).astype(np.float32)
        self.y = y.astype(np.int64)
        self.parts: list[Parts] = []
        free = rng.permutation(len(y))
        for c in range(CLIENTS):
            own = [i for i in free if (y[i] - 2 * c) % CLASSES < 3 + c % 2][: samples + TEST]
            free = np.setdiff1d(free, own)
            free = rng.permutation(free)
            self.parts.append(Parts(np.array(own[:samples]), np.array([], int), np.array(own[samples:])))
        torch.manual_seed(0)
        self.first = SplitModel(nn.Sequential(nn.Linear(64, WIDTH), nn.ReLU()), nn.Linear(WIDTH, CLASSES))

    def data(self) -> FederatedData:
        return FederatedData(Dataset(self.x, self.y, tuple("0123456789")), self.parts)

    def run(self, name: str, train: Mapping[str, float] | None = None, **options: Any) -> Any:
        """Our last round, on torch's plain layers."""
        method = registry.find("method", name)(**options)
        train = Train(batch=self.samples, lr=LR, epochs=EPOCHS, **(train or {}))
        plan = toy_plan(
            method, models=[copy.deepcopy(self.first)], data=self.data(), rounds=ROUNDS, train=train, kernels="plain"
        )
        return play(plan).ended[-1]

    def write(self, folder: Path) -> None:
        """The samples as PFLlib and HtFLlib read them."""
        for part in ("train", "test"):
            (folder / part).mkdir(parents=True, exist_ok=True)
            for c, own in enumerate(self.parts):
                i = getattr(own, part)
                np.savez(folder / part / f"{c}.npz", data=np.array({"x": self.x[i], "y": self.y[i]}, dtype=object))


@contextlib.contextmanager
def peer(folder: Path, **stubs: types.ModuleType) -> Iterator[None]:
    """Their modules can be imported inside, and nothing is left of them afterwards."""
    before = {*sys.modules}
    place = os.getcwd()
    load = torch.load
    sys.modules.update({name.replace("__", "."): module for name, module in stubs.items()})
    sys.path.insert(0, str(folder))
    os.chdir(folder)
    torch.load = lambda *a, **k: load(*a, **{"weights_only": False, **k})  # type: ignore[assignment]
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        torch.load = load
        os.chdir(place)
        sys.path.remove(str(folder))
        for name in {*sys.modules} - before:
            if name.split(".")[0] not in ("sklearn", "scipy", "matplotlib", "torch"):
                del sys.modules[name]


def stub(name: str, **values: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    vars(module).update(values)
    return module


class Quadratic:
    """As much of cvxpy as FedPAC's server asks for: min x^T Q x on the simplex, here by scipy's SLSQP."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.value: Any = None

    def __ge__(self, other: float) -> None:
        return None


def cvxpy() -> types.ModuleType:
    class Problem:
        def __init__(self, objective: tuple[Quadratic, Any], constraints: Any) -> None:
            self.x, self.q = objective

        def solve(self) -> None:
            n = self.x.n
            solution = scipy.optimize.minimize(
                lambda a: a @ self.q @ a,
                np.full(n, 1 / n),
                jac=lambda a: 2 * self.q @ a,
                bounds=[(0, 1)] * n,
                constraints={"type": "eq", "fun": lambda a: a.sum() - 1, "jac": lambda a: np.ones(n)},
                method="SLSQP",
                options={"ftol": 1e-14, "maxiter": 1000},
            )
            self.x.value = solution.x

    return stub(
        "cvxpy",
        Variable=Quadratic,
        Minimize=lambda objective: objective,
        quad_form=lambda x, q: (x, np.asarray(q, dtype=np.float64)),
        sum=lambda x: 0.0,
        Problem=Problem,
    )


class Nowhere:
    """A file that forgets."""

    def __init__(self, *_: Any) -> None:
        pass

    def __enter__(self) -> Nowhere:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def create_dataset(self, *_: Any, **__: Any) -> None:
        pass


def pfllib_args(scene: Scene, model: nn.Module, **more: Any) -> argparse.Namespace:
    known: dict[str, Any] = {
        "device": "cpu", "dataset": "digits", "num_classes": CLASSES, "global_rounds": ROUNDS - 1,
        "local_epochs": EPOCHS, "batch_size": scene.samples, "local_learning_rate": LR, "model": model,
        "num_clients": CLIENTS, "join_ratio": 1.0, "random_join_ratio": False, "few_shot": 0, "algorithm": "peer",
        "time_select": False, "goal": "test", "time_threthold": 1e9, "save_folder_name": "temp", "top_cnt": 100,
        "auto_break": False, "eval_gap": 1000, "client_drop_rate": 0.0, "train_slow_rate": 0.0, "send_slow_rate": 0.0,
        "dlg_eval": False, "dlg_gap": 1000, "batch_num_per_client": 2, "num_new_clients": 0,
        "fine_tuning_epoch_new": 0, "learning_rate_decay": False, "learning_rate_decay_gamma": 1.0,
    }  # fmt: skip
    return argparse.Namespace(**{**known, **more})


@contextlib.contextmanager
def in_order(sort: bool) -> Iterator[None]:
    """Let PFLlib's server take clients' models in one order, if asked."""
    choice, sample = np.random.choice, random.sample
    if sort:
        np.random.choice = lambda a, *_, **__: np.array(a)  # type: ignore[assignment]
        random.sample = lambda population, k: list(population)  # type: ignore[assignment]
    try:
        yield
    finally:
        np.random.choice, random.sample = choice, sample


def run_pfllib(peers: Path, scene: Scene, server: str, sort: bool = False, **more: Any) -> Any:
    """The server of PFLlib after as many rounds."""
    scene.write(peers / "pfllib/dataset/digits")
    with peer(peers / "pfllib/system", h5py=stub("h5py", File=Nowhere), cvxpy=cvxpy()):
        split: Any = __import__("flcore.trainmodel.models", fromlist=["BaseHeadSplit"]).BaseHeadSplit
        first = copy.deepcopy(scene.first)
        model = split(first.body, first.head)
        module, _, name = server.partition(":")
        made = getattr(__import__(f"flcore.servers.{module}", fromlist=[name]), name)(
            pfllib_args(scene, model, **more), 0
        )
        made.avg_generalization_metrics = lambda: 0.0  # FedAS of PFLlib calls it in the end, but it is not there
        with in_order(sort):
            made.train()
        return made


def named(model: nn.Module) -> dict[str, Tensor]:
    """Their weights by our names."""
    return {k.replace("base.", "body."): t.detach() for k, t in model.state_dict().items()}


def apart(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> float:
    return max(float((ours[k] - theirs[k]).abs().max()) for k in ours)


Line = tuple[str, float, float]
"""what is compared, the largest difference, and how far training moved it"""


def feddbe(peers: Path) -> list[Line]:
    scene = Scene(48)
    theirs = run_pfllib(peers, scene, "serverdbe:FedDBE", kl_weight=1.0, momentum=1.0)
    ours = scene.run("feddbe", kappa=1.0, mu=1.0)
    bias = {str(c): ours.states[c].me.v for c in range(CLIENTS)}
    other = {str(c): client.client_mean.detach() for c, client in enumerate(theirs.clients)}
    moved = apart(ours.progress.server.w, dict(scene.first.state_dict()))
    return [
        ("global model", apart(ours.progress.server.w, named(theirs.global_model)), moved),
        ("clients' biases", apart(bias, other), max(float(t.abs().max()) for t in bias.values())),
    ]


def fedas(peers: Path) -> list[Line]:
    scene = Scene(16)  # it aligns in batches of 16
    theirs = run_pfllib(peers, scene, "serveras:FedAS")
    ours = scene.run("fedas", fisher="batches", align_first=True)
    lines = [("body", apart(ours.progress.server.w, named(theirs.global_model)), 0.0)]
    heads = [apart(ours.states[c].me.h, named(client.model)) for c, client in enumerate(theirs.clients)]
    lines.append(("clients' heads", max(heads), 0.0))
    moved = apart(ours.progress.server.w, dict(scene.first.state_dict()))
    return [(what, value, moved) for what, value, _ in lines]


def fedpac(peers: Path) -> list[Line]:
    """The rounds of its authors, whose optimizer has momentum and weight decay."""
    scene = Scene(48)
    x, y = torch.from_numpy(scene.x), torch.from_numpy(scene.y)
    old = {"eig": lambda q, eigenvectors: _eig(q)}
    with peer(peers / "fedpac", cvxpy=cvxpy()):
        vars(torch).update(old)  # torch.eig is gone since 2.0
        running: Any = __import__("running")
        local: Any = __import__("methods.fedpac", fromlist=["LocalUpdate_FedPAC"]).LocalUpdate_FedPAC
        args = argparse.Namespace(
            num_classes=CLASSES, device="cpu", lam=1.0, lr=LR, num_users=CLIENTS, frac=1.0, epochs=ROUNDS + 1,
            local_epoch=EPOCHS, agg_g=True,
        )  # fmt: skip
        clients = []
        for c, part in enumerate(scene.parts):
            sets = [torch.utils.data.TensorDataset(x[i], y[i]) for i in (part.train, part.test)]
            loaders = [torch.utils.data.DataLoader(each, len(each)) for each in sets]
            clients.append(local(c, args, *loaders, Returning(scene.first)))
        for t in range(ROUNDS):
            running.train_round_fedpac(args, Returning(scene.first), clients, t)
    ours = scene.run("fedpac", {"momentum": 0.5, "weight_decay": 0.0005}, lam=1.0, head_lr=0.1)
    server = ours.progress.server
    heads = [apart(server.heads[c], dict(client.local_model.state_dict())) for c, client in enumerate(clients)]
    means = {str(k): server.means[k] for k in range(CLASSES)}
    centres = {str(k): t for k, t in clients[0].global_protos.items()}
    moved = apart(server.w, dict(scene.first.state_dict()))
    return [
        ("body", apart(server.w, dict(clients[0].local_model.state_dict())), moved),
        ("clients' mixed heads", max(heads), moved),
        ("centroids", apart(means, centres), max(float(t.abs().max()) for t in means.values())),
    ]


def _eig(q: Tensor) -> tuple[Tensor, Tensor]:
    values, vectors = torch.linalg.eig(q)
    return torch.view_as_real(values), vectors.real


class Returning(SplitModel):
    """A network as FedPAC's code calls it: features and scores."""

    classifier_weight_keys: ClassVar[list[str]] = ["head.weight", "head.bias"]

    def __init__(self, first: SplitModel) -> None:
        super().__init__(copy.deepcopy(first.body), copy.deepcopy(first.head))

    def forward(self, x: Tensor) -> Any:
        f = self.body(x)
        return f, self.head(f)


def fedpac_pfllib(peers: Path, sort: bool = False) -> list[Line]:
    scene = Scene(48)
    theirs = run_pfllib(peers, scene, "serverpac:FedPAC", sort, lamda=1.0)
    ours = scene.run("fedpac", lam=1.0)
    server = ours.progress.server
    body = {f"body.{k}": t.detach() for k, t in theirs.global_model.state_dict().items()}
    heads = [apart(server.heads[c], named(client.model)) for c, client in enumerate(theirs.clients)]
    centres = {str(k): t for k, t in theirs.global_protos.items()}
    means = {k: server.means[int(k)] for k in centres}
    moved = apart(server.w, dict(scene.first.state_dict()))
    return [
        ("body", apart(server.w, body), moved),
        ("clients' mixed heads", max(heads), moved),
        ("centroids", apart(means, centres), max(float(t.abs().max()) for t in means.values())),
    ]


def feddyn_pfllib(peers: Path) -> list[Line]:
    scene = Scene(48)
    theirs = run_pfllib(peers, scene, "serverdyn:FedDyn", alpha=0.1)
    ours = scene.run("feddyn", alpha=0.1)
    moved = apart(ours.progress.server.w, dict(scene.first.state_dict()))
    return [("global model", apart(ours.progress.server.w, named(theirs.global_model)), moved)]


def feddyn(peers: Path) -> list[Line]:
    scene = Scene(48)
    anything = {name: stub(name) for name in ("LEAF", "LEAF.utils_eval", "torchvision", "torchvision.models")}
    tools = ("LEAF.utils_eval.language_utils", "LEAF.utils_eval.model_utils", "torchvision.transforms")
    stubs = {n.replace(".", "__"): m for n, m in {**anything, **{n: stub(n) for n in tools}}.items()}
    with peer(peers / "feddyn", **stubs):
        methods: Any = __import__("utils_methods")
        (peers / "feddyn/Output/digits").mkdir(parents=True, exist_ok=True)
        for old in (peers / "feddyn/Output/digits").rglob("*.*"):
            old.unlink()
        own = [scene.parts[c].train for c in range(CLIENTS)]
        tests = np.concatenate([p.test for p in scene.parts])
        data = types.SimpleNamespace(
            n_client=CLIENTS,
            clnt_x=[scene.x[i] for i in own],
            clnt_y=[scene.y[i].reshape(-1, 1) for i in own],
            tst_x=scene.x[tests],
            tst_y=scene.y[tests].reshape(-1, 1),
            name="digits",
            dataset="synt",
        )
        methods.train_FedDyn(
            data, 1.0, LR, scene.samples, EPOCHS, ROUNDS, 1000, 0.0, lambda: copy.deepcopy(scene.first),
            copy.deepcopy(scene.first), 0.1, ROUNDS, 1.0,
        )  # fmt: skip
        theirs = torch.load(f"Output/digits/FedDyn/{ROUNDS}_com_cld.pt")
    ours = scene.run("feddyn", alpha=0.1)
    moved = apart(ours.progress.server.w, dict(scene.first.state_dict()))
    return [("global model", apart(ours.progress.server.w, theirs), moved)]


def fedtgp(peers: Path) -> list[Line]:
    scene = Scene(48)
    scene.write(peers / "htfllib/dataset/digits")
    shutil.rmtree(peers / "htfllib/system/kept", ignore_errors=True)  # it would continue from there
    options = {"lam": 10.0, "epochs": 20, "server_lr": LR, "batch": scene.samples, "prototypes": "before"}
    ours = scene.run("fedtgp", **options)
    start = registry.find("method", "fedtgp")(**options)
    with peer(peers / "htfllib/system", h5py=stub("h5py", File=Nowhere), torchvision=stub("torchvision")):
        sys.modules["flcore.trainmodel.models"] = stub("flcore.trainmodel.models", BaseHeadSplit=Split)
        Split.first = scene.first
        server: Any = __import__("flcore.servers.servertgp", fromlist=["FedTGP"])
        args = pfllib_args(
            scene, scene.first, lamda=10.0, save_folder_name="kept", server_epochs=20, margin_threthold=100.0,
            feature_dim=WIDTH, models_folder_name="",
        )  # fmt: skip
        theirs = server.FedTGP(args, 0)
        net = first_state(start, scene).net
        made = server.load_item("Server", "TGP", theirs.save_folder_name)
        with torch.no_grad():
            made.embedings.weight.copy_(net["table"])
            made.middle[0][0].load_state_dict({"weight": net["0.weight"], "bias": net["0.bias"]})
            made.fc.load_state_dict({"weight": net["2.weight"], "bias": net["2.bias"]})
        server.save_item(made, "Server", "TGP", theirs.save_folder_name)
        theirs.train()
        protos = server.load_item("Server", "global_protos", theirs.save_folder_name)
        models = [server.load_item(client.role, "model", theirs.save_folder_name) for client in theirs.clients]
    gaps = [apart(ours.states[c].me.w, named(m)) for c, m in enumerate(models)]
    net = ours.progress.server.net
    means = (net["table"] @ net["0.weight"].T + net["0.bias"]).relu() @ net["2.weight"].T + net["2.bias"]
    moved = apart(ours.states[0].me.w, dict(scene.first.state_dict()))
    stacked = torch.stack([protos[c] for c in range(CLASSES)])
    return [
        ("clients' models", max(gaps), moved),
        ("global prototypes", float((means - stacked).abs().max()), float(means.abs().max())),
    ]


class Split(nn.Module):
    """HtFLlib's way to make a client's network, here a copy of ours."""

    first: SplitModel

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()
        self.base = copy.deepcopy(self.first.body)
        self.head = copy.deepcopy(self.first.head)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.base(x))


def first_state(method: Any, scene: Scene) -> Any:
    """What our server begins with."""
    from headwise.engine.server_bench import ServerBench

    train = Train(batch=scene.samples, lr=LR, epochs=EPOCHS)
    plan = toy_plan(method, models=[copy.deepcopy(scene.first)], data=scene.data(), rounds=ROUNDS, train=train)
    return method.server_init(ServerBench(plan, 0))


class WithFeatures(nn.Module):
    """A network as pFedFDA's code calls it."""

    D = WIDTH

    def __init__(self, first: SplitModel) -> None:
        super().__init__()
        self.body = copy.deepcopy(first.body)
        self.fc = copy.deepcopy(first.head)

    def forward(self, x: Tensor, return_feat: bool = False) -> Any:
        f = self.body(x)
        return (f, self.fc(f)) if return_feat else self.fc(f)


def lbfgs(loss: Callable[[Tensor], Tensor], x0: Tensor, **_: Any) -> Any:
    """As much of torchmin as pFedFDA's clients ask for."""
    at = x0.clone().requires_grad_()
    solver = torch.optim.LBFGS([at], max_iter=50, tolerance_grad=1e-9, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        value = loss(at)
        at.grad = torch.autograd.grad(value, at)[0]
        return value

    solver.step(closure)
    return types.SimpleNamespace(x=at.detach())


def pfedfda(peers: Path, beta: str = "local", less: float = 0.0) -> list[Line]:
    """With `less` taken off every entry of a client's covariance, on their side."""
    scene = Scene(48)
    method = registry.find("method", "pfedfda")(beta=beta)
    begun = first_state(method, scene)
    ours = scene.run("pfedfda", beta=beta).progress.server
    folder = peers / "pfedfda/data/partition/digits"
    folder.mkdir(parents=True, exist_ok=True)
    for c in range(CLIENTS):
        np.savez(folder / f"client_{c}.npz", c=c)

    def get_partition(args: Any, indices: Any) -> Any:
        part = scene.parts[int(indices["c"])]
        x, y = torch.from_numpy(scene.x), torch.from_numpy(scene.y)
        return [torch.utils.data.TensorDataset(x[i], y[i]) for i in (part.train, part.test)]

    names = ("get_augmented_partition", "get_digit5", "get_office10")
    loader = stub("data.utils.loader", get_partition=get_partition, **dict.fromkeys(names))
    tools = stub("statsmodels.stats.correlation_tools", cov_nearest=lambda cov, method: cov - less)  # positive
    stubs = {"data__utils__loader": loader, "statsmodels__stats__correlation_tools": tools}
    stubs |= {
        name.replace(".", "__"): stub(name) for name in ("data", "data.utils", "statsmodels", "statsmodels.stats")
    }
    cuda = Tensor.cuda
    Tensor.cuda = lambda self, *_: self  # type: ignore[method-assign]
    try:
        with peer(peers / "pfedfda", torchmin=stub("torchmin", minimize=lbfgs), **stubs):
            args = argparse.Namespace(
                model=WithFeatures(scene.first), exp_name="x", partition_path="digits", batch_size=scene.samples,
                local_epochs=EPOCHS, num_classes=CLASSES, device="cpu", lr=LR, model_name="x", momentum=0.0, wd=0.0,
                train_prop=1.0, dataset="digits", augmented=False, single_beta=False, local_beta=beta == "local",
                num_clients=CLIENTS, global_rounds=ROUNDS, sampling_prob=1.0, eval_gap=ROUNDS,
            )  # fmt: skip
            server: Any = __import__("servers.server_fedfda", fromlist=["ServerFedFDA"]).ServerFedFDA(args)
            server.global_means = begun.means.clone()
            server.train()
    finally:
        Tensor.cuda = cuda  # type: ignore[method-assign]
    body = {f"body.{k}": t.detach() for k, t in server.model.body.state_dict().items()}
    moved = apart(ours.w, dict(scene.first.state_dict()))
    return [
        ("body", apart(ours.w, body), moved),
        ("class means", float((ours.means - server.global_means).abs().max()), float(ours.means.abs().max())),
        ("covariance", float((ours.cov - server.global_covariance).abs().max()), float(ours.cov.abs().max())),
    ]


SIDES: dict[str, Callable[[Path], list[Line]]] = {
    "FedDBE, PFLlib": feddbe,
    "FedAS, PFLlib": fedas,
    "FedPAC, its authors": fedpac,
    "FedPAC, PFLlib": fedpac_pfllib,
    "FedPAC, PFLlib with clients in order": lambda peers: fedpac_pfllib(peers, sort=True),
    "FedDyn, its authors": feddyn,
    "FedDyn, PFLlib": feddyn_pfllib,
    "FedTGP, HtFLlib": fedtgp,
    "pFedFDA, its authors": pfedfda,
    "pFedFDA, its authors without 1e-4": lambda peers: pfedfda(peers, less=1e-4),
    "pFedFDA with two betas, its authors": lambda peers: pfedfda(peers, "two"),
}


def main() -> int:
    """Print a line for everything that is compared."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--peers", type=Path, required=True, help="folder of the checkouts")
    parser.add_argument("only", nargs="*", help="parts of names")
    arguments = parser.parse_args()
    for name, compare in SIDES.items():
        if not arguments.only or any(word.lower() in name.lower() for word in arguments.only):
            for what, difference, moved in compare(arguments.peers.resolve()):
                print(f"{name:38} {what:22} differs by {difference:.1e}, training moved it by {moved:.1e}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
