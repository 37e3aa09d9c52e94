"""ONNX programs from anywhere: parsed, checked against a list of fields and operators, and run in bounded memory."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError, RunError, explain_missing, shorten
from .model import Prediction

Answer = Callable[[NDArray[Any]], Prediction]
"""from encoded samples"""
INPUT = "x"
OUTPUTS = ("scores", "probabilities")

WRITTEN = """
Add BatchNormalization Cast CastLike Concat Constant Conv Div Equal Expand Gather GatherND Gemm Greater Identity
InstanceNormalization IsNaN LayerNormalization MatMul Max MaxPool Mul Neg Range ReduceL2 ReduceMax ReduceMean
ReduceSum Relu Reshape ScatterND Shape Sigmoid Slice Softmax Sqrt Squeeze Sub Tile Transpose Unsqueeze Where"""
"""written by our exporter, for all methods, models, tasks and kinds of samples"""
ORDINARY = """
Abs Acos Acosh And ArgMax ArgMin Asin Asinh Atan Atanh AveragePool Ceil Celu Clip Compress ConstantOfShape
ConvTranspose Cos Cosh CumSum DepthToSpace Einsum Elu Erf Exp EyeLike Flatten Floor GRU GatherElements Gelu
GlobalAveragePool GlobalMaxPool GreaterOrEqual GridSample GroupNormalization HardSigmoid HardSwish Hardmax IsInf LRN
LSTM LeakyRelu Less LessOrEqual Log LogSoftmax LpNormalization LpPool Mean MeanVarianceNormalization Min Mish Mod
NonZero Not OneHot Or PRelu Pad Pow RNN Reciprocal ReduceL1 ReduceLogSum ReduceLogSumExp ReduceMin ReduceProd
ReduceSumSquare Resize Round ScatterElements Selu Shrink Sign Sin Sinh Size Softplus Softsign SpaceToDepth Split Sum
Tan Tanh ThresholdedRelu TopK Trilu Xor"""
"""more operators that a user's own network may need: deterministic functions of tensors that always terminate"""
OPERATORS = frozenset((WRITTEN + ORDINARY).split())
"""no Loop, If, Scan or SequenceMap, no strings, sequences, randomness or files"""
OPSETS = range(17, 25)
"""versions of ONNX's own operators; no others may be used"""
FIELDS = {
    "ModelProto": "ir_version producer_name producer_version model_version graph opset_import metadata_props",
    "OperatorSetIdProto": "domain version",
    "GraphProto": "name node initializer input output value_info",
    "NodeProto": "name op_type domain input output attribute",
    "AttributeProto": "name type f i s t floats ints strings",
    "TensorProto": "name dims data_type raw_data float_data int32_data int64_data double_data uint64_data",
    "ValueInfoProto": "name type metadata_props",
    "StringStringEntryProto": "key value",
    "TypeProto": "tensor_type",
    "Tensor": "elem_type shape",
    "TensorShapeProto": "dim",
    "Dimension": "dim_value dim_param",
}
"""what each message may hold: no functions, subgraphs, sparse tensors, training, nor tensors in other files"""
NUMBERS = frozenset({1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 16})
"""types of a tensor's values: booleans, integers and floats, but no strings"""
DATA = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data")
NODES = 100_000


def check_program(data: bytes) -> bytes:
    """The program in these bytes, written again from what was checked; `ValueError` if it holds anything else."""
    with explain_missing("an ONNX program needs pip install 'headwise[export]'."):
        import onnx  # pyright: ignore[reportMissingImports]
        from google.protobuf.message import DecodeError
    try:
        program = onnx.ModelProto.FromString(data)
    except DecodeError as error:
        raise ValueError(f"it is not ONNX ({error})") from error
    program.DiscardUnknownFields()  # another version of ONNX might know them
    if len(program.graph.node) > NODES:
        raise ValueError(f"it has {len(program.graph.node):,} nodes, more than {NODES:,}")
    _check_message(program)
    if [each.version in OPSETS for each in program.opset_import] != [True]:
        raise ValueError(f"it must use ONNX's operators of one version from {OPSETS[0]} to {OPSETS[-1]}")
    return program.SerializeToString(deterministic=True)


def _check_message(message: Any) -> None:
    kind = message.DESCRIPTOR.name
    for field, value in message.ListFields():
        if field.name not in FIELDS.get(kind, "").split():
            raise ValueError(f"it has the field {field.name} of {kind}, which no model needs")
        if field.message_type is not None:
            for each in [value] if hasattr(value, "ListFields") else value:
                _check_message(each)
    if kind in ("NodeProto", "OperatorSetIdProto") and message.domain not in ("", "ai.onnx"):
        raise ValueError(f"it uses operators of the domain {message.domain[:60]!r}")
    if kind == "NodeProto" and message.op_type not in OPERATORS:
        raise ValueError(f"it uses the operator {message.op_type[:60]!r}, which is not allowed")
    if kind == "TensorProto":
        _check_tensor(message)


def _check_tensor(tensor: Any) -> None:
    held = max(len(tensor.raw_data), *(len(getattr(tensor, name)) for name in DATA))
    if tensor.data_type not in NUMBERS or min(tensor.dims, default=0) < 0 or math.prod(tensor.dims) > held:
        raise ValueError(f"it has no numbers for the tensor {tensor.name[:60]!r}")


def load_program(path: Path, data: bytes, shape: tuple[int, ...]) -> Answer:
    """The program in these bytes, run by onnxruntime; both outputs must have this shape for each sample."""
    with explain_missing(f"{path} is ONNX, which needs pip install 'headwise[export]'."):
        import onnxruntime  # pyright: ignore[reportMissingImports]
    try:
        program = check_program(data)
        _limit_memory()
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # errors are raised, so they need not be logged
        options.add_session_config_entry("session.use_env_allocators", "1")
        session = onnxruntime.InferenceSession(
            program,
            options,
            providers=["CPUExecutionProvider"],
            enable_fallback=0,  # otherwise it prints the file's contents
        )
    except ConfigError:
        raise
    except Exception as error:  # its classes have no common base
        raise describe_unusable(path, error) from error

    def answer(x: NDArray[Any]) -> Prediction:
        try:
            outputs: list[Any] = list(session.run([*OUTPUTS], {INPUT: x}))
        except Exception as error:  # as above
            raise describe_unusable(path, error) from error
        for name, output in zip(OUTPUTS, outputs, strict=True):
            expected = (len(x), *shape)
            if not isinstance(output, np.ndarray) or output.dtype != np.float32 or output.shape != expected:
                answered = (
                    f"{output.dtype} of shape {list(output.shape)}" if isinstance(output, np.ndarray) else "no array"
                )
                raise RunError(
                    f"{path} can't be used as a model: it answers {len(x)} samples with {name} that are {answered}, "
                    f"but must give float32 of shape {list(expected)}."
                )
        return Prediction(*outputs)

    return answer


@cache
def _limit_memory() -> None:
    """Let programs use at most half of the machine's memory: a small one may ask for a huge tensor."""
    import onnxruntime  # pyright: ignore[reportMissingImports]

    half = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    kind = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR
    memory = onnxruntime.OrtMemType.DEFAULT
    limits = onnxruntime.OrtArenaCfg({"max_mem": half, "arena_extend_strategy": 1})  # 1: no more than needed
    onnxruntime.create_and_register_allocator(onnxruntime.OrtMemoryInfo("Cpu", kind, 0, memory), limits)


def describe_unusable(path: Path, error: Exception) -> RunError:
    """One sentence about a model file, from whatever its library raised."""
    reason = shorten(error).rstrip(".")
    return RunError(f"{path} can't be used as a model: {reason or type(error).__name__}.")
