"""TIFF: its fields, its forms, and how OpenCV is made to read each rightly.

OpenCV has two ways. For colours it asks libtiff, which gives 8 bits and knows every photometric
interpretation, but multiplies colours by an alpha that is stored apart from them. Values of 16 bits
and more it takes as they are stored, but of separate planes only the first. So a file is read in
one of the ways of `TiffWay`, if need be with some of its fields changed in memory.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from detcli.core.errors import DecodeError
from detcli.core.opencv import cv2
from detcli.data.geometry import Pixels, Size
from detcli.source.limits import RESAVE, check_size, require_bytes
from detcli.source.tiff_forms import (
    FLOAT,
    MIN_IS_BLACK,
    MIN_IS_WHITE,
    RGB,
    SIGNED,
    UNSIGNED,
    TiffForm,
    TiffWay,
    way_of,
)
from detcli.source.values import to_colours, to_eight_bits, turn_upright

CLASSIC = frozenset({b"II*\0", b"MM\0*"})
BIG = frozenset({b"II+\0", b"MM\0+"})

MAX_FIELDS = 4096
"""Of a directory; writers make some dozens."""

MAX_TILE_PIXELS = 1 << 20
"""Of a tile that is larger than the image."""

MAX_PARTS = 1 << 20
"""Strips or tiles of an image whose planes are read one by one."""

# The tags of fields.
_NEW_SUBFILE_TYPE, _THUMBNAIL_OR_MASK = 254, 0b101
_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _PHOTOMETRIC = 256, 257, 258, 259, 262
_STRIP_OFFSETS, _SAMPLES, _STRIP_BYTES, _PLANAR = 273, 277, 279, 284
_TILE_WIDTH, _TILE_HEIGHT, _TILE_OFFSETS, _TILE_BYTES = 322, 323, 324, 325
_ROWS_OF_STRIP, _PREDICTOR, _EXTRA_SAMPLES, _SAMPLE_FORMAT = 278, 317, 338, 339
_FILL_ORDER, _ORIENTATION, _PALETTE_COLOURS, _JPEG_TABLES = 266, 274, 320, 347
_PARTS = (_STRIP_OFFSETS, _STRIP_BYTES, _TILE_OFFSETS, _TILE_BYTES)
_SAME_IN_PLANES = (
    _WIDTH,
    _HEIGHT,
    _COMPRESSION,
    _FILL_ORDER,
    _ORIENTATION,
    _ROWS_OF_STRIP,
    _PREDICTOR,
    _TILE_WIDTH,
    _TILE_HEIGHT,
)
_UNCOMPRESSED = 1

_ASSOCIATED_ALPHA = 1  # colours are multiplied by it already, so that libtiff leaves them
_TURNED = range(2, 9)  # orientations

# Bytes of a value by its type: BYTE, SHORT, LONG, LONG8.
_VALUE_FORMATS = {1: "B", 3: "H", 4: "I", 16: "Q"}


def tiff_fields(tiff: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Tag, type, length and value of the fields in metadata; a struct.error if they are cut."""
    order = _byte_order(tiff)
    (start,) = struct.unpack_from(f"{order}I", tiff, 4)
    (count,) = struct.unpack_from(f"{order}H", tiff, start)
    if start == 0:  # no directory
        return
    for index in range(count):
        yield struct.unpack_from(f"{order}HHII", tiff, start + 2 + 12 * index)


def _byte_order(tiff: bytes) -> str:
    """The order of bytes that a file begins with, as `struct` writes it."""
    if tiff.startswith(b"I"):
        return "<"
    return ">"


class _Layout(NamedTuple):
    """How the numbers of a directory are written, in a classic TIFF or a BigTIFF."""

    order: str  # < or >, as in `struct`
    offset: str  # the format of an offset in the file
    count_format: str  # of the number of fields
    first_position: int  # where the offset of the first directory is
    field: str
    field_bytes: int

    @classmethod
    def of(cls, tiff: bytes) -> "_Layout":
        order = _byte_order(tiff)
        if tiff[:4] in BIG:
            return cls(
                order,
                offset="Q",
                count_format="Q",
                first_position=8,
                field=f"{order}HHQQ",
                field_bytes=20,
            )
        return cls(
            order,
            offset="I",
            count_format="H",
            first_position=4,
            field=f"{order}HHII",
            field_bytes=12,
        )


class Directory:
    """The fields of a page; none if there is no such page.

    Raises:
        DecodeError: It is cut, or has more fields than any writer makes.
    """

    def __init__(self, data: bytes, page: int = 0) -> None:
        self.data = data
        self.layout = _Layout.of(data)
        self.fields: dict[int, tuple[int, int, int]] = {}  # type, length, and where the value is
        try:
            self._read(page)
        except (struct.error, OverflowError):  # an offset beyond any file
            raise damaged_tiff() from None

    def _read(self, page: int) -> None:
        layout = self.layout
        start = self._unpack(layout.offset, layout.first_position)
        for _ in range(page):
            if start == 0:
                return
            count = self._unpack(layout.count_format, start)
            next_position = (
                start + struct.calcsize(layout.count_format) + count * layout.field_bytes
            )
            start = self._unpack(layout.offset, next_position)
        if start == 0:
            return
        count = self._unpack(layout.count_format, start)
        if count > MAX_FIELDS:
            raise DecodeError(f"a TIFF with {count} fields, more than any writer makes", RESAVE)
        first_field = start + struct.calcsize(layout.count_format)
        for index in range(count):
            self._read_field(first_field + index * layout.field_bytes)

    def _read_field(self, position: int) -> None:
        layout = self.layout
        tag, kind, length, value = struct.unpack_from(layout.field, self.data, position)
        inline_bytes = struct.calcsize(layout.offset)
        value_bytes = length * struct.calcsize(_VALUE_FORMATS.get(kind, "B"))
        if value_bytes > inline_bytes:
            value_position = value
        else:
            value_position = position + layout.field_bytes - inline_bytes
        self.fields.setdefault(tag, (kind, length, value_position))  # libtiff takes the first

    def _unpack(self, number_format: str, position: int) -> int:
        values: tuple[int] = struct.unpack_from(
            self.layout.order + number_format, self.data, position
        )
        return values[0]

    def values(self, tag: int, limit: int) -> tuple[int, ...]:
        """The integers of a field, at most so many; none if it has no such field."""
        if tag not in self.fields:
            return ()
        kind, length, position = self.fields[tag]
        if kind not in _VALUE_FORMATS:
            raise damaged_tiff()
        value_format = f"{self.layout.order}{min(length, limit)}{_VALUE_FORMATS[kind]}"
        try:
            return struct.unpack_from(value_format, self.data, position)
        except (struct.error, OverflowError):  # an offset beyond any file
            raise damaged_tiff() from None

    def value(self, tag: int, default: int) -> int:
        """The first integer of a field."""
        values = self.values(tag, 1)
        if not values:
            return default
        return values[0]

    @property
    def size(self) -> Size:
        return (self.value(_HEIGHT, 0), self.value(_WIDTH, 0))


def has_second_page(data: bytes) -> bool:
    """Whether there is a page behind the first; thumbnails and masks are none."""
    try:
        directory = Directory(data, page=1)
        kind = directory.value(_NEW_SUBFILE_TYPE, 0)
    except DecodeError:  # cut
        return False
    return bool(directory.fields) and not kind & _THUMBNAIL_OR_MASK


def read_tiff(data: bytes, max_pixels: int) -> Pixels | None:
    """Decode a form that OpenCV gets wrong by itself; None if it reads the form rightly.

    Raises:
        DecodeError: The form is in no row of `FORMS`, or the file is damaged or too large.
    """
    directory = Directory(data)
    form = form_of(directory)
    check_size(directory.size, max_pixels)
    _check_tiles(directory)
    way = way_of(form)
    if way is None:
        raise _refused(form)
    _check_complete(directory, form)
    orientation = directory.value(_ORIENTATION, 1)
    is_tiled = _TILE_WIDTH in directory.fields
    if is_tiled and orientation in _TURNED:  # libtiff would mirror each tile by itself
        lying = Directory(_with_value(directory, _ORIENTATION, 1))
        return turn_upright(_read(lying, form, way), orientation)
    if way is TiffWay.COLOURS:
        return None
    return _read(directory, form, way)


def _read(directory: Directory, form: TiffForm, way: TiffWay) -> Pixels:
    """The image in blue, green and red, as OpenCV turns it."""
    if way is TiffWay.COLOURS:
        return np.asarray(_decode(directory.data, cv2.IMREAD_COLOR), np.uint8)
    if way is TiffWay.COLOURS_AS_STORED:
        as_stored = _with_value(directory, _EXTRA_SAMPLES, _ASSOCIATED_ALPHA)
        return np.asarray(_decode(as_stored, cv2.IMREAD_COLOR), np.uint8)
    if way is TiffWay.LAB:
        as_colours = _with_value(directory, _PHOTOMETRIC, RGB)
        return _colours_of_lab(_decode(as_colours, cv2.IMREAD_COLOR))
    if way is TiffWay.VALUES:
        values = _decode(directory.data, cv2.IMREAD_UNCHANGED)
    elif way is TiffWay.FIRST_PLANE:
        values = _decode(_plane(directory, 0), cv2.IMREAD_UNCHANGED)
    else:
        planes = []
        for plane in (2, 1, 0):  # blue, green, red
            planes.append(_decode(_plane(directory, plane), cv2.IMREAD_UNCHANGED))
        values = np.dstack(planes)
    return _as_colours(values, is_negative=form.photometric == MIN_IS_WHITE)


def form_of(directory: Directory) -> TiffForm:
    """The form of an image.

    Raises:
        DecodeError: Its samples differ in their kind, or fields are missing.
    """
    samples = directory.value(_SAMPLES, 1)
    bits = set(directory.values(_BITS, min(samples, MAX_FIELDS))) or {1}
    sample_formats = set(directory.values(_SAMPLE_FORMAT, min(samples, MAX_FIELDS))) or {UNSIGNED}
    photometrics = directory.values(_PHOTOMETRIC, 1)
    if not photometrics:
        raise damaged_tiff()
    if len(bits) > 1 or len(sample_formats) > 1:
        raise DecodeError("a TIFF whose samples differ in their bits, which is not read", RESAVE)
    _, width = directory.size
    tile_width = directory.value(_TILE_WIDTH, 0)
    return TiffForm(
        photometric=photometrics[0],
        bits=bits.pop(),
        sample_format=sample_formats.pop(),
        samples=samples,
        has_planes=samples > 1 and directory.value(_PLANAR, 1) == 2,
        has_cut_tiles=tile_width > 0 and width % tile_width > 0,
        compression=directory.value(_COMPRESSION, 1),
    )


def damaged_tiff() -> DecodeError:
    """The error of a file that OpenCV does not decode."""
    return DecodeError("a damaged TIFF, or one of a kind that OpenCV cannot read", RESAVE)


def _refused(form: TiffForm) -> DecodeError:
    """The error of a form that is not read, in words."""
    number = {SIGNED: " signed", FLOAT: " floating point"}.get(form.sample_format, "")
    layout = ""
    if form.has_planes:
        layout = " in separate planes"
    return DecodeError(
        f"a TIFF of a form that is not read: {form.samples}{number} samples of {form.bits} bits a "
        f"pixel{layout}, photometric interpretation {form.photometric}, "
        f"compression {form.compression}",
        "save it as PNG, or as TIFF with 8 or 16 bits a value in grey or RGB",
    )


def _check_tiles(directory: Directory) -> None:
    """Refuse a tile that is much larger than the image."""
    height, width = directory.size
    tile_pixels = directory.value(_TILE_WIDTH, 0) * directory.value(_TILE_HEIGHT, 0)
    if tile_pixels > max(MAX_TILE_PIXELS, 4 * height * width):
        raise DecodeError(f"a TIFF with tiles of {tile_pixels} pixels, larger than itself", RESAVE)


def _check_complete(directory: Directory, form: TiffForm) -> None:
    """Refuse a file that ends before its pixels and palette do.

    Without its end, libtiff shows some as if nothing were missing: a palette is black then, and so
    are all planes but the first.
    """
    end = 0
    for tag in (_PALETTE_COLOURS, _JPEG_TABLES):
        if tag in directory.fields:
            kind, length, position = directory.fields[tag]
            bytes_per_value = struct.calcsize(_VALUE_FORMATS.get(kind, "B"))
            end = max(end, position + length * bytes_per_value)

    for offsets_tag, bytes_tag in ((_STRIP_OFFSETS, _STRIP_BYTES), (_TILE_OFFSETS, _TILE_BYTES)):
        offsets = directory.values(offsets_tag, MAX_PARTS)
        lengths = directory.values(bytes_tag, MAX_PARTS)
        if offsets_tag == _STRIP_OFFSETS and form.compression == _UNCOMPRESSED:
            lengths = _without_padding(directory, form, lengths)
        for offset, length in zip(offsets, lengths, strict=False):
            end = max(end, offset + length)
    require_bytes(directory.data, end, "TIFF")


def _without_padding(
    directory: Directory, form: TiffForm, lengths: tuple[int, ...]
) -> tuple[int, ...]:
    """The bytes of each uncompressed strip that hold pixels: some writers say that it has more."""
    height, width = directory.size
    rows_of_strip = min(directory.value(_ROWS_OF_STRIP, height), height)
    if rows_of_strip == 0:
        return lengths
    samples_in_row = width
    if not form.has_planes:
        samples_in_row *= form.samples
    bytes_of_row = -(-samples_in_row * form.bits // 8)
    strips_of_plane = -(-height // rows_of_strip)
    shortened = []
    for index, length in enumerate(lengths):
        first_row = index % strips_of_plane * rows_of_strip
        row_count = min(rows_of_strip, height - first_row)
        shortened.append(min(length, row_count * bytes_of_row))
    return tuple(shortened)


def _decode(data: bytes, flags: int) -> np.ndarray:
    image = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    if image is None:
        raise damaged_tiff()
    return np.asarray(image)


def _with_value(directory: Directory, tag: int, value: int) -> bytes:
    """The file with another first value of a field; unchanged if it has no such field."""
    if not directory.values(tag, 1):
        return directory.data
    kind, _, position = directory.fields[tag]
    changed = bytearray(directory.data)
    struct.pack_into(directory.layout.order + _VALUE_FORMATS[kind], changed, position, value)
    return bytes(changed)


def _plane(directory: Directory, plane: int) -> bytes:
    """The file with another directory, which has one plane alone, as grey."""
    fields = {
        _BITS: directory.values(_BITS, 1),
        _PHOTOMETRIC: (MIN_IS_BLACK,),
        _SAMPLES: (1,),
        _PLANAR: (1,),
        _SAMPLE_FORMAT: (directory.value(_SAMPLE_FORMAT, UNSIGNED),),
    }
    for tag in _SAME_IN_PLANES:
        if tag in directory.fields:
            fields[tag] = directory.values(tag, 1)

    samples = directory.value(_SAMPLES, 1)
    for tag in _PARTS:
        if tag in directory.fields:
            of_all_planes = directory.values(tag, MAX_PARTS)
            count = len(of_all_planes) // samples
            fields[tag] = of_all_planes[plane * count : (plane + 1) * count]
    return _with_fields(directory, fields)


def _with_fields(directory: Directory, fields: dict[int, tuple[int, ...]]) -> bytes:
    """The file with a directory at its end that has these fields, and the same JPEG tables."""
    layout = directory.layout
    value_format = layout.offset  # all as LONG or LONG8
    value_type = 4
    if value_format == "Q":
        value_type = 16
    file = bytearray(directory.data)
    file += bytes(-len(file) % 16)

    entries: dict[int, bytes] = {}
    for tag, values in fields.items():
        packed = struct.pack(f"{layout.order}{len(values)}{value_format}", *values)
        position_or_value = packed
        if len(values) != 1:
            position_or_value = struct.pack(layout.order + value_format, len(file))
            file += packed
        entry = struct.pack(layout.field[:-1], tag, value_type, len(values))
        entries[tag] = entry + position_or_value

    if _JPEG_TABLES in directory.fields:  # which stay where they are
        kind, length, position = directory.fields[_JPEG_TABLES]
        entries[_JPEG_TABLES] = struct.pack(layout.field, _JPEG_TABLES, kind, length, position)

    start = struct.pack(layout.order + layout.offset, len(file))
    file[layout.first_position : layout.first_position + len(start)] = start
    file += struct.pack(layout.order + layout.count_format, len(entries))
    for _, entry in sorted(entries.items()):
        file += entry
    file += bytes(struct.calcsize(layout.offset))  # no further directory
    return bytes(file)


def _colours_of_lab(image: np.ndarray) -> Pixels:
    """Colours of lightness and two axes with a sign, which come in the order b, a, L."""
    lab = np.ascontiguousarray(image[..., ::-1])
    lab[..., 1:] += np.uint8(128)  # OpenCV has no sign there
    return np.asarray(cv2.cvtColor(lab, cv2.COLOR_Lab2BGR), np.uint8)


def _as_colours(values: np.ndarray, *, is_negative: bool) -> Pixels:
    """Values in 8 bits, in blue, green and red; in a negative 0 is white."""
    if values.dtype == np.uint16:
        values = (values >> 8).astype(np.uint8)
    image = to_eight_bits(values)
    if is_negative:
        image = np.asarray(255 - image, np.uint8)
    return to_colours(image)
