"""The page of an evaluation: what is false and what was missed, by image and by class."""

import json

import pages
import pytest
from labelled import Scene, write_coco


@pytest.fixture
def evaluated(invoke, make_model, tmp_path):
    scenes = [
        Scene.found(("red", 1, 1, 1.0)),
        Scene([("red", 1, 1, 1.0), ("blue", 4, 4, 1.0)], [("red", 8, 8, 8, 8)]),
        Scene([], [("green", 8, 8, 8, 8)]),
    ]
    data = write_coco(tmp_path, scenes)
    page = tmp_path / "page"
    arguments = ["--data", data, "--report", page, "--format", "json", "-q", "--conf", 0.5]
    completed = invoke("eval", make_model(), arguments)
    assert completed.returncode == 0, completed.stderr
    return json.loads(completed.stdout), pages.entries(page), pages.runs(page)[0]


def test_each_image_shows_what_became_of_its_boxes(evaluated):
    _, entries, run = evaluated
    first, second, third = entries
    assert pages.kinds_of_boxes(run, first) == ["found"]
    assert pages.kinds_of_boxes(run, second) == ["found", "false positive"]
    assert pages.kinds_of_boxes(run, third) == ["missed"]
    assert None not in [box[1] for box in first["found"] + second["found"]]  # their scores
    assert third["found"][0][1] is None
    assert third["found"][0][2:6] == [8, 8, 16, 16]
    for entry in entries:
        assert "picture" in entry


def test_the_figures_are_those_of_the_report(evaluated):
    report, entries, run = evaluated
    assert run["summary"][0].startswith(f"mAP50-95 {report['metrics']['map50_95']:.3f}, mAP50")
    assert "2 found, 1 false positives, 1 missed" in run["summary"][1]
    (title, columns, rows, entry_numbers), missed, false = run["tables"]
    assert title == "By class"
    assert entry_numbers[0] == [1]  # where a row leads
    assert dict(zip(columns, rows[0], strict=True)) | {"AP50-95": 0, "AP50": 0} == {
        "class": "blue", "boxes": 0, "found": 0, "false positives": 1, "missed": 0,
        "AP50-95": 0, "AP50": 0,
    }  # fmt: skip
    assert missed == ["Not found as anything", ["class", "times"], [["green", 1]], [[2]]]
    assert false == ["Found where nothing is", ["class", "times"], [["blue", 1]], [[1]]]

    correct_count = 0
    for row in report["confusions"]["counts"]:
        if row["true"] == row["found"]:
            correct_count += row["count"]
    kind_numbers = []
    for entry in entries:
        kind_numbers += [box[6] for box in entry["found"]]
    assert correct_count == kind_numbers.count(0)
    assert run["floor"] == report["confusions"]["conf"]


def test_curves_and_sides_have_names(evaluated):
    report, entries, run = evaluated
    assert run["sides"] == ["colours.onnx", "labels"]
    assert [kind[5] for kind in run["kinds"]] == [None, 0, 1]
    assert entries[0]["found"][0][7:] == [None, 8, 8, 16, 16]  # the label that it matches
    precision, f1 = run["curves"]
    assert precision[:2] == ["Precision at IoU 0.5, with AP50", ["recall", "precision"]]
    name, boxes, figure, heights = precision[2][-1]
    assert name == "all"
    assert boxes == 3
    assert len(heights) == 101
    assert figure == report["metrics"]["map50"]
    assert sum(heights) / 101 == pytest.approx(figure, abs=1e-3)
    assert f1[3] == report["confusions"]["conf"]
    assert f1[2][-1][3][99] == pytest.approx(2 * 2 / (3 + 3), abs=1e-3)  # all score 1


@pytest.mark.parametrize(("option", "name"), [("--save-coco", "c.json"), ("--plots", "")])
def test_the_page_has_its_folder_for_itself(invoke, make_model, tmp_path, option, name):
    data = write_coco(tmp_path, [Scene.found(("red", 1, 1, 1.0))])
    page = tmp_path / "page"
    page.mkdir()
    completed = invoke("eval", make_model(), "--data", data, "--report", page, option, page / name)
    assert completed.returncode == 2
    assert "the folder of the page, which holds nothing else" in completed.stderr
    assert list(page.iterdir()) == []
