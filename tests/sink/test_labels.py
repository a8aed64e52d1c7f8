"""Labels for other programs: of YOLO, COCO, Label Studio and MOTChallenge."""

import json
import re
import warnings
from dataclasses import replace

import numpy as np
import optional
import pytest
from json_lines import column_of
from pycocotools import coco
from pycocotools.cocoeval import COCOeval
from sample_records import FILM, Film, detected, failed_frame, failure, feed, feed_all, frame, image
from warned import messages_of

from detcli.core.errors import DetcliWarning, UsageError
from detcli.data.coco import COCO, COCO_IDS
from detcli.data.geometry import Image
from detcli.data.record import notes_of
from detcli.model.contract import class_names
from detcli.sink.folder import OutputFolder
from detcli.sink.labels import (
    CocoIds,
    CocoSink,
    LabelSink,
    LabelStudioSink,
    MotSink,
)
from detcli.storage.files import AtomicFile, StandardOutput

SIZE = (40, 60)  # height, width


def detected_in(source, rows, names=("dog", "cat", "yeti")):
    """An image of a size, with rows x1, y1, x2, y2, score, class id."""
    return replace(image(source), detections=detected(rows, names=names))


def images_of(sources):
    """An image of each source, numbered in their order."""
    return [image(source, index=index) for index, source in enumerate(sources)]


def reduced(record):
    """The same record, read at half its size."""
    return replace(record, picture=Image(np.zeros((20, 30, 3), np.uint8), SIZE))


@pytest.fixture
def write_labels(tmp_path):
    """Write labels of YOLO, and return what the files hold by name."""

    def write(*records, **options):
        feed_all(LabelSink(OutputFolder(tmp_path / "out"), **options), records)
        return {path.name: path.read_text() for path in (tmp_path / "out").glob("[!.]*")}

    return write


def test_one_line_per_box_with_centre_and_size_in_fractions(write_labels):
    record = detected_in("a.jpg", [(6, 4, 18, 24, 0.9, 2), (0, 0, 60, 40, 0.51239, 0)])
    text = "2 0.200000 0.350000 0.200000 0.500000\n0 0.500000 0.500000 1.000000 1.000000\n"
    assert write_labels(record, frame(7)) == {"a.txt": text, "film_7.txt": ""}
    assert write_labels(reduced(record))["a.txt"] == text


def test_labels_may_have_the_score(write_labels):
    record = detected_in("a.jpg", [(6, 4, 18, 24, 0.9, 2), (0, 0, 60, 40, 0.51239, 0)])
    assert write_labels(record, scores=True)["a.txt"] == (
        "2 0.200000 0.350000 0.200000 0.500000 0.900000\n"
        "0 0.500000 0.500000 1.000000 1.000000 0.512390\n"
    )


def test_earlier_labels_are_replaced(write_labels):
    write_labels(detected_in("a.jpg", [(6, 4, 18, 24, 0.9, 2)]))
    assert write_labels(detected_in("a.jpg", []))["a.txt"] == ""


def test_coco_results_have_every_digit(tmp_path, random):
    """So that another evaluator gives the same figures."""
    rows = np.column_stack([random.uniform(-9, 900, (50, 4)), random.uniform(0, 1, 50), [2] * 50])
    record = detected_in("5.jpg", rows)
    feed(CocoSink(AtomicFile(tmp_path / "coco.json"), CocoIds()), record)
    results = json.loads((tmp_path / "coco.json").read_text())
    corners = record.detections.xyxy.astype(float)
    corners[:, 2:] -= corners[:, :2]
    assert column_of(results, "bbox") == corners.tolist()
    assert column_of(results, "score") == record.detections.score.tolist()


def test_labels_end_at_the_edges_of_the_image(write_labels, random):
    """The boxes of a DETR may reach beyond it; trainers want fractions in 0..1."""
    corners = np.sort(random.uniform(-80, 120, (200, 2, 2)).astype(np.float32), axis=1)
    rows = np.column_stack([corners.reshape(-1, 4), np.full(200, 0.5), np.zeros(200)])
    around = (-1e30, -1e30, 1e30, 1e30, 0.5, 1)
    outside = (90, 5, 99, 9, 0.5, 2)
    (text,) = write_labels(detected_in("a.jpg", list(rows) + [around, outside])).values()
    read = np.array([line.split() for line in text.splitlines()], np.float64)
    low = corners[:, 0]
    high = corners[:, 1]
    assert len(read) == np.count_nonzero(((low < SIZE[::-1]) & (high > 0)).all(axis=1)) + 1
    assert read[-1].tolist() == [1, 0.5, 0.5, 1, 1]
    centre = read[:, 1:3]
    size = read[:, 3:]
    assert (size >= 0).all()
    assert (centre - size / 2 > -1e-6).all()
    assert (centre + size / 2 < 1 + 1e-6).all()


TRUTH = {
    "images": [
        {"id": 7, "file_name": "left.jpg", "width": 60, "height": 40},
        {"id": 9, "file_name": "right.jpg", "width": 60, "height": 40},
    ],
    "categories": [{"id": 17, "name": "cat"}, {"id": 18, "name": "dog"}],
    "annotations": [
        {"id": 1, "image_id": 7, "category_id": 17, "bbox": [10, 5, 20, 10]},
        {"id": 2, "image_id": 9, "category_id": 18, "bbox": [0, 0, 60, 40]},
        {"id": 3, "image_id": 9, "category_id": 17, "bbox": [30, 20, 8, 8]},
    ],
}
LEFT = detected_in("in/left.jpg", [(10, 5, 30, 15, 0.9, 1)])
RIGHT = detected_in("in/right.jpg", [(0, 0, 60, 40, 0.8, 0), (30, 20, 38, 28, 0.7, 1)])


@pytest.fixture
def truth(tmp_path):
    """Ground truth for two images."""
    for annotation in TRUTH["annotations"]:
        annotation |= {"iscrowd": 0, "area": annotation["bbox"][2] * annotation["bbox"][3]}  # type: ignore[index]
    path = tmp_path / "instances.json"
    path.write_text(json.dumps(TRUTH))
    return path


@pytest.fixture
def write_coco_results(tmp_path):
    """Write results of COCO, and return their path."""

    def write(records, ids=None):
        feed_all(CocoSink(AtomicFile(tmp_path / "results.json"), ids or CocoIds()), records)
        return tmp_path / "results.json"

    return write


def test_one_element_per_detection(write_coco_results):
    record = detected_in("5.jpg", [(1.5, 2.25, 4.5, 9, 0.625, 2)])
    path = write_coco_results([record, image(count=0), frame(3, count=1)])
    in_image, in_frame = json.loads(path.read_text())
    box = {"image_id": 5, "category_id": 2, "bbox": [1.5, 2.25, 3, 6.75], "score": 0.625}
    assert in_image == box
    assert in_frame["image_id"] == 4  # the number of the frame's record
    assert json.loads(write_coco_results([reduced(record)]).read_text()) == [box]


@pytest.mark.parametrize(
    ("records", "precision"),
    [
        ([LEFT, RIGHT], 1),
        # One of two cats is missed: recall 0.5 of 101 steps.
        ([LEFT, detected_in("right.jpg", [(0, 0, 60, 40, 0.8, 0)])], 0.75),
        ([detected_in("left.jpg", [(40, 5, 60, 15, 0.9, 1)])], 0),  # elsewhere
    ],
    ids=["all", "one missed", "elsewhere"],
)
def test_pycocotools_measures_results(write_coco_results, truth, records, precision):
    ground = coco.COCO(str(truth))
    path = write_coco_results(records, ids=CocoIds(truth))
    evaluation = COCOeval(ground, ground.loadRes(str(path)), "bbox")
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    assert evaluation.stats[0] == pytest.approx(precision, abs=0.005)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("y/left.jpg", "y/left.jpg has the COCO image id 7 of an earlier"),
        ("left.jpg", "left.jpg has the COCO image id 7 of an earlier"),
        ("none.jpg", "none.jpg is not among the images of "),
    ],
)
def test_images_without_an_id_of_their_own_are_left_out(name, says, write_coco_results, truth):
    names = ("x/left.jpg", name, name, "right.jpg")
    with pytest.warns(DetcliWarning) as caught:
        path = write_coco_results(images_of(names), ids=CocoIds(truth))
    first, last = messages_of(caught)
    assert says in first
    assert last == "2 images are not in the COCO results"
    assert len(set(column_of(json.loads(path.read_text()), "image_id"))) == 2


def test_the_published_ids_of_a_real_data_set(write_coco_results, shared):
    folder = shared("data/coco128")
    content = json.loads((folder / "instances.json").read_text())
    published = {category["name"]: category["id"] for category in content["categories"]}
    ids = {name: CocoIds().category_id(index, COCO) for index, name in enumerate(COCO)}
    assert ids == published
    assert ids["person"] == 1
    assert ids["toothbrush"] == 90
    images = sorted(folder.rglob("*.jpg"))[:5]
    records = [image(str(path), "person") for path in images]
    results_path = write_coco_results(records, ids=CocoIds(folder / "instances.json"))
    content = json.loads(results_path.read_text())
    assert column_of(content, "image_id") == [int(path.stem) for path in images]
    assert set(column_of(content, "category_id")) == {1}
    coco.COCO(str(folder / "instances.json")).loadRes(str(results_path))


@pytest.fixture
def instances(tmp_path):
    """Write a file of ids and open it."""

    def write(images, categories=("cat", "dog")):
        content = {
            "images": [{"id": number, "file_name": name} for name, number in images.items()],
            "categories": [],
        }
        for number, name in enumerate(categories, 10):
            content["categories"].append({"id": number, "name": name})
        path = tmp_path / "instances.json"
        path.write_text(json.dumps(content))
        return CocoIds(path)

    return write


NUMBERS = {
    "val/000000000009.jpg": 9,
    "9": 9,
    "COCO_val2014_000000000042.jpg": 42,
    "9" * 18 + ".jpg": int("9" * 18),
}
NO_NUMBERS = [
    "9.tar.gz",
    "a.jpg",
    "-",
    "-9.jpg",
    "IMG_20240102.jpg",
    "a9.jpg",
    "9a.jpg",
    "12 3.jpg",
    "٣.jpg",
    "9" * 19 + ".jpg",
]


@pytest.mark.parametrize(("name", "image_id"), NUMBERS.items())
def test_a_name_that_is_a_number_is_the_id(name, image_id):
    assert CocoIds().image_id(image(name, index=30)) == image_id


@pytest.mark.parametrize("name", NO_NUMBERS)
def test_another_name_has_the_number_of_its_record_from_1(name):
    assert CocoIds().image_id(image(name, index=30)) == 31


@pytest.mark.parametrize("name", list(NUMBERS) + NO_NUMBERS)
def test_a_frame_has_the_number_of_its_record(name):
    assert CocoIds().image_id(frame(3, Film(name, 10.0))) == 4


def test_ids_never_collide(write_coco_results):
    names = ["2.jpg", "3.jpg", "cat.jpg", "dog.jpg", "x/2.jpg", "4.jpg", "6.jpg", "a.jpg"]
    with pytest.warns(DetcliWarning) as caught:
        path = write_coco_results(images_of(names))
    ids = column_of(json.loads(path.read_text()), "image_id")
    assert ids == [2, 3, 10**18 + 3, 4, 10**18 + 5, 10**18 + 6, 6, 8]
    messages = messages_of(caught)
    about_cat, about_2, about_4 = messages
    assert about_cat.startswith("cat.jpg:")
    assert about_4.startswith("4.jpg:")
    assert about_2 == (
        "x/2.jpg: an earlier image has the COCO image id 2; this one gets 1000000000000000005"
    )


@pytest.mark.parametrize("count", [90, 91])
def test_models_with_a_class_for_each_number_of_coco_have_them(count):
    names, _, _ = class_names("", count)
    coco_names = {}
    for class_id in range(count):
        number = CocoIds().category_id(class_id, names)
        if number is not None:
            assert number == class_id + 91 - count
            coco_names[number] = names[class_id]
    assert list(coco_names) == list(COCO_IDS)
    assert list(coco_names.values()) == list(COCO)


LISTED = {"a.jpg": 5, "train/c.jpg": 6, "val/c.jpg": 7, "val/b.jpg": 8, "film.avi": 9}


@pytest.mark.parametrize(
    ("source", "image_id"),
    [
        ("data/train/c.jpg", 6),
        ("data/val/c.jpg", 7),
        ("elsewhere/b.jpg", 8),
        ("a.jpg", 5),
        ("./a.jpg", 5),
        ("x/y/a.jpg", 5),
        ("/x/a.jpg", 5),
    ],
)
def test_images_are_found_by_file_name(instances, source, image_id):
    assert instances(LISTED).image_id(image(source)) == image_id


@pytest.mark.parametrize(
    "record",
    [
        image("d.jpg"),
        image("A.jpg"),
        image("-"),
        image(""),
        image("a.jpg/c"),
        image("x/c.jpg"),
        frame(0, Film("film.avi", 10.0)),
    ],
    ids=lambda record: record.origin.source,
)
def test_an_image_that_is_not_listed_has_no_id(instances, record):
    with pytest.raises(UsageError, match=r"not among the images of .*instances") as caught:
        instances(LISTED).image_id(record)
    assert str(caught.value).startswith(record.origin.source)
    assert "--coco-images" in caught.value.hint


def test_categories_are_found_by_name(instances):
    for name in ("dog", "Dog", " dog "):
        assert instances({}).category_id(1, ("x", name, "cat")) == 11
        assert CocoIds().category_id(1, ("cat", name)) == 1
    assert instances({}, categories=()).category_id(1, ("x", "y")) == 1
    assert instances({}, categories=()).category_id(79, COCO) == 90
    with pytest.raises(UsageError, match="none of the model's classes") as caught:
        instances({}).category_id(0, ("class_0", "class_1"))
    assert "--names" in caught.value.hint


def test_a_class_without_a_category_is_left_out_with_one_warning(instances, write_coco_results):
    ids = instances({"left.jpg": 7})
    record = detected_in("left.jpg", [(0, 0, 9, 9, 0.9, 2), (10, 5, 30, 15, 0.8, 1)])
    with pytest.warns(DetcliWarning, match=r"yeti is not a category of .*instances\.json"):
        path = write_coco_results([record], ids=ids)
    assert column_of(json.loads(path.read_text()), "category_id") == [10]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ids.category_id(0, ("yeti", "cat")) is None


BROKEN = [
    b"",
    b"{",
    b"\xff\xfe\x00",
    b"[]",
    b'{"categories": []}',
    b'{"images": 3}',
    b"[" * 200_000,
    b'{"images": [{"id": 3}]}',
    b'{"images": [{"file_name": "a"}]}',
    b'{"images": [null]}',
    b'{"images": [{"file_name": "a", "id": "x"}]}',
    b'{"images": [], "categories": [{"id": 3}]}',
    b'{"images": [{"file_name": "a", "id": 1}, {"file_name": "b", "id": 1}]}',
]


def test_a_missing_file_of_ids_is_a_usage_error(tmp_path):
    path = tmp_path / "a.json"
    with pytest.raises(UsageError, match=f"read the ids of images from {path}") as caught:
        CocoIds(path)
    assert "instances.json" in caught.value.hint


@pytest.mark.parametrize("content", BROKEN, ids=range(len(BROKEN)))
def test_a_file_that_is_something_else_is_a_usage_error(tmp_path, content):
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=f"read the ids of images from {path}") as caught:
        CocoIds(path)
    assert "instances.json" in caught.value.hint


def test_a_task_of_label_studio_has_a_prediction(tmp_path):
    """The recipe's test has Label Studio's own library read them."""
    records = [
        image("a.jpg", "cat", score=0.5),  # 1, 2 to 3, 4.5 of 60 x 40 pixels
        image(count=0),
        failure(index=1),
        detected_in("b.jpg", [(1, 2, 3, 4, 0.5, 0), (1, 2, 3, 4, 0.25, 1)]),
    ]
    feed_all(LabelStudioSink(AtomicFile(tmp_path / "tasks.json")), records)
    tasks = json.loads((tmp_path / "tasks.json").read_text(encoding="utf-8"))
    with_one, empty, with_two = tasks
    assert with_one["data"] == {"image": "a.jpg"}
    (prediction,) = with_one["predictions"]
    assert prediction["model_version"] == "m"
    assert prediction["score"] == 0.5
    (region,) = prediction["result"]
    value = region["value"]
    assert value["rectanglelabels"] == ["cat"]
    sides = [value["x"], value["y"], value["width"], value["height"]]
    assert sides == pytest.approx([100 / 60, 5, 200 / 60, 6.25])
    assert region["original_width"] == 60
    assert region["original_height"] == 40
    assert empty["predictions"] == [{"model_version": "m", "result": []}]
    (prediction,) = with_two["predictions"]
    first, second = prediction["result"]
    assert first["id"] == "0"
    assert first["score"] == 0.5
    assert second["id"] == "1"
    assert second["score"] == 0.25
    assert prediction["score"] == 0.375


def test_label_studio_gets_no_videos():
    with pytest.raises(UsageError, match=r"in/film\.avi is a video"):
        LabelStudioSink(StandardOutput()).write(frame())


def tracked(number, *track_numbers, film=FILM):
    """A frame with a detection of each track."""
    record = frame(number, film, count=len(track_numbers))
    detections = replace(record.detections, track_id=np.array(track_numbers))
    return replace(record, detections=detections)


@pytest.fixture
def tracks(tmp_path):
    """Write tracks, and return the files."""

    def write(records):
        feed_all(MotSink(OutputFolder(tmp_path / "mot")), records)
        return sorted((tmp_path / "mot").glob("*.txt"))

    return write


@pytest.mark.filterwarnings("ignore:Operation with tuple")  # of motmetrics with pandas 3
def test_motmetrics_reads_what_was_written(tracks):
    motmetrics = optional.require("motmetrics")
    records = [tracked(4, 1, -1, 2), failed_frame(5), tracked(7, 2), tracked(8)]
    (path,) = tracks(records + [image()])
    assert path.name == "film.txt"
    table = motmetrics.io.loadtxt(path, fmt=motmetrics.io.Format.MOT15_2D)
    assert list(table.index) == [(5, 1), (5, 2), (8, 2)]
    assert table[["X", "Y", "Width", "Height"]].to_numpy().tolist() == [[1, 2, 2, 2.5]] * 3
    assert table["Confidence"].tolist() == [0.5] * 3
    for record in records:
        assert len(notes_of(record).saved) == 1


def test_each_video_has_its_file_of_tracks(tracks):
    same_name = Film("elsewhere/film.avi", 10.0)
    without_tracks = Film("z.avi", 10.0)
    files = tracks(
        [
            tracked(0, 1),
            tracked(1, 1),
            tracked(0, 1, film=same_name),
            tracked(1, film=same_name),
            frame(0, without_tracks),
            frame(1, without_tracks, count=1),
        ],
    )
    file_of_same_name, file_of_film, empty_file = files
    assert re.fullmatch(r"film-[0-9a-f]{8}\.txt", file_of_same_name.name)
    assert file_of_film.name == "film.txt"
    assert empty_file.name == "z.txt"
    assert len(file_of_same_name.read_text().splitlines()) == 1
    assert len(file_of_film.read_text().splitlines()) == 2
    assert empty_file.read_text() == ""
