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
def report(invoke, caplog, tmp_path):
    """The report of a command that announced the download; within this process, pytest logs it."""

    def report(*words):
        done = invoke(*words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "fetching yolov10n" in done.stderr + caplog.text
        return json.loads(done.stdout)

    return report


def test_inspect(report, content):
    found = report("inspect", "yolov10n")
    assert found["sha256"] == hashlib.sha256(content).hexdigest()
    assert found["detector"]["names"] == ["red", "green", "blue"]


def test_convert(report, content, make_picture, tmp_path):
    picture = make_picture("a.png", ("red", 1, 1))
    command = ("convert", "yolov10n", "-o", "out.onnx", "--metadata", "made=here")
    found = report(*command, "--image", picture)
    assert found["model"]["sha256"] == hashlib.sha256(content).hexdigest()
    assert (tmp_path / "out.onnx").read_bytes() != content


def test_verify(report, content, make_model, make_picture):
    picture, other = make_picture("a.png", ("red", 1, 1)), make_model("other.onnx")
    found = report("verify", "yolov10n", other, "--images", picture)
    digest = hashlib.sha256(content).hexdigest()
    assert [found[side]["sha256"] for side in ("left", "right")] == [digest, digest]


def test_bench_takes_the_default_model(report, content, monkeypatch):
    shorten(monkeypatch)
    found = report("bench", "--seconds", "0.05", "--cold-starts", "0", *QUICK)
    assert found["model"] == {"file": "yolov10n", "sha256": hashlib.sha256(content).hexdigest()}


@pytest.mark.parametrize("option", [[], ["--half"]])
def test_eval(report, content, hub, make_model, tmp_path, option):  # noqa: PLR0913, PLR0917
    """With --half, of the float16 file."""
    half = make_model("half.onnx", dtype="float16").read_bytes()
    if option:
        hub.add("yolov10n", b"not this one", half=half)
    labels = write_coco(tmp_path, MIXED)
    found = report("eval", "yolov10n", "--data", labels, *option, *QUICK)["model"]
    assert found["file"] == "yolov10n"
    assert found["sha256"] == hashlib.sha256(half if option else content).hexdigest()
