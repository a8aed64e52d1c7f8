"""A JPEG without its last bytes: how much of it can be decoded.

The rows that are there are those that no bytes behind the cut could change. So the image is
decoded twice, with different noise in place of what is missing: what differs is missing. A
progressive JPEG has all rows early, and their details later, which its scans tell.

Zeros at the end are none of its data, but room that was made for it on a disk.
"""

import contextlib
import struct
from typing import NamedTuple

import numpy as np

from detcli.core.errors import DecodeError
from detcli.core.opencv import cv2
from detcli.source.limits import FETCH_AGAIN
from detcli.source.segments import END_MARKER, FRAMES, SCAN, segments

COEFFICIENTS = 64
"""Of a block; the first is its mean, the others are details."""

NOISE_BYTES = 4096
"""Enough for several blocks, which differ somewhere."""

NOISE_PARTS = 16
"""Between which there are restart markers, where the file has some: two series of eight."""

SHORTEST_ROOM = 16
"""From this many zeros on, the end of a file counts as missing, not as image data."""

_RESTART_INTERVAL, _FIRST_RESTART, _RESTARTS = 0xDD, 0xD0, 8

_PROGRESSIVE = frozenset({0xC2, 0xC6, 0xCA, 0xCE})


class _Scan(NamedTuple):
    """Which coefficients of which components a scan has."""

    components: tuple[int, ...]
    coefficients: range
    missing_bits: int  # the lowest bits, which later scans have


class _Progress(NamedTuple):
    """What the scans of a JPEG hold up to its cut."""

    is_progressive: bool
    components: tuple[int, ...]
    scans: tuple[_Scan, ...]

    def has_means(self, scan_count: int) -> bool:
        """Whether some scans, from the first on, have the mean of each block of each component."""
        components: set[int] = set()
        for scan in self.scans[:scan_count]:
            if 0 in scan.coefficients:
                components.update(scan.components)
        return components.issuperset(self.components)

    def has_details(self) -> bool:
        """Whether the scans have all bits of each coefficient."""
        if not self.is_progressive:
            return True
        complete: dict[int, set[int]] = {component: set() for component in self.components}
        for scan in self.scans:
            if scan.missing_bits == 0:
                for component in scan.components:
                    complete.setdefault(component, set()).update(scan.coefficients)
        return all(len(coefficients) >= COEFFICIENTS for coefficients in complete.values())


def without_room(data: bytes) -> bytes:
    """A file without the zeros at its end."""
    content = data.rstrip(b"\0")
    if len(data) - len(content) < SHORTEST_ROOM:
        return data
    return content


def check_cut(data: bytes) -> None:
    """Refuse a JPEG that is cut before anything of it can be decoded.

    Raises:
        DecodeError: It has no scan.
    """
    if not _progress_of(data).scans:
        raise _nothing_is_there()


def describe_cut(data: bytes) -> str:
    """How much of a cut JPEG is there, in words.

    Raises:
        DecodeError: Not one row is there.
    """
    progress = _progress_of(data)
    scan_count = len(progress.scans)
    height, rows = _rows_before_cut(data)
    if not progress.has_means(scan_count):
        raise _nothing_is_there()
    if rows == height and progress.has_details():
        return f"cut off: all of its {height} rows were decoded, only its end is missing"
    is_cut_in_details = progress.is_progressive and progress.has_means(scan_count - 1)
    if is_cut_in_details:
        return f"cut off: all of its {height} rows were decoded, but without their last details"
    if rows == 0:
        raise _nothing_is_there()
    share = f"{rows} of its {height} rows ({100 * rows // height}%)"
    if progress.has_details():
        return f"cut off: {share} were decoded, the others are missing"
    return f"cut off: {share} were decoded, without their details, and the others are missing"


def _nothing_is_there() -> DecodeError:
    return DecodeError("a damaged JPEG: cut off before its first row is complete", FETCH_AGAIN)


def _progress_of(data: bytes) -> _Progress:
    """The scans up to the cut, by the segments of the file."""
    is_progressive = False
    components: tuple[int, ...] = ()
    scans = []
    try:
        for marker, payload in segments(data):
            if marker in FRAMES:
                is_progressive = marker in _PROGRESSIVE
                components = tuple(payload[6::3])
            elif marker == SCAN:
                scans.append(_scan_of(payload))
    except struct.error:  # cut in the header of a segment
        pass
    return _Progress(is_progressive, components, tuple(scans))


def _scan_of(payload: bytes) -> _Scan:
    (count,) = struct.unpack_from("B", payload)
    components = tuple(payload[1 : 1 + 2 * count : 2])
    first, last, bits = struct.unpack_from("BBB", payload, 1 + 2 * count)
    return _Scan(components, range(first, last + 1), missing_bits=bits & 0x0F)


def _rows_before_cut(data: bytes) -> tuple[int, int]:
    """The height as stored, and how many rows from the top what is missing cannot change."""
    beginning = data.rstrip(b"\xff")  # which would make a marker of the noise
    random = np.random.default_rng(0)
    noise = random.integers(1, 0xFF, NOISE_BYTES, np.uint8)
    images = []
    for values in (noise, 0xFF - noise):  # of which every bit differs
        rest = _with_restarts(values, _next_restart(data))
        file = np.frombuffer(beginning + rest + END_MARKER, np.uint8)
        image = cv2.imdecode(file, cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
        if image is None:
            raise _nothing_is_there()
        images.append(image)
    height = images[0].shape[0]
    differs = np.any(images[0] != images[1], axis=(1, 2))
    if not differs.any():
        return height, height
    return height, int(np.argmax(differs))


def _with_restarts(noise: np.ndarray, number: int | None) -> bytes:
    """Noise with restart markers in it, from a number on; without them if that is None.

    A decoder that waits for such a marker reads nothing before it.
    """
    if number is None:
        return noise.tobytes()
    parts = []
    for part in np.split(noise, NOISE_PARTS):
        parts.append(part.tobytes())
        parts.append(bytes([0xFF, _FIRST_RESTART + number]))
        number = (number + 1) % _RESTARTS
    return b"".join(parts)


def _next_restart(data: bytes) -> int | None:
    """The number of the restart marker that comes next; None if the file has none."""
    has_restarts = False
    number = 0
    with contextlib.suppress(struct.error):  # cut in the header of a segment
        for marker, payload in segments(data):
            if marker == _RESTART_INTERVAL:
                has_restarts = any(payload)
            elif marker == SCAN:
                number = 0
            elif _FIRST_RESTART <= marker < _FIRST_RESTART + _RESTARTS:
                number = (marker - _FIRST_RESTART + 1) % _RESTARTS
    if not has_restarts:
        return None
    return number
