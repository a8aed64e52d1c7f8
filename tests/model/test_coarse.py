"""Scores that a graph rounds to nothing: they are taken before that."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from anchor_graphs import distances, scores
from graph_builder import Graph
from graph_edits import add_constants, rename_outputs
from head_checks import IMAGE, file_of
from onnx import ModelProto, helper

from detcli.model.file import ModelFile
from detcli.model.prepared import prepare

CLASSES = 3


def rounded(graph, tensor, step, **attributes):
    """A tensor as QuantizeLinear and DequantizeLinear leave it."""
    step = np.asarray(step, np.float32)
    zero = np.zeros(step.shape, np.uint8)
    return graph("DequantizeLinear", _quantised(graph, tensor, step, zero, attributes), step, zero,
                 **attributes)  # fmt: skip


def _quantised(graph, tensor, step, zero, attributes):
    return graph("QuantizeLinear", tensor, step, zero, **attributes)


def build(*, before=None, joined=None, transposed=False, behind=None, **attributes):
    """YOLOv8's head, rounded in these steps: before the sigmoid, where it is joined, and behind."""
    graph = Graph()
    if before is None:
        final = scores(graph, CLASSES)
    else:
        final = graph("Sigmoid", rounded(graph, graph.maps(CLASSES), before))
    head = graph("Concat", distances(graph, centres=True), final, axis=1)
    if joined is not None:
        head = rounded(graph, head, joined, **attributes)
    if transposed:
        head = graph.swapped(head)
    if behind is not None:
        head = rounded(graph, head, behind)
    return graph.model([head])


def outputs(model):
    model = model if isinstance(model, bytes) else model.SerializeToString()
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    return session.run(None, {"images": IMAGE})[0]


@pytest.mark.slow
@pytest.mark.parametrize("step", [0.4, 2.52, 5.0])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("behind", [None, 2.52])
def test_scores_are_taken_before_what_rounds_them_to_nothing(step, transposed, behind):
    file = file_of(build(joined=step, transposed=transposed, behind=behind))
    contract = file.detector()
    np.testing.assert_array_equal(outputs(file.body()), outputs(build(transposed=transposed)))
    (warning,) = contract.warnings
    assert "its scores end in a QuantizeLinear with steps of" in warning
    assert contract.family == "YOLO"


@pytest.mark.parametrize(
    "rounding",
    [
        {"joined": 1 / 255},
        {"joined": 0.02},
        {"before": 0.3},
        # steps of their own for boxes and scores
        {"joined": [2.5, 2.5, 2.5, 2.5, 0.004, 0.004, 0.004], "axis": 1},
    ],
)
def test_fine_steps_stay_as_they_are(rounding):
    model = build(**rounding)
    file = file_of(model)
    assert file.detector().warnings == ()
    assert file.roundings == ()
    np.testing.assert_array_equal(outputs(file.body()), outputs(model))


def test_steps_of_boxes_alone_are_left():
    graph = Graph()
    boxes = rounded(graph, distances(graph, centres=True), 2.5)
    head = graph("Concat", boxes, scores(graph, CLASSES), axis=1)
    model = graph.model([head])
    file = file_of(model)
    assert file.detector().warnings == ()
    np.testing.assert_array_equal(outputs(file.body()), outputs(model))


def test_scores_apart_are_taken_before_it_too():
    graph = Graph()
    boxes = graph.swapped(distances(graph, centres=False))
    final = graph.swapped(rounded(graph, scores(graph, CLASSES), 2.5))
    file = file_of(graph.model([boxes, final]))
    assert len(file.detector().warnings) == 1
    assert len(file.roundings) == 1


def test_what_is_prepared_is_mended_cold_and_warm(tmp_path):
    path = tmp_path / "coarse.onnx"
    onnx.save(build(joined=2.5), path)
    expected = outputs(build())
    for _ in ("cold", "warm"):
        prepared = prepare(path)
        np.testing.assert_array_equal(outputs(prepared.graph), expected)
        assert len(prepared.contract.warnings) == 1


@pytest.fixture
def coarse(make_model):
    """The model that finds colours, its output rounded in steps of 2.5; and the file as it was."""
    path = make_model()
    model = ModelProto.FromString(path.read_bytes())
    (output,) = model.graph.output
    rename_outputs(model.graph.node, output.name, "joined")
    constants = {"coarse_step": np.float32(2.5), "coarse_zero": np.uint8(0)}
    add_constants(model.graph, constants)
    quantise = helper.make_node(
        "QuantizeLinear", ["joined", "coarse_step", "coarse_zero"], ["integers"]
    )
    give_back = helper.make_node(
        "DequantizeLinear", ["integers", "coarse_step", "coarse_zero"], [output.name]
    )
    model.graph.node.extend([quantise, give_back])
    onnx.save(model, path.with_name("coarse.onnx"))
    return path.with_name("coarse.onnx"), path


def test_a_run_finds_what_the_file_as_it_was_finds(coarse, detcli, make_image):
    model, plain = coarse
    image = make_image("a.png", ("red", 2, 3), ("blue", 5, 5))
    mended = detcli("predict", image, "-m", model, "--conf", 0.6, "--format", "csv")
    before = detcli("predict", image, "-m", plain, "--conf", 0.6, "--format", "csv")
    assert mended.stdout.replace("coarse", "colours") == before.stdout
    assert mended.stdout.count("\n") == 3
    assert "warning: coarse: its scores end in a QuantizeLinear with steps of 2.5" in mended.stderr


def test_inspect_warns(coarse, detcli):
    process = detcli("inspect", coarse[0], "--format", "json")
    assert '"code": "coarse-scores"' in process.stdout
    process = detcli("inspect", coarse[1], "--format", "json")
    assert "coarse-scores" not in process.stdout


def test_a_copy_by_convert_is_mended_for_good(coarse, detcli, make_image):
    model, _ = coarse
    copy = model.with_name("copy.onnx")
    process = detcli("convert", model, "-o", copy, "--metadata", "detcli.conf=0.6")
    assert ModelFile.read(copy).detector().warnings == ()
    image = make_image("a.png", ("red", 2, 3))
    process = detcli("predict", image, "-m", copy, "--format", "csv")
    assert process.stdout.count("\n") == 2


def test_the_quantised_plates_of_others_are_found(shared, detcli):
    model = shared("real/lpr-quant-antoxa.onnx")
    image = shared("real/pictures/lpr-test-a.png")
    process = detcli("predict", image, "-m", model, "--device", "cpu", "--format", "csv")
    assert ",0.8945" in process.stdout


def moved_between(graph, name, steps=(2.5, 2.5)):
    """YOLOv8's head in steps of 2.5, moved as integers before it is made numbers again."""
    zero = np.uint8(0)
    sizes = np.float32(steps[0]), np.float32(steps[1])
    final = scores(graph, CLASSES)  # first, as in `build`: weights are drawn in this order
    boxes = distances(graph, centres=True)
    if name == "Concat":
        quantised_boxes = _quantised(graph, boxes, sizes[0], zero, {})
        quantised_scores = _quantised(graph, final, sizes[0], zero, {})
        integers = graph("Concat", quantised_boxes, quantised_scores, axis=1)
    else:
        joined = graph("Concat", boxes, final, axis=1)
        integers = _quantised(graph, joined, sizes[0], zero, {})
        if name == "Reshape":
            integers = graph("Reshape", integers, np.array([1, 4 + CLASSES, -1]))
        elif name == "Transpose":
            integers = graph.swapped(integers)
        else:
            integers = graph(name, integers)
    return graph.model([graph("DequantizeLinear", integers, sizes[1], zero)])


@pytest.mark.parametrize("name", ["Concat", "Identity", "Reshape", "Transpose"])
def test_integers_may_be_moved_before_they_are_made_numbers_again(name):
    file = file_of(moved_between(Graph(), name))
    (warning,) = file.detector().warnings
    assert "steps of 2.5" in warning
    expected = outputs(build(transposed=name == "Transpose"))
    np.testing.assert_array_equal(outputs(file.body()), expected)


def test_other_steps_behind_than_before_are_no_rounding():
    """Then the numbers are scaled, too, and what is before them is something else."""
    file = file_of(moved_between(Graph(), "Transpose", steps=(0.01, 2.5)))
    assert not file.roundings
