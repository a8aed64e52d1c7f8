"""`detcli verify A.jsonl results.json`: a saved run against COCO results."""

import gzip
import json

import pytest
from json_lines import column_of
from saved_records import box, error, record, report_of

from detcli.data.coco import COCO


@pytest.fixture
def write_text_file(tmp_path):
    def make(name, content):
        text = content if isinstance(content, str) else json.dumps(content)
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return make


def lines(*records):
    return "".join(json.dumps(entry | {"index": n}) + "\n" for n, entry in enumerate(records))


def element(image_id, category_id, bbox=(0, 0, 40, 40), score=0.9):
    return {"image_id": image_id, "category_id": category_id, "bbox": list(bbox), "score": score}


def test_what_predict_wrote_in_both_formats(invoke, verify, make_model, make_image, tmp_path):
    for number in range(3):
        make_image(f"pics/{number}.png", ("red", number, number), ("blue", 6, 5))
    make_image("pics/grey.png")
    arguments = ["predict", tmp_path / "pics", "-m", make_model(), "--conf", 0.5, "-q"]
    arguments += ["-o", tmp_path / "a.jsonl", "--save-coco", tmp_path / "coco.json", "--provenance"]
    completed = invoke(arguments)
    assert completed.returncode == 0
    completed = verify(tmp_path / "a.jsonl", tmp_path / "coco.json")
    assert completed.returncode == 0
    assert completed.stderr == ""
    report = report_of(completed)
    assert report["detections"]["pairs"] == 6
    assert report["compared"] == 4  # an image without results has no detections
    assert report["right"]["records"].endswith("coco.json")
    assert report["right"]["sha256"] is None


@pytest.mark.parametrize(
    ("names", "numbers"),
    [
        ({0: "person", 2: "car"}, {0: 1, 2: 3}),  # COCO's
        ({0: "person", 79: COCO[79]}, {0: 1, 79: 90}),
        ({1: "person", 3: "car"}, {1: 1, 3: 3}),  # a class for each number, from 0
        ({0: "person", 89: COCO[79]}, {0: 1, 89: 90}),  # and from 1
        ({0: "person", 1: "car"}, {0: 0, 1: 1}),  # the model's own
        ({0: "x", 5: "y"}, {0: 0, 5: 5}),
    ],
)
def test_numbers_of_classes(verify, write_text_file, names, numbers):
    boxes = []
    results = []
    for column, (key, name) in enumerate(names.items()):
        score = 0.9 - column / 10
        boxes.append(box(score, column, class_id=key, name=name))
        # In any order: the last one is the best.
        results.insert(0, element(7, numbers[key], (100 * column, 0, 40, 40), score))
    left = write_text_file("a.jsonl", lines(record("7.png", *boxes)))
    right = write_text_file("r.json", results)
    completed = verify(left, right)
    assert completed.returncode == 0, completed.stderr
    assert report_of(completed)["detections"]["pairs"] == len(names)


def test_what_differs(reports, write_text_file):
    left = write_text_file(
        "a.jsonl", lines(record("1.png", box()), record("2.png", box()), error("3.png"))
    )
    right = write_text_file(
        "r.json", [element(1, 1), element(1, 44, (200, 0, 40, 40)), element(9, 1)]
    )
    report = reports(6, left, right)
    assert report["detections"]["missing"] == 1
    assert report["detections"]["extra"] == 1
    assert report["schema_version"] == 2
    (extra,) = report["detections"]["pictures"][0]["extra"]
    assert extra == {"class_id": 39, "class_name": "bottle", "score": 0.9} | dict(
        zip(("x1", "y1", "x2", "y2"), (200, 0, 240, 40), strict=True)
    )
    assert report["right_only"] == ["image_id 9"]
    assert column_of(report["failed"], "source") == ["3.png"]


def test_ids_of_a_list_of_images(reports, verify, write_text_file):
    images = {
        "images": [{"id": 40, "file_name": "x/1.png"}],
        "categories": [{"id": 11, "name": "Person"}, {"id": 12, "name": "other"}],
    }
    left = write_text_file("a.jsonl", lines(record("pics/x/1.png", box())))
    right = write_text_file("r.json", [element(40, 11), element(40, 12, (300, 0, 9, 9))])
    report = reports(6, left, right, "--coco-images", write_text_file("instances.json", images))[
        "detections"
    ]
    assert report["pairs"] == 1
    assert report["extra"] == 1
    left = write_text_file("a.jsonl", lines(record("none.png", box())))
    completed = verify(left, right, "--coco-images", write_text_file("instances.json", images))
    assert completed.returncode == 2
    assert "none.png is not among the images" in completed.stderr


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('[{"image_id": 1', "it is not JSON"),
        ('[{"image_id": 1}]', "[0].category_id is missing"),
        (json.dumps([element(1, 1), [element(1, 1)]]), "[1] is [{"),
        (json.dumps([element(1, 1), element("x", 1)]), '[1].image_id is "x"'),
        (json.dumps([element(1, 1, score=None)]), "[0].score is null"),
        (json.dumps([element(1, 1, (0, 0, 1))]), "[0].bbox is [0, 0, 1]"),
        (json.dumps([element(1, 1, (0, 0, 1, 1e300))]), "[0].bbox is [0, 0, 1, 1e+300]"),
        (json.dumps([element(1, 1, score=1e300)]), "[0].score is 1e+300"),
        ('[{"image_id": 1, "category_id": 1, "bbox": [0, 0, 1, NaN], "score": 1}]', ".bbox is [0"),
        (json.dumps([element(10**30, 1)]), None),
        ('[{"image_id": 1, "x":' + "[" * 100_000, "it is not JSON"),
        (json.dumps([element(1, -(10**18))]), None),
    ],
)
def test_results_of_strangers(verify, write_text_file, content, says):
    completed = verify(
        write_text_file("a.jsonl", lines(record("1.png", box()))),
        write_text_file("r.json", content),
    )
    assert completed.returncode == (2 if says else 6)
    assert (says or "boxes disagree") in completed.stderr
    assert "Traceback" not in completed.stderr


def test_results_behind_gzip(verify, write_text_file):
    elements = [element(1, 1, score=1 / image_id) for image_id in range(1, 5000)]
    left = write_text_file("a.jsonl", lines(record("1.png", box())))
    right = write_text_file("r.json.gz", elements)
    content = gzip.compress(right.read_bytes())
    right.write_bytes(content)
    assert "boxes disagree" in verify(left, right).stderr
    right.write_bytes(content[:-99])
    completed = verify(left, right)
    assert completed.returncode == 2
    assert ("Compressed file ended" in completed.stderr) is True


def test_results_come_second(verify, write_text_file):
    results, records = (
        write_text_file("r.json", [element(1, 1)]),
        write_text_file("a.jsonl", lines(record("1.png"))),
    )
    completed = verify(results, records)
    assert completed.returncode == 2
    assert "COCO results" in completed.stderr
