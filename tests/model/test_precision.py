import numpy as np
import onnx

from detcli.model.precision import Precision, precision_of


def test_the_lowest_precision_of_a_graph(make_model):
    assert precision_of(onnx.load(make_model())) is Precision.FLOAT32
    assert precision_of(onnx.load(make_model(dtype=np.float16))) is Precision.FLOAT16
    model = onnx.load(make_model())
    model.graph.node[0].op_type = "QLinearConv"
    assert precision_of(model) is Precision.INT8
