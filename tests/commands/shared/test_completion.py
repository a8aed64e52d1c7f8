"""Candidates, and how bash's lines are read and written."""

import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from detcli.app import app
from detcli.backend import device as devices
from detcli.commands.shared.completion import (
    Word,
    complete_device,
    complete_model,
    complete_side,
    quoted,
    split,
)
from detcli.errors import DeviceError

BREAKS = " \t\n\"'@><=;|&(:"  # as bash has them


def bash(line):
    """What the shell gets for a line."""
    environment = {
        "_DETCLI_COMPLETE": "complete_bash",
        "COMP_LINE": line,
        "COMP_WORDBREAKS": BREAKS,
    }
    result = CliRunner().invoke(app, [], prog_name="detcli", env=environment)
    assert result.exit_code == 0
    return result.stdout.splitlines()


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("detcli ", Word("")),
        ("detcli pre", Word("pre")),
        (r"detcli my\ mo", Word("my mo")),
        ('detcli "my mo', Word("my mo", "", '"')),
        ("detcli 'my \\mo", Word("my \\mo", "", "'")),
        ('detcli "a\\"b\\c', Word('a"b\\c', "", '"')),
        ('detcli "my "mo', Word("my mo", "my ", "")),
        ("detcli cuda:", Word("cuda:", "cuda:", "")),
        (r"detcli cuda\:1", Word("cuda:1", "", "")),
        ("detcli --a=b:c", Word("--a=b:c", "--a=b:", "")),
        ('detcli --a="b:c', Word("--a=b:c", "--a=", '"')),
        ("detcli a@b", Word("a@b", "a@", "")),
        ("detcli x\\", Word("x")),
        ("detcli ''", Word("")),
    ],
)
def test_the_last_word(line, word):
    assert split(line, BREAKS)[-1] == word


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1)))
def test_words_are_those_of_the_shell(words):
    assert [word.text for word in split(shlex.join(words), BREAKS)] == (words or [""])


@pytest.mark.parametrize("quote", ["", '"', "'"])
def test_bash_reads_quoted_text_as_it_was(quote):
    text = "".join(map(chr, range(33, 127))).replace("!", "") + " 猫 a"
    done = subprocess.run(
        ["bash", "-c", f"printf %s x{quote}{quoted(text, quote)}{quote}"],  # noqa: S607
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout == f"x{text}"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("detcli doctor --cl", ["", "--clear-cache"]),
        ("detcli predict --format=js", ["", "jsonl", "json"]),
        ("detcli predict --format js", ["", "jsonl", "json"]),
        ("detcli predict --device c", ["", "cpu"]),
        ("detcli predict --device cpu,a", ["", "cpu,auto"]),
        ("detcli predict -m yolov10n", ["", "yolov10n"]),
        ("detcli predict -m ./a", ["", r"./a\ b.onnx"]),
        ("detcli predict -m ./a:", ["", "1.onnx"]),
        ("detcli predict -m ./s", ["nospace", "./sub/"]),
        ("detcli predict --model=./s", ["nospace", "./sub/"]),
        ("detcli models path cod", ["", "codes"]),
        ("detcli predict nothing", [""]),
    ],
)
def test_what_bash_is_told(line, found, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    for name in ("a b.onnx", "a.txt", "b.onnx"):
        (tmp_path / name).touch()
    if "a:" in line:
        (tmp_path / "a:1.onnx").touch()
    assert bash(line) == found


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
    for name in ("here.onnx", "here.jsonl", "here.json.gz", "here.csv"):
        (tmp_path / name).touch()
    found = {Path(name).name for name in complete_side(f"{tmp_path}/h")}
    assert {name for name in found if name.startswith("here")} == {
        "here.onnx", "here.jsonl", "here.json.gz"
    }  # fmt: skip


def test_devices_are_those_of_this_machine(monkeypatch):
    monkeypatch.setattr("detcli.backend.nvidia.count_gpus", lambda: 2)
    monkeypatch.setattr(devices, "has_openvino", lambda: False)
    monkeypatch.setattr(devices.importlib.util, "find_spec", lambda _: None)
    assert complete_device("") == ["auto", "cpu", "cuda", "cuda:0", "cuda:1"]
    monkeypatch.setattr(devices.importlib.util, "find_spec", lambda _: object())
    assert complete_device("cpu,")[-3:] == ["cpu,tensorrt", "cpu,tensorrt:0", "cpu,tensorrt:1"]
    monkeypatch.setattr(devices, "has_openvino", lambda: True)
    assert complete_device("")[-1] == "openvino"


def test_a_broken_driver_has_no_devices(monkeypatch):
    def broken():
        raise DeviceError("the driver does not work")

    monkeypatch.setattr("detcli.backend.nvidia.count_gpus", broken)
    monkeypatch.setattr(devices, "has_openvino", lambda: False)
    assert complete_device("") == ["auto", "cpu"]


def test_a_script_of_an_earlier_version_gets_no_traceback():
    environment = {"_DETCLI_COMPLETE": "complete_bash", "COMP_WORDS": "detcli", "COMP_CWORD": "1"}
    result = CliRunner().invoke(app, [], prog_name="detcli", env=environment)
    assert result.exit_code == 0


def test_fish_asks_for_candidates_as_typer_does():
    environment = {
        "_DETCLI_COMPLETE": "complete_fish",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "_TYPER_COMPLETE_ARGS": "detcli predict --device c",
    }
    result = CliRunner().invoke(app, [], prog_name="detcli", env=environment)
    assert result.stdout.split() == ["cpu"]
