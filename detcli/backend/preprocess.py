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
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from detcli.core.opencv import cv2
from detcli.data.geometry import Image, Letterbox, Pixels, Size
from detcli.model.contract import Contract, Interpolation, Preprocessing, Resize

Doubles = npt.NDArray[np.float64]
Tensor = npt.NDArray[Any]  # images as a network takes them, or what it gives

PRECISION = 1 << 22  # of a weight
ROWS = 8  # of the output, at a time: their sources overlap
PRODUCTS = 1 << 18  # in a matrix product: in cache, and too few for BLAS to start threads


def resample(image: Pixels, size: Size, interpolation: Interpolation) -> Pixels:
    """Resize an image `(H, W, 3)` uint8 to (height, width), along x first."""
    height, width = size
    if width != image.shape[1]:
        columns = _resample_rows(np.asarray(cv2.transpose(image)), width, interpolation)
        image = np.asarray(cv2.transpose(columns), np.uint8)
    if height != image.shape[0]:
        image = _resample_rows(image, height, interpolation)
    return image


def _resample_rows(image: Pixels, target: int, interpolation: Interpolation) -> Pixels:
    """Resize along the first axis: `(H, W, 3)` -> `(target, W, 3)`."""
    rows = image.reshape(len(image), -1)  # (H, W * 3)
    out = np.empty((target, rows.shape[1]), np.uint8)
    for out_rows, source_rows, weights in _weights(len(image), target, interpolation):
        step = max(1, PRODUCTS // weights.size)
        for first in range(0, rows.shape[1], step):
            columns = slice(first, first + step)
            levels = weights @ rows[source_rows, columns].astype(np.float64)  # (ROWS, step)
            levels += 0.5
            out[out_rows, columns] = np.clip(levels, 0, 255, out=levels)
    return out.reshape(target, *image.shape[1:])


_Block = tuple[slice, slice, Doubles]
"""At most `ROWS` rows of the output, the rows of the source that they need, and their weights:
float64, multiples of 1 / `PRECISION`."""


@functools.lru_cache(maxsize=64)
def _weights(source: int, target: int, interpolation: Interpolation) -> tuple[_Block, ...]:
    """The weights of each output row, rounded as Pillow rounds them."""
    kernel, reach = KERNELS[interpolation]
    scale = source / target
    widened = max(scale, 1.0)
    centre = (np.arange(target) + 0.5) * scale  # (target,)
    first = np.maximum((centre - reach * widened + 0.5).astype(int), 0)
    last = np.minimum((centre + reach * widened + 0.5).astype(int), source)

    position = first[:, np.newaxis] + np.arange((last - first).max())  # (target, taps)
    weight = kernel((position - centre[:, np.newaxis] + 0.5) * (1 / widened))
    weight[position >= last[:, np.newaxis]] = 0
    # One tap after the other, as Pillow sums them: a pairwise sum would round differently.
    weight /= np.add.accumulate(weight, axis=1)[:, -1:]
    weight = np.trunc(weight * PRECISION + np.copysign(0.5, weight)) / PRECISION

    blocks = []
    for begin in range(0, target, ROWS):
        rows = slice(begin, min(begin + ROWS, target))
        start = int(first[rows][0])
        stop = int(last[rows][-1])
        dense = np.zeros((rows.stop - begin, stop - start))
        inside = position[rows] < last[rows, np.newaxis]
        dense[np.nonzero(inside)[0], position[rows][inside] - start] = weight[rows][inside]
        blocks.append((rows, slice(start, stop), dense))
    return tuple(blocks)


def _cubic(x: Doubles) -> Doubles:
    """Pillow's BICUBIC: Keys' kernel with a = -0.5."""
    a = -0.5
    x = np.abs(x)
    near: Doubles = ((a + 2) * x - (a + 3)) * x * x + 1
    far: Doubles = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1, near, np.where(x < 2, far, 0))


def _triangle(x: Doubles) -> Doubles:
    """Pillow's BILINEAR."""
    return np.asarray(np.maximum(1 - np.abs(x), 0))


KERNELS: dict[Interpolation, tuple[Callable[[Doubles], Doubles], int]] = {
    Interpolation.BILINEAR: (_triangle, 1),
    Interpolation.BICUBIC: (_cubic, 2),
}
"""Each kernel, and the distance beyond which it is zero."""

OPENCV = {
    Interpolation.LINEAR: "INTER_LINEAR",
    Interpolation.CUBIC: "INTER_CUBIC",
    Interpolation.AREA: "INTER_AREA",
}
UINT8_VALUES = 256
DEFAULT = Preprocessing()


def fit_letterbox(
    image: Size,
    canvas: Size,
    preprocessing: Preprocessing,
    stride: int | None = None,
) -> Letterbox:
    """Compute how an image is scaled and where it is placed on the network's input, the canvas.

    Args:
        image: Height and width of the image.
        canvas: Height and width of the network's input, where that does not follow from the
            image.
        preprocessing: How the model's images are resized.
        stride: If given, an image that keeps its proportions gets the smallest canvas that holds
            it, whose sides are multiples of this.
    """
    match preprocessing.resize:
        case Resize.STRETCH:
            return Letterbox.stretched(image, canvas)
        case Resize.SHORTEST_EDGE:
            shortest, longest = preprocessing.edges or canvas
            return Letterbox.by_shortest_edge(image, shortest, longest, preprocessing.multiple)
        case Resize.ROUND:
            return Letterbox.stretched(image, _rounded_up(image, preprocessing.multiple))
        case Resize.NONE:
            padded = _rounded_up(image, preprocessing.multiple)
            return Letterbox(image, padded, (1.0, 1.0), image)
    letterbox = _fit_with_proportions(image, canvas, preprocessing)
    if stride is None:
        return letterbox
    return _fit_with_proportions(image, _rounded_up(letterbox.resized, stride), preprocessing)


def _rounded_up(size: Size, multiple: int) -> Size:
    """The next height and width that are multiples of a number."""
    height, width = size
    return -(-height // multiple) * multiple, -(-width // multiple) * multiple


def _fit_with_proportions(image: Size, canvas: Size, preprocessing: Preprocessing) -> Letterbox:
    """Where an image lies that is scaled with its proportions."""
    return Letterbox.fit(
        image,
        canvas,
        longest=preprocessing.longest,
        enlarge=preprocessing.enlarge,
        corner=preprocessing.resize is Resize.CORNER,
    )


def letterbox_image(
    image: Pixels, letterbox: Letterbox, preprocessing: Preprocessing = DEFAULT
) -> Pixels:
    """Resize an image and pad it: `(H, W, 3)` -> canvas `(H, W, 3)`, uint8 BGR."""
    height, width = letterbox.resized
    image = resize(image, letterbox.resized, preprocessing.interpolation)
    top = letterbox.top
    left = letterbox.left
    canvas = np.full((*letterbox.canvas, 3), preprocessing.pad, np.uint8)
    canvas[top : top + height, left : left + width] = image
    return canvas


def resize(image: Pixels, size: Size, interpolation: Interpolation) -> Pixels:
    """Resize an image `(H, W, 3)` uint8 to (height, width), by OpenCV or as Pillow does it."""
    if image.shape[:2] == size:
        return image
    if interpolation not in OPENCV:
        return resample(image, size, interpolation)
    flag = getattr(cv2, OPENCV[interpolation])
    return cv2.resize(image, size[::-1], interpolation=flag)  # type: ignore[return-value]


def to_tensor(canvas: Pixels, out: Tensor, preprocessing: Preprocessing = DEFAULT) -> None:
    """Write a canvas `(H, W, 3)` uint8 BGR into `out`, `(3, H, W)`, float32 or float16."""
    channels = cv2.split(canvas)
    ordered = channels if preprocessing.bgr else channels[::-1]
    tables = values(preprocessing, out.dtype)
    for channel, table, plane in zip(ordered, tables, out, strict=True):
        cv2.LUT(channel, table, dst=plane)


@functools.lru_cache(maxsize=16)
def values(preprocessing: Preprocessing, dtype: np.dtype[Any]) -> Tensor:
    """What the 256 uint8 values of each channel are in the network's input: `(3, 256)`.

    Channels are in the order of the model input. Computed in float64, rounded to float32 and
    from there to float16. There is no -0: channels whose values are equal are the same bits.
    """
    scaled = np.arange(UINT8_VALUES) * preprocessing.scale  # (256,)
    mean = np.array(preprocessing.mean)[:, np.newaxis]  # (3, 1)
    std = np.array(preprocessing.std)[:, np.newaxis]
    table: Tensor = ((scaled - mean) / std).astype(np.float32).astype(dtype)
    table += dtype.type(0)
    table.flags.writeable = False  # all callers share it
    return table


def to_tensors(
    images: Sequence[Pixels],
    letterboxes: Sequence[Letterbox],
    preprocessing: Preprocessing,
    dtype: npt.DTypeLike,
) -> Tensor:
    """Images that share a canvas as the network's input: `(B, 3, H, W)`."""
    tensors = np.empty((len(images), 3, *letterboxes[0].canvas), dtype)
    for image, letterbox, out in zip(images, letterboxes, tensors, strict=True):
        to_tensor(letterbox_image(image, letterbox, preprocessing), out, preprocessing)
    return tensors


def in_batches(tensors: Tensor, contract: Contract) -> Iterator[Tensor]:
    """Split the preprocessed images into batches of the size that the graph takes.

    The last batch is filled up with empty images. A graph that takes batches of any size gets all
    images in one.

    Args:
        tensors: `(B, 3, H, W)`.
        contract: What the graph takes.
    """
    batch_size = contract.batch or len(tensors)
    missing_count = -len(tensors) % batch_size  # to the next multiple of the batch size
    padded = tensors
    if missing_count:
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
    """One image as the network's input, repeated: `(count, 3, H, W)`."""
    tensors = to_tensors([image.pixels], [letterbox], preprocessing, dtype)
    return np.repeat(tensors, count, axis=0)
