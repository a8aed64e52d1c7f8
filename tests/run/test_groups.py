"""Images of a batch in groups whose network inputs have the same size."""

import numpy as np
import pytest

from detcli.data.detections import Detections
from detcli.data.geometry import Letterbox
from detcli.run.groups import StartedGroup, groups_by_input_size, wait_for_groups


def detections_of_class(class_id):
    return Detections(
        xyxy=np.array([[1, 2, 3, 4]], np.float32),
        score=np.array([0.5], np.float32),
        class_id=np.array([class_id]),
        names=("cat", "dog", "bird"),
    )


def test_images_with_inputs_of_one_size_are_a_group():
    wide = Letterbox.fit((20, 40), (32, 64))
    high = Letterbox.fit((40, 20), (64, 32))
    assert groups_by_input_size([wide, high, wide]) == [[0, 2], [1]]


def test_no_images_have_no_groups():
    assert groups_by_input_size([]) == []


def test_detections_come_in_the_order_of_the_images():
    first = [detections_of_class(0), detections_of_class(2)]
    second = [detections_of_class(1)]
    groups = [
        StartedGroup([0, 2], [lambda: first, lambda: first[::-1]]),
        StartedGroup([1], [lambda: second, lambda: second]),
    ]
    results = wait_for_groups(groups, image_count=3, selection_count=2)
    assert results == [[first[0], second[0], first[1]], [first[1], second[0], first[0]]]


def test_a_group_has_detections_of_each_of_its_images():
    group = StartedGroup([0, 1], [lambda: [detections_of_class(0)]])
    with pytest.raises(ValueError, match="zip"):
        wait_for_groups([group], image_count=2, selection_count=1)
