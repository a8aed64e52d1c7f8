"""Names that runs at work share."""

import subprocess
import sys

import pytest
from sample_records import frame, image, numbered

from detcli.data.record import notes_of
from detcli.sink import claims
from detcli.sink.folder import OutputFolder


@pytest.fixture
def another_run(monkeypatch):
    """Make the folder of another run, as if another process had opened it."""

    def open_folder(path):
        with monkeypatch.context() as patch:
            patch.setattr(claims, "_run_id", lambda _: "another run")
            return OutputFolder(path)

    return open_folder


def name_of_file(folder, record):
    return folder.file_of(record, ".txt").name


def test_a_name_of_another_input_gets_the_hash(tmp_path, another_run):
    ours = OutputFolder(tmp_path)
    theirs = another_run(tmp_path)
    assert name_of_file(ours, image("a/bus.jpg")) == "bus.txt"
    assert name_of_file(theirs, image("a/bus.jpg")) == "bus.txt"  # the same input
    name = name_of_file(theirs, image("b/bus.jpg"))
    assert name.startswith("bus-")
    assert name != "bus.txt"
    third_name = name_of_file(ours, image("c/bus.jpg"))
    assert third_name not in {name, "bus.txt"}


@pytest.mark.parametrize("frames_first", [True, False])
def test_a_frame_and_an_image_do_not_meet(tmp_path, another_run, frames_first):
    first = frame(7)
    second = image("pics/film_7.jpg")
    if not frames_first:
        first, second = second, first
    ours = OutputFolder(tmp_path)
    theirs = another_run(tmp_path)
    assert name_of_file(ours, first) == "film_7.txt"
    assert name_of_file(theirs, second) != "film_7.txt"


def test_standard_input_is_another_input_in_each_run(tmp_path, another_run):
    ours = OutputFolder(tmp_path)
    theirs = another_run(tmp_path)
    assert name_of_file(ours, numbered(0)) != name_of_file(theirs, numbered(0))
    assert name_of_file(ours, numbered(1)).startswith("stdin_1")


def test_names_are_free_when_the_other_run_has_ended(tmp_path, another_run):
    theirs = another_run(tmp_path)
    name_of_file(theirs, image("a/bus.jpg"))
    del theirs
    assert name_of_file(OutputFolder(tmp_path), image("b/bus.jpg")) == "bus.txt"


def test_the_mark_is_empty_when_no_run_is_at_work(tmp_path):
    folder = OutputFolder(tmp_path)
    name_of_file(folder, image("a/bus.jpg"))
    del folder
    assert (tmp_path / ".detcli-folder").read_bytes() == b""


def test_what_a_killed_run_has_taken_is_free(tmp_path):
    code = (
        "import os, sys; from sample_records import image; from pathlib import Path\n"
        "from detcli.sink.folder import OutputFolder\n"
        "folder = OutputFolder(Path(sys.argv[1]))\n"
        "folder.file_of(image('a/bus.jpg'), '.txt'); os._exit(9)"
    )
    environment = {"PYTHONPATH": ":".join(sys.path)}
    process = subprocess.run([sys.executable, "-c", code, tmp_path], check=False, env=environment)
    assert process.returncode == 9
    assert (tmp_path / ".detcli-folder").read_bytes() != b""
    assert name_of_file(OutputFolder(tmp_path), image("b/bus.jpg")) == "bus.txt"


def test_in_a_folder_of_somebody_else_nothing_is_replaced_even_at_the_last_moment(tmp_path):
    (tmp_path / "notes").touch()
    folders = [OutputFolder(tmp_path), OutputFolder(tmp_path)]
    first = image("a/bus.jpg")
    second = image("b/bus.jpg")
    path_of_first = folders[0].file_of(first, ".txt")
    path_of_second = folders[1].file_of(second, ".txt")
    assert path_of_first == path_of_second
    folders[0].write(first, path_of_first, b"first")
    folders[1].write(second, path_of_second, b"second")
    (saved_first,) = notes_of(first).saved
    (saved_second,) = notes_of(second).saved
    assert saved_first.read_bytes() == b"first"
    assert saved_second.read_bytes() == b"second"
