"""Paths in a folder, whatever the inputs are called."""

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nasty_names import anything
from sample_records import Film, frame, image, numbered

from detcli.core.errors import OutputError
from detcli.data.per_video import PerVideo
from detcli.data.record import notes_of
from detcli.sink.folder import MARK, OutputFolder

DOOR = Film("camera:0", 0, live=True)
YARD = Film("camera:1", 0, live=True)


@pytest.fixture
def output_folder(tmp_path):
    return OutputFolder(tmp_path / "out")


def names(folder, records, suffix=".txt"):
    """The paths of records' files in the folder, with # for a hash."""
    return [without_hash(folder, folder.file_of(record, suffix)) for record in records]


def without_hash(folder, path):
    return re.sub(r"-[0-9a-f]{8}(?![0-9a-f])", "-#", path.relative_to(folder.path).as_posix())


def test_the_folder_is_made_with_its_parents(tmp_path):
    OutputFolder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "out").write_text("a file")
    with pytest.raises(OutputError, match="out"):
        OutputFolder(tmp_path / "out")


SAME_NAME = Film("elsewhere/film.mp4", 10.0)


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([image("x/a.jpg"), image("y/a.png"), image("b")], ["a.txt", "a-#.txt", "b.txt"]),
        ([frame(0), frame(5)], ["film_0.txt", "film_5.txt"]),
        (
            [frame(0), frame(0, SAME_NAME), frame(1, SAME_NAME), frame(0), frame(0)],
            ["film_0.txt", "film-#_0.txt", "film-#_1.txt", "film-2_0.txt", "film-3_0.txt"],
        ),
        (
            [image("film_0.png"), frame(0), image("film-2_0.jpg")],
            ["film_0.txt", "film-2_0.txt", "film-2_0-2.txt"],
        ),
        (
            [frame(0, DOOR), frame(0, YARD), frame(1, DOOR), frame(2, DOOR), frame(1, YARD)],
            [
                "camera-0_0.txt",
                "camera-1_0.txt",
                "camera-0_1.txt",
                "camera-0_2.txt",
                "camera-1_1.txt",
            ],
        ),
        ([numbered(0), numbered(1)], ["stdin_0.txt", "stdin_1.txt"]),
    ],
    ids=["pictures", "frames", "videos", "images named like frames", "cameras", "pipe"],
)
def test_files_are_named_after_their_inputs_and_frames(output_folder, records, expected):
    assert names(output_folder, records) == expected


def test_prefixes_for_several_files_of_a_record(output_folder):
    assert output_folder.prefix_of(image("x/a.jpg")) == "a"
    assert re.fullmatch("a-[0-9a-f]{8}", output_folder.prefix_of(image("y/a.jpg")))
    assert output_folder.prefix_of(frame(3)) == "film_3"
    assert output_folder.prefix_of(frame(4)) == "film_4"
    path = output_folder.path_of_numbered_file(
        image("x/a.jpg"), output_folder.path / "cat", "a_7", ".png"
    )
    assert path == output_folder.path / "cat" / "a_7.png"


def test_an_input_is_never_the_path(tmp_path):
    out = tmp_path / "out"
    inputs = {
        out / "a.txt",
        out / "film_0.txt",
        out / "film_0_2.txt",
        out / "cat" / "b_0.txt",
    }
    folder = OutputFolder(out, inputs)
    assert names(folder, [image("a.jpg")]) == ["a-2.txt"]
    assert names(folder, [frame(0), frame(1)]) == ["film_0_3.txt", "film_1.txt"]
    cat = folder.path / "cat"
    assert folder.path_of_numbered_file(image("b.jpg"), cat, "b_0", ".txt").name == "b_0_2.txt"


@pytest.mark.parametrize(
    ("source", "path", "roots"),
    [
        ("pics/a/b.jpg", "b", []),
        ("pics/a/b.jpg", "b", ["pics/a/b.jpg"]),
        ("pics/b.jpg", "b", ["pics"]),
        ("pics/a/b.jpg", "a/b", ["pics"]),
        ("pics/a/b.jpg", "a/b", ["pics/"]),
        ("pics/a/b.jpg", "b", ["pics", "pics/a"]),
        ("pics/a/b.jpg", "b", ["pic"]),
        ("./a/b.c.jpg", "a/b.c", ["."]),
        ("/a/b.jpg", "a/b", ["/"]),
        ("pics/a/b.jpg", "a/b", ["pics/**/*.jpg"]),
        ("a/b.jpg", "a/b", ["*/*.jpg"]),
        ("/a/b.jpg", "b", ["*/*.jpg"]),
        ("b.jpg", "b", ["*.jpg"]),
        ("pics[1]/a/b.jpg", "a/b", ["pics[1]"]),
        ("pics/aux/con.jpg", "_aux/_con", ["pics"]),
        ("pics/../b.jpg", "_/b", ["pics"]),
        ("s3://bucket/pics/a/b.jpg", "a/b", ["s3://bucket/pics/"]),
        ("s3://bucket/pics/b.jpg", "b", ["s3://bucket/pics"]),
    ],
)
def test_what_was_found_in_a_folder_keeps_its_path_below(
    tmp_path, monkeypatch, source, path, roots
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pics[1]").mkdir()  # of a name that looks like a pattern
    folder = OutputFolder(tmp_path / "out", roots=roots)
    assert names(folder, [image(source)]) == [f"{path}.txt"]


def test_files_below_are_written(tmp_path):
    folder = OutputFolder(tmp_path / "out", roots=["pics"])
    record = image("pics/a/b.jpg")
    film = frame(0, Film("pics/c/film.avi", 1.0))
    folder.write(record, folder.file_of(record, ".txt"), b"label")
    folder.video_of(film, ".mp4").touch()
    assert (tmp_path / "out/a/b.txt").read_text() == "label"
    assert (tmp_path / "out/c/film.mp4").exists()
    assert names(folder, [film]) == ["c/film_0.txt"]


def test_a_link_in_place_of_a_folder_below_is_not_followed(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    folder = OutputFolder(tmp_path / "out", roots=["pics"])
    (tmp_path / "out/a").symlink_to(tmp_path / "elsewhere")
    record = image("pics/a/b.jpg")
    folder.write(record, folder.file_of(record, ".txt"), b"label")
    assert notes_of(record).saved == [tmp_path / "out/b.txt"]
    assert list((tmp_path / "elsewhere").iterdir()) == []


def run(path, records, **options):
    """Save a file for each record in a run of its own; returns their names."""
    folder = OutputFolder(path, **options)
    for record in records:
        folder.write(record, folder.file_of(record, ".txt"), record.origin.source.encode())
    return [notes_of(record).saved[-1].name for record in records]


def content(path):
    texts = {}
    for file in path.rglob("*"):
        if file.is_file() and file.name != MARK:
            texts[str(file.relative_to(path))] = file.read_text()
    return texts


def test_each_input_gets_the_same_name_in_every_run(tmp_path):
    sources = ["x/a.jpg", "y/a.jpg", "y/a.jpg"]
    records = [image(source) for source in sources]
    first = run(tmp_path / "out", records)
    second = run(tmp_path / "out", records)
    assert first == second
    assert first[0] == "a.txt"
    assert content(tmp_path / "out") == dict(zip(first, sources, strict=True))


def test_an_input_is_known_by_its_absolute_name(tmp_path, monkeypatch):
    out = tmp_path / "out"
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    monkeypatch.chdir(tmp_path / "one")
    _, marked = run(out, [image("x/a.jpg"), image("a.jpg")])
    assert run(out, [image("x/a.jpg"), image("../one/./a.jpg")])[1] == marked
    monkeypatch.chdir(tmp_path / "two")
    assert run(out, [image("x/a.jpg"), image("a.jpg")])[1] != marked


def test_an_address_is_known_by_its_name(tmp_path, monkeypatch):
    records = [image("x-a.png"), image("http://x/a.jpg")]
    (tmp_path / "x").mkdir()
    monkeypatch.chdir(tmp_path / "x")
    first = run(tmp_path / "out", records)
    monkeypatch.chdir(tmp_path)
    second = run(tmp_path / "out", records)
    assert first == second
    assert first != ["x-a.txt", "x-a.txt"]


def test_standard_input_and_live_sources_are_new_in_every_run(tmp_path):
    out = tmp_path / "out"
    assert run(out, [image("-"), frame(0, DOOR)]) == ["stdin.txt", "camera-0_0.txt"]
    assert run(out, [image("-"), frame(0, DOOR)]) == ["stdin-2.txt", "camera-0-2_0.txt"]
    folder = OutputFolder(out)
    assert folder.prefix_of(frame(1, DOOR)) == "camera-0-3_1"
    (out / "cat").mkdir()
    (out / "cat" / "camera-1_7_0.png").touch()
    assert folder.prefix_of(frame(1, YARD)) == "camera-1-2_1"


def plant_text(path):
    path.write_text("of somebody else")


def plant_link(path):
    path.symlink_to("nowhere")


@pytest.mark.parametrize("plant", [plant_text, plant_link, os.mkfifo, Path.mkdir])
def test_in_a_folder_of_somebody_else_nothing_is_replaced_nor_waited_for(tmp_path, plant):
    planted_image = tmp_path / "a.txt"
    planted_frame = tmp_path / "film_0.txt"
    plant(planted_image)
    plant(planted_frame)
    image_before = planted_image.lstat()
    frame_before = planted_frame.lstat()
    records = [image("a.jpg"), frame(0), frame(1)]
    first_names = run(tmp_path, records)
    assert re.fullmatch(r"a-[0-9a-f]{8}\.txt", first_names[0])
    assert first_names[1:] == ["film_0_2.txt", "film_1.txt"]
    second_names = run(tmp_path, records)
    assert re.fullmatch(r"a-[0-9a-f]{8}-2\.txt", second_names[0])
    assert second_names[1:] == ["film_0_3.txt", "film_1_2.txt"]
    assert planted_image.lstat() == image_before
    assert planted_frame.lstat() == frame_before
    assert not (tmp_path / MARK).exists()


def test_what_is_no_file_is_never_replaced(tmp_path):
    run(tmp_path, [image("x.jpg")])
    assert (tmp_path / MARK).exists()
    os.mkfifo(tmp_path / "a.txt")
    (tmp_path / "b.txt").mkdir()
    for name in ("a", "b"):
        before = (tmp_path / f"{name}.txt").lstat()
        assert run(tmp_path, [image(f"{name}.jpg")]) != [f"{name}.txt"]
        assert (tmp_path / f"{name}.txt").lstat() == before


def test_an_empty_folder_becomes_ours_but_a_mark_that_is_a_link_is_not(tmp_path):
    (tmp_path / f".detcli-{'0' * 16}.part.txt").touch()  # of a run that was killed
    for _ in range(2):
        assert run(tmp_path, [image("a.jpg"), frame(0)]) == ["a.txt", "film_0.txt"]
    assert (tmp_path / MARK).read_bytes() == b""
    (tmp_path / MARK).unlink()
    (tmp_path / MARK).symlink_to("a.txt")
    assert run(tmp_path, [image("a.jpg")]) != ["a.txt"]


def test_a_link_in_place_of_a_file_that_detcli_made_is_replaced(tmp_path):
    run(tmp_path / "out", [image("a.jpg")])
    (tmp_path / "target").write_text("unchanged")
    (tmp_path / "out" / "a.txt").unlink()
    (tmp_path / "out" / "a.txt").symlink_to(tmp_path / "target")
    assert run(tmp_path / "out", [image("a.jpg")]) == ["a.txt"]
    assert content(tmp_path) == {"out/a.txt": "a.jpg", "target": "unchanged"}


def test_a_resumed_run_keeps_videos_but_replaces_files_of_the_same_input(tmp_path, caplog):
    """And says where the rest of a video is."""
    for resumed, video in ((False, "film.mp4"), (False, "film.mp4"), (True, "film-2.mp4")):
        path = OutputFolder(tmp_path, resumed=resumed).video_of(frame(7), ".mp4")
        path.touch()
        assert path.name == video
        assert run(tmp_path, [image("a.jpg")], resumed=resumed) == ["a.txt"]
    assert caplog.messages == [
        f"in/film.avi: {tmp_path / 'film.mp4'} is kept; frames from 7 on are in {path}"
    ]


def test_a_resumed_run_gives_the_names_that_the_whole_run_gives(tmp_path):
    second_film = Film("y/film.avi", 10.0)
    records = [image("x/a.jpg"), image("y/a.jpg"), frame(0), frame(1), frame(0, second_film)]
    expected = run(tmp_path / "whole", records)
    for skipped in range(len(records)):
        folder = OutputFolder(tmp_path / "out", resumed=True)
        for record in records[:skipped]:
            folder.skip(record.origin)
        file_names = [folder.file_of(record, ".txt").name for record in records[skipped:]]
        assert file_names == expected[skipped:]


def test_the_folder_itself_may_be_a_link(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "out").symlink_to("there")
    record = image("a.jpg")
    run(tmp_path / "out", [record])
    assert notes_of(record).saved == [tmp_path / "out" / "a.txt"]
    assert (tmp_path / "there" / "a.txt").exists()


def test_memory_does_not_grow_with_the_frames_of_a_video(output_folder):
    def remembered():
        unique_names = output_folder._names  # noqa: SLF001 - what it holds is the point
        count = 0
        for collection in vars(unique_names).values():
            count += len(collection)
        return count

    names(output_folder, [frame(0, DOOR)])
    before = remembered()
    for number in range(1, 100):
        names(output_folder, [frame(number, DOOR, time_s=number)])
    assert remembered() == before


@given(st.lists(st.tuples(anything, st.booleans()), max_size=8))
def test_any_input_gets_a_unique_path_in_the_folder(tmp_path_factory, sources):
    folder = OutputFolder(tmp_path_factory.mktemp("out"))
    paths = []
    for source, is_video in sources:
        record = frame(0, Film(source, 1.0)) if is_video else image(source)
        paths += [folder.file_of(record, ".txt"), folder.video_of(frame(0), ".mp4")]
        prefix = folder.prefix_of(image(source))
        paths.append(
            folder.path_of_numbered_file(image(source), folder.path, f"{prefix}_3", ".png")
        )
    for path in paths:
        assert path.parent == folder.path
        path.open("x").close()
    assert len(os.listdir(folder.path)) == len(paths) + 1  # noqa: PTH208 - names that are not UTF-8
    for path in paths:
        assert Path(os.path.realpath(path)).parent == folder.path


class StateLog(list):
    """The begins and ends of the states of videos, which are their sources."""

    def videos(self):
        return PerVideo(self.begin, lambda state: self.append(f"-{state[0]}"))

    def begin(self, record):
        self.append(f"+{record.origin.source}")
        return [record.origin.source]


def test_a_state_begins_and_ends_with_its_video():
    log = StateLog()
    videos = log.videos()
    state = videos.state_of(frame(0))
    assert videos.state_of(frame(1)) is state
    assert videos.state_of(frame(5)) is state
    second_state = videos.state_of(frame(5))  # it starts over
    assert second_state is not state
    videos.state_of(frame(0, Film("other.avi", 10.0)))
    assert log == ["+in/film.avi", "-in/film.avi", "+in/film.avi", "-in/film.avi", "+other.avi"]
    videos.close()
    assert log[5:] == ["-other.avi"]


def test_numbered_images_of_a_source_have_one_state():
    videos = StateLog().videos()
    state = videos.state_of(numbered(0))
    assert videos.state_of(numbered(1)) is state


def test_states_of_live_sources_are_interleaved_with_others():
    log = StateLog()
    film = Film("other.avi", 10.0)
    videos = log.videos()
    for number, source in (
        (0, DOOR),
        (0, YARD),
        (1, DOOR),
        (0, film),
        (1, YARD),
        (0, DOOR),
        (1, film),
    ):
        assert videos.state_of(frame(number, source)) == [source.source]
    assert log == ["+camera:0", "+camera:1", "+other.avi"]
    videos.close()
    assert sorted(log[3:]) == ["-camera:0", "-camera:1", "-other.avi"]


def test_a_state_that_fails_to_end_does_not_keep_the_others():
    ended = []

    def end(source):
        ended.append(source)
        if source == YARD.source:
            raise OutputError("the disk is full")

    videos = PerVideo(lambda record: record.origin.source, end)
    for film in (DOOR, YARD, SAME_NAME):
        videos.state_of(frame(0, film))
    with pytest.raises(OutputError, match="full"):
        videos.close()
    videos.close()
    assert sorted(ended) == ["camera:0", "camera:1", SAME_NAME.source]
