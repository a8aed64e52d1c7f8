"""`top_k` against a slow and obviously correct implementation."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from detcli import top_k
from detcli.data.topk import LONG_ROW, rank_descending


def plain_top_k(row, k):
    """Indices of the k largest, by sorting everything with the rule spelled out."""

    def rank(index):
        value = row[index].item()  # exact: float() would round integers above 2^53
        return (math.isnan(value), 0.0 if math.isnan(value) else -value, index)

    return sorted(range(len(row)), key=rank)[:k]


def assert_top_k(values, k):
    largest, indices = top_k(values, k)
    unsorted_values, unsorted_indices = top_k(values, k, sorted=False)
    expected_shape = values.shape[:-1] + (min(k, values.shape[-1]),)
    assert largest.shape == indices.shape == unsorted_indices.shape == expected_shape
    assert largest.dtype == values.dtype
    assert indices.dtype == np.int64
    for row_index in np.ndindex(values.shape[:-1]):
        expected = plain_top_k(values[row_index], k)
        assert indices[row_index].tolist() == expected
        assert unsorted_indices[row_index].tolist() == sorted(expected)
        np.testing.assert_array_equal(largest[row_index], values[row_index][expected])
        np.testing.assert_array_equal(
            unsorted_values[row_index], values[row_index][sorted(expected)]
        )


# Few distinct values, so that ties, also at the k-th place, are common.
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, math.inf, -math.inf, math.nan]
SHAPES = st_numpy.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=12)


@given(
    st.sampled_from(["float16", "float32", "float64", ">f4"]).flatmap(
        lambda dtype: st_numpy.arrays(dtype, SHAPES, elements=st.sampled_from(SPECIAL))
    ),
    st.integers(0, 14),
)
@example(np.full((2, 9), np.nan, np.float32), 4)
@example(np.array([-np.inf, np.nan, -np.inf, np.nan]), 3)
@example(np.array([-0.0, 0.0, np.nan]), 1)
def test_order_of_special_floats_is_total(values, k):
    assert_top_k(values, k)


@given(st_numpy.arrays(np.float32, SHAPES, elements=st.floats(width=32)), st.integers(0, 14))
def test_any_floats(values, k):
    assert_top_k(values, k)


@given(
    st.sampled_from([np.int8, np.uint8, np.int64, np.uint64]).flatmap(
        lambda dtype: st_numpy.arrays(dtype, SHAPES)
    ),
    st.integers(0, 14),
)
@example(np.array([2**63 - 512, 2**63 - 511]), 1)
def test_integers_up_to_the_ends_of_their_range(values, k):
    assert_top_k(values, k)


@pytest.mark.slow
@pytest.mark.parametrize("length", [1, 1023, 1024, 1025, 8400, 33600, 1_000_000])
def test_any_row_length(length, random):
    for levels, k in itertools.product((1, 3, 1 << 20), (1, 300)):
        values = random.integers(0, levels, length).astype(np.float32)
        # A stable sort of the whole row gives the same, also for rows too long for plain_top_k.
        expected = np.argsort(-values, kind="stable")[:k]
        largest, indices = top_k(values, k)
        np.testing.assert_array_equal(indices, expected)
        np.testing.assert_array_equal(largest, values[expected])


def test_the_smallest_difference_decides_beside_nan():
    """Rows with NaN are compared by their bits, in which zeros of both signs are equal."""
    row = [math.nan, -0.0, 1e-30, 0.0, 2e-30, -1e-30, 3e38, -3e38, math.inf, -math.inf]
    assert_top_k(np.array(row, np.float32), len(row))


def test_a_row_is_never_sorted_as_a_whole(monkeypatch, random):
    values = random.random(8400)
    sorted_lengths = []
    argsort = np.argsort
    monkeypatch.setattr(
        np,
        "argsort",
        lambda keys, **options: sorted_lengths.append(keys.size) or argsort(keys, **options),
    )
    monkeypatch.setattr(np, "sort", None)
    top_k(values, 300)
    assert sorted_lengths == [300]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "float32", ">f4", "int16"])
def test_long_rows_of_any_kind(dtype, random):
    """Lengths that 16 does not divide, with ties, NaN and both zeros."""
    kinds = [1, -1, 0] if dtype == "int16" else SPECIAL
    values = random.choice(np.array(kinds), (2, 1, LONG_ROW + 13)).astype(dtype)
    values[0, 0, : LONG_ROW - 5] = -1  # the best ones are in the rest, which is in no column
    assert_top_k(values, 5)
    assert_top_k(values[..., ::-1], 40)
    assert_top_k(values[:0], 3)


@pytest.mark.parametrize(
    "k", [LONG_ROW // 64, LONG_ROW // 16, LONG_ROW // 2, LONG_ROW - 1, LONG_ROW]
)
def test_many_of_a_long_row(k, random):
    """More than a few, so that not much of the row can be left out first."""
    values = random.integers(0, 1000, LONG_ROW).astype(np.float32)
    expected = np.argsort(-values, kind="stable")[:k]
    largest, indices = top_k(values, k)
    np.testing.assert_array_equal(indices, expected)
    np.testing.assert_array_equal(largest, values[expected])


def test_most_of_a_long_row_is_left_out_first(monkeypatch, random):
    values = random.random(1_000_000)
    sizes = []
    partition = np.partition

    def note_size(keys, *arguments, **options):
        sizes.append(keys.size)
        return partition(keys, *arguments, **options)

    monkeypatch.setattr(np, "partition", note_size)
    top_k(values, 300)
    assert max(sizes) < 70_000


def test_values_keep_their_nan_and_negative_zero_and_the_input_stays():
    input_values = np.array([np.nan, -0.0], np.float32)
    before = input_values.tobytes()
    values, _ = top_k(input_values, 2)
    assert np.signbit(values[0])
    assert np.isnan(values[1])
    assert input_values.tobytes() == before
    assert top_k([3, 1, 2], 2)[1].tolist() == [0, 2]


def test_a_scalar_or_a_negative_k_is_refused():
    with pytest.raises(ValueError, match="axis"):
        top_k(np.float32(1), 1)
    with pytest.raises(ValueError, match="negative"):
        top_k([1.0], -1)


@given(
    st_numpy.arrays(
        np.float32,
        st.integers(0, 40),
        elements=st.sampled_from(np.float32([-1, -0.0, 0.0, 0.5, 1, np.inf, -np.inf, np.nan])),  # type: ignore[arg-type, call-overload]
    )
)
def test_all_ranked_are_ranked_as_by_top_k(scores):
    _, indices = top_k(scores, len(scores))
    np.testing.assert_array_equal(rank_descending(scores), indices)


@pytest.mark.parametrize(
    ("length", "k", "is_cut"),
    [(65_535, 1, False), (65_536, 1, True), (65_536, 1024, False), (65_537, 1024, True)],
)
def test_a_row_is_cut_into_columns_if_it_is_long_and_becomes_a_quarter(
    monkeypatch, length, k, is_cut
):
    """It takes longer otherwise. There are 16 entries in a column."""
    cut_rows = []

    def note_row(keys, k):
        cut_rows.append(keys)
        return np.arange(k)

    monkeypatch.setattr("detcli.data.topk._largest_of_long_rows", note_row)
    top_k(np.zeros(length, np.float32), k)
    assert bool(cut_rows) == is_cut
