"""The page in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, browser
from made_runs import make_run

import headwise as hw
from headwise.report.page import render_partition, write_page
from headwise.report.results import collect
from headwise.settings.names import list_names

CHARTS = {"accuracy", "spread", "against", "labels", "sizes", "traffic", "inside", "cost"}
HOSTILE = "<img src=x onerror=\"document.title='owned'\"></script><b>שלום</b> " + "long" * 100


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a real comparison."""
    out = tmp_path_factory.mktemp("page") / "comparison"
    base = hw.Experiment(
        data="synthetic:240:4:6:sites=2", partition="dirichlet:0.5", model="mlp:6", clients=6, rounds=4
    )
    return hw.compare(base, ["standalone", "fedavg", "fedah", "apfl"], seeds=2, out=out).report


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_page_opens_from_disk(width: int, theme: str, tab: Browser, page: Path) -> None:
    tab.open(page, width=width, theme=theme)
    tab.draw_everything()
    assert set(tab.js("return Object.keys(charts)")) == CHARTS
    marks = tab.js(
        "return Object.fromEntries(Object.entries(charts).map(([id, c]) => "
        "[id, c.figure.hidden ? null : c.figure.querySelectorAll('.plot svg path').length]))"
    )
    assert {id for id, count in marks.items() if count and count > 8} == CHARTS, marks
    assert tab.js("return document.documentElement.scrollWidth") <= width, "nothing sticks out"
    assert tab.js("return document.documentElement.dataset.theme") == theme
    assert tab.violations() == []
    assert tab.complaints() == []
    assert tab.requests() == []


def test_theme_can_be_changed(tab: Browser, page: Path) -> None:
    tab.open(page)
    colour = "return getComputedStyle(document.body).backgroundColor"
    before = tab.js(colour)
    tab.js("find('theme').click()")
    assert tab.js(colour) != before
    assert tab.js("return find('theme').textContent") == "Light theme"


def test_target_moves_the_table(tab: Browser, page: Path) -> None:
    tab.open(page)
    move = "find('target').value = arguments[0]; find('target').dispatchEvent(new Event('input'))"
    cells = "return [...find('target-table').querySelectorAll('td:nth-child(2)')].map((e) => e.textContent)"
    tab.js(move, 0)
    assert tab.js(cells) == ["0"] * 4  # what clients have before round 1
    tab.js(move, 100)
    assert tab.js("return find('target-value').textContent") == "100.0 %"
    assert "not reached" in tab.js(cells)


def test_page_of_a_comparison_with_validation(tab: Browser, tmp_path: Path) -> None:
    for seed in (0, 1):
        make_run(tmp_path / f"a{seed}", "standalone", seed, end=0.9075, validation=0.9)
        by_client = {0: 0.9075 + 1e-9, 1: 0.85, 2: 0.98}
        make_run(tmp_path / f"b{seed}", "fedrep", seed, end=0.93, by_client=by_client, validation=0.9)
    page = write_page(collect([tmp_path]), tmp_path / "page.html")
    tab.open(page, width=1200)
    tab.draw_everything()
    assert tab.js("return find('target-value').textContent") == "90.5 %"
    line, expected = tab.js(
        "const c = charts.accuracy; const y = c.drawn.convertToPixel({yAxisIndex: 0}, chosen.target);"
        "const at = [...c.figure.querySelectorAll('svg path[stroke-dasharray]')].map((p) => "
        "Number(p.getAttribute('d').split(/[ L]/)[1]));"
        "return [at.sort((a, b) => Math.abs(a - y) - Math.abs(b - y))[0], y]"
    )
    assert abs(line - expected) < 0.8, "the target's line is where the slider says"
    shapes = tab.js("return charts.against.drawn.getOption().series[0].data.map((d) => d.symbol)")
    assert shapes == ["rect", "triangle", "circle", "circle", "circle"]
    label = "return charts.against.figure.querySelector('.plot').ariaLabel"
    assert "3 clients gain (dots), 1 lose (triangles), 1 do neither (squares)" in tab.js(label)
    ticks = "return [...charts.against.figure.querySelectorAll('svg text')].map((e) => e.textContent)"
    assert {text for text in tab.js(ticks) if "%" in text} == {"80 %", "85 %", "90 %", "95 %", "100 %"}
    assert (
        tab.js("const box = document.querySelector('#sections .scroll'); return box.scrollWidth - box.clientWidth") == 0
    )
    names = tab.js("return charts.sizes.drawn.getOption().series.map((s) => s.name)")
    assert names == ["training samples", "validation samples", "test samples"]
    assert tab.complaints() == []


def test_tables_are_sorted_by_a_click(tab: Browser, page: Path) -> None:
    tab.open(page)
    column = "return [...find('client-table').querySelectorAll('td:nth-child(2)')].map((e) => Number(e.textContent))"
    unsorted = tab.js(column)
    click = "find('client-table').querySelector('th:nth-child(2) button').click()"
    tab.js(click)
    assert tab.js(column) == sorted(unsorted, reverse=True)
    tab.js(click)
    assert tab.js(column) == sorted(unsorted)
    assert tab.js("return find('client-table').querySelector('th:nth-child(2)').ariaSort") == "ascending"


def test_legend_works_with_the_keyboard(tab: Browser, page: Path) -> None:
    from selenium.webdriver import ActionChains, Keys

    tab.open(page)
    first = tab.js("const b = document.querySelector('#legend button'); b.focus(); return b.textContent")
    ActionChains(tab.driver).send_keys(Keys.SPACE).perform()
    assert tab.js("return document.activeElement.ariaPressed") == "false"
    names = "return [...find('target-table').querySelectorAll('tbody th')].map((e) => e.textContent)"
    assert first not in tab.js(names)
    ActionChains(tab.driver).send_keys(Keys.ENTER).perform()
    assert first in tab.js(names)


def test_numbers_behind_a_chart_are_a_table(tab: Browser, page: Path) -> None:
    tab.open(page)
    tab.js("charts.accuracy.figure.querySelector('details').open = true")
    rows = tab.wait("return document.querySelectorAll('#fig-accuracy details tbody tr').length")
    assert rows == 4 * (1 + 4)  # round 0 and four more of each method


def test_links_change_the_times(tab: Browser, page: Path) -> None:
    tab.open(page)
    times = "return [...find('link-table').querySelectorAll('td:nth-child(4)')].map((e) => Number(e.dataset.by))"
    slow = tab.js(times)
    tab.js("find('link').value = 'office (1000 up, 1000 down)'; find('link').dispatchEvent(new Event('change'))")
    fast = tab.js(times)
    assert max(slow) > 0
    assert all(f < s or s == 0 for f, s in zip(fast, slow, strict=True))


def test_inside_of_each_method_can_be_chosen(tab: Browser, page: Path) -> None:
    tab.open(page)
    lines = tab.js("return [...find('inside-line').options].map((o) => o.value)")
    assert lines == ["fedah", "apfl"], "in the order that was asked for"
    tab.js("find('inside').scrollIntoView()")
    choose = "find('inside-line').value = arguments[0]; find('inside-line').dispatchEvent(new Event('change'))"
    tab.js(choose, "apfl")
    assert tab.js("return [quantity().axes, find('inside-round').offsetParent]") == [["client"], None]
    tab.js(choose, "fedah")
    assert tab.js("return quantity().axes") == ["client", "class", "feature"]
    tab.js("find('inside-round').value = 0; find('inside-round').dispatchEvent(new Event('input'))")
    assert tab.js("return find('inside-value').textContent") == "1"
    words = tab.wait("draw('inside'); return document.querySelector('#fig-inside .plot').ariaLabel")
    assert "Round 1, from " in words


def test_settings_are_switched_between(tab: Browser, tmp_path: Path) -> None:
    make_run(tmp_path / "a", "fedrep")
    make_run(tmp_path / "b", "fedper", data={"name": "mnist"})
    tab.open(write_page(collect([tmp_path]), tmp_path / "report.html"))
    first = "return [...document.querySelectorAll('#sections tbody th')].find((e) => e.offsetParent).textContent"
    assert tab.js(first) == "fedrep"
    tab.js("find('setting').value = 1; find('setting').dispatchEvent(new Event('change'))")
    assert tab.js(first) == "fedper"
    assert tab.js("return find('legend').textContent") == "fedper"


def test_a_partition_has_a_page_before_anything_is_trained(tab: Browser, tmp_path: Path) -> None:
    counts = {"train": [[3, 0], [1, 5]], "test": [[1, 0], [0, 2]]}
    spread = {"min": 4.0, "median": 6.0, "max": 8.0}
    summary = {"clients": 2, "train": 9, "val": 0, "test": 3, "sizes": spread, "classes": spread, "hash": "0" * 64}
    text = render_partition("two", {**summary, "floor": {"weighted": 0.5}}, counts, ["<b>cat</b>", "dog"])
    (tmp_path / "p.html").write_text(text)
    tab.open(tmp_path / "p.html")
    tab.draw_everything()
    texts = tab.js("return [...document.querySelectorAll('#fig-labels svg text')].map((e) => e.textContent)")
    assert {"<b>cat</b>", "dog"} <= set(texts)
    assert tab.violations() == []
    assert tab.complaints() == []


def test_printing_draws_everything_on_white(tab: Browser, page: Path) -> None:
    tab.open(page, theme="dark")
    tab.js("window.dispatchEvent(new Event('beforeprint'))")
    assert tab.js("return document.documentElement.dataset.theme") == "light"
    assert tab.js("return Object.values(charts).every((c) => c.fresh)")
    widths = tab.js("return [...document.querySelectorAll('.plot svg')].map((e) => e.getBoundingClientRect().width)")
    assert len(widths) == len(CHARTS)
    assert max(widths) < 700, "as wide as a sheet"
    tab.js("window.dispatchEvent(new Event('afterprint'))")
    assert tab.js("return document.documentElement.dataset.theme") == "dark"


def test_hostile_names_are_shown_as_text(tab: Browser, tmp_path: Path) -> None:
    make_run(tmp_path / "a", HOSTILE, end=0.8)
    make_run(tmp_path / "b", "standalone", end=0.7)
    tab.open(write_page(collect([tmp_path]), tmp_path / "report.html"), width=390)
    tab.draw_everything()
    tab.js("document.querySelectorAll('details').forEach((d) => { d.open = true })")
    tab.js("charts.accuracy.drawn.dispatchAction({type: 'showTip', seriesIndex: 0, dataIndex: 2})")
    assert tab.wait("return document.querySelectorAll('#fig-accuracy details tbody tr').length") == 12
    assert tab.js("return document.querySelectorAll('main img, main b b').length") == 0
    assert "owned" not in tab.js("return document.title.slice(0, 5)")
    assert HOSTILE in tab.js("return find('legend').textContent")
    assert tab.js("return document.documentElement.scrollWidth") <= 390
    assert tab.complaints() == []
    assert tab.requests() == []


@pytest.mark.long
def test_a_large_page_opens_with_little_to_do(tab: Browser, tmp_path: Path) -> None:
    """Compared with a tiny one: browsers spend time on layout, and charts are drawn only when scrolled to."""

    def elements(page: Path) -> int:
        tab.open(page)
        return tab.js("return document.querySelectorAll('*').length")

    make_run(tmp_path / "tiny" / "run", "fedavg", 0, rounds=2, clients=2, classes=2)
    tiny = write_page(collect([tmp_path / "tiny"]), tmp_path / "tiny.html")
    large = tmp_path / "large"
    for method in list_names("method")[:25]:
        for seed in range(5):
            make_run(large / f"{method}-{seed}", method, seed, rounds=200, clients=100, classes=10)
    page = write_page(collect([large]), tmp_path / "report.html")
    assert page.stat().st_size < 5_000_000
    few = elements(tiny)
    many = elements(page)
    assert 0 < few < many < 12 * few, "a hundred runs more, and a hundred times as many rounds"
    assert tab.js("return Object.values(charts).some((c) => c.drawn === null)"), "what is out of sight waits"
    tab.js("find('accuracy').scrollIntoView()")
    tab.wait("return charts.accuracy.drawn !== null")
    assert tab.js("return shown().length") < 25, "not all at once"
    tab.draw_everything()
    assert tab.complaints() == []
