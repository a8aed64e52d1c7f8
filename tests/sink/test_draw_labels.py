"""Labels beside the boxes on images."""

import itertools
from typing import NamedTuple

import numpy as np
import pytest
from sink.drawing import GREY, boxes_of, drawn, grey

from detcli.data.detections import Detections
from detcli.sink import draw_labels
from detcli.sink.draw import Style, annotate


def test_the_label_stays_inside():
    def inked(box):
        """Pixels of the text: black or white, which nothing else in these images is."""
        out = drawn(grey(300, 400), box)
        black = np.count_nonzero((out == 0).all(axis=-1))
        return black or np.count_nonzero((out == 255).all(axis=-1))

    in_the_middle = inked((150, 150, 250, 250))
    assert in_the_middle > 20
    for box in (
        (0, 0, 40, 40),
        (370, 0, 399, 40),
        (0, 290, 40, 299),
        (390, 295, 399, 299),
        (390, 150, 600, 200),
        (100, -80, 200, 10),
        (0, 0, 400, 300),
    ):
        assert inked(box) == in_the_middle


def test_labels_say_names_and_scores_as_they_are():
    def label(name="a", score=0.5):
        return drawn(grey(300, 400), (50, 100, 350, 250), name=name, score=score)

    for name in ("é", "ü猫"):  # beyond ASCII
        in_bytes = "?" * len(name.encode())
        for another in ("", "?" * len(name), in_bytes, "犬", "\N{REPLACEMENT CHARACTER}"):
            assert (label(name) != label(another)).any()
    np.testing.assert_array_equal(label("a\nb"), label("a\\nb"))  # it stays in its label
    assert (label(score=0.50) != label(score=0.51)).any()
    np.testing.assert_array_equal(label(score=0.501), label(score=0.499))


class DrawnLabel(NamedTuple):
    """A label on an image; its rectangle is left, top, right, bottom."""

    text: str
    rectangle: tuple[int, int, int, int]
    text_size: int


def texts_of(labels):
    return [label.text for label in labels]


@pytest.fixture
def drawn_labels(monkeypatch):
    """The labels that are drawn."""
    labels = []
    draw_label = draw_labels.draw_label

    def note_and_draw(canvas, text, corner, colour, size):
        width, height = draw_labels.label_size(text, size)
        left, top = corner
        rectangle = (left, top, left + width, top + height)
        labels.append(DrawnLabel(text, rectangle, size))
        draw_label(canvas, text, corner, colour, size)

    monkeypatch.setattr(draw_labels, "draw_label", note_and_draw)
    return labels


def crowd(random, count, size, largest=0.25):
    """Many boxes of three classes."""
    height, width = size
    corner = random.random((count, 2)) * [width, height] * 0.95
    sides = 6 + random.random((count, 2)) * [width, height] * largest
    corners = np.clip(np.hstack([corner, corner + sides]), 0, [width, height] * 2)
    scores = np.sort(random.random(count))[::-1].astype(np.float32)
    names = ("person", "traffic light", "cup")
    return Detections(corners.astype(np.float32), scores, random.integers(0, 3, count), names)


def shared_area(first, second):
    """Area that two rectangles share."""
    width = min(first[2], second[2]) - max(first[0], second[0])
    height = min(first[3], second[3]) - max(first[1], second[1])
    return max(0, width) * max(0, height)


@pytest.mark.parametrize("count", [2, 10, 40, 300])
def test_in_a_crowd_labels_cover_neither_each_other_nor_small_boxes(drawn_labels, random, count):
    detections = crowd(random, count, (480, 640))
    annotate(grey(480, 640), detections)
    assert len(drawn_labels) >= min(count * 0.9, 25)
    rectangles = [label.rectangle for label in drawn_labels]
    for first, second in itertools.combinations(rectangles, 2):
        assert shared_area(first, second) == 0
    if drawn_labels[-1].text.startswith("+"):  # how many labels have no room: in the freest corner
        rectangles.pop()
    for box in detections.xyxy.tolist():
        area = (box[2] - box[0]) * (box[3] - box[1])
        covered_area = 0
        for rectangle in rectangles:
            covered_area += shared_area(rectangle, box)
        assert covered_area <= 0.31 * area


def test_where_there_is_no_room_the_text_is_smaller(drawn_labels, random):
    for count in (3, 60):
        annotate(grey(480, 640), crowd(random, count, (480, 640)))
    assert drawn_labels[0].text_size == 14  # a fortieth of the image
    assert drawn_labels[-1].text_size == 10  # smaller text cannot be read


def test_the_best_have_the_first_choice(drawn_labels):
    """Eighty boxes in one place have fewer labels, those of the best."""
    count = 80
    detections = Detections(
        np.tile(np.float32([[60, 60, 140, 120]]), (count, 1)),  # type: ignore[arg-type]
        np.linspace(1, 0.2, count, dtype=np.float32),
        np.zeros(count, np.int64),
        ("cat",),
    )
    annotate(grey(200, 200), detections)
    assert 3 <= len(drawn_labels) < 20
    assert drawn_labels[0].text == "cat 1.00"
    texts = texts_of(drawn_labels)
    assert texts == sorted(texts, reverse=True)


def test_what_labels_say(drawn_labels):
    for parts in ({"name", "score"}, {"name"}, {"score"}, set()):
        style = Style(label_parts=frozenset(parts))
        out = annotate(grey(200, 200), boxes_of([(50, 50, 150, 150)]), style)
    assert texts_of(drawn_labels) == ["cat 0.50", "cat", "0.50"]
    assert (out[:48] == GREY).all()  # without any


def test_a_corner_says_how_many_labels_have_no_room(drawn_labels):
    annotate(grey(200, 200), boxes_of([(60, 60, 140, 120)] * 80))
    label_count = len(drawn_labels) - 1
    text, (left, top, right, bottom), _ = drawn_labels[-1]
    assert text == f"+{80 - label_count} labels"
    assert left == 0 or right == 200
    assert top == 0 or bottom == 200


def test_no_corner_speaks_of_labels_where_all_have_room(drawn_labels):
    annotate(grey(400, 400), boxes_of([(60, 60, 140, 120), (200, 200, 300, 300)]))
    assert texts_of(drawn_labels) == ["cat 0.50", "cat 0.50"]
