"""From the network's head to detections: the specification for every backend.

The head of one image is `(4 + C, N)`: four box rows in canvas pixels, then the score of each
class; N anchors. It is never transposed in memory: a `(N, 4 + C)` head is passed as a view with its
axes swapped.

`select` is `v10postprocess` of the YOLOv10 authors (https://github.com/THU-MIG/yolov10) with ties
settled as in `detcli.data.topk`, so that its rows and their order are fully determined:

1. The score of an anchor for a class counts only if it is strictly above the confidence of that
   class. Anchor score = maximum of its scores that count; an anchor without any is left out.
2. Keep the `max_det` anchors with the highest anchor score; of equals, the lower anchor first.
3. Of their `K x C` scores, anchors in that order, keep the `max_det` highest that count; of equals,
   the lower position first.

Where all classes have one confidence, it does not matter whether it is applied first or last: what
is not above it ranks behind all that is.

NaN ranks below everything and never counts. Scores are compared as float32; those of quantised
heads may exceed 1 and are clipped to 1 at the end. The scores of a head may be logits: these are
compared instead, also where the sigmoid rounds two of them to one score, and what is kept gets the
sigmoid at the end, on the host, for every backend.

A one-to-many head holds several boxes for each object. With an IoU limit, class-aware non-maximum
suppression of each anchor's best class replaces steps 2 and 3. With `MultiLabel.NEVER`, only an
anchor's best class counts too: at most one row for each anchor. The best class is one whose score
counts.

A graph that selects for itself ends in rows instead, `(R, 6)`: `select_rows` keeps those that are
wanted.
"""

import functools
import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from detcli.config.values import BoxFormat
from detcli.core import frozen
from detcli.core.errors import DetcliWarning, ModelError
from detcli.data.detections import Detections
from detcli.data.geometry import Letterbox, clipped
from detcli.data.suppression import non_maximum_suppression
from detcli.data.topk import rank_descending, top_k
from detcli.model.contract import Contract, Layout, MultiLabel, ScoreForm

Floats = npt.NDArray[np.float32]

# Beyond it, float32 knows the sigmoids 0 and 1 only; up to it, exp does not overflow float64.
FARTHEST = 200.0
# Of the Taylor series of exp, highest power first: enough up to half of ln 2, see `sigmoid`.
EXP_TERMS = tuple(1 / math.factorial(power) for power in range(11, -1, -1))
# The bits of float32's infinity, and its position among the float32 numbers counted from 0.
INFINITY = 0x7F800000


def sigmoid(logits: npt.ArrayLike) -> Floats:
    """Compute 1 / (1 + exp(-x)) of float32 logits, with the same bits on every machine.

    NumPy's own exp rounds differently with AVX-512 and without it. So exp is computed here in
    float64 with additions, multiplications and divisions only, whose results IEEE 754 defines to
    the last bit. The error is below 2^-45 before the result is rounded to float32. The result never
    falls as the logit rises, and NaN stays NaN.

    Args:
        logits: Of any shape.

    Returns:
        float32 of the same shape, from 0 to 1.

    Examples:
        >>> sigmoid([-np.inf, 0, 2, np.inf]).tolist()
        [0.0, 0.5, 0.8807970881462097, 1.0]
    """
    negated = -np.asarray(logits, np.float32).astype(np.float64)
    exponent = np.minimum(np.maximum(negated, -FARTHEST), FARTHEST)
    # exp(x) = 2^n * exp(r), where n is the whole number nearest to x / ln 2, and so the remainder r
    # is at most ln 2 / 2, for which a few terms of the Taylor series are enough.
    doublings = np.rint(exponent / math.log(2))
    # fmax replaces NaN by a number here, which can be converted to an integer below. The remainder
    # stays NaN.
    doublings = np.fmax(doublings, -2 * FARTHEST)
    remainder = exponent - doublings * math.log(2)
    series = np.zeros_like(remainder)
    for coefficient in EXP_TERMS:  # Horner's scheme: ((c11 * r + c10) * r + c9) * r + ...
        series *= remainder
        series += coefficient
    exponential = np.ldexp(series, doublings.astype(np.int32))
    return np.asarray(1 / (1 + exponential)).astype(np.float32)


@functools.cache
def logit_threshold(conf: float) -> float:
    """Find the float32 logit t such that `sigmoid(x) > conf` says the same as `x > t`.

    With it, logits can be compared without computing their sigmoids. It is searched for by halving
    the range of all float32 numbers, as it has to be exact to the last bit.

    Args:
        conf: The confidence, which is rounded to float32.

    Returns:
        The logit; -inf where every sigmoid is above the confidence, which then is below 0.

    Examples:
        >>> logit_threshold(1.0), round(logit_threshold(0.25), 4)
        (inf, -1.0986)
    """
    threshold = np.float32(conf)
    # Positions count the float32 numbers from 0 in both directions, see `_float32`. The sigmoid of
    # the number at `low` is taken not to be above the confidence, and that at `high` to be.
    low = -INFINITY
    high = INFINITY + 1
    while high - low > 1:
        middle = (low + high) // 2
        if sigmoid(_float32(middle)) > threshold:
            high = middle
        else:
            low = middle
    return float(_float32(low))


def _float32(position: int) -> Floats:
    """Return the float32 number at a position, if all of them are counted in ascending order.

    0.0 is at position 0, the smallest positive number at 1, its negative at -1. The bits of a
    positive float32 number, read as an integer, are this position.
    """
    magnitude = np.array(abs(position), np.uint32).view(np.float32)
    if position < 0:
        return np.negative(magnitude)
    return magnitude


HeadArray = npt.NDArray[np.float16] | npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]

NAN_CAUSES = ": an overflow in half precision, or a broken model"
TOO_HIGH = 2  # scores end at 1, but the rounding of a coarsely quantised head may give 1.5
NORMALISED = 1.5  # pixels; boxes given as fractions of the image end at 1, or slightly above


@frozen
class SelectionOptions:
    """Which detections to keep."""

    conf: float  # scores must be strictly above it; the lowest of all classes
    max_det: int  # maximum number of detections in an image
    class_ids: frozenset[int] | None  # only these classes; None means all
    # IoU above which non-maximum suppression drops a duplicate; None means no NMS
    nms_iou: float | None
    multi_label: MultiLabel = MultiLabel.WITHOUT_NMS
    within_anchors: bool = False  # no more detections than the head has anchors
    class_agnostic: bool = False  # NMS compares boxes of all classes, not only those of one
    # By class id, what the scores of each class must be strictly above; None if it is one for all
    conf_thresholds: tuple[float, ...] | None = None

    def with_conf_thresholds(self, conf_thresholds: npt.NDArray[np.float32]) -> "SelectionOptions":
        """These options with a threshold for the score of each class, `(C,)`."""
        thresholds = conf_thresholds.tolist()
        conf = min(thresholds)
        if len(set(thresholds)) == 1:
            return replace(self, conf=conf, conf_thresholds=None)
        return replace(self, conf=conf, conf_thresholds=tuple(thresholds))

    @property
    def suppresses_every_class(self) -> bool:
        """Whether an anchor may be several candidates for NMS."""
        return self.nms_iou is not None and self.multi_label is MultiLabel.ALWAYS


class SelectedBoxes(NamedTuple):
    """The M rows that were selected, best first."""

    boxes: Floats  # (M, 4) x1, y1, x2, y2 in canvas pixels
    score: Floats  # (M,)
    class_id: Indices  # (M,)


def detect(output: HeadArray, options: SelectionOptions, contract: Contract) -> SelectedBoxes:
    """Select the detections of one image from the network's output for it.

    Args:
        output: As the contract says, a head `(4 + C, N)` or `(N, 4 + C)` of 4 box rows and C scores
            for each of N anchors, or rows `(R, 6)` that the network has selected itself.
        options: Which detections to keep.
        contract: What the model says of its output.

    Returns:
        The boxes in pixels of the network's input, best first.
    """
    cxcywh = contract.box_format is BoxFormat.CXCYWH
    if contract.layout is Layout.ROWS:
        return select_rows(output, options, contract.class_count, cxcywh=cxcywh)
    head = output.T if contract.anchors_first else output
    return select(head, options, cxcywh=cxcywh, logits=contract.score_form is ScoreForm.LOGITS)


def of_images(output: HeadArray, count: int, contract: Contract) -> list[HeadArray]:
    """Split the network's output for a batch into views, one for each image, as `detect` takes.

    Args:
        output: `(B, 4 + C, N)`, `(B, N, 4 + C)` or `(B, R, 6)`, as the contract says.
        count: B, the number of images in the batch.
        contract: What the model says of its output.

    Raises:
        ModelError: The output does not have the shape that the graph declares.
    """
    declared_sizes: list[int | None]  # None is any size
    if contract.layout is Layout.ROWS:
        declared_sizes = [count, contract.anchor_count, 6]
    elif contract.anchors_first:
        declared_sizes = [count, contract.anchor_count, 4 + contract.class_count]
    else:
        declared_sizes = [count, 4 + contract.class_count, contract.anchor_count]
    output_sizes = list(np.shape(output))
    if not _fits(output_sizes, declared_sizes):
        declared = ", ".join("any" if size is None else str(size) for size in declared_sizes)
        raise ModelError(
            f"the network gave an output of shape {output_sizes}, though its graph declares "
            f"[{declared}]",
            "export the model again; its file does not say what it does",
        )
    return list(output)


def _fits(sizes: list[int], declared_sizes: list[int | None]) -> bool:
    """True if the sizes of an output are as declared, where None is any size."""
    if len(sizes) != len(declared_sizes):
        return False
    for size, declared in zip(sizes, declared_sizes, strict=True):
        if declared not in {None, size}:
            return False
    return True


@np.errstate(over="ignore", invalid="ignore")  # of boxes as far as float32 reaches
def detect_all(
    outputs: Iterable[HeadArray],
    letterboxes: Sequence[Letterbox],
    options: SelectionOptions,
    contract: Contract,
) -> list[Detections]:
    """Select the detections of each image of a batch, see `detect` and `to_detections`."""
    detections = []
    for output, letterbox in zip(outputs, letterboxes, strict=True):
        selection = detect(output, options, contract)
        detections.append(to_detections(selection, letterbox, contract))
    return detections


def select(
    head: HeadArray, options: SelectionOptions, *, cxcywh: bool = False, logits: bool = False
) -> SelectedBoxes:
    """Select the detections of one image from the head of the network.

    How anchors compete depends on the options: an anchor may be a candidate with every class, with
    its best class only, or as in the specification of this module, without suppression.

    Args:
        head: `(4 + C, N)`, 4 box rows and the scores of C classes, for each of N anchors.
        options: Which detections to keep. With `class_ids`, other classes are treated as if the
            head lacked them.
        cxcywh: Whether the box rows are centre and size instead of two corners.
        logits: Whether the scores are logits.

    Returns:
        At most `max_det` boxes with their scores and classes, best first.
    """
    if logits:
        options = on_logits(options)
    if options.within_anchors:
        options = replace(options, max_det=min(options.max_det, head.shape[1]))

    scores = head[4:]  # (C, N)
    classes = np.arange(len(scores))  # (C,)
    if options.class_ids is not None:
        classes = np.array(sorted(options.class_ids), np.int64)
        scores = scores[classes]
    scores = scores.astype(np.float32, copy=False)

    if options.suppresses_every_class:
        choose = _every_class
    elif options.multi_label is MultiLabel.NEVER or options.nms_iou is not None:
        choose = _best_class
    else:
        choose = _select_one_to_one
    if options.conf_thresholds is None:
        anchors, score, class_index = choose(scores, options)
    else:
        candidates, counting = _scores_that_count(scores, classes, options)
        positions, score, class_index = choose(counting, options)
        anchors = candidates[positions]

    boxes = _corners(head[:4, anchors].T.astype(np.float32), cxcywh=cxcywh)
    selection = SelectedBoxes(boxes, score, classes[class_index])
    return _reported(_without_duplicates(selection, options), logits=logits)


def on_logits(options: SelectionOptions) -> SelectionOptions:
    """The options that select from logits what these select from scores."""
    thresholds = options.conf_thresholds
    if thresholds is not None:
        thresholds = tuple(logit_threshold(threshold) for threshold in thresholds)
    return replace(options, conf=logit_threshold(options.conf), conf_thresholds=thresholds)


def select_rows(
    rows: HeadArray, options: SelectionOptions, class_count: int, *, cxcywh: bool = False
) -> SelectedBoxes:
    """Select the detections of one image from the rows of a graph that selects boxes itself.

    Rows that are strictly above the confidence of their class stay, if the class is asked for. Of
    these, the `max_det` best are kept, of equals the lower row first; or with an IoU limit, those
    that non-maximum suppression leaves. A row whose class does not exist is dropped with a warning.
    The rows do not tell which of them come from the same anchor, so `multi_label` changes nothing.

    Args:
        rows: `(R, 6)` x1, y1, x2, y2, score, class id; padding has a score of 0.
        options: Which detections to keep.
        class_count: The number of classes of the model.
        cxcywh: Whether boxes are centre and size instead of two corners.
    """
    rows = confident_rows(rows, options.conf, class_count)
    if options.conf_thresholds is not None:
        thresholds = np.array(options.conf_thresholds, np.float32)
        rows = rows[rows[:, 4] > thresholds[rows[:, 5].astype(np.int64)]]
    if options.class_ids is not None:
        rows = rows[np.isin(rows[:, 5], sorted(options.class_ids))]
    max_rows = len(rows)  # all of them are candidates for NMS
    if options.nms_iou is None:
        max_rows = options.max_det
    _, best = top_k(rows[:, 4], max_rows)
    rows = rows[best]
    boxes = _corners(rows[:, :4], cxcywh=cxcywh)
    selection = SelectedBoxes(boxes, rows[:, 4], rows[:, 5].astype(np.int64))
    return _reported(_without_duplicates(selection, options))


def confident_rows(rows: HeadArray, conf: float, class_count: int) -> Floats:
    """The rows `(R, 6)` strictly above `conf`, in their order, as float32.

    A row whose class does not exist, as a broken graph makes, is dropped with a warning.
    """
    all_rows: Floats = rows.astype(np.float32, copy=False)
    nan_count = np.count_nonzero(np.isnan(all_rows[:, 4]))
    warn_about_nan(int(nan_count), len(all_rows))
    confident: Floats = all_rows[all_rows[:, 4] > np.float32(conf)]
    class_id = confident[:, 5]
    exists = (class_id >= 0) & (class_id < class_count) & (class_id == np.floor(class_id))
    if not exists.all():
        _warn(
            f"{np.count_nonzero(~exists)} rows have an unknown class id, such as "
            f"{class_id[~exists][0]:g}, and were dropped; a file of names can name all classes"
        )
    of_classes: Floats = confident[exists]
    return of_classes


def as_selection(rows: Floats, *, logits: bool = False) -> SelectedBoxes:
    """Split rows `(M, 6)` from a backend: x1, y1, x2, y2, score or logit, class id."""
    selection = SelectedBoxes(rows[:, :4], rows[:, 4], rows[:, 5].astype(np.int64))
    return _reported(selection, logits=logits)


def warn_about_nan(nan_count: int, score_count: int) -> None:
    """Warn if there are NaN among an image's scores."""
    if nan_count:
        _warn(f"{nan_count} of {score_count} scores are NaN and were ignored{NAN_CAUSES}")


def to_detections(selection: SelectedBoxes, letterbox: Letterbox, contract: Contract) -> Detections:
    """Turn the boxes that were selected on the network's input into detections of the image.

    Boxes with NaN or infinity, or without an area, are dropped with a warning. A box that has no
    area only because it lies beside the image, and is clipped, is dropped silently.

    Args:
        selection: Boxes on the network's input, in pixels or, as the contract says, in fractions.
        letterbox: Where the image lies on the network's input.
        contract: What the model says of its boxes, and the names of its classes.
    """
    boxes, scores, class_id = selection
    if contract.box_fractions:
        height, width = letterbox.canvas
        boxes = boxes * np.array([width, height, width, height], np.float32)
    elif boxes.size and boxes.max() <= NORMALISED:
        _warn("no box reaches beyond 1.5 pixels, as if the model's boxes were fractions")
    boxes = letterbox.to_image(boxes)
    is_empty = (boxes[:, 2:] <= boxes[:, :2]).any(axis=1)
    if contract.clips:  # of a box beside the image, nothing is left
        boxes = clipped(boxes, letterbox.picture)
    detections = Detections(boxes, scores, class_id, contract.names, selected=scores)

    is_finite = np.isfinite(boxes).all(axis=1)
    _warn_about_boxes(
        boxes,
        infinite_count=int(np.count_nonzero(~is_finite)),
        empty_count=int(np.count_nonzero(is_finite & is_empty)),
    )
    has_area = is_finite & (boxes[:, 2:] > boxes[:, :2]).all(axis=1)
    if has_area.all():
        return detections
    return detections[np.flatnonzero(has_area)]


def _warn_about_boxes(boxes: Floats, *, infinite_count: int, empty_count: int) -> None:
    """Warn of the boxes that are dropped: those of NaN or infinity, and those without an area."""
    if infinite_count:
        value = "a NaN" if np.isnan(boxes).any() else "an infinity"
        _warn(f"{infinite_count} of {len(boxes)} boxes hold {value} and were dropped{NAN_CAUSES}")
    if empty_count:
        _warn(f"{empty_count} of {len(boxes)} boxes have no width or height and were dropped")


def _reported(selection: SelectedBoxes, *, logits: bool = False) -> SelectedBoxes:
    """Turn the scores of a selection into those that are reported, from 0 to 1.

    Logits are replaced by their sigmoids. Other scores are limited to 1, which those of quantised
    heads may exceed; far larger ones are reported with a warning.
    """
    boxes, score, class_id = selection
    if logits:
        return SelectedBoxes(boxes, sigmoid(score), class_id)
    if score.size and score[0] > TOO_HIGH:
        _warn("scores reach far above 1, as if the model ended without a sigmoid")
    return SelectedBoxes(boxes, np.minimum(score, np.float32(1)), class_id)


def _warn(message: str) -> None:
    warnings.warn(message, DetcliWarning, stacklevel=2)


def _scores_that_count(
    scores: Floats, classes: Indices, options: SelectionOptions
) -> tuple[Indices, Floats]:
    """Apply a confidence for each class: replace the scores that are not above it by -inf.

    Args:
        scores: `(C, N)`, the scores of each of N anchors for C classes.
        classes: `(C,)`, the ids of these classes.
        options: With `conf_thresholds`, the confidence of each class by its id, and with `conf`,
            the lowest of them.

    Returns:
        `(A,)`, the indices, ascending, of the anchors with any score above the lowest confidence;
        and `(C, A)`, their scores, where NaN is -inf too.
    """
    thresholds = np.array(options.conf_thresholds, np.float32)[classes, np.newaxis]  # (C, 1)
    candidates = np.flatnonzero(_anchor_score(scores) > np.float32(options.conf))  # (A,)
    candidate_scores = scores[:, candidates]
    counting = np.where(candidate_scores > thresholds, candidate_scores, np.float32(-np.inf))
    return candidates, counting


def _select_one_to_one(
    scores: Floats, options: SelectionOptions
) -> tuple[Indices, Floats, Indices]:
    """Select the best scores of the best anchors, as the specification of this module says.

    An anchor may be selected several times, with different classes.

    Args:
        scores: `(C, N)`, the scores of each of N anchors for C classes.
        options: The lowest confidence, and the number of detections to keep.

    Returns:
        The anchor, the score and the row of `scores` of each detection, `(M,)` each, best first.
    """
    anchors, min_score = _best_anchors(_anchor_score(scores), options)  # (K,) best first
    # In the flattened scores, all classes of the best anchor come first, and so on: the position of
    # a score is (rank of the anchor) * C + class.
    flat_scores = scores[:, anchors].T.ravel()  # (K * C,)
    positions = np.flatnonzero(flat_scores >= min_score)
    score, best = top_k(flat_scores[positions], options.max_det)  # (M,)
    class_count = len(scores)
    anchor_rank, class_index = np.divmod(positions[best], class_count)
    return anchors[anchor_rank], score, class_index


def _best_anchors(anchor_score: Floats, options: SelectionOptions) -> tuple[Indices, np.float32]:
    """Find the anchors with the best scores, and the lowest score that a detection can have.

    At most `max_det` anchors are left. If there are as many, their best scores alone would be
    enough detections, so no score below the lowest of these can be kept. If there are fewer, any
    score above the confidence can be kept.

    Args:
        anchor_score: `(N,)`, the best score of each anchor.
        options: The confidence, and the number of detections to keep.

    Returns:
        The indices of the anchors, `(K,)`, best first; and that lowest score.
    """
    conf = np.float32(options.conf)
    is_candidate = anchor_score > conf
    if np.count_nonzero(is_candidate) <= options.max_det:
        anchors = np.flatnonzero(is_candidate)
        order = rank_descending(anchor_score[anchors])  # of equals the lower anchor
        return anchors[order], np.nextafter(conf, np.float32(np.inf))
    best_scores, anchors = top_k(anchor_score, options.max_det)
    return anchors, best_scores[-1]


def _best_class(scores: Floats, options: SelectionOptions) -> tuple[Indices, Floats, Indices]:
    """Select the anchors above the confidence, each with its best class only.

    Of classes with equal scores, the lowest counts; of anchors with equal scores, the lower one
    comes first. At most `max_det` are left, unless they are candidates for suppression.

    Args:
        scores: `(C, N)`, the scores of each of N anchors for C classes.
        options: The confidence, and the number of detections to keep.

    Returns:
        The anchor, the score and the row of `scores` of each detection, `(M,)` each, best first.
    """
    anchor_score = _anchor_score(scores)  # (N,)
    anchors = np.flatnonzero(anchor_score > np.float32(options.conf))
    anchors = anchors[rank_descending(anchor_score[anchors])]
    if options.nms_iou is None:
        anchors = anchors[: options.max_det]
    score = anchor_score[anchors]
    # `argmax` of the comparison finds the first class that has the best score. `argmax` of the
    # scores themselves would choose a NaN.
    has_best_score = scores[:, anchors] == score  # (C, K)
    return anchors, score, np.argmax(has_best_score, axis=0)


def _every_class(scores: Floats, options: SelectionOptions) -> tuple[Indices, Floats, Indices]:
    """Each anchor with each class above the confidence, best first; of equals the lower anchor."""
    _anchor_score(scores)  # warns about NaN
    anchors, classes = np.nonzero(np.float32(options.conf) < scores.T)
    score = scores[classes, anchors]
    order = rank_descending(score)
    return anchors[order], score[order], classes[order]


def _anchor_score(scores: Floats) -> Floats:
    """Maximum over the classes, NaN ignored: (C, N) -> (N,)."""
    best: Floats = scores.max(axis=0)
    if best.size and np.isnan(best.max()):  # `max` propagates NaN, so one value covers all
        warn_about_nan(int(np.count_nonzero(np.isnan(scores))), scores.size)
        best = np.fmax.reduce(scores, axis=0)
    return best


def _corners(boxes: Floats, *, cxcywh: bool) -> Floats:
    """Boxes (K, 4) as x1, y1, x2, y2."""
    if not cxcywh:
        return boxes
    centre = boxes[:, :2]
    half_size = boxes[:, 2:] / np.float32(2)
    return np.concatenate([centre - half_size, centre + half_size], axis=1)


def _without_duplicates(selection: SelectedBoxes, options: SelectionOptions) -> SelectedBoxes:
    """What non-maximum suppression leaves, if it is asked for."""
    if options.nms_iou is None:
        return selection
    boxes, score, class_id = selection
    compared_classes = np.zeros_like(class_id) if options.class_agnostic else class_id
    remaining = non_maximum_suppression(boxes, compared_classes, options.nms_iou, options.max_det)
    return SelectedBoxes(boxes[remaining], score[remaining], class_id[remaining])
