"""Labels with keypoints, oriented boxes and polygons, and labels that are there twice."""

import json

import pytest
from labelled import MIXED, counts, edit_json, read, write_coco, write_yolo

from detcli.core.errors import UsageError

KEYPOINTS = "label of equally many numbers each, as keypoints have"


def write_labels(folder, *lines, description=""):
    """A data set whose first image has these labels."""
    data = write_yolo(folder, MIXED)
    (folder / "labels/val/0001.txt").write_text("\n".join(lines) + "\n")
    data.write_text(data.read_text() + description)
    return data


def boxes_of(dataset):
    return dataset.samples[0].objects["box"].round(6).tolist()


@pytest.mark.parametrize(
    ("shape", "keypoints"),
    [
        ("[2, 2]", "0.9 0.9 0.1 0.8"),
        ("[2, 3]", "0.9 0.9 2 0.1 0.8 1"),
        ("[1, 3]", "0.9 0.9 2"),
        ("[17, 2]", " ".join(["0.9"] * 34)),
        ("[17, 3]", " ".join(["0.9"] * 51)),
    ],
)
def test_the_box_of_a_pose_label_is_its_first_four_numbers(tmp_path, shape, keypoints):
    description = f"kpt_shape: {shape}\n"
    label = f"1 0.5 0.5 0.25 0.25 {keypoints}"
    data = write_labels(tmp_path, label, description=description)
    dataset, findings = read(data)
    assert boxes_of(dataset) == [[0.375, 0.375, 0.25, 0.25]]
    assert findings == {}


def test_a_pose_label_of_another_length_is_left_out(tmp_path):
    data = write_labels(
        tmp_path,
        "0 0.5 0.5 0.25 0.25 0.9 0.9 2",
        "0 0.1 0.1 0.2 0.1 0.2 0.2 0.1 0.2",
        "0 0.5 0.5 0.25 0.25",
        description="kpt_shape: [1, 3]\n",
    )
    dataset, findings = read(data)
    assert len(boxes_of(dataset)) == 2
    (example,) = findings["unreadable label"].examples
    assert example.endswith("0001.txt:2: 9 numbers in a line, not 8")


@pytest.mark.parametrize(
    "shape",
    ["17", "23", "{2: a, 3: b}", "[17]", "[17, 4]", "[0, 2]", "[two, 2]", "[1, 2, 3]"],
)
def test_a_malformed_shape_is_refused(tmp_path, shape):
    data = write_labels(tmp_path, "0 0.5 0.5 0.1 0.1", description=f"kpt_shape: {shape}\n")
    with pytest.raises(UsageError, match="kpt_shape is malformed"):
        read(data)


def test_no_shape_is_as_none_at_all(tmp_path):
    triangle = "0 0.1 0.2 0.5 0.2 0.5 0.6"
    data = write_labels(tmp_path, triangle, description="kpt_shape: null\n")
    assert boxes_of(read(data)[0]) == [[0.1, 0.2, 0.4, 0.4]]


def test_keypoints_without_a_shape_are_suspected(tmp_path):
    label = "0.5 0.5 0.25 0.25 " + "0.5 0.5 " * 3
    data = write_labels(tmp_path, f"0 {label}", f"1 {label}")
    _, findings = read(data)
    assert findings[KEYPOINTS].count == 2
    assert findings[KEYPOINTS].level == "warning"
    assert findings[KEYPOINTS].examples[0].endswith("0001.txt:1: 11 numbers")


def test_keypoints_of_an_odd_count_without_a_shape_are_left_out_with_a_hint(tmp_path):
    data = write_labels(tmp_path, "0 0.5 0.5 0.25 0.25 0.5 0.5 2", "0 0.5 0.5 0.25 0.25")
    _, findings = read(data)
    (example,) = findings["unreadable label"].examples
    assert "8 numbers in a line; boxes with keypoints need a data.yaml with kpt_shape" in example


def test_polygons_differ_in_length_and_are_not_suspected(tmp_path):
    triangle = "0.1 0.2 0.5 0.2 0.5 0.6"
    data = write_labels(tmp_path, f"0 {triangle}", f"0 {triangle} 0.1 0.6", f"1 {triangle}")
    dataset, findings = read(data)
    assert boxes_of(dataset) == [[0.1, 0.2, 0.4, 0.4]] * 3
    assert findings == {}


def test_oriented_boxes_are_read_as_corners_and_noted(tmp_path):
    corners = "0.3 0.1 0.5 0.3 0.3 0.5 0.1 0.3"
    data = write_labels(tmp_path, f"0 {corners}", f"1 {corners}")
    dataset, findings = read(data)
    assert boxes_of(dataset) == [[0.1, 0.1, 0.4, 0.4]] * 2
    assert findings["label of eight numbers"].level == "note"


def test_a_line_that_is_there_twice_is_evaluated_once_and_said(tmp_path):
    data = write_labels(
        tmp_path,
        "0 0.5 0.5 0.25 0.25",
        "1 0.5 0.5 0.25 0.25",
        "0 0.50 0.5 0.25 0.25",
        "0 0.5 0.5 0.25 0.2",
    )
    dataset, findings = read(data)
    assert len(boxes_of(dataset)) == 3
    assert counts(findings) == {"label that is there twice": 1}
    assert findings["label that is there twice"].examples[0].endswith("0001.txt:3")


def test_an_annotation_that_is_there_twice_counts_twice_and_is_said(tmp_path):
    def repeat(content):
        content["annotations"].append({**content["annotations"][0], "id": 1000})

    data = edit_json(write_coco(tmp_path, MIXED), repeat)
    dataset, findings = read(data)
    labels = sum(len(scene.labels) for scene in MIXED)
    assert sum(len(sample.objects) for sample in dataset.samples) == labels + 1
    assert findings["annotation that is there twice"].count == 1


def objects_of(dataset):
    """The labels of each image, as lists."""
    return [sample.objects.tolist() for sample in dataset.samples]


def test_keypoints_of_coco_leave_its_boxes_as_they_are(tmp_path):
    data = write_coco(tmp_path, MIXED)
    before = objects_of(read(data)[0])

    def add_keypoints(content):
        for annotation in content["annotations"]:
            annotation["keypoints"] = [1, 2, 2] * 17
            annotation["num_keypoints"] = 17
            annotation["segmentation"] = [[0, 0, 60, 0, 60, 60]]

    after = objects_of(read(edit_json(data, add_keypoints))[0])
    assert str(after) == str(before)


@pytest.mark.parametrize("case", ["pose2x2", "pose2x3", "pose17x2"])
def test_cases_of_pose_labels_are_measured_right(invoke, shared, case):
    data = shared(f"cases/{case}/data.yaml")
    model = shared("cases/cells.onnx")
    arguments = ("--device", "cpu", "--format", "json", "-q")
    result = invoke("eval", model, "--data", data, arguments)
    report = json.loads(result.stdout)
    assert report["metrics"]["map50"] == 1
    assert report["findings"] == []
