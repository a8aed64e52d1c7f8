"""How detcli reads a detector, and what in its graph or metadata shows that."""

from collections import Counter
from typing import Literal

from onnx import ModelProto, NodeProto, ValueInfoProto

from detcli.commands.inspect.advice import CutPoint
from detcli.config.values import BoxFormat
from detcli.core import frozen
from detcli.model.contract import BOXES_OF_MORE, Contract, Layout, MultiLabel, ScoreForm
from detcli.model.graph import GraphIndex, dtype_name, known_size, needed_nodes, shape
from detcli.model.heads import BOX_COORDINATES, SELECTION, BoxDecode, Head, HeadPart
from detcli.model.inputs import Role
from detcli.model.preprocessing import PREPROCESSING_STEPS, format_preprocessing
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


@frozen
class TensorInfo:
    """A tensor of a graph, such as an input or an output."""

    name: str
    dtype: str
    shape: tuple[int | str | None, ...]  # a number, a symbol, or None if unknown


@frozen
class FedInput:
    """An input beside the image, which detcli feeds."""

    name: str
    wants: Role


@frozen
class DetectorFacts:
    """What a graph declares (see `Contract`), and what shows it."""

    family: str  # the kind of detector, such as "YOLO"
    layout: Layout  # how the graph lays out its detections
    layout_reason: str  # what shows it
    head: TensorInfo  # what is selected from; where the graph has none, the one that is appended
    heads: tuple[TensorInfo, ...]  # the tensors of the graph that it is made of, boxes first
    cut: CutPoint | None  # None if the graph does not select boxes
    other_inputs: tuple[FedInput, ...]  # inputs besides the images, which detcli feeds
    box_format: BoxFormat
    box_format_reason: str  # what shows it
    box_unit: Literal["pixels", "fractions"]  # of the input
    score_form: ScoreForm
    score_reason: str  # what shows it
    one_class: bool  # an anchor gives one detection at most, with the recommended suppression
    needs_nms: bool  # whether detcli suppresses overlapping boxes
    conf: float | None  # the recommended confidence; None if there is none
    class_conf: dict[int, float]  # by class id
    tile: str | None  # the recommended tiles, as --tile names them
    nms: float | None  # the recommended IoU of NMS
    preprocessing: str  # as --preprocess names it
    preprocessing_origins: dict[str, str]  # the source of each part
    unsettled: tuple[str, ...]  # parts of the preprocessing without a source
    class_count: int
    anchor_count: int | None  # None if it depends on the input size
    batch: int | None  # images at a time; None for any number
    input_size: tuple[int, int] | None  # height and width; None if they are free
    default_size: tuple[int, int]  # height and width unless others are asked for
    assumed: dict[str, str]  # parts that nothing specifies, and what is assumed for each
    stride: int
    stride_origin: str  # what it was taken from
    names: tuple[str, ...]
    names_origin: str  # what they were taken from


def describe_tensor(value: ValueInfoProto) -> TensorInfo:
    """Describe a tensor by its name, dtype and shape.

    An axis of the shape is a number, or a symbol such as "batch". It is None if its size is
    unknown, or if the symbol is so long that it must be a formula which an exporter has derived.
    """
    dims: list[int | str | None] = []
    for dim in shape(value):
        is_formula = isinstance(dim, str) and len(dim) > MAX_SYMBOL
        if is_formula:
            dims.append(None)
        else:
            dims.append(dim)
    return TensorInfo(value.name, dtype_name(value.type.tensor_type.elem_type), tuple(dims))


def describe(
    model: ModelProto, reading: Reading, users_box_format: BoxFormat | None
) -> DetectorFacts:
    """Describe how detcli reads a detector, with what in the graph shows it.

    Args:
        model: The graph, with the shapes of its tensors.
        reading: How detcli reads it.
        users_box_format: The value of --box-format; None if the graph shows the format.
    """
    index = GraphIndex(model.graph)
    contract = reading.contract
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    # The head is the tensor with boxes and scores. A graph may have it, or several tensors that
    # detcli joins to one.
    head_names = contract.heads or (contract.head,)
    heads = _describe_tensors(model, head_names)
    head = heads[0]
    if not head.shape or contract.heads:
        head = _appended_head(contract)
    layout_reason = _layout_reason(index, reading, metadata)
    layout_reason += _left_out(reading.adaptation.head)
    box_format_reason = _box_format_reason(reading)
    if users_box_format:
        box_format_reason = "--box-format"
    box_unit: Literal["pixels", "fractions"] = "pixels"
    if contract.box_fractions:
        box_unit = "fractions"
    tile = None
    if contract.tile is not None:
        tile = str(contract.tile)
    best_class_counts = contract.counts_best_class(contract.nms)
    return DetectorFacts(
        family=contract.family,
        layout=contract.layout,
        layout_reason=layout_reason,
        head=head,
        heads=heads,
        cut=_find_cut(index, head_names),
        other_inputs=tuple(FedInput(other.name, other.role) for other in reading.adaptation.others),
        box_format=contract.box_format,
        box_format_reason=box_format_reason,
        box_unit=box_unit,
        score_form=contract.score_form,
        score_reason=_score_reason(reading),
        one_class=contract.multi_label is MultiLabel.NEVER or best_class_counts,
        needs_nms=contract.nms is not None,
        conf=contract.conf,
        class_conf=dict(contract.class_conf),
        tile=tile,
        nms=contract.nms,
        preprocessing=format_preprocessing(contract.preprocessing),
        preprocessing_origins=_preprocessing_origins(contract),
        unsettled=contract.unknown_preprocessing,
        class_count=contract.class_count,
        anchor_count=contract.anchor_count,
        batch=contract.batch,
        input_size=contract.input_size,
        default_size=contract.default_size,
        assumed=dict(contract.assumed_preprocessing),
        stride=contract.stride,
        stride_origin=_stride_origin(metadata),
        names=contract.names,
        names_origin=contract.names_origin,
    )


def _preprocessing_origins(contract: Contract) -> dict[str, str]:
    """Return for each step of preprocessing how detcli knows it; unknown steps are left out."""
    sources = contract.preprocessing_sources
    return {step: source for step, source in sources if step in PREPROCESSING_STEPS}


def _stride_origin(metadata: dict[str, str]) -> str:
    """Explain how detcli knows a model's stride; the sides of its input are multiples of it."""
    if metadata.get("stride"):
        return "the model's metadata"
    return "as in all YOLO detectors with three scales; the model gives none"


def _describe_tensors(model: ModelProto, names: tuple[str, ...]) -> tuple[TensorInfo, ...]:
    """Describe the tensors of a graph that have these names.

    If the graph says neither the dtype nor the shape of a tensor, its dtype is "unknown".
    """
    tensors_by_name = {}
    for inferred_value in model.graph.value_info:
        tensors_by_name[inferred_value.name] = describe_tensor(inferred_value)
    # An output of the graph may be among the inferred tensors, too. Its entry replaces that one, as
    # it has the symbols of its axes.
    for output in model.graph.output:
        tensors_by_name[output.name] = describe_tensor(output)

    tensors = []
    for name in names:
        unknown_tensor = TensorInfo(name, dtype="unknown", shape=())
        tensors.append(tensors_by_name.get(name, unknown_tensor))
    return tuple(tensors)


def _appended_head(contract: Contract) -> TensorInfo:
    """Describe the tensor with boxes and scores that detcli appends to a graph that has none.

    Its shape is (batch, channels, anchors), or (batch, anchors, channels) with anchors first. A
    graph that selects detections itself has them in place of anchors.

    Args:
        contract: How detcli reads the graph.
    """
    if contract.layout is Layout.ROWS:
        channel_count = BOX_COORDINATES + 2  # a box, its score, and the id of its class
    else:
        channel_count = BOX_COORDINATES + contract.class_count  # a box, and a score per class
    axes: tuple[int | None, ...] = (channel_count, contract.anchor_count)
    if contract.anchors_first:
        axes = (contract.anchor_count, channel_count)
    return TensorInfo(contract.head, contract.input_dtype, (contract.batch, *axes))


def _layout_reason(index: GraphIndex, reading: Reading, metadata: dict[str, str]) -> str:
    """Explain what in the graph or the metadata shows how boxes and scores are laid out.

    Args:
        index: The graph.
        reading: How detcli reads the graph, with the layout.
        metadata: The metadata of the model.
    """
    layout = reading.contract.layout
    if layout is Layout.ONE_TO_MANY and reading.adaptation.head.objectness:
        return "its output joins four box rows, an objectness and the class scores"
    if layout is Layout.ONE_TO_MANY and metadata.get("end2end") == "False":
        return f"{JOINED}; its metadata says it is not end-to-end"
    # The text about one of the layouts names the TopK nodes that select boxes.
    top_k_names = []
    for node in index.graph.node:
        if node.op_type == "TopK":
            top_k_names.append(node.name or node.output[0])
    return LAYOUTS[layout].format(" and ".join(top_k_names))


def _left_out(head: Head) -> str:
    """List which outputs of a graph detcli leaves out, such as masks; empty if there are none."""
    if head.has_more:
        return f"; {BOXES_OF_MORE}"
    has_landmark_maps = head.grid is not None and HeadPart.POINTS in head.grid.parts
    if has_landmark_maps or head.landmark_channels:
        return "; its landmarks are left out"
    return ""


def _box_format_reason(reading: Reading) -> str:
    """Explain what in the graph shows whether boxes are corners, or centre and size.

    The report shows this text after the format of the boxes. It is mostly about the nodes that
    decode boxes: they compute pixels from the output of the network's last layer.

    Example:
        "a sigmoid of a layer's output: centre and size"
    """
    box_format = reading.contract.box_format
    if reading.contract.layout is Layout.ROWS:
        if box_format is BoxFormat.XYXY:
            return "corners of what the graph selects"
        return "centre and size of what the graph selects"

    decoding = reading.adaptation.head.decoded  # None if detcli does not recognise the nodes
    if decoding is not None and decoding.box_format is BoxFormat.CXCYWH:
        # CENTRES has a string for each way to compute centre and size. A decode from the distances
        # to the four edges is not among them.
        return CENTRES.get(decoding.method, BOX_FORMATS[box_format])
    return BOX_FORMATS[box_format]


def _score_reason(reading: Reading) -> str:
    """Explain what the scores of a detector mean, or how they are computed.

    The report shows this text after the form of the scores, as in "final: of each class".
    A score may be a probability or a logit, which becomes a probability by a sigmoid. It may be
    multiplied by an objectness, which is the probability that there is any object.
    """
    if reading.contract.layout is Layout.ROWS:
        return "of what the graph selects"
    head = reading.adaptation.head
    # A head may be a grid: maps of boxes and scores, and perhaps of objectness, for each scale.
    grid_has_objectness = head.grid is not None and HeadPart.OBJECTNESS in head.grid.parts
    if head.objectness or grid_has_objectness:
        return "objectness times the class's score"
    if reading.adaptation.no_object is not None:
        return "softmax over the classes and no object, which is left out"
    if reading.contract.score_form is ScoreForm.LOGITS:
        return "a layer's output; detcli takes the sigmoid of what it selects"
    return "of each class"


def _find_cut(index: GraphIndex, heads: tuple[str, ...]) -> CutPoint | None:
    """Find out where detcli cuts a graph that selects boxes, in order to select them itself.

    It drops all nodes that the heads do not depend on.

    Args:
        index: The graph.
        heads: Names of the tensors with boxes and scores, which become the outputs.

    Returns:
        The cut; None if no node after the heads selects boxes.
    """
    needed_tensors: set[str] = set()
    for head in heads:
        nodes, _ = needed_nodes(index.graph, head)
        for node in nodes:
            needed_tensors.update(node.output)

    dropped_nodes = [node for node in index.graph.node if needed_tensors.isdisjoint(node.output)]
    dropped_operators = Counter(node.op_type for node in dropped_nodes)
    selects_boxes = any(operator in SELECTION for operator in dropped_operators)
    if not selects_boxes:
        return None

    return CutPoint(
        tensor=heads[0],
        kept=len(index.graph.node) - len(dropped_nodes),
        dropped=dict(dropped_operators.most_common()),
        most_detections=_max_detections(index, dropped_nodes),
    )


def _max_detections(index: GraphIndex, dropped_nodes: list[NodeProto]) -> int | None:
    """Find out how many detections of an image the nodes after the cut select at most.

    The output may say it, whose shape is (batch, detections, 6). Otherwise it is the smallest `k`
    of the TopK nodes, each of which keeps the `k` best values.

    Returns:
        The number; None if the graph does not say it.
    """
    output_shape = index.shapes.get(index.graph.output[0].name, [])
    if len(output_shape) == 3:
        detection_count = known_size(output_shape[1])
        if detection_count:
            return detection_count
    limits = []
    for node in dropped_nodes:
        if node.op_type == "TopK":
            limit = _limit_of_top_k(index, node)
            if limit is None:
                return None
            limits.append(limit)
    return min(limits, default=None)


def _limit_of_top_k(index: GraphIndex, node: NodeProto) -> int | None:
    """Return how many values a TopK node keeps; None if that is computed when the graph runs."""
    if len(node.input) < 2:
        return None
    k = index.constant(node.input[1])  # a list of one number
    if not k:
        return None
    return k[0]
