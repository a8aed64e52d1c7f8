"""Preprocessing against its description, a step at a time; Pillow's filters against Pillow."""

import itertools

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as PillowImage
from thinning import thin

from detcli.backend.preprocess import (
    DEFAULT,
    fit_letterbox,
    input_value_tables,
    letterbox_image,
    resample,
    resize,
    to_batch,
    to_tensor,
)
from detcli.data.geometry import Image, Letterbox
from detcli.model.contract import Interpolation, Preprocessing, Resize

SIZES = [(480, 640), (1080, 810), (720, 1280), (33, 31), (1, 1), (1, 5000), (5000, 1), (640, 640)]


def noise(random, size):
    """An image of random pixels; size is (height, width)."""
    return random.integers(0, 256, (*size, 3), np.uint8)


def plain_tensor(image, canvas):
    height, width = image.shape[:2]
    gain = min(canvas[0] / height, canvas[1] / width)
    new_height = max(1, round(height * gain))
    new_width = max(1, round(width * gain))
    resized = cv2.resize(image, (new_width, new_height), interpolation=cv2.INTER_LINEAR)
    vertical = (canvas[0] - new_height) / 2
    horizontal = (canvas[1] - new_width) / 2
    padded = cv2.copyMakeBorder(
        resized,
        round(vertical - 0.1),
        round(vertical + 0.1),
        round(horizontal - 0.1),
        round(horizontal + 0.1),
        cv2.BORDER_CONSTANT,
        value=(114, 114, 114),
    )
    rgb = cv2.cvtColor(padded, cv2.COLOR_BGR2RGB)
    return rgb.transpose(2, 0, 1).astype(np.float32) / np.float32(255)


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_floats_are_exact(size, random):
    """Those of float16 are float32's, rounded; the image stays as it is."""
    image = noise(random, size)
    before = image.copy()
    canvases = [(640, 640), (384, 640), (64, 64), size]
    for canvas, dtype in itertools.product(canvases, [np.float32, np.float16]):
        tensor = np.full((3, *canvas), np.nan, dtype)
        letterboxed = letterbox_image(image, Letterbox.fit(size, canvas))
        to_tensor(letterboxed, tensor)
        np.testing.assert_array_equal(tensor, plain_tensor(image, canvas).astype(dtype))
        letterboxed[:] = 0
    np.testing.assert_array_equal(image, before)


MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_the_default_divides_by_255(dtype):
    """A division in float32, not a product with 1 / 255, which rounds differently.

    No value is a negative zero: the kernel shares one table where all channels are equal.
    """
    expected = (np.arange(256, dtype=np.float32) / np.float32(255)).astype(dtype)
    np.testing.assert_array_equal(input_value_tables(DEFAULT, np.dtype(dtype)), [expected] * 3)
    tiny = Preprocessing(mean=(1e-300, 2e-90, 0.0))
    assert not np.signbit(input_value_tables(tiny, np.dtype(dtype))).any()


def test_mean_and_std_follow_the_order_of_the_channels(random):
    image = random.integers(0, 256, (20, 30, 3), np.uint8)
    rgb = image[..., ::-1].transpose(2, 0, 1).astype(np.float64)
    mean = np.array(MEAN)[:, None, None]
    std = np.array(STD)[:, None, None]
    normalised = Preprocessing(Resize.NONE, mean=MEAN, std=STD)
    swapped = Preprocessing(Resize.NONE, mean=MEAN[::-1], std=STD[::-1], bgr=True)
    expected = ((rgb / 255 - mean) / std).astype(np.float32)
    for preprocessing, expected_channels in ((normalised, expected), (swapped, expected[::-1])):
        letterbox = fit_letterbox((20, 30), (64, 64), preprocessing)
        batch = to_batch(Image.whole(image), letterbox, preprocessing, np.float32, 2)
        np.testing.assert_allclose(
            batch, [expected_channels, expected_channels], rtol=1e-6, atol=1e-7
        )


def test_levels_as_they_are(random):
    image = random.integers(0, 256, (20, 30, 3), np.uint8)
    preprocessing = Preprocessing(Resize.CORNER, scale=1, bgr=True, pad=7)
    letterbox = fit_letterbox((20, 30), (32, 32), preprocessing)
    (tensor,) = to_batch(Image.whole(image), letterbox, preprocessing, np.float32, 1)
    resized = resize(image, (21, 32), Interpolation.LINEAR)
    np.testing.assert_array_equal(tensor[:, :21], resized.transpose(2, 0, 1))
    assert (tensor[:, 21:] == 7).all()


@pytest.mark.parametrize(
    ("preprocessing", "stride", "canvas", "resized"),
    [
        (Preprocessing(), None, (640, 640), (480, 640)),
        (Preprocessing(), 32, (480, 640), (480, 640)),
        (Preprocessing(longest=636), None, (640, 640), (477, 636)),
        (Preprocessing(longest=600), 32, (480, 608), (450, 600)),
        (Preprocessing(enlarge=1), None, (640, 640), (480, 640)),
        (Preprocessing(Resize.CORNER), None, (640, 640), (480, 640)),
        (Preprocessing(Resize.CORNER), 64, (512, 640), (480, 640)),
        (Preprocessing(Resize.CORNER_NEAREST), 64, (512, 640), (480, 640)),
        (Preprocessing(Resize.PAD_FIRST), None, (640, 640), (640, 640)),
        (Preprocessing(Resize.STRETCH), None, (640, 640), (640, 640)),
        (Preprocessing(Resize.SHORTEST_EDGE, edges=(256, 427)), None, (256, 341), (256, 341)),
        (Preprocessing(Resize.NONE), None, (960, 1280), (960, 1280)),
        (Preprocessing(Resize.NONE, multiple=100), None, (1000, 1300), (960, 1280)),
        (Preprocessing(Resize.ROUND, multiple=100), None, (1000, 1300), (1000, 1300)),
    ],
)
def test_each_way_to_fit_an_image(preprocessing, stride, canvas, resized):
    letterbox = fit_letterbox((960, 1280), (640, 640), preprocessing, stride)
    assert letterbox.canvas == canvas
    assert letterbox.resized == resized


@pytest.mark.parametrize("resize", [Resize.LETTERBOX, Resize.CORNER])
def test_a_small_image_is_enlarged_no_further_than_allowed(resize):
    canvases = {}
    for enlarge in (1, 1.5, 9, None):
        preprocessing = Preprocessing(resize, enlarge=enlarge)
        letterbox = fit_letterbox((120, 160), (640, 640), preprocessing)
        assert letterbox.canvas == (640, 640)
        canvases[enlarge] = (
            letterbox.resized,
            fit_letterbox((120, 160), (640, 640), preprocessing, 32).canvas,
        )
    assert canvases == {
        1: ((120, 160), (128, 160)),
        1.5: ((180, 240), (192, 256)),
        9: ((480, 640), (480, 640)),
        None: ((480, 640), (480, 640)),
    }


@pytest.mark.parametrize(("resize", "height"), [(Resize.CORNER, 339), (Resize.CORNER_NEAREST, 340)])
def test_sides_in_the_corner_are_rounded_down_or_to_the_nearest(resize, height):
    """478 rows become 339.9."""
    letterbox = fit_letterbox((478, 720), (512, 512), Preprocessing(resize))
    assert letterbox.resized == (height, 512)
    assert letterbox.top == 0


# ---------------------------------------------------------------- padding first


@pytest.mark.parametrize("size", [(90, 160), (160, 90), (61, 200), (200, 61), (128, 128), (1, 9)])
@pytest.mark.parametrize("canvas", [(32, 32), (24, 40)])
def test_an_image_padded_first_is_what_pillow_makes_of_the_padded_image(size, canvas, random):
    image = noise(random, size)
    preprocessing = Preprocessing(Resize.PAD_FIRST, Interpolation.BILINEAR, pad=7)
    letterbox = fit_letterbox(size, canvas, preprocessing)
    height, width = letterbox.bordered_size
    top, left = letterbox.border
    padded = np.full((height, width, 3), 7, np.uint8)
    padded[top : top + size[0], left : left + size[1]] = image
    expected = pillow(padded, canvas, Interpolation.BILINEAR)
    np.testing.assert_array_equal(letterbox_image(image, letterbox, preprocessing), expected)


@pytest.mark.parametrize(("size", "border"), [((90, 160), (35, 0)), ((200, 61), (0, 69))])
def test_boxes_on_an_input_that_was_padded_first_are_mapped_back(size, border):
    letterbox = fit_letterbox(size, (32, 32), Preprocessing(Resize.PAD_FIRST))
    assert letterbox.border == border
    height, width = size
    scale = 32 / max(size)
    left = border[1] * scale
    top = border[0] * scale
    box = np.array([[left, top, left + width * scale, top + height * scale]], np.float32)
    np.testing.assert_allclose(letterbox.to_image(box), [[0, 0, width, height]], atol=1e-4)


def test_an_image_that_was_decoded_at_half_its_size_has_half_the_border(random):
    half = random.integers(0, 256, (45, 80, 3), np.uint8)
    preprocessing = Preprocessing(Resize.PAD_FIRST, Interpolation.BILINEAR)
    letterbox = fit_letterbox((90, 160), (32, 32), preprocessing)
    of_half = fit_letterbox((45, 80), (32, 32), preprocessing)
    expected = letterbox_image(half, of_half, preprocessing)
    rows = slice(10, 22)  # the border of 35 rows is 17.5 rows of the half
    result = letterbox_image(half, letterbox, preprocessing)
    np.testing.assert_allclose(result[rows].mean(), expected[rows].mean(), atol=3)
    assert (result[:6] == 114).all()


@pytest.mark.slow
def test_a_long_strip_is_padded_in_little_memory():
    """As a whole, the padded image would have 27 GB."""
    strip = np.full((2, 95_000, 3), 255, np.uint8)
    preprocessing = Preprocessing(Resize.PAD_FIRST, Interpolation.BILINEAR, pad=0)
    for image in thin("long strips", [strip, strip.transpose(1, 0, 2)], 1):
        letterbox = fit_letterbox(image.shape[:2], (16, 16), preprocessing)
        assert letterbox_image(image, letterbox, preprocessing).max() == 0


# ---------------------------------------------------------------- Pillow's filters


PILLOW = {
    Interpolation.BILINEAR: PillowImage.Resampling.BILINEAR,
    Interpolation.BICUBIC: PillowImage.Resampling.BICUBIC,
}


def pillow(image, size, interpolation):
    """Along x first; Pillow itself begins with the axis that is cheaper."""
    height, width = size
    resized = PillowImage.fromarray(image)
    for target in ((width, image.shape[0]), (width, height)):
        resized = resized.resize(target, PILLOW[interpolation])
    return np.asarray(resized)


def check(image, size, interpolation):
    resampled = resample(image, size, interpolation)
    assert resampled.dtype == np.uint8
    np.testing.assert_array_equal(resampled, pillow(image, size, interpolation))


@pytest.mark.parametrize("interpolation", PILLOW)
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
        check(noise(random, before), after, interpolation)
    for view in (np.s_[:, ::2], np.s_[5:90, 7:81], np.s_[::-1], np.s_[..., ::-1]):
        check(noise(random, (100, 100))[view], (48, 64), interpolation)


SIDES = st.integers(1, 300)


@given(
    before=st.tuples(SIDES, SIDES),
    after=st.tuples(SIDES, SIDES),
    interpolation=st.sampled_from(list(PILLOW)),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_sizes(before, after, interpolation, seed):
    check(noise(np.random.default_rng(seed), before), after, interpolation)


@pytest.mark.parametrize("interpolation", PILLOW)
def test_black_and_white(interpolation, random):
    """The cubic overshoots there, below 0 and above 255."""
    image = noise(random, (90, 70)) // 128 * np.uint8(255)
    for after in [(33, 47), (200, 150), (90, 20)]:
        check(image, after, interpolation)
