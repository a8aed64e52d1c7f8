"""The elements that a Matroska or WebM file is made of."""

from collections.abc import Iterator
from typing import NamedTuple

EBML, SEGMENT, TRACKS, TRACK_ENTRY = 0x1A45DFA3, 0x18538067, 0x1654AE6B, 0xAE
CLUSTER, TRACK_TYPE, DEFAULT_FLAG, VIDEO = 0x1F43B675, 0x83, 0x88, 0xE0
PIXEL_WIDTH, PIXEL_HEIGHT = 0xB0, 0xBA
VIDEO_TYPE = 1  # a type of track
SUBTITLES = b"\x11"  # a type of track; FFmpeg takes no block of a track that is missing

MAX_ID_BYTES = 4  # maximum length of an element's id
MAX_LENGTH_BYTES = 8  # maximum length of the length of an element's content


class Element(NamedTuple):
    """An element of a Matroska file: an id that says what it is, and where its content lies."""

    element_id: int
    start: int
    end: int | None  # may lie after the data that were read; None if the length is unknown


def elements(data: bytes, start: int, end: int) -> Iterator[Element]:
    r"""Yield the elements of a Matroska file in a range of bytes, without those inside them.

    An element is an id that says what it is, the length of its content, and the content. So
    `b"\xae\x82AB"` is a track (0xAE), and its content of 2 bytes begins at offset 2. An element of
    unknown length is the last one. Reading stops without an error at the first damaged element.

    Args:
        data: The first bytes of the file.
        start: The offset of the first element in `data`.
        end: The offset where the elements end.
    """
    position = start
    while position < end:
        id_bytes = _byte_count(data[position])
        length_start = position + id_bytes
        if id_bytes > MAX_ID_BYTES or length_start >= end:
            return
        length_bytes = _byte_count(data[length_start])
        if length_bytes > MAX_LENGTH_BYTES:
            return
        content_start = length_start + length_bytes
        element_id = int.from_bytes(data[position:length_start])

        # A length of N bytes begins with N bits that give N, and has 7 * N bits for its value.
        value_bits = (1 << (7 * length_bytes)) - 1
        length = int.from_bytes(data[length_start:content_start]) & value_bits
        is_length_unknown = length == value_bits
        if is_length_unknown:
            yield Element(element_id, content_start, None)
            return
        position = content_start + length
        yield Element(element_id, content_start, position)


def _byte_count(first_byte: int) -> int:
    """Return how many bytes a number takes: one, and one for each zero bit with which it begins."""
    leading_zeros = 8 - first_byte.bit_length()
    return 1 + leading_zeros


def elements_by_id(head: bytes, start: int, end: int) -> dict[int, Element]:
    """Return the elements from `start` to `end` by their id; the last one of each id is used."""
    return {element.element_id: element for element in elements(head, start, end)}


def unsigned(head: bytes, element: Element | None, *, default: int) -> int:
    """Return the number in a Matroska element; a default if it or its length is missing."""
    if element is None or element.end is None:
        return default
    longest_end = element.start + 8
    return int.from_bytes(head[element.start : min(element.end, longest_end)])
