import numpy as np
import onnx
import pytest
from colour_model import cell_box, image
from graph_edits import producer_of

from detcli.compare.sides import DetectorSide, GraphSide, max_detections_of_graph
from detcli.config.config import Settings
from detcli.core.errors import DetcliWarning, ModelError
from detcli.data.geometry import Image
from detcli.model.file import ModelFile
from detcli.run.batches import BatchDetector

RED = Image.whole(image(("red", 1, 1), ("blue", 6, 3)))
GREY = Image.whole(image())
STRICT = Settings(conf=0.9)


def graph_side(path, settings):
    return GraphSide(ModelFile.read(path), settings)


def summary(detections):
    """The class, the score and the box of each detection."""
    return [(class_name, score, box.tolist()) for box, score, _, class_name in detections]


EXPECTED = [("red", 1.0, cell_box(1, 1)), ("blue", 1.0, cell_box(6, 3))]


@pytest.mark.parametrize("tail", ["ultralytics", "authors"])
@pytest.mark.parametrize("batch", [1, 2, None])
def test_a_graphs_own_selection(make_model, tail, batch):
    side = graph_side(make_model(tail=tail, batch=batch), STRICT)
    red, grey = side.detect([RED, GREY])
    assert sorted(summary(red)) == sorted(EXPECTED)
    assert len(grey) == 0


def test_its_rows_come_back_into_the_image(make_model):
    large = Image.whole(np.kron(RED.pixels, np.ones((4, 2, 1), np.uint8)))  # 256 x 128
    (of_graph,) = graph_side(make_model(tail="authors"), Settings(conf=0.6)).detect([large])
    with BatchDetector(make_model(tail="authors"), "cpu", Settings(conf=0.6)) as detector:
        (of_detector,) = DetectorSide(detector).detect([large])
    assert len(of_detector)
    assert summary(of_graph) == summary(of_detector)


def test_float16_rows(make_model):
    side = graph_side(make_model(tail="authors", dtype=np.float16), STRICT)
    (detections,) = side.detect([RED])
    assert detections.score.dtype == np.float32
    assert sorted(summary(detections)) == sorted(EXPECTED)


def test_any_number_of_images_with_our_own_selection(make_model):
    with BatchDetector(make_model(batch=2), "cpu", STRICT) as detector:
        side = DetectorSide(detector)
        assert side.chunk == 2
        results = side.detect([RED, GREY, RED])
    assert [len(detections) for detections in results] == [2, 0, 2]


def test_rows_of_unknown_classes(make_model, tmp_path):
    """A tail that divides where it should take the rest makes such classes."""
    model = onnx.load(make_model(tail="authors"))
    producer_of(model.graph, "class_float").input[0] = "second_index"
    (tmp_path / "broken.onnx").write_bytes(model.SerializeToString())
    side = graph_side(tmp_path / "broken.onnx", STRICT)
    with pytest.warns(DetcliWarning, match="1 rows have an unknown class id, such as"):
        (detections,) = side.detect([RED])
    assert len(detections) == 1


def test_a_tail_that_ends_in_something_else(make_model, tmp_path):
    model = onnx.load(make_model(tail="authors"))
    producer_of(model.graph, "detections").input.pop()
    (tmp_path / "five.onnx").write_bytes(model.SerializeToString())
    model.graph.output[0].type.tensor_type.shape.dim[2].dim_value = 5
    (tmp_path / "five.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="does not end in rows of boxes, scores and class ids"):
        graph_side(tmp_path / "five.onnx", STRICT).detect([RED])


def test_how_many_rows_there_are(make_model):
    assert max_detections_of_graph(ModelFile.read(make_model(tail="authors", keep=9))) == 9
