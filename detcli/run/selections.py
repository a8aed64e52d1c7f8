"""Which detections a detector selects from its network's outputs, on the device and afterwards."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from detcli.backend.postprocess import SelectionOptions
from detcli.config.config import Settings, effective_conf
from detcli.data.detections import Detections
from detcli.data.suppression import non_maximum_suppression
from detcli.data.topk import rank_descending
from detcli.model.contract import (
    Contract,
    MultiLabel,
    Suppression,
    class_ids,
    conf_thresholds,
)


class Selections:
    """The selections that a detector runs on each image, and how they become one result.

    Usually there is one: the detections above the confidence. Where barcodes are read there is a
    second one with a lower confidence, whose detections fill the room that the first leaves.
    """

    def __init__(
        self,
        confident_selection: SelectionOptions,
        conf_thresholds: npt.NDArray[np.float32],
        lower_selection: SelectionOptions | None = None,
    ) -> None:
        """Combine one or two selections.

        Args:
            confident_selection: Selects the detections above the confidence.
            conf_thresholds: `(C,)`, that confidence for each of the C classes.
            lower_selection: Selects all detections above a lower confidence, including those above
                the higher one; None if there is no such selection.
        """
        self.confident_selection = confident_selection
        self._conf_thresholds = conf_thresholds
        self._lower_selection = lower_selection

    def with_lower_conf(self, conf: float) -> "Selections":
        """Return these selections, with an additional one for detections above a lower confidence.

        Args:
            conf: The lower confidence, for all classes. A class whose confidence is even lower
                keeps that.
        """
        lowered_thresholds = np.minimum(self._conf_thresholds, np.float32(conf))
        lower_selection = self.confident_selection.with_conf_thresholds(lowered_thresholds)
        return Selections(
            confident_selection=self.confident_selection,
            conf_thresholds=self._conf_thresholds,
            lower_selection=lower_selection,
        )

    @property
    def options(self) -> list[SelectionOptions]:
        """The options of each selection; `joined` takes their results in this order."""
        if self._lower_selection is None:
            return [self.confident_selection]
        return [self.confident_selection, self._lower_selection]

    def joined(self, results_by_selection: Sequence[list[Detections]]) -> list[Detections]:
        """Join the results of the selections into one list of detections for each image.

        Args:
            results_by_selection: The detections of each image above the confidence; then, where
                there is a second selection, those above the lower confidence.

        Returns:
            The detections of each image, best first.
        """
        if self._lower_selection is None:
            [confident_results] = results_by_selection
            return confident_results
        confident_results, lower_results = results_by_selection
        results = []
        for confident, lower in zip(confident_results, lower_results, strict=True):
            results.append(self._filled_up(confident, lower))
        return results

    def _filled_up(self, confident: Detections, lower: Detections) -> Detections:
        """Fill up the detections above the confidence with those below it, to `max_det` at most.

        Args:
            confident: The detections of an image above the confidence, at most `max_det`.
            lower: All of its detections above the lower confidence, best first.

        Returns:
            At most `max_det` detections, best first.
        """
        is_below_confidence = lower.score <= self._conf_thresholds[lower.class_id]
        additional = lower[is_below_confidence]
        missing_count = max(self.confident_selection.max_det - len(confident), 0)
        filled_up = Detections.concat([confident, additional[:missing_count]])
        return filled_up[rank_descending(filled_up.score)]


def selection_options(
    contract: Contract,
    settings: Settings,
    nms_iou: float | None,
    conf_thresholds: npt.NDArray[np.float32],
) -> SelectionOptions:
    """Combine what the user asked for and what the model needs into the options of a selection.

    Args:
        contract: What the model says about itself, such as how its detections are selected.
        settings: What the user asked for.
        nms_iou: The IoU above which non-maximum suppression drops a box; None for no suppression.
        conf_thresholds: `(C,)`, what the scores of each of the C classes must exceed.

    Raises:
        UsageError: The settings name a class that the model does not have.
    """
    max_det = settings.max_det
    if contract.max_detections:  # the model outputs no more
        max_det = min(max_det, contract.max_detections)

    multi_label = contract.multi_label  # whether an anchor may give detections of several classes
    if settings.unique:  # --unique: only the best class of each anchor
        multi_label = MultiLabel.NEVER

    # Whether boxes that overlap become their mean, instead of the best of them alone.
    blends_boxes = nms_iou is not None and contract.suppression is Suppression.BLEND

    selection = SelectionOptions(
        conf=float(conf_thresholds.min()),
        max_det=max_det,
        class_ids=class_ids(settings.classes, contract.names),
        nms_iou=nms_iou,
        multi_label=multi_label,
        class_agnostic=contract.class_agnostic or settings.agnostic_nms,
        blends=blends_boxes,
        within_anchors=contract.within_anchors,
    )
    return selection.with_conf_thresholds(conf_thresholds)


def suppress_across_classes(
    results: Sequence[Detections], selection: SelectionOptions
) -> list[Detections]:
    """Drop boxes that overlap a better box of any class, if the selection compares all classes.

    Within each tile, that has already been done. But in two tiles that overlap, one object may have
    been detected with two classes.

    Args:
        results: The detections of each image, merged from its tiles, best first.
        selection: How detections are selected. With `nms_iou` and `class_agnostic`, boxes of all
            classes are compared with each other; otherwise all detections are kept.

    Returns:
        The detections of each image that are kept, best first.
    """
    if not selection.class_agnostic or selection.nms_iou is None:
        return list(results)

    remaining_results = []
    for detections in results:
        # The function compares only boxes of one class, so all are passed as one class.
        same_class_ids = np.zeros_like(detections.class_id)
        remaining = non_maximum_suppression(
            detections.xyxy, same_class_ids, selection.nms_iou, limit=len(detections)
        )
        remaining_results.append(detections[remaining])
    return remaining_results


def default_conf_thresholds(contract: Contract) -> npt.NDArray[np.float32]:
    """Return what the scores of each class must exceed by default.

    Returns:
        `(C,)`, a threshold for each of the C classes.
    """
    conf = effective_conf(Settings(), contract.conf)
    return conf_thresholds(conf, contract.class_conf, contract.names)


def crowd_selection(
    selection: SelectionOptions, default_thresholds: npt.NDArray[np.float32], crowd: int
) -> SelectionOptions:
    """Make the selection whose detections are counted to decide whether an image shows a crowd.

    It is the user's selection without the filters: it has all classes, the confidence that the
    model recommends, and enough detections for a crowd. So the filters do not change which images
    are cut into tiles.

    Args:
        selection: The selection that the user asked for.
        default_thresholds: `(C,)`, the recommended confidence of each of the C classes.
        crowd: How many detections are a crowd.
    """
    all_classes = replace(selection, class_ids=None, max_det=max(selection.max_det, crowd))
    return all_classes.with_conf_thresholds(default_thresholds)


def covering_selection(selections: Sequence[SelectionOptions]) -> SelectionOptions | None:
    """Find one selection that can replace several, so that the device selects only once.

    That is possible if the selections differ only in their confidence and `max_det`. It then has
    the lowest confidence and the highest `max_det`. Its detections are ordered by score, so each of
    the other selections has the first few of them: `results_of_each_selection` takes these.

    Returns:
        The covering selection; None if the selections differ in other ways.
    """
    if len(selections) == 1:  # as nearly always, and for each batch
        return selections[0]

    covering = replace(
        selections[0],
        conf=min(options.conf for options in selections),
        max_det=max(options.max_det for options in selections),
    )
    for options in selections:
        # With the limits of the other selection, the covering one has to be equal to it.
        with_same_limits = replace(covering, conf=options.conf, max_det=options.max_det)
        differs_otherwise = options != with_same_limits
        # A blended box is the mean of all boxes above the confidence. A lower confidence adds
        # boxes, and so moves the mean.
        would_move_boxes = options.blends and options.conf != covering.conf
        if differs_otherwise or would_move_boxes:
            return None
    return covering


def results_of_each_selection(
    selections: Sequence[SelectionOptions], covering_results: Sequence[Detections]
) -> list[list[Detections]]:
    """Take the detections of several selections from those of the selection that covers them.

    Args:
        selections: The selections.
        covering_results: The detections of each image by the selection that `covering_selection`
            has returned for them.

    Returns:
        For each selection, the detections of each image.
    """
    results_by_selection = []
    for options in selections:
        results = [_first_detections(detections, options) for detections in covering_results]
        results_by_selection.append(results)
    return results_by_selection


def _first_detections(detections: Detections, options: SelectionOptions) -> Detections:
    """Reduce the detections of a covering selection to those that a selection itself would return.

    Args:
        detections: What the selection from `covering_selection` found, best first.
        options: One of the selections that it covers.
    """
    confident = detections
    if options.conf_thresholds is None:  # otherwise the covering selection has the same thresholds
        confident = detections[detections.score > np.float32(options.conf)]
    return confident[: options.max_det]
