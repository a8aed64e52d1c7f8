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
from detcli.model.heads.decode import moved_inputs, scores_of

COARSEST_SHARE = 0.05
"""The largest step of scores from 0 to 1 that tells detections apart; 8 bits have 1/255."""
COARSEST_LOGIT = 1.0  # and of logits, of which 8 bits have 0.3 or less
THROUGH = frozenset({"Clip", "Max", "Min", "Mul", "ReduceMax", "Sqrt"})
"""Operators after a sigmoid or softmax that make scores of scores, see `scores_of`."""


@frozen
class Rounding:
    """A QuantizeLinear, or several that are joined, and the DequantizeLinear behind."""

    after: str  # the tensor that it gives
    step: float

    @property
    def warning(self) -> str:
        """What is said about it."""
        return (
            f"its scores end in a QuantizeLinear with steps of {self.step:.3g}, too coarse to tell "
            "objects apart; they are taken before it"
        )


def coarse_roundings(index: GraphIndex, head: Head) -> list[Rounding]:
    """What rounds the scores of a head too coarsely to tell objects apart."""
    limit = COARSEST_SHARE
    if head.scores_are in {Activation.LINEAR, None}:
        limit = COARSEST_LOGIT
    waiting = [columns.tensor for columns in head.scores]
    seen = set(waiting)
    roundings: list[Rounding] = []
    while waiting and len(seen) < MAX_STEPS:
        tensor = waiting.pop()
        node = index.producers.get(tensor)
        if node is None:
            continue
        rounding = _rounding(index, node)
        if rounding is not None and rounding.step > limit:
            roundings.append(rounding)
        for name in _with_scores(index, node, tensor):
            if name not in seen:
                seen.add(name)
                waiting.append(name)
    return roundings


def _rounding(index: GraphIndex, node: NodeProto) -> Rounding | None:
    """What a DequantizeLinear gives back of the tensors that were quantised for it."""
    if node.op_type != "DequantizeLinear" or len(node.input) < 2:
        return None
    steps = index.array(node.input[1])
    if steps is None or not steps.size or not _is_quantised_for(index, str(node.input[0]), steps):
        return None
    # Where channels have steps of their own, those of boxes are larger than those of scores.
    step = float(np.min(np.abs(steps.astype(np.float64))))
    return Rounding(str(node.output[0]), step)


def _is_quantised_for(index: GraphIndex, tensor: str, steps: npt.NDArray[Any]) -> bool:
    """Whether a tensor holds what was quantised in these steps, and only moved since."""
    waiting = [tensor]
    seen = {tensor}
    while waiting:
        name = waiting.pop()
        node = index.producers.get(name)
        if node is None or len(seen) > MAX_STEPS:
            return False
        if node.op_type == "QuantizeLinear":
            quantised_in = index.array(node.input[1])
            if quantised_in is None or not np.array_equal(quantised_in.ravel(), steps.ravel()):
                return False
            continue
        inputs = _moved(node, name)
        if not inputs or len(node.output) != 1:
            return False
        waiting.extend(source for source in inputs if source not in seen)
        seen.update(inputs)
    return True


def _with_scores(index: GraphIndex, node: NodeProto, output: str) -> list[str]:
    """The inputs of a node that hold the scores which it gives."""
    if node.op_type in PASSED_THROUGH:
        return [str(name) for name in node.input[:1]]
    inputs = moved_inputs(node, output)
    if inputs is None:
        inputs = list(node.input) if node.op_type in THROUGH else []
    if len(inputs) < 2:
        return inputs
    shares = []
    logits = []
    for name in inputs:
        activation = scores_of(index, name)
        if activation in {Activation.SIGMOID, Activation.SOFTMAX}:
            shares.append(name)
        elif activation is Activation.LINEAR:
            logits.append(name)
    return shares or logits


def _moved(node: NodeProto, output: str) -> list[str]:
    """The inputs whose elements a node hands on to an output."""
    if node.op_type == "Identity":
        return [str(node.input[0])]
    return moved_inputs(node, output) or []


def take_out(model: ModelProto, roundings: list[Rounding]) -> None:
    """Let a model hand on what it rounded; tensors keep their names."""
    outputs = {rounding.after for rounding in roundings}
    producers: dict[str, NodeProto] = {}
    for node in model.graph.node:
        producers.update(dict.fromkeys(node.output, node))
    nodes: list[NodeProto] = []
    for node in model.graph.node:
        if not outputs.intersection(node.output):
            nodes.append(node)
            continue
        source, copies = _without_rounding(producers, str(node.input[0]), node.output[0])
        copies_by_output = {copy.output[0]: copy for copy in copies}
        nodes.extend(copies_by_output.values())
        nodes.append(helper.make_node("Identity", [source], [node.output[0]], node.name))
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def _without_rounding(
    producers: Mapping[str, NodeProto], tensor: str, after: str
) -> tuple[str, list[NodeProto]]:
    """The tensor that has what a quantised one had before, and the nodes that make it.

    What moves integers is copied for the numbers before: others may need the integers. `after` is
    the tensor that the numbers are for.
    """
    node = producers[tensor]
    if node.op_type == "QuantizeLinear":
        return str(node.input[0]), []
    name = f"{tensor} before it is rounded to {after}"
    copy = NodeProto()
    copy.CopyFrom(node)
    copy.name = name
    copy.output[0] = name
    copies: list[NodeProto] = []
    moved = _moved(node, tensor)
    for number, source in enumerate(node.input):
        if source in moved:
            copy.input[number], makers = _without_rounding(producers, str(source), after)
            copies.extend(makers)
    copies.append(copy)
    return name, copies
