"""Runs every command in docs/flower.md, in the order of the page; servers and sites are left running."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from laboratory import Laboratory

import headwise as hw
from waiting import until

PAGE = (Path(__file__).parents[2] / "docs" / "flower.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
DATA = Path(os.environ.get("HEADWISE_DATA", "/nowhere"))
STAYS = ("server start", "site start")


def lines(kind: str) -> list[str]:
    return [line for found, text in BLOCKS if found == kind for line in text.splitlines() if line]


def moved(text: str, ports: dict[str, int], lab: Laboratory) -> str:
    """Use free ports: those on the page may be taken."""

    def port(found: re.Match[str]) -> str:
        if found[1] not in ports:
            ports[found[1]] = lab.free_port()
        return str(ports[found[1]])

    return re.sub(r"\b(8000|8443|909\d)\b", port, text)


@pytest.mark.long
@pytest.mark.skipif(not (DATA / "heart-disease").is_dir(), reason="HEADWISE_DATA holds no heart-disease")
def test_four_hospitals_as_the_page_says(tmp_path: Path) -> None:
    lab, ports = Laboratory(tmp_path), dict[str, int]()
    (tmp_path / "heart.toml").write_text(next(text for kind, text in BLOCKS if kind == "toml"))
    try:
        for line in lines("sh"):
            command = moved(line, ports, lab).replace("$HEADWISE_DATA", str(DATA))
            if " RUN " in command:
                command = command.replace("RUN", next((tmp_path / "va" / "states").iterdir()).name)
            words = command.split()
            if words[0] != "headwise":
                subprocess.run(words, cwd=tmp_path, check=True)
            elif " ".join(words[1:3]) in STAYS:
                lab.start("-".join(words[1:4]), *words[1:])
                lab.port = ports["8000"]
                until(lab.listens, "the server listens")
            else:
                lab.do(*words[1:])
    finally:
        lab.end()
    run = hw.Run(tmp_path / "runs" / "heart")
    assert (run.ended, len(run.rounds)) == ("finished", 3)
    assert {line["site"] for line in run.sites} == {"cleveland", "hungary", "switzerland", "va"}
    assert 'id="federation"' in (tmp_path / "heart.html").read_text(encoding="utf-8")
    assert (tmp_path / "va.safetensors").stat().st_size > 1000
    masked = hw.Run(tmp_path / "runs" / "masked")
    assert (masked.ended, {line["task"] for line in masked.sites}) == ("finished", {"keys", "shares", "fit", "help"})
    assert len(list((tmp_path / "va" / "states").iterdir())) == 1  # of the masked run: what the other left was erased
    for site in ("cleveland", "hungary", "switzerland"):
        assert list((tmp_path / site / "states").glob("*/client-*/round-*.safetensors"))


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("nginx"), reason="there is no nginx: apt-get install nginx-light")
def test_the_proxy_shows_the_fleet_only(tmp_path: Path) -> None:
    """Sites can connect through the page's proxy, which exposes nothing else of the server's port."""
    lab, ports = Laboratory(tmp_path), dict[str, int]()
    asked = hw.Experiment(
        "fedper", "synthetic:60:4:6:sites=1", "natural", ("mlp:4",), clients=1, rounds=1, evaluate={"moments": ["post"]}
    )
    try:
        lab.start("server", "server", "start", "server", "--port", moved("8000", ports, lab))
        lab.port = ports["8000"]
        until(lab.listens, "the server listens")
        site = next(text for kind, text in BLOCKS if kind == "nginx")
        site = moved(site, ports, lab).replace(" server/", f" {tmp_path}/server/")
        places = "".join(f"{k}_temp_path {tmp_path}/{k};" for k in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        conf = f"daemon off; pid {tmp_path}/pid; error_log {tmp_path}/nginx.log; events {{}} http {{ access_log off; "
        (tmp_path / "nginx.conf").write_text(f"{conf}{places}\n{site}}}\n")
        lab.spawn("nginx", "nginx", "-c", str(tmp_path / "nginx.conf"), "-e", str(tmp_path / "nginx.log"))
        own = ("--client", "0", "--data", "synthetic:60:4:6:sites=1:only=0")
        lab.do("site", "init", "site0", *own)
        lab.do("server", "register", "server", "site0/site.key.pub")
        lab.port = ports["8443"]
        until(lab.listens, "the proxy listens")
        lab.join("site0")
        assert lab.deploy(asked, "run").returncode == 0
        codes = {path: _code(tmp_path, ports, path) for path in OTHERS}
    finally:
        lab.end()
    assert hw.Run(tmp_path / "run").ended == "finished"
    assert {path: proxied for path, (_, proxied) in codes.items()} == dict.fromkeys(OTHERS, 404)
    assert codes["/openapi.json"][0] == 200, "or the proxy would hide nothing"


OTHERS = ("/", "/docs", "/openapi.json", "/v1/control/list-runs", "/v1/runtime/acquire-task", "/v1/fleet/../control/x")


def _code(home: Path, ports: dict[str, int], path: str) -> tuple[int, int]:
    """The answers of the server itself and of the proxy."""
    found: list[int] = []
    for port in ("8000", "8443"):
        address = f"https://127.0.0.1:{ports[port]}{path}"
        words = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "--path-as-is", "--cacert", "server/ca.crt"]
        done = subprocess.run([*words, address], cwd=home, capture_output=True, text=True, check=True)
        found.append(int(done.stdout))
    return found[0], found[1]


def test_the_page_has_its_commands() -> None:
    verbs = [" ".join(line.split()[1:3]) for line in lines("sh") if line.startswith("headwise")]
    assert {"site init", "server start", "server register", "site start", "site list", "site export"} <= set(verbs)
    assert verbs.count("site start") == 4
