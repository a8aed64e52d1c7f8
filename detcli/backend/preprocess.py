"""From a picture to the network's input: the specification for every backend.

Resize with cv2.INTER_LINEAR, pad with grey (114), BGR -> RGB, divide by 255, HWC -> CHW, as
Ultralytics' `LetterBox` and predictor do.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from detcli.geometry import Image, Letterbox, Picture
from detcli.opencv import cv2

GREY = 114
UNIT = np.arange(256, dtype=np.float32) / np.float32(255)
"""Each of the 256 pixel values in the network's input; float16 is rounded from these."""


def letterbox_image(image: Image, letterbox: Letterbox) -> Image:
    """Resize a picture and centre it on grey: `(H, W, 3)` -> canvas `(H, W, 3)`, uint8 BGR."""
    height, width = letterbox.resized
    if image.shape[:2] != letterbox.resized:
        image = cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR)  # type: ignore[assignment]
    canvas = np.full((*letterbox.canvas, 3), GREY, np.uint8)
    top, left = letterbox.top, letterbox.left
    canvas[top : top + height, left : left + width] = image
    return canvas


def to_tensor(canvas: Image, out: npt.NDArray[Any]) -> None:
    """Write a canvas `(H, W, 3)` uint8 BGR into `out`, `(3, H, W)` RGB from 0 to 1."""
    table = UNIT.astype(out.dtype, copy=False)
    for plane, channel in zip(cv2.split(canvas), out[::-1], strict=True):
        cv2.LUT(plane, table, dst=channel)


def to_batch(
    picture: Picture, canvas: tuple[int, int], dtype: npt.DTypeLike, count: int
) -> npt.NDArray[Any]:
    """Letterbox one picture to a canvas `(H, W)` and repeat it: `(count, 3, H, W)`."""
    tensor = np.empty((1, 3, *canvas), dtype)
    to_tensor(letterbox_image(picture.pixels, Letterbox.fit(picture.size, canvas)), tensor[0])
    return np.repeat(tensor, count, axis=0)
