"""How a detector's graph ends, where it would be cut, and what says so."""

from collections import Counter

from onnx import ModelProto

from detcli.inspection.report import Cut, Detector, Tensor
from detcli.inspection.tensors import describe_tensor
from detcli.model.contract import BoxFormat, Contract, Layout
from detcli.model.graph import GraphIndex, known_size, needed_nodes, shape

JOINED = "its output is a join of four box rows and the class scores"
LAYOUTS = {
    Layout.BODY: JOINED,
    Layout.TRANSPOSED_BODY: f"{JOINED}, transposed: anchors come first",
    Layout.ONE_TO_MANY: f"{JOINED}; the boxes are centres and sizes, as in heads that give several "
    "boxes for each object",
}
BOX_FORMATS = {
    BoxFormat.XYXY: "the decode joins a difference and a sum (Sub, Add): two corners",
    BoxFormat.CXCYWH: "the decode joins a halved sum and a difference: centre and size",
}


def describe(model: ModelProto, contract: Contract, asked: BoxFormat | None) -> Detector:
    """Say what a detector promises, and which of its nodes say so.

    Args:
        model: With the shapes of its tensors.
        contract: What `recognise` found.
        asked: The box format that the user says it has, if any.
    """
    index = GraphIndex(model.graph)
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    end_to_end = contract.layout is Layout.END_TO_END
    cut = _cut(index, contract.head) if end_to_end else None
    reason = LAYOUTS[contract.layout] if not end_to_end else _selection(index)
    if contract.layout is Layout.ONE_TO_MANY and metadata.get("end2end") == "False":
        reason = f"{JOINED}; its metadata says that it is not end-to-end"
    return Detector(
        layout=contract.layout,
        layout_reason=reason,
        head=_head(index, contract),
        cut=cut,
        box_format=contract.box_format,
        box_format_reason="--box-format" if asked else BOX_FORMATS[contract.box_format],
        class_count=contract.class_count,
        anchor_count=contract.anchor_count,
        batch=contract.batch,
        input_size=contract.input_size,
        default_size=contract.default_size,
        stride=contract.stride,
        stride_origin="the model's metadata"
        if metadata.get("stride")
        else "that of all YOLO detectors with three scales, since the model names none",
        names=contract.names,
        names_origin=contract.names_origin,
    )


def _head(index: GraphIndex, contract: Contract) -> Tensor:
    # An output says what its axes are called, before what was inferred for the same tensor.
    values = {value.name: value for value in (*index.graph.value_info, *index.graph.output)}
    value = values.get(contract.head)
    if value is not None and shape(value):
        return describe_tensor(value)
    channels = contract.class_count + 4
    axes = (None, channels) if contract.anchors_first else (channels, None)
    return Tensor(contract.head, contract.input_dtype, (contract.batch, *axes))


def _selection(index: GraphIndex) -> str:
    names = [node.name or node.output[0] for node in index.graph.node if node.op_type == "TopK"]
    stages = " and ".join(names)
    return f"{stages} (TopK) pick boxes by the maxima of the class scores (ReduceMax)"


def _cut(index: GraphIndex, head: str) -> Cut:
    kept, _ = needed_nodes(index.graph, head)
    made = {name for node in kept for name in node.output}
    dropped = [node for node in index.graph.node if made.isdisjoint(node.output)]
    limits = []
    for node in dropped:
        if node.op_type == "TopK":
            count = index.constant(node.input[1]) if len(node.input) > 1 else None
            limits.append(count[0] if count else None)
    known = [limit for limit in limits if limit is not None]
    rows = index.shapes.get(index.graph.output[0].name, [None] * 3)[1]
    most = known_size(rows) or (min(known) if len(known) == len(limits) and known else None)
    operators = Counter(node.op_type for node in dropped)
    return Cut(head, len(kept), dict(operators.most_common()), most)
