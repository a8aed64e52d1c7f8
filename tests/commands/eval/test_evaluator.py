"""Figures, curves and confusions, with pycocotools as the second opinion."""

import math
from collections import Counter
from dataclasses import astuple, replace

import numpy as np
import pytest
from comparisons import compared, figures, pycocotools, random_pictures
from hypothesis import given
from hypothesis import strategies as st

from detcli.commands.eval.evaluator import Curve, Evaluator, require_evaluator

BOX = (10.0, 10.0, 20.0, 20.0)
HIT = (BOX, 0, 0.9)


def score(pictures, categories=(0,)):
    return Evaluator(pictures, categories).score()


def second_opinion(pictures, categories, **parameters):
    labels, results = [], []
    for picture in pictures:
        for row in picture.objects:
            area = row["box"][2] * row["box"][3] if np.isnan(row["area"]) else row["area"]
            if row["ignored"] and not row["crowd"]:
                area = math.inf  # objects larger than every range are ignored
            labels.append(
                {"image_id": picture.image_id, "category_id": int(row["category"]),
                 "area": float(area), "bbox": row["box"].tolist(), "iscrowd": int(row["crowd"])}
            )  # fmt: skip
        results += [
            {"image_id": picture.image_id, "category_id": int(row["category"]),
             "bbox": row["box"].tolist(), "score": float(row["score"])}
            for row in picture.found
        ]  # fmt: skip
    images = [picture.image_id for picture in pictures]
    return pycocotools(images, categories, labels, results, **parameters)


@pytest.mark.parametrize("seed", [0, 1, 3, 6])
def test_the_figures_are_those_of_pycocotools(seed):
    random = np.random.default_rng(seed)
    pictures = random_pictures(random, 8 * seed, categories=4)
    # Category 3 has detections and no boxes, category 4 neither.
    pictures = [replace(one, objects=one.objects[one.objects["category"] < 3]) for one in pictures]
    if seed % 3 == 0:  # more detections of a class than take part
        boxes = random.uniform(0, 80, (150, 4)).tolist()
        crowded = [(box, 0, round(random.random(), 1)) for box in boxes]
        pictures.append(compared(1000, [(box, 0, {}) for box in boxes[::9]], crowded))
    overall, by_category = score(pictures, range(5))
    assert list(astuple(overall.metrics)) == figures(second_opinion(pictures, range(5)).stats)
    for number in range(5):
        alone = second_opinion(pictures, [number])
        assert list(astuple(by_category[number].metrics)) == figures(alone.stats)
        precision = alone.eval["precision"][0, :, 0, 0, 2]
        np.testing.assert_array_equal(by_category[number].precision, precision)
    if seed > 3:
        assert 0.1 < overall.metrics.map50_95 < 0.9
        assert by_category[3].metrics.map50_95 is None


@pytest.mark.parametrize("seed", range(2))
def test_matches_are_those_of_pycocotools(seed):
    pictures = random_pictures(np.random.default_rng(seed), 30)
    evaluator = second_opinion(pictures, range(3))
    for number, found in score(pictures, range(3))[1].items():
        start = number * 4 * len(pictures)  # all sizes come first
        results = [one for one in evaluator.evalImgs[start : start + len(pictures)] if one]
        boxes = sum(int(np.sum(one["gtIgnore"] == 0)) for one in results)
        rows = [
            row for one in results
            for row in zip(one["dtScores"], one["dtMatches"][0], one["dtIgnore"][0], strict=True)
        ]  # fmt: skip
        for limit in (-1, 0.2, 0.5, 0.77):
            hits = [match > 0 for value, match, ignored in rows if value > limit and not ignored]
            assert found.curve.counts(limit) == (sum(hits), len(hits) - sum(hits))
        assert found.curve.boxes == boxes > 0


@pytest.mark.parametrize("seed", range(2))
def test_confusions_are_the_matches_of_pycocotools_across_categories(seed):
    pictures = random_pictures(np.random.default_rng(seed), 30)
    above = [replace(one, found=one.found[one.found["score"] > 0.3]) for one in pictures]
    evaluator = second_opinion(above, range(3), useCats=0, maxDets=[1000])
    labels, detections = evaluator.cocoGt.anns, evaluator.cocoDt.anns
    expected = Counter()
    for one in filter(None, evaluator.evalImgs[: len(pictures)]):
        for number, match, ignored in zip(
            one["dtIds"], one["dtMatches"][0], one["dtIgnore"][0], strict=True
        ):
            true = labels[int(match)]["category_id"] if match else None
            expected[true, detections[number]["category_id"]] += not ignored
        for number, match, ignored in zip(
            one["gtIds"], one["gtMatches"][0], one["gtIgnore"], strict=True
        ):
            expected[labels[number]["category_id"], None] += not match and not ignored
    assert Evaluator(pictures, range(3)).confusions(0.3) == expected
    assert len(+expected) > 9  # every kind, and some categories for others


def test_no_pictures():
    overall, by_category = score([], [0, 1])
    assert overall.metrics.map50_95 is None
    assert len(by_category[0].curve.score) == 0
    assert Evaluator([], [0]).confusions(0.5) == {}


def test_which_boxes_count():
    ids = 10**17, 10**17 + 1  # of 18 digits, which are told apart
    overall, _ = score([compared(number, [(BOX, 0, {})], [HIT]) for number in ids])
    assert overall.metrics.map50_95 == 1
    labels = [(BOX, 0, {}), (BOX, 7, {})]  # other categories do not
    overall, _ = score([compared(1, labels, [HIT, (BOX, 5, 0.99)])])
    assert overall.metrics.map50_95 == 1


def test_a_hundred_detections_of_a_class_take_part_but_all_are_confused():
    many = [((float(n), 0.0, 1.0, 1.0), 0, 0.9) for n in range(149)] + [(BOX, 0, 0.5)]
    pictures = [compared(1, [(BOX, 0, {})], many)]
    overall, _ = score(pictures)
    assert overall.metrics.map50_95 == 0
    assert overall.curve.counts(0) == (0, 100)
    assert Evaluator(pictures, [0]).confusions(0.4) == {(0, 0): 1, (None, 0): 149}


@given(
    st.lists(st.tuples(st.integers(1, 9).map(lambda tenths: tenths / 10), st.booleans())),
    st.floats(0, 1),
)
def test_a_curve_counts_what_is_above_a_confidence(rows, confidence):
    values, hits = (np.array(column) for column in zip(*rows, strict=True)) if rows else ([], [])
    curve = Curve.of(np.array(values, np.float64), np.array(hits, np.bool_), 100)
    above = [hit for value, hit in rows if value > confidence]
    assert curve.counts(confidence) == (sum(above), len(above) - sum(above))
    assert (np.diff(curve.score) < 0).all()


def test_f1():
    curve = Curve.of(np.array([0.8, 0.9, 0.8, 0.1]), np.array([0, 1, 1, 0], bool), 4)
    assert curve.score.tolist() == [0.9, 0.8, 0.1]
    assert curve.f1.tolist() == pytest.approx([0.4, 4 / 7, 0.5])


def test_nothing_is_printed(capfd, random):
    evaluator = Evaluator(random_pictures(random), range(3))
    evaluator.score()
    evaluator.confusions(0.5)
    assert capfd.readouterr() == ("", "")
    assert require_evaluator().startswith("hotcoco 1.")
