"""Resampling against Pillow, bit for bit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from detcli.backend.preprocess import resample
from detcli.model.contract import Interpolation

KINDS = [Interpolation.BILINEAR, Interpolation.BICUBIC]
PILLOW = {
    Interpolation.BILINEAR: Image.Resampling.BILINEAR,
    Interpolation.BICUBIC: Image.Resampling.BICUBIC,
}


def pillow(image, size, interpolation):
    """Along x first; Pillow itself begins with the axis that is cheaper."""
    height, width = size
    resized = Image.fromarray(image)
    for target in ((width, image.shape[0]), (width, height)):
        resized = resized.resize(target, PILLOW[interpolation])
    return np.asarray(resized)


def check(image, size, interpolation):
    found = resample(image, size, interpolation)
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, pillow(image, size, interpolation))


def noise(random, height, width):
    return random.integers(0, 256, (height, width, 3), np.uint8)


@pytest.mark.parametrize("interpolation", KINDS)
def test_sizes(interpolation, random):
    for before, after in [
        ((480, 640), (640, 640)),
        ((427, 640), (800, 1199)),
        ((64, 64), (64, 64)),
        ((64, 40), (64, 64)),
        ((128, 96), (64, 48)),
        ((1, 1), (32, 32)),
        ((1, 5000), (1, 640)),
        ((5000, 1), (640, 1)),
        ((3, 7), (1, 1)),
    ]:
        check(noise(random, *before), after, interpolation)
    for view in (np.s_[:, ::2], np.s_[5:90, 7:81], np.s_[::-1], np.s_[..., ::-1]):
        check(noise(random, 100, 100)[view], (48, 64), interpolation)


SIDES = st.integers(1, 300)


@given(
    before=st.tuples(SIDES, SIDES),
    after=st.tuples(SIDES, SIDES),
    interpolation=st.sampled_from(KINDS),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_sizes(before, after, interpolation, seed):
    check(noise(np.random.default_rng(seed), *before), after, interpolation)


@pytest.mark.parametrize("interpolation", KINDS)
def test_black_and_white(interpolation, random):
    """The cubic overshoots there, below 0 and above 255."""
    image = noise(random, 90, 70) // 128 * np.uint8(255)
    for after in [(33, 47), (200, 150), (90, 20)]:
        check(image, after, interpolation)
