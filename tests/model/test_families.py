"""The table of families."""

import pytest
from head_checks import read
from head_graphs import ENDINGS, model_of

from detcli.model.contract import Resize
from detcli.model.families import FAMILIES

BY_NAME = {family.name: family for family in FAMILIES}


def test_names_are_of_one_family_each():
    assert len(BY_NAME) == len(FAMILIES)


@pytest.mark.parametrize("name", ENDINGS)
def test_boxes_end_at_the_edges_where_the_familys_own_code_ends_them(name):
    contract = read(model_of(name, 2)[0])[1]
    assert contract.clips == BY_NAME[contract.family].clips


def test_a_rule_that_follows_the_picture_stretches_to_a_fixed_size():
    family = BY_NAME["DETR"]
    free = family.preprocess(None, (640, 640))
    assert (free.resize, free.edges) == (Resize.SHORTEST_EDGE, (800, 1333))
    fixed = family.preprocess((320, 416), (640, 640))
    assert (fixed.resize, fixed.edges, fixed.mean) == (Resize.STRETCH, None, free.mean)


def test_a_margin_is_left_free_of_the_longer_side():
    family = BY_NAME["YOLO-NAS"]
    assert family.preprocess((320, 640), (640, 640)).longest == 636
    assert family.preprocess(None, (416, 320)).longest == 412
    assert BY_NAME["YOLOv5"].preprocess((320, 640), (640, 640)).longest is None


def test_a_family_whose_files_differ_has_no_rule():
    assert BY_NAME["SSD"].preprocess((320, 320), (640, 640)) is None
