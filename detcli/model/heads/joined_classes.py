"""What follows the boxes in a head that joins them to scores: objectness, landmarks, classes."""

from typing import NamedTuple

from detcli.model.graph import GraphIndex
from detcli.model.heads import Activation, BoxDecode, Decoded, Unrecognised
from detcli.model.heads.channels import ChannelGroups
from detcli.model.heads.layers import is_computed, score_activation, source_nodes

LANDMARK_NUMBERS = 10  # x and y of eyes, nose and corners of the mouth


class Classes(NamedTuple):
    """What follows the boxes of a head: scores, and an objectness before them in some families.

    An objectness says how probable it is that there is any object, of whatever class.
    """

    class_count: int
    have_objectness: bool  # an objectness comes before the scores
    landmark_channels: int = 0  # between the objectness and the scores


def classes_after_boxes(
    index: GraphIndex, decoded: Decoded | None, groups: ChannelGroups
) -> Classes | None:
    """Count the classes of a head, and find out whether an objectness comes before their scores.

    A head joins boxes to one tensor of scores, or to an objectness and the scores. In YOLOv5, one
    tensor holds both.

    Args:
        index: The graph.
        decoded: How the boxes were decoded, if known.
        groups: The number of channels and the name of each tensor that follows the boxes.

    Returns:
        None if the boxes are not followed by such tensors.

    Raises:
        Unrecognised: It is not clear whether a tensor is an objectness.
    """
    if len(groups) == 1:
        score_count, scores = groups[0]
        return _classes_in_scores(index, decoded, score_count, scores)
    if len(groups) > 2:
        return None

    (objectness_channels, objectness), (class_count, scores) = groups
    if objectness_channels != 1:
        return None
    if not is_probability(index, objectness) or not is_probability(index, scores):
        return None

    has_distances = decoded is not None and decoded.method is BoxDecode.DISTANCES
    if has_distances and is_computed(index, objectness):
        # Of the detectors with such boxes, only YOLOv6 has an objectness, and there it is not
        # computed: it is the constant 1.
        raise Unrecognised("it is not clear what the number between its boxes and scores is")
    return Classes(class_count, have_objectness=True)


def classes_after_landmarks(index: GraphIndex, groups: ChannelGroups) -> Classes | None:
    """Count the classes of a head with landmarks between its objectness and its scores.

    YOLOv5-face has them there: the x and y of five points.

    Args:
        index: The graph.
        groups: The number of channels and the tensor of each part that follows the boxes.

    Returns:
        None if the parts are different, or have a different number of landmarks.
    """
    if len(groups) < 3:
        return None
    objectness_channels, objectness = groups[0]
    class_count, scores = groups[-1]
    landmarks = groups[1:-1]
    landmark_channels = sum(channel_count for channel_count, _ in landmarks)
    if objectness_channels != 1 or landmark_channels != LANDMARK_NUMBERS:
        return None
    if not is_probability(index, objectness) or not is_probability(index, scores):
        return None
    if any(is_probability(index, name) for _, name in landmarks):
        return None
    return Classes(class_count, have_objectness=True, landmark_channels=landmark_channels)


def _classes_in_scores(
    index: GraphIndex, decoded: Decoded | None, score_count: int, scores: str
) -> Classes:
    """Count the classes in a tensor of scores, and find out if its first channel is an objectness.

    It can be one only in a detector with anchor boxes, such as YOLOv5 and YOLOX. There it is one,
    unless the graph has multiplied it into the scores already: then only the products are left.

    Args:
        index: The graph.
        decoded: How the boxes were decoded, if known.
        score_count: The number of channels of the scores.
        scores: Their tensor.

    Raises:
        Unrecognised: It is not clear whether there is an objectness.
    """
    without_objectness = Classes(score_count, have_objectness=False)
    anchor_methods = {BoxDecode.GRID, BoxDecode.EXPONENTIAL}
    has_anchor_boxes = decoded is not None and decoded.method in anchor_methods
    if not has_anchor_boxes:
        return without_objectness

    are_probabilities = is_probability(index, scores)
    are_products = is_multiplied(index, scores)  # of objectness and class scores
    if are_probabilities and not are_products:
        return Classes(score_count - 1, have_objectness=True)
    if score_activation(index, scores) is None:
        raise Unrecognised("it is not clear whether its scores begin with an objectness")
    return without_objectness


def is_multiplied(index: GraphIndex, tensor: str) -> bool:
    """True if a Mul computes any of a tensor's elements."""
    return any(node.op_type == "Mul" for node in source_nodes(index, tensor))


def is_probability(index: GraphIndex, tensor: str) -> bool:
    """True if a tensor holds scores from 0 to 1: by a sigmoid, or as constants.

    YOLOv6 has an objectness that is always 1.
    """
    return score_activation(index, tensor) is Activation.SIGMOID or not is_computed(index, tensor)
