"""The fields of a TIFF, in which it says what its pixels are; EXIF is laid out in the same way."""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from detcli.core.errors import DecodeError
from detcli.data.geometry import Size
from detcli.source.limits import RESAVE

CLASSIC = frozenset({b"II*\0", b"MM\0*"})
BIG = frozenset({b"II+\0", b"MM\0+"})

MAX_FIELDS = 4096
"""Fields of a directory; writers make a few dozen."""

WIDTH, HEIGHT = 256, 257  # tags of fields

BYTE, SHORT, LONG, LONG8 = 1, 3, 4, 16  # types of values
VALUE_FORMATS = {BYTE: "B", SHORT: "H", LONG: "I", LONG8: "Q"}


class TiffField(NamedTuple):
    """A field of a classic TIFF, as it is stored."""

    tag: int
    value_type: int
    value_count: int
    value: int  # the last four bytes as a number: the value, or the position of longer ones


def tiff_fields(tiff: bytes, directory: int | None = None) -> Iterator[TiffField]:
    """Yield the fields of a directory of a classic TIFF, as they are stored.

    EXIF is laid out like that. A field takes 12 bytes: its tag and type in two bytes each, then the
    number of its values and the value itself, or its position, in four bytes each.

    Args:
        tiff: The whole file.
        directory: The position of the directory; None for the position of the first one.

    Raises:
        struct.error: The data end before the fields do.
    """
    order = _byte_order(tiff)
    start = directory
    if start is None:
        (start,) = struct.unpack_from(f"{order}I", tiff, 4)
    (count,) = struct.unpack_from(f"{order}H", tiff, start)
    if start == 0:  # no directory
        return
    read_field = struct.Struct(f"{order}HHII").unpack_from
    for index in range(count):
        yield TiffField._make(read_field(tiff, start + 2 + 12 * index))


def _byte_order(tiff: bytes) -> str:
    """Return the order of bytes of a TIFF, as `struct` writes it: < or >."""
    if tiff.startswith(b"I"):
        return "<"
    return ">"


class StoredValues(NamedTuple):
    """The values of a field, and where they are in the file."""

    value_type: int
    value_count: int
    position: int


class TiffLayout(NamedTuple):
    """How a directory, a list of fields, is stored in a classic TIFF or in a BigTIFF.

    A BigTIFF has offsets and counts of eight bytes in place of four and two.
    """

    byte_order: str  # < or >, as in `struct`
    offset_format: str  # of an offset in the file
    count_format: str  # of the number of fields
    first_position: int  # where the offset of the first directory is
    field_format: str  # with the byte order: tag, type, number of values, value or offset
    field_bytes: int

    @classmethod
    def of_file(cls, tiff: bytes) -> "TiffLayout":
        """Choose the layout by the first four bytes of a file."""
        order = _byte_order(tiff)
        if tiff[:4] in BIG:
            return cls(
                order,
                offset_format="Q",
                count_format="Q",
                first_position=8,
                field_format=f"{order}HHQQ",
                field_bytes=20,
            )
        return cls(
            order,
            offset_format="I",
            count_format="H",
            first_position=4,
            field_format=f"{order}HHII",
            field_bytes=12,
        )


class Directory:
    """The fields of a page of a TIFF: they describe it and say where its pixels are.

    Attributes:
        data: The whole file.
        layout: How its directories are stored.
        fields: The values of each field, by tag; empty if there is no such page.

    Raises:
        DecodeError: It is cut, or has more fields than any writer makes.
    """

    def __init__(self, data: bytes, page: int = 0) -> None:
        """Read the fields of a page; pages are counted from 0."""
        self.data = data
        self.layout = TiffLayout.of_file(data)
        self.fields: dict[int, StoredValues] = {}
        try:
            self._read_page(page)
        except (struct.error, OverflowError):  # an offset beyond any file
            raise damaged_tiff() from None

    def _read_page(self, page: int) -> None:
        """Read all fields of a page, counted from 0; none if the file has fewer pages."""
        start = self._start_of_page(page)
        if start == 0:
            return
        layout = self.layout
        field_count = self._unpack(layout.count_format, start)
        if field_count > MAX_FIELDS:
            raise DecodeError(
                f"a TIFF with {field_count} fields, more than any writer makes", RESAVE
            )
        first_field = start + struct.calcsize(layout.count_format)
        for index in range(field_count):
            self._read_field(first_field + index * layout.field_bytes)

    def _start_of_page(self, page: int) -> int:
        """Return the position of the directory of a page, counted from 0; 0 if there is none.

        A directory begins with the number of its fields. After them is the position of the
        directory of the next page, or 0. The first one's position is in the header of the file.
        """
        layout = self.layout
        count_bytes = struct.calcsize(layout.count_format)
        start = self._unpack(layout.offset_format, layout.first_position)
        for _ in range(page):
            if start == 0:
                break
            field_count = self._unpack(layout.count_format, start)
            end_of_fields = start + count_bytes + field_count * layout.field_bytes
            start = self._unpack(layout.offset_format, end_of_fields)
        return start

    def _read_field(self, position: int) -> None:
        """Read the field at a position of the file, and add it to `fields`.

        A field ends with a number. If its values fit into the bytes of that number, they are stored
        there themselves; if not, the number is their position in the file.
        """
        layout = self.layout
        tag, value_type, value_count, offset = struct.unpack_from(
            layout.field_format, self.data, position
        )
        value_bytes = value_count * struct.calcsize(VALUE_FORMATS.get(value_type, "B"))
        offset_bytes = struct.calcsize(layout.offset_format)
        if value_bytes > offset_bytes:
            value_position = offset
        else:
            value_position = position + layout.field_bytes - offset_bytes
        values = StoredValues(value_type, value_count, value_position)
        # libtiff takes the first of the fields with the same tag
        self.fields.setdefault(tag, values)

    def _unpack(self, number_format: str, position: int) -> int:
        """Read a number in a format of `struct` at a position of the file."""
        values: tuple[int] = struct.unpack_from(
            self.layout.byte_order + number_format, self.data, position
        )
        return values[0]

    def values(self, tag: int, limit: int) -> tuple[int, ...]:
        """Read the integers of a field, at most `limit` of them; none if there is no such field.

        Raises:
            DecodeError: They are not integers, or beyond the end of the file.
        """
        if tag not in self.fields:
            return ()
        stored = self.fields[tag]
        if stored.value_type not in VALUE_FORMATS:
            raise damaged_tiff()
        count = min(stored.value_count, limit)
        value_format = f"{self.layout.byte_order}{count}{VALUE_FORMATS[stored.value_type]}"
        try:
            return struct.unpack_from(value_format, self.data, stored.position)
        except (struct.error, OverflowError):  # an offset beyond any file
            raise damaged_tiff() from None

    def value(self, tag: int, default: int) -> int:
        """Read the first integer of a field; the default if there is no such field."""
        values = self.values(tag, 1)
        if not values:
            return default
        return values[0]

    @property
    def size(self) -> Size:
        """Height and width of the image as it is stored."""
        return (self.value(HEIGHT, 0), self.value(WIDTH, 0))


def damaged_tiff() -> DecodeError:
    """Make the error for a TIFF that OpenCV does not decode, or whose fields are cut."""
    return DecodeError("a damaged TIFF, or one of a kind that OpenCV cannot read", RESAVE)
