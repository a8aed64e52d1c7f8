# mypy: disable-error-code="arg-type, no-untyped-call"
"""Images of Pillow are what their files are when they are read by path."""

import io

import cv2
import numpy as np
import pytest
from PIL import Image as PillowImage
from PIL import ImageCms, ImageOps
from source.image_forms import ALPHA, BLACK_AND_WHITE, GREY, RGB

from detcli.core.errors import DecodeError
from detcli.data.geometry import Image
from detcli.source.decode import load_bytes
from detcli.source.pillow import is_pillow_image, read_pillow

ORIENTATION = 0x0112
"""The tag of the orientation in EXIF."""

WIDE_GREY = np.multiply(GREY, 257, dtype=np.uint16) + ALPHA


def pillow_of_mode(mode):
    """Make an image of Pillow in a mode, from colours or grey of many values."""
    colours = PillowImage.fromarray(RGB)
    if mode == "1":
        return PillowImage.fromarray(BLACK_AND_WHITE)
    if mode == "I;16":
        return PillowImage.fromarray(WIDE_GREY)
    if mode == "I":
        return PillowImage.fromarray(GREY.astype(np.int32))
    if mode == "F":
        return PillowImage.fromarray(GREY.astype(np.float32) / 255)
    if mode == "CMYK":
        black = np.minimum(GREY, ALPHA)
        return PillowImage.fromarray(np.dstack([RGB, black]), "CMYK")
    if mode == "LAB":
        srgb = ImageCms.createProfile("sRGB")
        lab = ImageCms.createProfile("LAB")
        return ImageCms.profileToProfile(colours, srgb, lab, outputMode="LAB")
    converted = colours.convert(mode)
    if mode in {"LA", "RGBA"}:
        converted.putalpha(PillowImage.fromarray(ALPHA))
    return converted


def file_of(image, file_format, **options):
    buffer = io.BytesIO()
    image.save(buffer, file_format, **options)
    return buffer.getvalue()


def assert_read_as_its_file(data):
    """Read a file by Pillow and by its bytes, and compare all pixels; return Pillow's image."""
    opened = PillowImage.open(io.BytesIO(data))
    image = read_pillow(opened)
    by_bytes = load_bytes(data)
    assert image.size == by_bytes.size
    assert np.array_equal(image.pixels, by_bytes.pixels)
    assert image.pixels.flags.c_contiguous
    return opened


@pytest.mark.parametrize(
    ("mode", "file_format"),
    [
        ("1", "PNG"),
        ("1", "TIFF"),
        ("L", "JPEG"),
        ("L", "PNG"),
        ("LA", "PNG"),
        ("P", "BMP"),
        ("P", "GIF"),
        ("P", "PNG"),
        ("P", "TIFF"),
        ("PA", "TIFF"),
        ("RGB", "JPEG"),
        ("RGB", "PNG"),
        ("RGBA", "PNG"),
        ("RGBA", "TIFF"),
        ("RGBA", "WEBP"),
        ("I;16", "PNG"),
        ("I;16", "TIFF"),
        ("I;16", "JPEG2000"),
        ("I", "TIFF"),
        ("F", "TIFF"),
        ("F", "PPM"),
        ("CMYK", "JPEG"),
        ("CMYK", "TIFF"),
        ("YCbCr", "TIFF"),
        ("LAB", "TIFF"),
    ],
)
def test_each_mode_is_read_as_its_file(mode, file_format):
    image = pillow_of_mode(mode)
    assert image.mode == mode
    opened = assert_read_as_its_file(file_of(image, file_format))
    assert opened.mode == mode


def test_a_pgm_of_16_bits_is_read_as_its_file():
    opened = assert_read_as_its_file(file_of(pillow_of_mode("I;16"), "PPM"))
    assert opened.mode == "I"


def test_numbers_with_the_higher_byte_first_are_read():
    big_endian = WIDE_GREY.astype(">u2").tobytes()
    height, width = WIDE_GREY.shape
    image = PillowImage.frombytes("I;16B", (width, height), big_endian)
    assert np.array_equal(read_pillow(image).pixels[..., 0], WIDE_GREY >> 8)


@pytest.mark.parametrize("transparency", [3, bytes(range(256))])
def test_a_palette_with_transparent_colours_is_read_as_its_file(transparency):
    data = file_of(pillow_of_mode("P"), "PNG", transparency=transparency)
    opened = assert_read_as_its_file(data)
    assert "transparency" in opened.info


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_an_image_is_turned_as_its_file_is(file_format, orientation):
    exif = PillowImage.Exif()
    exif[ORIENTATION] = orientation
    data = file_of(PillowImage.fromarray(RGB), file_format, exif=exif)
    assert_read_as_its_file(data)


def test_an_image_that_pillow_has_turned_stays():
    exif = PillowImage.Exif()
    exif[ORIENTATION] = 6
    data = file_of(PillowImage.fromarray(RGB), "PNG", exif=exif)
    opened = PillowImage.open(io.BytesIO(data))
    expected = load_bytes(data).pixels
    assert np.array_equal(read_pillow(ImageOps.exif_transpose(opened)).pixels, expected)
    assert np.array_equal(read_pillow(opened.copy()).pixels, expected)
    assert np.array_equal(read_pillow(opened.convert("RGBA")).pixels, expected)


def test_metadata_that_are_no_exif_turn_nothing():
    image = PillowImage.fromarray(RGB)
    for exif in (b"", b"II*\0", "a text", None):
        image.info["exif"] = exif
        assert np.array_equal(read_pillow(image).pixels, RGB[..., ::-1])


@pytest.mark.parametrize("value", [300, -5])
@pytest.mark.parametrize("mode", ["I", "F"])
def test_numbers_that_are_neither_bytes_nor_fractions_are_refused(mode, value):
    image = PillowImage.new(mode, (8, 8), value)
    with pytest.raises(DecodeError, match="64 of its 64 values are not from 0 to 1") as caught:
        read_pillow(image)
    assert "8 or 16 bits" in caught.value.hint


@pytest.mark.parametrize("mode", ["RGBa", "La"])
def test_a_mode_that_no_file_has_is_refused(mode):
    with_alpha = pillow_of_mode(mode.upper())
    with pytest.raises(ValueError, match=f"in mode {mode} .* convert it"):
        read_pillow(with_alpha.convert(mode))


def test_an_image_without_pixels_is_refused():
    with pytest.raises(ValueError, match="must have pixels"):
        read_pillow(PillowImage.new("RGB", (0, 4)))


def test_a_damaged_file_is_refused():
    data = file_of(PillowImage.fromarray(RGB), "PNG")
    opened = PillowImage.open(io.BytesIO(data[: len(data) // 2]))
    with pytest.raises(DecodeError, match="cannot be decoded by Pillow: ") as caught:
        read_pillow(opened)
    assert caught.value.hint == "fetch it again"


def test_the_image_of_a_plugin_is_one_of_pillow():
    class PluginImage(PillowImage.Image):
        """An image of a class that is not in Pillow, as plugins for further formats have."""

    image = PluginImage()
    image.im = PillowImage.fromarray(RGB).im
    image._mode = "RGB"  # noqa: SLF001 - as plugins do
    image._size = (RGB.shape[1], RGB.shape[0])  # noqa: SLF001
    assert is_pillow_image(image)
    assert np.array_equal(read_pillow(image).pixels, RGB[..., ::-1])


def test_only_images_of_pillow_are_images_of_pillow():
    assert is_pillow_image(PillowImage.fromarray(RGB))
    assert not is_pillow_image(RGB)
    assert not is_pillow_image("a.png")
    assert not is_pillow_image(None)
    assert not is_pillow_image(Image.whole(RGB))
    assert not is_pillow_image(cv2)
