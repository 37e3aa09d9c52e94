"""The whole contract: what an author of a method writes, and what they are handed.

A method is a frozen dataclass with two halves that meet only through records. What a client keeps, gets and sends are
three different types, so uploading a private head by mistake is a type error. Functions return new records and never
change their arguments; nothing is kept on ``self``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Protocol, TypeVar, cast, get_args, get_origin

import torch
from torch import Tensor, nn

from .models.split import SplitModel
from .params import Params
from .records import Record

S = TypeVar("S", bound=Record)  # server state
C = TypeVar("C", bound=Record)  # client state
D = TypeVar("D", bound=Record)  # message down
U = TypeVar("U", bound=Record)  # message up
M = TypeVar("M", bound=nn.Module)

Predictor = Callable[[Tensor], Tensor]
"""From a batch of inputs to class scores: a model, or any function."""


@dataclass(frozen=True)
class Reply(Generic[U]):
    """One client's answer: its message and its number of training samples."""

    client: int
    up: U
    n: int


@dataclass(frozen=True)
class Update(Generic[U, C]):
    """What a client's training gives: a message up, the state it keeps, and its model as it now stands."""

    up: U
    me: C
    model: Predictor
    keep: SplitModel | None = None
    """whose BatchNorm statistics stay for the next download, where that is not `model`"""


class ClassMeans(Record):
    """The mean feature of every class that a client holds, and the class."""

    labels: Tensor
    """[c] int32, ascending"""
    means: Tensor
    """[c, K]"""

    def where(self, wanted: bool) -> ClassMeans:
        """These, or those of no class at all."""
        return self if wanted else ClassMeans(self.labels[:0], self.means[:0])


class Bench(Protocol):
    """What both halves may ask for."""

    t: int
    """this round, from 1"""
    T: int
    """rounds in all"""
    N: int
    """clients in all"""
    classes: int
    """classes of the task"""
    rng: torch.Generator
    """randomness of this half in this round"""

    def init(self, *, common: bool = False) -> SplitModel:
        """The initial model: the same for everyone with this architecture. `common` is the server's architecture."""
        ...

    def model(self, params: Params, *, common: bool = False) -> SplitModel:
        """A model with these parameters; what they leave open is the client's own, else the initial."""
        ...

    def draw(self, make: Callable[[], M], *key: int | str) -> M:
        """A module made with the randomness of this key: the same everywhere and in every round."""
        ...

    def random_head(self, *key: int | str) -> Params:
        """A freshly drawn head for this model; the same key gives the same head."""
        ...


class Central(Bench, Protocol):
    """The server's workbench."""

    def labels(self, client: int) -> tuple[int, ...]:
        """The classes that this client asked for: those of its training samples, ascending."""
        ...


class Local(Bench, Protocol):
    """A client's workbench: its data and an optimiser besides."""

    client: int
    """this client"""
    n: int
    """training samples"""
    lr: float
    """this round's learning rate, decay included"""
    epochs: int
    """passes over the data per round, as the experiment says"""
    class_counts: Tensor
    """[classes] training samples of each class"""
    validation: tuple[Tensor, Tensor] | None
    """the samples kept for choosing between models, where the split has such a part"""

    def batches(
        self,
        epochs: int | None = None,
        *,
        through: nn.Module | None = None,
        train: Sequence[nn.Module] = (),
        size: int | None = None,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Freshly shuffled batches, of another `size` if given.

        `through` a frozen body, they are features. Modules named in `train` are in training mode meanwhile.
        """
        ...

    def loss(self, model: Predictor, x: Tensor, y: Tensor) -> Tensor:
        """The mean cross-entropy."""
        ...

    def sgd(
        self,
        *models: nn.Module,
        only: nn.Module | Sequence[nn.Module] | None = None,
        epochs: int | None = None,
        lr: float | None = None,
        loss: Callable[[Tensor, Tensor], Tensor] | None = None,
        project: Callable[[], None] | None = None,
        clip: float | None = None,
    ) -> int:
        """Train the models, or `only` parts of them with the rest frozen; return the steps taken.

        Several models are trained together, by one `loss` of them all, each from its values before the batch. `project`
        is called after each step, to put what was trained back where it must be; `clip` limits the gradient's norm.
        """
        ...

    def descend(
        self,
        start: Params,
        loss: Callable[[Params, Tensor, Tensor], Tensor],
        *,
        epochs: int | None = None,
        lr: float | None = None,
        project: Callable[[Params], Params] | None = None,
        through: nn.Module | None = None,
        train: Sequence[nn.Module] = (),
        size: int | None = None,
    ) -> Params:
        """Plain gradient descent on quantities that are no module, all from their values before the batch.

        `project` puts each step's result back where it must be; the rest is as for `batches`.
        """
        ...

    def window(self, share: float) -> Local:
        """This bench with a random contiguous share of the training samples, in the order of the data."""
        ...

    def hold_out(self, share: float) -> tuple[Local, tuple[Tensor, Tensor]]:
        """This bench without the samples it validates on, and these: the validation part, else a fixed share.

        Where there are too few samples to hold any out, it validates on all of them.
        """
        ...

    def features(self, body: nn.Module) -> Tensor:
        """[n, K]: the training samples through this body, in evaluation mode, in the order of the data."""
        ...

    def class_means(self, body: nn.Module) -> ClassMeans:
        """The exact mean feature of each class that this client holds."""
        ...


class Method(ABC, Generic[S, C, D, U]):
    """A federated method: two halves that meet only through records. Its fields are its hyperparameters."""

    family: ClassVar[str] = ""
    """its kind, in a word or two"""
    travels: ClassVar[str] = ""
    """what is sent, down and up"""
    stays: ClassVar[str] = ""
    """what never leaves the client"""
    leaves: ClassVar[tuple[str, ...]] = ()
    """fields of the client's record that it also sends; all others are private"""
    down: ClassVar[str] = "0"
    """scalars sent to a client per round: P model, F body, L head, K features, C classes, c the client's own classes"""
    up: ClassVar[str] = "0"
    """scalars sent by a client per round, in the same letters"""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """named sets of options: ``fedgmh@code``"""
    heterogeneous: ClassVar[Literal["no", "same head", "any"]] = "no"
    """whether clients may have different networks"""

    # -- server half
    @abstractmethod
    def server_init(self, central: Central) -> S:
        """What the server knows before the first round."""

    @abstractmethod
    def broadcast(self, server: S, client: int, central: Central) -> D:
        """What this client is sent; it may differ from client to client."""

    @abstractmethod
    def aggregate(self, server: S, replies: Sequence[Reply[U]], central: Central) -> S:
        """The server's state after a round; replies are sorted by client."""

    def updates_idle(self) -> bool:
        """Whether clients that were not drawn are sent something in each round, for `idle_update`."""
        return False

    def global_model(self, server: S, central: Central) -> SplitModel | None:
        """One model for everybody, where the method has one."""
        return None

    # -- client half
    @abstractmethod
    def client_init(self, local: Local) -> C:
        """What a client keeps before it first takes part."""

    @abstractmethod
    def local_update(self, me: C, down: D, local: Local) -> Update[U, C]:
        """A client's training."""

    def idle_update(self, me: C, down: D, local: Local) -> C:
        """What a client that was not drawn makes of a download, where `updates_idle` says that it is sent one."""
        return me

    @abstractmethod
    def personalize(self, me: C, down: D, local: Local) -> Predictor:
        """What this client would use right after a download, before any training."""


class RecordTypes(NamedTuple):
    """The four records of a method."""

    server: type[Record]
    client: type[Record]
    down: type[Record]
    up: type[Record]


def record_types(cls: type[Method[Any, Any, Any, Any]]) -> RecordTypes:
    """The records that a method declares in its bases, for instance ``Averaging[Head]``."""
    return RecordTypes(*_arguments(cls, {}))


def _arguments(cls: Any, known: dict[Any, Any]) -> tuple[Any, ...]:
    for base in cls.__orig_bases__:
        origin = get_origin(base) or base
        if isinstance(origin, type) and issubclass(origin, Method):
            given = tuple(known.get(a, a) for a in get_args(base))
            if origin is Method:
                return given
            names: tuple[Any, ...] = getattr(cast(Any, origin), "__parameters__", ())
            return _arguments(origin, dict(zip(names, given, strict=True)))
    raise TypeError(f"{cls.__name__} does not say which records it uses: Method[Server, Client, Down, Up]")
