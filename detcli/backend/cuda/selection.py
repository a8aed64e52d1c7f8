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
    SelectedBoxes,
    SelectionOptions,
    as_selection,
    detect,
    on_logits,
    warn_about_nan,
)
from detcli.core import frozen
from detcli.model.contract import Contract, MultiLabel

if TYPE_CHECKING:
    from detcli.backend.cuda.driver import Argument, DeviceMemory, Gpu, Graph

ANCHORS_IN_A_BLOCK = 32
ALIGNMENT = 256  # bytes
WORD = 4  # bytes of a number
COLUMNS = 6  # of a row: x1, y1, x2, y2, score, class id
MAX_GRAPHS = 16  # pairs of addresses; each slot has one


@frozen
class HeadShape:
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
    """

    def __init__(self, gpu: "Gpu", head: HeadShape, options: SelectionOptions) -> None:
        self._gpu = gpu
        self._head = head
        self._options = on_logits(options) if head.logits else options
        class_ids = None if options.class_ids is None else sorted(options.class_ids)
        self._class_count = head.rows - 4 if class_ids is None else len(class_ids)
        self._score_count = head.anchors * self._class_count
        if options.nms_iou is None and not options.within_anchors:
            self.max_det = min(options.max_det, self._score_count)
        else:
            self.max_det = min(options.max_det, head.anchors)
        self.result_size = WORD * head.batch * (2 + COLUMNS * self.max_det)
        self._ranked = head.anchors  # anchors that are ranked in each image
        if options.nms_iou is None:
            self._ranked = self.max_det
        self._spill = spill_capacity(self._ranked)
        self._graphs: dict[tuple[int, int], Graph] = {}
        self._counts = struct.Struct(f"{2 * head.batch}I")

        sizes = self._workspace_sizes()
        workspace_size = 0
        self._offset: dict[str, int] = {}
        for part, size in sizes.items():
            self._offset[part] = workspace_size
            workspace_size += -(-size // ALIGNMENT) * ALIGNMENT
        self._memory = gpu.allocate(workspace_size)
        for counter in ("survivor_count", "nan_count"):
            gpu.clear(self._address(counter), sizes[counter])

        self._class_ids: DeviceMemory | None = None
        if class_ids is not None:
            self._class_ids = upload(gpu, np.array(class_ids, np.uint32))
        self._thresholds: DeviceMemory | None = None
        if self._options.conf_thresholds is not None:
            thresholds = np.array(self._options.conf_thresholds, np.float32)
            if class_ids is not None:
                thresholds = thresholds[class_ids]
            self._thresholds = upload(gpu, thresholds)

    def _workspace_sizes(self) -> dict[str, int]:
        """The bytes of each part of the workspace."""
        images = WORD * self._head.batch
        anchors = images * self._head.anchors
        is_one_to_one = self._options.nms_iou is None
        return {
            "best_key": anchors,
            "second_key": anchors,
            "best_class": anchors,
            "survivors": 2 * anchors,
            "ranked": images * self._ranked,
            "wide": images * self.max_det if is_one_to_one else 0,
            "row_class": 0 if is_one_to_one else images * self.max_det,
            "ranked_count": images,
            "survivor_count": images,
            "nan_count": images,
            "spill": 2 * images * self._spill,
            "result": self.result_size,
        }

    def enqueue(self, heads: int, download: int) -> None:
        """Enqueue the kernels, and a copy of what they leave on the device, as one graph."""
        graph = self._graphs.get((heads, download))
        if graph is None:
            if len(self._graphs) == MAX_GRAPHS:
                self._graphs.clear()
            graph = self._graphs[heads, download] = self._gpu.graph()
            if not self._head.anchors:  # a grid without blocks would be an error
                graph.clear(self._address("result"), self.result_size)
                graph.copy(download, self._address("result"), self.result_size)
            elif self._options.nms_iou is None:
                self._launch(graph, heads, download)
            else:  # suppression reads the rows that it has written, so they are on the device
                self._launch(graph, heads, self._address("result"))
                graph.copy(download, self._address("result"), self.result_size)
        graph.enqueue()

    def _launch(self, graph: "Graph", heads: int, result: int) -> None:
        """Append the kernels: step 1 of the specification, then steps 2 and 3 or suppression.

        `result` is where they write: the kernels of steps 2 and 3 only write it, and so they write
        over the bus to the host's page-locked memory, which saves a copy.
        """
        self._launch_class_max(graph, heads)
        if self._options.nms_iou is None:
            self._launch_select(graph, heads, result)
        else:
            self._launch_suppression(graph, heads, result, self._options.nms_iou)

    def _launch_class_max(self, graph: "Graph", heads: int) -> None:
        """Append step 1: the best scores of each anchor, and the anchors to look at."""
        head = self._head
        arguments = self._head_arguments(heads) + self._threshold_arguments()
        arguments += self._best_of_anchors()
        arguments += [
            self._address("nan_count"),
            np.float32(self._options.conf),
            self._address("survivors"),
            self._address("survivor_count"),
        ]
        blocks = -(-head.anchors // ANCHORS_IN_A_BLOCK)
        kernel = f"class_max_{self._variant}"
        graph.launch(kernel, (blocks, head.batch, 1), 256, *arguments)

    def _launch_select(self, graph: "Graph", heads: int, result: int) -> None:
        """Append steps 2 and 3."""
        options = self._options
        arguments = self._head_arguments(heads) + self._threshold_arguments()
        arguments += [
            np.uint32(self._head.cxcywh),
            np.uint32(self.max_det),
            np.uint32(options.multi_label is MultiLabel.NEVER),
            np.float32(options.conf),
        ]
        arguments += self._best_of_anchors()
        arguments += [
            self._address("survivors"),
            self._address("ranked"),
            self._address("wide"),
            self._address("spill"),
            np.uint32(self._spill),
            self._address("survivor_count"),
        ]
        arguments += self._result_arguments(result)
        graph.launch(f"select_{self._variant}", (self._head.batch, 1, 1), 1024, *arguments)

    def _launch_suppression(self, graph: "Graph", heads: int, result: int, iou: float) -> None:
        """Append the ranking of anchors and non-maximum suppression."""
        grid = (self._head.batch, 1, 1)
        graph.launch(
            "rank_anchors",
            grid,
            1024,
            np.uint32(self._head.anchors),
            self._address("survivors"),
            self._address("survivor_count"),
            self._address("ranked"),
            self._address("ranked_count"),
            self._address("spill"),
            np.uint32(self._spill),
        )
        arguments = self._head_arguments(heads)
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
        arguments += self._result_arguments(result)
        graph.launch(f"nms_{self._head.dtype}", grid, 1024, *arguments)

    @property
    def _variant(self) -> str:
        """The end of the names of kernels that look at scores."""
        if self._thresholds is not None:
            return f"by_class_{self._head.dtype}"
        return self._head.dtype

    def _head_arguments(self, heads: int) -> "list[Argument]":
        """What kernels take of the heads, and of the classes to look at."""
        return [
            heads,
            np.uint32(self._head.rows),
            np.uint32(self._head.anchors),
            np.uint32(self._head.anchors_first),
            self._class_ids.address if self._class_ids else 0,
            np.uint32(self._class_count),
        ]

    def _threshold_arguments(self) -> "list[Argument]":
        """What kernels take where classes have confidences of their own."""
        if self._thresholds is None:
            return []
        return [self._thresholds.address]

    def _best_of_anchors(self) -> "list[Argument]":
        """Where `class_max` writes the best of each anchor."""
        return [
            self._address("best_key"),
            self._address("second_key"),
            self._address("best_class"),
        ]

    def _result_arguments(self, result: int) -> "list[Argument]":
        """Where counts of NaN are, and where counts and rows of detections go."""
        rows = result + 2 * WORD * self._head.batch
        return [self._address("nan_count"), result, rows]

    def read(self, result: npt.NDArray[np.uint8]) -> list[Rows]:
        """Copy the rows of each image out of a downloaded result."""
        counts = self._counts.unpack_from(result.data)
        images = []
        for image in range(self._head.batch):
            row_count, nan_count = counts[2 * image : 2 * image + 2]
            start = self._counts.size + WORD * COLUMNS * image * self.max_det
            rows = np.ndarray((row_count, COLUMNS), np.float32, result, start)
            images.append((rows.copy(), nan_count))
        return images

    def choose(self, rows: Rows) -> SelectedBoxes:
        """What was selected from one image, with a warning about NaN."""
        values, nan_count = rows
        warn_about_nan(nan_count, self._score_count)
        return as_selection(values, logits=self._head.logits)

    def close(self) -> None:
        self._memory.close()
        for uploaded in (self._class_ids, self._thresholds):
            if uploaded is not None:
                uploaded.close()

    def _address(self, part: str) -> int:
        return self._memory.address + self._offset[part]


class HostSelection:
    """Selection on the host, used as `SelectionKernels`, of what they do not select from.

    That is the rows of a graph that selects for itself, which are few; and heads where an anchor
    may be several candidates for suppression.
    """

    def __init__(
        self,
        gpu: "Gpu",
        shape: tuple[int, int, int],
        dtype: np.dtype[Any],
        contract: Contract,
        options: SelectionOptions,
    ) -> None:
        self._gpu = gpu
        self._shape = shape
        self._dtype = dtype
        self._contract = contract
        self._options = options
        self.result_size = math.prod(shape) * dtype.itemsize

    def enqueue(self, output: int, download: int) -> None:
        """Copy the network's output to page-locked memory."""
        self._gpu.copy(download, output, self.result_size)

    def read(self, result: npt.NDArray[np.uint8]) -> list[HeadArray]:
        """Copy the rows or head of each image out of a downloaded result."""
        outputs = result[: self.result_size].view(self._dtype).reshape(self._shape)
        return list(outputs.copy())

    def choose(self, output: HeadArray) -> SelectedBoxes:
        """Select from one image's rows or head, see `postprocess.detect`."""
        return detect(output, self._options, self._contract)
