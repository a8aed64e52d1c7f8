"""The CUDA backend: letterbox, network and selection on one stream.

Pictures are uploaded as bytes, while the network still runs on the batch before, and only their
rows come back. The three stages enqueue work and return; the host waits where the rows are read.
"""

import contextlib
import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from detcli.backend.cuda.letterbox import LetterboxBatch
from detcli.backend.cuda.memory import PictureMemory, Ring, Slot
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
from detcli.data.geometry import Image, Letterbox, Size
from detcli.model.contract import Contract, Layout, ScoreForm

if TYPE_CHECKING:
    from detcli.backend.cuda.driver import Gpu
    from detcli.backend.cuda.network import Network

SLOTS = 3
"""Batches in flight: the host reads the rows of one, the GPU works on the next, and the pictures of
the third are staged and uploaded."""

MULTIPROCESSORS = 4  # for each picture of a larger batch; fewer are busy with a smaller one
# Of a batch's input. YOLOv10-N takes 59 bytes on the CPU, and the largest of its family has five
# times as many channels; as much again is for workspaces, which was not measured.
BYTES_A_PIXEL = 640
MANY_RUNS = (
    10  # of a network for a batch: each slot's need graphs of their own, of which 32 are kept
)
MAX_SELECTIONS = 8  # workspaces to keep; a short last batch or another canvas needs its own


@frozen
class Batch:
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
        self._gpu, self._network, self._contract = gpu, network, contract
        self._ring = Ring(gpu, SLOTS)
        self._pictures = PictureMemory(gpu)
        self._selections: dict[tuple[HeadShape, SelectionOptions], SelectionKernels] = {}
        self._closed = self._told = False
        self._observer: Observer | None = None

    def best_batch(self, canvas: Size) -> int:
        """As many pictures as the graph takes; else `largest_batch`."""
        if self._network.batch is not None:
            return self._network.batch
        free, limit = self._gpu.free_memory(), self._memory_limit
        room = free if limit is None else min(free, limit)
        return largest_batch(self._gpu.multiprocessors, room, canvas)

    def allocate(self, size: Size) -> Image:
        return self._pictures.allocate(size)

    def prepare(self, images: Sequence[Image], letterboxes: Sequence[Letterbox]) -> Batch:
        """Upload pictures and letterbox them into the network's input.

        Pictures in the GPU's memory are not uploaded; what fills them has to be done. The network
        gets empty pictures at the end, up to a multiple of what it runs on at a time.
        """
        if self._closed:
            raise closed_error()
        slot = self._ring.take()
        dtype = self._network.input_dtype
        pictures = LetterboxBatch(images, letterboxes, dtype, self._contract.preprocessing)
        count, channels, height, width = pictures.shape
        self._pictures.follow(pictures.size)
        step = self._step(count)
        shape = (-(-count // step) * step, channels, height, width)
        used, size = (dtype.itemsize * math.prod(part) for part in (pictures.shape, shape))
        with self._memory_for(shape):
            tensor = slot.device("tensor", size)
            staging = slot.pinned("pictures", pictures.staged)
            uploaded = slot.device("pictures", pictures.size)
        self._ended(Stage.PREPROCESS)
        slot.pictures = tuple(images)
        with slot.marked():
            ended = partial(self._ended, Stage.UPLOAD)
            pictures.enqueue(self._gpu, staging, uploaded, tensor.address, ended)
            if size > used:
                self._gpu.clear(tensor.address + used, size - used)
            self._ended(Stage.PREPROCESS)
        return Batch(slot, slot.generation, shape, tensor.address)

    def infer(self, buffer: Batch) -> Batch:
        """Run the network body, as many pictures at a time as the graph takes."""
        slot = self._owned(buffer)
        count, *plane = buffer.shape
        step = (self._step(count), plane[0], plane[1], plane[2])
        runs = count // step[0]
        if self._network.batch is not None and runs > MANY_RUNS and not self._told:
            self._told = True
            warnings.warn(
                f"the model takes {step[0]} at a time, so a batch is {runs} runs; "
                f"`detcli convert MODEL --batch {count} -o NEW` makes it one",
                DetcliWarning,
                stacklevel=2,
            )
        step_in = math.prod(step) * self._network.input_dtype.itemsize
        self._gpu.make_current()  # another detector's may be
        if self._network.rows_vary:
            with slot.marked():
                inputs = [buffer.tensor + run * step_in for run in range(runs)]
                rows = [one for at in inputs for one in self._network.run_to_host(at, step)]
                self._ended(Stage.NETWORK)
            return replace(buffer, rows=tuple(rows))
        output = self._network.output_shape(step)
        step_out = math.prod(output) * self._network.output_dtype.itemsize
        with self._memory_for(buffer.shape):
            address = slot.device("output", runs * step_out).address
        with slot.marked():
            for run in range(runs):
                self._network.run(buffer.tensor + run * step_in, address + run * step_out, step)
            self._ended(Stage.NETWORK)
        return replace(buffer, output=address, output_shape=(count, *output[1:]))

    def select(
        self, buffer: Batch, letterboxes: Sequence[Letterbox], options: SelectionOptions
    ) -> Pending:
        """Select on the GPU; the returned call waits for the rows."""
        slot = self._owned(buffer)
        if self._network.rows_vary:
            choose = partial(detect, options=options, contract=self._contract)
            rows = buffer.rows[: len(letterboxes)]
            return lambda: self._detections(map(choose, rows), letterboxes)
        with self._memory_for(buffer.shape):
            selection = self._selection(buffer, len(letterboxes), options)
            # Other selections from this batch may have rows to read.
            download = slot.pinned(f"result {len(slot.unread)}", selection.result_size)
        with slot.marked():
            selection.enqueue(buffer.output, download.address)
            self._ended(Stage.SELECTION)
        pictures: list[Any] = []

        def finish() -> None:
            """Wait for the rows and copy them; the last one to do so frees the slot."""
            slot.wait()
            pictures.extend(selection.read(download.array))
            slot.unread = [other for other in slot.unread if other is not finish]
            self._ended(Stage.DOWNLOAD)

        def wait() -> list[Detections]:
            if not pictures:
                finish()
            return self._detections(map(selection.choose, pictures), letterboxes)

        slot.unread.append(finish)
        return wait

    def _detections(
        self, chosen: Iterable[SelectedBoxes], letterboxes: Sequence[Letterbox]
    ) -> list[Detections]:
        found = [
            to_detections(rows, letterbox, self._contract)
            for rows, letterbox in zip(chosen, letterboxes, strict=True)
        ]
        self._ended(Stage.SELECTION)  # that is a part of it
        return found

    def _step(self, count: int) -> int:
        """Pictures in a run of the network, where there are `count` in a batch.

        One that takes any number gets few different ones: each new one costs the planning of all
        its convolutions, or a new engine.
        """
        sizes = (1, *reversed(BATCHES))
        return self._network.batch or next((one for one in sizes if one >= count), sizes[-1])

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
            stack.callback(self._pictures.close)
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
        self, buffer: Batch, pictures: int, options: SelectionOptions
    ) -> SelectionKernels | HostSelection:
        """Kernels and workspace for heads of this shape, cached; the host needs neither."""
        _, *plane = buffer.output_shape
        if self._contract.layout is Layout.ROWS or options.suppresses_every_class:
            shape = (pictures, plane[0], plane[1])
            return HostSelection(
                self._gpu, shape, self._network.output_dtype, self._contract, options
            )
        head = HeadShape(
            batch=pictures,
            rows=4 + self._contract.class_count,
            anchors=plane[0 if self._contract.anchors_first else 1],
            anchors_first=self._contract.anchors_first,
            cxcywh=self._contract.box_format is BoxFormat.CXCYWH,
            logits=self._contract.score_form is ScoreForm.LOGITS,
            dtype=self._network.output_dtype.name,
        )
        kept = self._selections.pop((head, options), None)
        selection = kept or SelectionKernels(self._gpu, head, options)
        self._selections[head, options] = selection  # the most recently used comes last
        if len(self._selections) > MAX_SELECTIONS:
            self._selections.pop(next(iter(self._selections))).close()
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

    More pictures at a time keep more multiprocessors busy, as far as they fit into memory.
    """
    fitting = room // (BYTES_A_PIXEL * math.prod(canvas))
    wanted = min(multiprocessors // MULTIPROCESSORS, fitting)
    return next((batch for batch in BATCHES if batch <= wanted), BATCHES[-1])
