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

All primitives are from libraries. From Flower's SecAgg+: ECDH on P-384 with HKDF, Fernet, and Shamir's secret sharing
(PyCryptodome). Not its generator, a Mersenne Twister with a 28-bit seed: masks are ChaCha20 keystreams from the
`cryptography` package. Invalid bytes from other parties raise a `RecordError`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.fernet import InvalidToken
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import decrypt, encrypt, generate_shared_key
from flwr.supercore.primitives.asymmetric import generate_key_pairs

from ...disk.jsontext import to_json
from ...records import RecordError

Vector = npt.NDArray[np.uint64]

LEAST = 3
"""fewest sites in a sum: with two, each would learn the other's part"""
CURVE = ec.SECP384R1()  # Flower's
SCALAR = 48
"""bytes of a private key"""
SEED = 32
"""bytes of a seed, and of every other symmetric key"""


class Member(NamedTuple):
    """A party's public keys, and the hash of its seed, by which wrong shares of the seed are noticed."""

    cipher: bytes
    mask: bytes
    seed: bytes


class Secrets(NamedTuple):
    """A party's private keys and seed."""

    cipher: bytes
    mask: bytes
    seed: bytes

    @property
    def member(self) -> Member:
        return Member(public_key(self.cipher), public_key(self.mask), hashlib.sha256(self.seed).digest())


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


def parties_needed(threshold: float, parties: int) -> int:
    """How many of the parties must stay to the end; also the shares needed to restore a secret."""
    return max(LEAST, math.ceil(threshold * parties - 1e-9))


def new_secrets() -> Secrets:
    return Secrets(new_private_key(), new_private_key(), os.urandom(SEED))


def deal_shares(secrets: Secrets, me: int, roster: Sequence[Member], enough: int) -> tuple[Share, dict[int, bytes]]:
    """My own share of my secrets, and the shares of all others, sealed for them."""
    parts = (create_shares(secret, enough, len(roster)) for secret in (secrets.mask, secrets.seed))
    shares = [Share(*both) for both in zip(*parts, strict=True)]
    letters: dict[int, bytes] = {}
    for v, (key, seed) in enumerate(shares):
        if v != me:
            text = to_json({"from": me, "to": v, "key": key.hex(), "seed": seed.hex()}).encode()
            letters[v] = seal(agree(secrets.cipher, roster[v].cipher), text)
    return shares[me], letters


def read_share(cipher: bytes, me: int, u: int, roster: Sequence[Member], letter: bytes) -> Share:
    """Open the letter with my share of u's secrets."""
    try:
        values = json.loads(unseal(agree(cipher, roster[u].cipher), letter))
        share = Share(bytes.fromhex(values["key"]), bytes.fromhex(values["seed"]))
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
    helpers: Mapping[int, Help],
    enough: int,
    where: str,
) -> Vector:
    """The unmasked sum of the vectors of U3; a `RecordError` unless enough of those parties help."""
    if len(vectors) < enough or len(helpers) < enough:
        raise RecordError(f"{len(vectors)} vectors and {len(helpers)} helpers, but {enough} of each are needed")
    chosen = sorted(helpers)[:enough]
    size = len(next(iter(vectors.values())))
    total = np.zeros(size, np.uint64)
    for u, y in vectors.items():
        seed = restore_secret([_check_holder(h, helpers[h].seeds[u]) for h in chosen])
        if hashlib.sha256(seed).digest() != roster[u].seed:
            raise RecordError(f"the shares of party {u} do not restore its seed")
        total = total + y - _own_mask(seed, size, where)
    for v in sorted(set(dealt) - vectors.keys()):
        private = restore_secret([_check_holder(h, helpers[h].keys[v]) for h in chosen])
        if public_key(private) != roster[v].mask:
            raise RecordError(f"the shares of party {v} do not restore its key")
        for u in vectors:
            total = total - _pair_mask(private, u, v, roster[u].mask, size, where)
    return total


def _check_holder(holder: int, share: bytes) -> bytes:
    """Check that a share starts with its holder's number: any other would restore a wrong secret."""
    if int.from_bytes(share[:4], "little") != holder + 1:
        raise RecordError(f"the share that party {holder} gave is not its own")
    return share


def _own_mask(seed: bytes, size: int, where: str) -> Vector:
    return _stream(seed, f"own mask, {where}", size)


def _pair_mask(private: bytes, u: int, v: int, public: bytes, size: int, where: str) -> Vector:
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


def new_private_key() -> bytes:
    private, _ = generate_key_pairs()
    return private.private_numbers().private_value.to_bytes(SCALAR, "big")


def public_key(private: bytes) -> bytes:
    return _private_key(private).public_key().public_bytes(Encoding.X962, PublicFormat.CompressedPoint)


def agree(private: bytes, public: bytes) -> bytes:
    """The Diffie-Hellman secret of one party's private and the other's public key."""
    return base64.urlsafe_b64decode(generate_shared_key(_private_key(private), read_public_key(public)))


def read_public_key(public: bytes) -> ec.EllipticCurvePublicKey:
    with _reading("key"):
        return ec.EllipticCurvePublicKey.from_encoded_point(CURVE, public)  # refuses points off the curve


def seal(secret: bytes, text: bytes) -> bytes:
    """Encrypt and authenticate with the secret."""
    return encrypt(base64.urlsafe_b64encode(secret), text)


def unseal(secret: bytes, token: bytes) -> bytes:
    with _reading("sealed message"):
        return decrypt(base64.urlsafe_b64encode(secret), token)


def restore_secret(shares: Sequence[bytes]) -> bytes:
    with _reading("share"):
        if not shares or len({len(share) for share in shares}) > 1 or len(shares[0]) % 16 != 4:
            raise ValueError("the shares differ in length")
        return combine_shares(list(shares))


def _private_key(number: bytes) -> ec.EllipticCurvePrivateKey:
    with _reading("key"):
        return ec.derive_private_key(int.from_bytes(number, "big"), CURVE)


@contextmanager
def _reading(what: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, InvalidToken, UnsupportedAlgorithm) as error:
        raise RecordError(f"this is not a valid {what}: {error or type(error).__name__}") from error
