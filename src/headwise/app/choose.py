"""Finds the method that suits this data: a race on validation samples within a time budget.

The yardsticks and a portfolio of methods run on a first draw; those that are clearly behind, or no longer fit the
budget, drop out. The best are tuned, and all that remain race on further draws, which decide. A race that was killed
continues in its folder: its decisions are in choose.json, its runs next to it.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from ..disk.files import make_folder, read_json, without_flushing, write_bytes, write_json
from ..disk.paths import folder_name
from ..engine.events import Event, RoundEnded
from ..errors import METHOD_ERRORS, ConfigError, HeadwiseError, NoScoreError, RunError, pluralize
from ..report.page import render_recommendation
from ..report.recommendation import LOCAL, YARDSTICKS, Recommendation, practical_equality, weigh_clients_equally
from ..report.results import Line, Setting
from ..report.tables import Table, to_markdown
from ..runs.query import Run, title_of
from ..settings.experiment import Experiment, with_settings
from ..settings.fields import Natural, Seeds, convert
from ..settings.names import list_names
from ..settings.portfolio import read_portfolio
from ..stats import Cells
from . import registry
from .code import collect_code
from .fit import read_base
from .launch import data_folder, run_to_end
from .prepare import plan_for, prepare
from .tune import BudgetSpentError, Watch, experiment_toml, parse_budget, tune, with_validation

FIRST = 0
"""the draw that decides who stays in the race"""
SCREENING = 0.4
"""share of the budget for the first draw of a portfolio"""
NAMED_FIRST = 0.6
"""share of the budget for the first draw of methods that the user named: trying them comes first"""
TUNING = 0.3
"""share of the budget for tuning"""
RUNS = 30
"""about how many runs at FedAvg's cost a race needs; if these do not fit the budget, runs get fewer rounds"""
LEAST_ROUNDS = 5
ANEW = 2
"""a larger budget that allows this many times as many rounds starts anew; with a smaller one, finished runs count"""
MOST_KEPT = 8
"""methods beside the yardsticks that race on further draws"""
TRIALS = 20
"""settings to try for each method that is tuned"""
FEW_TRIALS = 5
"""trials that must fit the budget, or nothing is tuned"""


@dataclass(frozen=True)
class Entry:
    """A method, with its changes to the given settings."""

    name: str
    method: str
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def folder(self) -> str:
        return folder_name(self.name)


@dataclass(frozen=True, repr=False)
class Chosen:
    """A race that has ended."""

    out: Path
    answer: Recommendation
    experiment: Experiment
    """with the recommended method and settings"""

    @property
    def report(self) -> Path:
        return self.out / "choice.html"

    @property
    def method(self) -> str:
        return self.experiment.method.name

    def __repr__(self) -> str:
        """Its method and data; the answer's words and table are longer."""
        return f"<Chosen {self.out}: {self.method} on {self.answer.setting.title}>"

    def words(self) -> list[str]:
        return self.answer.words()

    def table(self) -> Table:
        return self.answer.table()

    def to_plain(self) -> dict[str, Any]:
        return {"out": str(self.out), "experiment": str(self.out / "best.toml"), **self.answer.to_plain()}


def choose(
    base: Any,
    *,
    budget: str | float = "10m",
    methods: str | Sequence[str] = (),
    draws: int = 5,
    trials: int = TRIALS,
    only_sums: bool = False,
    out: str | Path | None = None,
    data_dir: str | Path | None = None,
    watch: Watch = lambda title: nullcontext(()),
    **settings: Any,
) -> Chosen:
    """Find out which method suits this data, and whether learning together pays at all.

    Args:
        base: an `Experiment`, or data as `fit` takes it; `settings` are then those of `fit`.
        budget: the time to spend, such as ``"90s"``, ``"30m"``, ``"2h"`` or a number of seconds; if a race is
            continued, that of all sessions together.
        methods: what to try beside local training, FedAvg and fine-tuned FedAvg, as a list or separated by commas; by
            default, a portfolio.
        draws: the most draws that decide, after the first, which decides who stays in the race.
        trials: the most settings to try for each of the best two methods and local training; 0: none is tuned.
        only_sums: only methods whose server needs only sums of messages, which can be masked.
        out: the folder of the race; that of an earlier one continues it.
        data_dir: the folder of public data sets.
        watch: returns observers that display the run with this title.
        **settings: those of `fit`, such as ``client="hospital"`` or ``rounds=20``.

    Returns:
        The answer in words and numbers, and an experiment with the recommended method. Validation samples decide; the
        answer compares test samples once, at the end, for the methods that it names.

    >>> answer = choose(frame, client="hospital", target="ill", rounds=2, methods=["fedper"], draws=2, trials=0)
    >>> answer.report
    PosixPath('runs/choose-own/choice.html')
    """
    seconds = parse_budget(budget)
    draws = convert(draws, Seeds, "draws")
    trials = convert(trials, Natural, "trials")
    if isinstance(methods, str):
        methods = [name.strip() for name in methods.split(",") if name.strip()]
    methods = convert(methods, tuple[str, ...], "methods")
    if "method" in settings:
        raise ConfigError("method is given, but choose tries several: name them in methods.")
    base, folder = read_base(base, settings, out, choose)
    race = _Race(base, folder, data_folder(data_dir), watch, seconds, draws)
    with race.open({"methods": [*methods], "draws": draws, "trials": trials, "only_sums": only_sums}):
        race.find_entries(methods, only_sums)
        race.set_rounds()
        race.screen()
        race.keep_best()
        race.tune_kept(trials)
        race.decide()
        return race.finish()


def _prepare_base(base: Experiment) -> Experiment:
    """With validation samples, few evaluations, and, where clients are natural, the same test samples in all draws."""
    if base.engine.kind == "flower":
        raise ConfigError("engine.kind is 'flower', but choose runs on this machine: it must be local or flower-sim.")
    base = with_validation(base)
    natural = base.partition.name == "natural"
    evaluate = dataclasses.replace(
        base.evaluate,
        moments=("pre",),
        keep=(),
        start=False,
        test_draw=base.data_seed if natural and base.evaluate.test_draw is None else base.evaluate.test_draw,
    )
    return dataclasses.replace(base, evaluate=evaluate)


class _Race:
    """The runs and decisions of a race, in its folder."""

    def __init__(
        self, given: Experiment, folder: Path, data_dir: Path, watch: Watch, budget: float, draws: int
    ) -> None:
        self.given = given
        self.base = _prepare_base(given)
        self.folder = folder
        self.data_dir = data_dir
        self.watch = watch
        self.budget = budget
        self.draws = draws
        self.began = time.monotonic()
        self.runs: dict[str, dict[int, Run]] = {}
        self.entries: dict[str, Entry] = {}
        self.candidates: list[Entry] = []
        self.named: Sequence[str] = ()
        self.journal: dict[str, Any] = {}

    # -- the journal

    @contextmanager
    def open(self, options: Mapping[str, Any]) -> Iterator[None]:
        """Read what an earlier session decided; at the end, store how much time this one took."""
        path = self.folder / "choose.json"
        resolved = registry.resolve_all(self.base)  # with a hash of the user's own data
        about = {"experiment": resolved.to_plain(), "code": self._collect_code(options["methods"]), **options}
        self.journal = {"about": about, "spent": 0.0, "seconds": {}}
        if path.exists():
            before = read_json(path)
            if not isinstance(before, dict) or any(type(before.get(k)) is not type(v) for k, v in self.journal.items()):
                raise RunError(f"{path} is damaged: it is not the journal of a choice.")
            if keys := [k for k in about if before["about"].get(k) != about[k]]:
                raise ConfigError(
                    f"{self.folder} holds a choice that differs in {', '.join(keys)}: choose another --out."
                )
            again = self.budget > before.get("budget", 0.0)  # more time: decide again; finished runs are not repeated
            kept = (*self.journal, "probe", "rounds") if again else (*before,)
            self.journal = {k: before[k] for k in kept if k in before}
        self.journal = {"left_out": {}, "behind": [], **self.journal, "budget": self.budget}
        self.before = self.journal["spent"]
        try:
            yield
        finally:
            if path.exists():
                self.note()

    def _collect_code(self, methods: Sequence[str]) -> list[dict[str, Any]]:
        """The user's own code: of each method to try, the network, the data and so on."""
        choices = [registry.resolve("method", name) for name in (*methods, LOCAL)]
        return [collect_code(dataclasses.replace(self.base, method=choice)).to_plain() for choice in choices]

    def note(self, **decisions: Any) -> None:
        """Store decisions, and the time that was spent."""
        self.journal |= {**decisions, "spent": self.spent}
        write_json(self.folder / "choose.json", self.journal)

    @property
    def spent(self) -> float:
        return self.before + time.monotonic() - self.began

    @property
    def left(self) -> float:
        return self.budget - self.spent

    @property
    def rounds(self) -> int:
        return self.journal["rounds"]

    # -- who takes part

    def find_entries(self, methods: Sequence[str], only_sums: bool) -> None:
        """The yardsticks, then what is to be tried; methods that can't run here are noted with the reason."""
        prepared = prepare(self.base, self.data_dir)
        if len(prepared.plan.data) < 2:
            raise ConfigError("the data has one client, but choose needs two or more: with one, nothing is shared.")
        if not prepared.summary.val:
            raise ConfigError(
                "no client has validation samples, on which choose decides: clients need more training samples."
            )
        names = [*dict.fromkeys([*YARDSTICKS, *(methods or read_portfolio())])]
        left_out = self.journal["left_out"]
        self.named = methods
        for name in names:
            try:
                choice = registry.resolve("method", name)
                plan = plan_for(dataclasses.replace(prepared.experiment, method=choice), prepared.plan.data)
            except HeadwiseError as error:
                if name in methods:
                    raise
                left_out[name] = str(error)
                continue
            if only_sums and plan.method.needs() == "none" and name != YARDSTICKS[0]:
                left_out[name] = "its server needs every message, not only sums"
                if name in methods:
                    raise ConfigError(f"method is {name!r}, but with --only-sums it can't be tried: {left_out[name]}.")
                continue
            self.candidates.append(Entry(name, name))
        if not self.candidates:
            raise ConfigError(f"no method can run here: {next(iter(left_out.values()))}")
        self.metric = prepared.plan.metric
        self.costs = {e.method: float(registry.make("method", e.method).cost) for e in self.candidates}
        make_folder(self.folder)
        self.note()

    def set_rounds(self) -> None:
        """Run fewer rounds if not even a short race would fit the budget.

        Of a race that is continued with more time, finished runs count, unless there is time for many more rounds.
        """
        if "probe" not in self.journal:
            self.note(probe=self._time_rounds())
        fixed, each = self.journal["probe"]
        fitting = int((self.budget / RUNS - fixed) / max(each, 1e-6))
        rounds = min(self.base.rounds, max(fitting, LEAST_ROUNDS))
        before = self.journal.get("rounds", 0)
        if before > 0 and (rounds <= before or rounds < min(ANEW * before, self.base.rounds)):
            return
        self.before = 0.0  # the time of runs that no longer count
        self.note(rounds=rounds)

    def _time_rounds(self) -> tuple[float, float]:
        """The seconds that a run takes beside its rounds, and those of a round."""
        entry = self.candidates[0]
        began = time.monotonic()
        choice = registry.resolve("method", entry.method)
        probe = dataclasses.replace(self.base, method=choice, rounds=min(2, self.base.rounds))
        try:
            run = self._complete(entry, probe, self.folder / "probe")
        except BudgetSpentError:
            raise self._explain_short_budget() from None
        each = run.rounds[-1]["seconds"]["round"]
        return max(time.monotonic() - began - sum(row["seconds"]["round"] for row in run.rounds), 0.0), each

    def predict(self, entry: Entry) -> float:
        """How long a run will take: as long as on another draw, else as a yardstick's, times the method's cost."""
        fixed, each = self.journal["probe"]
        known = self._list_seconds([entry])
        usual = self._list_seconds([Entry(name, name) for name in YARDSTICKS]) or [fixed + self.rounds * each]
        return fmean(known) if known else fmean(usual) * self.costs[entry.method]

    def _list_seconds(self, entries: Sequence[Entry]) -> list[float]:
        keys = [self.key(entry, draw) for entry in entries for draw in range(self.draws + 1)]
        return [self.journal["seconds"][key] for key in keys if key in self.journal["seconds"]]

    def key(self, entry: Entry, draw: int) -> str:
        """A cell's name in the journal, and its folder below `runs`."""
        return f"{self.rounds}-rounds/{entry.folder}-d{draw}"

    def is_done(self, entry: Entry, draw: int) -> bool:
        return self.key(entry, draw) in self.journal["seconds"]

    # -- runs

    def experiment_of(self, entry: Entry, draw: int) -> Experiment:
        experiment = dataclasses.replace(
            self.base,
            method=registry.resolve("method", entry.method),
            rounds=self.rounds,
            seed=self.base.seed + draw,
            data_seed=self.base.data_seed + draw,
            evaluate=dataclasses.replace(self.base.evaluate, every=max(self.rounds // 4, 1)),
        )
        return with_settings(experiment, entry.settings)

    def run(self, entry: Entry, draw: int) -> None:
        """Run or continue one cell; a method that fails is left out, with the reason."""
        key = self.key(entry, draw)
        self.entries[entry.name] = entry
        if entry.name in self.journal["left_out"] or draw in self.runs.get(entry.name, {}):
            return
        began = time.monotonic()
        try:
            run = self._complete(entry, self.experiment_of(entry, draw), self.folder / "runs" / key)
            if not run.last_scores("val").get("pre"):
                raise NoScoreError("it diverged: no client has a score on validation samples.")
        except METHOD_ERRORS as error:
            self.journal["left_out"][entry.name] = str(error)
            self.note()
            return
        self.runs.setdefault(entry.name, {})[draw] = run
        self.journal["seconds"].setdefault(key, time.monotonic() - began)
        self.note()

    def _complete(self, entry: Entry, experiment: Experiment, folder: Path) -> Run:
        def stop_in_time(event: Event) -> None:
            if isinstance(event, RoundEnded) and self.left < 0:
                raise BudgetSpentError

        with self.watch(f"{entry.name}, draw {experiment.data_seed}") as observers, without_flushing():
            observers = [*observers, stop_in_time]
            again = f"choose again into {self.folder}"
            return run_to_end(experiment, folder, again, data_dir=self.data_dir, observers=observers)

    # -- the race

    def screen(self) -> None:
        """The first draw: the yardsticks, then as many others as a share of the budget allows."""
        decided = "kept" in self.journal
        share = (NAMED_FIRST if self.named else SCREENING) * self.budget
        with suppress(BudgetSpentError):
            for entry in self.candidates:
                spent = sum(self.journal["seconds"].get(self.key(e, FIRST), 0.0) for e in self.candidates)
                able = entry.name in YARDSTICKS or self.predict(entry) < share - spent
                if self.is_done(entry, FIRST) or (able and not decided):
                    self.run(entry, FIRST)
        if not self.runs:
            raise self._explain_short_budget()

    def _explain_short_budget(self) -> RunError:
        return RunError(
            f"budget is {self.budget:g} s, in which no method ended: choose again into {self.folder} with a larger one."
        )

    def make_setting(self, names: Sequence[str], draws: Sequence[int]) -> Setting:
        """The lines of these entries on these draws."""
        lines = tuple(Line(name, tuple(self.runs[name][d] for d in draws)) for name in names)
        first = lines[0].runs[0]
        return Setting(title_of(first.manifest["experiment"], first.metric), lines)

    def cells(self, names: Sequence[str], draws: Sequence[int]) -> Cells:
        """Their validation scores, with equal weights for all clients."""
        setting = self.make_setting(names, draws)
        cells = setting.cells(setting.lines, "val")
        assert cells is not None
        return weigh_clients_equally(cells)

    def list_near(self, names: Sequence[str], draws: Sequence[int]) -> list[str]:
        """Those that can't be told apart from the best, best first."""
        cells = self.cells(names, draws)
        return cells.not_worse_than_best(practical_equality(cells, self.metric))

    def keep_best(self) -> None:
        """Keep the yardsticks, and as many of the methods that may be best as further draws have time for."""
        if "kept" not in self.journal:
            near = self.list_near([*self.runs], [FIRST])
            yardsticks = [name for name in YARDSTICKS if name in self.runs]
            each = sum(self.predict(self.entries[name]) for name in yardsticks)
            room = max(self.left, 0.0) * (1 - TUNING) / self.draws - each
            kept: list[str] = []
            for name in [n for n in near if n not in YARDSTICKS][:MOST_KEPT]:
                room -= self.predict(self.entries[name])
                if room < 0 and kept:
                    break
                kept.append(name)
            self.note(kept=[*kept, *yardsticks], near=near)

    @property
    def kept(self) -> list[Entry]:
        """Those still in the race, the most promising first."""
        tuned = [Entry(**values) for values in self.journal.get("tuned", {}).values() if values]
        entries = [*tuned, *(self.entries[name] for name in self.journal["kept"])]
        return [e for e in entries if e.name not in self.journal["left_out"] and e.name not in self.journal["behind"]]

    def tune_kept(self, trials: int) -> None:
        """Search the settings of the best two and of local training on the first draw, if there is time for it."""
        tuned = self.journal.setdefault("tuned", {})
        self.journal.pop("untuned", None)
        names = [*dict.fromkeys([*self.journal["near"][:2], YARDSTICKS[0]])] if trials else []
        share = min(TUNING * self.budget, max(self.left, 0.0) / 2) / 3
        for name in names:
            entry = self.entries.get(name)
            if entry is None or name in tuned or name not in self.journal["kept"]:
                continue
            if self.predict(entry) * FEW_TRIALS > share:
                self.note(untuned=f"There was no time to tune settings: train.lr is {self.base.train.lr:g}, as given.")
                return
            tuned[name] = self._tune(entry, trials, share)
            self.note()

    def _tune(self, entry: Entry, trials: int, seconds: float) -> dict[str, Any]:
        """The entry with better settings; empty if none were better."""
        try:
            result = tune(
                self.experiment_of(entry, FIRST),
                trials=trials,
                budget=seconds,
                out=self.folder / "tuning" / f"{self.rounds}-rounds" / entry.folder,
                data_dir=self.data_dir,
                watch=lambda title: self.watch(f"{entry.name}, {title}"),
            )
        except METHOD_ERRORS as error:
            self.note(untuned=f"Settings were not tuned: {error}")
            return {}
        if result.best is result.start:
            return {}
        return {"name": f"tuned {entry.name}", "method": entry.method, "settings": result.best_settings}

    def decide(self) -> None:
        """Run the remaining methods on further draws; those that fall clearly behind drop out."""
        with suppress(BudgetSpentError):
            for draw in range(FIRST + 1, self.draws + 1):
                for entry in self.kept:
                    if not self.is_done(entry, draw) and self.predict(entry) > self.left:
                        return
                    self.run(entry, draw)
                if draw > FIRST + 1:
                    self._drop_losers([*range(FIRST + 1, draw + 1)])

    def _drop_losers(self, draws: Sequence[int]) -> None:
        names = [e.name for e in self.kept if all(d in self.runs[e.name] for d in draws)]
        near = self.list_near(names, draws)
        lost = [name for name in names if name not in near and self.entries[name].method not in YARDSTICKS]
        self.note(behind=[*self.journal["behind"], *lost])

    # -- the answer

    def finish(self) -> Chosen:
        names = [e.name for e in self.kept if e.name in self.runs]
        draws = [d for d in range(FIRST + 1, self.draws + 1) if all(d in self.runs[name] for name in names)]
        if len(draws) < min(2, self.draws):  # too little time: the first draw must also decide
            names = [name for name in names if FIRST in self.runs[name]]
            if not draws:
                names = [name for name in self.runs if FIRST in self.runs[name]]
            draws = [d for d in range(self.draws + 1) if all(d in self.runs[name] for name in names)]
        others = [n for n in self.runs if n not in (*names, *self.journal["left_out"])]
        names += [n for n in others if {*draws} <= {*self.runs[n]}]  # fell behind in the last of these draws
        answer = Recommendation(
            self.make_setting(names, draws),
            {name: self.entries[name].settings for name in names},
            self._describe_limits(draws),
            self._tabulate_screening(),
            {n: sum(d in draws or d > FIRST for d in self.runs[n]) for n in others if n not in names},
            (self.rounds, self.base.rounds),
        )
        # with all training samples: those that were set aside for validation have done their part
        evaluate = dataclasses.replace(self.given.evaluate, test_draw=self.base.evaluate.test_draw)
        experiment = dataclasses.replace(
            self.experiment_of(self.entries[answer.pick], FIRST), rounds=self.base.rounds, evaluate=evaluate
        )
        chosen = Chosen(self.folder, answer, experiment)
        write_json(self.folder / "choice.json", chosen.to_plain())
        write_bytes(self.folder / "best.toml", experiment_toml(experiment).encode())
        write_bytes(
            self.folder / "choice.md", "\n".join([*answer.words(), "", to_markdown(answer.table()), ""]).encode()
        )
        write_bytes(chosen.report, render_recommendation(answer, self.folder, self.spent).encode())
        return chosen

    def _describe_limits(self, draws: Sequence[int]) -> list[str]:
        """What was cut short, left out or not tried."""
        sentences: list[str] = []
        if self.rounds < self.base.rounds:
            cut = f"The budget allowed {self.rounds} of {pluralize(self.base.rounds, 'round')}"
            sentences.append(f"{cut}: with all of them, the order may differ.")
        if FIRST in draws and len(draws) > 1:
            sentences.append("The draw that decided who stays in the race is among those that decided the rest.")
        if untuned := self.journal.get("untuned"):
            sentences.append(untuned)
        if as_given := [name for name, better in self.journal["tuned"].items() if not better]:
            sentences.append(f"Tuning found no better settings than those given for {', '.join(as_given)}.")
        left_out = self.journal["left_out"]
        failed = [f"{name} ({why.rstrip('.')})" for name, why in left_out.items() if name in self.entries]
        sentences += [f"Failed: {'; '.join(failed)}."] if failed else []
        tried = {self.entries[name].method for name in (*self.runs, *left_out) if name in self.entries}
        if untried := [name for name in dict.fromkeys(self.named) if name not in tried]:
            sentences.append(f"There was no time for {', '.join(untried)}: a larger --budget tries all that was named.")
        able = len(list_names("method")) - sum(name not in self.entries for name in left_out)
        if len(tried) < able and not self.named:
            sentences.append(f"{len(tried)} of {able} methods that can do this were tried.")
        return sentences

    def _tabulate_screening(self) -> Table:
        """The first draw of every method that was tried."""
        form = self.metric.form
        names = [name for name, by_draw in self.runs.items() if FIRST in by_draw]
        cells = self.cells(names, [FIRST])
        rows = [[name, form(cells.mean(name).value), form(cells.worst_tenth(name).value)] for name in cells.ranking]
        return ["method", "validation, mean client", "validation, worst tenth"], rows
