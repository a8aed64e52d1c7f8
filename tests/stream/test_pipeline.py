"""One record an input, whatever happens to it."""

import numpy as np
import pytest

from detcli.detections import Detections
from detcli.errors import DecodeError, DeviceMemoryError, InferenceError, SourceError
from detcli.stream.pipeline import detect
from detcli.stream.source import Item

RED = (0, 0, 255)


def detector(image):
    """Stands in for a Detector: fails on a red picture, finds nothing in others."""
    if tuple(image[0, 0]) == RED:
        raise InferenceError("red", "paint it grey")
    return Detections.empty(("cat",))


detector.model_name, detector.device = "stand-in", "cpu"


@pytest.fixture
def items(tmp_path, make_picture):
    """A picture, one that fails, a missing one, a damaged one, a picture of another size."""
    torn = tmp_path / "torn.jpg"
    torn.write_bytes(b"\xff\xd8\xff")
    return [
        Item("first", make_picture("a.png")),
        Item("red", make_picture("red.png", ("red", 0, 0))),
        Item("missing", error=SourceError("not there")),
        Item("torn", torn),
        Item("last", make_picture("b.png", size=(32, 48))),
    ]


def test_a_record_an_item_in_order(items):
    records = list(detect(items, detector))
    assert [one.source for one in records] == ["first", "red", "missing", "torn", "last"]
    assert [one.index for one in records] == [0, 1, 2, 3, 4]
    assert {(one.model, one.device) for one in records} == {("stand-in", "cpu")}


def test_what_fails_has_its_error_and_the_others_are_complete(items):
    records = list(detect(items, detector))
    errors = [type(one.error) for one in records]
    assert errors == [type(None), InferenceError, SourceError, DecodeError, type(None)]
    for one in records:
        assert (one.image is None) == (one.detections is None) == (one.error is not None)
    assert records[1].error.hint == "paint it grey"
    assert [records[i].image.shape for i in (0, 4)] == [(64, 64, 3), (32, 48, 3)]


def test_a_record_has_the_picture_and_its_own_detections(make_picture):
    def count(image):
        """As many detections as the picture has red pixels."""
        n = int((image == RED).all(-1).sum())
        boxes, ids = np.zeros((n, 4), np.float32), np.zeros(n, np.int64)
        return Detections(boxes, np.ones(n, np.float32), ids, ("pixel",))

    count.model_name, count.device = "count", "cpu"
    pictures = [make_picture("one.png", ("red", 1, 1)), make_picture("none.png")]
    records = list(detect((Item(str(path), path) for path in pictures), count))
    assert [len(one.detections) for one in records] == [64, 0]
    assert [tuple(one.image[8, 8]) for one in records] == [RED, (114, 114, 114)]


def test_no_items_no_records():
    assert list(detect([], detector)) == []


def test_a_record_comes_before_the_next_item_is_asked_for(items):
    asked = []

    def source():
        for item in items:
            asked.append(item.source)
            yield item

    records = detect(source(), detector)
    next(records)
    assert asked == ["first"]
    next(records)
    assert asked == ["first", "red"]


def test_a_bug_is_not_hidden_in_a_record(make_picture):
    def broken(image):
        raise ZeroDivisionError(image.shape)

    broken.model_name, broken.device = "broken", "cpu"
    with pytest.raises(ZeroDivisionError):
        list(detect([Item("a", make_picture("a.png"))], broken))


def test_a_device_that_is_full_ends_it(items):
    """No later picture would fit: the network's input has one size."""

    def full(image):  # noqa: ARG001 - as a detector
        raise DeviceMemoryError("a batch of 1 picture does not fit")

    full.model_name, full.device = "stand-in", "cuda:0"
    with pytest.raises(DeviceMemoryError):
        list(detect(items, full))
