"""What stays at a client between rounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ...errors import RunError
from ...params import Params
from ...records import Packed, Record, RecordError, from_bytes, pack, to_bytes, unpack


@dataclass(frozen=True)
class ClientState:
    """The method's own record, and what the engine keeps with it."""

    me: Record
    kept: Params
    """BatchNorm statistics and private layers, as `buffers` says"""
    trained: int
    """rounds this client has trained in"""
    model: Params = field(default_factory=Params)
    """the state of its model after its last training, in runs that keep it for later use"""


def encode_state(state: ClientState) -> bytes:
    """One safetensors file: the record's fields under ``me.``, the engine's next to them."""
    tensors, scalars = pack(state.me)
    kept = {f"kept/{k}": t for k, t in state.kept.items()} | {f"model/{k}": t for k, t in state.model.items()}
    named = {f"me.{k}": t for k, t in tensors.items()}
    return to_bytes(Packed({**named, **kept}, {**{f"me.{k}": v for k, v in scalars.items()}, "trained": state.trained}))


def decode_state(me: type[Record], data: bytes) -> ClientState:
    """The state that `encode_state` wrote, with a record of this type."""
    tensors, scalars = from_bytes(data)
    trained = scalars.pop("trained", None)
    if type(trained) is not int:
        raise RecordError(f"field 'trained' is {trained!r}, but must be int")
    own = {k: t for k, t in tensors.items() if k.startswith("me.")}
    kept = {k.removeprefix("kept/"): t for k, t in tensors.items() if k not in own and not k.startswith("model/")}
    model = {k.removeprefix("model/"): t for k, t in tensors.items() if k.startswith("model/")}
    fields = Packed({k[3:]: t for k, t in own.items()}, {k.removeprefix("me."): v for k, v in scalars.items()})
    return ClientState(unpack(me, fields), Params(kept), trained, Params(model))


def load_state(me: type[Record], client: int, data: bytes) -> ClientState:
    """The same for a state that a run stored: if it can't be read, the run is damaged."""
    try:
        return decode_state(me, data)
    except RecordError as error:
        raise RunError(f"the stored state of client {client} can't be used: {error}.") from error


HOT = 64 * 2**20
"""most bytes of states that stay in memory although they are stored elsewhere"""


class ColdStates(Protocol):
    """A store for states that need not stay in memory."""

    def __iter__(self) -> Iterator[int]: ...

    def read(self, client: int) -> bytes | None: ...


class States(Mapping[int, ClientState]):
    """The clients' states: in memory, or stored as bytes until they are needed."""

    def __init__(self, me: type[Record], cold: ColdStates | None = None) -> None:
        self._me = me
        self._cold = cold
        self._hot: dict[int, ClientState | bytes] = {}
        self._settled = 0

    def __getitem__(self, client: int) -> ClientState:
        state = self._hot.get(client)
        if isinstance(state, ClientState):
            return state
        data = self.encode(client)
        if data is None:
            raise KeyError(client)
        return load_state(self._me, client, data)

    def __iter__(self) -> Iterator[int]:
        return iter(sorted({*self._hot, *(self._cold or ())}))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __contains__(self, client: object) -> bool:
        return isinstance(client, int) and (client in self._hot or self.encode(client) is not None)

    def __setitem__(self, client: int, state: ClientState | bytes) -> None:
        self._hot[client] = state

    def encode(self, client: int) -> bytes | None:
        state = self._hot.get(client)
        if state is None:
            return self._cold.read(client) if self._cold else None
        return state if isinstance(state, bytes) else encode_state(state)

    def snapshot(self) -> States:
        other = States(self._me)
        other._hot = {c: self[c] for c in self}
        return other

    def settle(self, size: int) -> None:
        """Count `size` more bytes of states as stored elsewhere; drop them from memory once they exceed `HOT`."""
        self._settled += size
        if self._cold and self._settled > HOT:
            self._hot.clear()
            self._settled = 0
