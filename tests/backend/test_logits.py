"""The sigmoid and its thresholds are exact, for every float32 number."""

import math
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detcli.backend.logits import logit_threshold, sigmoid


def float32(first, last, step=1):
    """Numbers at places of float32, counted from 0 towards -inf and inf."""
    positions = np.arange(first, last, step, np.int64)  # type: ignore[call-overload]
    magnitude = np.abs(positions).astype(np.uint32).view(np.float32)
    return np.where(positions < 0, -magnitude, magnitude)


INFINITY = 0x7F800000
HALVES = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
HALVES = np.sort(HALVES[~np.isnan(HALVES)]).astype(np.float32)


def assert_monotone(logits):
    scores = sigmoid(logits)
    assert (np.diff(scores) >= 0).all()
    assert scores[0] >= 0
    assert scores[-1] <= 1


def test_the_sigmoid_never_falls():
    """A prime step over all float32 numbers, and runs without a step where something changes."""
    assert_monotone(float32(-INFINITY, INFINITY + 1, 4999))
    turns = [0.0, 2.0**-24, 2.0**-23, 17.0, 88.0, 103.97, 110.0, 200.0]
    turns += ((np.arange(150) + 0.5) * math.log(2)).tolist()  # where exp's exponent changes
    for turn in np.array(turns, np.float32).view(np.uint32).astype(int).tolist():
        assert_monotone(float32(turn - 1000, turn + 1000))
        assert_monotone(float32(-turn - 1000, -turn + 1000))


def test_the_sigmoid_of_every_float16():
    assert_monotone(HALVES)
    with np.errstate(over="ignore"):
        exact = 1 / (1 + np.exp(-HALVES.astype(np.longdouble)))
    np.testing.assert_array_max_ulp(sigmoid(HALVES), exact.astype(np.float32), maxulp=1)


def test_each_value_has_one_sigmoid_alone_and_in_any_array(random):
    assert sigmoid([-np.inf, -104, 0, -0.0, 18, np.inf]).tolist() == [0, 0, 0.5, 0.5, 1, 1]
    assert np.isnan(sigmoid(np.nan))
    assert sigmoid(np.zeros((0, 3))).shape == (0, 3)
    logits = random.normal(0, 5, 1000).astype(np.float32)
    sigmoids = sigmoid(logits)
    assert sigmoids.tolist() == [float(sigmoid(logit)) for logit in logits]
    np.testing.assert_array_equal(sigmoid(logits[::7]), sigmoids[::7])


@given(st.floats(0, 1, width=32) | st.floats(0, 1))
def test_the_threshold_is_exact(confidence):
    conf = np.float32(confidence)
    threshold = np.float32(logit_threshold(confidence))
    assert not sigmoid(threshold) > conf
    if threshold < np.inf:
        assert sigmoid(np.nextafter(threshold, np.float32(np.inf))) > conf


def test_thresholds_of_all_halves_and_at_the_ends():
    for confidence in (0, 0.001, 0.25, 0.3, 0.5, 0.999, 1):
        above = np.float32(logit_threshold(confidence)) < HALVES
        np.testing.assert_array_equal(sigmoid(HALVES) > np.float32(confidence), above)
    assert logit_threshold(1.0) == math.inf
    assert logit_threshold(-1.0) == -math.inf
    assert -104 < logit_threshold(0.0) < -103.9


@pytest.mark.parametrize(
    "logit", [0.2773413360118866, 3.8027923107147217, -0.35088011622428894, -1.7501497540283203]
)
def test_where_rounding_is_close_the_sigmoid_is_the_nearest_float32(logit):
    """Without the last term of the series of exp, it would be the float32 number beside that."""
    exact = 1 / (1 + (-Decimal(logit)).exp())
    assert sigmoid(logit) == np.float32(float(exact))
