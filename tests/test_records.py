"""Records survive packing and encoding, and nothing else is accepted as one."""

from __future__ import annotations

import dataclasses
import json
import struct
import sys
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headwise import records as wire
from headwise.params import Params
from headwise.records import (
    Nothing,
    Packed,
    Record,
    RecordError,
    decode,
    encode,
    fields_of,
    from_bytes,
    map_tensors,
    nbytes,
    nbytes_by_field,
    pack,
    same,
    to_bytes,
    unpack,
)


class Everything(Record):
    w: Params
    x: Tensor
    heads: dict[int, Params]
    n: int
    share: float
    name: str
    on: bool
    maybe: Params | None
    other: Tensor | None
    count: int | None


class Own(Record):
    w: Params


class Alike(Record):
    w: Params


class Two(Record):
    a: Params
    b: Params


def everything(**changes: Any) -> Everything:
    record = Everything(
        w=Params({"z.weight": torch.randn(2, 3), "a.bias": torch.randn(2)}),
        x=torch.arange(4, dtype=torch.int32),
        heads={7: Params(h=torch.ones(2)), 2: Params(h=torch.zeros(2), g=torch.ones(1))},
        n=3,
        share=0.25,
        name='größe, "quoted"',
        on=True,
        maybe=None,
        other=torch.tensor(2.5),
        count=None,
    )
    return dataclasses.replace(record, **changes)


def both_ways(record: Record) -> None:
    cls = type(record)
    assert same(unpack(cls, pack(record)), record)
    assert same(decode(cls, encode(record)), record)
    assert encode(decode(cls, encode(record))) == encode(record)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"heads": {}},
        {"maybe": Params(a=torch.ones(1)), "other": None, "count": 4},
        {"maybe": Params()},
        {"w": Params()},
        {"name": "", "n": -(2**40), "share": 1e-300, "on": False},
        {"x": torch.empty(0, 5)},
        {"heads": {-1: Params(), 0: Params(**{"a/b": torch.ones(1)})}},
    ],
)
def test_round_trip(changes: dict[str, Any]) -> None:
    both_ways(everything(**changes))


KINDS = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16, torch.int32,
         torch.int64, torch.bool]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 3), (2, 0, 3)], ids=str)
def test_round_trip_of_every_type_and_shape(kind: torch.dtype, shape: tuple[int, ...]) -> None:
    record = Own(Params(t=(torch.randn(shape) * 3).to(kind)))
    both_ways(record)
    back = decode(Own, encode(record)).w["t"]
    assert (back.dtype, tuple(back.shape)) == (kind, shape)


def test_round_trip_keeps_the_payload_of_nan() -> None:
    bits = torch.tensor([0x7FC00001, 0x7F800001, -0x3FFFFF], dtype=torch.int32)  # quiet and signalling, both signs
    both_ways(Own(Params(t=bits.view(torch.float32))))
    back = decode(Own, encode(Own(Params(t=bits.view(torch.float32))))).w["t"]
    assert torch.equal(back.view(torch.int32), bits)


def test_round_trip_of_special_scalars() -> None:
    both_ways(everything(share=float("inf")))
    both_ways(everything(share=float("nan")))
    both_ways(everything(share=-0.0))


def test_round_trip_of_tensors_that_are_views() -> None:
    base = torch.arange(12.0).view(3, 4)
    both_ways(Own(Params(t=base.T, row=base[1], same=base, again=base, every=base[:, ::2])))
    pictures = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    both_ways(Own(Params(t=pictures)))


def test_order_of_names_is_kept() -> None:
    names = ["z", "a", "m.0", "m.10", "m.2"]
    record = Own(Params({k: torch.ones(1) for k in names}))
    assert list(decode(Own, encode(record)).w) == names
    heads = {9: Params(a=torch.ones(1)), 1: Params(a=torch.ones(1)), 5: Params()}
    assert list(decode(Everything, encode(everything(heads=heads))).heads) == [9, 1, 5]


def test_nothing() -> None:
    both_ways(Nothing())
    assert nbytes(Nothing()) == 0


def test_gradients_stay_behind() -> None:
    record = Own(Params(t=torch.ones(2, requires_grad=True)))
    assert not pack(record).tensors["w/t"].requires_grad
    assert not decode(Own, encode(record)).w["t"].requires_grad


def test_decoded_tensors_are_ones_own() -> None:
    data = encode(Own(Params(t=torch.ones(2))))
    decode(Own, data).w["t"].add_(5)
    assert decode(Own, data).w["t"].tolist() == [1, 1]


def test_records_are_frozen_and_compared_by_same() -> None:
    record = Own(Params(t=torch.ones(1)))
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.w = Params()  # type: ignore[misc]
    assert not same(record, Alike(record.w))
    assert not same(record, Own(Params(u=torch.ones(1))))
    assert not same(record, Own(Params(t=torch.ones(1, dtype=torch.float64))))
    assert not same(record, Own(Params(t=torch.ones(1, 1))))
    assert not same(Own(Params(t=torch.tensor(0.0))), Own(Params(t=torch.tensor(-0.0))))
    assert not same(everything(), everything(n=4))
    one, other = Params(a=torch.ones(1), b=torch.ones(1)), Params(b=torch.ones(1), a=torch.ones(1))
    assert not same(Own(one), Own(other))


def test_weight_on_the_wire() -> None:
    """w 8 floats 32, x 4 ints 16, heads 5 floats 20, n 4, share 4, name 17 bytes of UTF-8, on 1, other 4."""
    assert len('größe, "quoted"'.encode()) == 17
    assert nbytes(everything()) == 32 + 16 + 20 + 4 + 4 + 17 + 1 + 4
    assert list(nbytes_by_field(everything()).values()) == [32, 16, 20, 4, 4, 17, 1, 0, 4, 0]
    assert nbytes(everything(count=5)) == nbytes(everything()) + 4
    assert nbytes(Own(Params(t=torch.ones(3, dtype=torch.bfloat16), b=torch.ones(5, dtype=torch.bool)))) == 6 + 5


def test_map_tensors() -> None:
    doubled = map_tensors(everything(), lambda t: t * 2)
    assert doubled.other is not None
    assert doubled.other.item() == 5
    assert (doubled.n, doubled.maybe) == (3, None)
    assert doubled.heads[7]["h"].tolist() == [2, 2]


@pytest.mark.parametrize("changes", [{"n": 3.0}, {"share": 1}, {"on": None}, {"x": [1, 2]}, {"count": "4"}])
def test_map_tensors_refuses_what_could_not_travel(changes: dict[str, Any]) -> None:
    with pytest.raises(RecordError, match=f"field '{next(iter(changes))}' is .*, but must be"):
        map_tensors(everything(**changes), lambda t: t)


def test_fields() -> None:
    assert fields_of(Two) == {"a": Params, "b": Params}


def packed(record: Record) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors, scalars = pack(record)
    return dict(tensors), dict(scalars)


@pytest.mark.parametrize(
    ("tensors", "scalars", "text"),
    [
        ({"extra": torch.ones(1)}, {}, "no field for 'extra'"),
        ({"wx/a": torch.ones(1)}, {}, "no field for 'wx/a'"),
        ({}, {"extra": 1}, "no field for 'extra'"),
        ({}, {"w?": False, "n": 3}, "no field for 'w\\?'"),
        ({}, {"n": 3.0}, "'n' is 3.0, but must be int"),
        ({}, {"n": True}, "'n' is True, but must be int"),
        ({}, {"n": None}, "'n' is None, but must be int"),
        ({}, {"share": 1}, "'share' is 1, but must be float"),
        ({}, {"name": 5}, "'name' is 5, but must be str"),
        ({}, {"on": 1}, "'on' is 1, but must be bool"),
        ({}, {"heads": "7,2,3,x"}, "'heads' is '7,2,3,x'"),
        ({}, {"heads": "7,2,"}, "'heads'"),
        ({}, {"heads": "7, 2"}, "'heads'"),
        ({}, {"heads": "07,2"}, "'heads'"),
        ({}, {"heads": "9" * 5000}, "'heads'"),
        ({}, {"heads": "\u0667,2"}, "'heads'"),
        ({}, {"heads": "7,2\n"}, "'heads'"),
        ({}, {"heads": "7"}, "no field for 'heads/2"),
        ({}, {"heads": 5}, "heads"),
    ],
)
def test_too_much_or_of_the_wrong_type(tensors: dict[str, Tensor], scalars: dict[str, Any], text: str) -> None:
    have, values = packed(everything())
    with pytest.raises(RecordError, match=text):
        unpack(Everything, Packed({**have, **tensors}, {**values, **scalars}))


@pytest.mark.parametrize("missing", ["x", "n", "share", "name", "on", "heads", "other", "count?"])
def test_too_little(missing: str) -> None:
    have, values = packed(everything())
    (have if missing in have else values).pop(missing)
    with pytest.raises(RecordError, match=missing.rstrip("?")):
        unpack(Everything, Packed(have, values))


def test_another_record_is_refused() -> None:
    with pytest.raises(RecordError, match="has no field for 'b/t'"):
        decode(Own, encode(Two(Params(), Params(t=torch.ones(1)))))
    with pytest.raises(RecordError):
        decode(Everything, encode(Own(Params(t=torch.ones(1)))))


def test_bytes_decide_nothing() -> None:
    """The reader decides what is read: module or class names in the bytes are just unknown names."""
    before = set(sys.modules)
    data = to_bytes(Packed({"w/antigravity": torch.ones(1)}, {"__class__": "antigravity.Own"}))
    with pytest.raises(RecordError, match="no field for '__class__'"):
        decode(Own, data)
    assert "antigravity" not in set(sys.modules) - before


def hostile(note: Any, header: dict[str, Any] | None = None, body: bytes = b"") -> bytes:
    """A safetensors file with this note in it."""
    text = json.dumps(
        {"__metadata__": {"headwise": note if isinstance(note, str) else json.dumps(note)}, **(header or {})}
    )
    return struct.pack("<Q", len(text)) + text.encode() + body


TENSOR = {"w/t": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00" * 8,
        b"\xff" * 100,
        b"garbage",
        struct.pack("<Q", 2) + b"{}",
        struct.pack("<Q", 2**62) + b"{}",
        hostile("not json"),
        hostile([]),
        hostile({}),
        hostile(5),
        hostile({"order": [], "scalars": 5}),
        hostile({"order": 5, "scalars": {}}),
        hostile({"order": [[]], "scalars": {}}),
        hostile({"order": ["w/t"], "scalars": {}}),
        hostile({"order": [], "scalars": {}}, TENSOR, b"\0\0\0\0"),
        hostile({"order": ["w/t", "w/t"], "scalars": {}}, {}, b""),
        hostile({"order": [], "scalars": [["a"]]}),
        hostile("[" * 100_000),
        encode(Own(Params(t=torch.ones(3))))[:-1],
        encode(Own(Params(t=torch.ones(3)))) + b"\0",
    ],
)
def test_garbage_is_a_record_error(data: bytes) -> None:
    with pytest.raises(RecordError):
        decode(Own, data)


def one(**changes: Any) -> dict[str, Any]:
    return {"w/t": {**TENSOR["w/t"], **changes}}


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (struct.pack("<Q", wire.HEADER + 1) + b" " * (wire.HEADER + 1), "more than there are or may be"),
        (hostile({"order": ["w/t"], "scalars": {}}, one(shape=[1] * 9), b"\0" * 4), "impossible shape"),
        (hostile({"order": ["w/t"], "scalars": {}}, one(shape=[2**32, 0], data_offsets=[0, 0])), "impossible shape"),
        (hostile({"order": ["w/t"], "scalars": {}}, one(shape=[-1, 0], data_offsets=[0, 0])), "impossible shape"),
        (hostile({"order": ["w/t"], "scalars": {}}, one(shape=[2**31, 2**31]), b"\0" * 4), "not a valid record"),
        (hostile({"order": ["w/t"] * (wire.TENSORS + 1), "scalars": {}}, TENSOR, b"\0" * 4), "more than 200000"),
    ],
)
def test_what_is_out_of_bounds_is_refused(data: bytes, says: str) -> None:
    with pytest.raises(RecordError, match=says):
        decode(Own, data)


def test_bytes_beyond_the_readers_limit_are_refused() -> None:
    data = encode(Own(Params(t=torch.ones(3))))
    assert same(decode(Own, data, len(data)), Own(Params(t=torch.ones(3))))
    with pytest.raises(RecordError, match=f"has {len(data)} bytes, but at most {len(data) - 1} are allowed"):
        decode(Own, data, len(data) - 1)


def test_a_client_named_twice_is_refused() -> None:
    tensors, scalars = pack(everything())
    with pytest.raises(RecordError, match="field 'heads' names a client twice"):
        unpack(Everything, Packed(tensors, {**scalars, "heads": "7,2,7"}))


def test_many_clients_are_taken_apart_in_one_pass() -> None:
    """One pass per client would take minutes, for bytes that anyone can send."""
    ids = ",".join(map(str, range(100_000)))
    tensors = {f"heads/{c}/h": torch.empty(0) for c in range(100_000)}
    base = pack(everything(heads={}))
    found = unpack(Everything, Packed({**base.tensors, **tensors}, {**base.scalars, "heads": ids}))
    assert len(found.heads) == 100_000


def test_hostile_helper_makes_what_it_should() -> None:
    found = from_bytes(hostile({"order": ["w/t"], "scalars": {}}, TENSOR, b"\0\0\0\0"))
    assert same(unpack(Own, found), Own(Params(t=torch.zeros(1))))


@given(st.binary(max_size=300))
def test_random_bytes_are_record_errors(data: bytes) -> None:
    with pytest.raises(RecordError):
        decode(Everything, data)


RECORD = encode(everything())


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_records_are_read_or_refused(data: st.DataObject) -> None:
    """Flipped, cut or extended bytes give a record or a `RecordError`, never anything else."""
    changed = bytearray(RECORD)
    for _ in range(data.draw(st.integers(1, 5))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(changed)))
    raw = bytes(changed) if data.draw(st.booleans()) else bytes(changed[:cut])
    try:
        found = decode(Everything, raw)
    except RecordError:
        return
    assert type(found) is Everything


@settings(max_examples=150, deadline=None)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
                    max_leaves=8))  # fmt: skip
def test_any_note_is_read_or_refused(note: Any) -> None:
    for wrapped in (
        note,
        {"order": note, "scalars": {}},
        {"order": [], "scalars": note},
        {"order": [], "scalars": {"n": note}},
    ):
        try:
            decode(Everything, hostile(wrapped))
        except RecordError:
            continue
        pytest.fail("there is no such record")
