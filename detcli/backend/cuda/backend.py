"""The CUDA backend: letterbox, network and selection on one stream.

Images are uploaded as bytes, while the network still runs on the previous batch, and only their
rows come back. The three stages enqueue work and return; the host waits where the rows are read.

One input and one output of the network serve all batches in flight. The stream's order keeps them
apart: `infer` letterboxes a batch directly before the network runs on it, and `select` is refused
once `infer` has been called for another batch.
"""

import contextlib
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from detcli.backend.cuda.letterbox import LetterboxBatch
from detcli.backend.cuda.memory import ImageMemory, Ring, SharedMemory, Slot
from detcli.backend.cuda.selection import HeadShape, HostSelection, SelectionKernels
from detcli.backend.image_boxes import batch_to_detections
from detcli.backend.postprocess import (
    HeadArray,
    SelectionOptions,
    detect,
)
from detcli.backend.protocol import BATCHES, Observer, Pending, closed_error, out_of_memory
from detcli.backend.selected_boxes import SelectedBoxes
from detcli.config.values import BoxFormat
from detcli.core import frozen
from detcli.core.errors import DetcliWarning, InferenceError
from detcli.core.timing import Stage
from detcli.data.detections import Detections
from detcli.data.geometry import Letterbox, Pixels, Size
from detcli.model.contract import Contract, Layout, ScoreForm

if TYPE_CHECKING:
    from detcli.backend.cuda.driver import DeviceMemory, Gpu, PinnedMemory
    from detcli.backend.cuda.network import Network

SLOTS = 3
"""Batches in flight: the host reads the rows of one, the GPU works on the next, and the images of
the third are staged and uploaded."""

# How many multiprocessors an image keeps busy. A smaller batch leaves some of the GPU idle, and a
# larger one takes as long for each image.
MULTIPROCESSORS_PER_IMAGE = 4
# What a batch may take in the GPU's memory for each pixel of its input. YOLOv10-N takes 59 bytes on
# the CPU, and the largest of its family has five times as many channels; as much again is for
# workspaces, which was not measured.
BYTES_PER_PIXEL = 640
# Runs of the network for one batch without a warning. Each is a CUDA graph of its own. The 32 that
# are kept are enough for inputs of three sizes.
MAX_RUNS_IN_BATCH = 10
# Workspaces for selection that are kept. A short last batch or a different size of the network's
# input needs one of its own.
MAX_SELECTIONS = 8


@frozen
class Batch:
    """A batch of images on its way through the stages: upload, network, selection."""

    slot: Slot  # the memory that the batch owns
    generation: int  # the slot's when the batch took it
    shape: tuple[int, int, int, int]  # (B, 3, H, W); B is a multiple of the graph's batch size
    letterbox: LetterboxBatch  # what makes the network's input
    uploaded: "DeviceMemory"  # what that reads: the images and how to resize them
    inference: int = 0  # how many times `infer` had been called, with the call for this batch
    output: int = 0  # address of the network's output, once it has run
    output_shape: tuple[int, int, int] = (0, 0, 0)  # of heads or rows
    # The output on the host instead, by image, if only a run shows how many rows there are.
    rows: tuple[HeadArray, ...] = ()


class _SelectedRows:
    """The rows that the GPU selects from a batch, as long as the host has not copied them.

    They are written to page-locked memory of the batch's slot, which later batches use as well. So
    they are copied when their detections are needed, or when the slot is handed to another batch,
    whichever comes first.
    """

    def __init__(
        self,
        slot: Slot,
        selection: SelectionKernels | HostSelection,
        download: "PinnedMemory",
        end_stage: Callable[[Stage], None],
    ) -> None:
        """Prepare to copy the rows; the GPU need not have written them yet.

        This also adds the method `copy` to the slot's list `unread`. The slot calls all methods in
        that list before it is handed to another batch.

        Args:
            slot: The memory of the batch.
            selection: The selection, which is enqueued already. Only it knows in which form the
                rows are written.
            download: The part of the slot's memory on the host that the GPU writes the rows to.
            end_stage: Is called with `Stage.DOWNLOAD` after the rows have been copied.
        """
        self._slot = slot
        self._selection: Any = selection  # its two classes have rows of different types
        self._download = download
        self._end_stage = end_stage
        self._rows_by_image: list[Any] = []  # empty until they have been copied
        slot.unread.append(self.copy)

    def copy(self) -> None:
        """Wait until the GPU has written the rows, and copy them out of the slot's memory."""
        self._slot.wait()
        self._rows_by_image.extend(self._selection.read(self._download.array))
        self._slot.unread = [copy_rows for copy_rows in self._slot.unread if copy_rows != self.copy]
        self._end_stage(Stage.DOWNLOAD)

    def boxes_by_image(self) -> Iterator[SelectedBoxes]:
        """Yield the selected boxes of each image, after waiting for them if necessary."""
        if not self._rows_by_image:
            self.copy()
        for rows in self._rows_by_image:
            yield self._selection.choose(rows)


class CudaBackend:
    """Runs a model on a GPU; its buffers are batches in device memory."""

    precision = ""
    in_flight = SLOTS
    workers = 1

    def __init__(
        self,
        gpu: "Gpu",
        network: "Network",
        contract: Contract,
        device: str,
        memory_limit: int | None = None,
    ) -> None:
        """Make a backend from parts that are ready to use, and that it closes in the end.

        Args:
            gpu: The GPU, with its kernels loaded.
            network: The network, which runs on the stream of that GPU.
            contract: What the model says about its input and output.
            device: The name of the device, such as "cuda:0".
            memory_limit: How many bytes of the GPU's memory the network may take; None for all.
        """
        self.device = device
        self._memory_limit = memory_limit
        self._gpu = gpu
        self._network = network
        self._contract = contract

        self._ring = Ring(gpu, SLOTS)  # memory that a batch owns until its detections are read
        self._shared = SharedMemory(gpu)  # the network's input and output, for all batches
        self._images = ImageMemory(gpu)  # host memory that images are decoded into
        # The kernels that select, with their workspaces. The most recently used one comes last.
        self._selections: dict[tuple[HeadShape, SelectionOptions], SelectionKernels] = {}

        # Calls of `infer`. A batch with a lower number has lost its output to a later one.
        self._inference_count = 0
        self._closed = False
        self._has_warned_of_runs = False
        self._observer: Observer | None = None

    def best_batch(self, canvas: Size) -> int:
        """Return how many images to put into a batch.

        That is the number that the graph takes, or, if it takes any, the largest that is faster
        than fewer and fits into the GPU's memory.

        Args:
            canvas: Height and width of the network's input.
        """
        if self._network.batch is not None:
            return self._network.batch
        available_bytes = self._gpu.free_memory()
        if self._memory_limit is not None:
            available_bytes = min(available_bytes, self._memory_limit)
        return largest_batch(self._gpu.multiprocessors, available_bytes, canvas)

    def allocate(self, size: Size) -> Pixels:
        """Return an array for an image of (height, width), which the GPU can read directly."""
        return self._images.allocate(size)

    def prepare(self, images: Sequence[Pixels], letterboxes: Sequence[Letterbox]) -> Batch:
        """Enqueue the upload of images to the GPU, where `infer` letterboxes them.

        The network runs on a fixed number of images at a time. So the batch has a multiple of that
        number of images: `infer` adds black ones at the end.

        Args:
            images: The images. The GPU reads those in page-locked memory later, so they must not
                change before the detections are read.
            letterboxes: Where each image lies on the network's input.

        Returns:
            The batch, for `infer`. It owns a slot of memory until its detections are read.
        """
        if self._closed:
            raise closed_error()

        slot = self._ring.take()
        dtype = self._network.input_dtype
        letterbox_batch = LetterboxBatch(images, letterboxes, dtype, self._contract.preprocessing)
        self._images.follow(letterbox_batch.size)

        image_count, channels, height, width = letterbox_batch.shape
        images_per_run = self._images_per_run(image_count)
        run_count = math.ceil(image_count / images_per_run)
        shape = (run_count * images_per_run, channels, height, width)
        input_bytes = dtype.itemsize * math.prod(shape)

        with self._explain_lack_of_memory(shape):
            # The input is allocated here, although only `infer` writes to it: if the batch is too
            # large, nothing has been enqueued for it yet.
            self._shared.device("input", input_bytes)
            staging = slot.pinned("images", letterbox_batch.staged_size)
            uploaded = slot.device("images", letterbox_batch.size)
        self._end_stage(Stage.PREPROCESS)

        slot.images = tuple(images)  # so that they live until the GPU has read them
        with slot.marked():
            letterbox_batch.upload(self._gpu, staging, uploaded)
            self._end_stage(Stage.UPLOAD)
        return Batch(slot, slot.generation, shape, letterbox_batch, uploaded)

    def infer(self, buffer: Batch) -> Batch:
        """Letterbox a batch and run the network on it, as many images at a time as the graph takes.

        Input and output of the previous batch are overwritten.

        Args:
            buffer: The batch, from `prepare`.

        Returns:
            The same batch with the network's output. It is in the GPU's memory, and the runs that
            write it are only enqueued. If only a run shows how many rows the output has, it is on
            the host.
        """
        slot = self._slot_of(buffer)
        image_count, channels, height, width = buffer.shape
        images_per_run = self._images_per_run(image_count)
        self._warn_about_many_runs(image_count, images_per_run)
        run_count = image_count // images_per_run
        run_shape = (images_per_run, channels, height, width)
        bytes_per_run = math.prod(run_shape) * self._network.input_dtype.itemsize

        self._gpu.make_current()  # another detector may have made its own GPU current
        self._inference_count += 1
        batch = replace(buffer, inference=self._inference_count)
        with self._explain_lack_of_memory(batch.shape):
            input_address = self._shared.device("input", run_count * bytes_per_run).address
        self._letterbox(batch, input_address)

        # The inputs of the runs lie one after the other.
        run_addresses = [input_address + run * bytes_per_run for run in range(run_count)]
        if self._network.rows_vary:
            return self._infer_to_host(batch, slot, run_addresses, run_shape)
        return self._infer_on_device(batch, slot, run_addresses, run_shape)

    def _letterbox(self, batch: Batch, input_address: int) -> None:
        """Enqueue the kernel that writes a batch into the network's input.

        The black images that fill up the last run are not letterboxed: their bytes, which follow
        those of the batch's images, are set to 0.

        Args:
            batch: The batch.
            input_address: The device address of the input.
        """
        itemsize = self._network.input_dtype.itemsize
        image_bytes = itemsize * math.prod(batch.letterbox.shape)
        input_bytes = itemsize * math.prod(batch.shape)
        black_bytes = input_bytes - image_bytes
        with batch.slot.marked():
            batch.letterbox.enqueue(self._gpu, batch.uploaded, input_address)
            if black_bytes > 0:
                self._gpu.clear(input_address + image_bytes, black_bytes)
            self._end_stage(Stage.PREPROCESS)

    def _infer_on_device(
        self,
        batch: Batch,
        slot: Slot,
        input_addresses: Sequence[int],
        run_shape: tuple[int, int, int, int],
    ) -> Batch:
        """Enqueue the runs of the network on a batch, whose output stays in the GPU's memory.

        Args:
            batch: The batch.
            slot: The memory that it owns.
            input_addresses: The device address of the input of each run.
            run_shape: `(B, 3, H, W)` of that input.

        Returns:
            The batch with the address and the shape of the output, in which the runs follow each
            other.
        """
        run_count = len(input_addresses)
        run_output_shape = self._network.output_shape(run_shape)  # (B, rows, columns)
        run_output_bytes = math.prod(run_output_shape) * self._network.output_dtype.itemsize
        with self._explain_lack_of_memory(batch.shape):
            output_address = self._shared.device("output", run_count * run_output_bytes).address

        with slot.marked():
            for run, run_input_address in enumerate(input_addresses):
                run_output_address = output_address + run * run_output_bytes
                self._network.run(run_input_address, run_output_address, run_shape)
            self._end_stage(Stage.NETWORK)

        images_per_run, row_count, column_count = run_output_shape
        output_shape = (run_count * images_per_run, row_count, column_count)
        return replace(batch, output=output_address, output_shape=output_shape)

    def _infer_to_host(
        self,
        batch: Batch,
        slot: Slot,
        input_addresses: Sequence[int],
        run_shape: tuple[int, int, int, int],
    ) -> Batch:
        """Run a network whose number of rows varies, and wait for its output on the host.

        Args:
            batch: The batch.
            slot: The memory that it owns.
            input_addresses: The device address of the input of each run.
            run_shape: `(B, 3, H, W)` of that input.
        """
        rows: list[HeadArray] = []
        with slot.marked():
            for input_address in input_addresses:
                rows.extend(self._network.run_to_host(input_address, run_shape))
            self._end_stage(Stage.NETWORK)
        return replace(batch, rows=tuple(rows))

    def _warn_about_many_runs(self, count: int, images_per_run: int) -> None:
        """Warn once if the network runs so often for a batch of images that it is slow.

        That is the case if the graph takes a fixed number of images at a time, and few of them.

        Args:
            count: The number of images in the batch.
            images_per_run: How many of them the network takes at a time.
        """
        if self._has_warned_of_runs or self._network.batch is None:
            return
        run_count = count // images_per_run
        if run_count <= MAX_RUNS_IN_BATCH:
            return
        self._has_warned_of_runs = True
        warnings.warn(
            f"the model takes {images_per_run} at a time, so a batch is {run_count} runs; "
            f"`detcli convert MODEL --batch {count} -o NEW` makes it one",
            DetcliWarning,
            stacklevel=3,  # where `infer` was called
        )

    def select(
        self, buffer: Batch, letterboxes: Sequence[Letterbox], options: SelectionOptions
    ) -> Pending:
        """Enqueue the selection of detections from the network's output for a batch.

        Args:
            buffer: The batch, from `infer`.
            letterboxes: Where each of its images lies on the network's input.
            options: Which detections to keep.

        Returns:
            A function that waits for the selection and returns the detections of each image.

        Raises:
            InferenceError: The network has run on another batch since, or is closed.
        """
        slot = self._slot_of(buffer)
        if self._network.rows_vary:  # the output is on the host already
            return lambda: self._select_on_host(buffer, letterboxes, options)

        self._require_latest_inference(buffer)
        with self._explain_lack_of_memory(buffer.shape):
            selection = self._selection_for(buffer, len(letterboxes), options)
            # Rows of earlier selections from this batch may not have been copied yet, so each
            # selection has memory of its own.
            download = slot.pinned(f"result {len(slot.unread)}", selection.result_size)
        with slot.marked():
            selection.enqueue(buffer.output, download.address)
            self._end_stage(Stage.SELECTION)
        selected_rows = _SelectedRows(slot, selection, download, self._end_stage)

        def wait_for_detections() -> list[Detections]:
            return self._to_detections(selected_rows.boxes_by_image(), letterboxes)

        return wait_for_detections

    def _require_latest_inference(self, batch: Batch) -> None:
        """Raise an InferenceError if the network has run on another batch since this one.

        All batches share the memory of the network's output, so it would be that of the other
        batch.
        """
        if batch.inference != self._inference_count:
            raise InferenceError(
                "this batch's output was overwritten, as the network has run on another since",
                "select from a batch before running the network on the next",
            )

    def _select_on_host(
        self, batch: Batch, letterboxes: Sequence[Letterbox], options: SelectionOptions
    ) -> list[Detections]:
        """Select the detections of each image from rows that the network wrote to the host."""
        rows_by_image = batch.rows[: len(letterboxes)]  # without the images that fill up a run
        boxes_by_image = (detect(rows, options, self._contract) for rows in rows_by_image)
        return self._to_detections(boxes_by_image, letterboxes)

    def _to_detections(
        self, boxes_by_image: Iterable[SelectedBoxes], letterboxes: Sequence[Letterbox]
    ) -> list[Detections]:
        """Turn the boxes that were selected from each image into detections in its pixels."""
        detections = batch_to_detections(list(boxes_by_image), letterboxes, self._contract)
        self._end_stage(Stage.SELECTION)  # its time is added to that of selecting
        return detections

    def _images_per_run(self, count: int) -> int:
        """Return how many images the network runs on at a time, for a batch of `count` images.

        A network that takes any number still gets one of the few numbers in `BATCHES`, since each
        new number costs the planning of all its convolutions, or a new TensorRT engine. It is the
        smallest that is enough for the whole batch.
        """
        if self._network.batch:
            return self._network.batch
        return smallest_run(count)

    def observe(self, observer: Observer | None) -> None:
        """Tell an observer, from now on, which stage has ended; None stops that."""
        self._observer = observer

    def _end_stage(self, stage: Stage) -> None:
        """Tell the observer, if there is one, that the GPU has done what a stage enqueued."""
        if self._observer is not None:
            self._gpu.synchronize()
            self._observer(stage)

    def close(self) -> None:
        """Wait for the GPU, and release its memory, the network and the GPU itself.

        Rows of batches in flight are copied before their memory is released. A second call does
        nothing.
        """
        if self._closed:
            return
        self._closed = True
        # The stack calls the last function first, and the others even if one of them fails.
        with contextlib.ExitStack() as stack:
            stack.callback(self._gpu.close)
            stack.callback(self._images.close)
            stack.callback(self._network.close)
            for selection in self._selections.values():
                stack.callback(selection.close)
            stack.callback(self._shared.close)
            stack.callback(self._ring.close)
            stack.callback(self._gpu.synchronize)

    def _slot_of(self, buffer: Batch) -> Slot:
        """Return the slot of memory that a batch owns.

        Raises:
            InferenceError: The backend is closed, or the slot has been handed to a later batch, so
                that this batch has been overwritten.
        """
        if self._closed:
            raise closed_error()
        # A slot counts the batches that it has been handed to.
        if buffer.generation != buffer.slot.generation:
            raise InferenceError(
                f"this batch's memory was given to a later one; at most {SLOTS} are in flight",
                "select from a batch before preparing three more",
            )
        return buffer.slot

    def _selection_for(
        self, batch: Batch, image_count: int, options: SelectionOptions
    ) -> SelectionKernels | HostSelection:
        """Choose whether kernels or the host select from the network's output for a batch.

        The GPU has kernels for heads. The host selects where it has none:

        - from rows that the graph has selected itself,
        - with non-maximum suppression that compares all classes of an anchor, not only the best,
        - with suppression that blends overlapping boxes.

        Args:
            batch: The batch, with the network's output.
            image_count: Its images, without the black ones that fill up a run of the network.
            options: Which detections to keep.
        """
        _, row_count, column_count = batch.output_shape
        has_rows = self._contract.layout is Layout.ROWS
        if has_rows or options.suppresses_every_class or options.blends:
            return HostSelection(
                self._gpu,
                (image_count, row_count, column_count),
                self._network.output_dtype,
                self._contract,
                options,
            )
        anchor_count = column_count
        if self._contract.anchors_first:
            anchor_count = row_count
        head = self._head_shape(image_count, anchor_count)
        return self._kernels_for(head, options)

    def _head_shape(self, image_count: int, anchor_count: int) -> HeadShape:
        """Describe the network's output for a batch, as kernels are compiled for it."""
        contract = self._contract
        return HeadShape(
            batch=image_count,
            rows=4 + contract.class_count,
            anchors=anchor_count,
            anchors_first=contract.anchors_first,
            cxcywh=contract.box_format is BoxFormat.CXCYWH,
            logits=contract.score_form is ScoreForm.LOGITS,
            dtype=self._network.output_dtype.name,
        )

    def _kernels_for(self, head: HeadShape, options: SelectionOptions) -> SelectionKernels:
        """Return the kernels for heads of the given shape, from an earlier batch if there are any.

        If more than MAX_SELECTIONS are open then, the least recently used ones are closed.
        """
        selection = self._selections.pop((head, options), None)
        if selection is None:
            selection = SelectionKernels(self._gpu, head, options)
        self._selections[head, options] = selection  # the most recently used comes last
        if len(self._selections) > MAX_SELECTIONS:
            oldest = next(iter(self._selections))
            self._selections.pop(oldest).close()
        return selection

    @contextlib.contextmanager
    def _explain_lack_of_memory(self, shape: tuple[int, int, int, int]) -> Iterator[None]:
        """Turn a MemoryError in the block into an error that says what to do.

        Args:
            shape: `(B, 3, H, W)`, the network's input that there was not enough memory for.
        """
        try:
            yield
        except MemoryError as error:
            takes_fixed_number = self._network.batch is not None
            raise out_of_memory(shape, str(error), fixed=takes_fixed_number) from error


def smallest_run(count: int) -> int:
    """Choose the batch size for `count` images, for a network that takes any batch size.

    Only 1 and the few sizes in `BATCHES` are used, since the network takes time to plan each new
    one. The smallest size that is enough for all images is chosen. If none is, it is the largest,
    and the network runs several times.

    Args:
        count: The number of images in the batch.
    """
    if count <= 1:
        return 1
    for batch_size in reversed(BATCHES):  # the smallest first
        if batch_size >= count:
            return batch_size
    return BATCHES[0]


def largest_batch(multiprocessors: int, available_bytes: int, canvas: Size) -> int:
    """Choose the number of images in a batch for a GPU: the largest in `BATCHES` that suits it.

    A batch suits a GPU if it fits into memory, and if the multiprocessors can work on all of its
    images at a time: more images would make nothing faster. If no batch suits it, the smallest in
    `BATCHES` is returned.

    Args:
        multiprocessors: How many of them the GPU has.
        available_bytes: How much of its memory a batch may take.
        canvas: Height and width of the network's input.
    """
    bytes_per_image = BYTES_PER_PIXEL * math.prod(canvas)
    images_in_memory = available_bytes // bytes_per_image
    limit = min(multiprocessors // MULTIPROCESSORS_PER_IMAGE, images_in_memory)
    for batch_size in BATCHES:  # the largest first
        if batch_size <= limit:
            return batch_size
    return BATCHES[-1]
