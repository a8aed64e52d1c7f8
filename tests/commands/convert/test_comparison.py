"""Comparison of the old and the new model: equal ones pass, broken ones do not."""

import colour_model
import convolution_model
import numpy as np
import onnx
import pytest
from conversions import ITEM, conversion
from graph_edits import constant_of
from onnx import numpy_helper
from warned import messages_of

from detcli.commands.convert.comparison import compare_models
from detcli.commands.convert.passes import set_batch, set_image_size
from detcli.commands.convert.run import built_in
from detcli.commands.convert.selection import append_selection
from detcli.core.errors import UsageError
from detcli.data.geometry import Image
from detcli.data.record import Origin
from detcli.model.editing import infer_shapes
from detcli.model.file import ModelFile
from detcli.model.graph import GraphIndex
from detcli.model.recognise import read_graph
from detcli.source.loading import Item

BOXES = 64  # grey cells count, too: their scores are 0.447


@pytest.fixture
def side(tmp_path):
    def write(model, name):
        path = tmp_path / name
        path.write_bytes(model.SerializeToString())
        return ModelFile.read(path)

    return write


@pytest.fixture
def compare_sides(side):
    def run(old, new, item=ITEM, tolerance=None, **options):
        options = conversion(**(options or {"cut": True}), tolerance=tolerance or {})
        return compare_models(side(old, "old.onnx"), side(new, "new.onnx"), options, item)  # type: ignore[arg-type]

    return run


def test_the_same_model_agrees(compare_sides):
    model = colour_model.build()
    difference, failures = compare_sides(model, model)
    assert failures == ()
    assert difference.source == "squares.png"
    assert difference.conf == 0.25
    assert difference.old == 188
    assert difference.new == 188
    assert difference.pairs == 188
    assert difference.missing == 0
    assert difference.extra == 0
    assert difference.over == 0
    assert difference.largest_score == 0
    assert difference.largest_corner == 0
    assert difference.batch is None
    model = colour_model.build("one-to-many")  # gets non-maximum suppression
    difference, failures = compare_sides(model, model)
    assert difference.old == BOXES
    assert failures == ()


def stretched(model):
    """All boxes are half a percent further from the corner of the image."""
    stride = constant_of(model.graph, "stride")
    stride.CopyFrom(numpy_helper.from_array(np.array(8.04, np.float32), "stride"))
    return model


def test_moved_boxes(compare_sides):
    old, new = colour_model.build(), stretched(colour_model.build())
    difference, failures = compare_sides(old, new, tolerance={"corner": 0.5})
    assert failures == ()
    assert difference.largest_corner == pytest.approx(56 * 0.005, abs=0.001)
    difference, failures = compare_sides(old, new)
    assert difference.over > 0
    [failure] = failures
    assert "further apart" in failure


def test_an_appended_selection_is_what_runs(compare_sides):
    """Not the body that detcli would cut out of the graph."""
    old = infer_shapes(colour_model.build())
    new = append_selection(old, read_graph(old, "m").contract, 300)
    difference, failures = compare_sides(old, new, end_to_end=True)
    assert failures == ()
    assert difference.pairs == 188
    concat = GraphIndex(new.graph).producers["detections"]
    concat.input[1] = concat.input[2]  # the class in place of the score
    _, failures = compare_sides(old, new, end_to_end=True)
    assert failures


@pytest.mark.parametrize("options", [{"half": True}, {"metadata": {"author": "me"}}])
def test_the_selection_of_the_old_model_runs_too(compare_sides, options):
    """The output contains it, whatever the conversion."""
    old = colour_model.build("ultralytics")
    _, failures = compare_sides(old, old, **options)
    assert failures == ()
    new = colour_model.build("ultralytics")
    end = GraphIndex(new.graph).producers["detections"]
    end.input[1], end.input[2] = end.input[2], end.input[1]  # class and score
    _, failures = compare_sides(old, new, **options)
    assert failures


def faint(level):
    """An image in which no cell scores above the default confidence."""
    image = Image.whole(np.full((64, 64, 3), level, np.uint8))
    return Item(Origin("faint.png"), lambda: image)


@pytest.mark.parametrize(("level", "conf"), [(26, 0.05), (9, 0.0)])
def test_where_nothing_is_found_fainter_boxes_are_compared(compare_sides, level, conf):
    """Scores of 0.1 and 0.03 show a broken model, too."""
    old, new = colour_model.build(), stretched(colour_model.build())
    difference, failures = compare_sides(old, old, item=faint(level))
    assert difference.conf == conf
    assert (difference.pairs > 0) is True
    assert failures == ()
    _, failures = compare_sides(old, new, item=faint(level))
    assert failures


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite(compare_sides, value):
    """NaN makes no detection, so a model that computes nothing else would agree."""
    old, new = colour_model.build(), colour_model.build()
    stride = constant_of(new.graph, "stride")
    stride.CopyFrom(numpy_helper.from_array(np.array(value, np.float32), "stride"))
    _, failures = compare_sides(old, new, item=faint(0))
    assert any("values of the head are NaN or infinite" in failure for failure in failures)
    _, failures = compare_sides(new, new, item=faint(0))  # the old model has them, too
    assert failures == ()


def test_places_in_a_batch_are_compared(compare_sides):
    old = colour_model.build(batch=None)
    for size, differs in ((None, 0), (3, 0), (1, None)):  # a batch of 1 has no other places
        difference, failures = compare_sides(old, set_batch(old, size), batch=size or "dynamic")
        assert difference.batch == differs
        assert failures == ()


def test_swapped_images_in_a_batch(compare_sides):
    """Reversed rows would not show with one image, or the same image in each place."""
    old = colour_model.build()
    new = set_batch(old, 2)
    new.graph.node[0].output[0] = "plain"
    new.graph.initializer.append(numpy_helper.from_array(np.array([1, 0]), "reversed"))
    new.graph.node.insert(1, onnx.helper.make_node("Gather", ["plain", "reversed"], ["cells"]))
    difference, failures = compare_sides(old, new, batch=2)
    assert difference.batch > 0.1
    assert any("depends on the others" in failure for failure in failures)


def test_what_is_allowed(compare_sides):
    old = colour_model.build(size=None, metadata={"stride": "8"})
    difference, failures = compare_sides(old, set_image_size(old, 96), imgsz=96)
    assert difference.largest_score == 0
    assert difference.largest_corner == 0
    assert failures == ()
    assert difference.score_tolerance == 0.001
    assert difference.corner_tolerance == 0.1
    assert difference.boxes_tolerance == 0
    with pytest.raises(UsageError, match="score is -1"):
        compare_sides(old, old, tolerance={"score": -1})
    model = convolution_model.build()
    difference, _ = compare_sides(model, model, int8=True, tolerance={"boxes": 0.5})
    assert difference.score_tolerance == 0.25
    assert difference.corner_tolerance == 20
    assert difference.boxes_tolerance == 0.5


def test_other_names_do_not_warn(compare_sides, recwarn):
    old = colour_model.build(metadata={"names": "['a', 'b', 'c']"})
    new = colour_model.build(metadata={"names": "['x', 'y', 'z']"})
    _, failures = compare_sides(old, new, metadata={"names": ""}, item=built_in())
    assert failures == ()
    assert messages_of(recwarn) == []
