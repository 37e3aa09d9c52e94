"""Cryptographic primitives for masked sums, all from libraries; besides `grid.py`, the only file that imports flwr.

From Flower's SecAgg+: ECDH on P-384 with HKDF, Fernet, and Shamir's secret sharing (PyCryptodome). Not its generator, a
Mersenne Twister with a 28-bit seed: masks are ChaCha20 keystreams from the `cryptography` package. Invalid bytes from
other parties raise a `RecordError`.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

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

from ...records import RecordError

CURVE = ec.SECP384R1()  # Flower's
SCALAR = 48
"""bytes of a private key"""
SEED = 32
"""bytes of a seed, and of every other symmetric key"""


class Pair(NamedTuple):
    private: bytes
    public: bytes


def new_pair() -> Pair:
    private, _ = generate_key_pairs()
    number = private.private_numbers().private_value.to_bytes(SCALAR, "big")
    return Pair(number, public_of(number))


def public_of(private: bytes) -> bytes:
    return _private(private).public_key().public_bytes(Encoding.X962, PublicFormat.CompressedPoint)


def agreed(private: bytes, public: bytes) -> bytes:
    """The Diffie-Hellman secret of one party's private and the other's public key."""
    with _reading("key"):
        theirs = ec.EllipticCurvePublicKey.from_encoded_point(CURVE, public)  # refuses points off the curve
    return base64.urlsafe_b64decode(generate_shared_key(_private(private), theirs))


def new_seed() -> bytes:
    return os.urandom(SEED)


def sealed(secret: bytes, text: bytes) -> bytes:
    """Encrypted and authenticated with the secret."""
    return encrypt(base64.urlsafe_b64encode(secret), text)


def unsealed(secret: bytes, token: bytes) -> bytes:
    with _reading("sealed message"):
        return decrypt(base64.urlsafe_b64encode(secret), token)


def split(secret: bytes, needed: int, count: int) -> list[bytes]:
    """`count` shares: any `needed` of them restore the secret, fewer reveal nothing."""
    return create_shares(secret, needed, count)


def joined(shares: Sequence[bytes]) -> bytes:
    with _reading("share"):
        if not shares or len({len(share) for share in shares}) > 1 or len(shares[0]) % 16 != 4:
            raise ValueError("the shares differ in length")
        return combine_shares(list(shares))


def derived(secret: bytes, purpose: str) -> bytes:
    return HKDFExpand(algorithm=hashes.SHA256(), length=SEED, info=purpose.encode()).derive(secret)


def keystream(key: bytes, size: int) -> bytes:
    """ChaCha20 with block counter and nonce 0, so each key must be used for one stream only."""
    return Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(size))


def _private(number: bytes) -> ec.EllipticCurvePrivateKey:
    with _reading("key"):
        return ec.derive_private_key(int.from_bytes(number, "big"), CURVE)


@contextmanager
def _reading(what: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, InvalidToken, UnsupportedAlgorithm) as error:
        raise RecordError(f"this is not a valid {what}: {error or type(error).__name__}") from error
