"""Scores that a graph rounds so coarsely that none is left: what rounds them is taken out.

Tools that quantise every tensor give boxes in pixels and scores from 0 to 1, once they are joined,
one scale. In 8 bits that is 2.5 for pixels up to 640, and every score becomes 0. What is before
the joint is right, so the rounding behind it is left out.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, helper

from detcli.core import frozen
from detcli.model.graph import MAX_STEPS, PASSED_THROUGH, GraphIndex
from detcli.model.heads import Activation, Head
from detcli.model.heads.layers import moved_inputs, score_activation

COARSEST_SHARE = 0.05
"""The largest step of scores from 0 to 1 that tells detections apart; 8 bits have 1/255."""
COARSEST_LOGIT = 1.0  # and of logits; with 8 bits their step is 0.3 or less
SCORE_ARITHMETIC = frozenset({"Clip", "Max", "Min", "Mul", "ReduceMax", "Sqrt"})
"""Operators that compute scores from scores, see `score_activation`."""


@frozen
class Rounding:
    """A QuantizeLinear, or several that are joined, and the DequantizeLinear behind."""

    dequantised: str  # the tensor that the DequantizeLinear gives
    step: float  # from one number that 8 bits can hold to the next

    @property
    def warning(self) -> str:
        """What is said about it."""
        return (
            f"its scores end in a QuantizeLinear with steps of {self.step:.3g}, too coarse to tell "
            "objects apart; they are taken before it"
        )


def coarse_roundings(index: GraphIndex, head: Head) -> list[Rounding]:
    """List the quantisations that round a head's scores too coarsely to tell objects apart.

    An 8-bit model stores numbers as multiples of a step. If the step is large, small scores become
    0, or many objects get the same score. The search goes back from the scores through all nodes
    that move them or compute scores from scores.
    """
    largest_step = COARSEST_SHARE
    if head.scores_are in {Activation.LINEAR, None}:
        largest_step = COARSEST_LOGIT
    tensors_to_check = [columns.tensor for columns in head.scores]
    seen = set(tensors_to_check)
    roundings: list[Rounding] = []
    while tensors_to_check and len(seen) < MAX_STEPS:
        tensor = tensors_to_check.pop()
        node = index.producers.get(tensor)
        if node is None:
            continue
        rounding = _rounding(index, node)
        if rounding is not None and rounding.step > largest_step:
            roundings.append(rounding)
        for name in _inputs_with_scores(index, node, tensor):
            if name not in seen:
                seen.add(name)
                tensors_to_check.append(name)
    return roundings


def _rounding(index: GraphIndex, node: NodeProto) -> Rounding | None:
    """Describe the rounding that a DequantizeLinear completes, after a QuantizeLinear began it.

    Returns:
        None for any other node, and for integers that no QuantizeLinear with the same scale made.
    """
    if node.op_type != "DequantizeLinear" or len(node.input) < 2:
        return None
    steps = index.array(node.input[1])
    if steps is None or not steps.size or not _is_quantised_for(index, str(node.input[0]), steps):
        return None
    # Each channel may have another step. The smallest is that of the scores: boxes are joined to
    # them, and reach far higher numbers.
    smallest_step = float(np.min(np.abs(steps.astype(np.float64))))
    return Rounding(str(node.output[0]), smallest_step)


def _is_quantised_for(index: GraphIndex, tensor: str, steps: npt.NDArray[Any]) -> bool:
    """True if all integers of a tensor were quantised with this scale, and only moved since.

    The search goes back through nodes such as Reshape or Concat to each QuantizeLinear.

    Args:
        index: The graph.
        tensor: The integers.
        steps: The scale of the quantisation: the step from one integer to the next, as one number
            or one for each channel.
    """
    tensors_to_check = [tensor]
    seen = {tensor}
    while tensors_to_check:
        name = tensors_to_check.pop()
        node = index.producers.get(name)
        if node is None or len(seen) > MAX_STEPS:
            return False
        if node.op_type == "QuantizeLinear":
            scale = index.array(node.input[1])
            if scale is None or not np.array_equal(scale.ravel(), steps.ravel()):
                return False
            continue  # the search ends at this node
        inputs = _inputs_moved_unchanged(node, name)
        if not inputs or len(node.output) != 1:
            return False
        tensors_to_check.extend(source for source in inputs if source not in seen)
        seen.update(inputs)
    return True


def _inputs_with_scores(index: GraphIndex, node: NodeProto, output: str) -> list[str]:
    """List the inputs of a node that hold the scores in one of its outputs.

    A Concat may join boxes to the scores. Of several inputs, only those computed by a sigmoid or
    softmax are listed; if there are none, only the logits, which come straight from a layer.

    Args:
        index: The graph.
        node: The node.
        output: Its output, which holds scores.

    Returns:
        Their names; an empty list if the node itself makes the scores, as a Sigmoid does.
    """
    if node.op_type in PASSED_THROUGH:  # the same scores in another type, as after a Cast
        return [str(name) for name in node.input[:1]]
    if node.op_type in SCORE_ARITHMETIC:
        inputs = list(node.input)
    else:
        inputs = moved_inputs(node, output) or []
    if len(inputs) < 2:
        return inputs

    probabilities = []
    logits = []
    for name in inputs:
        activation = score_activation(index, name)
        if activation in {Activation.SIGMOID, Activation.SOFTMAX}:
            probabilities.append(name)
        elif activation is Activation.LINEAR:
            logits.append(name)
    return probabilities or logits


def _inputs_moved_unchanged(node: NodeProto, output: str) -> list[str]:
    """List the inputs of a node whose elements appear, unchanged, in one of its outputs."""
    if node.op_type == "Identity":
        return [str(node.input[0])]
    return moved_inputs(node, output) or []


def remove_roundings(model: ModelProto, roundings: list[Rounding]) -> None:
    """Let a model compute with the values from before some roundings.

    An Identity of the unrounded values replaces each DequantizeLinear, so its output keeps its
    name. Nodes that move the integers in between are copied to move the values, as other nodes may
    still need the integers.

    Args:
        model: The model, which is changed in place.
        roundings: What to remove.
    """
    dequantised_tensors = {rounding.dequantised for rounding in roundings}
    producers: dict[str, NodeProto] = {}
    for node in model.graph.node:
        producers.update(dict.fromkeys(node.output, node))
    nodes: list[NodeProto] = []
    for node in model.graph.node:
        if not dequantised_tensors.intersection(node.output):
            nodes.append(node)
            continue
        integers = str(node.input[0])
        values, copies = _without_rounding(producers, integers, node.output[0])
        # A node that is reached by two ways, as through both inputs of a Concat, is copied twice.
        copies_by_output = {copy.output[0]: copy for copy in copies}
        nodes.extend(copies_by_output.values())
        nodes.append(helper.make_node("Identity", [values], [node.output[0]], node.name))
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def _without_rounding(
    producers: Mapping[str, NodeProto], integers: str, dequantised: str
) -> tuple[str, list[NodeProto]]:
    """Find the values that a tensor of integers was quantised from, moved in the same way.

    For example, if the integers are Reshape(QuantizeLinear(x)), the result is a new tensor
    Reshape(x): nodes between the QuantizeLinear and the integers are copied.

    Args:
        producers: The node that computes each tensor of the graph.
        integers: The tensor of integers.
        dequantised: The dequantised tensor that the values will replace; new nodes and tensors are
            named after it, since the same integers may be dequantised twice.

    Returns:
        The name of the tensor of values, and the new nodes that compute it, in order.
    """
    node = producers[integers]
    if node.op_type == "QuantizeLinear":
        values = str(node.input[0])
        return values, []

    # The node only moves integers, so a copy of it moves the values in the same way.
    moved_values = f"{integers} before it is rounded to {dequantised}"
    copy = NodeProto()
    copy.CopyFrom(node)
    copy.name = moved_values
    copy.output[0] = moved_values

    new_nodes: list[NodeProto] = []
    integer_inputs = _inputs_moved_unchanged(node, integers)
    for position, source in enumerate(node.input):
        if source in integer_inputs:
            values, nodes_before = _without_rounding(producers, str(source), dequantised)
            copy.input[position] = values
            new_nodes.extend(nodes_before)
    new_nodes.append(copy)
    return moved_values, new_nodes
