"""PNM and PAM whose maximum is not that of a byte or a word; the maximum is white.

OpenCV takes binary samples as they are, whatever the maximum; in PAM it swaps red and blue.
"""

import re
from collections.abc import Iterator

import numpy as np

from detcli.core import frozen
from detcli.core.errors import DecodeError
from detcli.data.geometry import Pixels, Size
from detcli.source.limits import FETCH_AGAIN, RESAVE, check_size, require_bytes

MAX_HEADER_BYTES = 1 << 16
LARGEST_MAXIMUM = 65535
BLOCK_SAMPLES = 1 << 20
"""How many samples are scaled at a time: an index array takes 8 bytes for each."""
BLOCK_BYTES = 1 << 18
"""How much text is taken at a time: a word takes some 40 bytes."""
MAX_DIGITS = 9

# A kind, width, height and maximum, with spaces and comments between them.
_SEPARATOR = rb"(?:\s|#[^\n\r]*[\n\r])+"
_HEADER = re.compile(rb"P([2356])" + 3 * (_SEPARATOR + rb"(\d{1,10})") + rb"\s")
_BITMAP_HEADER = re.compile(rb"P4" + 2 * (_SEPARATOR + rb"(\d{1,10})") + rb"\s")
_NEXT_IMAGE = re.compile(rb"P[1-7]\s")
_COMMENT = re.compile(rb"#[^\n\r]*")
_SPACE = re.compile(rb"\s")
_NO_NUMBER = re.compile(rb"[^\d\s]")
_TEXT_KINDS = frozenset({2, 3})
_COLOUR_KINDS = frozenset({3, 6})

SAMPLES_OF_TYPES = {
    "BLACKANDWHITE": 1,
    "BLACKANDWHITE_ALPHA": 2,
    "GRAYSCALE": 1,
    "GRAYSCALE_ALPHA": 2,
    "RGB": 3,
    "RGB_ALPHA": 4,
}
"""Samples of a pixel by the tuple type of a PAM."""


@frozen
class _PnmHeader:
    """What the header of a PGM, PPM or PAM says about its samples, the values of its pixels."""

    size: Size
    samples: int  # samples per pixel: 1 is grey, 3 is colours, one more is alpha
    maximum: int  # the sample that is white
    start: int  # offset of the samples in the file
    is_text: bool  # samples are in decimal, not in binary

    @property
    def sample_count(self) -> int:
        """The number of samples of the whole image."""
        height, width = self.size
        return height * width * self.samples

    @property
    def bytes_per_sample(self) -> int:
        """The length of a binary sample, which depends on the maximum."""
        if self.maximum < 256:
            return 1
        return 2


def read_pnm(data: bytes, max_pixels: int) -> Pixels | None:
    """Decode an image of the PNM family for which OpenCV would make wrong pixels.

    The header of a PGM or PPM says which sample is white, its maximum. OpenCV always takes 255 or
    65535 for white, the highest number of one byte or two; only in text does it heed a maximum
    below 255. In a PAM, OpenCV swaps red and blue.

    Args:
        data: The file, which begins with P and a digit or letter.
        max_pixels: The maximum number of pixels.

    Returns:
        The image (H, W, 3) in blue, green and red; None if OpenCV makes the right pixels from it.

    Raises:
        DecodeError: The file is damaged or too large, or its kind is not read.
    """
    is_bitmap_or_floats = data[:2] in {b"P1", b"P4", b"PF", b"Pf"}  # these have no maximum
    if is_bitmap_or_floats:
        return None
    is_pam = data.startswith(b"P7")
    if is_pam:
        header = _pam_header(data)
    else:
        header = _pnm_header(data)
        has_largest_maximum = header.maximum in {255, 65535}
        is_text_below_255 = header.is_text and header.maximum < 255
        if has_largest_maximum or is_text_below_255:
            return None
    check_size(header.size, max_pixels)
    if header.is_text:
        samples = _text_samples(data, header)
    else:
        samples = _binary_samples(data, header)
    return _as_colours(samples, header)


def has_second_image(data: bytes) -> bool:
    """Whether another image follows the first in a binary PNM file.

    Images in text have no definite end, so a second one is not noticed there.
    """
    try:
        end = _end_of_image(data)
    except DecodeError:  # the decoder reports it
        return False
    return end is not None and _NEXT_IMAGE.match(data, end) is not None


def _end_of_image(data: bytes) -> int | None:
    """Find where the first image of a binary PNM file ends; None for other files.

    Raises:
        DecodeError: The header is damaged.
    """
    if data.startswith(b"P4"):
        bitmap = _BITMAP_HEADER.match(data, 0, MAX_HEADER_BYTES)
        if bitmap is None:
            return None
        width, height = int(bitmap[1]), int(bitmap[2])
        bytes_per_row = -(-width // 8)  # eight pixels in a byte; width / 8, rounded up
        return bitmap.end() + height * bytes_per_row
    if data.startswith((b"P5", b"P6")):
        header = _pnm_header(data)
    elif data.startswith(b"P7"):
        header = _pam_header(data)
    else:
        return None
    return header.start + header.sample_count * header.bytes_per_sample


def _damaged(reason: str) -> DecodeError:
    """Make the error for a damaged file."""
    return DecodeError(f"a damaged PNM: {reason}", FETCH_AGAIN)


def _require_valid(header: _PnmHeader) -> _PnmHeader:
    """Return a header if its maximum and its size are possible.

    Raises:
        DecodeError: They are not.
    """
    if not 0 < header.maximum <= LARGEST_MAXIMUM:
        raise _damaged(f"its maximum is {header.maximum}, and 1 to {LARGEST_MAXIMUM} are possible")
    if 0 in header.size:
        raise _damaged("it has no pixels")
    return header


def _pnm_header(data: bytes) -> _PnmHeader:
    """Read the header of a PGM or PPM: its kind, width, height and maximum.

    The kinds P2 and P3 are grey and colours in text, P5 and P6 the same in binary.

    Raises:
        DecodeError: It is damaged.
    """
    match = _HEADER.match(data, 0, MAX_HEADER_BYTES)
    if match is None:
        raise _damaged("its header has no size and maximum")
    kind = int(match[1])
    width = int(match[2])
    height = int(match[3])
    maximum = int(match[4])
    samples = 1
    if kind in _COLOUR_KINDS:
        samples = 3
    header = _PnmHeader(
        size=(height, width),
        samples=samples,
        maximum=maximum,
        start=match.end(),
        is_text=kind in _TEXT_KINDS,
    )
    return _require_valid(header)


def _pam_header(data: bytes) -> _PnmHeader:
    """Read the header of a PAM, which has a line for each of its fields, such as `WIDTH 640`.

    Raises:
        DecodeError: It is damaged, or of a kind that is not read.
    """
    fields, start = _pam_fields(data)
    numbers = {}
    for name in ("WIDTH", "HEIGHT", "DEPTH", "MAXVAL"):
        text = fields.get(name, "")
        if not re.fullmatch("[0-9]{1,10}", text):
            raise _damaged(f"its header has no {name}")
        numbers[name] = int(text)
    _check_type(fields.get("TUPLTYPE", ""), numbers["DEPTH"])
    header = _PnmHeader(
        size=(numbers["HEIGHT"], numbers["WIDTH"]),
        samples=numbers["DEPTH"],
        maximum=numbers["MAXVAL"],
        start=start,
        is_text=False,
    )
    return _require_valid(header)


def _pam_fields(data: bytes) -> tuple[dict[str, str], int]:
    """Read the fields in the header of a PAM, up to the line ENDHDR.

    The values of a repeated field are joined with a space, as the format requires.

    Returns:
        The value of each field by its name, and where the samples start after the header.

    Raises:
        DecodeError: There is no such line.
    """
    fields: dict[str, str] = {}
    start = data.find(b"\n") + 1
    while True:
        end = data.find(b"\n", start, MAX_HEADER_BYTES)
        if start == 0 or end < 0:
            raise _damaged("its header has no end")
        line = data[start:end].decode("latin-1").strip()
        start = end + 1
        if line == "ENDHDR":
            return fields, start
        if line and not line.startswith("#"):
            name, _, value = line.partition(" ")
            previous_value = fields.get(name, "")
            fields[name] = f"{previous_value} {value}".strip()


def _check_type(tuple_type: str, depth: int) -> None:
    """Refuse a PAM whose header does not say which colour each sample of a pixel is.

    Args:
        tuple_type: The name of what a pixel is, such as RGB_ALPHA; empty if there is none.
        depth: How many samples a pixel has.

    Raises:
        DecodeError: The type is missing or unknown, or has a different number of samples.
    """
    if not tuple_type and depth in {1, 2}:  # grey, and alpha
        return
    if not tuple_type:
        raise DecodeError(
            f"a PAM of {depth} samples a pixel without a tuple type: nothing says which is red",
            "add the line TUPLTYPE RGB or TUPLTYPE RGB_ALPHA to its header",
        )
    if SAMPLES_OF_TYPES.get(tuple_type) != depth:
        raise DecodeError(
            f"a PAM of the tuple type {tuple_type[:40]} with {depth} samples a pixel, "
            "which is not read",
            RESAVE,
        )


def _binary_samples(data: bytes, header: _PnmHeader) -> np.ndarray:
    """Read binary samples, of one byte or of two with the higher first; a flat array.

    Raises:
        DecodeError: Some are missing.
    """
    sample_type = np.dtype(f">u{header.bytes_per_sample}")
    require_bytes(data, header.start + header.sample_count * header.bytes_per_sample, "PNM")
    return np.frombuffer(data, sample_type, header.sample_count, header.start)


def _text_samples(data: bytes, header: _PnmHeader) -> np.ndarray:
    """Read samples that are written in decimal, with spaces between them.

    Numbers after the last sample are ignored.

    Returns:
        The samples of the whole image, `(sample_count,)` uint16.

    Raises:
        DecodeError: Samples are missing, a sample is above the maximum, or something else is
            between the numbers.
    """
    # The shortest text has a digit and a space for each sample, and no space after the last one.
    require_bytes(data, header.start + 2 * header.sample_count - 1, "PNM")
    samples = np.empty(header.sample_count, np.uint16)
    read_count = 0
    for numbers in _read_numbers(data[header.start :]):
        missing_count = header.sample_count - read_count
        block = numbers[:missing_count]
        if block.size and block.max() > header.maximum:
            raise _too_bright(block.max(), header.maximum)
        samples[read_count : read_count + block.size] = block
        read_count += block.size
        if read_count == header.sample_count:
            return samples
    raise _damaged(
        f"{header.sample_count - read_count} of its {header.sample_count} numbers are missing"
    )


def _read_numbers(text: bytes) -> Iterator[np.ndarray]:
    """Yield the decimal numbers in `text` in blocks, so that long text needs little memory.

    Comments, from # to the end of a line, are left out.

    Raises:
        DecodeError: Something else is between the numbers, or one has too many digits.
    """
    if b"#" in text:
        text = _COMMENT.sub(b" ", text)
    start = 0
    while start < len(text):
        space = _SPACE.search(text, start + BLOCK_BYTES)
        end = len(text)
        if space is not None:
            end = space.end()
        block = text[start:end]
        start = end
        if _NO_NUMBER.search(block):
            raise _damaged("there is something else between its numbers")
        words = block.split()
        if any(len(word) > MAX_DIGITS for word in words):
            raise _damaged(f"a number has more than {MAX_DIGITS} digits")
        yield np.array(words, dtype=f"S{MAX_DIGITS}").astype(np.int64)


def _too_bright(sample: int, maximum: int) -> DecodeError:
    """Make the error for an image with a sample above its maximum, which is white."""
    return DecodeError(
        f"a damaged PNM: a sample is {sample}, above its maximum of {maximum}",
        "write the maximum of the samples into its header, or fetch it again",
    )


def _as_colours(samples: np.ndarray, header: _PnmHeader) -> Pixels:
    """Scale samples to bytes and put them in the order blue, green, red; alpha is dropped.

    Args:
        samples: All samples of the image, one after the other.
        header: Its size, the samples of a pixel, and the maximum, which becomes 255.

    Returns:
        The image (H, W, 3).

    Raises:
        DecodeError: A sample is above the maximum.
    """
    height, width = header.size
    pixels = samples.reshape(height, width, header.samples)
    byte_of_sample = _bytes_of_samples(header.maximum)
    if header.samples >= 3:
        channels = [2, 1, 0]  # they are stored as red, green, blue
    else:
        channels = [0, 0, 0]  # grey

    image: Pixels = np.empty((height, width, 3), np.uint8)
    rows_of_a_block = max(1, BLOCK_SAMPLES // (width * header.samples))
    for top in range(0, height, rows_of_a_block):
        rows = pixels[top : top + rows_of_a_block]
        highest = int(rows.max())
        if highest > header.maximum:
            raise _too_bright(highest, header.maximum)
        scaled = byte_of_sample[rows]
        image[top : top + rows_of_a_block] = scaled[..., channels]
    return image


def _bytes_of_samples(maximum: int) -> np.ndarray:
    """Compute the byte, 0 to 255, that each sample from 0 to the maximum becomes."""
    samples = np.arange(maximum + 1)
    if maximum == LARGEST_MAXIMUM:
        return (samples >> 8).astype(np.uint8)  # the higher byte, as OpenCV takes it
    scaled = (samples * 255 + maximum // 2) // maximum  # samples / maximum * 255, rounded
    return scaled.astype(np.uint8)
