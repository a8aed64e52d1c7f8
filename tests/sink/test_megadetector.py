"""MegaDetector's format: entries of images, videos and failures, and the file around them."""

import json
from dataclasses import replace

import megadetector_rules
import pytest
from hypothesis import given
from hypothesis import strategies as st
from json_lines import column_of
from sample_records import Film, detected, failed_frame, failure, feed_all, frame, image
from warned import messages_of

from detcli.core.errors import DetcliWarning, UsageError
from detcli.sink.megadetector import MegaDetectorSink, frame_rate, name_below
from detcli.sink.protocol import RunDescription
from detcli.storage.files import open_output

FILM = Film("in/film.mp4", 10.0)


@pytest.fixture
def write(tmp_path):
    """Write records, and return the content of the file, which has to keep the format's rules."""

    def run(records, base=None, settings=None, class_names=()):
        path = tmp_path / "results.json"
        description = RunDescription(settings or {}, class_names, base)
        feed_all(MegaDetectorSink(open_output(path), description), records)
        return megadetector_rules.read_valid(path)

    return run


def with_detections(record, *rows):
    """The same record with detections of rows x1, y1, x2, y2, score and class id."""
    return replace(record, detections=detected(rows))


def test_an_image_has_its_size_and_boxes_in_fractions(write):
    record = with_detections(image(), (6, 4, 36, 24, 0.87654, 1))
    assert write([record])["images"] == [
        {
            "file": "a.jpg",
            "width": 60,
            "height": 40,
            "detections": [{"category": "2", "conf": 0.877, "bbox": [0.1, 0.1, 0.5, 0.5]}],
        }
    ]


def test_an_image_without_detections_has_an_empty_list(write):
    (entry,) = write([image(count=0)])["images"]
    assert entry["detections"] == []
    assert "failure" not in entry


def test_a_failed_image_has_null_and_the_reason(write):
    (entry,) = write([failure("torn.jpg", "it is torn")])["images"]
    assert entry == {"file": "torn.jpg", "detections": None, "failure": "it is torn"}


def test_a_file_without_records_is_valid(write):
    assert write([])["images"] == []


def test_boxes_end_at_the_image_and_those_outside_are_left_out(write):
    record = with_detections(image(), (-6, 30, 6, 99, 0.5, 0), (90, 0, 99, 9, 0.5, 0))
    (entry,) = write([record])["images"]
    assert column_of(entry["detections"], "bbox") == [[0.0, 0.75, 0.1, 0.25]]


def test_categories_are_all_classes_of_the_model(write):
    content = write([image(name="animal")], class_names=["animal", "person", "vehicle"])
    assert content["detection_categories"] == {"1": "animal", "2": "person", "3": "vehicle"}


def test_categories_are_those_detected_if_the_classes_are_unknown(write):
    assert write([image(name="animal")])["detection_categories"] == {"1": "animal"}


def test_a_blank_class_gets_a_name(write):
    assert write([image(name=" ")])["detection_categories"] == {"1": "class 0"}


def test_info_has_the_model_and_its_thresholds(write):
    info = write([image()], settings={"conf": 0.05})["info"]
    assert info == {
        "format_version": "1.6",
        "detector": "m",
        "detector_metadata": {
            "typical_detection_threshold": 0.25,
            "conservative_detection_threshold": 0.05,
        },
    }


def test_the_typical_threshold_is_not_below_that_of_the_run(write):
    metadata = write([image()], settings={"conf": 0.6})["info"]["detector_metadata"]
    assert metadata["typical_detection_threshold"] == 0.6


def test_the_frames_of_a_video_become_one_entry(write):
    frames = [frame(number, FILM, count=number % 2) for number in range(4)]
    before, video, after = write([image()] + frames + [image("b.jpg")])["images"]
    assert before["file"] == "a.jpg"
    assert after["file"] == "b.jpg"
    assert video["file"] == "in/film.mp4"
    assert video["frame_rate"] == 10.0
    assert video["frames_processed"] == [0, 1, 2, 3]
    assert column_of(video["detections"], "frame_number") == [1, 3]


def test_videos_after_each_other_have_an_entry_each(write):
    other = Film("in/other.mp4", 10.0)
    entries = write([frame(0, FILM), frame(0, other), frame(1, other)])["images"]
    assert column_of(entries, "file") == ["in/film.mp4", "in/other.mp4"]


def test_a_video_that_is_named_twice_has_two_entries(write):
    entries = write([frame(0, FILM), frame(1, FILM), frame(0, FILM), frame(1, FILM)])["images"]
    assert column_of(entries, "frames_processed") == [[0, 1], [0, 1]]


def test_a_video_that_cannot_be_opened_has_a_failure(write):
    (entry,) = write([failure("in/film.mp4", "it is torn")])["images"]
    assert entry["detections"] is None
    assert entry["failure"] == "it is torn"
    assert entry["frames_processed"] == []


def test_a_failed_frame_is_missing_among_those_processed(write):
    (entry,) = write([frame(0, FILM), failed_frame(1, FILM), frame(2, FILM)])["images"]
    assert entry["frames_processed"] == [0, 2]
    assert "failure" not in entry


def test_the_first_frame_may_fail(write):
    (entry,) = write([failed_frame(0, FILM), frame(1, FILM)])["images"]
    assert entry["frames_processed"] == [1]


def test_a_video_with_failed_frames_only_has_a_failure(write):
    (entry,) = write([failed_frame(0, FILM), failed_frame(1, FILM)])["images"]
    assert entry["failure"] == "it failed"


def test_an_interrupted_video_is_complete(write):
    assert write([frame(0, FILM, count=2)])["images"][0]["frames_processed"] == [0]


def test_memory_does_not_hold_what_was_written(tmp_path):
    path = tmp_path / "results.json"
    output = open_output(path)
    texts: list[str] = []
    write_text = output.write

    def write_and_note(text):
        texts.append(text)
        write_text(text)

    output.write = write_and_note
    sink = MegaDetectorSink(output, RunDescription())
    for number in range(5):
        sink.write(frame(number, FILM, count=3))
        assert "".join(texts).count('"bbox"') == 3 * (number + 1)
    assert not path.exists()
    sink.close()
    assert len(json.loads(path.read_text())["images"][0]["detections"]) == 15


def test_a_stream_is_refused(tmp_path):
    sink = MegaDetectorSink(open_output(tmp_path / "results.json"), RunDescription())
    record = image()

    class Live:
        def to_json(self):
            return {**record.to_json(), "time": "2026-01-31T12:00:00.000Z"}

    with pytest.raises(UsageError, match=r"a\.jpg is a live stream"):
        sink.write(Live())
    sink.close()


def test_names_are_relative_to_the_base(write):
    content = write([image("cards/site 1/a.jpg"), failure("cards/b.jpg")], base="cards")
    assert column_of(content["images"], "file") == ["site 1/a.jpg", "b.jpg"]


def test_names_outside_the_base_stay_and_warn_once(write):
    records = [image("cards/a.jpg"), image("x/b.jpg"), image("x/c.jpg")]
    with pytest.warns(DetcliWarning) as caught:
        content = write(records, base="cards")
    assert column_of(content["images"], "file") == ["a.jpg", "x/b.jpg", "x/c.jpg"]
    assert messages_of(caught) == [
        "x/b.jpg is not below --base cards: its name stays as it is",
        "2 files are not below --base cards",
    ]


@pytest.mark.parametrize(
    ("source", "base", "expected"),
    [
        ("cards/a.jpg", "cards/", "a.jpg"),
        ("./cards/a.jpg", "cards", "a.jpg"),
        ("cards/../cards/a.jpg", "cards", "a.jpg"),
        ("/data/cards/a.jpg", "/data/cards", "a.jpg"),
        ("cards/a.jpg", ".", "cards/a.jpg"),
        ("cards/..a.jpg", "cards", "..a.jpg"),
        ("cards2/a.jpg", "cards", None),
        ("a.jpg", "cards", None),
        ("s3://bucket/cards/a.jpg", "s3://bucket/cards", "a.jpg"),
        ("s3://bucket/cards2/a.jpg", "s3://bucket/cards", None),
        ("s3://bucket/a.jpg", "cards", None),
    ],
)
def test_a_name_below_a_folder(source, base, expected):
    assert name_below(source, base) == expected


RATES = st.sampled_from([5.0, 10.0, 12.5, 23.976, 25.0, 29.97, 30.0, 59.94])


@given(RATES, st.integers(1, 100_000))
def test_the_rate_of_a_video_puts_its_frames_at_their_times(rate, number):
    time_s = round(number / rate, 3)
    assert abs(number / frame_rate(number, time_s) - time_s) <= 0.0005 + 1e-9


@given(RATES, st.integers(3000, 100_000))
def test_the_rate_of_a_long_video_is_exact(rate, number):
    assert frame_rate(number, round(number / rate, 3)) == pytest.approx(rate, rel=2e-5)


def test_the_rate_of_a_single_frame_is_above_zero():
    assert frame_rate(0, 0.0) > 0
