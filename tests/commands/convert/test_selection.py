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
from convolution_model import same_bytes
from graph_edits import rename_tensor
from onnx import TensorProto

from detcli.backend.postprocess import SelectionOptions, select
from detcli.commands.convert.selection import append_selection
from detcli.config.values import BoxFormat
from detcli.core.errors import ModelError
from detcli.model.contract import Contract, Layout, MultiLabel, Preprocessing, Resize, ScoreForm
from detcli.model.editing import infer_shapes
from detcli.model.recognise import read_graph

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
    dims = list(head.shape)
    if contract.batch is None:
        dims[0] = "b"
    if contract.anchor_count is None:
        dims[1 if contract.anchors_first else 2] = "n"
    kind = f"{'float16' if head.dtype == np.float16 else 'float'}[{', '.join(map(str, dims))}]"
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": {opset}]>
        body ({kind} given) => ({kind} head) {{ less = Neg(given) head = Neg(less) }}
    """)
    ended = append_selection(model, contract, max_det)
    onnx.checker.check_model(ended, full_check=True)
    session = ort.InferenceSession(ended.SerializeToString(), providers=["CPUExecutionProvider"])
    [rows] = session.run(None, {"given": head})
    return rows


def specified(head, contract, max_det, confidence):
    """The same rows from the NumPy code, (M, 6)."""
    if contract.anchors_first:
        head = head.T
    options = SelectionOptions(confidence, max_det, None, None, multi_label=contract.multi_label)
    selected = select(
        head,
        options,
        cxcywh=contract.box_format is BoxFormat.CXCYWH,
        logits=contract.score_form is ScoreForm.LOGITS,
    )
    height, width = contract.input_shape() if contract.box_fractions else (1, 1)
    boxes = selected.boxes * np.array([width, height, width, height], np.float32)
    columns = [boxes, selected.score[:, None], selected.class_id[:, None]]
    return np.concatenate(columns, axis=1).astype(np.float32)  # type: ignore[arg-type]


SCORES = st.sampled_from([0, -0.0, 0.25, 0.5, 0.75, 1, np.nan]) | st.floats(0, 1, width=16)
HEADS = hnp.array_shapes(min_dims=3, max_dims=3, min_side=1, max_side=6).flatmap(
    lambda shape: hnp.arrays(np.float32, (shape[0], shape[1], shape[2] * 4), elements=SCORES)
)


@pytest.mark.slow
@hypothesis.given(
    scores=HEADS,
    max_det=st.integers(1, 40),
    anchors_first=st.booleans(),
    static=st.booleans(),
    box_format=st.sampled_from(BoxFormat),
    opset=st.sampled_from([13, 18, 21]),
    kind=st.sampled_from(["float32", "float16", "logits", "one class", "logits of one class"]),
)
@hypothesis.settings(max_examples=120)
@pytest.mark.filterwarnings("ignore::detcli.core.errors.DetcliWarning")  # about the NaN
def test_rows_are_those_of_the_specification(
    scores, max_det, anchors_first, static, box_format, opset, kind
):
    """Queries have logits and fractions, DETR's one class each; only sigmoids differ in bits."""
    batch, classes, anchors = scores.shape
    logits = "logits" in kind
    one_class = "one class" in kind
    boxes = np.random.default_rng(0).uniform(0, 1 if logits else 640, (batch, 4, anchors))
    scores = scores * 16 - 8.1 if logits else scores
    head = np.concatenate([boxes, scores], axis=1)
    head = head.astype(np.float16 if kind == "float16" else np.float32)
    if anchors_first:
        head = np.ascontiguousarray(head.swapaxes(1, 2))
    contract = replace(
        HEAD,
        class_count=classes,
        anchors_first=anchors_first,
        anchor_count=anchors if static else None,
        batch=batch if static else None,
        box_format=box_format,
        input_size=(320, 640) if logits else None,
        box_fractions=logits,
        score_form=ScoreForm.LOGITS if logits else ScoreForm.FINAL,
        multi_label=MultiLabel.NEVER if one_class else MultiLabel.WITHOUT_NMS,
    )
    rows = ending_in(head, contract, max_det, opset)
    assert rows.shape == (batch, min(max_det, anchors * (1 if one_class else classes)), 6)
    assert rows.dtype == np.float32
    for image_rows, image_head in zip(rows, head, strict=True):
        for confidence in (0.01 if logits else 0, 0.25):
            expected = specified(image_head, contract, max_det, confidence)
            kept_rows = image_rows[image_rows[:, 4] > confidence]
            np.testing.assert_allclose(kept_rows[:, 4], expected[:, 4], atol=1e-6 * logits, rtol=0)
            kept_rows[:, 4] = expected[:, 4]
            np.testing.assert_array_equal(kept_rows, expected)


def test_many_ties_over_many_anchors(random):
    """Wide enough for the sorting that ONNX Runtime does for large inputs."""
    head = random.integers(0, 5, (2, 84, 8400)).astype(np.float32) / 8
    contract = replace(HEAD, class_count=80, anchor_count=8400)
    rows = ending_in(head, contract, 300)
    for image_rows, image_head in zip(rows, head, strict=True):
        np.testing.assert_array_equal(image_rows, specified(image_head, contract, 300, 0))


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


@pytest.mark.parametrize(
    ("tail", "size", "dtype"),
    [
        ("body", 64, np.float32),
        ("transposed", None, np.float16),
        ("ultralytics", None, np.float32),
        ("authors", 64, np.float16),
    ],
)
def test_the_file_is_recognised_and_cut_again(tail, size, dtype):
    model = infer_shapes(colour_model.build(tail, size=size, dtype=dtype))
    ended = append_selection(model, read_graph(model, "m").contract, 16)
    onnx.checker.check_model(ended, full_check=True)
    contract = read_graph(infer_shapes(ended), "m").contract
    assert contract.layout == Layout.END_TO_END
    assert contract.box_format == BoxFormat.XYXY
    assert contract.class_count == 3
    assert contract.anchors_first is False
    [output] = ended.graph.output
    assert output.type.tensor_type.elem_type == TensorProto.FLOAT
    assert output.type.tensor_type.shape.dim[2].dim_value == 6
    assert same_bytes(append_selection(ended, contract, 16), ended)


def test_what_cannot_be_appended_to_is_refused():
    model = infer_shapes(colour_model.build("body", size=None))
    contract = read_graph(model, "m").contract
    fractions = replace(contract, box_fractions=True)
    edges = Preprocessing(resize=Resize.SHORTEST_EDGE, edges=(32, 64))
    for refused, why, hint in (
        (replace(contract, layout=Layout.ROWS), "selects its detections itself", "leave it out"),
        (fractions, "fractions of the input", "set it with --imgsz N"),
        (
            replace(fractions, preprocessing=edges),
            "fractions of the input",
            "set it with --preprocess stretch --imgsz N",
        ),
        (replace(contract, nms=0.45), "non-maximum suppression", "leave it out; detcli predict"),
    ):
        with pytest.raises(ModelError, match=why) as caught:
            append_selection(model, refused, 300)
        assert caught.value.hint.startswith(hint)
    model.opset_import[0].version = 12
    with pytest.raises(ModelError, match="opset 12"):
        append_selection(model, contract, 300)
    model.opset_import[0].version = 13
    rename_tensor(model.graph.node, "low", "detections")
    with pytest.raises(ModelError, match="the name detections"):
        append_selection(model, contract, 300)
