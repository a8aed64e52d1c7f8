"""The sizes in an AVIF file, whatever its boxes say."""

import io
import struct

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from detcli.source.decode_avif import sizes

HEIGHT, WIDTH = 204, 372
STILL = cv2.imencode(".avif", np.full((HEIGHT, WIDTH, 3), 90, np.uint8))[1].tobytes()


def animation():
    data = io.BytesIO()
    first, second = (Image.new("RGB", (WIDTH, HEIGHT), (level, 0, 0)) for level in (50, 200))
    try:
        first.save(data, "AVIF", save_all=True, append_images=[second])
    except (OSError, KeyError):
        pytest.skip("this Pillow does not write AVIF")
    return data.getvalue()


@pytest.mark.parametrize("make", [lambda: STILL, animation], ids=["still", "animation"])
def test_boxes_and_pictures_state_the_size(make):
    data = make()
    assert {*sizes(data)} == {(HEIGHT, WIDTH)}
    assert len([*sizes(data)]) >= 2


@pytest.mark.parametrize("make", [lambda: STILL, animation], ids=["still", "animation"])
def test_the_size_of_the_picture_is_found_behind_boxes_that_lie(make):
    data = make().replace(struct.pack(">II", WIDTH, HEIGHT), struct.pack(">II", 8, 8))
    data = data.replace(struct.pack(">II", WIDTH << 16, HEIGHT << 16), bytes(8))
    assert {*sizes(data)} >= {(HEIGHT, WIDTH), (8, 8)}


def test_boxes_that_make_no_sense_are_ignored():
    junk = b"iloc\xff tkhd stco\0\0\0\0\xff\xff\xff\xff co64"
    assert {*sizes(STILL + junk)} == {(HEIGHT, WIDTH)}
    assert [*sizes(junk)] == []


@given(st.integers(0, len(STILL) - 1), st.binary(max_size=8))
def test_any_bytes_have_sizes_or_none(at, change):
    found = sizes(STILL[:at] + change + STILL[at + len(change) :])
    assert all(min(size) >= 0 for size in found)
