"""The declared size of a picture file is the size that it would have in memory."""

import struct

import cv2
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from detcli.errors import DecodeError
from detcli.source.decode import load_bytes
from detcli.source.decode_size import declared_size

HEIGHT, WIDTH = 1234, 567  # in no file by chance

# How each format stores its size.
SIZES = {
    "png": lambda height, width: struct.pack(">II", width, height),
    "gif": lambda height, width: struct.pack("<HH", width, height),
    "bmp": lambda height, width: struct.pack("<ii", width, height),
    "webp": lambda height, width: struct.pack("<I", width - 1 | height - 1 << 14),
    "avif": lambda height, width: struct.pack(">4sIII", b"ispe", 0, width, height),
    "jp2": lambda height, width: struct.pack(">IIII", width, height, 0, 0),
    "sr": lambda height, width: struct.pack(">II", width, height),
    "ppm": lambda height, width: b"%d %d\n" % (width, height),
    "pgm": lambda height, width: b"%d %d\n" % (width, height),
    "pbm": lambda height, width: b"%d %d\n" % (width, height),
    "pam": lambda height, width: b"WIDTH %d\nHEIGHT %d\n" % (width, height),
    "pfm": lambda height, width: b"%d %d\n" % (width, height),
    "hdr": lambda height, width: b"-Y %d +X %d\n" % (height, width),
}
# The largest size that each format can declare.
GREATEST = {"gif": 65_535, "webp": 16_384}


def encode(suffix, height=HEIGHT, width=WIDTH, *options):
    image = np.zeros((height, width, 3), np.float32 if suffix in {"hdr", "pfm"} else np.uint8)
    image = image[..., 0].copy() if suffix in {"pgm", "pbm"} else image
    encoded, data = cv2.imencode(f".{suffix}", image, options)
    assert encoded
    return data.tobytes()


def tiff(*fields, order="<", big=False):
    """A TIFF or BigTIFF file with only a directory of (tag, type, value)."""
    head = {"<": b"II", ">": b"MM"}[order]
    head += struct.pack(f"{order}HHHQ", 43, 8, 0, 16) if big else struct.pack(f"{order}HI", 42, 8)
    directory = struct.pack(f"{order}Q" if big else f"{order}H", len(fields))
    for tag, kind, value in fields:
        entry = struct.pack(f"{order}HH" + ("Q" if big else "I"), tag, kind, 1)
        inline = struct.pack(order + {3: "H", 4: "I", 16: "Q"}[kind], value)
        directory += entry + inline.ljust(8 if big else 4, b"\0")
    return head + directory


@pytest.mark.parametrize("suffix", [*SIZES, "tiff"])
def test_every_format_declares_its_size(suffix):
    assert declared_size(encode(suffix)) == (HEIGHT, WIDTH)


def test_the_size_of_other_kinds_of_webp():
    lossy = encode("webp", HEIGHT, WIDTH, cv2.IMWRITE_WEBP_QUALITY, 50)
    assert lossy[12:16] == b"VP8 "
    assert declared_size(lossy) == (HEIGHT, WIDTH)
    frame = np.dstack([np.full((HEIGHT, WIDTH, 3), 9, np.uint8), np.full((HEIGHT, WIDTH), 7)])
    noisy = cv2.imencode(".webp", frame.astype(np.uint8), [cv2.IMWRITE_WEBP_QUALITY, 50])[1]
    assert noisy.tobytes()[12:16] == b"VP8X"
    assert declared_size(noisy.tobytes()) == (HEIGHT, WIDTH)


@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("kind", [3, 4, 16])
def test_the_size_of_other_kinds_of_tiff(order, kind, big):
    fields = [(0xFE, 4, 0), (0x100, kind, 30_000), (0x101, kind, 20_000), (0x102, 3, 8)]
    if kind == 16 and not big:
        fields[1:3] = [(0x100, 4, 30_000), (0x101, 3, 20_000)]
    assert declared_size(tiff(*fields, order=order, big=big)) == (20_000, 30_000)


def test_the_size_of_an_old_bmp():
    data = b"BM" + struct.pack("<IIIIHHHH", 0, 0, 26, 12, 30_000, 20_000, 1, 24)
    assert declared_size(data) == (20_000, 30_000)


def test_a_bmp_may_be_stored_from_top_to_bottom():
    data = b"BM" + struct.pack("<IIIIiiHH", 0, 0, 54, 40, 30_000, -20_000, 1, 24)
    assert declared_size(data) == (20_000, 30_000)


@pytest.mark.parametrize("suffix", SIZES)
def test_a_small_file_that_declares_a_huge_picture_is_refused(suffix):
    """It would take gigabytes, so the decoders are never called."""
    data, side = encode(suffix), GREATEST.get(suffix, 60_000)
    written = SIZES[suffix](HEIGHT, WIDTH)
    assert written in data
    bomb = data.replace(written, SIZES[suffix](side, side))[:10_000]
    assert declared_size(bomb) == (side, side)
    with pytest.raises(DecodeError, match=f"{side}x{side}"):
        load_bytes(bomb)


def test_a_small_tiff_that_declares_a_huge_picture_is_refused():
    bomb = tiff((0x100, 4, 60_000), (0x101, 4, 60_000), (0x102, 3, 8))
    with pytest.raises(DecodeError, match="60000x60000"):
        load_bytes(bomb)


def test_comments_in_a_header_are_skipped():
    assert declared_size(b"P5 # 1 1\n#\n 30000 # wide\r20000 255\n") == (20_000, 30_000)


def test_the_tiles_of_an_avif_are_ignored():
    data = encode("avif") + SIZES["avif"](10, 10)
    assert declared_size(data) == (HEIGHT, WIDTH)


@pytest.mark.parametrize("data", [b"", b"P", b"PK\3\4", b"BM", b"RIFF", b"II*\0", b"#?R", b"text"])
def test_unknown_bytes_have_no_size(data):
    assert declared_size(data) is None


FILES = {suffix: encode(suffix, 64, 96) for suffix in [*SIZES, "tiff"]}


@example(suffix="jp2", at=100, change=b"\x00\x01")
@given(st.sampled_from([*SIZES, "tiff"]), st.integers(0, 200), st.binary(max_size=8))
def test_any_bytes_have_a_size_or_none(suffix, at, change):
    data = FILES[suffix]
    size = declared_size(data[:at] + change + data[at + len(change) :])
    assert size is None or min(size) >= 0


DECOYS = {
    "pam comment": FILES["pam"].replace(b"P7\n", b"P7\n# WIDTH 1\n# HEIGHT 1\n"),
    "hdr variable": FILES["hdr"].replace(b"\n", b"\n-Y 1 +X 1\n", 1),
    "jp2 box": FILES["jp2"][:12]
    + struct.pack(">I4s", 100, b"free")
    + (b"\xff\x4f\xff\x51" + struct.pack(">HHIIII", 41, 0, 1, 1, 0, 0)).ljust(92, b"\0")
    + FILES["jp2"][12:],
    "avif flags": FILES["avif"].replace(
        struct.pack(">4sIII", b"ispe", 0, 96, 64), struct.pack(">4sIII", b"ispe", 1, 96, 64)
    )
    + SIZES["avif"](1, 1),
    "tiff tile": tiff((0x100, 4, 1), (0x101, 4, 1), (0x142, 4, 96), (0x143, 4, 64)),
}


@pytest.mark.parametrize("data", DECOYS.values(), ids=DECOYS)
def test_a_small_decoy_does_not_hide_the_size(data):
    assert declared_size(data) == (64, 96)


UNKNOWN = {
    "raw VP8": FILES["webp"][12:],
    "sizes elsewhere in a TIFF": tiff((0x100, 3, 1), (0x101, 3, 1)).replace(
        struct.pack("<HH", 0x100, 3), struct.pack("<HH", 0x100, 16)
    ),
    "a chunk before the first": FILES["png"][:8] + struct.pack(">I", 0) + FILES["png"][12:],
    "too many fields": b"II+\0" + struct.pack("<HHQQ", 8, 0, 16, 2**40) + bytes(10**6),
    "PFM with an odd number": FILES["pfm"].replace(b"96 64", b"9,6 1000"),
    "JPEG without a frame": b"\xff\xd8\xff\xd9" + bytes(100),
}


@pytest.mark.parametrize("data", UNKNOWN.values(), ids=UNKNOWN)
def test_what_has_no_size_that_can_be_found_is_never_decoded(monkeypatch, data):
    monkeypatch.setattr(cv2, "imdecode", lambda *_: pytest.fail("it was decoded"))
    assert declared_size(data) is None
    with pytest.raises(DecodeError, match="not a picture"):
        load_bytes(data)
