"""Commands whose standard streams are closed, as with `>&-`; what needs none does without."""

import json
import os
import subprocess
import sys

import forked
import pytest
import thinning
from colour_model import NAMES

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name != "posix", reason="shells of Windows close no streams"),
]

ALL = (0, 1, 2)


def closed(*arguments, streams=(1,), cwd=None, **options):
    """Run the command line without these descriptors, in CI as a shell does, at home in a fork."""
    if thinning.RUNS_WHOLE:
        return closed_from_the_start(arguments, streams=streams, cwd=cwd, **options)
    thinning.note("processes that start without a standard stream", 0, 1)
    options = {"timeout": 120} | options
    return forked.run(arguments, closed_streams=streams, cwd=cwd, **options)


def closed_from_the_start(*arguments, streams, cwd, **options):
    """Run the command line in a process that Python starts without these descriptors."""

    def close():
        for descriptor in streams:
            os.close(descriptor)

    command = [sys.executable, "-m", "detcli"] + forked.words_of(arguments)
    options = {"capture_output": True, "text": True, "timeout": 120} | options
    return subprocess.run(command, check=False, cwd=cwd, preexec_fn=close, **options)


@pytest.fixture
def folder_with_model(tmp_path, make_model, make_image):
    """A folder with model.onnx and a.png, which has one detection."""
    make_model("model.onnx")
    make_image("a.png", ("red", 1, 1))
    return tmp_path


def predict(folder_with_model, *options, **more):
    command = ("predict", "a.png", "-m", "model.onnx", "--conf", 0.9)
    return closed(command, options, cwd=folder_with_model, **more)


def classes(file):
    names = []
    for line in file.read_text("utf-8").splitlines():
        for detection in json.loads(line)["detections"]:
            names.append(detection["class_name"])
    return names


@pytest.mark.parametrize("streams", [(1,), (2,), (0,), (1, 2), ALL])
def test_records_go_to_a_file(folder_with_model, streams):
    command = ("predict", "a.png", "-m", "model.onnx", "--conf", 0.9, "-o", "a.jsonl")
    process = closed_from_the_start(command, streams=streams, cwd=folder_with_model)
    assert process.returncode == 0
    assert process.stdout == ""
    assert classes(folder_with_model / "a.jsonl") == ["red"]


@pytest.mark.parametrize("name", ["a.csv", "a.json", "a.jsonl"])
def test_files_of_all_formats_hold_what_they_hold_otherwise(folder_with_model, name):
    assert predict(folder_with_model, "-o", name).returncode == 0
    without = (folder_with_model / name).read_bytes()
    assert predict(folder_with_model, "-o", name, streams=()).returncode == 0
    assert without == (folder_with_model / name).read_bytes()


def test_all_other_results_besides_a_file_of_records(folder_with_model):
    options = "--save s --save-txt t --save-crops c --save-dataset d --report p --save-coco k.json"
    process = predict(folder_with_model, "-o", "a.jsonl", options.split())
    assert process.returncode == 0
    assert "wrote 1 record to a.jsonl" in process.stderr
    for name in ("s/a.png", "t/a.txt", "c/red", "d/images/a.png", "p/index.html", "k.json"):
        assert (folder_with_model / name).exists()


def test_records_without_a_file_need_standard_output(folder_with_model):
    process = predict(folder_with_model, "--save", "s")
    assert process.returncode == 1
    assert "standard output is closed" in process.stderr
    assert "hint: redirect it to a file or a pipe" in process.stderr


@pytest.mark.parametrize(
    ("name", "stream"),
    [("/dev/stdout", 1), ("/dev/fd/1", 1), ("/proc/self/fd/1", 1), ("/dev/stderr", 2)],
)
def test_the_name_of_a_closed_stream_is_no_file(folder_with_model, name, stream):
    """Which streams are there is asked when Python starts, so that a fork would not do."""
    command = ("predict", "a.png", "-m", "model.onnx", "--conf", 0.9, "-o", name)
    process = closed_from_the_start(command, streams=(stream,), cwd=folder_with_model)
    assert process.returncode == 1
    if stream == 1:
        assert f"cannot write {name}: standard output is closed" in process.stderr


def test_the_null_device_needs_no_stream(folder_with_model):
    assert predict(folder_with_model, "-o", os.devnull).returncode == 0


def test_a_run_that_is_resumed(folder_with_model):
    for text in ("added 1 record", "it had 1 input already"):
        process = predict(folder_with_model, "--resume", "a.jsonl")
        assert process.returncode == 0
        assert text in process.stderr


def test_an_image_on_standard_input(folder_with_model):
    image = (folder_with_model / "a.png").read_bytes()
    command = ("predict", "-", "-m", "model.onnx", "--conf", 0.9, "-o", "a.jsonl")
    process = closed(command, cwd=folder_with_model, input=image, text=False)
    assert process.returncode == 0
    assert classes(folder_with_model / "a.jsonl") == ["red"]


def test_a_closed_standard_input_is_said(folder_with_model):
    command = ("predict", "-", "-m", "model.onnx", "-o", "a.jsonl")
    process = closed(command, cwd=folder_with_model, streams=(0,))
    assert process.returncode == 3
    assert "standard input is closed" in process.stderr


def test_shards_their_merge_and_a_page(folder_with_model):
    process = predict(folder_with_model, "-o", "parts/", "--on", "local:2", streams=ALL)
    assert process.returncode == 0
    assert (
        closed("merge", "parts/", "-o", "all.jsonl", cwd=folder_with_model, streams=ALL).returncode
        == 0
    )
    assert classes(folder_with_model / "all.jsonl") == ["red"]
    process = closed("report", "all.jsonl", "--images", ".", "-o", "page", cwd=folder_with_model)
    assert process.returncode == 0
    assert (folder_with_model / "page/index.html").exists()


def test_a_conversion(folder_with_model):
    options = ("-o", "new.onnx", "--metadata", "author=me", "--image", "a.png")
    process = closed("convert", "model.onnx", options, cwd=folder_with_model)
    assert process.returncode == 0
    assert process.stdout == ""
    assert process.stderr == ""
    assert (folder_with_model / "new.onnx").exists()


def test_a_certificate(folder_with_model):
    options = ("--images", "a.png", "--conf", 0.9, "--certificate", "c.json")
    process = closed("verify", "model.onnx", options, "model.onnx", cwd=folder_with_model)
    assert process.returncode == 0
    assert json.loads((folder_with_model / "c.json").read_text("utf-8"))["report"]["agree"] is True


def test_a_baseline(folder_with_model):
    options = ("--seconds", 0.1, "--cold-starts", 0, "--save-baseline", "b.json")
    process = closed("bench", "a.png", "-m", "model.onnx", options, cwd=folder_with_model)
    assert process.returncode == 0
    assert (folder_with_model / "b.json").exists()


def test_an_evaluation_with_a_page(folder_with_model):
    (folder_with_model / "a.txt").write_text("0 0.1875 0.1875 0.125 0.125\n")
    names = [f"  {number}: {name}" for number, name in enumerate(NAMES)]
    (folder_with_model / "data.yaml").write_text("\n".join(["val: .", "names:"] + names))
    command = ("eval", "model.onnx", "--data", "data.yaml")
    process = closed(command, "--report", "page", cwd=folder_with_model)
    assert process.returncode == 0
    assert (folder_with_model / "page/index.html").exists()
    process = closed(command, cwd=folder_with_model)
    assert process.returncode == 1
    assert "standard output is closed" in process.stderr
    assert "comparing" not in process.stderr  # it is said before the work


@pytest.mark.parametrize(
    "arguments",
    [
        ["bench", "a.png", "-m", "model.onnx"],
        ["verify", "model.onnx", "model.onnx", "--images", "a.png"],
        ["tune", "model.onnx", "a.png"],
        ["inspect", "model.onnx"],
        ["models", "path", "codes"],
    ],
)
def test_a_report_that_is_the_only_result_needs_standard_output(folder_with_model, arguments):
    process = closed(arguments, cwd=folder_with_model)
    assert process.returncode == 1
    assert "detcli: error: standard output is closed" in process.stderr
    assert "measuring" not in process.stderr


def test_a_model_is_fetched(folder_with_model):
    process = closed("models", "pull", "codes", cwd=folder_with_model)
    assert process.returncode == 0
    assert process.stderr == ""
