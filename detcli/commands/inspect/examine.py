"""Examines a model file: what it contains, promises and needs."""

import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import fields, is_dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from onnx import ModelProto, NodeProto, ValueInfoProto

from detcli.backend import survey
from detcli.backend.libraries import Placement
from detcli.commands.inspect.advice import (
    CutPoint,
    ModelAdvice,
    advise_on_detector,
    advise_on_graph,
    advise_on_rounding,
)
from detcli.commands.inspect.network import (
    NetworkPrecision,
    Operations,
    count_operations,
    describe_precision,
)
from detcli.config.config import Settings
from detcli.config.values import BoxFormat
from detcli.core import frozen
from detcli.core.errors import ModelError
from detcli.model.contract import BOXES_OF_MORE, Contract, Layout, MultiLabel, ScoreForm, read_names
from detcli.model.external_data import ExternalFile
from detcli.model.file import ModelFile, damage_reported
from detcli.model.graph import (
    GraphIndex,
    dtype_name,
    known_size,
    needed_nodes,
    parameters,
    shape,
)
from detcli.model.heads import SELECTION, BoxDecode, Head, HeadPart
from detcli.model.inputs import Role
from detcli.model.preprocessing import PREPROCESSING_STEPS, written
from detcli.model.recognise import Reading

MAX_SYMBOL = 40  # characters; longer ones are whole formulas that an exporter derived
MAX_TEXT = 1 << 16  # characters of a name or a metadata entry in the report
MAX_ENTRIES = 1000  # of the metadata
CUT = re.compile(r"\.\.\. \((\d{1,18}) more characters\)\Z")

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


@frozen
class TensorInfo:
    name: str
    dtype: str
    shape: tuple[int | str | None, ...]  # a number, a symbol, or None if unknown


@frozen
class DynamicAxis:
    name: str  # its symbol in the graph; "?" where it has none
    places: tuple[str, ...]  # tensors and axis numbers: "images[0]"


@frozen
class FedInput:
    """An input beside the picture, which detcli feeds."""

    name: str
    wants: Role


@frozen
class DetectorFacts:
    """What a graph promises (see `Contract`), and what shows it."""

    family: str
    layout: Layout
    layout_reason: str
    head: TensorInfo  # what is selected from; where the graph has none, the one that is appended
    heads: tuple[TensorInfo, ...]  # the tensors of the graph that it is made of, boxes first
    cut: CutPoint | None  # None if the graph does not select boxes
    other_inputs: tuple[FedInput, ...]
    box_format: BoxFormat
    box_format_reason: str
    box_unit: Literal["pixels", "fractions"]  # of the input
    score_form: ScoreForm
    score_reason: str
    one_class: bool  # an anchor gives one detection at most, with the recommended suppression
    needs_nms: bool
    conf: float | None
    class_conf: dict[int, float]  # by class id
    tile: str | None
    nms: float | None
    preprocessing: str  # as --preprocess names it
    preprocessing_origins: dict[str, str]  # what settled each part
    unsettled: tuple[str, ...]
    class_count: int
    anchor_count: int | None
    batch: int | None
    input_size: tuple[int, int] | None
    default_size: tuple[int, int]
    assumed: dict[str, str]  # parts that nothing says, and what is assumed of each
    stride: int
    stride_origin: str
    names: tuple[str, ...]
    names_origin: str


@frozen
class ModelProblem:
    message: str
    hint: str


@frozen
class Inspection:
    """What a model file is."""

    model: str  # the path as it was given
    bytes: int
    sha256: str
    external: tuple[ExternalFile, ...]
    producer: str
    ir_version: int
    opsets: dict[str, int]  # by domain; that of ONNX is "ai.onnx"
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    dynamic_axes: tuple[DynamicAxis, ...]
    nodes: dict[str, int]  # by operator, the most frequent first
    parameters: int
    precision: NetworkPrecision
    operations: Operations | None  # None if the input size is unknown
    metadata: dict[str, str]
    detector: DetectorFacts | None  # None if it is not a detector that detcli knows
    problem: ModelProblem | None  # why it cannot be used
    placements: tuple[Placement, ...]
    warnings: tuple[ModelAdvice, ...]


def examine(path: Path, settings: Settings = Settings()) -> Inspection:
    """Examine a model file; one that cannot be used is reported, one that cannot be read raises."""
    file = ModelFile.read(
        path, settings.box_format, settings.preprocess, boxes_only=settings.boxes_only
    )
    with damage_reported(path):
        model = file.model
        contract = file.contract
        index = GraphIndex(model.graph)
        weights = parameters(index)
        images = index.image_inputs()
        inputs = tuple(describe_tensor(value) for value in images)
        outputs = tuple(describe_tensor(value) for value in model.graph.output)
        metadata = {entry.key: entry.value for entry in model.metadata_props}
        warnings = list(advise_on_graph(model, file.external, weights))
        graph = model
        detector = None
        canvas: tuple[int | None, ...] = ()  # to count operations for
        if contract is not None:
            if settings.names is not None:
                names = read_names(Path(settings.names))
                contract = contract.with_names(names, str(settings.names))
            graph = file.body()  # what detcli runs
            reading = replace(file.reading(), contract=contract)
            detector = describe(model, reading, settings.box_format)
            warnings = [
                *advise_on_rounding(file.roundings),
                *advise_on_detector(contract, metadata, detector.cut),
                *warnings,
            ]
            height, width = contract.input_shape(settings.imgsz)
            canvas = (contract.batch or 1, 3, height, width)
        elif len(images) == 1:
            canvas = tuple(known_size(dim) for dim in shape(images[0]))
        placements = survey(graph.SerializeToString(), path.name)
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
                operations=count_operations(graph, canvas),
                metadata=_first_entries(metadata),
                detector=detector,
                problem=_problem(file.refusal, placements),
                placements=placements,
                warnings=tuple(warnings),
            )
        )
        return inspection


def _first_entries(metadata: dict[str, str]) -> dict[str, str]:
    """The first entries of the metadata, and how many more there are."""
    entries = dict(islice(metadata.items(), MAX_ENTRIES))
    if len(metadata) > len(entries):
        entries["..."] = f"{len(metadata) - len(entries)} more entries"
    return entries


def _problem(refusal: ModelError | None, placements: tuple[Placement, ...]) -> ModelProblem | None:
    """Explain why a file cannot be used: not a detector, or no provider runs it. None if it can."""
    if refusal is not None:
        return ModelProblem(str(refusal), refusal.hint)
    if not any(placement.usable for placement in placements):
        return ModelProblem(placements[-1].reason, placements[-1].hint)
    return None


def describe_tensor(value: ValueInfoProto) -> TensorInfo:
    """A tensor's name, dtype and shape; symbols that are whole formulas are left out."""
    dims: list[int | str | None] = []
    for dim in shape(value):
        is_formula = isinstance(dim, str) and len(dim) > MAX_SYMBOL
        dims.append(None if is_formula else dim)
    return TensorInfo(value.name, dtype_name(value.type.tensor_type.elem_type), tuple(dims))


def dynamic_axes(tensors: Iterable[TensorInfo]) -> tuple[DynamicAxis, ...]:
    """Group the axes without a fixed size by symbol; those of one symbol have the same size."""
    axes_by_symbol: dict[str, list[str]] = {}
    for tensor in tensors:
        for number, dim in enumerate(tensor.shape):
            if known_size(dim) is None:
                symbol = dim if isinstance(dim, str) else "?"
                axes_by_symbol.setdefault(symbol, []).append(f"{tensor.name}[{number}]")
    return tuple(DynamicAxis(symbol, tuple(axes)) for symbol, axes in axes_by_symbol.items())


def describe(
    model: ModelProto, reading: Reading, users_box_format: BoxFormat | None
) -> DetectorFacts:
    """Describe a detector, of whose tensors the model has the shapes."""
    index = GraphIndex(model.graph)
    contract = reading.contract
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    head_names = contract.heads or (contract.head,)
    heads = _heads(model, head_names)
    head = heads[0]
    if not head.shape or contract.heads:
        head = _appended_head(contract)
    best_class_counts = contract.counts_best_class(contract.nms)
    stride_origin = "as in all YOLO detectors with three scales; the model gives none"
    if metadata.get("stride"):
        stride_origin = "the model's metadata"
    return DetectorFacts(
        family=contract.family,
        layout=contract.layout,
        layout_reason=_layout_reason(index, reading, metadata) + _left_out(reading.adaptation.head),
        head=head,
        heads=heads,
        cut=_cut(index, head_names),
        other_inputs=tuple(FedInput(other.name, other.role) for other in reading.adaptation.others),
        box_format=contract.box_format,
        box_format_reason="--box-format" if users_box_format else _box_reason(reading),
        box_unit="fractions" if contract.box_fractions else "pixels",
        score_form=contract.score_form,
        score_reason=_score_reason(reading),
        one_class=contract.multi_label is MultiLabel.NEVER or best_class_counts,
        needs_nms=contract.nms is not None,
        conf=contract.conf,
        class_conf=dict(contract.class_conf),
        tile=None if contract.tile is None else str(contract.tile),
        nms=contract.nms,
        preprocessing=written(contract.preprocessing),
        preprocessing_origins={
            step: source
            for step, source in contract.preprocessing_sources
            if step in PREPROCESSING_STEPS
        },
        unsettled=contract.unknown_preprocessing,
        class_count=contract.class_count,
        anchor_count=contract.anchor_count,
        batch=contract.batch,
        input_size=contract.input_size,
        default_size=contract.default_size,
        assumed=dict(contract.assumed_preprocessing),
        stride=contract.stride,
        stride_origin=stride_origin,
        names=contract.names,
        names_origin=contract.names_origin,
    )


def _heads(model: ModelProto, names: tuple[str, ...]) -> tuple[TensorInfo, ...]:
    """The tensors of these names, as far as the graph says what they are."""
    # An output has the symbols of its axes, so it goes before what was inferred for the tensor.
    values = [*model.graph.value_info, *model.graph.output]
    tensors = {value.name: describe_tensor(value) for value in values}
    return tuple(tensors.get(name, TensorInfo(name, "unknown", ())) for name in names)


def _appended_head(contract: Contract) -> TensorInfo:
    """The head that detcli appends to a graph, which has none of its own."""
    channels = contract.class_count + 4
    if contract.layout is Layout.ROWS:
        channels = 6
    axes: tuple[int | None, ...] = (channels, contract.anchor_count)
    if contract.anchors_first:
        axes = (contract.anchor_count, channels)
    return TensorInfo(contract.head, contract.input_dtype, (contract.batch, *axes))


def _layout_reason(index: GraphIndex, reading: Reading, metadata: dict[str, str]) -> str:
    """What shows the layout of the head."""
    layout = reading.contract.layout
    if layout is Layout.ONE_TO_MANY and reading.adaptation.head.objectness:
        return "its output joins four box rows, an objectness and the class scores"
    if layout is Layout.ONE_TO_MANY and metadata.get("end2end") == "False":
        return f"{JOINED}; its metadata says it is not end-to-end"
    top_k = [node.name or node.output[0] for node in index.graph.node if node.op_type == "TopK"]
    return LAYOUTS[layout].format(" and ".join(top_k))


def _left_out(head: Head) -> str:
    """What the graph gives besides boxes and scores, which detcli leaves out."""
    if head.has_more:
        return f"; {BOXES_OF_MORE}"
    if head.grid is not None and HeadPart.POINTS in head.grid.parts:
        return "; its landmarks are left out"
    return ""


def _box_reason(reading: Reading) -> str:
    """What shows the format of the boxes."""
    decode = reading.adaptation.head.decoded
    box_format = reading.contract.box_format
    if reading.contract.layout is Layout.ROWS:
        if box_format is BoxFormat.XYXY:
            return "corners of what the graph selects"
        return "centre and size of what the graph selects"
    gives_centres = decode is not None and decode.box_format is BoxFormat.CXCYWH
    if decode is not None and gives_centres and decode.method in CENTRES:
        return CENTRES[decode.method]
    return BOX_FORMATS[box_format]


def _score_reason(reading: Reading) -> str:
    """What shows the form of the scores."""
    if reading.contract.layout is Layout.ROWS:
        return "of what the graph selects"
    head = reading.adaptation.head
    if head.objectness or (head.grid is not None and HeadPart.OBJECTNESS in head.grid.parts):
        return "objectness times the class's score"
    if reading.adaptation.no_object is not None:
        return "softmax over the classes and no object, which is left out"
    if reading.contract.score_form is ScoreForm.LOGITS:
        return "a layer's output; detcli takes the sigmoid of what it selects"
    return "of each class"


def _cut(index: GraphIndex, heads: tuple[str, ...]) -> CutPoint | None:
    """Where a graph is cut; None where no node after its heads selects boxes."""
    needed_tensors: set[str] = set()
    for head in heads:
        nodes, _ = needed_nodes(index.graph, head)
        for node in nodes:
            needed_tensors.update(node.output)
    dropped = [node for node in index.graph.node if needed_tensors.isdisjoint(node.output)]
    operators = Counter(node.op_type for node in dropped)
    if operators.keys().isdisjoint(SELECTION):
        return None
    remaining = len(index.graph.node) - len(dropped)
    max_detections = _max_detections(index, dropped)
    return CutPoint(heads[0], remaining, dict(operators.most_common()), max_detections)


def _max_detections(index: GraphIndex, dropped: list[NodeProto]) -> int | None:
    """How many detections the dropped nodes leave at most; None if the graph does not say."""
    dims = index.shapes.get(index.graph.output[0].name, [])
    if len(dims) == 3:
        rows = known_size(dims[1])
        if rows:
            return rows
    limits = []
    for node in dropped:
        if node.op_type == "TopK":
            constant = None
            if len(node.input) > 1:
                constant = index.constant(node.input[1])
            if not constant:
                return None
            limits.append(constant[0])
    return min(limits, default=None)


def shortened(text: str, length: int) -> str:
    """The start of a long text, and how much is left out, by an earlier call too."""
    remaining_length = len(text)
    cut_before = 0
    cut = CUT.search(text)
    if cut is not None:
        remaining_length = cut.start()
        cut_before = int(cut[1])
    if remaining_length <= length:
        return text
    return f"{text[:length]}... ({remaining_length - length + cut_before} more characters)"


def decoded(value: Any) -> Any:  # noqa: ANN401 - a report, or any part of one
    """Decode all text in a report, and shorten it to what a reader can use.

    Protobuf returns bytes where a file has invalid UTF-8.
    """
    match value:
        case bytes():
            return decoded(value.decode("utf-8", "backslashreplace"))
        case str():
            return shortened(value, MAX_TEXT)
        case dict():
            return {decoded(key): decoded(entry) for key, entry in value.items()}
        case tuple():
            return tuple(decoded(entry) for entry in value)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    changes = {field.name: decoded(getattr(value, field.name)) for field in fields(value)}
    return replace(value, **changes)
