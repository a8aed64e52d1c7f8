"""What is told about the labels of a picture, and how detections reach the evaluator."""

import numpy as np
import pytest

from detcli.commands.eval.classes import ClassMapping, MappedBy
from detcli.commands.eval.comparison import Comparison
from detcli.commands.eval.dataset import Category, Dataset, Form, Sample
from detcli.commands.eval.findings import Findings
from detcli.commands.eval.objects import Object, Objects
from detcli.detections import Detections
from detcli.errors import DecodeError
from detcli.geometry import Picture
from detcli.record import Origin, Record

PICTURE = Picture.whole(np.zeros((40, 60, 3), np.uint8))


def compare(objects, found=(), *, size=(40, 60), relative=False, category_of=(0, None, 1)):
    """Add one picture of 60x40 pixels; `found` are (box, score, class id)."""
    categories = (Category(1, "a"), Category(2, "b"))
    sample = Sample("a.png", None, 5, size, Objects.of(objects))
    findings = Findings()
    dataset = Dataset(Form.COCO, None, categories, named=True, samples=[sample], relative=relative)
    comparison = Comparison(dataset, ClassMapping(MappedBy.NAME, category_of), findings)
    comparison.samples = (sample,)
    boxes = np.array([box for box, *_ in found], np.float32).reshape(-1, 4)
    scores = np.array([score for _, score, _ in found], np.float32)
    class_ids = np.array([class_id for *_, class_id in found], np.int64)
    detections = Detections(boxes, scores, class_ids, ("x", "y", "z"))
    comparison.add(Record(Origin("a.png"), 0, "m", "cpu", PICTURE, detections))
    return comparison.compared[0], {one.kind: one for one in findings.report()}


@pytest.mark.parametrize(
    ("box", "kinds"),
    [
        ((0, 0, 60, 40), set()),
        ((-0.9, -0.9, 61.8, 41.8), set()),  # rounding
        ((-1.1, 0, 5, 5), {"box outside the picture"}),
        ((0, -1.1, 5, 5), {"box outside the picture"}),
        ((57, 0, 4.1, 5), {"box outside the picture"}),
        ((0, 37, 5, 4.1), {"box outside the picture"}),
        ((200, 200, 5, 5), {"box outside the picture"}),
        ((5, 5, 0, 5), {"box without area"}),
        ((5, 5, 5, -2), {"box without area"}),
    ],
)
def test_odd_boxes_are_told_and_kept(box, kinds):
    compared, found = compare([Object(box, 0)])
    assert set(found) == kinds
    assert compared.objects.boxes.tolist() == [pytest.approx(box)]


def test_boxes_in_fractions_are_measured_in_the_picture_that_was_read():
    compared, found = compare([Object((0.5, 0.5, 0.5, 0.6), 0)], size=None, relative=True)
    assert compared.objects.boxes.tolist() == [[30, 20, 30, 24]]
    assert found["box outside the picture"].examples == ("a.png: [30.0, 20.0, 30.0, 24.0]",)


def test_a_picture_of_another_size_is_told():
    _, found = compare([Object((0, 0, 5, 5), 0)], size=(60, 40))
    (kind,) = found
    assert kind == "picture of another size than the data says"
    assert found[kind].examples == ("a.png: 60x40, not 40x60",)


def test_crowds_and_what_is_ignored_are_told():
    _, found = compare(
        [Object((0, 0, 5, 5), 0, crowd=True, ignored=True), Object((0, 0, 5, 5), 0, ignored=True)]
    )
    assert {kind: one.count for kind, one in found.items()} == {"crowd": 1, "box to be ignored": 1}


def test_detections_of_classes_that_the_data_has_not_are_left_out():
    compared, _ = compare(
        [Object((0, 0, 5, 5), 0)],
        [((1, 2, 4, 8), 0.9, 0), ((0, 0, 5, 5), 0.8, 1), ((0, 0, 5, 5), 0.7, 2)],
    )
    assert compared.found.boxes.tolist() == [[1, 2, 3, 6], [0, 0, 5, 5]]
    assert compared.found.category.tolist() == [0, 1]
    assert compared.image_id == 5


def test_more_than_a_hundred_of_a_class_are_told():
    hundred = [((0, 0, 5, 5), 0.5, 0)] * 100
    assert compare([], [*hundred, ((0, 0, 5, 5), 0.5, 2)])[1] == {}
    _, found = compare([], [*hundred, ((0, 0, 5, 5), 0.5, 0)])
    (cut,) = found.values()
    assert cut.examples == ("a.png: 101",)


def test_a_picture_that_failed_is_left_out():
    findings = Findings()
    sample = Sample("a.png", None, 5, None, Objects.of([]))
    dataset = Dataset(Form.YOLO, None, (), named=False, samples=[], relative=True)
    comparison = Comparison(dataset, ClassMapping(MappedBy.ORDER, (0,)), findings)
    comparison.samples = (sample,)
    comparison.add(Record(Origin("a.png"), 0, "m", "cpu", error=DecodeError("torn")))
    assert comparison.compared == []
    assert [(one.source, one.error) for one in comparison.failed] == [("a.png", "torn")]
    assert [one.kind for one in findings.report()] == ["unreadable picture"]
