import pytest

from detcli.compare.detections import (
    EXACT,
    REDUCED,
    tolerance_for,
)
from detcli.config.values import Tolerance, parse_tolerance
from detcli.core.errors import UsageError
from detcli.model.precision import Precision

F32, F16, I8 = Precision.FLOAT32, Precision.FLOAT16, Precision.INT8


def test_the_defaults_go_by_the_lower_precision():
    assert tolerance_for({F32}, {}) == EXACT
    assert tolerance_for({F32, F16}, {}) == REDUCED
    assert tolerance_for({F16}, {}) == REDUCED
    assert tolerance_for({F32, I8}, {}) == REDUCED


def test_requested_values_replace_their_defaults_only():
    assert tolerance_for({F32}, {"corner": 5.0}) == Tolerance(0.001, 5.0, 0.0, 0.001)


@pytest.mark.parametrize(
    ("field", "value"),
    [("score", -0.1), ("boxes", 1.1), ("corner", float("nan")), ("tensor", float("inf"))],
)
def test_values_out_of_range(field, value):
    with pytest.raises(UsageError, match=field):
        tolerance_for({F32}, {field: value})


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("score=0.02", {"score": 0.02}),
        (" corner = 2 , boxes=1.5% ", {"corner": 2, "boxes": 0.015}),
        ("score=1e-3,", {"score": 0.001}),
    ],
)
def test_reading(text, values):
    assert parse_tolerance(text) == pytest.approx(values)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is an empty list"),
        (",", "is an empty list"),
        ("score", "'score' is not a number"),
        ("score=", "'' is not a number"),
        ("score=many", "'many' is not a number"),
        ("speed=1", "'speed' is unknown"),
        ("0.1", "'' is unknown"),
        ("score=1,score=2", "two numbers for score"),
    ],
)
def test_refused(text, message):
    with pytest.raises(UsageError, match=message) as error:
        parse_tolerance(text)
    assert "score, corner, boxes" in error.value.hint
