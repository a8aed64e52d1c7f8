"""Zones: which detections stand in which polygon."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from detcli.detections import Detections
from detcli.errors import DetcliWarning
from detcli.geometry import Picture
from detcli.opencv import cv2
from detcli.places import Points, Shape, bottom_centres
from detcli.record import Record


class Zones:
    """Tells for each detection in which polygons the middle of its lower side is."""

    def __init__(self, zones: Sequence[Shape]) -> None:
        self._zones = zones
        self._told: set[str] = set()  # zones that were said to be outside

    def add(self, record: Record, picture: Picture, found: Detections) -> Record:
        """The record with the zones of its detections, and how many are in each."""
        points = bottom_centres(found.xyxy, picture.size)
        names = [zone.name for zone in self._zones]
        polygons = [zone.pixels(picture.size) for zone in self._zones]
        self._tell_outside(record, picture.size, polygons)
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
