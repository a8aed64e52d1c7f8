"""Zones: which detections stand in which polygon."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from detcli.detections import Detections
from detcli.geometry import Picture
from detcli.opencv import cv2
from detcli.places import Points, Shape, feet
from detcli.record import Record


class Zones:
    """Tells for each detection in which polygons the middle of its lower side is."""

    def __init__(self, zones: Sequence[Shape]) -> None:
        self._zones = zones

    def add(self, record: Record, picture: Picture, found: Detections) -> Record:
        """The record with the zones of its detections, and how many are in each."""
        points, names = feet(found.xyxy, picture.size), [zone.name for zone in self._zones]
        polygons = [zone.pixels(picture.size) for zone in self._zones]
        within = np.array([inside(points, polygon) for polygon in polygons])  # (zones, N)
        zones = np.empty(len(found), np.object_)
        for row, holds in enumerate(within.T):
            zones[row] = tuple(name for name, held in zip(names, holds, strict=True) if held)
        captions = [f"{name} {held.sum()}" for name, held in zip(names, within, strict=True)]
        shown = tuple(zip(captions, polygons, strict=True))
        return replace(
            record,
            detections=replace(found, zones=zones),
            scene=replace(record.scene, zones=shown),
        )


def inside(points: Points, polygon: Points) -> npt.NDArray[np.bool_]:
    """Tell which points lie in a polygon or on its edge.

    What edges that cross each other enclose twice is outside (the even-odd rule).

    Args:
        points: `(N, 2)`; those with NaN lie nowhere.
        polygon: `(K, 2)`, the corners.

    Returns:
        `(N,)` bool.
    """
    return np.array(
        [
            not math.isnan(x) and cv2.pointPolygonTest(polygon, (x, y), measureDist=False) >= 0
            for x, y in points.tolist()
        ],
        bool,
    )
