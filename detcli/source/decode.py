"""Decoding: from the bytes of an image file to an image, upright and in colour.

Regular JPEGs are decoded by simplejpeg: the pixels of cv2.imdecode without its copy, and at reduced
scale if asked. Damage, unusual EXIF segments, colour spaces other than grey, YCbCr and RGB, and all
other formats are left to OpenCV, which refuses what is too large before it allocates memory.
"""

import contextlib
import re
from dataclasses import field, replace
from pathlib import Path

import numpy as np

from detcli.config.inputs import InputOptions
from detcli.core import frozen
from detcli.core.errors import DecodeError, SourceError, loading
from detcli.core.opencv import PIXEL_LIMIT, cv2, pixel_limit
from detcli.core.text import pluralize
from detcli.data.capture_time import CaptureTime
from detcli.data.geometry import Allocate, Image, Letterbox, Pixels, Size, new_image
from detcli.source.avif import is_sequence, turn_avif
from detcli.source.cut_jpeg import describe_cut, require_scan, without_trailing_zeros
from detcli.source.exif import capture_time, time_in_exif
from detcli.source.forms import read_odd_form
from detcli.source.gif import count_frames
from detcli.source.header_checks import JPEG_2000, PNG, check_png, check_tiles
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
from detcli.source.tiff import has_second_page
from detcli.source.tiff_directory import damaged_tiff
from detcli.source.values import to_colours, to_eight_bits, turn_upright
from detcli.storage.files import LFS_HINT, LFS_REASON, is_lfs_pointer

# The image that comes with detcli.
BUILT_IN = Path(__file__).parents[1] / "pictures" / "street.jpg"
TIMEOUT_S = InputOptions().input_timeout  # default time limit for reading and decoding one input


@frozen
class DecodeOptions:
    """How images are decoded."""

    inputs: InputOptions = field(default_factory=InputOptions)  # with the limits of size and time
    # Height and width of a network's input. A JPEG that is at least twice as large is decoded at a
    # half, a quarter or an eighth of its size, which is faster.
    fast_for: Size | None = None
    allocate: Allocate = new_image  # makes the arrays that JPEGs are decoded into
    keep: bool = False  # whether an image keeps the bytes of its file, in `Image.file`

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

_FORMATS = {
    JPEG: "JPEG",
    PNG: "PNG",
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
    JPEG_2000: "JPEG 2000",
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
"""How the files that are decoded begin, except AVIF."""

# Errors of libjpeg-turbo for sound files that are left to OpenCV.
_NO_DAMAGE = ("tjDecompressHeader3(): Could not determine subsampling", "Unknown Adobe color")

_FLOATS = (b"PF", b"Pf", b"#?R")  # how formats that hold only floating point numbers begin
_MAY_HAVE_EXIF = (JPEG, PNG, b"RIFF")  # how formats whose EXIF is used begin; RIFF is WebP
_WEBP_ANIMATION = 2  # the bit of an animation among the flags of a WebP
_SCALES = (8, 4, 2)  # the scales with vector code in libjpeg-turbo

ONLY_FIRST = "only its first frame or page is used; magick FILE NEW.png makes a file of each"


def load_bytes(data: bytes, options: DecodeOptions = DEFAULTS) -> Image:
    """Decode the bytes of an image file to 8 bits in blue, green and red, upright.

    Grey becomes colour, transparency is dropped, and 16 bits or floating point numbers become 8
    bits. The pixels are those of `cv2.imdecode`, where it shows what viewers do. The image has a
    warning if its file is damaged, or holds more frames or pages than the first. It has the time at
    which it was photographed, if the file says so.

    Raises:
        DecodeError: The image is incomplete or too large, or not in a known format.
    """
    if not data:
        raise DecodeError("empty", "fetch or copy the file again")
    if data.startswith(JPEG):
        return _load_jpeg(data, options)
    image = _load_other_format(data, options.inputs.max_pixels)
    return _with_time(image, capture_time(data))


def _with_time(image: Image, time: CaptureTime | None) -> Image:
    """Return an image with the time at which it was photographed, if that is known."""
    if time is None:
        return image
    return replace(image, capture_time=time)


def _load_jpeg(data: bytes, options: DecodeOptions) -> Image:
    """Read the header of a JPEG, refuse one that is too large, and decode it.

    Raises:
        DecodeError: The image is too large, or cannot be decoded, see `_decode_jpeg`.
    """
    header = read_header(data)
    if header is None:
        raise _undecodable_jpeg(data, "it has no complete frame header", options.inputs)
    check_size(header.size, options.inputs.max_pixels)
    check_scans(data)
    image = _decode_jpeg(data, header, options)
    return _with_time(image, time_in_exif(header.exif))


def _decode_jpeg(data: bytes, header: JpegHeader, options: DecodeOptions) -> Image:
    """Decode a JPEG by simplejpeg, which is fast, or else by OpenCV.

    OpenCV decodes it in three cases: simplejpeg is not installed, it is not trusted with the
    image's colours or EXIF, or it calls the image damaged. OpenCV then decodes as much of a damaged
    image as there is. Such an image has a warning; with `--strict` it is an error.

    Raises:
        DecodeError: Nothing decodes it, it is damaged and the options are strict, or its end is
            missing and they are not lenient.
    """
    inputs = options.inputs
    if inputs.lenient and not has_end(data):
        return _decode_cut_jpeg(data, header, inputs)

    reason = ""  # why it is damaged, in the words of simplejpeg; empty if it is not
    image = None  # None if it is left to OpenCV
    try:
        image = _decode_by_simplejpeg(data, header, options)
    except ValueError as error:
        reason = _reason_of(str(error))
    if image is not None:
        return image

    image = _decode_by_opencv(data, inputs.max_pixels)
    if image is None:
        raise _undecodable_jpeg(data, reason, inputs)
    is_damaged = reason != ""
    if not is_damaged:
        return image
    damage = f"damaged: {reason}"
    if inputs.strict:
        raise DecodeError(damage, "fetch it again, or leave out --strict")
    return replace(image, warnings=(damage,))


def _load_other_format(data: bytes, max_pixels: int) -> Image:
    """Decode an image of any format but JPEG, by one of our readers or else by OpenCV.

    Our readers take the forms of TIFF, PNM and BMP that OpenCV shows with wrong pixels. An image
    whose file holds more frames or pages than the first gets a warning.

    Raises:
        DecodeError: The data are in no known format, damaged, or have more than `max_pixels`.
    """
    format_name = format_of(data)
    if not format_name:
        raise _not_an_image(data)
    if format_name == "PNG":
        check_png(data, max_pixels)
    if format_name == "JPEG 2000":
        check_tiles(data)
    try:
        pixels = read_odd_form(data, format_name, max_pixels)
    except cv2.error as error:  # our readers call OpenCV as well
        raise _refused_by_opencv(error, max_pixels) from error
    if pixels is None:  # none of our readers takes the form
        image = _decode_by_opencv(data, max_pixels)
        if image is None and format_name == "TIFF":
            raise damaged_tiff()
        if image is None:
            raise _not_an_image(data)
    else:
        # A plain image has the pixels that OpenCV makes from its file, which are wrong here.
        image = replace(Image.whole(pixels), is_plain=False)

    if _has_second_image(data, format_name):
        return replace(image, warnings=(ONLY_FIRST,))
    return image


def _reason_of(message: str) -> str:
    """Extract what is wrong with a JPEG from an error message of libjpeg-turbo.

    The result is empty for the two messages that also come for sound files, which simplejpeg does
    not take and OpenCV does.
    """
    if message.startswith(_NO_DAMAGE):
        return ""
    return message.removeprefix("Corrupt JPEG data: ")


def browser_shows(path: Path) -> bool:
    """Whether every browser shows an image file just as it is decoded here.

    All browsers follow the orientation of EXIF in JPEGs, but not in other formats. So it is False
    for other files with EXIF, and for a file that cannot be read.
    """
    data = b""
    with contextlib.suppress(OSError):
        data = path.read_bytes()
    if data.startswith(JPEG):
        header = read_header(data)
        return header is not None and header.orientation is not None
    # EXIF is in a chunk of this name in PNG or WebP. Its letters may be among the pixels by chance:
    # then the answer is False needlessly, which does no harm.
    may_have_exif = re.search(b"eXIf|EXIF", data) is not None
    return format_of(data) in {"PNG", "WebP", "BMP"} and not may_have_exif


def too_slow(limit_s: float, problem: str = "not read and decoded") -> SourceError:
    """The error of an input that exceeds the time limit."""
    return SourceError(
        f"{problem} after {limit_s:g} s",
        "if it is meant to take that long: predict and eval wait longer with --input-timeout",
    )


def format_of(data: bytes) -> str:
    """Name the image format of a file by its first bytes; empty if it is not one that is decoded.

    HEIC images and MP4 videos begin as AVIF images do, so all of them are called AVIF here.
    """
    for beginning, name in _FORMATS.items():
        if data.startswith(beginning):
            return name
    if data[4:8] == b"ftyp":
        return "AVIF"
    return ""


def _not_an_image(data: bytes) -> DecodeError:
    """Make the error for a file, other than a JPEG or TIFF, that nothing decodes.

    The message says how large the file is and what it begins as ("a PDF", "starts as PNG"), since
    it may be no image at all, or a damaged one. A pointer of Git LFS has a special message: Git
    stores it in place of a large file that was not fetched.
    """
    if is_lfs_pointer(data):
        return DecodeError(LFS_REASON, LFS_HINT)
    size = pluralize(len(data), "byte")
    return DecodeError(
        f"not an image, or a damaged one ({size}, {_describe_beginning(data)})",
        "JPEG, PNG, WebP, TIFF, GIF and more are read, videos by suffix; fetch damaged files again",
    )


def _undecodable_jpeg(data: bytes, reason: str, inputs: InputOptions) -> DecodeError:
    """Make the error for a JPEG that neither libjpeg-turbo nor OpenCV decodes.

    Args:
        data: The file.
        reason: What is wrong with it, for the message; empty if nothing says so. It is left out if
            the file is cut off and the run is not lenient, since the cut alone is an error then.
        inputs: The options of the run. If the file is cut off, the hint names `--lenient` unless
            that is already set.
    """
    is_cut_off = not has_end(data)
    if is_cut_off and not inputs.lenient:
        return DecodeError(
            "a damaged JPEG: cut off, its end is missing",
            "fetch it again; predict takes what is there with --lenient",
        )

    if is_cut_off:
        problem = "a damaged JPEG: cut off, and what is there cannot be decoded"
        hint = FETCH_AGAIN
    else:
        problem = "a damaged JPEG, or one of a kind that cannot be decoded"
        hint = "fetch it again, or save it again with another program"
    if reason:
        problem += f" ({reason})"
    return DecodeError(problem, hint)


def _describe_beginning(data: bytes) -> str:
    """Describe for an error message what an undecoded file begins as: "starts as PNG"."""
    if data.startswith(b"%PDF"):
        return "a PDF"
    format_name = format_of(data)
    if format_name == "":
        return "not in a known image format"
    # HEIC, MP4 and AVIF begin alike; after that, AVIF names itself among its brands.
    names_avif = re.search(rb"avi[fs]", data[8:64]) is not None
    if format_name == "AVIF" and not names_avif:
        return "starts as HEIC or a video"
    return f"starts as {format_name}"


def _decode_by_opencv(data: bytes, max_pixels: int) -> Image | None:
    """Decode an image by OpenCV, and turn it upright where OpenCV does not.

    OpenCV leaves two steps to `_as_shown`: it is told not to convert floating-point numbers, and
    not to turn AVIF images.

    Returns:
        The image; None if OpenCV refuses the file without a reason. It is plain if `_as_shown` had
        nothing to do: its pixels are then those that OpenCV alone makes from the file.

    Raises:
        DecodeError: The image is too large, or OpenCV says what is wrong with it.
    """
    if data.startswith(_FLOATS):
        flags = cv2.IMREAD_UNCHANGED  # `_as_shown` converts the numbers
    elif format_of(data) == "AVIF":
        # OpenCV would turn it as its EXIF says, but its properties take precedence: `_as_shown`
        # reads them.
        flags = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
    else:
        flags = cv2.IMREAD_COLOR

    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error as error:
        raise _refused_by_opencv(error, max_pixels) from error
    if pixels is None:
        return None
    check_size((pixels.shape[0], pixels.shape[1]), max_pixels)

    shown_pixels = _as_shown(pixels, data)
    is_unchanged = shown_pixels is pixels
    return replace(Image.whole(shown_pixels), is_plain=is_unchanged)


def _decode_cut_jpeg(data: bytes, header: JpegHeader, inputs: InputOptions) -> Image:
    """Decode what there is of a JPEG without its end, for `--lenient`.

    The missing end marker is appended, as OpenCV decodes no file without it.

    Returns:
        An image of the full size, with a warning that says how many of its rows are present. It
        does not count as plain, since OpenCV returns no image for the file itself.

    Raises:
        DecodeError: No part of it can be decoded.
    """
    content = without_trailing_zeros(data)
    require_scan(content)
    with_end = content + END_MARKER
    image = _decode_by_opencv(with_end, inputs.max_pixels)
    if image is None:
        complaint = _complaint_of_libjpeg(with_end, header)
        raise _undecodable_jpeg(content, _reason_of(complaint), inputs)
    return replace(image, is_plain=False, warnings=(describe_cut(content),))


def _complaint_of_libjpeg(data: bytes, header: JpegHeader) -> str:
    """Ask libjpeg-turbo what is wrong with a JPEG whose pixels are not taken from it.

    It decodes the image for that, at an eighth of its size, which is quick; the pixels are dropped.

    Returns:
        Its message; empty if it finds nothing wrong, or if simplejpeg is not installed.
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
    """Turn an error of OpenCV into the error for the image that it refused.

    OpenCV has limits for width, height and the number of pixels. Its message names the one that was
    exceeded. The limit of pixels may be below `max_pixels`, as it can only be set before OpenCV is
    loaded, by the environment variable that `PIXEL_LIMIT` names. The error's hint says what to do
    about it.
    """
    reason = " ".join(str(error.err).split())
    exceeds_limit = "CV_IO_MAX_IMAGE" in reason  # with _WIDTH, _HEIGHT or _PIXELS after it
    if not exceeds_limit:
        return DecodeError(f"cannot be decoded: {reason}", RESAVE)
    has_too_many_pixels = "CV_IO_MAX_IMAGE_PIXELS" in reason
    if not has_too_many_pixels:
        return DecodeError("too large: wider or higher than OpenCV decodes", RESAVE)
    limit = pixel_limit()
    if limit < max_pixels:
        return DecodeError(
            f"too large: more than the {limit} pixels that OpenCV decodes in this process",
            f"set {PIXEL_LIMIT} before cv2 is imported",
        )
    return DecodeError(f"too large: more than the {max_pixels} pixels allowed", LARGER)


def _has_second_image(data: bytes, format_name: str) -> bool:
    """Whether a file holds more frames or pages than the first, where a header says so.

    Args:
        data: The file.
        format_name: Its format as `format_of` names it. Never called with a JPEG: what cameras
            attach to it is mostly a preview or a brightness map.
    """
    if format_name == "TIFF":
        return has_second_page(data)
    if format_name == "PNM":
        return has_second_image(data)
    if format_name == "GIF":
        return count_frames(data, limit=2) > 1
    if format_name == "PNG":
        before_pixels = data[: data.find(b"IDAT")]
        return b"acTL" in before_pixels  # the chunk that makes it an animation
    if format_name == "WebP":
        has_flags = data[12:16] == b"VP8X"
        return has_flags and bool(data[20] & _WEBP_ANIMATION)
    return format_name == "AVIF" and is_sequence(data)


def _as_shown(image: np.ndarray, data: bytes) -> Pixels:
    """Do what OpenCV has left to do until an image is in 8 bits, in colour and upright.

    There are three cases, and at most one applies to a file:

    - Floating point numbers become 8 bits in colour. Their formats have no orientation.
    - An AVIF is turned as its properties say.
    - An image whose EXIF has an orientation of four bytes, which OpenCV does not follow, is turned.

    Args:
        image: The image as OpenCV decoded it: (H, W) or (H, W, channels), of any number type.
        data: Its file.

    Returns:
        The image as (H, W, 3); the same array if nothing was to be done.
    """
    has_eight_bits = image.dtype == np.uint8
    if not has_eight_bits:
        return to_colours(to_eight_bits(image))
    if format_of(data) == "AVIF":
        return turn_avif(image, data)
    if data.startswith(_MAY_HAVE_EXIF) and LONG_ORIENTATION_FIELD in data:
        return _turn_by_long_orientation(image, data)
    return image


def _turn_by_long_orientation(image: Pixels, data: bytes) -> Pixels:
    """Turn an image upright if its EXIF has the orientation as a number of four bytes.

    The standard asks for two bytes (a SHORT). Viewers also follow four (a LONG), but OpenCV does
    not: so the file is decoded again without being turned, and its EXIF is read here.

    Args:
        image: The image as OpenCV decoded it.
        data: Its file, a JPEG, PNG or WebP.

    Returns:
        The image upright, or `image` itself if the EXIF is missing or irregular.
    """
    flags = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
    file = np.frombuffer(data, np.uint8)
    as_stored, metadata_kinds, metadata_contents = cv2.imdecodeWithMetadata(file, flags)
    metadata = dict(zip(metadata_kinds, metadata_contents, strict=True))
    exif = metadata.get(cv2.IMAGE_METADATA_EXIF)
    if exif is None:
        return image
    orientation = exif_orientation(EXIF_START + exif.tobytes())
    if orientation is None:
        return image
    return turn_upright(np.asarray(as_stored, np.uint8), orientation)


def _decode_by_simplejpeg(data: bytes, header: JpegHeader, options: DecodeOptions) -> Image | None:
    """Decode a JPEG by simplejpeg, at a reduced size if the options ask for it.

    An image whose header does not settle the orientation is left to OpenCV. It is still checked for
    damage here, since OpenCV decodes damaged images silently.

    Returns:
        The image upright; None if it is left to OpenCV, or simplejpeg is not installed.

    Raises:
        ValueError: The image is damaged; the message is that of libjpeg-turbo.
    """
    try:
        import simplejpeg  # not with every Python, see pyproject.toml
    except ImportError:
        return None
    if header.orientation is None:
        _check_by_libjpeg(data, header)
        return None

    scale = _reduction(header.size, options.fast_for)
    is_upright = header.orientation == 1
    if is_upright:
        buffer = options.allocate(_reduced_size(header.size, scale))
    else:
        # simplejpeg makes an array. `turn_upright` then copies it into one from `allocate`.
        buffer = None
    image: Pixels = simplejpeg.decode_jpeg(
        data,
        "BGR",
        min_height=header.height // scale,
        min_width=header.width // scale,
        buffer=buffer,
    )
    upright = turn_upright(image, header.orientation, options.allocate)
    return Image(upright, header.size)


def _check_by_libjpeg(data: bytes, header: JpegHeader) -> None:
    """Raise a ValueError if libjpeg-turbo calls a JPEG damaged; the message is its own."""
    complaint = _complaint_of_libjpeg(data, header)
    if complaint:
        raise ValueError(complaint)


def _reduced_size(size: Size, scale: int) -> Size:
    """Divide height and width by a scale, rounded up, as libjpeg-turbo rounds sizes."""
    height, width = size
    return -(-height // scale), -(-width // scale)  # -(-a // b) is a / b, rounded up


def _reduction(size: Size, input_size: Size | None) -> int:
    """Choose by what factor a JPEG is reduced while it is decoded: 8, 4, 2, or 1 for not at all.

    Args:
        size: Height and width of the upright image.
        input_size: Height and width of the network's input, which a reduced image has to fill
            without being enlarged; None for the full size.
    """
    if input_size is None or 0 in size:  # a header without height or width is damaged
        return 1
    input_pixels_per_image_pixel = max(Letterbox.fit(size, input_size).scale)
    for scale in _SCALES:
        if scale * input_pixels_per_image_pixel <= 1:
            return scale
    return 1
