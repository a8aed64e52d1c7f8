"""Commands that fetch a model by its name."""

import hashlib
import json

import pytest
from commands.bench.requests import shorten
from labelled import MIXED, write_coco

QUICK = ("--device", "cpu")


@pytest.fixture
def content(hub, make_model):
    """Content of yolov10n on the hub."""
    data = make_model().read_bytes()
    hub.add("yolov10n", data)
    return data


@pytest.fixture
def report_of(caplog):
    """The report of a command that announced the download; within this process, pytest logs it."""

    def report_of(done):
        assert done.returncode == 0, done.stderr
        assert "fetching yolov10n: onnx/model.onnx" in done.stderr + caplog.text
        return json.loads(done.stdout)

    return report_of


def test_inspect(detcli, report_of, content):
    report = report_of(detcli("inspect", "yolov10n"))
    assert report["sha256"] == hashlib.sha256(content).hexdigest()
    assert report["detector"]["names"] == ["red", "green", "blue"]


def test_convert(invoke, report_of, content, make_picture, tmp_path):
    picture = make_picture("a.png", ("red", 1, 1))
    output = tmp_path / "out.onnx"
    done = invoke(
        "convert", "yolov10n", "-o", output, "--metadata", "made=here", "--image", picture
    )
    report = report_of(done)
    assert report["model"]["sha256"] == hashlib.sha256(content).hexdigest()
    assert output.read_bytes() != content


def test_verify(invoke, report_of, content, make_model, make_picture):
    picture, other = make_picture("a.png", ("red", 1, 1)), make_model("other.onnx")
    report = report_of(invoke("verify", "yolov10n", other, "--images", picture))
    digest = hashlib.sha256(content).hexdigest()
    assert [report[side]["sha256"] for side in ("left", "right")] == [digest, digest]


def test_bench_takes_the_default_model(invoke, report_of, content, tmp_path, monkeypatch):
    shorten(monkeypatch)
    done = invoke("bench", "--seconds", "0.05", "--cold-starts", "0", *QUICK, cwd=tmp_path)
    report = report_of(done)
    assert report["model"] == {"file": "yolov10n", "sha256": hashlib.sha256(content).hexdigest()}


def test_eval(invoke, report_of, content, tmp_path):
    report = report_of(invoke("eval", "yolov10n", "--data", write_coco(tmp_path, MIXED), *QUICK))
    assert report["model"]["file"] == "yolov10n"
    assert report["model"]["sha256"] == hashlib.sha256(content).hexdigest()


def test_eval_takes_the_float16_file(invoke, hub, make_model, tmp_path):
    data = make_model("half.onnx", dtype="float16").read_bytes()
    hub.add("yolov10n", b"not this one", half=data)
    done = invoke("eval", "yolov10n", "--half", "--data", write_coco(tmp_path, MIXED), *QUICK)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["model"]["sha256"] == hashlib.sha256(data).hexdigest()
