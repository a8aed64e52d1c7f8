"""Tiling: a large image is looked at in overlapping tiles and once whole, and merged into one.

Everything here is geometry on final detections, so it is the same on every device.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from detcli.data.detections import Detections, with_rows
from detcli.data.geometry import (
    Area,
    Boxes,
    area,
    intersection_boxes,
    overlap,
)
from detcli.data.suppression import non_maximum_suppression
from detcli.data.topk import rank_descending

SAME_IOU = 0.5  # minimum intersection over union at which two detections are the same object
# The minimum share of a cut detection inside another one that makes it a piece of that object.
MIN_COVERED = 0.7

DUPLICATE_IOU = 0.9
"""Intersection over union above which two detections of a class are duplicates in any case."""

SEAM_WIDTH = 0.01  # share of a tile's size; a box that comes this close to a seam may be cut there

Floats = npt.NDArray[np.float32]
IndexArray = npt.NDArray[np.intp]


def merge(
    detections_by_area: Sequence[Detections], areas: Sequence[Area], max_small_length: float = 0
) -> Detections:
    """Merge the detections of overlapping areas of an image into one detection for each object.

    The detector runs on each tile of a large image, and on the whole image. So an object may be
    detected several times, and one that reaches beyond a tile is cut off at the tile's edge. Such
    an edge inside the image is a seam, and a detection that ends there is called cut.

    1. Uncut detections are whole objects. They take turns, the best first. Each also stands for
       the most similar detection of its class in each other area, if their IoU is SAME_IOU or more.
    2. A cut detection is a piece of the uncut object that it resembles most. It must overlap that
       object enough in the region that both areas show (SAME_IOU), or lie mostly inside it
       (MIN_COVERED).
    3. The remaining cut detections that overlap enough in the region that both areas show are
       pieces of one object, whose box encloses them all.
    4. If the boxes of two objects of the same class are nearly the same (DUPLICATE_IOU), only the
       better one remains.

    Args:
        detections_by_area: The detections of each area, in pixels of the area. Boxes may reach
            beyond it.
        areas: The areas in pixels of the image, as from `Tiling.areas`: an area that contains
            others comes after them.
        max_small_length: Pixels of the longer side up to which an object counts only if a tile
            shows it uncut, and not if the whole image alone does. No more than the tiles overlap,
            so that some tile shows such an object uncut.

    Returns:
        The objects in pixels of the image, the best first. Each has the highest score of its
        detections.
    """
    if len(detections_by_area) == 1:
        [merged] = detections_by_area
    else:
        merged = _merge_areas(detections_by_area, areas, max_small_length)
    remaining = non_maximum_suppression(merged.xyxy, merged.class_id, DUPLICATE_IOU, len(merged))
    return with_rows(merged, remaining)


def _merge_areas(
    detections_by_area: Sequence[Detections], areas: Sequence[Area], max_small_length: float
) -> Detections:
    """Find out which detections of several areas show the same object, and merge these.

    A detection that ends at an edge of its tile is cut: it may show a piece of an object. Uncut
    detections show whole objects, and are assigned to objects first. Cut detections are then added
    to these objects, or joined into new ones.

    Args:
        detections_by_area: The detections of each area, in pixels of the area.
        areas: The areas in pixels of the image, the whole image last.
        max_small_length: Pixels of the longer side up to which an object counts only if a tile
            shows it uncut; 0 for none.

    Returns:
        One detection for each object in pixels of the image, the best first.
    """
    candidates = _Candidates(detections_by_area, areas, max_small_length)
    assignment = _Assignment(candidates)

    # The last key of `lexsort` is the first to decide: uncut detections come before cut ones. In
    # both groups, the highest score comes first, and among equal scores that of the lower area.
    order = np.lexsort([-candidates.score, candidates.is_cut])
    for detection_index in order.tolist():
        if detection_index not in assignment.representatives:
            assignment.assign(detection_index)
    return candidates.merge_objects(assignment.representatives, assignment.pieces_by_object)


class _Match(NamedTuple):
    """Two detections of different areas that may show the same object."""

    similarity: float  # the intersection over union of their boxes
    first: int  # an index into the candidates
    second: int


class _Assignment:
    """Which object each detection belongs to, where several areas may show the same object.

    Detections are named by their indices in the candidates, and an object by the index of one of
    its detections, its representative.

    Attributes:
        representatives: By detection, the representative of its object. Detections that have not
            been assigned to an object yet are missing.
        pieces_by_object: By representative, all detections of an object that is put together from
            cut ones.
    """

    def __init__(self, candidates: "_Candidates") -> None:
        """Find the detections that may show the same object; none is assigned to one yet.

        Args:
            candidates: The detections of all areas.
        """
        self._candidates = candidates
        self.representatives: dict[int, int] = {}
        self.pieces_by_object: dict[int, list[int]] = {}

        # By detection, the detections of other areas that may show its object, the most similar
        # first.
        self._matches: defaultdict[int, list[int]] = defaultdict(list)
        most_similar_first = sorted(
            candidates.matching_pairs(),
            key=lambda match: (-match.similarity, match.first, match.second),
        )
        for match in most_similar_first:
            self._matches[match.first].append(match.second)
            self._matches[match.second].append(match.first)

    def assign(self, detection: int) -> None:
        """Assign a detection to an object.

        An uncut detection becomes a new object. A cut one, which ends at an edge of its tile, is a
        piece of the object of the most similar uncut detection; if it is similar to none, it is put
        together with cut detections that are similar.

        The detection must not be assigned yet, and all uncut ones have to be assigned before the
        first cut one.
        """
        is_cut = self._candidates.is_cut
        uncut_matches = [match for match in self._matches[detection] if not is_cut[match]]
        if not is_cut[detection]:
            self._start_object(detection, uncut_matches)
        elif uncut_matches:
            most_similar = uncut_matches[0]
            self.representatives[detection] = self.representatives[most_similar]
        else:
            self._join_pieces(detection)

    def _start_object(self, detection: int, uncut_matches: list[int]) -> None:
        """Make an uncut detection the representative of a new object.

        In each other area, the most similar detection that is not assigned yet is assigned to the
        object as well: an area shows an object only once.

        Args:
            detection: The detection.
            uncut_matches: The uncut detections of other areas that may show the same object, the
                most similar first.
        """
        unassigned = [match for match in uncut_matches if match not in self.representatives]
        self.representatives[detection] = detection
        for match in self._candidates.first_of_each_area(unassigned):
            self.representatives[match] = detection

    def _join_pieces(self, detection: int) -> None:
        """Merge a cut detection with the similar objects that are put together from cut ones.

        An object that is larger than a tile is detected in pieces, one in each tile that shows a
        part of it. The pieces become one object, whose representative is the first of them.

        Args:
            detection: The index of a cut detection that is similar to no uncut one.
        """
        pieces: list[int] = []
        for similar_object in sorted(self._similar_objects_in_pieces(detection)):
            pieces += self.pieces_by_object.pop(similar_object)
        pieces.append(detection)

        representative = pieces[0]
        self.pieces_by_object[representative] = pieces
        for piece in pieces:
            self.representatives[piece] = representative

    def _similar_objects_in_pieces(self, detection: int) -> set[int]:
        """Find the objects, put together from cut detections, to which a cut detection belongs.

        They are those with a piece that is similar to the detection. Only the most similar of the
        similar pieces in a tile is used, as a tile shows an object once.

        Args:
            detection: The index of a cut detection, which ends at an edge of its tile.

        Returns:
            The representatives of the objects.
        """
        similar_pieces = []
        for match in self._matches[detection]:
            match_object = self.representatives.get(match)
            is_piece = match_object in self.pieces_by_object
            if is_piece:
                similar_pieces.append(match)
        most_similar_pieces = self._candidates.first_of_each_area(similar_pieces)
        return {self.representatives[piece] for piece in most_similar_pieces}


class _Candidates:
    """The N detections of all V areas in arrays, with boxes in pixels of the whole image.

    Attributes:
        names: The names of the classes.
        areas: `(V, 4)`, left, top, right, bottom of each area.
        area_index: `(N,)`, which of the areas each detection is from.
        score: `(N,)`.
        class_id: `(N,)`.
        boxes: `(N, 4)` x1, y1, x2, y2.
        is_cut: `(N,)`, whether the box ends at a seam, an inner edge of its area.
    """

    def __init__(
        self,
        detections_by_area: Sequence[Detections],
        areas: Sequence[Area],
        max_small_length: float,
    ) -> None:
        """Collect the detections of all areas, and find out which of them are cut at a seam.

        Args:
            detections_by_area: The detections of each area, in pixels of the area. Boxes are
                clipped to the area.
            areas: The areas in pixels of the image, the whole image last.
            max_small_length: Pixels of the longer side up to which a detection is dropped unless a
                tile shows it uncut; 0 for none.
        """
        self.names = detections_by_area[0].names
        self.areas: Boxes = np.array(areas, np.float32)  # (V, 4) left, top, right, bottom
        clipped_by_area = []
        for detections, (left, top, right, bottom) in zip(detections_by_area, areas, strict=True):
            size = (bottom - top, right - left)
            clipped_by_area.append(detections.within(size))

        # All N detections in arrays, one area after the other.
        detection_counts = [len(detections) for detections in clipped_by_area]
        area_indices = np.arange(len(clipped_by_area))
        self.area_index: IndexArray = np.repeat(area_indices, detection_counts)
        self.score: Floats = np.concatenate([detections.score for detections in clipped_by_area])
        self.class_id = np.concatenate([detections.class_id for detections in clipped_by_area])
        boxes_in_areas = np.concatenate([detections.xyxy for detections in clipped_by_area])

        # Boxes in pixels of the image: each is moved by the top left corner of its area.
        area_of_detection = self.areas[self.area_index]  # (N, 4)
        offsets = np.tile(area_of_detection[:, :2], 2)  # (N, 4) left, top, left, top
        self.boxes: Boxes = boxes_in_areas + offsets
        self.is_cut = self._ends_at_seams(area_of_detection)
        if max_small_length:
            self._drop_small(max_small_length)

    def _ends_at_seams(self, area_of_detection: Boxes) -> npt.NDArray[np.bool_]:
        """Determine which boxes end at a seam: an edge of their area that is inside the image.

        Args:
            area_of_detection: `(N, 4)`, left, top, right, bottom of the area of each detection.

        Returns:
            `(N,)`, true where one of the four sides of the box is close to a seam.
        """
        left_top = self.areas[:, :2].min(axis=0)
        right_bottom = self.areas[:, 2:].max(axis=0)
        image_edges = np.hstack([left_top, right_bottom])  # (4,)

        sizes = area_of_detection[:, 2:] - area_of_detection[:, :2]  # (N, 2) width, height
        tolerance = SEAM_WIDTH * np.tile(sizes, 2)  # (N, 4) in pixels
        is_near_edge = np.abs(self.boxes - area_of_detection) <= tolerance  # (N, 4)
        # Where an edge of the area is also the edge of the image, nothing is cut.
        is_seam = area_of_detection != image_edges  # (N, 4)
        ends_at_seam: npt.NDArray[np.bool_] = (is_near_edge & is_seam).any(axis=1)
        return ends_at_seam

    def _drop_small(self, max_small_length: float) -> None:
        """Drop the small detections, except those that a tile shows uncut.

        A tile shows a small object larger than the whole image does, so its detection is better.
        The whole image is the last area.

        Args:
            max_small_length: Pixels of the longer side up to which a detection is small.
        """
        longer_sides = (self.boxes[:, 2:] - self.boxes[:, :2]).max(axis=1)
        is_of_whole_image = self.area_index == len(self.areas) - 1
        is_uncut_in_tile = ~(self.is_cut | is_of_whole_image)
        remains = (longer_sides > max_small_length) | is_uncut_in_tile
        self.area_index = self.area_index[remains]
        self.score = self.score[remains]
        self.class_id = self.class_id[remains]
        self.boxes = self.boxes[remains]
        self.is_cut = self.is_cut[remains]

    def matching_pairs(self) -> Iterator["_Match"]:
        """Yield the pairs of detections of different areas that may show the same object.

        They are of the same class, and their boxes have an intersection over union of at least
        SAME_IOU. A cut box and an uncut one also match if the uncut one contains most of the cut
        one (MIN_COVERED).
        """
        for area_index in range(len(self.areas)):
            first, second = self._overlapping_pairs(area_index)
            similarity = self._similarity(first, second)
            is_match = (similarity >= SAME_IOU) | self._is_piece_of_uncut(first, second)
            for similarity_of_pair, first_index, second_index in zip(
                similarity[is_match].tolist(),
                first[is_match].tolist(),
                second[is_match].tolist(),
                strict=True,
            ):
                yield _Match(similarity_of_pair, first_index, second_index)

    def _is_piece_of_uncut(self, first: IndexArray, second: IndexArray) -> npt.NDArray[np.bool_]:
        """Return whether one box of each pair is cut, and the other is not and contains most of it.

        Args:
            first: `(P,)`, the first detection of each pair.
            second: `(P,)`, the second one.

        Returns:
            `(P,)`.
        """
        first_boxes = self.boxes[first]
        second_boxes = self.boxes[second]
        first_is_cut = self.is_cut[first]
        only_one_is_cut = first_is_cut != self.is_cut[second]
        cut_box_area = np.where(first_is_cut, area(first_boxes), area(second_boxes))
        intersection = area(intersection_boxes(first_boxes, second_boxes))
        is_mostly_covered = intersection >= MIN_COVERED * cut_box_area
        return np.asarray(only_one_is_cut & is_mostly_covered)

    def _similarity(self, first: IndexArray, second: IndexArray) -> Floats:
        """Compute the intersection over union of the boxes of detections, pair by pair.

        If one of them is cut at an edge of its tile, only the parts of the boxes in the region that
        both areas show are compared.

        Args:
            first: `(P,)`, the first detection of each pair.
            second: `(P,)`, the second one.
        """
        first_boxes = self.boxes[first]  # (P, 4)
        second_boxes = self.boxes[second]
        first_areas = self.areas[self.area_index[first]]
        second_areas = self.areas[self.area_index[second]]
        shared_region = intersection_boxes(second_areas, first_areas)  # (P, 4)
        similarity_in_shared_region = overlap(
            intersection_boxes(first_boxes, shared_region),
            intersection_boxes(second_boxes, shared_region),
        )
        similarity: Floats = np.where(
            self.is_cut[first] | self.is_cut[second],
            similarity_in_shared_region,
            overlap(first_boxes, second_boxes),
        )
        return similarity

    def _overlapping_pairs(self, area_index: int) -> tuple[IndexArray, IndexArray]:
        """Pair the detections of an area with those of later areas whose boxes they overlap.

        Both detections of a pair are of the same class, and their areas overlap as well. With later
        areas only, every pair of detections comes up once.

        Returns:
            The indices of the first and of the second detection of each pair, `(P,)` each.
        """
        intersections = intersection_boxes(self.areas, self.areas[area_index])  # (V, 4), by area
        overlaps_this_area = area(intersections) > 0  # (V,)
        is_in_overlapping_area = overlaps_this_area[self.area_index]  # (N,), by detection
        is_in_later_area = self.area_index > area_index  # (N,)
        in_this_area = np.flatnonzero(self.area_index == area_index)  # indices of detections
        in_later_areas = np.flatnonzero(is_in_later_area & is_in_overlapping_area)

        # A row for each detection of this area, a column for each of the later areas.
        is_same_class = self.class_id[in_this_area][:, np.newaxis] == self.class_id[in_later_areas]
        rows, columns = np.nonzero(is_same_class)
        first = in_this_area[rows]
        second = in_later_areas[columns]
        boxes_overlap = area(intersection_boxes(self.boxes[first], self.boxes[second])) > 0
        return first[boxes_overlap], second[boxes_overlap]

    def first_of_each_area(self, detections: Iterable[int]) -> Iterator[int]:
        """Yield the first of the given detections in each area, in their order.

        Args:
            detections: The indices of the detections.

        Yields:
            The index of each detection that is the first of its area, in the same order.
        """
        seen_areas = set()
        for detection in detections:
            area_index = self.area_index[detection]
            if area_index not in seen_areas:
                seen_areas.add(area_index)
                yield detection

    def merge_objects(
        self, representatives: Mapping[int, int], pieces_by_object: Mapping[int, list[int]]
    ) -> Detections:
        """Return one detection for each object, the highest score first.

        It has the class and the box of the object's representative, and the highest score of all
        its detections. The box of an object in pieces encloses all of them.

        Args:
            representatives: By detection, the one that represents its object.
            pieces_by_object: By representative, all detections of an object that is put together
                from cut ones.
        """
        detection_count = len(self.score)
        representative_of_detection = np.array(
            [representatives[detection] for detection in range(detection_count)], np.int64
        )
        score = np.zeros_like(self.score)
        np.maximum.at(score, representative_of_detection, self.score)
        boxes = self.boxes.copy()
        for representative, pieces in pieces_by_object.items():
            boxes[representative, :2] = self.boxes[pieces, :2].min(axis=0)
            boxes[representative, 2:] = self.boxes[pieces, 2:].max(axis=0)

        objects = np.unique(representative_of_detection)
        best_first = objects[rank_descending(score[objects])]
        whole_image = self.areas[-1]
        _, _, width, height = whole_image.astype(int).tolist()
        return Detections(
            xyxy=boxes[best_first],
            score=score[best_first],
            class_id=self.class_id[best_first],
            names=self.names,
            image_size=(height, width),
        )
