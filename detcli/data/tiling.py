"""Tiling: a large picture is looked at in overlapping tiles and once whole, and merged into one.

Everything here is geometry on final detections, so it is the same on every device.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from detcli.data.detections import Detections
from detcli.data.geometry import (
    Area,
    Boxes,
    area,
    common,
    overlap,
)
from detcli.data.suppression import non_maximum_suppression
from detcli.data.topk import rank_descending

SAME = 0.5  # intersection over union from which on two detections are the same object
COVERED = 0.7  # part of a cut detection within another from which on it is a piece of that object

TWICE = 0.9
"""Intersection over union above which two detections of a class are one object in any case."""

EDGE = 0.01  # part of a tile's size; a box that comes this close to a seam may be cut there

Floats = npt.NDArray[np.float32]
IndexArray = npt.NDArray[np.intp]


def merge(
    detections_by_area: Sequence[Detections], areas: Sequence[Area], small: float = 0
) -> Detections:
    """Merge the detections of all areas: one for each object, best first.

    A detection that ends at a seam, an inner edge of its tile, is cut: it may be a piece of an
    object.

    1. Of the detections that are not cut, the best is an object. Each other area has at most one
       detection of the same object: that of the same class with the highest intersection over
       union, at least SAME. The next best that is left is the next object, and so on.
    2. A cut detection is a piece of such an object of its class if the two have an intersection
       over union of SAME within what both areas see, or if COVERED of the piece is in the object.
    3. Cut detections that are pieces of none but agree in what both areas see, the best with the
       best, are pieces of one object, whose box is around them all.

    An object has the highest score of its detections. Of objects of a class with an intersection
    over union above TWICE, which even one area may show, the best is left.

    Args:
        detections_by_area: In pixels of each area; boxes may reach beyond it.
        areas: As from `Tiling.areas`; one that holds another comes later.
        small: Size in pixels up to which detections count only where a tile shows them uncut.
            Anything that fits into the overlap lies entirely within some tile.
    """
    if len(detections_by_area) == 1:
        merged = detections_by_area[0]
    else:
        merged = _merge_areas(detections_by_area, areas, small)
    best = non_maximum_suppression(merged.xyxy, merged.class_id, TWICE, len(merged))
    return merged[best]


def _merge_areas(
    detections_by_area: Sequence[Detections], areas: Sequence[Area], small: float
) -> Detections:
    """Merge the detections of all areas by the rules of `merge`, before the last suppression."""
    candidates = _Candidates(detections_by_area, areas, small)
    # Of each detection: those of other areas that may be the same object, the most similar first.
    matches: defaultdict[int, list[int]] = defaultdict(list)
    by_similarity = sorted(candidates.pairs(), key=lambda pair: (-pair[0], pair[1:]))
    for _, first, second in by_similarity:
        matches[first].append(second)
        matches[second].append(first)

    object_of: dict[int, int] = {}  # of each detection: the one that stands for its object
    pieces: dict[int, list[int]] = {}  # of each object that is put together: its detections
    # Those that are not cut come first, then by score; a stable sort: of equals, the lower tile.
    order = np.lexsort([-candidates.score, candidates.is_cut])
    for index in order.tolist():
        if index in object_of:
            continue
        uncut_matches = [match for match in matches[index] if not candidates.is_cut[match]]
        if not candidates.is_cut[index]:
            unassigned = [match for match in uncut_matches if match not in object_of]
            object_of[index] = index
            for match in candidates.first_of_each_area(unassigned):
                object_of[match] = index
        elif uncut_matches:
            object_of[index] = object_of[uncut_matches[0]]
        else:
            cut_matches = [match for match in matches[index] if object_of.get(match) in pieces]
            objects = {object_of[match] for match in candidates.first_of_each_area(cut_matches)}
            members = []
            for joined_object in sorted(objects):
                members += pieces.pop(joined_object)
            members.append(index)
            pieces[members[0]] = members
            for member in members:
                object_of[member] = members[0]
    return candidates.objects(object_of, pieces)


class _Candidates:
    """The detections of all areas, in pixels of the picture.

    Attributes:
        areas: `(V, 4)`, what is looked at.
        area_index: `(N,)`, the area of each detection.
        is_cut: `(N,)`, whether it ends at a seam.
    """

    def __init__(
        self, detections_by_area: Sequence[Detections], areas: Sequence[Area], small: float
    ) -> None:
        self.names = detections_by_area[0].names
        self.areas: Boxes = np.array(areas, np.float32)
        visible = []
        for detections, (left, top, right, bottom) in zip(detections_by_area, areas, strict=True):
            visible.append(detections.within((bottom - top, right - left)))
        counts = [len(detections) for detections in visible]
        self.area_index: IndexArray = np.repeat(np.arange(len(visible)), counts)
        self.score: Floats = np.concatenate([detections.score for detections in visible])
        self.class_id = np.concatenate([detections.class_id for detections in visible])
        tile = self.areas[self.area_index]  # (N, 4)
        boxes_in_tiles = np.concatenate([detections.xyxy for detections in visible])
        self.boxes: Boxes = boxes_in_tiles + np.tile(tile[:, :2], 2)
        self.is_cut = self._ends_at_seams(tile)
        if small:
            self._drop_small(small)

    def _ends_at_seams(self, tile: Boxes) -> npt.NDArray[np.bool_]:
        """Whether each box ends at an inner edge of its tile, `(N,)`; `tile` is `(N, 4)`."""
        picture = np.hstack([self.areas[:, :2].min(axis=0), self.areas[:, 2:].max(axis=0)])
        sizes = tile[:, 2:] - tile[:, :2]
        is_near = np.abs(self.boxes - tile) <= EDGE * np.tile(sizes, 2)
        ends: npt.NDArray[np.bool_] = (is_near & (tile != picture)).any(axis=1)
        return ends

    def _drop_small(self, small: float) -> None:
        """Drop small detections but where a tile, not the whole picture, shows them uncut."""
        longer_sides = (self.boxes[:, 2:] - self.boxes[:, :2]).max(axis=1)
        is_of_whole_picture = self.area_index == len(self.areas) - 1
        is_uncut_in_tile = ~(self.is_cut | is_of_whole_picture)
        remains = (longer_sides > small) | is_uncut_in_tile
        self.area_index = self.area_index[remains]
        self.score = self.score[remains]
        self.class_id = self.class_id[remains]
        self.boxes = self.boxes[remains]
        self.is_cut = self.is_cut[remains]

    def pairs(self) -> Iterator[tuple[float, int, int]]:
        """Yield pairs of detections of different areas that may be one object.

        Each with the similarity, an intersection over union, and the two indices.
        """
        for area_index, tile in enumerate(self.areas):
            first, second = self._touching_pairs(area_index, tile)
            first_boxes, second_boxes = self.boxes[first], self.boxes[second]  # (P, 4)
            first_cut, second_cut = self.is_cut[first], self.is_cut[second]  # (P,)
            seen_by_both = common(self.areas[self.area_index[second]], tile)
            similarity = np.where(
                first_cut | second_cut,
                overlap(common(first_boxes, seen_by_both), common(second_boxes, seen_by_both)),
                overlap(first_boxes, second_boxes),
            )
            piece_area = np.where(first_cut, area(first_boxes), area(second_boxes))
            common_area = area(common(first_boxes, second_boxes))
            is_piece = (first_cut != second_cut) & (common_area >= COVERED * piece_area)
            for pair in np.flatnonzero((similarity >= SAME) | is_piece).tolist():
                yield float(similarity[pair]), int(first[pair]), int(second[pair])

    def _touching_pairs(self, area_index: int, tile: Floats) -> tuple[IndexArray, IndexArray]:
        """Pairs, `(P,)` each, of an area's detections and those of later areas that it meets.

        They are of one class and touch.
        """
        in_area = np.flatnonzero(self.area_index == area_index)
        meets_area = area(common(self.areas, tile)) > 0  # (V,)
        is_later = self.area_index > area_index
        in_later_areas = np.flatnonzero(meets_area[self.area_index] & is_later)
        same_class = self.class_id[in_area][:, np.newaxis] == self.class_id[in_later_areas]
        first_positions, second_positions = np.nonzero(same_class)
        first = in_area[first_positions]
        second = in_later_areas[second_positions]
        touches = area(common(self.boxes[first], self.boxes[second])) > 0
        return first[touches], second[touches]

    def first_of_each_area(self, indices: Iterable[int]) -> Iterator[int]:
        """Yield the first of these detections in each area."""
        areas_before = set()
        for index in indices:
            area_index = self.area_index[index]
            if area_index not in areas_before:
                areas_before.add(area_index)
                yield index

    def objects(self, object_of: Mapping[int, int], pieces: Mapping[int, list[int]]) -> Detections:
        """One detection for each object, best first."""
        owners = np.array([object_of[index] for index in range(len(self.score))], np.int64)
        score = np.zeros_like(self.score)
        np.maximum.at(score, owners, self.score)
        boxes = self.boxes.copy()
        for first, members in pieces.items():
            boxes[first, :2] = self.boxes[members, :2].min(axis=0)
            boxes[first, 2:] = self.boxes[members, 2:].max(axis=0)
        objects = np.unique(owners)
        best_first = objects[rank_descending(score[objects])]
        return Detections(
            xyxy=boxes[best_first],
            score=score[best_first],
            class_id=self.class_id[best_first],
            names=self.names,
        )
