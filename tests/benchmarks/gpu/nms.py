"""Non-maximum suppression of a one-to-many head, beside torchvision's."""

from dataclasses import dataclass

import numpy as np

from benchmarks.gpu.measure import Case, Way
from benchmarks.gpu.peers import DisagreementError, import_optional, torch_on
from benchmarks.gpu.selection import Head, compare, on_the_host, ours, rows_of_batch
from benchmarks.in_turns import detector_head
from detcli.backend.postprocess import SelectionOptions

KEEP = 300
INPUTS = 3
IOU = 0.45


@dataclass(frozen=True)
class Crowd(Head):
    """A head on which many anchors find the same object: about `candidates` of them."""

    candidates: int = 1000


ALL = (
    Crowd(candidates=100),
    Crowd(candidates=1000),
    Crowd(candidates=8000),
    Crowd(batch=16),
    Crowd(dtype="float16"),
)
QUICK = (Crowd(),)
TINY = (
    Crowd(anchors=300, candidates=50),
    Crowd(2, 400, "float16", classes=3, candidates=100),
)


def case_of(gpu, head, generator, scope) -> Case:
    """The suppression of a head."""
    options = SelectionOptions(head.confidence, KEEP, None, IOU)
    heads = []
    expected = []
    for _ in range(INPUTS):
        heads.append(crowded(generator, head))
        expected.append(rows_of_batch(heads[-1], options, cxcywh=True))

    def check(number, answer, is_ours):
        for rows, expected_rows in zip(answer, expected[number], strict=True):
            if is_ours:
                compare(rows, expected_rows, exactly=True)
            else:
                nearly(rows, expected_rows)

    batch, rows, anchors = head.shape
    return Case(
        f"[{batch},{rows},{anchors}] {head.dtype}, about {head.candidates} candidates, IoU {IOU}",
        INPUTS,
        {
            "detcli": lambda: ours(gpu, head, heads, options, scope, cxcywh=True),
            "torchvision": lambda: in_torchvision(gpu, head, heads),
            "NumPy on the host": lambda: on_the_host(gpu, head, heads, options, scope, cxcywh=True),
        },
        check,
        more={"batch": batch},
    )


def crowded(generator, head):
    """Heads `(B, 4 + C, N)`, boxes as centre and size: forty objects, each found many times."""
    heads = [detector_head(generator, head.classes, head.anchors) for _ in range(head.batch)]
    for image_head in heads:
        boxes = image_head[:4]
        scores = image_head[4:]
        boxes *= np.float32(640)
        objects = generator.random((40, 4), np.float32) * np.float32(400) + np.float32(40)
        classes = generator.integers(0, head.classes, 40)
        candidates = generator.permutation(head.anchors)[: head.candidates]
        numbers = generator.integers(0, 40, len(candidates))  # of the candidates' objects
        jitter = generator.normal(0, 8, (len(candidates), 4)).astype(np.float32)
        boxes[:, candidates] = np.abs(objects[numbers] + jitter).T
        scores[classes[numbers], candidates] = generator.uniform(0.26, 0.99, len(candidates))
    return np.stack(heads).astype(head.dtype)


def nearly(rows, expected):
    """Hold rows against NumPy's where the overlap may be rounded otherwise.

    Raises:
        DisagreementError: More than one in twenty differs.
    """
    expected_rows = {row.tobytes() for row in expected}
    same_count = 0
    for row in rows:
        if row.tobytes() in expected_rows:
            same_count += 1
    if same_count < 0.95 * max(len(rows), len(expected)):
        raise DisagreementError(f"{same_count} of {len(expected)} rows are the same as NumPy's")


def in_torchvision(gpu, head, heads) -> Way:
    """As is usual: candidates, then torchvision's batched NMS; it waits for the GPU in between."""
    peer = torch_on(gpu)
    batched_nms = import_optional("torchvision.ops", "torchvision").batched_nms
    torch, tensors = peer.torch, peer.upload_all(heads)

    def suppress(batch):
        rows_of_images = []
        for image in batch:
            best, labels = image[4:].float().max(dim=0)
            is_candidate = best > head.confidence
            best, labels, boxes = (
                best[is_candidate],
                labels[is_candidate],
                image[:4, is_candidate].T.float(),
            )
            half = boxes[:, 2:] / 2
            boxes = torch.cat([boxes[:, :2] - half, boxes[:, :2] + half], dim=1)
            selected = batched_nms(boxes, best, labels, IOU)[:KEEP]
            columns = [boxes[selected], best[selected, None], labels[selected, None].float()]
            rows_of_images.append(torch.cat(columns, dim=1))
        return rows_of_images

    enqueue = peer.eager(suppress, tensors)
    # It is a host's way in that a delay on the stream would hold it up, not hide its launches.
    return Way(enqueue, lambda images: [peer.to_host(rows) for rows in images], on_gpu=False)
