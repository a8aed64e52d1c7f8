"""Figures, curves and confusions, with pycocotools as the second opinion."""

import math
from collections import Counter
from dataclasses import astuple

import numpy as np
import pytest
from comparisons import compared, figures, pycocotools, random_images

from detcli.commands.eval.evaluator import Evaluator
from detcli.commands.eval.matches import CORRECT, FALSE, MISSED

BOX = (10.0, 10.0, 20.0, 20.0)
HIT = (BOX, 0, 0.9)


def score(images, categories=(0,)):
    return Evaluator(images, categories).score()


def second_opinion(images, categories, **parameters):
    labels = []
    results = []
    for image in images:
        for row in image.objects:
            area = row["box"][2] * row["box"][3] if np.isnan(row["area"]) else row["area"]
            if row["ignored"] and not row["crowd"]:
                area = math.inf  # objects larger than every range are ignored
            labels.append(
                {"image_id": image.image_id, "category_id": int(row["category"]),
                 "area": float(area), "bbox": row["box"].tolist(), "iscrowd": int(row["crowd"])}
            )  # fmt: skip
        for row in image.detections:
            results.append(
                {"image_id": image.image_id, "category_id": int(row["category"]),
                 "bbox": row["box"].tolist(), "score": float(row["score"])}
            )  # fmt: skip
    image_list = [image.image_id for image in images]
    return pycocotools(image_list, categories, labels, results, **parameters)


@pytest.mark.parametrize("seed", [0, 1, 3, 6])
def test_the_figures_are_those_of_pycocotools(seed):
    random = np.random.default_rng(seed)
    images = random_images(random, 8 * seed, categories=4)
    # Category 3 has detections and no boxes, category 4 neither.
    for index, image in enumerate(images):
        labels_of_first_categories = image.objects[image.objects["category"] < 3]
        images[index] = image._replace(objects=labels_of_first_categories)
    if seed % 3 == 0:  # more detections of a class than take part
        labels = []
        detections = []
        for number, box in enumerate(random.uniform(0, 80, (150, 4)).tolist()):
            detections.append((box, 0, round(random.random(), 1)))
            if number % 9 == 0:
                labels.append((box, 0, {}))
        images.append(compared(1000, labels, detections))
    overall, by_category = score(images, range(5))
    assert list(astuple(overall.metrics)) == figures(second_opinion(images, range(5)).stats)
    for number in range(5):
        alone = second_opinion(images, [number])
        assert list(astuple(by_category[number].metrics)) == figures(alone.stats)
        precision = alone.eval["precision"][0, :, 0, 0, 2]
        np.testing.assert_array_equal(by_category[number].precision, precision)
    if seed > 3:
        assert 0.1 < overall.metrics.map50_95 < 0.9
        assert by_category[3].metrics.map50_95 is None


@pytest.mark.parametrize("seed", range(2))
def test_matches_are_those_of_pycocotools(seed):
    images = random_images(np.random.default_rng(seed), 30)
    evaluator = second_opinion(images, range(3))
    for number, category_score in score(images, range(3))[1].items():
        start = number * 4 * len(images)  # all sizes come first
        boxes = 0
        rows = []
        for result in evaluator.evalImgs[start : start + len(images)]:
            if not result:
                continue
            boxes += int(np.sum(result["gtIgnore"] == 0))
            matches, ignored_rows = result["dtMatches"][0], result["dtIgnore"][0]
            rows.extend(zip(result["dtScores"], matches, ignored_rows, strict=True))
        for limit in (-1, 0.2, 0.5, 0.77):
            hits = []
            for value, match, ignored in rows:
                if value > limit and not ignored:
                    hits.append(match > 0)
            assert category_score.curve.counts(limit) == (sum(hits), len(hits) - sum(hits))
        assert category_score.curve.boxes == boxes > 0


def counts(evaluator, confidence):
    return {pair: len(where) for pair, where in evaluator.confusions(confidence).items()}


@pytest.mark.parametrize("seed", range(2))
def test_confusions_are_the_matches_of_pycocotools_across_categories(seed):
    images = random_images(np.random.default_rng(seed), 30)
    above = []
    for image in images:
        detections_above = image.detections[image.detections["score"] > 0.3]
        above.append(image._replace(detections=detections_above))
    evaluator = second_opinion(above, range(3), useCats=0, maxDets=[1000])
    labels, detections = evaluator.cocoGt.anns, evaluator.cocoDt.anns
    expected = Counter()
    for result in evaluator.evalImgs[: len(images)]:
        if not result:
            continue
        for number, match, ignored in zip(
            result["dtIds"], result["dtMatches"][0], result["dtIgnore"][0], strict=True
        ):
            true = labels[int(match)]["category_id"] if match else None
            expected[true, detections[number]["category_id"]] += not ignored
        for number, match, ignored in zip(
            result["gtIds"], result["gtMatches"][0], result["gtIgnore"], strict=True
        ):
            expected[labels[number]["category_id"], None] += not match and not ignored
    assert counts(Evaluator(images, range(3)), 0.3) == +expected
    assert len(+expected) > 9  # every kind, and some categories for others


def test_which_boxes_count():
    images = [  # whose ids of 18 digits are told apart
        compared(10**17, [(BOX, 0, {})], [HIT]),
        compared(10**17 + 1, [(BOX, 0, {})], [HIT]),
    ]
    overall, _ = score(images)
    assert overall.metrics.map50_95 == 1
    labels = [(BOX, 0, {}), (BOX, 7, {})]  # other categories do not
    overall, _ = score([compared(1, labels, [HIT, (BOX, 5, 0.99)])])
    assert overall.metrics.map50_95 == 1


def test_outcomes_come_best_first_and_what_was_missed_last():
    far_box = (70.0, 70.0, 9.0, 9.0)
    labels = [(BOX, 0, {}), (far_box, 0, {})]
    detections = [((40, 5, 9, 9), 0, 0.5), HIT]
    images = [compared(2, labels, detections), compared(1, [], [])]
    outcomes = Evaluator(images, [0]).outcomes(0.1)
    hit, false_positive, missed = outcomes[2]
    assert hit.score == 0.9
    assert hit.kind == CORRECT
    assert false_positive.score == 0.5
    assert false_positive.kind == FALSE
    assert missed.score is None
    assert missed.kind == MISSED
    assert missed.box == list(far_box)
    assert outcomes[1] == []


def test_a_hundred_detections_of_a_class_take_part_but_all_are_confused():
    many = [((float(n), 0.0, 1.0, 1.0), 0, 0.9) for n in range(149)] + [(BOX, 0, 0.5)]
    images = [compared(1, [(BOX, 0, {})], many)]
    overall, _ = score(images)
    assert overall.metrics.map50_95 == 0
    assert overall.curve.counts(0) == (0, 100)
    assert counts(Evaluator(images, [0]), 0.4) == {(0, 0): 1, (None, 0): 149}


def test_confusions_and_outcomes_say_where():
    far_box = (70.0, 70.0, 9.0, 9.0)
    images = [
        compared(5, [(BOX, 0, {})], [(BOX, 1, 0.9)]),
        compared(7, [(BOX, 0, {}), (far_box, 1, {})], [HIT, (BOX, 1, 0.8)]),
    ]
    evaluator = Evaluator(images, range(2))
    assert evaluator.confusions(0.3) == {
        (0, 0): [7], (0, 1): [5], (1, None): [7], (None, 1): [7],
    }  # fmt: skip
    assert evaluator.outcomes(0.3)[7][0].object_box == list(BOX)
