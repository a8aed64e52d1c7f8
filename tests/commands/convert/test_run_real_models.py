"""Conversions of real YOLOv10-N exports, compared on a real photograph."""

import itertools

import pytest
from conversions import converted as convert
from thinning import only_whole, thin

from detcli.commands.convert.run import load_images
from detcli.data.record import Origin
from detcli.run.detector import Detector
from detcli.source.loading import Item
from detcli.source.reading import load_file
from detcli.source.sources import Sources

pytestmark = pytest.mark.slow

CUT = {"cut": True}
END_TO_END = {"end_to_end": True, "max_det": 100}
CONVERSIONS = [
    ("thu", CUT),
    ("ultralytics-dynamic", CUT),
    ("ultralytics-dynamic", END_TO_END),
    ("raw", END_TO_END),
]
HALVES = [("ultralytics-dynamic", True), ("thu", False)]
"""Exports, and whether their inputs and outputs stay in float32."""


@pytest.fixture
def converted(shared, tmp_path):
    def run(export, images=None, **options):
        bus = shared("data/images/bus.jpg")
        model = shared(f"models/yolov10n-{export}.onnx")
        item = Item(Origin("bus.jpg"), lambda: load_file(bus))
        return convert(model, tmp_path / "out.onnx", item, images, **options, force=True)

    return run


@pytest.mark.parametrize(
    ("export", "options"), thin("conversions that change nothing", CONVERSIONS, 1)
)
def test_conversions_that_change_nothing(converted, export, options):
    report = converted(export, **options)
    assert report.written
    difference = report.difference
    assert difference.old == 5
    assert difference.new == 5
    assert difference.pairs == 5
    assert difference.largest_score <= 1e-5
    assert difference.largest_corner <= 0.01


@pytest.mark.parametrize(("export", "keep_io"), thin("conversions to half precision", HALVES, 1))
def test_half(converted, export, keep_io):
    """Half the size; with inputs and outputs in float32, boxes within a tenth of a pixel."""
    report = converted(export, half=True, keep_io=keep_io)
    assert report.written
    assert report.output.bytes < 0.56 * report.model.bytes
    assert report.difference.pairs == 5
    assert report.difference.largest_score < 0.005
    assert report.difference.largest_corner < (0.1 if keep_io else 0.5)


@only_whole
def test_int8(converted, shared, tmp_path):
    """A few images are enough to keep the obvious objects."""
    with Sources([str(shared("data/coco128/images"))]) as sources:
        few = list(load_images(itertools.islice(sources, 4), lambda: None))
    report = converted("raw", lambda: few, int8=True)
    assert report.written
    assert report.output.bytes < 0.45 * report.model.bytes
    assert report.steps[0].finding == "71 of 83 convolutions, calibrated on 4 images"
    with Detector(tmp_path / "out.onnx", device="cpu") as detector:
        detections = detector(load_file(shared("data/images/bus.jpg")).pixels)
    assert detections.class_name[:4].tolist() == ["bus", "person", "person", "person"]
