"""Marks of a page fit the records that it was made of."""

import json

import pytest

from detcli.run.marks import Marks

ROW = {
    "class_id": 0,
    "class_name": "red",
    "score": 0.5,
    "x1": 1.0,
    "y1": 2.0,
    "x2": 30.0,
    "y2": 40.0,
}


@pytest.mark.parametrize(("difference", "is_within"), [(0.059, True), (0.061, False)])
@pytest.mark.parametrize("side", range(4))
@pytest.mark.parametrize("sign", [1, -1])
def test_a_mark_is_of_a_box_within_the_rounding_of_both(
    tmp_path, difference, is_within, side, sign
):
    """A record has two decimals, a page one."""
    box = [1.0, 2.0, 30.0, 40.0]
    box[side] += sign * difference
    mark = {"source": "a.jpg", "mark": "drop", "class_name": "red", "box": box}
    path = tmp_path / "marks.json"
    path.write_text(json.dumps([mark]))
    record = {"schema_version": 2, "source": "a.jpg", "index": 0, "detections": [ROW]}
    remaining = Marks(path).remaining_detections(record)  # type: ignore[arg-type]
    assert (remaining == []) == is_within
