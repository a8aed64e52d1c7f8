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
suppression of each anchor's best class replaces steps 2 and 3; it drops duplicates, or blends them
into the box that stays. With `MultiLabel.NEVER`, only an
anchor's best class counts too: at most one row for each anchor. The best class is one whose score
counts.

A graph that selects for itself ends in rows instead, `(R, 6)`: `select_rows` keeps those that are
wanted.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from detcli.backend.logits import logit_threshold, sigmoid
from detcli.backend.selected_boxes import NAN_CAUSES, Floats, Indices, SelectedBoxes, warn
from detcli.config.values import BoxFormat
from detcli.core import frozen
from detcli.data.suppression import blend_overlapping, non_maximum_suppression
from detcli.data.topk import rank_descending, top_k
from detcli.model.contract import Contract, Layout, MultiLabel, ScoreForm

HeadArray = npt.NDArray[np.float16] | npt.NDArray[np.float32]

# Scores above it cannot be probabilities: these end at 1, though the rounding of a coarsely
# quantised head may give 1.5.
MAX_PLAUSIBLE_SCORE = 2


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
    blends: bool = False  # NMS blends the boxes that it drops into the one that stays
    # By class id, what the scores of each class must be strictly above; None if it is one for all
    conf_thresholds: tuple[float, ...] | None = None

    def with_conf_thresholds(self, conf_thresholds: npt.NDArray[np.float32]) -> "SelectionOptions":
        """Return these options with a threshold for the score of each class.

        Args:
            conf_thresholds: `(C,)`, what the scores of each class must be strictly above.

        Returns:
            Options whose `conf` is the lowest of the thresholds. Where all classes have the same
            threshold, `conf` says it all, and `conf_thresholds` is None.
        """
        thresholds = conf_thresholds.tolist()
        conf = min(thresholds)
        if len(set(thresholds)) == 1:
            return replace(self, conf=conf, conf_thresholds=None)
        return replace(self, conf=conf, conf_thresholds=tuple(thresholds))

    @property
    def suppresses_every_class(self) -> bool:
        """Whether NMS gets each anchor with every class above the confidence, not its best only."""
        return self.nms_iou is not None and self.multi_label is MultiLabel.ALWAYS


def detect(output: HeadArray, options: SelectionOptions, contract: Contract) -> SelectedBoxes:
    """Select the detections of one image from the network's output for it.

    Most networks end in a head, which holds a box and the scores of all classes for each of
    thousands of anchors, the places that the network looks at. Others select boxes themselves and
    end in rows, one for each detection.

    Args:
        output: As the contract says, a head `(4 + C, N)` or `(N, 4 + C)` of 4 box rows and C scores
            for each of N anchors, or rows `(R, 6)` of x1, y1, x2, y2, score, class id.
        options: Which detections to keep.
        contract: What the model says of its output.

    Returns:
        The boxes with their scores and classes, best first. Coordinates are those of the network's
        input.
    """
    cxcywh = contract.box_format is BoxFormat.CXCYWH
    if contract.layout is Layout.ROWS:
        return select_rows(output, options, contract.class_count, cxcywh=cxcywh)
    head = output.T if contract.anchors_first else output  # (4 + C, N)
    has_logits = contract.score_form is ScoreForm.LOGITS
    return select(head, options, cxcywh=cxcywh, logits=has_logits)


def select(
    head: HeadArray, options: SelectionOptions, *, cxcywh: bool = False, logits: bool = False
) -> SelectedBoxes:
    """Select the detections of one image from the head of the network.

    A head holds, for each of N anchors (the places that the network looks at), a box and the scores
    of that box for C classes. The best scores above the confidence are selected; non-maximum
    suppression follows if the options have an IoU limit.

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
        anchor_count = head.shape[1]
        options = replace(options, max_det=min(options.max_det, anchor_count))

    scores = head[4:]  # (C, N)
    class_ids = np.arange(len(scores))  # (C,)
    if options.class_ids is not None:
        class_ids = np.array(sorted(options.class_ids), np.int64)
        scores = scores[class_ids]
    scores = scores.astype(np.float32, copy=False)

    if options.conf_thresholds is None:
        anchors, score, class_index = _select_scores(scores, options)
    else:
        candidates, candidate_scores = _apply_class_thresholds(scores, class_ids, options)
        positions, score, class_index = _select_scores(candidate_scores, options)
        anchors = candidates[positions]

    boxes = _to_corners(head[:4, anchors].T.astype(np.float32), cxcywh=cxcywh)
    selection = SelectedBoxes(boxes, score, class_ids[class_index])
    if options.blends:
        # boxes are weighted by scores, not by logits
        return _blend_duplicates(_convert_scores(selection, logits=logits), options)
    remaining = _suppress_duplicates(selection, options)
    return _convert_scores(remaining, logits=logits)


def _select_scores(scores: Floats, options: SelectionOptions) -> tuple[Indices, Floats, Indices]:
    """Select the scores that become detections, before non-maximum suppression.

    An anchor may be selected with every class whose score is above the confidence, with its best
    class only, or, as the specification of this module says, with several of its best ones.

    Args:
        scores: `(C, N)`, the scores of each of N anchors for C classes.
        options: The confidence, which classes of an anchor count, and how many scores to keep.

    Returns:
        The anchor, the score and the row of `scores` of each detection, `(M,)` each, best first.
    """
    if options.suppresses_every_class:
        return _select_every_class(scores, options)
    if options.multi_label is MultiLabel.NEVER or options.nms_iou is not None:
        return _select_best_class(scores, options)
    return _select_one_to_one(scores, options)


def on_logits(options: SelectionOptions) -> SelectionOptions:
    """Return the options that select from logits what these select from scores.

    A score is the sigmoid of its logit. The confidences become logits too, so that the network's
    logits are compared without computing their sigmoids.
    """
    thresholds = options.conf_thresholds
    if thresholds is not None:
        thresholds = tuple(logit_threshold(threshold) for threshold in thresholds)
    return replace(options, conf=logit_threshold(options.conf), conf_thresholds=thresholds)


def select_rows(
    rows: HeadArray, options: SelectionOptions, class_count: int, *, cxcywh: bool = False
) -> SelectedBoxes:
    """Select the detections of one image from the rows of a graph that selects boxes itself.

    Such a graph ends in a row for each detection. Rows that are strictly above the confidence of
    their class stay, if the class is asked for. Of these, the `max_det` best are kept, of equals
    the lower row first; or with an IoU limit, those that non-maximum suppression leaves. A row
    whose class does not exist is dropped with a warning. The rows do not tell which of them come
    from the same anchor, so `multi_label` changes nothing.

    Args:
        rows: `(R, 6)` x1, y1, x2, y2, score, class id; padding has a score of 0.
        options: Which detections to keep.
        class_count: The number of classes of the model.
        cxcywh: Whether boxes are centre and size instead of two corners.

    Returns:
        The boxes with their scores and classes, best first.
    """
    rows = confident_rows(rows, options.conf, class_count)
    if options.conf_thresholds is not None:
        thresholds = np.array(options.conf_thresholds, np.float32)  # (C,)
        threshold_of_row = thresholds[rows[:, 5].astype(np.int64)]  # (R,)
        rows = rows[rows[:, 4] > threshold_of_row]
    if options.class_ids is not None:
        rows = rows[np.isin(rows[:, 5], sorted(options.class_ids))]

    if options.nms_iou is None:
        max_rows = options.max_det
    else:
        max_rows = len(rows)  # all of them are candidates for suppression
    _, best = top_k(rows[:, 4], max_rows)
    rows = rows[best]
    boxes = _to_corners(rows[:, :4], cxcywh=cxcywh)
    selection = SelectedBoxes(boxes, rows[:, 4], rows[:, 5].astype(np.int64))
    if options.blends:
        return _blend_duplicates(_convert_scores(selection), options)
    remaining = _suppress_duplicates(selection, options)
    return _convert_scores(remaining)


def confident_rows(rows: HeadArray, conf: float, class_count: int) -> Floats:
    """Find the rows of a graph that selects boxes itself whose scores are above a confidence.

    A row whose class does not exist, which only a broken graph gives, is dropped with a warning. So
    is a row whose score is NaN.

    Args:
        rows: `(R, 6)` x1, y1, x2, y2, score, class id.
        conf: The confidence that scores must be strictly above.
        class_count: The number of classes of the model.

    Returns:
        The remaining rows as float32, in their order.
    """
    all_rows: Floats = rows.astype(np.float32, copy=False)
    nan_count = np.count_nonzero(np.isnan(all_rows[:, 4]))
    warn_about_nan(int(nan_count), len(all_rows))
    confident: Floats = all_rows[all_rows[:, 4] > np.float32(conf)]
    class_id = confident[:, 5]  # a float, which a broken graph may give a fraction
    is_whole = class_id == np.floor(class_id)
    class_exists = (class_id >= 0) & (class_id < class_count) & is_whole
    if not class_exists.all():
        unknown_ids = class_id[~class_exists]
        warn(
            f"{len(unknown_ids)} rows have an unknown class id, such as "
            f"{unknown_ids[0]:g}, and were dropped; a file of names can name all classes"
        )
    rows_with_class: Floats = confident[class_exists]
    return rows_with_class


def as_selection(rows: Floats, *, logits: bool = False) -> SelectedBoxes:
    """Turn the rows that a backend has selected into boxes, scores from 0 to 1 and classes.

    Args:
        rows: `(M, 6)` x1, y1, x2, y2, score, class id, best first.
        logits: Whether logits are in place of the scores.
    """
    selection = SelectedBoxes(rows[:, :4], rows[:, 4], rows[:, 5].astype(np.int64))
    return _convert_scores(selection, logits=logits)


def warn_about_nan(nan_count: int, score_count: int) -> None:
    """Warn if there are NaN among an image's scores."""
    if nan_count:
        warn(f"{nan_count} of {score_count} scores are NaN and were ignored{NAN_CAUSES}")


def _convert_scores(selection: SelectedBoxes, *, logits: bool = False) -> SelectedBoxes:
    """Convert the scores of the selected boxes to the scores of detections, from 0 to 1.

    If they are logits, they are replaced by their sigmoids. Other scores are limited to 1, which
    those of quantised heads may exceed; for far larger ones there is also a warning.
    """
    boxes, score, class_id = selection
    if logits:
        return SelectedBoxes(boxes, sigmoid(score), class_id)
    if score.size and score[0] > MAX_PLAUSIBLE_SCORE:  # the first score is the highest
        warn("scores reach far above 1, as if the model ended without a sigmoid")
    return SelectedBoxes(boxes, np.minimum(score, np.float32(1)), class_id)


def _apply_class_thresholds(
    scores: Floats, class_ids: Indices, options: SelectionOptions
) -> tuple[Indices, Floats]:
    """Apply the confidence of each class: replace the scores that are not above it by -inf.

    Most anchors have no score above the lowest confidence of all classes. They are left out, so
    that the scores of each class are compared for few anchors only.

    Args:
        scores: `(C, N)`, the scores of each of N anchors for C classes.
        class_ids: `(C,)`, the ids of these classes.
        options: With `conf_thresholds`, the confidence of each class by its id, and with `conf`,
            the lowest of them.

    Returns:
        `(A,)`, the indices, ascending, of the anchors with any score above the lowest confidence;
        and `(C, A)`, their scores, where NaN is -inf too.
    """
    thresholds = np.array(options.conf_thresholds, np.float32)[class_ids]  # (C,)
    lowest_threshold = np.float32(options.conf)
    candidates = np.flatnonzero(_best_score_of_anchors(scores) > lowest_threshold)  # (A,)
    candidate_scores = scores[:, candidates]  # (C, A)
    is_confident = candidate_scores > thresholds[:, np.newaxis]  # (C, A), never of NaN
    return candidates, np.where(is_confident, candidate_scores, np.float32(-np.inf))


def _select_one_to_one(
    scores: Floats, options: SelectionOptions
) -> tuple[Indices, Floats, Indices]:
    """Select the best scores of the best anchors, for a network trained to need no suppression.

    Such a one-to-one network gives each object to a single anchor. An anchor may be selected
    several times, with different classes.

    Args:
        scores: `(C, N)`, the scores of each of N anchors for C classes.
        options: The lowest confidence, and the number of detections to keep.

    Returns:
        The anchor, the score and the row of `scores` of each detection, `(M,)` each, best first.
    """
    anchors, min_score = _best_anchors(_best_score_of_anchors(scores), options)  # (K,) best first
    # In the flattened scores, all classes of the best anchor come first, and so on: the position of
    # a score is (rank of the anchor) * C + class.
    flat_scores = scores[:, anchors].T.ravel()  # (K * C,)
    positions = np.flatnonzero(flat_scores >= min_score)
    # Of equal scores, `top_k` prefers the lower position, which is that of the better anchor.
    score, best = top_k(flat_scores[positions], options.max_det)  # (M,)
    class_count = len(scores)
    anchor_rank, class_index = np.divmod(positions[best], class_count)
    return anchors[anchor_rank], score, class_index


def _best_anchors(anchor_score: Floats, options: SelectionOptions) -> tuple[Indices, np.float32]:
    """Find the `max_det` anchors with the best scores, or all that are above the confidence.

    Every detection comes from one of these anchors. The second result saves work later on: it is
    the lowest score that a detection can have.

    - If no more than `max_det` anchors are above the confidence, that is the lowest float32 number
      above the confidence.
    - If there are more, the best scores of the `max_det` best anchors alone are enough detections,
      so a score below the lowest of these is not selected.

    Args:
        anchor_score: `(N,)`, the best score of each anchor.
        options: The confidence, and the number of detections to keep.

    Returns:
        The indices of the anchors, `(K,)`, best first; and the lowest score of a detection.
    """
    conf = np.float32(options.conf)
    is_confident = anchor_score > conf
    if np.count_nonzero(is_confident) > options.max_det:
        best_scores, best_anchors = top_k(anchor_score, options.max_det)
        return best_anchors, best_scores[-1]
    anchors = np.flatnonzero(is_confident)
    order = rank_descending(anchor_score[anchors])  # of equals the lower anchor first
    lowest_above_conf = np.nextafter(conf, np.float32(np.inf))
    return anchors[order], lowest_above_conf


def _select_best_class(
    scores: Floats, options: SelectionOptions
) -> tuple[Indices, Floats, Indices]:
    """Select the anchors above the confidence, each with its best class only.

    Of classes with equal scores, the lowest counts; of anchors with equal scores, the lower one
    comes first. At most `max_det` anchors are left, or all of them if non-maximum suppression is to
    follow, which limits their number itself.

    Args:
        scores: `(C, N)`, the scores of each of N anchors for C classes.
        options: The confidence, and the number of detections to keep.

    Returns:
        The anchor, the score and the row of `scores` of each detection, `(M,)` each, best first.
    """
    anchor_score = _best_score_of_anchors(scores)  # (N,)
    anchors = np.flatnonzero(anchor_score > np.float32(options.conf))
    anchors = anchors[rank_descending(anchor_score[anchors])]
    if options.nms_iou is None:
        anchors = anchors[: options.max_det]
    score = anchor_score[anchors]
    # `argmax` of the comparison finds the first class that has the best score. `argmax` of the
    # scores themselves would choose a NaN.
    has_best_score = scores[:, anchors] == score  # (C, K)
    return anchors, score, np.argmax(has_best_score, axis=0)


def _select_every_class(
    scores: Floats, options: SelectionOptions
) -> tuple[Indices, Floats, Indices]:
    """Select each anchor with each class whose score is above the confidence.

    All of them are candidates for non-maximum suppression, so their number is not limited here. Of
    equal scores, that of the lower anchor comes first, and of one anchor, that of the lower class.

    Args:
        scores: `(C, N)`, the scores of each of N anchors for C classes.
        options: The confidence.

    Returns:
        The anchor, the score and the row of `scores` of each candidate, `(M,)` each, best first.
    """
    _best_score_of_anchors(scores)  # only for its warning about NaN
    scores_of_anchors = scores.T  # (N, C)
    is_confident = scores_of_anchors > np.float32(options.conf)
    anchors, class_index = np.nonzero(is_confident)
    score = scores[class_index, anchors]
    order = rank_descending(score)
    return anchors[order], score[order], class_index[order]


def _best_score_of_anchors(scores: Floats) -> Floats:
    """Find the highest score of each anchor, with a warning if there are NaN.

    Args:
        scores: `(C, N)`, the scores of each of N anchors for C classes.

    Returns:
        `(N,)`, without NaN except for anchors whose scores are all NaN.
    """
    best: Floats = scores.max(axis=0)
    # The maximum of numbers with a NaN is NaN. So the maximum of all tells whether there is any,
    # and the scores need not be searched.
    has_nan = best.size > 0 and np.isnan(best.max())
    if has_nan:
        nan_count = int(np.count_nonzero(np.isnan(scores)))
        warn_about_nan(nan_count, scores.size)
        best = np.fmax.reduce(scores, axis=0)  # ignores NaN
    return best


def _to_corners(boxes: Floats, *, cxcywh: bool) -> Floats:
    """Convert boxes `(K, 4)`, with `cxcywh` of centre and size, to x1, y1, x2, y2."""
    if not cxcywh:
        return boxes
    centre = boxes[:, :2]
    half_size = boxes[:, 2:] / np.float32(2)
    return np.concatenate([centre - half_size, centre + half_size], axis=1)


def _suppress_duplicates(selection: SelectedBoxes, options: SelectionOptions) -> SelectedBoxes:
    """Drop the boxes that overlap a better box, if the options ask for non-maximum suppression.

    Only boxes of the same class are compared, or all of them if the options are class-agnostic.

    Args:
        selection: The candidates, best first.
        options: With `nms_iou`, the intersection over union above which two boxes are duplicates,
            or None for no suppression.

    Returns:
        The remaining boxes, best first: with suppression, at most `max_det`.
    """
    if options.nms_iou is None:
        return selection
    boxes, score, class_id = selection
    compared_classes = _classes_to_compare(class_id, options)
    remaining = non_maximum_suppression(boxes, compared_classes, options.nms_iou, options.max_det)
    return SelectedBoxes(boxes[remaining], score[remaining], class_id[remaining])


def _blend_duplicates(selection: SelectedBoxes, options: SelectionOptions) -> SelectedBoxes:
    """Blend the boxes that overlap a better box into that, as BlazeFace does.

    Args:
        selection: The candidates, best first, with scores from 0 to 1.
        options: With `nms_iou`, the intersection over union above which boxes are blended.

    Returns:
        The blended boxes with the best score of each, best first: at most `max_det`.
    """
    if options.nms_iou is None:
        return selection
    boxes, score, class_id = selection
    blended_boxes, best = blend_overlapping(
        boxes,
        score,
        _classes_to_compare(class_id, options),
        iou_threshold=options.nms_iou,
        limit=options.max_det,
    )
    return SelectedBoxes(blended_boxes, score[best], class_id[best])


def _classes_to_compare(class_id: Indices, options: SelectionOptions) -> Indices:
    """Return the class of each box, or 0 for all where suppression ignores classes."""
    if options.class_agnostic:
        return np.zeros_like(class_id)
    return class_id
