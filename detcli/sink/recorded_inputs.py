"""Which inputs a resume file has records of, kept in little memory: there may be millions."""

import hashlib
import re
from collections import Counter

KEY_BYTES = 12
"""The length of the hash of a name: among a million names, two are alike once in 10**17 runs."""

FILE_STAMP = re.compile(r"(0|[1-9][0-9]*)-(0|[1-9][0-9]{0,18})", re.ASCII)
"""The stamp of a file: its size, and its time in us."""

SIZE_SHIFT = 64  # bits, of which the time in a packed stamp takes fewer
TIME_MASK = (1 << SIZE_SHIFT) - 1

PackedStamp = int | str
"""A stamp in little memory: an integer with the size above the time; an ETag as it is."""


def pack(stamp: str) -> PackedStamp:
    """Put the size and the time of a file into an integer, which takes half of the memory."""
    match = FILE_STAMP.fullmatch(stamp)
    if match is None:
        return stamp
    return int(match[1]) << SIZE_SHIFT | int(match[2])


def unpack(packed: PackedStamp) -> str:
    """Return the stamp that was packed."""
    if isinstance(packed, str):
        return packed
    return f"{packed >> SIZE_SHIFT}-{packed & TIME_MASK}"


class RecordedInputs:
    """The images and frames that have records, and what their files were when they were read.

    A million images take about 170 MB, as only the hashes of their names are kept.
    """

    def __init__(self) -> None:
        # The stamp of each image's file, by the hash of its name; None if it is not known.
        self._image_stamps: dict[bytes, PackedStamp | None] = {}
        # How many further records there are of the images that have several, by the same hash.
        self._image_repeats: Counter[bytes] = Counter()
        self._last_source = ""  # whose hash is the last that was computed
        self._last_key = self._compute_key("")
        # How many records there are of each frame of a video, by the name of the video. A video
        # that was named twice has two of each.
        self._frame_counts: dict[str, Counter[int]] = {}
        self._video_stamps: dict[str, str] = {}  # of the last record of a video that has one

    def add(self, source: str, frame: int | None, file_stamp: str | None) -> None:
        """Count one more record of an image or frame, and note the stamp of its file.

        Args:
            source: The name of the record's input.
            frame: The number of the frame, if the input is a video; None for an image.
            file_stamp: The size and time of the input's file when it was read. None if the record
                has none; then the stamp of an earlier record of the input stays.
        """
        if frame is None:
            self._add_image(source, file_stamp)
            return
        self._frame_counts.setdefault(source, Counter())[frame] += 1
        if file_stamp is not None:
            self._video_stamps[source] = file_stamp

    def _add_image(self, source: str, file_stamp: str | None) -> None:
        """Add the record of an image; the arguments are those of `add`."""
        key = self._key(source)
        is_repeated = key in self._image_stamps
        if is_repeated:
            self._image_repeats[key] += 1
        if file_stamp is not None:
            self._image_stamps[key] = pack(file_stamp)
        elif not is_repeated:
            self._image_stamps[key] = None

    def _key(self, source: str) -> bytes:
        """Return the hash of a name, which is computed once for several questions about it."""
        if source is not self._last_source:
            self._last_key = self._compute_key(source)
            self._last_source = source
        return self._last_key

    def _compute_key(self, source: str) -> bytes:
        """Compute the hash of a name."""
        name = source.encode("utf-8", "surrogatepass")
        return hashlib.blake2b(name, digest_size=KEY_BYTES).digest()

    def has(self, source: str, frame: int | None) -> bool:
        """Tell whether a record is left of an image, or of a frame of a video."""
        if frame is None:
            return self._key(source) in self._image_stamps
        return source in self._frame_counts and self._frame_counts[source][frame] > 0

    def remove(self, source: str, frame: int | None) -> None:
        """Remove one record of an image, or of a frame of a video, that has one."""
        if frame is not None:
            self._frame_counts[source][frame] -= 1
            return
        key = self._key(source)
        if self._image_repeats.get(key, 0) > 0:
            self._image_repeats[key] -= 1
        else:
            del self._image_stamps[key]

    def file_stamp(self, source: str) -> str | None:
        """Return what the file of an input was when its last record was made, if that is known."""
        if source in self._video_stamps:
            return self._video_stamps[source]
        packed = self._image_stamps.get(self._key(source))
        if packed is None:
            return None
        return unpack(packed)

    def clear(self) -> None:
        """Forget all records."""
        self._image_stamps.clear()
        self._image_repeats.clear()
        self._frame_counts.clear()
        self._video_stamps.clear()
