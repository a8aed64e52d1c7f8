"""The k largest of each row, in a total order: the NumPy specification.

Largest first; of equals, the lower index first. NaN ranks below everything, -inf included, and
-0 equals +0. No row is sorted as a whole: `np.partition` finds the k-th largest value in linear
time, and only the k survivors are sorted. In a long row, most columns of 16 entries are left out
first.

This is the order of any list of values: of `top_k`, and of `rank_descending` where all are kept.
The selection uses it (backend/postprocess.py, run/selections.py), and every backend must agree:

- on a GPU, `unique_key` in backend/cuda/kernels/order.cuh has this order, on which top_k.cu and
  select.cu rely; which class is best among equal scores is in class_max.cu;
- in ONNX nodes, commands/convert/selection.py relies on what TopK and ArgMax do with equals.

Tiles (data/tiling.py) and the evaluation (commands/eval) use it as well, but are no backends: the
figures of an evaluation depend on this order as pycocotools has it.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Indices = npt.NDArray[np.int64]

LONG_ROW = 1 << 16  # row length from which leaving out columns pays

DEPTH = 16  # entries in a column
MIN_REDUCTION = 4  # leaving out columns pays if it makes a row more than this many times shorter


def top_k(values: npt.ArrayLike, k: int, *, sorted: bool = True) -> tuple[Array, Indices]:  # noqa: A002 - as in torch.topk
    """Return the k largest entries along the last axis, and where they are.

    Any row length and any leading shape; float16, float32, float64 and integers. The semantics
    are those of `torch.topk(values, k, sorted=sorted)` with ties and NaN settled (see the module).

    Args:
        values: `(..., N)`.
        k: How many; more than N means all N.
        sorted: Largest first; otherwise the same set, ordered by index.

    Returns:
        Values `(..., min(k, N))` with the dtype of `values`, and int64 indices of that shape.

    Raises:
        ValueError: `k` is negative or `values` has no axis.

    Examples:
        >>> values, indices = top_k([3.0, 9.0, 9.0, float("nan")], 3)
        >>> values.tolist(), indices.tolist()
        ([9.0, 9.0, 3.0], [1, 2, 0])
    """
    values = np.asarray(values)
    if values.ndim == 0:
        raise ValueError("top_k needs at least one axis")
    if k < 0:
        raise ValueError(f"k must not be negative, got {k}")
    keys = _ordered_without_nan(values)
    indices = _largest(keys, min(k, values.shape[-1]))  # (..., k), ascending
    if sorted:
        indices = _gather(indices, _descending(_gather(keys, indices)))
    return _gather(values, indices), indices


def rank_descending(scores: Array) -> Indices:
    """Return the order that sorts scores `(N,)` largest first; of equals, the first comes first.

    NaN comes last. This is the order of `top_k` where all are kept.

    Examples:
        >>> rank_descending(np.array([0.5, 0.9, 0.5])).tolist()
        [1, 0, 2]
    """
    order: Indices = np.argsort(-scores, kind="stable")
    return order


def _largest(keys: Array, k: int) -> Indices:
    """Find the k largest entries of each row.

    Of equal entries, those with the lower index are taken.

    Args:
        keys: `(..., N)` without NaN.
        k: At most N.

    Returns:
        `(..., k)`, their indices in the row, in ascending order of the index.
    """
    length = keys.shape[-1]
    if k == length:
        all_indices = np.empty(keys.shape, np.int64)
        all_indices[...] = np.arange(length)
        return all_indices
    if k == 0:
        return np.empty((*keys.shape[:-1], 0), np.int64)

    # If no peaks are equal, k columns remain when the others are left out, see `_contenders`.
    remaining_length = DEPTH * k
    leaves_out_most = length > MIN_REDUCTION * remaining_length
    if length >= LONG_ROW and leaves_out_most:
        return _largest_of_long_rows(keys, k)
    return _kth_and_above(keys, k)


def _largest_of_long_rows(keys: Array, k: int) -> Indices:
    """Find the k largest entries of each row as `_largest` does, after most others are left out.

    It is faster where rows are long and k is small.
    """
    leading = keys.shape[:-1]
    indices = np.empty((*leading, k), np.int64)
    for position in np.ndindex(leading):
        row = keys[position]
        contenders = _contenders(row, k)
        indices[position] = contenders[_kth_and_above(row[contenders], k)]
    return indices


def _contenders(row: Array, k: int) -> Indices:
    """Leave out most entries of a long row that cannot be among its k largest.

    The row is read as a table of DEPTH lines, and the largest entry of each column of the table is
    found, its peak. At least k entries are as large as the k-th largest peak. So a column whose
    peak is below that holds none of the k largest entries, nor any that equals the last of them.

    Args:
        row: `(N,)`.
        k: Less than the number of columns, which is N // DEPTH.

    Returns:
        `(M,)`, the indices of the remaining entries, ascending: those in columns with large peaks,
        and those at the end of the row that do not fill a line of the table.
    """
    column_count = len(row) // DEPTH
    table_size = DEPTH * column_count
    peaks = row[:table_size].reshape(DEPTH, column_count).max(axis=0)
    kth_largest_position = column_count - k  # in ascending order
    kth_largest_peak = np.partition(peaks, kth_largest_position)[kth_largest_position]
    columns = np.flatnonzero(peaks >= kth_largest_peak)

    # The entry in a line and a column of the table has the index line * column_count + column.
    line_starts = np.arange(DEPTH) * column_count
    indices_in_table = np.add.outer(line_starts, columns)  # (DEPTH, columns)
    indices_behind_table = np.arange(table_size, len(row))
    return np.concatenate([indices_in_table.ravel(), indices_behind_table])


def _kth_and_above(keys: Array, k: int) -> Indices:
    """Find the k largest entries of each row: those that reach the k-th largest value.

    Args:
        keys: `(..., N)` without NaN.
        k: More than 0 and less than N.

    Returns:
        `(..., k)`, their indices in the row, ascending; of equal entries, the lower ones.
    """
    length = keys.shape[-1]
    kth_largest_position = length - k  # in ascending order
    partitioned = np.partition(keys, kth_largest_position, axis=-1)
    kth_largest = partitioned[..., kth_largest_position, np.newaxis]  # (..., 1)

    # Positions count through all rows: row * length + index.
    positions = np.flatnonzero(keys >= kth_largest)
    row_count = kth_largest.size
    has_surplus_ties = len(positions) > k * row_count  # several entries equal the k-th largest
    if has_surplus_ties:
        positions = _without_surplus_ties(positions, keys, kth_largest, k)
    indices: Indices = positions % length
    return indices.reshape((*keys.shape[:-1], k))


def _without_surplus_ties(positions: Indices, keys: Array, kth: Array, k: int) -> Indices:
    """Leave exactly k positions of each row, where more entries reach the k-th largest value.

    The entries that equal that value are ties. Those with the lowest positions stay, as many as
    there is room for beside the larger entries.

    Args:
        positions: `(P,)`, ascending, the positions in the flattened `keys` of all entries that are
            at least as large as the k-th largest of their row.
        keys: `(..., N)`.
        kth: `(..., 1)`, the k-th largest value of each row.
        k: The number of positions to leave of each row.
    """
    # The comments show the values for k = 2 and the rows [5, 7, 5, 5] and [9, 1, 1, 9], of which
    # the positions are [0, 1, 2, 3, 4, 7], and 5 and 9 the k-th largest values.
    row_length = keys.shape[-1]
    kth_of_position = kth.ravel()[positions // row_length]  # [5, 5, 5, 5, 9, 9]
    is_tie = keys.ravel()[positions] == kth_of_position  # [T, F, T, T, T, T]

    # Row by row: first the larger entries, then the ties, both with ascending positions.
    larger_then_ties = np.concatenate([positions[~is_tie], positions[is_tie]])
    order = np.argsort(larger_then_ties // row_length, kind="stable")
    preferred_first = larger_then_ties[order]  # [1, 0, 2, 3, 4, 7]

    # Each row has k positions or more, of which the first k stay.
    row_starts = np.searchsorted(preferred_first // row_length, np.arange(kth.size))  # [0, 4]
    first_k_of_rows = row_starts[:, np.newaxis] + np.arange(k)  # [[0, 1], [4, 5]]
    remaining: Indices = np.sort(preferred_first[first_k_of_rows], axis=1)  # [[0, 1], [4, 7]]
    return remaining.ravel()


def _descending(keys: Array) -> Indices:
    """Return the order `(..., k)` that sorts each row of keys `(..., k)`, the largest first.

    Of equal keys, the one with the lower index comes first.
    """
    # A stable ascending sort of the reversed row, read backwards, is a stable descending one;
    # negating the keys instead would overflow for integers.
    last = keys.shape[-1] - 1
    reverse: Indices = last - np.argsort(keys[..., ::-1], axis=-1, kind="stable")
    return reverse[..., ::-1]


def _gather(values: Array, indices: Indices) -> Array:
    """Return the entries `(..., k)` of the rows of values `(..., N)` at indices `(..., k)`."""
    if values.ndim == 1:  # plain indexing does the same for one row, without 2 us of bookkeeping
        return values[indices]
    return np.take_along_axis(values, indices, axis=-1)


def _ordered_without_nan(values: Array) -> Array:
    """Return keys that sort as the values do, with NaN below everything else.

    The keys are the values themselves if none of them is NaN; otherwise integers of the same size.
    """
    if values.size == 0 or values.dtype.kind != "f":
        return values
    highest = values.max()  # NaN if there is one anywhere
    if highest == highest:  # noqa: PLR0124 - only NaN differs from itself, and `isnan` takes longer
        return values
    integer = np.dtype(f"i{values.dtype.itemsize}").type
    limits = np.iinfo(integer)
    positive_zero = values.dtype.type(0)  # turns -0 into +0 where it is added
    # The bits of a float (IEEE 754), read as an integer, sort as the float does if it is positive.
    # Those of negative floats sort backwards, until all bits but the sign are flipped.
    bits = (values + positive_zero).view(integer)
    keys = np.where(bits < 0, bits ^ limits.max, bits)
    return np.where(np.isnan(values), limits.min, keys)
