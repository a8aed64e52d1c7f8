"""One picture per detection."""

import os
from dataclasses import replace

import cv2
import numpy as np
import pytest
from nasty_names import NASTY
from sample_records import failed_frame, failure, frame, picture

from detcli.detections import Detections
from detcli.errors import OutputError
from detcli.geometry import Picture
from detcli.sink.folder import MARK, OutputFolder
from detcli.sink.image import CropSink, crop

# Each pixel says where it is: blue is its column, green its row.
COLUMNS, ROWS = np.meshgrid(np.arange(60, dtype=np.uint8), np.arange(40, dtype=np.uint8))
MAP = np.dstack([COLUMNS, ROWS, np.zeros_like(ROWS)])
NAMES = ("cat", "dog")


def found(*rows, source="in/a.png", names=NAMES, base=None):
    """A picture with rows x1, y1, x2, y2, class id."""
    table = np.array(rows, np.float32).reshape(-1, 5)
    detections = Detections(
        table[:, :4], np.full(len(table), 0.5, np.float32), table[:, 4].astype(np.int64), names
    )
    record = picture(source) if base is None else base
    return replace(record, picture=Picture.whole(MAP), detections=detections)


@pytest.fixture
def save(tmp_path):
    """Write records and return the pictures by their paths in the folder."""
    out = tmp_path / "out"

    def write(*records, **options):
        sink = CropSink(OutputFolder(out, **options))
        for record in records:
            sink.write(record)
        sink.close()
        files = sorted(path for path in out.rglob("*") if path.is_file() and path.name != MARK)
        return {str(path.relative_to(out)): cv2.imread(str(path)) for path in files}

    return write


@pytest.mark.parametrize(
    ("box", "columns", "rows"),
    [
        ((10, 5, 20, 15), (10, 20), (5, 15)),
        ((10.9, 5.1, 19.1, 14.9), (10, 20), (5, 15)),
        ((0, 0, 60, 40), (0, 60), (0, 40)),
        ((-5, -5, 70, 50), (0, 60), (0, 40)),
        ((10, 5, 10, 5), (10, 11), (5, 6)),
        ((10.2, 5.2, 10.3, 5.3), (10, 11), (5, 6)),
        ((60, 40, 60, 40), (59, 60), (39, 40)),
        ((0, 0, 0, 0), (0, 1), (0, 1)),
        ((100, 100, 200, 200), (59, 60), (39, 40)),
        ((-9, -9, -5, -5), (0, 1), (0, 1)),
        ((59.5, 0, 60, 1), (59, 60), (0, 1)),
    ],
)
def test_the_cut_is_what_the_box_touches(box, columns, rows):
    part = crop(MAP, np.float32(box))
    np.testing.assert_array_equal(part, MAP[slice(*rows), slice(*columns)])
    assert part.size > 0


def test_each_detection_is_a_picture_in_the_folder_of_its_class(save):
    saved = save(found((10, 5, 20, 15, 1), (0, 0, 4, 4, 0), (30, 20, 40, 25, 1)))
    assert list(saved) == ["cat/a_1.png", "dog/a_0.png", "dog/a_2.png"]
    np.testing.assert_array_equal(saved["dog/a_0.png"], MAP[5:15, 10:20])
    np.testing.assert_array_equal(saved["cat/a_1.png"], MAP[:4, :4])


def test_a_detection_outside_its_picture_has_no_crop(save):
    saved = save(
        found((-9, -9, -5, 9, 0), (-9, -9, 5, 9, 0), (60, 0, 70, 9, 1), (50, 30, 99, 99, 1))
    )
    assert list(saved) == ["cat/a_1.png", "dog/a_3.png"]
    np.testing.assert_array_equal(saved["cat/a_1.png"], MAP[:9, :5])
    np.testing.assert_array_equal(saved["dog/a_3.png"], MAP[30:, 50:])


def test_what_has_no_detections_makes_no_folder(save, tmp_path):
    assert save(found(), failure(), failed_frame(0)) == {}
    assert list((tmp_path / "out").glob("[!.]*")) == []


def test_crops_of_frames_have_the_frames_number(save):
    box = (10, 5, 20, 15, 0)
    saved = save(found(box, box, base=frame(7)), found(box, base=frame(8)))
    assert list(saved) == ["cat/film_7_0.jpg", "cat/film_7_1.jpg", "cat/film_8_0.jpg"]


def test_pictures_of_one_name_do_not_meet(save):
    box = (10, 5, 20, 15, 0)
    other = (30, 20, 40, 25, 0)
    saved = save(found(box, source="x/a.png"), found(other, source="y/a.png"))
    marked, plain = saved
    assert plain == "cat/a_0.png"
    assert marked.startswith("cat/a-")
    assert [saved[name].shape[:2] for name in (plain, marked)] == [(10, 10), (5, 10)]


def test_classes_of_one_name_on_the_disk_do_not_meet(save):
    names = ("a/b", "A:b", "a\0b", "A/B")
    saved = save(found(*[(0, 0, 9, 9, number) for number in range(4)], names=names))
    assert len({name.split("/")[0].casefold() for name in saved}) == 4


def test_folders_do_not_depend_on_what_comes_first(save):
    names = ("a/b", "a\0b")
    assert list(save(found((0, 0, 9, 9, 1), names=names))) == ["a_b-2/a_0.png"]


def test_any_class_has_a_folder_inside(tmp_path):
    for number, name in enumerate(NASTY):
        out = tmp_path / str(number)
        sink = CropSink(OutputFolder(out))
        sink.write(found((0, 0, 9, 9, 0), source=name, names=(name,)))
        (folder,) = (path for path in out.iterdir() if path.name != MARK)
        (file,) = folder.iterdir()
        assert file.is_file(), name
    assert len(list(tmp_path.iterdir())) == len(NASTY)


def test_an_input_is_never_overwritten(save, tmp_path):
    mine = tmp_path / "out" / "cat" / "a_0.png"
    mine.parent.mkdir(parents=True)
    mine.write_text("kept")
    box = (10, 5, 20, 15, 0)
    assert set(save(found(box, box), inputs={mine})) == {
        *("cat/a_0.png", "cat/a_0_2.png", "cat/a_1.png")
    }
    assert mine.read_text() == "kept"


@pytest.mark.parametrize("planted", ["link", "file", "pipe"])
def test_what_is_no_folder_is_not_taken_for_that_of_a_class(tmp_path, save, planted):
    path, elsewhere = tmp_path / "out" / "cat", tmp_path / "elsewhere"
    path.parent.mkdir()
    elsewhere.mkdir()
    match planted:
        case "link":
            path.symlink_to(elsewhere)
        case "file":
            path.write_text("kept")
        case "pipe":
            os.mkfifo(path)
    before = path.lstat()
    assert [name for name in save(found((0, 0, 9, 9, 0))) if "a_0" in name] == ["cat-2/a_0.png"]
    assert path.lstat() == before
    assert list(elsewhere.iterdir()) == []


def test_a_class_folder_that_becomes_a_link_is_refused(tmp_path):
    sink = CropSink(OutputFolder(tmp_path / "out"))
    sink.write(found((0, 0, 9, 9, 0)))
    (tmp_path / "out" / "cat").rename(tmp_path / "elsewhere")
    (tmp_path / "out" / "cat").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OutputError, match="out/cat"):
        sink.write(found((0, 0, 9, 9, 0), source="b.png"))
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["a_0.png"]


def test_crops_of_an_input_found_in_a_folder_lie_below_their_class(save):
    saved = save(found((0, 0, 9, 9, 0), source="in/x/a.png"), roots=["in"])
    assert list(saved) == ["cat/x/a_0.png"]


def test_a_record_knows_its_crops(tmp_path):
    sink, record = CropSink(OutputFolder(tmp_path)), found((0, 0, 9, 9, 0), (0, 0, 9, 9, 1))
    sink.write(record)
    assert record.saved == [tmp_path / "cat" / "a_0.png", tmp_path / "dog" / "a_1.png"]
