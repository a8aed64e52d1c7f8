"""The k largest keys of a source that counts how often it is read."""

import numpy as np
import pytest
from backend.cuda.shim import Shim, kernel_sources
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from detcli.backend.cuda.topk import SHARED_LIST, spill_capacity

COUNTED = """
#include "top.cuh"
struct CountedSource {
  const u64* keys;
  u32* reads;
  __device__ u64 operator()(u32 index) const {
    atomicAdd(reads, 1u);
    return keys[index];
  }
};
extern "C" __global__ void __launch_bounds__(1024)
    counted(const u64* keys, u32* reads, u32 total, u32 k, u64 floor, u64* best, u32* count,
            u32* narrowed, u64* spill, u32 spill_capacity) {
  __shared__ Scratch scratch;
  Top found = top(CountedSource{keys, reads}, total, k, floor, scratch, spill, spill_capacity);
  for (u32 rank = threadIdx.x; rank < found.count; rank += BLOCK) best[rank] = found.keys[rank];
  if (threadIdx.x == 0) *count = found.count, *narrowed = found.keys == scratch.narrowed;
}
"""
READING = 4096  # keys that the block reads at once; past the end, it reads the last one again
ANYTHING = 1


@pytest.fixture(scope="module")
def readings(tmp_path_factory):
    """A function of keys, k and a floor: checks what `top` finds.

    It returns how often the source is read, and whether the list is narrowed.
    """
    sources = kernel_sources() | {"counted.cu": COUNTED}
    shim = Shim(sources, tmp_path_factory.mktemp("kernels"))

    def launch(keys, k, floor=ANYTHING, *, reverse=False):
        spill = np.zeros(spill_capacity(k), np.uint64)
        best = np.zeros(min(k, len(keys)), np.uint64)
        count, narrowed, reads = np.zeros((3, 1), np.uint32)
        shim.launch(
            "counted",
            (1, 1, 1),
            1024,
            keys.ctypes.data,
            reads.ctypes.data,
            np.uint32(len(keys)),
            np.uint32(k),
            np.uint64(floor),
            best.ctypes.data,
            count.ctypes.data,
            narrowed.ctypes.data,
            spill.ctypes.data,
            np.uint32(len(spill)),
            reverse=reverse,
        )
        expected = np.sort(keys[keys >= floor])[::-1][:k]
        assert count[0] == len(expected)
        np.testing.assert_array_equal(best[: len(expected)], expected)
        return reads[0] / (-(-len(keys) // READING) * READING), bool(narrowed[0])

    return launch


def keys_of(scores):
    """Unique keys of float32 scores >= 0, as order.cuh makes them."""
    bits = np.asarray(scores, np.float32).view(np.uint32) | np.uint32(1 << 31)
    index = ~np.arange(len(bits), dtype=np.uint32)
    return bits.astype(np.uint64) << np.uint64(32) | index


def above(score):
    """The floor of keys strictly above a score."""
    return int(keys_of([score])[0] | 0xFFFFFFFF) + 1


EQUAL = np.full(8400, 0.5)
NOISE = np.random.default_rng(0).random((80, 8400)).max(axis=0)  # all near 1
SPREAD = np.linspace(0, 1, 8400)  # 300 of them, but not 2048, begin with the first digit of 1
FEW = np.where(np.arange(8400) % 100, 0.1, SPREAD)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scores", "k", "floor", "expected"),
    [
        (FEW, 300, above(0.25), 1),
        (SPREAD[: SHARED_LIST + 1], 300, above(0), 1),
        (SPREAD[: SHARED_LIST + 2], 300, above(0), 2),
        (SPREAD[:SHARED_LIST], 300, ANYTHING, 1),
        (SPREAD[: SHARED_LIST + 1], 300, ANYTHING, 2),
        (SPREAD, 300, above(0), 2),
        (SPREAD, 300, ANYTHING, 2),
        (NOISE, 300, above(0), 3),
        (NOISE, 300, ANYTHING, 3),
        (EQUAL, 300, above(0.25), 6),
        (SPREAD, len(SPREAD), above(0), 1),
        (SPREAD, 2500, ANYTHING, 2),
        (SPREAD, 2500, above(0.9), 1),
    ],
)
def test_how_often_a_source_is_read(readings, scores, k, floor, expected):
    keys = keys_of(scores)
    for reverse in (False, True):
        assert readings(keys, k, floor, reverse=reverse)[0] == expected


@pytest.mark.slow
def test_a_list_that_is_long_for_k_is_narrowed(readings):
    """The next power of two from its length up is sorted."""
    for count, k in ((65, 1), (513, 300), (2048, 1024)):
        assert readings(keys_of(SPREAD[:count]), k) == (1, True)
    for count, k in ((64, 1), (512, 300), (2048, 1025)):
        assert readings(keys_of(SPREAD[:count]), k) == (1, False)
    # The last digit has 9 bits of its own, so a list of equal scores is narrowed by it.
    for reverse in (False, True):
        assert readings(keys_of(EQUAL[:512]), 64, reverse=reverse) == (1, True)


@pytest.mark.parametrize("k", [1, 63, 64, 65, 300, 1023, 1024, 1025, 2048, 2049])
def test_counts_around_each_limit(readings, k):
    generator = np.random.default_rng(k)
    for count in (1, 64, 65, 1024, 1025, SHARED_LIST, SHARED_LIST + 1, 4096, 4097):
        readings(keys_of(generator.random(count)), k, above(0.1))


@st.composite
def key_lists(draw):
    """Unique keys that differ in any of their digits, in any order."""
    some = draw(st.sets(st.integers(1, (1 << 64) - 1), min_size=1, max_size=100))
    count = draw(st.sampled_from([0, 0, 1500, 2048, 5000]))
    step = 1 << draw(st.integers(0, 51))
    keys = sorted(some | set(range(step, (count + 1) * step, step)))
    draw(st.randoms(use_true_random=False)).shuffle(keys)
    return keys


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(keys=key_lists(), k=st.integers(1, 2200), share=st.floats(0, 1), reverse=st.booleans())
def test_any_keys(readings, keys, k, share, reverse):
    floor = sorted([ANYTHING] + list(keys))[int(share * len(keys))]
    readings(np.array(keys, np.uint64), k, floor, reverse=reverse)
