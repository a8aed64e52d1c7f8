"""A JPEG without its last bytes: an error, or with --lenient what can be decoded of it."""

import cv2
import numpy as np
import pytest
from json_lines import lines
from made_jpegs import encode, exif, exif_with_thumbnail, insert, orientation, without
from thinning import thin

from detcli.config.inputs import InputOptions
from detcli.core.errors import DecodeError, UsageError
from detcli.source.decode import DecodeOptions, load_bytes

LENIENT = DecodeOptions(InputOptions(lenient=True))
NOISE = np.random.default_rng(0).integers(0, 255, (30, 40, 3), np.uint8)
PHOTOGRAPH = cv2.resize(NOISE, (400, 301))
SEQUENTIAL = [{}, {"RST_INTERVAL": 3}, {"SAMPLING_FACTOR": 0x111111}]


def decoded_by_opencv(data):
    return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)


def cut_image(data, options=LENIENT):
    """The pixels and the warning of a cut JPEG."""
    image = load_bytes(data, options)
    (warning,) = image.warnings
    return image.pixels, warning


def count_equal_rows(pixels, whole):
    """How many rows from the top are those of the whole image."""
    differs = np.any(pixels != whole, axis=(1, 2))
    if not differs.any():
        return len(whole)
    return int(np.argmax(differs))


@pytest.mark.parametrize("form", SEQUENTIAL)
@pytest.mark.parametrize("part", [0.2, 0.5, 0.9, 0.999])
def test_the_warning_counts_the_rows_that_are_those_of_the_whole_image(form, part):
    data = encode(PHOTOGRAPH, **form)
    pixels, warning = cut_image(data[: int(len(data) * part)])
    rows = count_equal_rows(pixels, decoded_by_opencv(data))
    share = 100 * rows // 301
    assert warning == (
        f"cut off: {rows} of its 301 rows ({share}%) were decoded, the others are missing"
    )
    assert abs(share - 100 * part) < 7


@pytest.mark.parametrize("form", SEQUENTIAL + [{"PROGRESSIVE": 1}])
@pytest.mark.parametrize("missing_bytes", [1, 2])
def test_a_jpeg_without_its_end_marker_alone_is_whole(form, missing_bytes):
    data = encode(PHOTOGRAPH, **form)
    pixels, warning = cut_image(data[:-missing_bytes])
    assert np.array_equal(pixels, decoded_by_opencv(data))
    assert warning == "cut off: all of its 301 rows were decoded, only its end is missing"


@pytest.mark.parametrize("part", [0.5, 0.9, 0.999])
def test_a_progressive_jpeg_has_all_rows_without_their_last_details(part):
    data = encode(PHOTOGRAPH, PROGRESSIVE=1)
    pixels, warning = cut_image(data[: int(len(data) * part)])
    assert "all of its 301 rows were decoded" in warning
    difference = np.abs(pixels.astype(int) - decoded_by_opencv(data))
    assert 0 < difference.mean() < 20


def test_a_progressive_jpeg_that_is_cut_in_its_first_scan_has_some_rows_coarsely():
    data = encode(PHOTOGRAPH, PROGRESSIVE=1)
    first_scan = data.index(b"\xff\xda")
    second_scan = data.index(b"\xff\xda", first_scan + 2)
    _, warning = cut_image(data[: (first_scan + second_scan) // 2])
    assert "rows (" in warning
    assert "without their details" in warning
    assert "the others are missing" in warning


@pytest.mark.parametrize("form", SEQUENTIAL)
def test_zeros_in_place_of_the_end_are_not_counted_as_rows(form):
    """A disk that was full, or a copy that broke off, leaves them."""
    data = encode(PHOTOGRAPH, **form)
    half = data[: len(data) // 2]
    pixels, warning = cut_image(half + bytes(60_000))
    expected_pixels, expected_warning = cut_image(half)
    assert warning == expected_warning
    assert np.array_equal(pixels, expected_pixels)


def test_rows_behind_a_restart_marker_that_is_missing_are_not_counted():
    """Up to such a marker, no decoder reads what is there instead."""
    data = encode(PHOTOGRAPH, RST_INTERVAL=25)  # a marker behind each row of blocks
    for number in range(8):
        marker = data.index(bytes([0xFF, 0xD0 + number]))
        for end in (marker, marker + 1, marker + 2):
            pixels, warning = cut_image(data[:end])
            rows = count_equal_rows(pixels, decoded_by_opencv(data))
            assert 16 * number < rows <= 16 * (number + 1)
            assert f"cut off: {rows} of its 301 rows" in warning


def test_a_cut_jpeg_is_upright():
    turned = insert(encode(PHOTOGRAPH), exif(orientation(6)))
    pixels, _ = cut_image(turned[:-2])
    assert pixels.shape == (400, 301, 3)
    assert np.array_equal(pixels, decoded_by_opencv(turned))


def test_a_jpeg_without_one_whole_row_stays_an_error():
    data = encode(PHOTOGRAPH)
    pixels_start = data.index(b"\xff\xda")
    for end in (3, 100, pixels_start, pixels_start + 3, pixels_start + 100):
        with pytest.raises(DecodeError, match="cut off"):
            load_bytes(data[:end], LENIENT)


def test_a_cut_jpeg_with_broken_tables_is_cut_off_and_cannot_be_decoded():
    pytest.importorskip("simplejpeg")
    data = without(encode(PHOTOGRAPH), 0xDB)
    half = data[: len(data) // 2]
    with pytest.raises(DecodeError, match="a damaged JPEG: cut off, and what is there") as caught:
        load_bytes(half, LENIENT)
    assert "cannot be decoded (Quantization table 0x00 was not defined)" in str(caught.value)
    assert caught.value.hint == "fetch it again"


def test_a_cut_jpeg_without_a_frame_header_does_not_name_the_option_again():
    with pytest.raises(DecodeError, match="cut off, and what is there cannot be") as caught:
        load_bytes(b"\xff\xd8\xff torn", LENIENT)
    assert "--lenient" not in caught.value.hint


def test_a_cut_jpeg_is_an_error_that_names_the_option():
    with pytest.raises(DecodeError, match="cut off, its end is missing") as caught:
        load_bytes(encode(PHOTOGRAPH)[:-2])
    assert "--lenient" in caught.value.hint


def test_a_jpeg_that_is_cut_behind_its_thumbnail_is_cut_off():
    """The thumbnail in its EXIF segment has an end marker, which is not that of the image."""
    thumbnail = encode(PHOTOGRAPH[:40, :40])
    data = insert(encode(PHOTOGRAPH), exif_with_thumbnail(thumbnail))
    thumbnail_end = data.index(thumbnail) + len(thumbnail)
    for end in (thumbnail_end, thumbnail_end + 1, data.rindex(b"\xff\xda")):
        with pytest.raises(DecodeError, match="cut off, its end is missing"):
            load_bytes(data[:end])


def test_whole_and_damaged_jpegs_are_as_without_the_option():
    data = encode(PHOTOGRAPH)
    for sound_or_damaged in (data, data[: len(data) // 2] + b"\xff\xd9", data + b"more"):
        strict = load_bytes(sound_or_damaged)
        lenient = load_bytes(sound_or_damaged, LENIENT)
        assert lenient.warnings == strict.warnings
        assert np.array_equal(lenient.pixels, strict.pixels)


def test_any_cut_is_an_image_or_an_error():
    for form in ({}, {"PROGRESSIVE": 1}):
        data = encode(PHOTOGRAPH[:40, :40], **form)
        for end in thin("cut JPEGs", range(1, len(data)), 300):
            try:
                cut_image(data[:end])
            except DecodeError as error:
                assert error.hint  # noqa: PT017 - it need not be raised


@pytest.fixture
def cut_file(tmp_path):
    image = np.full((64, 64, 3), (0, 0, 255), np.uint8)
    data = encode(image, SAMPLING_FACTOR=0x111111)
    (tmp_path / "cut.jpg").write_bytes(data[:-2])
    return tmp_path / "cut.jpg"


def test_the_command_takes_what_is_there_with_lenient(detcli, make_model, cut_file):
    model = make_model()
    default = detcli("predict", cut_file, "-m", model)
    assert default.returncode == 3
    assert "--lenient" in default.stderr
    lenient = detcli("predict", cut_file, "-m", model, "--lenient")
    assert lenient.returncode == 0
    (record,) = lines(lenient.stdout)
    assert record["detections"]
    assert record["warnings"] == [
        "cut off: all of its 64 rows were decoded, only its end is missing"
    ]
    assert "cut.jpg: cut off: all of its 64 rows" in lenient.stderr
    assert "Corrupt JPEG" not in lenient.stderr


def test_the_command_takes_a_cut_jpeg_on_stdin(detcli, make_model, cut_file):
    data = cut_file.read_bytes()
    done = detcli("predict", "-", "-m", make_model(), "--lenient", "-q", input=data)
    assert done.returncode == 0
    assert b"only its end is missing" in done.stdout


def test_lenient_and_strict_are_mutually_exclusive(detcli, make_model, cut_file):
    done = detcli("predict", cut_file, "-m", make_model(), "--lenient", "--strict")
    assert done.returncode == UsageError.exit_code
    assert "--strict and --lenient are mutually exclusive" in done.stderr
