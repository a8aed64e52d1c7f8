"""The kernels order all their accesses to memory, and need every barrier for it.

None is exempt. A barrier that no case of `barrier_cases` needs is either superfluous or lacks a
case.
"""

import pytest
from backend.cuda.mutation import barriers, examine
from backend.cuda.shim import kernel_sources

BARRIERS = list(barriers(kernel_sources()))


@pytest.fixture
def folder(shim, pytestconfig):
    """Where the kernels' libraries are; beside it, what NVRTC compiled."""
    assert shim.kernels
    pytest.importorskip("cuda.core", reason="cuda-core is not installed")
    pytestconfig.cache.mkdir("cubins")
    return pytestconfig.cache.mkdir("shim")


def test_the_unchanged_kernels_are_right(folder):
    assert examine(folder) == ""


@pytest.mark.parametrize("barrier", BARRIERS, ids=[barrier.name for barrier in BARRIERS])
def test_the_absence_of_this_barrier_is_noticed(barrier, folder):
    wrong = examine(folder, barrier)
    assert wrong, f"{barrier.name}, line {barrier.line}: all answers right"


def test_all_barriers_are_found():
    text = """
template <class T>
__device__ void first(T (&values)[3],
                      int count) {
  if (count > 0) {
    __syncthreads();  // both
  }
  __syncwarp();
}

extern "C" __global__ void __launch_bounds__(256)
    second(int* out) {
  __syncthreads();
}
"""
    assert list(barriers({"a.cu": text, "b.cuh": ""})) == [
        ("a.cu first 1", "a.cu", 6),
        ("a.cu first 2", "a.cu", 8),
        ("a.cu second 1", "a.cu", 13),
    ]
