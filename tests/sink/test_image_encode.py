"""Pictures as bytes of a file."""

import cv2
import numpy as np
import pytest
from sample_records import frame, numbered, picture

from detcli.errors import OutputError
from detcli.sink.image import SUFFIXES, encode

STARTS = {
    ".png": b"\x89PNG",
    ".jpg": b"\xff\xd8",
    ".jpeg": b"\xff\xd8",
    ".tif": b"II*",
    ".tiff": b"II*",
    ".bmp": b"BM",
    ".webp": b"RIFF",
    ".avif": b"\0\0\0",
}
GREY = np.full((40, 60, 3), 114, np.uint8)


def decoded(data):
    return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)


@pytest.mark.parametrize("suffix", [*sorted(SUFFIXES), ".JPG", ".Png", ".TIFF"])
def test_the_format_is_that_of_the_input(suffix):
    data, written = encode(GREY, picture(f"in.d/a{suffix}"))
    assert written == suffix
    assert data.startswith(STARTS[suffix.lower()])
    np.testing.assert_allclose(decoded(data), GREY, atol=3)


@pytest.mark.parametrize("source", ["a.gif", "a.txt", "a.jp2", "in.jpg/a", "a.JFIF", "", ".jpg"])
def test_any_other_becomes_png(source):
    data, suffix = encode(GREY, picture(source))
    assert suffix == ".png"
    np.testing.assert_array_equal(decoded(data), GREY)


@pytest.mark.parametrize("record", [picture("-"), frame(0), numbered(3)])
def test_frames_and_standard_input_become_jpeg(record):
    assert encode(GREY, record)[1] == ".jpg"


@pytest.mark.parametrize(("source", "size"), [("a.webp", (1, 20_000)), ("a.jpg", (1, 70_000))])
def test_a_picture_too_wide_for_its_format_becomes_png(source, size):
    wide = np.full((*size, 3), 9, np.uint8)
    data, suffix = encode(wide, picture(source))
    assert suffix == ".png"
    np.testing.assert_array_equal(decoded(data), wide)


def test_a_picture_that_no_format_takes_is_an_output_error():
    with pytest.raises(OutputError, match=r"a\.jpg \(0x0 pixels\)"):
        encode(np.empty((0, 0, 3), np.uint8), picture("a.jpg"))
