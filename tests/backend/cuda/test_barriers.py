"""Every barrier in the kernels is needed: without it, the shim computes something wrong.

None is exempt. A barrier that no case of `barrier_cases` needs is either superfluous or lacks a
case.
"""

import os
import signal
import subprocess
import sys

import pytest
from backend.cuda.mutation import mutants
from backend.cuda.shim import kernel_sources

MUTANTS = list(mutants(kernel_sources()))


@pytest.fixture(scope="module")
def run(shim, pytestconfig):
    """Run the cases in a separate process and return the first failure, or nothing."""
    assert shim.kernels
    folder = pytestconfig.cache.mkdir("shim")  # most of what they need is built there
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    def first_wrong(*number):
        command = [sys.executable, "-m", "backend.cuda.mutation", str(folder), *map(str, number)]
        finished = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False
        )
        if finished.returncode < 0:
            return signal.Signals(-finished.returncode).name
        assert finished.returncode == 0, finished.stderr
        return finished.stdout

    return first_wrong


def test_the_unchanged_kernels_are_right(run):
    assert run() == ""


@pytest.mark.parametrize("number", range(len(MUTANTS)), ids=[mutant.name for mutant in MUTANTS])
def test_the_absence_of_this_barrier_is_noticed(run, number):
    assert run(number), f"{MUTANTS[number].name}, line {MUTANTS[number].line}: all answers right"


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
