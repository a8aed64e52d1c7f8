"""Selection on the GPU: reads the head in device memory, writes rows and counts.

`backend.postprocess` is the specification; the rows equal its rows bit for bit.

    class_max           best class, best and second best score of each anchor; those to look at
    select              one block per image: the best anchors, then the best of their scores
    rank_anchors, nms   instead of `select` if there is an IoU limit

To the kernels, logits are scores like any others: the host turns the confidence into a logit before
they run, and the logits that they keep into scores afterwards. The rows of a graph that selects for
itself need no kernel, see `HostSelection`.
"""

import math
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from detcli.backend.cuda.topk import spill_capacity, upload
from detcli.backend.postprocess import (
    HeadArray,
    SelectionOptions,
    as_selection,
    detect,
    on_logits,
    warn_about_nan,
)
from detcli.backend.selected_boxes import SelectedBoxes
from detcli.core import frozen
from detcli.model.contract import Contract, MultiLabel

if TYPE_CHECKING:
    from detcli.backend.cuda.driver import Argument, DeviceMemory, Gpu, Graph

ANCHORS_PER_BLOCK = 32  # anchors that a block of threads reads in class_max.cu
CLASS_MAX_THREADS = 256  # threads in such a block
THREADS_PER_IMAGE = 1024  # threads in a block of the other kernels, CUDA's maximum
ALIGNMENT = 256  # bytes, of each array in the workspace
NUMBER_BYTES = 4  # of each number in the workspace and in the result
COLUMNS = 6  # of a row: x1, y1, x2, y2, score, class id
BOX_ROWS = 4  # of the network's output; those of the scores follow
COUNTS_OF_IMAGE = 2  # numbers in the result before the rows: how many rows, how many NaN scores
# CUDA graphs that are kept, one for each pair of addresses to read from and to write to. Each batch
# in flight has such a pair.
MAX_GRAPHS = 16


@frozen
class HeadShape:
    """The shape and the form of the heads of a batch of images, which kernels depend on.

    A head is the network's output for one image: for each of N anchors, the places that the network
    looks at, a box and the scores of C classes.
    """

    batch: int  # B
    rows: int  # 4 + C
    anchors: int  # N
    anchors_first: bool  # (B, N, 4 + C) instead of (B, 4 + C, N)
    cxcywh: bool  # the box rows are centre and size instead of two corners
    dtype: str  # "float32" or "float16"
    logits: bool = False  # the scores are logits


Rows = tuple[npt.NDArray[np.float32], int]
"""What was selected from one image: `(M, 6)` x1, y1, x2, y2 in canvas pixels, score, class id;
and how many scores are NaN."""


class SelectionKernels:
    """The kernels and their workspace for heads of one shape and one set of options.

    Runs share the workspace and their result in it, since the stream runs them one after another;
    each result is copied to memory of the caller.

    Attributes:
        max_det: The maximum number of detections in an image, which the head may limit further than
            the options do.
        result_size: The bytes of a result: for each image the counts of its rows and of NaN, then
            for each image room for `max_det` rows.
    """

    def __init__(self, gpu: "Gpu", head: HeadShape, options: SelectionOptions) -> None:
        """Allocate the workspace, and upload the classes and confidences that kernels read.

        Args:
            gpu: The GPU to select on.
            head: The shape of the network's output to select from: for each of N anchors, the four
                coordinates of a box and the scores of C classes.
            options: Which detections to keep.
        """
        self._gpu = gpu
        self._head = head
        self._options = options
        if head.logits:
            self._options = on_logits(options)

        self._class_count = head.rows - BOX_ROWS
        if options.class_ids is not None:
            self._class_count = len(options.class_ids)
        self._set_capacities()  # the sizes of the workspace depend on them

        self._counts = struct.Struct(f"{COUNTS_OF_IMAGE * head.batch}I")
        self._offsets: dict[str, int] = {}  # of each array in the workspace
        self._memory = self._allocate_workspace()
        self._class_ids: DeviceMemory | None = None  # None if all classes are selected
        self._thresholds: DeviceMemory | None = None  # None if all classes have the same confidence
        self._upload_classes()
        # CUDA graphs of all kernels, by two addresses: of the heads, and of the result on the host.
        self._graphs: dict[tuple[int, int], Graph] = {}

    def _set_capacities(self) -> None:
        """Set how many scores, anchors and detections of an image there is room for.

        - `max_det`: detections. With suppression, which keeps at most one per anchor, or if the
          options limit them (`within_anchors`), there are at most as many as anchors. Otherwise
          each class of an anchor may become one.
        - `result_size`: bytes of the result for all images.
        - `_score_count`: scores.
        - `_ranked_anchors`: anchors that are ranked by their best scores. With suppression these
          are all. Without it, the best `max_det` suffice.
        - `_spill_capacity`: sort keys of ranked anchors that do not fit into the fast memory of a
          block of threads, and are in device memory.
        """
        options = self._options
        head = self._head
        self._score_count = head.anchors * self._class_count
        has_nms = options.nms_iou is not None
        if has_nms or options.within_anchors:
            self.max_det = min(options.max_det, head.anchors)
        else:
            self.max_det = min(options.max_det, self._score_count)
        numbers_per_image = COUNTS_OF_IMAGE + COLUMNS * self.max_det
        self.result_size = NUMBER_BYTES * head.batch * numbers_per_image

        if has_nms:
            self._ranked_anchors = head.anchors
        else:
            self._ranked_anchors = self.max_det
        self._spill_capacity = spill_capacity(self._ranked_anchors)

    def _upload_classes(self) -> None:
        """Upload the ids of the classes to select, and the confidence of each, if there are any."""
        class_ids = None
        if self._options.class_ids is not None:
            class_ids = sorted(self._options.class_ids)
            self._class_ids = upload(self._gpu, np.array(class_ids, np.uint32))
        if self._options.conf_thresholds is not None:
            thresholds = np.array(self._options.conf_thresholds, np.float32)
            if class_ids is not None:
                thresholds = thresholds[class_ids]
            self._thresholds = upload(self._gpu, thresholds)

    def _allocate_workspace(self) -> "DeviceMemory":
        """Allocate one block of device memory for all arrays of the workspace.

        The offset of each array is recorded. The counters that kernels add to begin at 0.
        """
        sizes = self._workspace_sizes()
        workspace_size = 0
        for array_name, size in sizes.items():
            self._offsets[array_name] = workspace_size
            workspace_size += math.ceil(size / ALIGNMENT) * ALIGNMENT
        memory = self._gpu.allocate(workspace_size)
        for counter in ("survivor_count", "nan_count"):
            self._gpu.clear(memory.address + self._offsets[counter], sizes[counter])
        return memory

    def _workspace_sizes(self) -> dict[str, int]:
        """Return the size in bytes of each array in the workspace.

        Their names are those of the arrays in the kernels. A survivor is an anchor with a score
        above the confidence. The best survivors are ranked: listed in the order of their best
        scores.
        """
        per_image = NUMBER_BYTES * self._head.batch
        per_anchor = per_image * self._head.anchors
        per_ranked_anchor = per_image * self._ranked_anchors
        per_detection = per_image * self.max_det
        has_nms = self._options.nms_iou is not None
        return {
            # for each anchor, its two best scores and the class of the best
            "best_key": per_anchor,
            "second_key": per_anchor,
            "best_class": per_anchor,
            # the survivors, two numbers each; then the best of them in order
            "survivors": 2 * per_anchor,
            "survivor_count": per_image,
            "ranked": per_ranked_anchor,
            "ranked_count": per_image,
            "spill": 2 * per_image * self._spill_capacity,  # what does not fit into shared memory
            # without suppression only: the ranked anchors for which another class may be selected,
            # too
            "wide": 0 if has_nms else per_detection,
            # with suppression only: the class of each detection
            "row_class": per_detection if has_nms else 0,
            "nan_count": per_image,
            "result": self.result_size,
        }

    def enqueue(self, heads_address: int, download_address: int) -> None:
        """Enqueue the selection from the heads of a batch, as one CUDA graph.

        The graph is made when the two addresses are first used, and kept for the next time.

        Args:
            heads_address: The device address of the heads.
            download_address: The address of page-locked memory, of `result_size` bytes, that the
                result is written to.
        """
        graph = self._graphs.get((heads_address, download_address))
        if graph is None:
            if len(self._graphs) == MAX_GRAPHS:
                self._graphs.clear()
            graph = self._gpu.graph()
            self._graphs[heads_address, download_address] = graph
            self._fill_graph(graph, heads_address, download_address)
        graph.enqueue()

    def _fill_graph(self, graph: "Graph", heads_address: int, download_address: int) -> None:
        """Append to a new graph all that selects from the heads and brings the result to the host.

        Args:
            graph: The empty graph.
            heads_address: The device address of the heads.
            download_address: The address of page-locked memory for the result.
        """
        result_on_device = self._address("result")
        if self._head.anchors == 0:
            # A kernel without blocks would be an error. A result of zeros has no rows.
            graph.clear(result_on_device, self.result_size)
            graph.copy(download_address, result_on_device, self.result_size)
        elif self._options.nms_iou is None:
            # The kernels only write their result. So they write it to the host's memory, over the
            # bus, which saves a copy.
            self._launch(graph, heads_address, download_address)
        else:
            # Suppression reads the rows that it has written, so they are on the device.
            self._launch(graph, heads_address, result_on_device)
            graph.copy(download_address, result_on_device, self.result_size)

    def _launch(self, graph: "Graph", heads_address: int, result_address: int) -> None:
        """Append the kernels that turn heads into a result.

        The first finds the best scores of each anchor. The others select detections from them, with
        or without suppression.

        Args:
            graph: The graph to append to.
            heads_address: The device address of the heads.
            result_address: The address that the counts and rows are written to.
        """
        self._launch_class_max(graph, heads_address)
        if self._options.nms_iou is None:
            self._launch_select(graph, heads_address, result_address)
        else:
            self._launch_suppression(graph, heads_address, result_address, self._options.nms_iou)

    def _launch_class_max(self, graph: "Graph", heads_address: int) -> None:
        """Append the kernel that finds the best scores of each anchor.

        It also lists the survivors, the anchors with a score above the confidence, and counts NaN.
        This is step 1 of the specification in `backend.postprocess`.

        Args:
            graph: The graph to append to.
            heads_address: The device address of the heads.
        """
        head = self._head
        arguments = self._head_arguments(heads_address) + self._threshold_arguments()
        arguments += self._anchor_arguments()
        arguments += [
            self._address("nan_count"),
            np.float32(self._options.conf),
            self._address("survivors"),
            self._address("survivor_count"),
        ]
        blocks_per_image = math.ceil(head.anchors / ANCHORS_PER_BLOCK)
        kernel = f"class_max_{self._kernel_variant}"
        grid = (blocks_per_image, head.batch, 1)
        graph.launch(kernel, grid, CLASS_MAX_THREADS, *arguments)

    def _launch_select(self, graph: "Graph", heads_address: int, result_address: int) -> None:
        """Append the kernel that selects the best scores of the best anchors, without suppression.

        These are steps 2 and 3 of the specification in `backend.postprocess`. The order of the
        arguments is that of the parameters in select.cu; `_workspace_sizes` says what the arrays
        hold.

        Args:
            graph: The graph to append to.
            heads_address: The device address of the heads.
            result_address: The address that the counts and rows are written to.
        """
        has_one_label = self._options.multi_label is MultiLabel.NEVER  # one class for each anchor
        arguments = self._head_arguments(heads_address) + self._threshold_arguments()
        arguments += [
            np.uint32(self._head.cxcywh),
            np.uint32(self.max_det),
            np.uint32(has_one_label),
            np.float32(self._options.conf),
        ]
        arguments += self._anchor_arguments()
        arguments += [
            self._address("survivors"),
            self._address("ranked"),
            self._address("wide"),
            self._address("spill"),
            np.uint32(self._spill_capacity),
            self._address("survivor_count"),
        ]
        arguments += self._result_arguments(result_address)
        kernel = f"select_{self._kernel_variant}"
        grid = (self._head.batch, 1, 1)  # a block of threads for each image
        graph.launch(kernel, grid, THREADS_PER_IMAGE, *arguments)

    def _launch_suppression(
        self, graph: "Graph", heads_address: int, result_address: int, iou: float
    ) -> None:
        """Append the kernels that rank the anchors by score and suppress overlapping boxes.

        The order of the arguments is that of the parameters in nms.cu.

        Args:
            graph: The graph to append to.
            heads_address: The device address of the heads.
            result_address: The address that the counts and rows are written to.
            iou: The intersection over union above which the lower of two boxes is dropped.
        """
        self._launch_ranking(graph)
        arguments = self._head_arguments(heads_address)
        arguments += [
            np.uint32(self._head.cxcywh),
            np.uint32(self.max_det),
            np.float32(iou),
            np.uint32(self._options.class_agnostic),
            self._address("ranked"),
            self._address("ranked_count"),
            self._address("best_key"),
            self._address("best_class"),
            self._address("row_class"),
        ]
        arguments += self._result_arguments(result_address)
        grid = (self._head.batch, 1, 1)  # a block of threads for each image
        graph.launch(f"nms_{self._head.dtype}", grid, THREADS_PER_IMAGE, *arguments)

    def _launch_ranking(self, graph: "Graph") -> None:
        """Append the kernel that sorts the survivors of each image by score, best first.

        The order of the arguments is that of the parameters of rank_anchors in nms.cu.
        """
        grid = (self._head.batch, 1, 1)  # a block of threads for each image
        graph.launch(
            "rank_anchors",
            grid,
            THREADS_PER_IMAGE,
            np.uint32(self._head.anchors),
            self._address("survivors"),
            self._address("survivor_count"),
            self._address("ranked"),
            self._address("ranked_count"),
            self._address("spill"),
            np.uint32(self._spill_capacity),
        )

    @property
    def _kernel_variant(self) -> str:
        """The end of the names of kernels that compare scores, such as "by_class_float16"."""
        if self._thresholds is not None:
            return f"by_class_{self._head.dtype}"
        return self._head.dtype

    def _head_arguments(self, heads_address: int) -> "list[Argument]":
        """Return the arguments that describe the heads, and the classes to select from.

        Args:
            heads_address: The device address of the heads.
        """
        class_ids_address = 0  # a null pointer stands for all classes
        if self._class_ids is not None:
            class_ids_address = self._class_ids.address
        return [
            heads_address,
            np.uint32(self._head.rows),
            np.uint32(self._head.anchors),
            np.uint32(self._head.anchors_first),
            class_ids_address,
            np.uint32(self._class_count),
        ]

    def _threshold_arguments(self) -> "list[Argument]":
        """Return the argument that only kernels for confidences of each class take."""
        if self._thresholds is None:
            return []
        return [self._thresholds.address]

    def _anchor_arguments(self) -> "list[Argument]":
        """Return where the two best scores and the best class of each anchor are."""
        return [
            self._address("best_key"),
            self._address("second_key"),
            self._address("best_class"),
        ]

    def _result_arguments(self, result_address: int) -> "list[Argument]":
        """Return where NaN have been counted, and where the result's counts and rows go.

        Args:
            result_address: The address of the result, which begins with two counts for each image.
        """
        rows = result_address + COUNTS_OF_IMAGE * NUMBER_BYTES * self._head.batch
        return [self._address("nan_count"), result_address, rows]

    def read(self, result: npt.NDArray[np.uint8]) -> list[Rows]:
        """Copy the rows of each image out of a downloaded result.

        Args:
            result: The bytes of the result: for each image the count of its rows and that of NaN
                among its scores, then for each image room for `max_det` rows.

        Returns:
            The rows of each image, `(M, 6)`, and its count of NaN.
        """
        counts = self._counts.unpack_from(result.data)
        row_counts = counts[0::2]
        nan_counts = counts[1::2]
        bytes_per_image = NUMBER_BYTES * COLUMNS * self.max_det
        start = self._counts.size  # The rows of the first image follow all counts.
        rows_by_image = []
        for row_count, nan_count in zip(row_counts, nan_counts, strict=True):
            rows = np.ndarray((row_count, COLUMNS), np.float32, result, start)
            rows_by_image.append((rows.copy(), nan_count))
            start += bytes_per_image
        return rows_by_image

    def choose(self, rows: Rows) -> SelectedBoxes:
        """Turn the rows of one image into boxes, scores and classes, with a warning about NaN."""
        values, nan_count = rows
        warn_about_nan(nan_count, self._score_count)
        return as_selection(values, logits=self._head.logits)

    def close(self) -> None:
        """Free the workspace and what was uploaded."""
        self._memory.close()
        for uploaded in (self._class_ids, self._thresholds):
            if uploaded is not None:
                uploaded.close()

    def _address(self, array_name: str) -> int:
        """Return the device address of an array in the workspace."""
        return self._memory.address + self._offsets[array_name]


class HostSelection:
    """Selects on the host what no kernel can select, with the methods of `SelectionKernels`.

    No kernel handles the few rows of a graph that selects its detections itself, suppression of
    several classes per anchor, or suppression that blends overlapping boxes.
    """

    def __init__(
        self,
        gpu: "Gpu",
        shape: tuple[int, int, int],
        dtype: np.dtype[Any],
        contract: Contract,
        options: SelectionOptions,
    ) -> None:
        """Remember what to copy from the GPU and how to select from it.

        Args:
            gpu: The GPU that holds the network's output.
            shape: The shape of the output: `(B, R, 6)` of rows, or of heads `(B, 4 + C, N)` or
                `(B, N, 4 + C)`.
            dtype: The type of its numbers.
            contract: What the model says about its output.
            options: Which detections to keep.
        """
        self._gpu = gpu
        self._shape = shape
        self._dtype = dtype
        self._contract = contract
        self._options = options
        self.result_size = math.prod(shape) * dtype.itemsize

    def enqueue(self, output: int, download: int) -> None:
        """Enqueue a copy of the network's output from its address to page-locked memory."""
        self._gpu.copy(download, output, self.result_size)

    def read(self, result: npt.NDArray[np.uint8]) -> list[HeadArray]:
        """Copy the rows or head of each image out of a downloaded result."""
        outputs = result[: self.result_size].view(self._dtype).reshape(self._shape)
        return list(outputs.copy())

    def choose(self, output: HeadArray) -> SelectedBoxes:
        """Select from one image's rows or head, see `postprocess.detect`."""
        return detect(output, self._options, self._contract)
