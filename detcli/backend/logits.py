"""The sigmoid of logits, and the logit that stands for a confidence, exact to the last bit.

A logit is a score before the sigmoid. The backends compare logits with the logit of the confidence,
and compute the sigmoids only of those that are selected.
"""

import functools
import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

# The sigmoid of a larger logit is 1 in float32, and 0 of one below its negative. Up to here, exp
# does not overflow float64.
MAX_EXPONENT = 200.0
# The coefficients of the Taylor series of exp, the highest power first. They are enough for numbers
# up to half of ln 2, see `sigmoid`.
EXP_COEFFICIENTS = tuple(1 / math.factorial(power) for power in range(11, -1, -1))
# The bits of float32's infinity as an integer. This is also its position if all float32 numbers are
# counted in ascending order from 0.0.
INFINITY_BITS = 0x7F800000


def sigmoid(logits: npt.ArrayLike) -> Floats:
    """Compute 1 / (1 + exp(-x)) of float32 logits, with the same bits on every machine.

    NumPy's own exp rounds differently with AVX-512 and without it. So exp is computed here in
    float64 with additions, multiplications and divisions only, whose results IEEE 754 defines to
    the last bit. The error is below 2^-45 before the result is rounded to float32. The result never
    falls as the logit rises, and NaN stays NaN.

    Args:
        logits: Of any shape.

    Returns:
        float32 of the same shape, from 0 to 1.

    Examples:
        >>> sigmoid([-np.inf, 0, 2, np.inf]).tolist()
        [0.0, 0.5, 0.8807970881462097, 1.0]
    """
    negated = -np.asarray(logits, np.float32).astype(np.float64)
    exponent = np.minimum(np.maximum(negated, -MAX_EXPONENT), MAX_EXPONENT)
    # exp(x) = 2^n * exp(r), where n is the whole number nearest to x / ln 2, and so the remainder r
    # is at most ln 2 / 2, for which a few terms of the Taylor series are enough.
    doublings = np.rint(exponent / math.log(2))
    # fmax replaces NaN by a number here, which can be converted to an integer below. The remainder
    # stays NaN.
    doublings = np.fmax(doublings, -2 * MAX_EXPONENT)
    remainder = exponent - doublings * math.log(2)
    series = np.zeros_like(remainder)
    for coefficient in EXP_COEFFICIENTS:  # Horner's scheme: ((c11 * r + c10) * r + c9) * r + ...
        series *= remainder
        series += coefficient
    exponential = np.ldexp(series, doublings.astype(np.int32))
    return np.asarray(1 / (1 + exponential)).astype(np.float32)


@functools.cache
def logit_threshold(conf: float) -> float:
    """Find the float32 logit t such that `sigmoid(x) > conf` says the same as `x > t`.

    With it, the logits of a network can be compared with a confidence without computing their
    sigmoids. It is searched for by halving the range of all float32 numbers, as it has to be exact
    to the last bit.

    Args:
        conf: The confidence, which is rounded to float32.

    Returns:
        The logit; -inf if the confidence is below 0, since every sigmoid is above it then.

    Examples:
        >>> logit_threshold(1.0), round(logit_threshold(0.25), 4)
        (inf, -1.0986)
    """
    threshold = np.float32(conf)
    # This is a binary search over the float32 numbers by their positions in ascending order, see
    # `_float32_at_position`. At every step, the sigmoid of the number at `low` is not above the
    # confidence, and that of the number at `high` is; both are only assumed at the start.
    low = -INFINITY_BITS
    high = INFINITY_BITS + 1
    while high - low > 1:
        middle = (low + high) // 2
        if sigmoid(_float32_at_position(middle)) > threshold:
            high = middle
        else:
            low = middle
    return float(_float32_at_position(low))


def _float32_at_position(position: int) -> Floats:
    """Return the float32 number at a position, if all of them are counted in ascending order.

    0.0 is at position 0, the smallest positive number at 1, its negative at -1. The bits of a
    positive float32 number, read as an integer, are this position.
    """
    magnitude = np.array(abs(position), np.uint32).view(np.float32)
    if position < 0:
        return np.negative(magnitude)
    return magnitude
