"""BMP files of 16 bits a pixel, and those whose header says which bits are red, green and blue.

OpenCV takes the bits of the commonest order, whatever the header says.
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
_OS2_HEADER_BYTES = frozenset({12, 16, 64})  # whose compression 3 is another one
_MASKS_START = _FILE_HEADER_BYTES + 40
_FIFTEEN_BITS = (0x7C00, 0x03E0, 0x001F)  # red, green and blue of 16 bits where nothing says so


@frozen
class _BmpHeader:
    size: Size
    is_top_down: bool
    bits_per_pixel: int
    masks: tuple[int, int, int]  # of red, green and blue
    start: int  # of the pixels in the file

    @property
    def bytes_per_row(self) -> int:
        _, width = self.size
        return (width * self.bits_per_pixel + 31) // 32 * 4


class _Channel(NamedTuple):
    """Where the bits of a colour are, and the byte of each of its values."""

    shift: int
    maximum: int
    bytes_of: np.ndarray


def read_bmp(data: bytes, max_pixels: int) -> Pixels | None:
    """Decode 16 bits a pixel and bit fields; None if OpenCV reads the form rightly."""
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
    rows_of_a_block = max(1, BLOCK_PIXELS // width)
    for top in range(0, height, rows_of_a_block):
        bottom = min(top + rows_of_a_block, height)
        pixels = _pixels(data, header, top, bottom)
        for index, channel in enumerate(channels):
            values = (pixels >> channel.shift) & channel.maximum
            image[top:bottom, :, index] = channel.bytes_of[values]
    if not header.is_top_down:
        image = np.ascontiguousarray(image[::-1])
    return image


def _read_header(data: bytes) -> _BmpHeader | None:
    """The header of a form that is read here."""
    if len(data) < _FILE_HEADER_BYTES + _INFO.size:
        return None
    (start,) = struct.unpack_from("<I", data, 10)
    fields = _INFO.unpack_from(data, _FILE_HEADER_BYTES)
    header_bytes, width, height, _, bits, compression = fields
    if header_bytes in _OS2_HEADER_BYTES:
        return None
    has_masks = compression in _BIT_FIELDS
    if not has_masks and (bits != 16 or compression != _UNCOMPRESSED):
        return None
    if bits not in {16, 32}:
        raise DecodeError(
            f"a BMP of {bits} bits a pixel with bit fields, which is not read", RESAVE
        )
    if width <= 0 or height == 0:
        raise DecodeError("a damaged BMP: it has no pixels", FETCH_AGAIN)
    masks = _FIFTEEN_BITS
    if has_masks:
        require_bytes(data, _MASKS_START + 12, "BMP")
        masks = struct.unpack_from("<3I", data, _MASKS_START)
    return _BmpHeader(
        size=(abs(height), width),
        is_top_down=height < 0,
        bits_per_pixel=bits,
        masks=masks,
        start=start,
    )


def _channel_of(mask: int, bits_per_pixel: int) -> _Channel:
    shift = (mask & -mask).bit_length() - 1
    maximum = mask >> max(shift, 0)
    is_contiguous = mask > 0 and maximum & (maximum + 1) == 0
    is_short = maximum.bit_length() <= LARGEST_MASK_BITS
    is_within_pixel = mask.bit_length() <= bits_per_pixel
    if not (is_contiguous and is_short and is_within_pixel):
        raise DecodeError(
            f"a BMP whose bits of a colour are {mask:#x}, which are not read",
            RESAVE,
        )
    values = np.arange(maximum + 1)
    scaled = (values * 255 + maximum // 2) // maximum
    return _Channel(shift, maximum, scaled.astype(np.uint8))


def _pixels(data: bytes, header: _BmpHeader, top: int, bottom: int) -> np.ndarray:
    """Some rows (height, width) of the file, in its order."""
    _, width = header.size
    pixel_type = np.dtype(f"<u{header.bits_per_pixel // 8}")
    rows = np.frombuffer(
        data,
        np.uint8,
        count=(bottom - top) * header.bytes_per_row,
        offset=header.start + top * header.bytes_per_row,
    )
    lines = rows.reshape(bottom - top, header.bytes_per_row).view(pixel_type)
    return lines[:, :width]
