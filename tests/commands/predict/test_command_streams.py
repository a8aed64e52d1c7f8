"""`detcli predict` on streams, with several detectors, and with all sinks."""

import base64
import csv
import json
import os
import shutil
import subprocess
from pathlib import Path

import optional
import pytest
from colour_model import NAMES
from folders import files_in, visible_names
from json_lines import (
    column_of,
    detection_counts,
    lines,
    optional_column_of,
    records_with,
    text_of,
)
from report_schemas import validator
from saved_records import of_version_1

from detcli.core.text import escape_surrogates
from detcli.data.record import box_of


@pytest.mark.parametrize(
    "options", ["", "--workers 1", "--workers 3 --batch 4", "--device cpu,cpu"]
)
def test_any_number_of_workers_gives_the_same_records(options, predict, make_model, make_images):
    make_model(batch=None)
    make_images(40)
    completed = predict(f"pics --conf 0.6 {options}", says="40 images, 14 detections")
    assert column_of(completed.records, "index") == list(range(40))
    assert detection_counts(completed.records) == [1, 0, 0] * 13 + [1]


def test_batch_and_workers_are_logged(detcli, make_model, make_images):
    folder = make_images(3)
    model = make_model(batch=2)
    finished = detcli("predict", folder, "-m", model, "-v", "--workers", "3")
    assert "batches of 2, detectors: 3" in finished.stderr
    finished = detcli("predict", folder, "-m", model, "-v", "--batch", "5", "--workers", "1")
    assert "batches of 5, detectors: 1" in finished.stderr


def test_a_missing_second_device_is_refused(detcli, make_model, make_images):
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    finished = detcli(
        "predict",
        make_images(3),
        "-m",
        make_model(),
        "--device",
        "cpu,cuda:5",
        env=environment,
    )
    assert finished.returncode == 5


def test_a_video_has_frames_with_times(predict, make_video):
    make_video()
    records = predict("clip.mp4 --conf 0.6 --vid-stride 5", says="4 frames").records
    assert column_of(records, "frame") == [0, 5, 10, 15]
    assert column_of(records, "time_s") == pytest.approx([0, 0.5, 1, 1.5])
    counts = detection_counts(records)
    assert counts[:2] == [0, 0]
    assert min(counts[2:]) > 0
    records = predict("clip.mp4 --start 0.5 --end 0.8").records
    assert column_of(records, "frame") == [5, 6, 7]


def test_a_list_of_files(detcli, make_model, make_images):
    names = b"\0".join(str(path).encode() for path in sorted(make_images(5).iterdir()))
    finished = detcli("predict", "--files-from", "-", "-0", "-m", make_model(), input=names)
    assert finished.returncode == 0
    assert len(lines(finished.stdout.decode())) == 5


@optional.needs("pyarrow")
def test_a_list_that_is_run_again_replaces_its_results(predict, make_images, tmp_path):
    folder = make_images(2)
    (tmp_path / "list").write_text(f"{folder}/0000.png\n{folder}/0001.png\n")
    written = "--save out --save-crops crops --report page -o boxes.parquet"
    files_of_runs = []
    for _ in range(2):
        predict(f"--files-from list --conf 0.6 {written}")
        files_of_runs.append(files_in(tmp_path))
    assert files_of_runs[0] == files_of_runs[1]


def test_a_list_is_read_line_by_line(warm_detcli, make_model, make_images):
    """Each record comes before the next line is written, whether that is a name or JSON."""
    first, second = sorted(make_images(2).iterdir())
    command = [warm_detcli / "detcli", "predict", "--files-from", "-", "-q"]
    with subprocess.Popen(
        command + ["-m", str(make_model())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        for line in (first, json.dumps({"path": str(second), "meta": 1}), second):
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
            record = json.loads(process.stdout.readline())
            assert record["source"] == str(first if line == first else second)
        process.stdin.close()
        assert process.wait(30) == 0


def test_all_sinks_at_once(predict, make_video, make_images, tmp_path):
    make_video()
    make_images(4)
    sinks = "--save saved --save-txt labels --save-conf --save-crops crops --save-coco coco.json"
    assert predict(f"pics clip.mp4 --conf 0.6 {sinks} -o all.csv").stdout == ""
    saved = visible_names(tmp_path / "saved")
    assert saved == ["0000.png", "0001.png", "0002.png", "0003.png", "clip.mp4"]
    assert len(visible_names(tmp_path / "labels")) == 4 + 20
    assert visible_names(tmp_path / "crops") == [NAMES[0]]
    results = json.loads((tmp_path / "coco.json").read_text())
    with (tmp_path / "all.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["score"]]
    assert len(results) == len(rows) > 100


@pytest.mark.parametrize(
    ("condition", "code"), [("red>1", 6), ("red>2", 0), ("any==2", 6), ("blue>0", 0)]
)
def test_fail_if(condition, code, predict, make_images):
    make_images(6)
    completed = predict(f"pics --conf 0.6 --fail-if {condition}", code=code)
    assert (condition in completed.stderr) == (code == 6)
    assert len(completed.records) == 6  # all of them, either way


def test_the_rectangle_finds_what_the_square_finds(predict, make_model, make_image):
    make_model(size=None, batch=None, metadata={"stride": "8", "imgsz": "[64, 64]"})
    make_image("wide.png", ("red", 5, 2), size=(32, 64))
    (square,) = predict("wide.png --conf 0.6").records
    assert predict("wide.png --conf 0.6 --rect").records == [square]
    assert box_of(square["detections"][0]) == (40, 16, 48, 24)


def test_too_many_pixels(predict):
    (record,) = predict("a.png --max-pixels 4095", code=3).records
    assert "4095" in record["error"]["message"]


META = [{"id": 7}, "=1+1", [1, None, {"猫": 1e300}], 0, None]


@pytest.mark.parametrize("name", ["list.jsonl", "-"])
def test_what_a_list_in_json_lines_says_of_an_input_comes_back(
    detcli, make_model, make_image, make_video, tmp_path, monkeypatch, name
):
    """A list has names, too; an input that fails keeps what was said of it."""
    monkeypatch.chdir(tmp_path)
    make_image("a.png", ("red", 2, 3))
    make_video()
    image = base64.b64encode(Path("a.png").read_bytes()).decode()
    entries = [
        {"image": image, "meta": META[0]},
        {"path": "a.png", "meta": META[1]},
        {"path": "clip.mp4", "meta": META[2]},
        {"path": "gone.png", "meta": META[3]},
        {"image": "?", "meta": META[4]},
        {"path": "a.png"},
    ]
    text = ""
    for entry in entries:
        text += json.dumps(entry, ensure_ascii=False) + "\n"
    text += "a.png\n"
    Path("list.jsonl").write_text(text, encoding="utf-8")
    options = ["--files-from", name, "-m", make_model(), "-q", "--vid-stride", "10"]
    completed = detcli("predict", "a.png", options, input=text)
    assert completed.returncode == 3, completed.stderr
    records = lines(completed.stdout)
    for record in records:
        validator("predict", strict=True).validate(record)
    assert column_of(records, "index") == list(range(9))
    assert column_of(records, "input") == [0, 1, 2, 3, 3, 4, 5, 6, 7]
    expected_meta = [..., META[0], META[1], META[2], META[2], META[3], META[4], ..., ...]
    assert optional_column_of(records, "meta", ...) == expected_meta
    assert records[1]["source"] == f"{name}:1"
    assert records[6]["source"] == f"{name}:5"
    assert records[1]["detections"] == records[0]["detections"]
    assert column_of(records_with(records, "error"), "input") == [4, 5]


@pytest.mark.parametrize(
    "line",
    [
        b'{"path": "a.png"',
        b'{"path": 3}',
        b'{"path": "a.png", "image": ""}',
        b'{"x": 1}',
        b'{"path": "a.png", "meta": NaN}',
        b'{"path": "\\ud800.png"}',
        b'{"path": "\xff.png"}',
        b'{"path": "a.png", "meta": ' + b"[" * 100_000,
    ],
)
def test_a_line_that_is_none_becomes_an_error(predict, tmp_path, line):
    (tmp_path / "list").write_bytes(line + b'\n{"path": "a.png", "meta": 5}\n')
    torn, valid = predict("--files-from list", code=3).records
    assert torn["error"]["message"].startswith("a line of the list ")
    assert '{"path": ' in torn["error"]["hint"]
    assert valid["input"] == 1
    assert valid["meta"] == 5


def test_with_names_that_end_with_nul_no_line_is_json(predict, tmp_path):
    name = '{"path": "b.png"}'
    (tmp_path / "list").write_text(f"{name}\0")
    (record,) = predict("--files-from list -0", code=3).records
    assert record["source"] == name


def test_parts_of_a_run_in_shards_have_what_a_list_says(in_shards, make_video, tmp_path):
    """Also where a video comes twice, each time with something else."""
    make_video(frames=2)
    entries = [
        {"path": "a.png", "meta": 7},
        {"path": "a.png", "meta": {"猫": None}},
        {"path": "clip.mp4", "meta": None},
        {"path": "clip.mp4", "meta": "1"},
        {"path": "clip.mp4", "meta": 1},
        {"path": "clip.avi", "meta": 5},
        {"path": "clip.mp4"},
    ]
    (tmp_path / "clip.avi").write_bytes(b"torn")
    (tmp_path / "list").write_text(text_of(entries))
    single_run, merged = in_shards("--files-from list", "--shard-size", 2, code=3)
    assert optional_column_of(lines(single_run), "meta", ...) == [
        7,
        {"猫": None},
        None,
        None,
        "1",
        "1",
        1,
        1,
        5,
        ...,
        ...,
    ]
    assert merged == single_run


@pytest.mark.slow
def test_a_run_in_shards_takes_no_images_out_of_a_list(predict, tmp_path):
    (tmp_path / "list").write_text('{"image": "", "meta": 1}')
    predict("--files-from list -o boxes/", code=2, says="list:1: a run in shards takes no images")
    (tmp_path / "list").write_text('{"path": "http://a:b@host/a.png", "meta": 1}')
    predict("--files-from list -o boxes/", code=2, says="a manifest would show the password")


@pytest.mark.usefixtures("shards_here")
def test_names_that_are_not_utf_8_are_known_by_their_bytes(predict, invoke, tmp_path):
    """By --resume, merge and report; two names that look alike are two."""
    duckdb = optional.require("duckdb")
    names = [b"caf\xe9.png", rb"caf\xe9.png"]
    (tmp_path / "pics").mkdir()
    for name in names:
        shutil.copy(tmp_path / "a.png", os.fsencode(tmp_path / "pics") + b"/" + name)
    predict("pics --resume run.jsonl --save out")
    completed = predict("pics --resume run.jsonl", says="2 skipped")
    assert not completed.records
    predict("pics -o boxes/")
    assert invoke("merge", "boxes", "-o", "all.jsonl", cwd=tmp_path).returncode == 0
    completed = invoke("report", "all.jsonl", "-o", "page", cwd=tmp_path)
    assert completed.returncode == 0
    assert ("not found" in completed.stderr) is False
    for file in ("run.jsonl", "all.jsonl"):
        rows = duckdb.read_json(str(tmp_path / file))
        rows = rows.select("source", "source_bytes", "index").fetchall()
        shown_name = r"pics/caf\xe9.png"
        odd = base64.b64encode(b"pics/" + names[0]).decode()
        assert sorted(rows, key=str) == [(shown_name, odd, 1), (shown_name, None, 0)]
        assert (tmp_path / file).read_bytes().decode()


def test_orjson_reads_records_of_names_that_are_not_utf_8(predict, tmp_path):
    """Also where they are the names of files that were written."""
    orjson = pytest.importorskip("orjson")
    names = [
        os.fsdecode(b"caf\xe9.png"),
        os.fsdecode(b"gone\xff\xf0\x9f.png"),
        os.fsdecode(b"\xed\xa0\x80.mp4"),
    ]
    shutil.copy(tmp_path / "a.png", os.fsencode(tmp_path) + b"/caf\xe9.png")
    (tmp_path / "list").write_bytes(os.fsencode("\n".join(names)))
    options = "--provenance --save out --resume run.jsonl"
    predict(f"--files-from list {options}", names, code=3)
    predict("--files-from list -o all.json", names, code=3)
    expected_names = {os.fsencode(name): escape_surrogates(name) for name in names}
    records = [orjson.loads(line) for line in (tmp_path / "run.jsonl").read_bytes().splitlines()]
    assert len(records) >= 3
    for records_read in (records, orjson.loads((tmp_path / "all.json").read_bytes())):
        names_by_bytes = {}
        for record in records_read:
            names_by_bytes[base64.b64decode(record["source_bytes"])] = record["source"]
        assert names_by_bytes == expected_names


def test_a_journal_of_version_1_is_continued_in_the_form_of_version_2(
    predict, tmp_path, make_image
):
    make_image("b.png")
    predict("a.png b.png --conf 0.5 --resume run.jsonl -q")
    path = tmp_path / "run.jsonl"
    records = lines(path.read_text())
    old = of_version_1(records[0])
    path.write_text(json.dumps(old) + "\n")
    predict("a.png b.png --conf 0.5 --resume run.jsonl", says="it had 1 input already")
    continued = lines(path.read_text())
    assert "input" not in continued[0]
    assert continued[1]["input"] == 1
    del records[0]["input"], records[1]["input"], continued[1]["input"], continued[1]["settings"]
    assert continued == records
    path.write_text(json.dumps(old) + "\n")
    predict("a.png b.png --conf 0.4 --resume run.jsonl", code=2, says="conf 0.5 instead of 0.4")
