"""Watching: records get what pictures alone do not show: tracks, zones, lines that are crossed.

    detector -> records -> watch -> sinks

A run has one `Watcher`, which gets its records in order.
"""

from detcli.record import Record
from detcli.watch.options import WatchOptions


class Watcher:
    """Adds to records what its options ask for; without any, records pass as they are."""

    def __init__(self, options: WatchOptions) -> None:
        self._tracks = self._zones = self._lines = None
        if options.track is not None:
            from detcli.watch.tracks import Tracks

            self._tracks = Tracks(options.track)
        if options.lines:
            from detcli.watch.lines import CrossedLines

            self._lines = CrossedLines(options.lines)
        if options.zones:
            from detcli.watch.zones import Zones

            self._zones = Zones(options.zones)

    def __call__(self, record: Record) -> Record:
        """The record with what was found out; one of an input that failed as it is."""
        picture, found = record.picture, record.detections
        if picture is None or found is None:
            return record
        if self._tracks is not None:
            record = self._tracks.add(record, picture, found)
        if self._lines is not None:
            record = self._lines.add(record, picture.size, record.detections or found)
        if self._zones is not None:
            record = self._zones.add(record, picture.size, record.detections or found)
        return record
