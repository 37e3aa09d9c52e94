"""Tables and figures for a paper."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from made_runs import make_run

from headwise.cli.commands.run import show
from headwise.errors import ConfigError
from headwise.report.data import setting_data
from headwise.report.page import Scatter, render
from headwise.report.results import collect
from headwise.report.tables import (
    TableStyle,
    format_captioned_latex,
    format_tables,
    tabulate_confusion,
    tabulate_differences,
)
from headwise.runs.query import Run


def test_markdown_has_a_row_for_each_method(three: Path) -> None:
    lines = format_tables(collect([three]), "markdown").splitlines()
    assert lines[0].startswith("| method | accuracy (pre) |")
    assert lines[2].startswith("| fedrep | 90.0 % ± 1.4 |")
    assert lines[-1].startswith("| majority floor | 40.0 % |")
    assert {line.count("|") for line in lines} == {lines[0].count("|")}


def with_accuracy_only(run: Path) -> Path:
    """Rewrite the run as if nothing else had been measured."""
    rows = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    for row in rows:
        row |= {m: {"accuracy": row[m]["accuracy"]} for m in ("pre", "post", "stale")}
    (run / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run


def test_what_was_not_measured_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = with_accuracy_only(make_run(tmp_path / "a"))
    [setting] = collect([run])
    head, row = list(csv.reader(io.StringIO(format_tables([setting], "csv"))))[:2]
    assert row[:3] == ["fedavg", "90.0 %", "90.0 %"]
    assert row[head.index("worst decile")] == ""
    show(Run(run), as_json=False)
    assert "pre    last 0.9000, best 0.9000 in round 6\n" in capsys.readouterr().out


def test_latex_is_ready_for_a_paper(three: Path) -> None:
    settings = collect([three])
    style = TableStyle({"fedrep": "FedRep"}, ["accuracy", "worst"], "Accuracy of A_1.", "tab:a")
    text = format_tables(settings, "latex", style)
    assert text.splitlines()[1:9] == [
        r"\begin{table}",
        r"\centering",
        r"\caption{Accuracy of A\_1.}",
        r"\label{tab:a}",
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r"method & accuracy (pre, \%) & worst decile (\%) \\",
        r"\midrule",
    ]
    assert r"FedRep & \textbf{90.0 $\pm$ 1.4} & 45.0 \\" in text
    assert text.endswith("\\bottomrule\n\\end{tabular}\n\\end{table}\n")
    bold = [line.partition(" & ")[0] for line in text.splitlines() if "textbf" in line]
    cells = settings[0].cells(settings[0].ranking)
    assert cells is not None
    assert bold == ["FedRep", *cells.not_worse_than_best()[1:]]


def make_draws(folder: Path, count: int) -> Path:
    """FedRep is always ahead of FedAvg, by a little more or less."""
    for draw in range(count):
        make_run(folder / f"a{draw}", "fedrep", draw, end=0.90 + draw / 500, data_seed=draw)
        make_run(folder / f"b{draw}", "fedavg", draw, end=0.85 + draw % 3 / 300, data_seed=draw)
    return folder


def test_with_few_draws_only_the_best_is_bold(tmp_path: Path) -> None:
    text = format_tables(collect([make_draws(tmp_path, 2)]), "latex", TableStyle(columns=["accuracy"]))
    assert text.startswith("% bold: the best of 2 draws, which are too few to tell methods apart\n")
    assert [line.partition(" & ")[0] for line in text.splitlines() if "textbf" in line] == ["fedrep"]


def test_several_tables_have_several_labels_and_captions(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    make_run(tmp_path / "b", data={"name": "mnist"})
    text = format_tables(collect([tmp_path]), "latex", TableStyle(caption="Results.", label="tab:r"))
    assert re.findall(r"label{(.*?)}", text) == ["tab:r-1", "tab:r-2"]
    assert r"\caption{Results: mnist, dirichlet:0.1, 5 clients.}" in text
    alone = format_tables(collect([tmp_path / "a"]), "latex", TableStyle(caption="Results."))
    assert r"\caption{Results.}" in alone
    assert "label" not in alone


def test_a_latex_table_fits_a_page_unless_all_columns_are_asked_for(three: Path) -> None:
    (setting,) = collect([three])
    [head] = re.findall(r"^method & .*$", format_tables([setting], "latex"), re.M)
    assert head == r"method & accuracy (pre, \%) & own model (stale, \%) & worst decile (\%) \\"
    [head] = re.findall(r"^method & .*$", format_tables([setting], "latex", TableStyle(columns=["all"])), re.M)
    assert "KB up / round" in head


def test_tables_of_several_federations_name_each_in_its_caption(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    make_run(tmp_path / "b", data={"name": "mnist"})
    text = format_tables(collect([tmp_path]), "latex")
    assert re.findall(r"caption{(.*?)}", text) == [
        "digits, dirichlet:0.1, 5 clients",
        "mnist, dirichlet:0.1, 5 clients",
    ]


def test_latex_says_per_cent_once_in_a_grids_overview() -> None:
    table = (["method", "dirichlet:0.1"], [["fedavg", "52.7 % (lr=0.1)"], ["fedah", "92.5 % (lr=1)"]])
    text = format_captioned_latex(("Accuracy", table), TableStyle({"fedah": "FedAH"}))
    assert r"method & dirichlet:0.1 (\%) \\" in text
    assert r"FedAH & 92.5 (lr=1) \\" in text


def test_every_class_of_a_picture_has_a_look_of_its_own() -> None:
    """Classes 0 and 8 had one colour."""
    present = [0, 3, 8, 9, 11, 12, 13, 14, 15, 16, 17]
    scatter = Scatter("features", [(float(k), 0.0, k) for k in present], [f"c{k}" for k in range(20)])
    assert len({scatter.look(k) for k in present}) == len(present)
    assert scatter.look(17) == "class-2 ring"


def test_a_confusion_shows_what_is_confused() -> None:
    assert tabulate_confusion([[5, 0], [2, 0]], ["a", "b"])[1] == [["a", "5", "", "100.0 %"], ["b", "2", "0", "0.0 %"]]


def test_differences_are_those_of_the_statistics(tmp_path: Path) -> None:
    (setting,) = collect([make_draws(tmp_path, 6)])
    table = tabulate_differences(setting)
    cells = setting.cells(setting.ranking)
    assert table is not None and cells is not None
    value, low, high = cells.difference("fedrep", "fedavg")
    behind = [f"{100 * value:.1f}", f"{100 * low:.1f} to {100 * high:.1f}", "yes"]
    assert [row[:4] for row in table[1]] == [["fedrep", "", "", ""], ["fedavg", *behind]]
    assert table[1][0][4] == "100%"
    assert all(cell in render([setting]) for cell in behind)


def test_the_bar_of_the_worst_tenth_is_among_the_clients_of_the_chart(tmp_path: Path) -> None:
    """The dots are those of the first draw; the bar was the mean over all draws, left of every dot."""
    for draw, worst in enumerate((0.7, 0.1)):
        make_run(tmp_path / f"a{draw}", "fedrep", draw, by_client={0: worst}, data_seed=draw)
    (line,) = setting_data(collect([tmp_path])[0])["lines"]
    assert line["worst"] == min(line["clients"]["pre"]) == 0.7


def test_the_columns_and_the_label_of_a_table_are_checked(three: Path) -> None:
    with pytest.raises(ConfigError, match="columns is 'acuracy', which is in no heading"):
        format_tables(collect([three]), "latex", TableStyle(columns=["acuracy"]))
    with pytest.raises(ConfigError, match="label is 'a}b'"):
        format_tables(collect([three]), "latex", TableStyle(label="a}b"))


def test_csv_reads_back(three: Path) -> None:
    rows = list(csv.reader(io.StringIO(format_tables(collect([three]), "csv"))))
    assert [row[0] for row in rows] == ["method", "fedrep", "standalone", "fedavg", "majority floor"]
    assert {len(row) for row in rows} == {len(rows[0])}


def test_names_can_not_break_a_table(tmp_path: Path) -> None:
    make_run(tmp_path / "a", 'evil | & % $ # _ { } ~ ^ \\ ± "quoted",\nnext')
    settings = collect([tmp_path])
    columns = len(next(csv.reader(io.StringIO(format_tables(settings, "csv")))))
    assert {line.count("|") - line.count(r"\|") for line in format_tables(settings, "markdown").splitlines()} == {
        columns + 1
    }
    row = format_tables(settings, "latex", TableStyle(columns=["all"])).splitlines()[5]
    assert row.startswith(r"evil | \& \% \$ \# \_ \{ \} \textasciitilde{} \textasciicircum{} \textbackslash{} $\pm$")
    assert len(re.findall(r"(?<!\\)&", row)) == columns - 1
    assert len(list(csv.reader(io.StringIO(format_tables(settings, "csv"))))[1]) == columns


def test_several_settings_are_several_tables(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    make_run(tmp_path / "b", data={"name": "mnist"})
    text = format_tables(collect([tmp_path]), "markdown")
    assert "### digits, dirichlet:0.1, 5 clients" in text
    assert text.count("| fedavg |") == 2


def test_unknown_format_is_refused(three: Path) -> None:
    with pytest.raises(ConfigError, match="table is 'latx': did you mean 'latex'"):
        format_tables(collect([three]), "latx")


def test_figures_are_svg_and_pdf(three: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install 'headwise[figures]'")
    from headwise.report.figures import FIGURES, write_figures

    paths = write_figures(collect([three]), tmp_path / "figures")
    assert sorted(p.name for p in paths) == sorted(f"{name}.{form}" for name in FIGURES for form in ("svg", "pdf"))
    for path in paths:
        if path.suffix == ".pdf":
            assert path.read_bytes().startswith(b"%PDF-")
            continue
        texts = {e.text for e in ElementTree.fromstring(path.read_bytes()).iter() if e.tag.endswith("}text")}
        assert texts & {"fedrep", "class"}, path.name
    again = write_figures(collect([three]), tmp_path / "again")
    assert [p.read_bytes() for p in again] == [p.read_bytes() for p in paths], "the same bytes each time"


def test_figures_bear_odd_names_and_nothing_measured(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install 'headwise[figures]'")
    from headwise.report.figures import write_figures

    make_run(tmp_path / "runs" / "a", r"$\frac{" + "x" * 300)
    run = make_run(tmp_path / "runs" / "b", "fedper")
    (run / "rounds.jsonl").write_text("")
    svg = next(p for p in write_figures(collect([tmp_path / "runs"]), tmp_path / "f") if p.name == "clients.svg")
    assert r"$\frac{xxx" in svg.read_text()


def test_without_matplotlib_the_remedy_is_said(three: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headwise.report.figures import write_figures

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"pip install 'headwise\[figures\]'"):
        write_figures(collect([three]), tmp_path / "figures")
    assert not (tmp_path / "figures").exists()


def test_figures_leave_out_what_was_not_measured(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install 'headwise[figures]'")
    from headwise.report.figures import FIGURES, write_figures

    written = write_figures(collect([with_accuracy_only(make_run(tmp_path / "a"))]), tmp_path / "figures")
    assert len(written) >= len(FIGURES)
