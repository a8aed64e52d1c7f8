"""Selection on the GPU: reads the head in device memory, writes rows and counts.

`backend.postprocess` is the specification; the rows equal its rows bit for bit.

    class_max           best class, best and second best score of each anchor; those to look at
    select              one block per picture: the best anchors, then the best of their scores
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
    from detcli.backend.cuda.driver import Gpu, Graph

ANCHORS_IN_A_BLOCK = 32
ALIGNMENT = 256  # bytes
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
"""What was selected from one picture: `(M, 6)` x1, y1, x2, y2 in canvas pixels, score, class id;
and how many scores are NaN."""


class SelectionKernels:
    """The kernels and their workspace for heads of one shape and one set of options.

    Runs share the workspace and their result in it, since the stream runs them one after another;
    each result is copied to memory of the caller.
    """

    def __init__(self, gpu: "Gpu", head: HeadShape, options: SelectionOptions) -> None:
        self._gpu, self._head = gpu, head
        self._options = on_logits(options) if head.logits else options
        chosen = None if options.class_ids is None else sorted(options.class_ids)
        self._class_count = head.rows - 4 if chosen is None else len(chosen)
        self._score_count = head.anchors * self._class_count
        one_to_one = options.nms_iou is None
        wide = one_to_one and not options.within_anchors
        self.max_det = min(options.max_det, self._score_count if wide else head.anchors)
        self.result_size = 4 * head.batch * (2 + 6 * self.max_det)
        listed = self.max_det if one_to_one else head.anchors
        self._spill = spill_capacity(listed)
        pictures, anchors = 4 * head.batch, 4 * head.batch * head.anchors
        sizes = {  # bytes of each part of the workspace
            "best_key": anchors,
            "second_key": anchors,
            "best_class": anchors,
            "survivors": 2 * anchors,
            "ranked": pictures * listed,
            "wide": pictures * self.max_det if one_to_one else 0,
            "row_class": 0 if one_to_one else pictures * self.max_det,
            "ranked_count": pictures,
            "survivor_count": pictures,
            "nan_count": pictures,
            "spill": 2 * pictures * self._spill,
            "result": self.result_size,
        }
        end, self._offset = 0, dict[str, int]()
        for part, size in sizes.items():
            self._offset[part] = end
            end += -(-size // ALIGNMENT) * ALIGNMENT
        self._graphs: dict[tuple[int, int], Graph] = {}
        self._counts = struct.Struct(f"{2 * head.batch}I")
        self._memory = gpu.allocate(end)
        for counter in ("survivor_count", "nan_count"):
            gpu.clear(self._address(counter), sizes[counter])
        self._class_ids = None if chosen is None else upload(gpu, np.array(chosen, np.uint32))
        self._thresholds = None
        if self._options.conf_thresholds is not None:
            thresholds = np.array(self._options.conf_thresholds, np.float32)
            if chosen is not None:
                thresholds = thresholds[chosen]
            self._thresholds = upload(gpu, thresholds)

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
            else:  # suppression reads the rows that it has kept, so they are on the device
                self._launch(graph, heads, self._address("result"))
                graph.copy(download, self._address("result"), self.result_size)
        graph.enqueue()

    def _launch(self, graph: "Graph", heads: int, result: int) -> None:
        """Append the kernels: step 1 of the specification, then steps 2 and 3 or suppression.

        `result` is where they write: the kernels of steps 2 and 3 only write it, and so they write
        over the bus to the host's page-locked memory, which saves a copy.
        """
        head, options, unsigned, at = self._head, self._options, np.uint32, self._address
        shape = (
            *(heads, unsigned(head.rows), unsigned(head.anchors), unsigned(head.anchors_first)),
            *(self._class_ids.address if self._class_ids else 0, unsigned(self._class_count)),
        )
        best = (at("best_key"), at("second_key"), at("best_class"))
        blocks = -(-head.anchors // ANCHORS_IN_A_BLOCK)
        least, survivors = np.float32(options.conf), (at("survivors"), at("survivor_count"))
        variant, counted = head.dtype, tuple[Any, ...](shape)  # of the kernels; what they take
        if self._thresholds is not None:
            variant, counted = f"by_class_{head.dtype}", (*shape, self._thresholds.address)
        maxima = (*counted, *best, at("nan_count"), least, *survivors)
        graph.launch(f"class_max_{variant}", (blocks, head.batch, 1), 256, *maxima)
        grid = (head.batch, 1, 1)
        found = (at("nan_count"), result, result + 8 * head.batch)
        spill, max_det = (at("spill"), unsigned(self._spill)), unsigned(self.max_det)
        if options.nms_iou is None:
            best_class_only = unsigned(options.multi_label is MultiLabel.NEVER)
            rule = (*counted, unsigned(head.cxcywh), max_det, best_class_only, least)
            space = (survivors[0], at("ranked"), at("wide"), *spill, survivors[1])
            graph.launch(f"select_{variant}", grid, 1024, *rule, *best, *space, *found)
            return
        ranked = (at("ranked"), at("ranked_count"))
        candidates = (unsigned(head.anchors), *survivors, *ranked, *spill)
        graph.launch("rank_anchors", grid, 1024, *candidates)
        suppression = (max_det, np.float32(options.nms_iou), unsigned(options.class_agnostic))
        limits = (*shape, unsigned(head.cxcywh), *suppression)
        classes = (best[0], best[2], at("row_class"))
        graph.launch(f"nms_{head.dtype}", grid, 1024, *limits, *ranked, *classes, *found)

    def read(self, result: npt.NDArray[np.uint8]) -> list[Rows]:
        """Copy the rows of each picture out of a downloaded result."""
        counts, found = self._counts.unpack_from(result.data), []
        for picture in range(self._head.batch):
            count, nan_count = counts[2 * picture : 2 * picture + 2]
            start = self._counts.size + 24 * picture * self.max_det
            own = np.ndarray((count, 6), np.float32, result, start)
            found.append((own.copy(), nan_count))
        return found

    def choose(self, rows: Rows) -> SelectedBoxes:
        """What was selected from one picture, with a warning about NaN."""
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
        self._gpu, self._shape, self._dtype = gpu, shape, dtype
        self._contract, self._options = contract, options
        self.result_size = math.prod(shape) * dtype.itemsize

    def enqueue(self, output: int, download: int) -> None:
        """Copy the network's output to page-locked memory."""
        self._gpu.copy(download, output, self.result_size)

    def read(self, result: npt.NDArray[np.uint8]) -> list[HeadArray]:
        """Copy the rows or head of each picture out of a downloaded result."""
        return [*result[: self.result_size].view(self._dtype).reshape(self._shape).copy()]

    def choose(self, output: HeadArray) -> SelectedBoxes:
        """What is kept of one picture's rows or head, see `postprocess.detect`."""
        return detect(output, self._options, self._contract)
