"""Puts a Softmax back where a graph has the arithmetic of one in its place.

ONNX Runtime saves a Softmax for which it has no kernel, as in float16, as the nodes that ONNX
defines it by: the exponential of what is left over the maximum, divided by the sum of these.
"""

from onnx import ModelProto, NodeProto, helper

from detcli.model.graph import GraphIndex, attribute

FIRST_OPSET_OF_ONE_AXIS = 13  # before it, a Softmax also goes over all axes behind its own


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
        logits_and_axis = _softmax_ending_at(index, division)
        if logits_and_axis is None:
            continue
        logits, axis = logits_and_axis
        if axis != -1 and not has_one_axis:
            continue
        softmax = helper.make_node(
            "Softmax", [logits], [division.output[0]], division.name, axis=axis
        )
        division.CopyFrom(softmax)
        replaced = True
    return replaced


def _softmax_ending_at(index: GraphIndex, division: NodeProto) -> tuple[str, int] | None:
    """Find the logits and the axis of a Softmax whose arithmetic ends in a Div.

    Returns:
        The name of the logits, and the axis; None if the Div divides something else.
    """
    exponential, total = (index.producers.get(name) for name in division.input)
    if exponential is None or exponential.op_type != "Exp" or total is None:
        return None
    axis = _reduced_axis(index, total, "ReduceSum")
    if axis is None or total.input[0] != exponential.output[0]:
        return None
    logits = exponential.input[0]
    subtraction = index.producers.get(logits)
    if subtraction is not None and subtraction.op_type == "Sub":
        maximum = index.producers.get(subtraction.input[1])
        is_of_same_axis = maximum is not None and axis == _reduced_axis(index, maximum, "ReduceMax")
        if is_of_same_axis and maximum is not None and maximum.input[0] == subtraction.input[0]:
            logits = subtraction.input[0]
    return logits, axis


def _reduced_axis(index: GraphIndex, node: NodeProto, operator: str) -> int | None:
    """Tell over which axis a node of an operator, such as ReduceSum, reduces a tensor.

    Returns:
        None if the node is of another operator, drops the axis, or has several.
    """
    axes = index.axes(node)
    keeps_axis = attribute(node, "keepdims", 1) == 1
    if node.op_type != operator or not keeps_axis or axes is None or len(axes) != 1:
        return None
    return axes[0]
