"""cv2.INTER_LINEAR on uint8 spelled out, for those who resize without OpenCV.

Along each axis an output pixel is the mean of two neighbouring source pixels, with weights in
units of 1 / 2048. All is integer arithmetic, so one formula holds on every device:

    row sum       S = near * near_weight + far * far_weight    along x, for each of the two rows
    output pixel  (((near_weight * (S_near >> 4)) >> 16)
                 + ((far_weight * (S_far >> 4)) >> 16) + 2) >> 2    along y

This is what OpenCV 5 computes on x86-64, with its SIMD and IPP paths on or off, also where it
leaves the general path: at half size, where it takes the mean of four pixels, and at the same
size, where it copies. It differs, by 1, where a program called `cv2.ipp.setUseIPP_NotExact(True)`.
"""

import functools

import numpy as np
import numpy.typing as npt

Taps = npt.NDArray[np.int32]
"""`(length, 4)` int32, a row for each output pixel of an axis: near and far source pixel, and
their weights, which add up to `ONE`."""

ONE = 2048


@functools.lru_cache(maxsize=256)  # a few KiB each; the pictures of a set share a few sizes
def column_taps(source: int, target: int) -> Taps:
    """Taps along x, from a width of `source` pixels to one of `target`.

    Examples:
        >>> column_taps(2, 4).tolist()
        [[0, 0, 2048, 0], [0, 1, 1536, 512], [0, 1, 512, 1536], [1, 1, 2048, 0]]
    """
    near, fraction = _positions(source, target)
    # Beyond the centre of the first or last pixel there is only that pixel.
    beyond = (near < 0) | (near >= source - 1)
    return _taps(near, np.where(beyond, np.float32(0), fraction), source)


@functools.lru_cache(maxsize=256)
def row_taps(source: int, target: int) -> Taps:
    """Taps along y, from a height of `source` pixels to one of `target`.

    Beyond the first or last row both taps are that row and the weights stay, which need not round
    to the same result as one tap of full weight.

    Examples:
        >>> row_taps(2, 4).tolist()
        [[0, 0, 512, 1536], [0, 1, 1536, 512], [0, 1, 512, 1536], [1, 1, 1536, 512]]
    """
    near, fraction = _positions(source, target)
    return _taps(near, fraction, source)


def _positions(source: int, target: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """Where each output pixel's centre lies: the source pixel before it, and how far behind.

    In double, then rounded to float32 before it is taken apart.
    """
    scale = 1 / (target / source)
    centre = ((np.arange(target) + 0.5) * scale - 0.5).astype(np.float32)
    near = np.floor(centre)
    return near.astype(np.int32), centre - near


def _taps(near: npt.NDArray[np.int32], fraction: npt.NDArray[np.float32], source: int) -> Taps:
    """Put a table together; it is shared by all callers and cannot be written to."""
    one = np.float32(ONE)
    taps = np.empty((len(near), 4), np.int32)
    taps[:, 0] = np.clip(near, 0, source - 1)
    taps[:, 1] = np.clip(near + 1, 0, source - 1)
    taps[:, 2] = np.rint((np.float32(1) - fraction) * one)
    taps[:, 3] = np.rint(fraction * one)
    taps.flags.writeable = False
    return taps
