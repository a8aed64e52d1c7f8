"""Find the ends of a network: first and last convolutions, and the decode of the boxes."""

from collections.abc import Iterable

from onnx import GraphProto

from detcli.model.graph import PASSED_THROUGH, GraphIndex
from detcli.model.heads.single_tensor import box_rows, score_rows

# Operators at which the network proper ends, seen from the head.
NETWORK = frozenset(
    {"AveragePool", "Conv", "ConvTranspose", "Gemm", "GlobalAveragePool", "MatMul", "MaxPool"}
)
SHAPE_ONLY = PASSED_THROUGH | {"Reshape", "Squeeze", "Transpose", "Unsqueeze"}


def decode_nodes(graph: GraphProto, boxes: Iterable[str]) -> set[str]:
    """First outputs of the nodes that decode boxes.

    The boxes are tensors of their own, or joined to scores. The nodes reach from them back to the
    last convolutions and products. The convolution after a Softmax that takes the mean of a
    distribution of distances (distribution focal loss) is one of them.
    """
    index = GraphIndex(graph)
    found, _ = _up_to_network(index, {box_rows(index, tensor) for tensor in boxes})
    return found


def score_convolutions(graph: GraphProto, scores: Iterable[str], depth: int) -> set[str]:
    """First outputs of the last `depth` convolutions of each branch of class scores.

    The scores are tensors of their own, or joined to boxes.

    Where boxes and scores of a stride share a tensor before they are split, the convolutions of the
    boxes are included.
    """
    index = GraphIndex(graph)
    found: set[str] = set()
    wanted = sorted({score_rows(index, tensor) for tensor in scores})
    for _ in range(depth):
        _, nodes = _up_to_network(index, wanted)
        found |= nodes
        wanted = [index.producers[name].input[0] for name in sorted(nodes)]
    return {name for name in found if index.producers[name].op_type == "Conv"}


def first_convolutions(graph: GraphProto, image: str, depth: int) -> set[str]:
    """First outputs of the convolutions that the image reaches through fewer than `depth` others.

    Args:
        graph: Its nodes are sorted.
        image: The input that takes pictures.
        depth: At least 1.
    """
    passed, found = {image: 0}, set[str]()
    for node in graph.node:
        least = min((passed[name] for name in node.input if name in passed), default=depth)
        if node.op_type == "Conv":
            if least < depth:
                found.add(node.output[0])
            least += 1
        passed |= dict.fromkeys(node.output, least)
    return found


def _up_to_network(index: GraphIndex, tensors: Iterable[str]) -> tuple[set[str], set[str]]:
    """First outputs of the nodes between the network and the tensors, and of its last nodes."""
    decoding: set[str] = set()
    network: set[str] = set()
    waiting = list(tensors)
    while waiting:
        node = index.producers.get(waiting.pop())
        if node is None or node.output[0] in decoding or node.op_type == "Shape":
            continue
        if node.op_type in NETWORK and not _follows_softmax(index, node.input[0]):
            network.add(node.output[0])
            continue
        decoding.add(node.output[0])
        waiting.extend(node.input)
    return decoding, network


def _follows_softmax(index: GraphIndex, tensor: str) -> bool:
    node = index.producer(index.behind(tensor, SHAPE_ONLY))
    return node is not None and node.op_type == "Softmax"
