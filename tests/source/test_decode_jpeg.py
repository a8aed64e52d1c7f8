"""JPEG: the pixels of OpenCV, upright, including files that are left to OpenCV."""

import os
import subprocess
import sys

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_jpegs import encode, exif, image, insert, orientation, segment, without
from thinning import thin

from detcli.backend.preprocess import letterbox_image
from detcli.config.inputs import InputOptions
from detcli.core.errors import DecodeError
from detcli.data.geometry import Letterbox
from detcli.source.decode import DecodeOptions, load_bytes
from detcli.source.jpeg_header import check_scans, count_marker, read_header

SAMPLINGS = {"411": 0x411111, "420": 0x221111, "422": 0x211111, "440": 0x121111, "444": 0x111111}
SIZES = [(1, 1), (7, 5), (8, 8), (17, 33), (64, 48), (16, 1), (1, 200), (131, 97)]


def assert_as_opencv(jpeg):
    """Assert the same pixels, or an error where OpenCV fails."""
    expected = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR)
    if expected is None:
        with pytest.raises(DecodeError):
            load_bytes(jpeg)
        return
    decoded = load_bytes(jpeg)
    assert decoded.size == expected.shape[:2]
    assert decoded.pixels.flags.c_contiguous
    np.testing.assert_array_equal(decoded.pixels, expected)


@pytest.fixture
def without_opencv(monkeypatch):
    """Fail the test if cv2.imdecode is called."""
    pytest.importorskip("simplejpeg")

    def refuse(*_):
        pytest.fail("OpenCV decoded it")

    monkeypatch.setattr(cv2, "imdecode", refuse)


CODINGS = [{"SAMPLING_FACTOR": factor, "QUALITY": 60} for factor in SAMPLINGS.values()] + [
    {"QUALITY": 1},
    {"QUALITY": 100, "PROGRESSIVE": 1},
    {"OPTIMIZE": 1},
    {"RST_INTERVAL": 1},
]


@pytest.mark.parametrize("options", CODINGS, ids=str)
def test_every_coding(options):
    for size in SIZES:
        noise = np.random.default_rng(0).integers(0, 255, (*size, 3), np.uint8)
        for pixels in (image(*size), noise, noise[..., 0].copy()):
            assert_as_opencv(encode(pixels, **options))


SCAN, END = b"\xff\xda", b"\xff\xd9"
ICC = b"ICC_PROFILE\0\1\1" + bytes(128)
XMP = b"http://ns.adobe.com/xap/1.0/\0<x:xmpmeta/>"


def adobe(transform):
    return segment(0xEE, b"Adobe\0d\0\0\0\0" + bytes([transform]))


JPEG = encode(image())
PLAIN = {
    "colour": JPEG,
    "grey": encode(image()[..., 0].copy()),
    "comment": insert(JPEG, segment(0xFE, b"hello")),
    "empty segment": insert(JPEG, segment(0xE1, b"")),
    "icc": insert(JPEG, segment(0xE2, ICC)),
    "xmp": insert(JPEG, segment(0xE1, XMP)),
    "fill bytes": insert(JPEG, b"\xff\xff\xff"),
    "no jfif": without(JPEG, 0xE0),
    "adobe rgb": insert(without(encode(image(), SAMPLING_FACTOR=0x111111), 0xE0), adobe(0)),
    "adobe ycc": insert(without(JPEG, 0xE0), adobe(1)),
    "more behind the end": JPEG + b"and more" * 100,
}


def test_regular_images_need_no_opencv(request):
    for jpeg in PLAIN.values():
        assert_as_opencv(jpeg)
    request.getfixturevalue("without_opencv")
    for jpeg in PLAIN.values():
        load_bytes(jpeg)


def patched(jpeg, marker, offset, *values):
    """Overwrite bytes of a segment."""
    data = bytearray(jpeg)
    start = jpeg.index(b"\xff" + bytes([marker])) + 4 + offset
    data[start : start + len(values)] = values
    return bytes(data)


ODD = {
    "precision of 12 bits": patched(JPEG, 0xC0, 0, 12),
    "lossless": JPEG.replace(b"\xff\xc0", b"\xff\xc3"),
    "arithmetic": JPEG.replace(b"\xff\xc0", b"\xff\xc9"),
    "two components": patched(JPEG, 0xC0, 5, 2),
    "five components": patched(JPEG, 0xC0, 5, 5),
    "no height": patched(JPEG, 0xC0, 1, 0, 0),
    "higher than it is": patched(JPEG, 0xC0, 1, 9, 9),
    "no tables, as in a video": without(JPEG, 0xC4),
    "no quantisation": without(JPEG, 0xDB),
    "no frame": without(JPEG, 0xC0),
    "two frames": insert(JPEG, segment(0xC0, b"\x08\0\x30\0\x40\x01\x01\x11\0")),
    "two starts": insert(JPEG, b"\xff\xd8"),
    "junk at the start": insert(JPEG, b"junk"),
    "junk before a segment": JPEG[:20] + b"junk" + JPEG[20:],
    "adobe 2": insert(without(JPEG, 0xE0), adobe(2)),
    "a segment of length 0": insert(JPEG, b"\xff\xe1\0\0"),
    "a segment behind the end": insert(JPEG, b"\xff\xe1\xff\xff"),
    "only the start": JPEG[:3],
    "no scan": JPEG.partition(b"\xff\xda")[0],
    "no end": JPEG[:-2],
    "damaged": patched(JPEG, 0xDA, 40, 0xFF, 0x55, 0xFF, 0x66),
    "too many segments": insert(JPEG, segment(0xFE, b"") * 20_000),
}


@pytest.mark.parametrize("jpeg", ODD.values(), ids=ODD)
def test_irregular_images_decode_as_in_opencv(jpeg):
    assert_as_opencv(jpeg)


def test_a_header_is_found_behind_many_segments_in_linear_time():
    jpeg = patched(ODD["too many segments"], 0xC0, 1, 0x75, 0x30, 0x75, 0x30)
    assert read_header(jpeg).size == (30_000, 30_000)
    with pytest.raises(DecodeError, match="30000x30000"):
        load_bytes(jpeg)
    for filling in (b"\xff" * 2**20 + b"\0", b"\xff\xfe\0\2" * 2**18):
        jpeg = insert(JPEG, filling)
        assert read_header(jpeg).size == image().shape[:2]
        assert read_header(jpeg[:-500] + b"\xff" * 2**20) is not None


def test_a_jpeg_with_endless_scans_is_refused():
    jpeg = encode(image(), PROGRESSIVE=1).removesuffix(END)
    last = SCAN + jpeg.rpartition(SCAN)[2]
    assert_as_opencv(jpeg + END)
    with pytest.raises(DecodeError, match="scans, more than the 500 allowed"):
        load_bytes(jpeg + last * 20_000 + END)
    assert_as_opencv(JPEG + SCAN * 1000)  # what looks like them behind the image


def test_cmyk_decodes_as_in_opencv():
    simplejpeg = pytest.importorskip("simplejpeg")
    inks = np.dstack([image(), 255 - image()[..., 0]])
    jpeg = simplejpeg.encode_jpeg(inks, colorspace="CMYK")
    assert simplejpeg.decode_jpeg_header(jpeg)[2] in {"CMYK", "YCCK"}
    for file in (jpeg, patched(jpeg, 0xEE, 11, 0)):
        assert_as_opencv(file)
        assert load_bytes(file, DecodeOptions(InputOptions(strict=True))).warnings == ()


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
@pytest.mark.parametrize(("value", "upright"), UPRIGHT.items())
def test_the_orientation_is_applied(request, value, upright, order):
    jpeg = JPEG
    turned = insert(jpeg, exif(orientation(value), order=order))
    assert_as_opencv(turned)
    request.getfixturevalue("without_opencv")
    np.testing.assert_array_equal(load_bytes(turned).pixels, upright(load_bytes(jpeg).pixels))


MAKE = (0x10F, 2, 3, 0x6261)  # "ab"
FAR = (0x10F, 2, 100, 5000)  # a string behind the end
EXIF = {
    "no orientation": [exif(MAKE)],
    "behind another field": [exif(MAKE, orientation(6))],
    "before a field that cannot be read": [exif(orientation(6), (0x131, 2, 100, 5000))],
    "behind a field that cannot be read": [exif(FAR, orientation(6))],
    "out of order": [exif((0x11A, 5, 1, 60_000), orientation(6))],
    "twice": [exif(orientation(6), orientation(1))],
    "in two segments": [exif(orientation(1)), exif(orientation(6))],
    "in the second of two segments": [exif(MAKE), exif(orientation(6))],
    "behind xmp": [segment(0xE1, XMP), exif(orientation(6))],
    "in an odd place": [exif(orientation(6), gap=100)],
    "as a long": [exif(orientation(6, kind=4))],
    "twice in one field": [exif(orientation(6, count=2))],
    "0": [exif(orientation(0))],
    "9": [exif(orientation(9))],
    "no tiff": [exif(orientation(6), magic=43)],
    "no exif": [exif(orientation(6), prefix=b"Fxif\0\0")],
    "nearly exif": [exif(orientation(6), prefix=b"Exif\0\1")],
    "nothing else": [segment(0xE1, b"Exif\0\0")],
    "cut": [segment(0xE1, exif(orientation(6))[4:25])],
    "more fields than there are": [exif(orientation(6)).replace(b"\1\0\x12", b"\5\0\x12")],
}


@pytest.mark.parametrize("segments", EXIF.values(), ids=EXIF)
def test_irregular_exif_is_read_as_in_opencv(segments):
    assert_as_opencv(insert(JPEG, *segments))
    assert_as_opencv(JPEG.replace(SCAN, b"".join(segments) + SCAN, 1))


@given(
    order=st.sampled_from("<>"),
    value=st.integers(1, 8),
    changes=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_damaged_exif_is_read_as_in_opencv(order, value, changes):
    payload = bytearray(exif(MAKE, orientation(value), (0x11A, 5, 1, 40), order=order)[4:])
    for position, byte in changes:
        payload[position % len(payload)] = byte
    assert_as_opencv(insert(PLAIN["grey"], segment(0xE1, bytes(payload))))


@given(data=st.binary(max_size=60))
def test_any_bytes_have_a_header_or_none(data):
    header = read_header(b"\xff\xd8\xff" + data)
    assert header is None or min(header.size) >= 0


def test_photographs_decode_as_in_opencv(shared):
    files = sorted(shared("data").glob("*/**/*.jpg"))[::6]
    files = thin("photographs", files, 8)
    assert files
    for file in files:
        assert_as_opencv(file.read_bytes())


@pytest.mark.usefixtures("without_opencv")
def test_large_images_are_reduced_when_decoded_fast():
    for size, canvas, reduced in (
        ((400, 300), (100, 100), (100, 75)),
        ((400, 300), (101, 101), (200, 150)),
        ((400, 300), (201, 201), (400, 300)),
        ((401, 301), (50, 50), (51, 38)),
        ((400, 300), (100, 640), (100, 75)),
        ((60, 800), (100, 100), (8, 100)),
    ):
        decoded = load_bytes(encode(image(*size)), DecodeOptions(fast_for=canvas))
        assert decoded.size == size
        assert decoded.pixels.shape == (*reduced, 3)
        assert decoded.pixels.flags.c_contiguous


@pytest.mark.parametrize("value", UPRIGHT)
def test_the_network_sees_the_same_image_when_it_is_decoded_fast(value):
    canvas = (128, 128)
    jpeg = insert(encode(image(520, 400), QUALITY=95), exif(orientation(value)))
    full = load_bytes(jpeg)
    fast = load_bytes(jpeg, DecodeOptions(fast_for=canvas))
    letterbox = Letterbox.fit(full.size, canvas)
    assert fast.size == full.size
    if "simplejpeg" in sys.modules:
        assert 3 * fast.pixels.size < full.pixels.size
    input_of_full = letterbox_image(full.pixels, letterbox).astype(int)
    input_of_fast = letterbox_image(fast.pixels, letterbox).astype(int)
    assert np.abs(input_of_full - input_of_fast).mean() < 3


@pytest.mark.usefixtures("without_opencv")
@pytest.mark.parametrize("fast_for", [None, (30, 30), (200, 200)])
@pytest.mark.parametrize("value", UPRIGHT)
def test_images_are_decoded_into_memory_of_the_caller(value, fast_for):
    """All but those that are transposed last; those that OpenCV decodes need none."""
    for size in [(400, 300), (401, 301), (5, 3), (1, 1)]:
        jpeg = insert(encode(image(*size)), exif(orientation(value)))
        buffers = []

        def allocate(size, buffers=buffers):
            buffer = np.full((*size, 3), 77, np.uint8)
            buffers.append(buffer)
            return buffer

        decoded = load_bytes(jpeg, DecodeOptions(fast_for=fast_for, allocate=allocate))
        expected = load_bytes(jpeg, DecodeOptions(fast_for=fast_for))
        np.testing.assert_array_equal(decoded.pixels, expected.pixels)
        assert decoded.pixels.flags.c_contiguous
        if value == 5:
            assert buffers == [], size
        else:
            (buffer,) = buffers
            assert np.shares_memory(decoded.pixels, buffer), size


def test_without_simplejpeg_opencv_decodes(monkeypatch):
    monkeypatch.setitem(sys.modules, "simplejpeg", None)  # importing it fails
    jpeg = insert(encode(image(400, 300)), exif(orientation(6)))
    assert_as_opencv(jpeg)
    assert load_bytes(jpeg, DecodeOptions(fast_for=(64, 64))).pixels.shape == (300, 400, 3)


@pytest.mark.parametrize("fast_for", [None, (30, 30)], ids=["whole", "reduced"])
@pytest.mark.parametrize("offset", [5, 7], ids=["height", "width"])
def test_a_header_without_a_side_is_damaged(offset, fast_for):
    jpeg = bytearray(encode(image(400, 300)))
    frame = jpeg.index(b"\xff\xc0")
    jpeg[frame + offset : frame + offset + 2] = bytes(2)
    with pytest.raises(DecodeError, match="damaged"):
        load_bytes(bytes(jpeg), DecodeOptions(fast_for=fast_for))


@pytest.mark.slow
def test_without_simplejpeg_strict_says_that_it_needs_it(detcli, make_image, tmp_path):
    (tmp_path / "without").mkdir()
    (tmp_path / "without/simplejpeg.py").write_text("raise ImportError('not here')")
    variables = {**os.environ, "PYTHONPATH": str(tmp_path / "without")}
    command = ["predict", make_image("a.jpg"), "-m", "codes", "--strict"]
    finished = detcli(command, env=variables)
    assert finished.returncode == 1
    assert finished.stdout == ""
    assert "simplejpeg, which tells --strict of damage, does not load: not here" in finished.stderr
    assert 'hint: pip install "detcli[jpeg]"; or leave out --strict' in finished.stderr


@pytest.mark.slow
def test_simplejpeg_is_imported_for_a_jpeg_only():
    code = "import sys, detcli.source.decode; print('simplejpeg' in sys.modules)"
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert finished.stdout.strip() == b"False"


@pytest.mark.parametrize(("scans", "is_read"), [(500, True), (501, False)])
def test_a_jpeg_may_have_500_scans(scans, is_read):
    jpeg = encode(image(), PROGRESSIVE=1).removesuffix(END)
    last = SCAN + jpeg.rpartition(SCAN)[2]
    jpeg += last * (scans - jpeg.count(SCAN)) + END
    if is_read:
        check_scans(jpeg)
    else:
        with pytest.raises(DecodeError, match="501 scans, more than the 500 allowed"):
            check_scans(jpeg)


@given(st.lists(st.sampled_from([b"\xff", b"\xda", b"\xff\xda", b"\0"]), min_size=1, max_size=40))
def test_markers_are_counted_as_bytes_count_them(pieces):
    data = b"".join(pieces)
    assert count_marker(data, SCAN) == data.count(SCAN)
