"""Ranges of whole numbers, many at once."""

import numpy as np
import numpy.typing as npt

_Integers = npt.NDArray[np.int64]


def joined_ranges(starts: _Integers, lengths: _Integers) -> _Integers:
    """Join ranges of consecutive whole numbers in one array, one range after the other.

    Args:
        starts: The first number of each range.
        lengths: How many numbers each range has; it may be 0.

    Examples:
        >>> joined_ranges(np.array([7, 4]), np.array([2, 3])).tolist()
        [7, 8, 4, 5, 6]
    """
    positions = np.arange(lengths.sum())  # in the result: 0, 1, 2, 3, 4
    first_positions = np.cumsum(lengths) - lengths  # of each range: 0, 2
    # All numbers of a range differ from their positions by the same: 7, 7, 2, 2, 2.
    shifts: _Integers = np.repeat(starts - first_positions, lengths)
    return positions + shifts
