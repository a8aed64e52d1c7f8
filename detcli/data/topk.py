"""The k largest of each row, in a total order: the NumPy specification.

Largest first; among equals, the lower index first. NaN ranks below everything, -inf included, and
-0 equals +0. No row is sorted as a whole: `np.partition` finds the k-th largest value in linear
time, and only the k survivors are sorted. In a long row, most columns of 16 entries are left out
first.

This is the order of any list of values: of `top_k`, and of `rank_descending` where all are kept.
The selection uses it (backend/postprocess.py, run/selections.py), and every backend must agree:

- on a GPU, `unique_key` in backend/cuda/kernels/order.cuh has this order, on which top_k.cu and
  select.cu rely; which class is best among equal scores is in class_max.cu;
- in ONNX nodes, commands/convert/selection.py relies on what TopK and ArgMax do with equals.

Tiles (data/tiling.py) and the evaluation (commands/eval) use it as well, but are not backends: the
figures of an evaluation depend on this order, that of pycocotools.
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
    """Return the order that sorts scores `(N,)` largest first; equal ones keep their order.

    NaN comes last. This is the order of `top_k` where all are kept.

    Examples:
        >>> rank_descending(np.array([0.5, 0.9, 0.5])).tolist()
        [1, 0, 2]
    """
    order: Indices = np.argsort(-scores, kind="stable")
    return order


def _largest(keys: Array, k: int) -> Indices:
    """Find the k largest entries of each row.

    Among equal entries, those with the lower index are taken.

    Args:
        keys: `(..., N)` without NaN.
        k: At most N.

    Returns:
        `(..., k)`, their indices in the row, in ascending order of the index.
    """
    length = keys.shape[-1]
    if k == length:
        return np.broadcast_to(np.arange(length, dtype=np.int64), keys.shape).copy()
    if k == 0:
        return np.empty((*keys.shape[:-1], 0), np.int64)

    # `_without_hopeless_columns` reads a row as a table with DEPTH lines. It leaves k of its
    # columns, or more if several of them have equal maxima.
    remaining_length = DEPTH * k
    is_much_shorter = MIN_REDUCTION * remaining_length < length
    if length >= LONG_ROW and is_much_shorter:
        return _largest_of_long_rows(keys, k)
    return _kth_and_above(keys, k)


def _largest_of_long_rows(keys: Array, k: int) -> Indices:
    """Find the k largest entries of each row as `_largest` does, faster where rows are long.

    Most entries of a row are left out first; the rest contains the k largest.
    """
    leading_shape = keys.shape[:-1]
    indices = np.empty((*leading_shape, k), np.int64)
    for row_position in np.ndindex(leading_shape):
        row = keys[row_position]
        contenders = _without_hopeless_columns(row, k)  # indices in the row
        winners = _kth_and_above(row[contenders], k)  # indices in `contenders`
        indices[row_position] = contenders[winners]
    return indices


def _without_hopeless_columns(row: Array, k: int) -> Indices:
    """Leave out most entries of a long row that cannot be among its k largest.

    The row is read as a table of DEPTH lines, and a column is left out if its maximum is less than
    the k-th largest of these maxima: k other columns then have an entry that is larger than all of
    its entries. For k = 1, two lines and the row [1, 5, 2, 0, 3, 9], columns are [1, 0], [5, 3] and
    [2, 9], and their maxima 1, 5 and 9: only the last column remains.

    Args:
        row: `(N,)`.
        k: Less than the number of columns, which is N // DEPTH.

    Returns:
        `(M,)`, the indices of the remaining entries, ascending: those in columns with large maxima,
        and those at the end of the row that do not fill a line of the table.
    """
    column_count = len(row) // DEPTH
    table_size = DEPTH * column_count
    maxima = row[:table_size].reshape(DEPTH, column_count).max(axis=0)
    kth_largest_position = column_count - k  # in ascending order
    kth_largest_maximum = np.partition(maxima, kth_largest_position)[kth_largest_position]
    columns = np.flatnonzero(maxima >= kth_largest_maximum)

    # The entry in a line and a column of the table has the index line * column_count + column.
    line_starts = np.arange(DEPTH) * column_count
    indices_in_table = np.add.outer(line_starts, columns)  # (DEPTH, columns)
    indices_after_table = np.arange(table_size, len(row))
    return np.concatenate([indices_in_table.ravel(), indices_after_table])


def _kth_and_above(keys: Array, k: int) -> Indices:
    """Find the k largest entries of each row: those that reach the k-th largest value.

    Args:
        keys: `(..., N)` without NaN.
        k: More than 0 and less than N.

    Returns:
        `(..., k)`, their indices in the row, ascending; among equal entries, the lower ones.
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


def _without_surplus_ties(positions: Indices, keys: Array, kth_largest: Array, k: int) -> Indices:
    """Select exactly k positions of each row, where more entries reach the k-th largest value.

    The entries that equal that value are ties. After the larger entries, the ties with the lowest
    positions are selected, as many as there is room for.

    Args:
        positions: `(P,)`, ascending, the positions in the flattened `keys` of all entries that are
            at least as large as the k-th largest of their row.
        keys: `(..., N)`.
        kth_largest: `(..., 1)`, the k-th largest value of each row.
        k: The number of positions to select in each row.
    """
    # The comments show the values for k = 2 and the rows [5, 7, 5, 5] and [9, 1, 1, 9]. Positions
    # are [0, 1, 2, 3, 4, 7], and the k-th largest values 5 and 9.
    row_length = keys.shape[-1]
    row_count = kth_largest.size
    rows = positions // row_length  # [0, 0, 0, 0, 1, 1]
    is_tie = keys.ravel()[positions] == kth_largest.ravel()[rows]  # [T, F, T, T, T, T]

    # Row by row: first the larger entries, then the ties, both with ascending positions.
    larger_then_ties = np.concatenate([positions[~is_tie], positions[is_tie]])
    row_by_row = np.argsort(larger_then_ties // row_length, kind="stable")
    preferred_first = larger_then_ties[row_by_row]  # [1, 0, 2, 3, 4, 7]

    # Each row has k positions or more, and its first k are selected.
    row_starts = np.searchsorted(preferred_first // row_length, np.arange(row_count))  # [0, 4]
    first_k_of_rows = row_starts[:, np.newaxis] + np.arange(k)  # [[0, 1], [4, 5]]
    selected: Indices = np.sort(preferred_first[first_k_of_rows], axis=1)  # [[0, 1], [4, 7]]
    return selected.ravel()


def _descending(keys: Array) -> Indices:
    """Return the order `(..., k)` that sorts each row of keys `(..., k)`, the largest first.

    Among equal keys, the one with the lower index comes first.
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
    # -0 and +0 are equal but have different bits: -0 + 0 is +0.
    values_without_negative_zero = values + values.dtype.type(0)

    # The bits of a float (IEEE 754), read as an integer, sort as the float does if it is positive.
    # Those of negative floats sort backwards, until all bits but the sign are flipped.
    bits = values_without_negative_zero.view(integer)
    keys = np.where(bits < 0, bits ^ limits.max, bits)
    return np.where(np.isnan(values), limits.min, keys)
