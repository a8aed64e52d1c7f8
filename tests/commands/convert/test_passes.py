"""Batch, size, guard, the ends of a network; float16 and 8 bits, and float32 where it is wanted."""

from collections import Counter
from functools import partial

import colour_model
import convolution_model
import numpy as np
import onnx
import onnxruntime as ort
import optional
import pytest
from convolution_model import CONVOLUTIONS, same_bytes, session_output
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from detcli.commands.convert.passes import (
    SILU_FLOOR,
    decode_nodes,
    first_convolutions,
    guard_transposes,
    score_convolutions,
    set_batch,
    set_image_size,
    to_half,
    to_int8,
)
from detcli.config.values import BoxFormat
from detcli.core.errors import ModelError
from detcli.model.contract import Layout
from detcli.model.editing import infer_shapes
from detcli.model.graph import GraphIndex, bare_transposes, is_half, is_quantised
from detcli.model.recognise import read_graph


def batched(batch=1, last="head = Add(moved, grid)"):
    """A graph for one batch, as exporters write it: targets of Reshape are constants."""
    return onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17]>
        g (float[{batch}, 3, 8, 8] images) => (float[{batch}, 3, 64] head)
        <int64[3] flat = {{{batch}, 3, 64}}, int64[4] pair = {{{batch}, 1, 3, -1}},
         int64[3] own = {{1, 1, 64}}, int64[1] count = {{64}},
         int64[4] sizes = {{{batch}, 3, 8, 8}}>
        {{
            first = Reshape(images, flat)
            second = Reshape<allowzero = 1>(first, pair)
            moved = Reshape(second, flat)
            points = ConstantOfShape(count)
            grid = Reshape(points, own)
            {last}
        }}
    """)


def passed(change, model):
    """What a pass makes: a valid model, and the same if it runs again; the given one stays."""
    before = model.SerializeToString(deterministic=True)
    changed = change(model)
    assert model.SerializeToString(deterministic=True) == before
    assert same_bytes(change(changed), changed)
    onnx.checker.check_model(changed, full_check=True)
    return changed


def assert_same_output(model, other_model, images):
    """Of one model for all images, and the other for each."""
    [output] = session_output(model, images)
    separate = [session_output(other_model, image[None])[0] for image in images]
    np.testing.assert_array_equal(output, np.concatenate(separate), strict=True)


@pytest.mark.parametrize(("old", "size"), [(1, 3), (1, None), (2, 3), (2, None)])
def test_each_image_of_a_batch_is_as_alone(old, size, random):
    model = passed(partial(set_batch, size=size), batched(old))
    for value in list(model.graph.input) + list(model.graph.output):
        dim = value.type.tensor_type.shape.dim[0]
        if size is None:
            assert dim.dim_value == 0
            assert dim.dim_param == "batch"
        else:
            assert dim.dim_value == size
            assert dim.dim_param == ""
    assert_same_output(model, batched(), random.random((3, 3, 8, 8), np.float32))


@pytest.mark.parametrize("tail", colour_model.TAILS)
def test_a_batch_and_a_size_of_any_tail(tail, random):
    model = colour_model.build(tail)
    assert same_bytes(set_batch(model, 1), model)
    images = random.random((2, 3, 64, 64), np.float32)
    assert_same_output(set_batch(model, None), model, images)
    model = colour_model.build(tail, size=None)
    fixed = passed(partial(set_image_size, size=96), model)
    dims = [dim.dim_value for dim in fixed.graph.input[0].type.tensor_type.shape.dim]
    assert dims == [1, 3, 96, 96]
    assert_same_output(fixed, model, random.random((1, 3, 96, 96), np.float32))


def test_a_batch_that_is_written_elsewhere_is_refused():
    resized = batched(
        last='r = Resize<mode = "nearest">(images, , , sizes) head = Reshape(r, flat)'
    )
    with pytest.raises(ModelError, match="cannot take another batch") as caught:
        set_batch(resized, 2)
    assert caught.value.hint == "export the model again with that batch, or with dynamic axes"
    # A sum over all images is one row, however many there are.
    summed = batched(last="head = ReduceMax<axes = [0], keepdims = 1>(moved)")
    for size in (2, None):
        with pytest.raises(ModelError, match="batch"):
            set_batch(summed, size)


def test_sizes_that_are_refused():
    with pytest.raises(ModelError, match="only takes 64x64 images") as caught:
        set_image_size(colour_model.build(), 96)
    assert caught.value.hint == "export the model again with that imgsz, or with dynamic axes"
    # A constant as large as a feature map is nothing that can be made up.
    model = colour_model.build(size=None)
    bias = np.zeros((1, 3, 8, 8), np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(bias, "bias"))
    pool = model.graph.node[0]
    model.graph.node.insert(1, helper.make_node("Add", ["plain", "bias"], pool.output))
    pool.output[0] = "plain"
    with pytest.raises(ModelError, match="cannot take 96x96"):
        set_image_size(model, 96)
    unusual = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        g (float[1, 8, 8, 3] images) => (float[1, 8, 8, 3] head) { head = Neg(images) }
    """)
    for change, option in ((set_batch, "--batch"), (set_image_size, "--imgsz")):
        with pytest.raises(ModelError, match=rf"{option}: the graph takes \[H, W, 3\]"):
            change(unusual, 32)


def last_node(model):
    [output] = model.graph.output
    return next(node for node in model.graph.node if output.name in node.output)


def transposed(dims, opset=17):
    return onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": {opset}]>
        moved (float[{dims[1]}, {dims[0]}] given) => (float[{dims[0]}, {dims[1]}] result)
        {{ result = Transpose(given) }}
    """)


@pytest.mark.parametrize("opset", [13, 18])
def test_a_concat_guards_the_output(opset, random):
    model = colour_model.build("transposed", opset=opset)
    guarded = passed(guard_transposes, model)
    assert len(bare_transposes(model.graph)) == 1
    assert bare_transposes(guarded.graph) == []
    assert last_node(guarded).op_type == "Concat"
    assert helper.get_node_attr_value(last_node(guarded), "axis") == -1
    assert_same_output(guarded, model, random.random((1, 3, 64, 64), np.float32))
    plain_contract = read_graph(infer_shapes(model), "m").contract
    guarded_contract = read_graph(infer_shapes(guarded), "m").contract
    assert guarded_contract == plain_contract
    assert guarded_contract.layout == Layout.TRANSPOSED_BODY
    assert guarded_contract.box_format == BoxFormat.XYXY
    # Behind an Identity it is guarded, too.
    model.graph.node.append(helper.make_node("Identity", ["rows"], ["last"]))
    model.graph.output[0].name = "last"
    assert bare_transposes(passed(guard_transposes, model).graph) == []


def test_what_has_no_such_transpose_stays_as_it_is():
    for tail in {*colour_model.TAILS} - {"transposed"}:
        model = colour_model.build(tail)
        assert same_bytes(guard_transposes(model), model)


def test_the_axis_that_a_guard_takes_apart(random):
    """Before opset 13, the sizes of a Split are an attribute."""
    guarded = passed(guard_transposes, transposed((2, 2), opset=11))
    values = random.random((2, 2), np.float32)
    np.testing.assert_array_equal(session_output(guarded, values)[0], values.T, strict=True)
    for last in ("channels", 1):
        with pytest.raises(ModelError, match="no known size above 1"):
            guard_transposes(transposed((2, last)))


def test_onnx_runtime_leaves_a_guard(tmp_path):
    options = ort.SessionOptions()  # all optimisations are on
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    options.log_severity_level = 4
    guarded = guard_transposes(colour_model.build("transposed"))
    ort.InferenceSession(guarded.SerializeToString(), options, providers=["CPUExecutionProvider"])
    assert last_node(onnx.load(tmp_path / "optimised.onnx")).op_type == "Concat"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the simplifiers' own
@pytest.mark.parametrize("simplifier", ["onnxsim", "onnxslim"])
def test_simplifiers_leave_a_guard(simplifier):
    module = optional.require(simplifier)
    guarded = guard_transposes(colour_model.build("transposed"))
    if simplifier == "onnxsim":
        simplified, _ = module.simplify(guarded)
    else:
        simplified = module.slim(guarded)
    assert last_node(simplified).op_type == "Concat"
    assert bare_transposes(simplified.graph) == []


def test_a_guard_of_one_input_is_seen_through_too():
    """As others write it; it serves where no simplifier runs."""
    model = colour_model.build("transposed")
    plain = read_graph(infer_shapes(model), "m").contract
    next(node for node in model.graph.node if "rows" in node.output).output[0] = "moved"
    model.graph.node.append(helper.make_node("Concat", ["moved"], ["rows"], axis=-1))
    assert read_graph(infer_shapes(model), "m").contract == plain
    assert same_bytes(guard_transposes(model), model)


DISTRIBUTION = """
    <ir_version: 8, opset_import: ["": 17]>
    focal (float[1, 16, 8] images, float[1, 3, 8] given) => (float[1, 7, 8] head)
    <float[3, 3, 1] w, float[1, 2, 1] mean, float[16, 16, 1] body, int64[4] four = {1, 4, 2, 16},
     int64[3] back = {1, 4, 8}, int64[3] fold = {1, 2, 32}, int64[2] pairs = {2, 2},
     float[1, 2, 8] points>
    {
        deep = Conv(images, body)
        distances = Conv(deep, body)
        apart = Reshape(distances, fold)
        shares = Softmax(apart)
        expected = Conv(shares, mean)
        four_sides = Reshape(expected, back)
        near, far = Split<axis = 1>(four_sides, pairs)
        low = Sub(points, near)
        high = Add(points, far)
        boxes = Concat<axis = 1>(low, high)
        shallow = Conv(given, w)
        logits = Conv(shallow, w)
        scores = Sigmoid(logits)
        head = Concat<axis = 1>(boxes, scores)
    }
"""


@pytest.fixture
def distribution():
    return onnx.parser.parse_model(DISTRIBUTION).graph


def test_the_mean_of_a_distribution_belongs_to_the_decode(distribution):
    sides = {"apart", "shares", "expected", "four_sides"}
    corners = {"near", "low", "high", "boxes"}
    assert decode_nodes(distribution, ["head"]) == sides | corners


def test_convolutions_from_both_ends(distribution):
    ends = {0: set(), 1: {"logits"}, 2: {"logits", "shallow"}, 9: {"logits", "shallow"}}
    for depth, expected in ends.items():
        assert score_convolutions(distribution, ["head"], depth) == expected
    for image, depth, expected in (
        ("images", 1, {"deep"}),
        ("images", 2, {"deep", "distances"}),
        ("images", 9, {"deep", "distances", "expected"}),
        ("given", 1, {"shallow"}),
    ):
        assert first_convolutions(distribution, image, depth) == expected
    # Where boxes and scores are one tensor, both count.
    nodes = {node.output[0]: node for node in distribution.node}
    nodes["scores"].input[0] = "deep"
    assert score_convolutions(distribution, ["head"], 1) == {"deep"}
    model = infer_shapes(convolution_model.build())
    names = convolution_model.CONVOLUTIONS
    assert score_convolutions(model.graph, ["head"], 3) == set(names[-3:])


@pytest.mark.parametrize("tail", colour_model.TAILS)
def test_the_decode_ends_at_the_network(tail):
    model = infer_shapes(colour_model.build(tail))
    decode = decode_nodes(model.graph, [read_graph(model, "m").contract.head])
    assert {"boxes", "low", "high", "anchors"} <= decode
    assert decode.isdisjoint({"cells", "scores", "head", "first", "rows"})


def test_a_shape_is_no_part_of_the_decode():
    """The grid of a dynamic export is as large as a feature map, which is not thereby decode."""
    graph = infer_shapes(colour_model.build()).graph
    at = next(i for i, node in enumerate(graph.node) if "low" in node.output)
    graph.node.insert(at, helper.make_node("Shape", ["cells"], ["size"]))
    graph.node.insert(at + 1, helper.make_node("Expand", ["half", "size"], ["wide"]))
    GraphIndex(graph).producers["boxes"].input[1] = "wide"
    nodes = decode_nodes(graph, ["head"])
    assert nodes.isdisjoint({"size", "cells"})
    assert "wide" in nodes


FAR = """
    <ir_version: 8, opset_import: ["": 17]>
    far (float[1, 4] given) => (float[1, 4] result)
    <float million = {1e6}>
    {
        near = MatMul(given, weights)
        large = Mul(near, million)
        larger = Mul(large, million)
        smaller = Div(larger, million)
        twice = Add(larger, smaller)
        small = Div(twice, million)
        last = Div(small, million)
        result = Add(last, near)
    }
"""


@pytest.fixture
def overflowing():
    model = onnx.parser.parse_model(FAR)
    weights = onnx.numpy_helper.from_array(np.eye(4, dtype=np.float32), "weights")
    model.graph.initializer.append(weights)
    return model


def in_float16(model, values):
    """Run a model as it is; ONNX Runtime's CPU computes much of float16 in float32."""
    with np.errstate(over="ignore", invalid="ignore"):
        return ReferenceEvaluator(model).run(None, {"given": values})


@pytest.mark.parametrize(
    ("tail", "keep", "size"),
    [
        ("body", True, 64),
        ("body", False, None),
        ("transposed", False, 64),
        ("ultralytics", True, None),
        ("authors", False, None),
        ("one-to-many", True, 64),
    ],
)
def test_any_tail(tail, keep, size, random):
    model = convolution_model.build(tail, size=size)
    half = to_half(model, keep_inputs_and_outputs=keep)
    onnx.checker.check_model(half, full_check=True)
    dtype = np.float32 if keep else np.float16
    image = random.random((1, 3, 64, 64), np.float32)
    [rows], [expected] = session_output(half, image.astype(dtype)), session_output(model, image)
    assert rows.dtype == dtype
    scores = np.s_[:, :, 4] if rows.shape[-1] == 6 else np.s_[:]  # neighbours may change places
    np.testing.assert_allclose(rows[scores], expected[scores], atol=0.005, rtol=0.002)
    assert is_half(half)
    assert not is_half(model)
    layers = [node.name for node in half.graph.node if node.op_type == "Conv"]
    assert layers == [f"node {name}" for name in CONVOLUTIONS]
    weights = [t for t in half.graph.initializer if t.name.endswith("_kernel")]
    assert {tensor.data_type for tensor in weights} == {TensorProto.FLOAT16}
    contract = read_graph(infer_shapes(half), "m").contract
    assert contract.input_dtype == np.dtype(dtype).name
    assert contract.box_format is read_graph(infer_shapes(model), "m").contract.box_format


EXACT = {"large", "larger", "smaller", "twice", "small", "last"}


@pytest.mark.parametrize("keep", [True, False])
def test_exact_nodes_are_computed_in_float32_from_end_to_end(overflowing, keep):
    values = np.array([[0, 1, 2, 3]], np.float32 if keep else np.float16)
    [rows] = in_float16(to_half(overflowing), values.astype(np.float16))
    assert not np.isfinite(rows[0, 1:]).any()  # what this is about
    before = overflowing.SerializeToString(deterministic=True)
    # The last one is cast for its reader, under the name it had, or feeds an output.
    for exact in (EXACT, {*EXACT, "result"}):
        half = to_half(overflowing, exact, keep_inputs_and_outputs=keep)
        assert overflowing.SerializeToString(deterministic=True) == before
        assert same_bytes(to_half(overflowing, exact, keep_inputs_and_outputs=keep), half)
        onnx.checker.check_model(half, full_check=True)
        [rows] = in_float16(half, values)
        np.testing.assert_allclose(rows, 2 * values, rtol=0.001, strict=True)  # type: ignore[arg-type]
        index = GraphIndex(infer_shapes(half).graph)
        types, makers = index.types, index.producers
        exact_names = [name for name in EXACT if makers[name].op_type != "Cast"]
        assert {types[name] for name in exact_names} == {TensorProto.FLOAT}
        assert types["near"] == TensorProto.FLOAT16
        if exact == EXACT:
            casts = [node for node in half.graph.node if node.op_type == "Cast"]
            assert len(casts) == 2 + 2 * keep
    assert makers["result"].op_type == ("Add" if keep else "Cast")


def test_a_tensor_that_several_exact_nodes_read_is_cast_once(overflowing):
    half = to_half(overflowing, {"larger", "smaller", "twice"})
    makers = Counter(name for node in half.graph.node for name in node.output)
    assert set(makers.values()) == {1}
    onnx.checker.check_model(half, full_check=True)


RANGES = dict.fromkeys(("images", *CONVOLUTIONS), (0.0, 1.0))


@pytest.fixture
def convolution_network():
    return convolution_model.build()


def convolutions(model):
    """Whether each convolution reads and makes 8 bits, by its output."""
    index = GraphIndex(model.graph)
    by_tensor = {}
    for node in model.graph.node:
        if node.op_type == "Conv":
            readers = [n.op_type for n in model.graph.node if node.output[0] in n.input]
            weights = index.producers.get(node.input[1])
            by_tensor[node.output[0].removesuffix("_QuantizeLinear_Input")] = (
                node.input[0].endswith("DequantizeLinear_Output")
                and weights is not None
                and readers == ["QuantizeLinear"]
            )
    return by_tensor


@pytest.mark.parametrize("exact", [(), ("layer1",), ("layer4", "cells")])
def test_the_chosen_convolutions_are_quantised(convolution_network, exact, random):
    quantised = to_int8(convolution_network, RANGES, exact)
    onnx.checker.check_model(quantised, full_check=True)
    assert convolutions(quantised) == {name: name not in exact for name in CONVOLUTIONS}
    image = random.random((1, 3, 64, 64), np.float32)
    [head] = session_output(quantised, image)
    [expected] = session_output(convolution_network, image)
    np.testing.assert_array_equal(head[:, :4], expected[:, :4])
    np.testing.assert_allclose(head[:, 4:], expected[:, 4:], atol=0.03)
    assert np.abs(head[:, 4:] - expected[:, 4:]).max() > 0


def test_each_channel_has_a_scale_of_its_own(convolution_network):
    kernel = next(t for t in convolution_network.graph.initializer if t.name == "layer2_kernel")
    values = np.diag([1.0, 0.01, 100.0]).reshape(3, 3, 1, 1).astype(np.float32)
    kernel.CopyFrom(onnx.numpy_helper.from_array(values, "layer2_kernel"))
    quantised = to_int8(convolution_network, RANGES)
    scales = GraphIndex(quantised.graph).array("layer2_kernel_scale")
    np.testing.assert_allclose(scales, np.array([1, 0.01, 100]) / 127, rtol=0.01)


def test_scales_are_those_of_the_ranges(convolution_network):
    quantised = to_int8(convolution_network, RANGES | {"layer2": (-1.0, 3.0)})
    index = GraphIndex(quantised.graph)
    np.testing.assert_allclose(index.array("layer2_scale"), 4 / 255, rtol=1e-5)
    assert index.array("layer2_zero_point") == 64
    np.testing.assert_allclose(index.array("layer1_scale"), 1 / 255, rtol=1e-5)


def test_of_what_feeds_a_silu_the_far_negative_end_is_left_out(convolution_network):
    graph = convolution_network.graph
    third = GraphIndex(graph).producers["layer3"]
    third.input[0] = "silu"
    at = list(graph.node).index(third)
    nodes = [("Sigmoid", ["layer2"], "gate"), ("Mul", ["layer2", "gate"], "silu")]
    for offset, (operator, inputs, output) in enumerate(nodes):
        graph.node.insert(at + offset, onnx.helper.make_node(operator, inputs, [output]))
    ranges = RANGES | {"layer2": (-1000.0, 8.0), "silu": (-0.3, 8.0), "layer4": (-1000.0, 8.0)}
    index = GraphIndex(to_int8(convolution_network, ranges).graph)
    np.testing.assert_allclose(index.array("layer2_scale"), (8 - SILU_FLOOR) / 255, rtol=1e-5)
    np.testing.assert_allclose(index.array("layer4_scale"), 1008 / 255, rtol=1e-5)


def test_it_is_recognised_and_keeps_its_names(convolution_network):
    before = convolution_network.SerializeToString(deterministic=True)
    quantised = to_int8(convolution_network, RANGES)
    assert convolution_network.SerializeToString(deterministic=True) == before
    assert is_quantised(quantised.graph)
    layers = [node.name for node in quantised.graph.node if node.op_type == "Conv"]
    assert layers == [f"node {name}" for name in CONVOLUTIONS]
    contract = read_graph(infer_shapes(convolution_network), "m").contract
    assert read_graph(infer_shapes(quantised), "m").contract == contract


def test_what_cannot_be_quantised_is_refused(convolution_network):
    with pytest.raises(ModelError, match="no convolution"):
        to_int8(convolution_network, RANGES, CONVOLUTIONS)
    convolution_network.opset_import[0].version = 12
    with pytest.raises(ModelError, match="opset 12"):
        to_int8(convolution_network, RANGES)
