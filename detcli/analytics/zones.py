"""Zones that detections are in, and lines that tracks cross."""

import itertools
import math
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from detcli.config.values import Shape
from detcli.core.errors import DetcliWarning
from detcli.core.opencv import cv2
from detcli.data.detections import Detections
from detcli.data.geometry import (
    Picture,
    Points,
    bottom_centres,
)
from detcli.data.per_video import PerVideo
from detcli.data.record import Record

LEFT, RIGHT = "left", "right"

# Tracks whose places are known, those that were seen last; a stream may never end.
REMEMBERED = 10_000


class CrossedLines:
    """Tells for each detection which lines its track has crossed since it was last seen."""

    def __init__(self, lines: Sequence[Shape]) -> None:
        self._lines = lines
        self._videos = PerVideo(lambda _: [Crossings() for _ in lines])

    def add(self, record: Record, picture: Picture, found: Detections) -> Record:
        if record.origin.frame is None or found.track_id is None:
            return record
        counts, traces = self._videos.of(record), record.overlay.traces
        crossed: list[tuple[tuple[str, str], ...]] = [()] * len(found)
        shown = []
        for line, crossings in zip(self._lines, counts, strict=True):
            ends = line.pixels(picture.size)
            for row, number in enumerate(found.track_id.tolist()):
                if number > 0 and (side := crossings.side(ends, number, traces[number])):
                    crossed[row] += ((line.name, side),)
            caption = f"{line.name} {crossings.count[LEFT]} left, {crossings.count[RIGHT]} right"
            shown.append((caption, ends))
        return replace(
            record,
            detections=replace(found, crossed=np.fromiter(crossed, np.object_)),
            overlay=replace(record.overlay, lines=tuple(shown)),
        )


class Crossings:
    """Who crosses one line in one video."""

    def __init__(self) -> None:
        self.count: Counter[str] = Counter()
        self._seen: dict[int, npt.NDArray[np.float64]] = {}  # where each track last stood beside it

    def side(self, ends: Points, number: int, trace: Points) -> str | None:
        """The side to which a track has crossed the line since it was last seen.

        Left and right are as seen on the way from the line's first end to the second. A track that
        stands on the line, by the last point of its trace `(K, 2)`, has not crossed it yet. A new
        track comes from the first point, where it stood before it had a number.
        """
        (first, now), (start, end) = trace[[0, -1]].astype(np.float64), ends.astype(np.float64)
        off = _turn(start, end, now)
        if off == 0 or np.isnan(off):
            return None
        before = self._seen.pop(number, first)
        self._seen[number] = now
        if len(self._seen) > REMEMBERED:
            del self._seen[next(iter(self._seen))]
        if not _turn(start, end, before) * off < 0:  # the same side, or not beside the line
            return None
        if _turn(before, now, start) * _turn(before, now, end) > 0:  # beyond an end of the line
            return None
        side = RIGHT if off > 0 else LEFT  # y points down
        self.count[side] += 1
        return side


def _turn(
    start: npt.NDArray[np.float64], end: npt.NDArray[np.float64], point: npt.NDArray[np.float64]
) -> float:
    """Positive for a point to the right of the way from start to end, with y pointing down."""
    along, aside = end - start, point - start
    return float(along[0] * aside[1] - along[1] * aside[0])


class Zones:
    """Tells for each detection in which polygons the middle of its lower side is."""

    def __init__(self, zones: Sequence[Shape]) -> None:
        self._zones = zones
        self._told: set[str] = set()  # zones that were said to be outside

    def add(self, record: Record, picture: Picture, found: Detections) -> Record:
        points = bottom_centres(found.xyxy, picture.size)
        names = [zone.name for zone in self._zones]
        polygons = [zone.pixels(picture.size) for zone in self._zones]
        self._tell_outside(record, picture.size, polygons)
        within = np.array([inside(points, polygon) for polygon in polygons])  # (zones, N)
        zones = (tuple(itertools.compress(names, holds)) for holds in within.T)
        captions = [f"{name} {held.sum()}" for name, held in zip(names, within, strict=True)]
        shown = tuple(zip(captions, polygons, strict=True))
        return replace(
            record,
            detections=replace(found, zones=np.fromiter(zones, np.object_)),
            overlay=replace(record.overlay, zones=shown),
        )

    def _tell_outside(
        self, record: Record, size: tuple[int, int], polygons: Sequence[Points]
    ) -> None:
        """Warn once of each zone that has no part of a picture: pixels of another size, perhaps."""
        height, width = size
        for zone, polygon in zip(self._zones, polygons, strict=True):
            near, far = polygon.min(0), polygon.max(0)
            if zone.name not in self._told and ((far <= 0) | (near >= (width, height))).any():
                self._told.add(zone.name)
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
    return np.array(
        [
            not math.isnan(x) and cv2.pointPolygonTest(polygon, (x, y), measureDist=False) >= 0
            for x, y in points.tolist()
        ],
        bool,
    )
