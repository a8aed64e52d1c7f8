"""Faults of `detcli predict`: kills, interrupts, refusals, terminals."""

import errno
import io
import json
import os
import random as rng
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter

import cv2
import forked
import pytest
import thinning
from folders import contents_of, names_in, visible_names
from json_lines import column_of, lines

from detcli.config.config import Config
from detcli.config.outputs import Outputs
from detcli.data.record import Origin, Video
from detcli.run.destination import choose_destination
from detcli.run.outputs import open_sinks
from detcli.source.loading import Item

pytestmark = pytest.mark.slow


def test_a_killed_run_is_resumed_with_every_record_once(make_model, make_images, tmp_path):
    """A run killed at some moments, while it writes, ends with one good record per input."""
    folder = make_images(150)
    journal = tmp_path / "run.jsonl"
    command = ["predict", folder, "-m", make_model(), "-q", "--resume", journal]
    assert forked.run(command).returncode == 0
    complete_size = journal.stat().st_size
    complete = Counter(column_of(lines(journal.read_text()), "source"))
    moments = rng.Random(0)  # noqa: S311 - no secret
    killed = 0
    turns = thinning.thin("moments of a killed run", range(6), count=3)
    for number in turns:
        if number % 3 == 0:
            journal.write_bytes(b"")
        target_size = journal.stat().st_size + moments.randrange(complete_size // 5)
        process = forked.start(command)
        while journal.stat().st_size <= target_size and process.is_alive():
            time.sleep(0.001)
        process.kill()
        process.join()
        killed += process.exitcode == -signal.SIGKILL
    assert killed > len(turns) / 2
    assert forked.run(command).returncode == 0
    records = lines(journal.read_text())
    assert Counter(column_of(records, "source")) == complete
    for record in records:
        assert "detections" in record


def stems_in(folder):
    """The names of the files of a folder without their suffixes; hidden files are left out."""
    return {path.stem for path in folder.glob("[!.]*")}


def test_a_killed_run_leaves_a_dataset_and_is_resumed(make_model, make_images, tmp_path):
    """A run killed at some moments: each image has labels at any time, and in the end, once."""
    folder = make_images(60)
    dataset = tmp_path / "dataset"
    command = ["predict", folder, "-m", make_model(), "-q"]
    command += ["--resume", tmp_path / "run.jsonl", "--save-dataset", dataset]
    killed = 0
    counts = thinning.thin("sizes of a dataset whose run is killed", range(2, 60, 10), count=3)
    for record_count in counts:
        process = forked.start(command)
        while len(list(dataset.glob("images/[!.]*"))) < record_count and process.is_alive():
            time.sleep(0.001)
        process.kill()
        process.join()
        killed += process.exitcode == -signal.SIGKILL
        assert stems_in(dataset / "images") <= stems_in(dataset / "labels")
        assert (dataset / "data.yaml").exists()
    assert killed > len(counts) / 2
    assert forked.run(command).returncode == 0
    assert visible_names(dataset / "images") == names_in(folder)
    assert stems_in(dataset / "labels") == stems_in(folder)


def test_frames_of_a_camera_are_never_skipped(tmp_path):
    journal = tmp_path / "run.jsonl"
    frame = {"source": "camera:0", "frame": 0, "width": 8, "height": 8, "detections": []}
    journal.write_text(json.dumps({"schema_version": 1} | frame) + "\n")
    config = Config(outputs=Outputs(resume=journal))
    with open_sinks(config, choose_destination(config), guard=()) as opened:
        for live, skipped in ((True, False), (False, True)):
            video = Video(0, live=live)
            item = Item(Origin("camera:0", frame=0, video=video), lambda: None)
            assert opened.skip(item) == skipped


def test_a_password_in_a_list_is_not_printed(predict, tmp_path):
    (tmp_path / "list").write_text("rtsp://user:secret@host/x\nrtmp://user:secret@host/y\n")
    for source in ("--files-from list", "rtmp://user:secret@host/y"):
        completed = predict(source, code=3)
        assert "secret" not in completed.stdout + completed.stderr


@pytest.mark.usefixtures("each_device")
@pytest.mark.parametrize(
    "signals", [[signal.SIGINT], [signal.SIGINT, signal.SIGTERM, signal.SIGINT]]
)
def test_an_interrupted_video_is_playable(signals, warm_detcli, make_model, long_video, tmp_path):
    command = [warm_detcli / "detcli", "predict", str(long_video), "-q", "-m"]
    command += [str(make_model(size=None, batch=None)), "--save", str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        for _ in range(5):
            process.stdout.readline()
        for number in signals:
            process.send_signal(number)
            time.sleep(0.02)
        rest = process.stdout.read()
        assert process.wait(60) == 130
        assert process.stderr.read() == b""
    for line in rest.splitlines():
        assert json.loads(line)  # no torn record
    capture = cv2.VideoCapture(str(tmp_path / "out" / "clip.mp4"))
    assert capture.read()[0]
    assert 4 <= capture.get(cv2.CAP_PROP_FRAME_COUNT) < 2000
    assert visible_names(tmp_path / "out") == ["clip.mp4"]


BATCHES = thinning.thin("batches of a run whose reader leaves", [(1280, 8), (1280, 30)], count=1)


@pytest.mark.parametrize(("side", "batch"), [(64, 30)] + list(BATCHES))
def test_a_closed_pipe_ends_the_run_quietly(make_model, make_images, side, batch):
    """A thread inside a native library must not abort the process at its end."""
    metadata = {"imgsz": f"[{side}, {side}]", "stride": "8"}
    model = make_model(size=None, batch=None, metadata=metadata)
    command = f"{sys.executable} -m detcli predict {make_images(3 * batch)} -m {model}"
    command += f" -q --batch {batch}"
    finished = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command} | head -1"],  # noqa: S607
        check=False,
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0
    assert finished.stderr == ""
    assert len(lines(finished.stdout)) == 1


def test_no_progress_in_a_pipe(predict, make_images):
    make_images(30)
    outcome, classes = predict("pics").stderr.splitlines()
    assert outcome.startswith("detcli: 30 ")
    assert classes.startswith("detcli: found ")


@pytest.mark.parametrize("spelled", ["same.json", "here/../same.json", "link.json"])
def test_records_and_results_in_one_file_are_refused(spelled, predict, tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "link.json").symlink_to("same.json")
    predict(f"a.png -o same.json --save-coco {spelled}", code=2, says="is given twice")
    assert not (tmp_path / "same.json").exists()


def test_ids_of_coco_are_settled_before_the_first_image(predict, make_image, tmp_path):
    names = ["2.png", "3.png", "cat.png", "dog.png"]
    for name in names:
        make_image(name)
    completed = predict("--save-coco found.json", names, says="cat.png: an earlier image")
    assert len(completed.records) == 4
    for number in (1, "x"):
        listed = {
            "images": [{"id": number, "file_name": "2.png"}],
            "categories": [{"id": 19, "name": "horse"}],
        }
        (tmp_path / "ids.json").write_text(json.dumps(listed))
        completed = predict(
            "2.png --save-coco a.json --coco-images ids.json", code=2, says="ids.json"
        )
        assert completed.stdout == ""
        assert not (tmp_path / "a.json").exists()


def test_an_image_without_an_id_of_coco_does_not_end_the_run(predict, make_image, tmp_path):
    make_image("x.png", ("red", 1, 1))
    listed = {"images": [{"id": 5, "file_name": "x.png"}]}
    (tmp_path / "ids.json").write_text(json.dumps(listed))
    line = "a.png x.png x.png a.png --save-coco a.json --coco-images ids.json"
    completed = predict(line, says="a.png is not among the images of ids.json: left out")
    assert column_of(completed.records, "source") == [
        "a.png",
        "x.png",
        "x.png",
        "a.png",
    ]
    assert set(column_of(json.loads((tmp_path / "a.json").read_text()), "image_id")) == {5}
    assert "3 images are not in the COCO results\n" in completed.stderr


def test_names_of_classes_in_a_locale_without_their_characters(make_model, make_image, tmp_path):
    make_model("m.onnx", metadata={"names": str({0: "Größe", 1: "人" * 99, 2: "\U0001f600"})})
    make_image("a.png", ("red", 2, 3), ("green", 4, 4))
    sinks = "--save saved --save-txt txt --save-crops crops --save-dataset set --report page"
    command = [sys.executable, "-m", "detcli", "predict", "a.png", "-m", "m.onnx", "-o", "a.csv"]
    posix = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    options = {"cwd": tmp_path, "env": posix, "capture_output": True}
    completed = subprocess.run(command + sinks.split(), check=False, **options)
    assert completed.returncode == 0, completed.stderr
    assert (tmp_path / "crops/Größe/a_0.png").is_file()
    assert len(list(tmp_path.glob("crops/人人*/a_1.png"))) == 1
    assert "Größe" in (tmp_path / "set/data.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize("options", ["-o missing/x.csv", "--save a.json/folder"])
def test_a_sink_that_cannot_be_opened_leaves_other_files_alone(options, predict, tmp_path):
    results = tmp_path / "a.json"
    results.write_text("[1]")
    predict(f"a.png --save-coco a.json {options}", code=1)
    assert results.read_text() == "[1]"
    assert list(tmp_path.glob("*.part")) == []


def test_no_input_is_a_usage_error(predict):
    predict("", code=2, says="no inputs given")


@pytest.mark.skipif(sys.platform == "win32", reason="it needs limits")
def test_a_small_address_space_is_an_error(make_model, make_image):
    command = [sys.executable, "-m", "detcli", "predict", make_image("a.png"), "-m", make_model()]
    for kib in (550_000, 1_000_000):
        completed = subprocess.run(
            ["bash", "-c", f'ulimit -v {kib}; "$@"', "bash"] + command,
            check=False,
            capture_output=True,
            text=True,
        )
        assert completed.returncode == 1
        assert "limited to" in completed.stderr
        assert "hint: raise the limit" in completed.stderr
        assert len(completed.stderr.splitlines()) == 2


class Slow(io.FileIO):
    """A file of which a system call writes at most 7 bytes."""

    def write(self, data):
        return super().write(memoryview(data)[:7])


class Unclosed(io.FileIO):
    """A file that a network file system could not write after all."""

    def close(self):
        written = not self.closed and self.writable()
        super().close()
        if written:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


OUTPUTS = "--save save --save-txt txt --save-dataset data --report page --save-crops crops"


def test_writes_that_are_cut_short_write_all(predict, make_image, tmp_path, monkeypatch):
    """And the next run neither doubles nor lacks anything."""
    make_image("a.png", ("red", 1, 1))
    before = set(tmp_path.iterdir())
    written = []
    for kind in (io.FileIO, Slow):
        for module in ("storage.files", "storage.folder", "sink.journal", "page.folder"):
            monkeypatch.setattr(f"detcli.{module}.FileIO", kind)
        for records in ("-o a.json", "-o a.json", "--resume j.jsonl", "--resume j.jsonl"):
            predict(f"a.png {records} {OUTPUTS}")
        new_files = set(tmp_path.iterdir()) - before
        written.append(contents_of(tmp_path))
        for path in new_files:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    whole, slow = written
    assert len(whole) > 20
    assert whole.keys() == slow.keys()
    for path, content in whole.items():
        if path.name != "runs.js":  # which has times
            assert slow[path] == content, path


@pytest.mark.parametrize(
    ("output", "module"),
    [
        ("-o a.csv", "storage.folder"),
        ("--resume a.jsonl", "sink.journal"),
        ("--report page", "page.folder"),
    ],
)
def test_a_file_that_cannot_be_closed_is_an_output_error(output, module, predict, monkeypatch):
    monkeypatch.setattr(f"detcli.{module}.FileIO", Unclosed)
    says = f"cannot write {output.split()[1]}: Input/output error"
    predict(f"a.png {output}", code=1, says=says)


def test_memory_is_not_held_for_a_long_list(make_model, make_image):
    """A thousand large images, which would take 3 GB together."""
    image = make_image("large.jpg", size=(1000, 1000))
    names = f"{image}\n" * 1000
    limited = (
        "import resource, runpy, sys; "
        "resource.setrlimit(resource.RLIMIT_DATA, (2_000_000_000,) * 2); "
        "sys.argv[0] = 'detcli'; runpy.run_module('detcli', run_name='__main__')"
    )
    arguments = ["predict", "--files-from", "-", "-q", "--conf", "0.9", "-m", make_model()]
    finished = subprocess.run(
        [sys.executable, "-c", limited] + arguments,
        input=names,
        check=False,
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr[-500:]
    assert len(lines(finished.stdout)) == 1000
