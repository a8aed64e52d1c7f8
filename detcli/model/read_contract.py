"""From what was recognised in a graph to the contract that the rest of detcli works by."""

from typing import NamedTuple

from detcli.config.values import BoxFormat
from detcli.core import frozen
from detcli.model.adapt import Adaptation
from detcli.model.contract import (
    BOXES_OF_MORE,
    Contract,
    Layout,
    MultiLabel,
    Preprocessing,
    Size,
    class_names,
)
from detcli.model.families import MIN_WEIGHT_FOR_SMALL_VALUES
from detcli.model.family import Family
from detcli.model.graph import GraphIndex, known_size
from detcli.model.heads import (
    HEAD_RANK,
    BoxDecode,
    Head,
    Unrecognised,
)
from detcli.model.input_nodes import first_weight
from detcli.model.inputs import ImageInput, OtherInput
from detcli.model.metadata import DEFAULT_SIZE, named_size, read_recommendations
from detcli.model.preprocessing import BY_FAMILY, SIZE


@frozen
class Recognised:
    """What was recognised in a graph: its input and head, and the family that they belong to."""

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


def contract_of(
    index: GraphIndex,
    metadata: dict[str, str],
    recognised: Recognised,
    adaptation: Adaptation,
) -> Contract:
    """Collect all that the rest of detcli has to know about a recognised graph in a contract.

    It comes from the graph's nodes, from the metadata in the file, and from what is known about the
    model's family.

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
        needs_nms = _gives_several_boxes_per_object(head, metadata)
        if needs_nms:
            layout = Layout.ONE_TO_MANY
    usual_iou = family.nms if needs_nms else None
    recommendation = read_recommendations(metadata, usual_iou, names)
    conf, class_conf = recommendation.confidences
    multi_label = family.multi_label
    if head.best_class_only:
        multi_label = MultiLabel.NEVER

    preprocessing, assumed_values = _preprocessing_of_family(
        index, family, image, recognised.default_size
    )

    return Contract(
        layout=layout,
        head=adaptation.head_name,
        anchors_first=adaptation.anchors_first,
        box_format=recognised.box_format,
        class_count=recognised.class_count,
        anchor_count=_anchor_count(index, head, has_fixed_size=image.size is not None),
        input_name=image.name,
        input_dtype=image.float_dtype,
        batch=_accepted_batch(index, head, image),
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
        multi_label=multi_label,
        max_detections=_max_detections(index, head, family),
        within_anchors=family.gives_one_box_per_object,
        clips=family.clips,
        conf=conf,
        class_conf=class_conf,
        tile=recommendation.tiling,
        nms=recommendation.nms,
        class_agnostic=family.class_agnostic,
        suppression=family.suppression,
        preprocessing=preprocessing or Preprocessing(),
        takes_uint8=image.dtype == "uint8",
        preprocessing_sources=BY_FAMILY if preprocessing else (),
        assumed_preprocessing=_assumed_preprocessing(metadata, image, assumed_values),
        warnings=(*warnings, *recommendation.ignored),
    )


class FamilyPreprocessing(NamedTuple):
    """How images were prepared for the networks of a family, as far as that is known."""

    preprocessing: Preprocessing | None
    # describes the assumed range of values to the user; empty if networks of the family do not
    # differ in it, or the graph shows it
    assumed_values: str


def _preprocessing_of_family(
    index: GraphIndex, family: Family, image: ImageInput, default_size: Size
) -> FamilyPreprocessing:
    """Find the preprocessing that the networks of a family were trained with.

    Some families changed it over time, and their files do not say which it is. Then the range of
    values is assumed, unless the weights of the first convolution show it: large weights are those
    of an earlier network, which was trained on small values of pixels.

    Args:
        index: The graph.
        family: The family.
        image: The graph's input for images.
        default_size: Height and width to run the network at, if it takes any size.
    """
    preprocessing = family.preprocessing_for(image.size, default_size)
    assumed = FamilyPreprocessing(preprocessing, family.assumed_values)
    has_changed_over_time = family.earlier_preprocessing is not None
    if preprocessing is None or not has_changed_over_time:
        return assumed
    mean_weight = first_weight(index, image.name)
    if mean_weight is None:
        return assumed

    # From here on nothing is assumed, as the weights show the range of values.
    if mean_weight > MIN_WEIGHT_FOR_SMALL_VALUES:
        preprocessing = family.earlier_preprocessing
    return FamilyPreprocessing(preprocessing, assumed_values="")


def _assumed_preprocessing(
    metadata: dict[str, str], image: ImageInput, assumed_values: str
) -> tuple[tuple[str, str], ...]:
    """List what is assumed about the preprocessing because the file does not say it.

    Args:
        metadata: The metadata in the file.
        image: The graph's input for images.
        assumed_values: The range of values that is assumed, described to the user; empty if nothing
            has to be assumed.

    Returns:
        For each assumption, the step of the preprocessing and a description for the user.
    """
    assumptions = []
    if assumed_values:
        assumptions.append(("values", assumed_values))
    if image.size is None and named_size(metadata) is None:
        height, width = DEFAULT_SIZE
        text = f"an input of {width}x{height}, as no size is named; --imgsz N sets it"
        assumptions.append((SIZE, text))
    return tuple(assumptions)


def _accepted_batch(index: GraphIndex, head: Head, image: ImageInput) -> int | None:
    """Determine how many images may be given to a graph at once; None if any number.

    A graph whose outputs have no axis for the batch lists the detections of all its images in one,
    so it is only given one image.

    Args:
        index: The graph.
        head: The tensors in it that hold boxes and scores.
        image: Its input for images.

    Raises:
        Unrecognised: Such a graph takes only a batch of several images.
    """
    dims = index.shapes[head.boxes[0].tensor]  # of the boxes, such as [B, N, 4]
    if head.layout is Layout.ROWS:
        # A graph that selects detections may list those of all images after a first axis of 1.
        has_batch_axis = len(dims) == HEAD_RANK and dims[0] != 1
    else:
        has_batch_axis = len(dims) >= HEAD_RANK
    if has_batch_axis:
        return image.batch
    if image.batch not in {None, 1}:
        raise Unrecognised(
            f"it takes {image.batch} images at once and gives all their detections in one list",
            "export it with a batch of 1",
        )
    return 1


def box_format_by_nodes(head: Head) -> BoxFormat | None:
    """Determine from a graph's decoding nodes whether its boxes are corners or centre and size.

    The nodes may be those that detcli adds to decode a grid head. For detections that a graph
    selects, corners are assumed where the nodes do not show the format, as that is customary.

    Returns:
        The format; None if the nodes do not decode the boxes in a known way.
    """
    decoded = head.decoded
    # LINEAR boxes are the output of a layer, which no node of the graph has decoded.
    is_decoded_by_graph = decoded is not None and decoded.method is not BoxDecode.LINEAR
    if head.layout is Layout.ROWS and not is_decoded_by_graph:
        return BoxFormat.XYXY

    is_decoded_by_detcli = head.grid is not None
    if decoded is not None and (is_decoded_by_graph or is_decoded_by_detcli):
        return decoded.box_format
    return None


def _gives_several_boxes_per_object(head: Head, metadata: dict[str, str]) -> bool:
    """Return whether a YOLO's head outputs several boxes for an object, so that NMS is needed.

    Ultralytics' metadata may say so. If not, the format of the boxes shows it: heads that need NMS
    output boxes as centre and size, and those that do not as corners.
    """
    if head.layout is Layout.END_TO_END:
        return False
    match metadata.get("end2end"):
        case "False":
            return True
        case "True":
            return False
    return box_format_by_nodes(head) is BoxFormat.CXCYWH


def _anchor_count(index: GraphIndex, head: Head, *, has_fixed_size: bool) -> int | None:
    """Count the boxes that a graph outputs for an image.

    That is one for each anchor; or, if the graph selects detections itself, one for each of these.

    Args:
        index: The graph.
        head: The tensors in it that hold boxes and scores.
        has_fixed_size: Whether its input has a fixed height and width. This matters for grid heads,
            whose cells are counted; otherwise the shape of the boxes shows the number.

    Returns:
        The number; None where it depends on the size of the input.
    """
    if head.layout is Layout.SCALES:
        if head.grid is None or not has_fixed_size:
            return None
        return head.grid.anchor_count

    boxes = head.boxes[0].tensor
    if head.layout is Layout.ROWS:
        # The columns are the last axis: boxes are [B, K, columns] or [K, columns].
        return index.size(boxes, -2)

    # Any other boxes are [B, N, channels] or [B, channels, N], if their shape is known.
    if len(index.shapes[boxes]) != HEAD_RANK:
        return None
    anchor_axis = 1 if head.anchors_first else 2
    return index.size(boxes, anchor_axis)


def _max_detections(index: GraphIndex, head: Head, family: Family) -> int | None:
    """Return the maximum number of detections that a graph outputs for an image.

    Args:
        index: The graph.
        head: The tensors in it that hold boxes and scores.
        family: What is known about this architecture of detectors.

    Returns:
        The number; None if there is no limit, or it is not known.
    """
    if head.max_detections is not None:
        # detcli cuts the graph before its selection, but keeps to the number that it selects.
        return head.max_detections

    if not family.gives_one_box_per_object:
        return None
    if head.layout is not Layout.END_TO_END:
        # A transformer outputs one box for each query.
        return _anchor_count(index, head, has_fixed_size=False)

    # The file's only output is [B, K, 6], with the K detections that the graph selects itself, or
    # that nodes appended by `detcli convert` select. K is the limit.
    dims = index.shapes[index.graph.output[0].name]
    if len(dims) != HEAD_RANK:
        return None
    return known_size(dims[1])
