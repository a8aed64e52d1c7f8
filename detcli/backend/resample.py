"""Resamples a picture as Pillow does, bit for bit: a kernel that widens as the picture shrinks.

Pillow makes two passes, first along x, then along y, each from 8 bits to 8 bits with weights in
2**-22. Products and sums of these are exact in float64, in any order, so that matrix products give
the same integers. Models that were trained on pictures from torchvision or Pillow expect this
filter; `cv2.resize` looks at two pixels along each axis, however much it shrinks a picture.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

from detcli.geometry import Image
from detcli.model.contract import Interpolation

Doubles = npt.NDArray[np.float64]

PRECISION = 1 << 22  # of a weight
ROWS = 8  # of the output, at a time: their sources overlap
PRODUCTS = 1 << 18  # in a matrix product: in cache, and too few for BLAS to start threads


def resample(image: Image, size: tuple[int, int], interpolation: Interpolation) -> Image:
    """Resize a picture `(H, W, 3)` uint8 to (height, width), along x first."""
    height, width = size
    if width != image.shape[1]:
        columns = _resample_rows(np.asarray(cv2.transpose(image)), width, interpolation)
        image = np.asarray(cv2.transpose(columns), np.uint8)
    return image if height == image.shape[0] else _resample_rows(image, height, interpolation)


def _resample_rows(image: Image, target: int, interpolation: Interpolation) -> Image:
    """Resize along the first axis: `(H, W, 3)` -> `(target, W, 3)`."""
    rows = image.reshape(len(image), -1)  # (H, W * 3)
    out = np.empty((target, rows.shape[1]), np.uint8)
    for block in _weights(len(image), target, interpolation):
        source = rows[block.start : block.start + block.weights.shape[1]]
        step = max(1, PRODUCTS // block.weights.size)
        for first in range(0, rows.shape[1], step):
            part = np.s_[first : first + step]
            level = block.weights @ source[:, part].astype(np.float64)  # (ROWS, step)
            level += 0.5
            out[block.rows, part] = np.clip(level, 0, 255, out=level)
    return out.reshape(target, *image.shape[1:])


class _Block(NamedTuple):
    """How a few neighbouring rows of the output are made."""

    rows: slice  # which they are, at most `ROWS`
    start: int  # the first row of the source that they need
    weights: Doubles  # `(len(rows), source rows)` float64, multiples of 1 / `PRECISION`


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
        start, stop = first[rows][0], last[rows][-1]
        dense = np.zeros((rows.stop - begin, stop - start))
        inside = position[rows] < last[rows, np.newaxis]
        dense[np.nonzero(inside)[0], position[rows][inside] - start] = weight[rows][inside]
        blocks.append(_Block(rows, int(start), dense))
    return tuple(blocks)


def _triangle(x: Doubles) -> Doubles:
    """Pillow's BILINEAR."""
    return np.asarray(np.maximum(1 - np.abs(x), 0))


def _cubic(x: Doubles) -> Doubles:
    """Pillow's BICUBIC: Keys' kernel with a = -0.5."""
    a, x = -0.5, np.abs(x)
    near: Doubles = ((a + 2) * x - (a + 3)) * x * x + 1
    far: Doubles = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1, near, np.where(x < 2, far, 0))


KERNELS: dict[Interpolation, tuple[Callable[[Doubles], Doubles], int]] = {
    Interpolation.BILINEAR: (_triangle, 1),
    Interpolation.BICUBIC: (_cubic, 2),
}
"""Each kernel, and the distance beyond which it is zero."""
