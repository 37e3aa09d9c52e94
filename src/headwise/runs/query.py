"""Reads the results of runs from their folders; needs only the standard library."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, cast

from .. import runs
from ..disk.files import digest, from_json, read_bytes, read_json
from ..errors import ConfigError, RunError, explain_missing, nearest
from ..log.metrics import ACCURACY, Metric, is_majority, main_metric, metrics, metrics_over_clients
from ..log.schema import ENDS, JUDGED, MOMENTS, UNFINISHED, ClientLine, Round, figures, was_evaluated
from .files import JOINED, PARTITION, RESULT, Extent, check, parse
from .manifest import describe_guarantee, read_manifest

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..exports.model import TrainedModel
    from ..exports.quality import Importances
    from ..exports.run_models import ClientRows, Models


LISTED = 1000
"""names among which a similar one is looked for: with more, it takes seconds"""


def read_names(partition: dict[str, Any], path: Path) -> tuple[str, ...]:
    """The clients' names in the order of their numbers; empty if the data has none."""
    names = tuple(partition.get("names", ()))
    clients = len(partition["train"]) or len(names)  # a site may not share its counts
    if names and (len(names) != clients or len(set(names)) < len(names)):
        raise RunError(f"{path} is damaged: it must have one name for each client.")
    return names


def client_label(c: int, names: Sequence[str]) -> str:
    """A client's number, and its name if it has one."""
    return f"{c} ({names[c]})" if names else str(c)


def name_by_site(homes: Mapping[int, int], sites: Mapping[int, str], clients: int) -> tuple[str, ...]:
    """Each client's site, with the client's number where a site has several or is unknown; empty if names clash."""
    home_names = [sites.get(homes.get(c, -1), "client") for c in range(clients)]
    often = Counter([*home_names, "client"])
    names = tuple(f"{site} {c}" if often[site] > 1 else site for c, site in enumerate(home_names))
    return names if len(set(names)) == clients and set(home_names) != {"client"} else ()


def read_site_names(path: Path, clients: int) -> tuple[str, ...]:
    """The same from a run's sites.json, which also lists sites that joined later; empty without one."""
    content = read_json(path, absent=b"{}")
    try:
        homes, sites = ({int(k): v for k, v in content.get(name, {}).items()} for name in ("homes", "names"))
        return name_by_site(homes, sites, clients)
    except (AttributeError, TypeError, ValueError):
        raise RunError(f"{path} is damaged: it does not name the clients' sites.") from None


def number_of(who: str | int, names: Sequence[str], clients: int, where: str | Path) -> int:
    """The number of the client with this name; clients without names are called by their numbers."""
    if str(who) in names:
        return names.index(str(who))
    is_number = not isinstance(who, bool) and str(who).isascii() and str(who).isdigit() and len(str(who)) < 10
    if not names and is_number and int(who) < clients:
        return int(who)
    if not names:
        hint = f"its clients are 0 to {clients - 1}."
    elif len(names) > LISTED:
        hint = f"it has {len(names):,} others."
    else:
        hint = nearest(str(who), names, "its clients are")
    raise RunError(f"{where} has no client {who!r}: {hint}")


NEW_CLIENTS = "new_clients.json"
JOINED_AS = ("joined", "alone", "standalone")
"""what is measured: joining, as many epochs of local training, and local training for as long as the run"""


def read_new_clients(folder: Path) -> dict[str, Any] | None:
    """The results of `engine.joining.join_all`; None if the run has no new clients or has not ended."""
    path = folder / NEW_CLIENTS
    if not path.exists():
        return None
    content = read_json(path)
    check(content, JOINED, path)
    return content


def group_by_epochs(measured: dict[str, Any], metric: Metric) -> dict[str, Any]:
    """This metric of each kind of model, by epochs on the clients' own samples."""
    rows = [row for row in measured["rows"] if isinstance(row.get(metric.name), float | int)]
    kinds = {m: {str(r["epochs"]): r[metric.name] for r in rows if r["model"] == m} for m in JOINED_AS}
    return {"clients": measured["clients"], **kinds}


def summarize(rows: list[Round], moment: str, main: Metric) -> dict[str, Any]:
    """A curve's last and best value, its mean over the last ten, and the value in the round chosen by validation."""
    by_round = {row["round"]: values for row in rows if (values := figures(row, moment, main))}
    if not by_round:
        return {}
    curve = {t: values[main.name] for t, values in by_round.items()}
    best = _best(curve, main)
    last = by_round[max(by_round)]
    others = [m.name for m in metrics_over_clients(main) if m.name != main.name]
    known = [name for other in (main.name, *others) for name in (other, f"{other}_clients") if name in last]
    summary = {
        "last": last[main.name],
        "best": curve[best],
        "best_round": best,
        "last_ten": fmean(list(curve.values())[-10:]),
        **{name: last[name] for name in known if name != main.name},
    }
    if judged := {
        t: values[main.validation] for t, values in by_round.items() if values.get(main.validation) is not None
    }:
        chosen = _best(judged, main)
        summary |= {"selected": curve[chosen], "selected_round": chosen, main.validation: judged[max(judged)]}
    return summary


def _best(curve: Mapping[int, float], main: Metric) -> int:
    """The first round with the best value."""
    return min(curve, key=lambda t: (-main.gain(curve[t], 0.0), t))


def count_failures(rows: list[Round]) -> dict[str, int]:
    """Number of client failures by reason."""
    counts = Counter[str]()
    for row in rows:
        counts.update({reason: len(who) for reason, who in row.get("failed", {}).items()})
    return dict(counts)


def title_of(experiment: Mapping[str, Any], metric: Metric = ACCURACY) -> str:
    """What an experiment runs on: data set, partition and number of clients; and its main metric."""
    at_sites = experiment["engine"]["kind"] == "flower"  # which have their own data, whatever its options
    data = _choice({"name": experiment["data"]["name"]} if at_sites else experiment["data"])
    clients = experiment["clients"]
    counted = f"{clients} client{'s' * (clients != 1)}"
    on = f"{data}, {'at sites' if at_sites else _choice(experiment['partition'])}, {counted}"
    return on if metric is ACCURACY else f"{on}, by {metric.label}"


def _choice(value: Mapping[str, Any]) -> str:
    """A data set or a partition with its first options, as you would type it; own data by their path."""
    if value["name"] == "own":
        return "/".join(Path(str(value.get("path", ""))).parts[-2:]) or "own data"
    plain = [v for k, v in value.items() if k not in ("name", "values") and isinstance(v, (int, float, str))]
    return ":".join([value["name"], *(str(v) for v in plain[:2] if not isinstance(v, bool))])


@dataclass(frozen=True, repr=False)
class Run:
    """A run's folder, finished or not; raises `RunError` where a file in it is damaged.

    >>> run = Run("runs/first")
    >>> run.score("pre") > run.floor
    True
    """

    path: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path))

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The run's experiment, partition, versions and hardware, which never change."""
        return read_manifest(self.path)

    @property
    def method(self) -> str:
        return self.manifest["experiment"]["method"]["name"]

    @cached_property
    def metric(self) -> Metric:
        """The run's main metric: the one that its experiment names, or its task's default."""
        try:
            return main_metric(self._evaluate["metric"], self.manifest["experiment"]["task"])
        except (ConfigError, KeyError) as error:
            raise RunError(f"{self.path} can't be judged here: {error}") from error

    @property
    def listed_metrics(self) -> list[str]:
        """The metrics that the experiment lists."""
        return self._evaluate["metrics"]

    @property
    def _evaluate(self) -> dict[str, Any]:
        return self.manifest["experiment"]["evaluate"]

    @property
    def floor(self) -> float | None:
        """The score of the best constant prediction per client, which a useful model must beat."""
        return self._floor["over"] if self._floor else self.manifest["partition"]["floor"]["weighted"]

    @cached_property
    def floors(self) -> list[float | None]:
        """Each client's floor; None where it is not defined, for example without test samples."""
        if self._floor:
            return self._floor["clients"]
        pairs = zip(self.partition["train"], self.partition["test"], strict=True)
        return [have[own.index(max(own))] / sum(have) if sum(have) else None for own, have in pairs]

    @cached_property
    def _floor(self) -> dict[str, Any]:
        """The floors as stored; empty for the accuracy of classes, which follows from the counts."""
        if is_majority(self.metric, self.manifest["experiment"]["task"]):
            return {}
        return self.partition.get("floors", {}).get(self.metric.name, {"over": None, "clients": []})

    @property
    def ended(self) -> str:
        """Why the last session ended; ``unfinished`` if it was killed or is still running."""
        return self._result["ended"]

    @property
    def _result(self) -> dict[str, Any]:
        """Why the last session ended, and how long each line file was then."""
        path = self.path / "result.json"
        result = read_json(path, absent=f'{{"ended": "{UNFINISHED}"}}'.encode())
        check(result, RESULT, path)
        if result["ended"] not in (*ENDS, UNFINISHED):
            raise RunError(f"{path} is damaged: its ended is {result['ended']!r}.")
        return result

    def _lines(self, name: str, *, backwards: bool = False) -> Iterator[dict[str, Any]]:
        return parse(self.path / name, self._content(name), backwards=backwards)

    def _content(self, name: str) -> bytes:
        """A line file's content, which must not have changed after the last session ended."""
        extent = self._result.get("lines", {}).get(name)
        data = read_bytes(self.path / name, absent=b"")
        if extent:
            Extent(**extent).check(self.path / name, data, "the run")
        return data

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
        """The scores before round 1, as round 0; None if they were not measured."""
        return next((row for row in self._rows if not row["round"]), None)

    @property
    def _rows(self) -> list[Round]:
        data = self._content("rounds.jsonl")
        if self._read.get("data") != data:  # asked for often, while the run may be adding rounds
            self._read.update(data=data, rounds=list(parse(self.path / "rounds.jsonl", data)))
        return [cast(Round, row) for row in self._read["rounds"]]

    @property
    def clients(self) -> list[ClientLine]:
        """The lines of clients.jsonl: one per client and round, with its name if it has one; 0 is before training."""
        names = self.names
        return [
            cast(ClientLine, {**row, "name": names[row["client"]]} if names else row)
            for row in self._lines("clients.jsonl")
        ]

    @cached_property
    def partition(self) -> dict[str, Any]:
        """Each client's sample counts by class, for each part; and the names of the classes."""
        path = self.path / "partition.json"
        data = read_bytes(path)
        if digest(data) != self.manifest.get("partition_digest", digest(data)):
            raise RunError(f"{path} is damaged: it has changed since the run began.")
        partition = from_json(data, path)
        check(partition, PARTITION, path)
        parts = [partition["train"], partition["test"], partition["val"]]
        rows = [row for part in parts for row in part]
        if len({len(part) for part in parts}) > 1 or len({len(row) for row in rows}) > 1 or [] in rows:
            raise RunError(f"{path} is damaged: its rows have different lengths.")
        return partition

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The clients' names in the order of their numbers; empty if the data has none."""
        late = read_site_names(self.path / "sites.json", self.manifest["experiment"]["clients"])
        return late or read_names(self.partition, self.path / "partition.json")

    def number_of(self, who: str | int) -> int:
        """The number of the client with this name or number, such as "va" or 2."""
        return number_of(who, self.names, self.manifest["experiment"]["clients"], str(self.path))

    @property
    def new_clients(self) -> dict[str, Any] | None:
        """How clients that never trained do after joining, as `evaluate.new_clients` asks; None if not measured."""
        return read_new_clients(self.path)

    @property
    def diagnostics(self) -> list[dict[str, Any]]:
        """The lines of diagnostics.jsonl, one per evaluation: what the method learned about its clients."""
        return list(self._lines("diagnostics.jsonl"))

    @property
    def sites(self) -> list[dict[str, Any]]:
        """The lines of sites.jsonl: one per message to a site; empty for a simulation."""
        return list(self._lines("sites.jsonl"))

    def last_scores(self, part: str = "test") -> dict[str, dict[int, float]]:
        """The run's metric on each client's test or validation samples (val), as of its last evaluation, by moment.

        Reads backwards: only the last lines matter, and there may be millions.
        """
        clients = self.manifest["experiment"]["clients"]
        last = self._last_evaluation
        scores: dict[str, dict[int, float]] = {"pre": {}, "post": {}, "global": {}}
        for row in self._lines("clients.jsonl", backwards=True):
            if row["round"] > last:  # of an unfinished run: not every training after it was measured
                continue
            if row["round"] < last and (not row["round"] or all(len(seen) in (0, clients) for seen in scores.values())):
                break
            for moment, seen in scores.items():
                score = row.get(moment, {}).get(part) or {}
                if score.get(self.metric.name) is not None and row["client"] not in seen:
                    seen[row["client"]] = score[self.metric.name]
        scores["stale"] = {**scores["pre"], **scores["post"]}
        return {m: seen for m, seen in scores.items() if seen}

    @property
    def _last_evaluation(self) -> int:
        return max((row["round"] for row in self.rounds if was_evaluated(row)), default=0)

    def check(self) -> None:
        """Read all of the run's files; raise `RunError` if one is damaged."""
        self.summary()
        _ = self.ended, self.privacy, self.names, self.clients, self.diagnostics, self.sites

    def accuracy(self, moment: str = "pre") -> float:
        """The last accuracy at this moment over all samples of all clients; raises `RunError` if not measured."""
        return self.score(moment, ACCURACY)

    def score(self, moment: str = "pre", metric: Metric | str | None = None) -> float:
        """The last value of the run's metric, or of another, such as "f1"; raises `RunError` if not measured."""
        main = self._find_metric(metric) if isinstance(metric, str) else metric or self.metric
        curve = [values[main.name] for row in self.rounds if (values := figures(row, moment, main))]
        if not curve:
            raise RunError(f"{self.path} has no {main.label} at the moment {moment!r}; score() is {self.metric.label}.")
        return curve[-1]

    def _find_metric(self, name: str) -> Metric:
        known = {m.name: m for m in metrics()}
        if name not in known:
            raise ConfigError(f"metric is {name!r}: {nearest(name, known)}")
        return known[name]

    def clients_frame(self, moment: str = "pre") -> Any:
        """A pandas DataFrame with a row per client: samples, floor, and its scores on test samples as of the run's last
        evaluation.
        """
        with explain_missing("clients_frame needs pandas: pip install pandas."):
            import pandas as pd  # pyright: ignore[reportMissingImports]
        count = self.manifest["experiment"]["clients"]
        parts = {part: [sum(row) for row in self.partition[part]] for part in ("train", "val", "test")}
        frame = pd.DataFrame(
            {f"{part}_samples": sizes for part, sizes in parts.items() if sizes},
            index=pd.Index(self.names or range(count), name="client"),
        )
        frame["floor"] = pd.Series([*self.floors] or None, index=frame.index, dtype=float)
        last: dict[int, Mapping[str, Any]] = {}
        until = self._last_evaluation
        for row in self._lines("clients.jsonl", backwards=True):
            if row["round"] <= until and row["client"] not in last and (scores := row.get(moment, {}).get("test")):
                last[row["client"]] = {"round": row["round"], **scores}
        scores = pd.DataFrame([{**last.get(c, {})} for c in range(count)], index=frame.index)
        return frame.join(scores.drop(columns="n", errors="ignore"))

    def __repr__(self) -> str:
        """Its method, data and score; only the folder if it can't be read."""
        try:
            experiment = self.manifest["experiment"]
            done = f"{len(self.rounds)} of {experiment['rounds']} rounds"
            moment = next((m for m in JUDGED if summarize(self.rounds, m, self.metric)), None)
            score = f", {self.metric.label} {self.metric.form(self.score(moment))} ({moment})" if moment else ""
            floor = f", floor {self.metric.form(self.floor)}" if self.floor is not None else ""
            return f"<Run {self.path}: {self.method} on {title_of(experiment)}, {done}{score}{floor}>"
        except RunError:
            return f"<Run {self.path}>"

    def summary(self) -> dict[str, Any]:
        """The run's results as one JSON object."""
        rows = self.rounds
        experiment = self.manifest["experiment"]
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
            **({"new_clients": group_by_epochs(new, self.metric)} if (new := self.new_clients) else {}),
            **({"failed": failed} if (failed := count_failures(rows)) else {}),
        }

    def model(
        self, client: str | int | None = None, *, at: int | None = None, moment: str = "pre", round: str = "last"
    ) -> TrainedModel:
        """A client's personal model, ready to use, as after a download (pre) or after its last training (post).

        `client` is a name, even if it is a number; `at` is the client's position in `run.names`, from 0.
        """
        if (client is None) == (at is None):
            raise ConfigError("run.model needs a client's name, or its position as at=0, but not both.")
        count = self.manifest["experiment"]["clients"]
        if at is not None and not (isinstance(at, int) and 0 <= at < count):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RunError(f"at is {at!r}, but {self.path} has clients at 0 to {count - 1}.")
        return self._models.of(self.number_of(client) if client is not None else at or 0, moment, round)

    def predict(self, samples: Any, client: Any = None, *, moment: str = "pre", round: str = "last") -> NDArray[Any]:
        """Predict each sample with its own client's model.

        `client` is a name for each sample; for a table (a DataFrame or a mapping of columns), the name of the column
        that holds them, which defaults to the one that the run was trained with.
        """
        return self._models.predict(samples, client, moment, round)

    def rows(self, client: str | int, part: str = "test") -> ClientRows:
        """The samples that a client trained on, or held out: `part` is train, val or test."""
        return self._models.rows(self.number_of(client), part)

    def importance(
        self,
        client: str | int,
        part: str = "test",
        *,
        moment: str = "pre",
        round: str = "last",
        repeats: int = 5,
        seed: int = 0,
    ) -> Importances:
        """How much worse a client's model gets on its own samples if one feature is shuffled `repeats` times."""
        return self._models.importance(self.number_of(client), part, moment, round, repeats, seed)

    def resume(self, rounds: int | None = None, *, out: str | Path | None = None, **settings: Any) -> Run:
        """Finish this run if it was interrupted, or train `rounds` more in a new run that continues from it.

        The new run is in the folder `out`; `settings` are those of `hw.fit` that change, such as ``lr=0.01``. Ten
        rounds and ten more have the same bits as twenty. To continue on other data, use ``hw.fit(..., start=run)``.
        """
        return runs.continue_run(self, rounds, out, settings)

    def adapt(self, x: Any, y: Any, *, epochs: int = 5) -> TrainedModel:
        """A model for a new client, from its own samples: raw inputs, and the names of their classes."""
        return self._models.adapt(x, y, epochs)

    def global_model(self, *, round: str = "last") -> TrainedModel:
        """The global model, for methods that have one."""
        return self._models.global_model(round)

    @cached_property
    def _models(self) -> Models:
        return runs.open_models(self)

    @property
    def privacy(self) -> str:
        """The privacy guarantee in words; empty if there is none."""
        return describe_guarantee(self.manifest, self.path)

    @property
    def failed(self) -> dict[str, int]:
        return count_failures(self.rounds)


def find_runs(folder: Path) -> list[Run]:
    """All runs in this folder and below it."""
    return [Run(p.parent) for p in sorted(folder.glob("**/manifest.json"))]
