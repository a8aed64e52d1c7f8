"""What the head of a detector is: the tensors that hold boxes and scores, and how to read them.

layers.py follows a tensor back to the nodes that compute it, channels.py finds out which tensors
are joined in it, and decode.py how its boxes are decoded. joined.py (with joined_classes.py),
end_to_end.py, pairs.py, before_selection.py, raw_outputs.py and selected_in_graph.py find heads.
For raw_outputs.py, output_layouts.py finds out what the axes of an output are, output_channels.py
what its channels are, and grid_description.py describes the head. For selected_in_graph.py,
output_parts.py finds out which tensors an output joins, and class_ids.py which are class ids.
queries.py finds out what a transformer starts from, corners.py the order and unit of selected
boxes, and order.py sees whether a graph mixes channels with cells.
"""

from enum import StrEnum
from typing import NamedTuple

from detcli.config.values import BoxFormat
from detcli.core import frozen
from detcli.model.contract import Layout, Size
from detcli.model.graph import PRODUCTS


class Activation(StrEnum):
    """The activation function that the nodes of a graph apply to scores."""

    SIGMOID = "sigmoid"  # or a product of such
    SOFTMAX = "softmax"
    LINEAR = "linear"  # as a layer leaves them


class BoxDecode(StrEnum):
    """The method by which the four coordinates of a box are computed from what layers predict."""

    DISTANCES = "distances"  # from an anchor point to the four edges
    GRID = "grid"  # cell and size of an anchor box, by sigmoids
    EXPONENTIAL = "exponential"  # offset from a point, and the logarithm of a size
    SIGMOID = "sigmoid"  # of a layer's output
    REFINED = "refined"  # sigmoid of a layer's output and an earlier box
    LINEAR = "linear"  # not decoded


class Decoded(NamedTuple):
    """How boxes are decoded, and what their four numbers are."""

    method: BoxDecode
    box_format: BoxFormat
    # True if a product or quotient after the decoding makes them fractions of the input's size,
    # False if it makes them pixels, None if there is none
    fractions: bool | None = None


class Queries(StrEnum):
    """What a transformer's decoder starts from: the queries that it turns into boxes."""

    LEARNT = "learnt"  # the same for every image
    MAPS = "maps"  # the best places of maps, as convolutions leave them
    ENCODED = "encoded"  # the best places after a transformer's encoder


BOX_COORDINATES = 4  # of a box: two corners, or centre and size
HEAD_RANK = 3  # axes of a tensor of boxes or scores: batch, anchors, channels
SUPPRESSION = frozenset(
    {"BatchedNMS_TRT", "EfficientNMS_TRT", "MultiClassNMS", "NonMaxSuppression"}
)
SELECTION = frozenset({*SUPPRESSION, "TopK"})
"""Operators by which a graph selects detections itself."""

BOXES_ONLY = "predict, inspect, bench and eval read its boxes alone with --boxes-only"
DETECTORS = "detcli runs detectors of upright boxes: export a model for that task"


class Unrecognised(Exception):  # noqa: N818 - never leaves detcli.model
    """How a graph differs from every known detector; a second argument is a hint."""


class ChannelRange(NamedTuple):
    """Channels of a tensor, from `start` to before `stop`; all of them by default."""

    tensor: str
    start: int = 0
    stop: int | None = None


class HeadPart(StrEnum):
    """What a group of channels of a head holds."""

    BOX = "box"
    CENTRE = "centre"  # of a box, where its size is a tensor of its own
    SIZE = "size"
    CLASSES = "classes"
    OBJECTNESS = "objectness"
    PAIR = "pair"  # shares of no object and of the only class
    POINTS = "points"  # landmarks, which are left out


SCORES = (HeadPart.CLASSES, HeadPart.OBJECTNESS, HeadPart.PAIR)


class Offset(StrEnum):
    """How a family's layers output the position and size of a box relative to its anchor."""

    DISTANCES = "distances"  # to four edges, in strides; distributed, if there are more than four
    EXPONENTIAL = "exponential"  # in sizes of the anchor, of which width and height have logarithms
    SIGMOID = "sigmoid"  # YOLOv5's: 2 s - 0.5 strides, and (2 s)**2 sizes
    TANH = "tanh"  # a stride at most, and a share of the input's width and height
    PIXELS = "pixels"  # as they are


class TensorsPerScale(StrEnum):
    """How the parts of a scale are spread over the outputs of a graph."""

    ANY = "any"
    APART = "apart"  # a tensor for each part
    JOINED = "joined"  # some tensor holds several parts


Anchors = tuple[tuple[float, float], ...]  # width and height of each anchor of a cell, in pixels

Centres = tuple[tuple[float, float], ...]  # x and y of each anchor of a cell, in strides

PartWidths = tuple[tuple[HeadPart, int], ...]
"""Parts that follow one another, and how many channels each has; 0 where the file says it."""


@frozen(eq=False)
class GridSpec:
    """What a family's layers output for each cell of a grid, and how boxes are decoded from it."""

    # in the order in which one tensor holds them
    parts: PartWidths
    offset: Offset
    strides: tuple[tuple[int, ...], ...] = ((8, 16, 32),)  # of all scales; any of these
    # of each scale; one anchor as large as the stride, if there are none
    anchors: tuple[Anchors, ...] = ()
    # where the anchors of a cell are: this many strides from its top left, and pixels
    centre: tuple[float, float] = (0.0, 0.0)
    # x and y of the centre of each anchor of each scale, in strides from the top left of its cell,
    # where the anchors of a cell lie apart; then there are no pixels beside
    anchor_centres: tuple[Centres, ...] = ()
    # cells divide the sides of the input evenly, where a stride does not, and anchors end there
    cells_divide_input_evenly: bool = False
    # a map has no cell for what is left of a side that a stride does not divide
    cells_rounded_down: bool = False
    variances: tuple[float, float] = (1.0, 1.0)  # of centres and sizes
    powers: tuple[float, float] = (1.0, 1.0)  # of objectness and classes in a score
    softmax: bool = False  # classes exclude each other
    # objectness is the IoU that is expected of a box, as a layer outputs it, cut off at 0 and 1
    objectness_is_iou: bool = False
    classes_shared_by_anchors: bool = False  # all anchors of a cell have the same classes
    landmarks_optional: bool = False  # some of its models output no landmarks
    # one layer outputs all parts of an anchor; there is one class, which training left as likely as
    # it was at first
    is_of_one_layer: bool = False
    tensors: TensorsPerScale = TensorsPerScale.ANY
    scales_may_be_joined: bool = True  # one tensor may hold all scales
    input_sizes: tuple[Size, ...] = ()  # those that its anchors are for; any, if there are none
    takes_any_size: bool = False  # files fix the size that they were traced with, and take any
    rows_first: bool = False  # y comes before x
    # another output has the height and width of its feature maps, in cells
    gives_map_sizes: bool = False

    def cell_count(self, length: int, stride: int) -> int:
        """Count the cells along a side of the input, of which the last may reach beyond it."""
        whole_cells, remaining_pixels = divmod(length, stride)
        if remaining_pixels and not self.cells_rounded_down:
            return whole_cells + 1
        return whole_cells

    @property
    def part_lists(self) -> tuple[PartWidths, ...]:
        """The parts of its models, and of those without landmarks if there are such."""
        if not self.landmarks_optional:
            return (self.parts,)
        without_landmarks = []
        for part, width in self.parts:
            if part is not HeadPart.POINTS:
                without_landmarks.append((part, width))
        return (self.parts, tuple(without_landmarks))


class ChannelSlice(NamedTuple):
    """The channels of a tensor that hold a part of a grid head."""

    tensor: str
    start: int
    stop: int | None  # None for the end of the axis, so that no channel is left out unseen
    axis: int  # of the channels
    rank: int
    anchors: int  # how many have channels here; 1 where each has an entry on another axis
    width: int  # channels of an anchor
    repeated: int  # how many anchors share them
    activation: Activation | None  # what makes them


@frozen(eq=False)
class GridHead:
    """The grid head of a graph: its family's spec, its strides and where each part is."""

    spec: GridSpec
    strides: tuple[int, ...]
    parts: dict[HeadPart, tuple[ChannelSlice, ...]]
    anchor_count: int  # N at the size that was looked at

    def anchors(self, scale: int) -> Anchors:
        """Return the anchors of a cell, by default one that is as large as the scale's stride."""
        if self.spec.anchors:
            return self.spec.anchors[scale]
        stride = self.strides[scale]
        return ((stride, stride),)

    def centres(self, scale: int) -> Centres:
        """Return the centre of each anchor of a cell, in strides from the top left of the cell."""
        if self.spec.anchor_centres:
            return self.spec.anchor_centres[scale]
        strides_from_corner, _ = self.spec.centre
        return ((strides_from_corner, strides_from_corner),) * len(self.anchors(scale))


@frozen
class Head:
    """Where boxes and scores are, and how to read them."""

    layout: Layout
    boxes: tuple[ChannelRange, ...]  # where the boxes are: one tensor, or one of each scale
    # where the scores are, in the same form; the tensor of the boxes where they are joined
    scores: tuple[ChannelRange, ...]
    class_count: int | None  # C, or None where that is not clear
    anchors_first: bool  # whether the tensors are `[B, N, channels]` instead of `[B, channels, N]`
    decoded: Decoded | None  # how the boxes are decoded; None where that is not recognised
    scores_are: Activation | None = Activation.SIGMOID
    # operator of the layer that the boxes come from: a convolution's cells, or a matrix product's
    # queries; empty if there is none near
    layer: str = ""
    # one more score comes before those of the classes, and is a factor for all: in heads that are
    # not selected from yet; YOLOv5 and YOLOX are recognised by it
    objectness: bool = False
    # how many numbers of landmarks come between the objectness and the scores; they are left out
    landmark_channels: int = 0
    best_class_only: bool = False  # the graph takes the best class of each box
    class_ids: ChannelRange | None = None  # the class ids of detections that the graph selects
    # how many detections the graph would select, where it is cut before that
    max_detections: int | None = None
    # the scores are `[B, C, N]` beside boxes `[B, N, 4]`, or `[B, N, C]` beside `[B, 4, N]`
    scores_transposed: bool = False
    # how many bins each distance to an edge is distributed into, 1 where it is not; None where that
    # is not known
    bins: int | None = None
    from_corners: bool = False  # boxes are distances from the corners of cells
    has_more: bool = False  # the tensors hold masks or keypoints too, which are not read
    # for detections that the graph selects: their scores are products of objectness and class
    # scores
    are_products: bool = False
    # for detections that non-maximum suppression selects: from how many boxes; None if not known
    candidates: int | None = None
    queries: Queries | None = None
    patches: bool = False  # its graph is a vision transformer's
    grid: GridHead | None = None  # what its channels are, of a family that has a spec of them

    def decodes(self, *methods: BoxDecode) -> bool:
        """True if boxes are known to be decoded by one of these methods."""
        return self.decoded is not None and self.decoded.method in methods

    @property
    def takes_any_size(self) -> bool:
        """True if its graph takes images of any size, whatever it declares."""
        return self.grid is not None and self.grid.spec.takes_any_size

    @property
    def of_queries(self) -> bool:
        """True if boxes are those of queries, as of DETR and its successors, not of cells."""
        return self.layer in PRODUCTS

    @property
    def tensors(self) -> tuple[str, ...]:
        """The tensors at which the graph is cut, each once."""
        ranges = list(self.boxes + self.scores)
        if self.class_ids is not None:
            ranges.append(self.class_ids)
        return tuple(dict.fromkeys(channel_range.tensor for channel_range in ranges))
