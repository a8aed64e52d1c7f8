import shlex

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detcli.commands.eval.evaluator import Curve, advise, decimal
from detcli.commands.eval.labels import ClassMapping
from detcli.core.values import parse_confidence
from detcli.model.contract import class_thresholds

FLOOR = 0.001


def curve(boxes, *rows):
    scores = np.array([value for value, _ in rows], np.float32).astype(np.float64)
    return Curve.of(scores, np.array([hit for _, hit in rows], np.bool_), boxes)


def advice(names, *classes):
    """Of classes, each the number of its boxes and its detections."""
    boxes = sum(one[0] for one in classes)
    together = curve(boxes, *(row for one in classes for row in one[1:]))
    curves = {index: curve(*one) for index, one in enumerate(classes)}
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
    assert curve(1, *rows).best(FLOOR) == expected


def test_neighbours_among_the_float32_numbers_are_parted():
    low = np.float32(0.3)
    high = np.nextafter(low, np.float32(1))
    found = curve(1, (high, True), (low, False)).best(FLOOR)
    assert low <= np.float32(found) < high


@given(
    st.lists(
        st.tuples(st.floats(2**-9, 1, width=32), st.booleans()), min_size=1, max_size=30
    ).filter(lambda rows: any(hit for _, hit in rows))
)
def test_it_gives_the_best_f1_of_all_confidences(rows):
    boxes = len(rows)
    # As the detector reads and applies what is printed.
    least = parse_confidence(decimal(curve(boxes, *rows).best(FLOOR)))["conf"]
    threshold = class_thresholds(least, (), ("x",))[0]

    def f1(limit):
        kept = [hit for value, hit in rows if np.float32(value) > limit]
        return 2 * sum(kept) / (len(kept) + boxes)

    limits = [np.float32(FLOOR), *(np.float32(value) for value, _ in rows)]
    assert f1(threshold) == pytest.approx(max(map(f1, limits)))


def test_advice_overall_and_by_class():
    found = advice(
        ("red", "light green"),
        (12, *[(0.9, True)] * 10, *[(0.6, False)] * 40),
        (10, *[(0.3, True)] * 5, *[(0.2, True)] * 5, *[(0.1, False)] * 9),
    )
    assert found.conf == 0.75
    assert found.overall.precision == 1
    assert found.overall.recall == pytest.approx(10 / 22, abs=1e-6)
    assert found.argument == "--conf 0.75"
    assert [one.name for one in found.classes] == ["red", "light green"]
    assert [one.conf for one in found.classes] == [0.75, 0.15]
    assert found.classes[1].best.f1 == 1
    assert found.classes[1].at_overall.f1 == 0
    assert found.classes[1].at_overall.precision is None
    # Red gains nothing by a confidence of its own, so it is not named.
    assert found.by_class_argument == "--conf '0.75,light green=0.15'"
    assert found.by_class.f1 == pytest.approx(2 * 20 / (20 + 22), abs=1e-6)


@pytest.mark.parametrize(("boxes", "named"), [(9, False), (10, True)])
def test_a_class_with_fewer_than_ten_boxes_has_no_confidence_of_its_own(boxes, named):
    red, green = (30, *[(0.9, True)] * 30, *[(0.6, False)] * 30), (boxes, *[(0.3, True)] * boxes)
    found = advice(("red", "green"), red, green)
    assert found.conf == 0.75
    assert found.classes[1].conf == 0.15
    assert ("green" in found.by_class_argument) is named
    assert (found.by_class.f1 > found.overall.f1) is named


def test_false_positives_of_classes_without_boxes_count_overall():
    red = (10, *[(0.5, True)] * 5, *[(0.4, True)] * 5)
    found = advice(("red", "green"), red, (0, *[(0.45, False)] * 25))
    assert found.conf == 0.47
    assert [one.name for one in found.classes] == ["red"]
    assert found.overall.f1 == pytest.approx(2 / 3, abs=1e-6)
    assert found.by_class_argument == "--conf 0.47,red=0.2"
    assert found.by_class.f1 == 1


def test_where_nothing_is_right():
    found = advice(("red", "green"), (1, (0.5, True)), (3, (0.1, False)))
    assert (found.classes[1].conf, found.classes[1].best) == (None, None)
    assert found.by_class_argument == found.argument
    assert advice(("red",), (3, (0.5, False))) is None


@pytest.mark.parametrize(
    "names", [("red", "a,b"), ("red", " b"), ("red", ""), ("red", "a=b"), ("red", "it's $HOME")]
)
def test_the_argument_is_read_as_meant_whatever_the_names_of_classes(names):
    found = advice(
        names,
        (10, *[(0.9, True)] * 10),
        (10, *[(0.3, True)] * 10, *[(0.1, False)] * 10),
    )
    option, text = shlex.split(found.by_class_argument)
    assert option == "--conf"
    least, by_class = parse_confidence(text).values()
    thresholds = class_thresholds(least, by_class, names)
    assert thresholds.tolist() == pytest.approx([found.conf, 0.2])


def test_classes_that_a_name_does_not_tell_apart_are_given_by_id():
    red, green = (
        (10, *[(score, True)] * 10, *[(false, False)] * count)
        for score, false, count in ((0.9, 0.4, 50), (0.3, 0.1, 10))
    )
    mapping = ClassMapping("name", (0, 1, 1))  # names that differ only in case
    curves = {0: curve(*red), 1: curve(*green)}
    found = advise(curves[0], curves, mapping, ("red", "Green", "green"), FLOOR)
    assert found.by_class_argument.endswith(",1=0.2,2=0.2")
    found = advice(("red", "red"), red, green)  # one name and two categories
    assert "red" not in found.by_class_argument
    assert found.by_class_argument.endswith("=0.2")


def test_numbers_have_no_exponent():
    assert decimal(0.00001) == "0.00001"
    assert decimal(1.0) == "1"
