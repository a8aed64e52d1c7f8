"""`detcli predict --provenance`: records say what made them."""

import getpass
import hashlib
import json
import platform

import cv2
import pytest
from colour_model import picture
from json_lines import lines
from report_schemas import validator

from detcli import __version__


@pytest.fixture
def run(invoke, make_model, make_picture, tmp_path, monkeypatch):
    """Run over two pictures, a video and a damaged picture."""
    monkeypatch.chdir(tmp_path)
    make_picture("pics/b.png", ("red", 2, 3))
    make_picture("pics/c.png")
    (tmp_path / "pics/torn.png").write_bytes((tmp_path / "pics/b.png").read_bytes()[:60])
    video = cv2.VideoWriter("pics/a.mp4", cv2.VideoWriter.fourcc(*"mp4v"), 10, (64, 64))
    for _ in range(3):
        video.write(picture(("blue", 2, 2)))
    video.release()
    model = make_model()
    return lambda *options: invoke("predict", "pics", "-m", model, *options)


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_first_record_says_what_made_the_run_and_each_its_file(run, tmp_path):
    assert run("-o", "a.jsonl", "--provenance", "--device", "cpu").returncode == 3
    first, *others = lines((tmp_path / "a.jsonl").read_text())
    for record in (first, *others):
        validator("predict").validate(record)
        assert record["sha256"] == sha256(tmp_path / record["source"])
    assert len(others) == 5
    assert not any(one.keys() & {"settings", "provenance"} for one in others)
    assert first["settings"]["model_sha256"] == sha256(tmp_path / "colours.onnx")
    made = first["provenance"]
    assert (made["detcli"], made["python"]) == (__version__, platform.python_version())
    assert (made["precision"], made["gpu"], made["driver"]) == ("float32", None, None)
    assert made["openvino"] is None
    assert {made["onnxruntime"], made["opencv"], made["numpy"]}.isdisjoint({None})


def test_nothing_personal_is_said(run, tmp_path):
    run("-o", "a.jsonl", "--provenance")
    first, *_ = lines((tmp_path / "a.jsonl").read_text())
    said = [str(one).lower() for one in first["provenance"].values()]
    names = {platform.node(), getpass.getuser()} - {"localhost", platform.system().lower()}
    assert not [one for one in said for name in names if name.lower() in one.split()]


def test_without_it_records_are_as_before(run, tmp_path):
    run("-o", "a.jsonl", "--provenance")
    run("-o", "b.jsonl")
    new = {"sha256", "settings", "provenance"}
    told = [{name: one for name, one in record.items() if name not in new}
            for record in lines((tmp_path / "a.jsonl").read_text())]  # fmt: skip
    assert told == lines((tmp_path / "b.jsonl").read_text())


def test_an_array_says_it_too(run, tmp_path):
    run("-o", "a.json", "--provenance")
    first, *_ = json.loads((tmp_path / "a.json").read_text())
    assert "provenance" in first


def test_each_run_of_a_journal_says_it(run, make_picture, tmp_path):
    """The record that says it is dropped with the second run, if it is an error."""
    journal, pictures = tmp_path / "run.jsonl", tmp_path / "pics"
    for name in ("a.mp4", "b.png", "c.png"):
        (pictures / name).rename(tmp_path / name)
    run("--resume", journal, "--provenance")
    (pictures / "b.png").write_bytes((tmp_path / "b.png").read_bytes())
    run("--resume", journal, "--provenance")
    (only,) = (one for one in lines(journal.read_text()) if "detections" in one)
    assert only.keys() >= {"settings", "provenance", "sha256"}
    make_picture("pics/d.png")
    run("--resume", journal)
    told = [one["source"] for one in lines(journal.read_text()) if "provenance" in one]
    assert told == ["pics/b.png"]


def test_the_head_of_a_run_goes_to_the_next_record(run, make_picture, tmp_path):
    journal = tmp_path / "run.jsonl"
    (tmp_path / "pics/a.mp4").rename(tmp_path / "a.mp4")
    (tmp_path / "pics/torn.png").rename(tmp_path / "pics/a.png")
    run("--resume", journal, "--provenance")
    first, second, _ = lines(journal.read_text())
    assert "error" in first
    made = first["provenance"]
    make_picture("pics/a.png")
    run("--resume", journal)
    kept = {one["source"]: one.get("provenance") for one in lines(journal.read_text())}
    assert second["source"] == "pics/b.png"
    assert kept == {"pics/b.png": made, "pics/c.png": None, "pics/a.png": None}


@pytest.mark.parametrize(
    "options",
    [["-o", "a.csv"], ["--format", "table"], ["--format", "labelstudio"], ["-o", "boxes/"]],
)
def test_where_it_cannot_be_said(run, options):
    done = run(*options, "--provenance")
    assert done.returncode == 2
    assert "--provenance" in done.stderr
