"""AVIF: how an image is to be turned and mirrored, which OpenCV leaves to others."""

import struct
from collections.abc import Iterator

import numpy as np

from detcli.core.errors import DecodeError
from detcli.core.opencv import cv2
from detcli.data.geometry import Pixels
from detcli.source.limits import RESAVE

_SEQUENCE = b"avis"  # the brand of a file with several frames
_LARGE_INDEX_FLAG = 1  # of the box `ipma`, whose indices take two bytes each then


def is_sequence(data: bytes) -> bool:
    """Whether the brands in the first box of a file name a sequence of frames."""
    end_of_brands = data[3]  # the last byte of the length of the first box
    return _SEQUENCE in data[8:end_of_brands]


def turn_avif(image: Pixels, data: bytes) -> Pixels:
    """Turn and then mirror an image as libavif tells viewers to.

    Raises:
        DecodeError: The boxes with its orientation are damaged.
    """
    if data[8:12] == _SEQUENCE:  # whose first frame OpenCV decodes
        return image
    flip = None
    try:
        properties = _properties_of_primary_item(data)
        quarter_turns = properties.get(b"irot", b"\0")[0] & 3  # to the left
        if b"imir" in properties:
            flip = properties[b"imir"][0] & 1
    except (IndexError, KeyError, struct.error):
        raise DecodeError("a damaged AVIF: its orientation cannot be read", RESAVE) from None
    if quarter_turns:
        rotation = 3 - quarter_turns  # as `cv2.rotate` numbers it
        image = np.asarray(cv2.rotate(image, rotation), np.uint8)
    if flip is not None:
        image = np.asarray(cv2.flip(image, flip), np.uint8)
    return image


def _properties_of_primary_item(data: bytes) -> dict[bytes, memoryview]:
    """The contents of the properties of the primary item, by their kinds."""
    meta = dict(_boxes(_content_of_meta(data)[4:]))
    primary_item = _primary_item(meta[b"pitm"])
    property_boxes = list(_boxes(meta[b"iprp"]))
    all_properties = list(_boxes(dict(property_boxes)[b"ipco"]))

    properties: dict[bytes, memoryview] = {}
    for box_kind, content in property_boxes:
        if box_kind != b"ipma":
            continue
        for item, indices in _associations(content):
            if item != primary_item:
                continue
            for index in indices:
                if index == 0:  # which stands for no property
                    continue
                kind, value = all_properties[index - 1]
                properties.setdefault(kind, value)  # the first of a kind counts
    return properties


def _content_of_meta(data: bytes) -> memoryview:
    for kind, content in _boxes(memoryview(data)):
        if kind == b"meta":
            return content
    raise KeyError("meta")


def _primary_item(pitm: memoryview) -> int:
    """The number of the primary item, by the content of the box that says it."""
    version = pitm[0]
    number_format = ">I" if version else ">H"
    item: int = struct.unpack_from(number_format, pitm, 4)[0]
    return item


def _boxes(data: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    """Kind and content of the boxes of an AVIF file, or of those in a box."""
    while data:
        size, kind = struct.unpack_from(">I4s", data)
        start = 8
        if size == 1:
            (size,) = struct.unpack_from(">Q", data, 8)
            start = 16
        end = len(data)
        if size:
            end = max(size, start)
        yield kind, data[start:end]
        data = data[end:]


def _associations(ipma: memoryview) -> Iterator[tuple[int, list[int]]]:
    """Items, and the indices of their properties, which count from 1."""
    version = ipma[0]
    entry_format = ">IB" if version else ">HB"  # the item, and how many properties it has
    index_format, index_bytes, index_mask = "B", 1, 0x7F  # the highest bit is a flag
    if ipma[3] & _LARGE_INDEX_FLAG:
        index_format, index_bytes, index_mask = "H", 2, 0x7FFF
    (item_count,) = struct.unpack_from(">I", ipma, 4)
    position = 8
    for _ in range(item_count):
        item, index_count = struct.unpack_from(entry_format, ipma, position)
        position += struct.calcsize(entry_format)
        numbers = struct.unpack_from(f">{index_count}{index_format}", ipma, position)
        position += index_count * index_bytes
        yield item, [number & index_mask for number in numbers]
