"""What stays at a client between rounds."""

from __future__ import annotations

from dataclasses import dataclass

from ..params import Params
from ..records import Packed, Record, RecordError, from_bytes, pack, to_bytes, unpack


@dataclass(frozen=True)
class ClientState:
    """The method's own record, and what the engine keeps beside it."""

    me: Record
    kept: Params
    """BatchNorm statistics and private layers, by the run's buffer policy"""
    trained: int
    """rounds that this client has trained in"""


def encode_state(state: ClientState) -> bytes:
    """One safetensors file: the record's fields under ``me.``, the engine's beside them."""
    tensors, scalars = pack(state.me)
    kept = {f"kept/{k}": t for k, t in state.kept.items()}
    named = {f"me.{k}": t for k, t in tensors.items()}
    return to_bytes(Packed({**named, **kept}, {**{f"me.{k}": v for k, v in scalars.items()}, "trained": state.trained}))


def decode_state(me: type[Record], data: bytes) -> ClientState:
    """The state that `encode_state` wrote, its record of this type."""
    tensors, scalars = from_bytes(data)
    trained = scalars.pop("trained", None)
    if type(trained) is not int:
        raise RecordError(f"field 'trained' is {trained!r}, but must be int")
    own = {k: t for k, t in tensors.items() if k.startswith("me.")}
    kept = {k.removeprefix("kept/"): t for k, t in tensors.items() if k not in own}
    fields = Packed({k[3:]: t for k, t in own.items()}, {k.removeprefix("me."): v for k, v in scalars.items()})
    return ClientState(unpack(me, fields), Params(kept), trained)
