"""Decoding bytes to upright colour images, or an error."""

import os
import re
import struct
import subprocess
import sys
import zlib

import cv2
import numpy as np
import pytest
from made_jpegs import exif, insert, orientation, segment, without

from detcli.config.inputs import InputOptions
from detcli.core.errors import DecodeError, SourceError
from detcli.core.opencv import PIXEL_LIMIT
from detcli.source.decode import DecodeOptions, load_bytes
from detcli.source.reading import load_file

# Format and the maximum error of a value.
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


def decode_bytes(data):
    image = load_bytes(data)
    assert image.size == image.pixels.shape[:2]
    assert image.pixels.flags.c_contiguous
    return image.pixels


def assert_close(image, expected, tolerance=0):
    assert image.shape == expected.shape
    assert image.dtype == np.uint8
    difference = np.abs(image.astype(int) - expected)
    assert difference.max() <= tolerance


@pytest.mark.parametrize(("suffix", "tolerance"), FORMATS.items())
def test_formats_are_decoded_in_blue_green_red(suffix, tolerance):
    image = np.full((40, 56, 3), RED, np.uint8)
    image[:, 28:] = BLUE
    data = encode(suffix, image)
    assert_close(decode_bytes(data)[:, :24], image[:, :24], tolerance)
    assert load_bytes(data, DecodeOptions(InputOptions(strict=True))).warnings == ()
    assert_close(decode_bytes(encode(suffix, gradient())), gradient(), tolerance)


@pytest.mark.parametrize("suffix", ["gif", "png", "webp", "avif"])
def test_an_animation_is_its_first_frame_with_a_warning(suffix):
    film = cv2.Animation()
    film.frames = [gradient(), gradient()[::-1].copy()]
    film.durations = np.array([40, 40])
    _, data = cv2.imencodeanimation(f".{suffix}", film)
    decoded = load_bytes(data.tobytes(), DecodeOptions(InputOptions(strict=True)))
    assert_close(decoded.pixels, gradient(), FORMATS["gif"])
    (warning,) = decoded.warnings
    assert "only its first frame" in warning
    assert load_bytes(encode(suffix, gradient())).warnings == ()


@pytest.mark.parametrize(("kind", "is_page"), [(0, True), (1, False), (2, True), (4, False)])
def test_a_tiff_of_several_pages_is_its_first_with_a_warning(kind, is_page):
    """Thumbnails and masks are no pages; nor is what a cut directory holds."""
    data = cv2.imencodemulti(".tiff", [gradient(), gradient() // 2])[1].tobytes()
    before, field, after = data.rpartition(struct.pack("<HHII", 254, 4, 1, 2))
    decoded = load_bytes(before + field[:-4] + struct.pack("<I", kind) + after)
    assert_close(decoded.pixels, gradient())
    if is_page:
        (warning,) = decoded.warnings
        assert "only its first frame or page" in warning
    else:
        assert decoded.warnings == ()
    assert load_bytes(encode("tiff", gradient())).warnings == ()


GREY = gradient()[..., 0].copy()
GREY_AS_COLOURS = np.repeat(GREY[..., None], 3, -1)
WITH_ALPHA = np.dstack([gradient(), np.full((40, 56), 100, np.uint8)])
SIXTEEN_BITS = gradient().astype(np.uint16) * 257
ODD_PIXELS = [(suffix, GREY, GREY_AS_COLOURS) for suffix in FORMATS] + [
    ("pgm", GREY, GREY_AS_COLOURS),
    ("png", WITH_ALPHA, gradient()),
    ("webp", WITH_ALPHA, gradient()),
    ("bmp", WITH_ALPHA, gradient()),
    ("png", SIXTEEN_BITS, gradient()),
    ("tiff", SIXTEEN_BITS, gradient()),
]


@pytest.mark.parametrize(("suffix", "image", "expected"), ODD_PIXELS)
def test_grey_transparency_and_sixteen_bits_become_colour(suffix, image, expected):
    if suffix not in {"gif", "ppm"}:  # which hold colours only
        assert_close(decode_bytes(encode(suffix, image)), expected, 8)


def test_a_palette_and_grey_floats_become_colour():
    for chunks in ({}, {"tRNS": b"\0\xff"}):
        data = png(2, 1, 3, bytes([0, 1, 0]), PLTE=bytes([1, 2, 3, 255, 128, 0]), **chunks)
        assert decode_bytes(data).tolist() == [[[0, 128, 255], [3, 2, 1]]]
    pfm = b"Pf\n2 1\n-1\n" + np.array([10, 200], "<f4").tobytes()  # a grey array in OpenCV
    assert decode_bytes(pfm).tolist() == [[[10] * 3, [200] * 3]]


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_truncated_image_is_an_error(suffix):
    data = encode(suffix, gradient())
    for part in (0.1, 0.5, 0.9, 0.99, 1):
        with pytest.raises(DecodeError, match="damaged"):
            decode_bytes(data[: min(int(len(data) * part), len(data) - 1)])


def test_a_jpeg_without_its_end_is_cut_off():
    """Wherever it is cut, and although the preview in a segment has an end of its own."""
    data = encode("jpg", photograph(512))
    preview = insert(data, segment(0xE1, encode("jpg", gradient())))
    for cut in (data[:-2], data[: len(data) // 2], data[:3], preview[:-2]):
        with pytest.raises(DecodeError, match="cut off, its end is missing"):
            decode_bytes(cut)


def test_bytes_that_are_not_an_image_are_an_error_with_a_hint():
    for data in (b"", b"no image\n" * 50, bytes(1000), b"%PDF-1"):
        with pytest.raises(DecodeError, match=r"^(not an image|empty)") as caught:
            decode_bytes(data)
        assert caught.value.hint
    for brand, name in (("heic", "HEIC or a video"), ("isom", "HEIC or a video"), ("avif", "AVIF")):
        with pytest.raises(DecodeError, match=f"starts as {name}") as caught:
            decode_bytes(b"\0\0\0\x14ftyp" + 3 * brand.encode() + bytes(100))
        assert "videos by suffix" in caught.value.hint


def test_a_jpeg_that_nothing_decodes_is_an_error_with_the_reason_of_libjpeg():
    pytest.importorskip("simplejpeg")
    data = without(encode("jpg", gradient()), 0xDB)
    for strict in (False, True):
        with pytest.raises(DecodeError, match="a damaged JPEG, or one of a kind") as caught:
            load_bytes(data, DecodeOptions(InputOptions(strict=strict)))
        assert "(Quantization table 0x00 was not defined)" in str(caught.value)
        assert caught.value.hint


def test_a_jpeg_that_nothing_decodes_is_an_error_without_simplejpeg(monkeypatch):
    monkeypatch.setitem(sys.modules, "simplejpeg", None)  # importing it fails
    data = without(encode("jpg", gradient()), 0xDB)
    with pytest.raises(DecodeError, match=r"^a damaged JPEG, or .* cannot be decoded$"):
        load_bytes(data)


def test_a_jpeg_without_a_frame_header_is_damaged():
    data = without(encode("jpg", gradient()), 0xC0)
    with pytest.raises(DecodeError, match=r"^a damaged JPEG, or .*no complete frame header\)$"):
        load_bytes(data)


DAMAGES = {
    "cut": lambda data: data[: len(data) * 2 // 3],
    "last byte": lambda data: data[:-1],
    "flipped": lambda data: data[: len(data) // 2] + b"\x55\xaa" + data[len(data) // 2 + 2 :],
    "zeros": lambda data: data[: len(data) // 2] + bytes(20) + data[len(data) // 2 + 20 :],
}


def photograph(size=128):
    noise = np.random.default_rng(0).integers(0, 255, (size // 4, size // 4, 3), np.uint8)
    return cv2.resize(noise, (size, size))


def with_bad_check(png_file, name):
    """A PNG with one chunk whose check sum is wrong."""
    chunk = b"\0\0\0\4" + name + b"abcd" + b"sum?"
    return png_file[:33] + chunk + png_file[33:]


def cmyk_jpeg():
    simplejpeg = pytest.importorskip("simplejpeg")
    inks = np.dstack([photograph(), photograph()[..., 0]])
    return simplejpeg.encode_jpeg(inks, colorspace="CMYK")


def gutted(jpeg):
    """A JPEG without most of its pixels, but with its end marker."""
    return jpeg[: len(jpeg) * 3 // 10] + b"\xff\xd9"


def flipped(jpeg):
    middle = len(jpeg) // 2
    return jpeg[:middle] + bytes(40) + jpeg[middle + 40 :]


JPEG = encode("jpg", photograph())
DAMAGED = {
    "gutted": lambda: gutted(JPEG),
    "overwritten": lambda: flipped(JPEG),
    "gutted cmyk": lambda: gutted(cmyk_jpeg()),
    "gutted grey": lambda: gutted(encode("jpg", photograph()[..., 0].copy())),
    "gutted with odd exif": lambda: insert(
        gutted(JPEG), exif(orientation(6)), exif(orientation(1))
    ),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_damage_that_can_be_decoded_is_a_warning(kind):
    data = DAMAGED[kind]()
    reason = "premature end of data segment"
    if kind == "overwritten":
        reason = "extraneous bytes before marker 0xd9|bad Huffman|premature"
    image = load_bytes(data)
    assert re.fullmatch(f"damaged: .*({reason}).*", "\n".join(image.warnings))
    expected = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    np.testing.assert_array_equal(image.pixels, expected)
    fast = load_bytes(data, DecodeOptions(fast_for=(16, 16)))
    assert fast.warnings == image.warnings
    assert fast.size == fast.pixels.shape[:2]
    with pytest.raises(DecodeError, match=f"^damaged: .*({reason})") as caught:
        load_bytes(data, DecodeOptions(InputOptions(strict=True)))
    assert "--strict" in caught.value.hint


@pytest.mark.parametrize("level", [(), ("-q",), ("-v",)])
def test_what_libraries_print_is_for_the_log(detcli, make_model, tmp_path, level):
    folder = tmp_path / "in"
    folder.mkdir()
    for suffix in FORMATS:
        for name, damage in DAMAGES.items():
            (folder / f"{suffix}-{name}.{suffix}").write_bytes(damage(encode(suffix, gradient())))
    (folder / "check.png").write_bytes(with_bad_check(encode("png", photograph()), b"tESt"))
    finished = detcli("predict", folder, "-m", make_model(), level)
    assert finished.returncode == 3
    lines = finished.stderr.splitlines()
    assert ("detcli: libpng warning: tESt: CRC error" in lines) == (level == ("-v",))
    for line in lines:
        assert line.startswith(("detcli: ", "  hint: "))


def test_odd_metadata_and_rare_subsampling_are_not_damage():
    """Photoshop and others have written it for years; libjpeg-turbo's interface takes less."""
    with_odd_profile = png(2, 1, 2, bytes(7), iCCP=b"x\0\0" + zlib.compress(bytes(200)))
    jpeg = bytearray(encode("jpg", np.full((8, 32, 3), 128, np.uint8)))
    sizes_of_files = [((1, 2), with_odd_profile)]
    for sampling in (0x41, 0x31):
        jpeg[jpeg.index(b"\xff\xc0") + 11] = sampling
        sizes_of_files.append(((8, 32), bytes(jpeg)))
    for size, data in sizes_of_files:
        decoded = load_bytes(data, DecodeOptions(InputOptions(strict=True)))
        assert decoded.size == size
        assert decoded.warnings == ()


def test_an_unreadable_file_is_a_source_error(tmp_path):
    (tmp_path / "folder.jpg").mkdir()
    for name, reason in (
        ("folder.jpg", "cannot be read: Is a dir"),
        ("a\0b.jpg", "cannot be read: embedded"),
        ("x" * 300, "cannot be read: File name too long"),
        ("gone.jpg", "no such file"),
    ):
        with pytest.raises(SourceError, match=f"^{reason}") as caught:
            load_file(tmp_path / name)
        assert caught.value.hint


@pytest.fixture
def no_decoder(monkeypatch):
    """Fail the test if an image is decoded."""

    def refuse(*_, **__):
        pytest.fail("it was decoded")

    monkeypatch.setattr(cv2, "imdecode", refuse)
    if "simplejpeg" in sys.modules:
        monkeypatch.setattr(sys.modules["simplejpeg"], "decode_jpeg", refuse)


@pytest.mark.parametrize("suffix", list(FORMATS) + ["pam", "sr", "pgm", "pbm", "hdr", "pfm"])
def test_an_image_with_too_many_pixels_is_refused(request, suffix):
    image = gradient()
    if suffix in {"pgm", "pbm", "pam"}:  # OpenCV writes PAM in colour without its type
        image = gradient()[..., 0].copy()
    if suffix in {"hdr", "pfm"}:
        image = image.astype(np.float32)
    data = encode(suffix, image)
    assert load_bytes(data, DecodeOptions(InputOptions(max_pixels=40 * 56))).size == (40, 56)
    if suffix in {"jpg", "png"}:  # of others, OpenCV refuses those that are too large for it
        request.getfixturevalue("no_decoder")
    with pytest.raises(DecodeError) as caught:
        load_bytes(data, DecodeOptions(InputOptions(max_pixels=40 * 56 - 1)))
    assert "56x40" in str(caught.value)
    assert str(40 * 56 - 1) in str(caught.value)
    assert "--max-pixels" in caught.value.hint


LOAD = """
import sys
from detcli.core.errors import DecodeError
from detcli.config.inputs import InputOptions
from detcli.source.decode import DecodeOptions
from detcli.source.reading import load_file
try: print(load_file(sys.argv[1], DecodeOptions(InputOptions(max_pixels=int(sys.argv[2])))).size)
except DecodeError as error: print(error, error.hint)
"""


@pytest.mark.slow
def test_opencv_refuses_what_is_too_large_before_it_is_decoded(tmp_path):
    path = tmp_path / "a.ppm"
    path.write_bytes(encode("ppm", gradient()))
    for max_pixels, limit_of_opencv, expected, hint in (
        (2239, 2239, "more than the 2239 pixels allowed", "--max-pixels"),
        (9999, 2239, "more than the 2239 pixels that OpenCV decodes", PIXEL_LIMIT),
        (2240, 2240, "(40, 56)", ""),
    ):
        command = [sys.executable, "-c", LOAD, path, str(max_pixels)]
        variables = {**os.environ, PIXEL_LIMIT: str(limit_of_opencv)}
        finished = subprocess.run(command, env=variables, capture_output=True, check=True)
        output = finished.stdout.decode()
        assert expected in output
        assert hint in output


@pytest.mark.slow
def test_max_pixels_limits_opencv(detcli, make_model, tmp_path):
    """By the header: the rest of the file is missing."""
    path = tmp_path / "a.ppm"
    path.write_bytes(b"P6 6000 4000 255\n" + bytes(100))
    # In a process of its own, which has not loaded OpenCV.
    variables = {**os.environ, PIXEL_LIMIT: "1"}
    for limit, reason in ((23_999_999, "more than the 23999999 pixels"), (24_000_000, "damaged")):
        arguments = ["predict", path, "-m", make_model(), "--max-pixels", limit]
        finished = detcli(arguments, env=variables)
        assert finished.returncode == 3
        assert reason in finished.stderr


def test_a_header_of_the_largest_sides(request):
    side = 2**31 - 1
    with pytest.raises(DecodeError, match="too large: wider or higher than OpenCV"):
        load_bytes(b"P6 %d %d 255\n" % (side, side) + bytes(100))
    request.getfixturevalue("no_decoder")
    with pytest.raises(DecodeError, match=f"too large: {side}x{side} is"):
        load_bytes(png(side, side, 2, bytes(7)))


def test_a_jpeg_2000_of_thousands_of_tiles_is_never_decoded(request):
    """OpenCV would allocate 10 KiB for each."""
    sides = struct.pack(">IIII", 990, 990, 0, 0)

    def tiles(side):
        tile = sides + struct.pack(">IIII", side, side, 0, 0)
        return encode("jp2", gradient(990, 990)).replace(sides * 2, tile)

    assert load_bytes(tiles(16)).size == (990, 990)  # 3,844 of them, most of which are missing
    request.getfixturevalue("no_decoder")
    for side, count in ((15, 4356), (4, 61_504)):
        with pytest.raises(DecodeError, match=f"with {count} tiles"):
            load_bytes(tiles(side))


@pytest.mark.usefixtures("no_decoder")
def test_a_png_that_declares_missing_bytes_is_never_decoded():
    """OpenCV would allocate up to 4 GiB for a file of 100 bytes."""
    data = bytearray(png(2, 1, 2, bytes(7)))
    for length in (10**6, 2**31 - 1, 2**32 - 1):
        struct.pack_into(">I", data, data.index(b"IDAT") - 4, length)
        with pytest.raises(DecodeError, match="damaged PNG"):
            load_bytes(bytes(data))
