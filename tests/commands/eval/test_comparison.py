"""`detcli eval MODEL OTHER`: two models on the same labelled images."""

import json
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pages
import pytest
from json_lines import column_of, records_with
from labelled import MIXED, Scene, drop_labels, edit_json, write_coco, write_yolo
from report_schemas import validator

from detcli.commands.eval.comparison import ComparisonOfModels
from detcli.commands.eval.comparison_page import LABEL, LEFT_FALSE, ONLY_LEFT, ONLY_RIGHT
from detcli.commands.eval.image_pairs import pair_outcomes
from detcli.commands.eval.matches import CORRECT, FALSE, MISSED, MatchedBox
from detcli.core.errors import SourceError
from detcli.core.timing import Stage

SCENES = list(MIXED) + [Scene.found(("red", 3, 3, 0.8)), Scene.found(("blue", 2, 5, 0.6))]


@pytest.fixture
def models(make_model):
    """Two models: boxes of the second one are half as large again, so that fewer match."""
    return make_model("exact.onnx"), make_model("wide.onnx", reach=0.6)


@pytest.fixture
def evaluate(invoke, monkeypatch):
    """Run it with 100 resamples, as more take its time; return the report and the result."""

    def run(*arguments, code=0):
        monkeypatch.setattr("detcli.commands.eval.bootstrap.RESAMPLES", 100)
        completed = invoke("eval", arguments, "--device", "cpu", "--format", "json")
        assert completed.returncode == code, completed.stderr
        report = json.loads(completed.stdout)
        validator("eval").validate(report)
        return report, completed

    return run


@pytest.mark.slow
@pytest.mark.parametrize("write", [write_coco, write_yolo])
def test_each_side_has_the_figures_of_the_model_alone(evaluate, models, tmp_path, write):
    data = write(tmp_path / "data", SCENES)
    compared, _ = evaluate(models, "--data", data)
    for side, model in zip(("left", "right"), models, strict=True):
        alone, _ = evaluate(model, "--data", data)
        assert compared[side]["metrics"] == alone["metrics"]
        assert compared["map50_95"][side] == alone["metrics"]["map50_95"]
        assert compared["map50"][side] == alone["metrics"]["map50"]
        assert compared[side]["model"] == alone["model"]
        assert compared[side]["limits"] == alone["limits"]
        assert compared[side]["findings"] == alone["findings"]
        assert compared[side]["conf"] == alone["confusions"]["conf"]
        metrics_by_class = {of_class["name"]: of_class["metrics"] for of_class in alone["classes"]}
        for of_class in compared["classes"]:
            metrics = metrics_by_class[of_class["name"]]
            assert of_class[f"{side}_map50_95"] == metrics["map50_95"]
            assert of_class[f"{side}_map50"] == metrics["map50"]


def test_the_difference_is_that_of_the_second_model_to_the_first(evaluate, models, tmp_path):
    data = write_coco(tmp_path / "data", SCENES)
    report, _ = evaluate(models, "--data", data)
    figure = report["map50_95"]
    assert figure["right"] < figure["left"]
    assert figure["difference"] == pytest.approx(figure["right"] - figure["left"], abs=1e-6)
    assert figure["interval"]["low"] < figure["difference"] < figure["interval"]["high"]
    contributions = column_of(report["classes"], "contribution")
    assert sum(contributions) == pytest.approx(figure["difference"], abs=1e-5)
    assert contributions == sorted(contributions, key=abs, reverse=True)
    assert report["data"]["boxes"] == sum(column_of(report["classes"], "boxes"))


@pytest.mark.slow
def test_the_order_of_the_models_only_changes_the_sign(evaluate, models, tmp_path):
    data = write_coco(tmp_path / "data", SCENES)
    report, _ = evaluate(models, "--data", data)
    turned, _ = evaluate(models[::-1], "--data", data)
    assert turned["map50_95"]["difference"] == -report["map50_95"]["difference"]
    assert turned["map50_95"]["interval"]["low"] == -report["map50_95"]["interval"]["high"]
    assert turned["left"]["metrics"] == report["right"]["metrics"]


@pytest.mark.slow
@pytest.mark.parametrize("report_format", ["json", "table"])
def test_the_same_command_prints_the_same(invoke, models, tmp_path, report_format):
    data = write_coco(tmp_path / "data", SCENES)
    arguments = ["eval", models, "--data", data, "--device", "cpu", "--format", report_format]
    first = invoke(arguments)
    assert first.returncode == 0, first.stderr
    assert invoke(arguments).stdout == first.stdout


def test_a_model_does_not_differ_from_itself(evaluate, make_model, tmp_path):
    model = make_model()
    report, _ = evaluate(model, model, "--data", write_coco(tmp_path / "data", SCENES))
    assert report["map50_95"]["difference"] == 0
    assert report["map50_95"]["interval"] == {"low": 0, "high": 0}
    assert report["differing"] == 0
    assert report["images"] == []


def test_the_table_says_which_model_is_better(invoke, models, tmp_path):
    data = write_coco(tmp_path / "data", SCENES)
    arguments = ["--data", data, "--device", "cpu", "--format", "table"]
    table = invoke("eval", models, arguments).stdout
    assert "exact is better\n" in table
    assert "95% of 1000 resamples" in table
    assert "classes that decide\n" in table
    alone = invoke("eval", models[0], arguments).stdout
    figure = alone.partition("mAP50-95")[2].split()[0]
    assert table.partition("mAP50-95  ")[2].split()[0] == figure
    equal = invoke("eval", models[0], models[0], arguments).stdout
    assert "the difference may be chance" in equal


def test_images_are_compared_above_the_best_confidence_of_each_model(evaluate, models, tmp_path):
    """The wide boxes overlap the cell by (1 / 1.2) squared, 0.69, and still match at 0.5."""
    scenes = [
        Scene.found(("red", 1, 1, 0.9), ("green", 4, 4, 0.9)),
        Scene([("red", 1, 1, 0.9)], [("red", 10.6, 8, 8, 8)]),  # only the exact box matches it
    ]
    report, _ = evaluate(models, "--data", write_coco(tmp_path / "data", scenes))
    assert report["differing"] == 1
    [image] = report["images"]
    assert image["source"] == "0002.png"
    assert image["left"] == {"found": 1, "false": 0, "missed": 0}
    assert image["right"] == {"found": 0, "false": 1, "missed": 1}
    assert image["differences"] == 2  # the object, and the false positive
    assert report["left"]["outcomes"] == {"found": 3, "false": 0, "missed": 0}
    assert report["right"]["outcomes"] == {"found": 2, "false": 1, "missed": 1}


def test_an_image_that_one_cannot_read_is_left_out_of_both(evaluate, models, tmp_path, monkeypatch):
    from detcli.commands.eval import run

    reads = Counter()
    load_file = run.load_file

    def fail_at_second_read(path, *arguments):
        reads[path.name] += 1
        if path.name == "0006.png" and reads[path.name] == 2:
            raise SourceError("the disk is gone", "")
        return load_file(path, *arguments)

    data = write_coco(tmp_path / "data", SCENES)
    (tmp_path / "data/images/0003.png").unlink()
    monkeypatch.setattr(run, "load_file", fail_at_second_read)
    page = tmp_path / "page"
    report, completed = evaluate(models, "--data", data, "--report", page, code=3)
    monkeypatch.undo()
    [failed_entry] = records_with(pages.entries(page), "error")
    assert failed_entry["source"].endswith("0006.png")
    assert "one of the models could not read it" in str(failed_entry["error"])
    assert column_of(report["failed"], "source") == ["0003.png", "0006.png"]
    assert report["failed"][1]["error"] == "the disk is gone"
    assert report["data"]["listed"] == 7
    assert report["data"]["evaluated"] == 5
    assert "right: failure: unreadable picture (1)" in completed.stderr

    (tmp_path / "data/images/0006.png").unlink()
    without, _ = evaluate(models, "--data", data, code=3)
    for key in ("map50_95", "map50", "classes", "images"):
        assert report[key] == without[key]


def test_classes_of_one_model_are_left_out_of_the_difference(evaluate, make_model, tmp_path):
    three = make_model("three.onnx")
    names = {"names": str({0: "red", 1: "green", 2: "yellow"})}
    two = make_model("two.onnx", metadata=names, reach=0.6)
    data = write_coco(tmp_path / "data", SCENES)
    report, completed = evaluate(three, two, "--data", data)
    assert report["only_left"] == ["blue"]
    assert report["only_right"] == []
    assert set(column_of(report["classes"], "name")) == {"red", "green"}
    assert "warning: only three knows one category, left out" in completed.stderr
    alone, _ = evaluate(three, "--data", data)
    assert report["left"]["metrics"] == alone["metrics"]

    def drop_blue(content):
        content["categories"].pop()
        drop_labels(content, category_id=13)

    without_blue, _ = evaluate(three, "--data", edit_json(data, drop_blue))
    assert report["map50_95"]["left"] == without_blue["metrics"]["map50_95"]
    assert report["map50_95"]["left"] != alone["metrics"]["map50_95"]


def test_models_without_a_class_in_common_are_refused(invoke, make_model, tmp_path):
    red = make_model("red.onnx", metadata={"names": str({0: "red", 1: "x", 2: "y"})})
    green = make_model("green.onnx", metadata={"names": str({0: "x", 1: "green", 2: "y"})})
    data = write_coco(tmp_path / "data", SCENES)
    completed = invoke("eval", red, green, "--data", data, "--device", "cpu")
    assert completed.returncode == 2
    assert "the models know no category of the data in common" in completed.stderr
    assert "hint: evaluate each by itself" in completed.stderr


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        (["--advise"], "--advise is about one model"),
        (["--plots", "plots"], "--plots draws the curves of one model"),
        (["--save-coco", "saved.json"], "--save-coco writes the detections of one model"),
    ],
)
def test_options_of_one_model_are_refused(invoke, models, tmp_path, option, reason):
    data = write_coco(tmp_path / "data", SCENES)
    completed = invoke("eval", models, "--data", data, option, cwd=tmp_path)
    assert completed.returncode == 2
    assert reason in completed.stderr
    assert "hint: leave it out, or leave out OTHER" in completed.stderr
    assert not (tmp_path / "plots").exists()


def test_a_second_model_that_is_not_there_is_an_error_before_any_image(invoke, models, tmp_path):
    data = write_coco(tmp_path / "data", SCENES)
    completed = invoke("eval", models[0], tmp_path / "none.onnx", "--data", data)
    assert completed.returncode != 0
    assert "none.onnx" in completed.stderr
    assert "Traceback" not in completed.stderr
    assert "images" not in completed.stdout


def test_options_apply_to_both_models(evaluate, models, tmp_path):
    data = write_coco(tmp_path / "data", SCENES)
    report, _ = evaluate(models, "--data", data, "--conf", "0.55", "--max-det", "7")
    for side in ("left", "right"):
        assert report[side]["limits"]["conf"] == 0.55
        assert report[side]["limits"]["max_det"] == 7
        alone, _ = evaluate(
            report[side]["model"]["file"], "--data", data, "--conf", "0.55", "--max-det", "7"
        )
        assert report[side]["metrics"] == alone["metrics"]
        assert "high --conf" in column_of(report[side]["findings"], "kind")


def test_the_times_of_both_models_are_added():
    categories = {0: "red"}
    left: Any = SimpleNamespace(times={Stage.DECODE: 1.0, Stage.WRITE: 4.0}, categories=categories)
    right: Any = SimpleNamespace(times={Stage.DECODE: 2.0}, categories=categories)
    assert ComparisonOfModels(left, right).times == {Stage.DECODE: 3.0, Stage.WRITE: 4.0}


def test_no_image_can_be_read(evaluate, models, tmp_path):
    data = write_coco(tmp_path / "data", SCENES[:1])
    (tmp_path / "data/images/0001.png").write_bytes(b"torn")
    report, _ = evaluate(models, "--data", data, "--report", tmp_path / "page", code=3)
    assert report["map50_95"] == {
        "left": None,
        "right": None,
        "difference": None,
        "interval": None,
    }
    assert report["classes"] == []
    [entry] = pages.entries(tmp_path / "page")
    assert "error" in entry


def test_the_page_shows_the_boxes_of_both_models_beside_the_labels(evaluate, models, tmp_path):
    scenes = [
        Scene.found(("red", 1, 1, 0.9), ("green", 4, 4, 0.9)),
        Scene([("red", 1, 1, 0.9)], [("red", 10.6, 8, 8, 8)]),
    ]
    data = write_coco(tmp_path / "data", scenes)
    report, _ = evaluate(models, "--data", data, "--report", tmp_path / "page")
    [run] = pages.runs(tmp_path / "page")
    assert run["sides"] == ["exact", "wide"]
    assert run["summary"][0] == "exact is better"
    same, different = pages.entries(tmp_path / "page")
    assert pages.kinds_of_boxes(run, same) == ["found by both"] * 2 + ["label"] * 2
    kind_numbers = [box[6] for box in different["found"]]
    assert kind_numbers == [ONLY_LEFT, 5, LABEL]
    assert different["found"][0][2:6] == [8, 8, 16, 16]
    assert different["found"][1][2:6] == pytest.approx([7.2, 7.2, 16.8, 16.8])
    assert different["found"][2][1:6] == [None, 10.6, 8, 18.6, 16]

    wrong_kinds = [number for number, kind in enumerate(run["kinds"]) if kind[4]]
    wrong_boxes = [number for number in kind_numbers if number in wrong_kinds]
    assert len(wrong_boxes) == report["images"][0]["differences"]
    assert ONLY_RIGHT in wrong_kinds
    assert LEFT_FALSE in wrong_kinds
    [(title, columns, rows, record_numbers)] = run["tables"]
    assert title == "Classes that decide"
    assert columns[2] == "left AP50-95"
    classes = [row[0] for row in rows]
    assert record_numbers[classes.index("red")] == [1]
    assert record_numbers[classes.index("green")] == []


def test_categories_of_the_same_name_lead_to_their_own_records(evaluate, make_model, tmp_path):
    names = {"names": str({0: "red", 1: "red", 2: "blue"})}
    exact = make_model("exact.onnx", metadata=names)
    wide = make_model("wide.onnx", metadata=names, reach=0.6)
    scenes = [
        Scene.found(("red", 1, 1, 0.9), ("green", 4, 4, 0.9)),
        Scene([("red", 1, 1, 0.9)], [("red", 10.6, 8, 8, 8)]),
    ]
    data = write_yolo(tmp_path / "data", scenes)
    data.write_text(data.read_text().replace("green", "red"))
    evaluate(exact, wide, "--data", data, "--report", tmp_path / "page")
    [run] = pages.runs(tmp_path / "page")
    [(_, _, rows, record_numbers)] = run["tables"]
    assert [row[0] for row in rows] == ["red", "red"]
    box_counts = [row[1] for row in rows]
    assert record_numbers[box_counts.index(2)] == [1]
    assert record_numbers[box_counts.index(1)] == []


def box(kind, left, category=0, object_box=None):
    """What became of a box of ten pixels that begins at `left`."""
    score = None if kind == MISSED else 0.5
    return MatchedBox(category, [float(left), 0.0, 10.0, 10.0], score, kind, object_box)


def test_false_positives_of_both_models_are_paired_once():
    left = [box(FALSE, 0), box(FALSE, 1), box(FALSE, 50), box(FALSE, 80)]
    right = [box(FALSE, 1), box(FALSE, 50, category=1), box(FALSE, 83)]
    pair = pair_outcomes(left, right)
    pairs = []
    for false_positive in pair.false_positives:
        counterpart = false_positive.counterpart
        place = None if counterpart is None else counterpart.box[0]
        pairs.append((false_positive.detection.box[0], false_positive.is_left, place))
    assert pairs == [(0, True, 1), (1, True, None), (50, True, None), (80, True, 83),
                     (50, False, None)]  # fmt: skip
    assert pair.differing_categories == [0, 0, 1]


def test_an_object_that_is_labelled_twice_is_paired_twice():
    object_box = [0.0, 0.0, 10.0, 10.0]
    left = [box(CORRECT, 1, object_box=object_box), box(MISSED, 0)]
    right = [box(CORRECT, 2, object_box=object_box), box(CORRECT, 3, object_box=object_box)]
    pair = pair_outcomes(left, right)
    first, second = pair.objects
    assert first.left.kind == CORRECT
    assert first.right.kind == CORRECT
    assert second.left.kind == MISSED
    assert second.right.kind == CORRECT
    assert pair.difference_count == 1
