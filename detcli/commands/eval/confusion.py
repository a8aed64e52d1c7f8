"""What was taken for what, from the evaluator's matches."""

from collections.abc import Sequence

import numpy as np

from detcli.commands.eval.evaluator import IOU, Compared, Found, evaluator_for, no_prints

Confused = dict[tuple[int | None, int | None], int]
"""Counts by (category, category it was found as)."""

ALL_SIZES = (0.0, 1e10)  # square pixels, as the evaluator has them


def confusions(
    pictures: Sequence[Compared], categories: Sequence[int], confidence: float
) -> Confused:
    """How often an object of one category was found as one of another.

    The evaluator matches detections above a confidence with objects, best first, whatever the
    class of either is.

    Returns:
        Counts by (category, category it was found as); None as the second is an object that was not
        found, None as the first is a detection of nothing.
    """
    above = [_above(picture, confidence) for picture in pictures]
    with no_prints():
        evaluator = evaluator_for(above, categories)
        parameters = evaluator.params
        parameters.useCats = 0
        parameters.iouThrs = np.array([IOU])
        parameters.areaRng = [list(ALL_SIZES)]
        parameters.maxDets = [max((len(one.found.score) for one in above), default=0)]
        evaluator.evaluate()
    labels, detections = evaluator.cocoGt.anns, evaluator.cocoDt.anns
    counts: Confused = {}

    def count(true: int | None, found: int | None) -> None:
        counts[true, found] = counts.get((true, found), 0) + 1

    for picture in filter(None, evaluator.evalImgs):
        for number, match, ignored in zip(
            picture["dtIds"], picture["dtMatches"][0], picture["dtIgnore"][0], strict=True
        ):
            if not ignored:
                true = labels[int(match)]["category_id"] if match else None
                count(true, detections[number]["category_id"])
        for number, match, ignored in zip(
            picture["gtIds"], picture["gtMatches"][0], picture["gtIgnore"], strict=True
        ):
            if not ignored and not match:
                count(labels[number]["category_id"], None)
    return counts


def _above(picture: Compared, confidence: float) -> Compared:
    found, chosen = picture.found, picture.found.score > confidence
    kept = Found(found.boxes[chosen], found.score[chosen], found.category[chosen])
    return Compared(picture.image_id, picture.objects, kept)
