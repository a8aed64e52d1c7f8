"""Examines a model file: what it contains, promises and needs."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from onnx import ModelProto, ValueInfoProto

from detcli.backend import survey
from detcli.commands.inspect.advice import advise_on_detector, advise_on_graph
from detcli.commands.inspect.network import count_operations, describe_precision
from detcli.commands.inspect.report import (
    CutPoint,
    DetectorFacts,
    DynamicAxis,
    FedInput,
    Inspection,
    ModelProblem,
    TensorInfo,
)
from detcli.model.contract import BoxFormat, Contract, Layout, ScoreForm
from detcli.model.graph import GraphIndex, dtype_name, known_size, needed_nodes, parameters, shape
from detcli.model.heads.decode import BoxDecode
from detcli.model.heads.head import SELECTION
from detcli.model.loading import ModelFile, damage_reported
from detcli.model.names import read_names
from detcli.model.preprocessing import PARTS, written
from detcli.model.recognise import Reading

MAX_SYMBOL = 40  # characters; longer ones are whole formulas that an exporter derived

JOINED = "its output joins four box rows and the class scores"
LAYOUTS = {
    Layout.END_TO_END: "{} (TopK) pick boxes by the maxima of the class scores (ReduceMax)",
    Layout.BODY: JOINED,
    Layout.TRANSPOSED_BODY: f"{JOINED}, transposed to anchors first",
    Layout.ONE_TO_MANY: f"{JOINED}; boxes are centres and sizes, as in heads that give several "
    "boxes for each object",
    Layout.PAIR: "boxes and scores are apart, with an entry in both for each anchor or query",
    Layout.SCALES: "boxes and scores of each scale are maps of their own",
    Layout.ROWS: "detections that the graph selects itself",
}
BOX_FORMATS = {
    BoxFormat.XYXY: "the decode joins a difference and a sum (Sub, Add): two corners",
    BoxFormat.CXCYWH: "the decode joins a halved sum and a difference: centre and size",
}
CENTRES = {
    BoxDecode.SIGMOID: "a sigmoid of a layer's output: centre and size",
    BoxDecode.REFINED: "a sigmoid of shifted references: centre and size",
    BoxDecode.EXPONENTIAL: "the decode adds to a reference and takes the exponential: centre and "
    "size",
    BoxDecode.GRID: "the decode adds a grid and scales by strides: centre and size",
    BoxDecode.LINEAR: "a layer's output, which detcli adds to a grid: centre and size",
}
"""Of boxes as centre and size, by how they are decoded."""


def examine(  # noqa: PLR0913 - one parameter an option
    path: Path,
    *,
    box_format: BoxFormat | None = None,
    preprocess: str | None = None,
    boxes_only: bool = False,
    imgsz: int | None = None,
    names: Path | None = None,
) -> Inspection:
    """Examine a model file.

    Args:
        path: An ONNX file, with any external data beside it.
        box_format: The format of the box rows, where the graph does not show it.
        preprocess: Parts of the preprocessing, where the file does not say them.
        boxes_only: Read the boxes of a graph that gives masks or keypoints too.
        imgsz: Side length of the input to count operations for, for graphs with dynamic axes.
        names: A file with class names, to use instead of the model's own.

    Raises:
        ModelError: The file cannot be read at all. One that cannot be used is reported.
        UsageError: The image size or the names do not fit the model.
    """
    file = ModelFile.read(path, box_format, preprocess, boxes_only=boxes_only)
    with damage_reported(path):
        model, contract, refusal = file.model, file.contract, file.refusal
        index = GraphIndex(model.graph)
        weights = parameters(index)
        inputs = tuple(map(describe_tensor, index.image_inputs()))
        outputs = tuple(map(describe_tensor, model.graph.output))
        metadata = {entry.key: entry.value for entry in model.metadata_props}
        warnings = [*advise_on_graph(model, file.external, weights)]
        graph = model
        detector = problem = None
        if contract is not None:
            if names is not None:
                contract = contract.with_names(read_names(names), str(names))
            graph = file.body()  # what detcli runs
            detector = describe(model, replace(file.reading(), contract=contract), box_format)
            warnings[:0] = advise_on_detector(detector, metadata)
        placements = survey(graph.SerializeToString(), path.name)
        if refusal is not None:
            problem = ModelProblem(str(refusal), refusal.hint)
        elif not any(placement.usable for placement in placements):
            problem = ModelProblem(placements[-1].reason, placements[-1].hint)
        inspection: Inspection = decoded(
            Inspection(
                model=str(path),
                bytes=len(file.content),
                sha256=file.sha256,
                external=file.external,
                producer=f"{model.producer_name} {model.producer_version}".strip(),
                ir_version=model.ir_version,
                opsets={entry.domain or "ai.onnx": entry.version for entry in model.opset_import},
                inputs=inputs,
                outputs=outputs,
                dynamic_axes=dynamic_axes((*inputs, *outputs)),
                nodes=dict(Counter(node.op_type for node in model.graph.node).most_common()),
                parameters=sum(math.prod(tensor.dims) for tensor in weights),
                precision=describe_precision(index, weights),
                operations=count_operations(graph, _input_shape(index, contract, imgsz)),
                metadata=metadata,
                detector=detector,
                problem=problem,
                placements=placements,
                warnings=tuple(warnings),
            )
        )
        return inspection


def _input_shape(
    index: GraphIndex, contract: Contract | None, imgsz: int | None
) -> tuple[int | None, ...]:
    """The input shape to count operations for: one image, unless the graph takes more."""
    if contract is not None:
        return (contract.batch or 1, 3, *contract.canvas(imgsz))
    inputs = index.image_inputs()
    return tuple(map(known_size, shape(inputs[0]))) if len(inputs) == 1 else ()


def describe_tensor(value: ValueInfoProto) -> TensorInfo:
    """Name, type and shape of a tensor."""
    dims = (None if isinstance(dim, str) and len(dim) > MAX_SYMBOL else dim for dim in shape(value))
    return TensorInfo(value.name, dtype_name(value.type.tensor_type.elem_type), tuple(dims))


def dynamic_axes(tensors: Iterable[TensorInfo]) -> tuple[DynamicAxis, ...]:
    """Group the axes without a fixed size by symbol; those of one symbol have the same size."""
    places: dict[str, list[str]] = {}
    for tensor in tensors:
        for number, dim in enumerate(tensor.shape):
            if known_size(dim) is None:
                symbol = dim if isinstance(dim, str) else "?"
                places.setdefault(symbol, []).append(f"{tensor.name}[{number}]")
    return tuple(DynamicAxis(name, tuple(found)) for name, found in places.items())


def describe(model: ModelProto, reading: Reading, asked: BoxFormat | None) -> DetectorFacts:
    """Describe what a detector promises, and which of its nodes show it.

    The model has the shapes of its tensors; `asked` is the box format that the user gave, if any.
    """
    index, contract = GraphIndex(model.graph), reading.contract
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    own = contract.heads or (contract.head,)
    return DetectorFacts(
        family=contract.family,
        layout=contract.layout,
        layout_reason=_layout_reason(index, reading, metadata),
        head=_head(index, contract),
        heads=tuple(_tensor(index, name) for name in own),
        cut=_cut(index, own),
        other_inputs=tuple(FedInput(o.name, o.role) for o in reading.adaptation.others),
        box_format=contract.box_format,
        box_format_reason="--box-format" if asked else _box_reason(reading),
        box_unit="fractions" if contract.box_fractions else "pixels",
        score_form=contract.score_form,
        score_reason=_score_reason(reading),
        one_class=contract.one_class,
        needs_nms=contract.needs_nms,
        conf=contract.conf,
        nms=contract.nms,
        preprocessing=written(contract.preprocessing),
        preprocessing_origins={part: by for part, by in contract.settled if part in PARTS},
        unsettled=contract.unsettled,
        class_count=contract.class_count,
        anchor_count=contract.anchor_count,
        batch=contract.batch,
        input_size=contract.input_size,
        default_size=contract.default_size,
        stride=contract.stride,
        stride_origin="the model's metadata"
        if metadata.get("stride")
        else "as in all YOLO detectors with three scales; the model gives none",
        names=contract.names,
        names_origin=contract.names_origin,
    )


def _layout_reason(index: GraphIndex, reading: Reading, metadata: dict[str, str]) -> str:
    contract, head = reading.contract, reading.adaptation.head
    if contract.layout is Layout.ONE_TO_MANY:
        if head.objectness:
            return "its output joins four box rows, an objectness and the class scores"
        if metadata.get("end2end") == "False":
            return f"{JOINED}; its metadata says it is not end-to-end"
    top_k = [node.name or node.output[0] for node in index.graph.node if node.op_type == "TopK"]
    return LAYOUTS[contract.layout].format(" and ".join(top_k))


def _box_reason(reading: Reading) -> str:
    decoded = reading.adaptation.head.decoded
    if reading.contract.layout is Layout.ROWS:
        corners = reading.contract.box_format is BoxFormat.XYXY
        return f"{'corners' if corners else 'centre and size'} of what the graph selects"
    if decoded is not None and decoded.box_format is BoxFormat.CXCYWH and decoded.how in CENTRES:
        return CENTRES[decoded.how]
    return BOX_FORMATS[reading.contract.box_format]


def _score_reason(reading: Reading) -> str:
    head, contract = reading.adaptation.head, reading.contract
    if contract.layout is Layout.ROWS:
        return "of what the graph selects"
    if head.objectness:
        return "objectness times the class's score"
    if reading.adaptation.no_object is not None:
        return "softmax over the classes and no object, which is left out"
    if contract.score_form is ScoreForm.LOGITS:
        return "a layer's output; detcli takes the sigmoid of what it selects"
    return "of each class"


def _tensor(index: GraphIndex, name: str) -> TensorInfo:
    """Describe a tensor of the graph, which may lack a shape."""
    # An output has the symbols of its axes, so it goes before what was inferred for the tensor.
    values = {value.name: value for value in (*index.graph.value_info, *index.graph.output)}
    value = values.get(name)
    return TensorInfo(name, "unknown", ()) if value is None else describe_tensor(value)


def _head(index: GraphIndex, contract: Contract) -> TensorInfo:
    found = _tensor(index, contract.head)
    if found.shape and not contract.heads:
        return found
    channels = 6 if contract.layout is Layout.ROWS else contract.class_count + 4
    anchors = contract.anchor_count
    axes = (anchors, channels) if contract.anchors_first else (channels, anchors)
    return TensorInfo(contract.head, contract.input_dtype, (contract.batch, *axes))


def _cut(index: GraphIndex, heads: tuple[str, ...]) -> CutPoint | None:
    """Where a graph is cut; None where no node after its heads selects boxes."""
    kept = [node for head in heads for node in needed_nodes(index.graph, head)[0]]
    made = {name for node in kept for name in node.output}
    dropped = [node for node in index.graph.node if made.isdisjoint(node.output)]
    operators = Counter(node.op_type for node in dropped)
    if operators.keys().isdisjoint(SELECTION):
        return None
    top_k = [node for node in dropped if node.op_type == "TopK"]
    limits = [index.constant(name) for node in top_k for name in node.input[1:2]]
    known = [limit[0] for limit in limits if limit]
    dims = index.shapes.get(index.graph.output[0].name, [])
    rows = known_size(dims[1]) if len(dims) == 3 else None
    most = rows or (min(known) if 0 < len(known) == len(top_k) else None)
    return CutPoint(
        heads[0], len(index.graph.node) - len(dropped), dict(operators.most_common()), most
    )


def decoded(value: Any) -> Any:  # noqa: ANN401 - a report, or any part of one
    """Decode all text in a report: protobuf returns bytes where a file has invalid UTF-8."""
    match value:
        case bytes():
            return value.decode("utf-8", "backslashreplace")
        case dict():
            return {decoded(key): decoded(entry) for key, entry in value.items()}
        case tuple():
            return tuple(map(decoded, value))
    if not is_dataclass(value) or isinstance(value, type):
        return value
    return replace(value, **{one.name: decoded(getattr(value, one.name)) for one in fields(value)})
