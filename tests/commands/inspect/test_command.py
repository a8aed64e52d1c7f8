"""`detcli inspect` as a user runs it."""

import json
import os
import subprocess
import sys

import colour_model
import onnx
import pytest
from onnx import TensorProto, helper
from report_schemas import validator

WATCHED = """
import sys
opened = []
sys.addaudithook(lambda event, details: event == "open" and opened.append(str(details[0])))
from detcli.__main__ import main
try:
    main()
finally:
    print("opened:", [name for name in opened if "pipe-outside" in name], file=sys.stderr)
"""


def report(done):
    found = json.loads(done.stdout)
    validator("inspect").validate(found)
    return found


@pytest.mark.parametrize("size", [64, None])
@pytest.mark.parametrize("tail", colour_model.TAILS)
def test_json_in_a_pipe_follows_the_schema(detcli, make_model, tail, size):
    done = detcli("inspect", make_model(tail=tail, size=size, batch=size and 1))
    assert (done.returncode, done.stderr) == (0, "")
    found = report(done)
    assert found["detector"]["names"] == list(colour_model.NAMES)
    assert found["problem"] is None
    assert (found["detector"]["cut"] is not None) == (tail in {"ultralytics", "authors"})


def test_a_recommended_confidence_is_shown(detcli, make_model):
    model = make_model(metadata={"detcli.conf": "0.4"})
    assert report(detcli("inspect", model))["detector"]["conf"] == 0.4
    table = detcli("inspect", model, "--format", "table").stdout
    assert "0.4 is recommended, and used unless --conf is given" in table


def test_a_recommended_suppression_is_shown(detcli, make_model):
    model = make_model(tail="one-to-many", metadata={"detcli.nms": "0.7"})
    found = report(detcli("inspect", model))
    assert (found["detector"]["nms"], found["detector"]["needs_nms"]) == (0.7, True)
    assert "one-to-many" not in {advice["code"] for advice in found["warnings"]}
    table = " ".join(detcli("inspect", model, "--format", "table").stdout.split())
    assert "an IoU of 0.7 is recommended, and used unless --nms is given" in table


@pytest.mark.slow
def test_a_real_model(detcli, shared):
    """test_examine.py reads others."""
    done = detcli("inspect", shared("models/yolov8n-320-int8.onnx"))
    assert done.returncode == 0, done.stderr
    found = report(done)
    assert found["parameters"] > 2_000_000
    assert (found["detector"]["layout"], found["inputs"][0]["dtype"]) == ("one-to-many", "float32")
    assert found["detector"]["names"][5] == "bus"


def test_a_table_on_request(detcli, make_model):
    done = detcli("inspect", make_model(tail="authors"), "--format", "table")
    assert done.returncode == 0, done.stderr
    assert "end-to-end" in done.stdout
    assert "warning: its own TopK nodes keep at most 16" in done.stdout
    assert "  fix: " in done.stdout


@pytest.mark.parametrize("form", ["table", "json"])
def test_another_kind_of_model_is_reported_with_exit_code_4(detcli, tmp_path, form):
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        classifier (float[1, 3, 8, 8] images) => (float[1, 192] scores) {
            scores = Flatten(images)
        }
    """)
    onnx.save_model(model, tmp_path / "classifier.onnx")
    done = detcli("inspect", tmp_path / "classifier.onnx", "--format", form)
    assert done.returncode == 4
    assert "classifier.onnx is not a detector that detcli knows" in done.stderr
    assert "hint: expected pictures [B, 3, H, W]" in done.stderr
    if form == "json":
        found = report(done)
        assert found["detector"] is None
        assert found["nodes"] == {"Flatten": 1}
        assert "not a detector" in found["problem"]["message"]
    else:
        assert "cannot be used: classifier.onnx is not a detector" in done.stdout
        assert "1 Flatten" in done.stdout


WHOLE = colour_model.build("authors").SerializeToString()


@pytest.mark.parametrize(
    "content",
    [b"", b"#!/bin/sh\n", b"\x89PNG\r\n\x1a\n", WHOLE[:100], WHOLE[:-50], WHOLE[50:]],
    ids=["empty", "script", "picture", "100 bytes", "all but 50", "without its head"],
)
def test_an_unreadable_file_is_exit_code_4_without_a_traceback(detcli, tmp_path, content):
    (tmp_path / "model.onnx").write_bytes(content)
    done = detcli("inspect", tmp_path / "model.onnx", "-vv")
    assert (done.returncode, done.stdout) == (4, "")
    assert "not an ONNX model, or is truncated" in done.stderr
    quiet = detcli("inspect", tmp_path / "model.onnx")
    assert "Traceback" not in quiet.stderr
    assert "hint: " in quiet.stderr


@pytest.mark.parametrize(
    "arguments", [[], ["a", "b"], ["a", "--format", "xml"], ["a", "--device", "x"]]
)
def test_wrong_usage_is_exit_code_2(detcli, arguments):
    assert detcli("inspect", *arguments).returncode == 2


def test_options_that_do_not_fit_are_exit_code_2(detcli, make_model, tmp_path):
    (tmp_path / "names").write_text("a\n")
    assert detcli("inspect", make_model(), "--names", tmp_path / "names").returncode == 2
    assert detcli("inspect", make_model(), "--imgsz", 96).returncode == 2


def poisoned(path, location):
    """A model with one tensor in a file."""
    model = colour_model.build()
    tensor = helper.make_tensor("poison", TensorProto.FLOAT, [2], bytes(8), raw=True)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    model.graph.initializer.append(tensor)
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.skipif(sys.platform == "win32", reason="needs named pipes")
@pytest.mark.parametrize(
    ("command", "way"),
    [
        *(("inspect", way) for way in ("parent", "absolute", "link", "linked folder")),
        ("predict", "parent"),
    ],
)
def test_external_data_outside_the_folder_is_never_opened(tmp_path, make_picture, command, way):
    """Opening the pipe, in Python or in a library, would wait for a writer forever."""
    outside, folder = tmp_path / "outside", tmp_path / "models"
    outside.mkdir()
    folder.mkdir()
    os.mkfifo(outside / "pipe-outside")
    location = {
        "parent": "../outside/pipe-outside",
        "absolute": str(outside / "pipe-outside"),
        "link": "pipe-outside",
        "linked folder": "linked/pipe-outside",
    }[way]
    if way == "link":
        (folder / "pipe-outside").symlink_to("../outside/pipe-outside")
    (folder / "linked").symlink_to("../outside")
    model = poisoned(folder / "model.onnx", location)
    arguments = [model] if command == "inspect" else [make_picture("a.png"), "--model", model]
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, command, *map(str, arguments)],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 4
    assert done.stdout == ""
    assert "the external data of" in done.stderr
    assert "opened: []" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_audit_hook_sees_opened_files(tmp_path):
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "pipe-outside").write_bytes(bytes(8))
    model = poisoned(folder / "model.onnx", "pipe-outside")
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, "inspect", str(model)],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0
    assert str(folder / "pipe-outside") in done.stderr


def test_missing_external_data_is_named(detcli, tmp_path):
    model = poisoned(tmp_path / "model.onnx", "weights.bin")
    done = detcli("inspect", model)
    assert done.returncode == 4
    assert "hint: put weights.bin beside the model" in done.stderr
    (tmp_path / "weights.bin").write_bytes(bytes(8))
    found = report(detcli("inspect", model))
    assert [file["name"] for file in found["external"]] == ["weights.bin"]


def test_the_schema_command_prints_it(detcli):
    assert json.loads(detcli("schema", "inspect").stdout) == validator("inspect").schema
