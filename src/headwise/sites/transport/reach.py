"""Why a site can't talk to a server, found out step by step: name, network, TLS, protocol, clock."""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import NamedTuple

from ...errors import ConfigError

PATIENCE = 8.0
"""seconds for each step"""
AHEAD, BEHIND = 5, 305
"""seconds that Flower lets a site's clock differ from the server's"""
PATH = "/v1/fleet/pull-messages"
NAME_MISMATCH = (62, 64)
"""OpenSSL's codes of a certificate for another name or address"""


class Problem(NamedTuple):
    why: str
    """a sentence"""
    lasting: bool
    """whether only a person can change it, so that trying again makes no sense"""


def check_certificate(ca: Path | None) -> ssl.SSLContext:
    """What proves who the server is."""
    if ca is None:
        raise ConfigError("--ca is missing: give the server's ca.crt, which proves who it is.")
    try:
        return ssl.create_default_context(cafile=str(ca))
    except ssl.SSLError as error:
        raise ConfigError(f"--ca is {str(ca)!r}, but must be the server's ca.crt: it has no certificate.") from error
    except OSError as error:
        raise ConfigError(f"--ca is {str(ca)!r}, which can't be read: {error.strerror}.") from error


def problem(host: str, port: int, trust: ssl.SSLContext | None) -> Problem | None:
    """What keeps a site from this server; None if nothing does. Without `trust`, the connection is not encrypted."""
    server = f"the server {host}:{port}"
    try:
        with socket.create_connection((host, port), PATIENCE) as bare:
            if trust is None:
                return _talk(bare, host, server)
            with trust.wrap_socket(bare, server_hostname=host) as safe:
                return _talk(safe, host, server)
    except ssl.SSLCertVerificationError as error:
        return Problem(_distrust(error, host, server), lasting=True)
    except ssl.SSLError:
        return Problem(f"{server} does not speak TLS: check the address, or whether it runs insecurely.", lasting=True)
    except http.client.HTTPException:
        hint = "leave out --insecure-loopback, give --ca" if trust is None else "check the address"
        return Problem(f"{server} does not speak HTTP{' without TLS' * (trust is None)}: {hint}.", lasting=True)
    except socket.gaierror:
        return Problem(f"the server's name {host!r} is unknown here: check --superlink, or the network.", lasting=False)
    except TimeoutError:
        return Problem(f"{server} does not answer within {PATIENCE:g} seconds: check the network.", lasting=False)
    except OSError as error:
        return Problem(f"{server} can't be reached ({error.strerror or error}): is it running?", lasting=False)


def _distrust(error: ssl.SSLCertVerificationError, host: str, server: str) -> str:
    if error.verify_code in NAME_MISMATCH:
        return f"{server} has a certificate for other names: it must be started with --name {host}."
    if "expired" in error.verify_message or "not yet valid" in error.verify_message:
        return f"{server} has a certificate that is not valid now ({error.verify_message}): check both clocks."
    return f"{server} is not the one that --ca belongs to ({error.verify_message}): get its own ca.crt."


def _talk(connection: socket.socket, host: str, server: str) -> Problem | None:
    """Ask for the one path that sites need, without credentials; the answer also tells the server's time."""
    asked = http.client.HTTPConnection(host)
    asked.sock = connection
    asked.request("POST", PATH, headers={"Content-Type": "application/x-protobuf"})
    answer = asked.getresponse()
    if answer.status in (404, 405):
        return Problem(f"{server} does not offer {PATH.rpartition('/')[0]}/: is it Headwise's, or its proxy?", True)
    if answer.status in (502, 503, 504):
        return Problem(f"{server} is a proxy that can't reach the real one (status {answer.status}).", lasting=False)
    ahead = _ahead(answer.getheader("Date", ""))
    if -BEHIND < ahead < AHEAD + 1:  # the header has whole seconds
        return None
    way = "ahead of" if ahead > 0 else "behind"
    return Problem(f"this machine's clock is {abs(ahead):.0f} seconds {way} the server's: set both right.", False)


def _ahead(date: str) -> float:
    """Seconds that this machine's clock is ahead of the server's; 0 if the server does not say."""
    try:
        return time.time() - parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError):
        return 0.0
