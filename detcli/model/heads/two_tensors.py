"""Finds heads whose boxes and scores are tensors of their own."""

from collections.abc import Iterable
from dataclasses import replace

from onnx import NodeProto

from detcli.model.contract import Layout
from detcli.model.graph import (
    CONVOLUTIONS,
    PRODUCTS,
    Dims,
    GraphIndex,
    attribute,
    integers,
    known_size,
    needed_nodes,
)
from detcli.model.heads.decode import (
    BATCHED,
    BOX_ROWS,
    LEARNT,
    SELECTION,
    SUPPRESSION,
    Activation,
    BoxDecode,
    Columns,
    Decoded,
    Head,
    Queries,
    Unrecognised,
    bins_of,
    boxes_of,
    from_corners,
    layer_of,
    layers_of,
    makers,
    moved_inputs,
    parts_of,
    scores_of,
    to_corners,
)

ARITHMETIC = frozenset({BoxDecode.DISTANCES, BoxDecode.EXPONENTIAL, BoxDecode.GRID})
"""Ways to decode boxes that never compute scores."""


def pair(index: GraphIndex) -> Head | None:
    """Two outputs with an entry for each anchor: boxes [B, N, 4] and scores [B, N, C]."""
    outputs = [output.name for output in index.graph.output]
    pairs = [
        head
        for boxes in outputs
        for scores in outputs
        if boxes != scores and (head := _of_pair(index, boxes, scores)) is not None
    ]
    if len(pairs) > 1:
        raise Unrecognised("two of its outputs may be the boxes, or two the scores")
    if not pairs:
        return None
    head = pairs[0]
    count = index.shapes[head.boxes[0].tensor][1 if head.anchors_first else 2]
    # Maps, and not what the layers of a decoder give for each box: [B, layers, Q, features].
    others = [index.shapes[name] for name in outputs if name not in head.tensors]
    if any(len(dims) == 4 and dims[2] != count for dims in others):
        raise Unrecognised("it segments objects: masks come with its boxes and scores")
    return head


def _of_pair(index: GraphIndex, boxes: str, scores: str, *, one_class: bool = False) -> Head | None:
    """Boxes and scores of the same anchors, if that is what two tensors are."""
    box_dims, score_dims = index.shapes[boxes], index.shapes[scores]
    if len(box_dims) != BATCHED or len(score_dims) != BATCHED:
        return None
    first = box_dims[2] == BOX_ROWS
    if box_dims[2 if first else 1] != BOX_ROWS:
        return None
    decoded, scores_are = boxes_of(index, boxes), scores_of(index, scores)
    layer = layer_of(index, boxes)
    axis = _class_axis(box_dims[1 if first else 2], score_dims, first=first, layer=layer)
    count = known_size(score_dims[axis]) if axis is not None else None
    if count is None or scores_are is None or not _chosen_alike(index, boxes, scores):
        return None
    objectness = _with_objectness(index, boxes, scores)
    if (
        count == BOX_ROWS
        and not (objectness and layer not in PRODUCTS)
        and not _tells_apart(decoded, boxes_of(index, scores), scores_are, layer)
    ):
        return None
    return Head(
        Layout.PAIR,
        (Columns(boxes),),
        (Columns(scores),),
        class_count=count - objectness,
        anchors_first=first,
        decoded=decoded,
        scores_are=scores_are,
        layer=layer,
        objectness=objectness,
        one_class=one_class,
        crossed=axis != (2 if first else 1),
        bins=bins_of(index, boxes),
        from_corners=from_corners(index, boxes),
    )


def _with_objectness(index: GraphIndex, boxes: str, scores: str) -> bool:
    """True if the first of some scores is an objectness, as where YOLOv5's head is cut in two.

    It is a part of its own, or one layer makes it, the scores and the boxes.
    """
    behind, parts = parts_of(index, scores)
    if [size for size, _ in parts[:-1]] == [1]:
        return True
    made = makers(index, parts[0][1] if parts else behind)
    shared = layers_of(index, boxes) & layers_of(index, scores)
    return bool(shared) and "Mul" not in {node.op_type for node in made}


def _class_axis(anchors: int | str | None, scores: Dims, *, first: bool, layer: str) -> int | None:
    """The axis of the classes: as in the boxes, or for cells, as Paddle has it, the other."""
    usual, other = (2, 1) if first else (1, 2)
    fits = [
        axis
        for axis in (usual, other)
        if anchors == (count := scores[3 - axis])
        or not (isinstance(anchors, int) and isinstance(count, int))
    ]
    if layer in PRODUCTS:
        return usual if usual in fits else None
    if len(fits) == 2 and isinstance(scores[1], int) and isinstance(scores[2], int):
        return 1 if scores[1] < scores[2] else 2  # there are more cells than classes
    fits = [axis for axis in fits if isinstance(scores[axis], int)]
    return fits[0] if fits else None


def _chosen_alike(index: GraphIndex, boxes: str, scores: str) -> bool:
    """True if what was chosen on the way to one of two tensors was chosen for the other too.

    And whether the boxes are not made of the scores.
    """
    if boxes in index.moved_from(scores):
        return False
    for node in index.nodes(*SELECTION):
        # The values of a TopK may be a measure of certainty, as in D-FINE; its indices choose.
        chosen = node.output[1:] if node.op_type == "TopK" else node.output
        depend = set().union(*(index.moved_from(name) for name in chosen if name))
        if (boxes in depend) != (scores in depend):
            return False
    return True


def _tells_apart(
    decoded: Decoded | None, as_boxes: Decoded | None, scores_are: Activation, layer: str
) -> bool:
    """True if boxes and scores of one shape are which, by what makes them."""
    other = None if as_boxes is None else as_boxes.how
    if decoded is None or decoded.how is BoxDecode.LINEAR or other in ARITHMETIC:
        return False
    if decoded.how in ARITHMETIC:
        return True
    if layer not in PRODUCTS:
        return False
    return scores_are is not Activation.SIGMOID or (decoded.how, other) == (
        BoxDecode.REFINED,
        BoxDecode.SIGMOID,
    )


def best_class(index: GraphIndex) -> Head | None:
    """What the best class of each box is taken of, by an ArgMax, as in DeepStream-Yolo."""
    for node in [] if index.nodes(*SELECTION) else index.nodes("ArgMax"):
        scores = node.input[0]
        batched = len(index.shapes[scores]) == BATCHED
        chosen = index.moved_from(node.output[0]) if batched else set()
        if not any(output.name in chosen for output in index.graph.output):
            continue
        for boxes in _box_candidates(index, chosen):
            if (head := _of_pair(index, boxes, scores, one_class=True)) is not None:
                return head
    return None


def _box_candidates(index: GraphIndex, selected: set[str]) -> list[str]:
    """Tensors of boxes [B, N, 4] that outputs are made of without what selects among them."""

    def found(name: str) -> bool:
        dims = index.shapes[name]
        return name not in selected and len(dims) == BATCHED and dims[2] == BOX_ROWS

    def onward(node: NodeProto, name: str) -> Iterable[str]:
        follows = name in selected or moved_inputs(node, name) is not None
        return node.input if follows and not found(name) else ()

    outputs = (output.name for output in index.graph.output)
    return [name for _, name in index.behind_all(outputs, onward) if found(name)]


def queries(index: GraphIndex) -> Head | None:
    """The best of all queries and classes, taken by a TopK: what it is taken of.

    As DETR and its successors select: TopK <- Flatten (<- Sigmoid) <- scores [B, Q, C].
    """
    if index.nodes(*SUPPRESSION):
        return None
    layers = [node for node in index.nodes(*LEARNT) if not to_corners(index, node)]
    for node in reversed(index.nodes("TopK")):
        scores = _flattened(index, node.input[0])
        if not scores:
            continue
        selected = set().union(*(index.moved_from(name) for name in node.output))
        if any({*layer.input} & selected for layer in layers):
            continue  # what is chosen are the queries of a decoder
        for extra in index.image_inputs():
            if len(index.shapes[extra.name]) < BATCHED:
                selected |= index.moved_from(extra.name)
        for boxes in _box_candidates(index, selected):
            if (head := _of_pair(index, boxes, scores)) is not None:
                return replace(head, most=_kept(index, node))
    return None


def _kept(index: GraphIndex, top_k: NodeProto) -> int | None:
    """How many a TopK keeps: an attribute before opset 10, an input since then."""
    count = index.constant(top_k.input[1]) if len(top_k.input) > 1 else None
    return count[0] if count else attribute(top_k, "k", 0) or None


PASSED = frozenset({"Flatten", "Reshape", "Squeeze", "Unsqueeze"})


def _flattened(index: GraphIndex, tensor: str) -> str:
    """The tensor [B, Q, C] that was flattened, before a sigmoid; empty if there is none."""
    if len(index.shapes[tensor]) >= BATCHED:
        return ""
    for _ in range(8):
        node = index.producer(tensor, *PASSED, "Sigmoid")
        if node is None:
            break
        reshapes = node.op_type in {"Flatten", "Reshape"}
        if reshapes and len(index.shapes[node.input[0]]) < BATCHED:
            break
        tensor = node.input[0]
    else:
        return ""
    # The tensor itself may have another number of axes, where one of length 1 comes and goes.
    while len(index.shapes[tensor]) != BATCHED:
        node = index.producer(tensor, "Squeeze", "Unsqueeze", "Reshape", "Gather")
        if node is None:
            return ""
        tensor = node.input[0]
    return tensor


def plugin(index: GraphIndex) -> Head | None:
    """What TensorRT's EfficientNMS selects from; only TensorRT has that node."""
    for node in index.nodes("EfficientNMS_TRT"):
        left_out = [a for a in node.attribute if a.name == "background_class"]
        if any(number >= 0 for a in left_out for number in (a.ints or [a.i])):
            raise Unrecognised("its EfficientNMS_TRT leaves out a class, that of no object")
        return _of_pair(index, *map(str, node.input[:2]))
    return None


ATTENTION = frozenset({"Attention", "GridSample", "MultiHeadAttention", "Softmax"})
PATCH = 8  # pixels; a vision transformer's are 14 or 16, a convolution's stride is 2 or 4


def queries_of(index: GraphIndex, boxes: str) -> Queries:
    """What the queries begin with that a tensor of boxes is made of."""
    nodes, _ = needed_nodes(index.graph, boxes)
    choices = [node for node in nodes if node.op_type == "TopK"]
    if not choices:
        return Queries.LEARNT
    return Queries.MAPS if all(_of_maps(index, one) for one in choices) else Queries.ENCODED


def _of_maps(index: GraphIndex, choice: NodeProto) -> bool:
    """True if a TopK chooses from feature maps: from convolutions, without attention between."""
    reached = False
    ends = {*CONVOLUTIONS, "Shape"}
    behind = index.behind_all(
        [choice.input[0]], lambda node, _: () if node.op_type in ends else node.input
    )
    for node, _ in behind:
        if node.op_type in ATTENTION:
            return False
        reached |= node.op_type in CONVOLUTIONS
    return reached


def has_patches(index: GraphIndex) -> bool:
    """True if a graph begins as a vision transformer does, with a vector for each patch."""
    for node in index.nodes(*CONVOLUTIONS):
        kernel = index.shapes[node.input[CONVOLUTIONS[node.op_type]]]
        if len(kernel) == 4 and kernel[1] == 3 and attribute(node, "group", 1) == 1:
            side = known_size(kernel[-1]) or 0
            if side >= PATCH and kernel[-2:] == integers(node, "strides"):
                return True
    return False
