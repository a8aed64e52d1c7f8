"""`detcli predict --resume`: what one journal may hold."""

import hashlib
import json

import pytest
from report_schemas import validator


@pytest.fixture
def resume(invoke, make_model, make_picture, tmp_path):
    """Run over one more picture each time."""
    pictures = []
    model = make_model()

    def run(*options):
        pictures.append(make_picture(f"{len(pictures)}.png", ("red", 2, 3)))
        journal = tmp_path / "run.jsonl"
        return invoke("predict", *pictures, "-m", model, "--resume", journal, *options)

    run.journal, run.model = tmp_path / "run.jsonl", model
    return run


def test_the_first_record_of_a_run_has_the_settings(resume):
    assert resume("--conf", "0.5,red=0.2", "--classes", "red,2").returncode == 0
    assert resume("--conf", "0.5,0=0.2", "--classes", "0,blue").returncode == 0
    first, second = map(json.loads, resume.journal.read_text().splitlines())
    validator("predict").validate(first)
    assert first["settings"] == second["settings"]
    assert first["settings"] == {
        "model": "colours",
        "model_sha256": hashlib.sha256(resume.model.read_bytes()).hexdigest(),
        "conf": 0.5,
        "class_conf": {"0": 0.2},
        "max_det": 300,
        "classes": [0, 2],
        "nms": None,
        "unique": False,
        "imgsz": None,
        "rect": False,
        "box_format": None,
        "preprocess": "letterbox,linear,rgb,scale=0.00392156862745098,mean=0:0:0,std=1:1:1,pad=114",
        "names": None,
        "half": False,
        "fast_decode": False,
        "vid_stride": 1,
        "tile": None,
        "zones": None,
        "lines": None,
        "track": None,
        "read": False,
    }


@pytest.mark.parametrize(
    "options",
    [
        *(["--conf", 0.3], ["--conf", "red=0.3"], ["--max-det", 7], ["--classes", "red"]),
        *(["--nms", 0.5], ["--unique"], ["--fast-decode"], ["--vid-stride", 2]),
        *(["--imgsz", 64], ["--box-format", "xyxy"], ["--names", "names.txt"]),
        *(["--tile", 64], ["--tile", "640,overlap=0.5"]),
    ],
)
def test_other_settings_need_force(resume, options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "names.txt").write_text("red\ngreen\nblue\n")
    resume()
    before = resume.journal.read_bytes()
    finished = resume(*options)
    assert finished.returncode == 2
    assert "its records were made with" in finished.stderr
    assert "--force" in finished.stderr
    assert resume.journal.read_bytes() == before
    assert resume("--force", *options).returncode == 0
    assert len(resume.journal.read_text().splitlines()) == 3


def test_another_model_of_the_same_name_needs_force(resume, make_model):
    resume()
    before = resume.model.read_bytes()
    resume.model.write_bytes(make_model("other.onnx", "transposed").read_bytes())
    assert resume.model.read_bytes() != before
    finished = resume()
    assert finished.returncode == 2
    assert "another file of the model" in finished.stderr


def test_what_changes_no_detection_may_differ(resume, tmp_path):
    resume("--batch", 1)
    options = ["--save-txt", tmp_path / "labels", "-q", "--workers", 1]
    assert resume("--batch", 2, *options).returncode == 0


def test_force_without_a_journal_is_a_usage_error(invoke, make_model, make_picture):
    finished = invoke("predict", make_picture("a.png"), "-m", make_model(), "--force")
    assert finished.returncode == 2
    assert "--resume" in finished.stderr


def test_another_format_is_a_usage_error(resume, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = resume("--format", "csv")
    assert (done.returncode, resume.journal.exists()) == (2, False)
    assert "--resume writes JSON Lines, not csv" in done.stderr
    (tmp_path / "detcli.toml").write_text('format = "csv"\n')  # for other runs
    assert resume().returncode == resume("--format", "jsonl").returncode == 0
    assert len([*map(json.loads, resume.journal.read_text().splitlines())]) == 3


def test_records_name_the_files_that_were_made_for_them(invoke, make_model, make_picture, tmp_path):
    options = [f"--save{kind}={tmp_path / name}" for kind, name in KINDS.items()]
    for folder in ("x", "y"):
        picture = make_picture(f"{folder}/a.png", ("red", 2, 3))
        command = ["predict", picture, "-m", make_model(), "--conf", 0.6, *options]
        first, again = (json.loads(invoke(*command).stdout) for _ in range(2))
        validator("predict").validate(first)
        assert first["saved"] == again["saved"]
        assert first["saved"] == [
            str(tmp_path / "pictures" / "a.png"),
            str(tmp_path / "labels" / "a.txt"),
            str(tmp_path / "crops" / "red" / "a_0.png"),
        ]


KINDS = {"": "pictures", "-txt": "labels", "-crops": "crops"}


def test_records_of_frames_name_their_video(invoke, make_model, make_video, tmp_path):
    video, saved = make_video(frames=3), tmp_path / "out"
    finished = invoke("predict", video, "-m", make_model(), "--save", saved)
    records = [json.loads(line) for line in finished.stdout.splitlines()]
    assert [record["saved"] for record in records] == [[str(saved / "clip.mp4")]] * 3


def test_a_record_for_which_nothing_was_made_says_nothing(invoke, make_model, make_picture):
    finished = invoke("predict", make_picture("a.png"), "-m", make_model())
    assert "saved" not in json.loads(finished.stdout)
