"""Reads the results of runs from their folders; needs only the standard library."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..errors import ConfigError, RunError
from ..log.choosing import is_majority, judging
from ..log.metrics import ACCURACY, Metric
from ..log.schema import ENDS, MOMENTS, ClientLine, Round, evaluated, figures
from .files import RunFiles
from .lines import parse
from .manifest import guarantee
from .names import names_at_sites, names_in, number_of
from .newcomers import by_epochs, read_new_clients
from .summary import failures, summarize

if TYPE_CHECKING:
    from .. import Models, TrainedModel


@dataclass(frozen=True)
class Run:
    """A run's folder, finished or not."""

    path: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path))

    @cached_property
    def _files(self) -> RunFiles:
        return RunFiles(self.path)

    @property
    def manifest(self) -> dict[str, Any]:
        """What the run is: its experiment, partition, versions and hardware."""
        return self._files.manifest

    @property
    def method(self) -> str:
        return self.manifest["experiment"]["method"]["name"]

    @cached_property
    def metric(self) -> Metric:
        """What judges the run: the metric that its experiment names, or the usual one of its task."""
        try:
            return judging(self._evaluate.get("metric"), self.manifest["experiment"].get("task"))
        except (ConfigError, KeyError) as error:
            raise RunError(f"{self.path} can't be judged here: {error}") from error

    @property
    def asked(self) -> list[str]:
        """The metrics that the experiment lists."""
        return self._evaluate.get("metrics", [])

    @property
    def _evaluate(self) -> dict[str, Any]:
        return self.manifest["experiment"].get("evaluate", {})

    @property
    def floor(self) -> float | None:
        """The metric of a model that knows only its client's targets, not its inputs: a useful one must beat it."""
        return self._floor["over"] if self._floor else self.manifest["partition"]["floor"]["weighted"]

    @cached_property
    def floors(self) -> list[float | None]:
        """The same of each client; None where it is not defined, as without test samples."""
        if self._floor:
            return self._floor["clients"]
        pairs = zip(self.partition["train"], self.partition["test"], strict=True)
        return [have[own.index(max(own))] / sum(have) if sum(have) else None for own, have in pairs]

    @cached_property
    def _floor(self) -> dict[str, Any]:
        """As stored; empty for the accuracy of classes, which the counts say."""
        if is_majority(self.metric, self.manifest["experiment"].get("task")):
            return {}
        return self.partition.get("floors", {}).get(self.metric.name, {"over": None, "clients": []})

    @property
    def ended(self) -> str:
        """Why the last session ended; ``unfinished`` if it was killed or is still running."""
        return self._files.result["ended"]

    @property
    def complete(self) -> bool:
        """Whether no rounds are left to run."""
        _ = self.manifest  # refuses what is not the folder of a run
        return ENDS.get(self.ended, False)

    def check_complete(self) -> None:
        """Raise `RunError` if rounds are left to run."""
        if not self.complete:
            raise RunError(f"{self.path} has not ended ({self.ended}): finish it with headwise resume {self.path}.")

    @cached_property
    def _read(self) -> dict[str, Any]:
        return {}

    @property
    def rounds(self) -> list[Round]:
        """The lines of rounds.jsonl: one per round, metrics by moment."""
        return [row for row in self._rows if row["round"]]

    @property
    def start(self) -> Round | None:
        """What the clients had before round 1, as round 0; None if it was not measured."""
        return next((row for row in self._rows if not row["round"]), None)

    @property
    def _rows(self) -> list[Round]:
        data = self._files.content("rounds.jsonl")
        if self._read.get("data") != data:  # asked for often, while the run may be adding rounds
            self._read.update(data=data, rounds=list(parse(self.path / "rounds.jsonl", data)))
        return [cast(Round, row) for row in self._read["rounds"]]

    @property
    def clients(self) -> list[ClientLine]:
        """The lines of clients.jsonl: one per client and round, with its name if it has one; 0 is before training."""
        names = self.names
        return [
            cast(ClientLine, {**row, "name": names[row["client"]]} if names else row)
            for row in self._files.lines("clients.jsonl")
        ]

    @property
    def partition(self) -> dict[str, Any]:
        """Each client's sample counts by class, for each part; and the names of the classes."""
        return self._files.partition

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The clients' names in the order of their numbers; empty if the data has none."""
        late = names_at_sites(self.path / "sites.json", self.manifest["experiment"]["clients"])
        return late or names_in(self.partition, self.path / "partition.json")

    def number_of(self, who: str | int) -> int:
        """The number of the client with this name or number, such as "va" or 2."""
        return number_of(who, self.names, self.manifest["experiment"]["clients"], self.path)

    @property
    def new_clients(self) -> dict[str, Any] | None:
        """How clients that never trained do after joining, as `evaluate.new_clients` asks; None if not measured."""
        return read_new_clients(self.path)

    @property
    def diagnostics(self) -> list[dict[str, Any]]:
        """The lines of diagnostics.jsonl: what the method shows of what it learned, one per evaluation."""
        return list(self._files.lines("diagnostics.jsonl"))

    @property
    def sites(self) -> list[dict[str, Any]]:
        """The lines of sites.jsonl: one per message to a site; empty for a simulation."""
        return list(self._files.lines("sites.jsonl"))

    def last_scores(self) -> dict[str, dict[int, float]]:
        """The run's metric on each client's test samples, as last measured, by moment.

        Reads backwards: only the last lines matter, and there may be millions.
        """
        clients = self.manifest["experiment"]["clients"]
        last = max((row["round"] for row in self.rounds if evaluated(row)), default=0)
        found: dict[str, dict[int, float]] = {"pre": {}, "post": {}, "global": {}}
        for row in self._files.lines("clients.jsonl", backwards=True):
            if row["round"] < last and (not row["round"] or all(len(seen) in (0, clients) for seen in found.values())):
                break
            for moment, seen in found.items():
                score = row.get(moment, {}).get("test") or {}
                if score.get(self.metric.name) is not None and row["client"] not in seen:
                    seen[row["client"]] = score[self.metric.name]
        found["stale"] = {**found["pre"], **found.pop("post")}
        return {m: seen for m, seen in found.items() if seen}

    def check(self) -> None:
        """Read all of the run's files; raise `RunError` if one is damaged."""
        self.summary()
        _ = self.ended, self.privacy, self.names, self.clients, self.diagnostics, self.sites

    def accuracy(self, moment: str = "pre") -> float:
        """The last accuracy at this moment over all samples of all clients; raises `RunError` if not measured."""
        return self.score(moment, ACCURACY)

    def score(self, moment: str = "pre", metric: Metric | None = None) -> float:
        """The last value of the run's metric, or of another; raises `RunError` if not measured."""
        main = metric or self.metric
        curve = [found[main.name] for row in self.rounds if (found := figures(row, moment, main))]
        if not curve:
            raise RunError(f"{self.path} has no {main.label} at the moment {moment!r}; score() is {self.metric.label}.")
        return curve[-1]

    def summary(self) -> dict[str, Any]:
        """The run's results as one JSON object."""
        rows, experiment = self.rounds, self.manifest["experiment"]
        return {
            "run": str(self.path),
            "method": experiment["method"]["name"],
            "data": experiment["data"]["name"],
            "partition": experiment["partition"]["name"],
            "clients": experiment["clients"],
            "seed": experiment["seed"],
            "rounds": len(rows),
            "metric": self.metric.name,
            "floor": self.floor,
            self.metric.name: {m: s for m in MOMENTS if (s := summarize(rows, m, self.metric))},
            "bytes_up": sum(r["bytes_up"] for r in rows),
            "bytes_down": sum(r["bytes_down"] for r in rows),
            "bytes_evaluation": sum(r.get("bytes_evaluation", 0) for r in rows),
            "seconds": round(sum(r["seconds"]["round"] for r in rows), 3),
            **({"privacy": self.manifest["privacy"]} if "privacy" in self.manifest else {}),
            **({"new_clients": by_epochs(new, self.metric)} if (new := self.new_clients) else {}),
            **({"failed": failed} if (failed := failures(rows)) else {}),
        }

    def model(self, who: str | int, *, moment: str = "pre", round: str = "last") -> TrainedModel:
        """A client's personal model, ready to use, as after a download (pre) or after its last training (post)."""
        return self._models.of(self.number_of(who), moment, round)

    def adapt(self, x: Any, y: Any, *, epochs: int = 5) -> TrainedModel:
        """A model for a client that was not there, from its own samples: raw inputs, and the names of their classes."""
        return self._models.adapted(x, y, epochs)

    def global_model(self, *, round: str = "last") -> TrainedModel:
        """The one model for everybody, of methods that have one."""
        return self._models.world(round)

    @cached_property
    def _models(self) -> Models:
        from .. import Models  # by its public name: reading a run must not import what trains

        return Models(self)

    @property
    def privacy(self) -> str:
        """The privacy guarantee in words; empty if there is none."""
        return guarantee(self.manifest, self.path)

    @property
    def failed(self) -> dict[str, int]:
        """Number of client failures by reason."""
        return failures(self.rounds)


def find_runs(folder: Path) -> list[Run]:
    """All runs in this folder and below it."""
    return [Run(p.parent) for p in sorted(folder.glob("**/manifest.json"))]
