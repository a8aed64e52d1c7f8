"""From names to inputs."""

import os
from pathlib import Path

import pytest

from detcli.errors import SourceError
from detcli.stream.source import IMAGE_SUFFIXES, InputGuard, Item, expand


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The working folder, empty, so that names can be short."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def touch(*names):
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(b"x")


def found(*names):
    """The sources; each has a path of the same name, and no error."""
    items = list(expand(names))
    assert [item.error for item in items] == [None] * len(items)
    assert [item.path for item in items] == [Path(item.source) for item in items]
    return [item.source for item in items]


def failure(name):
    """The error text of a name that stands for nothing."""
    (item,) = expand([name])
    assert (item.source, item.path) == (name, None)
    assert isinstance(item.error, SourceError)
    assert item.error.hint
    return str(item.error)


@pytest.mark.parametrize(
    "name", ["a.jpg", "notes.txt", "none", "sub/a.jpg", "-a.jpg", " ", "猫.jpg"]
)
def test_a_file_is_itself_whatever_its_suffix(here, name):
    touch(here / name)
    assert found(name) == [name]


def test_names_keep_their_order_and_may_repeat(here):
    touch(here / "b.jpg", here / "a.jpg")
    assert found("b.jpg", "a.jpg", "b.jpg") == ["b.jpg", "a.jpg", "b.jpg"]


def test_no_names_no_inputs():
    assert list(expand([])) == []


def test_a_folder_is_its_pictures_sorted(here):
    touch(here / "in/b.jpg", here / "in/a.PNG", here / "in/c.jpg", here / "in/C.webp")
    touch(here / "in/notes.txt", here / "in/jpg", here / "in/.jpg", here / "in/deeper/d.jpg")
    (here / "in" / "folder.jpg").mkdir()
    assert found("in") == ["in/C.webp", "in/a.PNG", "in/b.jpg", "in/c.jpg"]
    assert found("in/") == ["in/C.webp", "in/a.PNG", "in/b.jpg", "in/c.jpg"]


@pytest.mark.parametrize("suffix", sorted(IMAGE_SUFFIXES))
def test_a_folder_is_searched_for_suffixes_in_any_case(here, suffix):
    touch(here / f"in/a{suffix}", here / f"in/b{suffix.upper()}")
    assert found("in") == [f"in/a{suffix}", f"in/b{suffix.upper()}"]


@pytest.mark.parametrize("content", [[], ["in/notes.txt"], ["in/deeper/a.jpg"]])
def test_a_folder_without_pictures_is_an_error(here, content):
    (here / "in").mkdir()
    touch(*content)
    assert "no pictures in this folder" in failure("in")


def test_a_folder_that_cannot_be_listed_is_an_error(here, monkeypatch):
    (here / "in").mkdir()

    def refuse(path):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert failure("in") == "cannot list it: Permission denied"


def test_a_link_in_a_folder_that_leads_nowhere_hides_no_others(here):
    touch(here / "in/a.jpg", here / "elsewhere/b.png")
    (here / "in" / "b.jpg").symlink_to("../elsewhere/b.png")
    (here / "in" / "circle.jpg").symlink_to("circle.jpg")
    items = {item.source: item.error for item in expand(["in"])}
    assert {"in/a.jpg": None, "in/b.jpg": None}.items() <= items.items()


def test_a_pattern_is_its_matches_sorted(here):
    touch(here / "b1.jpg", here / "a1.jpg", here / "a.txt", here / "sub/a1.jpg")
    (here / "d1.jpg").mkdir()
    assert found("*1.jpg") == ["a1.jpg", "b1.jpg"]
    assert found("[b]?.jpg") == ["b1.jpg"]
    assert found("a*") == ["a.txt", "a1.jpg"]


def test_two_stars_search_deeper(here):
    touch(here / "a.jpg", here / "x/b.jpg", here / "x/y/c.jpg", here / "x/y/d.png")
    assert found("**/*.jpg") == ["a.jpg", "x/b.jpg", "x/y/c.jpg"]


def test_a_file_whose_name_looks_like_a_pattern_is_itself(here):
    touch(here / "a[1].jpg", here / "a1.jpg", here / "in[1]/b.jpg")
    assert found("a[1].jpg") == ["a[1].jpg"]
    assert found("in[1]") == ["in[1]/b.jpg"]


def test_a_pattern_without_matches_is_an_error(here):
    (here / "folder.jpg").mkdir()
    assert failure("*.jpg") == "no file matches"


@pytest.mark.parametrize("name", ["no.jpg", "no/a.jpg", "", "a\0b.jpg", "new\nline", "\udcff.jpg"])
def test_a_missing_file_is_an_error(here, name):  # noqa: ARG001 - an empty folder
    assert failure(name) == "no such file"


@pytest.mark.parametrize("name", ["link.jpg", "a[1].jpg"])
@pytest.mark.parametrize("target", ["gone.jpg", "link.jpg"])
def test_a_link_that_leads_nowhere_is_an_error(here, name, target):
    touch(here / "a1.jpg")
    (here / name).symlink_to(target)
    assert failure(name) == "no such file"


@pytest.mark.parametrize("name", ["new\nline.jpg", "\udcff.jpg", "a\x1b[1m.jpg"])
def test_odd_names_are_found(here, name):
    touch(here / "in" / name)
    assert found(f"in/{name}", "in", "in/*") == [f"in/{name}"] * 3


def test_a_pattern_with_a_nul_is_an_error(here):
    touch(here / "a.jpg")
    assert failure("*\0.jpg") == "no file matches"


def test_a_dash_is_standard_input(here):
    touch(here / "-")
    assert list(expand(["-"])) == [Item("-")]
    assert found("./-") == ["./-"]


def test_an_error_does_not_stop_the_others(here):
    touch(here / "a.jpg", here / "b.jpg")
    items = list(expand(["a.jpg", "no.jpg", "b.jpg"]))
    assert [item.error is None for item in items] == [True, False, True]


@pytest.mark.parametrize(
    ("names", "inside", "outside"),
    [
        (["in/a.jpg"], ["in/a.jpg", "out/../in/a.jpg", "link.jpg"], ["in/b.jpg", "a.jpg"]),
        (["link.jpg"], ["in/a.jpg", "link.jpg"], ["in/b.jpg"]),
        (["in"], ["in/a.jpg", "in/b.jpg", "link.jpg"], ["in/x.csv", "out/a.jpg"]),
        (["in/*.jpg"], ["in/a.jpg", "link.jpg"], ["in/c.jpg", "in/x.csv"]),
        (["**/*.jpg"], ["in/a.jpg", "in/b.jpg"], ["in/x.csv"]),
        (["in/x[1].jpg"], ["in/x[1].jpg"], ["in/a.jpg"]),
        (["-"], [], ["-", "in/a.jpg"]),
        (["no.jpg"], [], ["no.jpg", "in/a.jpg"]),
        (["a\0b.jpg", "*\0", "in/a.jpg"], ["in/a.jpg"], ["in/b.jpg"]),
        ([], [], ["in/a.jpg"]),
    ],
)
def test_the_guard_knows_the_inputs(here, names, inside, outside):
    touch(here / "in/a.jpg", here / "in/b.jpg", here / "in/x.csv", here / "in/x[1].jpg")
    (here / "link.jpg").symlink_to("in/a.jpg")
    (here / "out").mkdir()
    guard = InputGuard(names)
    assert [name for name in inside if Path(name) not in guard] == []
    assert [name for name in outside if Path(name) in guard] == []


def test_the_guard_follows_the_links_in_a_folder(here):
    touch(here / "originals/a.jpg")
    (here / "in").mkdir()
    (here / "in" / "a.jpg").symlink_to("../originals/a.jpg")
    assert Path("originals/a.jpg") in InputGuard(["in"])
