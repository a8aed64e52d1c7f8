"""Tells families apart by their heads, see `detcli.model.families`."""

from detcli.config.values import BoxFormat
from detcli.model.contract import Layout
from detcli.model.graph import CONVOLUTIONS
from detcli.model.heads import Activation, BoxDecode, Head

ULTRAFACE_ANCHOR_COUNTS = frozenset({4420, 17640})  # of inputs of 320x240 and 640x480 pixels
YOLO_NAS_BINS = 17  # YOLO-NAS distributes a distance into these; YOLOv8 has 16


def has_grid_boxes_apart(head: Head) -> bool:
    """True if boxes and scores are two tensors, and each box belongs to a cell of a grid.

    Convolutional detectors lay grids over the image, and predict boxes relative to their cells.
    """
    if head.layout is not Layout.PAIR or head.of_queries:
        return False
    return head.decodes(BoxDecode.DISTANCES, BoxDecode.EXPONENTIAL, BoxDecode.GRID)


def selects_among_cells(head: Head) -> bool:
    """True if the graph itself selects detections, among the cells of grids.

    Graphs that select among the queries of a transformer have different preprocessing. So do those
    whose boxes have logarithms of sizes, as those of SSD and YOLOX.
    """
    is_of_cells = head.layout is Layout.ROWS and head.layer in CONVOLUTIONS
    return is_of_cells and not head.decodes(BoxDecode.EXPONENTIAL)


def selects_as_yolox(head: Head) -> bool:
    """True if the graph itself selects detections, of boxes and scores like those of YOLOX.

    Sizes of boxes are exponentials, and scores are products of objectness and class scores.
    """
    is_of_cells = head.layout is Layout.ROWS and head.layer in CONVOLUTIONS
    return is_of_cells and head.are_products and head.decodes(BoxDecode.EXPONENTIAL)


def selects_as_ultraface(head: Head) -> bool:
    """True if the graph itself selects faces, from as many boxes as UltraFace has anchors.

    Its rows are image, class, score, corners, and its only class is that of faces.
    """
    is_of_cells = columns_of_detections(head) == (3, 2, 1) and head.layer in CONVOLUTIONS
    has_anchors = head.candidates in ULTRAFACE_ANCHOR_COUNTS and head.class_count == 1
    return is_of_cells and has_anchors and head.decodes(BoxDecode.EXPONENTIAL)


def has_class_ids_apart(head: Head) -> bool:
    """True if a graph selects detections and outputs boxes with scores in one tensor, ids apart."""
    if head.layout is not Layout.ROWS or len(head.tensors) != 2:
        return False
    return head.boxes[0].tensor == head.scores[0].tensor


def has_query_boxes(head: Head, *methods: BoxDecode) -> bool:
    """True if boxes are those of a transformer's queries, decoded by one of the given methods.

    DETR and its successors have a fixed number of queries, each of which asks for one object.
    """
    return head.layout is not Layout.ROWS and head.of_queries and head.decodes(*methods)


def has_refined_query_boxes(head: Head) -> bool:
    """True if boxes of queries are refined from layer to layer, with scores from a sigmoid."""
    is_softmax = head.scores_are is Activation.SOFTMAX
    return has_query_boxes(head, BoxDecode.REFINED) and not is_softmax


def is_detr(head: Head) -> bool:
    """True if a head is that of DETR: boxes of queries from a sigmoid, scores not from one.

    DETR's scores are those of a softmax, but a graph may leave the softmax out, and output logits.
    """
    has_sigmoid_boxes = has_query_boxes(head, BoxDecode.SIGMOID)
    return has_sigmoid_boxes and head.scores_are is not Activation.SIGMOID


def is_yolo_nas(head: Head) -> bool:
    """True if a head is that of YOLO-NAS, whose boxes are x1, y1, x2, y2 in a tensor of their own.

    The network predicts the distance from the centre of a grid cell to each edge of a box. It
    scores several whole numbers (bins) for each distance, and the distance is their weighted mean:
    YOLO-NAS has 17 bins and YOLOv8 has 16. If the graph does not show how many there are, the head
    may still be that of YOLO-NAS.
    """
    if not has_grid_boxes_apart(head) or head.decoded is None:
        return False
    if head.best_class_only:  # YOLO-NAS outputs the scores of all classes
        return False

    may_have_its_bins = head.bins == YOLO_NAS_BINS or head.bins is None
    is_from_distances = head.decoded.method is BoxDecode.DISTANCES
    return is_from_distances and head.decoded.box_format is BoxFormat.XYXY and may_have_its_bins


def is_in_one_tensor(head: Head) -> bool:
    """True if boxes and scores are one tensor, and the boxes are not those of queries.

    They are those of the cells of a grid, or it is not known how they are decoded.
    """
    if head.layout not in {Layout.BODY, Layout.TRANSPOSED_BODY, Layout.END_TO_END}:
        return False
    return not head.decodes(BoxDecode.SIGMOID, BoxDecode.REFINED)


def columns_of_detections(head: Head) -> tuple[int, ...]:
    """Find the columns of the tensor of detections in which a graph's own selection ends.

    Families put them in different orders, by which they are told apart.

    Returns:
        The first column of the box, that of the score, and that of the class id if there is one.
        Empty if the graph does not select detections, or outputs them in several tensors.
    """
    if head.layout is not Layout.ROWS or len(head.tensors) != 1:
        return ()
    columns = [head.boxes[0].start, head.scores[0].start]
    if head.class_ids is not None:
        columns.append(head.class_ids.start)
    return tuple(columns)
