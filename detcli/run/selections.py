"""Which detections a detector selects from what its network gives, on the device and afterwards."""

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
        confident: SelectionOptions,
        conf_thresholds: npt.NDArray[np.float32],
        lower: SelectionOptions | None = None,
    ) -> None:
        """Combine one or two selections.

        Args:
            confident: Selects the detections above the confidence of their class.
            conf_thresholds: `(C,)`, the confidence of each of the C classes, as in `confident`.
            lower: Selects detections above a lower confidence, the confident ones among them;
                None where only these are selected.
        """
        self.confident = confident
        self._conf_thresholds = conf_thresholds
        self._lower = lower

    def with_lower_conf(self, conf: float) -> "Selections":
        """Add a selection of the detections that are above a lower confidence, of whatever class.

        A class whose confidence is lower still keeps that.
        """
        lowered_thresholds = np.minimum(self._conf_thresholds, np.float32(conf))
        lower = self.confident.with_conf_thresholds(lowered_thresholds)
        return Selections(self.confident, self._conf_thresholds, lower)

    @property
    def options(self) -> list[SelectionOptions]:
        """The options of each selection; `joined` takes their results in this order."""
        if self._lower is None:
            return [self.confident]
        return [self.confident, self._lower]

    def joined(self, results_by_selection: Sequence[list[Detections]]) -> list[Detections]:
        """Join the results of all selections to one result for each image.

        Args:
            results_by_selection: For each selection in `options`, the detections of each image.

        Returns:
            The detections of each image, best first.
        """
        if self._lower is None:
            [confident_results] = results_by_selection
            return confident_results
        confident_results, lower_results = results_by_selection
        results = []
        for confident, lower in zip(confident_results, lower_results, strict=True):
            results.append(self._filled_up(confident, lower))
        return results

    def _filled_up(self, confident: Detections, lower: Detections) -> Detections:
        """Add detections of a lower confidence as far as the confident ones leave room for them.

        Args:
            confident: The detections above the confidence, at most `max_det`.
            lower: The detections above a lower confidence, the confident ones among them.

        Returns:
            At most `max_det` detections, best first.
        """
        is_below_confidence = lower.score <= self._conf_thresholds[lower.class_id]
        additional = lower[is_below_confidence]
        room = max(self.confident.max_det - len(confident), 0)
        both = Detections.concat([confident, additional[:room]])
        return both[rank_descending(both.score)]


def confident_selection(
    contract: Contract,
    settings: Settings,
    nms_iou: float | None,
    conf_thresholds: npt.NDArray[np.float32],
) -> SelectionOptions:
    """Return the options by which the detections above the confidence are selected.

    Args:
        contract: What the model promises.
        settings: What the user asked for.
        nms_iou: The IoU above which non-maximum suppression drops a box; None without suppression.
        conf_thresholds: `(C,)`, what the scores of each of the C classes must exceed.

    Raises:
        UsageError: The settings name a class that the model does not have.
    """
    multi_label = contract.multi_label
    if settings.unique:
        multi_label = MultiLabel.NEVER
    selection = SelectionOptions(
        conf=float(conf_thresholds.min()),
        max_det=min(settings.max_det, contract.max_detections or settings.max_det),
        class_ids=class_ids(settings.classes, contract.names),
        nms_iou=nms_iou,
        multi_label=multi_label,
        class_agnostic=contract.class_agnostic or settings.agnostic_nms,
        blends=nms_iou is not None and contract.suppression is Suppression.BLEND,
        within_anchors=contract.within_anchors,
    )
    return selection.with_conf_thresholds(conf_thresholds)


def suppressed_across_classes(
    results: Sequence[Detections], selection: SelectionOptions
) -> list[Detections]:
    """Suppress duplicates of other classes among detections that several tiles have given.

    In each tile that has been done. But of one object, two tiles may show different classes.

    Args:
        results: The detections of each image, merged from its tiles, best first.
        selection: What the user asked for. Unless its suppression compares all classes, nothing is
            left to do.
    """
    if not selection.class_agnostic or selection.nms_iou is None:
        return list(results)
    remaining_results = []
    for detections in results:
        same_class_ids = np.zeros_like(detections.class_id)  # so that all boxes are compared
        remaining = non_maximum_suppression(
            detections.xyxy, same_class_ids, selection.nms_iou, limit=len(detections)
        )
        remaining_results.append(detections[remaining])
    return remaining_results


def default_conf_thresholds(contract: Contract) -> npt.NDArray[np.float32]:
    """Return what the scores of each class must exceed if a user asks for nothing else.

    Returns:
        `(C,)`, a threshold for each of the C classes.
    """
    conf = effective_conf(Settings(), contract.conf)
    return conf_thresholds(conf, contract.class_conf, contract.names)


def crowd_selection(
    selection: SelectionOptions, default_thresholds: npt.NDArray[np.float32], crowd: int
) -> SelectionOptions:
    """Make the selection whose detections are counted to tell whether an image shows a crowd.

    It has all classes and the confidence that the model recommends, so that filters of the user do
    not change which images are cut into tiles.

    Args:
        selection: The selection of the detections that the user asked for.
        default_thresholds: `(C,)`, as from `default_conf_thresholds`.
        crowd: The number of detections from which on they are a crowd.
    """
    unfiltered = replace(selection, class_ids=None).with_conf_thresholds(default_thresholds)
    enough_for_crowd = max(selection.max_det, crowd)
    return replace(unfiltered, max_det=enough_for_crowd)


def covering_selection(selections: Sequence[SelectionOptions]) -> SelectionOptions | None:
    """Find one selection that can replace several, so that the device selects only once.

    Its detections, best first, begin with those of each of the others, see `results_of_covered`.
    Such a selection exists if the others differ only in `max_det` and in a confidence that is the
    same for all classes. Blended boxes need the same confidence, as a lower one moves them.

    Returns:
        That selection, with the lowest confidence and the highest `max_det`; None if there is none.
    """
    if len(selections) == 1:  # as nearly always, and for each batch
        return selections[0]
    covering = replace(
        selections[0],
        conf=min(options.conf for options in selections),
        max_det=max(options.max_det for options in selections),
    )
    for options in selections:
        covered_options = replace(covering, conf=options.conf, max_det=options.max_det)
        differs_otherwise = covered_options != options
        # Blended boxes are means of all boxes above the confidence.
        has_other_boxes = options.blends and options.conf != covering.conf
        if differs_otherwise or has_other_boxes:
            return None
    return covering


def results_of_covered(
    selections: Sequence[SelectionOptions], covering_results: Sequence[Detections]
) -> list[list[Detections]]:
    """Take the results of several selections from the result of the one that covers them.

    Args:
        selections: The selections.
        covering_results: The detections of each image that `covering_selection` gave.

    Returns:
        For each selection, the detections of each image.
    """
    results = []
    for options in selections:
        selected = [_first_detections(detections, options) for detections in covering_results]
        results.append(selected)
    return results


def _first_detections(detections: Detections, options: SelectionOptions) -> Detections:
    """Reduce the detections of a covering selection to those that a selection itself would give.

    Args:
        detections: What the selection that `covering_selection` returned gave, best first.
        options: One of the selections that it covers.
    """
    confident = detections
    if options.conf_thresholds is None:  # otherwise the covering selection has the same thresholds
        confident = detections[detections.score > np.float32(options.conf)]
    return confident[: options.max_det]
