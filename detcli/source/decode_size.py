"""The size that a picture file declares, read before a decoder allocates memory for it.

There is a reader for each format that OpenCV decodes. Where a file may say its size in several
places, the largest counts: a small decoy must not hide a huge picture.
"""

import re
import struct
from collections.abc import Callable

from detcli.errors import DecodeError
from detcli.source import decode_avif, decode_jpeg

Size = tuple[int, int]
"""Height and width in pixels."""

_BLANK = r"(?:\s|#[^\n\r]*[\n\r])*"  # between the fields of PNM and related formats
_WIDTH, _HEIGHT = r"(?P<width>\d{1,10})(?!\d)", r"(?P<height>\d{1,10})(?!\d)"

_PNG = b"\x89PNG\r\n\x1a\n"
_MAX_HEADER = 65536  # bytes of text
_MAX_FIELDS = 65535  # of a TIFF directory; libtiff reads no more of a BigTIFF either

# Of JPEG 2000. OpenCV reads up to four components, and a tile takes some 10 KiB.
_MAX_COMPONENTS, _FEW_TILES, _TILE_AREA = 8, 4096, 4096


def is_known(data: bytes) -> bool:
    """Whether data begin as a format whose size can be found."""
    return data[4:8] == b"ftyp" or data.startswith(tuple(_READERS))


def declared_size(data: bytes) -> Size | None:
    """Height and width that a picture file declares; None for unknown formats and cut headers.

    Examples:
        >>> declared_size(b"P6 640 480 255 ...")
        (480, 640)
    """
    readers = (read for start, read in _READERS.items() if data.startswith(start))
    reader = _avif if data[4:8] == b"ftyp" else next(readers, None)
    try:
        return reader(data) if reader else None
    except (struct.error, ValueError):  # cut short
        return None


def check_complete(data: bytes) -> None:
    """Require that the chunks of a PNG are there; other formats are left to their decoders.

    Raises:
        DecodeError: A PNG file ends within a chunk, for which OpenCV would allocate up to 4 GiB.
    """
    if not data.startswith(_PNG):
        return
    position = len(_PNG)
    while position + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, position)
        position += 12 + length
        if position > len(data):
            missing = position - len(data)
            raise DecodeError(
                f"a damaged PNG: at least {missing} bytes are missing", "fetch it again"
            )
        if kind == b"IEND":
            break


def _jpeg(data: bytes) -> Size | None:
    header = decode_jpeg.read_header(data)
    return header.size if header else None


def _fixed(form: str, offset: int) -> Callable[[bytes], Size]:
    """A reader of formats with width and height at a fixed offset."""

    def read(data: bytes) -> Size:
        width, height = struct.unpack_from(form, data, offset)
        return abs(height), abs(width)

    return read


def _text(pattern: str) -> Callable[[bytes], Size | None]:
    """A reader of formats with a textual header."""
    header = re.compile(pattern.encode(), re.DOTALL)

    def read(data: bytes) -> Size | None:
        found = header.match(data[:_MAX_HEADER])  # each blank takes memory until it matches
        return (int(found["height"]), int(found["width"])) if found else None

    return read


def _png(data: bytes) -> Size | None:
    return _fixed(">II", 16)(data) if data[8:16] == b"\0\0\0\x0dIHDR" else None


def _bmp(data: bytes) -> Size:
    (length,) = struct.unpack_from("<I", data, 14)
    return _fixed("<HH" if length == 12 else "<ii", 18)(data)


def _webp(data: bytes) -> Size | None:
    match data[12:16]:
        case b"VP8 ":
            width, height = struct.unpack_from("<HH", data, 26)
            return height & 0x3FFF, width & 0x3FFF
        case b"VP8L":
            (bits,) = struct.unpack_from("<I", data, 21)
            return (bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1
        case b"VP8X":
            width, height = data[24:27], data[27:30]
            return int.from_bytes(height, "little") + 1, int.from_bytes(width, "little") + 1
    return None


def _tiff(data: bytes) -> Size | None:
    """The first directory of a TIFF or a BigTIFF file; the tiles may be larger than the picture."""
    order, big = "<" if data.startswith(b"I") else ">", 43 in data[2:4]
    (start,) = struct.unpack_from(f"{order}Q" if big else f"{order}I", data, 8 if big else 4)
    (count,) = struct.unpack_from(f"{order}Q" if big else f"{order}H", data, start)
    if count > _MAX_FIELDS:
        return None
    start, step, value = (start + 8, 20, 12) if big else (start + 2, 12, 8)
    sides = {0x100: [0], 0x101: [0], 0x142: [0], 0x143: [0]}
    for field in range(start, min(start + count * step, len(data)), step):
        tag, kind = struct.unpack_from(f"{order}HH", data, field)
        if tag in sides:
            form = {3: "H", 4: "I", 16: "Q" if big else ""}.get(kind, "")
            if not form:  # a type that no writer uses, or a value elsewhere in the file
                return None
            sides[tag] += struct.unpack_from(f"{order}{form}", data, field + value)
    return max(sides[0x101] + sides[0x143]), max(sides[0x100] + sides[0x142])


def _jpeg2000(data: bytes) -> Size | None:
    """The largest codestream, since a box before the first may hold anything.

    None if there are more tiles or components than any writer makes: each takes kilobytes.
    """
    sizes: list[Size] = []
    for found in re.finditer(rb"\xff\x4f\xff\x51", data):
        start = found.start()
        (length,) = struct.unpack_from(">H", data, start + 4)
        right, bottom, left, top = struct.unpack_from(">IIII", data, start + 8)
        wide, high, x, y = struct.unpack_from(">IIII", data, start + 24)
        (components,) = struct.unpack_from(">H", data, start + 40)
        if length != 38 + 3 * components:  # these bytes are pixels
            continue
        # In a damaged file, the start may lie behind the end.
        height, width = max(bottom - top, 0), max(right - left, 0)
        tiles = -(-(right - x) // max(wide, 1)) * -(-(bottom - y) // max(high, 1))
        if components > _MAX_COMPONENTS or tiles > max(_FEW_TILES, height * width // _TILE_AREA):
            return None
        sizes.append((height, width))
    return _largest(sizes)


def _avif(data: bytes) -> Size | None:
    return _largest([*decode_avif.sizes(data)])


def _pam(data: bytes) -> Size | None:
    header, end, _ = data[:_MAX_HEADER].partition(b"ENDHDR")
    if not end:
        return None
    sides = [
        max(map(int, re.findall(rb"\s%b\s+(\d{1,10})(?!\d)" % name, header)), default=0)
        for name in (b"HEIGHT", b"WIDTH")
    ]
    return (sides[0], sides[1]) if all(sides) else None


def _radiance(data: bytes) -> Size | None:
    found = re.findall(rb"\n-Y\s*(\d{1,10})\s*\+X\s*(\d{1,10})(?!\d)", data)
    return _largest([(int(height), int(width)) for height, width in found])


def _largest(sizes: list[Size]) -> Size | None:
    return max(sizes, key=lambda size: size[0] * size[1], default=None)


_READERS: dict[bytes, Callable[[bytes], Size | None]] = {
    decode_jpeg.START: _jpeg,
    _PNG: _png,
    b"GIF8": _fixed("<HH", 6),
    b"BM": _bmp,
    b"RIFF": _webp,
    b"\x59\xa6\x6a\x95": _fixed(">II", 4),  # Sun raster
    **dict.fromkeys((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"), _tiff),
    **dict.fromkeys((b"\0\0\0\x0cjP  \r\n\x87\n", b"\xff\x4f\xff\x51"), _jpeg2000),
    b"P7": _pam,
    # OpenCV reads a number in a PFM up to a blank, whatever follows its digits.
    **dict.fromkeys((b"PF", b"Pf"), _text(rf"..\s+{_WIDTH}\s+{_HEIGHT}\s")),
    b"P": _text(rf"P[1-6]{_BLANK}{_WIDTH}.{_BLANK}{_HEIGHT}"),  # PNM
    b"#?R": _radiance,
}
