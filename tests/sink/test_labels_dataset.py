"""Datasets: complete at every moment, never changed, and read by others."""

from dataclasses import replace

import cv2
import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nasty_names import anything
from sample_records import Film, failed_frame, failure, feed, frame, numbered, picture

from detcli.core.errors import OutputError, UsageError
from detcli.data.geometry import Picture
from detcli.data.record import Origin
from detcli.sink import labels as module
from detcli.sink.labels import DatasetSink

pytestmark = pytest.mark.slow

NAMES = ("cat",)
CAMERA = Film("camera:0", 0, live=True)


@pytest.fixture
def dataset_path(tmp_path):
    return tmp_path / "dataset"


def save(place, *records, names=NAMES):
    feed(DatasetSink(place, names), *records)
    return contents(place)


def contents(place):
    """The names in both folders: of pictures with their suffix, of labels without."""
    images, labels = (sorted(path.name for path in (place / name).iterdir())
                      for name in ("images", "labels"))  # fmt: skip
    return images, sorted(name.removesuffix(".txt") for name in labels)


def stored(folder, name="a.png", shade=0, **options):
    """A picture in a file."""
    pixels = np.full((40, 60, 3), shade, np.uint8)
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    suffix = options.pop("suffix", path.suffix)
    path.write_bytes(cv2.imencode(suffix, pixels)[1].tobytes())
    record = picture(str(path), **options)
    kept = replace(Picture.whole(pixels), file=path.read_bytes())
    return replace(record, origin=Origin(str(path), path), picture=kept)


def test_the_layout(dataset_path, tmp_path):
    record = stored(tmp_path, "in/a.png")
    assert save(dataset_path, record) == (["a.png"], ["a"])
    assert sorted(path.name for path in dataset_path.iterdir()) == ["data.yaml", "images", "labels"]
    assert (dataset_path / "images/a.png").read_bytes() == record.origin.path.read_bytes()
    record.origin.path.unlink()  # which changes nothing
    assert save(tmp_path / "other", record) == (["a.png"], ["a"])
    assert (dataset_path / "labels/a.txt").read_text() == "0 0.033333 0.081250 0.033333 0.062500\n"
    description = yaml.safe_load((dataset_path / "data.yaml").read_text())
    assert description == {"train": "images", "val": "images", "names": {0: "cat"}}


def test_what_is_in_it(dataset_path, tmp_path):
    """Pictures without detections are background; failures are nothing."""
    records = stored(tmp_path, count=0), failure(), failed_frame(1)
    assert save(dataset_path, *records, frame(0), frame(7, count=1), numbered(3)) == (
        ["a.png", "film_0.jpg", "film_7.jpg", "stdin_3.jpg"],
        ["a", "film_0", "film_7", "stdin_3"],
    )
    assert (dataset_path / "labels/a.txt").read_bytes() == b""


COPIED = {  # a file, what it has, and its copy
    ("a.JPEG", ".jpg"): "a.jpg",
    ("a.jpg", ".png"): "a.png",  # named wrongly
    ("a", ".jpg"): "a.jpg",
    ("a.b.webp", ".webp"): "a.b.webp",
    ("a.dib", ".bmp"): "a.bmp",
    ("a.tiff", ".tiff"): "a.tif",
    ("a.avif", ".avif"): "a.avif",
}


def test_files_that_trainers_open_are_copied_and_others_encoded(tmp_path):
    for number, ((name, content), kept) in enumerate(COPIED.items()):
        record, place = stored(tmp_path, name, suffix=content), tmp_path / f"copies{number}"
        assert save(place, record)[0] == [kept]
        assert (place / "images" / kept).read_bytes() == (tmp_path / name).read_bytes()
        # A trainer that repairs a picture of the dataset must not change the input.
        assert (place / "images" / kept).stat().st_nlink == 1
    for suffix in (".ppm", ".jp2", ".gif"):
        record, place = stored(tmp_path, f"a{suffix}", shade=99), tmp_path / suffix
        assert save(place, record)[0] == ["a.png"]
        np.testing.assert_array_equal(cv2.imread(place / "images/a.png"), record.picture.pixels)


@pytest.mark.parametrize("runs", [1, 2])
def test_pictures_that_differ_in_their_suffix_have_labels_of_their_own(
    dataset_path, tmp_path, runs
):
    records = stored(tmp_path, "a.png"), stored(tmp_path, "a.jpg", count=0)
    for number in range(runs):
        saved = save(dataset_path, *(records if runs == 1 else records[number : number + 1]))
    assert saved == (["a-2.jpg", "a.png"], ["a", "a-2"])
    assert (dataset_path / "labels/a.txt").read_bytes()
    assert (dataset_path / "labels/a-2.txt").read_bytes() == b""


def test_corrected_labels_are_kept(dataset_path, tmp_path, caplog):
    records = [stored(tmp_path), frame(0), frame(1)]
    before = save(dataset_path, *records)
    assert caplog.messages == []
    (dataset_path / "labels/a.txt").write_text("corrected")
    assert save(dataset_path, *records) == before
    assert (dataset_path / "labels/a.txt").read_text() == "corrected"
    assert caplog.messages == [
        f"{dataset_path} had 3 of the pictures already; their labels are as they were"
    ]


def test_another_picture_of_a_name_gets_a_number(dataset_path, tmp_path):
    save(dataset_path, stored(tmp_path, "x/a.png", shade=1), frame(0, CAMERA, shade=1))
    images, labels = save(
        dataset_path, stored(tmp_path, "y/a.png", shade=2), frame(0, CAMERA, shade=200)
    )  # fmt: skip
    assert images == ["a-2.png", "a.png", "camera-0_0.jpg", "camera-0_0_2.jpg"]
    assert labels == ["a", "a-2", "camera-0_0", "camera-0_0_2"]
    assert cv2.imread(dataset_path / "images/a.png")[0, 0, 0] == 1


def test_its_own_pictures_as_inputs_change_nothing(dataset_path, tmp_path):
    save(dataset_path, stored(tmp_path))
    path = dataset_path / "images/a.png"
    again = stored(tmp_path, count=0)
    again = replace(again, origin=Origin(str(path), path))
    before = (dataset_path / "labels/a.txt").read_text()
    assert save(dataset_path, again) == (["a.png"], ["a"])
    assert (dataset_path / "labels/a.txt").read_text() == before


def test_whenever_a_run_ends_the_dataset_is_complete_and_the_next_run_goes_on(
    dataset_path, tmp_path, monkeypatch
):
    """Each picture has labels, and there is a description; the next run adds what is missing."""
    records = [stored(tmp_path), frame(0), stored(tmp_path, "b.png", count=0)]
    write = module.write_file
    for survived in range(7):
        left = iter(range(survived))

        def killed(path, data, left=left):
            next(left)
            write(path, data)

        with monkeypatch.context() as patch:
            patch.setattr(module, "write_file", killed)
            with pytest.raises(StopIteration):
                save(dataset_path / str(survived), *records)
        images, labels = contents(dataset_path / str(survived))
        assert {name.rpartition(".")[0] for name in images} <= {*labels}
        assert (dataset_path / str(survived) / "data.yaml").exists() == (survived > 0)
        assert save(dataset_path / str(survived), *records) == (
            ["a.png", "b.png", "film_0.jpg"],
            ["a", "b", "film_0"],
        )
    with monkeypatch.context() as patch:  # there are seven writes in all
        patch.setattr(module, "write_file", lambda *_: next(left))
        left = iter(range(7))
        save(dataset_path / "all", *records)
        assert next(left, None) is None


OTHER = [
    *("", "names: [dog]", "names: [cat, dog]", "names: cat", "a", "[", "names: {x: cat}"),
    *("path: .\nnames:\n- [cat]", "\0", "- cat", "names: null", "{" * 5000),
]


def test_a_dataset_of_other_classes_is_refused_and_an_edited_description_kept(
    dataset_path, tmp_path
):
    dataset_path.mkdir()
    for description in OTHER:
        (dataset_path / "data.yaml").write_text(description)
        with pytest.raises(UsageError, match=r"data\.yaml"):
            save(dataset_path, stored(tmp_path))
        assert (dataset_path / "data.yaml").read_text() == description
    text = "path: /data\ntrain: images\nval: chosen.txt\nnc: 1\nnames: [cat]\n"
    (dataset_path / "data.yaml").write_text(text)
    save(dataset_path, stored(tmp_path))
    assert (dataset_path / "data.yaml").read_text() == text


@given(names=st.lists(anything, min_size=1, max_size=5))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_class_names_are_read_back(tmp_path_factory, names):
    place = tmp_path_factory.mktemp("dataset")
    record = picture(name=names[0])
    record = replace(record, model="odd\n- \udcff: [")
    save(place, record, names=names)
    description = yaml.safe_load((place / "data.yaml").read_text(encoding="utf-8"))
    assert description["names"] == dict(enumerate(names))
    save(place, record, names=names)  # the same classes


@given(sources=st.lists(anything, min_size=1, max_size=6))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_inputs_are_called(tmp_path_factory, sources):
    place = tmp_path_factory.mktemp("outer") / "dataset"
    images, labels = save(place, *map(picture, sources))
    assert sorted(name.rpartition(".")[0] for name in images) == labels
    assert len(images) == len(sources)
    assert [path.name for path in place.parent.iterdir()] == ["dataset"]


def test_links_are_not_followed(dataset_path, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    dataset_path.mkdir()
    (dataset_path / "images").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OutputError, match="is a link out of the dataset"):
        save(dataset_path, stored(tmp_path))
    (dataset_path / "images").unlink()
    save(dataset_path)
    for name in ("images/a.png", "labels/b.txt"):
        (dataset_path / name).symlink_to(tmp_path / "elsewhere" / "new")
    images, _ = save(dataset_path, stored(tmp_path, "a.png"), stored(tmp_path, "b.png"))
    assert images == ["a-2.png", "a.png", "b.png"]
    assert not (dataset_path / "labels/b.txt").is_symlink()
    assert [*(tmp_path / "elsewhere").iterdir()] == []


def test_a_folder_that_becomes_a_link_is_not_followed_either(dataset_path, tmp_path):
    """The dataset itself may be reached through one, which its user named."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "named").symlink_to(tmp_path, target_is_directory=True)
    sink = DatasetSink(tmp_path / "named" / dataset_path.name, NAMES)
    record = stored(tmp_path)
    sink.write(record)
    assert record.saved == [
        tmp_path / "named" / dataset_path.name / "labels/a.txt",
        tmp_path / "named" / dataset_path.name / "images/a.png",
    ]
    (dataset_path / "images").rename(tmp_path / "before")
    (dataset_path / "images").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OutputError):
        sink.write(stored(tmp_path, "b.png"))
    assert [*(tmp_path / "elsewhere").iterdir()] == []
