"""Labels whose boxes end at the edges of the image, as those print it who read them."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sample_records import detected, feed, image

from detcli.data.geometry import Image
from detcli.sink.labels import CocoIds, LabelStudioSink, label_text
from detcli.storage.files import AtomicFile

SIDES = st.integers(1, 20_000)
CORNERS = st.floats(-30, 20_030, width=32)
BOXES = st.tuples(CORNERS, CORNERS, CORNERS, CORNERS)


def in_order(box):
    left, right = sorted((box[0], box[2]))
    top, bottom = sorted((box[1], box[3]))
    return left, top, right, bottom


def read_numbers(line):
    """The numbers of a label: class, centre and size."""
    return [float(text) for text in line.split()]


def detected_boxes(boxes):
    """Detections of one class, each with a score of 0.5."""
    rows = []
    for left, top, right, bottom in boxes:
        rows.append((left, top, right, bottom, 0.5, 0))
    return detected(rows)


def sized(height, width):
    """An image of this size, whose pixels nobody looks at."""
    return Image(np.zeros((1, 1, 3), np.uint8), (height, width))


@given(height=SIDES, width=SIDES, box=BOXES)
@example(height=480, width=641, box=(0, 0, 213.333, 480))
@example(height=1, width=3, box=(0, 0, 1, 1))
@example(height=333, width=333, box=(0, 0, 0.0001, 333))
def test_the_printed_ends_of_a_label_are_inside_the_image(height, width, box):
    text = label_text(sized(height, width), detected_boxes([in_order(box)]))
    for line in text.splitlines():
        _, centre_x, centre_y, label_width, label_height = read_numbers(line)
        assert centre_x - label_width / 2 >= 0
        assert centre_y - label_height / 2 >= 0
        assert centre_x + label_width / 2 <= 1
        assert centre_y + label_height / 2 <= 1
        assert label_width > 0
        assert label_height > 0


@given(height=SIDES, width=SIDES, box=BOXES)
def test_a_label_is_within_a_millionth_of_its_box(height, width, box):
    detections = detected_boxes([in_order(box)])
    text = label_text(sized(height, width), detections)
    clipped = detections.within((height, width)).xyxy.astype(float)
    for (left, top, right, bottom), line in zip(clipped, text.splitlines(), strict=True):
        expected = [
            (left + right) / 2 / width,
            (top + bottom) / 2 / height,
            (right - left) / width,
            (bottom - top) / height,
        ]
        centre_and_size = read_numbers(line)[1:]
        assert np.abs(np.subtract(centre_and_size, expected)).max() <= 1.0000001e-6


def predict_boxes(path, height, width, *boxes):
    """The prediction of Label Studio for boxes in an image of this size."""
    detections = detected_boxes(boxes)
    record = replace(image(), picture=sized(height, width), detections=detections)
    feed(LabelStudioSink(AtomicFile(path)), record)
    (task,) = json.loads(path.read_text())
    return task["predictions"][0]


@pytest.fixture(scope="module")
def labels_path(tmp_path_factory):
    return tmp_path_factory.mktemp("tasks") / "tasks.json"


@given(height=SIDES, width=SIDES, box=BOXES)
@example(height=640, width=1080, box=(-3.5, 2, 1085, 700))
@example(height=7, width=333, box=(0.01, 0, 333, 7))
def test_regions_of_label_studio_are_inside_the_image(labels_path, height, width, box):
    for region in predict_boxes(labels_path, height, width, in_order(box))["result"]:
        value = region["value"]
        assert 0 <= value["x"] <= 100
        assert 0 <= value["y"] <= 100
        assert value["width"] >= 0
        assert value["height"] >= 0
        assert value["x"] + value["width"] <= 100
        assert value["y"] + value["height"] <= 100


def test_a_box_outside_has_no_region_and_does_not_count(labels_path):
    prediction = predict_boxes(labels_path, 100, 100, (-20, -20, -10, -10), (10, 20, 30, 60))
    (region,) = prediction["result"]
    assert region["id"] == "1"
    value = region["value"]
    assert [value["x"], value["y"], value["width"], value["height"]] == [10, 20, 20, 40]
    assert predict_boxes(labels_path, 100, 100, (-20, -20, -10, -10))["result"] == []


def write_instances(path, *names):
    images = [{"id": number, "file_name": name} for number, name in enumerate(names, 7)]
    path.write_text(json.dumps({"images": images, "categories": []}))
    return CocoIds(path)


def test_names_written_on_windows_are_found(tmp_path):
    ids = write_instances(tmp_path / "win.json", "label\\12.png", "label\\a\\1.png", "b\\1.png")
    assert ids.image_id(image("pics/label/12.png")) == 7
    assert ids.image_id(image("12.png")) == 7
    assert ids.image_id(image("pics/label/a/1.png")) == 8
    assert ids.image_id(image("b/1.png")) == 9


def test_a_name_with_a_backslash_on_linux_is_itself(tmp_path):
    ids = write_instances(tmp_path / "odd.json", "a/b.png", "a\\b.png")
    assert ids.image_id(image("a/b.png")) == 7
    assert ids.image_id(image("a\\b.png")) == 8
