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
from detcli.sink.index import NAME

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
    made = folder.member(picture("x/a.jpg"), folder.path / "cat", "a_7", ".png")
    assert made == folder.path / "cat" / "a_7.png"


def test_an_input_is_never_the_path(tmp_path):
    inputs = {tmp_path / name for name in ("a.txt", "a-2.txt", "film_0.txt", "film_0_2.txt")}
    inputs.add(tmp_path / "cat" / "b_0.txt")
    folder = OutputFolder(tmp_path, inputs)
    assert names(folder, picture("a.jpg"), frame(0), frame(1)) == [
        *("a-3.txt", "film_0_3.txt", "film_1.txt")
    ]
    cat = tmp_path / "cat"
    assert folder.member(picture("b.jpg"), cat, "b_0", ".txt").name == "b_0_2.txt"


def run(path, *records, **options):
    """Save a file for each record in a run of its own; returns their names."""
    folder = OutputFolder(path, **options)
    for record in records:
        folder.write(record, folder.file_of(record, ".txt"), record.origin.source.encode())
    folder.close()
    return [record.saved[-1].name for record in records]


def content(path):
    return {
        str(file.relative_to(path)): file.read_text()
        for file in path.rglob("*")
        if file.is_file() and file.name != NAME
    }


def test_a_file_of_another_input_is_never_replaced(tmp_path):
    assert run(tmp_path, picture("x/a.jpg")) == ["a.txt"]
    assert run(tmp_path, picture("y/a.jpg")) == ["a-2.txt"]
    assert content(tmp_path) == {"a.txt": "x/a.jpg", "a-2.txt": "y/a.jpg"}


def test_a_file_of_the_same_input_is_replaced_in_whatever_order(tmp_path):
    both = [picture("x/a.jpg"), picture("y/a.jpg"), picture("x/b.jpg")]
    assert run(tmp_path, *both) == ["a.txt", "a-2.txt", "b.txt"]
    size = (tmp_path / NAME).stat().st_size
    for order in ([1], [1, 0, 2], [2, 0, 1], [0]):
        run(tmp_path, *(picture(both[number].origin.source) for number in order))
    assert content(tmp_path) == {"a.txt": "x/a.jpg", "a-2.txt": "y/a.jpg", "b.txt": "x/b.jpg"}
    assert (tmp_path / NAME).stat().st_size == size  # the same files again cost nothing


def test_an_input_is_known_by_its_absolute_name(tmp_path, monkeypatch):
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    out = tmp_path / "out"
    monkeypatch.chdir(tmp_path / "one")
    assert run(out, picture("a.jpg")) == ["a.txt"]
    assert run(out, picture("../one/./a.jpg")) == ["a.txt"]
    monkeypatch.chdir(tmp_path / "other")
    assert run(out, picture("a.jpg")) == ["a-2.txt"]
    assert run(out, picture("../one/a.jpg")) == ["a.txt"]


def test_a_name_that_became_free_belongs_to_who_takes_it(tmp_path):
    run(tmp_path, picture("x/a.jpg"))
    (tmp_path / "a.txt").unlink()
    assert run(tmp_path, picture("y/a.jpg")) == ["a.txt"]
    assert run(tmp_path, picture("x/a.jpg")) == ["a-2.txt"]
    assert run(tmp_path, picture("y/a.jpg"), picture("x/a.jpg")) == ["a.txt", "a-2.txt"]


def test_an_input_named_twice_keeps_both_files(tmp_path):
    for _ in range(2):
        assert run(tmp_path, picture("a.jpg"), picture("a.jpg")) == ["a.txt", "a-2.txt"]


def test_standard_input_and_live_sources_are_new_in_every_run(tmp_path):
    assert run(tmp_path, picture("-"), frame(0, DOOR)) == ["stdin.txt", "camera-0_0.txt"]
    assert run(tmp_path, picture("-"), frame(0, DOOR)) == ["stdin-2.txt", "camera-0-2_0.txt"]


def test_addresses_are_known_by_their_names(tmp_path, monkeypatch):
    for folder in (tmp_path / "x", tmp_path):
        folder.mkdir(exist_ok=True)
        monkeypatch.chdir(folder)
        assert run(tmp_path / "out", picture("http://x/a.jpg")) == ["x-a.txt"]


def test_frames_of_another_video_are_never_replaced(tmp_path):
    other = Film("y/film.avi", 10.0)
    assert run(tmp_path, frame(0), frame(1)) == ["film_0.txt", "film_1.txt"]
    assert run(tmp_path, frame(1, other)) == ["film-2_1.txt"]
    assert run(tmp_path, frame(1), frame(2)) == ["film_1.txt", "film_2.txt"]
    assert run(tmp_path, picture("film_2.png"), picture("film_3.png")) == [
        *("film_2-2.txt", "film_3.txt")
    ]
    assert run(tmp_path, frame(3)) == ["film_3_2.txt"]


def plain(path):
    path.write_text("kept")


def link(path):
    path.symlink_to("nowhere")


@pytest.mark.parametrize("planted", [plain, link, os.mkfifo, Path.mkdir])
def test_what_detcli_did_not_make_is_never_replaced_nor_waited_for(tmp_path, planted):
    for name in ("a.txt", "film_0.txt"):
        planted(tmp_path / name)
    before = [(tmp_path / name).lstat() for name in ("a.txt", "film_0.txt")]
    for _ in range(2):
        assert run(tmp_path, picture("a.jpg"), frame(0), frame(1)) == [
            *("a-2.txt", "film_0_2.txt", "film_1.txt")
        ]
    assert [(tmp_path / name).lstat() for name in ("a.txt", "film_0.txt")] == before


def test_a_link_in_place_of_a_file_that_detcli_made_is_replaced(tmp_path):
    run(tmp_path / "out", picture("a.jpg"))
    (tmp_path / "kept").write_text("kept")
    (tmp_path / "out" / "a.txt").unlink()
    (tmp_path / "out" / "a.txt").symlink_to(tmp_path / "kept")
    assert run(tmp_path / "out", picture("a.jpg")) == ["a.txt"]
    assert content(tmp_path) == {"out/a.txt": "a.jpg", "kept": "kept"}


def test_a_resumed_run_keeps_videos_but_replaces_files_of_the_same_input(tmp_path):
    for resumed, video in ((False, "film.mp4"), (False, "film.mp4"), (True, "film-2.mp4")):
        folder = OutputFolder(tmp_path, resumed=resumed)
        path = folder.video_of(frame(0), ".mp4")
        path.touch()
        assert path.name == video
        assert run(tmp_path, picture("a.jpg"), resumed=resumed) == ["a.txt"]


def test_a_file_that_a_kill_kept_from_appearing_gets_its_name_later(tmp_path):
    OutputFolder(tmp_path).file_of(picture("x/a.jpg"), ".txt")
    assert run(tmp_path, picture("x/a.jpg")) == ["a.txt"]
    OutputFolder(tmp_path).file_of(picture("x/b.jpg"), ".txt")
    assert run(tmp_path, picture("y/b.jpg")) == ["b.txt"]


def test_the_folder_itself_may_be_a_link(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "out").symlink_to("there")
    record = picture("a.jpg")
    run(tmp_path / "out", record)
    assert record.saved == [tmp_path / "out" / "a.txt"]
    assert (tmp_path / "there" / "a.txt").exists()


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
        paths += [folder.file_of(record, ".txt"), folder.video_of(frame(0), ".mp4")]
        prefix = folder.prefix_of(picture(source))
        paths.append(folder.member(picture(source), folder.path, f"{prefix}_3", ".png"))
    for path in paths:
        assert path.parent == folder.path
        path.open("x").close()
    assert len(os.listdir(folder.path)) == len(paths) + bool(paths)  # noqa: PTH208 - names that are not UTF-8
    assert all(Path(os.path.realpath(path)).parent == folder.path for path in paths)
