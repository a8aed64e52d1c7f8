"""Detections collected beside labels."""

import numpy as np
import pytest
from comparisons import labelled

from detcli.commands.eval.classes import ClassMapping
from detcli.commands.eval.findings import Findings
from detcli.commands.eval.labels import Category, Dataset, Sample
from detcli.commands.eval.run import Evaluation
from detcli.core.errors import DecodeError
from detcli.data.detections import Detections
from detcli.data.geometry import Image
from detcli.data.record import Origin, Record

IMAGE = Image.whole(np.zeros((40, 60, 3), np.uint8))


def collector(objects, size, *, form="coco"):
    """With one image, and the model's classes 0 and 2 as its categories."""
    categories = (Category(1, "a"), Category(2, "b"))
    sample = Sample("a.png", None, 5, size, labelled(objects))
    dataset = Dataset(form, None, categories, named=True, samples=[sample])
    collector = Evaluation(None, dataset, ClassMapping("name", (0, None, 1)), Findings())
    collector.samples, collector.failed = (sample,), []
    return collector


def collect(objects, rows=(), *, size=(40, 60), form="coco"):
    """Add one image of 60x40 pixels; `rows` of detections are (box, score, class id)."""
    collected = collector(objects, size, form=form)
    boxes = np.array([box for box, _, _ in rows], np.float32).reshape(-1, 4)
    scores = np.array([score for _, score, _ in rows], np.float32)
    class_ids = np.array([class_id for _, _, class_id in rows], np.int64)
    detections = Detections(boxes, scores, class_ids, ("x", "y", "z"))
    collected.collect(Record(Origin("a.png"), 0, "m", "cpu", picture=IMAGE, detections=detections))
    return collected.images[0], {finding.kind: finding for finding in collected.findings.report()}


@pytest.mark.parametrize(
    ("label", "kinds"),
    [
        (((0, 0, 60, 40), 0, {}), set()),
        (((-0.9, -0.9, 61.8, 41.8), 0, {}), set()),  # rounding
        (((-1.1, 0, 5, 5), 0, {}), {"box outside the picture"}),
        (((0, -1.1, 5, 5), 0, {}), {"box outside the picture"}),
        (((57, 0, 4.1, 5), 0, {}), {"box outside the picture"}),
        (((0, 37, 5, 4.1), 0, {}), {"box outside the picture"}),
        (((5, 5, 0, 5), 0, {}), {"box without area"}),
        (((5, 5, 5, -2), 0, {}), {"box without area"}),
        (((0, 0, 5, 5), 0, {"crowd": True, "ignored": True}), {"crowd"}),
        (((0, 0, 5, 5), 0, {"ignored": True}), {"box to be ignored"}),
    ],
)
def test_odd_labels_are_reported_and_kept(label, kinds):
    collected, findings = collect([label], size=(60, 40))
    assert findings.pop("picture of another size than the data says").examples == (
        "a.png: 60x40, not 40x60",
    )
    assert set(findings) == kinds
    assert collected.objects["box"].tolist() == [pytest.approx(label[0])]


def test_boxes_in_fractions_are_measured_in_the_decoded_image():
    collected, findings = collect([((0.5, 0.5, 0.5, 0.6), 0, {})], size=None, form="yolo")
    assert collected.objects["box"].tolist() == [[30, 20, 30, 24]]
    assert findings["box outside the picture"].examples == ("a.png: [30.0, 20.0, 30.0, 24.0]",)


def test_detections_of_classes_that_the_data_does_not_have_are_left_out():
    collected, _ = collect(
        [((0, 0, 5, 5), 0, {})],
        [((1, 2, 4, 8), 0.9, 0), ((0, 0, 5, 5), 0.8, 1), ((0, 0, 5, 5), 0.7, 2)],
    )
    assert collected.detections["box"].tolist() == [[1, 2, 3, 6], [0, 0, 5, 5]]
    assert collected.detections["category"].tolist() == [0, 1]
    assert collected.image_id == 5


def test_more_than_a_hundred_of_a_class_are_reported():
    hundred = [((0, 0, 5, 5), 0.5, 0)] * 100
    assert collect([], hundred + [((0, 0, 5, 5), 0.5, 2)])[1] == {}
    _, findings = collect([], hundred + [((0, 0, 5, 5), 0.5, 0)])
    (cut,) = findings.values()
    assert cut.examples == ("a.png: 101",)


def test_an_image_that_failed_is_left_out():
    collected = collector([], None)
    collected.collect(Record(Origin("a.png"), 0, "m", "cpu", error=DecodeError("torn")))
    assert collected.images == []
    (failure,) = collected.failed
    assert failure.source == "a.png"
    assert failure.error == "torn"
    (finding,) = collected.findings.report()
    assert finding.kind == "unreadable picture"
