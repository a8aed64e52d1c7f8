"""A JPEG without its last bytes: how much of it can be decoded.

The rows that are present are those that no bytes after the cut could change. So the image is
decoded twice, with different noise in place of what is missing: what differs is missing. A
progressive JPEG has all rows early, and their details later, as its scans show.

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
"""How many numbers describe a block of 8x8 pixels; the first is its mean, the rest are details.

A sequential JPEG stores all numbers of a block together, from the top of the image down. A
progressive one has several scans, each of which has some of the numbers, or bits of them, for all
blocks: first the means, then the details.
"""

NOISE_BYTES = 4096
"""How many random bytes stand for what is missing, enough for several blocks to differ."""

NOISE_PARTS = 16
"""How many parts of the noise have a restart marker after them: two series of eight markers."""

SHORTEST_ROOM = 16
"""At least this many zeros at the end of a file count as missing, not as image data."""

_RESTART_INTERVAL, _FIRST_RESTART, _RESTARTS = 0xDD, 0xD0, 8

_PROGRESSIVE = frozenset({0xC2, 0xC6, 0xCA, 0xCE})


class _Scan(NamedTuple):
    """What one scan of a JPEG holds: some numbers of each block, in some colour components."""

    components: tuple[int, ...]
    coefficients: range  # indices into the 64 numbers of a block
    missing_bits: int  # how many of the lowest bits are left to later scans


class _Progress(NamedTuple):
    """Which scans of a JPEG begin before its cut; the last of them may be cut itself."""

    is_progressive: bool
    components: tuple[int, ...]  # the colour components of the whole image
    scans: tuple[_Scan, ...]

    def has_means(self, scan_count: int) -> bool:
        """Whether the first `scan_count` scans hold the mean of each block in all components.

        Then something is shown everywhere in the image.
        """
        components_with_means: set[int] = set()
        for scan in self.scans[:scan_count]:
            if 0 in scan.coefficients:  # the first coefficient is the mean
                components_with_means.update(scan.components)
        return components_with_means.issuperset(self.components)

    def has_details(self) -> bool:
        """Whether the scans hold each of the 64 numbers of a block, for each colour component.

        A sequential JPEG has them in any case, as far as its rows go. In a progressive one a number
        is complete when a scan leaves none of its bits to later ones.
        """
        if not self.is_progressive:
            return True
        complete_coefficients: dict[int, set[int]] = {}
        for component in self.components:
            complete_coefficients[component] = set()
        for scan in self.scans:
            if scan.missing_bits == 0:
                for component in scan.components:
                    complete_coefficients.setdefault(component, set()).update(scan.coefficients)
        return all(
            len(coefficients) >= COEFFICIENTS for coefficients in complete_coefficients.values()
        )


def without_trailing_zeros(data: bytes) -> bytes:
    """Cut the zeros off the end of a file, if they are too many to be image data.

    A file system makes room for a file before its content arrives; a copy that broke off leaves
    this room filled with zeros.
    """
    content = data.rstrip(b"\0")
    if len(data) - len(content) < SHORTEST_ROOM:
        return data
    return content


def require_scan(data: bytes) -> None:
    """Refuse a JPEG that is cut before its image data begin, so that nothing can be decoded.

    Raises:
        DecodeError: It has no scan.
    """
    if not _read_progress(data).scans:
        raise _nothing_is_there()


def describe_cut(data: bytes) -> str:
    """Describe how much of a cut JPEG can be decoded: how many rows, and in what detail.

    A progressive JPEG stores the image in several scans: first the mean of each block of 8x8
    pixels, and then details. So there are these cases:

        what is cut             what is present
        the means, early        nothing, which is an error
        the means               the upper rows, without details
        the details             all rows, without their last details
        rows, if sequential     the upper rows, with details
        the end of the file     all rows, with details

    Args:
        data: The file up to its cut.

    Returns:
        A warning such as "cut off: 40 of its 301 rows (13%) were decoded, the others are missing".

    Raises:
        DecodeError: Not a single row is present.
    """
    progress = _read_progress(data)
    height, rows = _rows_before_cut(data)
    scan_count = len(progress.scans)
    complete_scan_count = scan_count - 1  # the last scan is the one that is cut
    has_details = progress.has_details()
    has_begun_all_means = progress.has_means(scan_count)
    has_all_means = progress.has_means(complete_scan_count)

    if not has_begun_all_means:
        raise _nothing_is_there()
    if rows == height and has_details:
        return f"cut off: all of its {height} rows were decoded, only its end is missing"
    if progress.is_progressive and has_all_means:  # so only details are cut
        return f"cut off: all of its {height} rows were decoded, but without their last details"

    # What is left are cuts in the means of a progressive JPEG, or in a sequential one. Either way
    # the rows at the bottom are missing.
    if rows == 0:
        raise _nothing_is_there()
    share = f"{rows} of its {height} rows ({100 * rows // height}%)"
    if has_details:
        return f"cut off: {share} were decoded, the others are missing"
    return f"cut off: {share} were decoded, without their details, and the others are missing"


def _nothing_is_there() -> DecodeError:
    """Make the error for a JPEG so damaged that nothing of it can be shown."""
    return DecodeError("a damaged JPEG: cut off before its first row is complete", FETCH_AGAIN)


def _read_progress(data: bytes) -> _Progress:
    """Read from the segments of a cut JPEG which scans begin before the cut.

    The frame header says which components the image has: starting at its byte 6, each has three
    bytes. The first of them is the component's id.
    """
    is_progressive = False
    components: tuple[int, ...] = ()
    scans = []
    try:
        for marker, payload in segments(data):
            if marker in FRAMES:
                is_progressive = marker in _PROGRESSIVE
                components = tuple(payload[6::3])
            elif marker == SCAN:
                scans.append(_read_scan(payload))
    except struct.error:  # cut in the header of a segment
        pass
    return _Progress(is_progressive, components, tuple(scans))


def _read_scan(payload: bytes) -> _Scan:
    """Read what a scan holds from the segment that begins it.

    Its layout: the number of components in a byte; the id and the tables of each component in two
    bytes; the first and the last coefficient; and a byte with two counts of bits, of which the
    lower half says how many bits are left to later scans.

    Raises:
        struct.error: The segment is cut.
    """
    (component_count,) = struct.unpack_from("B", payload)
    end_of_components = 1 + 2 * component_count
    components = tuple(payload[1:end_of_components:2])
    first, last, bit_counts = struct.unpack_from("BBB", payload, end_of_components)
    return _Scan(components, range(first, last + 1), missing_bits=bit_counts & 0x0F)


def _rows_before_cut(data: bytes) -> tuple[int, int]:
    """Count the rows of a cut JPEG that are present, from the top.

    The image is decoded twice, with different noise in place of what is missing. The rows above
    the first difference do not depend on the noise, so the file has all their data.

    Args:
        data: The file up to its cut.

    Returns:
        The height of the image as it is stored, and how many of its rows are present.

    Raises:
        DecodeError: It cannot be decoded.
    """
    # A byte 0xFF begins a marker. One at the end would be completed by the noise, so it is removed,
    # and the noise has none either.
    beginning = data.rstrip(b"\xff")
    random = np.random.default_rng(0)
    noise = random.integers(1, 0xFF, NOISE_BYTES, np.uint8)
    opposite_noise = 0xFF - noise  # every bit differs
    images = []
    for replacement in (noise, opposite_noise):
        rest = _with_restarts(replacement, _next_restart(data))
        file = np.frombuffer(beginning + rest + END_MARKER, np.uint8)
        image = cv2.imdecode(file, cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
        if image is None:
            raise _nothing_is_there()
        images.append(image)  # (H, W, 3)

    height = images[0].shape[0]
    is_different = np.any(images[0] != images[1], axis=(1, 2))  # (H,), of each row
    if not is_different.any():
        return height, height
    first_different_row = int(np.argmax(is_different))
    return height, first_different_row


def _with_restarts(noise: np.ndarray, marker_number: int | None) -> bytes:
    """Put restart markers between parts of the noise, if the JPEG has such markers.

    They are numbered from 0 to 7 in turn. A decoder that waits for a certain one skips everything
    before it, so noise without markers would change nothing.

    Args:
        noise: Bytes that stand for the missing image data.
        marker_number: The number of the marker that comes next; None if the file has none.
    """
    if marker_number is None:
        return noise.tobytes()
    number = marker_number
    pieces = []
    for noise_part in np.split(noise, NOISE_PARTS):
        pieces.append(noise_part.tobytes())
        pieces.append(bytes([0xFF, _FIRST_RESTART + number]))
        number = (number + 1) % _RESTARTS
    return b"".join(pieces)


def _next_restart(data: bytes) -> int | None:
    """Find the number, 0 to 7, of the restart marker that comes next after the cut of a JPEG.

    None means that the file has no restart markers: it says so with an interval of 0, or with none.
    """
    has_restarts = False
    next_number = 0
    with contextlib.suppress(struct.error):  # cut in the header of a segment
        for marker, payload in segments(data):
            if marker == _RESTART_INTERVAL:
                has_restarts = any(payload)
            elif marker == SCAN:  # each scan numbers its markers from the start
                next_number = 0
            elif _FIRST_RESTART <= marker < _FIRST_RESTART + _RESTARTS:
                number = marker - _FIRST_RESTART
                next_number = (number + 1) % _RESTARTS
    if not has_restarts:
        return None
    return next_number
