"""PNM and PAM whose maximum is not that of a byte or a word; the maximum is white.

OpenCV takes binary samples as they are, whatever the maximum; of PAM it swaps red and blue.
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
    size: Size
    samples: int  # of a pixel
    maximum: int  # what is white
    start: int  # of the samples in the file
    is_text: bool

    @property
    def sample_count(self) -> int:
        height, width = self.size
        return height * width * self.samples

    @property
    def bytes_per_sample(self) -> int:
        if self.maximum < 256:
            return 1
        return 2


def read_pnm(data: bytes, max_pixels: int) -> Pixels | None:
    """Decode a PAM, or a PGM or PPM of any maximum; None if OpenCV reads its form rightly."""
    if data[:2] in {b"P1", b"P4", b"PF", b"Pf"}:
        return None
    if data.startswith(b"P7"):
        header = _pam_header(data)
    else:
        header = _pnm_header(data)
        is_read_by_opencv = header.maximum in {255, 65535}
        is_text_up_to_255 = header.is_text and header.maximum < 255
        if is_read_by_opencv or is_text_up_to_255:
            return None
    check_size(header.size, max_pixels)
    if header.is_text:
        samples = _text_samples(data, header)
    else:
        samples = _binary_samples(data, header)
    return _as_colours(samples, header)


def has_second_image(data: bytes) -> bool:
    """Whether another image follows the first; those in text are not told apart."""
    try:
        end = _end_of_image(data)
    except DecodeError:  # which the decoder reports
        return False
    return end is not None and _NEXT_IMAGE.match(data, end) is not None


def _end_of_image(data: bytes) -> int | None:
    """Where a binary image ends; None of other kinds."""
    if data.startswith(b"P4"):
        bitmap = _BITMAP_HEADER.match(data, 0, MAX_HEADER_BYTES)
        if bitmap is None:
            return None
        width, height = int(bitmap[1]), int(bitmap[2])
        return bitmap.end() + height * -(-width // 8)
    if data.startswith((b"P5", b"P6")):
        header = _pnm_header(data)
    elif data.startswith(b"P7"):
        header = _pam_header(data)
    else:
        return None
    return header.start + header.sample_count * header.bytes_per_sample


def _damaged(reason: str) -> DecodeError:
    return DecodeError(f"a damaged PNM: {reason}", FETCH_AGAIN)


def _check(header: _PnmHeader) -> _PnmHeader:
    if not 0 < header.maximum <= LARGEST_MAXIMUM:
        raise _damaged(f"its maximum is {header.maximum}, and 1 to {LARGEST_MAXIMUM} are possible")
    if 0 in header.size:
        raise _damaged("it has no pixels")
    return header


def _pnm_header(data: bytes) -> _PnmHeader:
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
    return _check(header)


def _pam_header(data: bytes) -> _PnmHeader:
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
    return _check(header)


def _pam_fields(data: bytes) -> tuple[dict[str, str], int]:
    """The fields of a PAM's header up to the line ENDHDR, and where the samples start behind it.

    The values of a field that comes again are joined.
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
            fields[name] = f"{fields.get(name, '')} {value}".strip()


def _check_type(tuple_type: str, depth: int) -> None:
    """Refuse samples of which nothing says what they are."""
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
    sample_type = np.dtype(f">u{header.bytes_per_sample}")
    require_bytes(data, header.start + header.sample_count * header.bytes_per_sample, "PNM")
    return np.frombuffer(data, sample_type, header.sample_count, header.start)


def _text_samples(data: bytes, header: _PnmHeader) -> np.ndarray:
    """Numbers in decimal, with spaces between them."""
    # The shortest text has a digit and a space for each.
    require_bytes(data, header.start + 2 * header.sample_count - 1, "PNM")
    samples = np.empty(header.sample_count, np.uint16)
    filled = 0
    for numbers in _numbers(data[header.start :]):
        block = numbers[: header.sample_count - filled]
        if block.size and block.max() > header.maximum:
            raise _above(block.max(), header.maximum)
        samples[filled : filled + block.size] = block
        filled += block.size
        if filled == header.sample_count:
            return samples
    raise _damaged(
        f"{header.sample_count - filled} of its {header.sample_count} numbers are missing"
    )


def _numbers(text: bytes) -> Iterator[np.ndarray]:
    """The numbers of a text, in blocks."""
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


def _above(sample: int, maximum: int) -> DecodeError:
    return DecodeError(
        f"a damaged PNM: a sample is {sample}, above its maximum of {maximum}",
        "write the maximum of the samples into its header, or fetch it again",
    )


def _as_colours(samples: np.ndarray, header: _PnmHeader) -> Pixels:
    """Samples as bytes in blue, green and red, without alpha."""
    height, width = header.size
    pixels = samples.reshape(height, width, header.samples)
    byte_of_sample = _bytes_of_samples(header.maximum)
    if header.samples >= 3:
        order = [2, 1, 0]
    else:
        order = [0, 0, 0]

    image: Pixels = np.empty((height, width, 3), np.uint8)
    rows_of_a_block = max(1, BLOCK_SAMPLES // (width * header.samples))
    for top in range(0, height, rows_of_a_block):
        rows = pixels[top : top + rows_of_a_block]
        highest = int(rows.max())
        if highest > header.maximum:
            raise _above(highest, header.maximum)
        scaled = byte_of_sample[rows]
        image[top : top + rows_of_a_block] = scaled[..., order]
    return image


def _bytes_of_samples(maximum: int) -> np.ndarray:
    """The byte of each sample from 0 to the maximum, which is white."""
    samples = np.arange(maximum + 1)
    if maximum == LARGEST_MAXIMUM:
        return (samples >> 8).astype(np.uint8)  # as OpenCV has them in other formats
    return ((samples * 255 + maximum // 2) // maximum).astype(np.uint8)
