"""Sites with their own data, in one process: the same bits, and nothing that site.toml does not allow."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from federations import LocalTransport, bits, bits_at_sites, experiment, run_deployment, write_site

import headwise as hw
from headwise.errors import ClientError, ConfigError, DataError, HeadwiseError, RunError
from headwise.methods.fedper import FedPer
from headwise.records import Nothing, encode
from headwise.settings.choices import Choice
from headwise.settings.foreign import read_foreign
from headwise.settings.names import list_names
from headwise.sites.facts import resolve_for_sites, write_for_sites
from headwise.sites.keys import sign_list
from headwise.sites.server import nodes
from headwise.sites.server.nodes import Nodes, Roster
from headwise.sites.site.policy import Policy, read_policy
from headwise.sites.site.site import open_site
from headwise.sites.site.site_file import read_site
from headwise.sites.states import SiteStates
from headwise.sites.transport.envelope import Lost, SiteMessage
from headwise.testing.nervous import Nervous

HOMES = {101: [0, 4], 102: [1], 103: [2], 104: [3]}


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "LAST_PAUSE", 0.0)


def four(folder: Path, allow: str = "labels = true") -> LocalTransport:
    return LocalTransport({node: write_site(folder / f"site{node}", own, allow) for node, own in HOMES.items()})


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("local") / "run"
    hw.run(experiment(), folder)
    return bits(folder)


@pytest.mark.parametrize("method", list_names("method"))
def test_every_method_gives_the_same_bits_where_each_site_has_its_own_data_only(method: str, tmp_path: Path) -> None:
    with Nervous():
        hw.run(experiment(method), tmp_path / "local")
        run_deployment(four(tmp_path), experiment(method), tmp_path / "run")
    found, wanted = bits_at_sites(tmp_path / "run", tmp_path), bits(tmp_path / "local")
    assert found == wanted


def test_the_server_has_no_state_and_no_label_that_was_not_told(tmp_path: Path) -> None:
    run_deployment(four(tmp_path, "labels = false"), experiment(), tmp_path / "run")
    told = json.loads((tmp_path / "run" / "sites.json").read_text())["facts"]
    assert [t["labels"] for t in told] == [None] * 5
    assert json.loads((tmp_path / "run" / "partition.json").read_text())["train"] == []
    held = list((tmp_path / "run").rglob("*"))
    heads = {p.read_bytes() for p in tmp_path.glob("site*/states/*/*/round-*.safetensors")}
    assert heads
    assert not [p for p in held if p.is_file() and any(h in p.read_bytes() for h in heads)]


def test_a_method_that_asks_for_labels_needs_sites_that_tell(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not share which classes"):
        run_deployment(four(tmp_path, "labels = false"), experiment("fedgmh"), tmp_path / "run")


# -- what a site refuses


def refusal(folder: Path, allow: str = "", **changes: Any) -> str:
    site = read_policy(write_site(folder, [0], allow))
    asked = {**resolve_for_sites(experiment()).to_plain(), **changes}
    with pytest.raises(RunError) as error:
        site.plan(json.dumps(asked))
    return str(error.value)


@pytest.mark.parametrize(
    ("allow", "changes", "said"),
    [
        ('methods = ["fedavg"]', {}, "site does not allow the method 'fedper': allowed are fedavg."),
        ("", {"method": "mine"}, "site does not allow the method 'mine': allowed are"),
        ("", {"model": ["network"]}, "site does not allow the model 'network': allowed are"),
        ("", {"server_model": "os:system"}, "site does not allow the model 'os': allowed are"),
        ("", {"data": "digits"}, "site has the data set 'synthetic', not 'digits'."),
        ("", {"fraction": 0.5}, "site can't use a share of all samples: fraction is 0.5, but must be 1."),
        ("", {"clients": None}, "site can't run an experiment without model and clients: both must be given."),
        ("", {"rounds": "many"}, "site can't read this experiment: rounds is 'many'"),
        ('fields = ["protos"]', {}, "site sends protos only, not w."),
        ("epsilon = 3.0", {}, "site requires an epsilon of at most 3, but the experiment has no privacy."),
        ("", {"clients": 10**9}, "site can't read this experiment: clients is 1000000000, but must be from 1 to"),
        ("", {"clients": 10**6}, "site accepts experiments with at most 100,000 clients and 100 networks, but"),
        ("", {"model": ["linear"] * 101}, "site accepts experiments with at most 100,000 clients and 100 networks"),
        ("", {"model": "mlp:12000:2"}, "site allows 500,000,000 bytes of networks, but mlp makes it 576,"),
        ("largest = 1", {"server_model": "mlp:65536"}, "site allows 1,000,000 bytes of networks, but mlp makes it"),
    ],
)
def test_a_site_refuses_what_it_does_not_allow(allow: str, changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    assert refusal(tmp_path / "site", allow, **changes).startswith(said)


@pytest.mark.parametrize(("noise", "allowed"), [(50.0, True), (1.0, False)])
def test_a_site_reckons_privacy_itself(noise: float, allowed: bool, tmp_path: Path) -> None:
    site = read_policy(write_site(tmp_path / "site", [0], "epsilon = 3.0"))
    asked = json.dumps(resolve_for_sites(experiment("fedavg", privacy={"clip": 1.0, "noise": noise})).to_plain())
    if allowed:
        assert site.plan(asked).privacy.noise == noise
    else:
        with pytest.raises(RunError, match=r"an epsilon of at most 3 at a delta of at most 1e-05, but"):
            site.plan(asked)


@pytest.mark.parametrize(("level", "sizes"), [("client", False), ("example", True)])
def test_under_privacy_a_site_tells_what_epsilon_allows(level: str, sizes: bool, tmp_path: Path) -> None:
    """Client-level privacy hides a client's number of samples; its classes are always hidden."""
    private = experiment("fedavg", rounds=1, privacy={"clip": 1.0, "noise": 5.0, "level": level})
    run = run_deployment(four(tmp_path, "labels = true\nepsilon = 50.0"), private, tmp_path / "run")
    told = json.loads((tmp_path / "run" / "sites.json").read_text())["facts"]
    assert [t["labels"] for t in told] == [None] * 5
    assert all((sum(t["sizes"]) > 0) is sizes for t in told)
    assert 0 < run.manifest["privacy"]["epsilon"] < 50


def test_noise_from_the_seed_protects_nobody(tmp_path: Path) -> None:
    seeded = {"clip": 1.0, "noise": 50.0, "source": "seed"}
    asked = resolve_for_sites(experiment("fedavg", privacy=seeded)).to_plain()
    assert "but the experiment has no privacy" in refusal(tmp_path / "site", "epsilon = 3.0", **asked)


def test_under_privacy_no_round_is_answered_twice(tmp_path: Path) -> None:
    transport = LocalTransport({1: write_site(tmp_path / "site1", [0], "epsilon = 9.0", "synthetic:60:4:6:sites=1")})
    private = experiment(
        "fedavg", clients=1, rounds=1, data="synthetic:60:4:6:sites=1", privacy={"clip": 1.0, "noise": 50.0}
    )
    run_deployment(transport, private, tmp_path / "run")
    fit = next(p for _, kind, p in transport.sent if kind == "train" and '"fit"' in p.text)
    again = open_site(tmp_path / "site1" / "site.toml").answer("train", fit)
    assert "has already answered round 1 or later for client 0" in json.loads(again.text)["error"]


def hostile(path: Path, word: str) -> list[dict[str, Any]]:
    """Experiments that name this file, and what it may define, wherever a name can be."""
    file, usual = str(path), resolve_for_sites(experiment()).to_plain()
    code = [
        file,
        f"{file}:{word}",
        f"{file}:{word}:head=out",
        {"name": file},
        {"name": "mlp", "factory": f"{file}:{word}"},
    ]
    code += [{"name": "network", "factory": f"{path.stem}:{word}"}, {"name": "mlp", "values": [file]}]
    found = [{key: value} for key in ("method", "data", "partition", "server_model") for value in code]
    found += [{"model": [value]} for value in code]
    found += [{"data": {"name": "own", key: file}} for key in ("path", "files", "sha256")]
    found += [{key: {**usual[key], name: value}} for key, name, value in (
        ("train", "augment", [f"{file}:{word}"]), ("train", "augment", [f"{path.stem}:{word}"]),
        ("train", "augment", [f"session:{word}"]), ("sampling", "trace", file), ("sampling", "trace", path.stem),
        ("origin", "run", str(path.parent)), ("origin", "clients", [file]), ("evaluate", "metric", file),
        ("evaluate", "metrics", [file]), ("privacy", "mechanism", file), ("engine", "kind", file),
        ("engine", "device", "cuda:1"), ("engine", "flower", {"ray": "elsewhere:1"}), ("faults", "inject", file),
    )]  # fmt: skip
    return [*found, {"split": file}, {"without": [file]}, {file: 1}, {"train": {file: 1}}, {"task": file}]


def test_a_server_can_not_learn_of_files_through_an_experiment(tmp_path: Path) -> None:
    """The refusal is the same sentence, whether the file exists or not, and whatever it defines."""
    policy = read_policy(write_site(tmp_path / "site", [0]))
    usual = resolve_for_sites(experiment()).to_plain()
    answers: dict[str, list[str]] = {}
    for name, text in (("absent", None), ("secret", "DB_PASSWORD = 1\n"), ("code", "raise SystemExit('it ran')\n")):
        file = tmp_path / f"{name}.py"
        if text is not None:
            file.write_text(text)
        for k, changes in enumerate(hostile(file, "DB_PASSWORD" if name == "secret" else "zz")):
            reply = json.loads(policy.introduce(json.dumps({**usual, **changes})).text)
            answers.setdefault(str(k), []).append(reply["refusal"])
    for said in answers.values():
        assert len(set(said)) == 1
        assert said[0].endswith("must hold numbers and the names of what is installed, never a path or code.")


@pytest.mark.parametrize("text", ["", "[" * 10**5, "5", "{", '{"rounds": NaN}', '{"a": 1}', '{"model": 5}'])
def test_what_is_no_experiment_is_refused_in_a_sentence(text: str, tmp_path: Path) -> None:
    site = read_site(write_site(tmp_path / "site", [0]))
    with pytest.raises(RunError, match=r"^site can't read this experiment: "):
        Policy(site, tmp_path).permit(text)


def test_what_is_sent_to_sites_holds_no_path_of_the_server(tmp_path: Path) -> None:
    """Its own source, its own data and its trace stay at the server."""
    (tmp_path / "trace.csv").write_text("0\n" * 9)
    (tmp_path / "rows.csv").write_text("who,a,y\n" + "".join(f"{k % 2},{k},{k % 3}\n" for k in range(60)))
    (tmp_path / "data.toml").write_text(
        'format = "csv"\npath = "rows.csv"\nclient = "who"\ntarget = "y"\nfeatures = { number = ["a"] }\n'
    )
    source = Path(hw.__file__).parent / "data" / "sources" / "digits.py"
    (tmp_path / "digits.py").write_text(source.read_text().replace("from ..", "from headwise.data."))
    for data in (str(tmp_path / "digits.py"), str(tmp_path / "data.toml")):
        asked = experiment(data=data, sampling={"trace": str(tmp_path / "trace.csv")})
        text = write_for_sites(resolve_for_sites(asked))
        assert str(tmp_path) not in text
        assert read_foreign(text).data.name == ("digits" if data.endswith(".py") else "own")


def order(client: int = 0, **changes: Any) -> SiteMessage:
    site_job = {"kind": "fit", "client": client, "t": 1, "measure": False, "down": 0, "state": "", **changes}
    asked = json.dumps(resolve_for_sites(experiment("standalone")).to_plain())
    return SiteMessage(json.dumps({"run": "run-1", "experiment": asked, "site_jobs": [site_job]}), [encode(Nothing())])


def named(run: Any) -> SiteMessage:
    found = order()
    return SiteMessage(json.dumps({**json.loads(found.text), "run": run}), found.records)


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (order(1), "site does not have the clients [1]."),
        (order(t=0), "site got an order for round 0, but the rounds are 1 to 3."),
        (order(t=4), "site got an order for round 4, but the rounds are 1 to 3."),
        (order(t=10**9), "site got an order for round 1000000000, but the rounds are 1 to 3."),
        (order(down=10**9), "this message is not a valid order: IndexError"),
        (named(5), "this message is not a valid order: ConfigError: run is 5, but must be a string."),
        (named(None), "this message is not a valid order: ConfigError: run is None, but must be a string."),
        (named("../x"), "run is '../x', but must be 1 to 64 lower-case letters, digits and dashes."),
        (order(t="1"), "this message is not a valid order: ConfigError: t is '1'"),
        (order(state=7), "this message is not a valid order: ConfigError: state is 7"),
        (order(kind="steal"), "this message is not a valid order: ConfigError: kind is 'steal'"),
        (order(state="0" * 64), "client-0 has no state 000000000000, which the server accepted last."),
        (
            SiteMessage("x" * 2_000_000, []),
            "site accepts messages of at most 1,000,000 bytes, but this one has 2,000,000.",
        ),
    ],
)
def test_an_order_outside_the_rules_is_refused(message: SiteMessage, said: str, tmp_path: Path) -> None:
    site = open_site(write_site(tmp_path / "site", [0], "largest = 1"))
    assert said in json.loads(site.answer("train", message).text)["error"]
    assert [p.name for p in (tmp_path / "site").iterdir()] == ["site.toml"]


@pytest.mark.parametrize("noise", [5e-324, 1e-200, 1e-90])
@pytest.mark.parametrize("level", ["client", "example"])
def test_noise_that_is_next_to_nothing_is_reckoned_and_refused(noise: float, level: str, tmp_path: Path) -> None:
    """Opacus divides by zero at some of these, and never ends at others."""
    privacy = {"clip": 1.0, "noise": noise, "level": level}
    asked = resolve_for_sites(experiment("fedavg", privacy=privacy, train={"batch": 2})).to_plain()
    site = read_policy(write_site(tmp_path / "site", [0], "epsilon = 3.0"))
    with pytest.raises(HeadwiseError, match=r"but the experiment has|below 1e-100 there is no epsilon to compute"):
        site.plan(json.dumps(asked))


def test_what_nobody_thought_of_is_said_to_be_a_bug_and_tells_nothing_of_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> Any:
        raise ZeroDivisionError("a patient's name")

    monkeypatch.setattr(SiteStates, "put_download", fails)
    site = open_site(write_site(tmp_path / "site", [0]))
    said = json.loads(site.answer("train", order()).text)
    assert said == {"error": "this is a bug in Headwise (ZeroDivisionError): see the site's log."}


def test_a_private_field_in_an_upload_is_refused_by_the_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = FedPer.local_update

    def leaky(self: FedPer, me: Any, down: Any, local: Any) -> Any:
        update = honest(self, me, down, local)
        return dataclasses.replace(update, up=type(update.up)(update.up.w | update.me.h))

    monkeypatch.setattr(FedPer, "local_update", leaky)
    monkeypatch.setattr(FedPer, "fixed_layout", False)  # or it would be refused before it is sent
    with pytest.raises(ClientError, match=r"site10\d does not send 'h': it is private, but in the upload\."):
        run_deployment(four(tmp_path), experiment(), tmp_path / "run")


def test_scores_stay_where_a_site_says_so(tmp_path: Path) -> None:
    run = run_deployment(four(tmp_path, "scores = false"), experiment(), tmp_path / "run")
    assert [row["pre"] for row in run.rounds] == [{"clients": 0, "samples": 0}] * 3


def test_only_experiments_on_the_signed_list_run(tmp_path: Path) -> None:
    allow = 'experiments = "allowed.json"\nsigner = "board.key.pub"'
    site = read_site(write_site(tmp_path, [0], allow))
    asked, other = (resolve_for_sites(experiment(rounds=r)) for r in (3, 4))
    assert len(sign_list([asked], tmp_path / "board.key", tmp_path / "allowed.json")) == 1
    assert Policy(site, tmp_path).permit(json.dumps(asked.to_plain())).rounds == 3
    with pytest.raises(RunError, match=r"does not allow the experiment [0-9a-f]{12}: it is not on the signed list"):
        Policy(site, tmp_path).permit(json.dumps(other.to_plain()))
    listed = json.loads((tmp_path / "allowed.json").read_text())
    (tmp_path / "allowed.json").write_text(json.dumps({**listed, "experiments": [*listed["experiments"], "0" * 64]}))
    with pytest.raises(RunError, match=r"allowed.json is not signed by .*board.key.pub, so nothing on it is allowed"):
        Policy(site, tmp_path).permit(json.dumps(asked.to_plain()))
    sign_list([asked, other], tmp_path / "another.key", tmp_path / "allowed.json")
    with pytest.raises(RunError, match="is not signed by"):
        Policy(site, tmp_path).permit(json.dumps(asked.to_plain()))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('name = "a"\ndata = "synthetic"\nclients = []', "clients is empty, but a site must have at least one."),
        ('name = "a"\ndata = "synthetic"', "clients is missing: it has no default."),
        ('name = "a"\ndata = "x"\nclients = [{id = 0}]', "clients[0].source is missing: it has no default."),
        ('[allow]\nmethods = ["fedpr"]', "allow.methods names 'fedpr': did you mean 'fedper'?"),
        ('[allow]\nexperiments = "a"', "allow.experiments and allow.signer must be given together."),
        ("[allow]\nlabel = true", "allow.label is not a setting: did you mean 'labels'?"),
    ],
)
def test_a_mistake_in_site_toml_is_one_sentence(text: str, said: str, tmp_path: Path) -> None:
    usual = 'name = "a"\ndata = "x"\nclients = [{id = 0, source = "x"}]\n'
    (tmp_path / "site.toml").write_text(text if "name" in text else usual + text)
    with pytest.raises(ConfigError) as error:
        read_site(tmp_path / "site.toml")
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"partition": "iid"}, "partition is 'iid', but must be natural: sites keep their data."),
        ({"clients": None}, "clients is missing: give the number of clients at all sites, since sites come and go."),
        ({"fraction": 0.5}, "fraction is 0.5, but must be 1 for clients at sites."),
        ({"method": Choice("mine.py")}, "method is 'mine.py', but sites only run what their own Headwise includes."),
    ],
)
def test_what_no_site_could_run_is_not_sent(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        resolve_for_sites(dataclasses.replace(experiment(), **changes))
    assert str(error.value) == said


# -- sites that fail, refuse, come late or lie


def skipping(**more: Any) -> hw.Experiment:
    evaluate = {"moments": ["post"], "start": False}  # the first message trains
    return experiment(faults={"on_failure": "skip", **more}, sampling={"ratio": 1.0}, evaluate=evaluate)


def test_a_refusal_is_said_by_the_server_before_the_first_round(tmp_path: Path) -> None:
    transport = four(tmp_path)
    write_site(tmp_path / "site103", [2], 'methods = ["fedavg"]')
    with pytest.raises(
        RunError, match=r"client 2 can't take part: site103 \(node 103\) refuses: site103 does not allow"
    ):
        run_deployment(transport, experiment(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_site_that_refuses_or_is_not_there_is_skipped_by_policy(tmp_path: Path) -> None:
    transport = four(tmp_path)
    write_site(tmp_path / "site103", [2], 'methods = ["fedavg"]')
    del transport.sites[104]
    run = run_deployment(transport, skipping(), tmp_path / "run")
    assert [row["failed"] for row in run.rounds] == [{"no answer": [2, 3]}] * 3
    assert run.ended == "finished"


def test_too_few_replies_end_the_run(tmp_path: Path) -> None:
    transport = four(tmp_path)
    del transport.sites[104]
    with pytest.raises(ClientError, match=r"round 1 has 4 replies, but faults.min_replies is 5 \(no answer: 1\)"):
        run_deployment(transport, skipping(min_replies=5), tmp_path / "run")


def test_a_node_that_joins_late_is_used_from_the_next_round(tmp_path: Path) -> None:
    transport = four(tmp_path)
    late = transport.sites.pop(104)

    def join(node: int, kind: str, message: SiteMessage) -> SiteMessage:
        if kind == "train":
            transport.sites[104] = late
        return message

    transport.meddle = join
    run = run_deployment(transport, skipping(), tmp_path / "run")
    assert [row.get("failed") for row in run.rounds] == [{"no answer": [3]}, None, None]


def test_a_late_reply_is_counted_as_late_and_puts_no_client_ahead(tmp_path: Path) -> None:
    transport = four(tmp_path)
    seen: list[int] = []

    def delay(node: int, kind: str, message: SiteMessage) -> SiteMessage | Lost:
        seen.extend([node] if (node, kind) == (102, "train") else [])
        return Lost("its time was over", "late") if seen == [102] and node == 102 and kind == "train" else message

    transport.meddle = delay
    run = run_deployment(transport, skipping(), tmp_path / "run")
    assert [row.get("failed") for row in run.rounds] == [{"late": [1]}, None, None]
    orders = [
        site_job for _, kind, p in transport.sent if kind == "train" for site_job in json.loads(p.text)["site_jobs"]
    ]
    states = [site_job["state"] for site_job in orders if (site_job["client"], site_job["kind"]) == (1, "fit")]
    assert [state == "" for state in states] == [True, True, False]


def test_a_node_that_is_lost_is_asked_again_with_the_same_bits(wanted: dict[str, Any], tmp_path: Path) -> None:
    transport, trained = four(tmp_path), list[int]()

    def lose(node: int, kind: str, message: SiteMessage) -> SiteMessage | Lost:
        trained.extend([node] if kind == "train" else [])
        return Lost("it was killed") if kind == "train" and len(trained) in (2, 7) else message

    transport.meddle = lose
    run_deployment(transport, experiment(), tmp_path / "run")
    assert len([1 for _, kind, _ in transport.sent if kind == "query"]) == 6  # lost nodes introduce themselves again
    assert bits_at_sites(tmp_path / "run", tmp_path) == wanted


def test_a_server_that_was_killed_goes_on_from_its_checkpoint(
    wanted: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    transport, trained = four(tmp_path), list[int]()

    def die(node: int, kind: str, message: SiteMessage) -> SiteMessage:
        trained.extend([node] if kind == "train" else [])
        if len(trained) == 14:
            raise Killed
        return message

    transport.meddle = die
    with pytest.raises(Killed):
        run_deployment(transport, experiment(), tmp_path / "run")
    assert hw.Run(tmp_path / "run").ended == "unfinished"
    transport.meddle = lambda node, kind, message: message
    run_deployment(transport, experiment(), tmp_path / "run")
    assert bits_at_sites(tmp_path / "run", tmp_path) == wanted


def test_a_run_at_sites_is_not_resumed_without_them(tmp_path: Path) -> None:
    run_deployment(four(tmp_path), experiment(rounds=1), tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    with pytest.raises(RunError, match="has its clients at sites: continue it with headwise deploy"):
        hw.resume(tmp_path / "run")


def test_a_site_whose_data_changed_is_not_used_any_more(tmp_path: Path) -> None:
    transport = four(tmp_path)
    run_deployment(transport, experiment(rounds=1), tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    write_site(tmp_path / "site102", [1], data="synthetic:170:4:6:sites=5")
    with pytest.raises(RunError, match=r"client 1 can't take part: site102 .* reports other facts about its data"):
        run_deployment(transport, experiment(rounds=1), tmp_path / "run")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"clients": [1, 9]}, "claims clients that the run does not have, or sends no facts about its own"),
        ({"facts": [], "clients": []}, "claims clients that the run does not have, or sends no facts about its own"),
        ({"clients": [0], "facts.client": 0}, "claims client 0, which site101 has"),
        ({"facts.sizes": [1, 2]}, "reports sizes or classes that contradict each other"),
        ({"facts.labels": [[1]]}, "reports sizes or classes that contradict each other"),
        ({"facts.shape": [10**9]}, "reports data of an implausible size"),
        ({"facts.classes": 0, "facts.labels": None}, "reports data of an implausible size"),
        ({"facts.shape": [7]}, "has data of the form Task(shape=(7,), classes=4, vocabulary=0), but site"),
        ({"facts.shape": "wide"}, "refuses: its introduction can't be read: facts[0].shape is 'wide'"),
        ({"more": 1}, "refuses: its introduction can't be read: more is not a setting"),
        ({"version": "9.9.1"}, "runs Headwise 9.9.1, but the server runs "),
        ({"version": None}, "refuses: its introduction can't be read: version is None, but must be a string"),
    ],
)
def test_a_site_that_introduces_itself_wrongly_is_not_used(change: dict[str, Any], why: str, tmp_path: Path) -> None:
    def lie(node: int, kind: str, message: SiteMessage) -> SiteMessage:
        if (node, kind) != (102, "query"):
            return message
        said = json.loads(message.text)
        for key, value in change.items():
            *table, last = key.split(".")
            (said[table[0]][0] if table else said)[last] = value
        return SiteMessage(json.dumps(said), [])

    transport = four(tmp_path)
    transport.meddle = lie
    found = Nodes(transport, resolve_for_sites(experiment()), Roster({}, {}))
    found.wait([0, 2, 3, 4], 0.0)
    found.look()
    assert why in str(found.statuses[102].refusal)
    assert found.node_of(1) is None
    assert sorted(found.known.facts) == [0, 2, 3, 4]


def test_a_site_that_changed_its_mind_is_heard_again(tmp_path: Path) -> None:
    transport = four(tmp_path)
    write_site(tmp_path / "site102", [1], 'methods = ["fedavg"]')
    found = Nodes(transport, resolve_for_sites(experiment()), Roster({}, {}))
    assert "does not allow the method" in found.wait(range(5), 0.0)[1]
    home = transport.sites.pop(102)
    found.look()
    transport.sites[102] = write_site(home.parent, [1])
    assert found.wait(range(5), 0.0) == {}


def test_no_other_node_may_speak_for_a_client(tmp_path: Path) -> None:
    transport = four(tmp_path)
    run_deployment(transport, experiment(rounds=1), tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    del transport.sites[102]
    transport.sites[666] = write_site(tmp_path / "liar", [1])
    with pytest.raises(RunError, match=r"client 1 can't take part: liar .node 666. claims client 1, which site102 has"):
        run_deployment(transport, experiment(rounds=1), tmp_path / "run")


@pytest.mark.parametrize(
    "change",
    [
        {"client": 3}, {"t": 7}, {"kind": "idle"}, {"n": -1}, {"n": "9"}, {"up": 5}, {"up": "0"}, {"state": None},
        {"samples": 1e9}, {"failure": ["one"]}, {"test": {"accuracy": 0.5}},
        {"test": {"n": 1, "accuracy": "high"}}, {"more": 1},
    ],
)  # fmt: skip
def test_a_report_that_lies_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    def lie(node: int, kind: str, message: SiteMessage) -> SiteMessage:
        if kind != "train" or node != 102:
            return message
        said = json.loads(message.text)
        said["answers"][0] |= change
        return SiteMessage(json.dumps(said), message.records)

    transport = four(tmp_path)
    transport.meddle = lie
    run = run_deployment(transport, skipping(), tmp_path / "run")
    assert [row["failed"] for row in run.rounds] == [{"refused": [1]}] * 3


def test_a_tampered_upload_is_refused(tmp_path: Path) -> None:
    transport = four(tmp_path)
    transport.meddle = lambda node, kind, p: SiteMessage(p.text, [r[:-1] for r in p.records]) if node == 102 else p
    run = run_deployment(transport, skipping(), tmp_path / "run")
    assert [row["failed"] for row in run.rounds] == [{"refused": [1]}] * 3
    with pytest.raises(ClientError, match="these bytes are not a valid record"):
        run_deployment(transport, experiment(sampling={"ratio": 1.0}), tmp_path / "stopped")
