"""The evaluator, hotcoco: COCO's figures, and which detection found which object.

hotcoco computes and matches as pycocotools does; tests compare the two. Confusions are counted here
and curves in confidence.py, from its matches: its confusion matrix counts detections of crowds as
false positives, its F-scores come without the confidence, and by class it has no more than AP.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from detcli.commands.eval.bootstrap import IOUS, CategoryRanking, RankedMatches
from detcli.commands.eval.confidence import Curve
from detcli.commands.eval.labels import OBJECT, StructuredRows
from detcli.commands.eval.matches import (
    CORRECT,
    FALSE,
    IGNORED,
    IOU,
    MISSED,
    Indices,
    MatchedBox,
    Matching,
    read_matching,
)
from detcli.commands.eval.metrics import Doubles, Metrics, Score, mean_precision
from detcli.core.errors import loading
from detcli.data.topk import rank_descending

if TYPE_CHECKING:
    from hotcoco import COCOeval

PER_CLASS = 100  # detections of a class in an image that the evaluator considers, best first
MAX_AREA = 1e10  # square pixels: more than any object has
IOU_TOLERANCE = 1e-6  # more than an IoU varies with the order of additions
IMAGES_AT_ONCE = 500  # how many images are matched in one run of the evaluator

CategoryPair = tuple[int | None, int | None]
"""Indexes of an object's category and of the category that it was detected as; None for none."""

DETECTION = np.dtype([("box", "f8", (4,)), ("category", "i8"), ("score", "f8")])
"""A row for each detection: the box as left, top, width, height in pixels; the category as an index
into the data's categories; the score."""


def require_evaluator() -> str:
    """Return the name and version of the evaluator.

    Raises:
        DependencyError: It is not installed.
    """
    with loading("hotcoco", 'pip install "detcli[eval]"'):
        import hotcoco
    return f"hotcoco {hotcoco.__version__}"


class EvaluatedImage(NamedTuple):
    """The labels and the detections of an image, with boxes in pixels."""

    image_id: int
    objects: StructuredRows  # (M,) of OBJECT
    detections: StructuredRows  # (N,) of DETECTION


class _OutcomesByIou(NamedTuple):
    """What becomes of detections at each IoU of mAP50-95."""

    outcomes: npt.NDArray[np.int8]  # (10, N) CORRECT, FALSE or IGNORED, by IoU and detection
    objects: Indices  # (M,) the rows of the objects that are to be detected


class _GatheredRows(NamedTuple):
    """The boxes of all images."""

    rows: StructuredRows
    image_numbers: Indices  # of each row, that of its image


class _Accumulated(NamedTuple):
    """What the evaluator accumulated over all images, see `Metrics.of`."""

    precision: Doubles  # (10, 101, K, 4, 3)
    recall: Doubles  # (10, K, 4, 3)


class Evaluator:
    """Compares labels with detections.

    The boxes of all images are held in two arrays, one of objects and one of detections, in the
    order of the images' ids.
    """

    def __init__(self, images: Sequence[EvaluatedImage], categories: Sequence[int]) -> None:
        """Gather the boxes of all images.

        Args:
            images: The images in any order. Where scores are equal, detections in the image
                with the lower id rank first.
            categories: The categories to evaluate, as indexes of the data's categories; boxes of
                others do not take part.
        """
        self._categories = list(categories)

        # The evaluator gets the images numbered 1, 2, 3 ... by ascending id. It holds ids as
        # floats, which are exact up to 15 digits, and the ids of images have up to 18.
        images_by_id = sorted(images, key=lambda image: image.image_id)
        self._image_ids = [image.image_id for image in images_by_id]
        self._image_numbers = list(range(1, len(images_by_id) + 1))

        # A row for each of M objects, and a row for each of N detections, of all images.
        objects = self._gather(OBJECT, [image.objects for image in images_by_id])
        self._objects = objects.rows  # (M,) of OBJECT
        self._object_images = objects.image_numbers  # (M,) the image number of each
        detections = self._gather(DETECTION, [image.detections for image in images_by_id])
        self._detections = detections.rows  # (N,) of DETECTION
        self._detection_images = detections.image_numbers  # (N,) the image number of each

    def _gather(
        self, dtype: np.dtype[np.void], rows_of_images: list[StructuredRows]
    ) -> _GatheredRows:
        """Join the rows of all images to one array, without those of other categories.

        Args:
            dtype: The type of a row, OBJECT or DETECTION.
            rows_of_images: The rows of each image, by ascending image number.
        """
        row_counts = [len(rows) for rows in rows_of_images]
        image_numbers = np.repeat(self._image_numbers, row_counts)
        no_rows = np.zeros(0, dtype)  # so that there is something to join without images
        all_rows = np.concatenate([no_rows, *rows_of_images])
        takes_part = np.isin(all_rows["category"], self._categories)
        return _GatheredRows(all_rows[takes_part], image_numbers[takes_part])

    def score(self) -> tuple[Score, dict[int, Score]]:
        """Compute the result for all categories together, and for each one by its index."""
        accumulated = self._accumulated()
        matching = self._match(-np.inf, PER_CLASS)
        score_of_category = {}
        for position, category in enumerate(self._categories):
            score_of_category[category] = self._score_of([position], accumulated, matching)
        all_positions = list(range(len(self._categories)))
        return self._score_of(all_positions, accumulated, matching), score_of_category

    def _score_of(
        self, positions: list[int], accumulated: _Accumulated, matching: Matching
    ) -> Score:
        """Compute the figures and the curve for one category, or for K categories together.

        Args:
            positions: The indexes of the categories in `_categories`. The accumulated arrays have
                the categories in the same order.
            accumulated: The precision and recall of all categories.
            matching: Which detections match which objects, at any confidence.
        """
        # The axes of precision are IoU, recall, category, size of objects, number of detections;
        # those of recall are the same without recall itself.
        precision = accumulated.precision[:, :, positions]  # (10, 101, K, 4, 3)
        recall = accumulated.recall[:, positions]  # (10, K, 4, 3)
        # The first IoU is 0.5, the first size stands for all sizes, and the last number of
        # detections is 100. What remains is recall and category, and NumPy puts the axis of an
        # index list, here of the categories, first.
        precision_at_50 = accumulated.precision[0, :, positions, 0, -1]  # (K, 101)

        categories = [self._categories[position] for position in positions]
        return Score(
            metrics=Metrics.of(precision, recall),
            curve=self._curve_of(categories, matching),
            precision=mean_precision(precision_at_50),
        )

    def _curve_of(self, categories: Sequence[int], matching: Matching) -> Curve:
        """Count true and false positives by confidence, for several categories together.

        Args:
            categories: The categories, as indexes of the data's categories.
            matching: Which detections match which objects, at any confidence.
        """
        object_categories = self._objects["category"][matching.objects]
        box_count = int(np.count_nonzero(np.isin(object_categories, categories)))

        detections = self._detections[matching.detections]
        is_of_categories = np.isin(detections["category"], categories)
        scores = detections["score"][is_of_categories]
        matched_objects = matching.matched_objects[is_of_categories]
        is_true_positive = matched_objects >= 0  # -1 stands for no object
        return Curve.of(scores, is_true_positive, box_count)

    def confusions(self, confidence: float) -> dict[CategoryPair, list[int]]:
        """List how objects of each category are detected, right or wrong, and in which images.

        The detections above a confidence are matched with objects of any category, those with the
        highest scores first.

        Returns:
            By pair of an object's category and the category it was detected as, the image ids, one
            for each object; the most frequent pair comes first. A missed object has None as the
            second category. A detection that matches no object has None as the first.
        """
        # All detections of an image are matched, not only the best 100.
        matching = self._match(confidence, len(self._detections), by_class=False)
        object_categories = self._objects["category"]
        detection_categories = self._detections["category"]
        image_ids_by_pair: defaultdict[CategoryPair, list[int]] = defaultdict(list)

        for detection_row, object_row in zip(
            matching.detections, matching.matched_objects.tolist(), strict=True
        ):
            true_category = None
            if object_row >= 0:  # -1 stands for no object
                true_category = int(object_categories[object_row])
            detected_category = int(detection_categories[detection_row])
            image_id = self._image_id(self._detection_images[detection_row])
            image_ids_by_pair[true_category, detected_category].append(image_id)

        for object_row in matching.missed_objects:
            true_category = int(object_categories[object_row])
            image_id = self._image_id(self._object_images[object_row])
            image_ids_by_pair[true_category, None].append(image_id)

        # Equally frequent pairs are in the order of their text forms, as None and numbers have no
        # order.
        most_frequent_first = sorted(
            image_ids_by_pair, key=lambda pair: (-len(image_ids_by_pair[pair]), str(pair))
        )
        return {pair: image_ids_by_pair[pair] for pair in most_frequent_first}

    def outcomes(self, confidence: float) -> dict[int, list[MatchedBox]]:
        """Return what became of the boxes of each image, matched by class at IoU 0.5.

        Args:
            confidence: Detections with this score or a lower one do not take part.

        Returns:
            By image id, the detections of the image with the highest score first, then the
            objects that were missed.
        """
        matching = self._match(confidence, PER_CLASS)
        outcomes: dict[int, list[MatchedBox]] = {image_id: [] for image_id in self._image_ids}

        best_first = rank_descending(self._detections["score"][matching.detections])
        for position in best_first:
            detection_row = matching.detections[position]
            matched_object_row = matching.matched_objects[position]
            image_id = self._image_id(self._detection_images[detection_row])
            outcome = self._detection_outcome(detection_row, matched_object_row)
            outcomes[image_id].append(outcome)

        for object_row in matching.missed_objects:
            image_id = self._image_id(self._object_images[object_row])
            missed_object = self._objects[object_row]
            outcome = MatchedBox(
                category=int(missed_object["category"]),
                box=missed_object["box"].tolist(),
                score=None,
                kind=MISSED,
            )
            outcomes[image_id].append(outcome)
        return outcomes

    def rankings(self) -> dict[int, CategoryRanking]:
        """Rank the detections of each category by score, and return at each IoU which are right.

        The bootstrap computes the average precision on resampled images from this, without matching
        again.

        Returns:
            The ranking of each category, by the category's index in the data.
        """
        # Like the evaluator, a ranking has only the best detections of a class in an image.
        is_among_best = _is_among_best(self._detections, self._detection_images, PER_CLASS)  # (N,)
        outcomes, object_rows = self._outcomes_by_iou(np.flatnonzero(is_among_best))
        object_categories = self._objects["category"][object_rows]
        # Images are numbered from 1 here, and from 0 in a ranking.
        object_images = self._object_images[object_rows] - 1
        detection_images = self._detection_images - 1

        rankings = {}
        for category in self._categories:
            is_of_category = self._detections["category"] == category
            detection_rows = np.flatnonzero(is_among_best & is_of_category)
            best_first = rank_descending(self._detections["score"][detection_rows])
            ranked_rows = detection_rows[best_first]
            rankings[category] = CategoryRanking(
                object_images=object_images[object_categories == category],
                detection_images=detection_images[ranked_rows],
                matches=_ranked_matches(outcomes[:, ranked_rows]),
            )
        return rankings

    def _outcomes_by_iou(self, detection_rows: Indices) -> _OutcomesByIou:
        """Decide which detections are right, wrong or ignored at each IoU of mAP50-95.

        The evaluator matches detections by class. That is slow, so it only gets the detections that
        may match an object or be ignored: all others are false positives at every IoU.

        Args:
            detection_rows: The detections that take part, as rows of `_detections`, ascending.

        Returns:
            The outcome of all N detections, `(10, N)`, in which those that do not take part are
            FALSE; and the objects that are to be detected, as rows of `_objects`.
        """
        outcomes = np.full((len(IOUS), len(self._detections)), FALSE, np.int8)
        object_rows = [np.zeros(0, np.int64)]  # so that there is something to join without images
        detection_images = self._detection_images[detection_rows]
        for image_numbers in self._image_batches():
            rows_of_batch = detection_rows[_rows_of(image_numbers, detection_images)]
            undecided_rows = self._undecided_detections(image_numbers, rows_of_batch)
            matchings = self._match_at_each_iou(image_numbers, undecided_rows)

            # A matching has no detections that the evaluator ignores. So all that the evaluator
            # gets are marked as ignored first, and then those in the matching as right or wrong.
            outcomes[:, undecided_rows] = IGNORED
            for outcomes_at_iou, matching in zip(outcomes, matchings, strict=True):
                is_correct = matching.matched_objects >= 0  # -1 stands for no object
                outcomes_at_iou[matching.detections] = np.where(is_correct, CORRECT, FALSE)

            # The objects to be detected are the same at every IoU.
            object_rows.append(matchings[0].objects)
        return _OutcomesByIou(outcomes, np.concatenate(object_rows))

    def _match_at_each_iou(
        self, image_numbers: Sequence[int], detection_rows: Indices
    ) -> list[Matching]:
        """Match detections with objects of their class at each IoU, in one run of the evaluator.

        Args:
            image_numbers: The numbers of some consecutive images.
            detection_rows: The detections in these images that take part, as rows of `_detections`.

        Returns:
            A matching for each of IOUS.
        """
        object_rows = _rows_of(image_numbers, self._object_images)
        evaluator = self._evaluate(
            image_numbers,
            object_rows,
            detection_rows,
            # Objects of all sizes together, and not also small, medium and large ones separately.
            area_rng=[[0.0, MAX_AREA]],
            area_rng_lbl=["all"],
            max_dets=[PER_CLASS],
        )
        matchings = []
        for iou in IOUS.tolist():
            diagnostics = evaluator.image_diagnostics(iou)
            matchings.append(read_matching(diagnostics, object_rows, detection_rows))
        return matchings

    def _undecided_detections(
        self, image_numbers: Sequence[int], detection_rows: Indices
    ) -> Indices:
        """Choose the detections that only the evaluator can call right, wrong or ignored.

        These overlap an object of any class with an IoU of 0.5, or their area is out of range, so
        that the evaluator may ignore them. All others are false positives.

        Args:
            image_numbers: The numbers of some consecutive images.
            detection_rows: `(N,)` all detections in these images, as rows of `_detections`.

        Returns:
            The rows in `detection_rows` that are undecided, in the same order.
        """
        from hotcoco import mask

        boxes = self._detections["box"][detection_rows]  # (N, 4) left, top, width, height
        areas = boxes[:, 2:].prod(axis=1)
        # An area is negative if, for example, the right edge of a box is left of its left edge.
        is_undecided = (areas < 0) | (areas > MAX_AREA)  # (N,)

        detection_images = self._detection_images[detection_rows]
        for image_number in image_numbers:
            box_indexes = _rows_of([image_number], detection_images)  # (D,) indexes in `boxes`
            object_rows = _rows_of([image_number], self._object_images)
            objects = self._objects[object_rows]  # (M,)
            if len(box_indexes) == 0 or len(objects) == 0:
                continue

            is_crowd = objects["crowd"].tolist()
            ious = np.asarray(mask.iou(boxes[box_indexes], objects["box"], is_crowd))  # (D, M)
            is_undecided[box_indexes] |= (ious > IOU - IOU_TOLERANCE).any(axis=1)
        undecided_rows: Indices = detection_rows[is_undecided]
        return undecided_rows

    def _detection_outcome(self, detection_row: int, object_row: int) -> MatchedBox:
        """Describe what became of a detection; its object is -1 if it matches none."""
        detection = self._detections[detection_row]
        kind = FALSE
        object_box = None
        if object_row >= 0:
            kind = CORRECT
            object_box = self._objects["box"][object_row].tolist()
        return MatchedBox(
            category=int(detection["category"]),
            box=detection["box"].tolist(),
            score=round(float(detection["score"]), 4),
            kind=kind,
            object_box=object_box,
        )

    def _image_id(self, image_number: int) -> int:
        """Return the image id of an image by its number, which counts from 1."""
        return self._image_ids[image_number - 1]

    def _match(self, confidence: float, max_detections: int, *, by_class: bool = True) -> Matching:
        """Match the detections in all images with objects at IoU 0.5, the highest scores first.

        Args:
            confidence: Only detections that score more take part.
            max_detections: How many detections of an image take part, the best ones. If matched by
                class, that many of each class.
            by_class: Whether a detection only matches objects of its class.
        """
        no_rows = np.zeros(0, np.int64)
        # Joining needs at least one matching, and there may be no images.
        matchings = [Matching(detections=no_rows, matched_objects=no_rows, objects=no_rows)]
        for image_numbers in self._image_batches():
            matching = self._match_batch(
                image_numbers, confidence, max_detections, by_class=by_class
            )
            matchings.append(matching)
        return Matching(
            detections=np.concatenate([matching.detections for matching in matchings]),
            matched_objects=np.concatenate([matching.matched_objects for matching in matchings]),
            objects=np.concatenate([matching.objects for matching in matchings]),
        )

    def _image_batches(self) -> Iterator[list[int]]:
        """Yield the numbers of all images, those for one run of the evaluator at a time.

        What the evaluator says about a match takes ten times the memory of its boxes, so it does
        not run on all images at once.
        """
        for start in range(0, len(self._image_numbers), IMAGES_AT_ONCE):
            yield self._image_numbers[start : start + IMAGES_AT_ONCE]

    def _match_batch(
        self,
        image_numbers: Sequence[int],
        confidence: float,
        max_detections: int,
        *,
        by_class: bool,
    ) -> Matching:
        """Match detections with objects at IoU 0.5, in consecutive images, by one run of hotcoco.

        Args:
            image_numbers: The image numbers, ascending without gaps.
            confidence: Only detections that score more take part.
            max_detections: How many detections of an image take part, the best ones. If matched by
                class, that many of each class.
            by_class: Whether a detection only matches objects of its class.
        """
        object_rows = _rows_of(image_numbers, self._object_images)
        all_detection_rows = _rows_of(image_numbers, self._detection_images)
        is_above = self._detections["score"][all_detection_rows] > confidence
        detection_rows = all_detection_rows[is_above]
        evaluator = self._evaluate(
            image_numbers,
            object_rows,
            detection_rows,
            iou_thrs=[IOU],
            # Objects of all sizes together, and not also small, medium and large ones separately.
            area_rng=[[0.0, MAX_AREA]],
            area_rng_lbl=["all"],
            max_dets=[max_detections],
            use_cats=by_class,
        )
        return read_matching(evaluator.image_diagnostics(IOU), object_rows, detection_rows)

    def _accumulated(self) -> _Accumulated:
        """Run the evaluator on all images, and return the precision and recall of `Metrics.of`.

        The arrays are copied, so that the rest of the evaluator, which is large, can be freed.
        """
        all_objects = np.arange(len(self._objects))
        all_detections = np.arange(len(self._detections))
        evaluator = self._evaluate(self._image_numbers, all_objects, all_detections)
        evaluator.accumulate()
        result: Any = evaluator.eval
        return _Accumulated(result["precision"].copy(), result["recall"].copy())

    def _evaluate(
        self,
        image_numbers: Sequence[int],
        object_rows: Indices,
        detection_rows: Indices,
        **parameters: object,
    ) -> "COCOeval":
        """Run the evaluator, hotcoco, on some of the boxes.

        Args:
            image_numbers: The images to evaluate.
            object_rows: Rows of the objects in these images.
            detection_rows: Rows of the detections in these images that take part.
            parameters: Values of the evaluator's parameters that are not its defaults.

        Returns:
            The evaluator, whose matches can be accumulated or looked at.
        """
        from hotcoco import COCO, COCOeval

        objects = self._objects[object_rows]
        detections = self._detections[detection_rows]
        box_area = objects["box"][:, 2:].prod(axis=1)
        area = np.where(np.isnan(objects["area"]), box_area, objects["area"])
        # The evaluator ignores objects larger than every range of areas.
        area[objects["ignored"] & ~objects["crowd"]] = np.inf
        truth = COCO.from_arrays(
            [{"id": number} for number in image_numbers],
            [{"id": category, "name": str(category)} for category in self._categories],
            self._object_images[object_rows],
            objects["category"],
            objects["box"],
            area=area,
            iscrowd=objects["crowd"],
        )
        results = np.column_stack(
            [
                self._detection_images[detection_rows],
                detections["box"],
                detections["score"],
                detections["category"],
            ]
        )
        evaluator = COCOeval(truth, truth.load_res(results), "bbox")
        for name, value in parameters.items():
            setattr(evaluator.params, name, value)
        evaluator.params.img_ids = list(image_numbers)
        evaluator.params.cat_ids = self._categories
        evaluator.evaluate()
        return evaluator


def _ranked_matches(outcomes: npt.NDArray[np.int8]) -> list[RankedMatches]:
    """List at each IoU the ranks of the detections that are right, and of those that are ignored.

    Args:
        outcomes: `(10, N)` CORRECT, FALSE or IGNORED, by IoU and detection, best score first.
    """
    matches = []
    for outcomes_at_iou in outcomes:
        correct_ranks = np.flatnonzero(outcomes_at_iou == CORRECT)
        ignored_ranks = np.flatnonzero(outcomes_at_iou == IGNORED)
        matches.append(RankedMatches(correct_ranks, ignored_ranks))
    return matches


def _rows_of(image_numbers: Sequence[int], image_of_row: Indices) -> Indices:
    """Return the indices of the rows that belong to the given consecutive images.

    Args:
        image_numbers: The image numbers, ascending without gaps.
        image_of_row: The image number of each row, ascending.
    """
    start = np.searchsorted(image_of_row, image_numbers[0])
    stop = np.searchsorted(image_of_row, image_numbers[-1], side="right")
    return np.arange(start, stop)


def _is_among_best(
    detections: StructuredRows, image_numbers: Indices, limit: int
) -> npt.NDArray[np.bool_]:
    """Return for each detection whether it is among the best of its class in its image.

    Args:
        detections: `(N,)` of DETECTION.
        image_numbers: `(N,)`, the image number of each.
        limit: How many of a class in an image are among the best.

    Returns:
        `(N,)`, in the order of `detections`.
    """
    # NumPy sorts by the last key first: by image, then by category, then by descending score. In
    # this order, the detections of a class in an image follow each other: they are a group.
    order = np.lexsort((-detections["score"], detections["category"], image_numbers))
    sorted_images = image_numbers[order]
    sorted_categories = detections["category"][order]
    begins_group = np.ones(len(order), np.bool_)
    is_next_image = sorted_images[1:] != sorted_images[:-1]
    is_next_category = sorted_categories[1:] != sorted_categories[:-1]
    begins_group[1:] = is_next_image | is_next_category

    # With a group of three and one of two, the positions are 0 1 2 3 4, the starts of their groups
    # 0 0 0 3 3, and so the ranks 0 1 2 0 1.
    positions = np.arange(len(order))
    group_starts = np.maximum.accumulate(np.where(begins_group, positions, 0))
    ranks_in_group = positions - group_starts

    # Back to the order of `detections`.
    is_best = np.empty(len(order), np.bool_)
    is_best[order] = ranks_in_group < limit
    return is_best
