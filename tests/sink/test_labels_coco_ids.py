"""Ids of pictures and classes for COCO results."""

import json
import warnings

import pytest
from sample_records import Film, frame, picture

from detcli.errors import DetcliWarning, UsageError
from detcli.model.contract import COCO, COCO_IDS, class_names
from detcli.sink.labels import CocoIds, CocoIdsFromFile


@pytest.fixture
def instances(tmp_path):
    """Write a file of ids and open it."""

    def write(images, categories=("cat", "dog"), **more):
        listed = [{"id": number, "file_name": name} for name, number in images.items()]
        kinds = [{"id": 10 + number, "name": name} for number, name in enumerate(categories)]
        path = tmp_path / "instances.json"
        path.write_text(json.dumps({"images": listed, "categories": kinds, **more}))
        return CocoIdsFromFile(path)

    return write


@pytest.mark.parametrize(
    ("source", "number"),
    [
        *[
            ("val/000000000009.jpg", 9),
            ("9", 9),
            ("9.tar.gz", 31),
            ("COCO_val2014_000000000042.jpg", 42),
        ],
        *[("a.jpg", 31), ("-", 31), ("IMG_20240102.jpg", 31), ("a9.jpg", 31), ("9a.jpg", 31)],
        *[("٣.jpg", 31), ("-9.jpg", 31), ("12 3.jpg", 31), ("9" * 30 + ".jpg", 31)],
    ],
)
def test_a_name_that_is_a_number_is_the_id_else_the_place_from_1(source, number):
    assert CocoIds().image_id(picture(source, index=30)) == number


def test_frames_of_a_video_named_by_a_number_have_their_places():
    assert CocoIds().image_id(frame(3, Film("9.mp4", 10.0))) == 4


def test_the_80_classes_of_coco_have_its_numbers():
    numbers = [CocoIds().category_id(class_id, COCO) for class_id in range(80)]
    known = {"person": 1, "stop sign": 13, "bench": 15, "backpack": 27, "handbag": 31}
    known |= {"bottle": 44, "wine glass": 46, "dining table": 67, "toilet": 70, "tv": 72}
    known |= {"refrigerator": 82, "book": 84, "toothbrush": 90, "fire hydrant": 11}
    assert {name: numbers[COCO.index(name)] for name in known} == known
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("count", [90, 91])
def test_models_with_a_class_for_each_number_of_coco_have_them(count):
    names, _, _ = class_names("", count)
    numbers = [CocoIds().category_id(class_id, names) for class_id in range(count)]
    known = [number for number in numbers if number is not None]
    assert known == list(COCO_IDS)
    assert [names[numbers.index(number)] for number in known] == list(COCO)
    assert all(number in {None, class_id + 91 - count} for class_id, number in enumerate(numbers))


def test_other_classes_have_their_own():
    assert CocoIds().category_id(1, ("cat", "dog")) == 1


def test_coco_numbers_are_those_of_the_published_file(shared):
    content = json.loads(shared("data/coco128/instances.json").read_text())
    published = {category["name"]: category["id"] for category in content["categories"]}
    own = {name: CocoIds().category_id(index, COCO) for index, name in enumerate(COCO)}
    assert own == published


@pytest.mark.parametrize("source", ["a.jpg", "./a.jpg", "x/y/a.jpg", "/x/a.jpg"])
def test_pictures_are_found_by_file_name(instances, source):
    assert instances({"a.jpg": 5, "b.jpg": 6}).image_id(picture(source)) == 5


def test_folders_in_the_list_distinguish_pictures_of_one_name(instances):
    numbers = instances({"train/a.jpg": 5, "val/a.jpg": 6, "val/b.jpg": 7})
    assert numbers.image_id(picture("data/val/a.jpg")) == 6
    assert numbers.image_id(picture("data/train/a.jpg")) == 5
    assert numbers.image_id(picture("elsewhere/b.jpg")) == 7
    with pytest.raises(UsageError, match=r"elsewhere/a\.jpg"):
        numbers.image_id(picture("elsewhere/a.jpg"))


@pytest.mark.parametrize("source", ["c.jpg", "A.jpg", "-", "", "a.jpg/c"])
def test_a_picture_that_is_not_listed_is_a_usage_error(instances, source):
    with pytest.raises(UsageError, match=r"not among the images of .*instances\.json") as caught:
        instances({"a.jpg": 5}).image_id(picture(source))
    assert "--coco-images" in caught.value.hint


def test_a_frame_has_no_id_in_a_list(instances):
    with pytest.raises(UsageError, match=r"film\.avi"):
        instances({"film.avi": 5}).image_id(frame(0))


@pytest.mark.parametrize("name", ["dog", "Dog", " dog "])
def test_categories_are_found_by_name(instances, name):
    assert instances({}).category_id(1, ("x", name, "cat")) == 11


def test_a_class_without_a_category_is_left_out_with_one_warning(instances):
    numbers = instances({})
    with pytest.warns(DetcliWarning, match=r"yeti is not a category of .*instances\.json"):
        assert numbers.category_id(0, ("yeti", "cat")) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert numbers.category_id(0, ("yeti", "cat")) is None


def test_a_model_without_any_category_is_a_usage_error(instances):
    with pytest.raises(UsageError, match="none of the model's classes") as caught:
        instances({}).category_id(0, ("class_0", "class_1"))
    assert "--names" in caught.value.hint


def test_a_list_without_categories_keeps_class_ids(instances):
    assert instances({}, categories=()).category_id(1, ("x", "y")) == 1
    assert instances({}, categories=()).category_id(79, COCO) == 90


BROKEN = {
    "empty": b"",
    "no JSON": b"{",
    "no text": b"\xff\xfe\x00",
    "a list": b"[]",
    "a number": b"3",
    "no images": b'{"categories": []}',
    "images of another kind": b'{"images": 3}',
    "no names": b'{"images": [{"id": 3}]}',
    "no ids": b'{"images": [{"file_name": "a"}]}',
    "odd ids": b'{"images": [{"file_name": "a", "id": "x"}]}',
    "null": b'{"images": [null]}',
    "odd categories": b'{"images": [], "categories": [{"id": 3}]}',
    "deep": b"[" * 200_000,
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_file_that_is_something_else_is_a_usage_error(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(UsageError, match=r"a\.json") as caught:
        CocoIdsFromFile(tmp_path / "a.json")
    assert "instances.json" in caught.value.hint


@pytest.mark.parametrize("name", ["missing.json", ".", "x" * 300])
def test_a_file_that_cannot_be_read_is_a_usage_error(tmp_path, name):
    with pytest.raises(UsageError, match="cannot read the ids"):
        CocoIdsFromFile(tmp_path / name)
