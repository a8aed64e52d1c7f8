"""From a picture to the network's input: the specification for every backend.

By default a picture is resized with cv2.INTER_LINEAR and padded with grey (114), BGR becomes RGB,
levels are divided by 255, and HWC becomes CHW, as in Ultralytics' `LetterBox` and predictor.
`Preprocessing` says what other networks are fed.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from detcli.geometry import Image, Letterbox, Picture
from detcli.model.contract import Contract, Interpolation, Preprocessing, Resize
from detcli.opencv import cv2

LEVELS = 256
DEFAULT = Preprocessing()


def place(
    picture: tuple[int, int],
    canvas: tuple[int, int],
    preprocessing: Preprocessing,
    stride: int | None = None,
) -> Letterbox:
    """Where a picture of (height, width) lies on the network's input.

    Args:
        picture: Its height and width.
        canvas: Height and width of the input, where it does not follow the picture.
        preprocessing: How the picture is fitted.
        stride: If given, the input is made as small as its sides can be: multiples of this.
    """
    match preprocessing.resize:
        case Resize.STRETCH:
            return Letterbox.stretched(picture, canvas)
        case Resize.SHORTEST_EDGE:
            return Letterbox.by_shortest_edge(
                picture, *(preprocessing.edges or canvas), preprocessing.multiple
            )
        case Resize.NONE:
            return Letterbox.stretched(picture, picture)
    fit = Letterbox.in_corner if preprocessing.resize is Resize.CORNER else Letterbox.fit
    limits = preprocessing.longest, preprocessing.enlarge
    placed = fit(picture, canvas, *limits)
    if stride is None:
        return placed
    height, width = (-(-side // stride) * stride for side in placed.resized)
    return fit(picture, (height, width), *limits)


def letterbox_image(
    image: Image, letterbox: Letterbox, preprocessing: Preprocessing = DEFAULT
) -> Image:
    """Resize a picture and pad it: `(H, W, 3)` -> canvas `(H, W, 3)`, uint8 BGR."""
    height, width = letterbox.resized
    image = resize(image, letterbox.resized, preprocessing.interpolation)
    canvas = np.full((*letterbox.canvas, 3), preprocessing.pad, np.uint8)
    top, left = letterbox.top, letterbox.left
    canvas[top : top + height, left : left + width] = image
    return canvas


def resize(image: Image, size: tuple[int, int], interpolation: Interpolation) -> Image:
    """Resize a picture `(H, W, 3)` uint8 to (height, width)."""
    if image.shape[:2] == size:
        return image
    if interpolation is Interpolation.LINEAR:
        return cv2.resize(image, size[::-1], interpolation=cv2.INTER_LINEAR)  # type: ignore[return-value]
    from detcli.backend.resample import resample  # what most networks do without

    return resample(image, size, interpolation)


def to_tensor(canvas: Image, out: npt.NDArray[Any], preprocessing: Preprocessing = DEFAULT) -> None:
    """Write a canvas `(H, W, 3)` uint8 BGR into `out`, `(3, H, W)`, float32 or float16."""
    channels = cv2.split(canvas)
    ordered = channels if preprocessing.bgr else channels[::-1]
    tables = values(preprocessing, out.dtype)
    for channel, table, plane in zip(ordered, tables, out, strict=True):
        cv2.LUT(channel, table, dst=plane)


@functools.lru_cache(maxsize=16)
def values(preprocessing: Preprocessing, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """What the 256 levels of each channel are in the network's input: `(3, 256)`.

    Channels are in the order in which they are fed. Computed in float64, rounded to float32 and
    from there to float16. There is no -0: channels whose values are equal are the same bits.
    """
    levels = np.arange(LEVELS) * preprocessing.scale  # (256,)
    mean, std = (np.array(part)[:, np.newaxis] for part in (preprocessing.mean, preprocessing.std))
    table: npt.NDArray[Any] = ((levels - mean) / std).astype(np.float32).astype(dtype) + dtype.type(
        0
    )
    table.flags.writeable = False  # all callers share it
    return table


def to_tensors(
    images: Sequence[Image], letterboxes: Sequence[Letterbox], contract: Contract
) -> npt.NDArray[Any]:
    """Pictures that share a canvas as the network's input: `(B, 3, H, W)` of its dtype."""
    preprocessing = contract.preprocessing
    tensors = np.empty((len(images), 3, *letterboxes[0].canvas), contract.input_dtype)
    for image, letterbox, out in zip(images, letterboxes, tensors, strict=True):
        to_tensor(letterbox_image(image, letterbox, preprocessing), out, preprocessing)
    return tensors


def in_batches(tensors: npt.NDArray[Any], contract: Contract) -> Iterator[npt.NDArray[Any]]:
    """Split `(B, 3, H, W)` as the graph takes it: whole, or in its fixed batches, the last padded.

    A graph that takes any batch takes all pictures at once.
    """
    size = contract.batch or len(tensors)
    if padding := -len(tensors) % size:
        empty = np.zeros((padding, *tensors.shape[1:]), tensors.dtype)
        tensors = np.concatenate([tensors, empty])
    for first in range(0, len(tensors), size):
        yield tensors[first : first + size]


def to_batch(
    picture: Picture,
    letterbox: Letterbox,
    preprocessing: Preprocessing,
    dtype: npt.DTypeLike,
    count: int,
) -> npt.NDArray[Any]:
    """One picture as the network's input, repeated: `(count, 3, H, W)`."""
    tensor = np.empty((1, 3, *letterbox.canvas), dtype)
    to_tensor(letterbox_image(picture.pixels, letterbox, preprocessing), tensor[0], preprocessing)
    return np.repeat(tensor, count, axis=0)
