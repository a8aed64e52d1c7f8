"""Paths in a folder, whatever the inputs are called."""

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nasty_names import anything
from sample_records import Film, frame, numbered, picture

from detcli.core.errors import OutputError
from detcli.data.per_video import PerVideo
from detcli.sink.folder import MARK, OutputFolder

DOOR, YARD = Film("camera:0", 0, live=True), Film("camera:1", 0, live=True)


@pytest.fixture
def output_folder(tmp_path):
    return OutputFolder(tmp_path / "out")


def names(folder, *records, suffix=".txt"):
    return [shown(folder, folder.file_of(record, suffix)) for record in records]


def shown(folder, path):
    """A path in the folder, with # for a hash."""
    return re.sub(r"-[0-9a-f]{8}(?![0-9a-f])", "-#", path.relative_to(folder.path).as_posix())


def test_the_folder_is_made_with_its_parents(tmp_path):
    OutputFolder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "out").write_text("kept")
    with pytest.raises(OutputError, match="out"):
        OutputFolder(tmp_path / "out")


OTHER = Film("elsewhere/film.mp4", 10.0)


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([picture("x/a.jpg"), picture("y/a.png"), picture("b")], "a a-# b"),
        ([frame(0), frame(5)], "film_0 film_5"),
        (
            [frame(0), frame(0, OTHER), frame(1, OTHER), frame(0), frame(0)],
            "film_0 film-#_0 film-#_1 film-2_0 film-3_0",
        ),
        ([picture("film_0.png"), frame(0), picture("film-2_0.jpg")], "film_0 film-2_0 film-2_0-2"),
        (
            [frame(0, DOOR), frame(0, YARD), frame(1, DOOR), frame(2, DOOR), frame(1, YARD)],
            "camera-0_0 camera-1_0 camera-0_1 camera-0_2 camera-1_1",
        ),
        ([numbered(0), numbered(1)], "stdin_0 stdin_1"),
    ],
)
def test_files_are_named_after_their_inputs_and_frames(output_folder, records, expected):
    assert names(output_folder, *records) == [f"{name}.txt" for name in expected.split()]


def test_prefixes_for_several_files_of_a_record(output_folder):
    assert output_folder.prefix_of(picture("x/a.jpg")) == "a"
    assert re.fullmatch("a-[0-9a-f]{8}", output_folder.prefix_of(picture("y/a.jpg")))
    assert [output_folder.prefix_of(frame(number)) for number in (3, 4)] == ["film_3", "film_4"]
    made = output_folder.member(picture("x/a.jpg"), output_folder.path / "cat", "a_7", ".png")
    assert made == output_folder.path / "cat" / "a_7.png"


def test_an_input_is_never_the_path(tmp_path):
    inputs = {tmp_path / "out" / name for name in ("a.txt", "film_0.txt", "film_0_2.txt")}
    inputs.add(tmp_path / "out" / "cat" / "b_0.txt")
    folder = OutputFolder(tmp_path / "out", inputs)
    assert names(folder, picture("a.jpg"), frame(0), frame(1)) == [
        *("a-2.txt", "film_0_3.txt", "film_1.txt")
    ]
    cat = folder.path / "cat"
    assert folder.member(picture("b.jpg"), cat, "b_0", ".txt").name == "b_0_2.txt"


BELOW = [  # an input, its path, and what was named
    "pics/a/b.jpg b",
    "pics/a/b.jpg b pics/a/b.jpg",
    "pics/b.jpg b pics",
    "pics/a/b.jpg a/b pics",
    "pics/a/b.jpg a/b pics/",
    "pics/a/b.jpg b pics pics/a",
    "pics/a/b.jpg b pic",
    "./a/b.c.jpg a/b.c .",
    "/a/b.jpg a/b /",
    "pics/a/b.jpg a/b pics/**/*.jpg",
    "a/b.jpg a/b */*.jpg",
    "/a/b.jpg b */*.jpg",
    "b.jpg b *.jpg",
    "pics[1]/a/b.jpg a/b pics[1]",
    "pics/aux/con.jpg _aux/_con pics",
    "pics/../b.jpg _/b pics",
    "s3://bucket/pics/a/b.jpg a/b s3://bucket/pics/",
    "s3://bucket/pics/b.jpg b s3://bucket/pics",
]


@pytest.mark.parametrize("line", BELOW)
def test_what_was_found_in_a_folder_keeps_its_path_below(tmp_path, monkeypatch, line):
    source, path, *roots = line.split()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pics[1]").mkdir()  # of a name that looks like a pattern
    folder = OutputFolder(tmp_path / "out", roots=roots)
    assert names(folder, picture(source)) == [f"{path}.txt"]


def test_files_below_are_written(tmp_path):
    folder = OutputFolder(tmp_path / "out", roots=["pics"])
    record, film = picture("pics/a/b.jpg"), frame(0, Film("pics/c/film.avi", 1.0))
    folder.write(record, folder.file_of(record, ".txt"), b"label")
    folder.video_of(film, ".mp4").touch()
    assert (tmp_path / "out/a/b.txt").read_text() == "label"
    assert (tmp_path / "out/c/film.mp4").exists()
    assert names(folder, film) == ["c/film_0.txt"]


def test_a_link_in_place_of_a_folder_below_is_not_followed(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    folder = OutputFolder(tmp_path / "out", roots=["pics"])
    (tmp_path / "out/a").symlink_to(tmp_path / "elsewhere")
    record = picture("pics/a/b.jpg")
    folder.write(record, folder.file_of(record, ".txt"), b"label")
    assert record.saved == [tmp_path / "out/b.txt"]
    assert list((tmp_path / "elsewhere").iterdir()) == []


def run(path, *records, **options):
    """Save a file for each record in a run of its own; returns their names."""
    folder = OutputFolder(path, **options)
    for record in records:
        folder.write(record, folder.file_of(record, ".txt"), record.origin.source.encode())
    return [record.saved[-1].name for record in records]


def content(path):
    return {
        str(file.relative_to(path)): file.read_text()
        for file in path.rglob("*")
        if file.is_file() and file.name != MARK
    }


def test_each_input_gets_the_same_name_in_every_run(tmp_path):
    sources = ["x/a.jpg", "y/a.jpg", "y/a.jpg"]
    first, second = (run(tmp_path / "out", *map(picture, sources)) for _ in "12")
    assert first == second
    assert first[0] == "a.txt"
    assert content(tmp_path / "out") == dict(zip(first, sources, strict=True))


def test_an_input_is_known_by_its_absolute_name(tmp_path, monkeypatch):
    out = tmp_path / "out"
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "one")
    _, marked = run(out, picture("x/a.jpg"), picture("a.jpg"))
    assert run(out, picture("x/a.jpg"), picture("../one/./a.jpg"))[1] == marked
    monkeypatch.chdir(tmp_path / "other")
    assert run(out, picture("x/a.jpg"), picture("a.jpg"))[1] != marked


def test_an_address_is_known_by_its_name(tmp_path, monkeypatch):
    found = []
    for folder in (tmp_path / "x", tmp_path):
        folder.mkdir(exist_ok=True)
        monkeypatch.chdir(folder)
        found.append(run(tmp_path / "out", picture("x-a.png"), picture("http://x/a.jpg")))
    assert found[0] == found[1] != ["x-a.txt", "x-a.txt"]


def test_standard_input_and_live_sources_are_new_in_every_run(tmp_path):
    out = tmp_path / "out"
    assert run(out, picture("-"), frame(0, DOOR)) == ["stdin.txt", "camera-0_0.txt"]
    assert run(out, picture("-"), frame(0, DOOR)) == ["stdin-2.txt", "camera-0-2_0.txt"]
    folder = OutputFolder(out)
    assert folder.prefix_of(frame(1, DOOR)) == "camera-0-3_1"
    (out / "cat").mkdir()
    (out / "cat" / "camera-1_7_0.png").touch()
    assert folder.prefix_of(frame(1, YARD)) == "camera-1-2_1"


def plain(path):
    path.write_text("kept")


def link(path):
    path.symlink_to("nowhere")


@pytest.mark.parametrize("planted", [plain, link, os.mkfifo, Path.mkdir])
def test_in_a_folder_of_somebody_else_nothing_is_replaced_nor_waited_for(tmp_path, planted):
    for name in ("a.txt", "film_0.txt"):
        planted(tmp_path / name)
    before = [(tmp_path / name).lstat() for name in ("a.txt", "film_0.txt")]
    for number in (1, 2):
        marked, *frames = run(tmp_path, picture("a.jpg"), frame(0), frame(1))
        assert re.fullmatch(f"a-[0-9a-f]{{8}}{'-2' * (number - 1)}.txt", marked)
        assert frames == [f"film_0_{number + 1}.txt", ["film_1.txt", "film_1_2.txt"][number - 1]]
    assert [(tmp_path / name).lstat() for name in ("a.txt", "film_0.txt")] == before
    assert not (tmp_path / MARK).exists()


def test_what_is_no_file_is_never_replaced(tmp_path):
    run(tmp_path, picture("x.jpg"))
    assert (tmp_path / MARK).exists()
    for name, plant in (("a", os.mkfifo), ("b", Path.mkdir)):
        plant(tmp_path / f"{name}.txt")
        before = (tmp_path / f"{name}.txt").lstat()
        assert run(tmp_path, picture(f"{name}.jpg")) != [f"{name}.txt"]
        assert (tmp_path / f"{name}.txt").lstat() == before


def test_an_empty_folder_becomes_ours_but_a_mark_that_is_a_link_is_not(tmp_path):
    (tmp_path / f".detcli-{'0' * 16}.part.txt").touch()  # of a run that was killed
    for _ in range(2):
        assert run(tmp_path, picture("a.jpg"), frame(0)) == ["a.txt", "film_0.txt"]
    assert (tmp_path / MARK).read_bytes() == b""
    (tmp_path / MARK).unlink()
    (tmp_path / MARK).symlink_to("a.txt")
    assert run(tmp_path, picture("a.jpg")) != ["a.txt"]


def test_a_link_in_place_of_a_file_that_detcli_made_is_replaced(tmp_path):
    run(tmp_path / "out", picture("a.jpg"))
    (tmp_path / "kept").write_text("kept")
    (tmp_path / "out" / "a.txt").unlink()
    (tmp_path / "out" / "a.txt").symlink_to(tmp_path / "kept")
    assert run(tmp_path / "out", picture("a.jpg")) == ["a.txt"]
    assert content(tmp_path) == {"out/a.txt": "a.jpg", "kept": "kept"}


def test_a_resumed_run_keeps_videos_but_replaces_files_of_the_same_input(tmp_path, caplog):
    """And says where the rest of a video is."""
    for resumed, video in ((False, "film.mp4"), (False, "film.mp4"), (True, "film-2.mp4")):
        path = OutputFolder(tmp_path, resumed=resumed).video_of(frame(7), ".mp4")
        path.touch()
        assert path.name == video
        assert run(tmp_path, picture("a.jpg"), resumed=resumed) == ["a.txt"]
    (said,) = caplog.messages
    assert said == f"in/film.avi: {tmp_path / 'film.mp4'} is kept; frames from 7 on are in {path}"


def test_a_resumed_run_gives_the_names_that_the_whole_run_gives(tmp_path):
    other = Film("y/film.avi", 10.0)
    inputs = [picture("x/a.jpg"), picture("y/a.jpg"), frame(0), frame(1), frame(0, other)]
    whole = run(tmp_path / "whole", *inputs)
    for done in range(len(inputs)):
        folder = OutputFolder(tmp_path / "out", resumed=True)
        for record in inputs[:done]:
            folder.skip(record.origin)
        assert [folder.file_of(record, ".txt").name for record in inputs[done:]] == whole[done:]


def test_the_folder_itself_may_be_a_link(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "out").symlink_to("there")
    record = picture("a.jpg")
    run(tmp_path / "out", record)
    assert record.saved == [tmp_path / "out" / "a.txt"]
    assert (tmp_path / "there" / "a.txt").exists()


def test_memory_does_not_grow_with_the_frames_of_a_video(output_folder):
    def remembered():
        kept = output_folder._names  # noqa: SLF001 - what is kept is the point
        return sum(map(len, vars(kept).values()))

    names(output_folder, frame(0, DOOR))
    before = remembered()
    names(output_folder, *(frame(number, DOOR, time_s=number) for number in range(1, 100)))
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
    assert len(os.listdir(folder.path)) == len(paths) + 1  # noqa: PTH208 - names that are not UTF-8
    assert all(Path(os.path.realpath(path)).parent == folder.path for path in paths)


class Seen(list):
    """The begins and ends of the states of videos, which are their sources."""

    def videos(self):
        return PerVideo(self.begin, lambda state: self.append(f"-{state[0]}"))

    def begin(self, record):
        self.append(f"+{record.origin.source}")
        return [record.origin.source]


def test_a_state_begins_and_ends_with_its_video():
    seen, other = Seen(), Film("other.avi", 10.0)
    videos = seen.videos()
    first, *others = [videos.of(frame(number)) for number in (0, 1, 5)]
    assert all(one is first for one in others)
    again = videos.of(frame(5))  # it starts over
    assert again is not first
    videos.of(frame(0, other))
    assert seen == ["+in/film.avi", "-in/film.avi", "+in/film.avi", "-in/film.avi", "+other.avi"]
    videos.close()
    assert seen[5:] == ["-other.avi"]
    piped = [videos.of(numbered(number)) for number in range(2)]  # no video, but of one source
    assert piped[0] is piped[1]


def test_states_of_live_sources_are_interleaved_with_others():
    seen, film = Seen(), Film("other.avi", 10.0)
    videos = seen.videos()
    order = (0, DOOR), (0, YARD), (1, DOOR), (0, film), (1, YARD), (0, DOOR), (1, film)
    states = [videos.of(frame(number, film)) for number, film in order]
    assert [state[0] for state in states] == [film.source for _, film in order]
    assert seen == ["+camera:0", "+camera:1", "+other.avi"]
    videos.close()
    assert sorted(seen[3:]) == ["-camera:0", "-camera:1", "-other.avi"]


def test_a_state_that_fails_to_end_does_not_keep_the_others():
    ended = []

    def end(source):
        ended.append(source)
        if source == YARD.source:
            raise OutputError("the disk is full")

    videos = PerVideo(lambda record: record.origin.source, end)
    for film in (DOOR, YARD, OTHER):
        videos.of(frame(0, film))
    with pytest.raises(OutputError, match="full"):
        videos.close()
    videos.close()
    assert sorted(ended) == ["camera:0", "camera:1", OTHER.source]
