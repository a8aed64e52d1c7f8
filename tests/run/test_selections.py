"""One selection in place of several, and the options of a selection."""

from dataclasses import replace

import colour_model
import numpy as np

from detcli.backend.postprocess import SelectionOptions
from detcli.config.config import Settings
from detcli.model.contract import Suppression
from detcli.model.recognise import read_graph
from detcli.run.selections import covering_selection, selection_options

CONTRACT = read_graph(colour_model.build(), "colours").contract
CONFIDENT = SelectionOptions(conf=0.5, max_det=10, class_ids=None, nms_iou=0.3)
LOWER = replace(CONFIDENT, conf=0.25, max_det=20)


def test_a_lower_confidence_covers_a_higher_one_where_boxes_are_dropped():
    assert covering_selection([CONFIDENT, LOWER]) == LOWER


def test_a_lower_confidence_covers_none_where_boxes_are_blended():
    """It would blend boxes that are not above the higher one."""
    confident = replace(CONFIDENT, blends=True)
    lower = replace(LOWER, blends=True)
    assert covering_selection([confident, lower]) is None


def test_more_detections_cover_fewer_where_boxes_are_blended():
    few = replace(CONFIDENT, blends=True)
    many = replace(few, max_det=20)
    assert covering_selection([few, many]) == many


def test_boxes_are_blended_by_families_that_do_and_only_with_suppression():
    blending = replace(CONTRACT, suppression=Suppression.BLEND)
    thresholds = np.full(CONTRACT.class_count, 0.5, np.float32)
    settings = Settings()
    assert selection_options(blending, settings, 0.3, thresholds).blends
    assert not selection_options(blending, settings, None, thresholds).blends
    assert not selection_options(CONTRACT, settings, 0.3, thresholds).blends
