"""Images in a folder, annotated ones and crops, whatever the inputs and classes are called."""

import os
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
import sample_records
from folders import names_in, visible_names
from hypothesis import given
from hypothesis import strategies as st
from nasty_names import NASTY
from sample_records import failed_frame, feed, feed_all, frame, numbered

from detcli.config.values import CropMargin
from detcli.core.errors import OutputError
from detcli.data.detections import Detections
from detcli.data.geometry import Image
from detcli.sink.draw import annotate
from detcli.sink.folder import MARK, OutputFolder
from detcli.sink.image import (
    SAVED_IMAGE_SUFFIXES,
    CropShape,
    CropSink,
    ImageSink,
    crop,
    encode,
)
from detcli.source.guard import InputGuard


@pytest.fixture
def image_folder(tmp_path, monkeypatch):
    """A temporary working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def image(source, shade=114):
    pixels = np.full((40, 60, 3), shade, np.uint8)
    return replace(sample_records.image(source), picture=Image.whole(pixels))


def save(folder, *records, inputs=()):
    """Names of the files in the folder afterwards."""
    feed_all(ImageSink(OutputFolder(Path(folder), InputGuard(inputs))), records)
    return visible_names(Path(folder))


def test_the_image_is_the_annotated_one(image_folder):
    record = image("in/a.png")
    assert save("out", record, frame(0)) == ["a.png"]  # frames are left to the video
    expected = annotate(record.picture.pixels, record.detections)
    np.testing.assert_array_equal(cv2.imread("out/a.png"), expected)
    assert (expected != 114).any()
    assert names_in(image_folder) == ["out"]


@pytest.mark.parametrize(
    ("linked", "named"), [(None, "in"), (None, "./in/../in/a.png"), ("out", "in"), ("in", "in/*")]
)
def test_no_input_is_written_over(image_folder, make_image, linked, named):
    """Neither beside it, nor through a link to it, nor where it is itself behind a link."""
    real_folder = "out" if linked == "in" else "in"
    before = make_image(f"{real_folder}/a.png").read_bytes()
    if linked:
        (image_folder / linked).mkdir()
        (image_folder / linked / "a.png").symlink_to(f"../{real_folder}/a.png")
    save("out" if linked else "in", image("in/a.png", 10), inputs=[named])
    assert (image_folder / real_folder / "a.png").read_bytes() == before
    contents = {path.read_bytes() for path in image_folder.rglob("*.png")}
    assert len(contents) == 2


@pytest.mark.parametrize("name", NASTY)
def test_any_name_is_saved_in_the_folder(image_folder, name):
    (saved,) = save("out", image(name))
    assert (image_folder / "out" / saved).is_file()
    assert names_in(image_folder) == ["out"]


@pytest.mark.parametrize("name", NASTY)
def test_any_class_has_a_folder_for_its_crops(image_folder, name):
    crops = image_folder / "crops"
    feed(CropSink(OutputFolder(crops)), sample_records.image(name, name))
    (class_folder,) = set(crops.iterdir()) - {crops / MARK}
    (file,) = class_folder.iterdir()
    assert file.is_file()
    assert names_in(image_folder) == ["crops"]


BEGINNINGS = {
    ".png": b"\x89PNG",
    ".jpg": b"\xff\xd8",
    ".jpeg": b"\xff\xd8",
    ".tif": b"II*",
    ".tiff": b"II*",
    ".bmp": b"BM",
    ".webp": b"RIFF",
    ".avif": b"\0\0\0",
}
SIZE = (40, 60)


def check_encoding(record, size, suffix):
    """Check that a grey image of a size is encoded in the format of a suffix."""
    pixels = np.full(size + (3,), 114, np.uint8)
    data, written_suffix = encode(pixels, record)
    assert written_suffix == suffix
    assert data.startswith(BEGINNINGS[suffix.lower()])
    decoded = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    np.testing.assert_allclose(decoded, pixels, atol=3 if suffix == ".avif" else 0)


@pytest.mark.parametrize("suffix", sorted(SAVED_IMAGE_SUFFIXES) + [".JPG", ".Png", ".TIFF"])
def test_the_format_is_that_of_the_input(suffix):
    check_encoding(image(f"in.d/a{suffix}"), SIZE, suffix)


@pytest.mark.parametrize("source", ["a.gif", "a.jp2", "in.jpg/a", ""])
def test_other_inputs_become_png(source):
    check_encoding(image(source), SIZE, ".png")


@pytest.mark.parametrize("record", [image("-"), frame(0), numbered(3)])
def test_standard_input_and_frames_become_jpeg(record):
    check_encoding(record, SIZE, ".jpg")


@pytest.mark.parametrize(("source", "width"), [("a.webp", 20_000), ("a.jpg", 70_000)])
def test_an_image_that_is_too_wide_for_its_format_becomes_png(source, width):
    check_encoding(image(source), (1, width), ".png")


def test_an_image_that_no_format_takes_is_an_error():
    with pytest.raises(OutputError, match=r"a\.jpg \(0x0 pixels\)"):
        encode(np.empty((0, 0, 3), np.uint8), image("a.jpg"))


# Each pixel says where it is: blue is its column, green its row.
COLUMNS, ROWS = np.meshgrid(np.arange(60, dtype=np.uint8), np.arange(40, dtype=np.uint8))
MAP = np.dstack([COLUMNS, ROWS, np.zeros_like(ROWS)])
BOX = (10, 5, 20, 15, 0)


def detected(*rows, source="in/a.png", names=("cat", "dog"), base=None):
    """An image with rows x1, y1, x2, y2, class id."""
    table = np.array(rows, np.float32).reshape(-1, 5)
    scores = np.full(len(table), 0.5, np.float32)
    detections = Detections(table[:, :4], scores, table[:, 4].astype(np.int64), names)
    record = image(source) if base is None else base
    return replace(record, picture=Image.whole(MAP), detections=detections)


@pytest.fixture
def crops(tmp_path):
    """Write crops, and return them by their paths in the folder."""
    out = tmp_path / "out"

    def write(*records, **options):
        feed_all(CropSink(OutputFolder(out, **options)), records)
        saved = {}
        for path in sorted(out.rglob("*")):
            if path.is_file() and path.name != MARK:
                saved[str(path.relative_to(out))] = cv2.imread(str(path))
        return saved

    return write


TOUCHED = {  # a box, and the whole pixels of its cut
    (10, 5, 20, 15): (10, 5, 20, 15),
    (10.9, 5.1, 19.1, 14.9): (10, 5, 20, 15),
    (0, 0, 60, 40): (0, 0, 60, 40),
    (-5, -5, 70, 50): (0, 0, 60, 40),
    (10, 5, 10, 5): (10, 5, 11, 6),
    (10.2, 5.2, 10.3, 5.3): (10, 5, 11, 6),
    (60, 40, 60, 40): (59, 39, 60, 40),
    (0, 0, 0, 0): (0, 0, 1, 1),
    (100, 100, 200, 200): (59, 39, 60, 40),
    (-9, -9, -5, -5): (0, 0, 1, 1),
    (59.5, 0, 60, 1): (59, 0, 60, 1),
}


@pytest.mark.parametrize(("box", "touched"), TOUCHED.items())
def test_the_cut_is_what_the_box_touches(box, touched):
    left, top, right, bottom = touched
    np.testing.assert_array_equal(crop(MAP, np.float32(box)), MAP[top:bottom, left:right])  # type: ignore[arg-type]


TENTH = CropMargin.parse("10%")
PIXELS = CropMargin.parse("4px")
SHAPES = [  # a box, the shape of its crop, and the whole pixels that it has of 60x40
    ((10, 5, 30, 15), CropShape(TENTH), (8, 4, 32, 16)),
    ((10, 5, 15, 15), CropShape(TENTH), (9, 4, 16, 16)),
    ((10, 5, 30, 15), CropShape(PIXELS), (6, 1, 34, 19)),
    ((1, 2, 30, 39), CropShape(PIXELS), (0, 0, 34, 40)),
    ((10.5, 5.5, 10.5, 5.5), CropShape(TENTH), (10, 5, 11, 6)),
    ((10, 5, 10, 5), CropShape(PIXELS), (6, 1, 14, 9)),
    ((-20, -20, 10, 10), CropShape(TENTH), (0, 0, 13, 13)),
    ((10, 10, 30, 20), CropShape(is_square=True), (10, 5, 30, 25)),
    ((10, 10, 15, 20), CropShape(is_square=True), (8, 10, 18, 20)),
    ((10, 10, 30, 29), CropShape(is_square=True), (10, 10, 30, 30)),
    ((10, 1, 30, 11), CropShape(is_square=True), (10, 0, 30, 20)),
    ((10, 30, 30, 40), CropShape(is_square=True), (10, 20, 30, 40)),
    ((0, 10, 4, 30), CropShape(is_square=True), (0, 10, 20, 30)),
    ((55, 10, 60, 30), CropShape(is_square=True), (40, 10, 60, 30)),
    ((5, 10, 55, 20), CropShape(is_square=True), (5, 0, 55, 40)),
    ((10, 10, 30, 20), CropShape(PIXELS, is_square=True), (6, 1, 34, 29)),
    ((15.03, 9.03, 35.13, 29.13), CropShape(CropMargin.parse("40%")), (6, 0, 44, 38)),
    ((15.03, 15.03, 35.13, 35.13), CropShape(CropMargin.parse("50%")), (4, 4, 46, 40)),
]


@pytest.mark.parametrize(("box", "shape", "pixels"), SHAPES)
def test_a_crop_has_a_margin_or_is_a_square(box, shape, pixels):
    left, top, right, bottom = pixels
    cut = crop(MAP, np.array(box, np.float32), shape)
    np.testing.assert_array_equal(cut, MAP[top:bottom, left:right])


edge = st.floats(-80, 120, width=32)


@given(edge, edge, edge, edge, st.sampled_from([None, TENTH, PIXELS]))
def test_any_square_has_the_crop_and_is_one_unless_the_image_is_too_small(x1, y1, x2, y2, margin):
    box = np.array([min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2)], np.float32)
    plain = crop(MAP, box, CropShape(margin))
    square = crop(MAP, box, CropShape(margin, is_square=True))
    height, width = square.shape[:2]
    side = max(plain.shape[:2])
    assert (height, width) == (min(side, 40), min(side, 60))
    plain_colours = set(map(bytes, plain.reshape(-1, 3)))
    square_colours = set(map(bytes, square.reshape(-1, 3)))
    assert plain_colours <= square_colours


def test_each_detection_is_an_image_in_the_folder_of_its_class(crops):
    record = detected(
        (10, 5, 20, 15, 1),
        (0, 0, 4, 4, 0),
        (-9, -9, -5, 9, 0),  # outside
        (60, 0, 70, 9, 1),  # outside
        (50, 30, 99, 99, 1),
    )
    saved = crops(record, detected(), failed_frame(0), detected(BOX, BOX, base=frame(7)))
    assert list(saved) == [
        "cat/a_1.png",
        "cat/film_7_0.jpg",
        "cat/film_7_1.jpg",
        "dog/a_0.png",
        "dog/a_4.png",
    ]
    np.testing.assert_array_equal(saved["dog/a_0.png"], MAP[5:15, 10:20])
    np.testing.assert_array_equal(saved["cat/a_1.png"], MAP[:4, :4])
    np.testing.assert_array_equal(saved["dog/a_4.png"], MAP[30:, 50:])


def test_crops_of_images_of_one_name_do_not_meet(crops):
    first = detected(BOX, source="x/a.png")
    second = detected((30, 20, 40, 25, 0), source="y/a.png")
    marked, plain = crops(first, second).items()
    assert plain[0] == "cat/a_0.png"
    assert plain[1].shape[:2] == (10, 10)
    assert marked[0].startswith("cat/a-")
    assert marked[1].shape[:2] == (5, 10)


def test_crops_of_classes_of_one_name_do_not_meet(crops):
    names = ("a/b", "A:b", "a\0b", "A/B")
    record = detected(
        (0, 0, 9, 9, 0), (0, 0, 9, 9, 1), (0, 0, 9, 9, 2), (0, 0, 9, 9, 3), names=names
    )
    class_folders = {name.split("/")[0].casefold() for name in crops(record)}
    assert len(class_folders) == 4


def test_crops_go_into_the_folders_of_their_own_records_classes(crops):
    first = detected(BOX, source="in/a.png", names=("cat", "dog"))
    second = detected(BOX, source="in/b.png", names=("bird",))
    assert list(crops(first, second)) == ["bird/b_0.png", "cat/a_0.png"]


def test_folders_do_not_depend_on_what_comes_first(crops):
    saved = crops(
        detected((0, 0, 9, 9, 1), names=("a/b", "a\0b"), source="in/x/a.png"), roots=["in"]
    )
    assert list(saved) == ["a_b-2/x/a_0.png"]


def test_an_input_is_never_overwritten_by_a_crop(crops, tmp_path):
    input_path = tmp_path / "out" / "cat" / "a_0.png"
    input_path.parent.mkdir(parents=True)
    input_path.write_text("the input")
    saved = crops(detected(BOX, BOX), inputs={input_path})
    assert set(saved) == {"cat/a_0.png", "cat/a_0_2.png", "cat/a_1.png"}
    assert input_path.read_text() == "the input"


@pytest.mark.parametrize(
    "plant",
    [lambda path: path.symlink_to("../elsewhere"), lambda path: path.write_text("x"), os.mkfifo],
)
def test_what_is_no_folder_is_not_taken_for_that_of_a_class(tmp_path, crops, plant):
    path = tmp_path / "out" / "cat"
    elsewhere = tmp_path / "elsewhere"
    path.parent.mkdir()
    elsewhere.mkdir()
    plant(path)
    before = path.lstat()
    saved = [name for name in crops(detected(BOX)) if "a_0" in name]
    assert saved == ["cat-2/a_0.png"]
    after = path.lstat()  # whose time of access a look at a link may change
    assert after.st_ino == before.st_ino
    assert after.st_mtime_ns == before.st_mtime_ns
    assert list(elsewhere.iterdir()) == []


def test_a_class_folder_that_becomes_a_link_is_refused(tmp_path):
    sink = CropSink(OutputFolder(tmp_path / "out"))
    sink.write(detected(BOX))
    (tmp_path / "out" / "cat").rename(tmp_path / "elsewhere")
    (tmp_path / "out" / "cat").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OutputError, match="out/cat"):
        sink.write(detected(BOX, source="b.png"))
    assert names_in(tmp_path / "elsewhere") == ["a_0.png"]


@pytest.mark.parametrize("field", ["picture", "detections"])
def test_a_record_without_image_or_detections_has_no_crops(tmp_path, field):
    record = replace(sample_records.image("a", "a"), **{field: None})
    feed(CropSink(OutputFolder(tmp_path / "out")), record)
    assert list(tmp_path.rglob("*.jpg")) == []


@pytest.mark.usefixtures("image_folder")
@pytest.mark.parametrize("field", ["picture", "detections"])
def test_a_record_without_image_or_detections_is_not_drawn(field):
    assert save("out", replace(image("a.png"), **{field: None})) == []
