"""The tables for resizing against cv2.resize, bit for bit."""

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detcli.backend.cuda.letterbox import ONE, column_taps, row_taps

pytestmark = pytest.mark.slow

SPECIAL = [1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257]


def resize(image, width, height):
    """Resize with the tables and integer arithmetic, as the kernel does."""
    near, next_pixel, near_weight, far_weight = column_taps(image.shape[1], width).T[
        ..., np.newaxis
    ]
    columns = image[:, near[:, 0]] * near_weight + image[:, next_pixel[:, 0]] * far_weight
    columns >>= 4
    near, next_pixel, near_weight, far_weight = row_taps(image.shape[0], height).T[..., None, None]
    above = (near_weight * columns[near[:, 0, 0]]) >> 16
    below = (far_weight * columns[next_pixel[:, 0, 0]]) >> 16
    return ((above + below + 2) >> 2).astype(np.uint8)


def check(image, width, height):
    expected = cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR)
    np.testing.assert_array_equal(resize(image, width, height), expected)


def noise(random, height, width):
    return random.integers(0, 256, (height, width, 3), np.uint8)


def sizes(random, count):
    """Heights and widths before and after: many powers of two, some kept or halved."""
    for _ in range(count):
        either = np.stack([random.choice(SPECIAL, 4), random.integers(1, 300, 4)])
        height, width, new_height, new_width = random.permuted(either, axis=0)[0].tolist()
        relation = random.integers(6)
        if relation == 0:
            new_height = height
        elif relation == 1:
            new_width = width
        elif relation == 2:
            height = new_height * 2
            width = new_width * 2
        elif relation == 3:
            factor = random.integers(1, 6, 2)
            height = new_height * int(factor[0])
            width = new_width * int(factor[1])
        yield height, width, new_height, new_width


def test_1000_sizes(random):
    """Some in black and white."""
    for number, (height, width, new_height, new_width) in enumerate(sizes(random, 1000)):
        image = noise(random, height, width)
        check(image if number % 5 else image // 128 * np.uint8(255), new_width, new_height)


@pytest.fixture
def _switches_restored():
    yield
    cv2.setUseOptimized(True)
    cv2.ipp.setUseIPP(True)
    cv2.ipp.setUseIPP_NotExact(False)


@pytest.mark.usefixtures("_switches_restored")
@pytest.mark.parametrize("switch", [cv2.setUseOptimized, cv2.ipp.setUseIPP], ids=str)
def test_without_vector_instructions(switch, random):
    switch(False)  # noqa: FBT003 - they take nothing else
    for height, width, new_height, new_width in sizes(random, 200):
        check(noise(random, height, width), new_width, new_height)


@given(st.integers(1, 10**5), st.integers(1, 5000))
def test_tables_hold_neighbours_and_weights_that_add_up(source, target):
    for taps in (column_taps(source, target), row_taps(source, target)):
        near, next_pixel, near_weight, far_weight = taps.T
        assert taps.shape == (target, 4)
        assert taps.dtype == np.int32
        assert taps.min() >= 0
        assert next_pixel.max() < source
        assert np.isin(next_pixel - near, [0, 1]).all()
        np.testing.assert_array_equal(near_weight + far_weight, ONE)
        with pytest.raises(ValueError, match="read-only"):
            taps[0] = 0  # they are shared
