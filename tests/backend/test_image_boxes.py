"""Boxes of the network's input in pixels of the image; odd ones are warned about or dropped."""

import warnings
from dataclasses import replace

import colour_model
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as st_numpy
from warned import messages_of

from detcli import DetcliWarning
from detcli.backend.image_boxes import batch_to_detections, detect_all, to_detections
from detcli.backend.postprocess import SelectedBoxes, SelectionOptions
from detcli.data.geometry import Letterbox
from detcli.model.recognise import read_graph

CONTRACT = read_graph(colour_model.build(), "colours").contract
ALL = SelectionOptions(conf=-np.inf, max_det=300, class_ids=None, nms_iou=None)


@pytest.mark.parametrize(
    ("boxes", "side", "clips", "message", "remaining_boxes"),
    [
        ([[0.1, 0.2, 0.7, 1.5]], 640, True, "fractions", [[0.1, 0.2, 0.7, 1.5]]),
        ([[0, 0, 1.6, 1], [1, 0, 0, 1]], 8, True, "1 of 2 boxes have no", [[0, 0, 1.6, 1]]),
        (
            [[0, 0, 5, 5], [0, np.nan, 5, 5], [0, 0, np.inf, 5]],
            8,
            True,
            "1 of 3 boxes",
            [[0, 0, 5, 5], [0, 0, 8, 5]],
        ),
        (
            [[-9, 0, 5, 5], [0, 0, np.inf, 5]],
            8,
            False,
            "1 of 2 boxes hold an infinity",
            [[-9, 0, 5, 5]],
        ),
        (
            [[5, 0, 0, 5], [0, 3, 5, 3], [1, 1, 2, 2], [-9, 0, -1, 5]],
            8,
            True,
            "2 of 4 boxes have no width or height",
            [[1, 1, 2, 2]],
        ),
    ],
)
def test_odd_boxes_are_warned_about(boxes, side, clips, message, remaining_boxes):
    boxes = np.array(boxes, np.float32)
    selection = SelectedBoxes(
        boxes, np.ones(len(boxes), np.float32), np.zeros(len(boxes), np.int64)
    )
    letterbox = Letterbox.fit((side, side), (side, side))
    with pytest.warns(DetcliWarning, match=message):
        detections = to_detections(selection, letterbox, replace(CONTRACT, clips=clips))
    np.testing.assert_array_equal(detections.xyxy, np.float32(remaining_boxes))
    assert len(detections.selected) == len(boxes)


def warnings_of_boxes(farthest):
    """What is said of a model in pixels whose only box reaches so far."""
    boxes = np.array([[0, 0, 1, farthest]], np.float32)
    selection = SelectedBoxes(boxes, np.ones(1, np.float32), np.zeros(1, np.int64))
    letterbox = Letterbox.fit((640, 640), (640, 640))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        to_detections(selection, letterbox, CONTRACT)
    return messages_of(caught)


def test_boxes_up_to_a_pixel_and_a_half_look_like_fractions():
    assert "fractions" in " ".join(warnings_of_boxes(1.5))


def test_boxes_beyond_a_pixel_and_a_half_are_in_pixels():
    assert warnings_of_boxes(1.51) == []


def test_boxes_in_fractions_are_those_of_the_networks_input():
    boxes = np.array([[0.25, 0.5, 0.75, 1]], np.float32)
    selection = SelectedBoxes(boxes, np.ones(1, np.float32), np.zeros(1, np.int64))
    letterbox = Letterbox.fit((320, 640), (320, 640))
    detections = to_detections(selection, letterbox, replace(CONTRACT, box_fractions=True))
    assert detections.xyxy.tolist() == [[160, 160, 480, 320]]


@pytest.mark.filterwarnings("ignore::detcli.DetcliWarning")
def test_each_output_of_a_batch_needs_the_letterbox_of_its_image():
    outputs = [np.zeros((7, 4), np.float32)] * 2
    with pytest.raises(ValueError, match="shorter"):
        detect_all(outputs, [Letterbox.fit((8, 8), (8, 8))], ALL, CONTRACT)


coordinate = st.sampled_from([np.nan, np.inf, -np.inf, 0.0, 1.5, 3e38]) | st.floats(
    -100, 900, width=32
)


@st.composite
def batches(draw):
    """What was selected in each image of a batch, and where the images lie on the input."""
    selections = []
    letterboxes = []
    for _ in range(draw(st.integers(0, 4))):
        count = draw(st.integers(0, 3))
        elements = draw(st.sampled_from([coordinate, st.floats(2, 600, width=32)]))
        corners = draw(st_numpy.arrays(np.float32, (count, 4), elements=elements))
        if draw(st.booleans()):
            corners[:, 2:] = corners[:, :2] + np.float32(20)
        selections.append(
            SelectedBoxes(corners, np.ones(count, np.float32), np.zeros(count, np.int64))
        )
        size = (draw(st.integers(1, 2000)), draw(st.integers(1, 2000)))
        letterboxes.append(Letterbox.fit(size, (640, 640)))
    return selections, letterboxes


@given(batches(), st.booleans(), st.booleans())
def test_a_batch_gives_what_its_images_give_one_by_one(batch, clips, box_fractions):
    selections, letterboxes = batch
    contract = replace(CONTRACT, clips=clips, box_fractions=box_fractions)
    with warnings.catch_warnings(record=True) as batch_warnings, np.errstate(all="ignore"):
        warnings.simplefilter("always")
        together = batch_to_detections(selections, letterboxes, contract)
    alone = []
    with warnings.catch_warnings(record=True) as image_warnings, np.errstate(all="ignore"):
        warnings.simplefilter("always")
        for selection, letterbox in zip(selections, letterboxes, strict=True):
            alone.append(to_detections(selection, letterbox, contract))
    assert len(together) == len(alone)
    for detections, expected in zip(together, alone, strict=True):
        assert detections.xyxy.tobytes() == expected.xyxy.tobytes()
        assert detections.score.tobytes() == expected.score.tobytes()
        assert detections.class_id.tolist() == expected.class_id.tolist()
        assert detections.selected.tolist() == expected.selected.tolist()
    assert messages_of(batch_warnings) == messages_of(image_warnings)


def test_boxes_as_far_as_float32_reaches_are_dropped_without_a_warning_of_numpy():
    head = np.zeros((7, 2), np.float32)
    head[:4] = [[-3e38], [-3e38], [3e38], [3e38]]
    head[4:] = 0.9
    options = SelectionOptions(conf=0.25, max_det=300, class_ids=None, nms_iou=0.5)
    letterbox = Letterbox.fit((8, 8), (8, 8))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        detect_all([head], [letterbox], options, CONTRACT)
    for warning in caught:
        assert warning.category is not RuntimeWarning
