"""Finds heads that a graph leaves as its layers made them, by what their numbers add up to.

Each scale of such a detector is a map of cells: the input's sides over the scale's stride. For each
anchor of a cell a layer gives a few numbers, and what they are is the same for all detectors of a
family: a row says it (`Cells`), and `detcli.model.adapt` adds the nodes that decode them. Tensors
may hold a scale or all of them, a part of these numbers or all, as maps `[B, channels, H, W]`, as
`[B, N, channels]` or `[B, channels, N]`, and without B where a graph takes one picture.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import onnx

from detcli.config.values import BoxFormat
from detcli.model.contract import Layout, Size
from detcli.model.editing import tidy
from detcli.model.graph import PRODUCTS, Dims, GraphIndex, shape
from detcli.model.heads import (
    BATCHED,
    SCORES,
    Activation,
    BoxDecode,
    CellHead,
    CellPart,
    Cells,
    Columns,
    Decoded,
    Head,
    Offset,
    Piece,
    Unrecognised,
)
from detcli.model.heads.decode import boxes_of, columns, layer_of, parts_of, scores_of

_Parts = dict[CellPart, Piece]


class _Place(NamedTuple):
    """What a tensor holds: a scale, or all (-1), with this many channels along an axis."""

    name: str
    scale: int
    axis: int
    rank: int
    channels: int
    anchors: int  # in the channels


def shapes_at(model: onnx.ModelProto, image: str, size: Size) -> dict[str, Dims]:
    """The shapes of a graph's outputs where its input is of (height, width); empty if unknown."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    graph = fixed.graph
    ranks = {value.name: len(shape(value)) for value in graph.output}  # before a batch is added
    del graph.value_info[:], graph.output[:]
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in ranks)
    for value in graph.input:
        dims = value.type.tensor_type.shape.dim
        if value.name == image and len(dims) == 4:
            for dim, side in zip(dims, (1, None, *size), strict=True):
                if side is not None:
                    dim.dim_value = side
    found = {value.name: shape(value) for value in tidy(fixed, folds=True).graph.output}
    return {name: dims[-ranks[name] :] for name, dims in found.items()}


def cell_heads(
    index: GraphIndex, shapes: Mapping[str, Dims], size: Size, rows: Iterable[Cells]
) -> Iterator[Head]:
    """The heads of cells that the outputs of a graph may be, at an input of (height, width)."""
    names = [value.name for value in index.graph.output]
    made = {name: number for number, node in enumerate(index.graph.node) for name in node.output}
    # Exporters name and order outputs as they like; layers stay in the order of the network.
    names = sorted((n for n in names if not _is_sum(index, n, names)), key=lambda n: made.get(n, 0))
    outputs = {name: shapes.get(name, []) for name in names}
    for row in rows:
        fits = (_of_row(index, outputs, size, row, strides) for strides in row.strides)
        if (not row.sides or size in row.sides) and (head := next(filter(None, fits), None)):
            yield head


def _is_sum(index: GraphIndex, tensor: str, maps: list[str]) -> bool:
    """True if a map is the sum of another's channels, by which RKNN's runtime skips cells."""
    while (node := index.producer(tensor, "Clip", "Max", "Min")) is not None:
        tensor = node.input[0]
    node = index.producer(tensor, "ReduceSum")
    return node is not None and node.input[0] in maps


def _of_row(
    index: GraphIndex,
    outputs: dict[str, Dims],
    size: Size,
    row: Cells,
    strides: tuple[int, ...],
) -> Head | None:
    anchors = [len(row.anchors[scale]) if row.anchors else 1 for scale in range(len(strides))]
    maps = [[-(-side // stride) for side in size] for stride in strides]
    places = [_place(name, dims, maps, anchors) for name, dims in outputs.items()]
    held = _held_by(index, places, row, len(strides))
    if not held or any(one.keys() != held[0].keys() for one in held):
        return None
    parts = {part: tuple(one[part] for one in held) for part in held[0]}
    if any(len({(piece.kind, piece.width) for piece in each}) > 1 for each in parts.values()):
        return None
    count = sum(math.prod(sides) * each for sides, each in zip(maps, anchors, strict=True))
    return _head(index, CellHead(row, strides, parts, count))


def _held_by(
    index: GraphIndex, places: list[_Place | None], row: Cells, scales: int
) -> list[_Parts]:
    """What the tensors of each scale hold, or those of all; empty if some do not fit."""
    found = [place for place in places if place is not None]
    whole, *apart = ([one for one in found if one.scale == each] for each in range(-1, scales))
    groups = apart if not whole else [whole] if row.whole and not any(apart) else []
    if len(found) < len(places) or not all(groups):
        return []
    held = [_assigned(index, group, row) for group in groups]
    return held if all(held) else []


def _place(name: str, dims: Dims, maps: list[list[int]], anchors: list[int]) -> _Place | None:
    """What a tensor of some shape holds; None if it holds no cells."""
    rank = len(dims)
    sides = [int(side) for side in dims[rank > 2 :] if isinstance(side, int)]
    if len(sides) < rank - (rank > 2) or rank not in {2, BATCHED, 4}:
        return None
    if rank == 4:
        counts = [(sides, scale, anchors[scale]) for scale, sides in enumerate(maps)]
    else:
        cells = [math.prod(sides) for sides in maps]
        each = [cell * held for cell, held in zip(cells, anchors, strict=True)]
        # The number of cells or of anchors, what scale these are, and anchors in the channels.
        counts = [
            *(([one], scale, 1) for scale, one in enumerate(each)),
            *(([one], scale, anchors[scale]) for scale, one in enumerate(cells)),
            ([sum(each)], -1, 1),
            *([([sum(cells)], -1, anchors[0])] if len(set(anchors)) == 1 else []),
        ]
    for axis in [len(sides) - 1, *([0] if rank > 2 else [])]:
        around = sides[:axis] + sides[axis + 1 :]
        for wanted, scale, held in counts:
            if around == wanted:
                return _Place(name, scale, axis + (rank > 2), rank, sides[axis], held)
    return None


def _assigned(index: GraphIndex, group: list[_Place], row: Cells) -> _Parts:
    """What each tensor of a scale holds: parts that follow one another in the family's order."""
    fits = list[_Parts]()
    for parts in row.choices:
        if row.joined is not None and row.joined == (len(group) == len(parts)):
            continue
        for cuts in itertools.combinations(range(1, len(parts)), len(group) - 1):
            ends = itertools.pairwise((0, *cuts, len(parts)))
            runs = [parts[start:stop] for start, stop in ends]
            for order in itertools.permutations(group):
                held = [_held(index, *one, row) for one in zip(order, runs, strict=True)]
                if all(held):
                    fits.append({part: piece for each in held for part, piece in each.items()})
    if len({one[CellPart.BOX].tensor for one in fits if CellPart.BOX in one}) > 1:
        raise Unrecognised("two of its outputs may be the boxes, or two the scores")
    return fits[0] if fits else {}


def _held(
    index: GraphIndex, place: _Place, run: tuple[tuple[CellPart, int], ...], row: Cells
) -> _Parts:
    """The parts that a tensor holds; none if these are not what it holds."""
    shared = {CellPart.CLASSES} if row.shared else set()
    held = [1 if part in shared else place.anchors for part, _ in run]
    known = sum(width * each for (_, width), each in zip(run, held, strict=True))
    starts = {0: place.name} | (_starts(index, place) if len(run) > 1 else {})
    found, start = _Parts(), 0
    for (part, width), each in zip(run, held, strict=True):
        span = range(start, start + (width * each or place.channels - known))
        points = part is CellPart.POINTS and place.anchors == 1
        tensor = _maker(starts, span, points=points)
        if tensor is None:
            return {}
        if not _may_be(index, tensor, row, (part, width), place):
            return {}
        first = (start + span.stop) // 2 if part is CellPart.PAIR else start  # the second half
        found[part] = Piece(
            *(place.name, first, span.stop, place.axis, place.rank),
            anchors=each,
            width=(span.stop - first) // each,
            repeated=place.anchors if part in shared else 1,
            kind=_made_by(index, tensor, part),
        )
        start = span.stop
    return found if start == place.channels else {}


def _maker(starts: Mapping[int, str], span: range, *, points: bool) -> str | None:
    """The one tensor that a part's channels were joined from; None if they are more or less."""
    inside = [name for first, name in starts.items() if first in span]
    if points and not inside:
        return starts[0]  # one layer makes boxes and landmarks
    return inside[0] if len(inside) == 1 and span.start in starts else None


def _starts(index: GraphIndex, place: _Place) -> dict[int, str]:
    """The tensors that channels were joined from, by the first channel of each."""
    cut = columns(index, place.name, place.axis) or parts_of(index, place.name)[1]
    ends = itertools.accumulate(size for size, _ in cut)
    return dict(zip((0, *ends), (name for _, name in cut), strict=False))


def _made_by(index: GraphIndex, tensor: str, part: CellPart) -> Activation | None:
    """What makes numbers; of boxes, "linear" if nothing decodes them."""
    kind = scores_of(index, tensor)
    if part is CellPart.BOX and kind is Activation.LINEAR:
        decoded = boxes_of(index, tensor)
        return kind if decoded is None or decoded.how is BoxDecode.LINEAR else None
    return kind


def _may_be(
    index: GraphIndex, tensor: str, row: Cells, wanted: tuple[CellPart, int], place: _Place
) -> bool:
    """True if numbers may be a part, by the nodes that make them."""
    part, kind = wanted[0], _made_by(index, tensor, wanted[0])
    # Of two classes that share 1, each has its own map for all anchors, or each anchor a row.
    if part is CellPart.PAIR or wanted == (CellPart.CLASSES, 2):
        fits = (place.anchors > 1) == (part is CellPart.PAIR)
        return fits and kind in {Activation.SOFTMAX, Activation.LINEAR}
    if part in SCORES:
        return kind is not None and (row.softmax or kind is not Activation.SOFTMAX)
    if part is CellPart.BOX and kind is not Activation.LINEAR:
        # Boxes that the graph decodes are known where the number of anchors says whose they are.
        return bool(row.sides) if kind is None else row.offset is Offset.SIGMOID
    return layer_of(index, tensor) not in PRODUCTS  # of queries


def _head(index: GraphIndex, cells: CellHead) -> Head | None:
    """The head that cells make."""
    parts, row = cells.parts, cells.row
    scores = parts[CellPart.PAIR if CellPart.PAIR in parts else CellPart.CLASSES]
    boxes = parts[CellPart.CENTRE if CellPart.CENTRE in parts else CellPart.BOX]
    corners = row.offset is Offset.DISTANCES
    way = BoxDecode.DISTANCES if corners else BoxDecode.LINEAR
    logits = CellPart.OBJECTNESS not in parts and not row.softmax
    head = Head(
        Layout.SCALES,
        tuple(Columns(piece.tensor) for piece in (*boxes, *parts.get(CellPart.SIZE, ()))),
        tuple(Columns(piece.tensor) for piece in (*scores, *parts.get(CellPart.OBJECTNESS, ()))),
        class_count=scores[0].width,
        anchors_first=True,
        decoded=Decoded(way, BoxFormat.XYXY if corners else BoxFormat.CXCYWH, fractions=False),
        scores_are=scores[0].kind if logits else Activation.SIGMOID,
        cells=cells,
    )
    if boxes[0].kind is Activation.LINEAR or row.offset is Offset.SIGMOID:
        return head
    # The graph decodes its boxes itself; what is left are the facts of its family.
    found = boxes_of(index, boxes[0].tensor) if len(boxes) == 1 else None
    if found is None or found.how not in {BoxDecode.EXPONENTIAL, BoxDecode.DISTANCES}:
        return None
    return replace(head, layout=Layout.PAIR, decoded=found, scores_are=scores[0].kind)
