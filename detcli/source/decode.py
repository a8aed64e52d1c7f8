"""Decoding: from the bytes of a picture file to a picture, upright and in colour.

Regular JPEGs are decoded by simplejpeg: the pixels of cv2.imdecode without its copy, and at reduced
scale if asked. Damage, unusual EXIF segments, colour spaces other than grey, YCbCr and RGB, and all
other formats are left to OpenCV, which refuses what is too large before it allocates memory.
"""

import contextlib
import re
import struct
from collections.abc import Iterator
from dataclasses import field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from detcli.config.config import Inputs
from detcli.core import frozen
from detcli.core.errors import DecodeError, SourceError, loading
from detcli.core.opencv import PIXEL_LIMIT, cv2, pixel_limit
from detcli.core.text import pluralize
from detcli.data.geometry import Allocate, Image, Letterbox, Picture, Size, new_image
from detcli.source.cut_jpeg import check_cut, describe_cut, without_room
from detcli.source.forms import read_odd_form
from detcli.source.gif import count_frames
from detcli.source.limits import LARGER, RESAVE, check_size
from detcli.source.pnm import has_second_picture
from detcli.source.segments import (
    APP1,
    END_MARKER,
    FRAMES,
    JPEG,
    SCAN,
    SCAN_MARKER,
    has_end,
    segments,
)
from detcli.source.tiff import BIG, CLASSIC, damaged_tiff, has_second_page, tiff_fields
from detcli.source.values import to_colours, to_eight_bits, turn_upright
from detcli.storage.files import LFS_HINT, LFS_REASON, is_lfs_pointer

# The picture that is part of detcli.
BUILT_IN = Path(__file__).parents[1] / "pictures" / "street.jpg"
TIMEOUT_S = Inputs().input_timeout  # default time limit for reading and decoding one input


@frozen
class DecodeOptions:
    """How pictures are decoded."""

    inputs: Inputs = field(default_factory=Inputs)  # with the limits of size and time
    # Height and width of a network's input. A JPEG that is at least twice as large is decoded at a
    # half, a quarter or an eighth of its size, which is faster.
    fast_for: Size | None = None
    allocate: Allocate = new_image  # makes the arrays that JPEGs are decoded into
    keep: bool = False  # whether pictures of files keep what these held

    def __post_init__(self) -> None:
        if self.inputs.strict:
            remedy = 'pip install "detcli[jpeg]"; or leave out --strict'
            with loading("simplejpeg, which tells --strict of damage,", remedy):
                import simplejpeg  # noqa: F401

    @property
    def max_bytes(self) -> int:
        """More than any format needs for a picture of the maximum size and its metadata."""
        return 8 * self.inputs.max_pixels + 2**24


DEFAULTS = DecodeOptions()

# Of a small JPEG 2000 picture, and pixels of each in a large one; a tile takes some 10 KiB.
_MAX_TILES, _TILE_AREA = 4096, 4096
_PNG, _CODESTREAM = b"\x89PNG", b"\xff\x4f\xff\x51"
_FORMATS = {
    JPEG: "JPEG",
    _PNG: "PNG",
    b"GIF8": "GIF",
    b"BM": "BMP",
    b"RIFF": "WebP",
    b"\x59\xa6\x6a\x95": "a Sun raster",
    b"#?R": "HDR",
    **dict.fromkeys(CLASSIC | BIG, "TIFF"),
    **dict.fromkeys((b"\0\0\0\x0cjP  ", _CODESTREAM), "JPEG 2000"),
    **dict.fromkeys((b"P1", b"P2", b"P3", b"P4", b"P5", b"P6", b"P7", b"PF", b"Pf"), "PNM"),
}
"""How files begin that are decoded, but for AVIF."""

# Errors of libjpeg-turbo for sound files that are left to OpenCV.
_NO_DAMAGE = ("tjDecompressHeader3(): Could not determine subsampling", "Unknown Adobe color")
_EXIF = b"Exif\0\0"

_ORIENTATION, _LONG = 0x112, 4  # a field of EXIF, and a type that it may have instead of SHORT
_AS_LONG = struct.pack(">HHI", _ORIENTATION, _LONG, 1)

_FLOATS = (b"PF", b"Pf", b"#?R")  # how formats begin that hold floating point numbers alone
_SCALES = (8, 4, 2)  # those with vector code in libjpeg-turbo

ONLY_FIRST = "only its first frame or page is used; magick FILE NEW.png makes a file of each"

MAX_SCANS = 500  # of a progressive JPEG; encoders make ten or so


class JpegHeader(NamedTuple):
    """The header of a JPEG; height and width are stored, before the orientation is applied."""

    height: int
    width: int
    components: int
    orientation: int | None  # of EXIF, 1 to 8; None if the picture is left to OpenCV

    @property
    def size(self) -> Size:
        """Height and width of the upright picture."""
        turned = self.orientation is not None and self.orientation >= 5
        return (self.width, self.height) if turned else (self.height, self.width)


def load_bytes(data: bytes, options: DecodeOptions = DEFAULTS) -> Picture:
    """Decode the bytes of a picture file.

    The orientation is applied, grey becomes colour, transparency is dropped, and 16 bits or
    floating point numbers become 8 bits. The pixels are those of `cv2.imdecode`, where it shows
    what viewers do. A damaged picture that can be decoded has warnings.

    Raises:
        DecodeError: The picture is incomplete or too large, or not in a known format.
    """
    if not data:
        raise DecodeError("empty", "fetch or copy the file again")
    header = read_header(data) if data.startswith(JPEG) else None
    if header is not None:
        check_size(header.size, options.inputs.max_pixels)
    elif format_of(data) in {"", "JPEG"}:
        raise _not_a_picture(data)
    check_png(data, options.inputs.max_pixels)
    check_tiles(data)
    check_scans(data)
    if options.inputs.lenient and header is not None and not has_end(data):
        return _decode_cut_jpeg(data, options.inputs.max_pixels)
    damage = ""
    if header is not None:
        try:
            if picture := _decode_jpeg(data, header, options):
                return picture
        except ValueError as error:  # what libjpeg says; OpenCV decides whether it is a picture
            if not str(error).startswith(_NO_DAMAGE):
                damage = f"damaged: {str(error).removeprefix('Corrupt JPEG data: ')}"
    picture = _decode_by_opencv(data, options.inputs.max_pixels)
    if _has_more(data):
        return replace(picture, warnings=(ONLY_FIRST,))
    if damage and options.inputs.strict:
        raise DecodeError(damage, "fetch it again, or leave out --strict")
    return replace(picture, warnings=(damage,)) if damage else picture


def browser_shows(path: Path) -> bool:
    """Whether any browser shows a picture file as it is decoded here.

    All of them follow the orientation of EXIF in JPEGs, but not in other formats.
    """
    data = b""
    with contextlib.suppress(OSError):
        data = path.read_bytes()
    if data.startswith(JPEG):
        header = read_header(data)
        return header is not None and header.orientation is not None
    return format_of(data) in {"PNG", "WebP", "BMP"} and not re.search(b"eXIf|EXIF", data)


def too_slow(limit_s: float, what: str = "not read and decoded") -> SourceError:
    """The error of an input that exceeds the time limit."""
    return SourceError(
        f"{what} after {limit_s:g} s",
        "if it is meant to take that long: predict and eval wait longer with --input-timeout",
    )


def format_of(data: bytes) -> str:
    """The format that data begin as; empty for one that is not decoded."""
    known = (name for start, name in _FORMATS.items() if data.startswith(start))
    return next(known, "AVIF" if data[4:8] == b"ftyp" else "")


def _not_a_picture(data: bytes) -> DecodeError:
    begins = "not in a known picture format"
    if is_lfs_pointer(data):
        return DecodeError(LFS_REASON, LFS_HINT)
    if data.startswith(b"%PDF"):
        begins = "a PDF"
    elif data.startswith(JPEG) and data.rfind(END_MARKER) <= data.rfind(SCAN_MARKER):
        return DecodeError(
            "a damaged JPEG: cut off, its end is missing",
            "fetch it again; predict takes what is there with --lenient",
        )
    elif name := format_of(data):
        other = name == "AVIF" and not re.search(rb"avi[fs]", data[8:64])
        begins = f"starts as {'HEIC or a video' if other else name}"
    return DecodeError(
        f"not a picture, or a damaged one ({pluralize(len(data), 'byte')}, {begins})",
        "JPEG, PNG, WebP, TIFF, GIF and more are read, videos by suffix; fetch damaged files again",
    )


def check_png(data: bytes, max_pixels: int) -> None:
    """Refuse one that is too large, or ends within a chunk, for which OpenCV may allocate 4 GiB."""
    if data[12:16] == b"IHDR" and len(data) >= 24:
        width, height = struct.unpack_from(">II", data, 16)
        check_size((height, width), max_pixels)
    position = 8 if data.startswith(_PNG) else len(data)
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


def check_tiles(data: bytes) -> None:
    """Refuse a JPEG 2000 file of more tiles than any writer makes: OpenCV would allocate GiB."""
    if format_of(data) != "JPEG 2000":
        return
    for found in re.finditer(_CODESTREAM + rb".{4}(.{32})", data, re.DOTALL):
        right, bottom, left, top, wide, high, x, y = struct.unpack(">8I", found[1])
        tiles = -(-(right - x) // max(wide, 1)) * -(-(bottom - y) // max(high, 1))
        if tiles > max(_MAX_TILES, (bottom - top) * (right - left) // _TILE_AREA):
            raise DecodeError(
                f"a JPEG 2000 file with {tiles} tiles, more than any writer makes", RESAVE
            )


def check_scans(data: bytes) -> None:
    """Refuse a JPEG of hundreds of scans, each of which refines the whole picture."""
    scans = 0
    if data.startswith(JPEG) and data.count(SCAN_MARKER) > MAX_SCANS:
        with contextlib.suppress(struct.error):  # cut short, which the decoder reports
            scans = sum(marker == SCAN for marker, _ in segments(data))
    if scans > MAX_SCANS:  # else there is more behind the picture
        raise DecodeError(f"a JPEG with {scans} scans, more than the {MAX_SCANS} allowed", RESAVE)


def _decode_by_opencv(data: bytes, max_pixels: int) -> Picture:
    """Decode what OpenCV reads rightly, and what readers of ours read instead."""
    name = format_of(data)
    try:
        odd_form = read_odd_form(data, name, max_pixels)
        if odd_form is not None:
            return replace(Picture.whole(odd_form), is_plain=False)
        flags = cv2.IMREAD_COLOR
        if data.startswith(_FLOATS):
            flags = cv2.IMREAD_UNCHANGED
        elif name == "AVIF":  # whose EXIF says again what its properties do
            flags |= cv2.IMREAD_IGNORE_ORIENTATION
        image = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error as error:
        raise _refused_by_opencv(error, max_pixels) from error
    if image is None and name == "TIFF":
        raise damaged_tiff()
    if image is None:
        raise _not_a_picture(data)
    check_size((image.shape[0], image.shape[1]), max_pixels)
    shown = _as_shown(image, data)
    return replace(Picture.whole(shown), is_plain=shown is image)


def _decode_cut_jpeg(data: bytes, max_pixels: int) -> Picture:
    """Decode what is there of a JPEG without its end, with a warning that says how much it is."""
    data = without_room(data)
    check_cut(data)
    picture = _decode_by_opencv(data + END_MARKER, max_pixels)
    return replace(picture, is_plain=False, warnings=(describe_cut(data),))


def _refused_by_opencv(error: "cv2.error", max_pixels: int) -> DecodeError:
    """What OpenCV says of a picture that it does not decode."""
    reason = " ".join(str(error.err).split())
    if "CV_IO_MAX_IMAGE" not in reason:
        return DecodeError(f"cannot be decoded: {reason}", RESAVE)
    if "CV_IO_MAX_IMAGE_PIXELS" not in reason:
        return DecodeError("too large: wider or higher than OpenCV decodes", RESAVE)
    limit = pixel_limit()
    if limit < max_pixels:
        return DecodeError(
            f"too large: more than the {limit} pixels that OpenCV decodes in this process",
            f"set {PIXEL_LIMIT} before cv2 is imported",
        )
    return DecodeError(f"too large: more than the {max_pixels} pixels allowed", LARGER)


def _has_more(data: bytes) -> bool:
    """Whether there are frames or pages besides the first, in formats that say so in a header.

    What cameras attach to a JPEG does not count: mostly it is a preview or a brightness map.
    """
    name = format_of(data)
    return (
        (name == "TIFF" and has_second_page(data))
        or (name == "PNM" and has_second_picture(data))
        or (name == "GIF" and count_frames(data, 2) > 1)
        or (name == "PNG" and b"acTL" in data[: data.find(b"IDAT")])
        or (name == "WebP" and data[12:16] == b"VP8X" and bool(data[20] & 2))
        or (name == "AVIF" and b"avis" in data[8 : data[3]])
    )


def _as_shown(image: np.ndarray, data: bytes) -> Image:
    """A picture in 8 bits and upright, where OpenCV leaves it otherwise."""
    if image.dtype != np.uint8:
        return to_colours(to_eight_bits(image))
    if format_of(data) == "AVIF":
        return _turn_avif(image, data)
    if data.startswith((JPEG, _PNG, b"RIFF")) and _AS_LONG in data:
        flags = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
        lying, kinds, found = cv2.imdecodeWithMetadata(np.frombuffer(data, np.uint8), flags)
        exif = dict(zip(kinds, found, strict=True)).get(cv2.IMAGE_METADATA_EXIF)
        if exif is not None and (orientation := _orientation(_EXIF + exif.tobytes())):
            return turn_upright(np.asarray(lying, np.uint8), orientation)
    return image


def _turn_avif(image: Image, data: bytes) -> Image:
    """Turn and then mirror a picture as libavif tells viewers to."""
    if data[8:12] == b"avis":  # a sequence, whose first frame OpenCV decodes
        return image
    try:
        properties = _avif_properties(data)
        quarters = properties.get(b"irot", b"\0")[0] & 3
        mirrored = properties[b"imir"][0] & 1 if b"imir" in properties else None
    except (IndexError, KeyError, StopIteration, struct.error):
        raise DecodeError("a damaged AVIF: its orientation cannot be read", RESAVE) from None
    if quarters:
        image = np.asarray(cv2.rotate(image, 3 - quarters), np.uint8)  # to the left
    return image if mirrored is None else np.asarray(cv2.flip(image, mirrored), np.uint8)


def _avif_properties(data: bytes) -> dict[bytes, memoryview]:
    """Contents of the properties of the primary item, by their kinds."""
    content = next(content for kind, content in _boxes(memoryview(data)) if kind == b"meta")
    meta = dict(_boxes(content[4:]))
    (primary,) = struct.unpack_from(">I" if meta[b"pitm"][0] else ">H", meta[b"pitm"], 4)
    parts = [*_boxes(meta[b"iprp"])]
    known = [*_boxes(dict(parts)[b"ipco"])]
    properties: dict[bytes, memoryview] = {}
    for places in (places for kind, ipma in parts if kind == b"ipma"
                   for item, places in _associations(ipma) if item == primary):  # fmt: skip
        for kind, content in (known[place - 1] for place in places if place):
            properties.setdefault(kind, content)  # the first of a kind counts
    return properties


def _boxes(data: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    """Kind and content of the boxes of an AVIF file, or of those in a box."""
    while data:
        size, kind = struct.unpack_from(">I4s", data)
        start = 8
        if size == 1:
            (size,), start = struct.unpack_from(">Q", data, 8), 16
        end = max(size, start) if size else len(data)
        yield kind, data[start:end]
        data = data[end:]


def _associations(ipma: memoryview) -> Iterator[tuple[int, list[int]]]:
    """Items, and the places of their properties, from 1."""
    head, wide = f">{'I' if ipma[0] else 'H'}B", ipma[3] & 1
    (count,), position = struct.unpack_from(">I", ipma, 4), 8
    for _ in range(count):
        item, length = struct.unpack_from(head, ipma, position)
        position += struct.calcsize(head)
        places = struct.unpack_from(f">{length}{'BH'[wide]}", ipma, position)
        position += length * (1 + wide)
        yield item, [place & (0x7FFF if wide else 0x7F) for place in places]


def _decode_jpeg(data: bytes, header: JpegHeader, options: DecodeOptions) -> Picture | None:
    """Decode a JPEG; None if it is left to OpenCV; a ValueError of libjpeg if it is damaged."""
    try:
        import simplejpeg  # not with every Python, see pyproject.toml
    except ImportError:
        return None
    if header.orientation is None:  # decoded for what libjpeg says, at an eighth of its size
        space = "CMYK" if header.components == 4 else "BGR"
        simplejpeg.decode_jpeg(data, space, min_height=1, min_width=1)
        return None
    scale = 1
    if options.fast_for is not None:
        ratio = max(Letterbox.fit(header.size, options.fast_for).scale)
        scale = next((scale for scale in _SCALES if scale * ratio <= 1), 1)
    height, width = header.height, header.width
    is_upright = header.orientation == 1
    buffer = options.allocate((-(-height // scale), -(-width // scale))) if is_upright else None
    image: Image = simplejpeg.decode_jpeg(
        data, "BGR", min_height=height // scale, min_width=width // scale, buffer=buffer
    )
    return Picture(turn_upright(image, header.orientation, options.allocate), header.size)


def read_header(data: bytes) -> JpegHeader | None:
    """Read a JPEG's header; None if it has no frame."""
    frame, exif = None, []
    try:
        for marker, payload in segments(data):
            if marker == SCAN:
                break
            if marker in FRAMES:
                frame = frame or struct.unpack_from(">xHHB", payload)
            elif marker == APP1 and payload.startswith(_EXIF[:4]):
                exif.append(payload)
    except struct.error:
        return None
    if frame is None:
        return None
    height, width, components = frame
    orientation = _orientation(exif[0]) if exif else 1
    if components not in {1, 3} or len(exif) > 1:
        orientation = None
    return JpegHeader(height, width, components, orientation)


def _orientation(exif: bytes) -> int | None:
    """Orientation in an EXIF segment, 1 if it has none; None if the segment is irregular.

    OpenCV stops at the first field that it cannot read, so the decision is left to OpenCV if a
    field before the orientation is irregular.
    """
    if not exif.startswith(_EXIF) or exif[6:8] not in {b"II", b"MM"}:
        return None
    tiff, before = exif[6:], 0
    try:
        for tag, kind, length, value in tiff_fields(tiff):
            if tag == _ORIENTATION:
                short = value & 0xFFFF if tiff.startswith(b"I") else value >> 16
                if kind == _LONG and value <= 8:  # in big endian, OpenCV takes the wrong half
                    short = value
                known = short if 1 <= short <= 8 else 1
                return None if tiff[:4] not in CLASSIC or before > tag else known
            if length > 4 and tag in {0x10E, 0x10F, 0x110} and value + length > len(tiff):
                return None
            before = max(before, tag)
    except struct.error:
        return None
    return 1
