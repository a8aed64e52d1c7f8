"""Finds heads that a graph leaves as its layers made them, by what their numbers add up to.

Each scale of such a detector is a map of cells: the input's sides over the scale's stride. For each
anchor of a cell a layer gives a few numbers, and what they are is the same for all detectors of a
family: a row says it (`Cells`), and `detcli.model.adapt` adds the nodes that decode them. Tensors
may hold a scale or all of them, a part of these numbers or all, as maps `[B, channels, H, W]`, as
`[B, N, channels]` or `[B, channels, N]`, and without B where a graph takes one picture.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import onnx

from detcli.core.values import BoxFormat
from detcli.model.contract import Layout, Size
from detcli.model.editing import tidy
from detcli.model.graph import PRODUCTS, Dims, GraphIndex, shape
from detcli.model.heads.decode import (
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
    boxes_of,
    columns,
    layer_of,
    parts_of,
    scores_of,
)


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
    names = [value.name for value in graph.output]
    del graph.value_info[:], graph.output[:]
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    for value in graph.input:
        dims = value.type.tensor_type.shape.dim
        if value.name == image and len(dims) == 4:
            for dim, side in zip(dims, (1, None, *size), strict=True):
                if side is not None:
                    dim.dim_value = side
    return {value.name: shape(value) for value in tidy(fixed).graph.output}


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
    maps = [tuple(-(-side // stride) for side in size) for stride in strides]
    places = [_place(name, dims, maps, anchors) for name, dims in outputs.items()]
    found = [place for place in places if place is not None]
    groups = [[one for one in found if one.scale == scale] for scale in range(-1, len(strides))]
    whole, apart = groups[0], groups[1:]
    if len(found) < len(places) or (whole and any(apart)) or not (whole or all(apart)):
        return None
    if whole and not row.whole:
        return None
    parts: dict[CellPart, tuple[Piece, ...]] = {}
    kinds: dict[CellPart, Activation | None] = {}
    for group in [whole] if whole else apart:
        assigned = _assigned(index, group, row)
        if assigned is None or (parts and assigned.keys() != parts.keys()):
            return None
        for part, (piece, kind) in assigned.items():
            if kinds.setdefault(part, kind) is not kind:
                return None
            parts[part] = (*parts.get(part, ()), piece)
    if any(len({piece.width for piece in pieces}) > 1 for pieces in parts.values()):
        return None
    count = sum(rows * cols * held for (rows, cols), held in zip(maps, anchors, strict=True))
    return _head(index, CellHead(row, strides, parts, kinds, count))


def _place(name: str, dims: Dims, maps: list[tuple[int, ...]], anchors: list[int]) -> _Place | None:
    """What a tensor of some shape holds; None if it holds no cells."""
    rank = len(dims)
    if not dims or not all(isinstance(dim, int) for dim in dims[rank > 2 :]):
        return None
    sides = [int(str(dim)) for dim in dims[rank > 2 :]]
    cells = [rows * cols for rows, cols in maps]
    each = [cell * held for cell, held in zip(cells, anchors, strict=True)]
    # The number of cells or of anchors, what scale these are, and anchors in the channels.
    counts = [
        *((one, scale, 1) for scale, one in enumerate(each)),
        *((one, scale, anchors[scale]) for scale, one in enumerate(cells)),
        (sum(each), -1, 1),
        *([(sum(cells), -1, anchors[0])] if len(set(anchors)) == 1 else []),
    ]
    if rank == 4:
        for scale, one in enumerate(maps):
            for axis, around in ((1, sides[1:]), (3, sides[:2])):
                if tuple(around) == one:
                    return _Place(name, scale, axis, rank, sides[axis - 1], anchors[scale])
    if rank in {2, BATCHED}:
        for axis, count in ((rank - 1, sides[0]), *([(1, sides[1])] if rank == BATCHED else [])):
            for wanted, scale, held in counts:
                if count == wanted:
                    channels = sides[1] if axis == rank - 1 else sides[0]
                    return _Place(name, scale, axis, rank, channels, held)
    return None


_Assigned = dict[CellPart, tuple[Piece, Activation | None]]
_Run = tuple[tuple[CellPart, int], ...]


def _assigned(index: GraphIndex, group: list[_Place], row: Cells) -> _Assigned | None:
    """What each tensor of a scale holds: parts that follow one another in the family's order."""
    fits = list[_Assigned]()
    without = tuple(part for part in row.parts if part[0] is not CellPart.POINTS)
    for parts in dict.fromkeys((row.parts, without)):
        for cuts in itertools.combinations(range(1, len(parts)), len(group) - 1):
            ends = (0, *cuts, len(parts))
            runs = [parts[start:stop] for start, stop in itertools.pairwise(ends)]
            if row.joined is not None and row.joined == (len(runs) == len(parts)):
                continue
            for order in itertools.permutations(group):
                held = [_held(index, *one, row) for one in zip(order, runs, strict=True)]
                if all(held):
                    fits.append({part: one for each in held for part, one in each.items()})
    if len({one[CellPart.BOX][0].tensor for one in fits if CellPart.BOX in one}) > 1:
        raise Unrecognised("two of its outputs may be the boxes, or two the scores")
    return fits[0] if fits else None


def _held(index: GraphIndex, place: _Place, run: _Run, row: Cells) -> _Assigned:
    """The parts that a tensor holds; none if these are not what it holds."""
    counts = [1 if row.shared and part is CellPart.CLASSES else place.anchors for part, _ in run]
    classes = place.channels - sum(
        width * held for (_, width), held in zip(run, counts, strict=True)
    )
    starts, end = {0: place.name}, 0
    if len(run) > 1:
        starts = {}
        for size, name in columns(index, place.name, place.axis) or parts_of(index, place.name)[1]:
            starts[end], end = name, end + size
    found: _Assigned = {}
    start = 0
    for (part, width), held in zip(run, counts, strict=True):
        stop = start + (width * held or classes)
        if stop <= start or (stop - start) % held or start not in starts:
            return {}
        kind = _made_by(index, starts[start], part)
        if not _may_be(index, starts[start], row, (part, width), place):
            return {}
        found[part], start = (_piece(row, part, start, stop, place), kind), stop
    return found if start == place.channels else {}


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


def _piece(row: Cells, part: CellPart, start: int, stop: int, place: _Place) -> Piece:
    shared = row.shared and part is CellPart.CLASSES
    held = 1 if shared else place.anchors
    if part is CellPart.PAIR:  # the second half
        start = (start + stop) // 2
    repeated = place.anchors if shared else 1
    width = (stop - start) // held
    return Piece(place.name, start, stop, place.axis, place.rank, held, width, repeated)


def _head(index: GraphIndex, cells: CellHead) -> Head | None:
    """The head that cells make."""
    parts, row, kinds = cells.parts, cells.row, cells.kinds
    scores = next(part for part in (CellPart.CLASSES, CellPart.PAIR) if part in parts)
    kind = kinds[scores]
    boxes = next(part for part in (CellPart.BOX, CellPart.CENTRE) if part in parts)
    corners = row.offset is Offset.DISTANCES
    way = BoxDecode.DISTANCES if corners else BoxDecode.LINEAR
    decoded = Decoded(way, BoxFormat.XYXY if corners else BoxFormat.CXCYWH, fractions=False)
    raw = kind is Activation.LINEAR and CellPart.OBJECTNESS not in parts and not row.softmax
    head = Head(
        Layout.SCALES,
        tuple(
            Columns(piece.tensor)
            for part in (boxes, CellPart.SIZE)
            for piece in parts.get(part, ())
        ),
        tuple(
            Columns(p.tensor) for part in (scores, CellPart.OBJECTNESS) for p in parts.get(part, ())
        ),
        class_count=parts[scores][0].width,
        anchors_first=True,
        decoded=decoded,
        scores_are=Activation.LINEAR if raw else Activation.SIGMOID,
        cells=cells,
    )
    if kinds[boxes] is Activation.LINEAR or row.offset is Offset.SIGMOID:
        return head
    # The graph decodes its boxes itself; what is left are the facts of its family.
    (piece,) = parts[boxes] if len(parts[boxes]) == 1 else (None,)
    found = None if piece is None else boxes_of(index, piece.tensor)
    if found is None or found.how not in {BoxDecode.EXPONENTIAL, BoxDecode.DISTANCES}:
        return None
    return replace(head, layout=Layout.PAIR, decoded=found, scores_are=kind)
