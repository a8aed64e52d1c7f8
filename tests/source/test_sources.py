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

from detcli.core.errors import InputError, SourceError, UsageError
from detcli.source.loading import SourceOptions
from detcli.source.names import IMAGE_SUFFIXES
from detcli.source.sources import Sources

TREE = [
    *("in/b.jpg", "in/a.PNG", "in/c.jpg", "in/C.webp", "in/notes.txt", "in/jpg", "in/.jpg"),
    *("in/deeper/d.jpg", "a1.jpg", "b1.jpg", "a.txt", "x/y/d.png", "x/y/c.jpg", "[1].jpg"),
    *("in[1]/b.jpg", "-", "-a.jpg", " ", "猫.jpg", "new\nline.jpg", "\udcff.jpg", "a\x1b[1m.jpg"),
]
STAND_FOR = {
    **{name: [name] for name in ("a1.jpg", "a.txt", "-a.jpg", " ", "猫.jpg", "[1].jpg")},
    **{name: [name] for name in ("new\nline.jpg", "\udcff.jpg", "a\x1b[1m.jpg", "./-")},
    "in": ["in/C.webp", "in/a.PNG", "in/b.jpg", "in/c.jpg"],
    "in/": ["in/C.webp", "in/a.PNG", "in/b.jpg", "in/c.jpg"],
    "in[1]": ["in[1]/b.jpg"],
    "?1.jpg": ["a1.jpg", "b1.jpg"],
    "[b]?.jpg": ["b1.jpg"],
    "a?t*": ["a.txt"],
    "x/**/*.jpg": ["x/y/c.jpg"],
    "new*": ["new\nline.jpg"],
}
MISSING = {
    "no such file": ["no.jpg", "no/a.jpg", "", "a\0b.jpg", "gone.jpg", "gone[1].jpg", "loop.jpg"],
    "no file matches": ["*.none", "*\0.jpg", "folder*"],
    "no pictures or videos in this folder": ["folder.jpg", "x"],
}


@pytest.fixture
def tree(here):
    touch(*TREE)
    (here / "folder.jpg").mkdir()
    for link, target in (("gone.jpg", "no"), ("gone[1].jpg", "no"), ("loop.jpg", "loop.jpg")):
        (here / link).symlink_to(target)


@pytest.mark.usefixtures("tree")
@pytest.mark.parametrize("name", STAND_FOR)
def test_a_name_stands_for_files_in_their_order(name):
    assert found(name, "b1.jpg", name) == [*STAND_FOR[name], "b1.jpg", *STAND_FOR[name]]


@pytest.mark.usefixtures("tree")
@pytest.mark.parametrize("reason", MISSING)
def test_what_is_not_there_is_an_error(reason):
    for name in MISSING[reason]:
        assert failure(name).startswith(reason), name
    touch("folder.jpg/deeper/a.txt")
    assert failure("folder.jpg", recursive=True).startswith("no pictures or videos")


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


@pytest.mark.usefixtures("here")
def test_a_folder_is_searched_recursively_on_request():
    touch("in/b.jpg", "in/x/d.jpg", "in/x/y/e.jpg", "in/a/c.jpg", "in/.hidden/f.jpg", "in/.g.jpg")
    deeper = ["in/a/c.jpg", "in/x/d.jpg", "in/x/y/e.jpg"]
    assert found("in") == ["in/b.jpg"]
    assert found("in", recursive=True) == ["in/b.jpg", *deeper]
    assert found("in", recursive=True, written=(Path("in/x"),)) == ["in/b.jpg", "in/a/c.jpg"]
    assert found("in/x", recursive=True, written=(Path("in/x"),)) == deeper[1:]


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
