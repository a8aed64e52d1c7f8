"""Figures, curves and confusions, with pycocotools as the second opinion; the best confidences."""

import math
import shlex
from collections import Counter
from dataclasses import astuple

import numpy as np
import pytest
from comparisons import compared, figures, pycocotools, random_pictures
from hypothesis import given
from hypothesis import strategies as st

from detcli.commands.eval.classes import ClassMapping
from detcli.commands.eval.evaluator import CORRECT, FALSE, MISSED, Curve, Evaluator, advise, decimal
from detcli.config.values import parse_conf
from detcli.model.contract import conf_thresholds

BOX = (10.0, 10.0, 20.0, 20.0)
HIT = (BOX, 0, 0.9)


def score(pictures, categories=(0,)):
    return Evaluator(pictures, categories).score()


def second_opinion(pictures, categories, **parameters):
    labels = []
    results = []
    for picture in pictures:
        for row in picture.objects:
            area = row["box"][2] * row["box"][3] if np.isnan(row["area"]) else row["area"]
            if row["ignored"] and not row["crowd"]:
                area = math.inf  # objects larger than every range are ignored
            labels.append(
                {"image_id": picture.image_id, "category_id": int(row["category"]),
                 "area": float(area), "bbox": row["box"].tolist(), "iscrowd": int(row["crowd"])}
            )  # fmt: skip
        for row in picture.found:
            results.append(
                {"image_id": picture.image_id, "category_id": int(row["category"]),
                 "bbox": row["box"].tolist(), "score": float(row["score"])}
            )  # fmt: skip
    images = [picture.image_id for picture in pictures]
    return pycocotools(images, categories, labels, results, **parameters)


@pytest.mark.parametrize("seed", [0, 1, 3, 6])
def test_the_figures_are_those_of_pycocotools(seed):
    random = np.random.default_rng(seed)
    pictures = random_pictures(random, 8 * seed, categories=4)
    # Category 3 has detections and no boxes, category 4 neither.
    pictures = [
        picture._replace(objects=picture.objects[picture.objects["category"] < 3])
        for picture in pictures
    ]
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
    for number, category_score in score(pictures, range(3))[1].items():
        start = number * 4 * len(pictures)  # all sizes come first
        results = [result for result in evaluator.evalImgs[start : start + len(pictures)] if result]
        boxes = sum(int(np.sum(result["gtIgnore"] == 0)) for result in results)
        rows = []
        for result in results:
            matches, ignored_rows = result["dtMatches"][0], result["dtIgnore"][0]
            rows.extend(zip(result["dtScores"], matches, ignored_rows, strict=True))
        for limit in (-1, 0.2, 0.5, 0.77):
            hits = [match > 0 for value, match, ignored in rows if value > limit and not ignored]
            assert category_score.curve.counts(limit) == (sum(hits), len(hits) - sum(hits))
        assert category_score.curve.boxes == boxes > 0


def counts(evaluator, confidence):
    return {pair: len(where) for pair, where in evaluator.confusions(confidence).items()}


@pytest.mark.parametrize("seed", range(2))
def test_confusions_are_the_matches_of_pycocotools_across_categories(seed):
    pictures = random_pictures(np.random.default_rng(seed), 30)
    above = [
        picture._replace(found=picture.found[picture.found["score"] > 0.3]) for picture in pictures
    ]
    evaluator = second_opinion(above, range(3), useCats=0, maxDets=[1000])
    labels, detections = evaluator.cocoGt.anns, evaluator.cocoDt.anns
    expected = Counter()
    for result in evaluator.evalImgs[: len(pictures)]:
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
    assert counts(Evaluator(pictures, range(3)), 0.3) == +expected
    assert len(+expected) > 9  # every kind, and some categories for others


def test_which_boxes_count():
    ids = 10**17, 10**17 + 1  # of 18 digits, which are told apart
    overall, _ = score([compared(number, [(BOX, 0, {})], [HIT]) for number in ids])
    assert overall.metrics.map50_95 == 1
    labels = [(BOX, 0, {}), (BOX, 7, {})]  # other categories do not
    overall, _ = score([compared(1, labels, [HIT, (BOX, 5, 0.99)])])
    assert overall.metrics.map50_95 == 1


def test_outcomes_come_best_first_and_what_was_missed_last():
    far_box = (70.0, 70.0, 9.0, 9.0)
    labels = [(BOX, 0, {}), (far_box, 0, {})]
    detections = [((40, 5, 9, 9), 0, 0.5), HIT]
    pictures = [compared(2, labels, detections), compared(1, [], [])]
    outcomes = Evaluator(pictures, [0]).outcomes(0.1)
    kinds = [(0.9, CORRECT), (0.5, FALSE), (None, MISSED)]
    assert [(outcome.score, outcome.kind) for outcome in outcomes[2]] == kinds
    assert outcomes[2][2].box == list(far_box)
    assert outcomes[1] == []


def test_a_hundred_detections_of_a_class_take_part_but_all_are_confused():
    many = [((float(n), 0.0, 1.0, 1.0), 0, 0.9) for n in range(149)] + [(BOX, 0, 0.5)]
    pictures = [compared(1, [(BOX, 0, {})], many)]
    overall, _ = score(pictures)
    assert overall.metrics.map50_95 == 0
    assert overall.curve.counts(0) == (0, 100)
    assert counts(Evaluator(pictures, [0]), 0.4) == {(0, 0): 1, (None, 0): 149}


def test_confusions_and_outcomes_say_where():
    far_box = (70.0, 70.0, 9.0, 9.0)
    pictures = [
        compared(5, [(BOX, 0, {})], [(BOX, 1, 0.9)]),
        compared(7, [(BOX, 0, {}), (far_box, 1, {})], [HIT, (BOX, 1, 0.8)]),
    ]
    evaluator = Evaluator(pictures, range(2))
    assert evaluator.confusions(0.3) == {
        (0, 0): [7], (0, 1): [5], (1, None): [7], (None, 1): [7],
    }  # fmt: skip
    assert evaluator.outcomes(0.3)[7][0].label == list(BOX)


@given(
    st.lists(st.tuples(st.integers(1, 9).map(lambda tenths: tenths / 10), st.booleans())),
    st.floats(0, 1),
)
def test_a_curve_counts_what_is_above_a_confidence(rows, confidence):
    values = np.array([value for value, _ in rows], np.float64)
    hits = np.array([hit for _, hit in rows], np.bool_)
    curve = Curve.of(values, hits, 100)
    above = [hit for value, hit in rows if value > confidence]
    assert curve.counts(confidence) == (sum(above), len(above) - sum(above))
    assert (np.diff(curve.score) < 0).all()


FLOOR = 0.001


def curve(boxes, rows):
    scores = np.array([score for score, _ in rows], np.float32).astype(np.float64)
    hits = np.array([hit for _, hit in rows], np.bool_)
    return Curve.of(scores, hits, boxes)


def advice(names, *classes):
    """Advise on classes, each of them the number of its boxes and its detections."""
    all_boxes = 0
    all_rows = []
    curves = {}
    for index, (boxes, rows) in enumerate(classes):
        all_boxes += boxes
        all_rows += rows
        curves[index] = curve(boxes, rows)

    together = curve(all_boxes, all_rows)
    mapping = ClassMapping("name", tuple(range(len(classes))))
    return advise(together, curves, mapping, names, FLOOR)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([(0.9, True), (0.3, False)], 0.6),
        ([(0.9, True), (0.8, True), (0.3, False)], 0.55),
        ([(0.9, True)], 0.45),  # between the score and the floor, 0.001
        ([(0.52, True), (0.51, False)], 0.51),  # kept is what is above it
        ([(0.5123, True), (0.5121, False)], 0.5122),
        ([(0.9, False), (0.9, True), (0.2, False)], 0.55),  # equal scores go together
        ([(0.9, False)], None),
        ([], None),
    ],
)
def test_the_best_confidence(rows, expected):
    assert curve(1, rows).best(FLOOR) == expected


def test_neighbours_among_the_float32_numbers_are_parted():
    low = np.float32(0.3)
    high = np.nextafter(low, np.float32(1))
    confidence = curve(1, [(high, True), (low, False)]).best(FLOOR)
    assert low <= np.float32(confidence) < high


@given(
    st.lists(
        st.tuples(st.floats(2**-9, 1, width=32), st.booleans()), min_size=1, max_size=30
    ).filter(lambda rows: any(hit for _, hit in rows))
)
def test_it_gives_the_best_f1_of_all_confidences(rows):
    boxes = len(rows)
    # As the detector reads and applies what is printed.
    confidence = parse_conf(decimal(curve(boxes, rows).best(FLOOR)))["conf"]
    threshold = conf_thresholds(confidence, (), ("x",))[0]

    def f1(limit):
        kept_hits = [hit for value, hit in rows if np.float32(value) > limit]
        return 2 * sum(kept_hits) / (len(kept_hits) + boxes)

    best = f1(np.float32(FLOOR))
    for value, _ in rows:
        best = max(best, f1(np.float32(value)))
    assert f1(threshold) == pytest.approx(best)


def test_advice_overall_and_by_class():
    advised = advice(
        ("red", "light green"),
        (12, [(0.9, True)] * 10 + [(0.6, False)] * 40),
        (10, [(0.3, True)] * 5 + [(0.2, True)] * 5 + [(0.1, False)] * 9),
    )
    assert advised.conf == 0.75
    assert advised.overall.precision == 1
    assert advised.overall.recall == pytest.approx(10 / 22, abs=1e-6)
    assert advised.argument == "--conf 0.75"
    assert [advised_class.name for advised_class in advised.classes] == ["red", "light green"]
    assert [advised_class.conf for advised_class in advised.classes] == [0.75, 0.15]
    assert advised.classes[1].best.f1 == 1
    assert advised.classes[1].at_overall.f1 == 0
    assert advised.classes[1].at_overall.precision is None
    # Red gains nothing by a confidence of its own, so it is not named.
    assert advised.by_class_argument == "--conf '0.75,light green=0.15'"
    assert advised.by_class.f1 == pytest.approx(2 * 20 / (20 + 22), abs=1e-6)


@pytest.mark.parametrize(("boxes", "has_confidence"), [(9, False), (10, True)])
def test_a_class_with_fewer_than_ten_boxes_has_no_confidence_of_its_own(boxes, has_confidence):
    red = (30, [(0.9, True)] * 30 + [(0.6, False)] * 30)
    green = (boxes, [(0.3, True)] * boxes)
    advised = advice(("red", "green"), red, green)
    assert advised.conf == 0.75
    assert advised.classes[1].conf == 0.15
    assert ("green" in advised.by_class_argument) is has_confidence
    assert (advised.by_class.f1 > advised.overall.f1) is has_confidence


def test_false_positives_of_classes_without_boxes_count_overall():
    red = (10, [(0.5, True)] * 5 + [(0.4, True)] * 5)
    advised = advice(("red", "green"), red, (0, [(0.45, False)] * 25))
    assert advised.conf == 0.47
    assert [advised_class.name for advised_class in advised.classes] == ["red"]
    assert advised.overall.f1 == pytest.approx(2 / 3, abs=1e-6)
    assert advised.by_class_argument == "--conf 0.47,red=0.2"
    assert advised.by_class.f1 == 1


def test_where_nothing_is_right():
    advised = advice(("red", "green"), (1, [(0.5, True)]), (3, [(0.1, False)]))
    assert advised.classes[1].conf is None
    assert advised.classes[1].best is None
    assert advised.by_class_argument == advised.argument
    assert advice(("red",), (3, [(0.5, False)])) is None


@pytest.mark.parametrize(
    "names", [("red", "a,b"), ("red", " b"), ("red", ""), ("red", "a=b"), ("red", "it's $HOME")]
)
def test_the_argument_is_read_as_meant_whatever_the_names_of_classes(names):
    advised = advice(
        names,
        (10, [(0.9, True)] * 10),
        (10, [(0.3, True)] * 10 + [(0.1, False)] * 10),
    )
    option, text = shlex.split(advised.by_class_argument)
    assert option == "--conf"
    confidence, by_class = parse_conf(text).values()
    thresholds = conf_thresholds(confidence, by_class, names)
    assert thresholds.tolist() == pytest.approx([advised.conf, 0.2])


def test_classes_that_a_name_does_not_tell_apart_are_given_by_id():
    red = (10, [(0.9, True)] * 10 + [(0.4, False)] * 50)
    green = (10, [(0.3, True)] * 10 + [(0.1, False)] * 10)
    mapping = ClassMapping("name", (0, 1, 1))  # names that differ only in case
    curves = {0: curve(red[0], red[1]), 1: curve(green[0], green[1])}
    advised = advise(curves[0], curves, mapping, ("red", "Green", "green"), FLOOR)
    assert advised.by_class_argument.endswith(",1=0.2,2=0.2")
    advised = advice(("red", "red"), red, green)  # one name and two categories
    assert "red" not in advised.by_class_argument
    assert advised.by_class_argument.endswith("=0.2")


def test_numbers_have_no_exponent():
    assert decimal(0.00001) == "0.00001"
    assert decimal(1.0) == "1"
