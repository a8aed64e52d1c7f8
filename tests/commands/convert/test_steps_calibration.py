"""Calibration: the lowest and highest values of tensors over several pictures."""

import colour_model
import convolution_model
import numpy as np
import onnx
import pytest

from detcli.commands.convert.steps import float_tensors, observe, tensor_of
from detcli.errors import InferenceError
from detcli.geometry import Picture
from detcli.model.editing import infer_shapes
from detcli.model.recognise import recognise

RED = Picture.whole(colour_model.picture(("red", 0, 0)))


@pytest.fixture
def model():
    return infer_shapes(convolution_model.build(scale=10))


def test_ranges_are_those_of_all_batches(model):
    batches = [np.full((1, 3, 64, 64), value, np.float32) for value in (0.25, 0.75, 0.5)]
    ranges = observe(model, ["images", "layer1", "layer3", "scores"], batches, "m")[0]
    np.testing.assert_allclose(ranges["images"], (0.25, 0.75))
    np.testing.assert_allclose(ranges["layer1"], (0.25, 0.75), rtol=1e-5)
    np.testing.assert_allclose(ranges["layer3"], (2.5, 7.5), rtol=1e-5)
    np.testing.assert_allclose(ranges["scores"], (0.25, 0.75), rtol=1e-5)


def test_a_share_of_the_pictures_may_go_beyond_a_range(model):
    batches = [np.full((1, 3, 64, 64), value / 10, np.float32) for value in range(11)]
    ranges = observe(model, ["images", "layer3"], batches, "m", outlying=0.1)[0]
    np.testing.assert_allclose(ranges["images"], (0.1, 0.9), rtol=1e-5)
    np.testing.assert_allclose(ranges["layer3"], (1, 9), rtol=1e-5)
    few, seen = observe(model, ["images"], batches[3:6], "m", outlying=0.1)
    assert seen == 3
    np.testing.assert_allclose(few["images"], (0.3, 0.5), rtol=1e-5)
    assert observe(model, ["images"], [], "m") == ({}, 0)


def test_infinite_values_are_in_no_way_averaged(model):
    batches = [np.full((1, 3, 64, 64), value, np.float32) for value in (1, np.inf, np.inf)]
    assert observe(model, ["images"], batches, "m") == ({"images": (1, np.inf)}, 3)


def test_the_model_stays_unchanged(model):
    before = model.SerializeToString(deterministic=True)
    observe(model, ["layer1"], [np.zeros((1, 3, 64, 64), np.float32)], "m")
    assert model.SerializeToString(deterministic=True) == before


def test_float_tensors_are_those_with_ranges(model):
    names = float_tensors(model)
    assert {"layer1", "cells", "scores", "boxes", "head"} <= set(names)
    assert len(names) == len(model.graph.node)
    body = onnx.helper.make_node("Shape", ["cells"], ["size"])
    model.graph.node.append(body)
    assert float_tensors(infer_shapes(model)) == names


def test_a_batch_of_the_wrong_size(model):
    with pytest.raises(InferenceError, match=r"\[1, 3, 8, 8\]"):
        observe(model, ["layer1"], [np.zeros((1, 3, 8, 8), np.float32)], "m")


@pytest.mark.parametrize(("batch", "places"), [(1, 1), (3, 3), (None, 1)])
def test_a_picture_is_at_each_place_of_a_batch(batch, places):
    model = colour_model.build(batch=batch, dtype=np.float16)
    tensor = tensor_of(RED, recognise(infer_shapes(model), "m"))
    assert tensor.shape == (places, 3, 64, 64)
    assert tensor.dtype == np.float16
    for place in tensor:
        assert place[:, 0, 0].tolist() == [1, 0, 0]
