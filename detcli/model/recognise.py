"""Recognises what an ONNX graph promises by its structure; node names do not matter.

`detcli.model.contract` lists the ways in which exporters end a YOLO graph. The box format
is read from the decode nodes: Ultralytics' `dist2bbox` computes anchor - left/top and anchor +
right/bottom, and either joins the two corners (Concat of Sub and Add) or their centre and
difference (Concat of a halved Add, and Sub).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import onnx
from onnx import NodeProto

from detcli.errors import ModelError
from detcli.model.contract import BoxFormat, Contract, Layout, Preprocessing, ScoreForm
from detcli.model.graph import GraphIndex, attribute, known_size, shape
from detcli.model.names import class_names, parse_names
from detcli.model.settle import settled
from detcli.model.sidecar import Sidecar

EXPECTED = (
    "expected one image input [B, 3, H, W] and one output: [B, 4 + C, N], [B, N, 4 + C], "
    "or [B, K, 6] from two TopK stages"
)
UNKNOWN_BOXES = "if its head is boxes in pixels and then class scores, pass --box-format; "
DTYPES: dict[int, str] = {onnx.TensorProto.FLOAT: "float32", onnx.TensorProto.FLOAT16: "float16"}
DEFAULT_STRIDE = 32  # of every published YOLO detector with three scales
MAX_STRIDE = 1024
MAX_INPUT = 1 << 28  # pixels of a batch; as floats, 3 GiB
MAX_LISTED = 8  # inputs and outputs in a message
MAX_CLASSES = 100_000  # more than any detector has; a damaged file may say billions
BOX_ROWS = 4
SELECTION = {"NonMaxSuppression", "TopK"}  # operators that end an end-to-end graph
FORMAT_KEPT = {"Concat", "Div", "Mul", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
DECODE_DEPTH = 8  # nodes between the head and the decode of its boxes; 1 to 4 in practice


class _Unrecognised(Exception):  # noqa: N818 - never leaves this module
    """How a graph differs from every known detector; a second argument is a hint."""


class _Head(NamedTuple):
    """Where the head is.

    Attributes:
        tensor: Its name; a graph output, or where an end-to-end graph is to be cut.
        anchors_first: Whether it is `[B, N, 4 + C]` instead of `[B, 4 + C, N]`.
        scores: The tensor of the class scores alone; the head where they are not apart.
    """

    tensor: str
    anchors_first: bool
    scores: str


def recognise(
    model: onnx.ModelProto,
    title: str,
    box_format: BoxFormat | None = None,
    sidecar: Sidecar | None = None,
) -> Contract:
    """Recognise what a graph promises.

    Args:
        model: The graph; intermediate shapes help (`onnx.shape_inference`).
        title: What to call it in errors.
        box_format: The format of the box rows, where the caller knows better.
        sidecar: What lies beside the file.

    Raises:
        ModelError: The graph is not a known kind of detector; the message lists what it has.
    """
    index = GraphIndex(model.graph)
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    try:
        contract = _contract(index, metadata, box_format)
    except _Unrecognised as error:
        inputs, outputs = map(_signatures, (index.image_inputs(), index.graph.output))
        reason, *hint = error.args
        raise ModelError(
            f"{title} is not a detector that detcli knows: {reason}. "
            f"Inputs: {inputs}. Outputs: {outputs}",
            "".join([*hint, EXPECTED]),
        ) from error
    return settled(contract, index, metadata, sidecar, contract.preprocessing)


def _contract(index: GraphIndex, metadata: dict[str, str], asked: BoxFormat | None) -> Contract:
    image = _image_input(index)
    if metadata.get("task", "detect") != "detect":
        raise _Unrecognised(f"its metadata says task '{metadata['task']}'")
    head = _find_head(index, metadata)
    found = _box_format(index, box_rows(index, head.tensor))
    count = _class_count(index, head)
    box_format = asked or found
    if box_format is None:
        raise _Unrecognised("its boxes are not decoded in a known way", UNKNOWN_BOXES)
    if count is None or count > MAX_CLASSES:
        raise _Unrecognised(f"the number of its classes is unclear ({count})")
    names, names_origin, warnings = class_names(metadata.get("names", ""), count)
    head_shape = index.shapes.get(head.tensor, [None, None, None])
    default = _size(*_integers(metadata.get("imgsz"), 2))
    stride = max(_integers(metadata.get("stride"), 1))
    batch, _, height, width = shape(image)
    # A one-to-many head is trained with centres, whatever the caller calls its boxes.
    one_to_many = {"False": True, "True": False}.get(
        metadata.get("end2end", ""), found is BoxFormat.CXCYWH
    )
    if head.tensor != index.graph.output[0].name:
        layout = Layout.END_TO_END
    elif one_to_many:
        layout = Layout.ONE_TO_MANY
    else:
        layout = Layout.TRANSPOSED_BODY if head.anchors_first else Layout.BODY
    return Contract(
        family="yolo",
        layout=layout,
        heads=(head.tensor,),
        head=head.tensor,
        anchors_first=head.anchors_first,
        box_format=box_format,
        box_fractions=False,
        score_form=ScoreForm.FINAL,
        one_class=False,
        needs_nms=one_to_many,
        preprocessing=Preprocessing(),
        class_count=count,
        anchor_count=known_size(head_shape[1 if head.anchors_first else 2]),
        input_name=image.name,
        input_dtype=DTYPES[image.type.tensor_type.elem_type],
        batch=known_size(batch),
        input_size=_size(height, width),
        default_size=default if default and math.prod(default) <= MAX_INPUT else (640, 640),
        stride=stride if 0 < stride <= MAX_STRIDE else DEFAULT_STRIDE,
        names=names,
        names_origin=names_origin,
        warnings=warnings,
    )


def _image_input(index: GraphIndex) -> onnx.ValueInfoProto:
    inputs = index.image_inputs()
    if len(inputs) != 1:
        raise _Unrecognised(f"it has {len(inputs)} inputs")
    dims = shape(inputs[0])
    if len(dims) != 4 or (isinstance(dims[1], int) and dims[1] != 3):  # B, 3, H, W
        raise _Unrecognised("its input is not a batch of colour images")
    if dims[3] == 3 and dims[1] != 3:
        raise _Unrecognised("its input has the channels last, not first")
    if isinstance(dims[2], int) != isinstance(dims[3], int):
        raise _Unrecognised("its input fixes one side of the image but not the other")
    if inputs[0].type.tensor_type.elem_type not in DTYPES:
        raise _Unrecognised("its input is neither float32 nor float16")
    sizes = [known_size(dims[axis]) or 1 for axis in (0, 2, 3)]
    if math.prod(sizes) > MAX_INPUT:
        raise _Unrecognised(f"its input has {math.prod(sizes)} pixels")
    return inputs[0]


def _size(height: int | str | None, width: int | str | None) -> tuple[int, int] | None:
    sides = known_size(height), known_size(width)
    return (sides[0], sides[1]) if sides[0] and sides[1] else None


def _integers(text: str | None, count: int) -> list[int]:
    """Integers from metadata such as "32", "[640, 640]"; zeros for anything else."""
    parts = (text or "").strip("[]() ").split(",")
    numbers = [int(part) for part in parts if part.strip().isdecimal()]
    if len(numbers) == 1:
        numbers *= count
    return numbers if len(numbers) >= count else [0] * count


def _signatures(values: Sequence[onnx.ValueInfoProto]) -> str:
    listed = ", ".join(map(_signature, values[:MAX_LISTED])) or "none"
    rest = len(values) - MAX_LISTED
    return listed if rest <= 0 else f"{listed} and {rest} more"


def _signature(value: onnx.ValueInfoProto) -> str:
    number = value.type.tensor_type.elem_type
    dtypes = {code: name.lower() for name, code in onnx.TensorProto.DataType.items()}
    dims = ", ".join("?" if dim is None else str(dim) for dim in shape(value))
    return f"{value.name} {dtypes.get(number, f'type {number}')}[{dims}]"


def _find_head(index: GraphIndex, metadata: dict[str, str]) -> _Head:
    if len(index.graph.output) != 1:
        raise _Unrecognised(f"it has {len(index.graph.output)} outputs")
    if cut_at := _end_to_end_head(index):
        return cut_at
    if own := {node.op_type for node in index.graph.node} & SELECTION:
        reason = f"it selects boxes itself ({', '.join(sorted(own))}), and where is not clear"
        raise _Unrecognised(reason)
    head = index.graph.output[0].name
    join, swapped = _join(index, head)
    if join is not None:
        return _Head(head, (_axis(join) == 2) != swapped, scores=join.input[1])
    by_names = _anchors_first_by_names(index.shapes.get(head, []), metadata)
    if by_names is None:
        raise _Unrecognised("its output is not a detection head")
    return _Head(head, by_names, scores=head)


def score_rows(index: GraphIndex, head: str) -> str:
    """The tensor of class scores, where a head joins it to the boxes; else the head."""
    join, _ = _join(index, head)
    return head if join is None else str(join.input[1])


def box_rows(index: GraphIndex, head: str) -> str:
    """The tensor of the four box rows, where a head joins it to the scores; else the head."""
    join, _ = _join(index, head)
    if join is None:
        return head
    rows = index.shapes.get(join.input[0], [None] * 3)[_axis(join)]
    if isinstance(rows, int) and rows != BOX_ROWS:
        raise _Unrecognised(f"{rows} rows come before its class scores, not 4")
    return str(join.input[0])


def _end_to_end_head(index: GraphIndex) -> _Head | None:
    """The tensor that feeds the first top-k stage.

    TopK <- ReduceMax over the classes <- Split into boxes and scores (<- Transpose) <- body.
    NaN scores may have been replaced, as in what `detcli convert --end-to-end` appends.
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
            return _Head(transpose.input[0], anchors_first=False, scores=split.output[-1])
        return _Head(joined, index.axes(reduced) in ([-1], [2]), scores=split.output[-1])
    return None


def _splits_off_boxes(index: GraphIndex, node: NodeProto) -> bool:
    """Whether a node's last output is everything after the four box rows: the scores."""
    if node.op_type == "Slice" and len(node.input) > 3:  # data, starts, ends, axes
        start, end, axis = (index.constant(name) for name in node.input[1:4])
        dims = index.shapes.get(node.input[0], [])
        last = known_size(dims[axis[0]]) if axis and len(dims) == 3 else None
        return start == [BOX_ROWS] and end is not None and end[0] >= (last or 0)
    return node.op_type == "Split" and len(node.output) == 2


def _join(index: GraphIndex, head: str) -> tuple[NodeProto | None, bool]:
    """The Concat of boxes and scores that makes a head, and whether a Transpose follows it."""
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
    """Whether a head is [B, N, 4 + C], where no join of boxes and scores shows it.

    Known only if exactly one axis matches the number of class names; else None.
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
        # Scaling and reshaping keep the format, and so does joining boxes that were decoded
        # separately; any other arithmetic changes it.
        kept = [node for node in nodes if node.op_type in FORMAT_KEPT]
        level = {name for node in kept for name in node.input if name}
    return None


def _joined_format(index: GraphIndex, parts: list[NodeProto | None]) -> BoxFormat | None:
    """The format that a Concat of differently computed halves or sides of a box makes."""
    match [_operator(part) for part in parts]:
        case ["Sub", "Add"] | ["Sub", "Sub", "Add", "Add"]:
            return BoxFormat.XYXY
        case ["Div" | "Mul", "Sub"] | ["Div" | "Mul", "Div" | "Mul", "Sub", "Sub"]:
            halved = parts[0].input if parts[0] is not None else ()
            sums = [name for name in halved if _operator(index.producer(name)) == "Add"]
            return BoxFormat.CXCYWH if sums else None
    return None


def _operator(node: NodeProto | None) -> str:
    return node.op_type if node is not None else ""


def _class_count(index: GraphIndex, head: _Head) -> int | None:
    dims = index.shapes.get(head.tensor, [])
    channels = dims[2 if head.anchors_first else 1] if len(dims) == 3 else None
    if isinstance(channels, int):
        return channels - BOX_ROWS if channels > BOX_ROWS else None
    # Where the shape depends on the input's, a Split may still tell, before a sigmoid or not.
    tensor = head.scores
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
