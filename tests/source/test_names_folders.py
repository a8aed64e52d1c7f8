"""The files that folders and patterns stand for."""

import glob
import os

import pytest
from source_items import touch

from detcli.core.errors import SourceError
from detcli.source.loading import Item
from detcli.source.names import identity, is_media, is_video, match, search


@pytest.mark.parametrize(
    ("name", "media", "video"),
    [
        ("a.jpg", True, False),
        ("x.y/a.TIFF", True, False),
        ("a.gif", True, False),
        ("a.MP4", True, True),
        ("a.b.webm", True, True),
        ("a.mjpeg", True, True),
        ("a.jpg.txt", False, False),
        ("jpg", False, False),
        ("x.jpg/a", False, False),
        ("", False, False),
    ],
)
def test_suffixes_distinguish_pictures_and_videos(name, media, video):
    assert (is_media(name), is_video(name)) == (media, video)


def test_each_folder_is_a_part_sorted(here):  # noqa: ARG001
    touch("in/b.jpg", "in/a.mp4", "in/y/c.png", "in/x/z/d.jpg", "in/x/e.txt")
    assert list(search("in")) == [["in/a.mp4", "in/b.jpg"]]
    assert list(search("in", recursive=True)) == [
        ["in/a.mp4", "in/b.jpg"],
        [],
        ["in/x/z/d.jpg"],
        ["in/y/c.png"],
    ]


def test_hidden_files_are_left_out(here):  # noqa: ARG001
    touch("in/.a.jpg", "in/._b.jpg", "in/.git/c.jpg")
    assert list(search("in", recursive=True)) == [[]]
    assert list(search("in/.git")) == [["in/.git/c.jpg"]]


def test_folders_are_listed_only_when_reached(here):  # noqa: ARG001
    touch("in/a.jpg", "in/x/b.jpg", "in/y/c.jpg")
    parts = search("in", recursive=True)
    assert next(parts) == ["in/a.jpg"]
    touch("in/y/d.jpg")
    assert list(parts) == [["in/x/b.jpg"], ["in/y/c.jpg", "in/y/d.jpg"]]


def test_links_are_followed_but_not_in_cycles(here):
    touch("in/a.jpg", "in/x/b.jpg", "other/c.jpg")
    (here / "in" / "x" / "up").symlink_to("..")
    (here / "in" / "self").symlink_to(".")
    (here / "in" / "y").symlink_to("x")
    (here / "in" / "z").symlink_to("../other")
    (here / "in" / "loop").symlink_to("loop")
    (here / "in" / "loop.jpg").symlink_to("loop.jpg")
    found = [name for part in search("in", recursive=True) for name in part]
    assert found == ["in/a.jpg", "in/loop.jpg", "in/x/b.jpg", "in/z/c.jpg"]


def test_a_broken_link_does_not_hide_other_files(here):
    touch("in/a.jpg", "elsewhere/b.png")
    (here / "in" / "b.jpg").symlink_to("../elsewhere/b.png")
    (here / "in" / "gone.jpg").symlink_to("gone")
    assert list(search("in")) == [["in/a.jpg", "in/b.jpg", "in/gone.jpg"]]


def test_folders_can_be_omitted(here):  # noqa: ARG001
    touch("in/a.jpg", "in/out/b.jpg", "in/x/c.jpg")
    parts = search("in", recursive=True, omit={identity("in/out"), identity("in/gone")})
    assert list(parts) == [["in/a.jpg"], ["in/x/c.jpg"]]


def test_an_unreadable_folder_does_not_hide_others(here, monkeypatch):  # noqa: ARG001
    touch("in/x/a.jpg", "in/y/b.jpg")
    scandir = os.scandir

    def refuse(path):
        if path == "in/x":
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    first, failure, last = search("in", recursive=True)
    assert (first, last) == ([], ["in/y/b.jpg"])
    assert isinstance(failure, Item)
    assert failure.origin.source == "in/x"
    with pytest.raises(SourceError, match="cannot list it: Permission denied"):
        failure.load()


def test_no_file_is_looked_at_while_a_folder_is_listed(here, monkeypatch):  # noqa: ARG001
    touch(*(f"in/{number}.jpg" for number in range(20)))
    looked, stat = [], os.stat

    def look(path, **options):
        looked.append(path)
        return stat(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", look)
        (names,) = search("in")
    assert len(names) == 20
    assert set(looked) == {"in"}


@pytest.mark.parametrize(
    "pattern",
    [
        *("**", "**/", "**/*", "**/*.jpg", "./**/*.jpg", "x/**", "x/**/c.jpg", "*/**/*.jpg"),
        *("**/x/**/*.jpg", "**/**/c*", "x**/*.jpg", "**x/*.jpg", "[x]/**/[[]1]/*", "gone/**/*"),
        *("{here}/**/*.jpg", "{here}/x/**//c.jpg", "x/../**/x/**/*.jpg", "a.jpg/**", ".g/**/*"),
    ],
)
def test_patterns_match_what_glob_matches(here, pattern):
    touch("a.jpg", "x/c.jpg", "x/[1]/c.jpg", "x/y/x/c.jpg", "yx/d.png", ".g/h/e.jpg", "x/.f.jpg")
    pattern = pattern.format(here=here)
    found = glob.glob(pattern, recursive=True)  # noqa: PTH207 - the yardstick
    files = sorted({*filter(os.path.isfile, found)})
    assert [*filter(os.path.isfile, match(pattern))] == files


def test_a_pattern_reaches_each_folder_once(here):
    touch("a/1.jpg", "elsewhere/2.jpg")
    for name, target in (("b", "a"), ("a/up", ".."), ("a/there", "../elsewhere"), ("loop", "loop")):
        (here / name).symlink_to(target)
    assert match("a/**/*.jpg") == ["a/1.jpg", "a/there/2.jpg"]
    assert match("**/*.jpg") == ["a/1.jpg", "elsewhere/2.jpg"]


def test_identity_is_of_the_file_not_of_its_name(here):
    touch("a", "b")
    (here / "link").symlink_to("a")
    assert identity("a") == identity("link") != identity("b")
    assert identity("gone") is identity("a\0") is None
