"""The table of a comparison's classes."""

from made_detections import RULES, boxes_in_row

from detcli.commands.verify.class_totals import ClassTotals
from detcli.compare.detections import compare


def test_pairs_and_single_boxes_are_counted_with_their_scores_and_distance():
    totals = ClassTotals()
    left = boxes_in_row([(0, 0.9), (1, 0.8), (2, 0.7)])
    right = boxes_in_row([(0, 0.9), (1, 0.4, 3), (5, 0.6), (7, 0.5)])
    totals.add(compare(left, right, RULES))
    (table,) = totals.tables("a.onnx", "b.onnx")
    assert table.columns[3:5] == ["only a.onnx", "only b.onnx"]
    (row,) = table.rows
    assert row[0] == "person"
    assert list(row[1:5]) == [1, 1, 1, 2]  # on both, moved, on one side
    left_score, right_score, distance = row[5:]
    assert left_score == 0.85
    assert right_score == 0.65
    assert distance == 1.5


def test_a_class_without_pairs_has_no_means():
    totals = ClassTotals()
    totals.add(compare(boxes_in_row([(0, 0.9)]), boxes_in_row([]), RULES))
    (table,) = totals.tables("a", "b")
    assert table.rows == [["person", 0, 0, 1, 0, None, None, None]]


def test_without_boxes_there_is_no_table():
    totals = ClassTotals()
    totals.add(compare(boxes_in_row([]), boxes_in_row([]), RULES))
    assert totals.tables("a", "b") == []
