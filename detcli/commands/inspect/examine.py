"""Examines a model file: what it contains, promises and needs."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from onnx import ModelProto, ValueInfoProto

from detcli.backend.runtime.survey import survey
from detcli.commands.inspect.advice import advise_on_detector, advise_on_graph
from detcli.commands.inspect.network import count_operations, describe_precision
from detcli.commands.inspect.report import (
    CutPoint,
    DetectorFacts,
    DynamicAxis,
    Inspection,
    ModelProblem,
    TensorInfo,
)
from detcli.model.contract import BoxFormat, Contract, Layout
from detcli.model.graph import GraphIndex, dtype_name, known_size, needed_nodes, parameters, shape
from detcli.model.loading import ModelFile, damage_reported
from detcli.model.names import read_names
from detcli.model.preprocessing import PARTS, written

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


def examine(
    path: Path,
    *,
    box_format: BoxFormat | None = None,
    preprocess: str | None = None,
    imgsz: int | None = None,
    names: Path | None = None,
) -> Inspection:
    """Examine a model file.

    Args:
        path: An ONNX file, with any external data beside it.
        box_format: The format of the box rows, where the graph does not show it.
        preprocess: Parts of the preprocessing, where the file does not say them.
        imgsz: Side length of the input to count operations for, for graphs with dynamic axes.
        names: A file with class names, to use instead of the model's own.

    Raises:
        ModelError: The file cannot be read at all. One that cannot be used is reported.
        UsageError: The image size or the names do not fit the model.
    """
    file = ModelFile.read(path, box_format, preprocess)
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
            detector = describe(model, contract, box_format)
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
                operations=count_operations(model, _input_shape(index, contract, imgsz)),
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


def describe(model: ModelProto, contract: Contract, asked: BoxFormat | None) -> DetectorFacts:
    """Describe what a detector promises, and which of its nodes show it.

    The model has the shapes of its tensors; `asked` is the box format that the user gave, if any.
    """
    index = GraphIndex(model.graph)
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    top_k = [node.name or node.output[0] for node in index.graph.node if node.op_type == "TopK"]
    reason = LAYOUTS[contract.layout].format(" and ".join(top_k))
    if contract.layout is Layout.ONE_TO_MANY and metadata.get("end2end") == "False":
        reason = f"{JOINED}; its metadata says it is not end-to-end"
    return DetectorFacts(
        layout=contract.layout,
        layout_reason=reason,
        head=_head(index, contract),
        cut=_cut(index, contract.head) if contract.layout is Layout.END_TO_END else None,
        box_format=contract.box_format,
        box_format_reason="--box-format" if asked else BOX_FORMATS[contract.box_format],
        preprocessing=written(contract.preprocessing),
        preprocessing_origins={part: by for part, by in contract.settled if part in PARTS},
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


def _head(index: GraphIndex, contract: Contract) -> TensorInfo:
    # An output has the symbols of its axes, so it goes before what was inferred for the tensor.
    values = {value.name: value for value in (*index.graph.value_info, *index.graph.output)}
    value = values.get(contract.head)
    if value is not None and shape(value):
        return describe_tensor(value)
    channels = contract.class_count + 4
    axes = (None, channels) if contract.anchors_first else (channels, None)
    return TensorInfo(contract.head, contract.input_dtype, (contract.batch, *axes))


def _cut(index: GraphIndex, head: str) -> CutPoint:
    kept, _ = needed_nodes(index.graph, head)
    made = {name for node in kept for name in node.output}
    dropped = [node for node in index.graph.node if made.isdisjoint(node.output)]
    top_k = [node for node in dropped if node.op_type == "TopK"]
    limits = [index.constant(name) for node in top_k for name in node.input[1:2]]
    known = [limit[0] for limit in limits if limit]
    rows = index.shapes.get(index.graph.output[0].name, [None] * 3)[1]
    most = known_size(rows) or (min(known) if 0 < len(known) == len(top_k) else None)
    operators = Counter(node.op_type for node in dropped)
    return CutPoint(head, len(kept), dict(operators.most_common()), most)


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
