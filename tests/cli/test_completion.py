"""Candidates, and what bash is told."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from detcli.cli import completion as devices
from detcli.cli.app import app
from detcli.cli.completion import complete_device, complete_model
from detcli.commands.verify.request import complete_side
from detcli.core.errors import DeviceError


def bash(words):
    """What the shell gets for words, as bash cuts them; the last one is completed."""
    environment = {
        "_DETCLI_COMPLETE": "complete_bash",
        "COMP_WORDS": "\n".join(["detcli"] + list(words)),
        "COMP_CWORD": str(len(words)),
    }
    result = CliRunner().invoke(app, [], prog_name="detcli", env=environment)
    assert result.exit_code == 0
    return result.stdout.split()


@pytest.fixture(autouse=True)
def _gpus(monkeypatch):
    """Two GPUs, without the engines of extras."""
    monkeypatch.setattr("detcli.backend.nvidia.count_gpus", lambda: 2)
    monkeypatch.setattr("detcli.config.device.has_openvino", lambda: False)
    monkeypatch.setattr(devices.importlib.util, "find_spec", lambda _: None)


@pytest.mark.parametrize(
    ("line", "candidates"),
    [
        ("doctor --cl", "--clear-cache"),
        ("predict --format js", "jsonl json"),
        ("predict --blur-with p", "pixelate"),
        ("predict --no-st", "--no-strict"),
        ("predict --device c", "cpu cuda cuda:0 cuda:1"),
        ("predict --device cuda :", "0 1"),
        ("predict --device cuda : 1", "1"),
        ("predict --device cuda:", "cuda:0 cuda:1"),  # where bash does not cut there
        ("predict --device cpu,a", "cpu,auto"),
        ("predict -m yolov10n", "yolov10n"),
        ("predict -m ./a :", "1.onnx"),
        ("predict -m ./s", "./sub/ ./sub/..."),  # two, so that bash adds no blank
        ("predict --device cuda : 0 --no-st", "--no-strict"),
        ("models path cod", "codes"),
        ("predict --model a.onnx --mod", ""),  # it takes one value
        ("predict -m a.onnx --mod", ""),
        ("predict --classes a --cla", "--classes"),  # to which another one adds
        ("predict nothing", ""),
    ],
)
def test_what_bash_is_told(line, candidates, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    for name in ("a:1.onnx", "a.txt", "b.onnx"):
        (tmp_path / name).touch()
    assert bash(line.split()) == candidates.split()


def test_models_are_names_files_and_folders(tmp_path, monkeypatch):
    for name in ("b.onnx", "A.ONNX", "c.txt", ".hidden.onnx", "new\nline.onnx"):
        (tmp_path / name).touch()
    (tmp_path / "folder.d").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert complete_model("~/")[-3:] == ["~/A.ONNX", "~/b.onnx", "~/folder.d/"]
    assert complete_model(f"{tmp_path}/.")[-1:] == [f"{tmp_path}/.hidden.onnx"]
    assert "codes" in complete_model("")
    assert complete_model(f"{tmp_path}/no/such/")[-1] == "yolov10x"
    assert complete_model("nul\0/")[-1] == "yolov10x"


def test_saved_records_beside_models(tmp_path):
    for name in ("here.onnx", "here.jsonl", "here.json.gz", "here.csv", "here.txt"):
        (tmp_path / name).touch()
    names_beside = set()
    for completed in complete_side(f"{tmp_path}/h"):
        name = Path(completed).name
        if name.startswith("here"):
            names_beside.add(name)
    assert names_beside == {"here.onnx", "here.jsonl", "here.json.gz", "here.csv"}


def test_devices_are_those_of_this_machine(monkeypatch):
    assert complete_device("") == ["auto", "cpu", "cuda", "cuda:0", "cuda:1"]
    monkeypatch.setattr(devices.importlib.util, "find_spec", lambda _: object())
    assert complete_device("cpu,")[-3:] == ["cpu,tensorrt", "cpu,tensorrt:0", "cpu,tensorrt:1"]
    monkeypatch.setattr("detcli.config.device.has_openvino", lambda: True)
    assert complete_device("")[-1] == "openvino"


def test_a_broken_driver_has_no_devices(monkeypatch):
    def broken():
        raise DeviceError("the driver does not work")

    monkeypatch.setattr("detcli.backend.nvidia.count_gpus", broken)
    assert complete_device("") == ["auto", "cpu"]


def test_fish_asks_for_candidates_as_typer_does():
    environment = {
        "_DETCLI_COMPLETE": "complete_fish",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "_TYPER_COMPLETE_ARGS": "detcli predict --format js",
    }
    result = CliRunner().invoke(app, [], prog_name="detcli", env=environment)
    assert result.stdout.split() == ["jsonl", "json"]


@pytest.mark.usefixtures("cache")
def test_classes_are_those_of_the_model_in_the_line(make_model, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    make_model()
    line = ("predict", "a.jpg", "--model", "colours.onnx")
    assert bash(list(line) + ["--classes", ""]) == ["red", "green", "blue"]
    assert bash(list(line) + ["--classes", "red,b"]) == ["red,blue"]
    monkeypatch.setenv("DETCLI_MODEL", "colours.onnx")
    assert bash(["predict", "--blur", "g"]) == ["green"]
    for other_options in (
        ["-m", "none.onnx"],
        ["-m", "yolov10n"],
        ["-m", "colours.onnx", "--names", "x"],
    ):
        assert bash(["predict"] + other_options + ["--classes", ""]) == []
