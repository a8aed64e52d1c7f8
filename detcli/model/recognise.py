"""Reads an ONNX graph and says what it promises, by its structure; node names do not matter.

The ways that exporters end a YOLO graph are laid out in `detcli.model.contract`. The box format
is read from the decode nodes: Ultralytics' `dist2bbox` computes anchor - left/top and anchor +
right/bottom, and either joins the two corners (Concat of Sub and Add) or their centre and
difference (Concat of a halved Add, and Sub).
"""

import onnx
from onnx import NodeProto

from detcli.errors import ModelError
from detcli.model.contract import BoxFormat, Contract, Layout
from detcli.model.graph import GraphIndex, attribute, shape
from detcli.model.names import class_names, parse_names

EXPECTED = (
    "expected one image input [B, 3, H, W] and one output: [B, 4 + C, N], [B, N, 4 + C], "
    "or [B, K, 6] from two TopK stages"
)
DTYPES: dict[int, str] = {onnx.TensorProto.FLOAT: "float32", onnx.TensorProto.FLOAT16: "float16"}
DEFAULT_STRIDE = 32  # of every published YOLO detector with three scales
SELECTION = {"NonMaxSuppression", "TopK"}  # operators that end an end-to-end graph
BOX_ROWS = 4
MOST_CLASSES = 100_000  # more than any detector has; a damaged file may say billions
FORMAT_KEPT = {"Concat", "Div", "Mul", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
DECODE_DEPTH = 8  # nodes between the head and the decode of its boxes; 1 to 4 in practice


def recognise(model: onnx.ModelProto, title: str, box_format: BoxFormat | None = None) -> Contract:
    """Say what a graph promises.

    Args:
        model: The graph; intermediate shapes help (`onnx.shape_inference`).
        title: What to call it in errors.
        box_format: What the box rows are, where the caller knows better.

    Raises:
        ModelError: It is no detector of a known kind; the message lists what it has.
    """
    index = GraphIndex(model.graph)
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    image = _image_input(index, title)
    if metadata.get("task", "detect") != "detect":
        raise _refusal(index, title, f"its metadata says task '{metadata['task']}'")
    head, anchors_first = _find_head(index, metadata, title)
    box_rows = _box_rows(index, head, title)
    decoded = _box_format(index, box_rows)
    box_format = box_format or decoded
    if box_format is None:
        raise _refusal(
            index,
            title,
            "its boxes are not decoded in a known way",
            "if its head is boxes in pixels and then class scores, pass --box-format; ",
        )
    class_count = _class_count(index, head, anchors_first=anchors_first)
    if class_count is None or class_count > MOST_CLASSES:
        raise _refusal(index, title, f"the number of its classes is unclear ({class_count})")
    layout = _layout(
        end_to_end=head != model.graph.output[0].name,
        anchors_first=anchors_first,
        # Centres are what a one-to-many head is trained with, whatever the caller reads them as.
        one_to_many=metadata.get("end2end") == "False"
        or (decoded is BoxFormat.CXCYWH and metadata.get("end2end") != "True"),
    )
    names, names_origin, warnings = class_names(metadata.get("names", ""), class_count)
    head_shape = index.shapes.get(head, [None, None, None])
    batch, _, height, width = shape(image)
    return Contract(
        layout=layout,
        head=head,
        anchors_first=anchors_first,
        box_format=box_format,
        class_count=class_count,
        anchor_count=_number(head_shape[1 if anchors_first else 2]),
        input_name=image.name,
        input_dtype=DTYPES[image.type.tensor_type.elem_type],
        batch=_number(batch),
        input_size=_size(height, width),
        default_size=_size(*_integers(metadata.get("imgsz"), 2)) or (640, 640),
        stride=max(*_integers(metadata.get("stride"), 1), 0) or DEFAULT_STRIDE,
        names=names,
        names_origin=names_origin,
        warnings=warnings,
    )


def _image_input(index: GraphIndex, title: str) -> onnx.ValueInfoProto:
    inputs = index.image_inputs()
    if len(inputs) != 1:
        raise _refusal(index, title, f"it has {len(inputs)} inputs")
    dims = shape(inputs[0])
    if len(dims) != 4 or (isinstance(dims[1], int) and dims[1] != 3):  # B, 3, H, W
        raise _refusal(index, title, "its input is no batch of colour pictures")
    if dims[3] == 3 and dims[1] != 3:
        raise _refusal(index, title, "its input has the colours last, not first")
    if isinstance(dims[2], int) != isinstance(dims[3], int):
        raise _refusal(index, title, "its input fixes one side of the picture, not the other")
    if inputs[0].type.tensor_type.elem_type not in DTYPES:
        raise _refusal(index, title, "its input is neither float32 nor float16")
    return inputs[0]


def _find_head(index: GraphIndex, metadata: dict[str, str], title: str) -> tuple[str, bool]:
    """Name of the head tensor, and whether its anchors come before its channels."""
    if len(index.graph.output) != 1:
        raise _refusal(index, title, f"it has {len(index.graph.output)} outputs")
    if cut_at := _end_to_end_head(index):
        return cut_at
    if own := {node.op_type for node in index.graph.node} & SELECTION:
        reason = f"it selects boxes itself ({', '.join(sorted(own))}), and where is not clear"
        raise _refusal(index, title, reason)
    head = index.graph.output[0].name
    join, swapped = _join(index, head)
    if join is not None:
        return head, (_axis(join) == 2) != swapped
    by_names = _anchors_first_by_names(index.shapes.get(head, []), metadata)
    if by_names is None:
        raise _refusal(index, title, "its output is no detection head")
    return head, by_names


def _box_rows(index: GraphIndex, head: str, title: str) -> str:
    """The tensor with the four box rows, where it is joined to the scores; else the head."""
    join, _ = _join(index, head)
    if join is None:
        return head
    rows = index.shapes.get(join.input[0], [None] * 3)[_axis(join)]
    if isinstance(rows, int) and rows != BOX_ROWS:
        raise _refusal(index, title, f"{rows} rows come before its class scores, not 4")
    boxes: str = join.input[0]
    return boxes


def _end_to_end_head(index: GraphIndex) -> tuple[str, bool] | None:
    """The tensor that feeds the first top-k stage, and whether its anchors come first.

    TopK <- ReduceMax over the classes <- Split into boxes and scores (<- Transpose) <- body.
    """
    for node in index.graph.node:
        reduced = index.producer(node.input[0]) if node.op_type == "TopK" else None
        if reduced is None or reduced.op_type != "ReduceMax":
            continue
        split = index.producer(reduced.input[0])
        if split is None or not _splits_off_boxes(index, split):
            continue
        joined = split.input[0]
        transpose = index.producer(joined)
        if transpose is not None and _swaps_last_axes(transpose):
            return transpose.input[0], False
        return joined, index.axes(reduced) in ([-1], [2])
    return None


def _splits_off_boxes(index: GraphIndex, node: NodeProto) -> bool:
    """Whether a node leaves all behind the four box rows: the scores, and nothing else."""
    if node.op_type == "Slice" and len(node.input) > 3:  # data, starts, ends, axes
        start, end, axis = (index.constant(name) for name in node.input[1:4])
        dims = index.shapes.get(node.input[0], [])
        last = _number(dims[axis[0]]) if axis and len(dims) == 3 else None
        return start == [BOX_ROWS] and end is not None and end[0] >= (last or 0)
    return node.op_type == "Split" and len(node.output) == 2


def _join(index: GraphIndex, head: str) -> tuple[NodeProto | None, bool]:
    """The Concat of boxes and scores behind a head, and whether a Transpose follows it."""
    node = index.producer(head)
    swapped = node is not None and _swaps_last_axes(node)
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


def _class_count(index: GraphIndex, head: str, *, anchors_first: bool) -> int | None:
    dims = index.shapes.get(head, [])
    channels = dims[2 if anchors_first else 1] if len(dims) == 3 else None
    if isinstance(channels, int):
        return channels - BOX_ROWS if channels > BOX_ROWS else None
    for node in index.graph.node:  # the sizes that an in-graph tail splits the head into
        if node.op_type == "Split" and len(node.input) > 1:
            sizes = index.constant(node.input[1])
            if sizes and len(sizes) == 2 and sizes[0] == BOX_ROWS:
                return sizes[1]
    return None


def _layout(*, end_to_end: bool, anchors_first: bool, one_to_many: bool) -> Layout:
    if end_to_end:
        return Layout.END_TO_END
    if one_to_many:
        return Layout.ONE_TO_MANY
    return Layout.TRANSPOSED_BODY if anchors_first else Layout.BODY


def _swaps_last_axes(node: NodeProto) -> bool:
    permutation = next((list(a.ints) for a in node.attribute if a.name == "perm"), [])
    return node.op_type == "Transpose" and permutation == [0, 2, 1]


def _number(dim: int | str | None) -> int | None:
    return dim if isinstance(dim, int) and dim > 0 else None


def _size(height: int | str | None, width: int | str | None) -> tuple[int, int] | None:
    sides = _number(height), _number(width)
    return (sides[0], sides[1]) if sides[0] and sides[1] else None


def _integers(text: str | None, count: int) -> list[int]:
    """Integers from metadata such as "32", "[640, 640]"; zeros for anything else."""
    parts = (text or "").strip("[]() ").split(",")
    numbers = [int(part) for part in parts if part.strip().isdecimal()]
    if len(numbers) == 1:
        numbers *= count
    return numbers if len(numbers) >= count else [0] * count


def _refusal(index: GraphIndex, title: str, reason: str, hint: str = "") -> ModelError:
    inputs = ", ".join(map(_signature, index.image_inputs())) or "none"
    outputs = ", ".join(map(_signature, index.graph.output)) or "none"
    return ModelError(
        f"{title} is not a detector that detcli knows: {reason}. "
        f"Inputs: {inputs}. Outputs: {outputs}",
        hint + EXPECTED,
    )


def _signature(value: onnx.ValueInfoProto) -> str:
    number = value.type.tensor_type.elem_type
    dtypes = {code: name.lower() for name, code in onnx.TensorProto.DataType.items()}
    dims = ", ".join("?" if dim is None else str(dim) for dim in shape(value))
    return f"{value.name} {dtypes.get(number, f'type {number}')}[{dims}]"
