"""The appended selection is the specification's, row for row; only sigmoids differ in bits."""

from dataclasses import replace

import colour_model
import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from detcli.backend.postprocess import SelectionOptions, select
from detcli.commands.convert.selection import append_selection
from detcli.errors import ModelError
from detcli.model.contract import (
    BoxFormat,
    Contract,
    Layout,
    Preprocessing,
    Resize,
    ScoreForm,
)
from detcli.model.editing import infer_shapes
from detcli.model.recognise import recognise

HEAD = Contract(
    layout=Layout.BODY,
    head="head",
    anchors_first=False,
    box_format=BoxFormat.XYXY,
    class_count=3,
    anchor_count=None,
    input_name="images",
    input_dtype="float32",
    batch=None,
    input_size=None,
    default_size=(64, 64),
    stride=8,
    names=("a", "b", "c"),
    names_origin="",
)


def ending_in(head, contract, max_det, opset=17):
    """Run the selection on heads (B, 4 + C, N) or (B, N, 4 + C)."""
    dtype = helper.np_dtype_to_tensor_dtype(head.dtype)
    dims = [None if contract.batch is None else len(head), *head.shape[1:]]
    if contract.anchor_count is None:
        dims[1 if contract.anchors_first else 2] = None
    values = [helper.make_tensor_value_info(name, dtype, dims) for name in ("given", "head")]
    graph = helper.make_graph(
        [helper.make_node("Neg", ["given"], ["less"]), helper.make_node("Neg", ["less"], ["head"])],
        "head",
        values[:1],
        values[1:],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    ended = append_selection(model, contract, max_det)
    onnx.checker.check_model(ended, full_check=True)
    session = ort.InferenceSession(ended.SerializeToString(), providers=["CPUExecutionProvider"])
    [rows] = session.run(None, {"given": head})
    return rows


def specified(head, contract, max_det, confidence):
    """The same rows from the NumPy code, (M, 6)."""
    if contract.anchors_first:
        head = head.T
    options = SelectionOptions(confidence, max_det, None, None, unique=contract.one_class)
    chosen = select(
        head,
        options,
        cxcywh=contract.box_format is BoxFormat.CXCYWH,
        logits=contract.score_form is ScoreForm.LOGITS,
    )
    height, width = contract.canvas() if contract.box_fractions else (1, 1)
    boxes = chosen.boxes * np.array([width, height, width, height], np.float32)
    columns = [boxes, chosen.score[:, None], chosen.class_id[:, None]]
    return np.concatenate(columns, axis=1).astype(np.float32)


SCORES = st.sampled_from([0, -0.0, 0.25, 0.5, 0.75, 1, np.nan]) | st.floats(0, 1, width=16)
HEADS = hnp.array_shapes(min_dims=3, max_dims=3, min_side=1, max_side=6).flatmap(
    lambda shape: hnp.arrays(np.float32, (shape[0], shape[1], shape[2] * 4), elements=SCORES)
)


@hypothesis.given(
    scores=HEADS,
    max_det=st.integers(1, 40),
    anchors_first=st.booleans(),
    static=st.booleans(),
    box_format=st.sampled_from(BoxFormat),
    dtype=st.sampled_from([np.float32, np.float16]),
    opset=st.sampled_from([13, 18, 21]),
)
@hypothesis.settings(max_examples=60)
@pytest.mark.filterwarnings("ignore::detcli.errors.DetcliWarning")  # about the NaN
def test_rows_are_those_of_the_specification(  # noqa: PLR0913, PLR0917 - one parameter a property
    scores, max_det, anchors_first, static, box_format, dtype, opset
):
    batch, classes, anchors = scores.shape
    boxes = np.random.default_rng(0).uniform(0, 640, (batch, 4, anchors))
    head = np.concatenate([boxes, scores], axis=1).astype(dtype)
    if anchors_first:
        head = np.ascontiguousarray(head.swapaxes(1, 2))
    contract = replace(
        HEAD,
        class_count=classes,
        anchors_first=anchors_first,
        anchor_count=anchors if static else None,
        batch=batch if static else None,
        box_format=box_format,
    )
    rows = ending_in(head, contract, max_det, opset)
    assert rows.shape == (batch, min(max_det, anchors * classes), 6)
    assert rows.dtype == np.float32
    for found, one in zip(rows, head, strict=True):
        for confidence in (0, 0.25):
            expected = specified(one, contract, max_det, confidence)
            np.testing.assert_array_equal(found[found[:, 4] > confidence], expected)


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("anchors_first", [False, True])
@pytest.mark.parametrize("one_class", [False, True])
@pytest.mark.parametrize("box_format", BoxFormat)
@pytest.mark.filterwarnings("ignore::detcli.errors.DetcliWarning")  # about the NaN
def test_logits_fractions_and_one_class_for_each_anchor(
    static, anchors_first, one_class, box_format, random
):
    boxes = random.uniform(0, 1, (2, 4, 50))
    scores = random.integers(-40, 30, (2, 3, 50)) / 4 + 0.1
    scores[:, 1, 7] = np.nan
    head = np.concatenate([boxes, scores], axis=1).astype(np.float32)
    if anchors_first:
        head = np.ascontiguousarray(head.swapaxes(1, 2))
    contract = replace(
        HEAD,
        anchors_first=anchors_first,
        anchor_count=50 if static else None,
        batch=2 if static else None,
        box_format=box_format,
        input_size=(320, 640),
        box_fractions=True,
        score_form=ScoreForm.LOGITS,
        one_class=one_class,
    )
    for max_det in (1, 20, 300):
        rows = ending_in(head, contract, max_det)
        assert rows.shape[1] == min(max_det, 50 if one_class else 150)
        for found, one in zip(rows, head, strict=True):
            for confidence in (0.01, 0.25):
                expected = specified(one, contract, max_det, confidence)
                kept = found[found[:, 4] > confidence]
                np.testing.assert_array_equal(
                    kept[:, [0, 1, 2, 3, 5]], expected[:, [0, 1, 2, 3, 5]]
                )
                np.testing.assert_allclose(kept[:, 4], expected[:, 4], atol=1e-6)


def test_what_cannot_be_appended_to_is_refused():
    model = infer_shapes(colour_model.build("body", size=None))
    contract = recognise(model, "m")
    with pytest.raises(ModelError, match="selects its detections itself"):
        append_selection(model, replace(contract, layout=Layout.ROWS), 300)
    fractions = replace(contract, box_fractions=True)
    with pytest.raises(ModelError, match="fractions of the input") as caught:
        append_selection(model, fractions, 300)
    assert caught.value.hint == "set it with --imgsz N"
    edges = Preprocessing(resize=Resize.SHORTEST_EDGE, edges=(32, 64))
    with pytest.raises(ModelError, match="fractions of the input") as caught:
        append_selection(model, replace(fractions, preprocessing=edges), 300)
    assert caught.value.hint == "set it with --preprocess stretch --imgsz N"


def test_many_ties_over_many_anchors(random):
    """Wide enough for the sorting that ONNX Runtime does for large inputs."""
    head = random.integers(0, 5, (2, 84, 8400)).astype(np.float32) / 8
    contract = replace(HEAD, class_count=80, anchor_count=8400)
    rows = ending_in(head, contract, 300)
    for found, one in zip(rows, head, strict=True):
        np.testing.assert_array_equal(found, specified(one, contract, 300, 0))


def test_scores_above_one_are_clipped(random):
    head = random.random((1, 7, 20), np.float32)
    head[0, 5, 3], head[0, 6, 4] = 1.25, 1.5
    rows = ending_in(head, HEAD, 5)
    np.testing.assert_array_equal(rows[0], specified(head[0], HEAD, 5, 0))
    assert rows[0, :2, 4].tolist() == [1, 1]


def test_what_is_no_confidence_is_below_all_others():
    head = np.full((1, 7, 3), np.nan, np.float32)
    head[0, :4] = 8
    head[0, 5, 1] = 0.5
    rows = ending_in(head, HEAD, 3)
    assert rows[0, 0].tolist() == [8, 8, 8, 8, 0.5, 1]
    assert rows[0, 1:, 4].tolist() == [0, 0]


@pytest.mark.parametrize("tail", [tail for tail in colour_model.TAILS if tail != "one-to-many"])
@pytest.mark.parametrize("size", [64, None])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_the_file_is_recognised_and_cut_again(tail, size, dtype):
    model = infer_shapes(colour_model.build(tail, size=size, dtype=dtype))
    ended = append_selection(model, recognise(model, "m"), 16)
    onnx.checker.check_model(ended, full_check=True)
    contract = recognise(infer_shapes(ended), "m")
    assert contract.layout is Layout.END_TO_END
    assert (contract.class_count, contract.anchors_first) == (3, False)
    assert contract.box_format is BoxFormat.XYXY
    [output] = ended.graph.output
    assert output.type.tensor_type.elem_type == TensorProto.FLOAT
    assert [dim.dim_value for dim in output.type.tensor_type.shape.dim][2] == 6
    again = append_selection(ended, contract, 16)
    assert again.SerializeToString(deterministic=True) == ended.SerializeToString(
        deterministic=True
    )


def test_a_one_to_many_head_is_refused():
    model = infer_shapes(colour_model.build("one-to-many"))
    with pytest.raises(ModelError, match="non-maximum suppression"):
        append_selection(model, recognise(model, "m"), 300)


def test_an_old_opset_is_refused():
    model = infer_shapes(colour_model.build("body"))
    model.opset_import[0].version = 12
    with pytest.raises(ModelError, match="opset 12"):
        append_selection(model, recognise(model, "m"), 300)


def test_a_tensor_of_the_same_name_is_refused():
    model = colour_model.build("body")
    for node in model.graph.node:
        node.output[:] = ["detections" if name == "low" else name for name in node.output]
        node.input[:] = ["detections" if name == "low" else name for name in node.input]
    model = infer_shapes(model)
    with pytest.raises(ModelError, match="detections"):
        append_selection(model, recognise(model, "m"), 300)
