"""From bytes to upright pictures in colour, or an error."""

import contextlib
import io
import os
import struct
import sys
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest

from detcli.errors import DecodeError, SourceError
from detcli.opencv import silence_opencv
from detcli.stream.decode import decode, decode_bytes
from detcli.stream.source import Item

# Format and the greatest difference of a value that it makes.
FORMATS = {
    "jpg": 8, "png": 0, "webp": 0, "bmp": 0, "tiff": 0, "avif": 20, "gif": 90, "jp2": 2, "ppm": 0,
}  # fmt: skip
RED, GREEN, BLUE, WHITE = (0, 0, 255), (0, 255, 0), (255, 0, 0), (255, 255, 255)


def encode(suffix, image, *options):
    encoded, data = cv2.imencode(f".{suffix}", image, options)
    assert encoded
    return data.tobytes()


def gradient(height=40, width=56):
    y, x = np.mgrid[:height, :width]
    return np.stack([x * 255 // width, y * 255 // height, (x + y) % 256], -1).astype(np.uint8)


def png(width, height, kind, pixels, **chunks):
    """A PNG file of 8 bits; `kind` is its colour type."""
    header = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    parts = {"IHDR": header, **chunks, "IDAT": zlib.compress(pixels), "IEND": b""}
    file = b"\x89PNG\r\n\x1a\n"
    for name, data in parts.items():
        body = name.encode() + data
        file += struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))
    return file


def with_orientation(jpeg, orientation, order):
    """Put an APP1 segment with one EXIF field behind the start of a JPEG file."""
    entry = struct.pack(f"{order}HHIHHI", 0x112, 3, 1, orientation, 0, 0)
    tiff = {"<": b"II", ">": b"MM"}[order] + struct.pack(f"{order}HIH", 42, 8, 1) + entry
    exif = b"Exif\0\0" + tiff
    return jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + jpeg[2:]


def assert_close(image, expected, tolerance=0):
    assert (image.shape, image.dtype) == (expected.shape, np.uint8)
    difference = np.abs(image.astype(int) - expected)
    assert difference.max() <= tolerance


@pytest.mark.parametrize(("suffix", "tolerance"), FORMATS.items())
def test_formats_are_decoded_in_blue_green_red(suffix, tolerance):
    image = np.full((40, 56, 3), RED, np.uint8)
    image[:, 28:] = BLUE
    assert_close(decode_bytes(encode(suffix, image))[:, :24], image[:, :24], tolerance)
    assert_close(decode_bytes(encode(suffix, gradient())), gradient(), tolerance)


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "bmp", "tiff", "avif", "jp2"])
def test_grey_becomes_colour(suffix):
    grey = gradient()[..., 0].copy()
    expected = np.repeat(grey[..., None], 3, -1)
    assert_close(decode_bytes(encode(suffix, grey)), expected, 8)


@pytest.mark.parametrize("suffix", ["png", "webp", "tiff", "bmp"])
def test_transparency_is_dropped(suffix):
    image = np.dstack([gradient(), np.full((40, 56), 100, np.uint8)])
    assert_close(decode_bytes(encode(suffix, image)), gradient())


@pytest.mark.parametrize("suffix", ["png", "tiff", "ppm"])
def test_sixteen_bits_become_eight(suffix):
    deep = gradient().astype(np.uint16) * 257
    assert_close(decode_bytes(encode(suffix, deep)), gradient())


def test_grey_with_transparency():
    data = png(2, 1, 4, bytes([0, 10, 255, 200, 0]))
    assert decode_bytes(data).tolist() == [[[10] * 3, [200] * 3]]


@pytest.mark.parametrize("chunks", [{}, {"tRNS": b"\0\xff"}])
def test_a_palette_becomes_colour(chunks):
    data = png(2, 1, 3, bytes([0, 1, 0]), PLTE=bytes([1, 2, 3, 255, 128, 0]), **chunks)
    assert decode_bytes(data).tolist() == [[[0, 128, 255], [3, 2, 1]]]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_floating_point_is_refused_or_right(dtype):
    try:
        image = decode_bytes(encode("tiff", gradient().astype(dtype)))
    except DecodeError as error:
        assert "no picture" in str(error)  # noqa: PT017 - either will do
    else:
        assert_close(image, gradient())


@pytest.mark.parametrize("size", [(1, 1), (1, 5000), (5000, 1), (3000, 4000)])
@pytest.mark.parametrize("suffix", ["jpg", "png"])
def test_any_size_is_decoded(suffix, size):
    image = np.full((*size, 3), (200, 100, 50), np.uint8)
    assert_close(decode_bytes(encode(suffix, image)), image, 3)


UPRIGHT = {
    1: lambda image: image,
    2: np.fliplr,
    3: lambda image: np.rot90(image, 2),
    4: np.flipud,
    5: lambda image: image.swapaxes(0, 1),
    6: lambda image: np.rot90(image, -1),
    7: lambda image: np.rot90(image, 2).swapaxes(0, 1),
    8: np.rot90,
}


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize(("orientation", "upright"), UPRIGHT.items())
def test_the_exif_orientation_is_applied(orientation, upright, order):
    image = np.zeros((16, 24, 3), np.uint8)
    image[:8, :8], image[:8, 16:], image[8:, :8], image[8:, 16:] = RED, GREEN, BLUE, WHITE
    data = encode("jpg", image, cv2.IMWRITE_JPEG_QUALITY, 100)
    turned = decode_bytes(with_orientation(data, orientation, order))
    assert_close(turned, upright(decode_bytes(data)))
    assert turned.flags.c_contiguous


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 0.99, 1], ids=lambda part: f"{part:.0%}")
@pytest.mark.parametrize("suffix", FORMATS)
def test_a_truncated_picture_is_an_error(suffix, part):
    data = encode(suffix, gradient())
    with pytest.raises(DecodeError, match="damaged"):
        decode_bytes(data[: min(int(len(data) * part), len(data) - 1)])


@pytest.mark.parametrize(
    "option", [cv2.IMWRITE_JPEG_PROGRESSIVE, cv2.IMWRITE_JPEG_RST_INTERVAL], ids=["progr", "rst"]
)
def test_a_truncated_jpeg_of_another_kind_is_an_error(option):
    data = encode("jpg", gradient(), option, 1)
    for length in range(1, len(data), 7):
        with pytest.raises(DecodeError):
            decode_bytes(data[:length])


@pytest.mark.parametrize(
    "data", [b"", b"no picture\n" * 50, bytes(1000), b"\xff\xd8\xff", b"%PDF-1"]
)
def test_what_is_no_picture_is_an_error_with_a_hint(data):
    with pytest.raises(DecodeError, match=r"^(no picture|empty)") as caught:
        decode_bytes(data)
    assert caught.value.hint


@pytest.mark.parametrize("side", [0, 30_000, 100_000, 2**31 - 1])
def test_a_header_that_declares_an_impossible_size_is_an_error(side):
    with pytest.raises(DecodeError, match=r"damaged|decoded"):
        decode_bytes(png(side, side, 2, bytes(10)))


@pytest.fixture
def silence():
    """What the command line does at its start, undone afterwards."""
    level = cv2.utils.logging.getLogLevel()
    yield silence_opencv
    cv2.utils.logging.setLogLevel(level)


DAMAGES = {
    "cut": lambda data: data[: len(data) * 2 // 3],
    "last byte": lambda data: data[:-1],
    "flipped": lambda data: data[: len(data) // 2] + b"\x55\xaa" + data[len(data) // 2 + 2 :],
    "zeros": lambda data: data[: len(data) // 2] + bytes(20) + data[len(data) // 2 + 20 :],
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("suffix", FORMATS.keys() - {"png"})  # libpng writes to stderr by itself
def test_libraries_say_nothing_about_a_damaged_file(capfd, silence, suffix, damage):
    silence()
    with contextlib.suppress(DecodeError):
        decode_bytes(damage(encode(suffix, gradient())))
    assert capfd.readouterr() == ("", "")


def test_content_counts_not_the_suffix(tmp_path):
    path = tmp_path / "a.jpg"
    path.write_bytes(encode("png", gradient()))
    assert_close(decode(Item("a.jpg", path)), gradient())


@pytest.mark.parametrize("name", ["vanished.jpg", "folder.jpg", "a\0b.jpg", "x" * 300])
def test_what_cannot_be_read_is_a_source_error(tmp_path, name):
    (tmp_path / "folder.jpg").mkdir()
    with pytest.raises(SourceError) as caught:
        decode(Item(name, tmp_path / name))
    assert str(caught.value).startswith("cannot be read: ")


def test_an_item_with_an_error_raises_it():
    error = SourceError("not there")
    with pytest.raises(SourceError) as caught:
        decode(Item("a.jpg", error=error))
    assert caught.value is error


def test_standard_input_is_decoded(monkeypatch):
    data = io.BytesIO(encode("png", gradient()))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(data))
    assert_close(decode(Item("-")), gradient())


def test_a_terminal_as_standard_input_is_a_source_error(monkeypatch):
    master, slave = os.openpty()
    with open(slave) as terminal:  # noqa: PTH123
        monkeypatch.setattr(sys, "stdin", terminal)
        with pytest.raises(SourceError, match="terminal"):
            decode(Item("-"))
    os.close(master)


def test_standard_input_that_is_closed_is_a_source_error(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)  # what Python makes of `<&-`
    with pytest.raises(SourceError, match="closed"):
        decode(Item("-"))


def test_standard_input_that_cannot_be_read_is_a_source_error(monkeypatch, tmp_path):
    with Path(tmp_path / "written").open("w") as file:
        monkeypatch.setattr(sys, "stdin", file)
        with pytest.raises(SourceError, match=r"cannot be read: \w"):
            decode(Item("-"))
