"""Tiling: a large picture is looked at in overlapping tiles and once whole, and merged into one.

Everything here is geometry on final rows, so it is the same on every device.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from detcli.data.detections import Detections
from detcli.data.geometry import Area, area, common, non_maximum_suppression, overlap

SAME = 0.5  # intersection over union from which two rows are the same object
COVERED = 0.7  # part of a cut row within another from which it is a piece of that object

TWICE = 0.9
"""Intersection over union above which two rows of a class are one object, whatever tiles say."""

EDGE = 0.01  # part of a tile's side; a row that comes this close to a seam may be cut there


def merge(found: Sequence[Detections], areas: Sequence[Area], small: float = 0) -> Detections:
    """One row for each object, from the rows of each area; best first.

    A row that ends at a seam, an inner side of its tile, is cut: it may be a piece of an object.

    1. Of the rows that are not cut, the best is an object. Each other area has at most one row that
       is the same object: that of the same class with the highest intersection over union, at
       least SAME. The next best that is left is the next object, and so on.
    2. A cut row is a piece of such an object of its class if the two have an intersection over
       union of SAME within what both areas see, or if COVERED of the piece is in the object.
    3. Cut rows that are pieces of none but agree in what both areas see, the best with the best,
       are pieces of one object, whose box is around them all.

    An object has the highest score of its rows. Of objects of a class with an intersection over
    union above TWICE, which even one area may show, the best is left.

    Args:
        found: What was found in each area, in pixels of the area; boxes may reach beyond.
        areas: As from `Tiling.areas`; one that holds another comes later.
        small: Size in pixels up to which rows count only where a tile shows them uncut. Anything
            that fits into the overlap lies entirely within some tile.
    """
    merged = found[0] if len(found) == 1 else _merged(found, areas, small)
    return merged[non_maximum_suppression(merged.xyxy, merged.class_id, TWICE, len(merged))]


def _merged(found: Sequence[Detections], areas: Sequence[Area], small: float) -> Detections:
    """A row for each object by the rules of `merge`, but for objects that are there twice."""
    rows = _Rows(found, areas, small)
    ranked = np.lexsort([-rows.score, rows.cut]).tolist()  # stable: of equals, the lower tile first
    partners = defaultdict(list)  # of each row: rows of other areas, the most alike first
    for _, one, other in sorted(rows.pairs(), key=lambda pair: (-pair[0], pair[1:])):
        partners[one].append(other)
        partners[other].append(one)
    owner: dict[int, int] = {}  # the first row of each row's object
    pieces: dict[int, list[int]] = {}  # the rows of each object that is put together
    for row in ranked:
        if row in owner:
            continue
        others = partners[row]
        if not rows.cut[row]:
            free = (other for other in others if not rows.cut[other] and other not in owner)
            owner |= dict.fromkeys([row, *rows.one_of_each_area(free)], row)
        elif whole := [other for other in others if not rows.cut[other]]:
            owner[row] = owner[whole[0]]
        else:
            ranked_before = (other for other in others if owner.get(other) in pieces)
            joined = {owner[other] for other in rows.one_of_each_area(ranked_before)}
            members = [*itertools.chain.from_iterable(map(pieces.pop, sorted(joined))), row]
            owner |= dict.fromkeys(members, members[0])
            pieces[members[0]] = members
    return rows.objects(owner, pieces)


class _Rows:
    """The rows of all areas, in pixels of the picture."""

    def __init__(self, found: Sequence[Detections], areas: Sequence[Area], small: float) -> None:
        self.names = found[0].names
        self.areas = np.array(areas, np.float32)  # (V, 4)
        sizes = [(bottom - top, right - left) for left, top, right, bottom in areas]
        found = [one.within(size) for one, size in zip(found, sizes, strict=True)]
        counts = [len(one) for one in found]
        self.view = np.repeat(np.arange(len(found)), counts)  # (N,), the area of each row
        self.score = np.concatenate([one.score for one in found])
        self.class_id = np.concatenate([one.class_id for one in found])
        tile = self.areas[self.view]
        self.boxes = np.concatenate([one.xyxy for one in found]) + np.tile(tile[:, :2], 2)
        picture = np.hstack([self.areas[:, :2].min(axis=0), self.areas[:, 2:].max(axis=0)])
        near = np.abs(self.boxes - tile) <= EDGE * np.tile(tile[:, 2:] - tile[:, :2], 2)
        self.cut = (near & (tile != picture)).any(axis=1)  # (N,)
        if small:
            sides = (self.boxes[:, 2:] - self.boxes[:, :2]).max(axis=1)
            kept = (sides > small) | ~(self.cut | (self.view == len(found) - 1))
            self.view, self.score, self.class_id, self.boxes, self.cut = (
                part[kept] for part in (self.view, self.score, self.class_id, self.boxes, self.cut)
            )

    def pairs(self) -> Iterator[tuple[float, int, int]]:
        """How alike two rows of different areas are, for those that may be one object."""
        for view, tile in enumerate(self.areas):
            mine = np.flatnonzero(self.view == view)
            meets = area(common(self.areas, tile)) > 0
            theirs = np.flatnonzero(meets[self.view] & (self.view > view))
            same_class = self.class_id[mine][:, np.newaxis] == self.class_id[theirs]
            places = np.nonzero(same_class)
            one, other = mine[places[0]], theirs[places[1]]  # (P,) each: a pair of rows
            touch = area(common(self.boxes[one], self.boxes[other])) > 0
            one, other = one[touch], other[touch]
            ones, others = self.boxes[one], self.boxes[other]  # (P, 4)
            both_see = common(self.areas[self.view[other]], tile)
            one_cut, other_cut = self.cut[one], self.cut[other]
            alike = np.where(
                one_cut | other_cut,
                overlap(common(ones, both_see), common(others, both_see)),
                overlap(ones, others),
            )
            piece = np.where(one_cut, area(ones), area(others))
            covered = (one_cut != other_cut) & (area(common(ones, others)) >= COVERED * piece)
            for pair in np.flatnonzero((alike >= SAME) | covered).tolist():
                yield float(alike[pair]), int(one[pair]), int(other[pair])

    def one_of_each_area(self, rows: Iterable[int]) -> Iterator[int]:
        """The first of these rows in each area."""
        seen = set()
        for row in rows:
            if self.view[row] not in seen:
                seen.add(self.view[row])
                yield row

    def objects(self, owner: Mapping[int, int], pieces: Mapping[int, list[int]]) -> Detections:
        """A row for each object, best first."""
        owners = np.array([owner[row] for row in range(len(self.score))], np.int64)
        score, boxes = np.zeros_like(self.score), self.boxes.copy()
        np.maximum.at(score, owners, self.score)
        for first, members in pieces.items():
            boxes[first, :2] = self.boxes[members, :2].min(axis=0)
            boxes[first, 2:] = self.boxes[members, 2:].max(axis=0)
        kept = np.unique(owners)
        kept = kept[np.argsort(-score[kept], kind="stable")]
        return Detections(boxes[kept], score[kept], self.class_id[kept], self.names)
