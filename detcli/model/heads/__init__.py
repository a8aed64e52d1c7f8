"""What the head of a detector is: the tensors that hold boxes and scores, and how to read them.

decode.py follows a tensor back to what makes it; tensors.py, rows.py and cells.py find heads.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from detcli.config.values import BoxFormat
from detcli.core import frozen
from detcli.model.contract import Layout, Size
from detcli.model.graph import PRODUCTS


class Activation(StrEnum):
    """What the nodes that make scores show."""

    SIGMOID = "sigmoid"  # or a product of such
    SOFTMAX = "softmax"
    LINEAR = "linear"  # as a layer leaves them


class BoxDecode(StrEnum):
    """How the four numbers of a box come about."""

    DISTANCES = "distances"  # from an anchor point to the four sides
    GRID = "grid"  # cell and size of an anchor box, by sigmoids
    EXPONENTIAL = "exponential"  # offset from a point, and the logarithm of a size
    SIGMOID = "sigmoid"  # of a layer's output
    REFINED = "refined"  # sigmoid of a layer's output and an earlier box
    LINEAR = "linear"  # not decoded


class Decoded(NamedTuple):
    """How boxes are decoded, and what is in the four columns."""

    how: BoxDecode
    box_format: BoxFormat
    # what a product or quotient behind the decode makes of them: fractions of the input, or pixels;
    # None where there is none
    fractions: bool | None = None


class Queries(StrEnum):
    """What queries begin with."""

    LEARNT = "learnt"  # the same for every picture
    MAPS = "maps"  # the best places of maps, as convolutions leave them
    ENCODED = "encoded"  # the best places behind a transformer's encoder


BOX_ROWS = 4
BATCHED = 3  # axes of a tensor of boxes or scores: batch, anchors, channels
SUPPRESSION = frozenset(
    {"BatchedNMS_TRT", "EfficientNMS_TRT", "MultiClassNMS", "NonMaxSuppression"}
)
SELECTION = frozenset({*SUPPRESSION, "TopK"})
"""Operators by which a graph selects detections itself."""

BOXES_ONLY = "predict, inspect, bench and eval read its boxes alone with --boxes-only"
DETECTORS = "detcli runs detectors of upright boxes: export a model for that task"


class Unrecognised(Exception):  # noqa: N818 - never leaves detcli.model
    """How a graph differs from every known detector; a second argument is a hint."""


class Columns(NamedTuple):
    """A tensor, or some of the entries along its channel axis."""

    tensor: str
    start: int = 0
    stop: int | None = None


class CellPart(StrEnum):
    """What numbers of an anchor are."""

    BOX = "box"
    CENTRE = "centre"  # of a box, where its size is a tensor of its own
    SIZE = "size"
    CLASSES = "classes"
    OBJECTNESS = "objectness"
    PAIR = "pair"  # shares of no object and of the only class
    POINTS = "points"  # landmarks, which are left out


SCORES = {CellPart.CLASSES, CellPart.OBJECTNESS, CellPart.PAIR}


class Offset(StrEnum):
    """How boxes lie about their anchors."""

    DISTANCES = "distances"  # to four sides, in strides; distributed, if there are more than four
    EXPONENTIAL = "exponential"  # in sizes of the anchor, of which width and height have logarithms
    SIGMOID = "sigmoid"  # YOLOv5's: 2 s - 0.5 strides, and (2 s)**2 sizes
    TANH = "tanh"  # a stride at most, and a share of the input's sides
    PIXELS = "pixels"  # as they are


Anchors = tuple[tuple[float, float], ...]  # width and height of each anchor of a cell, in pixels


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """What the numbers of a family's cells are."""

    # in the order in which one tensor holds them, and how many; 0 where the file says it
    parts: tuple[tuple[CellPart, int], ...]
    offset: Offset
    strides: tuple[tuple[int, ...], ...] = ((8, 16, 32),)  # of all scales; any of these
    # of each scale; one anchor as large as the stride, if there are none
    anchors: tuple[Anchors, ...] = ()
    # where the anchors of a cell are: this many strides from its top left, and pixels
    centre: tuple[float, float] = (0.0, 0.0)
    # cells divide the sides of the input evenly, where a stride does not, and anchors end there
    even: bool = False
    variances: tuple[float, float] = (1.0, 1.0)  # of centres and sizes
    powers: tuple[float, float] = (1.0, 1.0)  # of objectness and classes in a score
    softmax: bool = False  # classes exclude each other
    shared: bool = False  # all anchors of a cell have the same classes
    bare: bool = False  # some of its models give no landmarks
    joined: bool | None = None  # one tensor holds several parts; None if either way
    whole: bool = True  # one tensor may hold all scales
    sides: tuple[Size, ...] = ()  # the inputs that its anchors are for; any, if there are none
    free: bool = False  # files fix the size that they were traced with, and take any
    rows_first: bool = False  # y comes before x

    @property
    def choices(self) -> tuple[tuple[tuple[CellPart, int], ...], ...]:
        """The parts of its models, and those of the ones without landmarks."""
        without = tuple(part for part in self.parts if part[0] is not CellPart.POINTS)
        return (self.parts, without) if self.bare else (self.parts,)


class Piece(NamedTuple):
    """Where a part of some cells is: channels of a tensor."""

    tensor: str
    start: int
    stop: int
    axis: int  # of the channels
    rank: int
    anchors: int  # in the channels; 1 where each has its own row
    width: int  # numbers of an anchor
    repeated: int  # how many anchors share them
    kind: Activation | None  # what makes them


@dataclass(frozen=True, slots=True, eq=False)
class CellHead:
    """Cells of a graph: their row, their scales and where each part is."""

    row: Cells
    strides: tuple[int, ...]
    parts: dict[CellPart, tuple[Piece, ...]]
    count: int  # N at the size that was looked at

    def anchors(self, scale: int) -> Anchors:
        """The anchors of a cell."""
        stride = self.strides[scale]
        return self.row.anchors[scale] if self.row.anchors else ((stride, stride),)


@frozen
class Head:
    """Where boxes and scores are, and how to read them."""

    layout: Layout
    boxes: tuple[Columns, ...]  # where the boxes are: one tensor, or one of each scale
    # where the scores are, likewise; the tensor of the boxes where they are joined
    scores: tuple[Columns, ...]
    class_count: int | None  # C, or None where that is not clear
    anchors_first: bool  # whether the tensors are `[B, N, channels]` instead of `[B, channels, N]`
    decoded: Decoded | None  # how the boxes are decoded; None where that is not recognised
    scores_are: Activation | None = Activation.SIGMOID
    # operator of the layer that the boxes come from: a convolution's cells, or a matrix product's
    # queries; empty if there is none near
    layer: str = ""
    # one more score comes before those of the classes, and is a factor for all
    objectness: bool = False
    best_class_only: bool = False  # the graph takes the best class of each box
    labels: Columns | None = None  # where the class ids are, of rows that the graph selects
    # how many detections the graph would select, where it is cut before that
    most: int | None = None
    # the scores are `[B, C, N]` beside boxes `[B, N, 4]`, or `[B, N, C]` beside `[B, 4, N]`
    scores_transposed: bool = False
    # into how many bins each distance to a side is distributed, 1 where it is not; None where that
    # is not known
    bins: int | None = None
    from_corners: bool = False  # boxes are distances from the corners of cells
    left_out: bool = False  # the tensors hold masks or keypoints too, which are not read
    queries: Queries | None = None
    patches: bool = False  # its graph is a vision transformer's
    cells: CellHead | None = None  # what its numbers are, of a family that has a row of them

    def decodes(self, *ways: BoxDecode) -> bool:
        """True if boxes are known to be decoded in one of these ways."""
        return self.decoded is not None and self.decoded.how in ways

    @property
    def is_free(self) -> bool:
        """True if its graph takes pictures of any size, whatever it says."""
        return self.cells is not None and self.cells.row.free

    @property
    def of_queries(self) -> bool:
        """True if boxes are those of queries, as of DETR and its successors, not of cells."""
        return self.layer in PRODUCTS

    @property
    def tensors(self) -> tuple[str, ...]:
        """The tensors at which the graph is cut, each once."""
        pieces = (*self.boxes, *self.scores, *([self.labels] if self.labels else []))
        return tuple(dict.fromkeys(piece.tensor for piece in pieces))
