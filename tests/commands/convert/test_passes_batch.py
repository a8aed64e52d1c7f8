"""A graph for another batch gives for each picture what it gave for one."""

import functools

import colour_model
import grid_model
import numpy as np
import onnx
import pytest
from convolution_model import same_bytes, session_output

from detcli.commands.convert.passes import set_batch
from detcli.errors import ModelError

build = functools.partial(grid_model.build, resize=False)


def batch_of(values):
    return [value.type.tensor_type.shape.dim[0] for value in values]


@pytest.mark.parametrize("size", [3, None])
@pytest.mark.parametrize("old", [1, 2])
def test_each_picture_as_alone(size, old, random):
    model = set_batch(build(batch=old), size)
    onnx.checker.check_model(model, full_check=True)
    pictures = random.random((3, 3, 64, 64), np.float32)
    [heads] = session_output(model, pictures)
    alone = [session_output(build(), picture[None])[0] for picture in pictures]
    np.testing.assert_array_equal(heads, np.concatenate(alone), strict=True)


@pytest.mark.parametrize("tail", colour_model.TAILS)
def test_any_tail(tail, random):
    model = set_batch(colour_model.build(tail), None)
    pictures = random.random((2, 3, 64, 64), np.float32)
    [rows] = session_output(model, pictures)
    alone = [session_output(colour_model.build(tail), picture[None])[0] for picture in pictures]
    np.testing.assert_array_equal(rows, np.concatenate(alone), strict=True)


def test_inputs_and_outputs_say_it():
    model = set_batch(build(), 4)
    assert [dim.dim_value for dim in batch_of([*model.graph.input, *model.graph.output])] == [4, 4]
    model = set_batch(model, None)
    dims = batch_of([*model.graph.input, *model.graph.output])
    assert [dim.dim_param for dim in dims] == ["batch", "batch"]


@pytest.mark.parametrize("size", [1, 3, None])
def test_twice_is_once(size):
    model = set_batch(build(), size)
    assert same_bytes(set_batch(model, size), model)


def test_the_same_batch_is_no_change():
    model = build()
    assert same_bytes(set_batch(model, 1), model)


def test_a_batch_that_is_written_elsewhere_is_refused():
    with pytest.raises(ModelError, match="cannot take another batch") as caught:
        set_batch(grid_model.build(resize=True), 2)
    assert "export" in caught.value.hint


def test_a_batch_that_the_graph_loses_is_refused():
    """A sum over all pictures is one row, however many there are."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        summed (float[1, 3, 8, 8] images) => (float[1, 3, 8, 8] head)
        { head = ReduceMax<axes = [0], keepdims = 1>(images) }
    """)
    for size in (2, None):
        with pytest.raises(ModelError, match="batch"):
            set_batch(model, size)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["thu", "ultralytics", "raw"])
def test_real_exports(name, shared, random):
    model = onnx.load(shared(f"models/yolov10n-{name}.onnx"))
    pictures = random.random((2, 3, 640, 640), np.float32)
    [rows] = session_output(set_batch(model, None), pictures)
    alone = [session_output(model, picture[None])[0] for picture in pictures]
    np.testing.assert_array_equal(rows, np.concatenate(alone), strict=True)
