"""TIFF: which forms are read, and how OpenCV is asked for each."""

from enum import Enum, auto
from typing import NamedTuple

from detcli.core import frozen

# Values of the field PhotometricInterpretation.
MIN_IS_WHITE, MIN_IS_BLACK, RGB, PALETTE, CMYK, YCBCR, LAB = 0, 1, 2, 3, 5, 6, 8

# Values of the field SampleFormat.
UNSIGNED, SIGNED, FLOAT, UNDEFINED = 1, 2, 3, 4

# Values of the field Compression: none, LZW, JPEG, both numbers of Deflate, PackBits.
_COMPRESSIONS = frozenset({1, 5, 7, 8, 32946, 32773})
_FAX = frozenset({2, 3, 4, 32771})  # only for 1 bit per pixel


class TiffDecoding(Enum):
    """What OpenCV is asked for, so that it returns the right pixels of a TIFF."""

    COLOURS = auto()  # as colours
    COLOURS_AS_STORED = auto()  # as colours, and as if they were already multiplied by alpha
    VALUES = auto()  # as the values that are stored
    LAB = auto()  # as if lightness and two colour axes were red, green and blue
    FIRST_PLANE = auto()  # the first plane as grey, without the others
    THREE_PLANES = auto()  # each of three planes as grey


class TiffForm(NamedTuple):
    """How the pixels of a TIFF are stored, where it makes a difference to OpenCV."""

    photometric: int  # the colour space, as the field PhotometricInterpretation numbers it
    bits: int  # of a sample
    sample_format: int
    samples: int  # of a pixel
    has_planes: bool  # whether each sample of a pixel is in a separate plane
    has_cut_tiles: bool  # tiles reach beyond the right edge
    compression: int


@frozen
class TiffFormRow:
    """A row of the table `FORMS`: forms of TIFF that OpenCV is asked for in the same way.

    A form belongs to this row if each of its properties is among those listed here.
    """

    name: str
    decoding: TiffDecoding
    photometrics: frozenset[int]
    bits: frozenset[int]
    samples: range
    sample_formats: frozenset[int] = frozenset({UNSIGNED, UNDEFINED})
    has_planes: bool | None = None  # None for either
    has_cut_tiles: bool | None = None
    compressions: frozenset[int] = _COMPRESSIONS

    def fits(self, form: TiffForm) -> bool:
        """Whether a form belongs to this row of the table."""
        return (
            form.photometric in self.photometrics
            and form.bits in self.bits
            and form.samples in self.samples
            and form.sample_format in self.sample_formats
            and self.has_planes in {None, form.has_planes}
            and self.has_cut_tiles in {None, form.has_cut_tiles}
            and form.compression in self.compressions
        )


_GREY = frozenset({MIN_IS_WHITE, MIN_IS_BLACK})
_ONE_SAMPLE = range(1, 2)
_WIDE = frozenset({32, 64})
_NUMBERS = frozenset({UNSIGNED, SIGNED, FLOAT})

FORMS = (
    TiffFormRow(
        name="black and white",
        decoding=TiffDecoding.COLOURS,
        photometrics=_GREY,
        bits=frozenset({1}),
        samples=_ONE_SAMPLE,
        compressions=_COMPRESSIONS | _FAX,
    ),
    TiffFormRow(
        name="grey",
        decoding=TiffDecoding.COLOURS,
        photometrics=_GREY,
        bits=frozenset({8}),
        samples=_ONE_SAMPLE,
    ),
    TiffFormRow(
        name="grey of 16 bits",
        decoding=TiffDecoding.COLOURS,
        photometrics=_GREY,
        bits=frozenset({16}),
        samples=_ONE_SAMPLE,
        has_cut_tiles=False,
    ),
    TiffFormRow(
        name="grey of 16 bits, of which libtiff misreads cut tiles",
        decoding=TiffDecoding.VALUES,
        photometrics=_GREY,
        bits=frozenset({16}),
        samples=_ONE_SAMPLE,
        has_cut_tiles=True,
    ),
    TiffFormRow(
        name="grey with alpha or more",
        decoding=TiffDecoding.COLOURS,
        photometrics=_GREY,
        bits=frozenset({8, 16}),
        samples=range(2, 5),
        has_planes=False,
        has_cut_tiles=False,
    ),
    TiffFormRow(
        name="grey with alpha or more in planes",
        decoding=TiffDecoding.FIRST_PLANE,
        photometrics=_GREY,
        bits=frozenset({8, 16}),
        samples=range(2, 5),
        has_planes=True,
    ),
    TiffFormRow(
        name="the same of wide integers or floating point numbers",
        decoding=TiffDecoding.FIRST_PLANE,
        photometrics=_GREY,
        bits=_WIDE,
        samples=range(2, 5),
        sample_formats=_NUMBERS,
        has_planes=True,
    ),
    TiffFormRow(
        name="colours",
        decoding=TiffDecoding.COLOURS,
        photometrics=frozenset({RGB}),
        bits=frozenset({8, 16}),
        samples=range(3, 4),
    ),
    TiffFormRow(
        name="colours with alpha",
        decoding=TiffDecoding.COLOURS_AS_STORED,
        photometrics=frozenset({RGB}),
        bits=frozenset({8, 16}),
        samples=range(4, 5),
    ),
    TiffFormRow(
        name="grey of wide integers or floating point numbers",
        decoding=TiffDecoding.VALUES,
        photometrics=_GREY,
        bits=_WIDE,
        samples=_ONE_SAMPLE,
        sample_formats=_NUMBERS,
    ),
    TiffFormRow(
        name="colours of wide integers or floating point numbers, with alpha or without",
        decoding=TiffDecoding.VALUES,
        photometrics=frozenset({RGB}),
        bits=_WIDE,
        samples=range(3, 5),
        sample_formats=_NUMBERS,
        has_planes=False,
    ),
    TiffFormRow(
        name="the same in planes",
        decoding=TiffDecoding.THREE_PLANES,
        photometrics=frozenset({RGB}),
        bits=_WIDE,
        samples=range(3, 5),
        sample_formats=_NUMBERS,
        has_planes=True,
    ),
    TiffFormRow(
        name="a palette",
        decoding=TiffDecoding.COLOURS,
        photometrics=frozenset({PALETTE}),
        bits=frozenset({8}),
        samples=_ONE_SAMPLE,
    ),
    TiffFormRow(
        name="a palette with alpha",
        decoding=TiffDecoding.COLOURS,
        photometrics=frozenset({PALETTE}),
        bits=frozenset({8}),
        samples=range(2, 3),
        has_planes=False,
        has_cut_tiles=False,
    ),
    TiffFormRow(
        name="CMYK",
        decoding=TiffDecoding.COLOURS,
        photometrics=frozenset({CMYK}),
        bits=frozenset({8}),
        samples=range(4, 5),
    ),
    TiffFormRow(
        name="YCbCr",
        decoding=TiffDecoding.COLOURS,
        photometrics=frozenset({YCBCR}),
        bits=frozenset({8}),
        samples=range(3, 4),
    ),
    TiffFormRow(
        name="CIE L*a*b*, for which libtiff takes another white than writers",
        decoding=TiffDecoding.LAB,
        photometrics=frozenset({LAB}),
        bits=frozenset({8}),
        samples=range(3, 4),
    ),
)
"""What is read, and how; what is in no row is refused."""


def decoding_of(form: TiffForm) -> TiffDecoding | None:
    """Look up in `FORMS` how images of a form are read; None if the form is refused."""
    for row in FORMS:
        if row.fits(form):
            return row.decoding
    return None
