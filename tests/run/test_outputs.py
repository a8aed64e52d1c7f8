"""What every sink promises: an empty run, failed inputs, a record, a full disk, a lost folder."""

import contextlib
import csv
import io
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import optional
import pytest
from json_lines import column_of, lines
from sample_records import damaged, failed_frame, failure, feed, feed_all, frame, image
from small_disk import small_disk

from detcli.core.errors import DetcliWarning, OutputError
from detcli.data.geometry import Image
from detcli.data.record import notes_of
from detcli.page.page import Page, PageSink
from detcli.page.run_info import RunInfo
from detcli.sink.dataset import DatasetSink
from detcli.sink.folder import OutputFolder
from detcli.sink.image import CropSink, ImageSink
from detcli.sink.labels import (
    CocoIds,
    CocoSink,
    LabelSink,
    LabelStudioSink,
    MotSink,
)
from detcli.sink.protocol import Stream
from detcli.sink.text import COLUMNS, CsvSink, JsonLinesSink, JsonSink, TableSink
from detcli.sink.video import VideoSink
from detcli.storage.files import AtomicFile

FILES = {
    "json": JsonSink,
    "jsonl": JsonLinesSink,
    "csv": CsvSink,
    "table": TableSink,
    "coco": lambda output: CocoSink(output, CocoIds()),
    "labelstudio": LabelStudioSink,
}
FOLDERS = {
    "images": ImageSink,
    "crops": CropSink,
    "labels": LabelSink,
    "mot": MotSink,
    "videos": VideoSink,
}


def parquet_in(folder):
    from detcli.sink.parquet import ParquetSink

    return ParquetSink(AtomicFile(folder / "a"))


OTHER_SINKS = {
    "parquet": parquet_in,
    "dataset": lambda out: DatasetSink(out / "a", ("cat",)),
    "page": lambda out: PageSink(Page(out / "a", RunInfo("predict"))),
}
SINKS = FILES.keys() | FOLDERS.keys() | OTHER_SINKS.keys()
CASES = [optional.PARQUET if name == "parquet" else name for name in sorted(SINKS)]


def opened(name, out):
    """A sink whose file or folder is `a`."""
    if name in FILES:
        return FILES[name](AtomicFile(out / "a"))
    if name in FOLDERS:
        return FOLDERS[name](OutputFolder(out / "a"))
    return OTHER_SINKS[name](out)


def files(out):
    """Content by path, without marks and what shows any page."""
    contents = {}
    for path in out.rglob("*"):
        is_mark = path.name.startswith(".")
        if path.is_file() and not is_mark and "files" not in path.parts:
            contents[str(path.relative_to(out))] = path.read_bytes()
    return contents


def noisy(record, size=(100, 100)):
    """The same with an image that takes room."""
    pixels = np.random.default_rng(0).integers(0, 255, (*size, 3), np.uint8)
    return replace(record, picture=Image.whole(pixels))


FILES_OF_EMPTY_RUN = {
    "json": {"a": b"[]\n"},
    "coco": {"a": b"[]\n"},
    "labelstudio": {"a": b"[]\n"},
    "jsonl": {"a": b""},
    "table": {"a": b""},
    "csv": {"a": (",".join(COLUMNS) + "\n").encode()},
}


@pytest.mark.parametrize("name", sorted(SINKS - {"parquet", "page"}))
def test_an_empty_run_is_valid(tmp_path, name):
    feed(opened(name, tmp_path))
    assert files(tmp_path) == FILES_OF_EMPTY_RUN.get(name, {})
    assert (tmp_path / "a").exists()


@pytest.mark.parametrize("name", CASES)
def test_a_failed_input_is_told_or_left_out(tmp_path, name):
    feed(opened(name, tmp_path), failure(), failed_frame(0))
    files_with_error = []
    for path, content in files(tmp_path).items():
        if b"it is torn" in content:
            files_with_error.append(path)
    if name == "page":
        assert files_with_error == ["a/data/0.js"]
    elif name in {"json", "jsonl", "csv", "table", "parquet"}:
        assert files_with_error == ["a"]
    else:
        assert files_with_error == []
    if name == "mot":
        assert files(tmp_path) == {"a/film.txt": b""}
    elif name in FOLDERS:
        assert files(tmp_path) == {}


@pytest.mark.parametrize("name", CASES)
def test_a_record_stays_as_it_is_and_knows_its_files(tmp_path, name):
    takes_frames = name in {"mot", "videos"}
    record = frame(3, count=1) if takes_frames else damaged(image(), "torn")
    fields = record.to_json() | {"saved": 0}
    pixels = record.picture.pixels.copy()
    with contextlib.closing(opened(name, tmp_path)) as sink:
        sink.write(record)
        assert not (tmp_path / "a").is_file()  # until it is complete
        if takes_frames:
            assert files(tmp_path) == {}
    assert record.to_json() | {"saved": 0} == fields
    np.testing.assert_array_equal(record.picture.pixels, pixels)
    if name in FOLDERS or name == "dataset":
        saved = set()
        for path in notes_of(record).saved:
            saved.add(str(path.relative_to(tmp_path)))
        assert saved
        assert files(tmp_path).keys() - {"a/data.yaml"} == saved


def indices_in_table(text):
    """The first letters of the names, which are the indices."""
    indices = []
    for line in text.splitlines():
        if "60x40" in line:
            indices.append(line[0])
    return indices


READ_INDICES = {
    "csv": lambda text: column_of(csv.DictReader(text.splitlines()), "index"),
    "jsonl": lambda text: [str(index) for index in column_of(lines(text), "index")],
    "json": lambda text: [str(index) for index in column_of(json.loads(text), "index")],
    "coco": lambda text: [str(box["image_id"] - 1) for box in json.loads(text)],
    "table": indices_in_table,
    "labelstudio": lambda text: [task["data"]["image"][0] for task in json.loads(text)],
}


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("name", sorted(FILES))
def test_what_a_file_had_before_the_disk_was_full_is_readable(tmp_path, name, before):
    sink = opened(name, tmp_path)
    for index in range(before):
        sink.write(image(f"{index}x.jpg", index=index))
    with small_disk():
        with pytest.raises(OutputError, match=f"{tmp_path}/a: File too large"):
            sink.write(image("9x.jpg", index=9, count=100))
        with pytest.warns(DetcliWarning, match="not complete"):
            sink.close()
    indices = READ_INDICES[name]((tmp_path / "a").read_text())
    assert indices == ["0", "1"][:before]


@optional.needs("pyarrow")
@pytest.mark.parametrize("group", [1, 1_000_000])
def test_a_full_disk_leaves_no_parquet(tmp_path, monkeypatch, group):
    """Without its end it cannot be read."""
    monkeypatch.setattr("detcli.sink.parquet.ROWS_IN_GROUP", group)
    (tmp_path / "a").write_bytes(b"before")
    records = []
    for number in range(100):
        records.append(image(f"{number * 7919}" * 100, index=number))
    with small_disk(), pytest.raises(OutputError, match=r"/a: File too large"):
        feed_all(opened("parquet", tmp_path), records)
    assert files(tmp_path) == {"a": b"before"}
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("name", ["images", "crops", "labels", "dataset"])
def test_what_a_folder_had_before_the_disk_was_full_stays(tmp_path, name):
    feed(opened(name, tmp_path), image("a.png"))
    before = files(tmp_path)
    large = noisy(image("b.png", count=2, bottom=1e4))
    boxes = np.full((2, 4), [0, 0, 90, 90], np.float32)
    large = replace(large, detections=replace(large.detections, xyxy=boxes))
    disk_size = 20 if name == "labels" else 1000
    with small_disk(disk_size), pytest.raises(OutputError, match=r"/b"):
        feed(opened(name, tmp_path), large)
    after = files(tmp_path)
    assert after | before == after
    for path in after:
        assert not ("b" in Path(path).stem and "images" in path)


def test_a_page_that_cannot_begin_says_why(tmp_path):
    with small_disk(10), pytest.raises(OutputError, match="cannot write"):
        feed(opened("page", tmp_path), image())


@pytest.mark.parametrize("name", ["images", "labels", "videos", "mot"])
def test_another_run_replaces_what_an_earlier_one_has_made(tmp_path, name):
    feed(opened(name, tmp_path), frame(0, count=3), image("a.png", count=3))
    earlier = files(tmp_path)
    feed(opened(name, tmp_path), frame(0, count=0), image("a.png", count=0))
    later = files(tmp_path)
    assert earlier.keys() == later.keys()
    if name != "mot":
        assert earlier != later
    sink = opened(name, tmp_path)
    shutil.rmtree(tmp_path / "a")  # which is an error, not made again
    with pytest.raises(OutputError, match=str(tmp_path)), contextlib.closing(sink):
        sink.write(frame(0, count=1) if name in {"mot", "videos"} else image("a.png"))


def test_a_stream_keeps_its_first_failure(tmp_path):
    def full(data):
        raise OutputError(f"no room for {data!r}")

    stream = Stream(full)
    for data in (b"1", b"2"):
        with pytest.raises(OutputError, match=data.decode()):
            stream.write(data)
    assert str(stream.failure) == "no room for b'1'"
    assert stream.tell() == 0
    assert not stream.seekable()
    with pytest.raises(io.UnsupportedOperation):
        stream.seek(0)
    with AtomicFile(tmp_path / "a").file as file:
        stream = Stream(file.write, file.seek)
        assert stream.write(b"abc") == 3
        assert stream.seek(1) == 1
        assert stream.write(b"x") == 1
        assert stream.tell() == 2
