"""What a program may give a detector as an image, and how it becomes one."""

import os
from collections.abc import Callable, Iterator
from typing import Any, Literal, Protocol, cast, get_args

import numpy as np
import numpy.typing as npt

from detcli.config.typed import describe_value
from detcli.core.errors import DecodeError, InputError, SourceError, UsageError, system_reason
from detcli.data.geometry import Image
from detcli.data.record import Origin
from detcli.source.decode import DEFAULTS, load_bytes
from detcli.source.loading import Item, load_in_time
from detcli.source.names import is_video
from detcli.source.pillow import PillowImage, is_pillow_image, read_pillow
from detcli.source.reading import FILE_CHUNK, gather, load_file

Channels = Literal["bgr", "rgb"]
"""The order of an array's last axis: blue, green and red as in OpenCV, or as in Pillow."""

REQUIREMENT = (
    "an image must be (H, W, 3) uint8 BGR, a path, the bytes of a file, a file that is open in "
    "binary mode, or one of Pillow"
)


class BinaryFile(Protocol):
    """A file that is open in binary mode, such as an upload or `io.BytesIO`."""

    def read(self, size: int, /) -> bytes:
        """Return the next bytes, at most `size`; none at the end."""


AnyImage = (
    npt.NDArray[Any]
    | str
    | os.PathLike[str]
    | bytes
    | bytearray
    | memoryview
    | BinaryFile
    | PillowImage
    | None
)


def to_image(image: object, channels: Channels = "bgr") -> Image:
    """Convert what the caller of a detector gave as an image to an image with its pixels.

    Args:
        image: One of these: the path of a file; the bytes of a file; an open file, which is read
            from its position to its end; an image of Pillow; an array `(H, W, 3)`, uint8.
        channels: The order of the array's last axis.

    Raises:
        TypeError: It is something else.
        ValueError: The array has the wrong shape or dtype.
        UsageError: The order of the channels is unknown, or the file is open as text.
        SourceError: A file cannot be read.
        DecodeError: A file is not a complete image.
    """
    if channels not in get_args(Channels):
        raise UsageError(f"channels is {describe_value(channels)}", 'use "bgr" or "rgb"')

    if isinstance(image, str | os.PathLike):
        return _read_path(os.fsdecode(image))
    if isinstance(image, bytes | bytearray | memoryview):
        content = bytes(image)
        return _load("image bytes", lambda: load_bytes(content))
    if is_pillow_image(image):
        return read_pillow(image)
    if isinstance(image, np.ndarray):
        return _image_from_array(image, channels)
    if hasattr(image, "read"):
        file = cast("BinaryFile", image)
        return _load(_name_of_file(file), lambda: _read_file(file))

    if image is None:
        description = "None, which cv2.imread returns for a file that it cannot read: pass its path"
    else:
        description = type(image).__name__
    raise TypeError(f"{REQUIREMENT}, got {description}")


def _image_from_array(pixels: npt.NDArray[Any], channels: Channels) -> Image:
    """Make an image from an array `(H, W, 3)`, uint8; RGB is converted to BGR.

    Args:
        pixels: The array. In the order BGR it is not copied.
        channels: The order of its last axis.

    Raises:
        ValueError: The array has the wrong shape or dtype.
    """
    is_colour = pixels.ndim == 3 and pixels.shape[2] == 3
    if not is_colour or pixels.dtype != np.uint8 or pixels.size == 0:
        raise ValueError(f"{REQUIREMENT}, got {pixels.shape} {pixels.dtype}")
    if channels == "rgb":
        pixels = np.ascontiguousarray(pixels[..., ::-1])
    return Image.whole(pixels)


def _read_path(path: str) -> Image:
    """Read the image in a file.

    Raises:
        UsageError: The path names a video or a folder, or it is an address.
        SourceError: The file cannot be read, or not within the time limit.
        DecodeError: The file is not a complete image.
    """
    if is_video(path) or "://" in path or os.path.isdir(path):  # noqa: PTH112 - raises nothing
        raise UsageError(
            f"{path} is not the file of one image", "iterate over detcli.predict(path, detector)"
        )
    return _load(path, lambda: load_file(path))


def _load(name: str, load: Callable[[], Image]) -> Image:
    """Call a function that loads an image; one that takes longer than the time limit is an error.

    Args:
        name: How errors refer to the image.
        load: Reads and decodes it, on another thread.

    Raises:
        SourceError: It cannot be read, or not within the time limit.
        DecodeError: It is not a complete image.
    """
    try:
        return load_in_time(Item(Origin(name), load))
    except InputError as error:
        raise error.about(name) from None


def _name_of_file(file: BinaryFile) -> str:
    """Return how errors refer to an open file: by its name if it has one, else by its type."""
    name = getattr(file, "name", None)
    if isinstance(name, str) and name:
        return name
    return type(file).__name__


def _read_file(file: BinaryFile) -> Image:
    """Read an open file from where it is to its end, and decode it.

    Raises:
        UsageError: The file is open as text.
        SourceError: It cannot be read, for instance because it is closed.
        DecodeError: It is already at its end, or not a complete image.
    """
    try:
        content = gather(_chunks_of(file), DEFAULTS.max_bytes)
    except (OSError, ValueError) as error:  # Python raises a ValueError for a closed file
        hint = "give it while it is open, for reading in binary mode"
        raise SourceError(f"cannot be read: {system_reason(error)}", hint) from error
    if not content:
        raise DecodeError("nothing is left to read", "go back to its beginning with file.seek(0)")
    return load_bytes(content)


def _chunks_of(file: BinaryFile) -> Iterator[bytes]:
    """Yield the bytes of an open file until its end.

    Raises:
        UsageError: The file returns something other than bytes, as one that is open as text does.
    """
    while True:
        chunk = file.read(FILE_CHUNK)
        if not chunk:
            return
        if not isinstance(chunk, bytes):
            raise UsageError(
                f"a file of images gives bytes, not {type(chunk).__name__}",
                'open it in binary mode: open(path, "rb")',
            )
        yield chunk
