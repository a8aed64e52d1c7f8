"""YOLO labels."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sample_records import failed_frame, failure, frame, picture
from small_disk import small_disk

from detcli.detections import Detections
from detcli.errors import OutputError
from detcli.geometry import Picture
from detcli.sink.folder import OutputFolder
from detcli.sink.labels import LabelSink

SIZE = 40, 60  # height, width


def found(*rows):
    """A picture of a size, with rows x1, y1, x2, y2, score, class id."""
    table = np.array(rows, np.float32).reshape(-1, 6)
    detections = Detections(
        table[:, :4], table[:, 4], table[:, 5].astype(np.int64), ("cat", "dog", "cow")
    )
    return replace(
        picture("in/a.jpg"),
        picture=Picture.whole(np.zeros((*SIZE, 3), np.uint8)),
        detections=detections,
    )


@pytest.fixture
def save(tmp_path):
    """Write records and return what the files hold by name."""

    def write(*records, **options):
        sink = LabelSink(OutputFolder(tmp_path / "out"), **options)
        for record in records:
            sink.write(record)
        sink.close()
        return {path.name: path.read_text() for path in (tmp_path / "out").glob("[!.]*")}

    return write


def test_one_line_per_box_with_centre_and_size_in_fractions(save):
    record = found((6, 4, 18, 24, 0.9, 2), (0, 0, 60, 40, 0.5, 0))
    assert save(record) == {
        "a.txt": "2 0.200000 0.350000 0.200000 0.500000\n0 0.500000 0.500000 1.000000 1.000000\n"
    }


def test_the_score_is_the_sixth_column(save):
    assert save(found((0, 0, 60, 40, 0.51239, 1)), scores=True) == {
        "a.txt": "1 0.500000 0.500000 1.000000 1.000000 0.512390\n"
    }


def test_a_picture_without_detections_has_an_empty_file(save):
    assert save(found()) == {"a.txt": ""}


def test_a_failed_input_has_no_labels(save):
    assert save(failure(), failed_frame(3)) == {}


def test_frames_are_numbered(save):
    assert set(save(frame(0), frame(7))) == {"film_0.txt", "film_7.txt"}


def test_fractions_are_those_of_the_full_picture(save):
    record = found((6, 4, 18, 24, 0.9, 2))
    reduced = replace(record, picture=Picture(np.zeros((20, 30, 3), np.uint8), SIZE))
    assert save(reduced) == save(record)


def test_labels_are_valid_for_trainers(save, random):
    """Five columns, integer classes, fractions in 0..1, and no duplicate lines."""
    corners = np.sort(random.random((50, 2, 2)).astype(np.float32), axis=1)
    boxes = (corners * np.float32([60, 40])).reshape(-1, 4)
    rows = np.column_stack([boxes, random.random(50), random.integers(0, 3, 50)])
    (text,) = save(found(*rows)).values()
    read = np.array([line.split() for line in text.splitlines()], np.float32)
    assert read.shape == (50, 5)
    assert ((read[:, 1:] >= 0) & (read[:, 1:] <= 1)).all()
    assert len(np.unique(read, axis=0)) == 50
    centre, size = read[:, 1:3], read[:, 3:]
    back = np.column_stack([centre - size / 2, centre + size / 2]) * [60, 40, 60, 40]
    np.testing.assert_allclose(back, boxes, atol=1e-4)
    np.testing.assert_array_equal(read[:, 0], rows[:, 5])


def test_labels_end_at_the_edges_of_the_picture(save, random):
    """The boxes of a DETR may reach beyond it; trainers want fractions in 0..1."""
    corners = np.sort(random.uniform(-80, 120, (200, 2, 2)).astype(np.float32), axis=1)
    rows = np.column_stack([corners.reshape(-1, 4), np.full(200, 0.5), np.zeros(200)])
    (text,) = save(
        found(*rows, (-1e30, -1e30, 1e30, 1e30, 0.5, 1), (90, 5, 99, 9, 0.5, 2))
    ).values()
    read = np.array([line.split() for line in text.splitlines()], np.float64)
    low, high = corners[:, 0], corners[:, 1]
    assert len(read) == np.count_nonzero(((low < SIZE[::-1]) & (high > 0)).all(axis=1)) + 1
    assert read[-1].tolist() == [1, 0.5, 0.5, 1, 1]
    centre, size = read[:, 1:3], read[:, 3:]
    assert (size >= 0).all()
    assert (centre - size / 2 > -1e-6).all()
    assert (centre + size / 2 < 1 + 1e-6).all()


def test_earlier_labels_are_replaced_even_by_an_empty_file(save):
    save(found((6, 4, 18, 24, 0.9, 2)))
    assert save(found()) == {"a.txt": ""}


def test_a_full_disk_is_an_output_error_and_leaves_what_was_there(save, tmp_path):
    before = save(found((6, 4, 18, 24, 0.9, 2)))
    sink = LabelSink(OutputFolder(Path(tmp_path / "out")))
    with small_disk(10), pytest.raises(OutputError, match=r"a\.txt"):
        sink.write(found((0, 0, 60, 40, 0.5, 0)))
    assert {path.name: path.read_text() for path in (tmp_path / "out").glob("[!.]*")} == before
