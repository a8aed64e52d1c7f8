"""Curves by confidence, and the best confidences."""

import shlex

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detcli.commands.eval.classes import ClassMapping
from detcli.commands.eval.confidence import Curve, advise, decimal
from detcli.config.values import parse_conf
from detcli.model.contract import conf_thresholds


@given(
    st.lists(st.tuples(st.integers(1, 9).map(lambda tenths: tenths / 10), st.booleans())),
    st.floats(0, 1),
)
def test_a_curve_counts_what_is_above_a_confidence(rows, confidence):
    values = np.array([value for value, _ in rows], np.float64)
    hits = np.array([hit for _, hit in rows], np.bool_)
    curve = Curve.of(values, hits, 100)
    above = hits[values > confidence]
    assert curve.counts(confidence) == (above.sum(), len(above) - above.sum())
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
    assert curve(1, rows).best_confidence(FLOOR) == expected


def test_neighbours_among_the_float32_numbers_are_parted():
    low = np.float32(0.3)
    high = np.nextafter(low, np.float32(1))
    confidence = curve(1, [(high, True), (low, False)]).best_confidence(FLOOR)
    assert low <= np.float32(confidence) < high


@given(
    st.lists(
        st.tuples(st.floats(2**-9, 1, width=32), st.booleans()), min_size=1, max_size=30
    ).filter(lambda rows: any(hit for _, hit in rows))
)
def test_it_gives_the_best_f1_of_all_confidences(rows):
    boxes = len(rows)
    # As the detector reads and applies what is printed.
    confidence = parse_conf(decimal(curve(boxes, rows).best_confidence(FLOOR)))["conf"]
    threshold = conf_thresholds(confidence, (), ("x",))[0]
    scores = np.array([score for score, _ in rows], np.float32)
    hits = np.array([hit for _, hit in rows], np.bool_)

    def f1(limit):
        above = hits[scores > limit]
        return 2 * above.sum() / (len(above) + boxes)

    best = f1(np.float32(FLOOR))
    for score in scores:
        best = max(best, f1(score))
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
    red, light_green = advised.classes
    assert red.name == "red"
    assert red.conf == 0.75
    assert light_green.name == "light green"
    assert light_green.conf == 0.15
    assert light_green.best.f1 == 1
    assert light_green.at_overall.f1 == 0
    assert light_green.at_overall.precision is None
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
    (advised_class,) = advised.classes
    assert advised_class.name == "red"
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
