"""Puts a Softmax back where a graph has the arithmetic of one in its place.

ONNX Runtime saves a Softmax for which it has no kernel, as in float16, as the nodes that ONNX
defines it by: the exponential of what is left over the maximum, divided by the sum of these.
"""

from typing import NamedTuple

from onnx import ModelProto, NodeProto, helper

from detcli.model.graph import GraphIndex, attribute

FIRST_OPSET_OF_ONE_AXIS = 13  # before it, a Softmax also goes over all axes after its own


def restore_softmax(model: ModelProto, opset: int) -> bool:
    """Replace the arithmetic of each Softmax of a graph by the Softmax, in place.

    The Softmax takes the place of the Div, which is the last node of that arithmetic. The nodes
    before it stay, as others may read them.

    Args:
        model: The model to change.
        opset: The version of ONNX's operators that it uses.

    Returns:
        True if any node was replaced.
    """
    index = GraphIndex(model.graph)
    has_one_axis = opset >= FIRST_OPSET_OF_ONE_AXIS
    replaced = False
    for division in index.nodes("Div"):
        operands = _softmax_ending_at(index, division)
        if operands is None:
            continue
        if operands.axis != -1 and not has_one_axis:
            continue
        softmax = helper.make_node(
            "Softmax",
            [operands.logits],
            [division.output[0]],
            division.name,
            axis=operands.axis,
        )
        division.CopyFrom(softmax)
        replaced = True
    return replaced


class SoftmaxOperands(NamedTuple):
    """What a Softmax is computed from."""

    logits: str  # the name of the tensor
    axis: int


def _softmax_ending_at(index: GraphIndex, division: NodeProto) -> SoftmaxOperands | None:
    """Recognise the arithmetic of a Softmax by the Div in which it ends.

    It is exp(x) / sum(exp(x)), where x may be the logits, or the logits less their maximum,
    which is 0 at most and so cannot overflow.

    Returns:
        None if the Div divides something else.
    """
    exponential, total = (index.producers.get(name) for name in division.input)
    if exponential is None or exponential.op_type != "Exp" or total is None:
        return None
    axis = _reduced_axis(index, total, "ReduceSum")
    if axis is None or total.input[0] != exponential.output[0]:
        return None
    exponent = exponential.input[0]
    logits = _before_maximum_subtracted(index, exponent, axis)
    return SoftmaxOperands(logits, axis)


def _before_maximum_subtracted(index: GraphIndex, tensor: str, axis: int) -> str:
    """Return the tensor from which its maximum was subtracted; `tensor` if that was not done."""
    subtraction = index.producers.get(tensor)
    if subtraction is None or subtraction.op_type != "Sub":
        return tensor
    maximum = index.producers.get(subtraction.input[1])
    if maximum is None or _reduced_axis(index, maximum, "ReduceMax") != axis:
        return tensor
    if maximum.input[0] != subtraction.input[0]:
        return tensor
    return str(subtraction.input[0])


def _reduced_axis(index: GraphIndex, node: NodeProto, operator: str) -> int | None:
    """Return the axis over which a node of an operator, such as ReduceSum, reduces a tensor.

    Returns:
        None if the node has a different operator, drops the axis, or reduces several axes.
    """
    axes = index.axes(node)
    keeps_axis = attribute(node, "keepdims", 1) == 1
    if node.op_type != operator or not keeps_axis or axes is None or len(axes) != 1:
        return None
    return axes[0]
