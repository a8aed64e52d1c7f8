"""Recognises what an ONNX graph promises by its structure; names of nodes do not matter.

`detcli.model.inputs` and `detcli.model.heads` read the two ends of a graph, `detcli.model.families`
adds what a file does not say, and `detcli.model.adapt` brings the graph to the form that runs.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import onnx
from onnx import NodeProto

from detcli.config.values import BoxFormat
from detcli.core import frozen
from detcli.core.errors import ModelError
from detcli.model.adapt import HEAD, Adaptation, adapt, with_one_input
from detcli.model.contract import (
    BOXES_OF_MORE,
    UNKNOWN_CLASSES,
    Contract,
    Layout,
    MultiLabel,
    Preprocessing,
    ScoreForm,
    Size,
    class_names,
    parse_names,
)
from detcli.model.editing import cut
from detcli.model.families import FAMILIES, FIRST_WEIGHT, family_of
from detcli.model.family import Family
from detcli.model.find_head import MIXED, SAY_WHICH, HeadSearch
from detcli.model.graph import GraphIndex, known_size, shape, type_name
from detcli.model.heads import (
    BATCHED,
    BOXES_ONLY,
    DETECTORS,
    BoxDecode,
    Head,
    Unrecognised,
)
from detcli.model.heads.decode import makers, moved_inputs, shares_of
from detcli.model.heads.order import mixes_channels
from detcli.model.heads.selected_in_graph import (
    box_columns,
    corner_order,
    selected_detections,
    six_columns,
)
from detcli.model.input_nodes import first_weight, with_preprocessing
from detcli.model.inputs import ImageInput, OtherInput, find_inputs
from detcli.model.metadata import (
    DEFAULT_SIZE,
    FAMILY_KEY,
    box_format_of,
    default_size_and_stride,
    named_size,
    recommended,
)
from detcli.model.preprocessing import BY_FAMILY, CONFIG, SIZE, Sidecar

EXPECTED = (
    "expected pictures [B, 3, H, W] or [B, H, W, 3] in, and out boxes and scores: [B, 4 + C, N], "
    "[B, N, 4 + C], [B, N, 4] with [B, N, C], or detections that the graph selects"
)
SAVED_BY_RUNTIME = "export it again, or save it behind ONNX Runtime's basic optimisations only"
UNKNOWN_BOXES = "if its head is boxes in pixels and then class scores, pass --box-format"
MAX_LISTED = 8  # inputs and outputs in a message
MAX_CLASSES = 100_000  # more than any detector has; a damaged file may say billions

TASKS = {
    "classify": "it classifies whole pictures",
    "segment": "it segments objects",
    "pose": "it finds poses",
    "obb": "it finds oriented boxes",
}
"""What Ultralytics' metadata calls other tasks."""
COMPLETE_HINTS = {BOXES_ONLY, DETECTORS, SAY_WHICH}  # which EXPECTED adds nothing to
WITH_BOXES = {"segment", "pose"}  # tasks whose graphs give boxes too


@frozen
class Reading:
    """What a graph promises, and what has to be added to it."""

    contract: Contract
    adaptation: Adaptation

    def body(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """The part of the graph that runs: one input for pictures, the head its only output."""
        if self.adaptation.is_needed:
            return adapt(model, self.adaptation)
        return cut(model, self.contract.head)

    def with_image_input(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """The graph with one input for pictures, `[B, 3, H, W]`, and all else as it is."""
        if self.adaptation.is_needed:
            return with_one_input(model, self.adaptation)
        return model


def read_graph(
    model: onnx.ModelProto,
    title: str,
    box_format: BoxFormat | None = None,
    sidecar: Sidecar | None = None,
    *,
    boxes_only: bool = False,
) -> Reading:
    """Recognise the detector in an ONNX graph, and work out how to run it.

    Args:
        model: The model.
        title: What error messages call it.
        box_format: The format of its boxes, if the user has named it.
        sidecar: The preprocessor configuration beside the file, if any.
        boxes_only: Whether a graph that gives masks or keypoints too is read for its boxes.

    Returns:
        The contract, which says what the graph takes and gives, and the nodes that have to be added
        to run it.

    Raises:
        ModelError: It is not a detector that detcli knows.
    """
    index = GraphIndex(model.graph)
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    try:
        reading = _reading(model, index, metadata, box_format, boxes_only=boxes_only)
    except Unrecognised as error:
        raise _not_a_detector(model, index, title, error) from error
    image = reading.adaptation.image
    contract = with_preprocessing(reading.contract, index, image, metadata, sidecar)
    if sidecar is not None and sidecar.names and "names" not in metadata:
        may_have_names = not contract.counts_classes
        if may_have_names or len(sidecar.names) == contract.class_count:
            contract = contract.with_names(sidecar.names, CONFIG)
    return replace(reading, contract=contract)


def _not_a_detector(
    model: onnx.ModelProto, index: GraphIndex, title: str, error: Unrecognised
) -> ModelError:
    """Build the error for a graph that is not recognised: why, its inputs and outputs, and hints.

    Args:
        model: The model.
        index: Its graph.
        title: What the message calls it.
        error: Why it was not recognised.
    """
    reason, *hints = error.args
    runtime_operators = _runtime_operators(model)
    if runtime_operators:
        listed = ", ".join(runtime_operators[:MAX_LISTED])
        are_operators = "is an operator" if len(runtime_operators) == 1 else "are operators"
        reason += f"; {listed} {are_operators} of ONNX Runtime's own"
        hints.append(SAVED_BY_RUNTIME)
    # Which layouts are known does not help with a model for another task than detection.
    if not hints or hints[0] not in COMPLETE_HINTS:
        hints.append(EXPECTED)
    inputs = _signatures(index.image_inputs())
    outputs = _signatures(index.graph.output)
    return ModelError(
        f"{title} is not a detector that detcli knows: {reason}. "
        f"Inputs: {inputs}. Outputs: {outputs}",
        "; ".join(hints),
    )


def _runtime_operators(model: onnx.ModelProto) -> list[str]:
    """List the operators of a graph that are ONNX Runtime's own, and not defined in the model."""
    defined = {(function.domain, function.name) for function in model.functions}
    operators = set()
    for node in model.graph.node:
        is_of_runtime = node.domain.startswith("com.microsoft")
        if is_of_runtime and (node.domain, node.op_type) not in defined:
            operators.add(node.op_type)
    return sorted(operators)


def read_selection(model: onnx.ModelProto, reading: Reading) -> Reading | None:
    """Describe a graph by the detections that it selects itself, in place of all its boxes.

    detcli usually cuts such a graph before the selection, and selects by itself.

    Args:
        model: The model.
        reading: How it is read with the cut.

    Returns:
        None if the graph selects nothing behind that cut, or it is not clear where the detections
        are.
    """
    index = GraphIndex(model.graph)
    contract = reading.contract
    head_tensors = reading.adaptation.head.tensors
    depend_on_head: set[str] = set()
    for name in head_tensors:
        depend_on_head |= index.moved_from(name)
    selects = any(node.output[0] in depend_on_head for node in index.nodes("TopK"))
    if contract.layout is Layout.ROWS or not selects:
        return None

    head = _selected_head(index, contract.layout)
    if head is None:
        return None
    box_format = contract.box_format
    decoded = head.decoded or reading.adaptation.head.decoded
    if decoded is not None:
        box_format = decoded.box_format

    selection = replace(
        contract,
        layout=Layout.ROWS,
        head=HEAD,
        anchors_first=True,
        box_format=box_format,
        box_fractions=contract.box_fractions and not _in_pixels(index, head, head_tensors),
        score_form=ScoreForm.FINAL,
        nms=None,
    )
    adaptation = replace(reading.adaptation, head=head, no_object=None, swapped=False)
    return Reading(selection, adaptation)


def _selected_head(index: GraphIndex, layout: Layout) -> Head | None:
    """Find the boxes, scores and class ids of the detections that a graph selects.

    Returns:
        None if it is not clear where they are.
    """
    by_nodes = selected_detections(index)
    if layout is Layout.END_TO_END:
        # YOLOs agree on the order of their six columns. Reading them by that order, and not by the
        # nodes that make them, shows if a file has them in a wrong one.
        by_order = six_columns(index)
        if by_order is not None:
            decoded = None if by_nodes is None else by_nodes.decoded
            return replace(by_order, decoded=decoded)
    return by_nodes


def _in_pixels(index: GraphIndex, selection: Head, head_tensors: tuple[str, ...]) -> bool:
    """True if a graph multiplies the boxes of its head by the image's size when it selects them.

    Args:
        index: The graph.
        selection: The detections that the graph selects.
        head_tensors: The tensors of all boxes and scores, before the selection.
    """

    def inputs_to_follow(node: NodeProto, name: str) -> Iterable[str]:
        inputs: Iterable[str] = moved_inputs(node, name) or ()
        if not inputs and node.op_type in {"Add", "Div", "Mul", "Sub"}:
            inputs = node.input
        return [tensor for tensor in inputs if tensor not in head_tensors]

    selected_boxes = {box_columns(index, selection)} - set(head_tensors)
    for node, _ in index.behind_all(selected_boxes, inputs_to_follow):
        if node.op_type != "Mul":
            continue
        # A constant of 1 or less, such as the 0.5 that halves a size, is no image size.
        factors = [index.array(name) for name in node.input]
        if all(factor is None or factor.max() > 1 for factor in factors):
            return True
    return False


@frozen
class _Recognised:
    """What was recognised in a graph; its contract follows from it."""

    head: Head
    image: ImageInput
    other_inputs: tuple[OtherInput, ...]
    family: Family
    box_format: BoxFormat
    no_object: int | None  # index of a class that is dropped, see `Adaptation`
    class_count: int  # C, without that class
    y_first: bool  # corners of detections are y1, x1, y2, x2
    fractions: bool  # boxes are fractions of the input
    default_size: Size
    stride: int


def _reading(
    model: onnx.ModelProto,
    index: GraphIndex,
    metadata: dict[str, str],
    requested_format: BoxFormat | None,
    *,
    boxes_only: bool,
) -> Reading:
    """Recognise the detector in a graph, and plan the nodes that have to be added to run it.

    Args:
        model: The model.
        index: Its graph.
        metadata: The metadata in the file.
        requested_format: The format of its boxes, if the user has named it.
        boxes_only: Whether a graph that gives masks or keypoints too is read for its boxes.

    Raises:
        Unrecognised: It differs from every known detector.
    """
    recognised = _recognise(model, index, metadata, requested_format, boxes_only=boxes_only)
    adaptation = Adaptation(
        head=recognised.head,
        image=recognised.image,
        others=recognised.other_inputs,
        no_object=recognised.no_object,
        swapped=recognised.y_first,
    )
    contract = _contract(index, metadata, recognised, adaptation)
    warnings = contract.warnings + tuple(_against_nodes(recognised.head, requested_format))
    return Reading(replace(contract, warnings=warnings), adaptation)


def _recognise(
    model: onnx.ModelProto,
    index: GraphIndex,
    metadata: dict[str, str],
    requested_format: BoxFormat | None,
    *,
    boxes_only: bool,
) -> _Recognised:
    """Recognise the inputs, the head and the family of detectors of a graph.

    Args:
        model: The model.
        index: Its graph.
        metadata: The metadata in the file.
        requested_format: The format of its boxes, if the user has named it.
        boxes_only: Whether a graph that gives masks or keypoints too is read for its boxes.

    Raises:
        Unrecognised: It differs from every known detector.
    """
    image, other_inputs = find_inputs(index)
    _check_task(metadata.get("task", "detect"), boxes_only=boxes_only)
    default_size, stride = default_size_and_stride(metadata)
    search = HeadSearch(
        model=model,
        index=index,
        image=image,
        metadata=metadata,
        default_size=default_size,
        boxes_only=boxes_only,
    )
    head = search.head()
    if head.takes_any_size:
        image = replace(image, size=None, batch=None)
    _check_head(model, index, head)

    family = _family(head, image, metadata.get(FAMILY_KEY))
    box_format = _box_format(head, requested_format or box_format_of(metadata))
    no_object = family.no_object
    # Some graphs leave the class of no object out themselves, and so do those that select.
    if head.layout is Layout.END_TO_END or _leaves_out_a_class(index, head):
        no_object = None
    names = parse_names(metadata.get("names", ""))
    class_count = _class_count(head, names, drops_no_object=no_object is not None)
    y_first, fractions = _corners(index, head, family)
    return _Recognised(
        head=head,
        image=image,
        other_inputs=other_inputs,
        family=family,
        box_format=box_format,
        no_object=no_object,
        class_count=class_count,
        y_first=y_first,
        fractions=fractions,
        default_size=default_size,
        stride=stride,
    )


def _contract(
    index: GraphIndex,
    metadata: dict[str, str],
    recognised: _Recognised,
    adaptation: Adaptation,
) -> Contract:
    """Collect all that the rest of detcli has to know about a recognised graph in a contract.

    Args:
        index: The graph.
        metadata: The metadata in the file.
        recognised: What was recognised in the graph.
        adaptation: What will be added to the graph to run it.
    """
    head = recognised.head
    image = recognised.image
    family = recognised.family
    names, names_origin, warnings = class_names(
        metadata.get("names", ""), recognised.class_count, family.names
    )
    if head.has_more:
        warnings = (*warnings, BOXES_OF_MORE)

    layout = head.layout
    needs_nms = family.needs_nms
    if needs_nms is None:
        needs_nms = _gives_several(head, metadata)
        if needs_nms:
            layout = Layout.ONE_TO_MANY
    usual_nms = family.nms if needs_nms else None
    (conf, class_conf), nms, tile, ignored = recommended(metadata, usual_nms, names)

    preprocessing, assumed_values = _preprocessing(index, family, image, recognised.default_size)

    return Contract(
        layout=layout,
        head=adaptation.head_name,
        anchors_first=adaptation.anchors_first,
        box_format=recognised.box_format,
        class_count=recognised.class_count,
        anchor_count=_anchor_count(index, head, image.size),
        input_name=image.name,
        input_dtype=image.floats,
        batch=_batch(index, head, image),
        input_size=image.size,
        default_size=recognised.default_size,
        stride=recognised.stride,
        names=names,
        names_origin=names_origin,
        counts_classes=head.class_count is not None,
        family=family.name,
        heads=adaptation.head_sources,
        box_fractions=recognised.fractions,
        score_form=adaptation.score_form,
        multi_label=MultiLabel.NEVER if head.best_class_only else family.multi_label,
        max_detections=_max_detections(index, head, family),
        within_anchors=family.gives_a_set,
        clips=family.clips,
        conf=conf,
        class_conf=class_conf,
        tile=tile,
        nms=nms,
        class_agnostic=family.class_agnostic,
        preprocessing=preprocessing or Preprocessing(),
        takes_uint8=image.dtype == "uint8",
        preprocessing_sources=BY_FAMILY if preprocessing else (),
        assumed_preprocessing=_assumed(metadata, image, assumed_values),
        warnings=(*warnings, *ignored),
    )


def _check_head(model: onnx.ModelProto, index: GraphIndex, head: Head) -> None:
    """Refuse a head that cannot give right detections.

    Raises:
        Unrecognised: A Reshape has mixed its channels with its cells, or an operator that is not
            part of ONNX may have computed its scores.
    """
    if mixes_channels(index, head.tensors):
        raise Unrecognised(MIXED)
    # Whether such an operator has applied a sigmoid to the scores cannot be known.
    if head.scores_are is None and _runtime_operators(model):
        raise Unrecognised("it is not clear what makes its scores")


def _preprocessing(
    index: GraphIndex, family: Family, image: ImageInput, default_size: Size
) -> tuple[Preprocessing | None, str]:
    """Find the preprocessing that the networks of a family were trained with.

    Some families changed it over time: large weights in the first convolution then show an earlier
    network, which was trained on small values.

    Returns:
        The preprocessing, or None if it is not known; and, where networks of the family differ in
        the range of values, a text that says which range is assumed, else an empty one.
    """
    preprocessing = family.preprocess(image.size, default_size)
    if preprocessing is None or family.earlier is None:
        return preprocessing, family.variant
    weight = first_weight(index, image.name)
    if weight is None:
        return preprocessing, family.variant
    if weight > FIRST_WEIGHT:
        return family.earlier, ""
    return preprocessing, ""


def _check_task(task: str, *, boxes_only: bool) -> None:
    """Refuse a model whose metadata names a task other than detection, as Ultralytics' does.

    Raises:
        Unrecognised: It is for another task, and its boxes alone were not asked for.
    """
    if task == "detect" or (boxes_only and task in WITH_BOXES):
        return
    does = TASKS.get(task, "it is for something else")
    hint = BOXES_ONLY if task in WITH_BOXES else DETECTORS
    raise Unrecognised(f"{does}: its metadata says task '{task}'", hint)


def _assumed(
    metadata: dict[str, str], image: ImageInput, values: str
) -> tuple[tuple[str, str], ...]:
    """List what has to be assumed about the preprocessing, as the file does not say it.

    Args:
        metadata: The metadata in the file.
        image: The graph's input for images.
        values: What is assumed about the range of values; empty if that is known.

    Returns:
        The step of the preprocessing, and a text for the user, for each assumption.
    """
    assumed = []
    if values:
        assumed.append(("values", values))
    if image.size is None and named_size(metadata) is None:
        height, width = DEFAULT_SIZE
        text = f"an input of {width}x{height}, as no size is named; --imgsz N sets it"
        assumed.append((SIZE, text))
    return tuple(assumed)


def _corners(index: GraphIndex, head: Head, family: Family) -> tuple[bool, bool]:
    """Tell in which order and unit a graph gives the corners of boxes.

    Both follow from the nodes behind the decoding, and from the custom of the model's family.

    Returns:
        Whether the order is y1, x1, y2, x2, and whether boxes are fractions of the input's size.

    Raises:
        Unrecognised: The nodes would have to show it, but do not.
    """
    shown = corner_order(index, head)
    # Distances to edges give x before y in pixels, unless nodes behind them change that.
    may_be_changed = shown is None or any(shown) or not head.decodes(BoxDecode.DISTANCES)
    if (shown is None and family.shown) or (family.swapped and not may_be_changed):
        raise Unrecognised("the order and unit of the corners of its detections are not clear")
    if shown is not None:
        # Nodes show a change; of what comes before it, the family knows more.
        y_first, fractions = shown
        return family.swapped or y_first, family.fractions or fractions
    if head.decoded is not None and head.decoded.fractions is not None:
        return family.swapped, head.decoded.fractions
    return family.swapped, family.fractions


def _batch(index: GraphIndex, head: Head, image: ImageInput) -> int | None:
    """Tell how many images may be given to a graph at once; None if any number.

    A graph whose outputs have no axis for the batch lists the detections of all its images in one,
    so it is only given one image.

    Raises:
        Unrecognised: Such a graph takes only a batch of several images.
    """
    dims = index.shapes[head.boxes[0].tensor]
    is_batched = len(dims) == BATCHED and dims[0] != 1
    may_be_list = head.layout is Layout.ROWS or len(dims) < BATCHED
    if is_batched or not may_be_list:
        return image.batch
    if image.batch not in {None, 1}:
        raise Unrecognised(
            f"it takes {image.batch} pictures at once and gives all their detections in one list",
            "export it with a batch of 1",
        )
    return 1


def _family(head: Head, image: ImageInput, name: str | None) -> Family:
    """The family that the metadata names, if it fits; else the one that the head shows."""
    if not name:
        return family_of(head, image)
    for family in FAMILIES:
        if family.name == name and (head.layout is Layout.END_TO_END or family.is_of(head)):
            return family
    raise Unrecognised(f"its metadata {FAMILY_KEY} says '{name}', which does not fit it")


def _box_format(head: Head, requested: BoxFormat | None) -> BoxFormat:
    box_format = requested or _shown_format(head)
    if box_format is None:
        raise Unrecognised("its boxes are not decoded in a known way", UNKNOWN_BOXES)
    return box_format


def _shown_format(head: Head) -> BoxFormat | None:
    """Tell the format of a graph's boxes, corners or centre and size, from its nodes.

    Returns:
        None if the nodes do not decode the boxes in a known way.
    """
    is_decoded = head.decoded is not None and not head.decodes(BoxDecode.LINEAR)
    if head.layout is Layout.ROWS and not is_decoded:
        return BoxFormat.XYXY  # Graphs that select detections give corners by custom.
    if head.decoded is None or not (is_decoded or head.grid):
        return None
    return head.decoded.box_format


def _against_nodes(head: Head, requested: BoxFormat | None) -> list[str]:
    """The warning about a box format other than the one that nodes show."""
    if requested is None or head.decoded is None or head.decodes(BoxDecode.LINEAR):
        return []
    shown = head.decoded.box_format
    if requested is shown:
        return []
    return [f"its nodes show boxes in {shown}, not {requested} as asked for"]


def _gives_several(head: Head, metadata: dict[str, str]) -> bool:
    """True if a YOLO's head gives several boxes for an object, so that NMS is needed.

    Ultralytics' metadata may say so. If not, boxes as centre and size are those of a head that
    needs it, and boxes as corners those of one that does not.
    """
    if head.layout is Layout.END_TO_END:
        return False
    match metadata.get("end2end"):
        case "False":
            return True
        case "True":
            return False
    return _shown_format(head) is BoxFormat.CXCYWH


def _leaves_out_a_class(index: GraphIndex, head: Head) -> bool:
    """True if a graph has a class for no object in its softmax, but not in its scores.

    The scores then have fewer channels than the Softmax that computes them.

    Raises:
        Unrecognised: The scores are cut out of a Softmax whose number of channels is not known.
    """
    scores = head.scores[0].tensor
    for node in makers(index, scores):
        if node.op_type == "Softmax":
            shares = shares_of(index, node)
            if shares is None and index.producer(scores, "Gather", "Slice", "Split"):
                raise Unrecognised("it is not clear whether its scores cover all classes")
            return None not in {shares, head.class_count} and shares != head.class_count
    return False


def _class_count(head: Head, names: list[str] | None, *, drops_no_object: bool) -> int:
    """Count the classes of a detector.

    Args:
        head: The head of its graph.
        names: The class names in the file's metadata, if any.
        drops_no_object: Whether one channel of the scores stands for no object, and is not counted.

    Raises:
        Unrecognised: The number is not known, or absurd.
    """
    count = head.class_count
    if head.layout is Layout.ROWS and count is None:
        count = len(names) if names else UNKNOWN_CLASSES
    if count is not None and drops_no_object:
        count -= 1
    if count is None or not 0 < count <= MAX_CLASSES:
        raise Unrecognised(f"the number of its classes is unclear ({count})")
    return count


def _anchor_count(index: GraphIndex, head: Head, size: Size | None = None) -> int | None:
    """Count the boxes that a graph gives for an image, or the detections if it selects these.

    Returns:
        None where the number depends on the size of the input.
    """
    tensor = head.boxes[0].tensor
    if head.layout is Layout.SCALES:
        if head.grid is None or size is None:
            return None
        return head.grid.anchor_count
    if head.layout is Layout.ROWS:
        return index.size(tensor, -2)
    if len(index.shapes[tensor]) != BATCHED:
        return None
    return index.size(tensor, 1 if head.anchors_first else 2)


def _max_detections(index: GraphIndex, head: Head, family: Family) -> int | None:
    """Tell how many detections a graph gives for an image at most; None if there is no limit.

    Transformers give a fixed number, and some graphs select the best.
    """
    if head.max_detections is not None or not family.gives_a_set:
        return head.max_detections
    if head.layout is Layout.END_TO_END:
        # The graph's own selection, which `detcli convert` may have appended, fixes the number.
        dims = index.shapes[index.graph.output[0].name]
        if len(dims) == BATCHED:
            return known_size(dims[1])
        return None
    return _anchor_count(index, head)


def _signatures(values: Sequence[onnx.ValueInfoProto]) -> str:
    listed = ", ".join(_signature(value) for value in values[:MAX_LISTED])
    rest = len(values) - MAX_LISTED
    if rest > 0:
        return f"{listed} and {rest} more"
    return listed or "none"


def _signature(value: onnx.ValueInfoProto) -> str:
    dims = ", ".join("?" if dim is None else str(dim) for dim in shape(value))
    return f"{value.name} {type_name(value.type.tensor_type.elem_type)}[{dims}]"
