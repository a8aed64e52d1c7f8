"""The CUDA backend: letterbox, network and selection on one stream.

Images are uploaded as bytes, while the network still runs on the batch before, and only their
rows come back. The three stages enqueue work and return; the host waits where the rows are read.
"""

import contextlib
import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from detcli.backend.cuda.letterbox import LetterboxBatch
from detcli.backend.cuda.memory import ImageMemory, Ring, Slot
from detcli.backend.cuda.selection import HeadShape, HostSelection, SelectionKernels
from detcli.backend.postprocess import (
    HeadArray,
    SelectedBoxes,
    SelectionOptions,
    detect,
    to_detections,
)
from detcli.backend.protocol import BATCHES, Observer, Pending, closed_error, out_of_memory
from detcli.config.values import BoxFormat
from detcli.core import frozen
from detcli.core.errors import DetcliWarning, InferenceError
from detcli.core.timing import Stage
from detcli.data.detections import Detections
from detcli.data.geometry import Letterbox, Pixels, Size
from detcli.model.contract import Contract, Layout, ScoreForm

if TYPE_CHECKING:
    from detcli.backend.cuda.driver import Gpu
    from detcli.backend.cuda.network import Network

SLOTS = 3
"""Batches in flight: the host reads the rows of one, the GPU works on the next, and the images of
the third are staged and uploaded."""

MULTIPROCESSORS = 4  # for each image of a larger batch; fewer are busy with a smaller one
# Of a batch's input. YOLOv10-N takes 59 bytes on the CPU, and the largest of its family has five
# times as many channels; as much again is for workspaces, which was not measured.
BYTES_A_PIXEL = 640
# Of a network for a batch: each slot's need graphs of their own, of which 32 are kept.
MANY_RUNS = 10
MAX_SELECTIONS = 8  # workspaces to keep; a short last batch or another canvas needs its own


@frozen
class Batch:
    """Images on their way through the stages."""

    slot: Slot  # the memory that the batch owns
    generation: int  # the slot's when the batch took it
    shape: tuple[int, int, int, int]  # (B, 3, H, W); B is a multiple of the graph's batch size
    tensor: int  # address of the network's input
    output: int = 0  # address of the network's output, once it has run
    output_shape: tuple[int, int, int] = (0, 0, 0)  # of heads or rows
    # On the host instead, where only a run tells how many there are.
    rows: tuple[HeadArray, ...] = ()


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
        self.device = device
        self._memory_limit = memory_limit
        self._gpu = gpu
        self._network = network
        self._contract = contract
        self._ring = Ring(gpu, SLOTS)
        self._images = ImageMemory(gpu)
        self._selections: dict[tuple[HeadShape, SelectionOptions], SelectionKernels] = {}
        self._closed = False
        self._has_warned_of_runs = False
        self._observer: Observer | None = None

    def best_batch(self, canvas: Size) -> int:
        """As many images as the graph takes; else `largest_batch`."""
        if self._network.batch is not None:
            return self._network.batch
        room = self._gpu.free_memory()
        if self._memory_limit is not None:
            room = min(room, self._memory_limit)
        return largest_batch(self._gpu.multiprocessors, room, canvas)

    def allocate(self, size: Size) -> Pixels:
        return self._images.allocate(size)

    def prepare(self, images: Sequence[Pixels], letterboxes: Sequence[Letterbox]) -> Batch:
        """Upload images and letterbox them into the network's input.

        Images in the GPU's memory are not uploaded; what fills them has to be done. The network
        gets empty images at the end, up to a multiple of what it runs on at a time.
        """
        if self._closed:
            raise closed_error()

        slot = self._ring.take()
        dtype = self._network.input_dtype
        letterbox_batch = LetterboxBatch(images, letterboxes, dtype, self._contract.preprocessing)
        count, channels, height, width = letterbox_batch.shape
        self._images.follow(letterbox_batch.size)
        step = self._step(count)
        padded_count = -(-count // step) * step
        shape = (padded_count, channels, height, width)
        used = dtype.itemsize * math.prod(letterbox_batch.shape)
        size = dtype.itemsize * math.prod(shape)

        with self._memory_for(shape):
            tensor = slot.device("tensor", size)
            staging = slot.pinned("images", letterbox_batch.staged)
            uploaded = slot.device("images", letterbox_batch.size)
        self._ended(Stage.PREPROCESS)

        slot.images = tuple(images)
        with slot.marked():
            letterbox_batch.enqueue(
                self._gpu,
                staging,
                uploaded,
                tensor.address,
                lambda: self._ended(Stage.UPLOAD),
            )
            if size > used:
                self._gpu.clear(tensor.address + used, size - used)
            self._ended(Stage.PREPROCESS)
        return Batch(slot, slot.generation, shape, tensor.address)

    def infer(self, buffer: Batch) -> Batch:
        """Run the network body, as many images at a time as the graph takes."""
        slot = self._owned(buffer)
        count, channels, height, width = buffer.shape
        shape_of_run = (self._step(count), channels, height, width)
        runs = count // shape_of_run[0]
        is_split = self._network.batch is not None and runs > MANY_RUNS
        if is_split and not self._has_warned_of_runs:
            self._has_warned_of_runs = True
            warnings.warn(
                f"the model takes {shape_of_run[0]} at a time, so a batch is {runs} runs; "
                f"`detcli convert MODEL --batch {count} -o NEW` makes it one",
                DetcliWarning,
                stacklevel=2,
            )
        input_size = math.prod(shape_of_run) * self._network.input_dtype.itemsize
        inputs = [buffer.tensor + run * input_size for run in range(runs)]
        self._gpu.make_current()  # another detector's may be

        if self._network.rows_vary:
            rows: list[HeadArray] = []
            with slot.marked():
                for input_address in inputs:
                    rows.extend(self._network.run_to_host(input_address, shape_of_run))
                self._ended(Stage.NETWORK)
            return replace(buffer, rows=tuple(rows))

        output_shape = self._network.output_shape(shape_of_run)
        output_size = math.prod(output_shape) * self._network.output_dtype.itemsize
        with self._memory_for(buffer.shape):
            output = slot.device("output", runs * output_size).address
        with slot.marked():
            for run, input_address in enumerate(inputs):
                self._network.run(input_address, output + run * output_size, shape_of_run)
            self._ended(Stage.NETWORK)
        return replace(buffer, output=output, output_shape=(count, *output_shape[1:]))

    def select(
        self, buffer: Batch, letterboxes: Sequence[Letterbox], options: SelectionOptions
    ) -> Pending:
        """Select on the GPU; the returned call waits for the rows."""
        slot = self._owned(buffer)
        if self._network.rows_vary:
            rows = buffer.rows[: len(letterboxes)]
            return lambda: self._detections(
                (detect(rows_of_image, options, self._contract) for rows_of_image in rows),
                letterboxes,
            )
        with self._memory_for(buffer.shape):
            selection = self._selection(buffer, len(letterboxes), options)
            # Other selections from this batch may have rows to read.
            download = slot.pinned(f"result {len(slot.unread)}", selection.result_size)
        with slot.marked():
            selection.enqueue(buffer.output, download.address)
            self._ended(Stage.SELECTION)
        images: list[Any] = []

        def finish() -> None:
            """Wait for the rows and copy them; the last one to do so frees the slot."""
            slot.wait()
            images.extend(selection.read(download.array))
            slot.unread = [reader for reader in slot.unread if reader is not finish]
            self._ended(Stage.DOWNLOAD)

        def wait() -> list[Detections]:
            if not images:
                finish()
            selected = (selection.choose(image) for image in images)
            return self._detections(selected, letterboxes)

        slot.unread.append(finish)
        return wait

    def _detections(
        self, selections: Iterable[SelectedBoxes], letterboxes: Sequence[Letterbox]
    ) -> list[Detections]:
        """The detections of each image, from what was selected of it."""
        detections = []
        for selection, letterbox in zip(selections, letterboxes, strict=True):
            detections.append(to_detections(selection, letterbox, self._contract))
        self._ended(Stage.SELECTION)  # that is a part of it
        return detections

    def _step(self, count: int) -> int:
        """Images in a run of the network, where there are `count` in a batch.

        One that takes any number gets few different ones: each new one costs the planning of all
        its convolutions, or a new engine.
        """
        if self._network.batch:
            return self._network.batch
        if count <= 1:
            return 1
        for size in reversed(BATCHES):
            if size >= count:
                return size
        return BATCHES[0]

    def observe(self, observer: Observer | None) -> None:
        self._observer = observer

    def _ended(self, stage: Stage) -> None:
        if self._observer is not None:
            self._gpu.synchronize()
            self._observer(stage)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        with contextlib.ExitStack() as stack:  # whatever fails, the rest is released
            stack.callback(self._gpu.close)
            stack.callback(self._images.close)
            stack.callback(self._network.close)
            for selection in self._selections.values():
                stack.callback(selection.close)
            stack.callback(self._ring.close)
            stack.callback(self._gpu.synchronize)

    def _owned(self, buffer: Batch) -> Slot:
        """The batch's slot, unless it has been handed out again."""
        if self._closed:
            raise closed_error()
        if buffer.generation != buffer.slot.generation:
            raise InferenceError(
                f"this batch's memory was given to a later one; at most {SLOTS} are in flight",
                "select from a batch before preparing three more",
            )
        return buffer.slot

    def _selection(
        self, buffer: Batch, images: int, options: SelectionOptions
    ) -> SelectionKernels | HostSelection:
        """Kernels and workspace for heads of this shape, cached; the host needs neither."""
        _, first_length, second_length = buffer.output_shape
        if self._contract.layout is Layout.ROWS or options.suppresses_every_class:
            return HostSelection(
                self._gpu,
                (images, first_length, second_length),
                self._network.output_dtype,
                self._contract,
                options,
            )

        head = HeadShape(
            batch=images,
            rows=4 + self._contract.class_count,
            anchors=first_length if self._contract.anchors_first else second_length,
            anchors_first=self._contract.anchors_first,
            cxcywh=self._contract.box_format is BoxFormat.CXCYWH,
            logits=self._contract.score_form is ScoreForm.LOGITS,
            dtype=self._network.output_dtype.name,
        )

        selection = self._selections.pop((head, options), None)
        if selection is None:
            selection = SelectionKernels(self._gpu, head, options)
        self._selections[head, options] = selection  # the most recently used comes last
        if len(self._selections) > MAX_SELECTIONS:
            oldest = next(iter(self._selections))
            self._selections.pop(oldest).close()
        return selection

    @contextlib.contextmanager
    def _memory_for(self, shape: tuple[int, int, int, int]) -> Iterator[None]:
        try:
            yield
        except MemoryError as error:
            fixed = self._network.batch is not None
            raise out_of_memory(shape, str(error), fixed=fixed) from error


def largest_batch(multiprocessors: int, room: int, canvas: Size) -> int:
    """The largest of `BATCHES` that suits the GPU, or the smallest.

    More images at a time keep more multiprocessors busy, as far as they fit into memory.
    """
    fitting = room // (BYTES_A_PIXEL * math.prod(canvas))
    limit = min(multiprocessors // MULTIPROCESSORS, fitting)
    for batch in BATCHES:
        if batch <= limit:
            return batch
    return BATCHES[-1]
