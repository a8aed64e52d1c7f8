"""Networks whose output has another shape than their file declares are refused alike."""

import json
from dataclasses import replace

import colour_model
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from thinning import thin

from detcli.backend.network_output import split_by_image
from detcli.core.errors import ModelError
from detcli.model.contract import Layout
from detcli.model.recognise import read_graph

BOX = {"id": 1, "image_id": 0, "category_id": 0, "bbox": [0, 0, 8, 8], "area": 64, "iscrowd": 0}

READERS = [
    "predict . -m lies.onnx",
    "verify lies.onnx lies.onnx --images .",
    "eval lies.onnx --data data.json --images .",
    "bench . -m lies.onnx --cold-starts 0 --seconds 0.1",
]


def lying(declared, actual, share=0.0):
    """A graph that declares one shape and gives another, with a share of the brightness more rows.

    The shape is computed from the image, so that nobody knows it before the graph runs.
    """
    nodes = [
        ("ReduceMean", ["images"], "mean"),
        ("Mul", ["mean", "share"], "part"),
        ("Cast", ["part"], "more"),
        ("Add", ["shape", "more"], "sizes"),
        ("ReduceProd", ["sizes"], "count"),
        ("Reshape", ["images", "flat"], "elements"),
        ("Slice", ["elements", "zero", "count"], "cut"),
        ("Reshape", ["cut", "sizes"], "head"),
    ]
    extra = {"Cast": {"to": TensorProto.INT64}, "ReduceMean": {"keepdims": 0}}
    constants = {
        "share": np.array([0] * (len(actual) - 1) + [share], np.float32)[: len(actual)],
        "shape": np.array(actual),
        "flat": np.array([-1]),
        "zero": np.array([0]),
    }
    graph_nodes = []
    for operator, inputs, output in nodes:
        attributes = extra.get(operator, {})
        graph_nodes.append(helper.make_node(operator, inputs, [output], **attributes))  # type: ignore[arg-type]
    tensors = []
    for name, array in constants.items():
        tensors.append(numpy_helper.from_array(array, name))
    graph = helper.make_graph(
        graph_nodes,
        "lies",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, 64, 64])],
        [helper.make_tensor_value_info("head", TensorProto.FLOAT, declared)],
        tensors,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(model, {"names": str(dict(enumerate(colour_model.NAMES)))})
    return model


def forged(tail, declared, **options):
    """A colour model with another shape of its output, whose nodes are as they were."""
    names = {"names": str(dict(enumerate(colour_model.NAMES)))}
    model = colour_model.build(tail, metadata=names, **options)
    shape = helper.make_tensor_value_info("", 1, declared).type.tensor_type.shape
    model.graph.output[0].type.tensor_type.shape.CopyFrom(shape)
    return model


SYMBOLS = ["b", 7, "n"]
DECLARED = [1, 7, 64]
LIES = {
    "rows": (forged("transposed", [1, 300, 6]), "[1, 64, 7]", "[1, 300, 6]"),
    "anchors": (forged("body", [1, 7, 65]), "[1, 7, 64]", "[1, 7, 65]"),
    "classes": (lying(SYMBOLS, [1, 9, 64]), "[1, 9, 64]", "[1, 7, any]"),
    "fewer classes": (lying(SYMBOLS, [1, 6, 64]), "[1, 6, 64]", "[1, 7, any]"),
    "no image": (lying(SYMBOLS, [0, 7, 64]), "[0, 7, 64]", "[1, 7, any]"),
    "two images": (lying(SYMBOLS, [2, 7, 64]), "[2, 7, 64]", "[1, 7, any]"),
    "no axis": (lying(SYMBOLS, [7, 64]), "[7, 64]", "[1, 7, any]"),
    "fewer for darker images": (lying(DECLARED, [1, 7, 38], 60.0), "[1, 7, 58]", str(DECLARED)),
    "another axis": (lying(SYMBOLS, [1, 1, 7, 64]), "[1, 1, 7, 64]", "[1, 7, any]"),
}


@pytest.fixture
def refused(invoke, make_image, tmp_path):
    """What each command says, with exit code 4, of a model."""
    squares = []
    for column in range(8):
        for row in range(8):
            squares.append(("red", column, row))
    make_image("a.png")
    make_image("b.png", *squares)
    images = [
        {"id": 0, "file_name": "a.png", "width": 64, "height": 64},
        {"id": 1, "file_name": "b.png", "width": 64, "height": 64},
    ]
    categories = [{"id": 0, "name": "red"}, {"id": 1, "name": "green"}]
    data = {"images": images, "categories": categories, "annotations": [BOX]}
    (tmp_path / "data.json").write_text(json.dumps(data))

    def run(model, *options, codes=(4,)):
        onnx.save(model, tmp_path / "lies.onnx")
        assert invoke("inspect", "lies.onnx", options, cwd=tmp_path).returncode == 0  # no run
        messages = []
        for command in READERS:
            process = invoke(command.split(), options, cwd=tmp_path)
            assert "bug in detcli" not in process.stderr + process.stdout
            assert process.returncode in codes, (command, process.stderr)
            messages.append(process.stderr)
        return messages

    return run


@pytest.mark.slow
@pytest.mark.parametrize("name", thin("shapes that were not declared", LIES, 4))
def test_every_command_refuses_a_shape_that_was_not_declared(name, refused):
    model, actual, declared = LIES[name]
    options = ["--box-format", "xyxy"] if model.graph.name == "lies" else []
    for message in refused(model, options):
        assert f"output of shape {actual}, though its graph declares {declared}\n" in message


def test_a_size_that_is_no_number_fails(refused):
    model = lying(DECLARED, [1, 7, 64], np.nan)
    for message in refused(model, "--box-format", "xyxy", codes=(1, 3)):
        assert "the network failed on a batch of shape [1, 3, 64, 64]" in message


def contract_of_rows():
    """A model that gives any number of rows for an image."""
    contract = read_graph(colour_model.build(), "colours").contract
    return replace(contract, layout=Layout.ROWS, anchor_count=None)


def test_rows_of_a_batch_are_split_by_image():
    output = np.arange(60, dtype=np.float32).reshape(2, 5, 6)
    first, second = split_by_image(output, 2, contract_of_rows())
    np.testing.assert_array_equal(first, output[0])
    np.testing.assert_array_equal(second, output[1])


@pytest.mark.parametrize("shape", [(2, 5, 7), (2, 5, 5), (1, 5, 6), (2, 6)])
def test_rows_have_six_columns_and_a_batch_as_many_images_as_were_given(shape):
    with pytest.raises(ModelError, match=r"though its graph declares \[2, any, 6\]"):
        split_by_image(np.zeros(shape, np.float32), 2, contract_of_rows())
