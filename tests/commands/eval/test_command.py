"""`detcli eval`: output, files and exit codes."""

import json
import shlex
import sys

import cv2
import numpy as np
import pytest
from colour_model import NAMES
from comparisons import figures, pycocotools
from folders import contents_of
from json_lines import column_of
from labelled import MIXED, Scene, drop_labels, edit_json, write_coco, write_yolo
from report_schemas import validator


@pytest.fixture
def evaluate(invoke, make_model):
    """Run it on data; returns the report, all of standard output, and the result."""
    model = make_model()

    def run(data, *arguments):
        completed = invoke("eval", model, "--data", data, "--device", "cpu", arguments)
        report = json.loads(completed.stdout)
        validator("eval").validate(report)
        return report, completed

    return run


def findings(report):
    return {finding["kind"]: finding["count"] for finding in report["findings"]}


def test_a_perfect_model(evaluate, tmp_path):
    scene = Scene.found(("red", 1, 1, 0.9), ("green", 4, 4, 0.8), ("blue", 6, 6, 0.7))
    report, completed = evaluate(write_coco(tmp_path, [scene]))
    assert completed.returncode == 0
    metrics = report["metrics"]
    assert metrics["map50_95"] == metrics["map50"] == metrics["ar_1"] == metrics["map_small"] == 1
    assert metrics["map_large"] is None
    assert report["data"]["form"] == "coco"
    assert report["data"]["boxes"] == 3
    assert report["limits"] == {
        "conf": 0.001,
        "max_det": 300,
        "per_class": 100,
        "nms": None,
        "tile": None,
    }
    assert column_of(report["classes"], "category_id") == [11, 12, 13]
    assert report["findings"] == []
    assert report["advice"] is None
    assert "1 image, 3 detections" in completed.stderr


def test_jpegs_are_decoded_into_the_devices_memory(evaluate, tmp_path, allocated):
    pytest.importorskip("simplejpeg")
    data = write_coco(tmp_path, [Scene.found(("red", 1, 1, 0.9))])
    (path,) = tmp_path.rglob("*.png")
    path.write_bytes(cv2.imencode(".jpg", cv2.imread(str(path)))[1].tobytes())
    evaluate(data)
    assert allocated == [(64, 64)]


def test_eval_saves_the_same_results_as_predict(evaluate, invoke, make_model, tmp_path):
    data = write_coco(tmp_path, MIXED)
    saved_by_eval = tmp_path / "a.json"
    saved_by_predict = tmp_path / "b.json"
    evaluate(data, "--save-coco", saved_by_eval)
    options = ["--model", make_model(), "--conf", "0.001", "--device", "cpu", "-q"]
    options += ["--coco-images", data, "--save-coco", saved_by_predict]
    assert invoke("predict", tmp_path / "images", options).returncode == 0
    assert json.loads(saved_by_eval.read_text()) == json.loads(saved_by_predict.read_text()) != []


def test_pycocotools_repeats_the_figures(evaluate, tmp_path, random):
    """On noise, where the scores of hundreds of boxes differ in the seventh digit."""
    boxes = []
    for column in range(8):
        for row in range(0, 8, 2):
            boxes.append((NAMES[column % 3], 8 * column, 8 * row, 8, 8))
    data = write_coco(tmp_path, [Scene([], boxes) for _ in range(4)])  # type: ignore[arg-type]
    results = tmp_path / "r.json"
    for path in (tmp_path / "images").iterdir():
        cv2.imwrite(str(path), random.integers(112, 117, (64, 64, 3)).astype(np.uint8))
    report, _ = evaluate(data, "--save-coco", results)
    truth = json.loads(data.read_bytes())
    detections = json.loads(results.read_bytes())
    images = column_of(truth["images"], "id")
    categories = column_of(truth["categories"], "id")
    evaluation = pycocotools(images, categories, truth["annotations"], detections)
    assert list(report["metrics"].values()) == figures(evaluation.stats)
    assert 0 < report["metrics"]["map50_95"] < 1


def test_unreadable_images_are_left_out_and_listed(evaluate, tmp_path):
    data = write_coco(tmp_path, MIXED)
    (tmp_path / "images/0002.png").unlink()
    (tmp_path / "images/0004.png").write_bytes(b"torn")
    report, completed = evaluate(data)
    assert completed.returncode == 3
    assert column_of(report["failed"], "source") == ["0002.png", "0004.png"]
    assert report["data"]["listed"] == 5
    assert report["data"]["evaluated"] == 3
    assert findings(report) == {"missing picture": 1, "unreadable picture": 1}
    assert "missing picture (1): left out of the figures" in completed.stderr
    _, completed = evaluate(data, "-q", "--conf", "0.3")
    assert completed.returncode == 3
    assert completed.stderr.count("\n") == 1
    assert "0004.png: not an image" in completed.stderr
    rest, _ = evaluate(write_coco(tmp_path / "rest", [MIXED[0], MIXED[2], MIXED[4]]))
    assert rest["metrics"] == report["metrics"]


@pytest.mark.slow
def test_no_image_can_be_read(evaluate, tmp_path):
    data = write_coco(tmp_path, MIXED[:1])
    (tmp_path / "images/0001.png").write_bytes(b"torn")
    folder = tmp_path / "a/b"
    report, completed = evaluate(data, "--advise", "--plots", folder, "--conf", 0.5)
    assert completed.returncode == 3
    assert report["confusions"]["conf"] == 0.5  # not the usual one, below the run's
    assert report["metrics"]["map50_95"] is None
    assert report["advice"] is None
    assert report["evaluator"].startswith("hotcoco 1.")
    assert report["plots"] == [
        f"{folder}/precision_recall.png",
        f"{folder}/f1_confidence.png",
        f"{folder}/confusion_matrix.png",
    ]
    for path in report["plots"]:
        assert cv2.imread(path) is not None


def test_oddities_of_the_data_are_reported(evaluate, tmp_path):
    def spoil(data):
        data["annotations"] += [
            {"id": 90, "image_id": 1, "category_id": 11, "bbox": [60, 0, 40, 8]},
            {"id": 91, "image_id": 1, "category_id": 99, "bbox": [0, 0, 8, 8]},
            {"id": 92, "image_id": 1, "category_id": 20, "bbox": [0, 0, 8, 8]},
            {"id": 93, "image_id": 1, "category_id": 11, "bbox": [0, 0, 64, 64], "iscrowd": 1},
        ]
        data["categories"].append({"id": 20, "name": "purple"})
        data["images"][1]["width"] = 640
        drop_labels(data, category_id=13)

    report, completed = evaluate(edit_json(write_coco(tmp_path, MIXED), spoil), "--conf", "0.3")
    assert completed.returncode == 0
    assert findings(report) == {
        "box outside the picture": 1,
        "box of an unknown category": 1,
        "category that the model does not know": 1,
        "picture of another size than the data says": 1,
        "class without boxes": 1,
        "crowd": 1,
        "high --conf": 1,
    }
    assert completed.stderr.count("warning: ") == 5
    assert "note: " not in completed.stderr  # these are not repeated here
    blue = report["classes"][2]
    assert blue["name"] == "blue"
    assert blue["boxes"] == 0
    assert blue["detections"] == 1
    assert blue["metrics"]["map50_95"] is None


def test_predict_keeps_what_the_advice_says(evaluate, invoke, make_model, tmp_path):
    scenes = [
        Scene([("red", 1, 1, 0.9), ("red", 5, 5, 0.5), ("green", 3, 3, 0.3)],
              [("red", 8, 8, 8, 8), ("green", 24, 24, 8, 8)]),
        Scene([("red", 2, 2, 0.8), ("green", 6, 6, 0.2)],
              [("red", 16, 16, 8, 8)]),
    ]  # fmt: skip
    data = write_yolo(tmp_path, scenes * 5)  # advice by class needs ten boxes
    report, _ = evaluate(data, "--advise")
    assert report["data"]["form"] == "yolo"
    assert report["data"]["split"] == "val"
    advice = report["advice"]
    assert advice["conf"] == 0.25
    assert advice["by_class"]["f1"] == 1
    assert advice["by_class_argument"] == "--conf 0.25,red=0.65"
    for argument, detection_count in (("argument", 20), ("by_class_argument", 15)):
        command = ["-m", make_model(), "--device", "cpu"] + shlex.split(advice[argument])
        completed = invoke("predict", tmp_path / "images/val", command)
        total = 0
        for line in completed.stdout.splitlines():
            total += len(json.loads(line)["detections"])
        assert total == detection_count


def test_names_from_a_file(evaluate, tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("green\nred\nother\n")
    report, _ = evaluate(write_coco(tmp_path, MIXED), "--names", names)
    assert report["data"]["mapped_by"] == "name"
    assert column_of(report["classes"], "name") == ["green", "red"]
    assert findings(report)["class that the data does not know"] == 1


def test_the_table(invoke, make_model, tmp_path):
    confused = Scene([("green", 5, 5, 0.95)], [("blue", 40, 40, 8, 8)])
    data = write_coco(tmp_path, list(MIXED) + [confused])
    (tmp_path / "images/0002.png").unlink()
    options = ["--device", "cpu", "--format", "table", "--advise"]
    completed = invoke("eval", make_model(), "--data", data, options)
    assert completed.returncode == 3
    titles = []
    for line in completed.stdout.splitlines():
        if line.strip():
            titles.append(line.split()[0])
    # The main figures come last, where a terminal stands still.
    assert titles[-7:] == ["all", "mAP50-95", "mAP50", "mAP75", "AR,", "AR,", "AR,"]
    for text in (
        "small",
        "hotcoco",
        "missing picture (1): left out",
        "\n  0002.png\n",
        "--conf ",
        "confused above 0.",
        "blue found as green 1x",
        "class  boxes  AP50-95",
        " *2  ",
        "* fewer than 10 boxes: may be chance, left out of --conf",
    ):
        assert text in completed.stdout
    assert "missing picture" not in completed.stderr  # it is in the table


@pytest.mark.parametrize("module", ["hotcoco", "matplotlib"])
def test_without_a_package_it_says_what_to_install(
    module, invoke, make_model, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, module, None)
    data = write_coco(tmp_path, MIXED)
    completed = invoke("eval", make_model(), "--data", data, "--plots", tmp_path / "plots")
    assert completed.returncode == 1
    assert f"{module} does not load" in completed.stderr
    assert 'pip install "detcli[eval]"' in completed.stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--save-coco", "images/0001.png"], "is one of the inputs"),
        (["--save-coco", "instances.json"], "is one of the inputs"),
        (["--plots", "images"], "is one of the inputs"),
        (["--split", "val"], "has no parts"),
        (["--images", "nowhere"], "no such folder"),
        (["--conf", "2"], "--conf is 2"),
        (["--data", "data.yaml", "--save-coco", "data.yaml"], "is one of the inputs"),
        (["--data", ".", "--save-coco", "data.yaml"], "is one of the inputs"),
        (["--data", "data.yaml", "--save-coco", "list.txt"], "is one of the inputs"),
        (["--data", "list.txt", "--save-coco", "list.txt"], "is one of the inputs"),
        (["--data", ".", "--save-coco", "labels/val/0001.txt"], "is one of the inputs"),
        (["--data", "list.txt", "--save-coco", "images/val/0001.png"], "is one of the inputs"),
        (["--names", "names.txt", "--save-coco", "names.txt"], "is one of the inputs"),
    ],
)
def test_usage_errors_leave_all_files_as_they_were(arguments, reason, invoke, make_model, tmp_path):
    data = write_coco(tmp_path, MIXED)
    write_yolo(tmp_path, MIXED).write_text(f"val: list.txt\nnames: {list(NAMES)}\n")
    (tmp_path / "list.txt").write_text("images/val/0001.png\n")
    (tmp_path / "names.txt").write_text("\n".join(NAMES))
    (tmp_path / "images/0001.png").rename(tmp_path / "images/f1_confidence.png")
    edit_json(data, lambda content: content["images"][0].update(file_name="f1_confidence.png"))
    (tmp_path / "images/0001.png").symlink_to(tmp_path / "images/f1_confidence.png")
    before = contents_of(tmp_path)
    if "--data" not in arguments:
        arguments = ["--data", data] + arguments
    completed = invoke("eval", make_model(), "--device", "cpu", arguments, cwd=tmp_path)
    assert completed.returncode == 2
    assert completed.stdout == ""
    assert reason in completed.stderr
    assert "hint: " in completed.stderr
    for path, content in before.items():
        assert path.read_bytes() == content, path


def test_small_objects_of_large_images_are_found_in_tiles(evaluate, tmp_path):
    data = write_coco(tmp_path, [Scene.found(("red", 2, 3, 1.0), ("blue", 6, 6, 1.0))])
    (path,) = tmp_path.rglob("*.png")
    large = cv2.copyMakeBorder(cv2.imread(str(path)), 0, 48, 0, 96, cv2.BORDER_CONSTANT)
    cv2.imwrite(str(path), large)
    edit_json(data, lambda content: content["images"][0].update(width=160, height=112))
    untiled, _ = evaluate(data, "--conf", 0.6)
    tiled, completed = evaluate(data, "--conf", 0.6, "--tile", "64,overlap=0.25")
    assert untiled["metrics"]["ar_100"] == 0
    assert tiled["metrics"]["ar_100"] == 1
    assert untiled["limits"]["tile"] is None
    assert tiled["limits"]["tile"] == "64,overlap=0.25"
    assert completed.returncode == 0
