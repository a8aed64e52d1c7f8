"""`detcli predict` as a user runs it, in a process of its own."""

import csv
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time

import cv2
import duckdb
import numpy as np
import pytest
import terminals
from colour_model import NAMES, cell_box
from report_schemas import validator


def records(finished):
    lines = [json.loads(line) for line in finished.stdout.splitlines()]
    for line in lines:
        validator("predict", strict=True).validate(line)
    return lines


def test_a_picture_gives_a_record(detcli, make_model, make_picture):
    picture = make_picture("a.png", ("red", 2, 3))
    finished = detcli("predict", picture, "--model", make_model())
    assert finished.returncode == 0
    assert records(finished) == [
        {
            "schema_version": 1,
            "source": str(picture),
            "index": 0,
            "width": 64,
            "height": 64,
            "detections": [
                {"class_id": 0, "class_name": "red", "score": 1.0, "box": cell_box(2, 3)},
                *_grey_cells(finished),
            ],
            "model": "colours",
            "device": "cpu",
        }
    ]


@pytest.mark.parametrize("option", ["--fast-decode", "--no-fast-decode"])
def test_jpegs_are_decoded_into_the_devices_memory(
    option, invoke, make_model, make_picture, allocated
):
    pytest.importorskip("simplejpeg")
    pictures = [make_picture(name, ("red", 2, 3)) for name in ("a.jpg", "b.png", "c.jpg")]
    finished = invoke("predict", *pictures, "-m", make_model(), option)
    assert [record["width"] for record in records(finished)] == [64] * 3
    assert allocated == [(64, 64)] * 2


def _grey_cells(finished):
    """Detections of the grey background, which scores 0.447 and so passes the default threshold."""
    return json.loads(finished.stdout)["detections"][1:]


def test_conf_max_det_and_classes(invoke, make_model, make_picture):
    picture = make_picture("a.png", ("red", 2, 3), ("blue", 1, 1))
    model = make_model()

    def found(*options):
        finished = invoke("predict", picture, "-m", model, *options)
        return [one["class_name"] for one in records(finished)[0]["detections"]]

    assert found("--conf", 0.6) == ["blue", "red"]
    assert found("--conf", 0.6, "--max-det", 1) == ["blue"]
    assert found("--conf", 0.6, "--classes", "red") == ["red"]
    assert found("--conf", 0.6, "--classes", "2, red") == ["blue", "red"]
    assert found("--conf", 1) == []


@pytest.mark.usefixtures("each_device")
def test_inputs_that_fail_are_records_and_the_others_complete(invoke, make_model, make_picture):
    good = make_picture("a.png", ("red", 2, 3))
    torn = make_picture("torn.png", ("red", 2, 3))
    torn.write_bytes(torn.read_bytes()[:-40])
    arguments = [torn, "no/such.jpg", good]
    finished = invoke("predict", *arguments, "--model", make_model(), "--conf", 0.6)
    lines = records(finished)
    assert finished.returncode == 3
    assert [line["source"] for line in lines] == list(map(str, arguments))
    assert [line.get("error", {}).get("type") for line in lines] == [
        "DecodeError",
        "SourceError",
        None,
    ]
    assert len(lines[2]["detections"]) == 1
    assert "no/such.jpg: no such file" in finished.stderr
    assert "1 picture, 1 detection, 2 failed" in finished.stderr


def test_a_name_that_no_file_can_have_is_a_record(invoke, make_model):
    finished = invoke("predict", "a" * 300, "--model", make_model())
    assert (finished.returncode, records(finished)[0]["error"]["message"]) == (3, "no such file")


def test_a_picture_on_stdin(detcli, make_model, make_picture):
    picture = make_picture("a.png", ("red", 2, 3))
    finished = detcli("predict", "-", "-m", make_model(), "--conf", 0.6, input=picture.read_bytes())
    record = json.loads(finished.stdout)
    assert record["source"] == "-"
    assert record["detections"][0]["class_name"] == "red"


def test_a_folder_and_a_quoted_pattern(invoke, make_model, make_picture, tmp_path):
    for name in ("pics/b.png", "pics/a.jpg", "pics/deeper/c.png"):
        make_picture(name, ("red", 2, 3))
    model = make_model()
    folder = records(invoke("predict", tmp_path / "pics", "-m", model))
    pattern = records(invoke("predict", f"{tmp_path}/pics/**/*.png", "-m", model))
    assert [os.path.basename(line["source"]) for line in folder] == ["a.jpg", "b.png"]  # noqa: PTH119
    assert [os.path.basename(line["source"]) for line in pattern] == ["b.png", "c.png"]  # noqa: PTH119


def test_formats_and_output_files(invoke, make_model, make_picture, tmp_path):
    picture = make_picture("a.png", ("red", 2, 3))
    common = ["predict", picture, "-m", make_model(), "--conf", 0.6]
    as_json = invoke(*common, "--format", "json")
    assert json.loads(as_json.stdout)[0]["detections"][0]["class_name"] == "red"
    for name in ("out.json", "out.csv", "out.jsonl", "out", "out.parquet"):
        finished = invoke(*common, "--output", tmp_path / name)
        assert (finished.returncode, finished.stdout) == (0, "")
    assert (tmp_path / "out.json").read_text() == as_json.stdout
    rows = list(csv.DictReader(io.StringIO((tmp_path / "out.csv").read_text())))
    assert [(row["class_name"], row["x1"]) for row in rows] == [("red", "16.0")]
    assert (tmp_path / "out.jsonl").read_text() == (tmp_path / "out").read_text()
    found = duckdb.read_parquet(str(tmp_path / "out.parquet")).select("detections[1].x1")
    assert found.fetchall() == [(16,)]
    assert json.loads((tmp_path / "out.jsonl").read_text())["index"] == 0


def test_a_dash_is_standard_output(invoke, make_model, make_picture, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = ["predict", make_picture("a.png"), "-m", make_model(), "--format", "jsonl"]
    (there,), (plain,) = records(invoke(*command, "-o", "-")), records(invoke(*command))
    assert there["detections"] == plain["detections"]
    assert not (tmp_path / "-").exists()


def test_a_suffix_without_a_format_is_refused_before_anything_is_done(invoke, tmp_path):
    finished = invoke("predict", "none.jpg", "-m", "none.onnx", "-o", tmp_path / "boxes.xlsx")
    assert finished.returncode == 2
    assert "the suffix .xlsx names no format" in finished.stderr
    assert ".csv, .parquet" in finished.stderr


def test_parquet_needs_a_file_and_its_library(invoke, tmp_path, monkeypatch):
    finished = invoke("predict", "none.jpg", "-m", "none.onnx", "--format", "parquet")
    assert finished.returncode == 2
    assert "--format parquet needs --output" in finished.stderr
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "detcli.sink.parquet", raising=False)
    finished = invoke("predict", "none.jpg", "-m", "none.onnx", "-o", tmp_path / "x.parquet")
    assert finished.returncode == 1
    assert "pyarrow does not load" in finished.stderr
    assert "hint: pip install 'detcli[parquet]'" in finished.stderr
    assert [*tmp_path.iterdir()] == []


def test_save_writes_annotated_pictures_of_equal_names(invoke, make_model, make_picture, tmp_path):
    one = make_picture("x/a.png", ("red", 2, 3))
    two = make_picture("y/a.png", ("blue", 2, 3))
    finished = invoke("predict", one, two, "-m", make_model(), "--save", tmp_path / "out")
    assert finished.returncode == 0
    saved = sorted((tmp_path / "out").glob("[!.]*"))
    assert re.fullmatch("a-[0-9a-f]{8}.png a.png", " ".join(path.name for path in saved))
    assert (cv2.imread(saved[0]) != cv2.imread(saved[1])).any()


def test_save_keeps_the_paths_below_a_folder(invoke, make_model, make_picture, tmp_path):
    for name in ("x/a.png", "y/a.png", "b.png"):
        make_picture(f"pics/{name}", ("red", 2, 3))
    command = ["predict", tmp_path / "pics", "-r", "-m", make_model(), "--save", tmp_path / "out"]
    assert invoke(*command, "--save-txt", tmp_path / "out/labels").returncode == 0
    files = (path.relative_to(tmp_path / "out") for path in (tmp_path / "out").rglob("[!.]*.*"))
    assert {path.as_posix() for path in files} == {
        *("b.png", "x/a.png", "y/a.png"),
        *("labels/b.txt", "labels/x/a.txt", "labels/y/a.txt"),
    }


def test_lines_and_labels_of_annotated_pictures(invoke, make_model, make_picture, tmp_path):
    picture, model = make_picture("a.png", ("red", 2, 3), size=(320, 320)), make_model(size=None)
    saved = []
    for number, options in enumerate(([], ["--labels", "none"], ["--line-width", 5])):
        folder = tmp_path / str(number)
        finished = invoke("predict", picture, "-m", model, "-q", "--save", folder, *options)
        assert finished.returncode == 0
        saved.append(np.count_nonzero(cv2.imread(folder / "a.png") != cv2.imread(picture)))
    plain, without_labels, wide = saved
    assert 0 < without_labels < plain < wide


def test_a_dataset_on_which_the_model_is_perfect(
    invoke, make_model, make_picture, make_video, tmp_path
):
    """`eval` finds every box of it where the model found it."""
    model = make_model(size=None, batch=None)
    make_picture("pics/a.png", ("red", 2, 3), ("blue", 5, 1))
    make_picture("pics/b.jpg", ("green", 1, 1), size=(128, 64))
    make_picture("pics/none.png")
    video = make_video(frames=3)
    dataset = tmp_path / "dataset"
    command = ["predict", tmp_path / "pics", video, "-m", model, "--conf", 0.6, "-q"]
    command += ["--save-dataset", dataset]
    assert invoke(*command).returncode == 0
    assert len([*(dataset / "images").iterdir()]) == 3 + 3
    finished = invoke("eval", model, "--data", dataset / "data.yaml", "--format", "json")
    assert finished.returncode == 0
    assert json.loads(finished.stdout)["metrics"]["map50_95"] == 1
    before = {path: path.read_bytes() for path in dataset.rglob("*") if path.is_file()}
    assert invoke(*command).returncode == 0  # again, with nothing new
    assert {path: path.read_bytes() for path in dataset.rglob("*") if path.is_file()} == before


def test_a_dataset_of_another_model_is_refused(invoke, make_model, make_picture, tmp_path):
    (tmp_path / "data.yaml").write_text("names: [cat]\n")
    picture, boxes = make_picture("a.png"), tmp_path / "boxes.jsonl"
    command = ["predict", picture, "-m", make_model(), "--save-dataset", tmp_path, "-o", boxes]
    finished = invoke(*command)
    assert finished.returncode == 2
    assert "does not list the classes of this model" in finished.stderr
    assert not boxes.exists()


def test_an_input_is_never_overwritten(invoke, make_model, make_picture, tmp_path):
    picture = make_picture("a.png", ("red", 2, 3))
    before = picture.read_bytes()
    model = make_model()
    saved = invoke("predict", picture, "-m", model, "--save", tmp_path)
    refused = invoke("predict", picture, "-m", model, "-o", picture)
    assert (saved.returncode, refused.returncode) == (0, 2)
    assert picture.read_bytes() == before


def test_a_table_on_a_terminal(warm_detcli, make_model, make_picture):
    """Stdout is a pseudo-terminal."""
    arguments = ["predict", make_picture("a.png", ("red", 2, 3)), "-m", make_model(), "--conf", 0.6]
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "NO_COLOR": "1"}
    with subprocess.Popen(
        [warm_detcli / "detcli", *map(str, arguments)],
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        env=environment,
    ) as process:
        assert process.wait(60) == 0
    os.close(theirs)
    text = terminals.read_all(ours).decode()
    os.close(ours)
    assert "a.png  64x64" in text
    assert "red     1.00  16.0  24.0  24.0  32.0" in text
    assert "\x1b[3" not in text  # NO_COLOR


def test_quiet_and_verbose(detcli, invoke, make_model, make_picture):
    common = ["predict", make_picture("a.png"), "missing.png", "-m", make_model()]
    quiet, normal, verbose = invoke(*common, "-q"), invoke(*common), detcli(*common, "-v")
    assert quiet.stderr == ""
    assert "missing.png" in normal.stderr
    assert "body, xyxy boxes, 3 classes" in verbose.stderr
    assert quiet.stdout == normal.stdout == verbose.stdout


def test_without_conf_the_confidence_is_the_one_that_the_model_recommends(
    detcli, invoke, make_model, make_picture
):
    metadata = {"names": str(dict(enumerate(NAMES))), "detcli.conf": "0.6"}
    common = ["predict", make_picture("a.png", ("red", 2, 3)), "-m", make_model(metadata=metadata)]

    def found(*options):
        [record] = json.loads(invoke(*common, "--format", "json", *options).stdout)
        return len(record["detections"])

    assert found() == 1
    assert found("--conf", "green=0.3") > 60  # the others as recommended
    assert found("--conf", "0.25") == 190
    told = detcli(*common, "-v").stderr
    assert "confidence: above 0.6 (recommended by the model)" in told
    assert "confidence: above 0.25 (as asked for)" in detcli(*common, "-v", "--conf", 0.25).stderr


def test_a_recommended_suppression_is_used_and_told(detcli, make_model, make_picture):
    metadata = {"names": str(dict(enumerate(NAMES))), "detcli.nms": "0.4"}
    model = make_model(tail="one-to-many", metadata=metadata, reach=1.5)
    picture = make_picture("a.png", ("red", 2, 3), ("red", 3, 3))
    common = ["predict", picture, "-m", model, "--conf", 0.6, "-v"]
    done = detcli(*common)
    assert len(records(done)[0]["detections"]) == 1
    assert "non-maximum suppression: IoU above 0.4 (recommended by the model)" in done.stderr
    both = detcli(*common, "--nms", 1)
    assert len(records(both)[0]["detections"]) == 2
    assert "non-maximum suppression: IoU above 1 (as asked for)" in both.stderr


def test_messages_never_land_on_stdout(make_model, make_picture):
    """Stderr is closed, as by `2>&-`."""
    command = [sys.executable, "-m", "detcli", "predict", str(make_picture("a.png")), "none.png"]
    finished = subprocess.run(
        ["sh", "-c", 'exec "$@" 2>&-', "sh", *command, "-m", str(make_model())],  # noqa: S607 - any sh
        check=False,
        capture_output=True,
    )
    assert [json.loads(line)["index"] for line in finished.stdout.splitlines()] == [0, 1]


def test_gpu_options_are_accepted_without_a_gpu(invoke, make_model, make_picture):
    """One command line works on machines with and without a GPU."""
    options = ["--no-cuda-graph", "--gpu-mem-limit", "2GiB", "--device", "cpu"]
    finished = invoke("predict", make_picture("a.png"), "-m", make_model(), *options)
    assert finished.returncode == 0
    assert records(finished)[0]["device"] == "cpu"


@pytest.mark.usefixtures("each_device")
def test_running_out_of_memory_is_a_record(invoke, make_model, make_picture):
    options = ["--imgsz", 1_000_000, "-m", make_model(size=None, metadata={"stride": "8"})]
    finished = invoke("predict", make_picture("a.png"), *options)
    assert finished.returncode == 3
    assert records(finished)[0]["error"]["type"] == "InferenceError"


@pytest.mark.parametrize(
    ("options", "exit_code", "words"),
    [
        (["--model", "none.onnx"], 4, "cannot read the model none.onnx"),
        (["--model", "MODEL", "--device", "tpu"], 2, "unknown device 'tpu'"),
        (["--model", "MODEL", "--device", "cuda"], 5, "CUDAExecutionProvider"),
        (["--model", "MODEL", "--device", "tensorrt:1"], 5, "TensorrtExecutionProvider"),
        (["--model", "MODEL", "--half"], 2, "--device tensorrt"),
        (["--model", "yolo10n"], 4, "did you mean yolov10n"),
        (["--model", "MODEL", "--device", "cpu", "--cuda-graph"], 2, "needs one of NVIDIA"),
        (["--model", "MODEL", "--gpu-mem-limit", "2 cats"], 2, "'2 cats' is not a size"),
        (["--model", "MODEL", "--gpu-mem-limit", "2"], 2, "is 2 bytes"),
        (["--model", "MODEL", "--conf", "2"], 2, "use a confidence between 0 and 1"),
        (["--model", "MODEL", "--max-det", "0"], 2, "max_det is 0"),
        (["--model", "MODEL", "--nms", "0"], 2, "nms is 0"),
        (["--model", "MODEL", "--imgsz", "33"], 2, "takes 64x64 pictures only"),
        (["--model", "MODEL", "--classes", "gren"], 2, "did you mean green"),
        (["--model", "MODEL", "--classes", "3"], 2, "no class '3'"),
        (["--model", "MODEL", "--classes", " ,"], 2, "is an empty list"),
        (["--model", "MODEL", "--output", "MODEL", "--format", "csv"], 2, "is one of the inputs"),
        (["--model", "MODEL", "--report", "page", "--output", "page/x.csv"], 2, "nothing else"),
        (["--model", "MODEL", "--report", "page", "--save-coco", "page/x.json"], 2, "nothing else"),
        (["--model", "MODEL", "--report", "page", "--save", "page"], 2, "nothing else"),
        (["--model", "MODEL", "--report", "page", "--save-crops", "page/x"], 2, "nothing else"),
        (["--model", "MODEL", "--names", "none.txt"], 2, "cannot read names"),
        (["--model", "MODEL", "--output", "no/such/folder/x.csv"], 1, "cannot write no/such"),
        (["--model", "MODEL", "--wrong"], 2, "no such option: --wrong"),
        ([], 4, "cannot fetch yolov10n from http://127.0.0.1:9"),
    ],
)
def test_errors_have_a_message_and_an_exit_code(  # noqa: PLR0913, PLR0917 - fixtures
    options, exit_code, words, invoke, make_model, make_picture
):
    options = [str(make_model()) if option == "MODEL" else option for option in options]
    finished = invoke("predict", make_picture("a.png"), *options)
    assert finished.returncode == exit_code
    assert words in finished.stderr
    assert "Traceback" not in finished.stderr
    assert finished.stdout == ""


def test_a_one_to_many_head_needs_nms(invoke, make_model, make_picture):
    model = make_model(tail="one-to-many")
    picture = make_picture("a.png", ("red", 2, 3))
    refused = invoke("predict", picture, "-m", model)
    assert refused.returncode == 4
    assert "--nms 0.45" in refused.stderr
    done = invoke("predict", picture, "-m", model, "--nms", 0.45, "--conf", 0.6)
    assert records(done)[0]["detections"][0]["box"] == cell_box(2, 3)


def test_names_file_and_image_size(invoke, make_model, make_picture, tmp_path):
    (tmp_path / "names.txt").write_text("rot\ngrün\nblau\n", encoding="utf-8")
    options = ["--names", tmp_path / "names.txt", "--imgsz", 64, "--classes", "grün", "--conf", 0.6]
    finished = invoke(
        "predict", make_picture("a.png", ("green", 0, 0)), "-m", make_model(size=None), *options
    )
    assert records(finished)[0]["detections"][0]["class_name"] == "grün"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_complete_output(
    warm_detcli, number, make_model, make_picture, tmp_path
):
    """The second input is a pipe that never ends, which leaves time to interrupt."""
    pipe, output = tmp_path / "pipe.png", tmp_path / "out.json"
    os.mkfifo(pipe)
    command = [warm_detcli / "detcli", "predict", str(make_picture("a.png")), str(pipe)]
    with (
        subprocess.Popen([*command, "-m", str(make_model()), "-o", str(output)]) as process,
        pipe.open("wb"),  # opens when detcli does
    ):
        while not any(part.stat().st_size > 10 for part in tmp_path.glob(".*.part")):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        assert process.wait(60) == 130
    assert [record["index"] for record in json.loads(output.read_text())] == [0]
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix == ".part") == []


@pytest.mark.usefixtures("each_device")
def test_a_full_disk_is_an_error(make_model, make_picture):
    command = [sys.executable, "-m", "detcli", "predict", str(make_picture("a.png"))]
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device
        finished = subprocess.run(
            [*command, "-m", str(make_model())],
            check=False,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert finished.returncode == 1
    assert "cannot write standard output: No space left on device" in finished.stderr
    assert "Traceback" not in finished.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("eval", "codes", "--data", "labels.json", "--save-coco"),
        ("bench", "--save-baseline"),
        ("verify", "a.jsonl", "b.jsonl", "--certificate"),
        ("predict", "a.jpg", "--save-coco"),
    ],
)
@pytest.mark.parametrize("place", ["-", "s3://bucket/name"])
def test_what_needs_a_disk_is_written_nowhere_else(invoke, tmp_path, monkeypatch, arguments, place):
    monkeypatch.chdir(tmp_path)
    done = invoke(*arguments, place)
    assert done.returncode == 2
    assert f"{arguments[-1]} cannot write to" in done.stderr
    assert list(tmp_path.iterdir()) == []
