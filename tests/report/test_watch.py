"""`headwise watch` follows a run live, lists runs, only reads, and answers only this machine."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import browser
from made_runs import make_run

from waiting import PATIENCE

pytest.importorskip("starlette", reason="starlette is not installed: pip install 'headwise[watch]'")
pytest.importorskip("httpx2", reason="httpx2 is not installed: starlette's test client needs it")

from starlette.testclient import TestClient

from headwise.report.watch import watch_app


@pytest.fixture
def client(three: Path) -> Iterator[TestClient]:
    with TestClient(watch_app(three), base_url="http://127.0.0.1") as opened:
        yield opened


def test_runs_are_listed(client: TestClient, three: Path) -> None:
    text = client.get("/").text
    links = re.findall(r'href="(/show/[^"]+)"', text)
    assert links == [f"/show/{p.name}" for p in sorted(three.iterdir())]
    assert "6 of 6" in text
    assert all(client.get(link).status_code == 200 for link in links)


def test_a_comparison_can_be_watched_as_a_whole(three: Path) -> None:
    client = TestClient(watch_app(three.parent), base_url="http://127.0.0.1")
    assert 'href="/show/runs"' in client.get("/").text
    assert "3 methods on digits" in client.get("/show/runs").text


def test_news_come_when_there_are_any(client: TestClient, three: Path) -> None:
    address = "/news/fedrep-0"
    first = client.get(address).json()
    assert len(first["data"][0]["lines"][0]["curves"]["pre"]["round"]) == 6
    again = client.get(f"{address}?since={first['version']}").json()
    assert "data" not in again
    assert again["version"] == first["version"]
    with (three / "fedrep-0" / "rounds.jsonl").open("a") as file:
        file.write('{"round": 7, "torn')
    torn = client.get(f"{address}?since={first['version']}").json()
    assert torn["data"] == first["data"], "half a line is no news"


@pytest.mark.parametrize("path", ["%00", "a%00b", "x" * 5000, "x/" * 3000, "%ff", "..%2f..", "fedrep-0/manifest.json"])
@pytest.mark.parametrize("page", ["show", "news"])
def test_a_path_that_can_not_be_is_not_there(client: TestClient, page: str, path: str) -> None:
    assert client.get(f"/{page}/{path}").status_code == 404


def test_news_of_a_run_that_diverged_are_json(client: TestClient, three: Path) -> None:
    path = three / "fedrep-0" / "rounds.jsonl"
    path.write_text(re.sub(r'"loss": [0-9.e-]+', '"loss": NaN', path.read_text()))
    answer = client.get("/news/fedrep-0")
    assert answer.status_code == 200
    assert "NaN" not in answer.text


def test_it_reads_only(client: TestClient) -> None:
    for path in ("/", "/show/fedrep-0", "/news/fedrep-0"):
        for verb in ("POST", "PUT", "DELETE", "PATCH"):
            assert client.request(verb, path).status_code == 405


@pytest.mark.parametrize(
    "path", ["../secret", "..%2fsecret", "%2e%2e/secret", "/etc", "%2Fetc", "no-such", "link", "%00", 5000 * "a"]
)
def test_nothing_outside_is_shown(path: str, client: TestClient, three: Path) -> None:
    make_run(three.parent / "secret")
    (three / "link").symlink_to(three.parent / "secret")
    for door in ("show", "news"):
        assert client.get(f"/{door}/{path}").status_code == 404


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "10.0.0.1"])
def test_other_names_are_refused(host: str, client: TestClient) -> None:
    assert client.get("/", headers={"host": host}).status_code == 400


def test_a_hurt_run_does_not_hide_the_others(client: TestClient, three: Path) -> None:
    (three / "fedrep-0" / "manifest.json").write_text("{")
    text = client.get("/").text
    assert "can&#39;t be read: " in text
    assert text.count("6 of 6") == 5
    assert client.get("/show/fedrep-0").status_code == 404
    assert "damaged" in client.get("/news/fedrep-0").json()["status"]


@pytest.fixture
def address(three: Path) -> Iterator[str]:
    """A real `headwise watch` in its own process."""
    command = [sys.executable, "-m", "headwise", "watch", str(three), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    try:
        assert process.stdout is not None
        address = re.search(r"http://127\.0\.0\.1:\d+/", process.stdout.readline())
        assert address
        yield address.group()
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=PATIENCE)
        assert process.stdout is not None
        process.stdout.close()


def test_a_browser_follows_a_run_live(address: str, three: Path, tmp_path: Path) -> None:
    rounds = three / "fedrep-0" / "rounds.jsonl"
    lines = rounds.read_text().splitlines(keepends=True)
    rounds.write_text("".join(lines[:2]))
    (three / "fedrep-0" / "result.json").unlink()
    with browser(tmp_path / "browser") as tab:
        tab.open(address)
        tab.js("document.querySelector('a[href*=\"fedrep-0\"]').click()")
        tab.wait("return document.querySelector('.live')?.textContent.startsWith('2 rounds')")
        assert tab.js("return page().lines[0].curves.pre.round") == [1, 2]
        rounds.write_text("".join(lines))
        tab.wait("return page().lines[0].curves.pre.round.length === 6")
        tab.wait("return document.querySelector('.live').textContent.startsWith('6 rounds so far; 0 of 1')")
        assert "89.0 %" in tab.js("return find('sections').textContent")
        tab.driver.back()
        tab.wait("return document.getElementById('runs') !== null")
        shutil.copytree(three / "fedavg-0", three / "new")
        tab.wait("return document.body.textContent.includes('new')")
        assert tab.violations() == []
        assert tab.complaints() == []
        assert {url.split("/")[2] for url in tab.requests()} == {address.split("/")[2]}, "this machine alone"
