"""Remembers what the barcode of a track said, for frames in which it cannot be read."""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from detcli.analytics.crops import Doubles
from detcli.data.detections import Detections
from detcli.data.geometry import Image
from detcli.data.per_video import PerVideo
from detcli.data.record import Record

if TYPE_CHECKING:
    from detcli.data.barcode import Barcode

UNKNOWN_CORNERS: Doubles = np.empty((0, 2))
REMEMBERED = 10_000  # tracks of a video whose texts are known, as a stream may never end


class TrackTexts:
    """Gives barcodes that cannot be read in a frame the text that their track had earlier."""

    def __init__(self) -> None:
        # The barcode of each track of a video, by track id; the tracks seen last come last.
        self._videos: PerVideo[dict[int, Barcode]] = PerVideo(lambda _: {})

    def add(self, record: Record, _: Image, detections: Detections) -> Record:
        """Return a copy of a frame's record in which unread barcodes have the text of their track.

        Such a barcode is marked as read earlier, and has corners if it was located in this frame.
        A record without tracks or barcodes is returned unchanged.
        """
        if record.origin.frame is None:
            return record
        if detections.track_id is None or detections.symbols is None:
            return record
        last_read_by_track = self._videos.state_of(record)
        barcodes = detections.symbols.copy()
        for index, track_number in enumerate(detections.track_id.tolist()):
            has_track = track_number > 0
            if has_track:
                barcodes[index] = _with_text_of_track(
                    barcodes[index], track_number, last_read_by_track
                )
        _forget_oldest(last_read_by_track)
        return replace(record, detections=replace(detections, symbols=barcodes))


def _with_text_of_track(
    barcode: "Barcode | None", track_number: int, last_read_by_track: "dict[int, Barcode]"
) -> "Barcode | None":
    """Return the barcode of a detection, with its track's text if it could not be read itself.

    Args:
        barcode: The barcode in this frame; None if there is none.
        track_number: The id of the detection's track.
        last_read_by_track: The barcode that was last read of each track. It is updated, and the
            track moved to its end.
    """
    # Removed first, so that adding it again puts the track at the end.
    last_read = last_read_by_track.pop(track_number, None)
    if barcode is not None and barcode.symbology:  # it was read, and not only located
        last_read_by_track[track_number] = barcode
        return barcode
    if last_read is None:
        return barcode
    last_read_by_track[track_number] = last_read
    return _as_read_earlier(last_read, barcode)


def _forget_oldest(last_read_by_track: "dict[int, Barcode]") -> None:
    """Forget the tracks that have not been seen for longest, until `REMEMBERED` are left."""
    while len(last_read_by_track) > REMEMBERED:
        oldest_number = next(iter(last_read_by_track))  # the tracks seen last come last
        del last_read_by_track[oldest_number]


def _as_read_earlier(earlier_barcode: "Barcode", unread_barcode: "Barcode | None") -> "Barcode":
    """Return the barcode of a track for a frame in which it could not be read.

    Args:
        earlier_barcode: The barcode as it was read in an earlier frame.
        unread_barcode: Where it was located in this frame; None if it was not.
    """
    if unread_barcode is None:
        corners = UNKNOWN_CORNERS
    else:
        corners = unread_barcode.corners
    return replace(earlier_barcode, corners=corners, confirmed=False, earlier=True)
