"""Batches on a device, as the pipeline starts them."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from colour_model import image

from detcli import Settings
from detcli.core.errors import UsageError
from detcli.data.geometry import Image
from detcli.model.contract import Layout, MultiLabel
from detcli.model.families import FAMILIES
from detcli.model.prepared import prepare
from detcli.run.batches import BatchDetector


def edges_of(results):
    """The edges of the boxes of each image."""
    return [detections.xyxy.tolist() for detections in results]


def test_an_observer_is_called_for_each_stage_until_removed(make_model):
    stages = []
    images = [
        Image.whole(image(("red", 2, 3))),
        Image.whole(image(("blue", 0, 1))),
    ]
    settings = Settings(conf=0.6)
    with BatchDetector(make_model(batch=None), device="cpu", settings=settings) as detector:
        expected = edges_of(detector.submit(images)())
        detector.observe(stages.append)
        observed = edges_of(detector.submit(images)())
        assert observed == expected
        assert stages == ["remainder", "preprocess", "network", "selection", "remainder"]
        detector.observe(None)
        detector.submit(images)()
        assert len(stages) == 5
        detector.observe(stages.append)
        with detector.clone() as clone:
            clone.submit(images)()
        assert len(stages) == 5  # a clone has no observer


def test_a_class_has_one_confidence_by_whatever_name(make_model):
    model = make_model()
    for class_conf in ((("red", 0.3), ("0", 0.4)), ((0, 0.3), ("red", 0.4))):
        with pytest.raises(UsageError, match=r"has two numbers for red: 0\.3 and 0\.4"):
            BatchDetector(model, device="cpu", settings=Settings(class_conf=class_conf))


def test_a_confidence_replaces_the_one_that_the_model_recommends(make_model):
    metadata = {"names": "['red', 'green', 'blue']", "detcli.conf": "0.6,red=0.3"}
    settings = Settings(class_conf=(("red", 0.4),))
    with BatchDetector(make_model(metadata=metadata), device="cpu", settings=settings) as detector:
        assert detector.class_conf == {0: 0.4}


@pytest.mark.parametrize(
    ("settings", "contract", "unique"),
    [
        ({}, {}, False),
        ({"unique": True}, {}, True),
        ({}, {"multi_label": MultiLabel.NEVER}, True),
        ({"nms": 0.5}, {}, True),
        ({}, {"nms": 0.5}, True),
        ({"nms": "none"}, {"nms": 0.5}, False),
        ({}, {"nms": 0.5, "multi_label": MultiLabel.ALWAYS}, False),
        ({"unique": True}, {"nms": 0.5, "multi_label": MultiLabel.ALWAYS}, True),
        ({"nms": 0.5}, {"layout": Layout.ROWS}, False),
    ],
)
def test_whether_an_anchor_gives_one_detection_at_most(
    make_model, monkeypatch, random, settings, contract, unique
):
    """What is said is what happens: on cells of several colours, or whatever rows there are."""

    def prepared(*arguments, **options):
        model = prepare(*arguments, **options)
        return replace(model, contract=replace(model.contract, **contract))

    monkeypatch.setattr("detcli.run.model_settings.prepare", prepared)
    image = random.integers(0, 256, (64, 64, 3), np.uint8)
    with BatchDetector(make_model(), "cpu", Settings(conf=0.1, **settings)) as detector:
        assert detector.unique is unique
        if "layout" in contract:
            return
        (detections,) = detector.submit([Image.whole(image)])()
    anchors = np.unique(detections.xyxy, axis=0)
    assert (len(anchors) == len(detections)) is unique


def test_the_families_are_named_in_which_each_class_takes_part():
    page = Path(__file__).parents[2] / "docs/models.md"
    text = " ".join(page.read_text("utf-8").split())
    (documented,) = re.findall(r"is true then; in (.*?), each of its classes takes part", text)
    expected = set()
    for family in FAMILIES:
        if family.multi_label is MultiLabel.ALWAYS:
            family_name, _, _ = family.name.partition(",")
            expected.add(family_name)
    assert set(re.split(", | and ", documented)) == expected
