"""Reads an ONNX graph and says what it promises, by its structure; node names do not matter."""

import onnx

from detcli.errors import ModelError
from detcli.model.contract import BoxFormat, Contract, Layout
from detcli.model.graph import GraphIndex, known_size, shape
from detcli.model.head import Unrecognised, find_head
from detcli.model.names import class_names

EXPECTED = (
    "expected one image input [B, 3, H, W] and one output: [B, 4 + C, N], [B, N, 4 + C], "
    "or [B, K, 6] from two TopK stages"
)
UNKNOWN_BOXES = "if its head is boxes in pixels and then class scores, pass --box-format; "
DTYPES: dict[int, str] = {onnx.TensorProto.FLOAT: "float32", onnx.TensorProto.FLOAT16: "float16"}
DEFAULT_STRIDE = 32  # of every published YOLO detector with three scales
MOST_CLASSES = 100_000  # more than any detector has; a damaged file may say billions


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
    try:
        return _contract(index, metadata, box_format)
    except Unrecognised as error:
        inputs = ", ".join(map(_signature, index.image_inputs())) or "none"
        outputs = ", ".join(map(_signature, index.graph.output)) or "none"
        reason, *hint = error.args
        raise ModelError(
            f"{title} is not a detector that detcli knows: {reason}. "
            f"Inputs: {inputs}. Outputs: {outputs}",
            "".join([*hint, EXPECTED]),
        ) from error


def _contract(
    index: GraphIndex, metadata: dict[str, str], box_format: BoxFormat | None
) -> Contract:
    image = _image_input(index)
    if metadata.get("task", "detect") != "detect":
        raise Unrecognised(f"its metadata says task '{metadata['task']}'")
    head = find_head(index, metadata)
    box_format = box_format or head.box_format
    if box_format is None:
        raise Unrecognised("its boxes are not decoded in a known way", UNKNOWN_BOXES)
    count = head.class_count
    if count is None or count > MOST_CLASSES:
        raise Unrecognised(f"the number of its classes is unclear ({count})")
    names, names_origin, warnings = class_names(metadata.get("names", ""), count)
    head_shape = index.shapes.get(head.tensor, [None, None, None])
    batch, _, height, width = shape(image)
    return Contract(
        layout=_layout(
            end_to_end=head.tensor != index.graph.output[0].name,
            anchors_first=head.anchors_first,
            # Centres are what a one-to-many head is trained with, whatever they are read as.
            one_to_many=metadata.get("end2end") == "False"
            or (head.box_format is BoxFormat.CXCYWH and metadata.get("end2end") != "True"),
        ),
        head=head.tensor,
        anchors_first=head.anchors_first,
        box_format=box_format,
        class_count=count,
        anchor_count=known_size(head_shape[1 if head.anchors_first else 2]),
        input_name=image.name,
        input_dtype=DTYPES[image.type.tensor_type.elem_type],
        batch=known_size(batch),
        input_size=_size(height, width),
        default_size=_size(*_integers(metadata.get("imgsz"), 2)) or (640, 640),
        stride=max(*_integers(metadata.get("stride"), 1), 0) or DEFAULT_STRIDE,
        names=names,
        names_origin=names_origin,
        warnings=warnings,
    )


def _image_input(index: GraphIndex) -> onnx.ValueInfoProto:
    inputs = index.image_inputs()
    if len(inputs) != 1:
        raise Unrecognised(f"it has {len(inputs)} inputs")
    dims = shape(inputs[0])
    if len(dims) != 4 or (isinstance(dims[1], int) and dims[1] != 3):  # B, 3, H, W
        raise Unrecognised("its input is no batch of colour pictures")
    if dims[3] == 3 and dims[1] != 3:
        raise Unrecognised("its input has the colours last, not first")
    if isinstance(dims[2], int) != isinstance(dims[3], int):
        raise Unrecognised("its input fixes one side of the picture, not the other")
    if inputs[0].type.tensor_type.elem_type not in DTYPES:
        raise Unrecognised("its input is neither float32 nor float16")
    return inputs[0]


def _layout(*, end_to_end: bool, anchors_first: bool, one_to_many: bool) -> Layout:
    if end_to_end:
        return Layout.END_TO_END
    if one_to_many:
        return Layout.ONE_TO_MANY
    return Layout.TRANSPOSED_BODY if anchors_first else Layout.BODY


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


def _signature(value: onnx.ValueInfoProto) -> str:
    number = value.type.tensor_type.elem_type
    dtypes = {code: name.lower() for name, code in onnx.TensorProto.DataType.items()}
    dims = ", ".join("?" if dim is None else str(dim) for dim in shape(value))
    return f"{value.name} {dtypes.get(number, f'type {number}')}[{dims}]"
