"""Boxes and labels on images."""

import itertools
import subprocess
import sys
from dataclasses import replace

import cv2
import numpy as np
import pytest

from detcli.data.detections import Detections
from detcli.data.record import Overlay
from detcli.sink import draw
from detcli.sink.draw import Style, annotate, colour_of, ink

GREY = 114
SMOOTHED = 30  # what smoothing takes from a colour, even within a line
JUST_NOTICEABLE = 2.3  # distance of colours in CIE L*a*b* that people begin to see

# What people without the cones for green see of linear RGB, by Machado, Oliveira and Fernandes, "A
# Physiologically-based Model for Simulation of Color Vision Deficiency", 2009.
DEUTERANOPIA = np.array(
    [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ]
)


def grey(height, width):
    return np.full((height, width, 3), GREY, np.uint8)


def boxes(*sides, name="cat", score=0.5, class_id=0):
    """Detections of one class."""
    corners = np.array(sides, np.float32).reshape(-1, 4)
    scores = np.full(len(sides), score, np.float32)
    class_ids = np.full(len(sides), class_id)
    names = (name,) * (class_id + 1)
    return Detections(corners, scores, class_ids, names)


def drawn(image, *sides, **options):
    return annotate(image, boxes(*sides, **options))


def test_the_output_is_a_copy():
    image = grey(100, 120)
    out = drawn(image, (20, 30, 80, 90))
    assert (image == GREY).all()
    assert out.shape == image.shape
    assert out.dtype == np.uint8
    assert (out != image).any()
    empty = annotate(image, Detections.empty(("cat",)))
    assert empty is not image
    np.testing.assert_array_equal(empty, image)


@pytest.mark.parametrize("box", [(-30, 5, -2, 20), (200, 5, 300, 20), (5, -90, 9, -1)])
def test_a_box_outside_the_image_is_not_drawn(box):
    np.testing.assert_array_equal(drawn(grey(200, 200), box), grey(200, 200))


@pytest.mark.parametrize(
    ("box", "within"),
    [
        ((-50, 50, 90, 150), (0, 50, 90, 150)),
        ((50, -70, 150, 90), (50, 0, 150, 90)),
        ((120, 120, 900, 900), (120, 120, 200, 200)),
        ((-3e38, -3e38, 3e38, 3e38), (0, 0, 200, 200)),
    ],
)
def test_a_box_that_reaches_beyond_the_image_ends_at_its_edges(box, within):
    np.testing.assert_array_equal(drawn(grey(200, 200), box), drawn(grey(200, 200), within))


def test_the_box_is_at_the_detection():
    out = drawn(grey(200, 200), (60, 80, 160, 180))
    colour = colour_of(0)
    for x, y in ((60, 130), (160, 130), (110, 180), (160, 80)):
        np.testing.assert_allclose(out[y, x], colour, atol=SMOOTHED)
    assert (out[90:170, 70:150] == GREY).all()
    assert (out[190:] == GREY).all()


def linear(colours):
    """sRGB from 0 to 1 as light."""
    return np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)


def luminance(colour):
    return linear(np.array(colour[::-1]) / 255) @ [0.2126, 0.7152, 0.0722] + 0.05


@pytest.mark.parametrize("vision", [np.eye(3), DEUTERANOPIA])
def test_the_first_80_classes_have_distinct_and_strong_colours(vision):
    """To people with deuteranopia, too; and the first ten, which most images need, far more."""
    rgb = np.array([colour_of(class_id)[::-1] for class_id in range(80)]) / 255
    light = np.clip(linear(rgb) @ vision.T, 0, 1)
    points = cv2.cvtColor(np.float32([light]), cv2.COLOR_LRGB2Lab)[0]  # type: ignore[arg-type, call-overload]
    distances = np.linalg.norm(points[:, None] - points, axis=-1) + np.diag([np.inf] * 80)
    assert distances.min() > 2 * JUST_NOTICEABLE
    assert distances[:10, :10].min() > 6 * JUST_NOTICEABLE


@pytest.mark.parametrize("class_id", [0, 1, 79, 364, 1202])
def test_the_colour_of_any_class_is_strong(class_id):
    colour = colour_of(class_id)
    assert all(isinstance(part, int) for part in colour)
    assert min(colour) >= 0
    assert max(colour) <= 255
    assert max(colour) - min(colour) > 100


@pytest.mark.parametrize(
    ("side", "line_width", "expected"),
    [
        (100, None, 1),
        (320, None, 1),
        (1280, None, 5),
        (3200, None, 11),
        (400, 1, 1),
        (400, 2, 2),
        (400, 7, 7),
        (400, 40, 40),
    ],
)
def test_the_line_grows_with_the_image_or_is_as_asked(side, line_width, expected):
    style = Style(line_width, frozenset())
    out = annotate(grey(side, side), boxes((side // 4, 0, side * 3 // 4, side)), style)
    row = (out[side // 2] == colour_of(0)).all(axis=-1)
    assert row[: side // 2].sum() == expected


def test_any_size_of_image_and_box_can_be_drawn():
    for size, relative in (
        ((1, 1), (0, 0, 1, 1)),
        ((1, 5000), (-1, -2, 3, 2)),
        ((5000, 1), (0.2, 0.2, 0.2, 0.2)),
        ((3, 7), (-1, -2, 3, 2)),
    ):
        out = drawn(grey(*size), np.array(relative) * (size[::-1] * 2))
        assert out.shape == (*size, 3)
        assert (out == colour_of(0)).all(axis=-1).any()  # the box, where no label fits


def test_the_label_stays_inside():
    def inked(*sides):
        """Pixels of the text: black or white, which nothing else in these images is."""
        out = drawn(grey(300, 400), sides)
        black = np.count_nonzero((out == 0).all(axis=-1))
        return black or np.count_nonzero((out == 255).all(axis=-1))

    in_the_middle = inked(150, 150, 250, 250)
    assert in_the_middle > 20
    for sides in (
        (0, 0, 40, 40),
        (370, 0, 399, 40),
        (0, 290, 40, 299),
        (390, 295, 399, 299),
        (390, 150, 600, 200),
        (100, -80, 200, 10),
        (0, 0, 400, 300),
    ):
        assert inked(*sides) == in_the_middle


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


def test_the_best_is_drawn_on_top():
    detections = Detections(
        np.array([[50, 100, 150, 200]] * 2, np.float32),
        np.array([0.9, 0.8], np.float32),
        np.array([0, 1]),
        ("cat", "dog"),
    )
    out = annotate(grey(300, 400), detections)
    np.testing.assert_allclose(out[200, 100], colour_of(0), atol=SMOOTHED)
    label = (slice(85, 99), slice(50, 80))  # that of the dog is wider
    np.testing.assert_array_equal(out[label], annotate(grey(300, 400), detections[:1])[label])


def test_odd_names_do_not_stop_drawing():
    """Nor do they end the process, as OpenCV does for half of a surrogate pair."""
    code = """if True:
        import numpy as np
        from detcli.data.detections import Detections
        from detcli.sink.draw import annotate
        half = np.full(1, 0.5, np.float32)
        for name in ("", "\\n", "\\t", "\\0", "\\x1b[1m", "\\U0001f600", "x" * 1000, "\\udcff"):
            detections = Detections(np.ones((1, 4), np.float32), half, np.array([0]), (name,))
            annotate(np.zeros((60, 80, 3), np.uint8), detections)"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.fixture
def drawn_labels(monkeypatch):
    """Text, rectangle (left, top, right, bottom) and text size of each label that is drawn."""
    labels = []
    draw_label = draw.draw_label

    def note_and_draw(canvas, text, corner, colour, size):
        width, height = draw.label_size(text, size)
        left, top = corner
        labels.append((text, (left, top, left + width, top + height), size))
        draw_label(canvas, text, corner, colour, size)

    monkeypatch.setattr(draw, "draw_label", note_and_draw)
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
    rectangles = [rectangle for _, rectangle, _ in drawn_labels]
    for first, second in itertools.combinations(rectangles, 2):
        assert shared_area(first, second) == 0
    if drawn_labels[-1][0].startswith("+"):  # how many labels have no room: in the freest corner
        rectangles.pop()
    for box in detections.xyxy.tolist():
        area = (box[2] - box[0]) * (box[3] - box[1])
        assert sum(shared_area(rectangle, box) for rectangle in rectangles) <= 0.31 * area


def test_where_there_is_no_room_the_text_is_smaller(drawn_labels, random):
    for count in (3, 60):
        annotate(grey(480, 640), crowd(random, count, (480, 640)))
    sizes = [size for _, _, size in drawn_labels]
    assert sizes[0] == 14  # a fortieth of the image
    assert sizes[-1] == 10  # smaller text cannot be read


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
    assert drawn_labels[0][0] == "cat 1.00"
    texts = [text for text, _, _ in drawn_labels]
    assert texts == sorted(texts, reverse=True)


def test_a_box_is_seen_on_its_own_colour_and_on_white():
    """By a casing on both sides, that is darker than the line by 2:1 (WCAG 2) or more."""
    for number in range(80):
        colour = colour_of(number)
        for ground in (colour, (255, 255, 255)):
            image = np.full((300, 300, 3), ground, np.uint8)
            out = annotate(image, boxes((50, 50, 250, 250), class_id=number), Style(3, frozenset()))
            before, *line, after = out[150, 48:53]
            assert (np.array(line) == colour).all()
            for casing in (before, after):
                assert luminance(colour) / luminance(casing) > 2, number


def test_tracks_have_colours_of_their_own():
    """Two objects of a class are told apart, and from one that has no track yet."""
    detections = boxes((10, 60, 60, 110), (110, 60, 160, 110), (210, 60, 260, 110))
    detections = replace(detections, track_id=np.array([1, 2, -1]))
    overlay = Overlay(traces={2: np.float32([(135, 150), (135, 110)])})  # type: ignore[arg-type, dict-item]
    out = annotate(grey(200, 300), detections, Style(2, frozenset()), overlay)
    colours = [tuple(out[85, x].tolist()) for x in (10, 110, 210)]
    assert colours == [colour_of(0), colour_of(1), draw.GREY]
    assert tuple(out[140, 135].tolist()) == colour_of(1)


def test_the_whole_outline_of_a_box_at_the_border_is_visible():
    for side, line in ((60, 1), (64, 6), (700, None)):
        out = annotate(grey(side, side), boxes((0, 0, side, side)), Style(line, frozenset()))
        wide = line or 2
        coloured = (out == colour_of(0)).all(axis=-1)
        for edge in (coloured, coloured.T, coloured[::-1], coloured.T[::-1]):
            assert edge[:wide].all()
            assert edge[side // 2].sum() == 2 * wide


def test_what_labels_say(drawn_labels):
    for parts in ({"name", "score"}, {"name"}, {"score"}, set()):
        style = Style(label_parts=frozenset(parts))
        out = annotate(grey(200, 200), boxes((50, 50, 150, 150)), style)
    assert [text for text, _, _ in drawn_labels] == ["cat 0.50", "cat", "0.50"]
    assert (out[:48] == GREY).all()  # without any


def test_text_is_legible_on_every_colour():
    """At least 4:1, by the definition of WCAG 2 (for large text it asks for 3:1)."""

    for class_id in range(0, 2000, 7):
        colour = colour_of(class_id)
        low, high = sorted([luminance(colour), luminance(ink(colour))])
        assert high / low >= 4, class_id


def test_a_line_of_one_pixel_has_a_casing_only_on_similar_colours():
    line_colour = colour_of(0)
    image = np.full((100, 100, 3), GREY, np.uint8)
    image[:, :50] = line_colour
    out = annotate(image, boxes((20, 20, 80, 80)), Style(1, frozenset()))
    on_grey = out[50, 79:82].tolist()
    assert on_grey == [[GREY] * 3, list(line_colour), [GREY] * 3]
    before, line, after = out[50, 19:22].tolist()
    assert tuple(line) == line_colour
    assert luminance(line_colour) / luminance(before) > 2
    assert luminance(line_colour) / luminance(after) > 2


def test_a_corner_says_how_many_labels_have_no_room(drawn_labels):
    sides = [(60, 60, 140, 120)] * 80
    annotate(grey(200, 200), boxes(*sides))
    label_count = len(drawn_labels) - 1
    text, (left, top, right, bottom), _ = drawn_labels[-1]
    assert text == f"+{80 - label_count} labels"
    assert left == 0 or right == 200
    assert top == 0 or bottom == 200


def test_no_corner_speaks_of_labels_where_all_have_room(drawn_labels):
    annotate(grey(400, 400), boxes((60, 60, 140, 120), (200, 200, 300, 300)))
    assert [text for text, _, _ in drawn_labels] == ["cat 0.50", "cat 0.50"]


def test_touching_boxes_of_one_class_have_different_shades():
    sides = ((20, 50, 60, 90), (60, 50, 100, 90), (100, 50, 140, 90), (150, 50, 190, 90))
    shades = draw.detection_colours(boxes(*sides))
    assert shades[0] == colour_of(0)
    assert shades[1] != shades[0]
    assert shades[2] != shades[1]
    assert shades[3] == colour_of(0)  # touches no other
    all_touch = draw.detection_colours(boxes(*[(20, 50, 60, 90)] * 3))
    assert len(set(all_touch)) == 3


def test_touching_boxes_of_two_classes_keep_the_colours_of_their_classes():
    corners = np.array([(20, 50, 60, 90), (40, 50, 80, 90)], np.float32)
    detections = Detections(corners, np.float32([0.9, 0.8]), np.array([0, 1]), ("cat", "dog"))  # type: ignore[arg-type]
    assert draw.detection_colours(detections) == [colour_of(0), colour_of(1)]
