"""Finds heads that were left as maps of each scale."""

from onnx import NodeProto

from detcli.model.contract import BoxFormat, Layout
from detcli.model.graph import CONVOLUTIONS, GraphIndex, known_size
from detcli.model.heads.decode import (
    Activation,
    BoxDecode,
    Decoded,
    computed,
    is_linear,
    layer_at,
    makers,
    scores_of,
)
from detcli.model.heads.head import Columns, Head

BINS = (16, 1)  # of a distribution of distances


def scales(index: GraphIndex) -> Head | None:
    """Maps of each scale, as RKNN's exporter leaves them: [B, 4 * bins, H, W] and [B, C, H, W]."""
    by_size: dict[tuple[object, object], list[str]] = {}
    for output in index.graph.output:
        dims = index.shapes.get(output.name, [])
        if len(dims) != 4 or not all(isinstance(side, int) for side in dims[1:]):
            return None
        by_size.setdefault((dims[2], dims[3]), []).append(output.name)
    found = [_scale(index, maps) for _, maps in sorted(by_size.items(), key=_area, reverse=True)]
    pairs = [scale for scale in found if scale is not None]
    if len(pairs) < 2 or len(pairs) < len(found):
        return None
    shapes = {(index.shapes[boxes][1], index.shapes[scores][1]) for boxes, scores in pairs}
    kinds = {scores_of(index, scores) for _, scores in pairs}
    if len(shapes) != 1 or len(kinds) != 1:
        return None
    (_, count), kind = shapes.pop(), kinds.pop()
    return Head(
        Layout.SCALES,
        tuple(Columns(boxes) for boxes, _ in pairs),
        tuple(Columns(scores) for _, scores in pairs),
        class_count=known_size(count),
        anchors_first=False,
        decoded=Decoded(BoxDecode.DISTANCES, BoxFormat.XYXY),
        scores_are=kind,
    )


def _area(entry: tuple[tuple[object, object], list[str]]) -> int:
    height, width = entry[0]
    return int(str(height)) * int(str(width))


def _scale(index: GraphIndex, maps: list[str]) -> tuple[str, str] | None:
    """The maps of boxes and of scores of one scale; a sum of all scores is left out.

    Distances come from a convolution as they are; what was scaled, or has an exponential, is of
    another detector.
    """
    maps = [name for name in maps if not _is_sum(index, name, maps)]
    distances = [name for name in maps if _is_bare(index, name)]
    final = [name for name in maps if scores_of(index, name) is Activation.SIGMOID]
    if len(maps) != 2 or len(distances) != 1 or len(final) != 1:
        return None
    known = index.shapes[distances[0]][1] in {4 * bins for bins in BINS}
    return (distances[0], final[0]) if known else None


def _is_sum(index: GraphIndex, tensor: str, maps: list[str]) -> bool:
    """Whether a map is the sum of another's channels, by which RKNN's runtime skips cells."""
    node = index.producer(tensor)
    while node is not None and node.op_type in {"Clip", "Max", "Min"}:
        node = index.producer(node.input[0])
    return node is not None and node.op_type == "ReduceSum" and node.input[0] in maps


def _is_bare(index: GraphIndex, tensor: str) -> bool:
    """Whether a map is what a convolution gives, and no more than a bias is added."""
    found = makers(index, tensor)
    return bool(found) and all(_is_convolution(index, node) for node in found)


def _is_convolution(index: GraphIndex, node: NodeProto) -> bool:
    if (layer := layer_at(index, node)) is not None:
        return layer.op_type in CONVOLUTIONS
    biased = node.op_type == "Add" and sum(computed(index, name) for name in node.input) == 1
    return biased and is_linear(index, node)
