"""`detcli predict` on streams, with several detectors, and with all sinks."""

import json
import os
import subprocess

import cv2
import pytest
from colour_model import NAMES, picture
from json_lines import lines


@pytest.mark.parametrize("options", [[], ["--workers", "1"], ["--workers", "3", "--batch", "4"]])
def test_any_number_of_workers_gives_the_same_records(options, invoke, make_model, make_pictures):
    model = make_model(batch=None)
    finished = invoke("predict", make_pictures(40), "-m", model, "--conf", "0.6", *options)
    assert finished.returncode == 0
    records = lines(finished.stdout)
    assert [record["index"] for record in records] == list(range(40))
    assert [len(record["detections"]) for record in records] == [1, 0, 0] * 13 + [1]
    assert "40 pictures, 14 detections" in finished.stderr
    assert "network" in finished.stderr  # where the time went


def test_several_devices_share_the_inputs(invoke, make_model, make_pictures):
    finished = invoke(
        "predict", make_pictures(20), "-m", make_model(), "--device", "cpu,cpu", "--conf", "0.6"
    )
    assert finished.returncode == 0
    assert [record["index"] for record in lines(finished.stdout)] == list(range(20))


def test_batch_and_workers_are_logged(detcli, make_model, make_pictures):
    folder, model = make_pictures(3), make_model(batch=2)
    finished = detcli("predict", folder, "-m", model, "-v", "--workers", "3")
    assert "batches of 2, detectors: 3" in finished.stderr
    finished = detcli("predict", folder, "-m", model, "-v", "--batch", "5", "--workers", "1")
    assert "batches of 5, detectors: 1" in finished.stderr


def test_a_missing_second_device_is_refused(detcli, make_model, make_pictures):
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    finished = detcli(
        *("predict", make_pictures(3), "-m", make_model(), "--device", "cpu,cuda:5"),
        env=environment,
    )
    assert finished.returncode == 5


def test_a_video_has_frames_with_times(invoke, make_model, make_video):
    video = make_video()
    finished = invoke("predict", video, "-m", make_model(), "--conf", "0.6", "--vid-stride", "5")
    records = lines(finished.stdout)
    assert [record["frame"] for record in records] == [0, 5, 10, 15]
    assert [record["time_s"] for record in records] == pytest.approx([0, 0.5, 1, 1.5])
    assert [bool(record["detections"]) for record in records] == [False, False, True, True]
    assert "4 frames" in finished.stderr


def test_start_and_end(invoke, make_model, make_video):
    finished = invoke("predict", make_video(), "-m", make_model(), "--start", "0.5", "--end", "0.8")
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


def test_a_list_that_is_run_again_replaces_its_results(invoke, make_model, make_pictures, tmp_path):
    (tmp_path / "list").write_text("".join(f"{path}\n" for path in make_pictures(2).iterdir()))
    options = ("--save", "out", "--save-crops", "crops", "--report", "page", "-o", "boxes.parquet")
    made = []
    for _ in range(2):
        finished = invoke(
            *("predict", "--files-from", "list", "-m", make_model(), "--conf", "0.6", *options),
            cwd=tmp_path,
        )
        assert finished.returncode == 0, finished.stderr
        made.append(sorted(path for path in tmp_path.rglob("*") if path.is_file()))
    assert made[0] == made[1]


def test_a_list_is_read_line_by_line(warm_detcli, make_model, make_pictures):
    """The first record comes before the second name is written."""
    first, second = sorted(make_pictures(2).iterdir())
    command = [warm_detcli / "detcli", "predict", "--files-from", "-", "-q"]
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


def test_all_sinks_at_once(invoke, make_model, make_video, make_pictures, tmp_path):
    sinks = {name: tmp_path / name for name in ("saved", "labels", "crops")}
    finished = invoke(
        *("predict", make_pictures(4), make_video(), "-m", make_model(), "--conf", "0.6"),
        *("--save", sinks["saved"], "--save-txt", sinks["labels"], "--save-conf"),
        *("--save-crops", sinks["crops"], "--save-coco", tmp_path / "coco.json"),
        *("-o", tmp_path / "all.csv"),
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == ""
    assert sorted(p.name for p in sinks["saved"].glob("[!.]*")) == [
        *(f"{number:04}.png" for number in range(4)),
        "clip.mp4",
    ]
    assert len(list(sinks["labels"].glob("[!.]*"))) == 4 + 20
    assert [p.name for p in sinks["crops"].glob("[!.]*")] == [NAMES[0]]
    results = json.loads((tmp_path / "coco.json").read_text())
    records = [row for row in (tmp_path / "all.csv").read_text().splitlines()[1:] if row]
    assert len(results) == len(records) > 100


@pytest.mark.parametrize(
    ("condition", "code"), [("red>1", 6), ("red>2", 0), ("any==2", 6), ("blue>0", 0)]
)
def test_fail_if(condition, code, invoke, make_model, make_pictures):
    finished = invoke(
        *("predict", make_pictures(6), "-m", make_model(), "--conf", "0.6"),
        *("--fail-if", condition),
    )
    assert finished.returncode == code
    assert (condition in finished.stderr) == (code == 6)
    assert len(lines(finished.stdout)) == 6  # all of them, either way


def test_a_confidence_for_one_class(invoke, make_model, make_picture):
    image = make_picture("a.png", ("red", 1, 1), ("blue", 3, 3))
    finished = invoke("predict", image, "-m", make_model(), "--conf", "0.6,red=1")
    (record,) = lines(finished.stdout)
    assert [found["class_name"] for found in record["detections"]] == ["blue"]


def test_one_class_per_anchor(invoke, make_model, make_picture):
    """Grey scores equally in all three classes."""
    image = make_picture("a.png")
    counts = []
    for options in ([], ["--unique"]):
        finished = invoke("predict", image, "-m", make_model(), "--conf", "0.3", *options)
        counts.append(len(lines(finished.stdout)[0]["detections"]))
    assert counts == [3 * 64, 64]


def test_the_rectangle_finds_what_the_square_finds(invoke, make_model, make_picture):
    model = make_model(size=None, batch=None, metadata={"stride": "8", "imgsz": "[64, 64]"})
    image = make_picture("wide.png", ("red", 5, 2), size=(32, 64))
    found = [
        lines(invoke("predict", image, "-m", model, "--conf", "0.6", *options).stdout)
        for options in ([], ["--rect"])
    ]
    assert found[0] == found[1]
    assert found[0][0]["detections"][0]["box"] == [40, 16, 48, 24]


def test_the_rectangle_needs_a_dynamic_graph(invoke, make_model, make_picture):
    finished = invoke("predict", make_picture("a.png"), "-m", make_model(), "--rect")
    assert finished.returncode == 2
    assert "64x64 pictures only" in finished.stderr


def test_too_many_pixels(invoke, make_model, make_picture):
    finished = invoke(
        *("predict", make_picture("a.png"), "-m", make_model(), "--max-pixels", "4095")
    )
    assert finished.returncode == 3
    assert "4095" in lines(finished.stdout)[0]["error"]["message"]
