"""CpuRanker: top-k and selection without a network."""

import numpy as np

import detcli
from detcli.backend import open_ranker
from detcli.backend.postprocess import SelectionOptions, select


def test_the_cpu_ranker_is_the_specification(random):
    ranker = open_ranker("cpu")
    assert ranker.device == "cpu"
    row, head = random.random(500, np.float32), random.random((9, 300), np.float32)
    for own, expected in zip(
        ranker.top_k(ranker.upload(row), 7), detcli.top_k(row, 7), strict=True
    ):
        np.testing.assert_array_equal(own, expected)
    options = SelectionOptions(0.5, 20, None, None)
    for own, expected in zip(
        ranker.select(ranker.upload(head), options), select(head, options), strict=True
    ):
        np.testing.assert_array_equal(own, expected)
    ranker.close()
