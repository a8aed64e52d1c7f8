"""Polygons in which nothing counts: detections in them are left out of records."""

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
    """Leaves the detections out of records that are in a polygon of --ignore."""

    def __init__(self, zones: Sequence[Zone], min_share: float | None = None) -> None:
        """Prepare for a run.

        Args:
            zones: The polygons, each for all sources or for those that fit its pattern.
            min_share: From which share of its area in one polygon on a box is ignored; None if it
                is ignored where the middle of its lower side is in a polygon.
        """
        self._zones = zones
        self._min_share = min_share
        # Each pattern that no source has fitted yet; the keys of a dict, as these have an order.
        self._unmatched = {pattern_of(zone): None for zone in zones if pattern_of(zone)}
        self._warned: set[str] = set()  # the polygons that a warning was about, as texts

    @property
    def unmatched_patterns(self) -> list[str]:
        """The patterns that no source has fitted so far."""
        return list(self._unmatched)

    def add(self, record: Record, image: Image, detections: Detections) -> Record:
        """Return a copy of a record without the detections that are to be ignored.

        Its overlay has the polygons. A record whose source has none is returned unchanged.
        """
        polygons = []
        is_ignored = np.zeros(len(detections), bool)
        for zone in self._zones:
            pattern = pattern_of(zone)
            if not matches(record.origin.source, pattern):
                continue
            self._unmatched.pop(pattern, None)
            polygon = zone.pixels(image.size)
            self._warn(zone, polygon, record.origin.source, image.size)
            polygons.append(polygon)
            is_ignored |= self._are_in(polygon, detections.xyxy, image.size)
        if not polygons:
            return record
        return replace(
            record,
            detections=with_rows(detections, ~is_ignored),
            overlay=replace(record.overlay, ignored=tuple(polygons)),
        )

    def _are_in(self, polygon: Points, boxes: Boxes, size: Size) -> npt.NDArray[np.bool_]:
        """Tell which boxes are ignored because of one polygon.

        Args:
            polygon: `(K, 2)`, its corners in pixels.
            boxes: `(N, 4)`, which are cut off at the edges of the image first.
            size: Height and width of the image.

        Returns:
            `(N,)`.
        """
        if self._min_share is None:
            return inside(bottom_centres(boxes, size), polygon)
        return shares_inside(clipped(boxes, size), polygon) >= self._min_share

    def _warn(self, zone: Zone, polygon: Points, source: str, size: Size) -> None:
        """Warn once of a polygon that is probably not where its user thinks.

        Its pixels may be meant for images of another size. Its name may be that of a folder, whose
        images only a pattern such as `NAME/**` matches.

        Args:
            zone: What the user gave.
            polygon: `(K, 2)`, its corners in pixels.
            source: The source of the image.
            size: Height and width of the image.
        """
        text = str(zone)
        if text in self._warned:
            return
        height, width = size
        folders = source.split("/")[:-1]
        message = ""
        if is_outside(polygon, size):
            message = f"--ignore {text} is outside of {source}, which has {width}x{height} pixels"
        elif zone.name and zone.name in folders and not pattern_of(zone):
            message = (
                f"--ignore {text} is for all images; {zone.name}/**= before the numbers is for "
                f"those of the folder {zone.name}"
            )
        if message:
            self._warned.add(text)
            warnings.warn(message, DetcliWarning, stacklevel=2)


def shares_inside(boxes: Boxes, polygon: Points) -> npt.NDArray[np.float64]:
    """Compute which share of each box's area is in a polygon.

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
    """Compute the area of a box that is in a polygon.

    The box is cut into strips at each height where an edge begins, ends, crosses another one or
    crosses a side of the box. In a strip, the polygon consists of trapezoids: so its width at half
    the height of the strip, times that height, is the exact area.

    Args:
        box: `(4,)`, x1, y1, x2 and y2.
        starts: `(K, 2)`, where each edge of the polygon begins.
        ends: `(K, 2)`, where each edge ends.
        crossing_heights: The y of all points where edges cross.
    """
    left, top, right, bottom = box
    heights = [box[[1, 3]], starts[:, 1], crossing_heights]
    for side in (left, right):
        heights.append(_heights_at(side, starts, ends))
    borders = np.unique(np.clip(np.concatenate(heights), top, bottom))  # (S + 1,)
    middles = (borders[:-1] + borders[1:]) / 2  # (S,)
    strip_heights = np.diff(borders)

    # From the first to the second edge is inside, from the third to the fourth, and so on.
    edge_x = np.clip(_edges_at(middles, starts, ends), left, right)
    begins_of_inside = edge_x[:, ::2]
    ends_of_inside = edge_x[:, 1::2]
    widths = (ends_of_inside - begins_of_inside).sum(axis=1)
    return float((widths * strip_heights).sum())


def _edges_at(
    heights: npt.NDArray[np.float64],
    starts: npt.NDArray[np.float64],
    ends: npt.NDArray[np.float64],
) -> npt.NDArray[np.float64]:
    """Return the x of the edges of a polygon that horizontal lines cross, from left to right.

    Args:
        heights: `(S,)`, the y of each line.
        starts: `(K, 2)`, where each edge begins.
        ends: `(K, 2)`, where each edge ends.

    Returns:
        `(S, E)`, in which E is even; infinity stands for each edge that a line does not cross.
    """
    line_y = heights[:, np.newaxis]
    is_crossed = (starts[:, 1] <= line_y) != (ends[:, 1] <= line_y)  # (S, K)
    slopes = _divide(ends[:, 0] - starts[:, 0], ends[:, 1] - starts[:, 1])
    edge_x = starts[:, 0] + (line_y - starts[:, 1]) * slopes
    from_left = np.sort(np.where(is_crossed, edge_x, np.inf), axis=1)
    if from_left.shape[1] % 2:
        from_left = np.pad(from_left, ((0, 0), (0, 1)), constant_values=np.inf)
    return from_left


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
    """Return the y of all points where edges, from starts to ends `(K, 2)`, cross each other."""
    heights = []
    for first, second in combinations(range(len(starts)), 2):
        first_step = ends[first] - starts[first]
        second_step = ends[second] - starts[second]
        offset = starts[second] - starts[first]
        determinant = first_step[0] * second_step[1] - first_step[1] * second_step[0]
        if determinant == 0:  # they are parallel
            continue
        fraction = (offset[0] * second_step[1] - offset[1] * second_step[0]) / determinant
        if 0 < fraction < 1:  # an additional height changes nothing, where the second is too short
            heights.append(starts[first, 1] + fraction * first_step[1])
    return np.array(heights, np.float64)


def _divide(
    numerators: npt.NDArray[np.float64], denominators: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Divide number by number; the result is 0 where a denominator is 0."""
    zeros = np.zeros_like(numerators)
    return np.divide(numerators, denominators, out=zeros, where=denominators != 0)
