"""What a head is: where boxes and scores are in a graph, and how to read them."""

from dataclasses import dataclass
from typing import NamedTuple

from detcli.model.contract import Layout
from detcli.model.graph import PRODUCTS
from detcli.model.heads.decode import Activation, Decoded
from detcli.model.heads.queries import Queries

Dims = list[int | str | None]
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


@dataclass(frozen=True, slots=True)
class Head:
    """Where boxes and scores are, and how to read them.

    Attributes:
        layout: How the graph ends.
        boxes: Where the boxes are: one tensor, or one of each scale.
        scores: Where the scores are, likewise; the tensor of the boxes where they are joined.
        class_count: C, or None where that is not clear.
        anchors_first: Whether the tensors are `[B, N, channels]` instead of `[B, channels, N]`.
        decoded: How the boxes are decoded; None where that is not recognised.
        scores_are: What the scores are.
        layer: Operator of the layer that the boxes come from: a convolution's cells, or a matrix
            product's queries; empty if there is none near.
        objectness: One more score comes before those of the classes, and is a factor for all.
        one_class: The graph takes the best class of each box.
        labels: Where the class ids are, of rows that the graph selects.
        most: How many detections the graph would select, where it is cut before that.
        crossed: The scores are `[B, C, N]` beside boxes `[B, N, 4]`, or `[B, N, C]` beside
            `[B, 4, N]`.
        bins: Into how many bins each distance to a side is distributed, 1 where it is not; None
            where that is not known.
        left_out: The tensors hold masks or keypoints too, which are not read.
        queries: What its queries begin with, if it has queries.
        patches: Its graph is a vision transformer's.
    """

    layout: Layout
    boxes: tuple[Columns, ...]
    scores: tuple[Columns, ...]
    class_count: int | None
    anchors_first: bool
    decoded: Decoded | None
    scores_are: Activation | None = Activation.SIGMOID
    layer: str = ""
    objectness: bool = False
    one_class: bool = False
    labels: Columns | None = None
    most: int | None = None
    crossed: bool = False
    bins: int | None = None
    left_out: bool = False
    queries: Queries | None = None
    patches: bool = False

    @property
    def of_queries(self) -> bool:
        """Whether boxes are those of queries, as of DETR and its successors, not of cells."""
        return self.layer in PRODUCTS

    @property
    def tensors(self) -> tuple[str, ...]:
        """The tensors at which the graph is cut, each once."""
        pieces = (*self.boxes, *self.scores, *([self.labels] if self.labels else []))
        return tuple(dict.fromkeys(piece.tensor for piece in pieces))
