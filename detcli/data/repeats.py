"""Repeats: boxes of one class at one place in many images of a camera, such as a stone or a branch.

A detector takes such an object for an animal again and again. A person looks at it once, and drops
all of its boxes together.
"""

import itertools
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
from detcli.data.record import RecordJson, box_of

MIN_IOU = 0.85
"""The least intersection over union of a box with the box of its group."""

MIN_IMAGES = 10
"""The fewest images, or frames of one video or camera, that make a group."""

ROOM = 1.001
"""By how much a search reaches further than computed, for what rounding takes away."""

BOXES_AT_A_TIME = 512
"""Of so many boxes the overlaps are counted at once, which needs memory for all their pairs."""

MANY_NEARBY = 1024
"""A box that has as many boxes near it is compared with them when its turn comes, not before."""

_Boxes = npt.NDArray[np.float64]
_Integers = npt.NDArray[np.int64]
_Keys = npt.NDArray[np.uint64]


@frozen
class RepeatGroup:
    """Boxes of one class at one place in images of one camera."""

    number: int  # from 1; the group with the most images comes first
    place: str  # the folder of the images, or the video or camera
    class_name: str
    box: tuple[float, float, float, float]  # x1, y1, x2, y2 in fractions of width and height
    image_count: int
    box_count: int
    # Records count from 0, in the order in which they were added.
    record_number: int  # of the record with the group's box
    detection_index: int  # of that box in the record
    first_record: int
    last_record: int


def place_of(record: RecordJson) -> str:
    """Return what an image shares with others of its camera.

    Returns:
        The folder of an image, `.` without one; for a frame, the source of its video or camera.

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
    """Tell whether two boxes overlap with an IoU of `MIN_IOU` or more, as boxes of a group do.

    It computes what `overlap` does, but of two boxes a hundred times as fast.

    Args:
        first: x1, y1, x2 and y2.
        second: The same of the other box.
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
    """Collects the boxes of all records, and then tells which of them repeat.

    A group is a box and all boxes of its class and camera that overlap it with an IoU of `MIN_IOU`
    or more, in `MIN_IMAGES` images or more. The boxes take turns, the highest score first, and a
    box that is in a group already does not begin another. So the groups do not depend on the order
    of the records.

    It takes 56 bytes for each box, and about 200 while it groups them.
    """

    def __init__(self) -> None:
        """Begin without a record."""
        self.record_count = 0
        self._highest_number = 0  # of groups that were dropped before
        self._kind_numbers: dict[tuple[str, str], int] = {}  # by the place and the class
        # of each box that may repeat:
        self._kinds = array("i")
        self._records = array("q")
        self._detections = array("i")
        self._scores = array("d")
        self._edges = array("d")  # four each, in fractions of the image

    def add(self, record: RecordJson) -> None:
        """Add the boxes of the next record, which may show the same as boxes of other records.

        Boxes that an earlier search has marked as repeated are left out, and boxes without an area.
        """
        record_number = self.record_count
        self.record_count += 1
        place = place_of(record)  # the camera: the folder of the image, or the source of its video
        for index, detection in enumerate(record.get("detections", ())):
            if "repeated" in detection:
                self._highest_number = max(self._highest_number, detection["repeated"])
                continue
            x1, y1, x2, y2 = fractions_of(detection, record)
            is_empty = x2 <= x1 or y2 <= y1
            if is_empty:
                continue
            # Only boxes of one class at one place are compared: they have the number of their kind.
            kind = (place, detection["class_name"])
            new_number = len(self._kind_numbers)
            self._kinds.append(self._kind_numbers.setdefault(kind, new_number))
            self._records.append(record_number)
            self._detections.append(index)
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

        names_of_kinds = list(self._kind_numbers)
        groups = []
        for box_number, members in members_by_box.items():
            place, class_name = names_of_kinds[self._kinds[box_number]]
            records_of_group = np.unique(records[members])
            x1, y1, x2, y2 = boxes[box_number].tolist()
            groups.append(
                RepeatGroup(
                    number=0,
                    place=place,
                    class_name=class_name,
                    box=(x1, y1, x2, y2),
                    image_count=len(records_of_group),
                    box_count=len(members),
                    record_number=self._records[box_number],
                    detection_index=self._detections[box_number],
                    first_record=int(records_of_group[0]),
                    last_record=int(records_of_group[-1]),
                )
            )
        return _numbered(groups, self._highest_number + 1)


def _numbered(groups: list[RepeatGroup], first_number: int) -> list[RepeatGroup]:
    """Sort groups, the one with the most images first, and number them from a number on."""
    ordered = sorted(
        groups, key=lambda group: (-group.image_count, group.place, group.class_name, group.box)
    )
    return [replace(group, number=number) for number, group in enumerate(ordered, first_number)]


def _members_by_box(
    boxes: _Boxes, kinds: _Integers, records: _Integers, scores: _Boxes
) -> dict[int, _Integers]:
    """Find the groups of boxes, as `RepeatFinder` says what a group is.

    Args:
        boxes: `(N, 4)`, x1, y1, x2, y2 in fractions of the image; each has an area.
        kinds: `(N,)`, a number for each place and class: only boxes of a kind are compared.
        records: `(N,)`, the number of each box's record.
        scores: `(N,)`.

    Returns:
        The members of each group, by the box that began it.
    """
    nearby = NearbyBoxes(boxes, kinds)
    x1, y1, x2, y2 = boxes.T
    turns = np.lexsort((y2, x2, y1, x1, -scores))  # the last key counts first
    is_in_group = np.zeros(len(boxes), np.bool_)
    members_by_box: dict[int, _Integers] = {}
    for begin in range(0, len(turns), BOXES_AT_A_TIME):
        next_boxes = turns[begin : begin + BOXES_AT_A_TIME]
        free_boxes = next_boxes[~is_in_group[next_boxes]]
        for box_number in nearby.with_enough_overlaps(free_boxes).tolist():
            if is_in_group[box_number]:
                continue
            members = nearby.overlapping(box_number)
            if len(np.unique(records[members])) >= MIN_IMAGES:
                members_by_box[box_number] = members
                is_in_group[members] = True
    return members_by_box


class _Ranges(NamedTuple):
    """Ranges of a sorted list, `(M, 16)` each: from which position, and to before which one."""

    begins: _Integers
    ends: _Integers


class NearbyBoxes:
    """Finds boxes that overlap another with an IoU of `MIN_IOU`, without a look at all boxes.

    Of two such boxes, the widths have a ratio of `MIN_IOU` or more, and the middles are apart by
    (1 - `MIN_IOU`) / (1 + `MIN_IOU`) of the mean width at most; the same holds for heights. So
    boxes are sorted into cells by level of width and height, and by middle: there is a grid for
    each pair of levels, whose cells are in proportion to these. What overlaps a box is in
    2 x 2 x 2 x 2 of the cells.
    """

    def __init__(self, boxes: _Boxes, kinds: _Integers) -> None:
        """Sort boxes into cells.

        Args:
            boxes: `(N, 4)`, x1, y1, x2, y2; each has an area.
            kinds: `(N,)`, the kind of each box; those of other kinds are never near.
        """
        self._boxes = boxes
        self._kinds = kinds
        sides = boxes[:, 2:] - boxes[:, :2]
        middles = (boxes[:, 2:] + boxes[:, :2]) / 2
        levels = np.floor(np.log(sides) / _LEVEL_HEIGHT).astype(np.int64)
        cells = np.floor(middles / _cell_sizes(levels)).astype(np.int64)
        keys = _cell_keys(kinds, levels, cells)
        self._order = np.argsort(keys, kind="stable")
        self._sorted_keys = keys[self._order]

    def with_enough_overlaps(self, box_numbers: _Integers) -> _Integers:
        """Select the boxes that others overlap so often that they may begin a group.

        Args:
            box_numbers: `(M,)`, boxes in some order.

        Returns:
            Those with `MIN_IMAGES` overlapping boxes or more, in the same order, and those with
            so many boxes near them that these were not looked at.
        """
        ranges = self._ranges_near(box_numbers)
        nearby_counts = (ranges.ends - ranges.begins).sum(axis=1)
        has_many_nearby = nearby_counts >= MANY_NEARBY
        has_to_be_counted = (nearby_counts >= MIN_IMAGES) & ~has_many_nearby
        ranges_to_count = _Ranges(ranges.begins[has_to_be_counted], ranges.ends[has_to_be_counted])
        overlap_counts = self._overlap_counts(box_numbers[has_to_be_counted], ranges_to_count)
        may_begin_group = has_many_nearby.copy()
        may_begin_group[has_to_be_counted] = overlap_counts >= MIN_IMAGES
        selected: _Integers = box_numbers[may_begin_group]
        return selected

    def overlapping(self, box_number: int) -> _Integers:
        """Return the boxes of the same kind that overlap a box with `MIN_IOU`, itself too."""
        ranges = self._ranges_near(np.array([box_number]))
        parts = []
        for begin, end in zip(ranges.begins[0], ranges.ends[0], strict=True):
            parts.append(self._order[begin:end])
        candidates = np.concatenate(parts)
        ious = overlap(self._boxes[box_number], self._boxes[candidates])
        is_same_kind = self._kinds[candidates] == self._kinds[box_number]
        overlapping: _Integers = np.unique(candidates[is_same_kind & (ious >= MIN_IOU)])
        return overlapping

    def _overlap_counts(self, box_numbers: _Integers, ranges: _Ranges) -> _Integers:
        """Count the boxes that overlap each of some boxes with `MIN_IOU`, itself too.

        Args:
            box_numbers: `(M,)`.
            ranges: Where the boxes near each of them are in the order of cells.

        Returns:
            `(M,)`.
        """
        ranges_of_each_box = ranges.begins.shape[1]
        begins = ranges.begins.ravel()
        lengths = (ranges.ends - ranges.begins).ravel()
        # All pairs of a box and one near it are in flat arrays, one range behind the other.
        range_of_pair = np.repeat(np.arange(len(lengths)), lengths)
        first_pair_of_range = np.cumsum(lengths) - lengths
        step_in_range = np.arange(lengths.sum()) - first_pair_of_range[range_of_pair]
        nearby_boxes = self._order[begins[range_of_pair] + step_in_range]
        positions = range_of_pair // ranges_of_each_box  # in `box_numbers`
        boxes = box_numbers[positions]

        ious = overlap(self._boxes[boxes], self._boxes[nearby_boxes])
        is_same_kind = self._kinds[boxes] == self._kinds[nearby_boxes]
        overlaps = is_same_kind & (ious >= MIN_IOU)
        return np.bincount(positions[overlaps], minlength=len(box_numbers))

    def _ranges_near(self, box_numbers: _Integers) -> _Ranges:
        """Find where the boxes near some boxes are in the order of cells, in 16 ranges for each."""
        boxes = self._boxes[box_numbers]
        sides = boxes[:, 2:] - boxes[:, :2]
        middles = (boxes[:, 2:] + boxes[:, :2]) / 2
        lowest_levels = np.floor((np.log(sides) - _REACH_OF_LEVELS) / _LEVEL_HEIGHT)
        longest_sides = sides / MIN_IOU  # of boxes that overlap
        reach = _REACH_OF_MIDDLES * (sides + longest_sides) / 2
        columns = []
        # For each axis it is the lower or the upper level, and the first or the second cell.
        for level_steps, cell_steps in itertools.product(STEPS_OF_AXES, STEPS_OF_AXES):
            levels = lowest_levels.astype(np.int64) + level_steps
            first_cells = np.floor((middles - reach) / _cell_sizes(levels)).astype(np.int64)
            columns.append(_cell_keys(self._kinds[box_numbers], levels, first_cells + cell_steps))
        keys = np.stack(columns, axis=1)
        return _Ranges(
            np.searchsorted(self._sorted_keys, keys, "left"),
            np.searchsorted(self._sorted_keys, keys, "right"),
        )


STEPS_OF_AXES = ((0, 0), (0, 1), (1, 0), (1, 1))
"""Each choice of one of two levels or cells along x, and one along y."""

_REACH_OF_MIDDLES = (1 - MIN_IOU) / (1 + MIN_IOU) * ROOM
"""How far the middles of two overlapping boxes are apart at most, for their mean side of 1."""

_REACH_OF_LEVELS = -math.log(MIN_IOU) * ROOM
"""How far the logarithms of the sides of two overlapping boxes are apart at most."""

_LEVEL_HEIGHT = 2 * _REACH_OF_LEVELS * ROOM
"""How far two levels are apart, in logarithms of a side: what is within reach has two levels."""


def _cell_sizes(levels: _Integers) -> _Boxes:
    """Return the width and height of cells at some levels.

    A cell is as long as a box that overlaps any box of the level can reach to both sides.

    Args:
        levels: `(M, 2)`, of width and of height.

    Returns:
        `(M, 2)`, in fractions of the image.
    """
    longest_sides = np.exp((levels + 1) * _LEVEL_HEIGHT)  # of boxes at these levels
    longest_others = longest_sides / MIN_IOU  # boxes that overlap those, which look for them
    longest_reach = _REACH_OF_MIDDLES * (longest_others + longest_others / MIN_IOU) / 2
    sizes: _Boxes = 2 * ROOM * longest_reach
    return sizes


_ODD_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio, which mixes bits well


def _cell_keys(kinds: _Integers, levels: _Integers, cells: _Integers) -> _Keys:
    """Return a number for each cell, `(M,)`: the same for equal cells of a kind.

    Two cells may have the same number by chance, so what is found by it has to be compared.

    Args:
        kinds: `(M,)`.
        levels: `(M, 2)`, of width and height.
        cells: `(M, 2)`, column and row in the grid of these levels.
    """
    keys = kinds.astype(np.uint64)
    for numbers in (*levels.T, *cells.T):
        mixed = keys ^ (keys >> np.uint64(29))
        keys = mixed * _ODD_FACTOR + numbers.astype(np.uint64)
    return keys
