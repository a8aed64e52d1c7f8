"""What a network computes in, and what its weights are kept in."""

import math
from collections import Counter

from onnx import NodeProto, TensorProto

from detcli.inspection.report import Precision, Quantisation
from detcli.model.graph import GraphIndex, dtype_name
from detcli.model.operators import MULTIPLYING

INTEGER_OPERATORS = frozenset({"QLinearConv", "QLinearMatMul", "QGemm"})
DYNAMIC_OPERATORS = frozenset({"ConvInteger", "MatMulInteger", "DynamicQuantizeLinear"})


def describe_precision(index: GraphIndex, weights: list[TensorProto]) -> Precision:
    """Say what a network computes in.

    Args:
        index: A graph with the shapes and types of its tensors.
        weights: Its parameters.
    """
    kept: Counter[str] = Counter()
    for tensor in weights:
        kept[dtype_name(tensor.data_type)] += math.prod(tensor.dims)
    values = [*index.graph.value_info, *index.graph.output, *index.graph.input]
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    multiplying = [node for node in index.graph.node if node.op_type in MULTIPLYING]
    computes = Counter(dtype_name(types.get(node.output[0], 0)) for node in multiplying)
    return Precision(
        computes=dict(computes.most_common()),
        weights=dict(kept.most_common()),
        quantisation=_quantisation(index, multiplying),
    )


def _quantisation(index: GraphIndex, multiplying: list[NodeProto]) -> Quantisation | None:
    operators = {node.op_type for node in index.graph.node}
    integer = sum(node.op_type in INTEGER_OPERATORS | DYNAMIC_OPERATORS for node in multiplying)
    if operators & DYNAMIC_OPERATORS:
        return Quantisation("dynamic", integer, len(multiplying))
    if operators & INTEGER_OPERATORS:
        return Quantisation("QOperator", integer, len(multiplying))
    # Where both factors come out of a DequantizeLinear, a runtime may multiply integers.
    if "QuantizeLinear" in operators:
        both = sum(all(_are_dequantised(index, node)) for node in multiplying)
        return Quantisation("QDQ", both, len(multiplying))
    if "DequantizeLinear" in operators:
        weights = sum(any(_are_dequantised(index, node)) for node in multiplying)
        return Quantisation("weights", weights, len(multiplying))
    return None


def _are_dequantised(index: GraphIndex, node: NodeProto) -> list[bool]:
    """Whether either factor, the first and the weight, is made of integers."""
    makers = [index.producers.get(name) for name in node.input[:2]]
    return [maker is not None and maker.op_type == "DequantizeLinear" for maker in makers]
