"""Commands that fetch a model by its name."""

import hashlib
import json

import pytest
from commands.bench.requests import shorten
from labelled import MIXED, write_coco

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("line", "file"),
    [
        ("inspect yolov10n", None),
        ("convert yolov10n -o out.onnx --metadata made=here --image a.png", "model"),
        ("verify yolov10n colours.onnx --images a.png", "left"),
        ("bench --seconds 0.05 --cold-starts 0", "model"),  # the default model
        ("eval yolov10n --data coco/instances.json", "model"),
        ("eval yolov10n --data coco/instances.json --half", "model"),
    ],
)
def test_a_model_is_fetched_by_its_name(  # noqa: PLR0913, PLR0917 - fixtures
    line, file, hub, make_model, make_image, invoke, tmp_path, monkeypatch, caplog
):
    shorten(monkeypatch)
    make_image("a.png", ("red", 1, 1))
    write_coco(tmp_path / "coco", MIXED)
    plain, half = make_model().read_bytes(), make_model("half.onnx", dtype="float16").read_bytes()
    hub.add("yolov10n", plain, half=half)
    process = invoke(line.split(), cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert (
        "fetching yolov10n" in process.stderr + caplog.text
    )  # within this process, pytest logs it
    report = json.loads(process.stdout)
    expected = half if "--half" in line else plain
    entry = report if file is None else report[file]
    assert entry["sha256"] == hashlib.sha256(expected).hexdigest()
