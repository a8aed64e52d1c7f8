"""`detcli eval` with detectors of other families."""

import json

import cv2
import pytest
import query_model
from labelled import Scene, write_coco, write_json

CONFIDENCE = 0.3
FOUND = Scene.found(("red", 1, 1, 0.9), ("green", 4, 4, 0.8), ("blue", 6, 6, 0.9))


@pytest.mark.parametrize("tail", query_model.TAILS)
def test_a_perfect_detr_however_its_graph_ends(invoke, tmp_path, tail):
    (tmp_path / "model.onnx").write_bytes(query_model.named(tail).SerializeToString())
    data = write_coco(tmp_path, [FOUND])
    completed = invoke("eval", tmp_path / "model.onnx", "--data", data, "--device", "cpu")
    assert completed.returncode == 0, completed.stderr
    assert json.loads(completed.stdout)["metrics"]["map50_95"] == 1


def labelled_by_its_family(shared, entry, folder):
    """Images labelled with what the family's own code finds, as COCO has them."""
    images, annotations = [], []
    for number, (name, answer) in enumerate(entry["reference"]["pictures"].items(), 1):
        width, height = answer["size"]
        images.append({"id": number, "file_name": name, "width": width, "height": height})
        for detection in answer["detections"]:
            if detection["score"] <= CONFIDENCE:
                continue
            x1, y1, x2, y2 = detection["box"]
            annotation = {
                "id": len(annotations) + 1,
                "image_id": number,
                "category_id": detection["class"] + 1,
                "bbox": [x1, y1, x2 - x1, y2 - y1],
                "area": (x2 - x1) * (y2 - y1),
                "iscrowd": 0,
            }
            annotations.append(annotation)
        assert cv2.imread(str(shared(f"data/{name}"))).shape[:2] == (height, width)
    categories = [{"id": i + 1, "name": name} for i, name in enumerate(entry["names"])]
    content = {"images": images, "categories": categories, "annotations": annotations}
    return write_json(folder / "instances.json", content)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rtdetr-deploy-c80", "yolonas-c80"])
def test_a_file_finds_what_its_family_finds(invoke, shared, tmp_path, name):
    entry = json.loads(shared(f"families/{name}.json").read_text())
    data = labelled_by_its_family(shared, entry, tmp_path)
    model = shared(f"families/{name}.onnx")
    options = ["--data", data, "--images", shared("data"), "--device", "cpu"]
    options += ["--conf", str(CONFIDENCE)]
    if entry["nms"]:
        options += ["--nms", entry["nms"]["iou"]]
    completed = invoke("eval", model, options)
    assert completed.returncode == 0, completed.stderr
    report = json.loads(completed.stdout)
    assert report["metrics"]["map50_95"] > 0.95
