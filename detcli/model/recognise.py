"""Recognises what an ONNX graph promises by its structure; names of nodes do not matter.

`detcli.model.inputs` and `detcli.model.heads` read the two ends of a graph, `detcli.model.families`
adds what a file does not say, and `detcli.model.adapt` brings the graph to the form that runs.
"""

from collections.abc import Iterable
from dataclasses import replace

import onnx
from onnx import NodeProto

from detcli.config.values import BoxFormat
from detcli.core import frozen
from detcli.model.adapt import HEAD, Adaptation, adapt, with_one_input
from detcli.model.contract import UNKNOWN_CLASSES, Contract, Layout, ScoreForm, parse_names
from detcli.model.editing import cut
from detcli.model.families import FAMILIES, family_of
from detcli.model.family import Family
from detcli.model.find_head import HeadSearch
from detcli.model.graph import GraphIndex
from detcli.model.heads import BoxDecode, Head, Unrecognised
from detcli.model.heads.corners import Corners, corners_after_decoding, tensor_of_selected_boxes
from detcli.model.heads.layers import moved_inputs, softmax_channel_count, source_nodes
from detcli.model.heads.selected_in_graph import read_six_columns, selected_detections
from detcli.model.inputs import ImageInput, find_inputs
from detcli.model.metadata import FAMILY_KEY, box_format_of, default_size_and_stride
from detcli.model.preprocessing_sources import with_preprocessing
from detcli.model.read_contract import Recognised, box_format_by_nodes, contract_of
from detcli.model.refusals import (
    check_biases_are_of_softmax,
    check_corners_are_clear,
    check_head,
    check_names_leave_out_no_object,
    check_task,
    not_a_detector,
)
from detcli.model.sidecar import CONFIG, Sidecar

UNKNOWN_BOXES = "if its head is boxes in pixels and then class scores, pass --box-format"
MAX_CLASSES = 100_000  # more than any detector has; a damaged file may say billions


@frozen
class Reading:
    """How detcli reads a graph: what it takes and outputs, and the nodes that must be added."""

    contract: Contract
    adaptation: Adaptation

    def body(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Return the graph that detcli runs: with one input, for images, and the head as output.

        Nodes after the head, such as those that select detections, are cut off.
        """
        if self.adaptation.is_needed:
            return adapt(model, self.adaptation)
        return cut(model, self.contract.head)

    def with_image_input(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Return the whole graph with one input, for images `[B, 3, H, W]`; outputs stay.

        If the graph takes images of any size, whatever size it says, the input says so.
        """
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
        title: How error messages refer to it.
        box_format: The format of its boxes, if the user has named it.
        sidecar: The preprocessor configuration beside the file, if any.
        boxes_only: Whether a graph that also outputs masks or keypoints is read for its boxes.

    Returns:
        The contract, which says what the graph takes and outputs, and the nodes that have to be
        added to run it.

    Raises:
        ModelError: It is not a detector that detcli knows.
    """
    index = GraphIndex(model.graph)
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    try:
        reading = _recognise_and_plan(model, index, metadata, box_format, boxes_only=boxes_only)
    except Unrecognised as error:
        raise not_a_detector(model, index, title, error) from error
    image = reading.adaptation.image
    contract = with_preprocessing(reading.contract, index, image, metadata, sidecar)
    # The metadata of the file itself takes precedence over the files beside it.
    if sidecar is not None and "names" not in metadata:
        contract = _with_names_beside(contract, sidecar)
    return replace(reading, contract=contract)


def _with_names_beside(contract: Contract, sidecar: Sidecar) -> Contract:
    """Name the classes as a file beside the model does, if it has a name for each of them."""
    if not sidecar.names:
        return contract
    if contract.counts_classes and len(sidecar.names) != contract.class_count:
        return contract
    return contract.with_names(sidecar.names, CONFIG)


def read_selection(model: onnx.ModelProto, reading: Reading) -> Reading | None:
    """Describe how to read the detections that a graph selects itself.

    detcli usually cuts such a graph before the selection, reads all its boxes, and selects by its
    own rules. Here the graph is read as a whole: its head is the selected detections.

    Args:
        model: The model.
        reading: How it is read if it is cut before the selection.

    Returns:
        None if the graph selects nothing after that cut, or it is not clear where the detections
        are.
    """
    index = GraphIndex(model.graph)
    contract = reading.contract
    head_before_selection = reading.adaptation.head
    is_selection_read_anyway = contract.layout is Layout.ROWS
    if is_selection_read_anyway or not _selects_from(index, head_before_selection):
        return None
    selected_head = _selected_head(index, contract.layout)
    if selected_head is None:
        return None

    # The nodes of the selection may convert the boxes to corners or to pixels.
    box_format = contract.box_format
    decoded = selected_head.decoded or head_before_selection.decoded
    if decoded is not None:
        box_format = decoded.box_format
    box_fractions = contract.box_fractions
    if box_fractions and _selects_in_pixels(index, selected_head, head_before_selection.tensors):
        box_fractions = False

    # Added nodes join the selected detections in rows [B, K, 6], whose scores are final.
    contract_of_selection = replace(
        contract,
        layout=Layout.ROWS,
        head=HEAD,
        anchors_first=True,
        box_format=box_format,
        box_fractions=box_fractions,
        score_form=ScoreForm.FINAL,
        nms=None,
    )
    # Selected detections have no score of no object, and their corners are taken to be x1, y1, x2,
    # y2, whatever the head before the selection has.
    adaptation = replace(reading.adaptation, head=selected_head, no_object=None, y_first=False)
    return Reading(contract_of_selection, adaptation)


def _selects_from(index: GraphIndex, head: Head) -> bool:
    """True if a TopK of the graph selects from the boxes or scores of a head."""
    computed_from_head = index.tensors_computed_from(*head.tensors)
    return any(top_k.output[0] in computed_from_head for top_k in index.nodes("TopK"))


def _selected_head(index: GraphIndex, layout: Layout) -> Head | None:
    """Find the boxes, scores and class ids of the detections that a graph selects.

    There are two ways to tell these apart: by the nodes that compute them, and by the usual order
    of six columns, which is corners, score, class id. For a YOLO that selects (END_TO_END) the
    order decides, and the nodes only show how boxes are decoded. If a file has a different order,
    its detections are then visibly wrong.

    Args:
        index: The graph.
        layout: How the graph is read if it is cut before the selection.

    Returns:
        None if it is not clear where they are.
    """
    head_by_nodes = selected_detections(index)
    if layout is not Layout.END_TO_END:
        return head_by_nodes

    head_by_order = read_six_columns(index)
    if head_by_order is None:
        return head_by_nodes
    if head_by_nodes is None:
        return head_by_order
    return replace(head_by_order, decoded=head_by_nodes.decoded)


def _selects_in_pixels(index: GraphIndex, selection: Head, head_tensors: tuple[str, ...]) -> bool:
    """True if a graph multiplies its boxes by the image's size on the way to its selection.

    The search goes back from the selected boxes to the tensors of all boxes and scores, through
    nodes that move the boxes or do arithmetic with them.

    Args:
        index: The graph.
        selection: The detections that the graph selects.
        head_tensors: The tensors of all boxes and scores, before the selection.
    """
    selected_boxes = tensor_of_selected_boxes(index, selection)
    if selected_boxes in head_tensors:
        return False

    def inputs_to_follow(node: NodeProto, output: str) -> Iterable[str]:
        inputs: Iterable[str] = moved_inputs(node, output) or ()
        if not inputs and node.op_type in {"Add", "Div", "Mul", "Sub"}:
            inputs = node.input
        return [name for name in inputs if name not in head_tensors]

    for node, _ in index.ancestors([selected_boxes], inputs_to_follow):
        is_product = node.op_type == "Mul"
        if is_product and not any(_is_constant_up_to_one(index, factor) for factor in node.input):
            return True
    return False


def _is_constant_up_to_one(index: GraphIndex, factor: str) -> bool:
    """True if a factor of boxes is a constant of 1 or less, such as the 0.5 that halves a side.

    The size of images in pixels is greater, or is not a constant.
    """
    constant = index.array(factor)
    return constant is not None and not bool(constant.max() > 1)


def _recognise_and_plan(
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
        boxes_only: Whether a graph that also outputs masks or keypoints is read for its boxes.

    Raises:
        Unrecognised: It differs from every known detector.
    """
    recognised = _recognise(model, index, metadata, requested_format, boxes_only=boxes_only)
    adaptation = Adaptation(
        head=recognised.head,
        image=recognised.image,
        others=recognised.other_inputs,
        no_object=recognised.no_object,
        y_first=recognised.y_first,
    )
    contract = contract_of(index, metadata, recognised, adaptation)
    warning = _warning_of_box_format(recognised.head, requested_format)
    if warning is not None:
        contract = replace(contract, warnings=(*contract.warnings, warning))
    return Reading(contract, adaptation)


def _recognise(
    model: onnx.ModelProto,
    index: GraphIndex,
    metadata: dict[str, str],
    requested_format: BoxFormat | None,
    *,
    boxes_only: bool,
) -> Recognised:
    """Recognise the inputs of a graph, its head, and the family of detectors that it belongs to.

    The head is the tensors of boxes and scores. It shows the family, and the family determines what
    the graph does not show, such as a class that stands for no object.

    Args:
        model: The model.
        index: Its graph.
        metadata: The metadata in the file.
        requested_format: The format of its boxes, if the user has named it.
        boxes_only: Whether a graph that also outputs masks or keypoints is read for its boxes.

    Raises:
        Unrecognised: It differs from every known detector.
    """
    image, other_inputs = find_inputs(index)
    check_task(metadata.get("task", "detect"), boxes_only=boxes_only)
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
    check_head(model, index, head)

    family = _family_of_head(head, image, metadata.get(FAMILY_KEY))
    box_format = _choose_box_format(head, requested_format or box_format_of(metadata))
    no_object = _class_of_no_object(index, head, family)
    names = parse_names(metadata.get("names", ""))
    if no_object is not None and FAMILY_KEY not in metadata:
        check_names_leave_out_no_object(head, family, names)
        check_biases_are_of_softmax(index, head, family, names)
    class_count = _class_count(head, names, drops_no_object=no_object is not None)
    corners = _order_and_unit_of_corners(index, head, family)
    return Recognised(
        head=head,
        image=image,
        other_inputs=other_inputs,
        family=family,
        box_format=box_format,
        no_object=no_object,
        class_count=class_count,
        y_first=corners.y_first,
        fractions=corners.fractions,
        default_size=default_size,
        stride=stride,
    )


def _class_of_no_object(index: GraphIndex, head: Head, family: Family) -> int | None:
    """Determine which of the scores is that of a class for no object, which detcli has to drop.

    Returns:
        The index of the class, 0 or -1; None if the family has no such class, or if the graph
        leaves it out itself, as those do that select.
    """
    selects = head.layout is Layout.END_TO_END
    if selects or _leaves_out_class_of_no_object(index, head):
        return None
    return family.no_object


def _order_and_unit_of_corners(index: GraphIndex, head: Head, family: Family) -> Corners:
    """Determine if a graph outputs corners with y before x, and in fractions or pixels.

    There are three sources:

    - The family says what its networks usually output.
    - If the graph selects detections, nodes between their decoding and the output may swap x and y,
      or divide by the size of the input. Then this is used in addition to what the family says.
    - Otherwise, the nodes that decode the boxes may show the unit, and overrule the family.

    Args:
        index: The graph.
        head: Its head.
        family: The family of detectors that it belongs to.

    Raises:
        Unrecognised: The nodes do not show order and unit, which they must in this family; or they
            show a different order from the family's.
    """
    corners = corners_after_decoding(index, head)
    check_corners_are_clear(corners, head, family)
    if corners is not None:
        return Corners(
            y_first=family.y_first or corners.y_first,
            fractions=family.fractions or corners.fractions,
        )

    are_fractions = family.fractions
    if head.decoded is not None and head.decoded.fractions is not None:
        are_fractions = head.decoded.fractions
    return Corners(y_first=family.y_first, fractions=are_fractions)


def _family_of_head(head: Head, image: ImageInput, named_family: str | None) -> Family:
    """Determine the family of models, such as YOLOX or DETR, that a head belongs to.

    Args:
        head: The head of the graph.
        image: The graph's input for images.
        named_family: The family that the file's metadata names; None or empty if the head decides.

    Raises:
        Unrecognised: There is no family of this name, or its heads are different.
    """
    if not named_family:
        return family_of(head, image)
    # Detections that a graph has selected look the same in all families.
    fits_all_families = head.layout is Layout.END_TO_END
    for family in FAMILIES:
        if family.name == named_family and (fits_all_families or family.has_head(head)):
            return family
    raise Unrecognised(f"its metadata {FAMILY_KEY} says '{named_family}', which does not fit it")


def _choose_box_format(head: Head, requested: BoxFormat | None) -> BoxFormat:
    """Return the box format that was asked for, or else the one that the nodes show.

    Raises:
        Unrecognised: None was asked for, and the nodes do not show any.
    """
    box_format = requested or box_format_by_nodes(head)
    if box_format is None:
        raise Unrecognised("its boxes are not decoded in a known way", UNKNOWN_BOXES)
    return box_format


def _warning_of_box_format(head: Head, requested: BoxFormat | None) -> str | None:
    """Return a warning if the requested box format is not the one that the graph's nodes show.

    Returns:
        None if there is nothing to warn about, as where no node of the graph decodes the boxes.
    """
    if requested is None or head.decoded is None or head.decodes(BoxDecode.LINEAR):
        return None
    format_by_nodes = head.decoded.box_format
    if requested is format_by_nodes:
        return None
    return f"its nodes show boxes in {format_by_nodes}, not {requested} as asked for"


def _leaves_out_class_of_no_object(index: GraphIndex, head: Head) -> bool:
    """True if a graph has a class for no object in its softmax, but not in its scores.

    The scores then have fewer channels than the Softmax that computes them.

    Raises:
        Unrecognised: The scores are cut out of a Softmax whose number of channels is not known.
    """
    scores = head.scores[0].tensor
    softmax_nodes = [node for node in source_nodes(index, scores) if node.op_type == "Softmax"]
    if not softmax_nodes:
        return False
    softmax_channels = softmax_channel_count(index, softmax_nodes[0])
    if softmax_channels is None and index.producer(scores, "Gather", "Slice", "Split"):
        raise Unrecognised("it is not clear whether its scores cover all classes")
    if softmax_channels is None or head.class_count is None:
        return False
    return softmax_channels != head.class_count


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
    if count is None and head.layout is Layout.ROWS:
        # Detections that a graph selects do not show how many classes there are.
        count = len(names) if names else UNKNOWN_CLASSES
    if count is not None and drops_no_object:
        count -= 1
    if count is None or not 0 < count <= MAX_CLASSES:
        raise Unrecognised(f"the number of its classes is unclear ({count})")
    return count
