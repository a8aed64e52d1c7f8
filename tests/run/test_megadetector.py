"""MegaDetector's results are read as records: those of detcli, and those of other programs."""

import json
import tracemalloc
from dataclasses import replace
from pathlib import Path

import cv2
import number_video
import numpy as np
import pytest
from json_lines import column_of, detection_counts, optional_column_of
from sample_records import Film, detected, failure, feed_all, frame, image

from detcli.config.inputs import InputOptions
from detcli.core.errors import DetcliWarning, SourceError, UsageError
from detcli.page.find_images import Finder
from detcli.run.saved import read_records
from detcli.sink.megadetector import MegaDetectorSink
from detcli.sink.protocol import RunDescription
from detcli.storage.files import open_output

DETECTION = {"category": "1", "conf": 0.926, "bbox": [0.0, 0.25, 0.5, 0.5]}
CATEGORIES = {"1": "animal", "2": "person", "3": "vehicle"}
INFO = {"format_version": "1.6", "detector": "MDV5A"}
SIZE = {"width": 200, "height": 100}


@pytest.fixture
def read_entries(tmp_path):
    """Write entries as MegaDetector does, and read their records."""

    def run(*entries, finder=None, categories=CATEGORIES, **members):
        path = tmp_path / "results.json"
        content = {"images": entries, "detection_categories": categories, "info": INFO, **members}
        path.write_text(json.dumps(content, indent=1))
        return list(read_records(str(path), finder))

    return run


def test_an_image_becomes_a_record_with_boxes_in_pixels(read_entries):
    (record,) = read_entries({"file": "a.jpg", **SIZE, "detections": [DETECTION]})
    assert record == {
        "schema_version": 2,
        "source": "a.jpg",
        "index": 0,
        "input": 0,
        "width": 200,
        "height": 100,
        "detections": [
            {
                "class_id": 0,
                "class_name": "animal",
                "score": 0.926,
                "x1": 0.0,
                "y1": 25.0,
                "x2": 100.0,
                "y2": 75.0,
            }
        ],
        "model": "MDV5A",
    }


def test_detections_come_best_first(read_entries):
    low = {**DETECTION, "conf": 0.1}
    (record,) = read_entries({"file": "a.jpg", **SIZE, "detections": [low, DETECTION]})
    assert column_of(record["detections"], "score") == [0.926, 0.1]


def test_a_failure_becomes_an_error(read_entries):
    (record,) = read_entries(
        {"file": "a.jpg", "failure": "Failure image access", "detections": None}
    )
    assert record["error"]["message"] == "Failure image access"


def test_a_failure_without_detections_becomes_an_error(read_entries):
    (record,) = read_entries({"file": "a.jpg", "failure": "Failure image access"})
    assert record["error"]["message"] == "Failure image access"


def test_a_category_without_a_name_is_no_detection(read_entries):
    unnamed = {**DETECTION, "category": "9"}
    (record,) = read_entries({"file": "a.jpg", **SIZE, "detections": [unnamed]})
    assert record["detections"] == []


def test_categories_from_zero_on_are_class_ids(read_entries):
    categories = {"0": "empty", "1": "animal"}
    (record,) = read_entries(
        {"file": "a.jpg", **SIZE, "detections": [DETECTION]}, categories=categories
    )
    assert record["detections"][0]["class_id"] == 1


def test_a_video_becomes_a_record_for_each_frame(read_entries):
    detection = {**DETECTION, "frame_number": 20}
    video = {"file": "a.mp4", **SIZE, "frame_rate": 20, "frames_processed": [0, 20, 40]}
    records = read_entries(
        {**video, "detections": [detection]}, {"file": "b.jpg", **SIZE, "detections": []}
    )
    assert optional_column_of(records, "frame") == [0, 20, 40, None]
    assert optional_column_of(records, "time_s") == [0.0, 1.0, 2.0, None]
    assert detection_counts(records) == [0, 1, 0, 0]
    assert column_of(records, "index") == [0, 1, 2, 3]
    assert column_of(records, "input") == [0, 0, 0, 1]


def test_a_video_without_the_frames_that_were_processed_has_those_with_detections(read_entries):
    detections = [{**DETECTION, "frame_number": 7}, {**DETECTION, "frame_number": 3}]
    records = read_entries({"file": "a.mp4", **SIZE, "frame_rate": 10, "detections": detections})
    assert column_of(records, "frame") == [3, 7]


def test_a_video_without_any_frame_has_its_first(read_entries):
    (record,) = read_entries({"file": "a.mp4", **SIZE, "frame_rate": 10, "detections": []})
    assert record["frame"] == 0
    assert record["detections"] == []


def test_the_members_may_come_in_any_order(tmp_path):
    path = tmp_path / "results.json"
    entries = [{"file": "a.jpg", **SIZE, "detections": [DETECTION]}]
    first = {"info": INFO, "images": entries, "detection_categories": CATEGORIES}
    path.write_text(json.dumps(first))
    (record,) = read_records(str(path))
    assert record["model"] == "MDV5A"


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_programs_on_windows_may_mark_the_encoding(tmp_path, encoding):
    path = tmp_path / "results.json"
    entries = [{"file": "ä.jpg", **SIZE, "detections": []}]
    content = {"info": INFO, "images": entries, "detection_categories": CATEGORIES}
    path.write_text(json.dumps(content, ensure_ascii=False), encoding=encoding)
    (record,) = read_records(str(path))
    assert record["source"] == "ä.jpg"


def test_classifications_are_left_out_with_a_warning(read_entries):
    detection = {**DETECTION, "classifications": [["3", 0.9]]}
    with pytest.warns(DetcliWarning, match="has classifications, which are left out") as caught:
        read_entries({"file": "a.jpg", **SIZE, "detections": [detection, detection]})
    assert len(caught) == 1


def write_photograph(path, size=(100, 200), orientation=None):
    """Write a JPEG, which an orientation may turn."""
    path.parent.mkdir(parents=True, exist_ok=True)
    encoded = cv2.imencode(".jpg", np.zeros((*size, 3), np.uint8))[1].tobytes()
    if orientation is not None:
        tiff = b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0" + bytes([orientation])
        exif = b"Exif\0\0" + tiff + b"\0\0\0\0\0\0"
        segment = b"\xff\xe1" + (len(exif) + 2).to_bytes(2, "big") + exif
        encoded = encoded[:2] + segment + encoded[2:]
    path.write_bytes(encoded)


@pytest.mark.parametrize("folder", ["", "pics/"])
def test_a_size_that_is_missing_is_that_of_the_image(read_entries, tmp_path, folder):
    """Beside the file of results, or in the folder of --images."""
    write_photograph(tmp_path / folder / "site/a.jpg")
    finder = Finder(tmp_path / folder if folder else None, InputOptions())
    (record,) = read_entries({"file": "site/a.jpg", "detections": [DETECTION]}, finder=finder)
    assert record["width"] == 200
    assert record["height"] == 100
    assert record["detections"][0]["x2"] == 100.0


def test_the_size_is_that_of_the_upright_image(read_entries, tmp_path):
    write_photograph(tmp_path / "a.jpg", size=(100, 200), orientation=6)
    (record,) = read_entries({"file": "a.jpg", "detections": []})
    assert (record["width"], record["height"]) == (100, 200)


def test_the_size_of_other_formats_is_found(read_entries, tmp_path):
    cv2.imwrite(str(tmp_path / "a.png"), np.zeros((10, 30, 3), np.uint8))
    (record,) = read_entries({"file": "a.png", "detections": []})
    assert (record["width"], record["height"]) == (30, 10)


def test_the_size_of_a_video_is_found(read_entries, tmp_path):
    video = number_video.open_writer(tmp_path / "a.mp4", (64, 32))
    video.write(np.zeros((32, 64, 3), np.uint8))
    video.release()
    entry = {"file": "a.mp4", "frame_rate": 10, "frames_processed": [0], "detections": []}
    (record,) = read_entries(entry)
    assert (record["width"], record["height"]) == (64, 32)


def test_an_image_that_is_not_found_is_an_error_that_says_what_to_do(read_entries):
    with pytest.raises(UsageError, match=r"no width and height of a\.jpg") as caught:
        read_entries({"file": "a.jpg", "detections": []})
    assert "--images" in caught.value.hint


def test_an_image_that_is_gone_can_be_left_out(read_entries):
    finder = Finder(None, InputOptions(), existing_only=True)
    known = {"file": "b.jpg", **SIZE, "detections": []}
    records = read_entries({"file": "a.jpg", "detections": []}, known, finder=finder)
    assert column_of(records, "source") == ["b.jpg"]
    assert finder.gone == 1


@pytest.mark.parametrize(
    ("entry", "fault"),
    [
        (3, r"images\[0\] is 3"),
        ({}, r"images\[0\]\.file is missing"),
        ({"file": 3}, r"images\[0\]\.file is 3"),
        ({"file": "a", "detections": {}}, r"images\[0\]\.detections is not a list"),
        ({"file": "a", **SIZE, "detections": [{}]}, r"detections\[0\]\.category is missing"),
        ({"file": "a", **SIZE, "detections": [{**DETECTION, "conf": "x"}]}, r"\.conf is .x"),
        ({"file": "a", **SIZE, "detections": [{**DETECTION, "bbox": [1]}]}, r"\.bbox is \[1\]"),
        ({"file": "a.mp4", **SIZE, "detections": [DETECTION]}, r"\.frame_number is missing"),
        ({"file": "a", **SIZE, "frames_processed": 3, "detections": []}, "is not a list"),
        ({"file": "a", **SIZE, "frames_processed": [-1], "detections": []}, "-1 is not the number"),
    ],
)
def test_a_damaged_entry_is_named(read_entries, entry, fault):
    with pytest.raises(UsageError, match=fault):
        read_entries(entry)


@pytest.mark.parametrize("categories", [None, [], {"x": "animal"}, {"-1": "animal"}, {"1": 3}])
def test_damaged_categories_are_refused(read_entries, categories):
    with pytest.raises(UsageError, match="categor"):
        read_entries(categories=categories)


def test_a_file_that_is_cut_off_is_refused(tmp_path):
    path = tmp_path / "results.json"
    path.write_text('{"images": [{"file": "a.jpg"')
    with pytest.raises(
        UsageError, match="holds neither records of detcli nor MegaDetector's results"
    ):
        list(read_records(str(path)))


def test_bytes_that_are_no_text_are_an_error(tmp_path):
    path = tmp_path / "results.json"
    path.write_bytes(b'{"images": [{"file": "\xff\xfe"}]}')
    with pytest.raises(SourceError, match="cannot read"):
        list(read_records(str(path)))


def test_what_detcli_wrote_is_read_back(tmp_path):
    film = Film("in/film.mp4", 12.5)
    photograph = image()
    boxes = detected([(6, 4, 36, 24, 0.875, 1), (0, 0, 60, 40, 0.25, 0)])
    records = [replace(photograph, detections=boxes), failure("torn.jpg", "it is torn")]
    for number in range(0, 9, 2):
        records.append(frame(number, film, count=number % 2))
    path = tmp_path / "results.json"
    feed_all(MegaDetectorSink(open_output(path), RunDescription()), records)
    for fields, record in zip(read_records(str(path)), records, strict=True):
        expected = record.to_json()
        for name in ("source", "frame", "time_s", "width", "height", "detections"):
            assert fields.get(name) == expected.get(name)
        assert ("error" in fields) == ("error" in expected)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path):
    path = tmp_path / "results.json"
    entry = json.dumps({"file": "a.jpg", **SIZE, "detections": [DETECTION] * 20})
    with path.open("w") as file:
        file.write('{"images": [' + ",\n".join([entry] * 800))
        file.write(f'], "detection_categories": {json.dumps(CATEGORIES)}, "info": {{}}}}')
    assert path.stat().st_size > 1_000_000
    first_record = next(iter(read_records(str(path))))  # imports what reading needs
    assert first_record["source"] == "a.jpg"
    tracemalloc.start()
    try:
        record_count = 0
        for _ in read_records(str(path)):
            record_count += 1
        assert record_count == 800
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 700_000


def test_names_that_files_of_records_begin_with_are_no_results(tmp_path):
    path = Path(tmp_path / "records.jsonl")
    path.write_text('{"schema_version": 2, "source": "images", "index": 0}\n')
    with pytest.raises(UsageError, match="is not a record of detcli"):
        list(read_records(str(path)))
