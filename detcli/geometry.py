"""Pictures, and Letterbox, which maps them onto the network's input and boxes back."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

Image = npt.NDArray[np.uint8]
"""A decoded picture: `(H, W, 3)` uint8, BGR, upright."""

Boxes = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False, slots=True)
class Picture:
    """A decoded picture, possibly at reduced size.

    Attributes:
        pixels: `(H, W, 3)` uint8 BGR, upright.
        size: Height and width of the full picture; boxes are in its pixels.
        warnings: What is wrong with it, although it could be decoded.
    """

    pixels: Image
    size: tuple[int, int]
    warnings: tuple[str, ...] = ()

    @classmethod
    def whole(cls, pixels: Image) -> Self:
        """A picture at full size."""
        return cls(pixels, (pixels.shape[0], pixels.shape[1]))


@dataclass(frozen=True, slots=True)
class Letterbox:
    """A picture scaled to fit the network's input, centred on a grey canvas.

    Computed once for a picture: preprocessing follows it, and boxes are mapped back through it.
    The rounding is that of Ultralytics' `LetterBox` and `scale_boxes`.

    Attributes:
        picture: Height and width of the picture in pixels.
        canvas: Height and width of the network's input.
        gain: Canvas pixels for each picture pixel.
        resized: Height and width of the picture on the canvas.
        top: Rows of padding above the picture.
        left: Columns of padding to its left.
    """

    picture: tuple[int, int]
    canvas: tuple[int, int]
    gain: float
    resized: tuple[int, int]
    top: int
    left: int

    @classmethod
    def fit(cls, picture: tuple[int, int], canvas: tuple[int, int]) -> Self:
        """Place a picture of (height, width) on a canvas of (height, width).

        Examples:
            >>> Letterbox.fit((1080, 810), (640, 640)).resized
            (640, 480)
        """
        height, width = picture
        gain = min(canvas[0] / height, canvas[1] / width)
        # At least one pixel, or a 1x5000 strip would vanish.
        resized = max(1, round(height * gain)), max(1, round(width * gain))
        # An odd row or column of padding goes to the bottom or the right.
        top = round((canvas[0] - resized[0]) / 2 - 0.1)
        left = round((canvas[1] - resized[1]) / 2 - 0.1)
        return cls(picture, canvas, gain, resized, top, left)

    def trimmed(self, stride: int) -> Self:
        """The same on the smallest canvas that holds it and has multiples of the stride as sides.

        Examples:
            >>> Letterbox.fit((480, 640), (640, 640)).trimmed(32).canvas
            (480, 640)
        """
        canvas = tuple(-(-side // stride) * stride for side in self.resized)
        return self.fit(self.picture, (canvas[0], canvas[1]))

    def to_picture(self, boxes: Boxes) -> Boxes:
        """Map boxes `(N, 4)` x1, y1, x2, y2 from canvas to picture pixels, clipped to the picture.

        Everything is computed in float32: subtract the padding, divide by the gain, clip.
        """
        offset = np.array([self.left, self.top, self.left, self.top], np.float32)
        height, width = self.picture
        limit = np.array([width, height, width, height], np.float32)
        mapped = (boxes.astype(np.float32, copy=False) - offset) / np.float32(self.gain)
        clipped: Boxes = np.clip(mapped, np.float32(0), limit)
        return clipped
