"""`detcli inspect` as a user runs it."""

import json
import os
import subprocess
import sys

import colour_model
import onnx
import pytest
from onnx import TensorProto, helper

WATCHED = """
import json, sys
opened = []
sys.addaudithook(lambda event, details: event == "open" and opened.append(str(details[0])))
from typer.testing import CliRunner
from detcli.app import app
for arguments in json.loads(sys.argv[1]):
    done = CliRunner().invoke(app, arguments)
    watched = [name for name in opened if "pipe-outside" in name]
    print(json.dumps([done.exit_code, done.stdout, done.stderr, watched]))
    opened.clear()
"""


def report(done):
    found = json.loads(done.stdout)
    assert found["schema_version"] == 1
    return found


@pytest.mark.parametrize("size", [64, None])
@pytest.mark.parametrize("tail", colour_model.TAILS)
def test_json_has_the_facts(invoke, make_model, tail, size):
    done = invoke("inspect", make_model(tail=tail, size=size, batch=size and 1))
    assert (done.returncode, done.stderr) == (0, "")
    found = report(done)
    assert found["detector"]["names"] == list(colour_model.NAMES)
    assert found["problem"] is None
    assert (found["detector"]["cut"] is not None) == (tail in {"ultralytics", "authors"})


def test_a_pipe_gets_json_and_nothing_else(detcli, make_model):
    done = detcli("inspect", make_model(tail="ultralytics"))
    assert (done.returncode, done.stderr) == (0, "")
    assert report(done)["problem"] is None


def test_a_recommended_confidence_is_shown(invoke, make_model):
    model = make_model(metadata={"detcli.conf": "0.4"})
    assert report(invoke("inspect", model))["detector"]["conf"] == 0.4
    table = invoke("inspect", model, "--format", "table").stdout
    assert "0.4 is recommended, and used unless --conf is given" in table


def test_a_recommended_suppression_is_shown(detcli, make_model):
    model = make_model(tail="one-to-many", metadata={"detcli.nms": "0.7"})
    found = report(detcli("inspect", model))
    assert (found["detector"]["nms"], found["detector"]["needs_nms"]) == (0.7, True)
    assert "one-to-many" not in {advice["code"] for advice in found["warnings"]}
    table = " ".join(detcli("inspect", model, "--format", "table").stdout.split())
    assert "an IoU of 0.7 is recommended, and used unless --nms is given" in table


@pytest.mark.slow
def test_a_real_model(invoke, shared):
    """test_examine.py reads others."""
    done = invoke("inspect", shared("models/yolov8n-320-int8.onnx"))
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
def test_another_kind_of_model_is_reported_with_exit_code_4(invoke, tmp_path, form):
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        classifier (float[1, 3, 8, 8] images) => (float[1, 192] scores) {
            scores = Flatten(images)
        }
    """)
    onnx.save_model(model, tmp_path / "classifier.onnx")
    done = invoke("inspect", tmp_path / "classifier.onnx", "--format", form)
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
def test_an_unreadable_file_is_exit_code_4_without_a_traceback(invoke, tmp_path, content):
    (tmp_path / "model.onnx").write_bytes(content)
    done = invoke("inspect", tmp_path / "model.onnx", "-vv")
    assert (done.returncode, done.stdout) == (4, "")
    assert "not an ONNX model, or is truncated" in done.stderr
    quiet = invoke("inspect", tmp_path / "model.onnx")
    assert quiet.returncode == 4
    assert "hint: " in quiet.stderr


@pytest.mark.parametrize(
    "arguments", [[], ["a", "b"], ["a", "--format", "xml"], ["a", "--device", "x"]]
)
def test_wrong_usage_is_exit_code_2(invoke, arguments):
    assert invoke("inspect", *arguments).returncode == 2


def test_options_that_do_not_fit_are_exit_code_2(invoke, make_model, tmp_path):
    (tmp_path / "names").write_text("a\n")
    assert invoke("inspect", make_model(), "--names", tmp_path / "names").returncode == 2
    assert invoke("inspect", make_model(), "--imgsz", 96).returncode == 2


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
def test_external_data_outside_the_folder_is_never_opened(tmp_path, make_picture):
    """Opening the pipe, in Python or in a library, would wait for a writer forever."""
    (tmp_path / "outside").mkdir()
    os.mkfifo(tmp_path / "outside" / "pipe-outside")
    models = {}
    for way, location in {
        "parent": "../outside/pipe-outside",
        "absolute": str(tmp_path / "outside" / "pipe-outside"),
        "link": "pipe-outside",
        "linked folder": "linked/pipe-outside",
        "inside": "pipe-outside",
    }.items():
        (tmp_path / way).mkdir()
        models[way] = poisoned(tmp_path / way / "model.onnx", location)
    (tmp_path / "link" / "pipe-outside").symlink_to("../outside/pipe-outside")
    (tmp_path / "linked folder" / "linked").symlink_to("../outside")
    (tmp_path / "inside" / "pipe-outside").write_bytes(bytes(8))
    runs = [
        ["predict", make_picture("a.png"), "--model", models["parent"]],
        *(["inspect", model] for model in models.values()),
    ]
    finished = subprocess.run(
        [sys.executable, "-c", WATCHED, json.dumps(runs, default=str)],
        check=True,
        stdout=subprocess.PIPE,
        timeout=60,
    )
    *refused, inside = map(json.loads, finished.stdout.splitlines())
    for code, printed, said, opened in refused:
        assert (code, printed, opened) == (4, "", [])
        assert "the external data of" in said
    code, _, _, opened = inside
    assert code == 0
    assert str(tmp_path / "inside" / "pipe-outside") in opened


def test_missing_external_data_is_named(detcli, tmp_path):
    model = poisoned(tmp_path / "model.onnx", "weights.bin")
    done = detcli("inspect", model)
    assert done.returncode == 4
    assert "hint: put weights.bin beside the model" in done.stderr
    (tmp_path / "weights.bin").write_bytes(bytes(8))
    found = report(detcli("inspect", model))
    assert [file["name"] for file in found["external"]] == ["weights.bin"]
