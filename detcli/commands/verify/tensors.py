"""Compares tensors: how far apart two arrays are that should be alike."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from detcli.commands.verify.report import TensorReport, TensorSide

Tensor = npt.NDArray[Any]
Doubles = npt.NDArray[np.float64]


def compare_tensors(
    name: str, left: Tensor, right: Tensor, limit: float, source: str
) -> TensorReport:
    """Compare two tensors, in float64.

    Args:
        name: What to call them.
        left: The reference, of any number type.
        right: The other.
        limit: Largest difference, as a share of the left's largest magnitude, that still agrees.
        source: The input that they were computed from.
    """
    sides = _side(left), _side(right)
    finite, same_elsewhere = None, False
    if left.shape == right.shape:
        first, second = left.astype(np.float64), right.astype(np.float64)
        finite = np.isfinite(first) & np.isfinite(second)
        same_elsewhere = np.array_equal(first[~finite], second[~finite], equal_nan=True)
    if finite is None or not finite.any():
        return TensorReport(
            name,
            *sides,
            max_absolute=None,
            max_relative=None,
            max_scaled=None,
            cosine=None,
            agrees=same_elsewhere,
            source=source,
        )
    first, second = first[finite], second[finite]  # (M,), (M,)
    difference = np.abs(first - second)
    magnitude = np.maximum(np.abs(first), np.abs(second))
    absolute = float(difference.max())
    largest = float(np.abs(first).max()) or float(magnitude.max()) or 1.0
    relative = np.divide(
        difference, magnitude, out=np.zeros_like(difference), where=magnitude > 0
    ).max()
    scaled = absolute / largest
    return TensorReport(
        name,
        *sides,
        max_absolute=absolute,
        max_relative=float(relative),
        max_scaled=scaled,
        cosine=_cosine(first, second),
        agrees=bool(same_elsewhere and scaled <= limit),
        source=source,
    )


def worse(one: TensorReport | None, other: TensorReport) -> TensorReport:
    """Of the same tensor on two inputs, the one that is further apart; the first of equals."""
    return other if one is None or badness(other) > badness(one) else one


def badness(report: TensorReport) -> tuple[bool, float]:
    """What makes a difference worse than another."""
    scaled = math.inf if report.max_scaled is None else report.max_scaled
    return not report.agrees, scaled if not report.agrees or report.max_scaled is not None else 0.0


def _side(tensor: Tensor) -> TensorSide:
    values = tensor.astype(np.float64)
    finite = values[np.isfinite(values)]
    return TensorSide(
        dtype=tensor.dtype.name,
        shape=tuple(tensor.shape),
        nan=int(np.count_nonzero(np.isnan(values))),
        infinite=int(np.count_nonzero(np.isinf(values))),
        least=float(finite.min()) if finite.size else None,
        greatest=float(finite.max()) if finite.size else None,
    )


def _cosine(first: Doubles, second: Doubles) -> float:
    """Of the angle between two vectors; two zeros are alike, one is not like anything else."""
    # Scaled first: the squares of large entries would overflow.
    units = [side / (np.abs(side).max() or 1.0) for side in (first, second)]
    lengths = [float(np.linalg.norm(unit)) for unit in units]
    if 0.0 in lengths:
        return float(lengths[0] == lengths[1])
    cosine = float(np.dot(*units)) / (lengths[0] * lengths[1])
    return max(-1.0, min(1.0, cosine))
