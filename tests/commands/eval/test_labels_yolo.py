import pytest
from labelled import MIXED, Scene, counts, read, write_yolo

from detcli.core.errors import UsageError


def names_of(dataset):
    return [one.name for one in dataset.categories]


def test_pictures_categories_and_boxes(tmp_path):
    dataset, found = read(write_yolo(tmp_path, MIXED))
    assert found == {}
    assert names_of(dataset) == ["red", "green", "blue"]
    assert (dataset.split, dataset.named) == ("val", True)
    first = dataset.samples[0]
    assert first.path == tmp_path / "images/val/0001.png"
    assert first.image_id == 1  # the name of the picture
    pixels = first.objects["box"] * 64
    assert pixels.tolist() == [[8, 8, 8, 8], [32, 32, 8, 8], [48, 48, 8, 8]]


@pytest.mark.parametrize(
    ("text", "names", "named"),
    [
        ("names: [no, 1, red car]", ["no", "1", "red car"], True),
        ("names: {0: a, 2: c}", ["a", "class_1", "c"], True),
        ("names:\n  0: off\n  1: b\nnc: 2", ["off", "b"], True),
        ("names: ['0', '1']", ["0", "1"], False),
        ("nc: 2", ["class_0", "class_1"], False),
    ],
)
def test_names_are_text_but_no_numbers(text, names, named, tmp_path):
    write_yolo(tmp_path, [Scene.found(("red", 0, 0, 1))]).write_text(f"val: images/val\n{text}\n")
    dataset, _ = read(tmp_path, 80)  # the data.yaml in it
    assert (names_of(dataset), dataset.named) == (names, named)


def test_cocos_80_names_have_cocos_ids(tmp_path):
    from detcli.model.contract import COCO

    path = write_yolo(tmp_path, [])
    (tmp_path / "images/val").mkdir(parents=True)
    Scene().write(tmp_path / "images/val/a.png")
    (tmp_path / "labels/val/a.txt").write_text("79 0.5 0.5 0.1 0.1\n")
    path.write_text("val: images/val\nnames:\n" + "".join(f"  - {name}\n" for name in COCO))
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
def test_where_pictures_may_be(text, tmp_path):
    path = write_yolo(tmp_path, MIXED)
    (tmp_path / "list.txt").write_text(
        "".join(f"./images/val/{number:04}.png\n" for number in range(1, 6))
    )
    path.write_text(text.format(folder=tmp_path) + "\nnames: [red, green, blue]\n")
    dataset, found = read(path)
    assert len(dataset.samples) == 5
    assert sum(len(sample.objects) for sample in dataset.samples) == 6
    assert found == {}


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
    path.write_text("train: images/val\ntest: images/nowhere\nval: ~\nnames: [red, green, blue]\n")
    assert read(path, split="train")[0].split == "train"
    with pytest.raises(UsageError, match="no part 'val'") as caught:
        read(path)
    assert "train, test" in caught.value.hint
    with pytest.raises(UsageError, match="its test pictures do not exist"):
        read(path, split="test")


def test_a_folder_and_a_list_have_no_names(tmp_path):
    write_yolo(tmp_path, MIXED)
    (tmp_path / "data.yaml").unlink()
    listing = tmp_path / "list.txt"
    names = "images/val/0001.png\n\nimages/val/0002.png\nimages/val/none.png\n"
    listing.write_text(f"{names}images/../images/val/0001.png\n")
    folder, found = read(tmp_path / "images")
    assert (len(folder.samples), len(folder.categories), folder.named) == (5, 3, False)
    assert found == {}
    some, found = read(listing)
    assert [sample.path is None for sample in some.samples] == [False, False, True]
    assert counts(found) == {
        "missing picture": 1,
        "picture listed twice": 1,
    }
    with pytest.raises(UsageError, match="has no parts"):
        read(listing, split="val")
    with pytest.raises(UsageError, match="itself says where its pictures are"):
        read(listing, images=tmp_path)


@pytest.mark.parametrize(
    ("picture", "labels"),
    [("a.png", "a.txt"), ("images/images/a.png", "images/labels/a.txt")],  # the last of two
)
def test_labels_beside_the_pictures_or_their_folder(picture, labels, tmp_path):
    Scene().write(tmp_path / picture)
    (tmp_path / labels).parent.mkdir(exist_ok=True)
    (tmp_path / labels).write_text("0 0.5 0.5 0.25 0.25")
    assert len(read((tmp_path / picture).parent)[0].samples[0].objects) == 1


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
    dataset, found = read(tmp_path / "data.yaml")
    objects = dataset.samples[0].objects
    assert objects["category"].tolist() == [0, 1]
    assert objects["box"].round(6).tolist() == [[0.375, 0.375, 0.25, 0.25], [0.1, 0.2, 0.4, 0.4]]
    assert counts(found) == {
        "unreadable label": 8,
        "box of an unknown category": 2,
        "picture without a label file": 1,
    }
    assert "0001.txt:4: 6 numbers in a line" in found["unreadable label"].examples[0]
    assert found["picture without a label file"].level == "note"


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
        (f"val: {'x' * 5000}\nnames: [a]", "its val pictures do not exist"),
        ("names: [a]", "has no part 'val'"),
        ("val: nowhere\nnames: [a]", "pictures do not exist"),
        ("val: data.yaml\nnames: [a]", "neither a folder of pictures nor a list"),
        ("- a\n- b", "it is not a mapping"),
        ("a: [", "it is not YAML"),
        ("\x00", "it is not YAML"),
    ],
)
def test_malformed_data(text, reason, tmp_path):
    path = write_yolo(tmp_path, MIXED)
    path.write_text(text)
    with pytest.raises(UsageError, match=reason):
        read(path)


def test_pictures_without_any_label_are_refused(tmp_path):
    Scene().write(tmp_path / "images/a.png")
    with pytest.raises(UsageError, match="none of the 1 pictures") as caught:
        read(tmp_path / "images")
    assert "labels" in caught.value.hint
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="lists no pictures"):
        read(tmp_path / "empty")
    with pytest.raises(UsageError, match="no such file or folder"):
        read(tmp_path / "nowhere")
