"""No output is written over an input."""

import os
from pathlib import Path

import pytest

from detcli.core.errors import UsageError
from detcli.core.objects import Address
from detcli.source.loading import SourceOptions
from detcli.source.sources import InputGuard


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Change to a folder with inputs, so that names can be short."""
    monkeypatch.chdir(tmp_path)
    touch("in/a.jpg", "in/b.jpg", "in/x.csv", "in/x[1].jpg", "in/deep/d.jpg", "in/v.mp4", "-")
    Path("link.jpg").symlink_to("in/a.jpg")
    Path("hard.jpg").hardlink_to("in/a.jpg")
    Path("out").mkdir()
    return tmp_path


def touch(*names):
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(b"x")


@pytest.mark.parametrize(
    ("names", "inside", "outside"),
    [
        (
            ["in/a.jpg"],
            ["in/a.jpg", "out/../in/a.jpg", "link.jpg", "hard.jpg"],
            ["in/b.jpg", "a.jpg"],
        ),
        (["link.jpg"], ["in/a.jpg", "link.jpg"], ["in/b.jpg"]),
        (
            ["in"],
            ["in/a.jpg", "in/b.jpg", "link.jpg", "hard.jpg", "in/v.mp4"],
            ["in/x.csv", "out/a.jpg", "in/deep/d.jpg", "in/new.jpg"],
        ),
        (["in/*.jpg"], ["in/a.jpg", "link.jpg"], ["in/c.jpg", "in/x.csv"]),
        (["in/*"], ["in/a.jpg", "in/x.csv"], ["in/deep/d.jpg"]),
        (["**/*.jpg"], ["in/a.jpg", "in/b.jpg", "in/deep/d.jpg"], ["in/x.csv"]),
        (["in/x[1].jpg"], ["in/x[1].jpg"], ["in/a.jpg"]),
        (["-"], [], ["-", "in/a.jpg"]),
        (["no.jpg"], [], ["no.jpg", "in/a.jpg"]),
        (["a\0b.jpg", "*\0", "in/a.jpg"], ["in/a.jpg"], ["in/b.jpg"]),
        (["camera:0", "rtsp://host/*"], [], ["in/a.jpg"]),
        ([], [], ["in/a.jpg"]),
    ],
)
def test_the_guard_recognises_the_inputs(here, names, inside, outside):  # noqa: ARG001
    guard = InputGuard(names)
    assert [name for name in inside if Path(name) not in guard] == []
    assert [name for name in outside if Path(name) in guard] == []


def test_folders_count_only_as_deep_as_they_are_searched(here):  # noqa: ARG001
    assert Path("in/deep/d.jpg") in InputGuard(["in"], SourceOptions(recursive=True))
    written = SourceOptions(recursive=True, written=(Path("in/deep"),))
    assert Path("in/deep/d.jpg") not in InputGuard(["in"], written)


def test_the_links_in_a_folder_are_followed(here):
    touch(here / "originals/a.jpg")
    (here / "in" / "link.jpg").symlink_to("../originals/a.jpg")
    assert Path("originals/a.jpg") in InputGuard(["in"])


@pytest.mark.parametrize("files_from", ["list.txt", "-"])
def test_with_a_list_any_picture_or_video_may_be_an_input(here, files_from):
    touch(here / "list.txt", here / "old.parquet", here / "old")
    (here / "picture.csv").symlink_to("in/b.jpg")
    os.mkfifo(here / "pipe.jpg")
    guard = InputGuard(["in/x.csv"], SourceOptions(files_from=files_from))
    for name in ("in/a.jpg", "in/v.mp4", "picture.csv", "in/x.csv"):
        with pytest.raises(UsageError, match=f"{name} is one of the inputs"):
            guard.refuse([None, Path(name)])
    guard.refuse(map(Path, ("old.parquet", "old", "out/a.jpg", "pipe.jpg", "/dev/null")))
    assert (Path("list.txt") in guard) == (files_from == "list.txt")


def test_without_a_list_only_inputs_are_refused(here):  # noqa: ARG001
    guard = InputGuard(["in/a.jpg", "s3://bucket/a.jsonl"])
    guard.refuse([None, Path("in/b.jpg"), Address.parse("s3://bucket/b.jsonl")])
    for output in (Path("link.jpg"), Address.parse("s3://bucket/a.jsonl")):
        with pytest.raises(UsageError, match="is one of the inputs"):
            guard.refuse([output])


def test_a_new_file_needs_no_lookup(here, monkeypatch):  # noqa: ARG001
    def refuse(path):
        raise AssertionError(path)

    guard = InputGuard(["in", "in/*.jpg"], SourceOptions(recursive=True))
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", refuse)
        assert Path("out/a.jpg") not in guard
        with pytest.raises(AssertionError):
            assert Path("in/a.jpg") in guard


def test_streams_and_cameras_are_not_files(here):  # noqa: ARG001
    assert "in/a.jpg" not in InputGuard(["in/a.jpg"])
    assert None not in InputGuard(["in/a.jpg"])
