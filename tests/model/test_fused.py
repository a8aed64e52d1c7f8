"""Operators of ONNX Runtime's own, written in ONNX's: the runtime computes the same from both."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from head_checks import assert_same, expected, outputs_of, read
from head_graphs import ENDINGS, model_of
from onnx import helper, numpy_helper

from detcli.errors import ModelError
from detcli.model.fused import RULES, runtime_operators, unfused
from detcli.model.recognise import read_graph

WEIGHTS = {
    "w": (4, 4, 3, 3),
    "b": (4,),
    "z": (1, 4, 6, 6),
    "m": (6, 6),
    "s": (6,),
    "t": (6,),
}
CONVOLUTION = "com.microsoft.FusedConv <pads = [1, 1, 1, 1], kernel_shape = [3, 3]"
NODES = {
    "Relu": f'{CONVOLUTION}, activation = "Relu"> (x, w, b)',
    "Sigmoid": f'{CONVOLUTION}, activation = "Sigmoid"> (x, w, b)',
    "Tanh": f'{CONVOLUTION}, activation = "Tanh"> (x, w, b)',
    "LeakyRelu": f'{CONVOLUTION}, activation = "LeakyRelu", activation_params = [0.2]> (x, w, b)',
    "Clip": f'{CONVOLUTION}, activation = "Clip", activation_params = [0.0, 6.0]> (x, w, b)',
    "HardSigmoid": f'{CONVOLUTION}, activation = "HardSigmoid", activation_params = [0.2, 0.5]>'
    " (x, w, b)",
    "a sum": f'{CONVOLUTION}, activation = "Relu"> (x, w, b, z)',
    "no activation": f"{CONVOLUTION}> (x, w, b)",
    "Gemm": 'com.microsoft.FusedGemm <activation = "Relu", alpha = 0.5> (r, m, s)',
    "Gemm, LeakyRelu": 'com.microsoft.FusedGemm <activation = "LeakyRelu",'
    " activation_alpha = 0.1, transB = 1> (r, m, s)",
    "MatMul": "com.microsoft.FusedMatMul <alpha = 0.3, transB = 1> (x, m)",
    "MatMul of transposed": "com.microsoft.FusedMatMul <transA = 1> (x, x)",
    "MatMul of a moved batch": "com.microsoft.FusedMatMul <transBatchA = 1> (v, v)",
    "Gelu": "com.microsoft.Gelu (x)",
    "BiasGelu": "com.microsoft.BiasGelu (x, s)",
    "FastGelu": "com.microsoft.FastGelu (x)",
    "FastGelu of a sum": "com.microsoft.FastGelu (x, s)",
    "SiLU": "com.microsoft.QuickGelu <alpha = 1.0> (x)",
    "QuickGelu": "com.microsoft.QuickGelu (x)",
    "SkipLayerNormalization": "com.microsoft.SkipLayerNormalization <epsilon = 0.01> (u, v, s, t)",
    "SkipLayerNormalization without a bias": "com.microsoft.SkipLayerNormalization (u, v, s)",
    "SkipLayerNormalization of three": "com.microsoft.SkipLayerNormalization (u, v, s, t, t)",
    "LayerNormalization": "LayerNormalization <axis = -1, epsilon = 0.01> (x, s, t)",
}


def model_with(node, opset, outputs="y"):
    model = onnx.parser.parse_model(
        f"""
        <ir_version: 8, opset_import: ["": {opset}, "com.microsoft": 1]>
        fused (float[1, 4, 6, 6] x, float[5, 6] r, float[2, 3, 6] u, float[6, 6, 6] v)
            => (float y) {{ {outputs} = {node} }}
    """.replace("float[6, 6, 6] v", "float[2, 3, 6] v" if "Skip" in node else "float[6, 6, 6] v")
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    random = np.random.default_rng(0)
    for name, dims in WEIGHTS.items():
        array = random.standard_normal(dims).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


def computed(model):
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    random = np.random.default_rng(1)
    fed = {i.name: random.standard_normal(i.shape).astype(np.float32) for i in session.get_inputs()}
    return session.run(None, fed)


@pytest.mark.parametrize("opset", [13, 17, 20])
@pytest.mark.parametrize("node", NODES.values(), ids=NODES)
def test_what_is_written_computes_the_same(node, opset):
    if node.startswith("LayerNormalization") and opset > 16:
        pytest.skip("it is ONNX's own")
    model = model_with(node, opset)
    apart = unfused(model)
    assert runtime_operators(apart) == []
    for one, other in zip(computed(apart), computed(model), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_the_sum_of_a_normalisation_is_kept():
    model = model_with("com.microsoft.SkipLayerNormalization (u, v, s, t, t)", 17, "y, , , sum")
    model.graph.output.append(onnx.ValueInfoProto(name="sum", type=model.graph.output[0].type))
    for one, other in zip(computed(unfused(model)), computed(model), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "node",
    [
        f'{CONVOLUTION}, activation = "Softsign"> (x, w, b)',
        "com.microsoft.FusedMatMul <transA = 1, transBatchA = 1> (v, v)",
        "com.microsoft.NGramRepeatBlock (x, s, t)",
    ],
)
def test_what_is_not_known_stays(node):
    model = model_with(node, 17)
    assert unfused(model).graph.node == model.graph.node


def test_a_model_of_standard_operators_is_left_alone():
    model, _ = model_of("YOLOv8", 3)
    assert unfused(model) is model


def test_a_function_of_the_file_is_not_the_runtimes():
    model = model_with("com.microsoft.QuickGelu (x)", 17)
    imports = [helper.make_opsetid("", 17)]
    body = [helper.make_node("Relu", ["a"], ["b"])]
    model.functions.append(
        helper.make_function("com.microsoft", "QuickGelu", ["a"], ["b"], body, imports)
    )
    assert unfused(model) is model
    assert runtime_operators(model) == []


def test_every_rule_is_tried():
    tried = {node.split()[0].removeprefix("com.microsoft.") for node in NODES.values()}
    assert set(RULES) - tried == {"TransposeMatMul"}  # FusedMatMul's name of old


def saved(model, path, level="EXTENDED"):
    """What ONNX Runtime saves behind its optimisations."""
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
    options.optimized_model_filepath = str(path)
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return onnx.load(path)


@pytest.mark.parametrize("name", ENDINGS)
def test_a_file_that_onnx_runtime_saved_is_read_as_it_was(name, tmp_path):
    model, roles = model_of(name, 3)
    wanted, family = expected(name, outputs_of(model, roles)), ENDINGS[name].family
    found, contract = read(saved(model, tmp_path / "saved.onnx"))
    assert contract.family == family
    assert_same(found, wanted)


@pytest.mark.parametrize("name", ENDINGS)
def test_a_file_with_a_processors_own_layout_is_read_as_it_was_or_refused(name, tmp_path):
    model, roles = model_of(name, 3)
    try:
        found, contract = read(saved(model, tmp_path / "saved.onnx", "ALL"))
    except ModelError:
        return
    assert contract.family == ENDINGS[name].family
    assert_same(found, expected(name, outputs_of(model, roles)))


def test_scores_that_their_convolution_computes_with_their_sigmoid_are_final(tmp_path):
    """As YOLOX's: the activation is an attribute."""
    model = saved(model_of("YOLOX", 3)[0], tmp_path / "saved.onnx")
    assert "FusedConv" in {node.op_type for node in model.graph.node}
    assert "Sigmoid" not in {node.op_type for node in model.graph.node}
    assert read(model)[1].score_form == "final"


def test_a_graph_with_operators_that_nobody_else_knows_is_refused_with_a_way_out():
    model, _ = model_of("YOLOv8", 3)
    for node in model.graph.node:
        if node.op_type == "Sigmoid":
            node.op_type, node.domain = "QLinearSigmoid", "com.microsoft"
    with pytest.raises(
        ModelError, match="QLinearSigmoid is an operator of ONNX Runtime's own"
    ) as caught:
        read_graph(model, "model.onnx")
    assert "basic optimisations" in caught.value.hint
