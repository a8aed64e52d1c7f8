"""The sigmoid, and the logit that a confidence comes to.

Detections are selected by their logits, which order them as their scores would, but for ties that
only rounding makes. So the sigmoid runs on what was selected, on the host, for every backend.
"""

import functools
import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

FARTHEST = 200.0
"""Beyond it, float32 knows the sigmoids 0 and 1 only; up to it, exp does not overflow float64."""

EXP_TERMS = tuple(1 / math.factorial(power) for power in range(11, -1, -1))
"""Of the Taylor series of exp, highest power first: enough up to half of ln 2, see `sigmoid`."""

INFINITY = 0x7F800000
"""The bits of float32's infinity, and its place among the float32 numbers counted from 0."""


def sigmoid(logits: npt.ArrayLike) -> Floats:
    """1 / (1 + exp(-x)) in float64, with an error below 2^-45, rounded to float32.

    Only additions, multiplications and divisions, which IEEE 754 settles to the last bit: NumPy's
    own exp rounds differently with AVX-512 and without. It never falls as the logit rises.

    Args:
        logits: Of any shape, taken as float32. NaN stays NaN.

    Returns:
        Float32 of that shape, from 0 to 1.

    Examples:
        >>> sigmoid([-np.inf, 0, 2, np.inf]).tolist()
        [0.0, 0.5, 0.8807970881462097, 1.0]
    """
    negated = -np.asarray(logits, np.float32).astype(np.float64)
    power = np.minimum(np.maximum(negated, -FARTHEST), FARTHEST)
    doublings = np.fmax(np.rint(power / math.log(2)), -2 * FARTHEST)  # a number also for NaN
    rest = power - doublings * math.log(2)
    series = np.zeros_like(rest)
    for term in EXP_TERMS:
        series *= rest
        series += term
    exponential = np.ldexp(series, doublings.astype(np.int32))
    return np.asarray(1 / (1 + exponential)).astype(np.float32)


@functools.cache
def logit_threshold(confidence: float) -> float:
    """The float32 logit t such that `sigmoid(x) > confidence` says the same as `x > t`.

    The confidence is taken as float32. Below 0, which every sigmoid is above, t is -inf.

    Examples:
        >>> logit_threshold(1.0), round(logit_threshold(0.25), 4)
        (inf, -1.0986)
    """
    least, low, high = np.float32(confidence), -INFINITY, INFINITY + 1
    while high - low > 1:  # the sigmoid of `low` is not above the confidence; that of `high` is
        middle = (low + high) // 2
        if sigmoid(_float32(middle)) > least:
            high = middle
        else:
            low = middle
    return float(_float32(low))


def _float32(place: int) -> Floats:
    """The float32 number at a place, if they are counted from 0 in both directions: ()."""
    magnitude = np.array(abs(place), np.uint32).view(np.float32)
    return np.negative(magnitude) if place < 0 else magnitude
