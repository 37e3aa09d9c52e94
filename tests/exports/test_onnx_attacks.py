"""ONNX programs from others: what is run was parsed and holds nothing but ordinary operators and its own numbers."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from exported_runs import check_refused, rewrite, small_run
from onnx import TensorProto, helper

import headwise as hw
from headwise.cli import main
from headwise.errors import RunError
from headwise.exports import programs
from headwise.exports.programs import OPERATORS, WRITTEN, check_program

Program = Any


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("exported")
    return small_run(home / "run", "fedrep", rounds=1).model(0).save(home / "onnx")


@pytest.fixture
def folder(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported, tmp_path / "model"))


@pytest.fixture
def program(exported: Path) -> Program:
    return onnx.load(exported / "model.onnx")


def graph(nodes: list[Any], *initializers: Any) -> Program:
    """A program with these nodes, which make `r`, a number that is added to what a model of ten classes answers."""
    zeros = helper.make_tensor("zeros", TensorProto.FLOAT, [20, 10], [0.0] * 200)
    outputs = [helper.make_node("MatMul", ["x", "zeros"], ["z"])]
    outputs += [helper.make_node("Add", ["z", "r"], [name]) for name in ("scores", "probabilities")]
    info = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 20])]
    answers = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("scores", "probabilities")]
    inner = helper.make_graph([*nodes, *outputs], "g", info, answers, [zeros, *initializers])
    return helper.make_model(inner, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def whole(name: str, *values: int) -> Any:
    return helper.make_tensor(name, TensorProto.INT64, [len(values)], values)


def endless() -> Program:
    """Loop: as many times as an int64 can count."""
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Identity", ["v"], ["w"])],
        "body",
        [info("i", TensorProto.INT64, []), info("go", TensorProto.BOOL, []), info("v", TensorProto.FLOAT, [])],
        [info("on", TensorProto.BOOL, []), info("w", TensorProto.FLOAT, [])],
    )
    most = helper.make_tensor("most", TensorProto.INT64, [], [2**62])
    yes = helper.make_tensor("yes", TensorProto.BOOL, [], [True])
    start = helper.make_tensor("start", TensorProto.FLOAT, [], [0.0])
    return graph([helper.make_node("Loop", ["most", "yes", "start"], ["r"], body=body)], most, yes, start)


def outside(tensor: Any) -> None:
    """Its values are those of another file."""
    for name in ("raw_data", "float_data", "int64_data"):
        tensor.ClearField(name)
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="secret")


def in_initializer(program: Program) -> None:
    outside(program.graph.initializer[0])


def in_constant(program: Program) -> None:
    value = helper.make_tensor("v", TensorProto.FLOAT, [1], [0.0])
    outside(value)
    program.graph.node.append(helper.make_node("Constant", [], ["v"], value=value))


def in_nested_attribute(program: Program) -> None:
    value = helper.make_tensor("v", TensorProto.FLOAT, [1], [0.0])
    outside(value)
    inner = helper.make_graph([helper.make_node("Constant", [], ["v"], value=value)], "g", [], [])
    program.graph.node[0].attribute.append(helper.make_attribute("harmless", inner))


def in_list_of_tensors(program: Program) -> None:
    value = helper.make_tensor("v", TensorProto.FLOAT, [1], [0.0])
    program.graph.node[0].attribute.append(helper.make_attribute("harmless", [value]))


def sparse(program: Program) -> None:
    values = helper.make_tensor("v", TensorProto.FLOAT, [1], [0.0])
    at = whole("at", 0)
    program.graph.sparse_initializer.append(helper.make_sparse_tensor(values, at, [2**40]))


def custom_domain(program: Program) -> None:
    program.graph.node[0].domain = "com.microsoft"


def declare_domain(program: Program) -> None:
    program.opset_import.append(helper.make_opsetid("com.microsoft", 1))


def function(program: Program) -> None:
    body = [helper.make_node("Identity", ["a"], ["b"])]
    program.functions.append(helper.make_function("f", "Relu", ["a"], ["b"], body, program.opset_import))


def training(program: Program) -> None:
    program.training_info.add().algorithm.name = "a"


def unknown_operator(program: Program) -> None:
    program.graph.node[0].op_type = "ImageDecoder"


def old_operators(program: Program) -> None:
    program.opset_import[0].version = 6


def many_nodes(program: Program) -> None:
    for _ in range(100_001):
        program.graph.node.add(op_type="Identity")


def huge_tensor(program: Program) -> None:
    program.graph.initializer.append(TensorProto(name="t", data_type=TensorProto.FLOAT, dims=[10**12]))


def strings(program: Program) -> None:
    program.graph.initializer.append(helper.make_tensor("t", TensorProto.STRING, [1], [b"a"]))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (in_initializer, "external_data of TensorProto"),
        (in_constant, "external_data of TensorProto"),
        (in_nested_attribute, "the field g of AttributeProto"),
        (in_list_of_tensors, "the field tensors of AttributeProto"),
        (sparse, "sparse_initializer of GraphProto"),
        (custom_domain, "operators of the domain 'com.microsoft'"),
        (declare_domain, "operators of the domain 'com.microsoft'"),
        (function, "functions of ModelProto"),
        (training, "training_info of ModelProto"),
        (unknown_operator, "the operator 'ImageDecoder', which is not allowed"),
        (old_operators, "operators of one version from 17 to 24"),
        (many_nodes, "more than 100,000"),
        (huge_tensor, "no numbers for the tensor 't'"),
        (strings, "string_data of TensorProto"),
    ],
)  # fmt: skip
def test_programs_with_more_than_a_model_needs(
    folder: Path, program: Program, change: Callable[[Program], None], why: str
) -> None:
    assert check_program(program.SerializeToString())
    change(program)
    rewrite(folder, files={"model.onnx": program.SerializeToString()})
    check_refused(folder, why)


def test_another_file_named_in_longer_bytes(
    folder: Path, program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An overlong length, `0a 88 00` instead of `0a 08`, is the same message and not the same bytes."""
    secret = tmp_path / "secret"
    secret.write_bytes(np.full(20 * 64, 7, np.float32).tobytes())
    monkeypatch.chdir(tmp_path)
    tensor = next(t for t in program.graph.initializer if len(t.raw_data) == 4 * 20 * 64)
    outside(tensor)
    data = _longer(program)
    assert onnx.ModelProto.FromString(data) == program and b"\x0a\x08location" not in data
    rewrite(folder, files={"model.onnx": data})
    check_refused(folder, "external_data of TensorProto")


def _field(number: int, content: bytes) -> bytes:
    size = bytearray()
    length = len(content)
    while length > 127:
        size.append(length & 127 | 128)
        length >>= 7
    return bytes([number << 3 | 2, *size, length]) + content


def _longer(program: Program) -> bytes:
    """The program, with an overlong length before each `location`."""
    tensors = [t.SerializeToString() for t in program.graph.initializer]
    entry = b"\x0a\x08location\x12\x06secret"
    tensors = [t.replace(_field(13, entry), _field(13, b"\x0a\x88\x00location\x12\x06secret")) for t in tensors]
    bare = onnx.ModelProto.FromString(program.SerializeToString())
    bare.graph.ClearField("initializer")
    inner = bare.graph.SerializeToString() + b"".join(_field(5, t) for t in tensors)
    bare.ClearField("graph")
    return bare.SerializeToString() + _field(7, inner)


def test_a_loop_without_end(folder: Path) -> None:
    rewrite(folder, files={"model.onnx": endless().SerializeToString()})
    check_refused(folder, "the field g of AttributeProto|the operator 'Loop'")


def test_unknown_fields_do_not_reach_onnxruntime(program: Program) -> None:
    """It may know more fields than the package that parsed them."""
    data = program.SerializeToString()
    assert check_program(data + b"\xfa\x3e\x06secret") == check_program(data)


def test_huge_tensors_from_a_small_program(folder: Path) -> None:
    """Half of the machine's memory is all that programs get."""
    grown = [helper.make_node("ConstantOfShape", ["s"], ["c"]), helper.make_node("ReduceSum", ["c"], ["r"], keepdims=0)]
    rewrite(folder, files={"model.onnx": graph(grown, whole("s", 2**36)).SerializeToString()})
    check_refused(folder, "can't be used as a model: .*ConstantOfShape")


def test_a_program_that_answers_fewer_samples(folder: Path, exported: Path, tmp_path: Path) -> None:
    nodes = [helper.make_node("Slice", ["x", "from", "to"], ["y"]), helper.make_node("ReduceSum", ["none"], ["r"])]
    made = graph(nodes, whole("from", 0), whole("to", 1), helper.make_tensor("none", TensorProto.FLOAT, [1], [0.0]))
    made.graph.node[2].input[0] = "y"
    rewrite(folder, files={"model.onnx": made.SerializeToString()})
    loaded = hw.load_model(folder)
    x = np.zeros((5, 20), np.float32)
    assert loaded.predict(x[:1]).shape == (1,)
    with pytest.raises(RunError, match="it answers 5 samples with scores that are"):
        loaded.predict(x)


def test_what_is_run_is_what_was_checked(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[bytes] = []
    import onnxruntime

    real = onnxruntime.InferenceSession
    monkeypatch.setattr(
        onnxruntime, "InferenceSession", lambda data, *a, **k: given.append(data) or real(data, *a, **k)
    )
    programs.load_program(Path("model.onnx"), program.SerializeToString() + b"\xfa\x3e\x06secret", (10,))
    assert given == [check_program(program.SerializeToString())]


def test_operators_are_ordinary() -> None:
    """None runs another graph or takes strings or sequences, and each exists."""
    for name in OPERATORS:
        schema = onnx.defs.get_schema(name, 20)
        kinds = {str(attribute.type) for attribute in schema.attributes.values()}
        assert not any(kind.endswith(("GRAPH", "GRAPHS", "TYPE_PROTO")) for kind in kinds), name
        assert not any("seq(" in kind for each in schema.outputs for kind in each.types) or name == "Identity", name
    assert {"Loop", "If", "Scan", "SequenceMap"}.isdisjoint(OPERATORS)
    assert set(WRITTEN.split()) <= OPERATORS


def make_answer(*rows: Any) -> Program:
    """A program whose scores are the first rows of what a model would answer, or reshaped by `rows`."""
    zeros = helper.make_tensor("zeros", TensorProto.FLOAT, [20, 10], [0.0] * 200)
    nodes = [helper.make_node("MatMul", ["x", "zeros"], ["z"]), *rows]
    info = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 20])]
    answers = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("scores", "probabilities")]
    first = [whole("zero", 0), whole("one", 1), whole("flat", -1, 10, 1)]
    inner = helper.make_graph(nodes, "g", info, answers, [zeros, *first])
    return helper.make_model(inner, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


@pytest.mark.parametrize("output", ["scores", "probabilities"])
def test_a_program_that_answers_fewer_rows_than_samples(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], output: str
) -> None:
    other = {"scores": "probabilities", "probabilities": "scores"}[output]
    short = make_answer(
        helper.make_node("Slice", ["z", "zero", "one"], [output]), helper.make_node("Identity", ["z"], [other])
    )
    rewrite(folder, files={"model.onnx": short.SerializeToString()})
    np.savez(tmp_path / "new.npz", x=np.zeros((3, 20), np.float32))
    with pytest.raises(SystemExit) as stop:
        main(["predict", str(folder), str(tmp_path / "new.npz"), "-o", str(tmp_path / "out.csv")])
    message = capsys.readouterr().err
    assert stop.value.code == 2
    assert f"answers 3 samples with {output} that are float32 of shape [1, 10]" in message
    assert not (tmp_path / "out.csv").exists()


def test_a_program_with_another_shape_for_each_sample(folder: Path) -> None:
    deep = make_answer(
        helper.make_node("Reshape", ["z", "flat"], ["scores"]), helper.make_node("Identity", ["z"], ["probabilities"])
    )
    rewrite(folder, files={"model.onnx": deep.SerializeToString()})
    check_refused(folder, r"shape \[1, 10, 1\], but must give float32 of shape \[1, 10\]")


def test_onnxruntime_prints_nothing_of_a_damaged_program(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It would otherwise print its own errors, with bytes of the file, and try again."""
    broken = make_answer(*(helper.make_node("Identity", ["z"], [name]) for name in ("scores", "probabilities")))
    data = broken.SerializeToString().replace(b"zeros", b"zer\xae\xae", 1)
    rewrite(folder, files={"model.onnx": data})
    check_refused(folder, "can't be used as a model")
    assert capfd.readouterr() == ("", "")
