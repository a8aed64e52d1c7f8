"""The head of a detector's graph: where it is, how its boxes are coded, how many classes it has.

The ways that exporters end a YOLO graph are laid out in `detcli.model.contract`. The box format
is read from the decode nodes: Ultralytics' `dist2bbox` computes anchor - left/top and anchor +
right/bottom, and either joins the two corners (Concat of Sub and Add) or their centre and
difference (Concat of a halved Add, and Sub).
"""

from typing import NamedTuple

from onnx import NodeProto

from detcli.model.contract import BoxFormat
from detcli.model.graph import GraphIndex, attribute, known_size
from detcli.model.names import parse_names

SELECTION = {"NonMaxSuppression", "TopK"}  # operators that end an end-to-end graph
BOX_ROWS = 4
FORMAT_KEPT = {"Concat", "Div", "Mul", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
DECODE_DEPTH = 8  # nodes between the head and the decode of its boxes; 1 to 4 in practice


class Unrecognised(Exception):  # noqa: N818 - it never leaves the package
    """What about a graph is not as in any detector."""


class Head(NamedTuple):
    """The head of a graph.

    Attributes:
        tensor: Its name; a graph output, or where an end-to-end graph is to be cut.
        anchors_first: It is `[B, N, 4 + C]` instead of `[B, 4 + C, N]`.
        box_format: What the box rows are; None if their decode is not recognised.
        class_count: C; None if it is not to be found.
    """

    tensor: str
    anchors_first: bool
    box_format: BoxFormat | None
    class_count: int | None


def find_head(index: GraphIndex, metadata: dict[str, str]) -> Head:
    """Find the head of a graph.

    Raises:
        Unrecognised: There is none that detcli knows.
    """
    place = _place(index, metadata)
    return Head(
        tensor=place.tensor,
        anchors_first=place.anchors_first,
        box_format=_box_format(index, box_rows(index, place.tensor)),
        class_count=_class_count(index, place),
    )


class Place(NamedTuple):
    """Where a head is: its tensor, which way round, and the tensor of its scores alone."""

    tensor: str
    anchors_first: bool
    scores: str


def _place(index: GraphIndex, metadata: dict[str, str]) -> Place:
    if len(index.graph.output) != 1:
        raise Unrecognised(f"it has {len(index.graph.output)} outputs")
    if cut_at := _end_to_end_head(index):
        return cut_at
    if own := {node.op_type for node in index.graph.node} & SELECTION:
        reason = f"it selects boxes itself ({', '.join(sorted(own))}), and where is not clear"
        raise Unrecognised(reason)
    head = index.graph.output[0].name
    join, swapped = _join(index, head)
    if join is not None:
        return Place(head, (_axis(join) == 2) != swapped, scores=join.input[1])
    by_names = _anchors_first_by_names(index.shapes.get(head, []), metadata)
    if by_names is None:
        raise Unrecognised("its output is no detection head")
    return Place(head, by_names, scores=head)


def score_rows(index: GraphIndex, head: str) -> str:
    """The tensor with the class scores, where it is joined to the boxes; else the head."""
    join, _ = _join(index, head)
    return head if join is None else str(join.input[1])


def box_rows(index: GraphIndex, head: str) -> str:
    """The tensor with the four box rows, where it is joined to the scores; else the head."""
    join, _ = _join(index, head)
    if join is None:
        return head
    rows = index.shapes.get(join.input[0], [None] * 3)[_axis(join)]
    if isinstance(rows, int) and rows != BOX_ROWS:
        raise Unrecognised(f"{rows} rows come before its class scores, not 4")
    boxes: str = join.input[0]
    return boxes


def _end_to_end_head(index: GraphIndex) -> Place | None:
    """The tensor that feeds the first top-k stage.

    TopK <- ReduceMax over the classes <- Split into boxes and scores (<- Transpose) <- body.
    The scores may have had their NaN replaced, as in what `detcli convert --end-to-end` appends.
    """
    for node in index.graph.node:
        reduced = index.producer(node.input[0]) if node.op_type == "TopK" else None
        if reduced is None or reduced.op_type != "ReduceMax":
            continue
        split = index.producer(reduced.input[0])
        if split is not None and split.op_type == "Where":  # IsNaN(scores), 0, scores
            split = index.producer(split.input[2])
        if split is None or not _splits_off_boxes(index, split):
            continue
        joined = split.input[0]
        transpose = index.producer(joined)
        if transpose is not None and swaps_last_axes(transpose):
            return Place(transpose.input[0], anchors_first=False, scores=split.output[-1])
        return Place(joined, index.axes(reduced) in ([-1], [2]), scores=split.output[-1])
    return None


def _splits_off_boxes(index: GraphIndex, node: NodeProto) -> bool:
    """Whether a node leaves all behind the four box rows: the scores, and nothing else."""
    if node.op_type == "Slice" and len(node.input) > 3:  # data, starts, ends, axes
        start, end, axis = (index.constant(name) for name in node.input[1:4])
        dims = index.shapes.get(node.input[0], [])
        last = known_size(dims[axis[0]]) if axis and len(dims) == 3 else None
        return start == [BOX_ROWS] and end is not None and end[0] >= (last or 0)
    return node.op_type == "Split" and len(node.output) == 2


def _join(index: GraphIndex, head: str) -> tuple[NodeProto | None, bool]:
    """The Concat of boxes and scores behind a head, and whether a Transpose follows it."""
    node = index.producer(head)
    swapped = node is not None and swaps_last_axes(node)
    if node is not None and swapped:
        node = index.producer(node.input[0])
    if node is None or node.op_type != "Concat" or len(node.input) != 2 or _axis(node) == 0:
        return None, swapped
    return node, swapped


def _axis(concat: NodeProto) -> int:
    """The axis of a Concat of three-axis tensors."""
    return attribute(concat, "axis", 0) % 3


def _anchors_first_by_names(dims: list[int | str | None], metadata: dict[str, str]) -> bool | None:
    """Whether a head is [B, N, 4 + C], where no join of boxes and scores is to be seen.

    Only a match of one axis with the number of class names is certain; None without it.
    """
    names = parse_names(metadata.get("names", ""))
    channels = BOX_ROWS + len(names) if names else None
    if len(dims) == 3 and channels in dims[1:] and dims[1] != dims[2]:
        return channels == dims[2]
    return None


def _box_format(index: GraphIndex, boxes: str) -> BoxFormat | None:
    """What the decode nodes compute, looking back from the box rows; None if not recognised."""
    level = {boxes}
    for _ in range(DECODE_DEPTH):
        nodes = [node for node in map(index.producer, sorted(level)) if node is not None]
        for node in nodes:
            parts = [index.producer(name) for name in node.input]
            if node.op_type == "Concat" and len({_operator(part) for part in parts}) > 1:
                return _joined_format(index, parts)
        # Scaling and reshaping keep the format, as does joining boxes that were decoded apart;
        # behind any other arithmetic it would be another one.
        kept = [node for node in nodes if node.op_type in FORMAT_KEPT]
        level = {name for node in kept for name in node.input if name}
    return None


def _joined_format(index: GraphIndex, parts: list[NodeProto | None]) -> BoxFormat | None:
    """What a Concat of differently computed halves or sides of a box is."""
    match [_operator(part) for part in parts]:
        case ["Sub", "Add"] | ["Sub", "Sub", "Add", "Add"]:
            return BoxFormat.XYXY
        case ["Div" | "Mul", "Sub"] | ["Div" | "Mul", "Div" | "Mul", "Sub", "Sub"]:
            return BoxFormat.CXCYWH if _halves_a_sum(index, parts[0]) else None
    return None


def _operator(node: NodeProto | None) -> str:
    return node.op_type if node is not None else ""


def _halves_a_sum(index: GraphIndex, node: NodeProto | None) -> bool:
    return node is not None and "Add" in {_operator(index.producer(name)) for name in node.input}


def _class_count(index: GraphIndex, place: Place) -> int | None:
    dims = index.shapes.get(place.tensor, [])
    channels = dims[2 if place.anchors_first else 1] if len(dims) == 3 else None
    if isinstance(channels, int):
        return channels - BOX_ROWS if channels > BOX_ROWS else None
    # Where the shape depends on the input's, a Split may still tell.
    return _split_size(index, place.scores)


def _split_size(index: GraphIndex, tensor: str) -> int | None:
    """How many channels a Split gives a tensor, behind a sigmoid or not; None if it does not."""
    node = index.producer(tensor)
    if node is not None and node.op_type == "Sigmoid":
        tensor = node.input[0]
        node = index.producer(tensor)
    if node is None or node.op_type != "Split" or tensor not in node.output:
        return None
    sizes = index.constant(node.input[1]) if len(node.input) > 1 else None
    return sizes[list(node.output).index(tensor)] if sizes else None


def swaps_last_axes(node: NodeProto) -> bool:
    """Whether a node is a Transpose between channels first and anchors first."""
    permutation = next((list(a.ints) for a in node.attribute if a.name == "perm"), [])
    return node.op_type == "Transpose" and permutation == [0, 2, 1]
