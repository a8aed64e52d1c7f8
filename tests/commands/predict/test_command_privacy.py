"""`detcli predict` with --blur and --only-detections."""

import cv2
import numpy as np
import pytest
from colour_model import image
from folders import names_matching
from json_lines import column_of, lines

from detcli.sink.image import GREY

RED = (0, 0, 255)


@pytest.fixture
def noisy(tmp_path):
    """An image with a red square in a corner of each quarter."""
    pixels = image(("red", 1, 1), ("blue", 5, 5), grey=40)
    cv2.imwrite(str(tmp_path / "noisy.png"), pixels)
    return "noisy.png"


def shows_red(path):
    image = cv2.imread(str(path))
    return bool((np.abs(image.astype(int) - RED).max(axis=2) < 40).any())


def test_no_image_of_a_run_shows_what_is_hidden(predict, noisy, tmp_path):
    command = (
        f"{noisy} --conf 0.9 --save pics --save-crops crops --save-dataset dataset --labels none"
    )
    (record,) = predict(f"{command} --blur red --blur-with fill").records
    assert column_of(record["detections"], "class_name") == ["red", "blue"]
    image_count = 0
    for folder in ("pics", "crops", "dataset"):
        image_count += len(list((tmp_path / folder).rglob("*.png")))
    assert image_count == len(record["saved"]) - 1 == 4  # the other is a file of labels
    crop = tmp_path / "crops/red/noisy_0.png"
    assert (cv2.imread(str(crop)) == GREY).all()
    assert not shows_red(tmp_path / "dataset/images/noisy.png")
    drawn = cv2.imread(str(tmp_path / "pics/noisy.png"))
    assert (drawn[10:14, 10:14] == GREY).all()  # within its outline
    (plain,) = predict(command).records
    assert plain["detections"] == record["detections"]
    assert shows_red(tmp_path / "dataset/images/noisy-2.png")  # another image, so it gets a number


@pytest.mark.parametrize("typed", ["--blur red --blur blue", "--blur blue --blur red"])
def test_all_classes_are_hidden_that_are_named_one_by_one(predict, noisy, tmp_path, typed):
    predict(f"{noisy} --conf 0.9 --save-dataset set --blur-with fill {typed}")
    image = cv2.imread(str(tmp_path / "set/images/noisy.png"))
    assert not shows_red(tmp_path / "set/images/noisy.png")
    assert (image[42:46, 42:46] == GREY).all()  # where the blue square was


@pytest.mark.parametrize(
    ("margin", "edges"),
    [
        ("", (7, 17)),
        ("--blur-margin 0", (8, 16)),
        ("--blur-margin 0.5", (4, 20)),
        ("--blur-margin 10", (0, 64)),
    ],
)
def test_the_margin_around_what_is_hidden(predict, noisy, tmp_path, margin, edges):
    """The red square is 8 pixels wide."""
    predict(f"{noisy} --conf 0.9 --save-dataset set --blur red --blur-with fill {margin}")
    grey = (cv2.imread(str(tmp_path / "set/images/noisy.png")) == GREY).all(axis=2)
    for axis in (0, 1):
        (at,) = np.nonzero(grey.any(axis=axis))
        assert (at[0], at[-1] + 1) == edges


def test_a_video_hides_in_each_frame(predict, make_video, tmp_path):
    make_video(frames=6, red_from=0)
    style = "--labels none --line-width 1 --blur 0 --blur-with fill"
    predict(f"clip.mp4 --conf 0.6 --save out {style}")
    frames = cv2.VideoCapture(str(tmp_path / "out/clip.mp4"))
    for _ in range(6):
        more, pixels = frames.read()
        assert more
        assert np.abs(pixels[3:6, 3:6].astype(int) - GREY).max() < 60  # between outlines


def test_only_images_with_detections_are_kept(predict, make_images, tmp_path):
    make_images(7)
    outputs = "--save out --save-dataset dataset --save-txt t"
    records = predict(f"pics --conf 0.6 --only-detections {outputs}").records
    assert len(records) == 7
    for folder in ("out", "dataset/images"):
        names = names_matching(tmp_path / folder, "*.png")
        assert names == ["0000.png", "0003.png", "0006.png"]
    assert len(list(tmp_path.glob("t/*.txt"))) == 7
    for record in records:
        assert any(name.endswith(".png") for name in record["saved"]) == bool(record["detections"])


def test_a_video_keeps_only_frames_with_detections(predict, make_video, tmp_path):
    make_video(frames=20, red_from=15)
    command = "clip.mp4 --conf 0.6 --only-detections --save out --resume j.jsonl"
    predict(command)
    records = lines((tmp_path / "j.jsonl").read_text())
    assert [len(record.get("saved", ())) for record in records] == [0] * 15 + [1] * 5
    clip = cv2.VideoCapture(str(tmp_path / "out/clip.mp4"))
    assert clip.get(cv2.CAP_PROP_FRAME_COUNT) == 5
    predict(command, says="20 skipped")  # no frame is taken for one whose video is missing


def test_the_class_of_id_0_is_hidden_by_its_id(predict, noisy, tmp_path):
    folders = "--save pics --save-crops crops --save-dataset set --labels none"
    predict(f"{noisy} --conf 0.9 {folders} --blur 0 --blur-with fill")
    crop = cv2.imread(str(tmp_path / "crops/red/noisy_0.png"))
    assert (crop == GREY).all()
    assert not shows_red(tmp_path / "set/images/noisy.png")
    drawn = cv2.imread(str(tmp_path / "pics/noisy.png"))
    assert (drawn[10:14, 10:14] == GREY).all()


def test_an_id_hides_as_the_name_of_its_class_does(predict, noisy, tmp_path):
    for folder, blurred in (("by_id", "0"), ("by_name", "red"), ("other", "2")):
        predict(f"{noisy} --conf 0.9 --save-dataset {folder} --blur {blurred} --blur-with fill")
    by_id = (tmp_path / "by_id/images/noisy.png").read_bytes()
    by_name = (tmp_path / "by_name/images/noisy.png").read_bytes()
    of_another_class = (tmp_path / "other/images/noisy.png").read_bytes()
    assert by_id == by_name
    assert by_id != of_another_class


def test_earlier_images_that_show_the_class_of_id_0_are_mentioned(predict, noisy):
    predict(f"{noisy} --conf 0.9 --save pics")
    says = "pics has images of other runs, which may show red: "
    predict(f"{noisy} --conf 0.9 --save pics --blur 0", says=says)


def test_an_id_that_is_not_among_the_classes_is_refused(predict, noisy):
    command = f"{noisy} --save pics --classes 2 --blur 0"
    predict(command, code=2, says="--blur red is not among --classes")
