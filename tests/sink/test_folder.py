"""Paths in a folder, whatever the inputs are called."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nasty_names import anything
from sample_records import Film, frame, numbered, picture

from detcli.errors import OutputError
from detcli.sink.folder import OutputFolder

DOOR, YARD = Film("camera:0", 0, live=True), Film("camera:1", 0, live=True)


@pytest.fixture
def folder(tmp_path):
    return OutputFolder(tmp_path / "out")


def names(folder, *records, suffix=".txt"):
    return [folder.file_of(record, suffix).name for record in records]


def test_the_folder_is_made_with_its_parents(tmp_path):
    OutputFolder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()


def test_a_file_in_place_of_the_folder_is_an_output_error(tmp_path):
    (tmp_path / "out").write_text("kept")
    with pytest.raises(OutputError, match="out"):
        OutputFolder(tmp_path / "out")


def test_pictures_are_named_after_their_files(folder):
    assert names(folder, picture("x/a.jpg"), picture("y/a.png"), picture("b")) == [
        *("a.txt", "a-2.txt", "b.txt")
    ]


def test_frames_are_named_after_their_video_and_number(folder):
    assert names(folder, frame(0), frame(5)) == ["film_0.txt", "film_5.txt"]


def test_frames_of_videos_of_one_name_do_not_collide(folder):
    other = Film("elsewhere/film.mp4", 10.0)
    assert names(folder, frame(0), frame(0, other), frame(1, other), frame(0)) == [
        *("film_0.txt", "film-2_0.txt", "film-2_1.txt", "film-3_0.txt")
    ]


def test_frames_and_pictures_do_not_collide(folder):
    assert names(folder, picture("film_0.png"), frame(0), picture("film-2_0.jpg")) == [
        *("film_0.txt", "film-2_0.txt", "film-2_0-2.txt")
    ]


def test_interleaved_live_frames_keep_their_names(folder):
    mixed = [frame(0, DOOR), frame(0, YARD), frame(1, DOOR), frame(2, DOOR), frame(1, YARD)]
    assert names(folder, *mixed) == [
        *("camera-0_0.txt", "camera-1_0.txt", "camera-0_1.txt", "camera-0_2.txt", "camera-1_1.txt")
    ]


def test_frames_on_standard_input(folder):
    piped = [numbered(number) for number in range(2)]
    assert names(folder, *piped) == ["stdin_0.txt", "stdin_1.txt"]


def test_prefixes_for_several_files_of_a_record(folder):
    assert folder.prefix_of(picture("x/a.jpg")) == "a"
    assert folder.prefix_of(picture("y/a.jpg")) == "a-2"
    assert folder.prefix_of(frame(3)) == "film_3"
    assert folder.prefix_of(frame(4)) == "film_4"
    assert folder.member(folder.path / "cat", "a_7", ".png") == folder.path / "cat" / "a_7.png"


def test_an_input_is_never_the_path(tmp_path):
    inputs = {tmp_path / name for name in ("a.txt", "a-2.txt", "film_0.txt", "film_0_2.txt")}
    inputs.add(tmp_path / "cat" / "b_0.txt")
    folder = OutputFolder(tmp_path, inputs)
    assert names(folder, picture("a.jpg"), frame(0), frame(1)) == [
        *("a-3.txt", "film_0_3.txt", "film_1.txt")
    ]
    assert folder.member(tmp_path / "cat", "b_0", ".txt").name == "b_0_2.txt"


def test_files_of_an_earlier_run_are_overwritten(tmp_path):
    (tmp_path / "a.txt").write_text("")
    assert names(OutputFolder(tmp_path), picture("a.jpg")) == ["a.txt"]


def test_a_resumed_run_keeps_earlier_files(tmp_path):
    for name in ("a.txt", "film_0.txt"):
        (tmp_path / name).write_text("")
    (tmp_path / "b.txt").symlink_to("nowhere")
    folder = OutputFolder(tmp_path, keep=True)
    assert names(folder, picture("a.jpg"), frame(0), frame(1), picture("b.jpg")) == [
        *("a-2.txt", "film_0_2.txt", "film_1.txt", "b-2.txt")
    ]


def test_memory_does_not_grow_with_the_frames_of_a_video(folder):
    def remembered():
        kept = folder._names  # noqa: SLF001 - what is kept is the point
        return sum(map(len, vars(kept).values()))

    names(folder, frame(0, DOOR))
    before = remembered()
    names(folder, *(frame(number, DOOR, time_s=number) for number in range(1, 100)))
    assert remembered() == before


@given(st.lists(st.tuples(anything, st.booleans()), max_size=8))
def test_any_input_gets_a_unique_path_in_the_folder(tmp_path_factory, sources):
    folder = OutputFolder(tmp_path_factory.mktemp("out"))
    paths = []
    for source, moving in sources:
        record = frame(0, Film(source, 1.0)) if moving else picture(source)
        paths += [folder.file_of(record, ".txt"), folder.file_for(source, ".mp4")]
        paths.append(folder.member(folder.path, f"{folder.prefix_of(picture(source))}_3", ".png"))
    for path in paths:
        assert path.parent == folder.path
        path.open("x").close()
    assert len(os.listdir(folder.path)) == len(paths)  # noqa: PTH208 - bytes that are no text
    assert all(Path(os.path.realpath(path)).parent == folder.path for path in paths)
