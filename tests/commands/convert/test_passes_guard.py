"""A Transpose no longer feeds an output, and no optimiser brings it back there."""

import colour_model
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from convolution_model import same_bytes, session_output
from onnx import helper

from detcli.commands.convert.passes import guard_transposes
from detcli.errors import ModelError
from detcli.model.contract import BoxFormat, Layout
from detcli.model.editing import infer_shapes
from detcli.model.graph import bare_transposes
from detcli.model.recognise import recognise

LEVELS = ["ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"]


@pytest.fixture
def model():
    return colour_model.build("transposed")


def last_node(model):
    [output] = model.graph.output
    return next(node for node in model.graph.node if output.name in node.output)


@pytest.mark.parametrize("opset", [13, 17, 18])
def test_a_concat_feeds_the_output(opset, random):
    model = colour_model.build("transposed", opset=opset)
    guarded = guard_transposes(model)
    onnx.checker.check_model(guarded, full_check=True)
    assert len(bare_transposes(model.graph)) == 1
    assert bare_transposes(guarded.graph) == []
    assert last_node(guarded).op_type == "Concat"
    assert onnx.helper.get_node_attr_value(last_node(guarded), "axis") == -1
    picture = random.random((1, 3, 64, 64), np.float32)
    before, after = (session_output(side, picture) for side in (model, guarded))
    np.testing.assert_array_equal(before[0], after[0], strict=True)


def test_it_is_still_recognised(model):
    contract = recognise(infer_shapes(guard_transposes(model)), "m")
    plain = recognise(infer_shapes(model), "m")
    assert contract.layout is Layout.TRANSPOSED_BODY
    assert contract.box_format is BoxFormat.XYXY
    assert contract == plain


def test_twice_is_once(model):
    guarded = guard_transposes(model)
    assert same_bytes(guard_transposes(guarded), guarded)


@pytest.mark.parametrize("tail", [tail for tail in colour_model.TAILS if tail != "transposed"])
def test_what_has_no_such_transpose_stays_as_it_is(tail):
    model = colour_model.build(tail)
    assert same_bytes(guard_transposes(model), model)


def test_behind_an_identity_too(model):
    model.graph.node.append(helper.make_node("Identity", ["rows"], ["last"]))
    model.graph.output[0].name = "last"
    guarded = guard_transposes(model)
    assert bare_transposes(guarded.graph) == []
    assert same_bytes(guard_transposes(guarded), guarded)


def transposed(dims, opset=17):
    return onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": {opset}]>
        moved (float[{dims[1]}, {dims[0]}] given) => (float[{dims[0]}, {dims[1]}] result)
        {{ result = Transpose(given) }}
    """)


def test_before_opset_13_the_sizes_are_an_attribute(random):
    guarded = guard_transposes(transposed((2, 3), opset=11))
    onnx.checker.check_model(guarded, full_check=True)
    given = random.random((3, 2), np.float32)
    np.testing.assert_array_equal(session_output(guarded, given)[0], given.T, strict=True)


@pytest.mark.parametrize("last", ["channels", 1])
def test_an_axis_that_cannot_be_taken_apart_is_refused(last):
    with pytest.raises(ModelError, match="no known size above 1"):
        guard_transposes(transposed((2, last)))


@pytest.mark.parametrize("level", LEVELS)
def test_onnx_runtime_leaves_it(model, level, tmp_path):
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    options.log_severity_level = 4
    guarded = guard_transposes(model)
    ort.InferenceSession(guarded.SerializeToString(), options, providers=["CPUExecutionProvider"])
    assert last_node(onnx.load(tmp_path / "optimised.onnx")).op_type == "Concat"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the simplifiers' own
@pytest.mark.parametrize("simplifier", ["onnxsim", "onnxslim"])
def test_simplifiers_leave_it(model, simplifier):
    module = pytest.importorskip(simplifier)
    guarded = guard_transposes(model)
    if simplifier == "onnxsim":
        simplified, _ = module.simplify(guarded)
    else:
        simplified = module.slim(guarded)
    assert last_node(simplified).op_type == "Concat"
    assert bare_transposes(simplified.graph) == []


def test_a_guard_of_one_input_is_seen_through_too(model):
    """As others write it; it serves where no simplifier runs."""
    plain = recognise(infer_shapes(model), "m")
    next(node for node in model.graph.node if "rows" in node.output).output[0] = "moved"
    model.graph.node.append(helper.make_node("Concat", ["moved"], ["rows"], axis=-1))
    assert recognise(infer_shapes(model), "m") == plain
    assert same_bytes(guard_transposes(model), model)
