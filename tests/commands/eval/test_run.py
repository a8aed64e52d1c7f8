"""Real YOLOv10-N exports on 128 COCO pictures; skipped where ../shared is not there."""

import json

import pytest

STATIC = ["yolov10n-thu", "yolov10n-ultralytics", "yolov10n-raw", "yolov10n-raw-fp16"]


@pytest.mark.parametrize("model", STATIC)
def test_the_figures_of_the_reference_implementation(model, shared, detcli):
    """PyTorch's, by pycocotools on the same pictures: mAP50-95 0.4785, mAP50 0.6539."""
    data = shared("data/coco128/instances.json")
    path = shared(f"models/{model}.onnx")
    done = detcli("eval", path, "--data", data, "--device", "cpu", "-q", timeout=600)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["metrics"]["map50_95"] == pytest.approx(0.4785, abs=0.003)
    assert report["metrics"]["map50"] == pytest.approx(0.6539, abs=0.003)
    assert report["data"]["evaluated"] == 128
    notes = {one["kind"]: one["count"] for one in report["findings"]}
    assert notes["crowd"] == 10
    assert notes["class without boxes"] == 9
