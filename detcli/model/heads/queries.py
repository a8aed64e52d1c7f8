"""What the queries of a DETR begin with, in which its successors differ.

Heads of Conditional DETR, Deformable DETR and RT-DETR compute the same from their queries. What
tells them apart is where these come from: they are learnt, or the best places of what the picture
has become by then.
"""

from enum import StrEnum

from onnx import NodeProto

from detcli.model.graph import CONVOLUTIONS, GraphIndex, attribute, known_size, needed_nodes

ATTENTION = frozenset({"Attention", "GridSample", "MultiHeadAttention", "Softmax"})
PATCH = 8  # pixels; a vision transformer's are 14 or 16, a convolution's stride is 2 or 4


class Queries(StrEnum):
    """What queries begin with."""

    LEARNT = "learnt"  # the same for every picture
    MAPS = "maps"  # the best places of maps, as convolutions leave them
    ENCODED = "encoded"  # the best places behind a transformer's encoder


def queries_of(index: GraphIndex, boxes: str) -> Queries:
    """What the queries begin with that a tensor of boxes is made of."""
    nodes, _ = needed_nodes(index.graph, boxes)
    choices = [node for node in nodes if node.op_type == "TopK"]
    if not choices:
        return Queries.LEARNT
    return Queries.MAPS if all(_of_maps(index, one) for one in choices) else Queries.ENCODED


def _of_maps(index: GraphIndex, choice: NodeProto) -> bool:
    """Whether a TopK chooses from feature maps: from convolutions, without attention between."""
    waiting, seen, reached = [str(choice.input[0])], set[str](), False
    while waiting:
        node = index.producers.get(waiting.pop())
        if node is None or node.op_type == "Shape":
            continue
        if node.op_type in ATTENTION:
            return False
        if node.op_type in CONVOLUTIONS:
            reached = True
            continue
        new = [name for name in node.input if name and name not in seen]
        seen.update(new)
        waiting.extend(new)
    return reached


def has_patches(index: GraphIndex) -> bool:
    """Whether a graph begins as a vision transformer does, with a vector for each patch."""
    return any(_cuts_patches(index, node) for node in index.graph.node)


def _cuts_patches(index: GraphIndex, node: NodeProto) -> bool:
    number = CONVOLUTIONS.get(node.op_type)
    if number is None:
        return False
    kernel = index.shapes.get(node.input[number], [])
    strides = next((list(a.ints) for a in node.attribute if a.name == "strides"), [])
    of_pictures = len(kernel) == 4 and kernel[1] == 3 and attribute(node, "group", 1) == 1
    side = known_size(kernel[-1]) or 0 if of_pictures else 0
    return side >= PATCH and kernel[-2:] == strides
