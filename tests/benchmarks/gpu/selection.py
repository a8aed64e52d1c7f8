"""From the network's head to rows, beside the YOLOv10 authors' post-processing in PyTorch."""

import math
from dataclasses import dataclass

import numpy as np

from benchmarks.gpu.devices import Watched, upload_all
from benchmarks.gpu.measure import Case, Way
from benchmarks.gpu.peers import DisagreementError, torch_on, v10_postprocess
from benchmarks.in_turns import detector_head
from detcli.backend import postprocess
from detcli.backend.cuda.selection import HeadShape, SelectionKernels
from detcli.backend.postprocess import SelectionOptions

KEEP = 300
INPUTS = 3


@dataclass(frozen=True)
class Head:
    """What is selected from."""

    batch: int = 1
    anchors: int = 8400
    dtype: str = "float32"
    confidence: float = 0.25
    kind: str = "like a detector's"
    anchors_first: bool = False
    classes: int = 80

    @property
    def shape(self):
        """`(B, 4 + C, N)`."""
        return self.batch, 4 + self.classes, self.anchors

    def __str__(self):
        batch, rows, anchors = self.shape
        shape = [batch, anchors, rows] if self.anchors_first else [batch, rows, anchors]
        return f"{shape} {self.dtype}, {self.kind}, conf {self.confidence}".replace(" ", "", 2)


ALL = (
    Head(),
    Head(confidence=0.0),
    Head(kind="noise"),
    Head(kind="noise", confidence=0.0),
    Head(dtype="float16"),
    Head(dtype="float16", kind="noise", confidence=0.0),
    Head(anchors_first=True),
    Head(anchors=33600),
    Head(anchors=33600, kind="noise", confidence=0.0),
    Head(batch=16),
    Head(batch=64),
    Head(batch=64, kind="noise", confidence=0.0),
    Head(batch=64, dtype="float16"),
)
QUICK = (Head(), Head(kind="noise", confidence=0.0), Head(dtype="float16"), Head(batch=64))
TINY = (
    Head(anchors=500, confidence=0.0),
    Head(batch=3, anchors=400, dtype="float16", kind="noise"),
    Head(batch=2, anchors=333, classes=3, anchors_first=True),
)


def make_heads(generator, shape, kind, dtype, canvas=640):
    """Heads `(B, 4 + C, N)` with boxes x1, y1, x2, y2 on a canvas."""
    batch, rows, anchors = shape
    if kind == "noise":
        heads = generator.random(shape, np.float32)
    else:
        heads = np.stack([detector_head(generator, rows - 4, anchors) for _ in range(batch)])
    corner = generator.random((batch, 2, anchors), np.float32) * np.float32(canvas * 0.8)
    side = generator.random((batch, 2, anchors), np.float32) * np.float32(canvas * 0.2)
    heads[:, :4] = np.concatenate([corner, corner + side], axis=1)
    return heads.astype(dtype)


def case_of(gpu, head, generator, scope) -> Case:
    """The selection from a head."""
    dtype = np.dtype(head.dtype)
    options = SelectionOptions(head.confidence, KEEP, None, None)
    heads = []  # as they lie in memory
    expected = []
    for _ in range(INPUTS):
        batch = make_heads(generator, head.shape, head.kind, dtype)
        expected.append(rows_of_batch(batch, options))
        heads.append(batch.transpose(0, 2, 1) if head.anchors_first else batch)

    def check(number, answer, ours):
        for rows, expected_rows in zip(answer, expected[number], strict=True):
            compare(rows, expected_rows, exactly=ours)

    return Case(
        str(head),
        INPUTS,
        {
            "detcli": lambda: ours(gpu, head, heads, options, scope),
            "PyTorch": lambda: in_torch(gpu, head, heads, captured=False),
            "PyTorch, CUDA graph": lambda: in_torch(gpu, head, heads, captured=True),
            "NumPy on the host": lambda: on_the_host(gpu, head, heads, options, scope),
        },
        check,
        bytes=math.prod(head.shape) * dtype.itemsize + head.batch * KEEP * 24,
        more={"batch": head.batch},
    )


def rows_of(selection):
    """x1, y1, x2, y2, score, class id as float32 `(M, 6)`."""
    return np.column_stack(list(selection)).astype(np.float32)


def rows_of_batch(heads, options, *, cxcywh=False):
    """The rows that NumPy selects from each head `(4 + C, N)` of a batch."""
    return [rows_of(postprocess.select(head, options, cxcywh=cxcywh)) for head in heads]


def compare(rows, expected, *, exactly):
    """Require our rows to be right bit for bit, and a peer's apart from ties.

    Rows whose score occurs once must always be equal, except the last: its tie may lie outside.

    Raises:
        DisagreementError: A row differs.
    """
    if not np.array_equal(rows[:, 4], expected[:, 4]):
        raise DisagreementError("other scores than NumPy's")
    certain = np.ones(len(rows), bool)
    if not exactly and len(rows):
        score = expected[:, 4]
        _, inverse, count = np.unique(score, return_inverse=True, return_counts=True)
        certain = (count[inverse] == 1) & (score != score[-1])
    if not np.array_equal(rows[certain], expected[certain]):
        raise DisagreementError("other boxes or classes than NumPy's")


def ours(gpu, head, heads, options, scope, *, cxcywh=False) -> Way:
    """The kernels."""
    batch, rows, anchors = head.shape
    shape = HeadShape(batch, rows, anchors, head.anchors_first, cxcywh, head.dtype)
    selection = SelectionKernels(gpu, shape, options)
    scope.callback(selection.close)
    inputs = upload_all(gpu, heads, scope)
    download = gpu.pin(selection.result_size)
    scope.callback(download.close)

    def enqueue(number):
        selection.enqueue(inputs[number].address, download.address)

    def fetch(_):
        gpu.record().wait()
        return [image_rows for image_rows, _ in selection.read(download.array)]

    twin = Watched(gpu)
    workspace = SelectionKernels(twin, shape, options)  # type: ignore[arg-type]
    scope.callback(workspace.close)
    workspace.enqueue(inputs[0].address, download.address)
    return Way(enqueue, fetch, kernels=twin.again())


def in_torch(gpu, head, heads, *, captured) -> Way:
    """The authors' post-processing: kernel by kernel, or as one CUDA graph."""
    torch = torch_on(gpu)
    tensors = torch.upload_all(heads)

    def select(tensor):
        tensor = tensor if head.anchors_first else tensor.transpose(-1, -2)
        return v10_postprocess(torch.torch, tensor, KEEP)

    enqueue = (torch.captured if captured else torch.eager)(select, tensors)

    def fetch(result):
        rows = torch.to_host(result).astype(np.float32)
        confident_rows = []
        for rows_of_image in rows:
            is_confident = rows_of_image[:, 4] > np.float32(head.confidence)
            confident_rows.append(rows_of_image[is_confident])
        return confident_rows

    return Way(enqueue, fetch)


def on_the_host(gpu, head, heads, options, scope, *, cxcywh=False) -> Way:
    """Download the whole head and select on the host."""
    inputs = upload_all(gpu, heads, scope)
    download = gpu.pin(heads[0].nbytes)
    scope.callback(download.close)

    def fetch(number):
        gpu.copy(download.address, inputs[number].address, heads[0].nbytes)
        gpu.record().wait()
        batch = download.array.view(heads[0].dtype).reshape(heads[0].shape)
        batch = batch.transpose(0, 2, 1) if head.anchors_first else batch
        return rows_of_batch(batch, options, cxcywh=cxcywh)

    return Way(lambda number: number, fetch, on_gpu=False)
