"""Models in the text form of ONNX, for graphs that no exporter would write."""

import onnx
from onnx import helper

from detcli.model.editing import infer_shapes
from detcli.model.recognise import read_graph

IMAGES = "float[1, 3, 64, 64] images"
DECODE = """
    points = Reshape(images, pairs)
    low = Sub(points, points)
    high = Add(points, points)
    boxes = Concat<axis = 1>(low, high)
    best = ReduceMax<axes = [1], keepdims = 1>(points)
    scores = Tile(best, classes)
"""


def contract_of(model, box_format=None):
    return read_graph(infer_shapes(model), "colours.onnx", box_format).contract


def parsed(nodes, outputs, inputs=IMAGES, classes=3, **metadata):
    """A model of 6144 anchors, from the text form of its nodes."""
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17]>
        detector ({inputs}) => ({outputs})
        <int64[3] pairs = {{1, 2, 6144}}, int64[3] classes = {{1, {classes}, 1}},
         int64[4] colours = {{1, 3, 1, 1}}, int64[1] all = {{-1}}, int64[1] zero = {{0}},
         int64[1] one = {{1}}, int64[1] two = {{2}}, int64[1] three = {{3}},
         int64[1] six = {{6}}, int64[2] four_and_two = {{4, 2}}, int64[1] many = {{1000}}>
        {{ {nodes} }}
    """)
    helper.set_model_props(model, metadata)
    return model
