"""How much device memory a long list needs."""

import re

import pytest
from backend.cuda.shim import kernel_sources

from detcli.backend.cuda.spill import SHARED_LIST, spill_capacity


@pytest.mark.parametrize(
    ("k", "capacity"), [(1, 0), (2048, 0), (2049, 4096), (4096, 4096), (4097, 8192)]
)
def test_spill_capacity(k, capacity):
    assert spill_capacity(k) == capacity


def test_the_kernels_have_the_same_limit():
    told = re.search(r"SHARED_LIST = (\d+)", kernel_sources()["top.cuh"])
    assert int(told[1]) == SHARED_LIST
