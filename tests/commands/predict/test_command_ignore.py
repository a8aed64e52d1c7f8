"""`detcli predict --ignore`."""

import cv2
import number_video
import numpy as np
import pytest
from colour_model import image
from json_lines import column_of, detection_counts
from report_schemas import validator

from detcli import Detector, Watched
from detcli import predict as predict_in_python

LOW_RIGHT = "0.5,0.5,1,0.5,1,1,0.5,1"


@pytest.fixture
def folders(tmp_path):
    """The folders site7 and site8, each with an image of a red and, lower right, a blue square."""
    pixels = image(("red", 1, 1), ("blue", 6, 6), grey=40)
    for name in ("site7", "site8"):
        folder = tmp_path / "photos" / name
        folder.mkdir(parents=True)
        cv2.imwrite(str(folder / "b.png"), pixels)
    return tmp_path / "photos"


@pytest.fixture
def predict_folders(predict, folders):
    """Run over both folders."""
    assert folders.exists()
    return lambda line="", **expected: predict(f"photos --recursive --conf 0.9 {line}", **expected)


def classes_of(completed):
    """The classes in each image, by the name of its folder."""
    classes = {}
    for record in completed.records:
        _, folder, _ = record["source"].split("/")
        classes[folder] = column_of(record["detections"], "class_name")
    return classes


def test_nothing_counts_in_a_polygon(predict_folders):
    completed = predict_folders(f"--ignore {LOW_RIGHT}", says="found 2 red\n")
    assert classes_of(completed) == {"site7": ["red"], "site8": ["red"]}
    predict_folders(f"--ignore {LOW_RIGHT} --fail-if blue>0")
    predict_folders("--fail-if blue>0", code=6)


def test_a_pattern_chooses_the_folder(predict_folders, tmp_path):
    completed = predict_folders(f"--ignore 'site7/**={LOW_RIGHT}'")
    assert classes_of(completed) == {"site7": ["red"], "site8": ["red", "blue"]}
    (tmp_path / "ignored.txt").write_text(f"# the strip\nsite7/**={LOW_RIGHT}\n")
    assert predict_folders("--ignore @ignored.txt").records == completed.records


def test_a_pattern_that_fits_nothing_is_told(predict_folders, caplog):
    predict_folders(f"--ignore 'site7/**={LOW_RIGHT}' --ignore 'site9/**={LOW_RIGHT}'")
    assert "--ignore site9/**: no input fits this pattern" in caplog.text
    assert "site7" not in caplog.text


def test_a_share_of_the_area_decides_where_it_is_asked_for(predict_folders):
    """The blue square has its foot in the strip, and little of its area."""
    strip = "0,0.85,1,0.85,1,1,0,1"
    assert classes_of(predict_folders(f"--ignore {strip}"))["site7"] == ["red"]
    completed = predict_folders(f"--ignore {strip} --ignore-share 0.9")
    assert classes_of(completed)["site7"] == ["red", "blue"]
    predict_folders("--ignore-share 0.9", code=2, says="--ignore-share needs --ignore")


def test_crops_and_labels_leave_it_out(predict_folders, tmp_path):
    predict_folders(f"--ignore {LOW_RIGHT} --save-crops crops --save-txt labels")
    assert (tmp_path / "crops/red").exists()
    assert not (tmp_path / "crops/blue").exists()
    (label,) = (tmp_path / "labels/site7/b.txt").read_text().splitlines()
    assert label.startswith("0 ")


def test_the_polygon_is_dim_in_annotated_images(predict_folders, tmp_path):
    predict_folders(f"--ignore 'site7/**={LOW_RIGHT}' --save out")
    original = cv2.imread(str(tmp_path / "photos/site7/b.png"))
    annotated = cv2.imread(str(tmp_path / "out/site7/b.png"))
    inner = slice(36, 62)
    np.testing.assert_array_equal(annotated[inner, inner], original[inner, inner] // 2)
    np.testing.assert_array_equal(annotated[40:, :30], original[40:, :30])
    elsewhere = cv2.imread(str(tmp_path / "out/site8/b.png"))
    assert (elsewhere[56:, 34:46] == original[56:, 34:46]).all()


def test_what_is_ignored_is_not_blurred_so_both_are_refused(predict_folders):
    predict_folders(
        f"--ignore {LOW_RIGHT} --blur red --save out", code=2, says="would leave what is ignored"
    )


def test_the_settings_note_it(predict_folders):
    line = f"--ignore 'site7/**={LOW_RIGHT}' --provenance"
    first_record = predict_folders(line).records[0]
    assert first_record["settings"]["ignore"] == [f"site7/**={LOW_RIGHT}"]
    assert first_record["settings"]["ignore_share"] is None
    validator("predict").validate(first_record)
    assert "ignore" not in predict_folders("--provenance").records[0]["settings"]


def test_a_journal_goes_on_only_with_the_same_polygons(predict_folders):
    line = f"--resume a.jsonl --ignore {LOW_RIGHT}"
    predict_folders(line)
    predict_folders(line, says="2 skipped")
    predict_folders("--resume a.jsonl", code=2, says="instead of []")
    predict_folders(f"{line} --ignore-share 0.5", code=2, says="ignore_share null instead of 0.5")
    predict_folders("--resume b.jsonl")
    predict_folders(f"--resume b.jsonl --ignore {LOW_RIGHT}", code=2, says="ignore [] instead of")


def test_a_run_in_shards_ignores_the_same(predict_folders, in_shards):
    line = f"photos --recursive --conf 0.9 --ignore 'site7/**={LOW_RIGHT}' --ignore-share 0.8"
    single_run, merged = in_shards(line)
    assert merged == single_run
    predict_folders("-o parts/", code=2, says="ignore")


@pytest.mark.parametrize("options", ["--tile 64", "--region 0,0,1,1", "--fast-decode"])
def test_parts_of_images_are_ignored_in_pixels_of_the_whole(predict, folders, options):
    assert folders.exists()
    line = f"photos/site7/b.png --conf 0.9 --ignore {LOW_RIGHT} {options}"
    (record,) = predict(line).records
    assert column_of(record["detections"], "class_name") == ["red"]


def test_every_frame_of_a_video_is_ignored_alike(predict, folders, tmp_path):
    pixels = cv2.imread(str(folders / "site7/b.png"))
    height, width = pixels.shape[:2]
    writer = number_video.open_writer(tmp_path / "b.mkv", (width, height), code="FFV1")
    for _ in range(3):
        writer.write(pixels)
    writer.release()
    records = predict(f"b.mkv --conf 0.9 --ignore {LOW_RIGHT}").records
    assert detection_counts(records) == [1, 1, 1]


def test_programs_ignore_it_too(make_model, folders):
    watched = Watched(ignore=f"site7/**={LOW_RIGHT}")
    sources = [folders / "site7/b.png", folders / "site8/b.png"]
    with Detector(make_model(), "cpu", conf=0.9) as detector:
        records = list(predict_in_python(sources, detector, watched=watched))
        frames = [cv2.imread(str(source)) for source in sources]
        tracked = detector.track(frames, Watched(ignore=LOW_RIGHT))
        assert [len(record.detections) for record in tracked] == [1, 1]
    assert [len(record.detections) for record in records] == [1, 2]


def test_verify_says_that_two_runs_ignored_other_polygons(predict_folders, invoke, tmp_path):
    predict_folders(f"--ignore {LOW_RIGHT} --provenance -o with.jsonl")
    predict_folders("--provenance -o without.jsonl")
    completed = invoke("verify", "without.jsonl", "with.jsonl", cwd=tmp_path)
    assert "ignore is None and" in completed.stderr


def test_a_certificate_does_not_hold_once_nothing_is_ignored(predict_folders, invoke, tmp_path):
    ignoring = f"--ignore {LOW_RIGHT} --provenance"
    predict_folders(f"{ignoring} -o a.jsonl")
    predict_folders(f"{ignoring} -o b.jsonl")
    command = ["verify", "a.jsonl", "b.jsonl", "--certificate", "c.json"]
    certified = invoke(command, cwd=tmp_path)
    assert certified.returncode == 0, certified.stderr
    assert LOW_RIGHT in (tmp_path / "c.json").read_text()
    again = invoke("verify", "--check", "c.json", "--format", "json", cwd=tmp_path)
    assert again.returncode == 0, again.stderr

    predict_folders("--provenance -o a.jsonl")
    predict_folders("--provenance -o b.jsonl")
    changed = invoke("verify", "--check", "c.json", "--format", "json", cwd=tmp_path)
    assert changed.returncode != 0
    assert "setting ignore" in changed.stdout
