"""Finds heads whose boxes and scores are two tensors of a graph, with an entry for each anchor."""

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
from detcli.model.heads import (
    BATCHED,
    BOX_ROWS,
    SELECTION,
    SUPPRESSION,
    Activation,
    BoxDecode,
    ChannelRange,
    Decoded,
    Head,
    Queries,
    Unrecognised,
)
from detcli.model.heads.decode import (
    LEARNT,
    bins_of,
    boxes_of,
    channel_groups,
    from_corners,
    layer_of,
    layers_of,
    moved_inputs,
    scores_of,
    to_corners,
)
from detcli.model.heads.joined import is_multiplied

ARITHMETIC = frozenset({BoxDecode.DISTANCES, BoxDecode.EXPONENTIAL, BoxDecode.GRID})
"""Ways to decode boxes that never compute scores."""


def pair(index: GraphIndex) -> Head | None:
    """Two outputs with an entry for each anchor: boxes [B, N, 4] and scores [B, N, C]."""
    outputs = [output.name for output in index.graph.output]
    heads = []
    for boxes in outputs:
        for scores in outputs:
            if boxes == scores:
                continue
            head = _of_pair(index, boxes, scores)
            if head is not None:
                heads.append(head)
    if len(heads) > 1:
        raise Unrecognised("two of its outputs may be the boxes, or two the scores")
    if not heads:
        return None

    head = heads[0]
    anchor_count = index.shapes[head.boxes[0].tensor][1 if head.anchors_first else 2]
    for name in outputs:
        dims = index.shapes[name]
        # Maps, and not what the layers of a decoder give for each box: [B, layers, Q, features].
        if name not in head.tensors and len(dims) == 4 and dims[2] != anchor_count:
            raise Unrecognised("it segments objects: masks come with its boxes and scores")
    return head


def _of_pair(
    index: GraphIndex, boxes: str, scores: str, *, best_class_only: bool = False
) -> Head | None:
    """Boxes and scores of the same anchors, if that is what two tensors are."""
    box_dims = index.shapes[boxes]
    score_dims = index.shapes[scores]
    if len(box_dims) != BATCHED or len(score_dims) != BATCHED:
        return None
    anchors_first = box_dims[2] == BOX_ROWS
    channel_axis, anchor_axis = (2, 1) if anchors_first else (1, 2)
    if box_dims[channel_axis] != BOX_ROWS:
        return None

    decoded = boxes_of(index, boxes)
    scores_are = scores_of(index, scores)
    layer = layer_of(index, boxes)
    class_axis = _class_axis(
        box_dims[anchor_axis], score_dims, channel_axis=channel_axis, layer=layer
    )
    score_count = None if class_axis is None else known_size(score_dims[class_axis])
    if score_count is None or scores_are is None or not _chosen_alike(index, boxes, scores):
        return None

    has_objectness = _with_objectness(index, boxes, scores)
    if score_count == BOX_ROWS:  # boxes and scores have one shape
        is_grid_with_objectness = has_objectness and layer not in PRODUCTS
        as_boxes = boxes_of(index, scores)
        if not is_grid_with_objectness and not _tells_apart(decoded, as_boxes, scores_are, layer):
            return None

    return Head(
        Layout.PAIR,
        boxes=(ChannelRange(boxes),),
        scores=(ChannelRange(scores),),
        class_count=score_count - has_objectness,
        anchors_first=anchors_first,
        decoded=decoded,
        scores_are=scores_are,
        layer=layer,
        objectness=has_objectness,
        best_class_only=best_class_only,
        scores_transposed=class_axis != channel_axis,
        bins=bins_of(index, boxes),
        from_corners=from_corners(index, boxes),
    )


def _with_objectness(index: GraphIndex, boxes: str, scores: str) -> bool:
    """True if the first of some scores is an objectness, as where YOLOv5's head is cut in two.

    It is a group of its own, or one layer makes it, the scores and the boxes.
    """
    tensor, groups = channel_groups(index, scores)
    sizes_before_last = [size for size, _ in groups[:-1]]
    if sizes_before_last == [1]:
        return True
    if groups:
        _, tensor = groups[0]
    shared_layers = layers_of(index, boxes) & layers_of(index, scores)
    return bool(shared_layers) and not is_multiplied(index, tensor)


def _class_axis(
    anchors: int | str | None, scores: Dims, *, channel_axis: int, layer: str
) -> int | None:
    """The axis of the classes: as in the boxes, or for cells, as Paddle has it, the other."""
    candidates = []
    for axis in (channel_axis, 3 - channel_axis):
        count = scores[3 - axis]
        are_both_known = isinstance(anchors, int) and isinstance(count, int)
        if anchors == count or not are_both_known:
            candidates.append(axis)
    if layer in PRODUCTS:
        if channel_axis in candidates:
            return channel_axis
        return None
    if len(candidates) == 2 and isinstance(scores[1], int) and isinstance(scores[2], int):
        return 1 if scores[1] < scores[2] else 2  # there are more cells than classes
    for axis in candidates:
        if isinstance(scores[axis], int):
            return axis
    return None


def _chosen_alike(index: GraphIndex, boxes: str, scores: str) -> bool:
    """True if what was chosen on the way to one of two tensors was chosen for the other too.

    And whether the boxes are not made of the scores.
    """
    if boxes in index.moved_from(scores):
        return False
    for node in index.nodes(*SELECTION):
        choices = list(node.output)
        if node.op_type == "TopK":
            # Its values may be a measure of certainty, as in D-FINE; its indices choose.
            choices = choices[1:]
        depend_on_choice: set[str] = set()
        for name in choices:
            if name:
                depend_on_choice |= index.moved_from(name)
        if (boxes in depend_on_choice) != (scores in depend_on_choice):
            return False
    return True


def _tells_apart(
    decoded: Decoded | None, as_boxes: Decoded | None, scores_are: Activation, layer: str
) -> bool:
    """True if boxes and scores of one shape are which, by what makes them.

    `as_boxes` is how the scores would be decoded if they were boxes.
    """
    other_method = None if as_boxes is None else as_boxes.method
    if decoded is None or decoded.method is BoxDecode.LINEAR or other_method in ARITHMETIC:
        return False
    if decoded.method in ARITHMETIC:
        return True
    if layer not in PRODUCTS:
        return False
    if scores_are is not Activation.SIGMOID:
        return True
    return decoded.method is BoxDecode.REFINED and other_method is BoxDecode.SIGMOID


def best_class(index: GraphIndex) -> Head | None:
    """What the best class of each box is taken of, by an ArgMax, as in DeepStream-Yolo."""
    if index.nodes(*SELECTION):
        return None
    output_names = {output.name for output in index.graph.output}
    for node in index.nodes("ArgMax"):
        scores = node.input[0]
        if len(index.shapes[scores]) != BATCHED:
            continue
        depend_on_class = index.moved_from(node.output[0])
        if depend_on_class.isdisjoint(output_names):
            continue
        for boxes in _box_candidates(index, depend_on_class):
            head = _of_pair(index, boxes, scores, best_class_only=True)
            if head is not None:
                return head
    return None


def _box_candidates(index: GraphIndex, selected: set[str]) -> list[str]:
    """Tensors of boxes [B, N, 4] that outputs are made of without what selects among them."""

    def is_candidate(name: str) -> bool:
        dims = index.shapes[name]
        return name not in selected and len(dims) == BATCHED and dims[2] == BOX_ROWS

    def onward(node: NodeProto, name: str) -> Iterable[str]:
        if is_candidate(name):
            return ()
        follows = name in selected or moved_inputs(node, name) is not None
        if follows:
            return list(node.input)
        return ()

    outputs = [output.name for output in index.graph.output]
    return [name for _, name in index.behind_all(outputs, onward) if is_candidate(name)]


def queries(index: GraphIndex) -> Head | None:
    """The best of all queries and classes, taken by a TopK: what it is taken of.

    As DETR and its successors select: TopK <- Flatten (<- Sigmoid) <- scores [B, Q, C].
    """
    if index.nodes(*SUPPRESSION):
        return None
    layers = [node for node in index.nodes(*LEARNT) if not to_corners(index, node)]
    for top_k in reversed(index.nodes("TopK")):
        scores = _flattened(index, top_k.input[0])
        if not scores:
            continue
        selected: set[str] = set()
        for name in top_k.output:
            selected |= index.moved_from(name)
        if any(not selected.isdisjoint(layer.input) for layer in layers):
            continue  # what is chosen are the queries of a decoder
        for extra in index.image_inputs():
            if len(index.shapes[extra.name]) < BATCHED:
                selected |= index.moved_from(extra.name)
        for boxes in _box_candidates(index, selected):
            head = _of_pair(index, boxes, scores)
            if head is not None:
                return replace(head, max_detections=_k_of(index, top_k))
    return None


def _k_of(index: GraphIndex, top_k: NodeProto) -> int | None:
    """How many a TopK selects: an attribute before opset 10, an input since then."""
    if len(top_k.input) > 1:
        counts = index.constant(top_k.input[1])
        if counts:
            return counts[0]
    return attribute(top_k, "k", 0) or None


PASSED = frozenset({"Flatten", "Reshape", "Squeeze", "Unsqueeze"})


def _flattened(index: GraphIndex, tensor: str) -> str:
    """The tensor [B, Q, C] that was flattened, before a sigmoid; empty if there is none."""
    if len(index.shapes[tensor]) >= BATCHED:
        return ""
    for _ in range(8):
        node = index.producer(tensor, *PASSED, "Sigmoid")
        if node is None:
            break
        is_reshape = node.op_type in {"Flatten", "Reshape"}
        if is_reshape and len(index.shapes[node.input[0]]) < BATCHED:
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
        for entry in node.attribute:
            numbers = entry.ints or [entry.i]
            if entry.name == "background_class" and any(number >= 0 for number in numbers):
                raise Unrecognised("its EfficientNMS_TRT leaves out a class, that of no object")
        boxes, scores = node.input[:2]
        return _of_pair(index, str(boxes), str(scores))
    return None


ATTENTION = frozenset({"Attention", "GridSample", "MultiHeadAttention", "Softmax"})
PATCH = 8  # pixels; a vision transformer's are 14 or 16, a convolution's stride is 2 or 4


def queries_of(index: GraphIndex, boxes: str) -> Queries:
    """What the queries begin with that a tensor of boxes is made of."""
    nodes, _ = needed_nodes(index.graph, boxes)
    choices = [node for node in nodes if node.op_type == "TopK"]
    if not choices:
        return Queries.LEARNT
    if all(_of_maps(index, choice) for choice in choices):
        return Queries.MAPS
    return Queries.ENCODED


def _of_maps(index: GraphIndex, choice: NodeProto) -> bool:
    """True if a TopK chooses from feature maps: from convolutions, without attention between."""

    def onward(node: NodeProto, _: str) -> Iterable[str]:
        is_source = node.op_type in CONVOLUTIONS or node.op_type == "Shape"
        if is_source:
            return ()
        return list(node.input)

    reaches_convolution = False
    for node, _ in index.behind_all([choice.input[0]], onward):
        if node.op_type in ATTENTION:
            return False
        reaches_convolution |= node.op_type in CONVOLUTIONS
    return reaches_convolution


def has_patches(index: GraphIndex) -> bool:
    """True if a graph begins as a vision transformer does, with a vector for each patch."""
    for node in index.nodes(*CONVOLUTIONS):
        kernel = index.shapes[node.input[CONVOLUTIONS[node.op_type]]]
        if len(kernel) == 4 and kernel[1] == 3 and attribute(node, "group", 1) == 1:
            side = known_size(kernel[-1]) or 0
            if side >= PATCH and kernel[-2:] == integers(node, "strides"):
                return True
    return False
