"""Which ONNX programs are run: those that hold nothing but the fields and operators listed here."""

from __future__ import annotations

import math
from typing import Any

from ..errors import ConfigError

WRITTEN = """
Add BatchNormalization Cast CastLike Concat Constant Conv Div Equal Expand Gather GatherND Gemm Greater Identity
InstanceNormalization IsNaN LayerNormalization MatMul Max MaxPool Mul Neg Range ReduceL2 ReduceMax ReduceMean
ReduceSum Relu Reshape ScatterND Shape Sigmoid Slice Softmax Sqrt Squeeze Sub Tile Transpose Unsqueeze Where"""
"""by our exporter: found by exporting all methods, models, tasks and kinds of samples"""
ORDINARY = """
Abs Acos Acosh And ArgMax ArgMin Asin Asinh Atan Atanh AveragePool Ceil Celu Clip Compress ConstantOfShape
ConvTranspose Cos Cosh CumSum DepthToSpace Einsum Elu Erf Exp EyeLike Flatten Floor GRU GatherElements Gelu
GlobalAveragePool GlobalMaxPool GreaterOrEqual GridSample GroupNormalization HardSigmoid HardSwish Hardmax IsInf LRN
LSTM LeakyRelu Less LessOrEqual Log LogSoftmax LpNormalization LpPool Mean MeanVarianceNormalization Min Mish Mod
NonZero Not OneHot Or PRelu Pad Pow RNN Reciprocal ReduceL1 ReduceLogSum ReduceLogSumExp ReduceMin ReduceProd
ReduceSumSquare Resize Round ScatterElements Selu Shrink Sign Sin Sinh Size Softplus Softsign SpaceToDepth Split Sum
Tan Tanh ThresholdedRelu TopK Trilu Xor"""
"""what a user's own network may need besides: from tensors to tensors, always the same, and with an end"""
OPERATORS = frozenset((WRITTEN + ORDINARY).split())
"""no Loop, If, Scan or SequenceMap, no strings, sequences, randomness or files"""
OPSETS = range(17, 25)
"""versions of ONNX's own operators; no others may be used"""
FIELDS = {
    "ModelProto": "ir_version producer_name producer_version model_version graph opset_import",
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


def checked_program(data: bytes) -> bytes:
    """The program in these bytes, written again from what was checked; `ValueError` if it holds anything else."""
    try:
        import onnx  # pyright: ignore[reportMissingImports]
        from google.protobuf.message import DecodeError
    except ImportError:
        raise ConfigError("an ONNX program needs pip install 'headwise[export]'.") from None
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
    """This message and all that are in it."""
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
