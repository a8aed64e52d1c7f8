"""Graphs with operators of ONNX Runtime's own are read as they were, or refused."""

import onnx
import onnxruntime as ort
import pytest
from head_checks import assert_same, expected, outputs_of, read
from head_graphs import ENDINGS, model_of
from onnx import helper
from thinning import thin

from detcli.core.errors import ModelError
from detcli.model.recognise import read_graph


def saved(model, path, level):
    """What ONNX Runtime saves behind its optimisations."""
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
    options.optimized_model_filepath = str(path)
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return onnx.load(path)


@pytest.mark.slow
@pytest.mark.parametrize("name", thin("heads that ONNX Runtime saved", ENDINGS, 17))
def test_a_file_that_onnx_runtime_saved_is_read_as_it_was_or_refused(name, tmp_path):
    model, roles = model_of(name, 3)
    for level in ("EXTENDED", "ALL"):
        try:
            detections, contract = read(saved(model, tmp_path / "saved.onnx", level))
        except ModelError:
            continue
        assert contract.family == ENDINGS[name].family
        assert_same(detections, expected(name, outputs_of(model, roles)))


def with_runtime_sigmoids():
    model, _ = model_of("YOLOv8", 3)
    for node in model.graph.node:
        if node.op_type == "Sigmoid":
            node.op_type = "QLinearSigmoid"
            node.domain = "com.microsoft"
    return model


def test_a_graph_with_operators_that_nobody_else_knows_is_refused_with_a_way_out():
    with pytest.raises(
        ModelError, match="QLinearSigmoid is an operator of ONNX Runtime's own"
    ) as e:
        read_graph(with_runtime_sigmoids(), "model.onnx")
    assert "basic optimisations" in e.value.hint


def test_a_function_of_the_file_is_not_the_runtimes():
    model = with_runtime_sigmoids()
    body = [helper.make_node("Relu", ["a"], ["b"])]
    imports = [helper.make_opsetid("", 17)]
    model.functions.append(
        helper.make_function("com.microsoft", "QLinearSigmoid", ["a"], ["b"], body, imports)
    )
    assert read_graph(model, "model.onnx").contract.family == "YOLO"
