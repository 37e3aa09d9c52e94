"""Keys, certificates and signed lists of experiments, all made with the `cryptography` package.

ECDSA keys on P-384, which Flower expects, X.509 certificates, Ed25519 signatures.
"""

from __future__ import annotations

import base64
import datetime
import ipaddress
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)
from cryptography.x509.oid import NameOID

from ..disk.files import explain_write_errors, read_json, write_bytes, write_json
from ..disk.jsontext import to_json
from ..errors import ConfigError, RunError
from ..settings.experiment import Experiment
from .facts import experiment_hash

YEARS = 5
"""validity of a certificate"""
PURPOSE = b"headwise experiments\n"
"""prefix of every signed list, so that no other signed message can pass for one"""


def write_node_key(path: Path, name: str = "") -> None:
    """Write a site's key pair: `path`, which never leaves the site, and `path`.pub for the server, with its name."""
    key = ec.generate_private_key(ec.SECP384R1())
    _write_secret(path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    write_bytes(path.with_name(f"{path.name}.pub"), public + f" {name}".rstrip().encode() + b"\n")


def write_certificates(folder: Path, names: Sequence[str], since: datetime.datetime | None = None) -> None:
    """Write a new certificate authority (ca.crt, for the sites) and a server certificate for these names."""
    since = since or datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)
    authority, server = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Headwise server's authority")])
    root = _certificate(issuer, issuer, authority.public_key(), True, since).sign(authority, hashes.SHA256())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])  # X.509's limit
    hosts = x509.SubjectAlternativeName([_general_name(name) for name in names])
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    builder = _certificate(issuer, subject, server.public_key(), False, since).add_extension(hosts, critical=False)
    leaf = builder.add_extension(signer, critical=False).sign(authority, hashes.SHA256())
    secret = server.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    _write_secret(folder / "server.key", secret)
    write_bytes(folder / "server.pem", leaf.public_bytes(Encoding.PEM))
    write_bytes(folder / "ca.crt", root.public_bytes(Encoding.PEM))  # its key is never stored: it signs nothing else


def check_certificate(path: Path) -> None:
    """Refuse to start with a certificate that no site would accept."""
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} can't be read as the server's certificate: {error}.") from error
    begin = certificate.not_valid_before_utc
    end = certificate.not_valid_after_utc
    if not begin <= datetime.datetime.now(datetime.UTC) <= end:
        raise ConfigError(
            f"{path} is valid from {begin:%Y-%m-%d} to {end:%Y-%m-%d}, but not now: check the clock, or remove ca.crt, "
            "server.pem and server.key to create new ones, and give the new ca.crt to the sites."
        )


def _certificate(
    issuer: x509.Name, subject: x509.Name, key: ec.EllipticCurvePublicKey, authority: bool, since: datetime.datetime
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().issuer_name(issuer).subject_name(subject).public_key(key)
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(since)
    builder = builder.not_valid_after(since + datetime.timedelta(days=365 * YEARS))
    builder = builder.add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
    usage = x509.KeyUsage(
        digital_signature=not authority, key_cert_sign=authority, crl_sign=authority,
        content_commitment=False, key_encipherment=False, data_encipherment=False, key_agreement=False,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip
    identity = x509.SubjectKeyIdentifier.from_public_key(key)
    return builder.add_extension(usage, critical=True).add_extension(identity, critical=False)


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def sign_list(experiments: Iterable[Experiment], key: Path, out: Path) -> list[str]:
    """Write a signed list of these experiments; create the key pair (`key`, `key`.pub) if it does not exist."""
    for option, path in (("--key", key), ("--out", out)):  # before creating a key
        if not path.name or path.is_dir() or not path.parent.is_dir():
            raise RunError(f"{option} is {str(path)!r}, but must be a file in an existing folder.")
    if not key.exists():
        made = ed25519.Ed25519PrivateKey.generate()
        _write_secret(key, made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        public = made.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        write_bytes(key.with_name(f"{key.name}.pub"), public)
    try:
        private = load_pem_private_key(key.read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise RunError(f"{key} can't be read as a private key: {error}.") from error
    if not isinstance(private, ed25519.Ed25519PrivateKey):
        raise RunError(f"{key} must be an Ed25519 key.")
    listed = sorted({experiment_hash(e) for e in experiments})
    signature = private.sign(_message(listed))
    write_json(out, {"experiments": listed, "signature": base64.b64encode(signature).decode()})
    return listed


def read_signed_list(path: Path, signer: Path) -> list[str]:
    """The hashes on this list; a `RunError` unless `signer` (a public key file) signed it."""
    try:
        public = load_pem_public_key(signer.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise RunError(f"{signer} can't be read as a public key: {error}.") from error
    if not isinstance(public, ed25519.Ed25519PublicKey):
        raise RunError(f"{signer} must be an Ed25519 key.")
    values = read_json(path)
    try:
        listed = [str(h) for h in values["experiments"]]
        public.verify(base64.b64decode(values["signature"], validate=True), _message(listed))
    except (InvalidSignature, KeyError, TypeError, ValueError) as error:
        raise RunError(f"{path} is not signed by {signer}, so nothing on it is allowed.") from error
    return listed


def _message(listed: list[str]) -> bytes:
    return PURPOSE + to_json(listed).encode()


def _write_secret(path: Path, data: bytes) -> None:
    """Create a file that only its owner can read; an existing one is never overwritten."""
    with (
        explain_write_errors(path),
        os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file,
    ):
        file.write(data)
