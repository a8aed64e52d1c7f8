"""COCO's and YOLO's data, findings in it, and the model's classes as its categories."""

import json
import math
import os
import sys
from importlib import resources

import numpy as np
import pytest
from colour_model import NAMES
from comparisons import labelled
from labelled import MIXED, Scene, counts, edit_json, read, write_coco, write_json, write_yolo

from detcli.commands.eval.classes import map_classes
from detcli.commands.eval.findings import Findings, Kind, Level
from detcli.commands.eval.labels import Category, Dataset, Sample
from detcli.core.errors import UsageError
from detcli.model.contract import UNKNOWN_CLASSES, class_names


def dataset(*names, has_names=True, boxes=()):
    categories = []
    for index, name in enumerate(names):
        categories.append(Category(10 + index, name))
    objects = labelled([((0, 0, 1, 1), index, {}) for index in boxes])
    sample = Sample("a", None, 1, None, objects)
    return Dataset("coco", None, tuple(categories), has_names, [sample])


def mapped(names, data):
    findings = Findings()
    mapping = map_classes(names, data, findings)
    return mapping, {finding.kind: finding.examples for finding in findings.report()}


UNKNOWN = tuple(f"class_{number}" for number in range(UNKNOWN_CLASSES))
BY_ID = (None,) * 10 + (0, 1) + (None,) * (UNKNOWN_CLASSES - 12)
NO_CLASS, NO_CATEGORY = "category that the model does not know", "class that the data does not know"
TWO = ("class_0", "class_1")


@pytest.mark.parametrize(
    ("names", "data", "by", "category_of", "findings"),
    [
        (("Bus", "person "), dataset("person", "bus"), "name", (1, 0), {}),
        (
            ("person", "couch"),
            dataset("person", "sofa", "cat", "no boxes", boxes=[1, 1, 2]),
            "name",
            (0, None),
            {NO_CLASS: ("sofa (2 boxes)", "cat (1 boxes)"), NO_CATEGORY: ("couch",)},
        ),
        # One of them has no names.
        (TWO, dataset("a", "b", "c", boxes=[2]), "order", (0, 1), {NO_CLASS: ("c (1 boxes)",)}),
        (("red", "green"), dataset("a", "b", has_names=False), "order", (0, 1), {}),
        (TWO, dataset("a", has_names=False), "order", (0, None), {NO_CATEGORY: ("class_1",)}),
        # The model has a name twice, both have, or the data has.
        (("red", "green", "Red"), dataset("red", "green"), "name", (0, 1, 0), {}),
        (("a", "b", "A"), dataset("a", "a", "b", boxes=[0, 1]), "name", (0, 2, 1), {}),
        (
            ("a", "b"),
            dataset("a", "a", boxes=[0, 1]),
            "name",
            (0, None),
            {NO_CLASS: ("a (1 boxes)",), NO_CATEGORY: ("b",)},
        ),
        # Of an unknown number of classes, the numbers are ids.
        (UNKNOWN, dataset("person", "bicycle", boxes=[0]), "id", BY_ID, {}),
    ],
)
def test_classes_as_categories(names, data, by, category_of, findings):
    mapping, reported = mapped(names, data)
    assert mapping.mapped_by == by
    assert mapping.category_of_class == category_of
    assert reported == findings
    assert mapping.categories == tuple(sorted(set(category_of) - {None}))
    for index in mapping.categories:
        class_ids = mapping.classes_of(index)
        assert len(class_ids) > 0
        for class_id in class_ids:
            assert category_of[class_id] == index


def test_classes_by_cocos_numbers_match_its_categories():
    names, _, _ = class_names("", 91)
    mapping, _ = mapped(names, dataset("person", "traffic light", "toothbrush"))
    assert mapping.category_of_class[:2] == (None, 0)
    assert mapping.classes_of(2) == (90,)


def test_no_name_in_common():
    with pytest.raises(UsageError, match="no name in common: red, green; a, b") as caught:
        mapped(("red", "green"), dataset("a", "b"))
    assert "--names" in caught.value.hint


def test_failures_come_first_and_five_examples_are_kept():
    findings = Findings()
    for kind in (Kind.UNLABELLED, Kind.OUTSIDE, Kind.MISSING):
        findings.add(kind, "a")
    for number in range(1, 1000):
        findings.add(Kind.OUTSIDE, str(number), count=1000)
    missing, outside, unlabelled = findings.report()
    assert missing.level == Level.FAILURE
    assert outside.level == Level.WARNING
    assert unlabelled.level == Level.NOTE
    assert outside.count == 999_001
    assert outside.examples == ("a", "1", "2", "3", "4")


def test_the_schema_has_every_kind():
    schema = json.loads(resources.files("detcli").joinpath("commands/eval/schema.json").read_text())
    kinds = schema["$defs"]["Finding"]["properties"]["kind"]["enum"]
    assert kinds == [kind.value[0] for kind in Kind]
    assert schema["$defs"]["Level"]["enum"] == list(Level)


@pytest.mark.parametrize("write", [write_coco, write_yolo])
def test_images_categories_and_boxes(write, tmp_path):
    dataset, findings = read(write(tmp_path, MIXED))
    yolo = write is write_yolo
    assert findings == {}
    assert dataset.named is True
    assert dataset.split == ("val" if yolo else None)
    assert dataset.categories == tuple(enumerate(NAMES, start=0 if yolo else 11))
    first = dataset.samples[0]
    assert first.path == tmp_path / ("images/val/0001.png" if yolo else "images/0001.png")
    assert first.image_id == 1  # YOLO's id is the name
    assert first.size == (None if yolo else (64, 64))
    pixels = first.objects["box"] * (64 if yolo else 1)
    assert pixels.tolist() == [[8, 8, 8, 8], [32, 32, 8, 8], [48, 48, 8, 8]]
    assert first.objects["category"].tolist() == [0, 1, 2]


def test_the_folder_of_images_may_be_elsewhere(tmp_path):
    path = write_coco(tmp_path / "data", MIXED)
    elsewhere = tmp_path / "pictures"
    (tmp_path / "data/images").rename(elsewhere)
    for images in (None, tmp_path / "nowhere", tmp_path / ("x" * 5000)):
        with pytest.raises(UsageError, match="no such folder") as caught:
            read(path, images=images)
        assert "--images" in caught.value.hint
    assert read(path, images=elsewhere)[0].samples[4].path == elsewhere / "0005.png"
    with pytest.raises(UsageError, match="no such file or folder"):
        read(tmp_path / ("x" * 5000))


@pytest.mark.parametrize(
    ("names", "found_names"),
    [
        (["val2014/0001.png"], ["0001.png"]),
        (["C:\\data\\0001.png"], ["0001.png"]),
        (["/srv/data/0001.png"], ["0001.png"]),
        (["a/0001.png", "b/0001.png"], [None, None]),  # which of the two?
        (["\0"], [None]),
        (["x" * 5000], [None]),
        ([""], [None]),
        (["."], [None]),
        (["images"], [None]),
    ],
)
def test_a_name_with_missing_folders_is_found_by_its_last_part(names, found_names, tmp_path):
    def rename(data):
        for image, name in zip(data["images"], names, strict=False):
            image["file_name"] = name

    dataset, findings = read(edit_json(write_coco(tmp_path, MIXED), rename))
    renamed_samples = dataset.samples[: len(found_names)]
    for sample, name in zip(renamed_samples, found_names, strict=True):
        if name is None:
            assert sample.path is None
        else:
            assert sample.path == tmp_path / "images" / name
    assert counts(findings).get("missing picture", 0) == found_names.count(None)


def test_images_outside_the_folder_are_not_opened(tmp_path):
    path = write_coco(tmp_path, MIXED)
    Scene().write(tmp_path / "secret.png")

    def lead_out(data):
        data["images"][0]["file_name"] = "../secret.png"
        data["images"][1]["file_name"] = str(tmp_path / "secret.png")
        data["images"][2]["file_name"] = "images/../../secret.png"

    dataset, findings = read(edit_json(path, lead_out))
    first, second, third = dataset.samples[:3]
    assert first.path is None
    assert second.path is None
    assert third.path is None
    assert findings["missing picture"].count == 3
    assert findings["missing picture"].level == "failure"


def test_unusable_labels_are_reported_and_left_out(tmp_path):
    def spoil(data):
        data["annotations"] += [
            {"image_id": "1", "category_id": 99, "bbox": [0, 0, 1, 1]},
            {"image_id": 77, "category_id": 11, "bbox": [0, 0, 1, 1]},
            {"image_id": 1, "category_id": 11},
            {"image_id": 1, "category_id": 11, "bbox": [0, 0, 1]},
            {"image_id": 1, "category_id": 11, "bbox": [0, 0, None, 1]},
            {"image_id": 1, "category_id": 11, "bbox": [0, 0, float("nan"), 1]},
            {"image_id": 1, "category_id": 11, "bbox": [0, 0, 1e308, 1e308]},
            {"image_id": 1, "category_id": 11, "bbox": [0, 0, 1, 1], "iscrowd": "no"},
            "nonsense",
        ]
        data["categories"].append({"id": 20, "name": " Red "})
        data["images"].append(data["images"][0])
        data["annotations"].append({"image_id": 2, "category_id": 20, "bbox": [1, 1, 2, 2]})

    dataset, findings = read(edit_json(write_coco(tmp_path, MIXED), spoil))
    assert counts(findings) == {
        "box of an unknown category": 1,
        "box of an unknown picture": 1,
        "unreadable label": 7,
        "category listed twice": 1,
        "picture listed twice": 1,
    }
    assert findings["box of an unknown category"].examples == ("0001.png: category_id 99",)
    assert len(findings["unreadable label"].examples) == 5
    assert len(dataset.samples[0].objects) == 3
    assert len(dataset.samples) == len(MIXED)
    assert dataset.samples[1].objects["category"].tolist() == [0, 0]  # both are red


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ([{"image_id": 1}], "as COCO results are"),
        ("text", "not a COCO instances.json"),
        ({"images": {}}, "no list of images"),
        ({"categories": None}, "no list of categories"),
        ({"annotations": 3}, "no list of annotations"),
        ({"images": [{"id": 1}]}, r"images\[0\].file_name is missing"),
        ({"images": [{"id": "a", "file_name": "a"}]}, r'images\[0\].id is "a"'),
        ({"images": [3]}, r"images\[0\] is 3"),
        ({"categories": [{"id": 1, "name": "a"}, {"id": None}]}, r"categories\[1\].id is null"),
        ({}, "lists no images"),
    ],
)
def test_malformed_data(content, reason, tmp_path):
    (tmp_path / "images").mkdir()
    if isinstance(content, dict):
        content = {"images": [], "categories": [], "annotations": []} | content
    with pytest.raises(UsageError, match=reason):
        read(write_json(tmp_path / "instances.json", content))


@pytest.mark.skipif(sys.platform == "win32", reason="no named pipes")
def test_a_description_that_is_a_pipe(tmp_path):
    os.mkfifo(path := tmp_path / "data.yaml")
    with pytest.raises(UsageError, match="it is not a regular file"):
        read(path)


def test_other_refusals(tmp_path):
    with pytest.raises(UsageError, match="none of the 1 images has a labelled object"):
        read(write_coco(tmp_path, [Scene()]))
    with pytest.raises(UsageError, match="none of the 5 images") as caught:
        read(write_coco(tmp_path, MIXED, area="big"))
    assert caught.value.hint == 'unreadable label (6): annotations[0].area is "big"'
    path = write_coco(tmp_path, MIXED)
    with pytest.raises(UsageError, match="has no parts"):
        read(path, split="val")
    path.write_bytes(b"\xff\xd8")
    with pytest.raises(UsageError, match="it is not JSON"):
        read(path)


@pytest.mark.parametrize(
    ("fields", "areas", "odd"),
    [
        ({"area": None}, [math.nan] * 3, False),
        ({"area": -1}, [math.nan] * 3, False),
        ({"area": math.inf}, [math.nan] * 3, False),
        ({"area": math.nan}, [math.nan] * 3, False),
        ({"iscrowd": None, "ignore": None}, [64] * 3, False),
        ({"iscrowd": 1, "ignore": 1, "area": 7}, [7] * 3, True),
    ],
)
def test_null_and_an_impossible_area_are_the_default(tmp_path, fields, areas, odd):
    dataset, findings = read(write_coco(tmp_path, MIXED, **fields))
    assert findings == {}
    first = dataset.samples[0].objects
    np.testing.assert_array_equal(first["area"], areas)
    assert first["crowd"].tolist() == first["ignored"].tolist() == [odd] * 3


@pytest.mark.parametrize(
    ("text", "names", "has_names"),
    [
        ("names: [no, 1, red car]", ["no", "1", "red car"], True),
        ("names: {0: a, 2: c}", ["a", "class_1", "c"], True),
        ("names:\n  0: off\n  1: b\nnc: 2", ["off", "b"], True),
        ("names: ['0', '1']", ["0", "1"], False),
        ("nc: 2", ["class_0", "class_1"], False),
    ],
)
def test_names_are_text_but_no_numbers(text, names, has_names, tmp_path):
    write_yolo(tmp_path, [Scene.found(("red", 0, 0, 1))]).write_text(f"val: images/val\n{text}\n")
    dataset, _ = read(tmp_path, 80)  # the data.yaml in it
    assert [category.name for category in dataset.categories] == names
    assert dataset.named == has_names


def test_cocos_80_names_have_cocos_ids(tmp_path):
    from detcli.data.coco import COCO

    path = write_yolo(tmp_path, [])
    (tmp_path / "images/val").mkdir(parents=True)
    Scene().write(tmp_path / "images/val/a.png")
    (tmp_path / "labels/val/a.txt").write_text("79 0.5 0.5 0.1 0.1\n")
    path.write_text("val: images/val\nnames:\n  - " + "\n  - ".join(COCO))
    dataset, _ = read(path)
    assert dataset.categories[79].id == 90
    assert dataset.samples[0].image_id == 1  # `a` is not a number


@pytest.mark.parametrize(
    "text",
    [
        "path: {folder}\nval: images/val",
        "path: .\nval: [images/val]",
        "val: ../images/val",  # as Roboflow writes it
        "val: ./images/val",
        "val: {folder}/images/val",
        "path: elsewhere\nval: images/val",  # a path of another machine
        "val: list.txt",
        "val: images\ntest:",
    ],
)
def test_where_images_may_be(text, tmp_path):
    path = write_yolo(tmp_path, MIXED)
    (tmp_path / "list.txt").write_text(
        "./images/val/0001.png\n"
        "./images/val/0002.png\n"
        "./images/val/0003.png\n"
        "./images/val/0004.png\n"
        "./images/val/0005.png\n"
    )
    path.write_text(text.format(folder=tmp_path) + "\nnames: [red, green, blue]\n")
    dataset, findings = read(path)
    assert len(dataset.samples) == 5
    assert sum(len(sample.objects) for sample in dataset.samples) == 6
    assert findings == {}


def test_a_path_from_where_the_program_runs(tmp_path, monkeypatch):
    write_yolo(tmp_path / "sets/colours", MIXED)
    path = tmp_path / "elsewhere/data.yaml"
    path.parent.mkdir()
    path.write_text("path: sets/colours\nval: images/val\nnames: [red, green, blue]\n")
    monkeypatch.chdir(tmp_path)
    assert len(read(path)[0].samples) == 5


def test_splits(tmp_path):
    path = write_yolo(tmp_path, MIXED)
    (tmp_path / "images/test").mkdir()
    text = "train: [images/val]\ntest: images/nowhere\nval: ~\nnames: [red, green, blue]\n"
    path.write_text(text)
    assert read(path, split="train")[0].split == "train"
    with pytest.raises(UsageError, match="no part 'val'") as caught:
        read(path)
    assert "train, test" in caught.value.hint
    with pytest.raises(UsageError, match="its test images do not exist"):
        read(path, split="test")


def test_a_folder_and_a_list_have_no_names(tmp_path):
    write_yolo(tmp_path, MIXED)
    (tmp_path / "data.yaml").unlink()
    listing = tmp_path / "list.txt"
    names = "images/val/0001.png\n\nimages/val/0002.png\nimages/val/none.png\n"
    listing.write_text(f"{names}images/../images/val/0001.png\n")
    folder, findings = read(tmp_path / "images")
    assert len(folder.samples) == 5
    assert len(folder.categories) == 3
    assert folder.named is False
    assert findings == {}
    some, findings = read(listing)
    first, second, third = some.samples
    assert first.path is not None
    assert second.path is not None
    assert third.path is None
    assert counts(findings) == {"missing picture": 1, "picture listed twice": 1}
    with pytest.raises(UsageError, match="has no parts"):
        read(listing, split="val")
    with pytest.raises(UsageError, match="itself says where its images are"):
        read(listing, images=tmp_path)


@pytest.mark.parametrize(
    ("image", "labels"),
    [("a.png", "a.txt"), ("images/images/a.png", "images/labels/a.txt")],  # the last of two
)
def test_labels_beside_the_images_or_their_folder(image, labels, tmp_path):
    Scene().write(tmp_path / image)
    (tmp_path / labels).parent.mkdir(exist_ok=True)
    (tmp_path / labels).write_text("0 0.5 0.5 0.25 0.25")
    assert len(read((tmp_path / image).parent)[0].samples[0].objects) == 1


def test_lines_of_labels(tmp_path):
    write_yolo(tmp_path, MIXED)
    (tmp_path / "labels/val/0001.txt").write_text(
        "0 0.5 0.5 0.25 0.25\n"
        "1.0 0.1 0.2 0.5 0.2 0.5 0.6 0.1 0.6\n"  # a polygon
        "\n"
        "0 0.5 0.5 0.25 0.25 0.9\n"  # with a score
        "0 0.5 0.5 0.25\n"
        "red 0.5 0.5 0.25 0.25\n"
        "0.5 0.5 0.5 0.25 0.25\n"
        "0 nan 0.5 0.25 0.25\n"
        "0 0.5 0.5 1e308 1e308\n"
        "inf 0.5 0.5 0.25 0.25\n"
        "3 0.5 0.5 0.25 0.25\n"
        "-1 0.5 0.5 0.25 0.25\n"
    )
    (tmp_path / "labels/val/0002.txt").write_bytes(b"\xff\xfe")
    (tmp_path / "labels/val/0003.txt").unlink()
    dataset, findings = read(tmp_path / "data.yaml")
    objects = dataset.samples[0].objects
    assert objects["category"].tolist() == [0, 1]
    assert objects["box"].round(6).tolist() == [[0.375, 0.375, 0.25, 0.25], [0.1, 0.2, 0.4, 0.4]]
    assert counts(findings) == {
        "unreadable label": 8,
        "box of an unknown category": 2,
        "picture without a label file": 1,
    }
    assert "0001.txt:4: 6 numbers in a line" in findings["unreadable label"].examples[0]
    assert findings["picture without a label file"].level == "note"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("val: images/val\nnames: [a]\nnc: 2", "nc is 2, but names has 1"),
        ("val: images/val\nnames: {x: a}", "are malformed"),
        ("val: images/val\nnames: {0: a, 9999999: b}", "are malformed"),
        ("val: images/val\nnc: many", "are malformed"),
        ("val: images/val\nnc: -1", "are malformed"),
        ("val: images/val\nnc: 999999999999", "are malformed"),
        ("val: images/val\nnames: [[a]]", "names is nested"),
        ("a: &a [x]\nval: [*a, *a]\nnames: [a]", "val is nested"),
        ("val: images/val\nnames: coco.names", "names is 'coco.names'"),
        (f"val: {'x' * 5000}\nnames: [a]", "its val images do not exist"),
        ("names: [a]", "has no part 'val'"),
        ("val: nowhere\nnames: [a]", "images do not exist"),
        ("val: data.yaml\nnames: [a]", "neither a folder of images nor a list"),
        ("- a\n- b", "it is not a mapping"),
        ("a: [", "it is not YAML"),
        ("\x00", "it is not YAML"),
    ],
)
def test_malformed_yaml(text, reason, tmp_path):
    path = write_yolo(tmp_path, MIXED)
    path.write_text(text)
    with pytest.raises(UsageError, match=reason):
        read(path)


def test_images_without_any_label_are_refused(tmp_path):
    Scene().write(tmp_path / "images/a.png")
    with pytest.raises(UsageError, match="none of the 1 images") as caught:
        read(tmp_path / "images")
    assert "labels" in caught.value.hint
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="lists no images"):
        read(tmp_path / "empty")
    with pytest.raises(UsageError, match="no such file or folder"):
        read(tmp_path / "nowhere")
