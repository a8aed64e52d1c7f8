"""What an experiment shows of models whose truth is known: that, or nothing."""

import pytest

from detcli.commands.inspect.consistency import SelfConsistency
from detcli.commands.inspect.trial import Trial
from detcli.model.zoo import find
from detcli.settings import Settings
from detcli.source.sources import Sources


@pytest.fixture
def run(shared):
    """Try parts of a model on some pictures of COCO."""
    pictures = sorted(shared("data/coco128/images").glob("*.jpg"))[3::24]

    def run(name, *parts, imgsz=None):
        with Sources([str(picture) for picture in pictures]) as sources:
            evidence = SelfConsistency.of(sources)
        model = find(str(shared(name)))
        return Trial.plan(model, "cpu", Settings(imgsz=imgsz), parts).run(evidence).parts

    return run


def test_yolov10(run):
    (values,) = run("models/yolov10n-raw-dynamic.onnx", "values", imgsz=320)
    assert values.best == "0 to 1"
    assert values.confirms is not False


def test_random_weights_show_nothing(run):
    """Those of this one are sure of a hundred boxes in every picture."""
    (channels,) = run("families/ortnms-yolov8-c80.onnx", "channels")
    assert channels.found is None
