"""Polygons to ignore: detections in them are left out of records."""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
import numpy.typing as npt

from detcli.analytics.zones import inside, is_outside
from detcli.config.ignored import matches, pattern_of
from detcli.config.shapes import Zone
from detcli.core.errors import DetcliWarning
from detcli.data.detections import Detections, with_rows
from detcli.data.geometry import Boxes, Image, Points, Size, area, bottom_centres, clipped
from detcli.data.record import Record


class Ignoring:
    """Removes detections in polygons of --ignore from records."""

    def __init__(self, zones: Sequence[Zone], min_share: float | None = None) -> None:
        """Prepare to ignore detections in polygons, image by image.

        Args:
            zones: The polygons. One with a pattern, such as "yard/**", is only for the images whose
                names match it.
            min_share: A box is ignored if at least this share of its area is in one polygon. If
                None, it is ignored if the middle of its lower side is in one.
        """
        self._zones = zones
        self._min_share = min_share
        # The patterns that no image has matched so far, for a warning at the end. They are the keys
        # of a dict, which keeps them in order and without duplicates.
        patterns = [pattern_of(zone) for zone in zones if pattern_of(zone)]
        self._unmatched_patterns = dict.fromkeys(patterns)
        self._warned_texts: set[str] = set()  # polygons with a warning, which they get only once

    @property
    def unmatched_patterns(self) -> list[str]:
        """The patterns that no source has matched so far."""
        return list(self._unmatched_patterns)

    def add(self, record: Record, image: Image, detections: Detections) -> Record:
        """Return a copy of a record without the detections that are to be ignored.

        Its overlay, which is drawn on the image, has the polygons. A record for whose image there
        are no polygons is returned unchanged.
        """
        source = record.origin.source
        polygons = []
        is_ignored = np.zeros(len(detections), bool)
        for zone in self._zones:
            pattern = pattern_of(zone)
            if not matches(source, pattern):
                continue
            self._unmatched_patterns.pop(pattern, None)
            polygon = zone.pixels(image.size)
            self._warn_of_misplaced(zone, polygon, source, image.size)
            polygons.append(polygon)
            is_ignored |= self._ignored_by(polygon, detections.xyxy, image.size)
        if not polygons:
            return record
        return replace(
            record,
            detections=with_rows(detections, ~is_ignored),
            overlay=replace(record.overlay, ignored=tuple(polygons)),
        )

    def _ignored_by(self, polygon: Points, boxes: Boxes, size: Size) -> npt.NDArray[np.bool_]:
        """Determine which boxes are ignored because of one polygon.

        A box is ignored if at least `_min_share` of its area is in the polygon. If there is no such
        limit, it is ignored if the middle of its lower side is in the polygon.

        Args:
            polygon: `(K, 2)`, its corners in pixels.
            boxes: `(N, 4)`, which are clipped to the image first.
            size: Height and width of the image.

        Returns:
            `(N,)`, whether each box is ignored.
        """
        if self._min_share is None:
            return inside(bottom_centres(boxes, size), polygon)
        return shares_inside(clipped(boxes, size), polygon) >= self._min_share

    def _warn_of_misplaced(self, zone: Zone, polygon: Points, source: str, size: Size) -> None:
        """Warn if a polygon probably does not apply as the user meant, once for each polygon.

        There are two such cases. The polygon may lie outside of the image, perhaps because its
        corners were measured in images of a different size. Or the user may have named it after a
        folder to ignore it in the images of that folder only, for which a pattern such as `NAME/**`
        is needed.

        Args:
            zone: The polygon as the user gave it.
            polygon: `(K, 2)`, its corners in pixels.
            source: The source of the image.
            size: Height and width of the image.
        """
        text = str(zone)  # as it is written on the command line
        if text in self._warned_texts:
            return
        height, width = size
        folders = source.split("/")[:-1]
        is_named_after_folder = bool(zone.name) and zone.name in folders
        is_for_all_images = not pattern_of(zone)
        if is_outside(polygon, size):
            message = f"--ignore {text} is outside of {source}, which has {width}x{height} pixels"
        elif is_named_after_folder and is_for_all_images:
            message = (
                f"--ignore {text} is for all images; write {zone.name}/**= before the numbers for "
                f"those of the folder {zone.name} only"
            )
        else:
            return
        self._warned_texts.add(text)
        warnings.warn(message, DetcliWarning, stacklevel=2)


def shares_inside(boxes: Boxes, polygon: Points) -> npt.NDArray[np.float64]:
    """Compute the fraction of each box's area that is in a polygon.

    Where edges of the polygon cross each other, what they enclose twice is outside (the even-odd
    rule).

    Args:
        boxes: `(N, 4)`, x1, y1, x2 and y2.
        polygon: `(K, 2)`, the corners.

    Returns:
        `(N,)`, from 0 to 1; 0 for a box without an area.
    """
    starts = polygon.astype(np.float64)
    ends = np.roll(starts, -1, axis=0)
    crossing_heights = _crossing_heights(starts, ends)
    shares = np.zeros(len(boxes), np.float64)
    for index, box in enumerate(boxes.astype(np.float64)):
        box_area = float(area(box))
        if box_area > 0:
            area_inside = _area_inside(box, starts, ends, crossing_heights)
            shares[index] = min(1.0, area_inside / box_area)
    return shares


def _area_inside(
    box: npt.NDArray[np.float64],
    starts: npt.NDArray[np.float64],
    ends: npt.NDArray[np.float64],
    crossing_heights: npt.NDArray[np.float64],
) -> float:
    """Compute the area of a box that is in a polygon, exactly.

    The box is cut into horizontal strips at every height at which anything changes: where an edge
    of the polygon begins, ends, crosses another one, or crosses the left or right side of the box.
    Within a strip the polygon consists of trapezoids, whose area is their width at half height
    times the height of the strip.

    Args:
        box: `(4,)`, x1, y1, x2 and y2.
        starts: `(K, 2)`, x and y of where each edge of the polygon begins.
        ends: `(K, 2)`, where each edge ends.
        crossing_heights: The y of all points where edges cross.
    """
    left, top, right, bottom = box
    heights = np.concatenate(
        [
            [top, bottom],
            starts[:, 1],
            crossing_heights,
            _heights_at(left, starts, ends),
            _heights_at(right, starts, ends),
        ]
    )
    strip_borders = np.unique(np.clip(heights, top, bottom))  # (S + 1,) of S strips
    strip_heights = np.diff(strip_borders)
    strip_middles = (strip_borders[:-1] + strip_borders[1:]) / 2

    # From left to right, the polygon is between the first and the second edge, between the third
    # and the fourth, and so on.
    edge_x = _crossings_with_rows(strip_middles, starts, ends)  # (S, E), E is even
    edge_x = np.clip(edge_x, left, right)
    inside_from = edge_x[:, ::2]
    inside_to = edge_x[:, 1::2]
    widths = (inside_to - inside_from).sum(axis=1)  # (S,)
    return float((widths * strip_heights).sum())


def _crossings_with_rows(
    row_y: npt.NDArray[np.float64],
    starts: npt.NDArray[np.float64],
    ends: npt.NDArray[np.float64],
) -> npt.NDArray[np.float64]:
    """Return where horizontal lines cross the edges of a polygon, from left to right.

    Args:
        row_y: `(S,)`, the y of each line.
        starts: `(K, 2)`, x and y of where each edge begins.
        ends: `(K, 2)`, where each edge ends.

    Returns:
        `(S, E)`, the x of the crossings of each line, sorted. E is K, or K + 1 if K is odd: a line
        enters and leaves the polygon, so a caller takes crossings in pairs. Infinity stands for
        each edge that a line does not cross.
    """
    line_y = row_y[:, np.newaxis]  # (S, 1)
    is_crossed = (starts[:, 1] <= line_y) != (ends[:, 1] <= line_y)  # (S, K)
    x_per_y = _divide(ends[:, 0] - starts[:, 0], ends[:, 1] - starts[:, 1])  # (K,), inverse slopes
    crossing_x = starts[:, 0] + (line_y - starts[:, 1]) * x_per_y  # (S, K)
    crossing_x = np.where(is_crossed, crossing_x, np.inf)
    sorted_x = np.sort(crossing_x, axis=1)

    is_odd = sorted_x.shape[1] % 2 == 1
    if is_odd:
        sorted_x = np.pad(sorted_x, ((0, 0), (0, 1)), constant_values=np.inf)  # one more column
    return sorted_x


def _heights_at(
    x: float, starts: npt.NDArray[np.float64], ends: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return the y at which edges, from starts to ends `(K, 2)`, cross a vertical line, `(M,)`."""
    crosses = (starts[:, 0] < x) != (ends[:, 0] < x)
    steps = ends[crosses] - starts[crosses]
    fractions = (x - starts[crosses, 0]) / steps[:, 0]
    heights: npt.NDArray[np.float64] = starts[crosses, 1] + fractions * steps[:, 1]
    return heights


def _crossing_heights(
    starts: npt.NDArray[np.float64], ends: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return the y of all points where two edges of a polygon cross each other.

    Args:
        starts: `(K, 2)`, x and y of where each edge begins.
        ends: `(K, 2)`, where each edge ends.
    """
    heights = []
    for first, second in combinations(range(len(starts)), 2):
        first_edge = ends[first] - starts[first]
        second_edge = ends[second] - starts[second]
        between_starts = starts[second] - starts[first]
        determinant = _cross_product(first_edge, second_edge)
        are_parallel = determinant == 0
        if are_parallel:
            continue
        # How far along the first edge the lines through both edges meet: 0 is its start, 1 its end.
        position = _cross_product(between_starts, second_edge) / determinant
        if 0 < position < 1:
            # Whether the point is also on the second edge is not checked, as additional heights do
            # no harm.
            heights.append(starts[first, 1] + position * first_edge[1])
    return np.array(heights, np.float64)


def _cross_product(first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]) -> float:
    """Compute the cross product of two vectors `(2,)`; 0 if they are parallel."""
    first_x, first_y = first
    second_x, second_y = second
    return float(first_x * second_y - first_y * second_x)


def _divide(
    numerators: npt.NDArray[np.float64], denominators: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Divide number by number; the result is 0 where a denominator is 0."""
    zeros = np.zeros_like(numerators)
    return np.divide(numerators, denominators, out=zeros, where=denominators != 0)
