"""Repeats: boxes of the same class and place in many images of a camera, such as a stone or branch.

A detector takes such an object for an animal again and again. A person looks at it once, and drops
all of its boxes together.
"""

import math
import posixpath
from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from detcli.core import frozen
from detcli.data.columns import DetectionJson
from detcli.data.geometry import overlap
from detcli.data.ranges import joined_ranges
from detcli.data.record import RecordJson, box_of

MIN_IOU = 0.85
"""The least intersection over union of a box with the box of its group."""

MIN_IMAGES = 10
"""The fewest images, or frames of one video or camera, that make a group."""

ROOM = 1.001
"""By how much a search reaches further than computed, for what rounding takes away."""

BOXES_AT_A_TIME = 512
"""The overlaps of this many boxes are counted at once, which needs memory for all their pairs."""

MANY_NEARBY = 1024
"""A box that has as many boxes near it is compared with them when its turn comes, not before."""

_Boxes = npt.NDArray[np.float64]
_Integers = npt.NDArray[np.int64]
_Keys = npt.NDArray[np.uint64]


@frozen
class RepeatGroup:
    """Boxes of the same class at the same place in images of one camera."""

    number: int  # from 1; the group with the most images comes first
    place: str  # the folder of the images, or the video or camera
    class_name: str
    box: tuple[float, float, float, float]  # x1, y1, x2, y2 in fractions of width and height
    image_count: int
    box_count: int
    # Records count from 0, in the order in which they were added.
    record_index: int  # of the record with the group's box
    detection_index: int  # of that box in the record
    first_record: int
    last_record: int


def place_of(record: RecordJson) -> str:
    """Return what an image shares with others of its camera.

    Returns:
        The folder of an image, `.` if it has none; for a frame, the source of its video or camera.

    Examples:
        >>> place_of({"source": "card1/site7/a.jpg"})
        'card1/site7'
        >>> place_of({"source": "card1/night.mp4", "frame": 4})
        'card1/night.mp4'
    """
    source = record["source"]
    if "frame" in record:
        return source
    return posixpath.dirname(source) or "."


def fractions_of(detection: DetectionJson, record: RecordJson) -> tuple[float, float, float, float]:
    """Return the box of a detection in fractions of its image's width and height: x1, y1, x2, y2.

    Images of a camera are compared by these, as a camera may change the size of its images.
    """
    x1, y1, x2, y2 = box_of(detection)
    width, height = record["width"], record["height"]
    return x1 / width, y1 / height, x2 / width, y2 / height


def overlap_enough(first: Sequence[float], second: Sequence[float]) -> bool:
    """Return whether two boxes overlap with an IoU of `MIN_IOU` or more, as boxes of a group do.

    It computes what `overlap` does, but a hundred times as fast for two boxes.

    Args:
        first: x1, y1, x2 and y2.
        second: The same for the other box.
    """
    first_x1, first_y1, first_x2, first_y2 = first
    second_x1, second_y1, second_x2, second_y2 = second
    width = min(first_x2, second_x2) - max(first_x1, second_x1)
    height = min(first_y2, second_y2) - max(first_y1, second_y1)
    if width <= 0 or height <= 0:
        return False
    intersection = width * height
    first_area = max(0.0, first_x2 - first_x1) * max(0.0, first_y2 - first_y1)
    second_area = max(0.0, second_x2 - second_x1) * max(0.0, second_y2 - second_y1)
    union = first_area + second_area - intersection
    return union > 0 and intersection / union >= MIN_IOU


class RepeatFinder:
    """Collects the boxes of all records, and then determines which of them repeat.

    A group is a box and all boxes of its class and camera that overlap it with an IoU of `MIN_IOU`
    or more, in `MIN_IMAGES` images or more. The boxes take turns, the highest score first, and a
    box that is in a group already does not begin another. So the groups do not depend on the order
    of the records.

    It takes 56 bytes for each box, and about 200 while it groups them.
    """

    def __init__(self) -> None:
        """Start with no records."""
        self.record_count = 0
        self._highest_number = 0  # highest id of the groups that were dropped before
        # Only boxes of the same class at the same place are compared: each place and class is a
        # kind.
        self._kind_numbers: dict[tuple[str, str], int] = {}
        # An entry for each box that may repeat:
        self._kinds = array("i")  # a value of `_kind_numbers`
        self._records = array("q")  # the index of its record
        self._detections = array("i")  # its index among the detections of the record
        self._scores = array("d")
        self._edges = array("d")  # x1, y1, x2, y2 in fractions of the image: four entries per box

    def add(self, record: RecordJson) -> None:
        """Add the boxes of the next record, which may show the same as boxes of other records.

        Boxes that an earlier search has marked as repeated are left out, and boxes without an area.
        """
        record_index = self.record_count
        self.record_count += 1
        place = place_of(record)  # the camera: the folder of the image, or the source of its video
        for detection_index, detection in enumerate(record.get("detections", ())):
            if "repeated" in detection:
                self._highest_number = max(self._highest_number, detection["repeated"])
                continue

            x1, y1, x2, y2 = fractions_of(detection, record)
            is_empty = x2 <= x1 or y2 <= y1
            if is_empty:
                continue

            # A kind that is new gets the next number.
            kind = (place, detection["class_name"])
            next_number = len(self._kind_numbers)
            kind_number = self._kind_numbers.setdefault(kind, next_number)

            self._kinds.append(kind_number)
            self._records.append(record_index)
            self._detections.append(detection_index)
            self._scores.append(detection["score"])
            self._edges.extend((x1, y1, x2, y2))

    def find_groups(self) -> list[RepeatGroup]:
        """Group the boxes that were added.

        Returns:
            The groups; those with the most images first, then by place, class and box.
        """
        if not self._scores:
            return []
        boxes = np.array(self._edges, np.float64).reshape(-1, 4)
        kinds = np.array(self._kinds, np.int64)
        records = np.array(self._records, np.int64)
        members_by_box = _members_by_box(boxes, kinds, records, np.array(self._scores))

        place_and_class_by_kind = list(self._kind_numbers)
        groups = []
        for box_index, members in members_by_box.items():
            place, class_name = place_and_class_by_kind[self._kinds[box_index]]
            records_of_group = np.unique(records[members])
            x1, y1, x2, y2 = boxes[box_index].tolist()
            groups.append(
                RepeatGroup(
                    number=0,  # until all groups are sorted
                    place=place,
                    class_name=class_name,
                    box=(x1, y1, x2, y2),
                    image_count=len(records_of_group),
                    box_count=len(members),
                    record_index=self._records[box_index],
                    detection_index=self._detections[box_index],
                    first_record=int(records_of_group[0]),
                    last_record=int(records_of_group[-1]),
                )
            )
        return _numbered(groups, self._highest_number + 1)


def _numbered(groups: list[RepeatGroup], first_number: int) -> list[RepeatGroup]:
    """Sort groups, the one with the most images first, and number them from `first_number`."""
    ordered = sorted(
        groups, key=lambda group: (-group.image_count, group.place, group.class_name, group.box)
    )
    return [replace(group, number=number) for number, group in enumerate(ordered, first_number)]


def _members_by_box(
    boxes: _Boxes, kinds: _Integers, records: _Integers, scores: _Boxes
) -> dict[int, _Integers]:
    """Form groups of boxes that overlap one box and are in many images.

    Each box that is in no group yet, from the highest score to the lowest, begins a group of all
    boxes of its kind that overlap it (`MIN_IOU`), if they are in enough images (`MIN_IMAGES`).

    Args:
        boxes: `(N, 4)`, x1, y1, x2, y2 in fractions of the image; each has an area.
        kinds: `(N,)`, a number for each place and class: only boxes of a kind are compared.
        records: `(N,)`, the index of each box's record, which is that of its image.
        scores: `(N,)`.

    Returns:
        For each box that began a group, by its index from 0: the indices of all boxes in it.
    """
    nearby = NearbyBoxes(boxes, kinds)
    x1, y1, x2, y2 = boxes.T
    # The last key is the primary one. Boxes with equal scores are sorted by their corners, so that
    # the order of the records does not matter.
    best_first = np.lexsort((y2, x2, y1, x1, -scores))
    is_in_group = np.zeros(len(boxes), np.bool_)
    members_by_box: dict[int, _Integers] = {}
    for start in range(0, len(best_first), BOXES_AT_A_TIME):
        next_boxes = best_first[start : start + BOXES_AT_A_TIME]
        ungrouped = next_boxes[~is_in_group[next_boxes]]
        for box_index in nearby.with_enough_overlaps(ungrouped).tolist():
            # An earlier box of this loop may have begun a group that this one is in.
            if is_in_group[box_index]:
                continue
            members = nearby.overlapping(box_index)
            image_count = len(np.unique(records[members]))
            if image_count >= MIN_IMAGES:
                members_by_box[box_index] = members
                is_in_group[members] = True
    return members_by_box


class _Ranges(NamedTuple):
    """Ranges of positions in a sorted list: 16 for each of M boxes, `(M, 16)`."""

    begins: _Integers
    ends: _Integers  # the position after the last of each range


class NearbyBoxes:
    """Finds boxes that overlap another with an IoU of `MIN_IOU`, without a look at all boxes.

    The widths of two such boxes have a ratio of `MIN_IOU` or more, and their middles are apart by
    (1 - `MIN_IOU`) / (1 + `MIN_IOU`) of the mean width at most; the same holds for heights. So
    boxes are sorted into cells by size and middle. Widths are divided into size levels, and so are
    heights: all lengths of a level are nearly the same. There is a grid for each pair of levels,
    whose cells are in proportion to these. What overlaps a box is in 16 of the cells: two size
    levels along each axis, and two neighbouring cells of each.
    """

    def __init__(self, boxes: _Boxes, kinds: _Integers) -> None:
        """Sort boxes by the cell that each is in, so that those of a cell can be found quickly.

        Args:
            boxes: `(N, 4)`, x1, y1, x2, y2; each has an area.
            kinds: `(N,)`, the kind of each box; those of other kinds are never near.
        """
        self._boxes = boxes
        self._kinds = kinds
        sides, middles = _sides_and_middles(boxes)  # (N, 2) each
        # Each size level has a separate grid: large boxes are in large cells.
        size_levels = np.floor(np.log(sides) / _LEVEL_HEIGHT).astype(np.int64)
        columns_and_rows = np.floor(middles / _cell_sizes(size_levels)).astype(np.int64)
        cell_keys = _cell_keys(kinds, size_levels, columns_and_rows)  # (N,)
        self._boxes_by_cell = np.argsort(cell_keys, kind="stable")
        self._sorted_cell_keys = cell_keys[self._boxes_by_cell]

    def with_enough_overlaps(self, box_indices: _Integers) -> _Integers:
        """Select the boxes that `MIN_IMAGES` boxes or more overlap; the others can begin no group.

        A box with `MANY_NEARBY` boxes or more near it is selected without being compared with them:
        the caller does that if it is still in no group when its turn comes.

        Args:
            box_indices: `(M,)`, boxes in some order.

        Returns:
            The selected boxes, in the same order.
        """
        ranges = self._ranges_near(box_indices)
        nearby_counts = (ranges.ends - ranges.begins).sum(axis=1)  # (M,)
        has_many_nearby = nearby_counts >= MANY_NEARBY
        is_compared = (nearby_counts >= MIN_IMAGES) & ~has_many_nearby
        compared_ranges = _Ranges(ranges.begins[is_compared], ranges.ends[is_compared])
        overlap_counts = self._overlap_counts(box_indices[is_compared], compared_ranges)

        is_selected = has_many_nearby.copy()
        is_selected[is_compared] = overlap_counts >= MIN_IMAGES
        selected: _Integers = box_indices[is_selected]
        return selected

    def overlapping(self, box_index: int) -> _Integers:
        """Return the boxes of the same kind that overlap a box with `MIN_IOU`, including itself."""
        ranges = self._ranges_near(np.array([box_index]))
        parts = []
        for begin, end in zip(ranges.begins[0], ranges.ends[0], strict=True):
            parts.append(self._boxes_by_cell[begin:end])
        candidates = np.concatenate(parts)
        ious = overlap(self._boxes[box_index], self._boxes[candidates])
        is_same_kind = self._kinds[candidates] == self._kinds[box_index]
        overlapping: _Integers = np.unique(candidates[is_same_kind & (ious >= MIN_IOU)])
        return overlapping

    def _overlap_counts(self, box_indices: _Integers, ranges: _Ranges) -> _Integers:
        """Count, for each given box, the boxes that overlap it with `MIN_IOU`, itself included.

        Args:
            box_indices: `(M,)`.
            ranges: Where the boxes near each of them are in `_boxes_by_cell`.

        Returns:
            `(M,)`.
        """
        # Each of the M boxes is paired with every box near it; there are P pairs in all. The first
        # of each is known by its index among the M boxes, `(P,)`, and by its box number, `(P,)`.
        range_lengths = ranges.ends - ranges.begins  # (M, 16)
        nearby_counts = range_lengths.sum(axis=1)  # (M,)
        first_indices = np.repeat(np.arange(len(box_indices)), nearby_counts)
        first_numbers = box_indices[first_indices]
        # Positions in `_boxes_by_cell`.
        positions = joined_ranges(ranges.begins.ravel(), range_lengths.ravel())
        second_numbers = self._boxes_by_cell[positions]  # (P,)

        ious = overlap(self._boxes[first_numbers], self._boxes[second_numbers])
        is_same_kind = self._kinds[first_numbers] == self._kinds[second_numbers]
        overlaps = is_same_kind & (ious >= MIN_IOU)
        return np.bincount(first_indices[overlaps], minlength=len(box_indices))

    def _ranges_near(self, box_indices: _Integers) -> _Ranges:
        """Find the boxes near given ones: where those of the 16 cells around each begin and end.

        Args:
            box_indices: `(M,)`.

        Returns:
            Ranges of `_boxes_by_cell`, `(M, 16)`.
        """
        cell_keys = self._keys_of_cells_near(box_indices)
        return _Ranges(
            begins=np.searchsorted(self._sorted_cell_keys, cell_keys, "left"),
            ends=np.searchsorted(self._sorted_cell_keys, cell_keys, "right"),
        )

    def _keys_of_cells_near(self, box_indices: _Integers) -> _Keys:
        """Return, for each given box, the keys of the 16 cells with all boxes that overlap it.

        A box that overlaps another is about as large, so its width has one of two size levels, and
        so has its height: 4 pairs of levels. Its middle is close to that of the other, so in the
        grid of these levels it is in one of two columns and one of two rows: 4 cells for each pair.

        Args:
            box_indices: `(M,)`, the boxes around which others are looked for.

        Returns:
            `(M, 16)`.
        """
        sides, middles = _sides_and_middles(self._boxes[box_indices])  # (M, 2) each
        kinds = self._kinds[box_indices]

        # The lower of the two levels is that of the smallest boxes that may overlap.
        smallest_log_sides = np.log(sides) - _REACH_OF_LEVELS
        lower_levels = np.floor(smallest_log_sides / _LEVEL_HEIGHT).astype(np.int64)
        # The first of the two columns and rows is that of the leftmost and topmost middles.
        first_middles = middles - _largest_distances(sides)

        keys_of_cells = []
        for level_steps in STEPS_OF_AXES:  # the lower level of widths and heights, or the next
            size_levels = lower_levels + level_steps
            first_cells = np.floor(first_middles / _cell_sizes(size_levels)).astype(np.int64)
            for cell_steps in STEPS_OF_AXES:  # the first column and row, or the next
                keys_of_cells.append(_cell_keys(kinds, size_levels, first_cells + cell_steps))
        return np.stack(keys_of_cells, axis=1)


STEPS_OF_AXES = ((0, 0), (0, 1), (1, 0), (1, 1))
"""All combinations of no step or one step along x and along y, for grids and levels alike."""

_REACH_OF_MIDDLES = (1 - MIN_IOU) / (1 + MIN_IOU) * ROOM
"""The largest distance of the middles of two overlapping boxes, as a fraction of their mean side.

Along an axis, two boxes with the mean side s and middles d apart share at most s - d of s + d. The
ratio of these is their IoU at most, and it is `MIN_IOU` for this fraction d / s.
"""

_REACH_OF_LEVELS = -math.log(MIN_IOU) * ROOM
"""How far the logarithms of the sides of two overlapping boxes are apart at most."""

_LEVEL_HEIGHT = 2 * _REACH_OF_LEVELS * ROOM
"""How far two levels are apart, in logarithms of a side: what is within reach has two levels."""


def _sides_and_middles(boxes: _Boxes) -> tuple[_Boxes, _Boxes]:
    """Return width and height of boxes `(M, 4)`, and x and y of their middles, `(M, 2)` each."""
    left_top = boxes[:, :2]
    right_bottom = boxes[:, 2:]
    return right_bottom - left_top, (left_top + right_bottom) / 2


def _cell_sizes(size_levels: _Integers) -> _Boxes:
    """Return the width and height of the cells in the grids of the given size levels.

    A cell is twice as wide as the largest distance, along x, between the middles of two boxes that
    overlap, if one of them is as wide as any that a box of this level can overlap. So the middles
    of all boxes of this level that overlap one box are in two neighbouring columns at most. The
    same holds along y for heights and rows.

    Args:
        size_levels: `(M, 2)`, of widths and of heights. Level n has the boxes whose side is from
            `exp(n * _LEVEL_HEIGHT)` to `exp((n + 1) * _LEVEL_HEIGHT)`.

    Returns:
        `(M, 2)`, in fractions of the image.
    """
    longest_sides_of_level = np.exp((size_levels + 1) * _LEVEL_HEIGHT)
    # If two boxes overlap, each side of one is at least MIN_IOU of that side of the other.
    longest_overlapped_sides = longest_sides_of_level / MIN_IOU
    sizes: _Boxes = 2 * ROOM * _largest_distances(longest_overlapped_sides)
    return sizes


def _largest_distances(sides: _Boxes) -> _Boxes:
    """Return the largest distance between the middle of a box and that of a box that overlaps it.

    Two boxes overlap if their intersection over union is `MIN_IOU` or more. Their middles are then
    at most `_REACH_OF_MIDDLES` of their mean side apart, which is largest for the longest box.

    Args:
        sides: `(M, 2)`, width and height of each box.

    Returns:
        `(M, 2)`, the distance along x and along y.
    """
    longest_overlapping_sides = sides / MIN_IOU
    mean_sides = (sides + longest_overlapping_sides) / 2
    distances: _Boxes = _REACH_OF_MIDDLES * mean_sides
    return distances


# Multiplicative hashing (Knuth): a product with 2^64 over the golden ratio, an odd number, mixes
# bits upwards, and a shift to the right brings the upper ones down again.
_HASH_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_HASH_SHIFT = np.uint64(29)


def _cell_keys(kinds: _Integers, size_levels: _Integers, columns_and_rows: _Integers) -> _Keys:
    """Hash cells to numbers, so that boxes can be sorted by the cell that they are in.

    Equal cells have equal numbers. Different cells may have equal numbers by chance, so boxes whose
    cells have the same number have to be compared.

    Args:
        kinds: `(M,)`, the kind of the boxes in each cell.
        size_levels: `(M, 2)`, the levels of their width and height.
        columns_and_rows: `(M, 2)`, where the cell is in the grid of these levels.

    Returns:
        `(M,)`.
    """
    keys = kinds.astype(np.uint64)
    cell_numbers = np.hstack([size_levels, columns_and_rows])  # (M, 4)
    for numbers in cell_numbers.T:
        mixed = keys ^ (keys >> _HASH_SHIFT)
        keys = mixed * _HASH_FACTOR + numbers.astype(np.uint64)
    return keys
