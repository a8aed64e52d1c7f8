"""`detcli predict --resume`: what one journal may hold."""

import hashlib

import pytest
from colour_model import save_external
from json_lines import column_of, lines
from report_schemas import validator

from detcli.backend import open_backend
from detcli.storage.files import sha256

ZONE = "--zone left=0,0,0.5,0,0.5,1,0,1"


@pytest.fixture
def resume_with_one_more(predict, make_image, tmp_path):
    """Run over one more image each time; returns the records of the journal."""
    images = []

    def run(line="", *words, code=0, says=""):
        images.append(str(make_image(f"{len(images)}.png", ("red", 2, 3))))
        predict(f"--resume run.jsonl {line}", words, images, code=code, says=says)
        journal = tmp_path / "run.jsonl"
        return lines(journal.read_text()) if journal.exists() else None

    return run


def test_the_first_record_of_a_run_has_the_settings(resume_with_one_more, tmp_path):
    resume_with_one_more("--conf 0.5,red=0.2 --classes red,2")
    first, second = resume_with_one_more("--conf 0.5,0=0.2 --classes 0,blue")
    validator("predict").validate(first)
    assert first["settings"] == second["settings"]
    assert first["settings"] == {
        "model": "colours",
        "model_sha256": hashlib.sha256((tmp_path / "colours.onnx").read_bytes()).hexdigest(),
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
        "every": None,
        "column": None,
        "region": None,
        "tile": None,
        "zones": None,
        "lines": None,
        "track": None,
        "read": False,
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        "--conf 0.3",
        "--conf red=0.3",
        "--max-det 7",
        "--classes red",
        "--nms 0.5",
        "--unique",
        "--fast-decode",
        "--vid-stride 2",
        "--every 1s",
        "--imgsz 64",
        "--box-format xyxy",
        "--names names.txt",
        "--tile 64",
        "--region 0,0,8,8",
        "--tile 640,overlap=0.5",
        ZONE,
    ],
)
def test_other_settings_need_force(resume_with_one_more, options, tmp_path):
    (tmp_path / "names.txt").write_text("red\ngreen\nblue\n")
    before = resume_with_one_more()
    assert resume_with_one_more(options, code=2, says="its records were made with") == before
    assert resume_with_one_more(options, code=2, says="--force") == before
    assert len(resume_with_one_more(f"--force {options}")) == 4


def test_another_model_of_the_same_name_needs_force(resume_with_one_more, make_model):
    resume_with_one_more()
    make_model("colours.onnx", "transposed")
    with pytest.raises(AssertionError, match="another file of the model"):
        resume_with_one_more()


@pytest.mark.parametrize("changed", ["weights", "names"])
def test_what_lies_beside_a_model_is_part_of_it(resume_with_one_more, tmp_path, changed):
    model = tmp_path / "colours.onnx"
    beside = tmp_path / "config.json"
    save_external(model)
    beside.write_text('{"id2label": {"0": "a", "1": "b", "2": "c"}}')
    content = model.read_bytes()
    resume_with_one_more()
    if changed == "names":
        beside.write_text('{"id2label": {"0": "c", "1": "b", "2": "a"}}')
    else:
        save_external(model, 16)
    assert model.read_bytes() == content
    resume_with_one_more(code=2, says="another file of the model")


def test_the_hash_is_of_the_model_that_ran(resume_with_one_more, make_model, tmp_path, monkeypatch):
    """Another one takes its place as soon as the first is open."""
    mine = sha256(tmp_path / "colours.onnx")

    def opened(*settings):
        backend = open_backend(*settings)
        make_model("colours.onnx", "transposed")
        return backend

    monkeypatch.setattr("detcli.run.batches.open_backend", opened)
    [first] = resume_with_one_more()
    assert first["settings"]["model_sha256"] == mine != sha256(tmp_path / "colours.onnx")


def test_what_changes_no_detection_may_differ(resume_with_one_more):
    resume_with_one_more("--batch 1")
    resume_with_one_more("--batch 2 --save-txt labels -q --workers 1")


def test_another_format_is_a_usage_error(resume_with_one_more, tmp_path):
    says = "--resume writes JSON Lines, not csv"
    assert resume_with_one_more("--format csv", code=2, says=says) is None
    (tmp_path / "detcli.toml").write_text('format = "csv"\n')  # for other runs
    resume_with_one_more()
    assert len(resume_with_one_more("--format jsonl")) == 3


def test_records_name_the_files_that_were_made_for_them(predict, make_image):
    for folder in ("x", "y"):
        make_image(f"{folder}/a.png", ("red", 2, 3))
        command = f"{folder}/a.png --conf 0.6 --save pics --save-txt labels --save-crops crops"
        (first,) = predict(command).records
        (second,) = predict(command).records
        validator("predict").validate(first)
        assert first["saved"] == second["saved"]
        assert first["saved"] == ["pics/a.png", "labels/a.txt", "crops/red/a_0.png"]
    assert "saved" not in predict().records[0]


def test_records_of_frames_name_their_video(predict, make_video):
    make_video(frames=3)
    records = predict("clip.mp4 --save out").records
    assert column_of(records, "saved") == [["out/clip.mp4"]] * 3


def test_a_page_is_told_what_this_run_added(predict):
    for number in (1, 0):
        says = f"wrote {number} record{'s' * (not number)} to the page page/index.html"
        predict("a.png --resume run.jsonl --report page", says=says)
