"""Datasets: complete at every moment, never changed, and read by others."""

from dataclasses import replace

import cv2
import numpy as np
import pytest
import yaml
from folders import names_in
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nasty_names import anything
from sample_records import Film, failed_frame, failure, feed_all, frame, image, numbered

from detcli.core.errors import OutputError, UsageError
from detcli.data.geometry import Image
from detcli.data.record import Origin, notes_of
from detcli.sink import dataset as module
from detcli.sink.dataset import DatasetSink

pytestmark = pytest.mark.slow

NAMES = ("cat",)
CAMERA = Film("camera:0", 0, live=True)


@pytest.fixture
def dataset_path(tmp_path):
    return tmp_path / "dataset"


def save(folder, records, names=NAMES):
    feed_all(DatasetSink(folder, names), records)
    return contents(folder)


def contents(folder):
    """The names in both folders: of images with their suffix, of labels without."""
    images = names_in(folder / "images")
    labels = sorted(path.name.removesuffix(".txt") for path in (folder / "labels").iterdir())
    return images, labels


def without_suffixes(names):
    return [name.rpartition(".")[0] for name in names]


def stored(folder, name="a.png", shade=0, **options):
    """A record of an image in a file."""
    pixels = np.full((40, 60, 3), shade, np.uint8)
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    suffix = options.pop("suffix", path.suffix)
    path.write_bytes(cv2.imencode(suffix, pixels)[1].tobytes())
    record = image(str(path), **options)
    image_of_file = replace(Image.whole(pixels), file=path.read_bytes())
    return replace(record, origin=Origin(str(path), path), picture=image_of_file)


def test_the_layout(dataset_path, tmp_path):
    record = stored(tmp_path, "in/a.png")
    assert save(dataset_path, [record]) == (["a.png"], ["a"])
    assert names_in(dataset_path) == ["data.yaml", "images", "labels"]
    assert (dataset_path / "images/a.png").read_bytes() == record.origin.path.read_bytes()
    record.origin.path.unlink()  # which changes nothing
    assert save(tmp_path / "other", [record]) == (["a.png"], ["a"])
    assert (dataset_path / "labels/a.txt").read_text() == "0 0.033333 0.081250 0.033333 0.062500\n"
    description = yaml.safe_load((dataset_path / "data.yaml").read_text())
    assert description == {"train": "images", "val": "images", "names": {0: "cat"}}


def test_what_is_in_it(dataset_path, tmp_path):
    """Images without detections are background; failures are nothing."""
    records = stored(tmp_path, count=0), failure(), failed_frame(1)
    images, labels = save(dataset_path, list(records) + [frame(0), frame(7, count=1), numbered(3)])
    assert images == ["a.png", "film_0.jpg", "film_7.jpg", "stdin_3.jpg"]
    assert labels == ["a", "film_0", "film_7", "stdin_3"]
    assert (dataset_path / "labels/a.txt").read_bytes() == b""


@pytest.mark.parametrize(
    ("name", "content", "copy"),
    [
        ("a.JPEG", ".jpg", "a.jpg"),
        ("a.jpg", ".png", "a.png"),  # named wrongly
        ("a", ".jpg", "a.jpg"),
        ("a.b.webp", ".webp", "a.b.webp"),
        ("a.dib", ".bmp", "a.bmp"),
        ("a.tiff", ".tiff", "a.tif"),
        ("a.avif", ".avif", "a.avif"),
    ],
)
def test_files_that_trainers_open_are_copied(dataset_path, tmp_path, name, content, copy):
    images, _ = save(dataset_path, [stored(tmp_path, name, suffix=content)])
    assert images == [copy]
    path = dataset_path / "images" / copy
    assert path.read_bytes() == (tmp_path / name).read_bytes()
    # A trainer that repairs an image of the dataset must not change the input.
    assert path.stat().st_nlink == 1


@pytest.mark.parametrize("suffix", [".ppm", ".jp2", ".gif"])
def test_other_files_are_encoded(dataset_path, tmp_path, suffix):
    record = stored(tmp_path, f"a{suffix}", shade=99)
    images, _ = save(dataset_path, [record])
    assert images == ["a.png"]
    pixels = cv2.imread(dataset_path / "images/a.png")
    np.testing.assert_array_equal(pixels, record.picture.pixels)


@pytest.mark.parametrize("in_one_run", [True, False])
def test_images_that_differ_in_their_suffix_have_labels_of_their_own(
    dataset_path, tmp_path, in_one_run
):
    png = stored(tmp_path, "a.png")
    jpeg = stored(tmp_path, "a.jpg", count=0)
    if in_one_run:
        saved = save(dataset_path, [png, jpeg])
    else:
        save(dataset_path, [png])
        saved = save(dataset_path, [jpeg])
    assert saved == (["a-2.jpg", "a.png"], ["a", "a-2"])
    assert (dataset_path / "labels/a.txt").read_bytes()
    assert (dataset_path / "labels/a-2.txt").read_bytes() == b""


def test_corrected_labels_are_kept(dataset_path, tmp_path, caplog):
    records = [stored(tmp_path), frame(0), frame(1)]
    before = save(dataset_path, records)
    assert caplog.messages == []
    (dataset_path / "labels/a.txt").write_text("corrected")
    assert save(dataset_path, records) == before
    assert (dataset_path / "labels/a.txt").read_text() == "corrected"
    assert caplog.messages == [
        f"{dataset_path} had 3 of the images already; their labels are as they were"
    ]


def test_another_image_of_a_name_gets_a_number(dataset_path, tmp_path):
    save(dataset_path, [stored(tmp_path, "x/a.png", shade=1), frame(0, CAMERA, shade=1)])
    images, labels = save(
        dataset_path, [stored(tmp_path, "y/a.png", shade=2), frame(0, CAMERA, shade=200)]
    )  # fmt: skip
    assert images == ["a-2.png", "a.png", "camera-0_0.jpg", "camera-0_0_2.jpg"]
    assert labels == ["a", "a-2", "camera-0_0", "camera-0_0_2"]
    assert cv2.imread(dataset_path / "images/a.png")[0, 0, 0] == 1


def test_its_own_images_as_inputs_change_nothing(dataset_path, tmp_path):
    save(dataset_path, [stored(tmp_path)])
    path = dataset_path / "images/a.png"
    record = replace(stored(tmp_path, count=0), origin=Origin(str(path), path))
    before = (dataset_path / "labels/a.txt").read_text()
    assert save(dataset_path, [record]) == (["a.png"], ["a"])
    assert (dataset_path / "labels/a.txt").read_text() == before


class KilledError(Exception):
    """Stands for the end of a process."""


def writer_of(count, write):
    """A function that writes so many files, and is killed at the next one."""
    paths = []

    def write_or_end(path, data):
        if len(paths) == count:
            raise KilledError
        paths.append(path)
        write(path, data)

    return write_or_end


def test_whenever_a_run_ends_the_dataset_is_complete_and_the_next_run_goes_on(
    dataset_path, tmp_path, monkeypatch
):
    """Each image has labels, and there is a description; the next run adds what is missing."""
    records = [stored(tmp_path), frame(0), stored(tmp_path, "b.png", count=0)]
    write = module.write_file
    for survived in range(7):
        folder = dataset_path / str(survived)
        with monkeypatch.context() as patch:
            patch.setattr(module, "write_file", writer_of(survived, write))
            with pytest.raises(KilledError):
                save(folder, records)
        images, labels = contents(folder)
        assert set(without_suffixes(images)) <= set(labels)
        assert (folder / "data.yaml").exists() == (survived > 0)
        images, labels = save(folder, records)
        assert images == ["a.png", "b.png", "film_0.jpg"]
        assert labels == ["a", "b", "film_0"]


def test_a_run_over_three_images_writes_seven_files(dataset_path, tmp_path, monkeypatch):
    """So the test above has killed it at each of them."""
    records = [stored(tmp_path), frame(0), stored(tmp_path, "b.png", count=0)]
    names = []
    monkeypatch.setattr(module, "write_file", lambda path, _: names.append(path.name))
    save(dataset_path, records)
    assert len(names) == 7


OTHER_DESCRIPTIONS = [
    "",
    "names: [dog]",
    "names: [cat, dog]",
    "names: cat",
    "a",
    "[",
    "names: {x: cat}",
    "path: .\nnames:\n- [cat]",
    "\0",
    "- cat",
    "names: null",
    "{" * 5000,
]


@pytest.mark.parametrize("text", OTHER_DESCRIPTIONS, ids=range(len(OTHER_DESCRIPTIONS)))
def test_a_dataset_of_other_classes_is_refused(dataset_path, tmp_path, text):
    dataset_path.mkdir()
    (dataset_path / "data.yaml").write_text(text)
    with pytest.raises(UsageError, match=r"data\.yaml"):
        save(dataset_path, [stored(tmp_path)])
    assert (dataset_path / "data.yaml").read_text() == text


def test_an_edited_description_is_kept(dataset_path, tmp_path):
    dataset_path.mkdir()
    text = "path: /data\ntrain: images\nval: chosen.txt\nnc: 1\nnames: [cat]\n"
    (dataset_path / "data.yaml").write_text(text)
    save(dataset_path, [stored(tmp_path)])
    assert (dataset_path / "data.yaml").read_text() == text


@given(names=st.lists(anything, min_size=1, max_size=5))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_class_names_are_read_back(tmp_path_factory, names):
    folder = tmp_path_factory.mktemp("dataset")
    record = image(name=names[0])
    record = replace(record, model="odd\n- \udcff: [")
    save(folder, [record], names=names)
    description = yaml.safe_load((folder / "data.yaml").read_text(encoding="utf-8"))
    assert description["names"] == dict(enumerate(names))
    save(folder, [record], names=names)  # the same classes


@given(sources=st.lists(anything, min_size=1, max_size=6))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_inputs_are_called(tmp_path_factory, sources):
    folder = tmp_path_factory.mktemp("outer") / "dataset"
    images, labels = save(folder, [image(source) for source in sources])
    assert sorted(without_suffixes(images)) == labels
    assert len(images) == len(sources)
    assert names_in(folder.parent) == ["dataset"]


def test_links_are_not_followed(dataset_path, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    dataset_path.mkdir()
    (dataset_path / "images").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OutputError, match="is a link out of the dataset"):
        save(dataset_path, [stored(tmp_path)])
    (dataset_path / "images").unlink()
    save(dataset_path, [])
    for name in ("images/a.png", "labels/b.txt"):
        (dataset_path / name).symlink_to(tmp_path / "elsewhere" / "new")
    images, _ = save(dataset_path, [stored(tmp_path, "a.png"), stored(tmp_path, "b.png")])
    assert images == ["a-2.png", "a.png", "b.png"]
    assert not (dataset_path / "labels/b.txt").is_symlink()
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_folder_that_becomes_a_link_is_not_followed_either(dataset_path, tmp_path):
    """The dataset itself may be reached through one, which its user named."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "named").symlink_to(tmp_path, target_is_directory=True)
    sink = DatasetSink(tmp_path / "named" / dataset_path.name, NAMES)
    record = stored(tmp_path)
    sink.write(record)
    assert notes_of(record).saved == [
        tmp_path / "named" / dataset_path.name / "labels/a.txt",
        tmp_path / "named" / dataset_path.name / "images/a.png",
    ]
    (dataset_path / "images").rename(tmp_path / "before")
    (dataset_path / "images").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OutputError):
        sink.write(stored(tmp_path, "b.png"))
    assert list((tmp_path / "elsewhere").iterdir()) == []
