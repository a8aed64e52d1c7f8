"""COCO results, read by pycocotools."""

import json
from dataclasses import replace

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from sample_records import failure, frame, picture
from small_disk import small_disk

from detcli.detections import Detections
from detcli.errors import DetcliWarning, OutputError, UsageError
from detcli.files import AtomicFile
from detcli.geometry import Picture
from detcli.sink.labels import CocoIds, CocoIdsFromFile, CocoSink

NAMES = ("dog", "cat", "yeti")
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


@pytest.fixture
def truth(tmp_path):
    """Ground truth for two pictures."""
    for annotation in TRUTH["annotations"]:
        annotation |= {"iscrowd": 0, "area": annotation["bbox"][2] * annotation["bbox"][3]}
    path = tmp_path / "instances.json"
    path.write_text(json.dumps(TRUTH))
    return path


@pytest.fixture
def save(tmp_path):
    """Write records and return the path of the results."""

    def write(*records, ids=None):
        path = tmp_path / "results.json"
        sink = CocoSink(AtomicFile(path), ids or CocoIds())
        try:
            for record in records:
                sink.write(record)
                assert not path.exists()
        finally:
            sink.close()
        return path

    return write


def found(source, *rows, names=NAMES):
    """A picture with rows x1, y1, x2, y2, score, class id."""
    table = np.array(rows, np.float32).reshape(-1, 6)
    detections = Detections(table[:, :4], table[:, 4], table[:, 5].astype(np.int64), names)
    return replace(picture(source), detections=detections)


PERFECT = [
    found("in/left.jpg", (10, 5, 30, 15, 0.9, 1)),
    found("in/right.jpg", (0, 0, 60, 40, 0.8, 0), (30, 20, 38, 28, 0.7, 1)),
]


def evaluate(truth, results):
    """Mean average precision at IoU 0.50 to 0.95."""
    ground = COCO(str(truth))
    evaluation = COCOeval(ground, ground.loadRes(str(results)), "bbox")
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    return evaluation.stats[0]


def test_one_element_per_detection(save):
    path = save(found("5.jpg", (1.5, 2.25, 4.5, 9, 0.51239, 2)))
    assert json.loads(path.read_text()) == [
        {"image_id": 5, "category_id": 2, "bbox": [1.5, 2.25, 3, 6.75], "score": 0.51239}
    ]


@pytest.mark.parametrize("records", [[], [picture(count=0)], [failure()]])
def test_an_empty_array_without_detections(save, records):
    assert json.loads(save(*records).read_text()) == []


def test_perfect_results_are_perfect(save, truth):
    results = save(*PERFECT, ids=CocoIdsFromFile(truth))
    assert evaluate(truth, results) == pytest.approx(1)


def test_results_that_miss_one_of_two_cats_lose_a_quarter(save, truth):
    without = [PERFECT[0], found("right.jpg", (0, 0, 60, 40, 0.8, 0))]
    results = save(*without, ids=CocoIdsFromFile(truth))
    assert evaluate(truth, results) == pytest.approx(0.75, abs=0.005)  # recall 0.5 of 101 steps


def test_boxes_elsewhere_find_nothing(save, truth):
    results = save(found("left.jpg", (40, 5, 60, 15, 0.9, 1)), ids=CocoIdsFromFile(truth))
    assert evaluate(truth, results) == pytest.approx(0)


def test_a_class_without_a_category_is_left_out(save, truth):
    record = found("left.jpg", (0, 0, 9, 9, 0.9, 2), (10, 5, 30, 15, 0.8, 1))
    with pytest.warns(UserWarning, match="yeti"):
        path = save(record, ids=CocoIdsFromFile(truth))
    assert [one["category_id"] for one in json.loads(path.read_text())] == [17]


def test_boxes_are_those_of_the_full_picture(save, tmp_path):
    record = found("5.jpg", (1, 2, 50, 39, 0.5, 0))
    reduced = replace(record, picture=Picture(np.zeros((20, 30, 3), np.uint8), (40, 60)))
    whole = save(record).read_text()
    (tmp_path / "results.json").unlink()
    assert save(reduced).read_text() == whole


@pytest.mark.parametrize("second", ["y/5.png", "x/5.jpg", "d"])
def test_duplicate_ids_are_refused(save, second):
    records = [picture("x/5.jpg"), picture(second, index=4)]
    with pytest.raises(UsageError, match="image id 5") as caught:
        save(*records)
    assert str(caught.value).startswith(second)


def test_frames_have_their_places_as_ids(save):
    path = save(*(frame(number, count=1) for number in (0, 1)))
    assert [one["image_id"] for one in json.loads(path.read_text())] == [1, 2]


def test_what_was_written_before_a_failure_is_complete(tmp_path, truth):
    sink = CocoSink(AtomicFile(tmp_path / "r.json"), CocoIdsFromFile(truth))
    sink.write(PERFECT[0])
    with pytest.raises(UsageError, match=r"stray\.jpg"):
        sink.write(found("stray.jpg"))
    sink.close()
    assert len(json.loads((tmp_path / "r.json").read_text())) == 1


@pytest.mark.parametrize("written", [0, 2])
def test_a_full_disk_is_an_output_error_and_what_was_written_is_complete(tmp_path, written):
    sink = CocoSink(AtomicFile(tmp_path / "r.json"), CocoIds())
    for index in range(written):
        sink.write(picture(index=index))
    with small_disk():
        with pytest.raises(OutputError, match=r"r\.json"):
            sink.write(picture(index=2, count=100))
        with pytest.warns(DetcliWarning, match="not complete"):
            sink.close()
    read = json.loads((tmp_path / "r.json").read_text())
    assert [one["image_id"] for one in read] == list(range(1, written + 1))


def test_the_published_ids_of_a_real_data_set(save, shared):
    ids = CocoIdsFromFile(shared("data/coco128/instances.json"))
    folder = shared("data/coco128")
    pictures = sorted(path for path in folder.rglob("*.jpg"))[:5]
    path = save(*(picture(str(one), "person") for one in pictures), ids=ids)
    read = json.loads(path.read_text())
    assert [one["image_id"] for one in read] == [int(one.stem) for one in pictures]
    assert {one["category_id"] for one in read} == {1}
    COCO(str(folder / "instances.json")).loadRes(str(path))
