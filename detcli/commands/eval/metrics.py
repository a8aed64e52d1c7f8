"""COCO's figures: average precision and average recall, from what the evaluator accumulated."""

from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from detcli.cli.report import report_field
from detcli.commands.eval.confidence import Curve
from detcli.core import frozen

Doubles = npt.NDArray[np.float64]


def metric_text(value: float) -> str:
    """A figure with three decimals, as people read it."""
    return f"{value:.3f}"


def metric_or_unknown(value: float | None) -> str:
    """A figure as people read it, or "unknown" where no box is labelled."""
    if value is None:
        return "unknown"
    return metric_text(value)


@frozen
class Metrics:
    """COCO's twelve figures, from 0 to 1; each is None if the data has no objects to detect.

    `ar_1` is the average recall of the best detection alone, `ar_10` of the best ten, `ar_100` of
    the best hundred. Small objects have less than 32x32 pixels, large ones 96x96 or more.
    """

    map50_95: float | None = report_field("AP50-95", form=metric_text)
    map50: float | None = report_field("AP50", form=metric_text)
    map75: float | None = report_field("AP75", form=metric_text)
    map_small: float | None = report_field()
    map_medium: float | None = report_field()
    map_large: float | None = report_field()
    ar_1: float | None = report_field()
    ar_10: float | None = report_field()
    ar_100: float | None = report_field("AR", form=metric_text)
    ar_small: float | None = report_field()
    ar_medium: float | None = report_field()
    ar_large: float | None = report_field()

    @classmethod
    def of(cls, precision: Doubles, recall: Doubles) -> Self:
        """Average the precision and recall of the K categories over the axes of both arrays.

        Both arrays hold -1 where a category has no objects of a size; these are left out.

        Args:
            precision: `(10, 101, K, 4, 3)` by IoU from 0.5 to 0.95, recall from 0 to 1, category,
                size (all, small, medium, large), and number of detections (1, 10, 100).
            recall: `(10, K, 4, 3)`, the same without the axis of recall.
        """
        # Indexes on the axes of IoU, size and number of detections.
        iou_50 = 0
        iou_75 = 5
        all_sizes, small, medium, large = range(4)
        best_1, best_10, best_100 = range(3)

        precision_by_size = precision[..., best_100]  # (10, 101, K, 4)
        precision_all_sizes = precision_by_size[..., all_sizes]  # (10, 101, K)
        recall_by_size = recall[..., best_100]  # (10, K, 4)
        recall_all_sizes = recall[..., all_sizes, :]  # (10, K, 3)
        return cls(
            map50_95=_mean_metric(precision_all_sizes),
            map50=_mean_metric(precision_all_sizes[iou_50]),
            map75=_mean_metric(precision_all_sizes[iou_75]),
            map_small=_mean_metric(precision_by_size[..., small]),
            map_medium=_mean_metric(precision_by_size[..., medium]),
            map_large=_mean_metric(precision_by_size[..., large]),
            ar_1=_mean_metric(recall_all_sizes[..., best_1]),
            ar_10=_mean_metric(recall_all_sizes[..., best_10]),
            ar_100=_mean_metric(recall_all_sizes[..., best_100]),
            ar_small=_mean_metric(recall_by_size[..., small]),
            ar_medium=_mean_metric(recall_by_size[..., medium]),
            ar_large=_mean_metric(recall_by_size[..., large]),
        )


def _mean_metric(values: Doubles) -> float | None:
    """The mean of the values that are not -1, which stands for no objects; None if all are."""
    defined = values[values > -1]
    if defined.size == 0:
        return None
    return round(float(defined.mean()), 6)


class Score(NamedTuple):
    """The result for one category; for all, metrics and precision are means, counts are summed."""

    metrics: Metrics
    curve: Curve
    precision: Doubles  # (101,) interpolated, at recall 0, 0.01, ... 1 and IoU 0.5; -1 if no boxes


def mean_precision(precision: Doubles) -> Doubles:
    """Average the precision of categories, `(K, 101)`, over those that have boxes.

    The others have -1 throughout, and so has the mean if no category has boxes.
    """
    with_boxes = precision[precision[:, 0] >= 0]
    mean: Doubles = precision.mean(axis=0)
    if len(with_boxes):
        mean = with_boxes.mean(axis=0)
    return mean
