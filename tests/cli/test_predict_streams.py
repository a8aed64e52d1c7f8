"""`detcli predict` as people leave it running: streams, several detectors, faults."""

import json
import os
import random as rng
import signal
import subprocess
import sys
import time
from collections import Counter

import cv2
import numpy as np
import pytest
from colour_model import NAMES, picture

from detcli.cli.formats import Format
from detcli.cli.sinks import SinkOptions, open_sinks
from detcli.record import Clip
from detcli.stream.item import Item


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def make_video(tmp_path):
    """Write a video whose frame N has a red cell from frame `red_from` on."""

    def make(name="clip.mp4", frames=20, red_from=10, size=(64, 64)):
        path = tmp_path / name
        writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), 10, size[::-1])
        for number in range(frames):
            squares = [("red", column, row) for column in range(4) for row in range(4)]
            writer.write(picture(*(squares if number >= red_from else []), size=size))
        writer.release()
        return path

    return make


@pytest.fixture
def make_pictures(tmp_path):
    """A folder of so many pictures, every third with a red square."""

    def make(count):
        folder = tmp_path / "pics"
        folder.mkdir()
        for number in range(count):
            squares = [("red", number % 8, 1)] if number % 3 == 0 else []
            cv2.imwrite(str(folder / f"{number:04}.png"), picture(*squares))
        return folder

    return make


@pytest.mark.parametrize("options", [[], ["--workers", "1"], ["--workers", "3", "--batch", "4"]])
def test_any_number_of_workers_gives_the_same_records(options, detcli, make_model, make_pictures):
    model = make_model(batch=None)
    finished = detcli("predict", make_pictures(40), "-m", model, "--conf", "0.6", *options)
    assert finished.returncode == 0
    records = lines(finished.stdout)
    assert [record["index"] for record in records] == list(range(40))
    assert [len(record["detections"]) for record in records] == [1, 0, 0] * 13 + [1]
    assert "40 pictures, 14 detections" in finished.stderr
    assert "network" in finished.stderr  # where the time went


def test_several_devices_share_the_inputs(detcli, make_model, make_pictures):
    finished = detcli(
        "predict", make_pictures(20), "-m", make_model(), "--device", "cpu,cpu", "--conf", "0.6"
    )
    assert finished.returncode == 0
    assert [record["index"] for record in lines(finished.stdout)] == list(range(20))


def test_batch_and_workers_are_said_when_asked_for(detcli, make_model, make_pictures):
    folder, model = make_pictures(3), make_model(batch=2)
    finished = detcli("predict", folder, "-m", model, "-v", "--workers", "3")
    assert "batches of 2, detectors: 3" in finished.stderr
    finished = detcli("predict", folder, "-m", model, "-v", "--batch", "5", "--workers", "1")
    assert "batches of 5, detectors: 1" in finished.stderr


def test_a_second_device_that_is_not_there_is_refused(detcli, make_model, make_pictures):
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    finished = detcli(
        *("predict", make_pictures(3), "-m", make_model(), "--device", "cpu,cuda:5"),
        env=environment,
    )
    assert finished.returncode == 5


def test_a_video_has_frames_with_times(detcli, make_model, make_video):
    video = make_video()
    finished = detcli("predict", video, "-m", make_model(), "--conf", "0.6", "--vid-stride", "5")
    records = lines(finished.stdout)
    assert [record["frame"] for record in records] == [0, 5, 10, 15]
    assert [record["time_s"] for record in records] == pytest.approx([0, 0.5, 1, 1.5])
    assert [bool(record["detections"]) for record in records] == [False, False, True, True]
    assert "4 frames" in finished.stderr


def test_start_and_end(detcli, make_model, make_video):
    finished = detcli("predict", make_video(), "-m", make_model(), "--start", "0.5", "--end", "0.8")
    assert [record["frame"] for record in lines(finished.stdout)] == [5, 6, 7]


def test_a_stream_of_jpegs_on_stdin(detcli, make_model):
    jpegs = b"".join(
        cv2.imencode(".jpg", picture(("red", 1, 1)) if red else picture())[1].tobytes()
        for red in (True, False, True)
    )
    finished = detcli("predict", "-", "-m", make_model(), "--conf", "0.6", input=jpegs)
    records = lines(finished.stdout.decode())
    assert [record["frame"] for record in records] == [0, 1, 2]
    assert [len(record["detections"]) for record in records] == [1, 0, 1]


def test_a_list_of_files(detcli, make_model, make_pictures):
    names = b"\0".join(str(path).encode() for path in sorted(make_pictures(5).iterdir()))
    finished = detcli("predict", "--files-from", "-", "-0", "-m", make_model(), input=names)
    assert finished.returncode == 0
    assert len(lines(finished.stdout.decode())) == 5


def test_a_list_is_read_as_it_comes(make_model, make_pictures):
    """The record of the first name is there before the second is written."""
    first, second = sorted(make_pictures(2).iterdir())
    command = [sys.executable, "-m", "detcli", "predict", "--files-from", "-", "-q"]
    with subprocess.Popen(
        [*command, "-m", str(make_model())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        for name in (first, second):
            process.stdin.write(f"{name}\n")
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["source"] == str(name)
        process.stdin.close()
        assert process.wait(30) == 0


def test_all_sinks_at_once(detcli, make_model, make_video, make_pictures, tmp_path):
    sinks = {name: tmp_path / name for name in ("saved", "labels", "crops")}
    finished = detcli(
        *("predict", make_pictures(4), make_video(), "-m", make_model(), "--conf", "0.6"),
        *("--save", sinks["saved"], "--save-txt", sinks["labels"], "--save-conf"),
        *("--save-crops", sinks["crops"], "--save-coco", tmp_path / "coco.json"),
        *("-o", tmp_path / "all.csv"),
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == ""
    assert sorted(p.name for p in sinks["saved"].iterdir()) == [
        *(f"{number:04}.png" for number in range(4)),
        "clip.mp4",
    ]
    assert len(list(sinks["labels"].iterdir())) == 4 + 20
    assert [p.name for p in sinks["crops"].iterdir()] == [NAMES[0]]
    results = json.loads((tmp_path / "coco.json").read_text())
    records = [row for row in (tmp_path / "all.csv").read_text().splitlines()[1:] if row]
    assert len(results) == len(records) > 100


@pytest.mark.parametrize(
    ("condition", "code"), [("red>1", 6), ("red>2", 0), ("any==2", 6), ("blue>0", 0)]
)
def test_fail_if(condition, code, detcli, make_model, make_pictures):
    finished = detcli(
        *("predict", make_pictures(6), "-m", make_model(), "--conf", "0.6"),
        *("--fail-if", condition),
    )
    assert finished.returncode == code
    assert (condition in finished.stderr) == (code == 6)
    assert len(lines(finished.stdout)) == 6  # all of them, either way


def test_a_confidence_for_one_class(detcli, make_model, make_picture):
    image = make_picture("a.png", ("red", 1, 1), ("blue", 3, 3))
    finished = detcli("predict", image, "-m", make_model(), "--conf", "0.6,red=1")
    (record,) = lines(finished.stdout)
    assert [found["class_name"] for found in record["detections"]] == ["blue"]


def test_one_class_for_each_anchor(detcli, make_model, make_picture):
    """Grey scores equally in all three classes."""
    image = make_picture("a.png")
    counts = []
    for options in ([], ["--unique"]):
        finished = detcli("predict", image, "-m", make_model(), "--conf", "0.3", *options)
        counts.append(len(lines(finished.stdout)[0]["detections"]))
    assert counts == [3 * 64, 64]


def test_the_rectangle_finds_what_the_square_finds(detcli, make_model, make_picture):
    model = make_model(size=None, batch=None, metadata={"stride": "8", "imgsz": "[64, 64]"})
    image = make_picture("wide.png", ("red", 5, 2), size=(32, 64))
    found = [
        lines(detcli("predict", image, "-m", model, "--conf", "0.6", *options).stdout)
        for options in ([], ["--rect"])
    ]
    assert found[0] == found[1]
    assert found[0][0]["detections"][0]["box"] == [40, 16, 48, 24]


def test_the_rectangle_needs_a_dynamic_graph(detcli, make_model, make_picture):
    finished = detcli("predict", make_picture("a.png"), "-m", make_model(), "--rect")
    assert finished.returncode == 2
    assert "64x64 pictures only" in finished.stderr


def test_too_many_pixels(detcli, make_model, make_picture):
    finished = detcli(
        *("predict", make_picture("a.png"), "-m", make_model(), "--max-pixels", "4095")
    )
    assert finished.returncode == 3
    assert "4095" in lines(finished.stdout)[0]["error"]["message"]


def test_a_killed_run_is_resumed_with_every_record_once(make_model, make_pictures, tmp_path):
    """Killed at 20 moments from start to end, one good record an input is left."""
    folder, journal = make_pictures(150), tmp_path / "run.jsonl"
    command = [
        sys.executable,
        "-m",
        "detcli",
        "predict",
        str(folder),
        "-m",
        str(make_model()),
        "-q",
    ]
    command += ["--resume", str(journal)]
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    whole = time.perf_counter() - start
    complete = Counter(record["source"] for record in lines(journal.read_text()))
    moments = rng.Random(0)  # noqa: S311 - no secret
    killed = 0
    for _ in range(20):
        if killed % 4 == 0:
            journal.unlink(missing_ok=True)
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            time.sleep(moments.uniform(0.1, 1) * whole)
            process.kill()
            killed += process.wait() == -signal.SIGKILL
    assert killed > 5
    subprocess.run(command, check=True, capture_output=True)
    records = lines(journal.read_text())
    assert Counter(record["source"] for record in records) == complete
    assert all("detections" in record for record in records)


def test_frames_of_a_camera_are_never_skipped(tmp_path):
    journal = tmp_path / "run.jsonl"
    frame = {"source": "camera:0", "frame": 0, "detections": []}
    journal.write_text(json.dumps({"schema_version": 1} | frame) + "\n")
    options = SinkOptions(form=Format.JSONL, journal=journal)
    with open_sinks(options, guard=()) as (_, skip):
        for live, skipped in ((True, False), (False, True)):
            clip = Clip("camera:0", 0, live=live)
            assert skip(Item("camera:0", lambda: None, frame=0, clip=clip)) == skipped


def test_a_password_in_a_list_is_not_printed(detcli, make_model):
    names = "rtsp://user:secret@host/x\nrtmp://user:secret@host/y\n"
    finished = detcli("predict", "--files-from", "-", "-m", make_model(), input=names)
    assert finished.returncode == 3
    assert "secret" not in finished.stdout + finished.stderr
    finished = detcli("predict", "rtmp://user:secret@host/y", "-m", make_model())
    assert "secret" not in finished.stdout + finished.stderr


def test_an_interrupted_video_is_playable(make_model, make_video, tmp_path):
    video = make_video(frames=2000, size=(256, 256))
    command = [sys.executable, "-m", "detcli", "predict", str(video), "-m"]
    command += [str(make_model(size=None, batch=None)), "--save", str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        for _ in range(5):
            process.stdout.readline()
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(60) == 130
        assert b"Traceback" not in process.stderr.read()
    assert all(json.loads(line) for line in rest.splitlines())  # no torn record
    capture = cv2.VideoCapture(str(tmp_path / "out" / "clip.mp4"))
    assert capture.read()[0]
    assert 4 <= capture.get(cv2.CAP_PROP_FRAME_COUNT) < 2000
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["clip.mp4"]


def test_a_reader_that_leaves_while_the_network_runs(make_model, make_pictures):
    """What a native library is amid must not abort the process at its end."""
    model = make_model(size=None, batch=None, metadata={"imgsz": "[1280, 1280]", "stride": "8"})
    command = f"{sys.executable} -m detcli predict {make_pictures(90)} -m {model} -q --batch 30"
    finished = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command} | head -1"],  # noqa: S607
        check=False,
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0
    assert finished.stderr == ""


def test_interrupted_three_times_files_are_closed(make_model, make_video, tmp_path):
    video = make_video(frames=2000, size=(256, 256))
    command = [sys.executable, "-m", "detcli", "predict", str(video), "-q", "-m"]
    command += [str(make_model(size=None, batch=None)), "--save", str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        for _ in range(5):
            process.stdout.readline()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
            process.send_signal(number)
            time.sleep(0.02)
        process.stdout.read()
        assert process.wait(60) == 130
        assert process.stderr.read() == b""
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["clip.mp4"]


def test_a_reader_that_leaves_ends_it_quietly(make_model, make_pictures):
    command = f"{sys.executable} -m detcli predict {make_pictures(60)} -m {make_model()} -q"
    finished = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command} | head -1"],  # noqa: S607
        check=False,
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0
    assert finished.stderr == ""
    assert len(lines(finished.stdout)) == 1


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs pseudo-terminals")
@pytest.mark.parametrize("quiet", [False, True])
def test_progress_is_shown_on_a_terminal(quiet, make_model, make_pictures):
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "detcli", "predict", str(make_pictures(60)), "-m"]
    command += [str(make_model()), *["-q"] * quiet]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                piece = os.read(ours, 4096)
            except OSError:  # the other side is closed
                break
            if not piece:
                break
            shown += piece
        assert process.wait(60) == 0
    os.close(ours)
    assert (b"/60" in shown) == (not quiet)


def test_no_progress_in_a_pipe(detcli, make_model, make_pictures):
    finished = detcli("predict", make_pictures(30), "-m", make_model())
    assert finished.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--resume", "a.jsonl", "-o", "b.jsonl"], "two places"),
        (["--save-conf"], "--save-txt"),
        (["--coco-images", "x.json"], "--save-coco"),
        (["--save-coco", "x.json", "--resume", "a.jsonl"], "this run only"),
        (["--fail-if", "cat>0"], "no class 'cat'"),
        (["--fail-if", "red>0", "--resume", "a.jsonl"], "this run only"),
        (["--conf", "red=x"], "no number"),
        (["--conf", "0.3,cat=0.5"], "no class 'cat'"),
        (["--files-from", "missing.txt"], "missing.txt"),
        (["--device", "cpu,gpu"], "no device"),
    ],
)
def test_what_does_not_go_together_is_a_usage_error(
    options, words, detcli, make_model, make_picture
):
    finished = detcli("predict", make_picture("a.png"), "-m", make_model(), *options)
    assert finished.returncode == 2
    assert words in finished.stderr
    assert "Traceback" not in finished.stderr


@pytest.mark.parametrize("options", [["-o", "missing/x.csv"], ["--save", "a.json/folder"]])
def test_a_sink_that_cannot_be_opened_leaves_other_results_alone(
    options, detcli, make_model, make_picture, tmp_path
):
    results = tmp_path / "a.json"
    results.write_text("[1]")
    options = [option.replace("a.json", str(results)) for option in options]
    finished = detcli(
        *("predict", make_picture("a.png"), "-m", make_model(), "--save-coco", results), *options
    )
    assert finished.returncode == 1
    assert results.read_text() == "[1]"
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".part"] == []


def test_nothing_to_do_is_a_usage_error(detcli, make_model):
    finished = detcli("predict", "-m", make_model())
    assert finished.returncode == 2


def test_an_input_is_never_written_over(detcli, make_model, make_pictures):
    folder = make_pictures(3)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    finished = detcli("predict", folder, "-m", make_model(), "--save", folder)
    assert finished.returncode == 0
    assert before.items() <= {path.name: path.read_bytes() for path in folder.iterdir()}.items()
    assert len(list(folder.iterdir())) == 6


def test_memory_is_not_held_for_a_long_list(make_model, make_picture):
    """A thousand large pictures one after the other: with all of them held it would be 3 GB."""
    image = make_picture("large.jpg", size=(1000, 1000))
    names = f"{image}\n" * 1000
    limited = (
        "import resource, runpy, sys; "
        "resource.setrlimit(resource.RLIMIT_DATA, (2_000_000_000,) * 2); "
        "sys.argv[0] = 'detcli'; runpy.run_module('detcli', run_name='__main__')"
    )
    finished = subprocess.run(
        [sys.executable, "-c", limited, "predict", "--files-from", "-", "-q", "-m", make_model()],
        input=names,
        check=False,
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr[-500:]
    assert finished.stdout.count("\n") == 1000
    assert np.all([len(json.loads(line)) for line in finished.stdout.splitlines()])
