import numpy as np
import pytest
from colour_model import picture

from detcli.commands.verify.tensors import Probe
from detcli.geometry import Picture
from detcli.model.loading import ModelFile

RED = Picture.whole(picture(("red", 1, 1)))


def probe(path, *, at_head=False):
    return Probe(ModelFile.read(path), (64, 64), at_head=at_head)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_any_tensor_of_a_network(make_model, dtype):
    network = probe(make_model(dtype=dtype))
    found = network.fetch(RED, ["cells", "head", "cells"])
    assert found["head"].dtype == dtype
    np.testing.assert_array_equal(found["cells"][0, :, 1, 1], [1, 0, 0])
    assert list(network.fetch(RED, ["scores"])) == ["scores"]
    assert network.half == (dtype is np.float16)


def test_a_graph_is_cut_at_its_head_or_whole(make_model):
    path = make_model(tail="ultralytics")
    assert probe(path).outputs == ["detections"]
    cut = probe(path, at_head=True)
    assert cut.outputs == ["head"]
    assert "first_index" not in cut.index.producers


def test_a_fixed_batch_is_filled(make_model):
    found = probe(make_model(batch=3)).fetch(RED, ["head"])
    assert found["head"].shape == (3, 7, 64)
