"""Orientations and kinds of values that OpenCV does not show as viewers do, against Pillow."""

import io
import struct

import cv2
import numpy as np
import pytest
from made_jpegs import exif, image, orientation
from PIL import Image, ImageOps, TiffImagePlugin, features

from detcli.core.errors import DecodeError
from detcli.source.decode import load_bytes

IMAGE = Image.fromarray(image())
AVIF = pytest.mark.skipif(not features.check("avif"), reason="this Pillow has no libavif")


def saved(form, *, image=IMAGE, **options):
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def turned(form, value, order="<", kind=3):
    """An image with an orientation in it, as a field of one type."""
    if form == "TIFF":
        start = {"<": b"II*", ">": b"MM\0*"}[order].ljust(8, b"\0")
        fields = TiffImagePlugin.ImageFileDirectory_v2(start)
        fields.tagtype[0x112] = kind
        fields[0x112] = value
        return saved(form, tiffinfo=fields)
    options = {"AVIF": {"speed": 10}, "WEBP": {"lossless": True}}.get(form, {})
    return saved(form, exif=exif(orientation(value, kind), order=order)[4:], **options)  # type: ignore[arg-type]


def assert_as_in_pillow(data, tolerance):
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    decoded = load_bytes(data)
    assert decoded.size == (upright.height, upright.width)
    np.testing.assert_allclose(decoded.pixels[..., ::-1], np.asarray(upright, int), atol=tolerance)


@pytest.mark.parametrize("kind", [3, 4])  # SHORT and LONG
@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF", pytest.param("AVIF", marks=AVIF)])
def test_each_orientation_is_as_in_pillow(form, order, kind):
    for value in range(1, 9):
        assert_as_in_pillow(turned(form, value, order, kind), {"AVIF": 4}.get(form, 0))


def avif(value):
    """An AVIF that says in its EXIF as well how it is turned, as OpenCV and phones write it."""
    tiff = np.frombuffer(exif(orientation(value))[10:], np.uint8)
    kinds = [cv2.IMAGE_METADATA_EXIF]
    return cv2.imencodeWithMetadata(".avif", image(), kinds, [tiff])[1].tobytes()


ODD_AVIFS = {  # a file, and which of its bytes are replaced
    "EXIF alone": (avif(6), {b"\x83\4\x85": b"\x83\4\0"}),
    "in another order": (avif(7), {b"\4\x85\x86": b"\4\x86\x85"}),  # libavif mirrors last
    "two turns": (avif(7), {b"\4\x85\x86": b"\4\x85\x85"}),  # libavif takes the first
    "another brand": (avif(6), {b"ftypavif": b"ftypmif1"}),
}


@AVIF
def test_an_avif_is_turned_as_in_pillow():
    for value in range(1, 9):
        assert_as_in_pillow(avif(value), 4)
    for data, changes in ODD_AVIFS.values():
        assert_as_in_pillow(replaced(data, changes), 4)
    clear = saved("AVIF", image=IMAGE.convert("RGBA"), exif=exif(orientation(5))[4:])
    assert_as_in_pillow(clear, 4)
    # An item of a sequence may be turned; its tracks are shown, which are not.
    film = saved("AVIF", save_all=True, append_images=[IMAGE.rotate(90)])
    changes = {b"pixi\0": b"irot\1", b"\1\4\1\2\x83\4": b"\1\4\1\x82\x83\4"}
    assert_as_in_pillow(replaced(film, changes), 4)


def replaced(data, changes):
    for old, new in changes.items():
        assert data.count(old) == 1
        data = data.replace(old, new)
    return data


def box(kind, *contents):
    content = b"".join(contents)
    return struct.pack(">I4s", 8 + len(content), kind) + content


def boxes(version):
    """Those of an AVIF whose second item is turned, before which the first is mirrored."""
    item = "HI"[version]
    of_first = struct.pack(f">{item}BH", 1, 1, 200)
    of_second = struct.pack(f">{item}BH", 2, 1, 201)
    ipma = box(b"ipma", bytes([version, 0, 0, 1]), struct.pack(">I", 2), of_first, of_second)
    ipco = box(b"ipco", box(b"free") * 199, box(b"imir", b"\0"), box(b"irot", b"\1"))
    pitm = box(b"pitm", bytes([version, 0, 0, 0]), struct.pack(f">{item}", 2))
    large = struct.pack(">I4sQ", 1, b"free", 20) + bytes(4)
    to_the_end = box(b"meta", bytes(4), pitm, box(b"iprp", ipco, ipma))
    return box(b"ftyp", b"avif") + large + bytes(4) + to_the_end[4:]


@pytest.fixture
def lenient(monkeypatch):
    """An OpenCV that decodes anything; that of today finds most damage itself."""
    monkeypatch.setattr(cv2, "imdecode", lambda *_: image())


@pytest.mark.usefixtures("lenient")
def test_the_boxes_of_an_avif_are_read_in_every_form():
    for version in (0, 1):
        np.testing.assert_array_equal(load_bytes(boxes(version)).pixels, np.rot90(image()))


@pytest.mark.usefixtures("lenient")
def test_damaged_boxes_of_an_avif_are_an_error_or_none():
    sound = boxes(0)
    messages = set()
    damaged = [sound[:length] for length in range(12, len(sound))]
    positions = list(range(8, 90)) + list(range(len(sound) - 60, len(sound)))
    for position in positions:
        for byte in (0, 1, 7, 255):
            damaged.append(sound[:position] + bytes([byte]) + sound[position + 1 :])
    for data in damaged:
        try:
            assert load_bytes(data).size in {(48, 64), (64, 48)}
        except DecodeError as error:
            messages.add(str(error))
    assert messages == {"a damaged AVIF: its orientation cannot be read"}


SHADES = image()[..., :1] / 255  # of grey
NO_IMAGE = "not from 0 to 1, as black and white are"
WIDE = {  # values, their type, and what becomes of them
    "from 0 to 1": (image() / 255, np.float32, image()),
    "of 64 bits": (image() / 255, np.float64, image()),
    "grey": (SHADES, np.float32, image()[..., :1].repeat(3, -1)),
    "of 8 bits": (image(), np.float32, image()),
    "integers of 8 bits": (image(), np.int32, image()),
    "a mask": (image() > 200, np.uint32, (image() > 200) * 255),
    "with lights": (image() / 150, np.float32, np.minimum(image() * 1.7, 255)),
    "not numbers": (np.where(image() > 200, np.nan, 1), np.float32, (image() <= 200) * 255),
    "infinite": (np.where(image() > 200, np.inf, -0.0), np.float32, (image() > 200) * 255),
    "to 1000": (image() / 255 * 1000, np.float32, NO_IMAGE),
    "below 0": (image() / 255 - 2, np.float32, NO_IMAGE),
    "no number": (image() * np.nan, np.float32, NO_IMAGE),
    "integers to 65535": (image().astype(int) * 257, np.int32, NO_IMAGE),
}


@pytest.mark.parametrize(("values", "kind", "expected"), WIDE.values(), ids=WIDE)
def test_wide_values_become_eight_bits_or_are_refused(values, kind, expected):
    suffixes = [".tiff"]
    if kind == np.float32:
        suffixes += [".pfm", ".hdr"]
    if not np.isfinite(values).all() or np.min(values) < 0:
        suffixes.remove(".hdr")
    for suffix in suffixes:
        data = cv2.imencode(suffix, np.asarray(values, kind))[1].tobytes()
        if expected is NO_IMAGE:
            with pytest.raises(DecodeError, match=expected):
                load_bytes(data)
        else:
            pixels = load_bytes(data).pixels
            assert pixels.flags.c_contiguous
            np.testing.assert_allclose(pixels, expected, atol=3 if suffix == ".hdr" else 1)
