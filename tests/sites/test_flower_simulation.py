"""Flower's own simulation engine on Ray: the same bits.

Ray listens on all addresses. It is run in a network of its own that has nothing but loopback; where such a network
can't be made, these tests are skipped.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from federations import DATA, TWO, bits, experiment, relative_distance

import headwise as hw
from headwise.settings.names import list_names
from waiting import PATIENCE

ALONE = ["unshare", "--net", *([] if os.geteuid() == 0 else ["--map-root-user"]), "sh", "-c"]
UP = "ip link set lo up && exec "


def alone_works() -> bool:
    tools = all(shutil.which(tool) for tool in ("unshare", "ip"))
    return tools and subprocess.run([*ALONE, UP + "true"], capture_output=True, check=False).returncode == 0


pytestmark = pytest.mark.skipif(not alone_works(), reason="no network of its own can be made here")

# all runs share a simulation: most of the time goes into starting Ray and into imports
RUNS = """
import json, sys
from contextlib import closing
from functools import partial
from pathlib import Path

import headwise as hw
from headwise.sites.transport.grid import Simulation, client_app
from headwise.sites.server.remote import LocalCopies, Remote
from headwise.sites.apps import backend_config
from headwise.sites.site.site import OpenPolicy, Site
from headwise.sites.states import SiteStates
from headwise.disk.jsontext import to_json
from headwise.app.launch import Backend, data_folder, run
from headwise.app.prepare import prepare

class RoundSecrets(Remote):
    def close(self):
        pass

def executor(experiment, plan, states, folder):
    copies = LocalCopies(states, SiteStates(site.folder, folder.name))
    return RoundSecrets(plan, to_json(experiment.to_plain()), folder.name, link, copies, workers=2)

asked, data = json.loads(sys.argv[1]), data_folder(None)
site = Site(Path("sites").absolute(), OpenPolicy(data))
engine = hw.Experiment(**asked[0][0]).engine
with closing(Simulation(client_app(lambda config: site.answer), 3, backend_config(engine, 2))) as link:
    for values, out in asked:
        run(hw.Experiment(**values), out, backend=Backend(partial(prepare, data_dir=data), executor))
"""


def run_alone(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_TMPDIR": "/tmp", "HOME": str(folder)}
    command = [*ALONE, UP + '"$@"', "sh", sys.executable, *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, env=settings, cwd=folder, check=False, timeout=PATIENCE
    )


ENGINE = {"kind": "flower-sim", "workers": 2, "flower": {"nodes": 3}}
ALL: dict[str, Any] = {"sampling": {"ratio": 1.0}}


def same_bits(methods: tuple[str, ...], folder: Path, **more: hw.Experiment) -> None:
    asked = [(experiment(m, engine=ENGINE).to_plain(), str(folder / f"flower-{m}")) for m in methods]
    asked += [(other.to_plain(), str(folder / name)) for name, other in more.items()]
    done = run_alone("-c", RUNS, json.dumps(asked), folder=folder)
    assert done.returncode == 0, done.stderr
    for method in methods:
        hw.run(experiment(method), folder / f"local-{method}")
        assert bits(folder / f"flower-{method}") == bits(folder / f"local-{method}"), method


@pytest.mark.slow
def test_two_methods_give_the_same_bits_and_masked_sums_the_same_model(tmp_path: Path) -> None:
    same_bits(TWO, tmp_path, masked=experiment("fedavg", engine=ENGINE, secure={"sums": True}, **ALL))
    hw.run(experiment("fedavg", **ALL), tmp_path / "local")
    assert 0 < relative_distance(tmp_path / "masked", tmp_path / "local") < 1e-6
    assert not list((tmp_path / "sites" / "masked" / "masks").glob("round-*"))


@pytest.mark.all_methods
def test_all_other_methods_give_the_same_bits(tmp_path: Path) -> None:
    same_bits(tuple(m for m in list_names("method") if m not in TWO), tmp_path)


PAGE = Path(__file__).parents[2] / "docs" / "flower.md"
COMMANDS = re.findall(r"^    headwise (run .+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.long
@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_on_the_page_work(command: str, tmp_path: Path) -> None:
    done = run_alone("-m", "headwise", *shlex.split(command), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "3 rounds" in done.stdout


def test_the_page_has_commands() -> None:
    assert len(COMMANDS) == 3


DYING = '''
import os
from pathlib import Path

from headwise.methods.fedper import FedPer


class Dying(FedPer):
    """Kills its own process, once."""

    def local_update(self, me, down, local):
        mark = Path(__file__).with_name("died")
        if local.t == 2 and not mark.exists():
            mark.touch()
            os._exit(1)
        return FedPer.local_update(self, me, down, local)
'''


@pytest.mark.long
def test_an_actor_that_dies_is_replaced_and_the_command_line_says_nothing_but_the_result(tmp_path: Path) -> None:
    (tmp_path / "dying.py").write_text(DYING)
    flags = ["--method", "dying.py", "--data", DATA, "--model", "mlp:6", "--clients", "5"]
    flags += ["--rounds", "3", "--ratio", "0.6", "--split", "8:1:1", "--partition", "natural"]
    engine = ["--engine", "flower-sim", "--workers", "2", "--json", "--quiet", "--out", "run"]
    done = run_alone("-m", "headwise", "run", *flags, *engine, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ended"] == "finished"
    assert (tmp_path / "died").exists()
    hw.run(experiment(evaluate={}), tmp_path / "local")
    lines = [(tmp_path / name / "clients.jsonl").read_bytes() for name in ("run", "local")]
    assert lines[0] == lines[1]
