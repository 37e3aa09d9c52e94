"""The mathematics of masked sums, as pure functions.

The protocol is that of Bonawitz et al., *Practical Secure Aggregation for Privacy-Preserving Machine Learning*, CCS
2017, in the variant against an honest-but-curious server (Figure 4, without the parts for active adversaries), in the
paper's notation:

    u, v        parties, as indices in the round's roster
    c, s        a party's key pairs, fresh in each round: for sealed shares, and for pairwise masks
    b           seed of a party's own mask
    U1 U2 U3    parties that gave keys, that dealt shares, that sent a masked vector

Vectors are integers modulo 2**64. Each is masked with the stream of b_u, and with one stream for each pair's agreed key
(s_u, s_v); the pairwise streams cancel in the sum. Every party in U1 holds a share of each s and b. To open a sum, the
server needs b of U3, to remove their own masks, and s of U2 without U3, whose pairwise masks did not cancel.

All primitives are from libraries: ECDH on P-384 with HKDF, Fernet and ChaCha20 keystreams from `cryptography`, Shamir's
secret sharing from PyCryptodome. Keys, seeds and shares are hexadecimal strings, as messages and files have them.
Invalid ones from other parties raise a `RecordError`.

At the end: how records become such vectors, as weighted sums in fixed point, and a sum becomes the mean record.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from Crypto.Protocol.SecretSharing import Shamir
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from ...contract.method import Sums
from ...disk.jsontext import to_json
from ...records import Packed, Record, RecordError, Scalar, pack, unpack
from ...settings.fields import Natural

Vector = npt.NDArray[np.uint64]

LEAST = 3
"""fewest sites in a sum: with two, each would learn the other's part"""
CURVE = ec.SECP384R1()
SCALAR = 48
"""bytes of a private key"""
SEED = 32
"""bytes of a seed, and of every other symmetric key"""
BLOCK = 16
"""bytes that Shamir's scheme shares at a time"""


@dataclass(frozen=True)
class Member:
    """A roster entry: a site's clients in this round and its public keys."""

    clients: tuple[Natural, ...]
    cipher: str
    mask: str
    seed: str
    """the hash of its seed, by which wrong shares of the seed are noticed"""


class Secrets(NamedTuple):
    cipher: str
    mask: str
    seed: str

    def member(self, clients: tuple[int, ...] = ()) -> Member:
        """The public half of these secrets."""
        return Member(clients, public_key(self.cipher), public_key(self.mask), _hash(self.seed))


class Share(NamedTuple):
    """One share each of a party's private mask key and of its seed."""

    key: str
    seed: str


def parties_needed(threshold: float, parties: int) -> int:
    """How many of the parties must stay to the end; also the shares needed to restore a secret."""
    return max(LEAST, math.ceil(threshold * parties - 1e-9))


def new_secrets() -> Secrets:
    return Secrets(new_private_key(), new_private_key(), os.urandom(SEED).hex())


def deal_shares(secrets: Secrets, me: int, roster: Sequence[Member], enough: int) -> tuple[str, ...]:
    """A share of my secrets for each party, myself included, sealed for it."""
    letters: list[str] = []
    shares = zip(*(split_secret(secret, enough, len(roster)) for secret in (secrets.mask, secrets.seed)), strict=True)
    for v, (key, seed) in enumerate(shares):
        text = to_json({"from": me, "to": v, "key": key, "seed": seed}).encode()
        letters.append(seal(agree(secrets.cipher, roster[v].cipher), text))
    return tuple(letters)


def read_share(cipher: str, me: int, u: int, roster: Sequence[Member], letter: str) -> Share:
    """Open the letter with my share of u's secrets."""
    try:
        values = json.loads(unseal(agree(cipher, roster[u].cipher), letter))
        share = Share(*(bytes.fromhex(values[name]).hex() for name in Share._fields))
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(f"the share of party {u} can't be read: {error}") from error
    if (values.get("from"), values.get("to")) != (u, me):
        raise RecordError(f"the share of party {u} is from {values.get('from')} to {values.get('to')}, not to {me}")
    return share


def mask_vector(
    x: Vector, secrets: Secrets, me: int, roster: Sequence[Member], dealt: Iterable[int], where: str
) -> Vector:
    """x_u + PRG(b_u) + sum over v > u of PRG(s_uv) - sum over v < u of PRG(s_uv), for all other v in U2.

    `where` names the run and round; these secrets must mask no other vector in it.
    """
    y = x + _own_mask(secrets.seed, len(x), where)
    for v in sorted(set(dealt) - {me}):
        y = y + _pair_mask(secrets.mask, me, v, roster[v].mask, len(x), where)
    return y


def open_sum(
    vectors: Mapping[int, Vector],
    roster: Sequence[Member],
    dealt: Iterable[int],
    shares: Mapping[int, Sequence[str]],
    enough: int,
    where: str,
) -> Vector:
    """The unmasked sum of the vectors of U3; a `RecordError` unless enough of those parties help.

    `shares` has, from each party that helps, its share of every party's secret: the seed of one in U3, else the key.
    """
    if len(vectors) < enough or len(shares) < enough:
        raise RecordError(f"{len(vectors)} vectors and {len(shares)} helpers, but {enough} of each are needed")
    chosen = sorted(shares)[:enough]
    size = len(next(iter(vectors.values())))
    total = np.zeros(size, np.uint64)
    for u, y in vectors.items():
        seed = restore_secret({h: shares[h][u] for h in chosen})
        if _hash(seed) != roster[u].seed:
            raise RecordError(f"the shares of party {u} do not restore its seed")
        total = total + y - _own_mask(seed, size, where)
    for v in sorted(set(dealt) - vectors.keys()):
        private = restore_secret({h: shares[h][v] for h in chosen})
        if public_key(private) != roster[v].mask:
            raise RecordError(f"the shares of party {v} do not restore its key")
        for u in vectors:
            total = total - _pair_mask(private, u, v, roster[u].mask, size, where)
    return total


def _own_mask(seed: str, size: int, where: str) -> Vector:
    return _stream(bytes.fromhex(seed), f"own mask, {where}", size)


def _pair_mask(private: str, u: int, v: int, public: str, size: int, where: str) -> Vector:
    """What u adds for v, from either party's private key and the other's public key."""
    stream = _stream(agree(private, public), f"mask of a pair, {where}", size)
    return stream if u < v else np.zeros(size, np.uint64) - stream


def _stream(secret: bytes, purpose: str, size: int) -> Vector:
    info = f"headwise masked sums 1: {purpose}".encode()
    key = HKDFExpand(algorithm=hashes.SHA256(), length=SEED, info=info).derive(secret)
    return np.frombuffer(keystream(key, 8 * size), np.dtype("<u8")).astype(np.uint64)


def keystream(key: bytes, size: int) -> bytes:
    """ChaCha20 with block counter and nonce 0, so each key must be used for one stream only."""
    return Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(size))


def _hash(secret: str) -> str:
    return hashlib.sha256(bytes.fromhex(secret)).hexdigest()


def new_private_key() -> str:
    return ec.generate_private_key(CURVE).private_numbers().private_value.to_bytes(SCALAR, "big").hex()


def public_key(private: str) -> str:
    return _private_key(private).public_key().public_bytes(Encoding.X962, PublicFormat.CompressedPoint).hex()


def agree(private: str, public: str) -> bytes:
    """The Diffie-Hellman secret of one party's private and the other's public key."""
    secret = _private_key(private).exchange(ec.ECDH(), read_public_key(public))
    return HKDF(algorithm=hashes.SHA256(), length=SEED, salt=None, info=None).derive(secret)


def read_public_key(public: str) -> ec.EllipticCurvePublicKey:
    with _refuse_invalid("key"):
        return ec.EllipticCurvePublicKey.from_encoded_point(
            CURVE, bytes.fromhex(public)
        )  # refuses points off the curve


def seal(secret: bytes, text: bytes) -> str:
    """Encrypt and authenticate with the secret."""
    return Fernet(base64.urlsafe_b64encode(secret)).encrypt(text).decode()


def unseal(secret: bytes, letter: str) -> bytes:
    with _refuse_invalid("sealed message"):
        return Fernet(base64.urlsafe_b64encode(secret)).decrypt(letter)


def split_secret(secret: str, enough: int, count: int) -> list[str]:
    """A share for each of so many parties; any `enough` of them restore the secret, and fewer reveal nothing."""
    data = bytes.fromhex(secret)
    blocks = [Shamir.split(enough, count, data[k : k + BLOCK], ssss=False) for k in range(0, len(data), BLOCK)]
    return [b"".join(part for _, part in parts).hex() for parts in zip(*blocks, strict=True)]


def restore_secret(shares: Mapping[int, str]) -> str:
    """From the shares of these parties."""
    with _refuse_invalid("share"):
        parts = {party: bytes.fromhex(share) for party, share in shares.items()}
        sizes = {len(part) for part in parts.values()}
        if len(sizes) != 1 or sizes & {0} or max(sizes) % BLOCK:
            raise ValueError("the shares differ in length")
        starts = range(0, sizes.pop(), BLOCK)
        return b"".join(
            Shamir.combine([(party + 1, part[k : k + BLOCK]) for party, part in parts.items()], ssss=False)
            for k in starts
        ).hex()


def _private_key(number: str) -> ec.EllipticCurvePrivateKey:
    with _refuse_invalid("key"):
        return ec.derive_private_key(int(number, 16), CURVE)


@contextmanager
def _refuse_invalid(what: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, InvalidToken, UnsupportedAlgorithm) as error:
        raise RecordError(f"this is not a valid {what}: {error or type(error).__name__}") from error


# -- records in fixed point

BITS: Mapping[Sums, int] = {"samples": 28, "clients": 32}
"""fractional bits, by how clients are weighted: rounding changes a mean by at most 2**-29 / the mean number of
samples, or by 2**-33"""
SUM_BITS = 62
"""bits available to a sum: 64 less the sign and one to spare"""
TYPES = {str(t).removeprefix("torch."): t for t in (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8,
)}  # fmt: skip
"""tensor types that can be summed"""


def weight_of(sums: Sums, n: int) -> int:
    return n if sums == "samples" else 1


def find_misfit(record: Record, sums: Sums, n: int, parts: int) -> str | None:
    """Why this record can't be one of `parts` terms of a sum; None if it can."""
    most = 2.0 ** (SUM_BITS - BITS[sums]) / parts
    for name, t in pack(record).tensors.items():
        if str(t.dtype).removeprefix("torch.") not in TYPES:
            return f"{name} of type {t.dtype}, which can't be summed under masks"
        if not bool(t.isfinite().all()):
            return f"values in {name} that are not finite"
        largest = float(t.double().abs().max()) if t.numel() else 0.0
        if largest * weight_of(sums, n) >= most:
            allowed = most / max(weight_of(sums, n), 1)
            return f"values in {name} up to {largest:g}, but under masks they must be below {allowed:g}"
    return None


def add_up(ups: Mapping[int, Record], sums: Sums, samples: Mapping[int, int]) -> Packed:
    """The weighted sum of these clients' messages as integers; the scalar `types` keeps their original types."""
    packed = {c: pack(up) for c, up in ups.items()}
    first = next(iter(packed.values()))
    total = {k: torch.zeros(t.shape, dtype=torch.int64) for k, t in first.tensors.items()}
    for c, (tensors, scalars) in packed.items():
        if _layout(tensors) != _layout(first.tensors) or scalars != first.scalars:
            raise RecordError(f"client {c} sent a message with another layout than the other clients of its site")
        for k, t in tensors.items():
            total[k] += (t.detach().cpu().double() * weight_of(sums, samples[c]) * 2.0 ** BITS[sums]).round().long()
    kinds = ",".join(str(t.dtype).removeprefix("torch.") for t in first.tensors.values())
    return Packed(total, {"types": kinds, "none": ",".join(first.scalars)})


def _layout(tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    return {k: (t.dtype, t.shape) for k, t in tensors.items()}


def layout_of(total: Packed) -> tuple[Any, ...]:
    """The layout of a sum; only sums of the same layout can be added."""
    if set(total.scalars) != {"types", "none"} or any(t.dtype != torch.int64 for t in total.tensors.values()):
        raise RecordError("this is not a masked sum")
    return (*((k, tuple(t.shape)) for k, t in total.tensors.items()), total.scalars["types"], total.scalars["none"])


def flatten(total: Packed) -> Vector:
    rows = [t.reshape(-1).numpy() for t in total.tensors.values()]
    return np.concatenate([np.empty(0, np.int64), *rows]).view(np.uint64)


def unflatten(row: Vector, like: Packed) -> Packed:
    sizes = [t.numel() for t in like.tensors.values()]
    parts = torch.from_numpy(row.view(np.int64).copy()).split(sizes)
    return Packed({k: p.view(t.shape) for (k, t), p in zip(like.tensors.items(), parts, strict=True)}, like.scalars)


def mean_of(cls: type[Record], total: Packed, sums: Sums, weight: int) -> Record:
    """The mean message; integers, such as BatchNorm's counters, are rounded."""
    names = str(total.scalars["types"]).split(",") if total.tensors else []
    if len(names) != len(total.tensors) or not set(names) <= TYPES.keys():
        raise RecordError("this is not a masked sum: its types do not match its tensors")
    tensors: dict[str, torch.Tensor] = {}
    for (k, t), name in zip(total.tensors.items(), names, strict=True):
        mean = t.double() / 2.0 ** BITS[sums] / max(weight, 1)
        tensors[k] = (mean if TYPES[name].is_floating_point else mean.round()).to(TYPES[name])
    absent: dict[str, Scalar] = {k: False for k in str(total.scalars["none"]).split(",") if k}
    return unpack(cls, Packed(tensors, absent))
