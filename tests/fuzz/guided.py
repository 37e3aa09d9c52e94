"""Bytes that atheris makes up, led by which lines of ours they reach: `make fuzz`, or

    python tests/fuzz/guided.py records -atheris_runs=100000

The other targets are the keys of `TARGETS`. Whatever is refused must be refused by the declared error; all else is a
crash, and libFuzzer keeps the bytes that made it.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

try:
    import atheris
except ImportError:  # there are wheels for Linux only
    print("atheris is not there: pip install 'headwise[fuzz]' on Linux. Bytes were made up by hypothesis only.")
    sys.exit(0)

with atheris.instrument_imports(include=["headwise", "tomllib"]):
    from data_targets import (
        DESCRIPTION,
        LINES,
        SUMS,
        TABLE,
        array_seeds,
        arrays,
        client_seeds,
        clients,
        csv_table_seeds,
        csv_tables,
        descriptions,
        image_seeds,
        images,
        public_set_seeds,
        public_sets,
        sums,
        tables,
        traces,
    )
    from site_targets import (
        app_seeds,
        apps,
        experiment_seeds,
        experiments,
        introduction_seeds,
        introductions,
        key_seeds,
        keys,
        message_seeds,
        messages,
        offer_seeds,
        offers,
        server_answer_seeds,
        server_answers,
        server_message_seeds,
        server_messages,
        share_seeds,
        shares,
        worker_seeds,
        workers,
    )
    from test_fuzz_archives import BATCH, tarred, try_to_unpack, zipped
    from test_fuzz_models import make_models, with_file
    from test_fuzz_settings import GOOD

    import headwise.engine.client.state as state
    import headwise.settings.experiment as config
    from headwise.data.sources.cifar10 import read_batch
    from headwise.disk.files import seal, write_json
    from headwise.errors import ConfigError, DataError, HeadwiseError
    from headwise.exports.card import FILES
    from headwise.exports.loading import load_model
    from headwise.exports.programs import check_program
    from headwise.params import Params
    from headwise.records import Record, RecordError, decode, encode, same


class Everything(Record):
    """A field of every kind."""

    w: Params
    t: torch.Tensor
    many: dict[int, Params]
    n: int
    x: float
    said: str
    maybe: Params | None


SMALL = Params(a=torch.arange(3.0), b=torch.ones(2, 2, dtype=torch.int32))
RECORD = Everything(SMALL, torch.zeros(2), {0: SMALL, 7: Params()}, 3, 0.5, "yes", None)
STATE = state.ClientState(RECORD, SMALL, 2)


def records(data: bytes) -> None:
    try:
        found = decode(Everything, data)
    except RecordError:
        return
    assert same(decode(Everything, encode(found)), found)


def states(data: bytes) -> None:
    try:
        found = state.decode_state(Everything, data)
    except RecordError:
        return
    assert same(state.decode_state(Everything, state.encode_state(found)).me, found.me)


def toml(data: bytes) -> None:
    path = ROOM / "experiment.toml"
    path.write_bytes(data)
    try:
        found = config.experiment_from(config.read_toml(path))
    except ConfigError:
        return
    assert config.experiment_from(found.to_plain()) == found


def archives(data: bytes) -> None:
    (ROOM / "archives").mkdir(exist_ok=True)
    try_to_unpack(ROOM / "archives", "set.zip" if data[:2] == b"PK" else "set.tar.gz", data)
    (ROOM / "archives" / "inner" / "set.zip").unlink(missing_ok=True)
    (ROOM / "archives" / "inner" / "set.tar.gz").unlink(missing_ok=True)


def batches(data: bytes) -> None:
    path = ROOM / "batch"
    path.write_bytes(data)
    try:
        x, y = read_batch(path, "labels", 10)
    except DataError:
        return
    assert len(x) == len(y)


def programs(data: bytes) -> None:
    try:
        program = check_program(data)
    except ValueError:
        return
    assert check_program(program) == program
    used(ROOM / "models" / "onnx", data)


def weights(data: bytes) -> None:
    used(ROOM / "models" / "torch", data)


def used(folder: Path, data: bytes) -> None:
    """Answers or a sentence, if this is the model's file."""
    with_file(folder, FILES[folder.name], data)
    with suppress(HeadwiseError):
        load_model(folder).predict({"age": [3, ""], "sex": ["f", "m"]})


def cards(data: bytes) -> None:
    """Of either format, sealed again."""
    try:
        card = json.loads(data)
    except (ValueError, RecursionError):
        return
    folder = ROOM / "models" / ("torch" if b"weights.safetensors" in data else "onnx")
    if isinstance(card, dict):
        write_json(folder / "card.json", seal(card))
    else:
        (folder / "card.json").write_bytes(data)
    with suppress(HeadwiseError):
        load_model(folder).predict({"age": [3, ""], "sex": ["f", "m"]})


def exported(*names: str) -> list[bytes]:
    """Files of models that are made for it."""
    home = ROOM / "models"
    if not home.is_dir():
        home.mkdir()
        make_models(home)
    return [(home / name).read_bytes() for name in names]


TARGETS: dict[str, tuple[Callable[[bytes], None], Callable[[], list[bytes]]]] = {
    "records": (records, lambda: [encode(RECORD)]),
    "states": (states, lambda: [state.encode_state(STATE)]),
    "toml": (toml, lambda: [GOOD]),
    "archives": (archives, lambda: [zipped(), tarred("w:gz")]),
    "batches": (batches, lambda: [BATCH]),
    "programs": (programs, lambda: exported("onnx/model.onnx")),
    "weights": (weights, lambda: exported("torch/weights.safetensors")),
    "cards": (cards, lambda: exported("onnx/card.json", "torch/card.json")),
    "offers": (lambda data: offers(data, ROOM), lambda: offer_seeds(ROOM)),
    "messages": (messages, message_seeds),
    "experiments": (experiments, experiment_seeds),
    "introductions": (introductions, introduction_seeds),
    "apps": (apps, app_seeds),
    "workers": (lambda data: workers(data, ROOM), lambda: worker_seeds(ROOM)),
    "server_answers": (server_answers, server_answer_seeds),
    "server_messages": (server_messages, server_message_seeds),
    "keys": (lambda data: keys(data, ROOM), lambda: key_seeds(ROOM)),
    "shares": (shares, share_seeds),
    "descriptions": (lambda data: descriptions(data, ROOM), lambda: [DESCRIPTION]),
    "tables": (lambda data: tables(data, ROOM), lambda: [TABLE, LINES]),
    "arrays": (lambda data: arrays(data, ROOM), array_seeds),
    "images": (lambda data: images(data, ROOM), image_seeds),
    "clients": (lambda data: clients(data, ROOM), client_seeds),
    "sums": (lambda data: sums(data, ROOM), lambda: [SUMS]),
    "traces": (lambda data: traces(data, ROOM), lambda: [b"va, rome\n0,1\n", b'[["va", 1], []]']),
    "csv_tables": (lambda data: csv_tables(data, ROOM), csv_table_seeds),
    "public_sets": (lambda data: public_sets(data, ROOM), public_set_seeds),
}
"""what is called, and what makes good bytes"""


if __name__ == "__main__":
    target, good = TARGETS[sys.argv[1]]
    with tempfile.TemporaryDirectory() as room:
        ROOM = Path(room)
        corpus = ROOM / "corpus"
        corpus.mkdir()
        for k, data in enumerate(good()):
            target(data)
            (corpus / str(k)).write_bytes(data)
        atheris.Setup([sys.argv[0], *sys.argv[2:], str(corpus)], target)
        atheris.Fuzz()
