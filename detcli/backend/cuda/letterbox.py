"""Letterboxes images into the network's input: uploads, then one kernel.

Everything that the kernel reads lies in one area: what the 256 uint8 values of each channel become,
a descriptor for each image, the tables for resizing, and the images as decoded. It is staged in
page-locked memory and uploaded with one copy, except images that lie in such memory already
(`memory.py`): each is uploaded from where it is. The kernel resizes as cv2.INTER_LINEAR; other
interpolations are done on the host, before the upload.
"""

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from detcli.backend.cuda.memory import is_page_locked
from detcli.backend.preprocess import DEFAULT, input_value_tables, resize_for_letterbox
from detcli.data.geometry import Letterbox, Pixels
from detcli.model.contract import Interpolation, Preprocessing

if TYPE_CHECKING:
    from detcli.backend.cuda.driver import DeviceMemory, Gpu, PinnedMemory

Taps = npt.NDArray[np.int32]
"""`(length, 4)` int32, a row for each output pixel of an axis: near and far source pixel, and
their weights, which add up to `ONE`; OpenCV's INTER_LINEAR, bit for bit."""

ONE = 2048
ALIGNMENT = 16  # bytes; a tap is read at once
BLOCK = 256  # threads: a tile of 32 by 8 pixels
TILE_WIDTH = 32
TILE_HEIGHT = 8

IMAGE_DESCRIPTOR = np.dtype(
    [(name, np.uint64) for name in ("pixels", "columns", "rows", "pitch")]
    + [(name, np.uint32) for name in ("left", "top", "width", "height")]
)
"""`Image` of kernels/letterbox.cu. Pixels, columns and rows are offsets in the block of memory that
is uploaded. They become device addresses when the descriptors are staged."""


class LetterboxBatch:
    """Images of any sizes that become one tensor, bit for bit that of `backend.preprocess`."""

    def __init__(
        self,
        images: Sequence[Pixels],
        letterboxes: Sequence[Letterbox],
        dtype: np.dtype[Any],
        preprocessing: Preprocessing = DEFAULT,
    ) -> None:
        """Lay out all that the kernel reads in one block of memory; nothing is copied yet.

        Each array gets an offset in the block: the lookup tables, the tables of weights, the pixels
        of each image, and a descriptor of each image with the offsets of its tables and pixels.
        Room for the descriptors is reserved first; they are filled in as the arrays get their
        offsets.

        Args:
            images: `(H, W, 3)` uint8 BGR each, which may be views.
            letterboxes: Where each image lies on the network's input, the canvas, which all share.
            dtype: The type of the network's input, float32 or float16.
            preprocessing: How images are resized and what their values become.
        """
        self.shape = (len(images), 3, *letterboxes[0].canvas)  # of the network's input
        self._kernel = f"letterbox_{dtype.name}"
        self._pad = preprocessing.pad
        self._red_plane = 2 if preprocessing.bgr else 0  # the channel of the input for red

        # `_reserve` adds an array to the block, and so changes the following two.
        self.size = 0  # of the block so far, in bytes
        self._arrays: list[tuple[int, npt.NDArray[Any]]] = []  # each with its offset
        self._table_offsets: dict[int, int] = {}  # of the tables of weights, by the `id` of each
        self._reserve_lookup_tables(preprocessing, dtype)

        descriptors = np.zeros(len(images), IMAGE_DESCRIPTOR)
        self._descriptors_offset = self._reserve(descriptors)
        source_images = _resized_where_needed(images, letterboxes, preprocessing)
        for descriptor, image, letterbox in zip(
            descriptors, source_images, letterboxes, strict=True
        ):
            self._describe(descriptor, image, letterbox)
        self._reserve_images(descriptors, source_images)

    def upload(self, gpu: "Gpu", staging: "PinnedMemory", device: "DeviceMemory") -> None:
        """Enqueue the upload of all that the kernel reads: tables, descriptors and images.

        The GPU copies from page-locked memory. Images that lie there are uploaded from where they
        are. Everything else is copied to `staging` before this returns, and uploaded from there at
        once. Neither those images nor `staging` may change until the upload is done.

        Args:
            gpu: The GPU that letterboxes the images.
            staging: Page-locked memory of at least `self.staged_size` bytes.
            device: Memory of the GPU of at least `self.size` bytes.
        """
        # The target address, the source address and the size in bytes of each copy. The first
        # copies all that is staged.
        copies = [(device.address, staging.address, self.staged_size)]
        for offset, array in self._arrays:
            is_page_locked_image = offset >= self.staged_size  # these come after what is staged
            if is_page_locked_image:
                copies.append((device.address + offset, array.ctypes.data, array.nbytes))
            else:
                staged_bytes = staging.array[offset : offset + array.nbytes]
                _stage(array, staged_bytes, block_address=device.address)

        gpu.upload(copies)
        self._arrays.clear()  # so that the images can be freed

    def enqueue(self, gpu: "Gpu", device: "DeviceMemory", tensor: int) -> None:
        """Enqueue the kernel that letterboxes the images, after their upload.

        It may be enqueued several times for one upload. The order of the arguments is that of the
        parameters in letterbox.cu.

        Args:
            gpu: The GPU that letterboxes the images.
            device: The memory that everything was uploaded to.
            tensor: The device address that the network's input is written to.
        """
        image_count, _, height, width = self.shape
        # A block of threads writes a tile of one image of the input.
        tiles_across = math.ceil(width / TILE_WIDTH)
        tiles_down = math.ceil(height / TILE_HEIGHT)
        gpu.launch(
            self._kernel,
            (tiles_across, tiles_down, image_count),
            BLOCK,
            device.address + self._descriptors_offset,
            device.address + self._lookup_offset,
            tensor,
            np.uint32(height),
            np.uint32(width),
            np.uint32(self._pad),
            np.uint32(self._red_plane),
            np.uint32(self._lookup_step),
        )

    def _describe(self, descriptor: Any, image: Pixels, letterbox: Letterbox) -> None:  # noqa: ANN401 - a record of IMAGE_DESCRIPTOR
        """Fill in the descriptor of an image, except where its pixels are."""
        height, width = letterbox.resized
        descriptor["columns"] = self._reserve_table(column_taps(image.shape[1], width))
        descriptor["rows"] = self._reserve_table(row_taps(image.shape[0], height))
        descriptor["pitch"] = 3 * image.shape[1]
        descriptor["left"] = letterbox.left
        descriptor["top"] = letterbox.top
        descriptor["width"] = width
        descriptor["height"] = height

    def _reserve_lookup_tables(self, preprocessing: Preprocessing, dtype: np.dtype[Any]) -> None:
        """Reserve room for a lookup table of each channel, from pixel values to network inputs.

        The kernel reads the channels of an image as blue, green and red, and takes a step from the
        table of a channel to the next. If all channels have the same table, there is only one, and
        the step is 0.
        """
        tables = input_value_tables(preprocessing, dtype)  # (3, 256), channels in the model's order
        tables_in_bgr = tables
        if not preprocessing.bgr:
            tables_in_bgr = tables[::-1]

        is_same_for_all_channels = (tables == tables[0]).all()
        if is_same_for_all_channels:
            self._lookup_step = 0
            self._lookup_offset = self._reserve(tables_in_bgr[:1])
        else:
            self._lookup_step = tables.shape[1]
            self._lookup_offset = self._reserve(tables_in_bgr)

    def _reserve_images(
        self, descriptors: npt.NDArray[Any], source_images: Sequence[Pixels]
    ) -> None:
        """Reserve room for the pixels of all images, and write their offsets to the descriptors.

        Images in page-locked memory come last: they are uploaded from where they are. All that lies
        before them is staged, and ends at `self.staged_size`.
        """
        page_locked_indices = []
        for index, image in enumerate(source_images):
            if is_page_locked(image):
                page_locked_indices.append(index)
            else:
                descriptors["pixels"][index] = self._reserve(image)
        self.staged_size = self.size
        for index in page_locked_indices:
            descriptors["pixels"][index] = self._reserve(source_images[index])

    def _reserve(self, array: npt.NDArray[Any]) -> int:
        """Reserve room for an array in what is uploaded, and return its offset there.

        The array is copied by `upload`, so its content may still change.
        """
        offset = self.size
        self._arrays.append((offset, array))
        self.size += math.ceil(array.nbytes / ALIGNMENT) * ALIGNMENT
        return offset

    def _reserve_table(self, taps: Taps) -> int:
        """Reserve room for a weight table, once for all images of a size; return its offset."""
        # Tables are cached, so images of the same size share one array, which is recognised by its
        # `id`.
        if id(taps) not in self._table_offsets:
            self._table_offsets[id(taps)] = self._reserve(taps)
        return self._table_offsets[id(taps)]


def _stage(
    array: npt.NDArray[Any], staged_bytes: npt.NDArray[np.uint8], block_address: int
) -> None:
    """Copy an array to the memory that it is uploaded from, and turn its offsets into addresses.

    Only the descriptors of images have offsets in them.

    Args:
        array: A table, an image, or the descriptors.
        staged_bytes: The bytes of page-locked memory to copy it to, as many as the array has.
        block_address: Where the block that offsets refer to will begin in the GPU's memory.
    """
    staged_array = staged_bytes.view(array.dtype).reshape(array.shape)
    np.copyto(staged_array, array)
    has_offsets = array.dtype == IMAGE_DESCRIPTOR
    if has_offsets:
        for name in ("pixels", "columns", "rows"):
            staged_array[name] += np.uint64(block_address)


def _resized_where_needed(
    images: Sequence[Pixels], letterboxes: Sequence[Letterbox], preprocessing: Preprocessing
) -> list[Pixels]:
    """Resize the images that the kernel cannot resize itself, and return the others as they are.

    The kernel resizes with linear interpolation, and without a border that is resized with the
    image.

    Args:
        images: `(H, W, 3)` uint8 BGR each.
        letterboxes: The size that each is resized to, and its border if it has one.
        preprocessing: The interpolation, and the level of the border.

    Returns:
        The images that the kernel reads, in their order.
    """
    source_images = []
    for image, letterbox in zip(images, letterboxes, strict=True):
        if preprocessing.interpolation is Interpolation.LINEAR and letterbox.bordered_size is None:
            source_images.append(image)
        else:
            source_images.append(resize_for_letterbox(image, letterbox, preprocessing))
    return source_images


@functools.lru_cache(maxsize=256)  # a few KiB each; most images share a few sizes
def column_taps(source: int, target: int) -> Taps:
    """Return from which source columns each output column is made, and with which weights.

    An output column before the centre of the first source column, or after that of the last, is
    made of that column alone, as in OpenCV.

    Args:
        source: The width of the image in pixels.
        target: The width that it is resized to.

    Returns:
        `(target, 4)`: for each output column, two source columns and their weights.
    """
    pixel_before, fraction = _neighbours(source, target)
    has_one_neighbour = (pixel_before < 0) | (pixel_before >= source - 1)
    fraction[has_one_neighbour] = 0  # the second column of the two gets no weight
    return _taps(pixel_before, fraction, source)


@functools.lru_cache(maxsize=256)
def row_taps(source: int, target: int) -> Taps:
    """Return from which source rows each output row is made, and with which weights.

    An output row before the centre of the first source row, or after that of the last, is made of
    that row twice, with two weights, as in OpenCV. The two products are rounded separately, so the
    result may differ from that of one full weight, which columns have.

    Args:
        source: The height of the image in pixels.
        target: The height that it is resized to.

    Returns:
        `(target, 4)`: for each output row, two source rows and their weights.
    """
    pixel_before, fraction = _neighbours(source, target)
    return _taps(pixel_before, fraction, source)


def _neighbours(source: int, target: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """Find between which two source pixels of an axis the centre of each output pixel lies.

    The centres of the source pixels are at 0, 1, 2 and so on. The pixel before the first is -1,
    which does not exist.

    Args:
        source: The number of source pixels.
        target: The number of output pixels.

    Returns:
        The source pixel before each centre, and how far past that the centre lies, from 0 to 1;
        `(target,)` each.

    Examples:
        >>> pixel_before, fraction = _neighbours(2, 4)  # centres at -0.25, 0.25, 0.75 and 1.25
        >>> pixel_before.tolist(), fraction.tolist()
        ([-1, 0, 0, 1], [0.75, 0.25, 0.75, 0.25])
    """
    scale = 1 / (target / source)  # as in OpenCV; `source / target` may round to a different value
    # Computed in float64 and rounded to float32 before it is split, as in OpenCV.
    centre = ((np.arange(target) + 0.5) * scale - 0.5).astype(np.float32)
    pixel_before = np.floor(centre)
    return pixel_before.astype(np.int32), centre - pixel_before


def _taps(
    pixel_before: npt.NDArray[np.int32], fraction: npt.NDArray[np.float32], source: int
) -> Taps:
    """Build a table of two source pixels and their weights for each output pixel of an axis.

    It is read-only because it is cached, and so all callers share it.

    Args:
        pixel_before: `(length,)`, the source pixel before the centre of each output pixel.
        fraction: `(length,)`, how far past that pixel the centre lies, from 0 to 1.
        source: The number of source pixels; indices beyond the first or last become that one.

    Returns:
        `(length, 4)`: near and far source pixel, and their weights, which add up to `ONE`.
    """
    full_weight = np.float32(ONE)
    taps = np.empty((len(pixel_before), 4), np.int32)
    taps[:, 0] = np.clip(pixel_before, 0, source - 1)
    taps[:, 1] = np.clip(pixel_before + 1, 0, source - 1)
    taps[:, 2] = np.rint((np.float32(1) - fraction) * full_weight)
    taps[:, 3] = np.rint(fraction * full_weight)
    taps.flags.writeable = False
    return taps
