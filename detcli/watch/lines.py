"""Lines: which tracks cross them, and to which side."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from detcli.detections import Detections
from detcli.geometry import Picture
from detcli.places import Points, Shape, bottom_centres
from detcli.record import Record
from detcli.sink.folder import PerClip

LEFT, RIGHT = "left", "right"

REMEMBERED = 10_000
"""Tracks whose places are known, those that were seen last; a stream may never end."""


class CrossedLines:
    """Tells for each detection which lines its track has crossed since it was last seen."""

    def __init__(self, lines: Sequence[Shape]) -> None:
        self._lines = lines
        self._clips = PerClip(lambda _: [Crossings() for _ in lines])

    def add(self, record: Record, picture: Picture, found: Detections) -> Record:
        """The record with what its detections have crossed, and the counts of its video."""
        if record.origin.frame is None or found.track_id is None:
            return record
        counts = self._clips.of(record)
        points = bottom_centres(found.xyxy, picture.size)
        crossed = np.empty(len(found), np.object_)
        crossed[:] = [() for _ in crossed]
        shown = []
        for line, crossings in zip(self._lines, counts, strict=True):
            ends = line.pixels(picture.size)
            for row, (number, point) in enumerate(zip(found.track_id, points, strict=True)):
                if number > 0 and (side := crossings.side(ends, int(number), point)):
                    crossed[row] += ((line.name, side),)
            caption = f"{line.name} {crossings.count[LEFT]} left, {crossings.count[RIGHT]} right"
            shown.append((caption, ends))
        return replace(
            record,
            detections=replace(found, crossed=crossed),
            scene=replace(record.scene, lines=tuple(shown)),
        )


class Crossings:
    """Who crosses one line in one video."""

    def __init__(self) -> None:
        self.count: Counter[str] = Counter()
        self._seen: dict[int, npt.NDArray[np.float64]] = {}  # where each track last stood beside it

    def side(self, ends: Points, number: int, point: Points) -> str | None:
        """The side to which a track has crossed the line since it was last seen.

        Args:
            ends: `(2, 2)`; left and right as seen on the way from the first to the second.
            number: Of the track.
            point: `(2,)`, where it stands now. On the line it has not crossed yet.
        """
        now, (start, end) = point.astype(np.float64), ends.astype(np.float64)
        off = _turn(start, end, now)
        if off == 0 or np.isnan(off):
            return None
        before = self._seen.pop(number, None)
        self._seen[number] = now
        if len(self._seen) > REMEMBERED:
            del self._seen[next(iter(self._seen))]
        if before is None or (_turn(start, end, before) > 0) == (off > 0):
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
