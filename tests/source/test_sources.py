"""The inputs that names stand for."""

import math
import os
import subprocess
import sys
import threading
from pathlib import Path

import number_video
import pytest
from source_items import failure, found, frames, touch

from detcli.errors import DecodeError, InputError, SourceError, UsageError
from detcli.source.loading import SourceOptions
from detcli.source.names import IMAGE_SUFFIXES
from detcli.source.sources import Sources


@pytest.mark.parametrize(
    "name", ["a.jpg", "notes.txt", "none", "sub/a.jpg", "-a.jpg", " ", "猫.jpg"]
)
def test_a_file_is_itself_whatever_its_suffix(here, name):
    touch(here / name)
    assert found(name) == [name]


@pytest.mark.usefixtures("here")
def test_a_picture_is_read_when_it_is_loaded(make_picture):
    (item,) = Sources([str(make_picture("a.png", size=(32, 48)))])
    assert item.load().size == (32, 48)
    assert (item.origin.frame, item.origin.time_s, item.origin.clip) == (None, None, None)


def test_pictures_load_nothing_that_other_sources_need(make_picture):
    code = """
import sys
from detcli.source.loading import SourceOptions
from detcli.source.sources import Sources
for item in Sources(sys.argv[1:]):
    item.load()
print(*sorted(name for name in sys.modules if name.startswith(("detcli.source.", "urllib."))))
"""
    command = [sys.executable, "-c", code, make_picture("a.jpg"), make_picture("in/b.jpg").parent]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    loaded = set(finished.stdout.split())
    assert {"detcli.source.decode", "detcli.source.sources"} <= loaded
    assert not loaded & {
        "detcli.source.live",
        "detcli.source.stdin",
        "detcli.source.video",
        "urllib.request",
    }


def test_names_keep_their_order_and_may_repeat(here):
    touch(here / "b.jpg", here / "a.jpg")
    assert found("b.jpg", "a.jpg", "b.jpg") == ["b.jpg", "a.jpg", "b.jpg"]


def test_no_names_no_inputs():
    assert list(Sources([])) == []


def test_a_folder_gives_its_pictures_sorted(here):
    touch(here / "in/b.jpg", here / "in/a.PNG", here / "in/c.jpg", here / "in/C.webp")
    touch(here / "in/notes.txt", here / "in/jpg", here / "in/.jpg", here / "in/deeper/d.jpg")
    (here / "in" / "folder.jpg").mkdir()
    assert found("in") == ["in/C.webp", "in/a.PNG", "in/b.jpg", "in/c.jpg"]
    assert found("in/") == ["in/C.webp", "in/a.PNG", "in/b.jpg", "in/c.jpg"]


@pytest.mark.parametrize("suffix", sorted(IMAGE_SUFFIXES))
def test_a_folder_is_searched_for_suffixes_in_any_case(here, suffix):
    touch(here / f"in/a{suffix}", here / f"in/b{suffix.upper()}")
    assert found("in") == [f"in/a{suffix}", f"in/b{suffix.upper()}"]


def test_a_folder_gives_its_videos_too(here):
    touch(here / "in/a.jpg", here / "in/c.jpg")
    number_video.write(here / "in/b.mp4", 3)
    expected = [("in/a.jpg", None), *(("in/b.mp4", n) for n in range(3)), ("in/c.jpg", None)]
    assert frames("in") == expected
    assert frames("in/*") == expected
    assert frames("in/a.jpg", "in/b.mp4", "in/c.jpg") == expected


def test_videos_are_searched_for_in_any_case(here):
    touch(here / "in/a.MKV")
    with Sources(["in"]) as sources:
        (item,) = sources
    with pytest.raises(DecodeError):
        item.load()


@pytest.mark.usefixtures("here")
def test_a_folder_is_searched_recursively_on_request():
    touch("in/b.jpg", "in/x/d.jpg", "in/x/y/e.jpg", "in/a/c.jpg", "in/.hidden/f.jpg", "in/.g.jpg")
    deeper = ["in/a/c.jpg", "in/x/d.jpg", "in/x/y/e.jpg"]
    assert found("in") == ["in/b.jpg"]
    assert found("in", recursive=True) == ["in/b.jpg", *deeper]
    assert found("in", recursive=True, written=(Path("in/x"),)) == ["in/b.jpg", "in/a/c.jpg"]
    assert found("in/x", recursive=True, written=(Path("in/x"),)) == deeper[1:]


@pytest.mark.parametrize("content", [[], ["in/notes.txt"], ["in/deeper/a.jpg"]])
def test_a_folder_without_pictures_is_an_error(here, content):  # noqa: ARG001
    Path("in").mkdir()
    touch(*content)
    assert "no pictures or videos in this folder" in failure("in")


@pytest.mark.parametrize("content", [[], ["in/notes.txt"], ["in/deeper/a.txt"]])
def test_folders_without_pictures_are_an_error(here, content):  # noqa: ARG001
    Path("in").mkdir()
    touch(*content)
    assert "no pictures or videos in this folder" in failure("in", recursive=True)


def test_a_folder_that_cannot_be_listed_is_an_error(here, monkeypatch):
    (here / "in").mkdir()

    def refuse(path):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert failure("in") == "cannot list it: Permission denied"


def test_a_pattern_gives_its_matches_sorted(here):
    touch(here / "b1.jpg", here / "a1.jpg", here / "a.txt", here / "sub/a1.jpg")
    (here / "d1.jpg").mkdir()
    assert found("*1.jpg") == ["a1.jpg", "b1.jpg"]
    assert found("[b]?.jpg") == ["b1.jpg"]
    assert found("a*") == ["a.txt", "a1.jpg"]


def test_two_stars_match_any_folders(here):
    touch(here / "a.jpg", here / "x/b.jpg", here / "x/y/c.jpg", here / "x/y/d.png")
    assert found("**/*.jpg") == ["a.jpg", "x/b.jpg", "x/y/c.jpg"]


def test_a_file_named_like_a_pattern_is_a_file(here):
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
def test_a_broken_link_is_an_error(here, name, target):
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


def test_a_file_may_have_the_name_of_a_dash(here):
    touch(here / "-")
    assert found("./-") == ["./-"]


def test_an_error_does_not_stop_the_others(here):
    touch(here / "a.jpg", here / "b.jpg")
    items = list(Sources(["a.jpg", "no.jpg", "b.jpg"]))
    assert [item.origin.path is None for item in items] == [False, True, False]


def test_a_list_names_files(here):
    touch("a.jpg", "in/b.jpg", "-", "camera:0", "a[1].jpg", "first.jpg")
    number_video.write(here / "c.mp4", 2)
    names = ["a.jpg", "-", "gone.jpg", "c.mp4", "in", "camera:0", "a[1].jpg", "http://x/y", "*"]
    Path("list").write_text("".join(f"{name}\n" for name in names))
    with Sources(["first.jpg"], SourceOptions(files_from="list")) as sources:
        items = [(item.origin.source, item.origin.frame) for item in sources]
        assert sources.progress.total is None
    names[3:4] = ["c.mp4", "c.mp4"]
    numbers = [None, None, None, 0, 1, *[None] * 5]
    assert items == [("first.jpg", None), *zip(names, numbers, strict=True)]


@pytest.mark.parametrize("name", ["gone.jpg", "in", "http://127.0.0.1:1/a.jpg", "*", "a\0.jpg"])
def test_an_unreadable_name_in_a_list_is_an_error(here, name):
    (here / "in").mkdir()
    Path("list").write_text(f"{name}\n")
    (item,) = Sources([], SourceOptions(files_from="list"))
    assert item.origin.source == name
    with pytest.raises(SourceError):
        item.load()


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    "name",
    ["camera:0", "rtsp://127.0.0.1:1/a", "RTSPS://127.0.0.1:1/a", "http://127.0.0.1:1/a.mjpg"],
)
def test_a_live_source_in_a_list_is_an_error_that_says_where_it_belongs(name):
    Path("list").write_text(f"{name}\n")
    (item,) = Sources([], SourceOptions(files_from="list"))
    assert item.origin.source == name
    with pytest.raises(SourceError, match="cannot be in a list") as caught:
        item.load()
    assert "$(cat FILE)" in caught.value.hint


@pytest.mark.usefixtures("here")
def test_a_name_that_is_too_long_is_an_error_of_the_list():
    Path("list").write_text("a" * 70000)
    (item,) = Sources([], SourceOptions(files_from="list"))
    assert item.origin.source == "list"
    with pytest.raises(SourceError, match="more than 65536 bytes"):
        item.load()


@pytest.mark.parametrize(
    ("names", "options"),
    [
        (["-", "-"], {}),
        (["-"], {"files_from": "-"}),
        (["a.jpg"], {"files_from": "gone"}),
        (["a.jpg"], {"stride": 0}),
        (["a.jpg"], {"start_s": -1}),
        (["a.jpg"], {"start_s": math.nan}),
        (["a.jpg"], {"start_s": 2, "end_s": 2}),
        (["a.jpg"], {"end_s": math.nan}),
    ],
)
def test_invalid_requests_are_refused(names, options):
    with pytest.raises(UsageError) as caught:
        Sources(names, SourceOptions(**options))
    assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("camera:x", "not the name of a camera"),
        ("camera:", "not the name of a camera"),
        ("rtsp:///path", "not a valid address"),
        ("http://host:99999/", "not a valid address"),
        ("http://", "not a valid address"),
        ("http:///a.jpg", "not a valid address"),
        ("camera:987", "no such camera"),
        ("rtsp://127.0.0.1:1/", "cannot be opened"),
        ("http://127.0.0.1:1/", "cannot be opened"),
        ("http://127.0.0.1:1/a.mp4", "cannot be opened"),
        ("http://127.0.0.1:1/a.jpg", "cannot be fetched: Connection refused"),
    ],
)
def test_a_stream_that_cannot_be_opened_is_an_error(name, reason):
    assert reason in failure(name)


def test_errors_and_sources_contain_no_secrets(caplog):
    names = [
        f"{scheme}://eve:hunter2@127.0.0.1:1/{path}?channel=1&key=hunter2"
        for scheme in ("rtsp", "http")
        for path in ("", "a.jpg", "a.mp4", "password=hunter2/x")
    ] + ["http://eve:hunter2@/", "rtsp://eve:hunter2@host:hunter2/"]
    caplog.set_level("DEBUG")
    with Sources(names) as sources:
        items = list(sources)
    told = caplog.text
    for item in items:
        with pytest.raises(InputError) as caught:
            item.load()
        told += f"{item.origin.source} {caught.value} {caught.value.hint} {caught.value.__cause__}"
    assert len(items) == len(names)
    assert "hunter2" not in told
    assert "eve" not in told
    assert "rtsp://127.0.0.1:1/?channel=1&key=***" in told


def test_totals_grow_as_inputs_are_found(here):
    touch("in/a.jpg", "in/b.jpg", "in/x/c.jpg", "d.jpg")
    number_video.write(here / "v.mp4", 30)
    with Sources(["in", "v.mp4", "d*.jpg"], SourceOptions(recursive=True, stride=7)) as sources:
        totals = [
            sources.progress.total,
            *((sources.progress.total, item.origin.source)[0] for item in sources),
        ]
    assert totals == [3, 4, 4, 5, *[9] * 6]


def test_a_video_with_missing_frames_corrects_the_total(here):
    data = number_video.write(here / "v.avi", 60, code="MJPG").read_bytes()
    Path("v.avi").write_bytes(data[: len(data) // 2])
    with Sources(["v.avi"]) as sources:
        first = next(iter(sources))
        assert (first.origin.frame, sources.progress.total) == (0, 60)
        items = [first, *sources]
        assert sources.progress.total == len(items) < 60


@pytest.mark.usefixtures("here")
def test_a_closed_source_yields_nothing():
    touch("a.jpg", "b.jpg")
    sources = Sources(["a.jpg", "b.jpg"])
    assert next(iter(sources)).origin.source == "a.jpg"
    sources.close()
    sources.close()
    assert list(sources) == []


@pytest.mark.usefixtures("here")
def test_sources_may_be_closed_before_use():
    with Sources(["a.jpg"]) as sources:
        pass
    assert list(sources) == []


def test_closing_ends_another_thread_that_waits(here, monkeypatch):  # noqa: ARG001
    inlet, outlet = os.pipe()
    with os.fdopen(inlet) as stdin, os.fdopen(outlet, "wb"):
        monkeypatch.setattr(sys, "stdin", stdin)
        sources = Sources([], SourceOptions(files_from="-"))
        reader = threading.Thread(target=list, args=[sources])
        reader.start()
        sources.close()
        reader.join(30)
        assert not reader.is_alive()


@pytest.mark.usefixtures("here")
def test_a_folder_is_not_read_before_it_is_reached():
    touch("a.jpg", "in/b.jpg")
    sources = iter(Sources(["a.jpg", "in"]))
    next(sources)
    touch("in/c.jpg")
    assert [item.origin.source for item in sources] == ["in/b.jpg", "in/c.jpg"]
