"""Watching: records get what boxes alone do not say: texts, tracks, zones, lines.

    detector -> records -> watch -> sinks

First of all, they lose the detections that are to be ignored. A run has one `Watcher`, which gets
its records in order.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from detcli.config.config import Settings
from detcli.config.watched import Watched
from detcli.data.detections import Detections
from detcli.data.geometry import Image
from detcli.data.record import Record

if TYPE_CHECKING:
    from detcli.analytics.ignored import Ignoring

# Adds to a record, given its image and detections.
WatchStep = Callable[[Record, Image, Detections], Record]


class Watcher:
    """Adds tracks, zones, crossed lines and texts to records, if they are asked for."""

    def __init__(
        self,
        watched: Watched,
        settings: Settings | None = None,
        conf_thresholds: npt.NDArray[np.float32] | None = None,
    ) -> None:
        """Prepare the steps that the user asked for, in the order in which they are done.

        A step is a function that returns a changed copy of a record, for example with tracks, or
        without ignored detections. Each step works on what the earlier ones return: only detections
        that are not ignored get tracks, and lines are crossed by tracks. The module of a step is
        only loaded here, as some load slow libraries.

        Args:
            watched: Which steps, and their options.
            settings: The region, the classes and `max_det`, which limit the search for barcodes;
                the defaults if None.
            conf_thresholds: `(C,)`, the confidence of each class. A detection below it is kept only
                if its barcode can be read. None if all are kept.
        """
        self._steps: list[WatchStep] = []
        # The step for --ignore, if there is one. `unmatched_patterns` asks it at the end of a run.
        self._ignoring: "Ignoring | None" = None  # noqa: UP037 - only imported below
        if watched.ignore:
            from detcli.analytics.ignored import Ignoring

            self._ignoring = Ignoring(watched.ignore, watched.ignore_share)
            self._steps.append(self._ignoring.add)
        if watched.read:
            from detcli.analytics.codes import Codes

            self._steps.append(Codes(settings or Settings(), conf_thresholds).add)
        if watched.track is not None:
            from detcli.analytics.tracks import Tracks

            self._steps.append(Tracks(watched.track).add)
        if watched.read and watched.track is not None:
            from detcli.analytics.track_texts import TrackTexts

            self._steps.append(TrackTexts().add)
        if watched.line:
            from detcli.analytics.zones import CrossedLines

            self._steps.append(CrossedLines(watched.line).add)
        if watched.zone:
            from detcli.analytics.zones import Zones

            self._steps.append(Zones(watched.zone).add)

    @property
    def unmatched_patterns(self) -> list[str]:
        """The patterns of --ignore that no source has matched so far."""
        if self._ignoring is None:
            return []
        return self._ignoring.unmatched_patterns

    def __call__(self, record: Record) -> Record:
        """Return the record with what the steps add; that of a failed input is unchanged."""
        for add in self._steps:
            if record.picture is not None and record.detections is not None:
                record = add(record, record.picture, record.detections)
        return record
