"""The operators that hold a network's weights, and its multiplications."""

from collections.abc import Iterator

import onnx
from onnx import GraphProto, NodeProto

from detcli.model.graph import GraphIndex

CONVOLUTIONS = {"Conv": 1, "ConvInteger": 1, "FusedConv": 1, "QLinearConv": 3}
"""Convolutions, and which of their inputs is the weight `[M, C/groups, ...]`."""

PRODUCTS = {"MatMul": 1, "MatMulInteger": 1, "QLinearMatMul": 3, "Gemm": 1, "QGemm": 3}
"""Matrix products, and which of their inputs is the second factor; the first factor comes first."""

INTEGER = frozenset(
    "ConvInteger DequantizeLinear DynamicQuantizeLinear MatMulInteger QLinearConv QLinearMatMul "
    "QuantizeLinear".split()
)
"""What shows that a network computes in integers."""

MULTIPLYING = frozenset({*CONVOLUTIONS, *PRODUCTS, "ConvTranspose"})

PARAMETERS = {
    **{operator: (0, number) for operator, number in PRODUCTS.items()},
    **{operator: (number, number + 1) for operator, number in CONVOLUTIONS.items()},
    "ConvInteger": (1,),
    "QLinearConv": (3, 8),
    "ConvTranspose": (1, 2),
    "Gemm": (0, 1, 2),
    "QGemm": (0, 3, 6),
    "BatchNormalization": (1, 2),  # its mean and variance are statistics, not learnt
    "GroupNormalization": (1, 2),
    "InstanceNormalization": (1, 2),
    "LayerNormalization": (1, 2),
    "PRelu": (1,),
    "GRU": (1, 2, 3),
    "LSTM": (1, 2, 3),
    "RNN": (1, 2, 3),
}
"""Which inputs of an operator are learnt, where they are constants."""

# Operators between a constant and its use that change how it is written down, not what was learnt.
REWRITTEN = frozenset(
    "Cast DequantizeLinear Identity QuantizeLinear Reshape Squeeze Transpose Unsqueeze".split()
)


def parameters(index: GraphIndex) -> list[onnx.TensorProto]:
    """The learnt tensors of a graph, each once: weights and biases, not scales or anchors."""
    found: dict[str, onnx.TensorProto] = {}
    for node in index.graph.node:
        for name in _learnt_inputs(index, node):
            while (maker := index.producers.get(name)) is not None and maker.op_type in REWRITTEN:
                name = maker.input[0]  # noqa: PLW2901 - followed back
            tensor = index.constant_tensor(name)
            if tensor is not None:
                found[name] = tensor
    return list(found.values())


def _learnt_inputs(index: GraphIndex, node: NodeProto) -> Iterator[str]:
    numbers = PARAMETERS.get(node.op_type, ())
    if node.op_type == "Add":  # the bias of a matrix product
        makers = [index.producer(name) for name in node.input]
        if any(maker is not None and maker.op_type in PRODUCTS for maker in makers):
            numbers = (0, 1)
    yield from (node.input[number] for number in numbers if number < len(node.input))


def is_quantised(graph: GraphProto) -> bool:
    """Whether a network computes in integers."""
    return any(node.op_type in INTEGER for node in graph.node)
