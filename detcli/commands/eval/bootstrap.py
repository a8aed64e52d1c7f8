"""How sure a difference in mAP is: a paired bootstrap over images.

A test set is a sample of images, and another sample would give another difference. The
bootstrap draws as many images as there are, with replacement, a thousand times. Each time it
computes the mAP of both models on the images that it has drawn, the same ones for both, and the
difference. The interval is what the middle 95% of these differences span: from the 2.5th to the
97.5th percentile.

An image that was drawn three times counts as three images. Matches of detections and objects stay
within an image, so they are computed once; what changes is how often each detection counts.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from detcli.core import frozen

Doubles = npt.NDArray[np.float64]
DrawCounts = npt.NDArray[np.int32]
Indices = npt.NDArray[np.int64]

IOUS = np.linspace(0.5, 0.95, 10)  # of mAP50-95, as COCO's tools compute them
RECALLS = np.linspace(0, 1, 101)  # recalls at which COCO's tools read precision
RESAMPLES = 1000
RESAMPLES_AT_ONCE = 20  # more of them take more memory and no less time
COVERAGE_PERCENT = 95
SEED = 0


class RankedMatches(NamedTuple):
    """Which detections of a category are right at one IoU, by their ascending ranks.

    The detection with the best score has rank 0.
    """

    correct_ranks: Indices  # (T,) of those that match an object
    ignored_ranks: Indices  # (I,) of those that count neither as right nor as wrong: of crowds


class CategoryRanking(NamedTuple):
    """The detections of one category in all images, and the objects to be detected.

    Images are numbered from 0, as the columns of `repeats` are.
    """

    object_images: Indices  # (M,) the image of each object
    detection_images: Indices  # (N,) the image of each detection, by descending score
    matches: Sequence[RankedMatches]  # at each of IOUS

    def average_precisions(self, repeats: DrawCounts) -> Doubles:
        """Compute the average precision of the category on resampled images.

        If an image was drawn twice, each of its detections and objects counts twice. The matches
        within an image stay the same.

        Args:
            repeats: `(R, images)` how often each image was drawn, for each of R resamples.

        Returns:
            `(10, R)` by IoU and resample; NaN where a resample has no object of the category.
        """
        object_counts = repeats[:, self.object_images].sum(axis=1)  # (R,)
        # How often each of the N detections counts, best score first; and how often the best 0, 1,
        # 2 ... N of them count together.
        detection_repeats = repeats[:, self.detection_images]  # (R, N)
        best_detection_counts = _running_sums(detection_repeats)  # (R, N + 1)

        average_precisions = np.empty((len(self.matches), len(repeats)))
        for iou_index, matches in enumerate(self.matches):
            average_precisions[iou_index] = _average_precision_at_iou(
                matches,
                object_counts=object_counts,
                detection_repeats=detection_repeats,
                best_detection_counts=best_detection_counts,
            )
        average_precisions[:, object_counts == 0] = np.nan
        return average_precisions


def _average_precision_at_iou(
    matches: RankedMatches,
    *,
    object_counts: Indices,
    detection_repeats: DrawCounts,
    best_detection_counts: DrawCounts,
) -> Doubles:
    """Compute the average precision of a category at one IoU, for each of R resamples.

    Args:
        matches: Which of the N detections are right at this IoU. T of them are.
        object_counts: `(R,)` how many objects of the category a resample has.
        detection_repeats: `(R, N)` how often each detection counts, best score first.
        best_detection_counts: `(R, N + 1)` how often the best 0, 1, 2 ... N detections count
            together.

    Returns:
        `(R,)`; 0 where a resample has no object.
    """
    # Precision and recall are computed at each correct detection, from the detections down to it.
    correct_repeats = detection_repeats[:, matches.correct_ranks]  # (R, T)
    true_positives = np.cumsum(correct_repeats, axis=1, dtype=np.int32)  # (R, T)
    detection_counts = best_detection_counts[:, matches.correct_ranks + 1]  # (R, T)

    # Ignored detections count neither as true nor as false positives, so those with a better score
    # than the correct detection are subtracted.
    ignored_sums = _running_sums(detection_repeats[:, matches.ignored_ranks])
    better_ignored = np.searchsorted(matches.ignored_ranks, matches.correct_ranks)  # (T,) how many
    positives = detection_counts - ignored_sums[:, better_ignored]  # (R, T)

    precision = true_positives / np.maximum(positives, 1)
    at_least_one_object = np.maximum(object_counts, 1)[:, np.newaxis]  # (R, 1)
    recall = true_positives / at_least_one_object
    return _area_under_curve(precision, recall)


def _running_sums(counts: DrawCounts) -> DrawCounts:
    """Add up each row from the left: `(R, N)` becomes `(R, N + 1)`, which begins with 0."""
    row_count, column_count = counts.shape
    sums = np.zeros((row_count, column_count + 1), np.int32)
    np.cumsum(counts, axis=1, out=sums[:, 1:])
    return sums


def _area_under_curve(precision: Doubles, recall: Doubles) -> Doubles:
    """Average the precision at the 101 recalls of COCO's tools: 0, 0.01 ... 1.

    The precision at a recall is the best one at this recall or a higher one, and 0 where the
    detections never reach the recall. For example, two of four objects are detected, the first with
    a precision of 1, the second with a precision of 0.5. Then the precision is 1 at the 26 recalls
    up to 0.25, 0.5 at the 25 recalls after that up to 0.5, and 0 at the other 50.

    Args:
        precision: `(R, T)` the precision down to each of T correct detections, best score first,
            for R resamples.
        recall: `(R, T)` the recall down to each of them, which never falls.

    Returns:
        `(R,)` the average of each resample.
    """
    from_last_to_first = precision[:, ::-1]
    best_from_here_on = np.maximum.accumulate(from_last_to_first, axis=1)[:, ::-1]

    # In the example, 26 of the 101 recalls are reached with the first detection, and 51 with the
    # second. So the first one's precision counts for 26 recalls, the second one's for 25.
    reached_counts = np.searchsorted(RECALLS, recall, side="right")  # (R, T)
    newly_reached_counts = np.diff(reached_counts, axis=1, prepend=0)  # (R, T)
    sum_over_recalls: Doubles = (best_from_here_on * newly_reached_counts).sum(axis=1)
    return sum_over_recalls / len(RECALLS)


def mean_average_precisions(rankings: Sequence[CategoryRanking], repeats: DrawCounts) -> Doubles:
    """Compute the mAP of a model on resampled images.

    It is the mean over the categories that have an object in a resample.

    Args:
        rankings: The ranked detections of each category.
        repeats: `(R, images)` how often each image was drawn, for each of R resamples.

    Returns:
        `(10, R)` by IoU and resample; NaN where a resample has no object at all.
    """
    sums = np.zeros((len(IOUS), len(repeats)))
    category_counts = np.zeros(len(repeats))
    for ranking in rankings:
        average_precisions = ranking.average_precisions(repeats)
        has_objects = ~np.isnan(average_precisions[0])
        sums[:, has_objects] += average_precisions[:, has_objects]
        category_counts += has_objects
    category_counts[category_counts == 0] = np.nan  # so that the mean is NaN, too
    return sums / category_counts


@frozen
class MapInterval:
    """Bounds of a difference between two models: 95% of the resamples are within them."""

    low: float  # the bound below
    high: float  # the bound above

    @classmethod
    def of(cls, differences: Doubles) -> Self | None:
        """Return the interval of the differences of all resamples; None if all of them are NaN."""
        defined = differences[~np.isnan(differences)]
        if defined.size == 0:
            return None
        rest_percent = (100 - COVERAGE_PERCENT) / 2
        low, high = np.percentile(defined, [rest_percent, 100 - rest_percent])
        return cls(round(float(low), 6), round(float(high), 6))


class DifferenceIntervals(NamedTuple):
    """The intervals of two differences; None if no resample has an object."""

    map50_95: MapInterval | None
    map50: MapInterval | None


def resample(image_count: int) -> Iterator[DrawCounts]:
    """Draw images with replacement, as many as there are, a thousand times.

    The numbers are always the same for the same number of images.

    Yields:
        `(R, image_count)` how often each image was drawn, for a few resamples at once.
    """
    generator = np.random.default_rng(SEED)
    equal_probabilities = np.full(image_count, 1 / image_count)
    for _ in range(RESAMPLES // RESAMPLES_AT_ONCE):
        repeats = generator.multinomial(image_count, equal_probabilities, size=RESAMPLES_AT_ONCE)
        yield repeats.astype(np.int32)


def bootstrap(
    left: Sequence[CategoryRanking], right: Sequence[CategoryRanking], image_count: int
) -> DifferenceIntervals:
    """Compute the 95% intervals of the difference in mAP between two models.

    Args:
        left: The ranked detections of the first model, by category.
        right: Those of the second model, of the same categories and images.
        image_count: The number of images, which both have seen.
    """
    if image_count == 0:
        return DifferenceIntervals(None, None)
    difference_chunks = []  # (10, R) for a few resamples each
    for repeats in resample(image_count):
        left_map = mean_average_precisions(left, repeats)
        right_map = mean_average_precisions(right, repeats)
        difference_chunks.append(right_map - left_map)
    differences_by_iou = np.concatenate(difference_chunks, axis=1)  # (10, RESAMPLES)
    return DifferenceIntervals(
        MapInterval.of(differences_by_iou.mean(axis=0)),  # of mAP50-95, the mean over the IoUs
        MapInterval.of(differences_by_iou[0]),  # of mAP50
    )
