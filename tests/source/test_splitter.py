"""The images in a stream of JPEG files."""

import itertools
import struct

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detcli.core.errors import DecodeError
from detcli.source.segments import JPEG
from detcli.source.splitter import Splitter

SOI, EOI = b"\xff\xd8", b"\xff\xd9"
LIMIT = 200_000


def jpeg(number, *options, size=(24, 32)):
    """A JPEG file, different for each number."""
    pixels = np.random.default_rng(number).integers(0, 256, (*size, 3), np.uint8)
    encoded, data = cv2.imencode(".jpg", pixels, options)
    assert encoded
    return data.tobytes()


def segment(marker, content):
    return bytes([0xFF, marker]) + struct.pack(">H", len(content) + 2) + content


def with_segment(image, marker, content):
    """An image with a segment after its start marker."""
    return image[:2] + segment(marker, content) + image[2:]


def index(entries, order="<"):
    """Content of a segment that lists images by size and offset."""
    head = {"<": b"II*\0", ">": b"MM\0*"}[order] + struct.pack(f"{order}IH", 8, 2)
    fields = struct.pack(f"{order}HHII", 0xB001, 4, 1, len(entries))
    fields += struct.pack(f"{order}HHII", 0xB002, 7, 16 * len(entries), 38)
    table = b""
    for size, offset in entries:
        table += struct.pack(f"{order}IIIHH", 0, size, offset, 0, 0)
    return b"MPF\0" + head + fields + struct.pack(f"{order}I", 0) + table


def with_attached(image, *attached, gap=0, order="<"):
    """A file as phones write it, with more images appended to the main one."""
    length = len(with_segment(image, 0xE2, index([(0, 0)] * (len(attached) + 1))))
    entries, at = [(length, 0)], length
    for attached_image in attached:
        at += gap
        entries.append((len(attached_image), at - 10))  # counted from the index, which begins at 10
        at += len(attached_image)
    file = with_segment(image, 0xE2, index(entries, order=order))
    for attached_image in attached:
        file += bytes(gap) + attached_image
    return file


KINDS = {
    "plain": jpeg(1),
    "progressive": jpeg(2, cv2.IMWRITE_JPEG_PROGRESSIVE, 1),
    "with restarts": jpeg(3, cv2.IMWRITE_JPEG_RST_INTERVAL, 1),
    "large": jpeg(4, cv2.IMWRITE_JPEG_QUALITY, 100, size=(160, 160)),
    "with a preview": with_segment(jpeg(5), 0xE1, b"Exif\0\0" + jpeg(6)),
    "with a longest segment": with_segment(jpeg(7), 0xEF, b"\xff\xd8\xff\xd9" * 16383),
    "with filling": jpeg(8)[:2] + b"\xff\xff" + jpeg(8)[2:-2] + b"\xff\xff" + EOI,
    "with an end in a comment": with_segment(jpeg(9), 0xFE, EOI + SOI),
}


def split(stream, cuts, limit=LIMIT, start=JPEG):
    """The images and errors in a stream that comes in chunks."""
    splitter = Splitter(limit, start)
    edges = [0] + sorted(cuts) + [len(stream)]
    parts = []
    for begin, end in itertools.pairwise(edges):
        parts += splitter.feed(stream[begin:end])
    parts += splitter.finish()
    return parts


def texts(parts):
    """Images as they are, and what errors say."""
    contents: list[bytes | str] = []
    for part in parts:
        if isinstance(part, bytes):
            contents.append(part)
        else:
            contents.append(str(part))
    return contents


def test_images_are_unchanged():
    for image in KINDS.values():
        assert split(image, []) == [image]
        assert split(image * 3, []) == [image] * 3
        assert split(image, range(len(image))) == [image]


@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG\r\n\x1a\n"), (".ppm", b"P6")])
def test_images_of_other_formats_are_unchanged(suffix, start):
    image = cv2.imencode(suffix, np.full((5, 7, 3), start[0], np.uint8))[1].tobytes()
    for cuts in ([], range(3 * len(image))):
        assert split(image * 3, cuts, start=start) == [image] * 3
    splitter = Splitter(LIMIT, start)
    assert list(splitter.feed(image[:-1])) == []
    assert list(splitter.feed(image[-1:])) == [image]
    parts = split(image, [], limit=len(image) - 1, start=start)
    assert "more than" in str(parts[0])
    for part in parts[1:]:
        assert not isinstance(part, bytes)


@given(data=st.data(), kinds=st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=6))
def test_chunks_make_no_difference(data, kinds):
    images = [KINDS[kind] for kind in kinds]
    stream = b"".join(images)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=30))
    assert split(stream, cuts) == images


@given(data=st.data())
def test_chunks_make_no_difference_to_damage(data):
    """Errors do not depend on chunks, and the images after damage are found."""
    image, last = KINDS["with a preview"], KINDS["plain"]
    damaged = bytearray(image * 2)
    for _ in range(data.draw(st.integers(1, 8))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    del damaged[data.draw(st.integers(0, len(damaged))) :]
    # Longer than any segment, so that no damaged length can hide the last images.
    stream = bytes(damaged) + bytes(2**16) + last * 2
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=30))
    parts = split(stream, [])
    assert texts(split(stream, cuts)) == texts(parts)
    assert parts[-1] == last


def test_an_image_comes_as_soon_as_its_last_byte_is_there():
    splitter = Splitter(LIMIT)
    for image in KINDS.values():
        assert list(splitter.feed(image[:-1])) == []
        assert list(splitter.feed(image[-1:])) == [image]


def test_an_incomplete_image_is_an_error_and_the_next_is_found():
    following = jpeg(20)
    for kind, image in KINDS.items():
        for end in (len(image) // 2, len(image) - 3, len(image) - 2, len(image) - 1):
            parts = split(image[:end] + following * 2, [])
            errors = parts[:-2]
            has_preview = kind == "with a preview" and end == len(image) // 2
            assert len(errors) == 1 + has_preview
            for error in errors:
                assert type(error) is DecodeError
            assert parts[-2:] == [following, following]


def test_an_incomplete_header_does_not_hide_the_next_image():
    following = jpeg(20)
    for end in range(3, 30):
        parts = split(KINDS["plain"][:end] + following * 2, [])
        # A cut at the end of a segment joins both to one image: the second.
        assert parts[-1] == following
        assert following[10:] in parts[-2]
        assert len(parts) <= 3


def test_damage_and_other_bytes_are_reported_once():
    image, junk = KINDS["plain"], "{} bytes in the stream belong to no image"
    cut = "an incomplete image in the stream: the stream ends in it"
    torn = "an incomplete image in the stream: its segments do not follow one another"
    for stream, parts in (
        (
            image + b"junk" + EOI + b"\xff\xd8\xfe" + image * 2,
            [image, junk.format(9), image, image],
        ),
        (image[:20] + b"\0" * 50 + image[20:] + image, [torn, image]),
        (image + image[:50], [image, cut]),
        (image * 2 + b"junk", [image, image, junk.format(4)]),
        (image + b"junk", [image]),  # of a single file
        (b"", []),
    ):
        assert texts(split(stream, [])) == parts


def test_at_most_one_image_is_held():
    splitter = Splitter(10_000)
    endless = KINDS["plain"][:-2] + bytes(2000)
    errors = []
    for _ in range(100):
        errors += splitter.feed(bytes(1000))
    errors += list(splitter.feed(endless))
    for _ in range(1000):
        errors += splitter.feed(bytes(1000))
        assert len(splitter._data) < 13_000  # noqa: SLF001 - there is no other way to see it
    assert texts(errors) == [
        "100000 bytes in the stream belong to no image",
        "an incomplete image in the stream: more than 10000 bytes",
    ]
    assert list(splitter.feed(KINDS["plain"] * 2)) == [KINDS["plain"]] * 2


def test_an_image_that_is_too_large_is_refused_in_any_chunks():
    image = KINDS["large"]
    assert split(image, [], limit=len(image)) == [image]
    for cuts in ([], [len(image) - 1]):
        parts = split(image + KINDS["plain"], cuts, limit=len(image) - 1)
        assert isinstance(parts[0], DecodeError)
        assert parts[-1] == KINDS["plain"]


@pytest.mark.parametrize(("order", "gap"), [("<", 0), (">", 7)])
def test_images_that_a_phone_appends_belong_to_the_main_one(order, gap):
    file = with_attached(jpeg(1), jpeg(2), jpeg(3), gap=gap, order=order)
    main = file[: file.index(jpeg(2)) - gap]
    for cuts in ([], range(0, len(file), 11)):
        assert texts(split(file * 2 + jpeg(4), cuts)) == [main, main, jpeg(4)]


def test_an_image_that_only_looks_attached_counts():
    file = with_attached(jpeg(1), jpeg(2))
    main = file[: -len(jpeg(2))]  # the rest was cut off
    unrelated = jpeg(5, size=(40, 40))
    assert split(main + unrelated + jpeg(2), []) == [main, unrelated, jpeg(2)]


def test_a_damaged_index_is_ignored():
    for length in (4, 7, 8, 12, 20, 30, 45, 60):
        image = with_segment(jpeg(1), 0xE2, index([(100, 0), (100, 200)])[:length])
        assert split(image + jpeg(2), []) == [image, jpeg(2)]
