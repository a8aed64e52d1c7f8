"""The elements that a Matroska or WebM file is made of."""

from collections.abc import Iterator
from typing import NamedTuple

EBML, SEGMENT, TRACKS, TRACK_ENTRY = 0x1A45DFA3, 0x18538067, 0x1654AE6B, 0xAE
CLUSTER, TRACK_TYPE, DEFAULT_FLAG, VIDEO = 0x1F43B675, 0x83, 0x88, 0xE0
PIXEL_WIDTH, PIXEL_HEIGHT = 0xB0, 0xBA
VIDEO_TYPE = 1  # a type of track
SUBTITLES = b"\x11"  # a type of track; of one that is not there, FFmpeg takes no block


class Element(NamedTuple):
    """An element of a Matroska file: a number that says what it is, and where its content lies."""

    number: int
    start: int
    end: int | None  # may lie behind the data that were read; None if the length is not known


def elements(data: bytes, start: int, end: int) -> Iterator[Element]:
    """Yield the elements of a Matroska file in a range of bytes, without those inside of them.

    An element is a number that says what it is, a length, and the content. The number and the
    length take one to eight bytes each: the count of zero bits at the begin of the first byte says
    how many more bytes there are.

    Args:
        data: The first bytes of the file.
        start: The offset of the first element in `data`.
        end: The offset where the elements end.
    """
    position = start
    while position < end:
        id_bytes = 9 - data[position].bit_length()
        number = int.from_bytes(data[position : position + id_bytes])
        position += id_bytes
        if id_bytes > 4 or position >= end or not data[position]:
            return
        length_bytes = 9 - data[position].bit_length()
        unknown_length = (1 << (7 * length_bytes)) - 1  # all of its bits are set
        length = int.from_bytes(data[position : position + length_bytes]) & unknown_length
        position += length_bytes
        if length == unknown_length:
            yield Element(number, position, None)
            return
        yield Element(number, position, position + length)
        position += length


def elements_by_number(head: bytes, start: int, end: int) -> dict[int, Element]:
    """Return the elements from `start` to `end` by their number; of equal ones the last counts."""
    return {element.number: element for element in elements(head, start, end)}


def unsigned(head: bytes, element: Element | None, *, default: int) -> int:
    """Return the number in an element of a Matroska file; a default without one, or its length."""
    if element is None or element.end is None:
        return default
    longest_end = element.start + 8
    return int.from_bytes(head[element.start : min(element.end, longest_end)])
