"""Detectors whose images are prepared in other ways than a YOLO's."""

import colour_model
import numpy as np
import onnx
import pytest
from colour_model import cell_box, image
from graph_edits import redirect_readers
from onnx import helper, numpy_helper

from detcli import Detector, Settings
from detcli.core.errors import ModelError, UsageError

NAMES = {"names": str(dict(enumerate(colour_model.NAMES))), "stride": "8"}
WIDE = image(("red", 2, 3), size=(64, 128))


def detected(model, image, preprocess=None, conf=0.6):
    with Detector(model, "cpu", settings=Settings(conf=conf, preprocess=preprocess)) as detector:
        return detector(image)


def with_node(model, operator, constant, attributes=None):
    """A model that does something with its input first."""
    graph = model.graph
    redirect_readers(graph.node, "images", "prepared")
    graph.initializer.append(numpy_helper.from_array(constant, "prepares"))
    node = helper.make_node(operator, ["images", "prepares"], ["prepared"], **(attributes or {}))
    graph.node.insert(0, node)
    return model


@pytest.fixture
def save_model(tmp_path):
    def write(model, name="model.onnx"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        onnx.save(model, path)
        return path

    return write


def test_an_image_that_is_stretched_in_the_corner_or_blue_first(make_model):
    stretched = detected(make_model(), WIDE, "stretch")
    assert stretched.class_name.tolist() == ["red"]  # in half a cell of the canvas, half red
    np.testing.assert_allclose(stretched.xyxy, [[16, 24, 32, 32]], atol=1e-4)
    assert detected(make_model(), image(("red", 2, 3)), "bgr").class_name.tolist() == ["blue"]
    pixels = np.full((32, 64, 3), 114, np.uint8)
    pixels[8:16, 16:24] = (0, 0, 255)
    for resize in ("letterbox", "corner"):
        assert detected(make_model(), pixels, resize).xyxy.tolist() == [cell_box(2, 1)]
    white = detected(make_model(), pixels[:28], "corner,pad=255")
    assert set(white.xyxy[:, 3]) == {16.0, 28.0}  # cells that are half padding end with the image


def test_an_input_that_follows_the_image(make_model):
    model = make_model(size=None, batch=None, metadata=NAMES)
    assert detected(model, WIDE, "none").xyxy.tolist() == [cell_box(2, 3)]
    small = np.repeat(np.repeat(WIDE, 2, axis=0), 2, axis=1)
    halved = detected(model, small, "shortest-edge=64:128")
    assert halved.xyxy.tolist() == [[32.0, 48.0, 48.0, 64.0]]
    with Detector(model, "cpu", settings=Settings(conf=0.6, preprocess="none")) as detector:
        of_wide, of_square = detector([WIDE, image(("blue", 1, 1))])
    assert of_wide.class_name.tolist() == ["red"]
    assert of_square.class_name.tolist() == ["blue"]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"preprocess": "shortest-edge=64:128", "imgsz": 64}, "follows the size of each image"),
        ({"preprocess": "stretch", "rect": True}, "rect=True: images are fitted by stretch"),
        ({"preprocess": "none", "rect": True}, "rect=True: images are fitted by none"),
        ({"preprocess": "strech"}, "'strech' is unknown"),
    ],
)
def test_what_does_not_go_together(make_model, settings, problem):
    with pytest.raises(UsageError, match=problem):
        Detector(make_model(size=None), "cpu", settings=Settings(**settings))
    with pytest.raises(UsageError, match="this graph takes 64x64 images only"):
        Detector(make_model(), "cpu", settings=Settings(preprocess="none"))


def test_values_that_nothing_settles_are_asked_for(save_model):
    model = save_model(with_node(colour_model.build(metadata=NAMES), "Div", np.float32(2)))
    with pytest.raises(ModelError, match=r"how images are prepared .* unknown: values") as caught:
        detected(model, image())
    assert "pass preprocess, for example" in caught.value.hint
    scale = 2 / 255
    assert detected(model, image(("red", 2, 3)), f"scale={scale}").class_name.tolist() == ["red"]
