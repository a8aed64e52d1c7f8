"""The kernels order all their accesses to memory, and need every barrier for it.

None is exempt. A barrier that no case of `barrier_cases` needs is either superfluous or lacks a
case.
"""

import optional
import pytest
import thinning
from backend.cuda.mutation import barriers, examine
from backend.cuda.shim import kernel_sources

pytestmark = pytest.mark.slow

BARRIERS = list(barriers(kernel_sources()))


@pytest.fixture
def compiled_shim(shim, pytestconfig):
    """Where the kernels' libraries are; beside it, what NVRTC compiled."""
    assert shim.kernels
    optional.require("cuda.core")
    pytestconfig.cache.mkdir("cubins")
    return pytestconfig.cache.mkdir("shim")


@thinning.only_whole
def test_the_unchanged_kernels_are_right(compiled_shim):
    assert len(BARRIERS) == 16
    assert examine(compiled_shim) == ""


TRIED = thinning.thin("barriers of the kernels", BARRIERS, 2)


@pytest.mark.parametrize("barrier", TRIED, ids=lambda barrier: barrier.name)
def test_the_absence_of_this_barrier_is_noticed(barrier, compiled_shim):
    wrong = examine(compiled_shim, barrier)
    assert wrong, f"{barrier.name}, line {barrier.line}: all answers right"
