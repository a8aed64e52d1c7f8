"""Preprocessing against its description, a step at a time."""

import cv2
import numpy as np
import pytest

from detcli import Letterbox
from detcli.backend.preprocess import letterbox_image, to_tensor

SIZES = [(480, 640), (1080, 810), (720, 1280), (33, 31), (1, 1), (1, 5000), (5000, 1), (640, 640)]


def plain_tensor(image, canvas):
    height, width = image.shape[:2]
    gain = min(canvas[0] / height, canvas[1] / width)
    new_height, new_width = max(1, round(height * gain)), max(1, round(width * gain))
    resized = cv2.resize(image, (new_width, new_height), interpolation=cv2.INTER_LINEAR)
    vertical, horizontal = (canvas[0] - new_height) / 2, (canvas[1] - new_width) / 2
    padded = cv2.copyMakeBorder(
        resized,
        *(round(vertical - 0.1), round(vertical + 0.1)),
        *(round(horizontal - 0.1), round(horizontal + 0.1)),
        cv2.BORDER_CONSTANT,
        value=(114, 114, 114),
    )
    rgb = cv2.cvtColor(padded, cv2.COLOR_BGR2RGB)
    return rgb.transpose(2, 0, 1).astype(np.float32) / np.float32(255)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("canvas", [(640, 640), (384, 640), (64, 64)])
def test_float32_is_exact(size, canvas, random):
    image = random.integers(0, 256, (*size, 3), np.uint8)
    tensor = np.full((3, *canvas), np.nan, np.float32)
    to_tensor(letterbox_image(image, Letterbox.fit(size, canvas)), tensor)
    np.testing.assert_array_equal(tensor, plain_tensor(image, canvas))


def test_float16_is_float32_rounded(random):
    image = random.integers(0, 256, (50, 70, 3), np.uint8)
    tensor = np.full((3, 64, 64), np.nan, np.float16)
    to_tensor(letterbox_image(image, Letterbox.fit((50, 70), (64, 64))), tensor)
    np.testing.assert_array_equal(tensor, plain_tensor(image, (64, 64)).astype(np.float16))


def test_the_picture_is_not_changed(random):
    image = random.integers(0, 256, (64, 64, 3), np.uint8)
    before = image.copy()
    canvas = letterbox_image(image, Letterbox.fit((64, 64), (64, 64)))
    canvas[:] = 0
    np.testing.assert_array_equal(image, before)
