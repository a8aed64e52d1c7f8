"""`detcli predict --track` on a video of codes that travel on belts."""

import importlib.util
import json
from collections import defaultdict
from pathlib import Path

import cv2
import json_lines
import number_video
import numpy as np
import optional
import pytest
from folders import names_in

# Not imported here: that takes a second, and every worker of the suite reads this file.
pytestmark = [
    pytest.mark.slow,
    optional.needs("trackers"),
]

ROOT = Path(__file__).parents[3]
SPEC = importlib.util.spec_from_file_location("draw_belt", ROOT / "docs/images/draw_belt.py")
belt = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(belt)

GATE = "gate=0.5,0,0.5,1"  # from top to bottom, so left is where x grows


@pytest.fixture(scope="session")
def tracked_video(tmp_path_factory):
    path = tmp_path_factory.mktemp("belt") / "belt.mp4"
    belt.main(str(path))
    return path


@pytest.fixture
def common(tracked_video):
    return f"{tracked_video} -m codes --track bytetrack"


def identities(records):
    """The numbers that each parcel had, by its place in PARCELS."""
    truth = [boxes for _, boxes in belt.frames()]
    numbers_by_parcel = defaultdict(set)
    for record in records:
        for detection in record["detections"]:
            x = (detection["x1"] + detection["x2"]) / 2
            y = (detection["y1"] + detection["y2"]) / 2
            boxes = truth[record["frame"]]
            inside = (boxes[:, :2] <= (x, y)).all(axis=1) & (boxes[:, 2:] >= (x, y)).all(axis=1)
            for parcel in np.flatnonzero(inside):
                if "track_id" in detection:
                    numbers_by_parcel[int(parcel)].add(detection["track_id"])
    return numbers_by_parcel


@pytest.mark.parametrize(
    ("stride", "condition", "code"), [(1, "gate left.any>2", 0), (2, "gate right.barcode==1", 6)]
)
def test_parcels_keep_their_numbers(predict, common, stride, condition, code, tmp_path):
    """And a run can fail because of what crosses a line."""
    options = f"--vid-stride {stride} --line {GATE} --save out --save-mot mot"
    completed = predict(f"{common} {options}", "--fail-if", condition, code=code)
    records = completed.records
    assert len(records) == belt.FRAMES / stride
    numbers_by_parcel = identities(records)
    all_numbers = set()
    for numbers in numbers_by_parcel.values():
        assert len(numbers) == 1, numbers_by_parcel
        all_numbers |= numbers
    assert len(numbers_by_parcel) == len(belt.PARCELS)
    assert len(all_numbers) == len(belt.PARCELS)

    detections = json_lines.detections_of(records)
    crossed = []
    for detection in detections:
        for crossing in detection["crossed"]:
            crossed.append((detection["class_name"], crossing["to"]))
    assert crossed == [("qr_code", "left"), ("barcode", "right"), ("data_matrix", "left")]
    assert "crossed gate to the left: 1 qr_code, 1 data_matrix" in completed.stderr
    assert "wrote 1 file to mot" in completed.stderr
    rows = (tmp_path / "mot/belt.txt").read_text().splitlines()
    assert len(rows) == len(json_lines.records_with(detections, "track_id"))
    assert cv2.VideoCapture(str(tmp_path / "out/belt.mp4")).get(cv2.CAP_PROP_FRAME_COUNT) > 0


def test_a_condition_about_an_unknown_class_of_crossings_is_refused(predict, common):
    predict(f"{common} --line {GATE} --fail-if gate.qr>0", code=2)


def test_a_video_that_was_cut_off_is_processed_again_from_its_start(predict, common, tmp_path):
    complete = tmp_path / "whole.jsonl"
    journal = tmp_path / "j.jsonl"
    predict(f"{common} --vid-stride 3 --resume whole.jsonl")
    lines = complete.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines[:10]))
    predict(f"{common} --vid-stride 3 --resume j.jsonl")
    assert journal.read_text() == complete.read_text()


def test_a_run_in_shards_numbers_each_video_as_one_run_does(
    in_shards, common, tracked_video, tmp_path
):
    second = tmp_path / "second.mp4"
    second.write_bytes(tracked_video.read_bytes())
    single_run, merged = in_shards(f"{second} {common} --vid-stride 5", "--shard-size", 1)
    assert merged == single_run
    detections_of_videos = defaultdict(list)
    for record in json_lines.lines(single_run):
        detections_of_videos[record["source"]].append(record["detections"])
    of_first = detections_of_videos[str(tracked_video)]
    of_second = detections_of_videos[str(second)]
    assert any(of_first)
    assert of_first == of_second  # each begins at 1


def test_rows_have_the_class_of_the_track(predict, common, tmp_path):
    pandas = optional.require("pandas")
    optional.require("pyarrow")
    for name, read in (("a.csv", pandas.read_csv), ("a.parquet", pandas.read_parquet)):
        predict(f"{common} --vid-stride 5 -o {name}")
        rows = read(tmp_path / name)
        tracked = rows.track_id.notna()
        assert (rows.track_class[tracked] == rows.class_name[tracked]).mean() > 0.9
        assert rows.track_class[~tracked].isna().all()


def test_of_photos_it_is_said_that_nothing_was_tracked(predict, tmp_path):
    cv2.imwrite(str(tmp_path / "belt.png"), next(belt.frames())[0])
    command = "belt.png -m codes --track ocsort"
    (record,) = predict(command, says="nothing was tracked").records
    for detection in record["detections"]:
        assert "track_id" not in detection
    assert predict(f"{command} -q").stderr == ""


def test_every_class_may_begin_a_track(predict, common, tmp_path):
    """Also one whose confidence is below that of the others."""
    predict(f"{common} --vid-stride 25 --conf 0.99,qr_code=0.25 --resume j.jsonl")
    settings = json.loads((tmp_path / "j.jsonl").read_text().splitlines()[0])["settings"]
    assert settings["track"] == "bytetrack,conf=0.25"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--track deepsort", "no tracker 'deepsort'"),
        ("--track ocsort --save-mot mot --resume j", "--save-mot with --resume"),
        ("--track ocsort --save-mot o --save-txt ./o/", "name two folders"),
    ],
)
def test_options_that_do_not_go_together(predict, options, says, tmp_path):
    predict(f"a.png {options}", code=2, says=says)
    assert set(names_in(tmp_path)) == {"a.png", "colours.onnx"}


def test_a_symbol_that_was_read_keeps_its_text_where_it_is_blurred(predict, tmp_path):
    frames = [image for image, _ in belt.frames()][14:22]
    writer = number_video.open_writer(tmp_path / "b.avi", (640, 360), code="MJPG")
    for number, image in enumerate(frames):
        writer.write(cv2.GaussianBlur(image, (0, 0), 3.5) if number > 4 else image)
    writer.release()
    records = predict("b.avi -m codes --track bytetrack --read").records
    texts = []
    for detection in json_lines.detections_of(records):
        if detection["class_name"] == "qr_code":
            texts.append((detection.get("text"), detection.get("earlier", False)))
    text = "https://example.org/t/7Q42"
    assert texts == [(text, False)] * 5 + [(text, True)] * 3
