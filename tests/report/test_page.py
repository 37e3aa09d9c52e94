"""The page is complete, self-contained, made without torch, and safe whatever the names in its runs."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from made_runs import make_run

import headwise as hw
from headwise.app import registry
from headwise.report.data import command_of
from headwise.report.page import render, script_safe, write_page
from headwise.report.results import collect
from headwise.runs.query import Run
from headwise.settings.experiment import experiment_from, override

HOSTILE = [
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(1)>",
    "<!--<script>",
    "' onmouseover='alert(1)",
    "{{ 7 * 7 }}",
    "\u202egnorw\u202c שלום",
    "long " * 2000,
    "\u2028line\x00\x07\n",
]


class Page(HTMLParser):
    """The elements and texts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.data: Any = None
        self._in_data = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._in_data = dict(attrs).get("id") == "data"

    def handle_data(self, data: str) -> None:
        self.text.append(data)
        if self._in_data:
            self.data = json.loads(data)
            self._in_data = False


def page_of(folder: Path) -> Page:
    return Page(render(collect([folder])))


def test_page_needs_nothing_but_itself(three: Path) -> None:
    page = page_of(three)
    outside = [(t, a) for t, a in page.tags if a.get("src") or (a.get("href") or "#")[0] != "#"]
    assert outside == [("link", {"rel": "icon", "href": "data:,"})]
    policy = next(a["content"] for t, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None and "default-src 'none'" in policy and "connect-src 'none'" in policy


def test_page_says_what_the_words_say(three: Path) -> None:
    text = " ".join(page_of(three).text)
    assert (
        "fedrep gives its clients the best models: right after a download (pre), they get 90.0 % of their test samples"
        in text
    )
    assert "mean ± standard deviation over 2 seeds" in text


def test_curves_are_means_and_spread_over_seeds(three: Path) -> None:
    [setting] = page_of(three).data
    line = next(x for x in setting["lines"] if x["name"] == "fedrep")
    curve = line["curves"]["pre"]
    assert curve["round"] == [1, 2, 3, 4, 5, 6]
    assert curve["mean"][-1] == 0.9
    assert curve["std"][-1] == round(0.02 / 2**0.5, 4)
    assert curve["mb"][-1] == round(6 * 5 * 3000 / 2**20, 4)
    assert line["clients"]["pre"] == [0.9] * 5
    assert line["traffic"] == {"up": {"message": 5000.0}, "down": {"message": 10000.0}, "idle": 0.0, "clients": 5.0}
    assert line["cost"]["seconds"] == {"train": 0.1, "round": 0.2}
    assert line["cost"]["samples_per_second"] == 500.0


def test_phases_are_shown_whatever_they_are(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", rounds=2)
    rows = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    rows[0] |= {"memory": 5, "seconds": {"round": 3.0, "server": 1.0, "workers": {"features": 2.0}}}
    rows[1] |= {"memory": 7, "seconds": {"round": 5.0, "stored": 1.0, "workers": {"features": 4.0, "idle": 1.0}}}
    (run / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    cost = page_of(tmp_path).data[0]["lines"][0]["cost"]
    assert cost["seconds"] == {"server": 0.5, "stored": 0.5, "round": 4.0}
    assert list(cost["seconds"])[-1] == "round"
    assert cost["workers"] == {"features": 3.0, "idle": 0.5}
    assert cost["samples_per_second"] == 25.0
    assert cost["memory"] == 7


def test_colours_are_the_same_on_every_page_and_differ_on_one(three: Path, tmp_path: Path) -> None:
    def slots(folder: Path) -> dict[str, int]:
        return {line["name"]: line["slot"] for line in page_of(folder).data[0]["lines"]}

    many = slots(three)
    assert many["standalone"] == -1
    make_run(tmp_path / "alone" / "fedrep", "fedrep")
    assert slots(tmp_path / "alone")["fedrep"] == many["fedrep"]
    for k in range(12):
        make_run(tmp_path / "same" / f"r{k}", "fedprox", options={"mu": k})
    assert len(set(slots(tmp_path / "same").values())) == 12


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_text(name: str, tmp_path: Path) -> None:
    make_run(tmp_path / "plain", "fedrep")
    plain = page_of(tmp_path)
    (tmp_path / "plain" / "manifest.json").unlink()
    made = make_run(tmp_path / "hostile", name, data={"name": name}, options={"note": name})
    assert Run(made).method == name
    page = page_of(tmp_path)
    count = [sum(t == tag for t, _ in page.tags) for tag in ("script", "img", "style", "b", "div")]
    assert count == [sum(t == tag for t, _ in plain.tags) for tag in ("script", "img", "style", "b", "div")]
    assert not [a for _, a in page.tags if any(k.startswith("on") for k in a)]
    assert page.data[0]["lines"][0]["method"] == name
    assert "49" not in " ".join(page.text[:60])


def test_json_in_a_script_is_that_json() -> None:
    value = {"</script>": ["<!--", "&amp;", "\u2028"], "x": 1.5}
    text = str(script_safe(value))
    assert not re.search("[<>&\u2028]", text)
    assert json.loads(text) == value


def test_rendering_takes_no_torch(three: Path, tmp_path: Path) -> None:
    missing = "import sys; sys.modules['torch'] = None"
    code = f"{missing}; from headwise.cli import main; main(sys.argv[1:])"
    out = tmp_path / "page.html"
    done = subprocess.run(
        [sys.executable, "-c", code, "report", str(three), "-o", str(out)], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert out.read_text() == render(collect([three]))


def test_a_large_page_stays_small(tmp_path: Path) -> None:
    from headwise.settings.names import list_names

    for method in list_names("method")[:25]:
        for seed in range(5):
            make_run(tmp_path / f"{method}-{seed}", method, seed, rounds=200, clients=100, classes=10)
    size = write_page(collect([tmp_path]), tmp_path / "report.html").stat().st_size
    assert size < 5_000_000


def test_long_curves_are_thinned(tmp_path: Path) -> None:
    make_run(tmp_path / "a", rounds=5000)
    curve = page_of(tmp_path).data[0]["lines"][0]["curves"]["pre"]
    assert len(curve["round"]) == len(curve["mean"]) == 400
    assert (curve["round"][0], curve["round"][-1]) == (1, 5000)


def test_what_methods_show_is_on_the_page_but_never_too_much(tmp_path: Path) -> None:
    assert "Inside" not in " ".join(page_of(make_run(tmp_path / "plain")).text[:60])
    run = make_run(tmp_path / "runs" / "a", "fedah")
    matrix = [[[0.1234] * 32] * 10] * 18
    rows = [
        {
            "round": t,
            "quantities": {"W": {"axes": ["client", "class", "feature"], "ids": list(range(18)), "values": matrix}},
        }
        for t in range(1, 201)
    ]
    (run / "diagnostics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = page_of(tmp_path / "runs")
    assert ("a", {"href": "#inside"}) in page.tags
    shown = page.data[0]["lines"][0]["inside"]["W"]
    assert shown["axes"] == ["client", "class", "feature"]
    assert (shown["rounds"][0]["round"], shown["rounds"][-1]["round"]) == (1, 200)
    assert 3 <= len(shown["rounds"]) < 10
    assert len(json.dumps(shown)) < 400_000


def test_bytes_are_shown_by_field_where_the_rows_tell(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    rows = [
        json.loads(line) | {"fields": {"up": {"w": 10, "c": 2}, "down": {}}}
        for line in (run / "rounds.jsonl").read_text().splitlines()
    ]
    (run / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    traffic = page_of(tmp_path).data[0]["lines"][0]["traffic"]
    assert (traffic["up"], traffic["down"]) == ({"c": 2.0, "w": 10.0}, {})


def test_an_unfinished_run_has_a_page(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    (run / "result.json").unlink()
    for name in ("rounds.jsonl", "clients.jsonl"):
        (run / name).unlink()
    text = " ".join(page_of(tmp_path).text)
    assert "1 of them not finished" in text
    assert "Nothing was measured" in text


def test_command_runs_the_same_experiment(tmp_path: Path) -> None:
    expected = registry.resolve_all(
        hw.Experiment(
            method="fedfomo:M=3",
            data="synthetic:60:2:3:sites=2",
            partition="iid",
            model=("mlp:4", "mlp:6"),
            clients=3,
            rounds=7,
            seed=5,
            split="8:1:1",
            train={"lr": 0.25},  # pyright: ignore[reportArgumentType]
            stop={"budget": None, "patience": 4},  # pyright: ignore[reportArgumentType]
        )
    )
    run = make_run(tmp_path / "a")
    kept = json.loads((run / "manifest.json").read_text()) | {"experiment": expected.to_plain()}
    (run / "manifest.json").write_text(json.dumps(kept))
    words = shlex.split(command_of(Run(run)))
    assert words[:2] == ["headwise", "run"]
    assert set(words[2::2]) == {"--set"}
    assert experiment_from(override({}, words[3::2])) == expected
