"""BMP files of 16 bits per pixel, and those whose header says which bits are red, green and blue.

OpenCV assumes the most common order of bits, whatever the header says.
"""

import struct
from typing import NamedTuple

import numpy as np

from detcli.core import frozen
from detcli.core.errors import DecodeError
from detcli.data.geometry import Pixels, Size
from detcli.source.limits import FETCH_AGAIN, RESAVE, check_size, require_bytes

BLOCK_PIXELS = 1 << 18
LARGEST_MASK_BITS = 16

_FILE_HEADER_BYTES = 14
_INFO = struct.Struct("<IiiHHI")  # header size, width, height, planes, bits, compression
_UNCOMPRESSED = 0
_BIT_FIELDS = frozenset({3, 6})  # without and with a mask of alpha
# header sizes of OS/2, where compression 3 is a different one
_OS2_HEADER_BYTES = frozenset({12, 16, 64})
_PIXELS_FIELD = 10  # where the file header has the position of the pixels
# masks of red, green and blue, after a file header and an info header
_MASKS = struct.Struct("<3I")
_MASKS_START = _FILE_HEADER_BYTES + 40
_FIFTEEN_BITS = (0x7C00, 0x03E0, 0x001F)  # red, green and blue of 16 bits where nothing says so


@frozen
class _BmpHeader:
    """How the pixels of a BMP are stored."""

    size: Size
    is_top_down: bool
    bits_per_pixel: int
    masks: tuple[int, int, int]  # of red, green and blue
    start: int  # offset of the pixels in the file

    @property
    def bytes_per_row(self) -> int:
        """The length of a row of pixels in the file, which is padded to a multiple of four."""
        _, width = self.size
        return (width * self.bits_per_pixel + 31) // 32 * 4


class _Channel(NamedTuple):
    """Where the bits of a colour are in a pixel, and which byte each of its values becomes."""

    shift: int  # how many lower bits the pixel has
    maximum: int  # the largest value of the colour
    bytes_by_value: np.ndarray  # 0 to 255 for each value from 0 to the maximum


def read_bmp(data: bytes, max_pixels: int) -> Pixels | None:
    """Decode a BMP of 16 bits per pixel, or whose header says which bits are red, green and blue.

    Args:
        data: The file.
        max_pixels: The maximum number of pixels.

    Returns:
        The image (H, W, 3) in blue, green and red; None for other BMPs, which OpenCV reads
        correctly.

    Raises:
        DecodeError: It is damaged or too large, or its bits have a form that is not read.
    """
    header = _read_header(data)
    if header is None:
        return None
    check_size(header.size, max_pixels)
    height, width = header.size
    require_bytes(data, header.start + height * header.bytes_per_row, "BMP")
    channels = []
    for mask in reversed(header.masks):  # blue, green, red
        channels.append(_channel_of(mask, header.bits_per_pixel))

    image: Pixels = np.empty((height, width, 3), np.uint8)
    rows_of_a_block = max(1, BLOCK_PIXELS // width)  # a few rows at a time take less memory
    for top in range(0, height, rows_of_a_block):
        bottom = min(top + rows_of_a_block, height)
        pixels = _read_rows(data, header, top, bottom)
        for index, channel in enumerate(channels):
            values = (pixels >> channel.shift) & channel.maximum
            image[top:bottom, :, index] = channel.bytes_by_value[values]
    if not header.is_top_down:
        image = np.ascontiguousarray(image[::-1])
    return image


def _read_header(data: bytes) -> _BmpHeader | None:
    """Read the header of a BMP of 16 bits per pixel or with bit fields.

    A file header is followed by an info header, whose first field is its own length. With bit
    fields, three masks follow: numbers in which the bits of red, green and blue are set.

    Returns:
        The header; None for other forms, which are left to OpenCV.

    Raises:
        DecodeError: The header is damaged, or the form is not read.
    """
    if len(data) < _FILE_HEADER_BYTES + _INFO.size:
        return None
    (pixels_start,) = struct.unpack_from("<I", data, _PIXELS_FIELD)
    info = _INFO.unpack_from(data, _FILE_HEADER_BYTES)
    header_bytes, width, height, _, bits_per_pixel, compression = info
    has_masks = compression in _BIT_FIELDS
    has_sixteen_bits = bits_per_pixel == 16 and compression == _UNCOMPRESSED
    is_form_read_here = has_masks or has_sixteen_bits
    if header_bytes in _OS2_HEADER_BYTES or not is_form_read_here:
        return None

    if bits_per_pixel not in {16, 32}:
        raise DecodeError(
            f"a BMP of {bits_per_pixel} bits a pixel with bit fields, which is not read", RESAVE
        )
    if width <= 0 or height == 0:
        raise DecodeError("a damaged BMP: it has no pixels", FETCH_AGAIN)
    masks = _FIFTEEN_BITS
    if has_masks:
        require_bytes(data, _MASKS_START + _MASKS.size, "BMP")
        masks = _MASKS.unpack_from(data, _MASKS_START)
    return _BmpHeader(
        size=(abs(height), width),
        is_top_down=height < 0,
        bits_per_pixel=bits_per_pixel,
        masks=masks,
        start=pixels_start,
    )


def _channel_of(mask: int, bits_per_pixel: int) -> _Channel:
    """Compute how to read a colour whose bits in a pixel are set in a mask.

    The mask 0b11111100000 is a colour of six bits above five others: a shift of 5, a maximum of 63.

    Raises:
        DecodeError: The bits of the mask are not adjacent, too many, or beyond the pixel.
    """
    bits = f"{mask:b}"
    colour_bits = bits.rstrip("0")
    is_contiguous = mask > 0 and "0" not in colour_bits
    is_short = len(colour_bits) <= LARGEST_MASK_BITS
    is_within_pixel = len(bits) <= bits_per_pixel
    if not (is_contiguous and is_short and is_within_pixel):
        raise DecodeError(
            f"a BMP whose bits of a colour are {mask:#x}, which are not read",
            RESAVE,
        )
    shift = len(bits) - len(colour_bits)
    maximum = mask >> shift
    values = np.arange(maximum + 1)
    scaled = (values * 255 + maximum // 2) // maximum  # values / maximum * 255, rounded
    return _Channel(shift, maximum, scaled.astype(np.uint8))


def _read_rows(data: bytes, header: _BmpHeader, top: int, bottom: int) -> np.ndarray:
    """Read the rows from `top` up to `bottom` of a BMP, in the order in which they are stored.

    Returns:
        The pixels (rows, width) as the file stores them, in numbers of 16 or 32 bits.
    """
    _, width = header.size
    pixel_type = np.dtype(f"<u{header.bits_per_pixel // 8}")
    row_count = bottom - top
    file_bytes = np.frombuffer(
        data,
        np.uint8,
        count=row_count * header.bytes_per_row,
        offset=header.start + top * header.bytes_per_row,
    )
    rows = file_bytes.reshape(row_count, header.bytes_per_row).view(pixel_type)
    return rows[:, :width]  # without the padding
