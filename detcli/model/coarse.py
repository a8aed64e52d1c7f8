"""Scores that a graph rounds so coarsely that none is left: what rounds them is taken out.

Tools that quantise every tensor give boxes in pixels and scores from 0 to 1, once they are joined,
a single scale. In 8 bits that is 2.5 for pixels up to 640, and every score becomes 0. The values
before the joint are right, so the rounding after it is left out.
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
    """A QuantizeLinear, or several that are joined, and the DequantizeLinear after them."""

    dequantised: str  # the output of the DequantizeLinear
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
        rounding = _rounding_completed_by(index, node)
        if rounding is not None and rounding.step > largest_step:
            roundings.append(rounding)
        for name in _inputs_with_scores(index, node, tensor):
            if name not in seen:
                seen.add(name)
                tensors_to_check.append(name)
    return roundings


def _rounding_completed_by(index: GraphIndex, node: NodeProto) -> Rounding | None:
    """Describe how values were rounded, if a node turns their integers back into numbers.

    A QuantizeLinear divides values by a scale and rounds them to integers; a DequantizeLinear
    multiplies the integers by the same scale. Together, they round to multiples of the scale.

    Returns:
        None if the node is not a DequantizeLinear, or if its integers do not all come from a
        QuantizeLinear with the same scale.
    """
    if node.op_type != "DequantizeLinear" or len(node.input) < 2:
        return None
    integers = str(node.input[0])
    scale = index.array(node.input[1])
    if scale is None or not scale.size:
        return None
    if not _was_quantised_with(index, integers, scale):
        return None

    # The scale may hold a number for each channel of a tensor that joins boxes and scores. The
    # smallest is that of the scores, as boxes in pixels reach far higher numbers.
    smallest_step = float(np.min(np.abs(scale.astype(np.float64))))
    return Rounding(dequantised=str(node.output[0]), step=smallest_step)


def _was_quantised_with(index: GraphIndex, integers: str, scale: npt.NDArray[Any]) -> bool:
    """True if a tensor of integers was quantised with this scale, and the integers not changed.

    They may have been moved since, so the search goes back through nodes such as Reshape or Concat
    to each QuantizeLinear that they come from.

    Args:
        index: The graph.
        integers: The tensor.
        scale: The step from one integer to the next, as one number or one for each channel.
    """
    tensors_to_check = [integers]
    seen = {integers}
    while tensors_to_check:
        tensor = tensors_to_check.pop()
        node = index.producers.get(tensor)
        if node is None or len(seen) > MAX_STEPS:
            return False

        if node.op_type == "QuantizeLinear":
            scale_of_node = index.array(node.input[1])
            if scale_of_node is None:
                return False
            if not np.array_equal(scale_of_node.ravel(), scale.ravel()):
                return False
            continue  # the search ends at this node

        inputs = _inputs_moved_unchanged(node, tensor)
        if not inputs or len(node.output) != 1:
            return False
        tensors_to_check.extend(source for source in inputs if source not in seen)
        seen.update(inputs)
    return True


def _inputs_with_scores(index: GraphIndex, node: NodeProto, output: str) -> list[str]:
    """List the inputs of a node from which it takes or computes the scores in one of its outputs.

    Not all inputs have to be scores: a Concat may join boxes to them. So if there are several, only
    those computed by a sigmoid or softmax are listed. If none is, scores may still be logits, and
    the inputs that come straight from a layer are listed.

    Args:
        index: The graph.
        node: The node.
        output: Its output, which holds scores.

    Returns:
        Their names; an empty list if the node turns logits into scores, as a Sigmoid does.
    """
    if node.op_type in PASSED_THROUGH:  # the same scores in a different type, as after a Cast
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
    """Remove roundings from a model in place, so that it computes with the unrounded values.

    An Identity of the unrounded values replaces each DequantizeLinear, so its output keeps its
    name. Nodes that move the integers in between are copied to move the values, as other nodes may
    still need the integers.

    Args:
        model: The model to change.
        roundings: What to remove.
    """
    dequantised_tensors = {rounding.dequantised for rounding in roundings}
    producers: dict[str, NodeProto] = {}
    for node in model.graph.node:
        producers.update(dict.fromkeys(node.output, node))

    new_nodes: list[NodeProto] = []
    for node in model.graph.node:
        if not dequantised_tensors.intersection(node.output):
            new_nodes.append(node)
            continue
        integers_tensor = str(node.input[0])
        dequantised_tensor = node.output[0]
        unrounded_tensor, copies = _nodes_for_unrounded(
            producers, integers_tensor, dequantised_tensor
        )
        # If two inputs of a Concat come from one node, the list has two equal copies of that node.
        copies_by_output = {copy.output[0]: copy for copy in copies}
        new_nodes.extend(copies_by_output.values())
        identity = helper.make_node(
            "Identity", [unrounded_tensor], [dequantised_tensor], name=node.name
        )
        new_nodes.append(identity)

    del model.graph.node[:]
    model.graph.node.extend(new_nodes)


def _nodes_for_unrounded(
    producers: Mapping[str, NodeProto], integers_tensor: str, dequantised_tensor: str
) -> tuple[str, list[NodeProto]]:
    """Create the nodes that move unrounded values as the graph moves the integers made from them.

    For example, if the integers are Reshape(QuantizeLinear(x)), the result is a new tensor
    Reshape(x): the Reshape is copied to read x.

    Args:
        producers: The node that computes each tensor of the graph.
        integers_tensor: The name of the tensor of integers.
        dequantised_tensor: The dequantised tensor that the unrounded one will replace. New nodes
            and tensors are named after it, since the same integers may be dequantised twice.

    Returns:
        The name of the tensor of unrounded values, and the new nodes that compute it, in order. A
        node that is reached in two ways is in the list twice.
    """
    node = producers[integers_tensor]
    if node.op_type == "QuantizeLinear":
        unrounded_tensor = str(node.input[0])
        return unrounded_tensor, []

    # The node only moves integers, so a copy of it moves the unrounded values in the same way.
    moved_tensor = f"{integers_tensor} before it is rounded to {dequantised_tensor}"
    copy = NodeProto()
    copy.CopyFrom(node)
    copy.name = moved_tensor
    copy.output[0] = moved_tensor

    new_nodes: list[NodeProto] = []
    integer_inputs = _inputs_moved_unchanged(node, integers_tensor)
    for position, source in enumerate(node.input):
        if source in integer_inputs:
            unrounded_tensor, nodes_before = _nodes_for_unrounded(
                producers, str(source), dequantised_tensor
            )
            copy.input[position] = unrounded_tensor
            new_nodes.extend(nodes_before)
    new_nodes.append(copy)
    return moved_tensor, new_nodes
