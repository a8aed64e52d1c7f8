"""Finds heads whose boxes and scores are tensors of a graph: both in one, or each of its own."""

import itertools
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
    BOXES_ONLY,
    DETECTORS,
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
    ChannelGroups,
    bins_of,
    boxes_of,
    channel_groups,
    computed,
    decoded_from,
    from_corners,
    groups_along,
    layer_of,
    layers_of,
    makers,
    moved_inputs,
    scores_of,
    to_corners,
)


def end_to_end(index: GraphIndex, *, boxes_only: bool) -> Head | None:
    """YOLOv10's tail: the head feeds the first of two top-k stages.

    TopK <- ReduceMax over the classes <- Split into boxes and scores (<- Transpose) <- body.
    NaN scores may have been replaced, as in what `detcli convert --end-to-end` appends.
    """
    for node in index.nodes("TopK"):
        reduced = index.producer(node.input[0], "ReduceMax")
        if reduced is None:
            continue
        guard = index.producer(reduced.input[0], "Where")  # IsNaN(scores), 0, scores
        split = index.producer(guard.input[2] if guard else reduced.input[0])
        if split is None or not _splits_off_boxes(index, split):
            continue
        head = split.input[0]
        transpose = index.producer(head)
        if transpose is not None and swaps_last_axes(transpose):
            head, first = transpose.input[0], False
        else:
            first = index.axes(reduced) in ([-1], [2])
        if len(split.output) == 3:
            axis = attribute(split, "axis", 0)
            classes, extra = (index.size(name, axis) for name in split.output[1:])
            if not boxes_only or classes is None:
                raise Unrecognised(_task_of(index, extra), BOXES_ONLY)
            return _boxes_of_more(index, head, classes, first=first)
        if len(index.graph.output) == 1:
            found = _of_join(index, head, split.output[-1], first=first)
            return replace(found, layout=Layout.END_TO_END)
    return None


def _splits_off_boxes(index: GraphIndex, node: NodeProto) -> bool:
    """True if a node's output is what follows the four box rows: scores, or scores and more."""
    if node.op_type == "Slice" and len(node.input) > 3:  # data, starts, ends, axes
        start, end, axis = (index.constant(name) for name in node.input[1:4])
        dims = index.shapes[node.input[0]]
        last = index.size(node.input[0], axis[0]) if axis and len(dims) == BATCHED else None
        return start == [BOX_ROWS] and end is not None and end[0] >= (last or 0)
    if node.op_type != "Split" or len(node.output) not in {2, 3}:
        return False
    return index.size(node.output[0], attribute(node, "axis", 0)) in {BOX_ROWS, None}


def single_tensor(index: GraphIndex, names: list[str] | None, *, boxes_only: bool) -> Head | None:
    """A head that is an output."""
    outputs = [output.name for output in index.graph.output]
    # Maps that the head is made of, of YOLOv5 exported for training.
    inner = [name for name in outputs if index.moved_from(name) & (set(outputs) - {name})]
    candidates = [name for name in outputs if name not in inner]
    for head in candidates:
        for axis in (1, 2):
            found = _of_columns(index, head, axis, boxes_only=boxes_only)
            if found is not None and (len(candidates) == 1 or boxes_only):
                return found
    alone = len(candidates) == 1 and not index.nodes(*SELECTION)
    return _unjoined(index, candidates[0], names) if alone else None


def _are_of_queries(index: GraphIndex, boxes: list[str], rest: ChannelGroups) -> bool:
    """True if graphs choose queries, not detections: layers behind the choice make the scores."""
    layers = {layer for _, name in rest for layer in layers_of(index, name)}
    for node in index.nodes(*SELECTION):
        made = index.moved_from(node.output[1]) if node.op_type == "TopK" else set()
        if not layers or not layers <= made or not made.issuperset(boxes):
            return False
    return True


def _unjoined(index: GraphIndex, head: str, names: list[str] | None) -> Head | None:
    """A head whose parts are of unknown length."""
    dims = index.shapes[head]
    join, swapped = _join(index, head)
    if join is not None:
        first = (_axis(join) == 2) != swapped
        return _of_join(index, head, join.input[1], first=first)
    channels = BOX_ROWS + len(names) if names else None
    if len(dims) == BATCHED and channels in dims[1:] and dims[1] != dims[2]:
        return _of_join(index, head, head, first=channels == dims[2])
    return None


def _head(tensor: str, classes: int | None, *, first: bool, stop: int | None = None) -> Head:
    """A head of four box rows and then the scores, whose making is not known."""
    return Head(
        Layout.TRANSPOSED_BODY if first else Layout.BODY,
        (ChannelRange(tensor, 0, BOX_ROWS),),
        (ChannelRange(tensor, BOX_ROWS, stop),),
        class_count=classes,
        anchors_first=first,
        decoded=None,
    )


def _of_join(index: GraphIndex, head: str, scores: str, *, first: bool) -> Head:
    """A head of four box rows and then the scores."""
    boxes = box_rows(index, head)
    if boxes == head:  # empty where they cannot be told from the scores
        parts = groups_along(index, head, 2 if first else 1)
        boxes = parts[0][1] if parts and parts[0][0] == BOX_ROWS else ""
    return replace(
        _head(head, _class_count(index, head, scores, first=first), first=first),
        decoded=boxes_of(index, boxes) if boxes else None,
        scores_are=scores_of(index, scores) if scores != head else Activation.SIGMOID,
        layer=layer_of(index, boxes) if boxes else "",
    )


def _class_count(index: GraphIndex, head: str, scores: str, *, first: bool) -> int | None:
    dims = index.shapes[head]
    channels = dims[2 if first else 1] if len(dims) == BATCHED else None
    if isinstance(channels, int):
        return channels - BOX_ROWS if channels > BOX_ROWS else None
    # Where the shape depends on the input's, a Split may still tell, before a sigmoid or not.
    if (sigmoid := index.producer(scores, "Sigmoid")) is not None:
        scores = sigmoid.input[0]
    node = index.producer(scores, "Split")
    if node is None:
        return None
    sizes = index.constant(node.input[1]) if len(node.input) > 1 else None
    return sizes[list(node.output).index(index.computed_as(scores))] if sizes else None


def _of_columns(index: GraphIndex, head: str, axis: int, *, boxes_only: bool) -> Head | None:
    """A head whose parts are known.

    YOLOv8 and its successors join [4 box rows or two halves of them, classes]; YOLOX and v6 [4,
    objectness, classes]; YOLOv5, v7, and YOLOX with its decode [centre, size, objectness and
    classes].
    """
    boxes, rest = _after_boxes(groups_along(index, head, axis))
    if not rest or not _are_of_queries(index, boxes, rest):
        return None
    decoded = decoded_from(index, boxes)
    if decoded is None and len(boxes) > 1:
        return None
    known = _classes_of(index, decoded, rest)
    if known is None:
        return _of_more(index, head, rest, first=axis == 2, boxes_only=boxes_only)
    classes, objectness = known
    layer = next(filter(None, (layer_of(index, name) for name in boxes)), "")
    found = _head(head, classes, first=axis == 2)
    return replace(
        found,
        layout=Layout.ONE_TO_MANY if objectness else found.layout,
        decoded=decoded,
        scores_are=Activation.SIGMOID if objectness else scores_of(index, rest[0][1]),
        layer=layer,
        objectness=objectness,
    )


def _of_more(
    index: GraphIndex, head: str, rest: ChannelGroups, *, first: bool, boxes_only: bool
) -> Head | None:
    """A head whose scores are followed by something else, if only its boxes are wanted."""
    (classes, name), *more = rest
    if not more or not _is_final(index, name):
        return None
    extra = [size for size, _ in more]
    angle = extra == [1] and len(index.graph.output) == 1  # it turns the boxes
    if not boxes_only or angle:
        raise Unrecognised(_task_of(index, sum(extra)), DETECTORS if angle else BOXES_ONLY)
    return _boxes_of_more(index, head, classes, first=first)


def _classes_of(
    index: GraphIndex, decoded: Decoded | None, rest: ChannelGroups
) -> tuple[int, bool] | None:
    """C, and whether an objectness comes before the classes; None if there is more than these."""
    size, name = rest[-1]
    how = None if decoded is None else decoded.method
    if len(rest) == 1:
        if how not in {BoxDecode.GRID, BoxDecode.EXPONENTIAL}:  # those of anchor boxes
            return size, False
        # It may have been multiplied into the others before.
        if _is_final(index, name) and "Mul" not in {n.op_type for n in makers(index, name)}:
            return size - 1, True
        if scores_of(index, name) is None:
            raise Unrecognised("it is not clear whether its scores begin with an objectness")
        return size, False
    if len(rest) > 2 or rest[0][0] != 1 or not all(_is_final(index, part) for _, part in rest):
        return None
    if how is BoxDecode.DISTANCES and computed(index, rest[0][1]):
        raise Unrecognised("it is not clear what the number between its boxes and scores is")
    return size, True


def _is_final(index: GraphIndex, tensor: str) -> bool:
    """True if a part is scores; a constant objectness, as YOLOv6 has, counts as one."""
    return scores_of(index, tensor) is Activation.SIGMOID or not computed(index, tensor)


def _after_boxes(parts: ChannelGroups) -> tuple[list[str], ChannelGroups]:
    """The parts that make up the first four channels, and those that follow; empty if none do."""
    ends = [*itertools.accumulate(size for size, _ in parts)]
    count = ends.index(BOX_ROWS) + 1 if BOX_ROWS in ends else 0
    return [name for _, name in parts[:count]], parts[count:] if count else []


def _boxes_of_more(index: GraphIndex, head: str, classes: int, *, first: bool) -> Head:
    """The boxes and scores of a head that masks or keypoints follow in."""
    boxes, _ = _after_boxes(groups_along(index, head, 2 if first else 1))
    return replace(
        _head(head, classes, first=first, stop=BOX_ROWS + classes),
        decoded=decoded_from(index, boxes),
        has_more=True,
    )


def _task_of(index: GraphIndex, extra: int | None) -> str:
    """The task of a graph, told by how many numbers follow the scores of each box."""
    if extra is None:
        return "masks, keypoints or angles follow the scores of each box"
    if len(index.graph.output) > 1:
        return f"it segments objects: {extra} mask coefficients follow the scores of each box"
    if extra == 1:
        return "it finds oriented boxes: an angle follows the scores of each box"
    return f"it finds poses: {extra} numbers of keypoints follow the scores of each box"


def score_rows(index: GraphIndex, head: str) -> str:
    """The tensor of class scores, where a head joins it to the boxes; else the head."""
    join, _ = _join(index, head)
    return head if join is None else str(join.input[1])


def box_rows(index: GraphIndex, head: str) -> str:
    """The tensor of the four box rows, where a head joins it to the scores; else the head."""
    join, _ = _join(index, head)
    if join is None:
        return head
    rows = index.size(join.input[0], _axis(join))
    if rows not in {None, BOX_ROWS}:
        raise Unrecognised(f"{rows} rows come before its class scores, not 4")
    return str(join.input[0])


def _join(index: GraphIndex, head: str) -> tuple[NodeProto | None, bool]:
    """The Concat of boxes and scores that makes a head, and whether a Transpose follows it."""
    node = index.producer(head)
    swapped = node is not None and swaps_last_axes(node)
    if node is not None and swapped:
        node = index.producer(node.input[0])
    if node is None or node.op_type != "Concat" or len(node.input) != 2 or _axis(node) == 0:
        return None, swapped
    rows = index.shapes[node.output[0]]
    if len(rows) == BATCHED and rows[_axis(node)] == BOX_ROWS:
        return None, swapped  # of centre and size, or of two corners
    return node, swapped


def _axis(concat: NodeProto) -> int:
    return attribute(concat, "axis", 0) % 3


def swaps_last_axes(node: NodeProto) -> bool:
    """True if a node is a Transpose between channels first and anchors first."""
    permutation = integers(node, "perm")
    return node.op_type == "Transpose" and permutation == [0, 2, 1]


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


def _of_pair(
    index: GraphIndex, boxes: str, scores: str, *, best_class_only: bool = False
) -> Head | None:
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
        (ChannelRange(boxes),),
        (ChannelRange(scores),),
        class_count=count - objectness,
        anchors_first=first,
        decoded=decoded,
        scores_are=scores_are,
        layer=layer,
        objectness=objectness,
        best_class_only=best_class_only,
        scores_transposed=axis != (2 if first else 1),
        bins=bins_of(index, boxes),
        from_corners=from_corners(index, boxes),
    )


def _with_objectness(index: GraphIndex, boxes: str, scores: str) -> bool:
    """True if the first of some scores is an objectness, as where YOLOv5's head is cut in two.

    It is a part of its own, or one layer makes it, the scores and the boxes.
    """
    behind, parts = channel_groups(index, scores)
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
    other = None if as_boxes is None else as_boxes.method
    if decoded is None or decoded.method is BoxDecode.LINEAR or other in ARITHMETIC:
        return False
    if decoded.method in ARITHMETIC:
        return True
    if layer not in PRODUCTS:
        return False
    return scores_are is not Activation.SIGMOID or (decoded.method, other) == (
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
            if (head := _of_pair(index, boxes, scores, best_class_only=True)) is not None:
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
                return replace(head, max_detections=_kept(index, node))
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
        has_more = [a for a in node.attribute if a.name == "background_class"]
        if any(number >= 0 for a in has_more for number in (a.ints or [a.i])):
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
