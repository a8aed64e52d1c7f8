"""Pictures, and Letterbox, which maps them onto the network's input and boxes back."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from detcli.core import frozen

Image = npt.NDArray[np.uint8]  # a decoded picture: `(H, W, 3)` uint8, BGR, upright

Size = tuple[int, int]  # height and width in pixels
Allocate = Callable[[Size], Image]
"""Makes an array for a picture of (height, width), with any content."""

Area = tuple[int, int, int, int]  # left, top, right, bottom in whole pixels of the picture
Boxes = npt.NDArray[np.float32]
AnyBoxes = npt.NDArray[Any]  # of any floats
Points = npt.NDArray[np.float32]  # `(N, 2)`, x and y in pixels of the upright picture


def new_image(size: Size) -> Image:
    """An array for a picture of (height, width) in ordinary memory."""
    return np.empty((*size, 3), np.uint8)


@dataclass(frozen=True, eq=False, slots=True)
class Picture:
    """A decoded picture, possibly at reduced size."""

    pixels: Image  # `(H, W, 3)` uint8 BGR, upright
    size: Size  # height and width of the full picture; boxes are in its pixels
    warnings: tuple[str, ...] = ()  # what is wrong with it, although it could be decoded
    # what its file held, where that was to be kept and shows nothing that the pixels must not
    file: bytes | None = None
    is_plain: bool = True  # whether OpenCV alone, as in trainers, makes these pixels of its file
    file_stamp: str | None = None  # size and time of the file that it was read from, if it has one

    @classmethod
    def whole(cls, image: Image) -> Self:
        """A picture at full size."""
        return cls(image, (image.shape[0], image.shape[1]))


@frozen
class Letterbox:
    """Where a picture lies on the network's input: scaled, and padded where it does not reach.

    Computed once for a picture: preprocessing follows it, and boxes are mapped back through it.
    """

    picture: Size  # of the picture in pixels
    canvas: Size  # of the network's input
    # canvas pixels for each picture pixel, along x and y; different only in a stretched picture
    scale: tuple[float, float]
    resized: Size  # of the picture on the canvas
    top: int = 0  # rows of padding above the picture
    left: int = 0  # columns of padding to its left

    @property
    def gains(self) -> tuple[float, float]:
        """The earlier name of `scale`."""
        return self.scale

    @classmethod
    def fit(
        cls,
        picture: Size,
        canvas: Size,
        longest: int | None = None,
        enlarge: float | None = None,
        *,
        corner: bool = False,
    ) -> Self:
        """Place a picture of (height, width) in the middle of a canvas of (height, width).

        The rounding is that of Ultralytics' `LetterBox` and `scale_boxes`; at the top left `corner`
        that of YOLOX, which rounds height and width down.

        Args:
            picture: Its height and width.
            canvas: Height and width of the network's input.
            longest: The most pixels that either side may have, where the canvas has more.
            enlarge: The largest factor by which a small picture is enlarged.
            corner: Whether to place it at the top left instead.

        Examples:
            >>> Letterbox.fit((1080, 810), (640, 640)).resized
            (640, 480)
            >>> Letterbox.fit((200, 100), (640, 640), enlarge=1).resized
            (200, 100)
            >>> Letterbox.fit((427, 640), (416, 416), corner=True).resized
            (277, 416)
        """
        height, width = picture
        room = [min(side, longest or side) for side in canvas]
        scale = min(room[0] / height, room[1] / width, enlarge or math.inf)
        to_pixels = int if corner else round
        # At least one pixel, or a 1x5000 strip would vanish.
        resized = max(1, to_pixels(height * scale)), max(1, to_pixels(width * scale))
        if corner:
            return cls(picture, canvas, (scale, scale), resized)
        # An odd row or column of padding goes to the bottom or the right.
        top = round((canvas[0] - resized[0]) / 2 - 0.1)
        left = round((canvas[1] - resized[1]) / 2 - 0.1)
        return cls(picture, canvas, (scale, scale), resized, top, left)

    @classmethod
    def stretched(cls, picture: Size, canvas: Size) -> Self:
        """Let a picture fill a canvas, whatever its proportions.

        Examples:
            >>> Letterbox.stretched((480, 640), (320, 320)).scale
            (0.5, 0.6666666666666666)
        """
        return cls(picture, canvas, (canvas[1] / picture[1], canvas[0] / picture[0]), canvas)

    @classmethod
    def by_shortest_edge(
        cls, picture: Size, shortest: int, longest: int, multiple: int = 1
    ) -> Self:
        """Scale a picture by its shorter side; the canvas is as large as that.

        The rounding is that of `get_size_with_aspect_ratio` in Hugging Face's Transformers.

        Args:
            picture: Its height and width.
            shortest: Length of the shorter side.
            longest: The most that the longer side may have; the shorter one is less then.
            multiple: Both sides are rounded down to a multiple of this.

        Examples:
            >>> Letterbox.by_shortest_edge((480, 640), 800, 1333).canvas
            (800, 1066)
        """
        short, long = sorted(picture)
        exact: float = shortest
        if long / short * shortest > longest:
            exact = longest * short / long
        rounded = round(exact)
        # The longer side follows from the exact length of the shorter one.
        longer = long if rounded == short else int(exact * long / short)
        height, width = rounded, longer
        if picture[0] > picture[1]:
            height, width = longer, rounded
        height = max(1, height // multiple) * multiple
        width = max(1, width // multiple) * multiple
        return cls.stretched(picture, (height, width))

    def to_picture(self, boxes: Boxes) -> Boxes:
        """Map boxes `(N, 4)` x1, y1, x2, y2 from canvas to picture pixels.

        Everything is computed in float32: subtract the padding, divide by the scale.
        """
        offset = np.array([self.left, self.top, self.left, self.top], np.float32)
        scale = np.array(self.scale * 2, np.float32)
        mapped: Boxes = (boxes.astype(np.float32, copy=False) - offset) / scale
        return mapped


def clipped(boxes: Boxes, size: Size) -> Boxes:
    """Boxes `(N, 4)` in pixels of a picture of (height, width), cut off at its edges."""
    height, width = size
    limit = np.array([width, height, width, height], np.float32)
    within: Boxes = np.clip(boxes, np.float32(0), limit)
    return within


def common(first: AnyBoxes, second: AnyBoxes) -> AnyBoxes:
    """The box `(..., 4)` that two have in common; without an area if they have nothing."""
    low = np.maximum(first[..., :2], second[..., :2])
    high = np.minimum(first[..., 2:], second[..., 2:])
    return np.concatenate([low, np.maximum(low, high)], axis=-1)


def area(boxes: AnyBoxes) -> AnyBoxes:
    """Areas of boxes in square pixels: (..., 4) -> (...)."""
    areas: AnyBoxes = np.maximum(0, boxes[..., 2:] - boxes[..., :2]).prod(axis=-1)
    return areas


def overlap(first: AnyBoxes, second: AnyBoxes) -> AnyBoxes:
    """Intersection over union: (..., 4), (..., 4) -> (...); 0 without an area."""
    intersection = area(common(first, second))
    union = area(first) + area(second) - intersection
    no_overlap = np.zeros_like(intersection)
    ious: AnyBoxes = np.divide(intersection, union, out=no_overlap, where=union > 0)
    return ious


def shown(boxes: Boxes, size: Size) -> npt.NDArray[np.bool_]:
    """Which boxes `(N, 4)` show in a picture of (height, width): `(N,)`.

    A box within the picture shows, even without an area; one that only touches it from outside,
    or whose corners are swapped, does not.
    """
    low = boxes[:, :2]
    high = boxes[:, 2:]
    end = np.array(size[::-1], np.float32)
    is_before = (low < 0) & (high <= 0)  # (N, 2), along x and y
    is_beyond = (low >= end) & (high > end)
    is_swapped = high < low
    is_outside = is_before | is_beyond | is_swapped
    return np.asarray(~is_outside.any(axis=1))


def bottom_centres(boxes: Boxes, size: Size) -> Points:
    """The bottom centre of each box `(N, 4)`, where its object stands: `(N, 2)` x and y in pixels.

    A box that reaches beyond the picture is clipped to it; NaN for boxes outside it.
    """
    x1, _, x2, y2 = clipped(boxes, size).T
    points: Points = np.stack([(x1 + x2) / 2, y2], axis=1)  # (N, 2)
    points[~shown(boxes, size)] = np.nan
    return points
