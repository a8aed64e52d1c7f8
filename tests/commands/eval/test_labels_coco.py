import numpy as np
import pytest
from labelled import MIXED, Scene, counts, edit_json, read, write_coco, write_json

from detcli.core.errors import UsageError


def test_pictures_categories_and_boxes(tmp_path):
    dataset, found = read(write_coco(tmp_path, MIXED))
    assert found == {}
    assert dataset.categories == ((11, "red"), (12, "green"), (13, "blue"))
    first = dataset.samples[0]
    assert (first.name, first.image_id, first.size) == ("0001.png", 1, (64, 64))
    assert first.path == tmp_path / "images/0001.png"
    assert first.objects["box"].tolist() == [[8, 8, 8, 8], [32, 32, 8, 8], [48, 48, 8, 8]]
    assert first.objects["category"].tolist() == [0, 1, 2]
    assert dataset.named


def test_the_folder_of_pictures_may_be_elsewhere(tmp_path):
    path = write_coco(tmp_path / "data", MIXED)
    elsewhere = tmp_path / "pictures"
    (tmp_path / "data/images").rename(elsewhere)
    with pytest.raises(UsageError, match="images: no such folder") as caught:
        read(path)
    assert "--images" in caught.value.hint
    assert read(path, images=elsewhere)[0].samples[4].path == elsewhere / "0005.png"
    for name in ("nowhere", "x" * 5000):
        with pytest.raises(UsageError, match="no such folder"):
            read(path, images=tmp_path / name)
    with pytest.raises(UsageError, match="no such file or folder"):
        read(tmp_path / ("x" * 5000))


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["val2014/0001.png"], ["0001.png"]),
        (["C:\\data\\0001.png"], ["0001.png"]),
        (["/srv/data/0001.png"], ["0001.png"]),
        (["a/0001.png", "b/0001.png"], [None, None]),  # which of the two?
        *(([name], [None]) for name in ("\0", "x" * 5000, "", ".", "images")),
    ],
)
def test_a_name_with_missing_folders_is_found_by_its_last_part(names, found, tmp_path):
    def rename(data):
        for one, name in zip(data["images"], names, strict=False):
            one["file_name"] = name

    dataset, findings = read(edit_json(write_coco(tmp_path, MIXED), rename))
    places = [name and tmp_path / "images" / name for name in found]
    assert [one.path for one in dataset.samples[: len(found)]] == places
    assert counts(findings).get("missing picture", 0) == found.count(None)


def test_pictures_outside_the_folder_are_not_opened(tmp_path):
    path = write_coco(tmp_path, MIXED)
    Scene().write(tmp_path / "secret.png")

    def lead_out(data):
        data["images"][0]["file_name"] = "../secret.png"
        data["images"][1]["file_name"] = str(tmp_path / "secret.png")
        data["images"][2]["file_name"] = "images/../../secret.png"

    dataset, found = read(edit_json(path, lead_out))
    assert [sample.path for sample in dataset.samples[:3]] == [None] * 3
    assert found["missing picture"].count == 3
    assert found["missing picture"].level == "failure"


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

    dataset, found = read(edit_json(write_coco(tmp_path, MIXED), spoil))
    assert counts(found) == {
        "box of an unknown category": 1,
        "box of an unknown picture": 1,
        "unreadable label": 7,
        "category listed twice": 1,
        "picture listed twice": 1,
    }
    assert found["box of an unknown category"].examples == ("0001.png: category_id 99",)
    assert len(found["unreadable label"].examples) == 5
    assert len(dataset.samples[0].objects) == 3
    assert len(dataset.samples) == len(MIXED)
    assert dataset.samples[1].objects["category"].tolist() == [0, 0]  # both are red


def test_crowds_and_ignored_boxes(tmp_path):
    dataset, _ = read(write_coco(tmp_path, MIXED, iscrowd=1, ignore=1, area=7))
    objects = dataset.samples[0].objects
    assert objects["crowd"].all()
    assert objects["ignored"].all()
    assert objects["area"].tolist() == [7, 7, 7]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ([{"image_id": 1}], "as COCO results are"),
        ("text", "not a COCO instances.json"),
        ({"images": [], "categories": []}, "no list of annotations"),
        ({"images": {}, "categories": [], "annotations": []}, "no list of images"),
        ({"images": [{"id": 1}], "categories": [], "annotations": []}, "lack a name, or an id"),
        (
            {"images": [{"id": "a", "file_name": "a"}], "categories": [], "annotations": []},
            "an id that is a number",
        ),
        ({"images": [3], "categories": [], "annotations": []}, "lack a name, or an id"),
        ({"images": [], "categories": [], "annotations": []}, "lists no pictures"),
    ],
)
def test_malformed_data(content, reason, tmp_path):
    (tmp_path / "images").mkdir()
    with pytest.raises(UsageError, match=reason):
        read(write_json(tmp_path / "instances.json", content))


def test_other_refusals(tmp_path):
    with pytest.raises(UsageError, match="none of the 1 pictures has a labelled object"):
        read(write_coco(tmp_path, [Scene()]))
    with pytest.raises(UsageError, match="none of the 5 pictures") as caught:
        read(write_coco(tmp_path, MIXED, area="big"))
    assert caught.value.hint == "unreadable label (6): annotations[0]"
    path = write_coco(tmp_path, MIXED)
    with pytest.raises(UsageError, match="has no parts"):
        read(path, split="val")
    path.write_bytes(b"\xff\xd8")
    with pytest.raises(UsageError, match="it is not JSON"):
        read(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("area", None), ("area", -1), ("area", float("inf")), ("area", float("nan"))),
        *(("iscrowd", None), ("ignore", None)),
    ],
)
def test_null_and_an_impossible_area_are_the_default(tmp_path, key, value):
    dataset, found = read(write_coco(tmp_path, MIXED, **{key: value}))
    assert found == {}
    first = dataset.samples[0].objects
    assert len(first) == 3
    assert not first["crowd"].any()
    assert not first["ignored"].any()
    assert np.isnan(first["area"]).all() == (key == "area")
