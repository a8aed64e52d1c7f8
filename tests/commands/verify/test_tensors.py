import numpy as np
import onnx
import pytest
from colour_model import image
from damaged_graphs import scaled_and_back
from graph_edits import names_of, producer_of
from verify_requests import probe

from detcli.commands.verify.tensors import OutputComparison, compare_tensors, difference_rank
from detcli.core.errors import DetcliWarning, ModelError
from detcli.data.geometry import Image

LIMIT = 0.01
nan, inf = np.nan, np.inf


def compare(left, right, dtype=np.float32, limit=LIMIT, source="a.jpg"):
    return compare_tensors("t", np.array(left, dtype), np.array(right, dtype), limit, source)


@pytest.mark.parametrize(
    ("left", "right", "agrees", "figures"),
    [
        ([4, 1, 0], [4, 2, 0], False, (1, 0.5, 0.25, 18 / np.sqrt(17 * 20))),
        ([1, -2], [1, -2], True, (0, 0, 0, 1)),
        ([100, 1], [100, 2], True, (1, 0.5, 0.01, 10002 / np.sqrt(10001 * 10004))),  # the limit
        ([100, 1], [100, 2.01], False, None),
        ([[1, 2]], [[1], [2]], False, (None,) * 4),
        ([nan, inf, 3], [nan, inf, 3], True, (0, 0, 0, 1)),
        ([nan, 3], [3, 3], False, (0, 0, 0, 1)),
        ([inf, 3], [-inf, 3], False, (0, 0, 0, 1)),
        ([65504, 3], [inf, 3], False, None),
        ([nan], [nan], True, (None,) * 4),
        ([nan], [inf], False, (None,) * 4),
        ([], [], True, (None,) * 4),
        ([0, 0], [0, 0], True, (0, 0, 0, 1)),
        ([0, 0], [0, 0.5], False, (0.5, 1, 1, 0)),
    ],
)
def test_the_figures(left, right, agrees, figures):
    report = compare(left, right)
    assert report.agrees == agrees
    reported = report.max_absolute, report.max_relative, report.max_scaled, report.cosine
    assert figures is None or reported == pytest.approx(figures)
    assert report.left.shape == np.shape(left)
    assert report.right.shape == np.shape(right)


def test_the_sides():
    side = compare([nan, inf, -inf, 3, 0], [1, 1, 1, 1, 1]).left
    assert side.nan == 1
    assert side.infinite == 2
    assert side.least == 0
    assert side.greatest == 3


def test_squares_of_large_numbers_would_overflow():
    assert compare([1e300, 1e300], [1e300, 1e300], np.float64).cosine == pytest.approx(1)


@pytest.mark.parametrize("dtype", [np.int64, np.bool_, np.uint8, np.float16])
def test_other_types(dtype):
    report = compare([1, 0], [0, 0], dtype)
    assert report.max_absolute == 1
    assert report.left.dtype == np.dtype(dtype).name


def test_worse_is_disagreement_then_the_larger_difference():
    near = compare([1, 1], [1, 1.005])
    nearer = compare([1, 1], [1, 1.001])
    off = compare([1, 1], [1, 3])
    shapes = compare([1], [1, 1])
    worst_last = [compare([], []), nearer, near, off, shapes]
    for reports in (worst_last, worst_last[::-1]):
        assert sorted(reports, key=difference_rank) == worst_last


GREY = Image.whole(image())
RED = Image.whole(image(("red", 1, 1)))


def compared(left, right, *, whole_network=False, limit=0.001):
    left_probe = probe(left, at_head=not whole_network)
    right_probe = probe(right, at_head=not whole_network)
    return OutputComparison(left_probe, right_probe, limit)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_any_tensor_of_a_network(make_model, dtype):
    network = probe(make_model(dtype=dtype, batch=3))
    tensors = network.fetch(RED, ["cells", "head", "cells"])
    assert tensors["head"].dtype == dtype
    assert tensors["head"].shape == (3, 7, 64)
    np.testing.assert_array_equal(tensors["cells"][0, :, 1, 1], [1, 0, 0])
    assert list(network.fetch(RED, ["scores"])) == ["scores"]
    assert network.has_float16 == (dtype is np.float16)


@pytest.mark.parametrize(
    ("tail", "parts"),
    [
        ("transposed", ["scores", "boxes"]),  # the other axis order
        ("ultralytics", ["scores", "boxes"]),  # cut at its head
        ("one-to-many", ["scores"]),  # whose boxes have another format
    ],
)
def test_heads(make_model, tail, parts):
    outputs = compared(make_model(), make_model("b.onnx", tail=tail))
    assert "first_index" not in outputs.right.index.producers
    outputs.add(RED, "red")
    assert names_of(outputs.reports) == parts
    scores = outputs.reports[0]
    assert scores.max_absolute == 0
    assert scores.agrees is True
    assert scores.left.shape == scores.right.shape == (1, 3, 64)


def test_the_worst_image_is_kept(make_model, tmp_path):
    path = make_model()
    model = scaled_and_back(onnx.load(path), "scores", 1)
    producer_of(model.graph, "scaled").op_type = "Min"  # scores are never above 0.5
    model.graph.initializer[-2].CopyFrom(onnx.numpy_helper.from_array(np.float32(0.5), "factor"))  # type: ignore[arg-type]
    (tmp_path / "b.onnx").write_bytes(model.SerializeToString())
    outputs = compared(path, tmp_path / "b.onnx")
    assert outputs.worst is None
    for pixels, name in ((GREY, "grey"), (RED, "red"), (GREY, "grey 2")):
        outputs.add(pixels, name)
    scores, boxes = outputs.reports
    assert scores.max_absolute == 0.5
    assert scores.source == "red"
    assert scores.agrees is False
    assert boxes.max_absolute == 0
    assert boxes.source == "grey"
    assert boxes.agrees is True
    assert outputs.worst == (scores, RED, ("head", "head"))


def with_outputs(path, *names):
    model = onnx.load(path)
    del model.graph.output[:]
    for name in names:
        model.graph.output.append(onnx.ValueInfoProto(name=name))
    path.write_bytes(model.SerializeToString())
    return path


def test_other_outputs_are_paired_by_name_else_by_order(make_model):
    first = with_outputs(make_model(), "cells", "scores", "anchors")
    second = with_outputs(make_model("b.onnx"), "scores", "cells")
    third = with_outputs(make_model("c.onnx"), "low", "high")
    with pytest.warns(DetcliWarning, match="only one model has are not compared: anchors"):
        outputs = compared(first, second, whole_network=True)
    outputs.add(RED, "red")
    assert names_of(outputs.reports) == ["cells", "scores"]
    outputs = compared(second, third, whole_network=True)
    outputs.add(RED, "red")
    assert names_of(outputs.reports) == ["scores and low", "cells and high"]
    with pytest.raises(ModelError, match="cannot be paired"):
        compared(first, third, whole_network=True)


def test_outputs_that_are_not_tensors(tmp_path):
    text = """<ir_version: 8, opset_import: ["": 17]>
        g (float[1, 3, 8, 8] images) => (seq(float[1, 3, 8, 8]) y) {
            y = SequenceConstruct (images)
        }"""
    path = tmp_path / "a.onnx"
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    network = probe(path, size=(8, 8))
    with pytest.raises(ModelError, match="are not tensors"):
        OutputComparison(network, network, 0.001).add(RED, "red")
