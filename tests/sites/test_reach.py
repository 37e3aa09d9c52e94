"""Each cause for which a site can't talk to its server has its own sentence."""

from __future__ import annotations

import ast
import select
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from laboratory import free_port

from headwise.cli import main
from headwise.errors import ConfigError
from headwise.sites.keys import check_certificate, write_certificates
from headwise.sites.transport import superlink
from headwise.sites.transport.superlink import find_problem, load_authority

ROOT = Path(__file__).parents[2]


@contextmanager
def server(home: Path | None, *, status: int = 401, ahead: float = 0.0, date: str | None = None) -> Iterator[int]:
    """A server that answers anything with this status, and whose clock is this many seconds ahead."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response_only(status)
            now = format_datetime(datetime.now(UTC) + timedelta(seconds=ahead), usegmt=True)
            self.send_header("Date", now if date is None else date)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    class Quiet(HTTPServer):
        def handle_error(self, *_: object) -> None:
            """A handshake that fails is what some tests want."""

    found = Quiet(("127.0.0.1", 0), Handler)
    if home is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(home / "server.pem", home / "server.key")
        found.socket = context.wrap_socket(found.socket, server_side=True)
    thread = threading.Thread(target=found.serve_forever)
    thread.start()
    try:
        yield found.server_address[1]
    finally:
        found.shutdown()
        thread.join()
        found.server_close()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    write_certificates(tmp_path, ["127.0.0.1", "study.example"])
    return tmp_path


def said(port: int, trust: ssl.SSLContext | None, host: str = "127.0.0.1") -> tuple[str, bool]:
    found = find_problem(host, port, trust)
    assert found is not None
    return found.why, found.lasting


def test_a_server_that_answers_is_no_problem(home: Path) -> None:
    with server(home) as port:
        assert find_problem("127.0.0.1", port, load_authority(home / "ca.crt")) is None
    with server(None) as port:
        assert find_problem("127.0.0.1", port, None) is None


def test_an_unreachable_server_may_come_back() -> None:
    port = free_port()
    why = f"the server 127.0.0.1:{port} can't be reached (Connection refused): is it running?"
    assert said(port, None) == (why, False)
    why = "the server's name 'nowhere.invalid' is unknown here: check --superlink, or the network."
    assert said(8000, None, "nowhere.invalid") == (why, False)


def test_a_server_that_is_silent_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(superlink, "ANSWER_SECONDS", 0.1)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1]
        why = f"the server 127.0.0.1:{port} does not answer within 0.1 seconds: check the network."
        assert said(port, None) == (why, False)


@pytest.mark.parametrize("begin", [b"", b"HTTP/1.1 401 Unauthorized\r\nDate: "])
def test_a_server_that_sends_a_byte_now_and_then_is_given_up(begin: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte is in time, and an answer may have millions."""
    monkeypatch.setattr(superlink, "ANSWER_SECONDS", 0.5)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]

        def trickle() -> None:
            line, _ = listener.accept()
            with line, suppress(OSError):
                line.sendall(begin)
                while True:
                    line.sendall(b"x")
                    select.select([], [], [], 0.01)

        sender = threading.Thread(target=trickle)
        sender.start()
        why = f"the server 127.0.0.1:{port} does not answer within 0.5 seconds: check the network."
        assert said(port, None) == (why, False)
        sender.join()


def test_another_servers_certificate_is_refused_for_good(home: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    write_certificates(other, ["127.0.0.1"])
    with server(home) as port:
        why, lasting = said(port, load_authority(other / "ca.crt"))
    assert why.startswith(f"the server 127.0.0.1:{port} is not the one that --ca belongs to (")
    assert why.endswith("): get its own ca.crt.")
    assert lasting


def test_a_certificate_for_another_name_tells_how_to_add_it(home: Path) -> None:
    with server(home) as port:
        why = (
            f"the server localhost:{port} has a certificate for other names: it must be started with --name localhost."
        )
        assert said(port, load_authority(home / "ca.crt"), "localhost") == (why, True)


@pytest.mark.parametrize("years", [-20, 20], ids=["expired", "not yet valid"])
def test_a_certificate_of_another_time_is_refused_by_site_and_server(
    years: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_certificates(tmp_path, ["127.0.0.1"], datetime.now(UTC) + timedelta(days=365 * years))
    with server(tmp_path) as port:
        why, lasting = said(port, load_authority(tmp_path / "ca.crt"))
    assert f"the server 127.0.0.1:{port} has a certificate that is not valid now" in why
    assert lasting
    with pytest.raises(SystemExit) as end:
        main(["server", "start", str(tmp_path), "--port", str(port)])
    assert end.value.code == 2
    assert "server.pem is valid from " in capsys.readouterr().err
    assert not (tmp_path / "flower.log").exists(), "nothing was started"


@pytest.mark.parametrize("text", [b"", b"-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n", bytes(1000)])
def test_a_damaged_certificate_is_named(text: bytes, home: Path) -> None:
    (home / "server.pem").write_bytes(text)
    with pytest.raises(ConfigError, match=r"server.pem can't be read as the server's certificate"):
        check_certificate(home / "server.pem")


def test_encrypted_and_plain_do_not_fit(home: Path) -> None:
    with server(None) as port:
        why, lasting = said(port, load_authority(home / "ca.crt"))
    assert why == f"the server 127.0.0.1:{port} does not speak TLS: check the address, or whether it runs insecurely."
    assert lasting
    with server(home) as port:
        why, lasting = said(port, None)
    assert f"the server 127.0.0.1:{port}" in why
    assert lasting or "can't be reached" in why  # what a TLS server does with plain text is its own business


@pytest.mark.parametrize(("ahead", "way"), [(-60.0, "ahead of"), (600.0, "behind")])
def test_a_wrong_clock_is_named(home: Path, ahead: float, way: str) -> None:
    with server(home, ahead=ahead) as port:
        why, lasting = said(port, load_authority(home / "ca.crt"))
    assert why.startswith("this machine's clock is ")
    assert f" seconds {way} the server's: set both clocks." in why
    assert abs(int(why.split()[4]) - abs(ahead)) <= 2, why
    assert not lasting


def test_a_clock_that_flower_accepts_is_fine(home: Path) -> None:
    with server(home, ahead=120.0) as port:
        assert find_problem("127.0.0.1", port, load_authority(home / "ca.crt")) is None


@pytest.mark.parametrize("date", ["", "yesterday", "Mon, 99 Foo 20000 00:00:00 GMT"])
def test_a_date_that_is_none_says_nothing(home: Path, date: str) -> None:
    with server(home, date=date) as port:
        assert find_problem("127.0.0.1", port, load_authority(home / "ca.crt")) is None


def test_a_server_that_speaks_something_else_is_named(home: Path) -> None:
    with server(home, date="\r\n" * 3, status=42) as port:
        why = f"the server 127.0.0.1:{port} does not speak HTTP: check the address."
        assert said(port, load_authority(home / "ca.crt")) == (why, True)


@pytest.mark.parametrize(
    ("status", "words", "lasting"), [(404, "does not offer /v1/fleet/", True), (502, "proxy", False)]
)
def test_other_servers_are_told_apart(home: Path, status: int, words: str, lasting: bool) -> None:
    with server(home, status=status) as port:
        found = said(port, load_authority(home / "ca.crt"))
    assert words in found[0]
    assert found[1] == lasting


def test_a_certificate_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("no certificate")
    with pytest.raises(ConfigError, match=r"ca.crt', but must be the server's ca.crt: it has no certificate."):
        load_authority(tmp_path / "ca.crt")
    with pytest.raises(ConfigError, match=r"--ca is missing: give the server's ca.crt, which proves who it is."):
        load_authority(None)


def test_no_wait_depends_on_a_clock_that_can_jump() -> None:
    """The wall clock is only compared with the server's and with a certificate's time, or printed."""
    users: dict[str, set[str]] = {}
    for path in (ROOT / "src" / "headwise" / "sites").rglob("*.py"):
        calls = {ast.unparse(n.func) for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)}
        if wall := calls & {"time.time", "datetime.now", "datetime.datetime.now", "time.localtime", "time.gmtime"}:
            users[path.name] = wall
    assert users == {
        "superlink.py": {"time.time"},
        "envelope.py": {"datetime.now"},
        "keys.py": {"datetime.datetime.now"},
    }
