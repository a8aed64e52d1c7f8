"""From the network's head to detections: the specification for every backend.

The head of one image is `(4 + C, N)`: four box rows in canvas pixels, then the score of each
class; N anchors. It is never transposed in memory: a `(N, 4 + C)` head is passed as a view with its
axes swapped.

`select` is `v10postprocess` of the YOLOv10 authors (https://github.com/THU-MIG/yolov10) with ties
settled as in `detcli.data.topk`, so that its rows and their order are fully determined:

1. The score of an anchor for a class is used only if it is strictly above the confidence of that
   class. Anchor score = maximum of its scores that are used; an anchor without any is left out.
2. Keep the `max_det` anchors with the highest anchor score; among equal ones, the lower anchor
   first.
3. Keep the `max_det` highest of their `K x C` scores that are used. The position of a score is the
   rank of its anchor times C, plus its class; among equal scores, the lower position comes first:
   the better anchor, and within an anchor the lower class. Where only an anchor's best class is
   used, that is the lowest of equally good ones.

Where all classes have the same confidence, it does not matter whether it is applied first or last:
all scores that are not above it rank after those that are.

NaN ranks below everything and is never used. Scores are compared as float32; those of quantised
heads may exceed 1 and are clipped to 1 at the end. The scores of a head may be logits: these are
compared instead, even where the sigmoid rounds two of them to the same score. At the end, the
sigmoid is applied to those that are kept, on the host, for every backend.

A one-to-many head holds several boxes for each object. With an IoU limit, class-aware non-maximum
suppression of each anchor's best class replaces steps 2 and 3; it drops duplicates, or blends them
into the box that stays. With `MultiLabel.NEVER`, too, only an anchor's best class is used: at most
one row for each anchor. The best class is one whose score is above its confidence.

A graph that selects for itself ends in rows instead, `(R, 6)`: `select_rows` keeps those that are
wanted.
"""

from dataclasses import replace
from typing import NamedTuple

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
# quantised head may result in 1.5.
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
    class_agnostic: bool = False  # NMS compares boxes of all classes, not only of the same class
    blends: bool = False  # NMS blends the boxes that it drops into the one that stays
    # By class id, what the scores of each class must be strictly above; None if it is the same for
    # all
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


class _SelectedScores(NamedTuple):
    """The scores of a head that become detections, best first: `(M,)` each."""

    anchor: Indices  # the column of the score, whose box it belongs to
    score: Floats
    class_index: Indices  # the row of the score


def detect(output: HeadArray, options: SelectionOptions, contract: Contract) -> SelectedBoxes:
    """Select the detections of one image from the network's output for it.

    Most networks end in a head, which holds a box and the scores of all classes for each of
    thousands of anchors, the places that the network looks at. Others select boxes themselves and
    end in rows, one for each detection.

    Args:
        output: As the contract says, a head `(4 + C, N)` or `(N, 4 + C)` of 4 box rows and C scores
            for each of N anchors, or rows `(R, 6)` of x1, y1, x2, y2, score, class id.
        options: Which detections to keep.
        contract: What the model says about its output.

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
        options: Which detections to keep. With `class_ids`, the scores of other classes are
            ignored.
        cxcywh: Whether the box rows are centre and size instead of two corners.
        logits: Whether the scores are logits.

    Returns:
        At most `max_det` boxes with their scores and classes, best first.
    """
    box_rows = head[:4]  # (4, N)
    scores = head[4:]  # (C, N)
    if logits:
        options = on_logits(options)
    if options.within_anchors:
        anchor_count = head.shape[1]
        options = replace(options, max_det=min(options.max_det, anchor_count))

    class_ids = np.arange(len(scores))  # (C,)
    if options.class_ids is not None:  # only these classes are left: C is their number now
        class_ids = np.array(sorted(options.class_ids), np.int64)
        scores = scores[class_ids]
    scores = scores.astype(np.float32, copy=False)

    if options.conf_thresholds is None:
        selected = _select_scores(scores, options)
    else:
        selected = _select_scores_by_class(scores, class_ids, options)

    selected_boxes = box_rows[:, selected.anchor].T.astype(np.float32)  # (K, 4)
    boxes = _to_corners(selected_boxes, cxcywh=cxcywh)
    selection = SelectedBoxes(boxes, selected.score, class_ids[selected.class_index])
    return _without_duplicates(selection, options, logits=logits)


def _select_scores(scores: Floats, options: SelectionOptions) -> _SelectedScores:
    """Select the scores of a head that become detections, or candidates for suppression (NMS).

    Which scores above the confidence these are depends on the options:

        NMS that compares all classes of an anchor      all of them
        other NMS, or only one class of an anchor       the best score of each anchor
        no NMS, and any number of classes               the best `max_det` of all

    Args:
        scores: `(C, N)`, the scores of each of N anchors for C classes.
        options: The confidence, which classes of an anchor are used, and how many scores to keep.
    """
    if options.suppresses_every_class:
        return _select_every_class(scores, options)
    has_nms = options.nms_iou is not None
    if has_nms or options.multi_label is MultiLabel.NEVER:
        return _select_best_class(scores, options)
    return _select_scores_of_best_anchors(scores, options)


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
    their class stay, if the class is asked for. Of these, the `max_det` best are kept, among equal
    ones the lower row first; or with an IoU limit, those that non-maximum suppression leaves. A row
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
    return _without_duplicates(selection, options)


def confident_rows(rows: HeadArray, conf: float, class_count: int) -> Floats:
    """Find the rows of a graph that selects boxes itself whose scores are above a confidence.

    A row whose class does not exist, which only a broken graph outputs, is dropped with a warning.
    So is a row whose score is NaN.

    Args:
        rows: `(R, 6)` x1, y1, x2, y2, score, class id.
        conf: The confidence that scores must be strictly above.
        class_count: The number of classes of the model.

    Returns:
        The remaining rows as float32, in their order.
    """
    all_rows: Floats = rows.astype(np.float32, copy=False)
    scores = all_rows[:, 4]
    nan_count = np.count_nonzero(np.isnan(scores))
    warn_about_nan(int(nan_count), len(all_rows))
    confident: Floats = all_rows[scores > np.float32(conf)]

    class_ids = confident[:, 5]  # floats; a broken graph may output fractions
    is_whole = class_ids == np.floor(class_ids)
    class_exists = (class_ids >= 0) & (class_ids < class_count) & is_whole
    _warn_about_unknown_classes(class_ids[~class_exists])
    rows_with_class: Floats = confident[class_exists]
    return rows_with_class


def _warn_about_unknown_classes(unknown_ids: Floats) -> None:
    """Warn if rows were dropped because their class ids are not those of classes."""
    if unknown_ids.size:
        warn(
            f"{len(unknown_ids)} rows have an unknown class id, such as "
            f"{unknown_ids[0]:g}, and were dropped; a file of names can name all classes"
        )


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


def _convert_scores(selection: SelectedBoxes, *, logits: bool) -> SelectedBoxes:
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


def _select_scores_by_class(
    scores: Floats, class_ids: Indices, options: SelectionOptions
) -> _SelectedScores:
    """Select scores as `_select_scores` does, but with a different confidence for each class.

    Most anchors have no score above the lowest confidence of all classes. They are left out first,
    so that few scores have to be compared with the confidence of their class.

    Args:
        scores: `(C, N)`, the scores of each of N anchors for C classes.
        class_ids: `(C,)`, the ids of these classes.
        options: With `conf_thresholds`, the confidence of each class by its id, and with `conf`,
            the lowest of them.
    """
    lowest_threshold = np.float32(options.conf)
    candidates = np.flatnonzero(_best_score_of_anchors(scores) > lowest_threshold)  # (A,)
    candidate_scores = scores[:, candidates]  # (C, A)

    thresholds = np.array(options.conf_thresholds, np.float32)[class_ids]  # (C,)
    is_confident = candidate_scores > thresholds[:, np.newaxis]  # (C, A), False for NaN
    # Scores that are not above the confidence of their class become -inf, which is never selected.
    confident_scores = np.where(is_confident, candidate_scores, np.float32(-np.inf))
    selected = _select_scores(confident_scores, options)
    anchors_of_head = candidates[selected.anchor]  # instead of positions among the candidates
    return selected._replace(anchor=anchors_of_head)


def _select_scores_of_best_anchors(scores: Floats, options: SelectionOptions) -> _SelectedScores:
    """Select the best scores of the best anchors, for a network that needs no suppression.

    Such a network was trained to find each object with a single anchor. An anchor may be selected
    several times, with different classes.

    Args:
        scores: `(C, N)`, the scores of each of N anchors for C classes.
        options: The confidence, and the number of detections to keep.
    """
    class_count = len(scores)
    anchor_score = _best_score_of_anchors(scores)  # (N,)
    anchors = _best_anchors(anchor_score, options)  # (K,), the best first
    # The scores of the best anchor for all C classes, then those of the second, and so on.
    flat_scores = scores[:, anchors].T.ravel()  # (K * C,)

    # Leave out scores that cannot be among the best `max_det`, so that they need not be sorted. If
    # there are `max_det` anchors, their best scores fill all places: no lower score is selected.
    if len(anchors) < options.max_det:
        is_candidate = flat_scores > np.float32(options.conf)
    else:
        lowest_best_score = anchor_score[anchors].min(initial=np.inf)  # inf if `max_det` is 0
        is_candidate = flat_scores >= lowest_best_score
    candidate_positions = np.flatnonzero(is_candidate)  # in `flat_scores`

    # Among equal scores, `top_k` prefers the lower position, which is that of the better anchor.
    score, best = top_k(flat_scores[candidate_positions], options.max_det)  # (M,)
    selected_positions = candidate_positions[best]  # (M,), in `flat_scores`
    anchor_rank, class_index = np.divmod(selected_positions, class_count)
    return _SelectedScores(anchors[anchor_rank], score, class_index)


def _best_anchors(anchor_score: Floats, options: SelectionOptions) -> Indices:
    """Find the anchors with scores above the confidence, but at most the `max_det` best of them.

    Args:
        anchor_score: `(N,)`, the best score of each anchor.
        options: The confidence, and the number of detections to keep.

    Returns:
        The indices of the anchors, `(K,)`, best first, among equal ones the lower index first.
    """
    is_confident = anchor_score > np.float32(options.conf)
    if np.count_nonzero(is_confident) > options.max_det:
        _, best_anchors = top_k(anchor_score, options.max_det)
        return best_anchors
    confident_anchors = np.flatnonzero(is_confident)
    order = rank_descending(anchor_score[confident_anchors])
    return confident_anchors[order]


def _select_best_class(scores: Floats, options: SelectionOptions) -> _SelectedScores:
    """Select the anchors above the confidence, each with its best class only.

    Among classes with equal scores, the lowest is used; among anchors with equal scores, the lower
    one comes first. At most `max_det` anchors are left, or all of them if non-maximum suppression
    is to follow, which limits their number itself.

    Args:
        scores: `(C, N)`, the scores of each of N anchors for C classes.
        options: The confidence, and the number of detections to keep.
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
    best_class = np.argmax(has_best_score, axis=0)
    return _SelectedScores(anchors, score, best_class)


def _select_every_class(scores: Floats, options: SelectionOptions) -> _SelectedScores:
    """Select each anchor with each class whose score is above the confidence, the best first.

    All of them are candidates for non-maximum suppression, so their number is not limited here.
    Where scores are equal, the lower anchor comes first, and within an anchor the lower class.

    Args:
        scores: `(C, N)`, the scores of each of N anchors for C classes.
        options: The confidence.
    """
    if _has_nan(scores):
        warn_about_nan(int(np.count_nonzero(np.isnan(scores))), scores.size)

    # `nonzero` goes through the rows: with a row for each anchor, its results are sorted by anchor,
    # then by class.
    scores_of_anchors = scores.T  # (N, C)
    is_confident = scores_of_anchors > np.float32(options.conf)
    anchors, class_index = np.nonzero(is_confident)
    selected_score = scores[class_index, anchors]
    order = rank_descending(selected_score)
    return _SelectedScores(anchors[order], selected_score[order], class_index[order])


def _best_score_of_anchors(scores: Floats) -> Floats:
    """Find the highest score of each anchor, with a warning if there are NaN.

    Args:
        scores: `(C, N)`, the scores of each of N anchors for C classes.

    Returns:
        `(N,)`, without NaN except for anchors whose scores are all NaN.
    """
    best: Floats = scores.max(axis=0)
    if _has_nan(best):  # as where any score of an anchor is NaN
        nan_count = int(np.count_nonzero(np.isnan(scores)))
        warn_about_nan(nan_count, scores.size)
        best = np.fmax.reduce(scores, axis=0)  # ignores NaN
    return best


def _has_nan(numbers: Floats) -> bool:
    """Return whether any of the numbers is NaN, as their maximum is NaN then, too."""
    return numbers.size > 0 and bool(np.isnan(numbers.max()))


def _to_corners(boxes: Floats, *, cxcywh: bool) -> Floats:
    """Convert boxes `(K, 4)`, with `cxcywh` of centre and size, to x1, y1, x2, y2."""
    if not cxcywh:
        return boxes
    centre = boxes[:, :2]
    half_size = boxes[:, 2:] / np.float32(2)
    return np.concatenate([centre - half_size, centre + half_size], axis=1)


def _without_duplicates(
    selection: SelectedBoxes, options: SelectionOptions, *, logits: bool = False
) -> SelectedBoxes:
    """Suppress or blend duplicate boxes as the options say, and convert the scores.

    Args:
        selection: The candidates, best first.
        options: Which boxes are duplicates, and whether they are blended.
        logits: Whether logits are in place of the scores.

    Returns:
        The remaining boxes, best first, with scores from 0 to 1.
    """
    if options.blends:
        # Boxes are weighted by their scores when they are blended, so logits are converted first.
        return _blend_duplicates(_convert_scores(selection, logits=logits), options)
    remaining = _suppress_duplicates(selection, options)
    return _convert_scores(remaining, logits=logits)


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
