"""Finds heads whose boxes and scores are tensors of a graph: both in one, or each of its own."""

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
    for top_k in index.nodes("TopK"):
        maximum = index.producer(top_k.input[0], "ReduceMax")
        if maximum is None:
            continue
        scores = maximum.input[0]
        nan_guard = index.producer(scores, "Where")  # IsNaN(scores), 0, scores
        if nan_guard is not None:
            scores = nan_guard.input[2]
        split = index.producer(scores)
        if split is None or not _splits_off_boxes(index, split):
            continue
        head = split.input[0]
        anchors_first = index.axes(maximum) in ([-1], [2])
        transpose = index.producer(head)
        if transpose is not None and swaps_last_axes(transpose):
            head = transpose.input[0]
            anchors_first = False
        if len(split.output) == 3:
            axis = attribute(split, "axis", 0)
            class_count = index.size(split.output[1], axis)
            if not boxes_only or class_count is None:
                extra = index.size(split.output[2], axis)
                raise Unrecognised(_task_of(index, extra), BOXES_ONLY)
            return _boxes_of_more(index, head, class_count, anchors_first=anchors_first)
        if len(index.graph.output) == 1:
            body = _of_join(index, head, split.output[-1], anchors_first=anchors_first)
            return replace(body, layout=Layout.END_TO_END)
    return None


def _splits_off_boxes(index: GraphIndex, node: NodeProto) -> bool:
    """True if a node's output is what follows the four box rows: scores, or scores and more."""
    if node.op_type == "Slice" and len(node.input) > 3:  # data, starts, ends, axes
        start, end, axis = (index.constant(name) for name in node.input[1:4])
        length = None
        if axis and len(index.shapes[node.input[0]]) == BATCHED:
            length = index.size(node.input[0], axis[0])
        return start == [BOX_ROWS] and end is not None and end[0] >= (length or 0)
    if node.op_type != "Split" or len(node.output) not in {2, 3}:
        return False
    return index.size(node.output[0], attribute(node, "axis", 0)) in {BOX_ROWS, None}


def single_tensor(index: GraphIndex, names: list[str] | None, *, boxes_only: bool) -> Head | None:
    """A head that is an output."""
    outputs = [output.name for output in index.graph.output]
    candidates = []
    for name in outputs:
        # Maps that the head is made of are outputs too, of YOLOv5 exported for training.
        other_outputs = set(outputs) - {name}
        if not index.moved_from(name) & other_outputs:
            candidates.append(name)
    for head_name in candidates:
        for axis in (1, 2):
            head = _of_groups(index, head_name, axis, boxes_only=boxes_only)
            if head is not None and (len(candidates) == 1 or boxes_only):
                return head
    if len(candidates) != 1 or index.nodes(*SELECTION):
        return None
    return _of_unknown_groups(index, candidates[0], names)


def _are_of_queries(index: GraphIndex, boxes: list[str], groups: ChannelGroups) -> bool:
    """True if graphs choose queries, not detections: layers behind the choice make the scores."""
    score_layers: set[str] = set()
    for _, name in groups:
        score_layers |= layers_of(index, name)
    for node in index.nodes(*SELECTION):
        depend_on_choice: set[str] = set()
        if node.op_type == "TopK":
            depend_on_choice = index.moved_from(node.output[1])
        if not score_layers or not score_layers <= depend_on_choice:
            return False
        if not depend_on_choice.issuperset(boxes):
            return False
    return True


def _of_unknown_groups(index: GraphIndex, head: str, names: list[str] | None) -> Head | None:
    """A head of which it is not known how many channels each group has."""
    join, is_transposed = _join(index, head)
    if join is not None:
        anchors_first = (_axis(join) == 2) != is_transposed
        return _of_join(index, head, join.input[1], anchors_first=anchors_first)
    dims = index.shapes[head]
    channels = BOX_ROWS + len(names) if names else None
    if len(dims) == BATCHED and channels in dims[1:] and dims[1] != dims[2]:
        return _of_join(index, head, head, anchors_first=channels == dims[2])
    return None


def _head(
    tensor: str, class_count: int | None, *, anchors_first: bool, stop: int | None = None
) -> Head:
    """A head of four box rows and then the scores, whose making is not known."""
    return Head(
        Layout.TRANSPOSED_BODY if anchors_first else Layout.BODY,
        boxes=(ChannelRange(tensor, 0, BOX_ROWS),),
        scores=(ChannelRange(tensor, BOX_ROWS, stop),),
        class_count=class_count,
        anchors_first=anchors_first,
        decoded=None,
    )


def _of_join(index: GraphIndex, head: str, scores: str, *, anchors_first: bool) -> Head:
    """A head of four box rows and then the scores."""
    class_count = _class_count(index, head, scores, anchors_first=anchors_first)
    found_head = _head(head, class_count, anchors_first=anchors_first)
    if scores != head:
        found_head = replace(found_head, scores_are=scores_of(index, scores))
    boxes = box_rows(index, head)
    if boxes == head:
        boxes = ""  # they cannot be told from the scores, unless channel groups tell them
        groups = groups_along(index, head, 2 if anchors_first else 1)
        if groups and groups[0][0] == BOX_ROWS:
            _, boxes = groups[0]
    if not boxes:
        return found_head
    return replace(found_head, decoded=boxes_of(index, boxes), layer=layer_of(index, boxes))


def _class_count(index: GraphIndex, head: str, scores: str, *, anchors_first: bool) -> int | None:
    dims = index.shapes[head]
    channels = None
    if len(dims) == BATCHED:
        channels = dims[2 if anchors_first else 1]
    if isinstance(channels, int):
        return channels - BOX_ROWS if channels > BOX_ROWS else None
    # Where the shape depends on the input's, a Split may still tell, before a sigmoid or not.
    sigmoid = index.producer(scores, "Sigmoid")
    if sigmoid is not None:
        scores = sigmoid.input[0]
    split = index.producer(scores, "Split")
    if split is None or len(split.input) < 2:
        return None
    sizes = index.constant(split.input[1])
    if not sizes:
        return None
    return sizes[list(split.output).index(index.computed_as(scores))]


def _of_groups(index: GraphIndex, head: str, axis: int, *, boxes_only: bool) -> Head | None:
    """A head of which it is known how many channels each group has.

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
    anchors_first = axis == 2
    classes = _classes_of(index, decoded, rest)
    if classes is None:
        return _of_more(index, head, rest, anchors_first=anchors_first, boxes_only=boxes_only)
    class_count, has_objectness = classes
    found_head = replace(
        _head(head, class_count, anchors_first=anchors_first),
        decoded=decoded,
        layer=_first_layer(index, boxes),
        objectness=has_objectness,
    )
    if has_objectness:
        return replace(found_head, layout=Layout.ONE_TO_MANY, scores_are=Activation.SIGMOID)
    _, scores = rest[0]
    return replace(found_head, scores_are=scores_of(index, scores))


def _first_layer(index: GraphIndex, tensors: list[str]) -> str:
    """The operator of the first layer that any of some tensors is made of; empty if none is."""
    for tensor in tensors:
        layer = layer_of(index, tensor)
        if layer:
            return layer
    return ""


def _of_more(
    index: GraphIndex, head: str, groups: ChannelGroups, *, anchors_first: bool, boxes_only: bool
) -> Head | None:
    """A head whose scores are followed by something else, if only its boxes are asked for."""
    class_count, scores = groups[0]
    extra_sizes = [size for size, _ in groups[1:]]
    if not extra_sizes or not _is_final(index, scores):
        return None
    has_angle = extra_sizes == [1] and len(index.graph.output) == 1  # it turns the boxes
    if not boxes_only or has_angle:
        hint = DETECTORS if has_angle else BOXES_ONLY
        raise Unrecognised(_task_of(index, sum(extra_sizes)), hint)
    return _boxes_of_more(index, head, class_count, anchors_first=anchors_first)


def _classes_of(
    index: GraphIndex, decoded: Decoded | None, groups: ChannelGroups
) -> tuple[int, bool] | None:
    """C, and whether an objectness comes before the classes; None if there is more than these."""
    size, name = groups[-1]
    if len(groups) == 1:
        return _classes_of_group(index, decoded, size, name)
    first_size, first_name = groups[0]
    if len(groups) > 2 or first_size != 1:
        return None
    if not _is_final(index, first_name) or not _is_final(index, name):
        return None
    has_distances = decoded is not None and decoded.method is BoxDecode.DISTANCES
    if has_distances and computed(index, first_name):
        raise Unrecognised("it is not clear what the number between its boxes and scores is")
    return size, True


def _classes_of_group(
    index: GraphIndex, decoded: Decoded | None, size: int, scores: str
) -> tuple[int, bool]:
    """C of a single group of scores, and whether the first of these is an objectness."""
    has_anchor_boxes = decoded is not None and decoded.method in {
        BoxDecode.GRID,
        BoxDecode.EXPONENTIAL,
    }
    if not has_anchor_boxes:
        return size, False
    # It may have been multiplied into the others before.
    if _is_final(index, scores) and not _is_multiplied(index, scores):
        return size - 1, True
    if scores_of(index, scores) is None:
        raise Unrecognised("it is not clear whether its scores begin with an objectness")
    return size, False


def _is_multiplied(index: GraphIndex, tensor: str) -> bool:
    return any(node.op_type == "Mul" for node in makers(index, tensor))


def _is_final(index: GraphIndex, tensor: str) -> bool:
    """True if a group is scores; a constant objectness, as YOLOv6 has, counts as one."""
    return scores_of(index, tensor) is Activation.SIGMOID or not computed(index, tensor)


def _after_boxes(groups: ChannelGroups) -> tuple[list[str], ChannelGroups]:
    """The groups that make up the first four channels, and those that follow; empty if none do."""
    boxes = []
    channels = 0
    for number, (size, name) in enumerate(groups, start=1):
        boxes.append(name)
        channels += size
        if channels == BOX_ROWS:
            return boxes, groups[number:]
    return [], []


def _boxes_of_more(index: GraphIndex, head: str, class_count: int, *, anchors_first: bool) -> Head:
    """The boxes and scores of a head that masks or keypoints follow in."""
    boxes, _ = _after_boxes(groups_along(index, head, 2 if anchors_first else 1))
    stop = BOX_ROWS + class_count
    return replace(
        _head(head, class_count, anchors_first=anchors_first, stop=stop),
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
    is_transposed = node is not None and swaps_last_axes(node)
    if node is not None and is_transposed:
        node = index.producer(node.input[0])
    if node is None or node.op_type != "Concat" or len(node.input) != 2 or _axis(node) == 0:
        return None, is_transposed
    dims = index.shapes[node.output[0]]
    if len(dims) == BATCHED and dims[_axis(node)] == BOX_ROWS:
        return None, is_transposed  # of centre and size, or of two corners
    return node, is_transposed


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
    heads = []
    for boxes in outputs:
        for scores in outputs:
            head = None if boxes == scores else _of_pair(index, boxes, scores)
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
    return bool(shared_layers) and not _is_multiplied(index, tensor)


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
        return channel_axis if channel_axis in candidates else None
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
        return node.input if follows else ()

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
        return () if is_source else node.input

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
