"""Masked sums: Bonawitz et al., *Practical Secure Aggregation for Privacy-Preserving Machine Learning*, CCS 2017.

The version against a server that follows the protocol but reads everything (Figure 4, without the parts for active
adversaries). Pure functions, in the paper's letters:

    u, v        parties, by their place in the roster of the round
    c, s        key pairs of a party, fresh in each round: for sealed shares, and for pairwise masks
    b           seed of a party's own mask
    U1 U2 U3    parties that gave keys, that dealt shares, that sent a masked vector

A vector is of integers modulo 2**64. It is masked by the streams of b_u and of what s_u and each s_v agree on: the
latter cancel in the sum. Of s and b every party of U1 has a share. Who opens a sum gets b of those in U3, whose own
masks are to be taken off, and s of those in U2 that are not in U3, whose pairwise masks have nothing to cancel them.
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
"""sites of which a sum is opened, at least: of two, each would learn the other's part"""


class Member(NamedTuple):
    """A party's public keys."""

    cipher: bytes
    mask: bytes


class Secrets(NamedTuple):
    """What a party must keep: its private keys and its seed."""

    cipher: bytes
    mask: bytes
    seed: bytes

    @property
    def member(self) -> Member:
        """The public part."""
        return Member(public_of(self.cipher), public_of(self.mask))


class Share(NamedTuple):
    """A share of a party's secrets: of its private key for pairwise masks, and of its seed."""

    key: bytes
    seed: bytes


class Help(NamedTuple):
    """What a party gives to open a sum: never both shares of one party."""

    keys: Mapping[int, bytes]
    """of those that were lost"""
    seeds: Mapping[int, bytes]
    """of those whose vectors are in the sum"""


def needed(threshold: float, asked: int) -> int:
    """How many parties of so many that were asked must stay to the end; as many shares open a secret."""
    return max(LEAST, math.ceil(threshold * asked - 1e-9))


def new_secrets() -> Secrets:
    """Fresh ones."""
    return Secrets(new_pair().private, new_pair().private, new_seed())


def deal(secrets: Secrets, me: int, roster: Sequence[Member], enough: int) -> tuple[Share, dict[int, bytes]]:
    """My own share of my secrets, and everybody else's, sealed for them."""
    parts = (split(secret, enough, len(roster)) for secret in (secrets.mask, secrets.seed))
    shares = [Share(*both) for both in zip(*parts, strict=True)]
    letters = {v: _letter(me, v, shares[v]) for v in range(len(roster)) if v != me}
    return shares[me], {v: sealed(agreed(secrets.cipher, roster[v].cipher), text) for v, text in letters.items()}


def read_share(cipher: bytes, me: int, u: int, roster: Sequence[Member], letter: bytes) -> Share:
    """My share of what u keeps, which u has sealed for me."""
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

    `where` names the run and the round, in which no other vector may be masked with these secrets.
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
    """The sum of the vectors of U3 without their masks, if enough of those parties help."""
    if len(vectors) < enough or len(helped) < enough:
        raise RecordError(f"{len(vectors)} vectors and {len(helped)} helpers, but {enough} are needed")
    helpers = sorted(helped)[:enough]
    size = len(next(iter(vectors.values())))
    total = np.zeros(size, np.uint64)
    for u, y in vectors.items():
        seed = joined([_numbered(h, helped[h].seeds[u]) for h in helpers])
        total = total + y - _own(seed, size, where)
    for v in sorted(set(dealt) - vectors.keys()):
        private = joined([_numbered(h, helped[h].keys[v]) for h in helpers])
        if public_of(private) != roster[v].mask:
            raise RecordError(f"the shares of party {v} do not give its key")
        for u in vectors:
            total = total - _paired(private, u, v, roster[u].mask, size, where)
    return total


def _letter(u: int, v: int, share: Share) -> bytes:
    return to_json({"from": u, "to": v, "key": share.key.hex(), "seed": share.seed.hex()}).encode()


def _numbered(holder: int, share: bytes) -> bytes:
    """A share begins with its number, which is its holder's: with another one the secret would be another."""
    if int.from_bytes(share[:4], "little") != holder + 1:
        raise RecordError(f"the share that party {holder} gave is not its own")
    return share


def _own(seed: bytes, size: int, where: str) -> Vector:
    return _stream(seed, f"own mask, {where}", size)


def _paired(private: bytes, u: int, v: int, public: bytes, size: int, where: str) -> Vector:
    """What u adds for v; the private key may be either one's, with the other's public one."""
    stream = _stream(agreed(private, public), f"mask of a pair, {where}", size)
    return stream if u < v else np.zeros(size, np.uint64) - stream


def _stream(secret: bytes, purpose: str, size: int) -> Vector:
    key = derived(secret, f"headwise masked sums 1: {purpose}")
    return np.frombuffer(keystream(key, 8 * size), np.dtype("<u8")).astype(np.uint64)
