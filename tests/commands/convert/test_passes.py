"""Batch, size, guard, and the ends of a network."""

from functools import partial

import colour_model
import convolution_model
import numpy as np
import onnx
import onnxruntime as ort
import optional
import pytest
from convolution_model import same_bytes, session_output
from graph_edits import insert_nodes, position_of_producer, producer_of
from onnx import helper

from detcli.commands.convert.passes import (
    decode_nodes,
    first_convolutions,
    guard_transposes,
    score_convolutions,
    set_batch,
    set_image_size,
)
from detcli.config.values import BoxFormat
from detcli.core.errors import ModelError
from detcli.model.contract import Layout
from detcli.model.editing import infer_shapes
from detcli.model.graph import GraphIndex, bare_transposes
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


def test_a_batch_is_refused_if_an_output_has_no_axes():
    model = batched()
    model.graph.node.append(onnx.helper.make_node("ReduceMax", ["head"], ["most"], keepdims=0))
    number = onnx.helper.make_tensor_value_info("most", onnx.TensorProto.FLOAT, [])
    model.graph.output.append(number)
    with pytest.raises(ModelError, match="--batch: the graph's output most has no axes"):
        set_batch(model, None)


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
    with pytest.raises(ModelError, match="takes no other batch: the shapes") as caught:
        set_batch(resized, 2)
    assert "ShapeInferenceError" not in str(caught.value)
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
    return producer_of(model.graph, output.name)


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
    for tail in set(colour_model.TAILS) - {"transposed"}:
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
    producer_of(model.graph, "rows").output[0] = "moved"
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
    position = position_of_producer(distribution, "scores")
    distribution.node[position].input[0] = "deep"
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
    shape = helper.make_node("Shape", ["cells"], ["size"])
    expand = helper.make_node("Expand", ["half", "size"], ["wide"])
    insert_nodes(graph, position_of_producer(graph, "low"), [shape, expand])
    GraphIndex(graph).producers["boxes"].input[1] = "wide"
    nodes = decode_nodes(graph, ["head"])
    assert nodes.isdisjoint({"size", "cells"})
    assert "wide" in nodes
