"""From an image to the network's input: the specification for every backend.

By default an image is resized with cv2.INTER_LINEAR and padded with grey (114), BGR becomes RGB,
levels are divided by 255, and HWC becomes CHW, as in Ultralytics' `LetterBox` and predictor.
`Preprocessing` says what other networks take.

Pillow's filters are resampled as Pillow does it, bit for bit: two passes, first along x, then along
y, each from 8 bits to 8 bits with weights in 2**-22. Products and sums of these are exact in
float64, in any order, so that matrix products give the same integers. Models that were trained on
images from torchvision or Pillow expect a kernel that widens as the image shrinks; `cv2.resize`
looks at two pixels along each axis, however much it shrinks an image.
"""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from detcli.core import frozen
from detcli.core.opencv import cv2
from detcli.data.geometry import Image, Letterbox, Pixels, Size
from detcli.model.contract import CORNERS, Contract, Interpolation, Preprocessing, Resize

Doubles = npt.NDArray[np.float64]
Tensor = npt.NDArray[Any]  # images as a network takes them, or what it outputs

WEIGHT_UNITS = 1 << 22  # Pillow's weights are multiples of 1 / WEIGHT_UNITS
KEYS_A = -0.5  # the parameter a of Keys' kernel in Pillow's BICUBIC; OpenCV has -0.75
ROWS_PER_BLOCK = 8  # of the output, computed at a time, as they share most of their source rows
ROWS_PER_STRIP = 64  # of an image to which a border is added
# Multiplications in a matrix product: few enough for the cache, and for BLAS to start no threads.
MAX_PRODUCTS = 1 << 18


class Border(NamedTuple):
    """A border of one level before and after the pixels of an axis, in pixels."""

    before: int = 0
    after: int = 0
    level: int = 0


NO_BORDER = Border()


def resample(
    image: Pixels,
    size: Size,
    interpolation: Interpolation,
    row_border: Border = NO_BORDER,
    column_border: Border = NO_BORDER,
) -> Pixels:
    """Resize an image to exactly the pixels that Pillow's filters produce, along x first.

    Args:
        image: `(H, W, 3)` uint8.
        size: The new height and width. An axis that has this size already is left alone, so the
            image itself may be returned.
        interpolation: One of the kernels in `KERNELS`.
        row_border: A border above and below the image that is resized with it. It takes no memory,
            however large it is.
        column_border: The same to the left and right of the image.
    """
    height, width = size
    if column_border != NO_BORDER or width != image.shape[1]:
        transposed: Pixels = np.asarray(cv2.transpose(image), np.uint8)  # (W, H, 3)
        resized = _resample_rows(transposed, width, interpolation, column_border)
        image = np.asarray(cv2.transpose(resized), np.uint8)
    if row_border != NO_BORDER or height != image.shape[0]:
        image = _resample_rows(image, height, interpolation, row_border)
    return image


def _resample_rows(
    image: Pixels, height: int, interpolation: Interpolation, border: Border
) -> Pixels:
    """Resize an image and its border along the first axis: `(H, W, 3)` -> `(height, W, 3)`, uint8.

    Each output row is a weighted sum of a few rows of the image with its border. A block of
    neighbouring output rows needs nearly the same rows, so it is computed as one product of
    matrices: the weights, and these rows of the image. All pixels of the border have the same
    level, so the border adds the same number to all pixels of an output row, and needs no product.

    Weights are multiples of 1 / `WEIGHT_UNITS`, so that all sums are exact in any order.
    """
    image_values = image.reshape(len(image), -1)  # (H, W * 3)
    value_count = image_values.shape[1]
    resized = np.empty((height, value_count), np.uint8)
    bordered_height = border.before + len(image) + border.after
    for block in _weight_blocks(bordered_height, height, interpolation):
        image_rows, image_weights = _image_rows_and_weights(block, border, len(image))
        border_weights = block.weights.sum(axis=1) - image_weights.sum(axis=1)  # (output rows,)
        border_sums = border_weights[:, np.newaxis] * border.level

        # A product is limited in size, to stay in the cache and on one thread.
        columns_at_a_time = max(1, MAX_PRODUCTS // block.weights.size)
        for first_column in range(0, value_count, columns_at_a_time):
            columns = slice(first_column, first_column + columns_at_a_time)
            values = image_values[image_rows, columns].astype(np.float64)  # (image rows, columns)
            sums = image_weights @ values  # (output rows, columns)
            sums += border_sums
            sums += 0.5  # rounds, as the conversion to uint8 cuts off the fraction
            resized[block.rows, columns] = np.clip(sums, 0, 255, out=sums)
    return resized.reshape(height, *image.shape[1:])


def _image_rows_and_weights(
    block: "_WeightBlock", border: Border, image_height: int
) -> tuple[slice, Doubles]:
    """Return which rows of the image a block needs, without the border, and their weights.

    A block counts rows from the first row of the border. Say there are 10 rows of border before the
    image, and a block needs rows 8 to 14. Then rows 8 and 9 are border, and rows 10 to 14 are rows
    0 to 4 of the image, with the last 5 columns of the block's weights.

    Args:
        block: The weights of a few output rows.
        border: The border before and after the image.
        image_height: The number of rows of the image, without the border.
    """
    # The rows of the block, counted from the first row of the image; negative in the border.
    block_start = block.source_rows.start - border.before
    block_end = block.source_rows.stop - border.before

    first_row = max(block_start, 0)
    end_row = max(first_row, min(block_end, image_height))  # empty if all rows belong to the border
    first_column = first_row - block_start  # of the weights, which have a column for each row
    end_column = end_row - block_start
    return slice(first_row, end_row), block.weights[:, first_column:end_column]


@frozen
class _WeightBlock:
    """The weights that compute a few neighbouring rows of a resized image."""

    rows: slice  # rows of the resized image, at most `ROWS_PER_BLOCK`
    source_rows: slice  # the rows of the source that any of them needs
    weights: Doubles  # (rows, source rows), multiples of 1 / `WEIGHT_UNITS`


@frozen
class _Taps:
    """Which positions of the source each position of a resized axis is computed from."""

    first: npt.NDArray[np.int64]  # (target,): the first source position
    end: npt.NDArray[np.int64]  # (target,): one after the last source position
    # (target, taps): the weights of the source positions that begin at `first`, which add up to 1.
    # From `end` onwards they are 0, where a target position has fewer taps than others.
    weights: Doubles


@functools.lru_cache(maxsize=64)
def _weight_blocks(
    source: int, target: int, interpolation: Interpolation
) -> tuple[_WeightBlock, ...]:
    """Compute the weights that resize an axis from `source` to `target` pixels, in blocks.

    A block covers a few neighbouring output rows. Its weights are a matrix with a row for each of
    them and a column for each source row that any of them needs. For example, two output rows, each
    the mean of two source rows:

        0.5  0.5  0    0
        0    0    0.5  0.5
    """
    taps = _taps(source, target, interpolation)
    blocks = []
    for begin in range(0, target, ROWS_PER_BLOCK):
        end = min(begin + ROWS_PER_BLOCK, target)
        # From the first source row of the first output row to the last one of the last.
        source_begin = int(taps.first[begin])
        source_end = int(taps.end[end - 1])

        weights = np.zeros((end - begin, source_end - source_begin))
        for target_row in range(begin, end):
            # This output row is made of `tap_count` source rows, which begin at `first`.
            first = int(taps.first[target_row])
            tap_count = int(taps.end[target_row]) - first
            row_in_block = target_row - begin
            first_column = first - source_begin
            columns = slice(first_column, first_column + tap_count)
            weights[row_in_block, columns] = taps.weights[target_row, :tap_count]
        blocks.append(_WeightBlock(slice(begin, end), slice(source_begin, source_end), weights))
    return tuple(blocks)


def _taps(source: int, target: int, interpolation: Interpolation) -> _Taps:
    """Compute from which source pixels of an axis each target pixel is made, with which weights.

    The centre of a target pixel is a point on the source's axis, where source pixel n reaches from
    n to n + 1. The target pixel is made of the source pixels around that point (its taps), as far
    as the kernel reaches. The kernel widens as the image shrinks, so that every source pixel
    contributes. The order of the operations, and thus the rounding, is Pillow's.

    Args:
        source: The number of source pixels.
        target: The number of target pixels.
        interpolation: One of the kernels in `KERNELS`.
    """
    kernel, kernel_reach = KERNELS[interpolation]
    scale = source / target
    widening = max(scale, 1.0)
    reach = kernel_reach * widening  # in source pixels
    centre = (np.arange(target) + 0.5) * scale  # (target,)
    # The 0.5 rounds to the nearest pixel, as the conversion to int cuts off the fraction.
    first = np.maximum((centre - reach + 0.5).astype(int), 0)
    end = np.minimum((centre + reach + 0.5).astype(int), source)

    tap_count = (end - first).max()
    positions = first[:, np.newaxis] + np.arange(tap_count)  # (target, taps), source pixels
    distances = positions - centre[:, np.newaxis] + 0.5  # of the middles of source pixels
    weights = kernel(distances * (1 / widening))
    is_no_tap = positions >= end[:, np.newaxis]  # where a target pixel has fewer taps than others
    weights[is_no_tap] = 0
    # Added from left to right, as Pillow does: NumPy's `sum` adds in pairs, and rounds differently.
    totals = np.add.accumulate(weights, axis=1)[:, -1:]  # (target, 1)
    weights /= totals
    return _Taps(first, end, _in_units(weights))


def _in_units(weights: Doubles) -> Doubles:
    """Round weights to multiples of 1 / `WEIGHT_UNITS`, and halves away from 0, as Pillow does."""
    half = np.copysign(0.5, weights)
    units = np.trunc(weights * WEIGHT_UNITS + half)
    return np.asarray(units / WEIGHT_UNITS)


def _cubic(offsets: Doubles) -> Doubles:
    """Weigh pixels by their distance as Pillow's BICUBIC does, with the cubic kernel of Keys.

    The weight of a pixel at the distance d from the centre is

        (a + 2) d^3 - (a + 3) d^2 + 1    if d < 1
        a (d^3 - 5 d^2 + 8 d - 4)        if 1 <= d < 2
        0                                if d >= 2

    where a is `KEYS_A`. The order of the operations, and thus the rounding, is Pillow's.

    Args:
        offsets: Distances from the centre, of either sign, in pixels of the smaller image (the old
            or the resized).
    """
    a = KEYS_A
    d = np.abs(offsets)
    weights_below_1 = ((a + 2) * d - (a + 3)) * d * d + 1
    weights_below_2 = (((d - 5) * d + 8) * d - 4) * a
    return np.select([d < 1, d < 2], [weights_below_1, weights_below_2], default=0.0)


def _triangle(offsets: Doubles) -> Doubles:
    """Weigh pixels by their distance as Pillow's BILINEAR does: 1 at the centre, 0 beyond 1."""
    return np.asarray(np.maximum(1 - np.abs(offsets), 0))


KERNELS: dict[Interpolation, tuple[Callable[[Doubles], Doubles], int]] = {
    Interpolation.BILINEAR: (_triangle, 1),
    Interpolation.BICUBIC: (_cubic, 2),
}
"""Each kernel weighs pixels by their distance, and is zero beyond the second value."""

OPENCV = {
    Interpolation.LINEAR: "INTER_LINEAR",
    Interpolation.CUBIC: "INTER_CUBIC",
    Interpolation.AREA: "INTER_AREA",
}
UINT8_VALUES = 256
DEFAULT = Preprocessing()  # as Ultralytics' models take images


def fit_letterbox(
    image: Size,
    canvas: Size,
    preprocessing: Preprocessing,
    stride: int | None = None,
) -> Letterbox:
    """Compute how an image is scaled and where it is placed on the network's input, the canvas.

    A letterbox is this placement: the sizes of the image, the resized image and the canvas, and
    where on the canvas the resized image lies. The rest of the canvas is padded.

    Args:
        image: Height and width of the image.
        canvas: Height and width of the network's input. They are ignored where the size of the
            image alone decides about the input.
        preprocessing: How the model's images are resized.
        stride: For --rect: images that keep their proportions are padded only to the next multiple
            of this, and not to `canvas`. None for `canvas`.
    """
    match preprocessing.resize:
        case Resize.STRETCH:
            return Letterbox.stretched(image, canvas)
        case Resize.PAD_FIRST:
            return Letterbox.padded_first(image, canvas)
        case Resize.SHORTEST_EDGE:
            shortest, longest = preprocessing.edges or canvas
            return Letterbox.by_shortest_edge(image, shortest, longest, preprocessing.multiple)
        case Resize.ROUND:
            return Letterbox.stretched(image, _rounded_up(image, preprocessing.multiple))
        case Resize.NONE:
            padded = _rounded_up(image, preprocessing.multiple)
            return Letterbox(image, padded, (1.0, 1.0), image)

    # All others keep the proportions of the image.
    letterbox = _fit_with_proportions(image, canvas, preprocessing)
    if stride is None:
        return letterbox
    small_canvas = _rounded_up(letterbox.resized, stride)
    return _fit_with_proportions(image, small_canvas, preprocessing)


def _rounded_up(size: Size, multiple: int) -> Size:
    """Round a height and a width up to multiples of the given number."""
    height, width = size
    rows = math.ceil(height / multiple)
    columns = math.ceil(width / multiple)
    return rows * multiple, columns * multiple


def _fit_with_proportions(image: Size, canvas: Size, preprocessing: Preprocessing) -> Letterbox:
    """Scale an image with its proportions so that it fits the canvas, in its corner or centre."""
    return Letterbox.fit(
        image,
        canvas,
        longest=preprocessing.longest,
        enlarge=preprocessing.enlarge,
        corner=preprocessing.resize in CORNERS,
        to_nearest=preprocessing.resize is Resize.CORNER_NEAREST,
    )


def letterbox_image(
    image: Pixels, letterbox: Letterbox, preprocessing: Preprocessing = DEFAULT
) -> Pixels:
    """Resize an image and pad it to the size of the network's input.

    Args:
        image: `(H, W, 3)` uint8 BGR.
        letterbox: The size to resize to, the size of the canvas, and the place on it.
        preprocessing: How to interpolate, and the colour of the padding.

    Returns:
        The canvas, `(H, W, 3)` uint8 BGR.
    """
    height, width = letterbox.resized
    resized = resize_for_letterbox(image, letterbox, preprocessing)
    canvas_height, canvas_width = letterbox.canvas
    canvas = np.full((canvas_height, canvas_width, 3), preprocessing.pad, np.uint8)
    top = letterbox.top
    left = letterbox.left
    canvas[top : top + height, left : left + width] = resized
    return canvas


def resize_for_letterbox(
    image: Pixels, letterbox: Letterbox, preprocessing: Preprocessing
) -> Pixels:
    """Resize an image to the part of the network's input that it fills, without padding around it.

    Some models want an image to have a border before it is resized. Then both are resized together,
    so that the pixels at the edge of the image blend with the border.

    Args:
        image: `(H, W, 3)` uint8. It may have been decoded at a reduced size; its border is then
            reduced as well.
        letterbox: The size to resize to, and the border if there is one.
        preprocessing: How to interpolate, and the level of the border.

    Returns:
        `(height, width, 3)` uint8 of the size `letterbox.resized`.
    """
    interpolation = preprocessing.interpolation
    if letterbox.bordered_size is None:
        return resize(image, letterbox.resized, interpolation)
    row_border, column_border = _borders(image, letterbox, preprocessing.pad)
    if interpolation in OPENCV:
        return _resize_with_border(
            image, letterbox.resized, interpolation, row_border, column_border
        )
    return resample(image, letterbox.resized, interpolation, row_border, column_border)


def _resize_with_border(
    image: Pixels,
    size: Size,
    interpolation: Interpolation,
    row_border: Border,
    column_border: Border,
) -> Pixels:
    """Add a border to an image and resize both with OpenCV, to `(height, width, 3)` uint8.

    The border may be far larger than the image. To save memory, it is added along x to a few rows
    at a time, which are resized to their new width at once; and along y only after that.
    """
    _, width = size
    x_padding = ((0, 0), (column_border.before, column_border.after), (0, 0))
    resized_strips = []
    for first_row in range(0, len(image), ROWS_PER_STRIP):
        strip = image[first_row : first_row + ROWS_PER_STRIP]
        bordered_strip = np.pad(strip, x_padding, constant_values=column_border.level)
        resized_strips.append(resize(bordered_strip, (len(strip), width), interpolation))
    resized_in_x = np.concatenate(resized_strips)

    y_padding = ((row_border.before, row_border.after), (0, 0), (0, 0))
    bordered = np.pad(resized_in_x, y_padding, constant_values=row_border.level)
    return resize(bordered, size, interpolation)


def _borders(image: Pixels, letterbox: Letterbox, level: int) -> tuple[Border, Border]:
    """Return the border above and below an image, and the one to its left and right.

    The letterbox has the border's size for the full size of the image. It shrinks with an image
    that was decoded at a reduced size.

    Args:
        image: The image.
        letterbox: The full size of the image, its size with the border, and how much of the border
            is above the image and to its left.
        level: The value of the border's pixels.
    """
    full_size = letterbox.picture
    bordered_size = letterbox.bordered_size or full_size  # None if there is no border
    borders = []
    for axis in (0, 1):  # height and width
        length = image.shape[axis]
        reduction = length / full_size[axis]  # 1 for an image at its full size
        before = round(letterbox.border[axis] * reduction)
        bordered_length = round(bordered_size[axis] * reduction)
        after = max(0, bordered_length - length - before)
        borders.append(Border(before, after, level))
    rows_border, columns_border = borders
    return rows_border, columns_border


def resize(image: Pixels, size: Size, interpolation: Interpolation) -> Pixels:
    """Resize an image, by OpenCV or as Pillow does it, whichever the interpolation belongs to.

    Args:
        image: `(H, W, 3)` uint8; returned itself if it has the size already.
        size: The new height and width.
        interpolation: How pixels are interpolated, by a method of OpenCV or of Pillow.
    """
    if image.shape[:2] == size:
        return image
    if interpolation not in OPENCV:
        return resample(image, size, interpolation)
    height, width = size
    flag = getattr(cv2, OPENCV[interpolation])
    return cv2.resize(image, (width, height), interpolation=flag)  # type: ignore[return-value]


def to_tensor(canvas: Pixels, out: Tensor, preprocessing: Preprocessing = DEFAULT) -> None:
    """Convert a letterboxed image into the numbers that the network takes, channel by channel.

    As there are only 256 values of a pixel, each is looked up in a table instead of computed.

    Args:
        canvas: The letterboxed image, `(H, W, 3)` uint8 BGR.
        out: The array to write to, `(3, H, W)` float32 or float16.
        preprocessing: The scale, mean and deviation, and whether the network takes BGR or RGB.
    """
    channels = list(cv2.split(canvas))  # blue, green, red
    if not preprocessing.bgr:
        channels.reverse()
    tables = input_value_tables(preprocessing, out.dtype)
    for channel, table, plane in zip(channels, tables, out, strict=True):
        cv2.LUT(channel, table, dst=plane)


@functools.lru_cache(maxsize=16)
def input_value_tables(preprocessing: Preprocessing, dtype: np.dtype[Any]) -> Tensor:
    """Tabulate the network's input value for each of the 256 values of a pixel.

    There is a table for each channel. The numbers are computed in float64, rounded to float32, and
    from there to float16 if the network takes that.

    Args:
        preprocessing: The scale by which a value is multiplied, then the mean that is subtracted
            from it, and the deviation by which it is divided, for each channel.
        dtype: float32 or float16.

    Returns:
        `(3, 256)`, read-only, with the channels in the order of the network's input.
    """
    scaled_values = np.arange(UINT8_VALUES) * preprocessing.scale  # (256,)
    mean = np.array(preprocessing.mean)[:, np.newaxis]  # (3, 1)
    std = np.array(preprocessing.std)[:, np.newaxis]
    table: Tensor = ((scaled_values - mean) / std).astype(np.float32).astype(dtype)
    # This turns -0 into 0, so that channels whose values are equal have the same bits.
    table += dtype.type(0)
    table.flags.writeable = False  # all callers share it
    return table


def to_tensors(
    images: Sequence[Pixels],
    letterboxes: Sequence[Letterbox],
    preprocessing: Preprocessing,
    dtype: npt.DTypeLike,
) -> Tensor:
    """Letterbox images and convert them into the network's input.

    Args:
        images: At least one image, each `(H, W, 3)` uint8 BGR.
        letterboxes: Where each lies on the canvas, whose size is the same for all.
        preprocessing: How the model's images are resized and scaled.
        dtype: The type of the network's input, float32 or float16.

    Returns:
        A tensor `(B, 3, H, W)` for B images and the height and width of the canvas.
    """
    height, width = letterboxes[0].canvas
    tensors = np.empty((len(images), 3, height, width), dtype)
    for image, letterbox, out in zip(images, letterboxes, tensors, strict=True):
        to_tensor(letterbox_image(image, letterbox, preprocessing), out, preprocessing)
    return tensors


def in_batches(tensors: Tensor, contract: Contract) -> Iterator[Tensor]:
    """Split preprocessed images into batches of the size that the graph takes.

    The last batch is filled up with images of zeros. A graph that takes batches of any size gets
    all images in one.

    Args:
        tensors: The images, `(B, 3, H, W)`.
        contract: What the graph takes; its `batch` is None for a graph that takes any number.
    """
    batch_size = contract.batch or len(tensors)
    padded = tensors
    excess_count = len(tensors) % batch_size
    if excess_count:
        missing_count = batch_size - excess_count
        empty = np.zeros((missing_count, *tensors.shape[1:]), tensors.dtype)
        padded = np.concatenate([tensors, empty])
    for first in range(0, len(padded), batch_size):
        yield padded[first : first + batch_size]


def to_batch(
    image: Image,
    letterbox: Letterbox,
    preprocessing: Preprocessing,
    dtype: npt.DTypeLike,
    count: int,
) -> Tensor:
    """Letterbox an image and convert it into a batch that holds it several times.

    A graph that takes batches of a fixed size needs this even for one image.

    Args:
        image: The image, already decoded.
        letterbox: How it is scaled, and its place in the network's input.
        preprocessing: How the model's images are resized and scaled.
        dtype: The type of the network's input, float32 or float16.
        count: The number of images in the batch.

    Returns:
        A tensor `(count, 3, H, W)` of the type `dtype`.
    """
    tensors = to_tensors([image.pixels], [letterbox], preprocessing, dtype)
    return np.repeat(tensors, count, axis=0)
