"""The selection kernels against the NumPy specification, bit for bit."""

import itertools
import warnings

import numpy as np
import pytest
from thinning import thin

from detcli.backend import postprocess
from detcli.backend.cuda.selection import HeadShape, SelectionKernels
from detcli.backend.cuda.topk import SHARED_LIST, upload
from detcli.backend.postprocess import SelectionOptions
from detcli.core.errors import DetcliWarning
from detcli.model.contract import MultiLabel

pytestmark = pytest.mark.slow

ANCHORS = (1, 31, 32, 33, 1023, 1024, 1025, 8192, 8193, 8400, 33600)
CLASSES = (1, 2, 80, 365)
WANTED = (1, 300, 1000)
THREE = np.array([0.26, 0.5, 0.75], np.float32)
ODDITIES = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, 0.3, 0.5, 2.0], np.float32)


NEVER = MultiLabel.NEVER
WITHOUT_NMS = MultiLabel.WITHOUT_NMS


def noise(random, shape):
    return random.random(shape, np.float32)


SCORES = {
    "noise": noise,
    "all equal": lambda _, shape: np.full(shape, 0.5, np.float32),
    "three levels": lambda random, shape: THREE[random.integers(0, 3, shape, np.int8)],
    "oddities": lambda random, shape: ODDITIES[random.integers(0, len(ODDITIES), shape, np.int8)],
    "all low": lambda random, shape: noise(random, shape) * np.float32(0.2),
    # A few objects above noise.
    "like a detector": lambda random, shape: np.where(
        noise(random, shape) < 0.002, noise(random, shape), noise(random, shape) ** 8
    ),
}
SCORES_OF_LARGE_HEADS = {"three levels", "like a detector"}
SCORES_AND_ANCHORS = list(itertools.product(SCORES, (1, 33, 1025)))


def make_head(random, batch, classes, anchors, scores="noise"):
    """A head (B, 4 + C, N), float32, with boxes in a 640 canvas."""
    boxes = random.random((batch, 4, anchors), np.float32) * np.float32(640)
    return np.concatenate([boxes, SCORES[scores](random, (batch, classes, anchors))], axis=1)


def select(gpu, heads, options, *, anchors_first=False, cxcywh=False, logits=False, runs=1):
    """Rows that the kernels select from (B, 4 + C, N)."""
    batch, rows, anchors = heads.shape
    shape = HeadShape(batch, rows, anchors, anchors_first, cxcywh, heads.dtype.name, logits)
    uploaded = upload(gpu, heads.transpose(0, 2, 1) if anchors_first else heads)
    selection = SelectionKernels(gpu, shape, options)
    download = gpu.pin(selection.result_size)
    for _ in range(runs):
        selection.enqueue(uploaded.address, download.address)
        gpu.record().wait()
    images = selection.read(download.array)
    for memory in (selection, uploaded, download):
        memory.close()
    return images


def assert_as_specified(selections, heads, options, *, cxcywh=False, logits=False):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DetcliWarning)
        for rows, head in zip(selections, heads, strict=True):
            expected = postprocess.select(head, options, cxcywh=cxcywh, logits=logits)
            own_rows = postprocess.as_selection(rows[0], logits=logits)
            for rows_on_gpu, expected_rows in zip(own_rows, expected, strict=True):
                assert rows_on_gpu.shape == expected_rows.shape  # type: ignore[attr-defined]
                assert rows_on_gpu.tobytes() == expected_rows.tobytes()  # type: ignore[attr-defined]
            classes = slice(None) if options.class_ids is None else sorted(options.class_ids)
            assert rows[1] == np.count_nonzero(np.isnan(head[4:][classes]))


@pytest.mark.parametrize("anchors", thin("anchor counts of heads", ANCHORS, 5))
def test_any_shape(gpu, random, anchors):
    """All N, nearly all C, each K twice; dtypes, layouts, box formats, one image and two."""
    combinations = list(itertools.product((False, True), repeat=3))
    for first, scores in enumerate(SCORES):  # another combination for the same shape
        layouts = itertools.islice(itertools.cycle(combinations), first, None)
        for classes in thin("class counts of heads", CLASSES, 2):
            size = anchors * classes
            if size > 5_000_000 or (size > 500_000 and scores not in SCORES_OF_LARGE_HEADS):
                continue
            head = make_head(random, 2 if size < 100_000 else 1, classes, anchors, scores)
            max_det = WANTED[first % len(WANTED)]
            half, anchors_first, cxcywh = next(layouts)
            heads = head.astype(np.float16) if half else head
            options = SelectionOptions(0.25 if max_det == 300 else 0.0, max_det, None, None)
            selections = select(gpu, heads, options, anchors_first=anchors_first, cxcywh=cxcywh)
            assert_as_specified(selections, heads, options, cxcywh=cxcywh)


def test_logits(gpu, random):
    """Among them -0, infinities, NaN, and some of which the sigmoid makes equal scores."""
    for scores, anchors in thin("heads of logits", SCORES_AND_ANCHORS, 8):
        heads = make_head(random, 2, 5, anchors, scores)
        heads[:, 4:] = heads[:, 4:] * np.float32(60) - np.float32(30)
        for confidence, classes, nms_iou, multi_label in (
            (0.0, None, None, WITHOUT_NMS),
            (0.25, frozenset({1, 4}), None, WITHOUT_NMS),
            (0.5, None, None, NEVER),
            (0.25, None, 0.45, WITHOUT_NMS),
            (1.0, None, None, WITHOUT_NMS),
        ):
            options = SelectionOptions(confidence, 300, classes, nms_iou, multi_label=multi_label)
            selections = select(gpu, heads, options, logits=True)
            assert_as_specified(selections, heads, options, logits=True)


CLASS_CONFIDENCES = np.array([0.5, 0.0, 0.9, 0.25, 0.75], np.float32)


def test_confidences_of_classes(gpu, random):
    """Of five classes and some of them; with all that may follow; scores and logits."""
    shapes = list(enumerate(SCORES_AND_ANCHORS))
    for number, (scores, anchors) in thin("heads with confidences of classes", shapes, 7):
        heads = make_head(random, 2, 5, anchors, scores)
        heads[:, :4] *= np.float32(0.5)
        if number % 2:
            heads = heads.astype(np.float16)
        for class_ids, nms_iou, multi_label, logits, max_det in (
            (None, None, WITHOUT_NMS, False, 300),
            (None, None, WITHOUT_NMS, False, 5),
            (frozenset({1, 2, 4}), None, WITHOUT_NMS, False, 20),
            (None, None, NEVER, False, 20),
            (None, 0.45, WITHOUT_NMS, False, 300),
            (frozenset({0, 3}), 0.45, WITHOUT_NMS, True, 300),
            (None, None, WITHOUT_NMS, True, 20),
        ):
            options = SelectionOptions(0, max_det, class_ids, nms_iou, multi_label=multi_label)
            options = options.with_conf_thresholds(CLASS_CONFIDENCES)
            layout = {"anchors_first": number % 3 == 0}
            selections = select(gpu, heads, options, logits=logits, runs=2, **layout)
            assert_as_specified(selections, heads, options, logits=logits)


@pytest.mark.parametrize(
    ("size", "selection_options"),
    [
        (
            [((2, 5), 1), ((2, 5), 33), ((2, 5), 1025), ((2, 5), 8400)],
            [
                SelectionOptions(0.25, 1, None, None, multi_label=NEVER),
                SelectionOptions(0.25, 300, None, None, multi_label=NEVER),
                SelectionOptions(0.25, 5000, None, None, multi_label=NEVER),
            ],
        ),
        (
            [((2, 3), 2500)],  # more rows than fit into shared memory
            [
                SelectionOptions(0.0, 10**9, None, None, within_anchors=True),
                SelectionOptions(0.0, SHARED_LIST, None, None),
                SelectionOptions(0.0, SHARED_LIST + 1, None, None),
                SelectionOptions(0.0, 10**9, None, None),
            ],
        ),
        (
            [((2, 80), 1025)],
            [
                SelectionOptions(0.25, 300, frozenset({79, 0, 33}), None),
                SelectionOptions(0.25, 300, frozenset({79, 0, 33}), 0.5),
            ],
        ),
        (
            [((1, 3), 0), ((3, 3), 0)],
            [SelectionOptions(0.25, 300, None, None), SelectionOptions(0.25, 300, None, 0.5)],
        ),
    ],
    ids=["one class per anchor", "many rows", "selected classes", "no anchors"],
)
def test_options(gpu, random, size, selection_options):
    """Where there are several runs, they share a workspace."""
    heads_of_all_scores = itertools.product(size, thin("scores of heads", SCORES, 3))
    for ((batch, classes), anchors), scores in heads_of_all_scores:
        heads = make_head(random, batch, classes, anchors, scores)
        runs = 3 if anchors in (0, 1025) else 1
        for options in selection_options:
            assert_as_specified(select(gpu, heads, options, runs=runs), heads, options)


def test_a_negative_confidence_keeps_negative_scores(gpu, random):
    heads = make_head(random, 1, 3, 100) - np.float32(0.5)
    options = SelectionOptions(-0.25, 300, None, None)
    selections = select(gpu, heads, options)
    assert selections[0][0][-1, 4] < 0
    assert_as_specified(selections, heads, options)


SUPPRESSIONS = list(itertools.product([1, 63, 64, 65, 1025], [1, 65, 300, 10**9]))
SUPPRESSIONS += [(2100, 10**9), (8400, 300)]
"""How many anchors, and of how many rows."""


@pytest.mark.parametrize(
    ("anchors", "max_det"), thin("heads to suppress boxes of", SUPPRESSIONS, 8)
)
def test_non_maximum_suppression(gpu, random, anchors, max_det):
    layouts = [(True, True), (True, False), (False, True), (False, False)]
    cases = []
    for number, scores in enumerate(SCORES):
        if anchors < 1000:
            for cxcywh, together in layouts:
                cases.append((scores, cxcywh, together))
        else:  # one layout each, in turns
            cxcywh, together = layouts[number % len(layouts)]
            cases.append((scores, cxcywh, together))
    for scores, cxcywh, together in cases:
        heads = make_head(random, 2, 5, anchors, scores)
        heads[:, :4] *= np.float32(0.25)  # crowded
        heads[:, :4, ::50] = np.nan
        heads[:, 2, 1::50] = np.inf
        heads[:, 2, 2::50] *= -1
        options = SelectionOptions(0.25, max_det, None, nms_iou=0.45, class_agnostic=together)
        with np.errstate(invalid="ignore"):  # inf - inf
            selections = select(gpu, heads, options, cxcywh=cxcywh)
            assert_as_specified(selections, heads, options, cxcywh=cxcywh)
