"""The page as a sink of a run."""

import cv2
import numpy as np
import pages
import pytest
from sample_records import FILM, failed_frame, failure, frame, picture

from detcli.errors import UsageError
from detcli.sink.page import About, PageSink


def save(place, *records, **options):
    sink = PageSink(place, About("predict"), **options)
    for record in records:
        sink.write(record)
    sink.close()
    return pages.entries(place)


def test_each_record_is_an_entry_in_its_order(tmp_path):
    place = tmp_path / "page"
    entries = save(place, picture("b.jpg"), failure("torn.jpg"), picture("a.jpg", count=0))
    assert [entry["source"] for entry in entries] == ["b.jpg", "torn.jpg", "a.jpg"]
    assert [len(entry.get("found", [])) for entry in entries] == [1, 0, 0]
    assert pages.pictures(place) == ["0/0/0", "0/0/1"]


def test_pictures_are_those_that_were_detected_on(tmp_path):
    (entry,) = save(tmp_path / "page", frame(3, shade=200))
    shown = cv2.imread(str(tmp_path / f"page/pictures/{entry['picture']}.jpg"))
    assert shown.shape == (40, 60, 3)
    assert np.abs(shown.astype(int) - 200).max() < 3


def test_frames_belong_to_their_video_whether_they_failed_or_not(tmp_path):
    entries = save(tmp_path / "page", frame(0), failed_frame(1), frame(2))
    assert [entry["video"] for entry in entries] == [0, 0, 0]
    assert [entry["time_s"] for entry in entries] == [0, 0.1, 0.2]
    assert entries[0]["source"] == FILM.source


def test_a_new_run_replaces_the_page_and_a_resumed_one_adds_to_it(tmp_path):
    place = tmp_path / "page"
    save(place, picture("a.jpg"))
    assert [entry["source"] for entry in save(place, picture("b.jpg"), resumed=True)] == [
        "a.jpg",
        "b.jpg",
    ]
    assert [entry["source"] for entry in save(place, picture("c.jpg"))] == ["c.jpg"]


def test_other_folders_are_refused(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"mine")
    with pytest.raises(UsageError, match="other files"):
        save(tmp_path)


def test_pictures_without_detections_may_be_left_out(tmp_path):
    place = tmp_path / "page"
    entries = save(place, picture("a.jpg"), picture("b.jpg", count=0), only_detections=True)
    assert [one["source"] for one in entries if "picture" in one] == ["a.jpg"]
    assert [one["source"] for one in entries] == ["a.jpg", "b.jpg"]
    assert pages.pictures(place) == ["0/0/0"]
