"""Every barrier in the kernels is needed: without it, the shim computes something wrong.

None is exempt. A barrier that no case of `barrier_cases` needs is either superfluous or lacks a
case.
"""

import pytest
from backend.cuda.mutation import examine, mutants
from backend.cuda.shim import kernel_sources

MUTANTS = list(mutants(kernel_sources()))


@pytest.fixture
def folder(shim, pytestconfig):
    """Where most of what the mutants need is built already."""
    assert shim.kernels
    return pytestconfig.cache.mkdir("shim")


def test_the_unchanged_kernels_are_right(folder):
    assert examine(kernel_sources(), folder) == ""


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_the_absence_of_this_barrier_is_noticed(mutant, folder):
    wrong = examine(mutant.sources, folder)
    assert wrong, f"{mutant.name}, line {mutant.line}: all answers right"


def test_mutants_lack_one_barrier_each():
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
    made = list(mutants({"a.cu": text, "b.cuh": ""}))
    assert [(mutant.name, mutant.line, mutant.text) for mutant in made] == [
        ("a.cu first 1", 6, "__syncthreads();  // both"),
        ("a.cu first 2", 8, "__syncwarp();"),
        ("a.cu second 1", 13, "__syncthreads();"),
    ]
    assert made[1].sources == {"a.cu": text.replace("__syncwarp();", "(void)0;"), "b.cuh": ""}
