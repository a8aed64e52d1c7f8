"""Tracks in MOTChallenge's format, read back by motmetrics."""

import re
from dataclasses import replace

import numpy as np
import pytest
from sample_records import Film, failed_frame, frame, picture

from detcli.sink.folder import OutputFolder
from detcli.sink.labels import MotSink


def tracked(number, *numbers, film=None):
    record = frame(number, *([film] if film else []), count=len(numbers))
    return replace(record, detections=replace(record.detections, track_id=np.array(numbers)))


@pytest.fixture
def write(tmp_path):
    def write(*records):
        sink = MotSink(OutputFolder(tmp_path / "mot"))
        for one in records:
            sink.write(one)
        sink.close()
        return sorted(path for path in (tmp_path / "mot").iterdir() if path.suffix == ".txt")

    return write


@pytest.mark.filterwarnings("ignore:Operation with tuple")  # of motmetrics with pandas 3
def test_motmetrics_reads_what_was_written(write):
    motmetrics = pytest.importorskip("motmetrics")
    records = [tracked(4, 1, -1, 2), failed_frame(5), tracked(7, 2), tracked(8)]
    (path,) = write(*records, picture())
    assert path.name == "film.txt"
    table = motmetrics.io.loadtxt(path, fmt=motmetrics.io.Format.MOT15_2D)
    assert [*table.index] == [(5, 1), (5, 2), (8, 2)]
    assert table[["X", "Y", "Width", "Height"]].to_numpy().tolist() == [[1, 2, 2, 2.5]] * 3
    assert table["Confidence"].tolist() == [0.5] * 3
    assert [len(record.saved) for record in records] == [1, 1, 1, 1]


def test_each_video_has_its_file(write):
    other = Film("elsewhere/film.avi", 10.0)
    files = write(tracked(0, 1), tracked(1, 1), tracked(0, 1, film=other), tracked(1, film=other))
    assert re.fullmatch("film-[0-9a-f]{8}.txt film.txt", " ".join(path.name for path in files))
    assert [len(path.read_text().splitlines()) for path in files] == [1, 2]


def test_a_video_without_tracks_has_an_empty_file(write):
    (path,) = write(frame(0), frame(1, count=1))
    assert path.read_text() == ""


def test_pictures_have_none(write):
    assert write(picture()) == []
