"""Images, and Letterbox, which maps them onto the network's input and boxes back."""

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from detcli.core import frozen
from detcli.data.capture_time import CaptureTime

Pixels = npt.NDArray[np.uint8]  # a decoded image: `(H, W, 3)` uint8, BGR, upright

Size = tuple[int, int]  # height and width in pixels
Allocate = Callable[[Size], Pixels]
"""Makes an array for an image of (height, width), with any content."""

Area = tuple[int, int, int, int]  # left, top, right, bottom in whole pixels of the image
Boxes = npt.NDArray[np.float32]
AnyBoxes = npt.NDArray[Any]  # of any floats
Points = npt.NDArray[np.float32]  # `(N, 2)`, x and y in pixels of the upright image


def new_image(size: Size) -> Pixels:
    """Make an array for an image of the given size, with any content, in ordinary memory."""
    return np.empty((*size, 3), np.uint8)


@dataclass(frozen=True, eq=False, slots=True)  # not `frozen`, which pprint does not lay out
class Image:
    """A decoded image, possibly at reduced size.

    Attributes:
        pixels: `(H, W, 3)` uint8, rows from top to bottom, in the order blue, green, red, upright
            as the EXIF of its file says.
        size: Height and width of the full image in pixels, in which boxes are; `pixels` may have
            fewer.
        warnings: What is wrong with it, although it could be decoded.
        file: The bytes of its file, where these were to be kept and show nothing that the pixels
            must not; else None.
        is_plain: Whether OpenCV alone, as in trainers, makes these pixels of its file.
        file_stamp: The size in bytes and the time of change of the file that it was read from; None
            if it was not read from a file.
        capture_time: When it was photographed, in local time of the camera, as the EXIF of its file
            says; None if it does not.
    """

    pixels: Pixels
    size: Size
    _: KW_ONLY
    warnings: tuple[str, ...] = ()
    file: bytes | None = None
    is_plain: bool = True
    file_stamp: str | None = None
    capture_time: CaptureTime | None = None

    @classmethod
    def whole(cls, image: Pixels) -> Self:
        """An image at full size."""
        return cls(image, (image.shape[0], image.shape[1]))


@frozen
class Letterbox:
    """Where an image lies on the network's input: scaled, and padded where it does not reach.

    Computed once for an image: preprocessing follows it, and boxes are mapped back through it.
    """

    picture: Size  # of the image in pixels
    canvas: Size  # of the network's input
    # canvas pixels for each image pixel, along x and y; different only in a stretched image
    scale: tuple[float, float]
    resized: Size  # of the image on the canvas
    top: int = 0  # rows of padding above the image
    left: int = 0  # columns of padding to its left
    # size of the image with a border that is scaled with it, in its pixels; None if it has none
    bordered_size: Size | None = None
    # rows of that border above the image, and columns to its left
    border: tuple[int, int] = (0, 0)

    @classmethod
    def fit(
        cls,
        image: Size,
        canvas: Size,
        longest: int | None = None,
        enlarge: float | None = None,
        *,
        corner: bool = False,
        to_nearest: bool = False,
    ) -> Self:
        """Scale an image to fit the network's input, the canvas, and place it in its middle.

        The rounding is that of Ultralytics' `LetterBox` and `scale_boxes`. In the top left corner,
        it is that of YOLOX, which rounds height and width down.

        Args:
            image: Height and width of the image.
            canvas: Height and width of the network's input.
            longest: How long either side of the scaled image may be; None for the canvas's size.
            enlarge: The largest factor by which a small image is enlarged; None for any.
            corner: Whether to place it in the top left corner instead.
            to_nearest: Whether height and width are rounded to the nearest pixel there.

        Examples:
            >>> Letterbox.fit((1080, 810), (640, 640)).resized
            (640, 480)
            >>> Letterbox.fit((200, 100), (640, 640), enlarge=1).resized
            (200, 100)
            >>> Letterbox.fit((427, 640), (416, 416), corner=True).resized
            (277, 416)
        """
        height, width = image
        canvas_height, canvas_width = canvas
        max_height = min(canvas_height, longest or canvas_height)
        max_width = min(canvas_width, longest or canvas_width)
        scale = min(max_height / height, max_width / width, enlarge or math.inf)
        round_pixels = int if corner and not to_nearest else round
        # At least one pixel, or a 1x5000 strip would vanish.
        resized_height = max(1, round_pixels(height * scale))
        resized_width = max(1, round_pixels(width * scale))
        resized = (resized_height, resized_width)
        if corner:
            return cls(image, canvas, (scale, scale), resized)
        # Half of the padding is before the image. Where it is odd, the additional row or column is
        # at the bottom or the right.
        top = (canvas_height - resized_height) // 2
        left = (canvas_width - resized_width) // 2
        return cls(image, canvas, (scale, scale), resized, top, left)

    @classmethod
    def stretched(cls, image: Size, canvas: Size) -> Self:
        """Stretch an image so that it fills the network's input, whatever its proportions.

        Args:
            image: Height and width of the image.
            canvas: Height and width of the network's input.

        Examples:
            >>> Letterbox.stretched((480, 640), (320, 320)).scale
            (0.5, 0.6666666666666666)
        """
        height, width = image
        canvas_height, canvas_width = canvas
        return cls(image, canvas, (canvas_width / width, canvas_height / height), canvas)

    @classmethod
    def padded_first(cls, image: Size, canvas: Size) -> Self:
        """Pad an image to the proportions of the network's input, and then scale it.

        The image lies in the middle of a border, which is scaled with it. So the filter mixes
        pixels at the edges of the image with those of the border, which it does not do where a
        scaled image is padded. The rounding is that of ports of MediaPipe's `image_to_tensor`.

        Args:
            image: Height and width of the image.
            canvas: Height and width of the network's input.

        Examples:
            >>> Letterbox.padded_first((720, 1280), (128, 128)).border
            (280, 0)
        """
        height, width = image
        canvas_height, canvas_width = canvas
        bordered_height = max(height, width * canvas_height // canvas_width)
        bordered_width = max(width, height * canvas_width // canvas_height)
        rows_above = (bordered_height - height) // 2
        columns_to_left = (bordered_width - width) // 2
        scale = (canvas_width / bordered_width, canvas_height / bordered_height)
        return cls(
            picture=image,
            canvas=canvas,
            scale=scale,
            resized=canvas,  # with its border, the image fills the whole canvas
            bordered_size=(bordered_height, bordered_width),
            border=(rows_above, columns_to_left),
        )

    @classmethod
    def by_shortest_edge(cls, image: Size, shortest: int, longest: int, multiple: int = 1) -> Self:
        """Scale an image so that its shorter side has a given length; the canvas is the result.

        The rounding is that of `get_size_with_aspect_ratio` in Hugging Face's Transformers.

        Args:
            image: Height and width of the image.
            shortest: Length of the shorter side in pixels.
            longest: How long the longer side may be. Where it would be longer, the image is
                scaled so that it has this length, and the shorter side is less than `shortest`.
            multiple: Both sides are rounded down to a multiple of this.

        Examples:
            >>> Letterbox.by_shortest_edge((480, 640), 800, 1333).canvas
            (800, 1066)
        """
        height, width = image
        shorter_side, longer_side = sorted(image)
        exact_shorter: float = shortest
        is_too_long = longer_side / shorter_side * shortest > longest
        if is_too_long:
            exact_shorter = longest * shorter_side / longer_side
        scaled_shorter = round(exact_shorter)
        # The longer side follows from the exact length of the shorter one, before it is rounded.
        scaled_longer = int(exact_shorter * longer_side / shorter_side)
        if scaled_shorter == shorter_side:  # the size of the image stays
            scaled_longer = longer_side

        is_upright = height > width
        if is_upright:
            scaled_height, scaled_width = scaled_longer, scaled_shorter
        else:
            scaled_height, scaled_width = scaled_shorter, scaled_longer
        canvas_height = max(1, scaled_height // multiple) * multiple
        canvas_width = max(1, scaled_width // multiple) * multiple
        return cls.stretched(image, (canvas_height, canvas_width))

    def to_image(self, boxes: Boxes) -> Boxes:
        """Map boxes `(N, 4)` x1, y1, x2, y2 from canvas to image pixels.

        The offset of the image on the canvas is subtracted, and the result is divided by the scale,
        both in float32. The offset is the padding plus the border, which is scaled with the image.
        """
        scale_x, scale_y = self.scale
        border_above, border_to_left = self.border  # in image pixels
        left = self.left + border_to_left * scale_x
        top = self.top + border_above * scale_y
        offset = np.array([left, top, left, top], np.float32)
        scale = np.array([scale_x, scale_y, scale_x, scale_y], np.float32)
        mapped: Boxes = (boxes.astype(np.float32, copy=False) - offset) / scale
        return mapped


def clipped(boxes: Boxes, size: Size) -> Boxes:
    """Return boxes `(N, 4)`, clipped to an image of the given size."""
    height, width = size
    limit = np.array([width, height, width, height], np.float32)
    within: Boxes = np.clip(boxes, np.float32(0), limit)
    return within


def intersection_boxes(first: AnyBoxes, second: AnyBoxes) -> AnyBoxes:
    """Return the intersection of boxes with others, pair by pair.

    Args:
        first: `(..., 4)`, x1, y1, x2 and y2.
        second: `(..., 4)`; both shapes are broadcast.

    Returns:
        `(..., 4)`; a box without an area where two do not intersect.
    """
    left_top = np.maximum(first[..., :2], second[..., :2])
    right_bottom = np.minimum(first[..., 2:], second[..., 2:])
    return np.concatenate([left_top, np.maximum(left_top, right_bottom)], axis=-1)


def area(boxes: AnyBoxes) -> AnyBoxes:
    """Return the areas `(...)` of boxes `(..., 4)` in square pixels; 0 for an inverted box."""
    areas: AnyBoxes = np.maximum(0, boxes[..., 2:] - boxes[..., :2]).prod(axis=-1)
    return areas


def overlap(first: AnyBoxes, second: AnyBoxes) -> AnyBoxes:
    """Return the intersection over union of boxes with others, pair by pair.

    Args:
        first: `(..., 4)`, x1, y1, x2 and y2.
        second: `(..., 4)`; both shapes are broadcast.

    Returns:
        `(...)`, from 0 to 1; 0 where neither box has an area.
    """
    intersection = area(intersection_boxes(first, second))
    union = area(first) + area(second) - intersection
    no_overlap = np.zeros_like(intersection)
    ious: AnyBoxes = np.divide(intersection, union, out=no_overlap, where=union > 0)
    return ious


def touching(rectangles: Boxes, box: Boxes) -> npt.NDArray[np.intp]:
    """Return the indices of the rectangles `(N, 4)` that touch or overlap a box `(4,)`."""
    begins_before_end = rectangles[:, :2] <= box[2:]  # along x and along y
    ends_after_begin = rectangles[:, 2:] >= box[:2]
    return np.flatnonzero((begins_before_end & ends_after_begin).all(axis=1))


def are_visible(boxes: Boxes, size: Size) -> npt.NDArray[np.bool_]:
    """Determine which boxes are visible in an image.

    A box inside the image is visible, even without an area. A box that only touches the image
    from outside, or whose corners are swapped, is not.

    Args:
        boxes: `(N, 4)`, x1, y1, x2 and y2.
        size: Height and width of the image.

    Returns:
        `(N,)`.
    """
    height, width = size
    left_top = boxes[:, :2]
    right_bottom = boxes[:, 2:]
    image_end = np.array([width, height], np.float32)
    is_before = (left_top < 0) & (right_bottom <= 0)  # (N, 2), along x and along y
    is_beyond = (left_top >= image_end) & (right_bottom > image_end)
    is_swapped = right_bottom < left_top
    is_outside = is_before | is_beyond | is_swapped
    return np.asarray(~is_outside.any(axis=1))


def bottom_centres(boxes: Boxes, size: Size) -> Points:
    """Return the middle of each box's lower side, where its object stands.

    Args:
        boxes: `(N, 4)`; a box that reaches beyond the image is cut off at its edges first.
        size: Height and width of the image.

    Returns:
        `(N, 2)`, x and y in pixels; NaN for a box outside of the image.
    """
    x1, _, x2, y2 = clipped(boxes, size).T
    points: Points = np.stack([(x1 + x2) / 2, y2], axis=1)  # (N, 2)
    points[~are_visible(boxes, size)] = np.nan
    return points
