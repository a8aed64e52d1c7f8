"""Tasks for Label Studio; tests/documentation/test_recipes.py has its own library read them."""

import json

import pytest
from sample_records import failure, frame, picture

from detcli.errors import UsageError
from detcli.files import AtomicFile, StandardOutput
from detcli.sink.labels import LabelStudioSink


@pytest.fixture
def tasks(tmp_path):
    """Write records and read the tasks back."""

    def write(*records):
        sink = LabelStudioSink(AtomicFile(tmp_path / "tasks.json"))
        for one in records:
            sink.write(one)
        sink.close()
        return json.loads((tmp_path / "tasks.json").read_text(encoding="utf-8"))

    return write


def test_a_picture_is_a_task_with_a_prediction(tasks):
    (task,) = tasks(picture("a.jpg", "cat", score=0.5))  # 1, 2 to 3, 4.5 of 60 x 40 pixels
    assert task["data"] == {"image": "a.jpg"}
    (prediction,) = task["predictions"]
    assert (prediction["model_version"], prediction["score"]) == ("m", 0.5)
    (region,) = prediction["result"]
    value = region["value"]
    assert value["rectanglelabels"] == ["cat"]
    sides = [value[name] for name in ("x", "y", "width", "height")]
    assert sides == pytest.approx([100 / 60, 5, 200 / 60, 6.25])
    assert (region["original_width"], region["original_height"]) == (60, 40)


def test_pictures_without_detections_are_tasks_and_failed_inputs_are_not(tasks):
    first, second = tasks(picture(count=0), failure(index=1), picture("b.jpg", index=2, count=3))
    assert first["predictions"] == [{"model_version": "m", "result": []}]
    assert [region["id"] for region in second["predictions"][0]["result"]] == ["0", "1", "2"]
    assert tasks() == []


def test_videos_are_refused():
    with pytest.raises(UsageError, match=r"in/film\.avi is a video"):
        LabelStudioSink(StandardOutput()).write(frame())
