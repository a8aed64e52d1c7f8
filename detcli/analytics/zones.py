"""Zones that detections are in, and lines that tracks cross."""

import math
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from detcli.config.shapes import Shape
from detcli.core.errors import DetcliWarning
from detcli.core.opencv import cv2
from detcli.data.detections import Detections
from detcli.data.geometry import (
    Image,
    Points,
    Size,
    bottom_centres,
)
from detcli.data.per_video import PerVideo
from detcli.data.record import Record

LEFT, RIGHT = "left", "right"

REMEMBERED = 10_000
"""Maximum number of tracks whose last point is kept, as a stream may never end."""


Point = npt.NDArray[np.float64]
"""`(2,)`, x and y in pixels of the image."""


class CrossedLines:
    """Adds to each detection the lines that its track has crossed since it was last seen."""

    def __init__(self, lines: Sequence[Shape]) -> None:
        self._lines = lines
        self._videos = PerVideo(lambda _: [Crossings() for _ in lines])

    def add(self, record: Record, image: Image, detections: Detections) -> Record:
        """Return a copy of a frame's record whose detections name the lines that they crossed.

        The lines are added to its overlay, which is drawn on the image, with the number of
        crossings so far. A record without tracks is returned unchanged.
        """
        if record.origin.frame is None or detections.track_id is None:
            return record
        track_numbers = detections.track_id.tolist()
        traces = record.overlay.traces
        # For each detection, the lines that it crossed and to which side: [("gate", "left")].
        crossed_lines: list[list[tuple[str, str]]] = [[] for _ in range(len(detections))]
        captioned_lines = []
        for line, crossings in zip(self._lines, self._videos.state_of(record), strict=True):
            ends = line.pixels(image.size)
            sides = _count_crossings(crossings, ends, track_numbers=track_numbers, traces=traces)
            for index, side in enumerate(sides):
                if side is not None:
                    crossed_lines[index].append((line.name, side))
            caption = f"{line.name} {crossings.count[LEFT]} left, {crossings.count[RIGHT]} right"
            captioned_lines.append((caption, ends))
        return replace(
            record,
            detections=replace(detections, crossed=_tuples(crossed_lines)),
            overlay=replace(record.overlay, lines=tuple(captioned_lines)),
        )


def _count_crossings(
    crossings: "Crossings",
    ends: Points,
    *,
    track_numbers: Sequence[int],
    traces: Mapping[int, Points],
) -> list[str | None]:
    """Count the tracks that cross a line in a frame, and return the side to which each crosses it.

    Args:
        crossings: What has been counted for this line so far; the tracks are added.
        ends: `(2, 2)`, the start and the end of the line, x and y each.
        track_numbers: The track of each detection; -1 if it has none.
        traces: `(K, 2)`, the points where each track has been, by its id.

    Returns:
        Left or right for each detection; None if its track does not cross the line.
    """
    sides: list[str | None] = []
    for track_number in track_numbers:
        side = None
        has_track = track_number > 0
        if has_track:
            side = crossings.add(ends, track_number, traces[track_number])
        sides.append(side)
    return sides


def _tuples(lists: Sequence[Sequence[Any]]) -> npt.NDArray[np.object_]:
    """Make an array `(N,)` of tuples from N lists; `np.array` would make a table of them."""
    array = np.empty(len(lists), np.object_)
    for index, elements in enumerate(lists):
        array[index] = tuple(elements)
    return array


class Crossings:
    """Counts the tracks that cross one line in one video."""

    def __init__(self) -> None:
        self.count: Counter[str] = Counter()  # of crossings, by the side that they lead to
        # The last point of each track that was not on the line, by its id; those of the tracks seen
        # last come last.
        self._last_points: dict[int, npt.NDArray[np.float64]] = {}

    def add(self, ends: Points, track_number: int, trace: Points) -> str | None:
        """Process the next frame of a track, and return the side to which it crosses the line.

        A track that stands on the line has not crossed it yet. A new track comes from the first
        point of its trace, where it stood before it had an id.

        Args:
            ends: `(2, 2)`, the start and the end of the line, x and y each.
            track_number: The id of the track.
            trace: `(K, 2)`, the points where the track was, the newest last.

        Returns:
            Left or right, as seen on the way from the line's start to its end; None if the track
            has not crossed the line since it was last seen.
        """
        start, end = ends.astype(np.float64)
        first_point, last_point = trace[[0, -1]].astype(np.float64)
        offset = _offset_from_line(start, end, last_point)  # positive on the right
        is_on_line = offset == 0
        if is_on_line or np.isnan(offset):
            return None
        # A track is removed and put at the end, so that those seen long ago come first.
        previous_point = self._last_points.pop(track_number, first_point)
        self._last_points[track_number] = last_point
        if len(self._last_points) > REMEMBERED:
            oldest_number = next(iter(self._last_points))
            del self._last_points[oldest_number]

        if not _step_crosses_line((previous_point, last_point), (start, end)):
            return None
        side = RIGHT if offset > 0 else LEFT
        self.count[side] += 1
        return side


def _step_crosses_line(step: tuple[Point, Point], line: tuple[Point, Point]) -> bool:
    """Return whether a track that moves from one point to another crosses a line.

    Two segments cross if the ends of each lie on different sides of the other. A step through the
    very end of the line crosses it. A step that only begins or ends on the line does not.

    Args:
        step: Where the track was before and where it is now.
        line: The start and the end of the line.
    """
    before, now = step
    start, end = line
    offset_before = _offset_from_line(start, end, before)
    offset_now = _offset_from_line(start, end, now)
    changes_side = offset_before * offset_now < 0
    if not changes_side:
        return False

    offset_of_start = _offset_from_line(before, now, start)
    offset_of_end = _offset_from_line(before, now, end)
    passes_beside_line = offset_of_start * offset_of_end > 0
    return not passes_beside_line


def _offset_from_line(start: Point, end: Point, point: Point) -> float:
    """Compute on which side of the line through two points a third one lies, x and y each.

    It is the cross product of the vectors from the start to the end and from the start to the
    point.

    Returns:
        A number that grows with the distance from the line: positive on the right as seen on the
        way from start to end, with y pointing down, negative on the left, 0 on the line.
    """
    line_x, line_y = end - start
    point_x, point_y = point - start
    return float(line_x * point_y - line_y * point_x)


class Zones:
    """Adds to each detection the polygons that the middle of its lower side is in."""

    def __init__(self, zones: Sequence[Shape]) -> None:
        self._zones = zones
        self._warned: set[str] = set()  # zones that were outside of an image

    def add(self, record: Record, image: Image, detections: Detections) -> Record:
        """Return a copy of a record whose detections name the zones that they are in.

        The zones are added to its overlay, each with the number of detections in it.
        """
        points = bottom_centres(detections.xyxy, image.size)
        zones: list[list[str]] = [[] for _ in range(len(detections))]
        drawn_zones = []
        for zone in self._zones:
            polygon = zone.pixels(image.size)
            self._warn_outside(record, image.size, zone, polygon)
            indices = np.flatnonzero(inside(points, polygon)).tolist()
            for index in indices:
                zones[index].append(zone.name)
            drawn_zones.append((f"{zone.name} {len(indices)}", polygon))
        return replace(
            record,
            detections=replace(detections, zones=_tuples(zones)),
            overlay=replace(record.overlay, zones=tuple(drawn_zones)),
        )

    def _warn_outside(self, record: Record, size: Size, zone: Shape, polygon: Points) -> None:
        """Warn, once for each zone, if a zone lies wholly outside an image.

        Perhaps its pixels refer to images of a different size.

        Args:
            record: The record of the image.
            size: Height and width of the image.
            zone: The zone, for its name.
            polygon: `(K, 2)`, its corners in pixels.
        """
        height, width = size
        if is_outside(polygon, size) and zone.name not in self._warned:
            self._warned.add(zone.name)
            warnings.warn(
                f"the zone {zone.name} is outside of {record.origin.source}, which has "
                f"{width}x{height} pixels",
                DetcliWarning,
                stacklevel=2,
            )


def is_outside(polygon: Points, size: Size) -> bool:
    """Return whether a polygon `(K, 2)` lies wholly outside an image of the given size."""
    height, width = size
    left, top = polygon.min(axis=0)
    right, bottom = polygon.max(axis=0)
    return bool(right <= 0 or bottom <= 0 or left >= width or top >= height)


def inside(points: Points, polygon: Points) -> npt.NDArray[np.bool_]:
    """Determine which points lie in a polygon or on its edge.

    Where edges cross each other, what they enclose twice is outside (the even-odd rule).

    Args:
        points: `(N, 2)`, x and y; a point with NaN is outside.
        polygon: `(K, 2)`, the corners.

    Returns:
        `(N,)`.
    """
    is_inside = np.zeros(len(points), bool)
    for index, (x, y) in enumerate(points.tolist()):
        if not math.isnan(x):
            distance = cv2.pointPolygonTest(polygon, (x, y), measureDist=False)
            is_inside[index] = distance >= 0
    return is_inside
