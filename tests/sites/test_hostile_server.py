"""A server that is hostile or broken, or what is between: a site talks to nobody else, fills no memory, and goes on."""

from __future__ import annotations

import base64
import gzip
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from federations import write_site
from flwr.proto.fleet_pb2 import ActivateNodeRequest, ActivateNodeResponse
from superlink import SuperLink, connected, echo, identity  # noqa: F401 (the last is a fixture)

from headwise.disk.jsontext import to_json
from headwise.errors import ConfigError
from headwise.sites.keys import write_node_key
from headwise.sites.server.control import site_name
from headwise.sites.site.running import RunningSite, site_status
from headwise.sites.site.worker import Activity, update_activity
from headwise.sites.transport import node
from headwise.sites.transport.envelope import SiteMessage
from headwise.sites.transport.node import OVERHEAD_BYTES, DirectClient, connect, largest_message, read_site_key
from headwise.sites.transport.superlink import flower_environment
from headwise.sites.transport.supervisor import ChildEvent, Supervisor

ASKED = ActivateNodeRequest(public_key=b"key", heartbeat_interval=30)
GOOD = ActivateNodeResponse(node_id=7).SerializeToString()


class Listening(ThreadingHTTPServer):
    """Notes every request; answers each path with what `answers` says, or with node 7."""

    def __init__(self, answers: Callable[[str], tuple[int, dict[str, str], bytes]]) -> None:
        self.asked: list[str] = []
        listening = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                listening.asked.append(f"{self.command} {self.path}")
                code, headers, body = answers(self.path)
                self.send_response_only(code)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self) -> None:
                self.do_POST()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        super().__init__(("127.0.0.1", 0), Handler)

    def handle_error(self, *_: object) -> None:
        """Who asks may go in the middle of an answer."""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


@contextmanager
def listening(
    answers: Callable[[str], tuple[int, dict[str, str], bytes]] = lambda path: (200, {}, GOOD),
) -> Iterator[Listening]:
    with Listening(answers) as found:
        thread = threading.Thread(target=found.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield found
        finally:
            found.shutdown()
            thread.join()


def activated(address: str) -> int:
    with DirectClient.from_server_address(address, True, None, []) as client:
        return client.ActivateNode(ASKED).node_id


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_a_site_is_not_sent_elsewhere(code: int) -> None:
    """Or a server could have it ask any machine of the hospital's network."""
    with listening() as other, listening(lambda path: (code, {"Location": f"http://{other.address}/"}, b"")) as server:
        with pytest.raises(httpx.HTTPStatusError, match=str(code)):
            activated(server.address)
        assert (len(server.asked), other.asked) == (1, [])


def test_the_nodes_own_connection_is_not_sent_elsewhere_either() -> None:
    """Flower makes it, with a client that it takes from us."""
    with listening() as other:

        def answers(path: str) -> tuple[int, dict[str, str], bytes]:
            moved = (307, {"Location": f"http://{other.address}/"}, b"")
            return moved if path.endswith("pull-messages") else (200, {}, GOOD)

        with listening(answers) as server, connect(server.address, None, None) as (node, receive, *_):
            assert node == 7
            with pytest.raises(httpx.HTTPStatusError, match="307"):
                receive()
        assert other.asked == []


def test_no_proxy_reads_what_is_sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with listening(lambda path: (500, {}, b"")) as proxy, listening() as server:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://{proxy.address}")
        assert activated(server.address) == 7
        given = flower_environment(tmp_path)  # of Flower's own processes and commands
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.setenv(name, given[name])
        assert httpx.post(f"http://{server.address}/").status_code == 200
        assert proxy.asked == []


def test_an_answer_that_would_fill_the_memory_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "ANSWER_BYTES", 1000)
    with listening(lambda path: (200, {}, bytes(1001))) as server, pytest.raises(httpx.DecodingError, match="1,000 by"):
        activated(server.address)
    bomb = (200, {"Content-Encoding": "gzip"}, gzip.compress(bytes(10**6)))
    with listening(lambda path: bomb) as server, pytest.raises(httpx.DecodingError, match="is compressed"):
        activated(server.address)


def test_an_answer_that_never_ends_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that sends a byte now and then would keep the node waiting, since each byte is in time."""
    monkeypatch.setattr(node, "ANSWER_SECONDS", -1.0)
    with listening() as server, pytest.raises(httpx.ReadTimeout, match="takes more than -1 seconds"):
        activated(server.address)


def test_a_message_that_is_too_large_is_not_fetched_to_its_end() -> None:
    link, asked = SuperLink(SiteMessage("large", [bytes(10**6 + k) for k in range(20)])), list[str]()
    assert connected(link, lambda kind, message: asked.append(kind) or message, 10**6).answer_next()
    assert "this site accepts messages of at most 1,000,000 bytes" in link.answer().error.reason
    assert link.pulled < 10**6 + OVERHEAD_BYTES + 10**7, "of 20 MB"
    assert not asked


def test_what_a_site_accepts_is_read_from_its_file(tmp_path: Path) -> None:
    assert largest_message(write_site(tmp_path, [0]).parent) == 500 * 10**6
    assert largest_message(write_site(tmp_path, [0], "largest = 3").parent) == 3 * 10**6


@pytest.mark.parametrize("damage", [lambda data: b"", lambda data: data[:-3], lambda data: b"Other" + data[7:]])
def test_a_message_that_can_not_be_read_holds_up_no_other(damage: Callable[[bytes], bytes]) -> None:
    link = SuperLink(SiteMessage("broken", []), SiteMessage("whole", []))
    node, whole = connected(link, echo), link.pull
    link.pull = lambda run, number: damage(whole(run, number))  # type: ignore[method-assign]
    assert connected(link, echo).answer_next()
    assert link.answer().error.reason.endswith(": see the site's log"), "and no word of what went wrong"
    assert node.answer_next()
    assert link.answer().has_content()


def site(home: Path) -> tuple[RunningSite, list[str]]:
    said = list[str]()
    found = RunningSite(home, "localhost:1", None, None, said.append)
    found._supervisor, found._status = Supervisor(home / "flower.log"), {}
    return found, said


@pytest.mark.parametrize("event", [{"say": "a\x1b[2Jb\nc"}, {"why": "a\x1b[2Jb\nc", "lasting": False}])
def test_what_a_server_writes_does_not_reach_the_terminal_as_it_is(event: dict[str, Any], tmp_path: Path) -> None:
    running, said = site(tmp_path)
    running._handle(ChildEvent("node", event))
    running._supervisor.end()
    assert said[0].startswith("a [2Jb c")
    assert "\x1b" not in (tmp_path / "flower.log").read_text()


def test_the_status_shows_no_escape_and_keeps_only_sense(tmp_path: Path) -> None:
    home = write_site(tmp_path / "site", [0]).parent
    experiment = {"method": {"name": "fed\x1b[2Jper" + "x" * 9999}, "data": {"name": "d"}, "rounds": 3}
    order = {"run": "run\x1b-1", "experiment": to_json(experiment), "site_jobs": [{"t": 2}]}
    done = update_activity(Activity(), order, 2, "a line")
    assert (done.run, done.round) == ("run -1", 2)
    assert len(done.method) == 2000
    (home / "activity.json").write_text(to_json(vars(done)))
    assert "\x1b" not in "\n".join(site_status(home).lines())
    for wrong in ("two", -1, None, [2]):
        order["site_jobs"] = [{"t": wrong}]
        with pytest.raises(ConfigError):
            update_activity(Activity(), order, 2, "")


def make_compressed_keys() -> tuple[bytes, bytes]:
    """A private and a public key whose points are marked as compressed, which `cryptography` does not read."""
    key = ec.generate_private_key(ec.SECP384R1())
    point = key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    begin, *lines, end = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).splitlines()
    private = base64.b64decode(b"".join(lines))
    kind, text = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).split()
    compressed = b"\x02" + point[1:]
    return (
        b"\n".join([begin, base64.b64encode(private.replace(point, compressed)), end, b""]),
        kind + b" " + base64.b64encode(base64.b64decode(text).replace(point, compressed)),
    )


def test_a_key_that_is_none_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"site.key can't be read as this site's key: No such file"):
        read_site_key(tmp_path)
    (tmp_path / "site.key").write_text("no key")
    with pytest.raises(ConfigError, match=r"site.key can't be read as this site's key: "):
        read_site_key(tmp_path)
    private, public = make_compressed_keys()
    (tmp_path / "site.key").write_bytes(private)
    with pytest.raises(ConfigError, match=r"site.key can't be read as this site's key: Need uncompressed point"):
        read_site_key(tmp_path)
    (tmp_path / "site.key.pub").write_bytes(public)
    with pytest.raises(ConfigError, match=r"site.key.pub is not a public key"):
        site_name(tmp_path / "site.key.pub")
    (tmp_path / "site.key").unlink()
    (tmp_path / "site.key.pub").unlink()
    write_node_key(tmp_path / "site.key")
    assert read_site_key(tmp_path).curve.name == "secp384r1"
