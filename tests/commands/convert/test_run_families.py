"""Conversions of detectors other than YOLO: detections stay the same, or the reason is given."""

import warnings

import numpy as np
import onnx
import onnxruntime
import pytest
import query_model
from cell_graphs import EXPORTS
from conversions import SQUARES
from conversions import converted as convert
from graph_builder import Graph
from graph_edits import add_constants, insert_nodes, names_of, position_of_producer
from query_graphs import exponential

from detcli.config.config import Settings
from detcli.core.errors import DetcliWarning, ModelError
from detcli.model.contract import Layout
from detcli.model.file import ModelFile
from detcli.model.graph import GraphIndex, is_half
from detcli.run.detector import Detector


@pytest.fixture
def write_small_query_model(tmp_path):
    def write(tail="pair", **options):
        path = tmp_path / "model.onnx"
        path.write_bytes(query_model.named(tail, **options).SerializeToString())
        return path

    return write


def converted(path, preprocess=None, **options):
    output = path.with_name("converted.onnx")
    report = convert(path, output, preprocess=preprocess, **options)
    assert report.written, report.failures
    assert report.difference.old == report.difference.new == report.difference.pairs > 0
    return output


def detected(path, settings=None):
    with Detector(path, "cpu", settings=settings or Settings()) as detector:
        detections = detector(SQUARES)
    order = np.lexsort((detections.class_id, detections.xyxy[:, 0]))
    return detections.xyxy[order], detections.score[order], detections.class_id[order]


def types_of(path):
    """The types that nodes compute in, by operator and the tensor that they read or make."""
    index = GraphIndex(ModelFile.read(path).model.graph)
    types = {}
    for node in index.graph.node:
        for name in list(node.input) + list(node.output):
            types[node.op_type, name] = index.types.get(node.output[0])
    return types


def assert_close(first, second, within=0.01):
    """Boxes, scores and classes are equal, within a tolerance."""
    for left, right in zip(first, second, strict=True):
        assert np.allclose(left, right, atol=within)


@pytest.mark.parametrize(
    ("tail", "no_object"),
    [("pair", False), ("deploy", False), ("rows", False), ("pair", True), ("rows", True)],
)
def test_an_appended_selection_gives_the_same_detections(write_small_query_model, tail, no_object):
    path = write_small_query_model(tail, no_object=no_object)
    output = converted(path, end_to_end=True)
    assert_close(detected(path), detected(output))
    old = ModelFile.read(path).detector()
    new = ModelFile.read(output).detector()
    assert new.layout is Layout.END_TO_END
    assert new.family == old.family
    assert new.preprocessing == old.preprocessing
    assert new.multi_label == old.multi_label
    assert new.clips == old.clips
    assert new.max_detections == old.max_detections


def test_the_rows_of_an_appended_selection_are_pixels_in_any_runtime(write_small_query_model):
    output = converted(write_small_query_model("deploy"), end_to_end=True)
    session = onnxruntime.InferenceSession(output)
    assert names_of(session.get_inputs()) == ["images"]
    pixels = np.float32(SQUARES[..., ::-1].transpose(2, 0, 1)[np.newaxis]) / 255
    [rows] = session.run(None, {"images": pixels})
    assert np.allclose(sorted(rows[0, :2, :4].tolist()), [[8, 16, 16, 24], [40, 40, 48, 48]])
    assert np.all(rows[0, :2, 4] > 0.99)
    assert rows[0, 2, 4] < 0.25


@pytest.mark.parametrize("tail", ["deploy", "rows"])
def test_a_selection_is_cut_off(write_small_query_model, tail):
    output = converted(write_small_query_model(tail, keep=20), cut=True)
    model = onnx.load(output)
    assert names_of(model.graph.input) == ["images"]
    assert len(model.graph.output) == 2
    # The one that is left chooses queries.
    assert [node.op_type for node in model.graph.node].count("TopK") == 1
    assert_close(detected(write_small_query_model(tail)), detected(output))


@pytest.mark.parametrize(("tail", "keep_io"), [("pair", True), ("deploy", False), ("rows", False)])
def test_attention_that_overflows_float16_stays_in_float32(write_small_query_model, tail, keep_io):
    path = write_small_query_model(tail, attention=3e5)
    output = converted(path, half=True, keep_io=keep_io)
    assert_close(detected(path), detected(output), within=0.05)
    types = types_of(output)
    assert types["MatMul", "products"] == onnx.TensorProto.FLOAT
    assert types["Softmax", "products"] == onnx.TensorProto.FLOAT
    assert types["Conv", "early"] == onnx.TensorProto.FLOAT16


@pytest.mark.parametrize(
    ("tail", "option"), [("pair", "int8"), ("deploy", "half"), ("rows", "end_to_end")]
)
def test_boxes_joined_of_centre_and_size_are_converted(write_small_query_model, tail, option):
    path = write_small_query_model(tail, grown=True)
    assert ModelFile.read(path).detector().family == "RF-DETR"
    preprocess = "stretch,scale=0.00392156862745098,mean=0:0:0,std=1:1:1"
    output = converted(path, preprocess, **{option: True}, tolerance={"score": 0.25, "corner": 1})
    assert_close(detected(path, Settings(preprocess=preprocess)), detected(output), within=0.5)


def test_a_norm_that_squares_large_values_stays_in_float32(write_small_query_model):
    """Within LayerNormalization, no tensor shows that the square of 300 overflows."""
    path = write_small_query_model()
    model = onnx.load(path)
    position = position_of_producer(model.graph, "queries")
    model.graph.node[position].output[0] = "before"
    add_constants(
        model.graph, {"hundreds": np.full(1, 300, np.float32), "scale": np.ones(3, np.float32)}
    )
    multiply = onnx.helper.make_node("Mul", ["before", "hundreds"], ["large"])
    normalise = onnx.helper.make_node(
        "LayerNormalization", ["large", "scale"], ["queries"], axis=-1
    )
    insert_nodes(model.graph, position + 1, [multiply, normalise])
    path.write_bytes(model.SerializeToString())
    output = converted(path, half=True)
    types = set()
    for (operator, _), dtype in types_of(output).items():
        if "Norm" in operator:
            types.add(dtype)
    assert types == {onnx.TensorProto.FLOAT}


@pytest.mark.parametrize("batch", [2, "dynamic"])
def test_a_batch_of_queries(write_small_query_model, batch):
    assert_close(
        detected(write_small_query_model()),
        detected(converted(write_small_query_model(), batch=batch)),
    )


def test_a_family_that_the_graph_is_not_is_refused(write_small_query_model):
    model = onnx.load(path := write_small_query_model())
    model.metadata_props.add(key="detcli.family", value="YOLOX")
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="family says 'YOLOX', which does not fit it"):
        ModelFile.read(path).detector()


@pytest.mark.parametrize("name", ["BlazeFace", "CenterFace"])
def test_raw_scales_of_any_size_and_layout_compute_in_float16(name, tmp_path):
    """CenterFace says a size of 32 x 32 and takes any; BlazeFace joins two scales in an output."""
    export = EXPORTS[name]
    path = tmp_path / "model.onnx"
    graph = Graph(size=export.at or export.sizes[0])
    outputs = export.build(graph, export.classes[0])
    path.write_bytes(graph.model(list(outputs.values())).SerializeToString())
    loose = {"score": 1, "corner": 1e4, "boxes": 1}
    report = convert(path, tmp_path / "half.onnx", half=True, tolerance=loose)
    assert report.written
    (step,) = report.steps
    assert step.changed is True
    assert is_half(ModelFile.read(tmp_path / "half.onnx").model)


def test_a_batch_that_nodes_have_inside_is_named_and_not_the_error_of_the_runtime(tmp_path):
    """A vision transformer joins a learnt token to the patches of each image."""
    graph = Graph()
    queries = graph.queries()
    nothing = graph("Mul", graph("ReduceMax", queries, keepdims=0), np.float32(0))
    # Its shape depends on the image, so that only a run shows it.
    dims = graph("Add", graph("Cast", nothing, to=onnx.TensorProto.INT64), np.array([1, 1, 8]))
    token = graph("Reshape", np.zeros((1, 1, 8), np.float32), dims)
    features = graph.cut(graph("Concat", queries, token, axis=1), 0, 24, 1)
    outputs = [exponential(graph, features), graph.linear(features, 8, 3)]
    path = tmp_path / "model.onnx"
    path.write_bytes(graph.model(outputs).SerializeToString())
    with pytest.raises(
        ModelError, match=r"--batch: the nodes of model\.onnx only work for"
    ) as error:
        convert(path, tmp_path / "batch.onnx", batch="dynamic")
    assert error.value.hint == "leave it out, or export the model again with a dynamic batch axis"
    assert not (tmp_path / "batch.onnx").exists()


@pytest.mark.filterwarnings("ignore:neither model finds")
def test_an_axis_for_the_batch_that_outputs_get_is_mentioned(tmp_path):
    export = EXPORTS["SCRFD"]
    graph = Graph(size=export.sizes[0])
    outputs = export.build(graph, export.classes[0])
    path = tmp_path / "model.onnx"
    path.write_bytes(graph.model(list(outputs.values())).SerializeToString())
    with pytest.warns(DetcliWarning, match=r"axis for the batch now: .* is \[1, 768, 1\], and was"):
        convert(path, tmp_path / "named.onnx", metadata={"detcli.conf": "0.4"})


def test_nothing_is_said_where_outputs_keep_their_shape(write_small_query_model):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        converted(write_small_query_model(), metadata={"detcli.conf": "0.4"})
