"""CudaRanker: the GPU's top-k and selection against the specification."""

import numpy as np
import pytest

import detcli
from detcli.backend.cuda.backend import CudaRanker
from detcli.backend.postprocess import SelectionOptions, select


@pytest.fixture
def ranker(fake_gpu, driver):
    """A ranker that must free what it holds."""
    ranker = CudaRanker(fake_gpu, "host")
    yield ranker
    ranker.close()
    assert driver.held == 0


def same(own, expected):
    for part, wanted in zip(own, expected, strict=True):
        np.testing.assert_array_equal(part, wanted)


@pytest.mark.parametrize(("n", "k"), [(1, 3), (1025, 300), (20_000, 300)])
def test_top_k(ranker, random, n, k):
    row = random.random(n, np.float32)
    same(ranker.top_k(ranker.upload(row), k), detcli.top_k(row, k))


def test_repeated_selection_with_different_options(ranker, random):
    heads = [random.random((4 + 3, n), np.float32) for n in (300, 300, 77)]
    for head in heads:
        for options in (
            SelectionOptions(0.5, 20, None, None),
            SelectionOptions(0.0, 300, None, None),
        ):
            uploaded = ranker.upload(head)
            for _ in range(2):
                same(ranker.select(uploaded, options), select(head, options))
