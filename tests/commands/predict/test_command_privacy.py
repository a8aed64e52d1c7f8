"""`detcli predict` with --blur and --only-detections."""

import json

import cv2
import numpy as np
import pytest
from colour_model import picture

from detcli.sink.image import GREY

RED = (0, 0, 255)


@pytest.fixture
def noisy(tmp_path):
    """A picture with a red square in a corner of each quarter."""
    image = picture(("red", 1, 1), ("blue", 5, 5), grey=40)
    cv2.imwrite(str(tmp_path / "a.png"), image)
    return tmp_path / "a.png"


def shows_red(path):
    image = cv2.imread(str(path))
    return bool((np.abs(image.astype(int) - RED).max(axis=2) < 40).any())


def test_no_picture_of_a_run_shows_what_is_hidden(invoke, make_model, noisy, tmp_path):
    folders = [tmp_path / name for name in ("pics", "crops", "dataset")]
    options = ["--save", folders[0], "--save-crops", folders[1], "--save-dataset", folders[2]]
    common = ["predict", noisy, "-m", make_model(), "--conf", 0.9, *options, "--labels", "none"]
    hide = ["--blur", "red", "--blur-with", "fill"]
    done = invoke(*common, *hide)
    assert done.returncode == 0, done.stderr
    (record,) = map(json.loads, done.stdout.splitlines())
    assert [one["class_name"] for one in record["detections"]] == ["red", "blue"]
    written = [path for folder in folders for path in folder.rglob("*.png")]
    assert len(written) == len(record["saved"]) - 1 == 4  # the other is a file of labels
    crop, dataset = folders[1] / "red/a_0.png", folders[2] / "images/a.png"
    assert (cv2.imread(str(crop)) == GREY).all()
    assert not shows_red(dataset)
    assert (cv2.imread(str(folders[0] / "a.png"))[10:14, 10:14] == GREY).all()  # within its outline
    plain = invoke(*common)
    assert json.loads(plain.stdout)["detections"] == record["detections"]
    assert shows_red(folders[2] / "images/a-2.png")  # another picture, so it gets a number


def test_a_video_hides_in_each_frame(invoke, make_model, make_video, tmp_path):
    video, out = make_video(frames=6, red_from=0), tmp_path / "out"
    arguments = ["predict", video, "-m", make_model(), "--conf", 0.6, "--save", out]
    style = ["--labels", "none", "--line-width", 1]
    assert invoke(*arguments, *style, "--blur", 0, "--blur-with", "fill").returncode == 0
    frames = cv2.VideoCapture(str(out / "clip.mp4"))
    for _ in range(6):
        more, pixels = frames.read()
        assert more
        assert np.abs(pixels[3:6, 3:6].astype(int) - GREY).max() < 60  # between outlines


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--blur", "person"], "the model has no class 'person'"),
        (["--blur", ","], "empty list"),
        (["--blur", "red", "--blur-with", "tape"], "--blur-with"),
        (["--blur-with", "fill"], "--blur-with needs --blur"),
        (["--blur", "red,blue", "--classes", "blue"], "add red to --classes"),
    ],
)
def test_what_cannot_be_hidden_is_refused(options, says, invoke, make_model, noisy):
    out = noisy.parent / "out"
    done = invoke("predict", noisy, "-m", make_model(), "--save", out, *options)
    assert done.returncode == 2
    assert says in done.stderr
    assert not out.exists()


def test_only_pictures_with_detections_are_kept(invoke, make_model, make_pictures, tmp_path):
    pictures, out, dataset = make_pictures(7), tmp_path / "out", tmp_path / "dataset"
    arguments = ["predict", pictures, "-m", make_model(), "--conf", 0.6, "--only-detections"]
    done = invoke(
        *arguments, "--save", out, "--save-dataset", dataset, "--save-txt", tmp_path / "t"
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 7
    for folder in (out, dataset / "images"):
        assert sorted(path.name for path in folder.glob("*.png")) == [
            "0000.png",
            "0003.png",
            "0006.png",
        ]
    assert len([*tmp_path.glob("t/*.txt")]) == 7
    with_pictures = [json.loads(line) for line in done.stdout.splitlines()]
    assert [any(name.endswith(".png") for name in one["saved"]) for one in with_pictures] == [
        bool(one["detections"]) for one in with_pictures
    ]


def test_a_video_keeps_only_frames_with_detections(invoke, make_model, make_video, tmp_path):
    video, out, journal = make_video(frames=20, red_from=15), tmp_path / "out", tmp_path / "j.jsonl"
    arguments = ["predict", video, "-m", make_model(), "--conf", 0.6, "--only-detections"]
    arguments += ["--save", out, "--resume", journal]
    assert invoke(*arguments).returncode == 0
    records = [json.loads(line) for line in journal.read_text().splitlines()]
    assert [len(record.get("saved", ())) for record in records] == [0] * 15 + [1] * 5
    assert cv2.VideoCapture(str(out / "clip.mp4")).get(cv2.CAP_PROP_FRAME_COUNT) == 5
    again = invoke(*arguments)
    assert again.returncode == 0
    assert "20 skipped" in again.stderr  # no frame is taken for one whose video is missing
