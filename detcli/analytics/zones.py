"""Zones that detections are in, and lines that tracks cross."""

import math
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from detcli.config.shapes import Shape
from detcli.core.errors import DetcliWarning
from detcli.core.opencv import cv2
from detcli.data.detections import Detections
from detcli.data.geometry import (
    Picture,
    Points,
    Size,
    bottom_centres,
)
from detcli.data.per_video import PerVideo
from detcli.data.record import Record

LEFT, RIGHT = "left", "right"

REMEMBERED = 10_000
"""Tracks whose last point is known, those that were seen last; a stream may never end."""


class CrossedLines:
    """Tells for each detection which lines its track has crossed since it was last seen."""

    def __init__(self, lines: Sequence[Shape]) -> None:
        self._lines = lines
        self._videos = PerVideo(lambda _: [Crossings() for _ in lines])

    def add(self, record: Record, picture: Picture, detections: Detections) -> Record:
        """The record whose detections have the lines that they crossed, which are drawn."""
        if record.origin.frame is None or detections.track_id is None:
            return record
        traces = record.overlay.traces
        crossed: list[list[tuple[str, str]]] = [[] for _ in range(len(detections))]
        drawn_lines = []
        for line, crossings in zip(self._lines, self._videos.of(record), strict=True):
            ends = line.pixels(picture.size)
            for index, number in enumerate(detections.track_id.tolist()):
                if number <= 0:
                    continue
                side = crossings.side(ends, number, traces[number])
                if side is not None:
                    crossed[index].append((line.name, side))
            caption = f"{line.name} {crossings.count[LEFT]} left, {crossings.count[RIGHT]} right"
            drawn_lines.append((caption, ends))
        return replace(
            record,
            detections=replace(detections, crossed=_tuples(crossed)),
            overlay=replace(record.overlay, lines=tuple(drawn_lines)),
        )


def _tuples(lists: Sequence[Sequence[Any]]) -> npt.NDArray[np.object_]:
    """An array of tuples `(N,)`."""
    array = np.empty(len(lists), np.object_)
    for index, elements in enumerate(lists):
        array[index] = tuple(elements)
    return array


class Crossings:
    """Counts the tracks that cross one line in one video."""

    def __init__(self) -> None:
        self.count: Counter[str] = Counter()
        # where each track last stood beside it
        self._last_points: dict[int, npt.NDArray[np.float64]] = {}

    def side(self, ends: Points, number: int, trace: Points) -> str | None:
        """The side to which a track has crossed the line since it was last seen.

        Left and right are as seen on the way from the line's first end to the second. A track that
        stands on the line, by the last point of its trace `(K, 2)`, has not crossed it yet. A new
        track comes from the first point, where it stood before it had a number.
        """
        start, end = ends.astype(np.float64)
        first_point, last_point = trace[[0, -1]].astype(np.float64)
        offset = _offset_from_line(start, end, last_point)
        if offset == 0 or np.isnan(offset):
            return None
        before = self._last_points.pop(number, first_point)
        self._last_points[number] = last_point
        if len(self._last_points) > REMEMBERED:
            del self._last_points[next(iter(self._last_points))]
        changes_side = _offset_from_line(start, end, before) * offset < 0
        if not changes_side:  # or has not been beside the line
            return None
        offset_of_start = _offset_from_line(before, last_point, start)
        offset_of_end = _offset_from_line(before, last_point, end)
        if offset_of_start * offset_of_end > 0:  # it went by beyond an end of the line
            return None
        side = RIGHT if offset > 0 else LEFT
        self.count[side] += 1
        return side


def _offset_from_line(
    start: npt.NDArray[np.float64], end: npt.NDArray[np.float64], point: npt.NDArray[np.float64]
) -> float:
    """Positive for a point to the right of the way from start to end, with y pointing down.

    It grows with the distance from the line through both.
    """
    line_x, line_y = end - start
    point_x, point_y = point - start
    return float(line_x * point_y - line_y * point_x)


class Zones:
    """Tells for each detection in which polygons the middle of its lower side is."""

    def __init__(self, zones: Sequence[Shape]) -> None:
        self._zones = zones
        self._warned: set[str] = set()  # zones that were outside of a picture

    def add(self, record: Record, picture: Picture, detections: Detections) -> Record:
        """The record whose detections have the zones that they are in, which are drawn."""
        points = bottom_centres(detections.xyxy, picture.size)
        zones: list[list[str]] = [[] for _ in range(len(detections))]
        drawn_zones = []
        for zone in self._zones:
            polygon = zone.pixels(picture.size)
            self._warn_outside(record, picture.size, zone, polygon)
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
        """Warn once of a zone that has no part of a picture: pixels of another size, perhaps."""
        height, width = size
        low, high = polygon.min(0), polygon.max(0)
        is_outside = ((high <= 0) | (low >= (width, height))).any()
        if is_outside and zone.name not in self._warned:
            self._warned.add(zone.name)
            warnings.warn(
                f"the zone {zone.name} is outside of {record.origin.source}, which has "
                f"{width}x{height} pixels",
                DetcliWarning,
                stacklevel=2,
            )


def inside(points: Points, polygon: Points) -> npt.NDArray[np.bool_]:
    """Tell which points `(N, 2)` lie in a polygon `(K, 2)` or on its edge; those with NaN never do.

    What edges that cross each other enclose twice is outside (the even-odd rule).
    """
    is_inside = np.zeros(len(points), bool)
    for index, (x, y) in enumerate(points.tolist()):
        if not math.isnan(x):
            distance = cv2.pointPolygonTest(polygon, (x, y), measureDist=False)
            is_inside[index] = distance >= 0
    return is_inside
