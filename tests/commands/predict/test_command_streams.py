"""`detcli predict` on streams, with several detectors, and with all sinks."""

import json
import os
import subprocess

import pytest
from colour_model import NAMES
from json_lines import lines


@pytest.mark.parametrize(
    "options", ["", "--workers 1", "--workers 3 --batch 4", "--device cpu,cpu"]
)
def test_any_number_of_workers_gives_the_same_records(options, predict, make_model, make_pictures):
    make_model(batch=None)
    make_pictures(40)
    done = predict(f"pics --conf 0.6 {options}", says="40 pictures, 14 detections")
    assert [record["index"] for record in done.records] == list(range(40))
    assert [len(record["detections"]) for record in done.records] == [1, 0, 0] * 13 + [1]
    assert "network" in done.stderr  # where the time went


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


def test_a_video_has_frames_with_times(predict, make_video):
    make_video()
    records = predict("clip.mp4 --conf 0.6 --vid-stride 5", says="4 frames").records
    assert [record["frame"] for record in records] == [0, 5, 10, 15]
    assert [record["time_s"] for record in records] == pytest.approx([0, 0.5, 1, 1.5])
    assert [bool(record["detections"]) for record in records] == [False, False, True, True]
    records = predict("clip.mp4 --start 0.5 --end 0.8").records
    assert [record["frame"] for record in records] == [5, 6, 7]


def test_a_list_of_files(detcli, make_model, make_pictures):
    names = b"\0".join(str(path).encode() for path in sorted(make_pictures(5).iterdir()))
    finished = detcli("predict", "--files-from", "-", "-0", "-m", make_model(), input=names)
    assert finished.returncode == 0
    assert len(lines(finished.stdout.decode())) == 5


def test_a_list_that_is_run_again_replaces_its_results(predict, make_pictures, tmp_path):
    (tmp_path / "list").write_text("".join(f"{path}\n" for path in make_pictures(2).iterdir()))
    written = "--save out --save-crops crops --report page -o boxes.parquet"
    made = []
    for _ in range(2):
        predict(f"--files-from list --conf 0.6 {written}")
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


def test_all_sinks_at_once(predict, make_video, make_pictures, tmp_path):
    make_video()
    make_pictures(4)
    sinks = "--save saved --save-txt labels --save-conf --save-crops crops --save-coco coco.json"
    assert predict(f"pics clip.mp4 --conf 0.6 {sinks} -o all.csv").stdout == ""
    saved, labels, crops = (
        sorted(path.name for path in (tmp_path / name).glob("[!.]*"))
        for name in ("saved", "labels", "crops")
    )
    assert saved == [*(f"{number:04}.png" for number in range(4)), "clip.mp4"]
    assert (len(labels), crops) == (4 + 20, [NAMES[0]])
    results = json.loads((tmp_path / "coco.json").read_text())
    records = [row for row in (tmp_path / "all.csv").read_text().splitlines()[1:] if row]
    assert len(results) == len(records) > 100


@pytest.mark.parametrize(
    ("condition", "code"), [("red>1", 6), ("red>2", 0), ("any==2", 6), ("blue>0", 0)]
)
def test_fail_if(condition, code, predict, make_pictures):
    make_pictures(6)
    done = predict(f"pics --conf 0.6 --fail-if {condition}", code=code)
    assert (condition in done.stderr) == (code == 6)
    assert len(done.records) == 6  # all of them, either way


def test_the_rectangle_finds_what_the_square_finds(predict, make_model, make_picture):
    make_model(size=None, batch=None, metadata={"stride": "8", "imgsz": "[64, 64]"})
    make_picture("wide.png", ("red", 5, 2), size=(32, 64))
    (square,) = predict("wide.png --conf 0.6").records
    assert predict("wide.png --conf 0.6 --rect").records == [square]
    assert square["detections"][0]["box"] == [40, 16, 48, 24]


def test_too_many_pixels(predict):
    (record,) = predict("a.png --max-pixels 4095", code=3).records
    assert "4095" in record["error"]["message"]
