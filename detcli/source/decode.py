"""Decoding: from the bytes of an image file to an image, upright and in colour.

Regular JPEGs are decoded by simplejpeg: the pixels of cv2.imdecode without its copy, and at reduced
scale if asked. Damage, unusual EXIF segments, colour spaces other than grey, YCbCr and RGB, and all
other formats are left to OpenCV, which refuses what is too large before it allocates memory.
"""

import contextlib
import re
import struct
from dataclasses import field, replace
from pathlib import Path

import numpy as np

from detcli.config.config import Inputs
from detcli.core import frozen
from detcli.core.errors import DecodeError, SourceError, loading
from detcli.core.opencv import PIXEL_LIMIT, cv2, pixel_limit
from detcli.core.text import pluralize
from detcli.data.geometry import Allocate, Image, Letterbox, Pixels, Size, new_image
from detcli.source.avif import is_sequence, turn_avif
from detcli.source.cut_jpeg import check_cut, describe_cut, without_room
from detcli.source.forms import read_odd_form
from detcli.source.gif import count_frames
from detcli.source.jpeg_header import (
    EXIF_START,
    LONG_ORIENTATION_FIELD,
    JpegHeader,
    check_scans,
    exif_orientation,
    read_header,
)
from detcli.source.limits import FETCH_AGAIN, LARGER, RESAVE, check_size
from detcli.source.pnm import has_second_image
from detcli.source.segments import END_MARKER, JPEG, has_end
from detcli.source.tiff import damaged_tiff, has_second_page
from detcli.source.values import to_colours, to_eight_bits, turn_upright
from detcli.storage.files import LFS_HINT, LFS_REASON, is_lfs_pointer

# The image that is part of detcli.
BUILT_IN = Path(__file__).parents[1] / "pictures" / "street.jpg"
TIMEOUT_S = Inputs().input_timeout  # default time limit for reading and decoding one input


@frozen
class DecodeOptions:
    """How images are decoded."""

    inputs: Inputs = field(default_factory=Inputs)  # with the limits of size and time
    # Height and width of a network's input. A JPEG that is at least twice as large is decoded at a
    # half, a quarter or an eighth of its size, which is faster.
    fast_for: Size | None = None
    allocate: Allocate = new_image  # makes the arrays that JPEGs are decoded into
    keep: bool = False  # whether images of files keep what these held

    def __post_init__(self) -> None:
        if self.inputs.strict:
            remedy = 'pip install "detcli[jpeg]"; or leave out --strict'
            with loading("simplejpeg, which tells --strict of damage,", remedy):
                import simplejpeg  # noqa: F401

    @property
    def max_bytes(self) -> int:
        """More than any format needs for an image of the maximum size and its metadata."""
        return 8 * self.inputs.max_pixels + 2**24


DEFAULTS = DecodeOptions()

_MAX_TILES = 4096  # of a small JPEG 2000 image; a tile takes some 10 KiB
_TILE_AREA = 4096  # pixels of each tile in a large one
_PNG = b"\x89PNG"
_CODESTREAM = b"\xff\x4f\xff\x51"  # with which that of a JPEG 2000 image begins
_FORMATS = {
    JPEG: "JPEG",
    _PNG: "PNG",
    b"GIF8": "GIF",
    b"BM": "BMP",
    b"RIFF": "WebP",
    b"\x59\xa6\x6a\x95": "a Sun raster",
    b"#?R": "HDR",
    b"II*\0": "TIFF",
    b"MM\0*": "TIFF",
    b"II+\0": "TIFF",
    b"MM\0+": "TIFF",
    b"\0\0\0\x0cjP  ": "JPEG 2000",
    _CODESTREAM: "JPEG 2000",
    b"P1": "PNM",
    b"P2": "PNM",
    b"P3": "PNM",
    b"P4": "PNM",
    b"P5": "PNM",
    b"P6": "PNM",
    b"P7": "PNM",
    b"PF": "PNM",
    b"Pf": "PNM",
}
"""How files begin that are decoded, but for AVIF."""

# Errors of libjpeg-turbo for sound files that are left to OpenCV.
_NO_DAMAGE = ("tjDecompressHeader3(): Could not determine subsampling", "Unknown Adobe color")

_FLOATS = (b"PF", b"Pf", b"#?R")  # how formats begin that hold floating point numbers alone
_SCALES = (8, 4, 2)  # those with vector code in libjpeg-turbo

ONLY_FIRST = "only its first frame or page is used; magick FILE NEW.png makes a file of each"


def load_bytes(data: bytes, options: DecodeOptions = DEFAULTS) -> Image:
    """Decode the bytes of an image file to 8 bits in blue, green and red, upright.

    Grey becomes colour, transparency is dropped, and 16 bits or floating point numbers become 8
    bits. The pixels are those of `cv2.imdecode`, where it shows what viewers do. The image has a
    warning if its file is damaged, or holds more frames or pages than the first.

    Raises:
        DecodeError: The image is incomplete or too large, or not in a known format.
    """
    if not data:
        raise DecodeError("empty", "fetch or copy the file again")
    if data.startswith(JPEG):
        return _load_jpeg(data, options)
    return _load_other_format(data, options.inputs.max_pixels)


def _load_jpeg(data: bytes, options: DecodeOptions) -> Image:
    """Decode a JPEG by simplejpeg, or by OpenCV what simplejpeg refuses or decodes otherwise.

    Raises:
        DecodeError: It is too large, it cannot be decoded, it is cut off and `--lenient` was not
            given, or it is damaged and `--strict` was given.
    """
    inputs = options.inputs
    header = read_header(data)
    if header is None:
        raise _undecodable_jpeg(data, "it has no complete frame header", inputs)
    check_size(header.size, inputs.max_pixels)
    check_scans(data)
    if inputs.lenient and not has_end(data):
        return _decode_cut_jpeg(data, header, inputs)

    image = None
    reason = ""
    try:
        image = _decode_by_simplejpeg(data, header, options)
    except ValueError as error:
        reason = _reason_of(str(error))
    if image is not None:
        return image

    image = _decode_by_opencv(data, inputs.max_pixels)  # which shows some damaged images
    if image is None:
        raise _undecodable_jpeg(data, reason, inputs)
    if not reason:
        return image
    damage = f"damaged: {reason}"
    if inputs.strict:
        raise DecodeError(damage, "fetch it again, or leave out --strict")
    return replace(image, warnings=(damage,))


def _load_other_format(data: bytes, max_pixels: int) -> Image:
    """Decode an image of another format than JPEG; a warning says if it holds more than one.

    Raises:
        DecodeError: It is too large, damaged, or not in a known format.
    """
    format_name = format_of(data)
    if not format_name:
        raise _not_an_image(data)
    check_png(data, max_pixels)
    check_tiles(data)
    try:
        odd_form = read_odd_form(data, format_name, max_pixels)
    except cv2.error as error:  # our readers call OpenCV as well
        raise _refused_by_opencv(error, max_pixels) from error
    if odd_form is None:
        image = _decode_by_opencv(data, max_pixels)
    else:
        image = replace(Image.whole(odd_form), is_plain=False)

    if image is None and format_name == "TIFF":
        raise damaged_tiff()
    if image is None:
        raise _not_an_image(data)
    if _has_more(data):
        return replace(image, warnings=(ONLY_FIRST,))
    return image


def _reason_of(message: str) -> str:
    """What is wrong with a JPEG by a message of libjpeg-turbo; empty if the message names nothing.

    Two of its messages are about sound files that its interface does not take, but OpenCV does.
    """
    if message.startswith(_NO_DAMAGE):
        return ""
    return message.removeprefix("Corrupt JPEG data: ")


def browser_shows(path: Path) -> bool:
    """Whether any browser shows an image file as it is decoded here.

    All of them follow the orientation of EXIF in JPEGs, but not in other formats.
    """
    data = b""
    with contextlib.suppress(OSError):
        data = path.read_bytes()
    if data.startswith(JPEG):
        header = read_header(data)
        return header is not None and header.orientation is not None
    return format_of(data) in {"PNG", "WebP", "BMP"} and not re.search(b"eXIf|EXIF", data)


def too_slow(limit_s: float, problem: str = "not read and decoded") -> SourceError:
    """The error of an input that exceeds the time limit."""
    return SourceError(
        f"{problem} after {limit_s:g} s",
        "if it is meant to take that long: predict and eval wait longer with --input-timeout",
    )


def format_of(data: bytes) -> str:
    """The format that data begin as; empty for one that is not decoded."""
    for beginning, name in _FORMATS.items():
        if data.startswith(beginning):
            return name
    if data[4:8] == b"ftyp":
        return "AVIF"
    return ""


def _not_an_image(data: bytes) -> DecodeError:
    """The error of data that no decoder takes, by what they begin as."""
    if is_lfs_pointer(data):
        return DecodeError(LFS_REASON, LFS_HINT)
    size = pluralize(len(data), "byte")
    return DecodeError(
        f"not an image, or a damaged one ({size}, {_describe_beginning(data)})",
        "JPEG, PNG, WebP, TIFF, GIF and more are read, videos by suffix; fetch damaged files again",
    )


def _undecodable_jpeg(data: bytes, reason: str, inputs: Inputs) -> DecodeError:
    """The error of a JPEG that neither libjpeg-turbo nor OpenCV decodes.

    Args:
        data: The file.
        reason: What is wrong with it; empty if nothing says so.
        inputs: The options, whose `lenient` decides what is said of a file that is cut off.
    """
    if has_end(data):
        problem = "a damaged JPEG, or one of a kind that cannot be decoded"
        hint = "fetch it again, or save it again with another program"
    elif inputs.lenient:
        problem = "a damaged JPEG: cut off, and what is there cannot be decoded"
        hint = FETCH_AGAIN
    else:
        # Without its end it is an error however sound the rest is, so no other reason is given.
        return DecodeError(
            "a damaged JPEG: cut off, its end is missing",
            "fetch it again; predict takes what is there with --lenient",
        )
    if reason:
        problem += f" ({reason})"
    return DecodeError(problem, hint)


def _describe_beginning(data: bytes) -> str:
    if data.startswith(b"%PDF"):
        return "a PDF"
    name = format_of(data)
    if name == "AVIF" and not re.search(rb"avi[fs]", data[8:64]):
        return "starts as HEIC or a video"
    if name:
        return f"starts as {name}"
    return "not in a known image format"


def check_png(data: bytes, max_pixels: int) -> None:
    """Refuse a PNG that is too large or ends within a chunk: OpenCV may allocate 4 GiB for it."""
    if data[12:16] == b"IHDR" and len(data) >= 24:
        width, height = struct.unpack_from(">II", data, 16)
        check_size((height, width), max_pixels)
    if not data.startswith(_PNG):
        return
    position = 8
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
    for sizes in re.finditer(_CODESTREAM + rb".{4}(.{32})", data, re.DOTALL):
        right, bottom, left, top, tile_width, tile_height, tiles_left, tiles_top = struct.unpack(
            ">8I", sizes[1]
        )
        columns = -(-(right - tiles_left) // max(tile_width, 1))
        rows = -(-(bottom - tiles_top) // max(tile_height, 1))
        tiles = columns * rows
        area = (bottom - top) * (right - left)
        if tiles > max(_MAX_TILES, area // _TILE_AREA):
            raise DecodeError(
                f"a JPEG 2000 file with {tiles} tiles, more than any writer makes", RESAVE
            )


def _decode_by_opencv(data: bytes, max_pixels: int) -> Image | None:
    """Decode an image by OpenCV, and turn it upright where OpenCV does not.

    None means that OpenCV refuses the file without a reason, and the caller knows what to say.

    Raises:
        DecodeError: The image is too large, or OpenCV says what is wrong with it.
    """
    flags = cv2.IMREAD_COLOR
    if data.startswith(_FLOATS):
        flags = cv2.IMREAD_UNCHANGED
    elif format_of(data) == "AVIF":  # whose EXIF says again what its properties do
        flags |= cv2.IMREAD_IGNORE_ORIENTATION
    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error as error:
        raise _refused_by_opencv(error, max_pixels) from error
    if pixels is None:
        return None
    check_size((pixels.shape[0], pixels.shape[1]), max_pixels)
    shown = _as_shown(pixels, data)
    return replace(Image.whole(shown), is_plain=shown is pixels)


def _decode_cut_jpeg(data: bytes, header: JpegHeader, inputs: Inputs) -> Image:
    """Decode what there is of a JPEG without its end; a warning says how much that is.

    Raises:
        DecodeError: Nothing of it can be decoded.
    """
    data = without_room(data)
    check_cut(data)
    with_end = data + END_MARKER
    image = _decode_by_opencv(with_end, inputs.max_pixels)
    if image is None:
        reason = _reason_of(_complaint_of_libjpeg(with_end, header))
        raise _undecodable_jpeg(data, reason, inputs)
    return replace(image, is_plain=False, warnings=(describe_cut(data),))


def _complaint_of_libjpeg(data: bytes, header: JpegHeader) -> str:
    """What libjpeg-turbo says is wrong with a JPEG; empty if nothing, or without simplejpeg.

    The image is decoded at an eighth of its size for that, and dropped.
    """
    try:
        import simplejpeg  # not with every Python, see pyproject.toml
    except ImportError:
        return ""
    colour_space = "BGR"
    if header.components == 4:
        colour_space = "CMYK"
    try:
        simplejpeg.decode_jpeg(data, colour_space, min_height=1, min_width=1)
    except ValueError as error:
        return str(error)
    return ""


def _refused_by_opencv(error: "cv2.error", max_pixels: int) -> DecodeError:
    """The error of an image that OpenCV does not decode, by what it says of it."""
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
    if name == "TIFF":
        return has_second_page(data)
    if name == "PNM":
        return has_second_image(data)
    if name == "GIF":
        return count_frames(data, 2) > 1
    if name == "PNG":
        return b"acTL" in data[: data.find(b"IDAT")]
    if name == "WebP":
        is_extended = data[12:16] == b"VP8X"
        return is_extended and bool(data[20] & 2)  # the flag of an animation
    return name == "AVIF" and is_sequence(data)


def _as_shown(image: np.ndarray, data: bytes) -> Pixels:
    """An image in 8 bits and upright, where OpenCV leaves it otherwise."""
    if image.dtype != np.uint8:
        return to_colours(to_eight_bits(image))
    if format_of(data) == "AVIF":
        return turn_avif(image, data)
    if data.startswith((JPEG, _PNG, b"RIFF")) and LONG_ORIENTATION_FIELD in data:
        return _turned_by_long_orientation(image, data)
    return image


def _turned_by_long_orientation(image: Pixels, data: bytes) -> Pixels:
    """An image turned as EXIF says in a LONG, which OpenCV does not follow.

    The image itself is returned where EXIF is missing or irregular.
    """
    flags = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
    lying, kinds, contents = cv2.imdecodeWithMetadata(np.frombuffer(data, np.uint8), flags)
    metadata = dict(zip(kinds, contents, strict=True))
    exif = metadata.get(cv2.IMAGE_METADATA_EXIF)
    if exif is None:
        return image
    orientation = exif_orientation(EXIF_START + exif.tobytes())
    if orientation is None:
        return image
    return turn_upright(np.asarray(lying, np.uint8), orientation)


def _decode_by_simplejpeg(data: bytes, header: JpegHeader, options: DecodeOptions) -> Image | None:
    """Decode a JPEG by simplejpeg; None if it is left to OpenCV.

    Raises:
        ValueError: It is damaged, as libjpeg-turbo says.
    """
    try:
        import simplejpeg  # not with every Python, see pyproject.toml
    except ImportError:
        return None
    if header.orientation is None:
        complaint = _complaint_of_libjpeg(data, header)
        if complaint:
            raise ValueError(complaint)
        return None
    scale = _reduction(header.size, options.fast_for)
    buffer = None
    if header.orientation == 1:  # others are turned into another array
        buffer = options.allocate((-(-header.height // scale), -(-header.width // scale)))
    image: Pixels = simplejpeg.decode_jpeg(
        data,
        "BGR",
        min_height=header.height // scale,
        min_width=header.width // scale,
        buffer=buffer,
    )
    return Image(turn_upright(image, header.orientation, options.allocate), header.size)


def _reduction(size: Size, input_size: Size | None) -> int:
    """By how much a JPEG is reduced while it is decoded, so that a network's input is filled."""
    if input_size is None or 0 in size:  # a header without height or width is damaged
        return 1
    ratio = max(Letterbox.fit(size, input_size).scale)
    for scale in _SCALES:
        if scale * ratio <= 1:
            return scale
    return 1
