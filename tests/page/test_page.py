"""Records as entries of a page."""

import contextlib
import tracemalloc
from functools import partial

import cv2
import numpy as np
import pages
import pytest
from json_lines import column_of
from sample_records import failed_frame, failure, feed_all, frame, image

from detcli.data.record import notes_of
from detcli.page import page as module
from detcli.page.entries import BoxKind, PageBox
from detcli.page.page import Conclusion, Curves, Page, PageImage, PageSink, PageTable
from detcli.page.run_info import RunInfo


def fields(source="a.jpg", **more_fields):
    """The record of an image."""
    return image(source, bottom=4.56).to_json() | more_fields


def grey(shade=100, size=(40, 60)):
    return lambda: PageImage(np.full(size + (3,), shade, np.uint8))


@pytest.fixture
def page(tmp_path):
    return tmp_path / "page"


def save(path, records, *, only_detections=False, **options):
    """The entries of a page whose records come from a run."""
    page = Page(path, RunInfo("predict"), **options)
    feed_all(PageSink(page, only_detections=only_detections), records)
    return pages.entries(path)


def make(path, records, about=RunInfo("predict"), **options):  # noqa: B008 - frozen
    page = Page(path, about, **options)
    for record in records:
        page.add(record, grey())
    page.close()


def test_a_record_becomes_an_entry_with_an_image(page):
    make(page, [fields(warnings=["it is odd"])])
    assert pages.entries(page) == [
        {
            "source": "a.jpg",
            "width": 60,
            "height": 40,
            "warnings": ["it is odd"],
            "found": [[0, 0.5, 1.0, 2.0, 3.0, 4.6]],
            "picture": "0/0/0",
            "classes": [[0, "cat", "#ee2244", "#fff"]],
        }
    ]
    (run,) = pages.runs(page)
    assert run["state"] == "complete"
    assert ["model", "m"] in run["facts"]
    assert ["device", "cpu"] in run["facts"]


def test_a_small_image_is_encoded_once_and_a_large_one_twice(page):
    made = Page(page, RunInfo("predict"))
    made.add(fields("small.jpg"), grey(size=(320, 200)))
    made.add(fields("large.jpg"), grey(size=(321, 200)))
    made.close()
    thumbnails = pages.packed_thumbnails(page)
    assert thumbnails["0/0/0"] == (page / "pictures/0/0/0.jpg").read_bytes()
    small = cv2.imdecode(np.frombuffer(thumbnails["0/0/1"], np.uint8), cv2.IMREAD_COLOR)
    assert small.shape[:2] == (320, 199)


def test_a_class_is_introduced_once(page):
    of_another_class = fields()["detections"][0] | {"class_id": 1}
    make(page, [fields(), fields(), fields(detections=[of_another_class])])
    first, second, of_second_class = pages.entries(page)
    assert len(first["classes"]) == 1
    assert "classes" not in second
    assert len(of_second_class["classes"]) == 1
    assert first["found"][0][0] == 0
    assert second["found"][0][0] == 0
    assert of_second_class["found"][0][0] == 1


def test_an_input_that_failed_has_its_error_and_no_image(page):
    torn = failure("\x1b[31m.jpg", "it is\x1b torn", hint="fetch it")
    make(page, [torn.to_json()])
    assert pages.entries(page) == [
        {"source": "\\x1b[31m.jpg", "error": ["DecodeError", "it is\\x1b torn", "fetch it"]}
    ]
    assert pages.images(page) == []


def test_what_is_known_of_detections_besides_boxes_is_beside_them(page):
    (detection,) = fields()["detections"]
    tracked = detection | {
        "track_id": 7,
        "zones": ["door\0"],
        "crossed": [{"line": "gate", "to": "left"}],
    }
    corners = [[1.0, 2.0], [3.5, 2.0], [3.5, 9.0], [1.0, 9.0]]
    read = detection | {"text": "\u202eEX", "corners": corners}
    make(page, [fields(detections=[tracked, read])])
    (entry,) = pages.entries(page)
    assert entry["tracks"] == [7, 0]
    assert entry["zones"] == [["door\\x00"], []]
    assert entry["crossed"] == [[["gate", "left"]], []]
    assert entry["texts"] == ["", "\\u202eEX"]
    assert entry["corners"] == [[], corners]


@pytest.mark.parametrize(
    ("size", "image_size", "thumbnail_size"),
    [
        ((40, 60), (40, 60), (40, 60)),
        ((1280, 1280), (1280, 1280), (320, 320)),
        ((3000, 4000), (960, 1280), (240, 320)),
        ((1, 70_000), (1, 1280), (1, 320)),
    ],
)
def test_images_are_made_smaller_and_never_larger(size, image_size, thumbnail_size):
    pixels = np.zeros(size + (3,), np.uint8)
    image_jpeg, thumbnail_jpeg = module.render(pixels, [module.IMAGE, module.THUMBNAIL])
    assert size_of(image_jpeg) == image_size
    assert size_of(thumbnail_jpeg) == thumbnail_size


def size_of(jpeg):
    """Height and width of an encoded image."""
    height, width, _ = cv2.imdecode(np.frombuffer(jpeg, np.uint8), 1).shape
    return height, width


def frames(count, source="film.mp4", **more_fields):
    """The records of a video's frames."""
    records = []
    for number in range(count):
        record = fields(source, frame=number, time_s=number / 10, **more_fields)
        records.append(record)
    return records


def test_a_long_video_keeps_images_of_frames_in_equal_steps(page, monkeypatch):
    monkeypatch.setattr(module, "VIDEO_IMAGES", 8)
    make(page, frames(100))
    entries = pages.entries(page)
    assert len(entries) == 100
    strides = [entry.get("stride", 1) for entry in entries]
    names = column_of(entries[:: max(strides)], "picture")
    assert 4 <= len(names) <= 8
    assert sorted(names) == pages.images(page)


def test_frames_belong_to_videos_that_start_over_and_to_cameras_that_do_not(page):
    make(page, frames(2) + frames(1) + frames(1) + frames(2, source="other.mp4"))
    assert column_of(pages.entries(page), "video") == [0, 0, 1, 2, 3, 3]
    time = "2026-01-01T00:00:00.000Z"
    records = []
    first_camera = frames(3, source="camera:0", time=time)
    second_camera = frames(3, source="camera:1", time=time)
    for first, second in zip(first_camera, second_camera, strict=True):
        records += [first, second]
    make(page, records)
    assert column_of(pages.entries(page), "video") == [0, 1, 0, 1, 0, 1]


@pytest.mark.slow
def test_many_videos_take_no_memory(page):
    def peak_bytes(video_count):
        growing = Page(page, RunInfo("predict"))
        tracemalloc.start()
        for number in range(video_count):
            for record in frames(2, source=f"{number}.mp4"):
                growing.add(record, lambda: None)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        growing.close()
        return peak

    peak_bytes(10)
    # Keeping the names of 900 more videos takes above 70,000 bytes.
    assert peak_bytes(1000) < peak_bytes(100) + 40_000


def test_a_comparison_has_kinds_counterparts_and_tables(page):
    kinds = [BoxKind("missing", (0, 94, 213), dashed=True, side=0)]
    about = RunInfo("verify", kinds=kinds, sides=("a", "b"), min_score=0.25)
    comparison = Page(page, about)
    boxes = [
        PageBox(0, "cat", 0.9, [1, 2, 3, 4], 0, (0.8, [2, 3, 4, 5])),
        PageBox(0, "cat", None, [1, 2, 3, 4], 0),
    ]
    comparison.add(fields(), grey(), boxes)
    table = PageTable("Classes", ["class", "AP"], [["c\0t", None], ["b", 1]], [[0], []])
    curves = Curves("F1", ("confidence", "F1"), [("c\0t", 3, 0.5, [0, 0.5])], 0.25)
    comparison.close(Conclusion(["1 box is missing"], [table], [curves], agree=False))
    (entry,) = pages.entries(page)
    assert entry["found"] == [[0, 0.9, 1, 2, 3, 4, 0, 0.8, 2, 3, 4, 5], [0, None, 1, 2, 3, 4, 0]]
    (run,) = pages.runs(page)
    assert run["kinds"] == [["missing", "#d55e00", "#000", True, True, 0]]
    assert run["sides"] == ["a", "b"]
    assert run["summary"] == ["1 box is missing"]
    assert run["tables"] == [["Classes", ["class", "AP"], [["c\\x00t", None], ["b", 1]], [[0], []]]]
    assert run["curves"] == [["F1", ["confidence", "F1"], [["c\\x00t", 3, 0.5, [0, 0.5]]], 0.25]]
    assert run["agree"] is False


def test_a_run_that_ends_early_says_so_but_before_its_first_record_leaves_the_page(page):
    interrupted = Page(page, RunInfo("predict"))
    interrupted.add(fields(), grey())
    assert pages.runs(page)[0]["state"] == "running"
    with pytest.raises(KeyboardInterrupt), contextlib.closing(interrupted):
        raise KeyboardInterrupt
    assert pages.runs(page)[0]["state"] == "stopped"
    make(page, [fields()])
    with pytest.raises(KeyboardInterrupt), contextlib.closing(Page(page, RunInfo("predict"))):
        raise KeyboardInterrupt
    assert pages.runs(page)[0]["state"] == "complete"
    assert len(pages.entries(page)) == 1
    make(page, [])  # and the folder is free again


def test_each_record_of_a_run_is_an_entry_in_its_order(page):
    entries = save(page, [image("b.jpg"), failure("torn.jpg"), image("a.jpg", count=0)])
    assert column_of(entries, "source") == ["b.jpg", "torn.jpg", "a.jpg"]
    box_counts = [len(entry.get("found", [])) for entry in entries]
    assert box_counts == [1, 0, 0]
    assert pages.images(page) == ["0/0/0", "0/0/1"]
    Page(page, RunInfo("predict")).discard()  # which leaves the page
    resumed = save(page, [image("c.jpg")], resumed=True)
    assert column_of(resumed, "source") == ["b.jpg", "torn.jpg", "a.jpg", "c.jpg"]
    entries = save(page, [image("a.jpg"), image("b.jpg", count=0)], only_detections=True)
    of_a, of_b = entries
    assert of_a["source"] == "a.jpg"
    assert "picture" in of_a
    assert of_b["source"] == "b.jpg"
    assert "picture" not in of_b
    assert pages.images(page) == ["0/0/0"]


def test_frames_belong_to_their_video_whether_they_failed_or_not(page):
    entries = save(page, [frame(0, shade=200), failed_frame(1), frame(2)])
    assert column_of(entries, "video") == [0, 0, 0]
    assert column_of(entries, "time_s") == [0, 0.1, 0.2]
    pixels = cv2.imread(str(page / f"pictures/{entries[0]['picture']}.jpg"))
    assert pixels.shape == (40, 60, 3)
    assert np.abs(pixels.astype(int) - 200).max() < 3


@pytest.fixture
def files(tmp_path):
    """Files of one image: as browsers show it, and turned or of a format that they may not."""
    folder = tmp_path / "pics"
    folder.mkdir()
    pixels = np.full((40, 60, 3), 90, np.uint8)
    for name in ("a.jpg", "b é#.png", "c.webp", "d.bmp", "e.tif", "f.ppm"):
        cv2.imwrite(str(folder / name), pixels)
    png = (folder / "b é#.png").read_bytes()
    (folder / "turned.png").write_bytes(png[:33] + png[33:].replace(b"IDAT", b"eXIfIDAT"))
    return folder


def test_files_that_browsers_show_alike_are_linked_and_others_copied(page, files, caplog):
    linked = Page(page, RunInfo("predict"), linked=True)
    pixels = np.zeros((40, 60, 3), np.uint8)
    for path in sorted(files.iterdir()):
        linked.add(fields(path.name), partial(PageImage, pixels, path))
    linked.close()
    originals = {entry["source"]: entry.get("original") for entry in pages.entries(page)}
    assert originals == {
        "a.jpg": "../pics/a.jpg",
        "b é#.png": "../pics/b%20%C3%A9%23.png",
        "c.webp": "../pics/c.webp",
        "d.bmp": "../pics/d.bmp",
        "e.tif": None,
        "f.ppm": None,
        "turned.png": None,
    }
    assert len(list((page / "pictures").rglob("*.jpg"))) == 3
    assert len(pages.packed_thumbnails(page)) == 7
    assert "3 of 7 images of the page are copies" in caplog.text


def test_a_saved_film_is_named_once_unless_frames_are_left_out_of_it(page, tmp_path):
    def films(**options):
        records = [frame(0), frame(1)]
        for record in records:
            notes_of(record).saved.append(tmp_path / "out" / "film.mp4")
        return [entry.get("film") for entry in save(page, records, **options)]

    assert films() == ["../out/film.mp4", None]
    assert films(only_detections=True) == [None, None]
