"""Masked sums: Bonawitz et al., *Practical Secure Aggregation for Privacy-Preserving Machine Learning*, CCS 2017.

The variant against an honest-but-curious server (Figure 4, without the parts for active adversaries). Pure functions,
in the paper's notation:

    u, v        parties, as indices in the round's roster
    c, s        a party's key pairs, fresh in each round: for sealed shares, and for pairwise masks
    b           seed of a party's own mask
    U1 U2 U3    parties that gave keys, that dealt shares, that sent a masked vector

Vectors are integers modulo 2**64. Each is masked with the stream of b_u, and with one stream for each pair's agreed key
(s_u, s_v); the pairwise streams cancel in the sum. Every party in U1 holds a share of each s and b. To open a sum, the
server needs b of U3, to remove their own masks, and s of U2 without U3, whose pairwise masks did not cancel.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...disk.jsontext import to_json
from ...records import RecordError
from .primitives import agreed, derived, joined, keystream, new_pair, new_seed, public_of, sealed, split, unsealed

Vector = npt.NDArray[np.uint64]

LEAST = 3
"""fewest sites in a sum: with two, each would learn the other's part"""


class Member(NamedTuple):
    """A party's public keys."""

    cipher: bytes
    mask: bytes


class Secrets(NamedTuple):
    """A party's private keys and seed."""

    cipher: bytes
    mask: bytes
    seed: bytes

    @property
    def member(self) -> Member:
        return Member(public_of(self.cipher), public_of(self.mask))


class Share(NamedTuple):
    """One share each of a party's private mask key and of its seed."""

    key: bytes
    seed: bytes


class Help(NamedTuple):
    """What a party gives to open a sum: never both shares of one other party."""

    keys: Mapping[int, bytes]
    """of lost parties"""
    seeds: Mapping[int, bytes]
    """of parties in the sum"""


def needed(threshold: float, asked: int) -> int:
    """How many of the `asked` parties must stay to the end; also the shares needed to restore a secret."""
    return max(LEAST, math.ceil(threshold * asked - 1e-9))


def new_secrets() -> Secrets:
    return Secrets(new_pair().private, new_pair().private, new_seed())


def deal(secrets: Secrets, me: int, roster: Sequence[Member], enough: int) -> tuple[Share, dict[int, bytes]]:
    """My own share of my secrets, and the shares of all others, sealed for them."""
    parts = (split(secret, enough, len(roster)) for secret in (secrets.mask, secrets.seed))
    shares = [Share(*both) for both in zip(*parts, strict=True)]
    letters: dict[int, bytes] = {}
    for v, (key, seed) in enumerate(shares):
        if v != me:
            text = to_json({"from": me, "to": v, "key": key.hex(), "seed": seed.hex()}).encode()
            letters[v] = sealed(agreed(secrets.cipher, roster[v].cipher), text)
    return shares[me], letters


def read_share(cipher: bytes, me: int, u: int, roster: Sequence[Member], letter: bytes) -> Share:
    """Open the letter with my share of u's secrets."""
    try:
        said = json.loads(unsealed(agreed(cipher, roster[u].cipher), letter))
        share = Share(bytes.fromhex(said["key"]), bytes.fromhex(said["seed"]))
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(f"the share of party {u} can't be read: {error}") from error
    if (said.get("from"), said.get("to")) != (u, me):
        raise RecordError(f"the share of party {u} is from {said.get('from')} to {said.get('to')}, not to {me}")
    return share


def masked(x: Vector, secrets: Secrets, me: int, roster: Sequence[Member], dealt: Iterable[int], where: str) -> Vector:
    """x_u + PRG(b_u) + sum over v > u of PRG(s_uv) - sum over v < u of PRG(s_uv), for all other v in U2.

    `where` names the run and round; these secrets must mask no other vector in it.
    """
    y = x + _own(secrets.seed, len(x), where)
    for v in sorted(set(dealt) - {me}):
        y = y + _paired(secrets.mask, me, v, roster[v].mask, len(x), where)
    return y


def opened(
    vectors: Mapping[int, Vector],
    roster: Sequence[Member],
    dealt: Iterable[int],
    helped: Mapping[int, Help],
    enough: int,
    where: str,
) -> Vector:
    """The unmasked sum of the vectors of U3; a `RecordError` unless enough of those parties help."""
    if len(vectors) < enough or len(helped) < enough:
        raise RecordError(f"{len(vectors)} vectors and {len(helped)} helpers, but {enough} of each are needed")
    helpers = sorted(helped)[:enough]
    size = len(next(iter(vectors.values())))
    total = np.zeros(size, np.uint64)
    for u, y in vectors.items():
        seed = joined([_numbered(h, helped[h].seeds[u]) for h in helpers])
        total = total + y - _own(seed, size, where)
    for v in sorted(set(dealt) - vectors.keys()):
        private = joined([_numbered(h, helped[h].keys[v]) for h in helpers])
        if public_of(private) != roster[v].mask:
            raise RecordError(f"the shares of party {v} do not restore its key")
        for u in vectors:
            total = total - _paired(private, u, v, roster[u].mask, size, where)
    return total


def _numbered(holder: int, share: bytes) -> bytes:
    """Check that a share starts with its holder's number: any other would restore a wrong secret."""
    if int.from_bytes(share[:4], "little") != holder + 1:
        raise RecordError(f"the share that party {holder} gave is not its own")
    return share


def _own(seed: bytes, size: int, where: str) -> Vector:
    return _stream(seed, f"own mask, {where}", size)


def _paired(private: bytes, u: int, v: int, public: bytes, size: int, where: str) -> Vector:
    """What u adds for v, from either party's private key and the other's public key."""
    stream = _stream(agreed(private, public), f"mask of a pair, {where}", size)
    return stream if u < v else np.zeros(size, np.uint64) - stream


def _stream(secret: bytes, purpose: str, size: int) -> Vector:
    key = derived(secret, f"headwise masked sums 1: {purpose}")
    return np.frombuffer(keystream(key, 8 * size), np.dtype("<u8")).astype(np.uint64)
