"""Finds heads whose boxes and scores are joined in one tensor of a graph."""

from dataclasses import replace

from onnx import NodeProto

from detcli.model.contract import Layout
from detcli.model.graph import (
    GraphIndex,
    attribute,
    integers,
)
from detcli.model.heads import (
    BATCHED,
    BOX_ROWS,
    BOXES_ONLY,
    DETECTORS,
    SELECTION,
    Activation,
    BoxDecode,
    ChannelRange,
    Decoded,
    Head,
    Unrecognised,
)
from detcli.model.heads.decode import (
    ChannelGroups,
    boxes_of,
    computed,
    decoded_from,
    groups_along,
    layer_of,
    layers_of,
    makers,
    scores_of,
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
    """C of a head that joins four box rows to its scores; None where it is not known."""
    dims = index.shapes[head]
    channels = None
    if len(dims) == BATCHED:
        channels = dims[2 if anchors_first else 1]
    if isinstance(channels, int):
        if channels > BOX_ROWS:
            return channels - BOX_ROWS
        return None
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
    if _is_final(index, scores) and not is_multiplied(index, scores):
        return size - 1, True
    if scores_of(index, scores) is None:
        raise Unrecognised("it is not clear whether its scores begin with an objectness")
    return size, False


def is_multiplied(index: GraphIndex, tensor: str) -> bool:
    """True if a product makes some of a tensor's elements."""
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
    if join is None:
        return head
    return str(join.input[1])


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
