"""AVIF: how an image is to be turned and mirrored, which OpenCV does not do; its EXIF."""

import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from detcli.core.errors import DecodeError
from detcli.core.opencv import cv2
from detcli.data.geometry import Pixels
from detcli.source.limits import RESAVE

_SEQUENCE = b"avis"  # the brand of a file with several frames
_LARGE_INDEX_FLAG = 1  # flag of the box `ipma`, whose indices then take two bytes each
VERSION_AND_FLAGS_BYTES = 4  # at the beginning of certain boxes
_IN_FILE, _IN_META = 0, 1  # where the bytes of an item are, as the box `iloc` says


def is_sequence(data: bytes) -> bool:
    """Whether an AVIF file says that it holds a sequence of frames.

    It does so in its first box, which lists four-letter names of standards (brands) it follows.
    """
    end_of_brands = data[3]  # the last byte of the length of the first box
    return _SEQUENCE in data[8:end_of_brands]


def turn_avif(image: Pixels, data: bytes) -> Pixels:
    """Turn and then mirror an image as its AVIF file asks viewers to; OpenCV does neither.

    Args:
        image: The image as OpenCV decoded it.
        data: Its file.

    Raises:
        DecodeError: The boxes with its orientation are damaged.
    """
    if data[8:12] == _SEQUENCE:  # OpenCV decodes its first frame, not its primary item
        return image
    flip = None
    try:
        properties = _properties_of_primary_item(data)
        quarter_turns = properties.get(b"irot", b"\0")[0] & 3  # to the left
        if b"imir" in properties:
            flip = properties[b"imir"][0] & 1
    except (IndexError, KeyError, struct.error):
        raise DecodeError("a damaged AVIF: its orientation cannot be read", RESAVE) from None
    if quarter_turns > 0:
        # cv2.rotate counts to the right from 0: 0, 1 and 2 are one, two and three quarter turns.
        rotation = 3 - quarter_turns
        image = np.asarray(cv2.rotate(image, rotation), np.uint8)
    if flip is not None:  # 0 swaps top and bottom, 1 left and right, as in cv2.flip
        image = np.asarray(cv2.flip(image, flip), np.uint8)
    return image


def _properties_of_primary_item(data: bytes) -> dict[bytes, memoryview]:
    """Read the properties of the image in an AVIF file, such as how it is turned (`irot`).

    A file may hold several items: the image, a thumbnail, an alpha channel. The primary item is
    what viewers show. The properties are in one list for all items, and a table (`ipma`) says which
    of them each item has.

    Returns:
        The content of each property of the primary item, by its four-letter name.

    Raises:
        KeyError: A box is missing.
        IndexError: A property or a byte is missing.
        struct.error: A box is cut.
    """
    content_of_meta = _content_of_meta(data)
    meta = dict(_boxes(content_of_meta[4:]))  # after version and flags
    primary_item = _primary_item(meta[b"pitm"])
    property_boxes = list(_boxes(meta[b"iprp"]))
    all_properties = list(_boxes(dict(property_boxes)[b"ipco"]))

    indices_of_primary_item: list[int] = []
    for box_kind, content in property_boxes:
        if box_kind == b"ipma":
            for item, indices in _property_indices(content):
                if item == primary_item:
                    indices_of_primary_item += indices

    properties: dict[bytes, memoryview] = {}
    for index in indices_of_primary_item:
        if index > 0:  # 0 stands for no property
            name, value = all_properties[index - 1]
            properties.setdefault(name, value)  # the first of each name is taken
    return properties


def _content_of_meta(data: bytes) -> memoryview:
    """Find the box of an AVIF file that describes its items; a KeyError if there is none."""
    for kind, content in _boxes(memoryview(data)):
        if kind == b"meta":
            return content
    raise KeyError("meta")


def _primary_item(pitm: memoryview) -> int:
    """Read the id of the primary item from the content of the box `pitm`.

    The id comes after the version and flags (four bytes). It takes two bytes in version 0 and
    four in later ones.
    """
    version = pitm[0]
    number_format = ">H"
    if version > 0:
        number_format = ">I"
    item: int = struct.unpack_from(number_format, pitm, 4)[0]
    return item


def _boxes(data: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    """Yield name and content of each box of an AVIF file, or of the boxes within a box.

    A box begins with its length and its name, in four bytes each. A length of 1 means that it
    follows in eight bytes after the name, and 0 that the box reaches to the end.

    Raises:
        struct.error: The data end within the beginning of a box.
    """
    remaining = data
    while remaining:
        size, name = struct.unpack_from(">I4s", remaining)
        start = 8
        if size == 1:
            (size,) = struct.unpack_from(">Q", remaining, 8)
            start = 16
        end = len(remaining)
        if size > 0:
            end = max(size, start)
        yield name, remaining[start:end]
        remaining = remaining[end:]


def _property_indices(ipma: memoryview) -> Iterator[tuple[int, list[int]]]:
    """Read which properties each item of an AVIF file has, from the content of the box `ipma`.

    After version and flags (four bytes) is the number of items. Each item then has its id, how
    many properties it has, and an index for each of them. The highest bit of an index says whether
    viewers must know the property, and is dropped here.

    Yields:
        The id of an item, and the indices of its properties, counted from 1; 0 is none.

    Raises:
        IndexError: The box is empty.
        struct.error: It is cut.
    """
    version = ipma[0]
    flags = ipma[3]
    entry_format = ">HB"  # the id of an item, and how many properties it has
    if version > 0:
        entry_format = ">IB"
    index_format = "B"
    index_mask = 0x7F  # all bits but the highest
    if flags & _LARGE_INDEX_FLAG:
        index_format = "H"
        index_mask = 0x7FFF

    (item_count,) = struct.unpack_from(">I", ipma, 4)
    position = 8
    for _ in range(item_count):
        item, index_count = struct.unpack_from(entry_format, ipma, position)
        position += struct.calcsize(entry_format)
        indices_format = f">{index_count}{index_format}"
        indices = struct.unpack_from(indices_format, ipma, position)
        position += struct.calcsize(indices_format)
        yield item, [index & index_mask for index in indices]


def exif_of_avif(data: bytes) -> bytes | None:
    """Find the EXIF of an AVIF file, which is an item beside the image; None if there is none.

    Its content begins with four bytes that say how many more there are before the metadata, which
    are laid out as a TIFF.

    Raises:
        KeyError: A box is missing.
        IndexError: A box is empty.
        struct.error: A box is cut.
    """
    content_of_meta = _content_of_meta(data)
    meta = dict(_boxes(content_of_meta[VERSION_AND_FLAGS_BYTES:]))
    exif_item = _item_of_kind(meta[b"iinf"], b"Exif")
    if exif_item is None:
        return None
    location = _location_of_item(meta[b"iloc"], exif_item)
    if location.stored_in == _IN_FILE:
        container = memoryview(data)
    elif location.stored_in == _IN_META:
        container = meta[b"idat"]
    else:  # in another item, which is not read
        return None

    byte_count = sum(part.length for part in location.parts)
    if byte_count > len(data):  # Parts may overlap, so that a small file would fill the memory.
        return None
    content = b"".join(container[part.start : part.start + part.length] for part in location.parts)
    (bytes_before_tiff,) = struct.unpack_from(">I", content)
    return content[4 + bytes_before_tiff :]


def _item_of_kind(iinf: memoryview, kind: bytes) -> int | None:
    """Find the id of the first item of a kind in the content of the box `iinf`.

    After version and flags (four bytes) is the number of items, then a box for each of them. Such
    a box has version and flags, the id of the item, two bytes about its protection, and the
    kind in four bytes.
    """
    boxes_start = 6
    if iinf[0] > 0:  # the version; later ones have the number of items in four bytes
        boxes_start = 8
    for _, entry in _boxes(iinf[boxes_start:]):
        entry_format = ">H2x4s"
        if entry[0] > 2:  # the version
            entry_format = ">I2x4s"
        item, item_kind = struct.unpack_from(entry_format, entry, 4)
        if item_kind == kind:
            return int(item)
    return None


class _ItemPart(NamedTuple):
    """Where a part of the content of an item is."""

    start: int
    length: int


class _Location(NamedTuple):
    """Where the content of an item is: in parts, one after the other."""

    # what the parts' positions are relative to: `_IN_FILE`, `_IN_META` or another item
    stored_in: int
    parts: list[_ItemPart]


def _location_of_item(iloc: memoryview, item: int) -> _Location:
    """Find where the bytes of an item are, from the content of the box `iloc`.

    After version and flags are the sizes of the numbers that follow, and the number of items.

    Args:
        iloc: The content of the box.
        item: The id of the item.

    Raises:
        KeyError: The box does not have the item, or numbers of a size that no writer uses.
        struct.error: The box is cut.
    """
    formats = _LocationFormats.of_box(iloc)
    numbers = _NumberReader(iloc, position=VERSION_AND_FLAGS_BYTES + 2)
    item_count = numbers.next(formats.number)
    for _ in range(item_count):
        item_number = numbers.next(formats.number)
        location = _read_location(numbers, formats)
        if item_number == item:
            return location
    raise KeyError(item)


class _LocationFormats(NamedTuple):
    """The formats of the numbers in a box `iloc`, as `_NumberReader` takes them."""

    start: str  # of a part of an item
    length: str  # of a part
    base: str  # of the position from which the starts of an item's parts are counted
    part_index: str  # empty in version 0, which has none
    number: str  # of an item's id, and of the number of items
    stored_in: str  # empty in version 0, which stores all items in the file

    @classmethod
    def of_box(cls, iloc: memoryview) -> "_LocationFormats":
        """Read from the beginning of the box how many bytes each of its numbers takes.

        After version and flags, four half bytes are the sizes of a start, a length, a base and a
        part index: `0x4480` stands for 4, 4, 8 and 0 bytes. Other formats follow from the version:
        0 has no part index and stores all items in the file, and only 2 has four bytes for the id
        of an item.

        Raises:
            KeyError: A size is one that no writer uses.
            struct.error: The box is cut.
        """
        version = iloc[0]
        (sizes,) = struct.unpack_from(">H", iloc, VERSION_AND_FLAGS_BYTES)
        start_bytes = sizes >> 12
        length_bytes = sizes >> 8 & 0xF
        base_bytes = sizes >> 4 & 0xF
        part_index_bytes = sizes & 0xF

        start_format = _NUMBER_FORMATS[start_bytes]
        length_format = _LENGTH_FORMATS[length_bytes]
        base_format = _NUMBER_FORMATS[base_bytes]
        part_index_format = ""
        stored_in_format = ""
        if version > 0:
            part_index_format = _NUMBER_FORMATS[part_index_bytes]
            stored_in_format = "H"
        item_format = "H"
        if version == 2:
            item_format = "I"
        return cls(
            start=start_format,
            length=length_format,
            base=base_format,
            part_index=part_index_format,
            number=item_format,
            stored_in=stored_in_format,
        )


def _read_location(numbers: "_NumberReader", formats: _LocationFormats) -> _Location:
    """Read where the content of the next item of a box `iloc` is stored.

    It is in one or more parts, whose starts are counted from a base of the item.

    Args:
        numbers: Reads the box; its position is after the item's id.
        formats: How many bytes the numbers of the box take.
    """
    stored_in = numbers.next(formats.stored_in) & 0xF
    numbers.next("H")  # the file that holds it, which is always this one
    base = numbers.next(formats.base)
    parts = []
    part_count = numbers.next("H")
    for _ in range(part_count):
        numbers.next(formats.part_index)  # nobody uses it
        start = base + numbers.next(formats.start)
        length = numbers.next(formats.length)
        parts.append(_ItemPart(start, length))
    return _Location(stored_in, parts)


_NUMBER_FORMATS = {0: "", 4: "I", 8: "Q"}
"""The formats in `struct` of numbers, by how many bytes they take."""

# The same for the length of a range. With none, a small file could have billions of ranges.
_LENGTH_FORMATS = {4: "I", 8: "Q"}


class _NumberReader:
    """Reads one number after the other from the content of a box."""

    def __init__(self, content: memoryview, position: int) -> None:
        """Start at a position of the content."""
        self._content = content
        self._position = position

    def next(self, number_format: str) -> int:
        """Read the next number in a format of `struct`; 0 for the empty format, which takes none.

        Raises:
            struct.error: The content ends before it.
        """
        if not number_format:
            return 0
        number: int = struct.unpack_from(f">{number_format}", self._content, self._position)[0]
        self._position += struct.calcsize(f">{number_format}")
        return number
