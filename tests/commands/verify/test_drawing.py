import cv2
import numpy as np
import pytest
from made_detections import RULES, found, report_on

from detcli.commands.shared.comparison import compare
from detcli.commands.verify.drawing import (
    LEFT,
    RIGHT,
    WORST,
    ComparedPicture,
    SeenPicture,
    WorstPictures,
    draw,
)
from detcli.errors import OutputError
from detcli.geometry import Picture
from detcli.record import Origin
from detcli.sink.folder import OutputFolder

TITLES = ("left: a", "right: b")


def compared(left, right, index=0, source="a.png", size=(200, 400)):
    image = Picture.whole(np.full((*size, 3), 114, np.uint8))
    comparison = compare(found(*left), found(*right), RULES)
    seen = SeenPicture(Origin(source), size, lambda: image)
    return ComparedPicture(index, seen, comparison, report_on(left, right))


def draw_on_grey(left, right, size=(200, 400)):
    """With the legend above it."""
    shown = compared(left, right, size=size)
    return draw(shown.seen.load().pixels, shown.comparison, TITLES)


def count(image, colour):
    return int(np.count_nonzero((image == colour).all(axis=2)))


def drawn(left, right):
    """The picture without the legend."""
    return draw_on_grey(left, right)[-200:]


def test_right_boxes_are_drawn_within_left_boxes():
    image = drawn([(1, 0.9)], [(1, 0.9)])
    assert count(image, LEFT) > 100
    assert count(image, RIGHT) > 100
    assert tuple(image[20, 100]) == RIGHT  # the side of the box itself
    beside = image[20, 95:99].astype(int)  # smoothed towards both neighbours
    assert np.abs(beside - LEFT).max(axis=1).min() < np.abs(beside - RIGHT).max(axis=1).min()
    assert tuple(image[20, 120]) == (114, 114, 114)


def test_a_box_on_one_side_only():
    image = drawn([(1, 0.9)], [])
    assert count(image, RIGHT) == 0
    assert count(image, LEFT) > count(drawn([(1, 0.9)], [(1, 0.9)]), LEFT)  # a label as well
    assert count(drawn([], [(1, 0.9)]), LEFT) == 0


def test_boxes_below_the_confidence_are_not_drawn():
    image = drawn([(1, 0.24)], [(1, 0.24), (2, 0.24)])
    assert count(image, LEFT) == count(image, RIGHT) == 0


def test_the_legend_names_both_sides():
    image = draw_on_grey([], [])
    strip = image[:-200]
    assert tuple(strip[1, -1]) == LEFT
    assert tuple(strip[-1, -1]) == RIGHT
    assert count(strip, (255, 255, 255)) > 20  # letters


def test_a_picture_of_one_pixel():
    assert draw_on_grey([(0, 0.9)], [], size=(1, 1)).shape[1] == 1


def test_the_worst_are_kept_and_saved(tmp_path):
    worst = WorstPictures()
    for index in range(WORST + 5):
        rows = ([(0, 0.9)], [(0, 0.9, index / 20)])
        report = report_on(*rows)
        worst.add(report.severity(RULES.tolerance), compared(*rows, index, f"{index}.png"))
    missing = ([(0, 0.9)], [])
    worst.add(report_on(*missing).severity(RULES.tolerance), compared(*missing, 99, "99.jpg"))
    written = worst.save(OutputFolder(tmp_path), TITLES)
    assert list(written) == [99, *range(14, 5, -1)]
    assert written[99] == tmp_path / "99.jpg"
    assert sorted(path.name for path in tmp_path.glob("[!.]*")) == sorted(
        ["99.jpg", *(f"{index}.png" for index in range(6, 15))]
    )
    assert cv2.imread(str(written[14])).shape[1] == 400


def test_a_picture_without_a_difference_is_not_kept(tmp_path):
    worst = WorstPictures()
    worst.add((0, 0.0), compared([(0, 0.9)], [(0, 0.9)]))
    assert worst.save(OutputFolder(tmp_path), TITLES) == {}


def test_a_folder_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError):
        OutputFolder(tmp_path / "file")
