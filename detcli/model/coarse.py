"""Scores that a graph rounds so coarsely that none is left: what rounds them is taken out.

Tools that quantise every tensor give boxes in pixels and scores from 0 to 1, once they are joined,
one scale. In 8 bits that is 2.5 for pixels up to 640, and every score becomes 0. What is before
the joint is right, so the rounding behind it is left out.
"""

import numpy as np
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
    """A QuantizeLinear and the DequantizeLinear behind it."""

    before: str  # the tensor that is rounded
    after: str  # and what that gives
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
    seen, roundings = set(waiting), list[Rounding]()
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
    """What a DequantizeLinear gives back of the tensor that was quantised for it."""
    if node.op_type != "DequantizeLinear" or len(node.input) < 2:
        return None
    quantised = index.producers.get(node.input[0])
    steps = index.array(node.input[1])
    if quantised is None or quantised.op_type != "QuantizeLinear" or steps is None:
        return None
    if not steps.size:
        return None
    # Where channels have steps of their own, those of boxes are larger than those of scores.
    step = float(np.min(np.abs(steps.astype(np.float64))))
    return Rounding(str(quantised.input[0]), str(node.output[0]), step)


def _with_scores(index: GraphIndex, node: NodeProto, output: str) -> list[str]:
    """The inputs of a node that hold the scores which it gives."""
    if node.op_type in PASSED_THROUGH:
        return [str(node.input[0])] if node.input else []
    inputs = moved_inputs(node, output)
    if inputs is None:
        inputs = list(node.input) if node.op_type in THROUGH else []
    if len(inputs) < 2:
        return inputs
    kinds = {name: scores_of(index, name) for name in inputs}
    shares = [name for name in inputs if kinds[name] in {Activation.SIGMOID, Activation.SOFTMAX}]
    return shares or [name for name in inputs if kinds[name] is Activation.LINEAR]


def take_out(model: ModelProto, roundings: list[Rounding]) -> None:
    """Let a model hand on what it rounded; tensors keep their names."""
    before = {rounding.after: rounding.before for rounding in roundings}
    nodes = list[NodeProto]()
    for node in model.graph.node:
        source = before.get(node.output[0]) if node.output else None
        if source is not None:
            nodes.append(helper.make_node("Identity", [source], [node.output[0]], node.name))
        else:
            nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
