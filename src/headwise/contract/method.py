"""The contract: what a method's author writes. `benches` is what the method gets.

A method is a frozen dataclass whose two halves communicate only through records. What a client keeps, receives and
sends are three different types, so uploading a private head by mistake is a type error. Functions return new records
and never change their arguments; nothing is kept on ``self``.

Clients of most methods keep nothing, a model, a head or a body; such a method needs no `client_init` and no
`personalize` of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar, cast, get_args, get_origin

from ..models.split import SplitModel
from ..params import Params
from ..records import Nothing, Record
from ..settings.fields import Checked
from ..tasks.registry import TASKS
from ..tasks.registry import TaskName as TaskName
from .benches import Central, Local, Predictor

S = TypeVar("S", bound=Record)  # server state
C = TypeVar("C", bound=Record)  # client state
D = TypeVar("D", bound=Record)  # message down
U = TypeVar("U", bound=Record)  # message up

Optimizers = Literal["any", "sgd", "own"]
Sums = Literal["none", "samples", "clients", "labels"]
"""what a server needs: every message, their mean weighted by samples, their plain mean, or a sum per label"""


class OwnModel(Record):
    """A client's own model: at first the initial one; it predicts with it.

    >>> OwnModel(Params(a=torch.zeros(2))).w
    Params(a: (2,))
    """

    w: Params


class OwnHead(Record):
    """A client's own head: at first the initial one; it predicts with it on the body that it was sent.

    >>> OwnHead(Params(a=torch.zeros(2))).h
    Params(a: (2,))
    """

    h: Params


class OwnBody(Record):
    """A client's own body: at first the initial one; it predicts with it under the head that it was sent.

    >>> OwnBody(Params(a=torch.zeros(2))).phi
    Params(a: (2,))
    """

    phi: Params


@dataclass(frozen=True)
class Reply(Generic[U]):
    """One client's answer: its message and its number of training samples.

    >>> Reply(client=3, up=Nothing(), n=120).n
    120
    """

    client: int
    up: U
    n: int


@dataclass(frozen=True)
class Update(Generic[U, C]):
    """The result of a client's training: a message up, the state to keep, and the trained model.

    >>> Update(up=Nothing(), me=Nothing(), model=abs).model(-2)  # a model is any function
    2
    """

    up: U
    me: C
    model: Predictor
    keep: SplitModel | None = None
    """the model whose BatchNorm statistics the client keeps, if that is not `model`"""


class Method(Checked, ABC, Generic[S, C, D, U]):
    """A federated method: two halves that communicate only through records. Its fields are its hyperparameters.

    Its type parameters are four records, in this order: what the server keeps, what a client keeps, the message down,
    and the message up, as in ``Method[Server, Client, Down, Up]``; `Nothing` where there is none.

    >>> @dataclass(frozen=True)
    ... class Alone(Method[Nothing, OwnModel, Nothing, Nothing]):  # server, client, message down, message up
    ...     def server_init(self, central):
    ...         return Nothing()
    ...
    ...     def aggregate(self, server, replies, central):
    ...         return server
    ...
    ...     def local_update(self, me, down, local):
    ...         m = local.model(me.w)
    ...         local.sgd(m)
    ...         return Update(Nothing(), OwnModel(m.state()), m)
    >>> Alone().needs()
    'none'
    """

    kind: ClassVar[str] = "method"
    family: ClassVar[str] = ""
    """its kind, in a word or two"""
    travels: ClassVar[str] = ""
    """what is sent, down and up"""
    stays: ClassVar[str] = ""
    """what never leaves the client"""
    uploaded_fields: ClassVar[tuple[str, ...]] = ()
    """fields of the client's record that it also sends; all others are private"""
    traffic_down: ClassVar[str] = "0"
    """scalars sent to a client per round: P model, F body, L head, K features, C classes, c the client's own classes;
    "?" if it depends on the data. For readers and `check_method`; runs don't use it"""
    traffic_up: ClassVar[str] = "0"
    """scalars sent by a client per round, in the same letters"""
    fixed_layout: ClassVar[bool] = True
    """whether messages and states keep the names and shapes of the network's parameters, against which they are then
    checked; False for a method that cuts or factorizes them"""
    sums: ClassVar[Sums] = "none"
    """what the server needs: every message, or only sums of them"""
    cost: ClassVar[float] = 1.0
    """compute per round relative to FedAvg with the same epochs, in passes; a frozen body counts once"""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """named sets of options: ``fedgmh@code``"""
    shows: ClassVar[Mapping[str, str]] = {}
    """record fields worth plotting, and what each of their dimensions is: ``{"me.W": "client class feature"}``; of
    `Params`, the last matrix"""
    heterogeneous: ClassVar[Literal["no", "same head", "any"]] = "no"
    """whether clients may have different networks"""
    without_body: ClassVar[Literal["works", "alone", "fails"]] = "works"
    """with a network whose body has no parameters (linear): it works; every client trains alone; or it fails"""

    tasks: ClassVar[tuple[TaskName, ...]] = tuple(TASKS)
    """the tasks it supports; by default all, for methods that only use the task's own loss"""
    optimizers: ClassVar[Optimizers] = "any"
    """what its clients can train with: any `train.optimizer` and `train.clip`; only sgd without clipping, which its
    mathematics needs; or neither has an effect, because the method takes its own steps"""

    census: ClassVar[type[Record]] = Nothing
    """what every client answers once, before the first round; Nothing: no client is asked"""

    # -- server half
    def needs(self) -> Sums:
        """What the server needs of the clients' messages, with these options; by default `sums`."""
        return self.sums

    @abstractmethod
    def server_init(self, central: Central) -> S:
        """The server's state before the first round."""

    def use_census(self, server: S, replies: Sequence[Reply[Any]], central: Central) -> S:
        """The server's state after the census; replies are sorted by client, without those that failed."""
        return server

    def broadcast(self, server: S, client: int, central: Central) -> D:
        """The message to this client, which may differ from client to client. By default the server's state itself."""
        return cast(Any, server)

    @abstractmethod
    def aggregate(self, server: S, replies: Sequence[Reply[U]], central: Central) -> S:
        """The server's state after a round; replies are sorted by client."""

    def updates_idle(self) -> bool:
        """Whether clients that were not drawn still get a download each round, for `idle_update`."""
        return False

    def draws_everyone(self, t: int, rounds: int) -> bool:
        """Whether all clients train in round `t` of `rounds`, whatever `sampling.ratio` is."""
        return False

    def global_model(self, server: S, central: Central) -> SplitModel | None:
        """One model for everybody, if the method has one."""
        return None

    # -- client half
    def answer_census(self, local: Local) -> Record:
        """A client's answer in the census: a record of the type `census`."""
        return Nothing()

    def client_init(self, local: Local) -> C:
        """A client's state before it first takes part; `OwnModel`, `OwnHead`, `OwnBody`: the initial one."""
        return cast(Any, begin(record_types(type(self)).client, local))

    @abstractmethod
    def local_update(self, me: C, down: D, local: Local) -> Update[U, C]:
        """A client's training."""

    def idle_update(self, me: C, down: D, local: Local) -> C:
        """The new state of a client that was not drawn, after its download; called if `updates_idle`."""
        return me

    def personalize(self, me: C, down: D, local: Local) -> Predictor:
        """The model this client would use right after a download, before any training.

        By default its `OwnModel`, or `down.w` with its `OwnHead` or `OwnBody`, if it keeps one.
        """
        return assemble(me, down, local)

    def join(self, me: C, down: D, whole: Params | None, local: Local) -> Predictor:
        """The model of a client that took no part in training, after `local.epochs` epochs on its own samples.

        `me` is its first state, `down` its first download, `whole` the global model, if there is one. By default the
        model after the download or, with epochs, after the method's own training. Nothing is sent.
        """
        return join_by_training(self, me, down, local)


def join_by_training(method: Method[Any, C, D, Any], me: C, down: D, local: Local) -> Predictor:
    """A `join` of most methods: from another first state, for example from the global model.

    Args:
        method: The method, whose own training is used.
        me: The client's first state.
        down: Its first download.
        local: Its workbench.

    Returns:
        The model after training or, without epochs, after the download.

    >>> def join(self, me, down, whole, local):
    ...     return join_by_training(self, OwnModel(local.model(down.w).state()), down, local)
    """
    return method.local_update(me, down, local).model if local.epochs else method.personalize(me, down, local)


class RecordTypes(NamedTuple):
    server: type[Record]
    client: type[Record]
    down: type[Record]
    up: type[Record]
    census: type[Record]


@cache
def record_types(cls: type[Method[Any, Any, Any, Any]]) -> RecordTypes:
    """The records that a method declares in its bases, such as ``Averaging[OwnHead]``, and by `census`."""
    server, client, down, up = _arguments(cls, {})
    return RecordTypes(server, client, down, up, cls.census)


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


def begin(kind: type[Record], local: Local) -> Record:
    """What a client keeps before it first takes part."""
    if kind is Nothing:
        return Nothing()
    if kind not in (OwnModel, OwnHead, OwnBody):
        raise NotImplementedError(f"write `client_init`, which returns the first {kind.__name__} of a client")
    part = {OwnModel: "", OwnHead: "head", OwnBody: "body"}[kind]
    return kind(local.init().state(part))  # pyright: ignore[reportCallIssue]


def assemble(me: Record, down: Any, local: Local) -> SplitModel:
    """The model of what a client keeps and of `down.w`; both together must be a whole model."""
    if isinstance(me, OwnModel):
        return local.model(me.w)
    own = me.h if isinstance(me, OwnHead) else me.phi if isinstance(me, OwnBody) else Params()
    params = own | getattr(down, "w", Params())
    m = local.model(params)
    if missing := sorted(m.live().keys() - params.keys()):
        raise NotImplementedError(f"write `personalize`: {missing[0]!r} is neither sent nor kept")
    return m
