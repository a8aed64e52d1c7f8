"""The inputs that names stand for, over which no output is written."""

import math
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import number_video
import pytest
from origins import frames_of, sources_of
from source_items import failure, file_sources, frames, touch

from detcli.config.inputs import InputOptions
from detcli.core.errors import InputError, SourceError, UsageError
from detcli.source.guard import InputGuard
from detcli.source.loading import RECORDED
from detcli.source.names import IMAGE_SUFFIXES
from detcli.source.sources import Sources
from detcli.storage.objects import Address

TREE = [
    "in/b.jpg", "in/a.PNG", "in/c.jpg", "in/C.webp", "in/notes.txt", "in/jpg", "in/.jpg",
    "in/deeper/d.jpg", "a1.jpg", "b1.jpg", "a.txt", "x/y/d.png", "x/y/c.jpg", "[1].jpg",
    "in[1]/b.jpg", "-", "-a.jpg", " ", "猫.jpg", "new\nline.jpg", "\udcff.jpg", "a\x1b[1m.jpg",
]  # fmt: skip
STAND_FOR = {
    "a1.jpg": ["a1.jpg"],
    "a.txt": ["a.txt"],
    "-a.jpg": ["-a.jpg"],
    " ": [" "],
    "猫.jpg": ["猫.jpg"],
    "[1].jpg": ["[1].jpg"],
    "new\nline.jpg": ["new\nline.jpg"],
    "\udcff.jpg": ["\udcff.jpg"],
    "a\x1b[1m.jpg": ["a\x1b[1m.jpg"],
    "./-": ["./-"],
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
    "no such file": ["no.jpg", "no/a.jpg", "", "a\0b", "gone.jpg", "gone[1].jpg"],
    "cannot be read": ["a\0b.jpg", "loop.jpg"],
    "no file matches": ["*.none", "*\0.jpg", "folder*"],
    "no images or videos in this folder": ["folder.jpg", "x"],
}


@pytest.fixture
def folder_tree(empty_folder):
    touch(*TREE)
    (empty_folder / "folder.jpg").mkdir()
    for link, target in (("gone.jpg", "no"), ("gone[1].jpg", "no"), ("loop.jpg", "loop.jpg")):
        (empty_folder / link).symlink_to(target)


@pytest.mark.usefixtures("folder_tree")
@pytest.mark.parametrize("name", STAND_FOR)
def test_a_name_stands_for_files_in_their_order(name):
    expected = STAND_FOR[name] + ["b1.jpg"] + STAND_FOR[name]
    assert file_sources(name, "b1.jpg", name) == expected


@pytest.mark.usefixtures("folder_tree")
@pytest.mark.parametrize("reason", MISSING)
def test_what_is_not_there_is_an_error(reason):
    for name in MISSING[reason]:
        assert failure(name).startswith(reason), name
    touch("folder.jpg/deeper/a.txt")
    assert failure("folder.jpg", recursive=True).startswith("no images or videos")


@pytest.mark.slow
def test_images_load_nothing_that_other_sources_need(make_image):
    code = """
import sys
from detcli.config.inputs import InputOptions
from detcli.source.sources import Sources
for item in Sources(sys.argv[1:]):
    item.load()
print(*{"detcli.source." + name for name in ("decode", "live", "stdin", "video")} & {*sys.modules})
print("urllib.request" in sys.modules)
"""
    command = [sys.executable, "-c", code, make_image("a.jpg"), make_image("in/b.jpg").parent]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert finished.stdout.split() == ["detcli.source.decode", "False"]


@pytest.mark.usefixtures("empty_folder")
def test_a_folder_is_searched_for_suffixes_in_any_case():
    names = []
    for suffix in IMAGE_SUFFIXES:
        names.append(f"in/a{suffix}")
        names.append(f"in/a{suffix.upper()}")
    touch(*names)
    assert file_sources("in") == sorted(names)


def test_a_folder_gives_its_videos_too(empty_folder):
    touch(empty_folder / "in/a.jpg", empty_folder / "in/c.jpg")
    number_video.write(empty_folder / "in/b.mp4", 3)
    expected = [
        ("in/a.jpg", None),
        ("in/b.mp4", 0),
        ("in/b.mp4", 1),
        ("in/b.mp4", 2),
        ("in/c.jpg", None),
    ]
    assert frames("in") == expected
    assert frames("in/*") == expected
    assert frames("in/a.jpg", "in/b.mp4", "in/c.jpg") == expected


@pytest.mark.usefixtures("empty_folder")
def test_a_folder_is_searched_recursively_on_request():
    touch("in/b.jpg", "in/x/d.jpg", "in/x/y/e.jpg", "in/a/c.jpg", "in/.hidden/f.jpg", "in/.g.jpg")
    deeper = ["in/a/c.jpg", "in/x/d.jpg", "in/x/y/e.jpg"]
    assert file_sources("in") == ["in/b.jpg"]
    assert file_sources("in", recursive=True) == ["in/b.jpg"] + deeper
    assert file_sources("in", recursive=True, written=(Path("in/x"),)) == ["in/b.jpg", "in/a/c.jpg"]
    assert file_sources("in/x", recursive=True, written=(Path("in/x"),)) == deeper[1:]


def test_a_list_names_files(empty_folder):
    touch("a.jpg", "in/b.jpg", "-", "camera:0", "a[1].jpg", "first.jpg")
    number_video.write(empty_folder / "c.mp4", 2)
    names = ["a.jpg", "-", "gone.jpg", "c.mp4", "in", "camera:0", "a[1].jpg", "http://x/y", "*"]
    Path("list").write_text("\n".join(names) + "\n")
    with Sources(["first.jpg"], InputOptions(files_from="list")) as sources:
        items = list(sources)
        assert sources.progress.total is None
    names[3:4] = ["c.mp4", "c.mp4"]
    assert sources_of(items) == ["first.jpg"] + names
    assert frames_of(items) == [None, None, None, None, 0, 1] + [None] * 5


LIVE_IN_LIST = "cannot be in a list", r"for all lines of a file, detcli predict \$\(cat FILE\)"
IN_LIST = {  # what is said of a name in a list, and what to do
    **dict.fromkeys(("gone.jpg", "*"), ("no such file", "check the path")),
    "in": ("cannot be read: ", "check the path"),
    "a\0.jpg": ("cannot be read: ", "with -0, names end"),
    "http://127.0.0.1:1/a.jpg": ("cannot be fetched", "that its server answers"),
    **dict.fromkeys(("ftp://a/b.jpg", "file:///b.jpg"), ("not an address", "begin with http, ")),
    **dict.fromkeys(("camera:0", "rtsp://127.0.0.1:1/a", "RTSPS://127.0.0.1:1/a"), LIVE_IN_LIST),
    "http://127.0.0.1:1/a.mjpg": LIVE_IN_LIST,
    "a" * 140_000: ("more than 65536 bytes", "names end with NUL"),
}


def test_what_no_list_can_name_is_an_error(empty_folder):
    (empty_folder / "in").mkdir()
    Path("list").write_text("\n".join(IN_LIST) + "\n")
    with Sources([], InputOptions(files_from="list")) as sources:
        for item, (name, (reason, hint)) in zip(sources, IN_LIST.items(), strict=True):
            assert item.origin.source == (name if len(name) < 140_000 else "list")
            with pytest.raises(SourceError, match=reason) as caught:
                item.load()
            assert re.search(hint, caught.value.hint)


@pytest.mark.parametrize(
    ("names", "inputs"),
    [
        (["-", "-"], {}),
        (["-"], {"files_from": "-"}),
        (["a.jpg"], {"files_from": "gone"}),
        (["a.jpg"], {"start": 2, "end": 2}),
        (["a.jpg"], {"end": math.nan}),
    ],
)
def test_invalid_requests_are_refused(names, inputs):
    with pytest.raises(UsageError) as caught:
        Sources(names, InputOptions(**inputs))
    assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("camera:x", "not the name of a camera"), ("camera:", "not the name of a camera"),
        ("rtsp:///path", "not a valid address"), ("http://host:99999/", "not a valid address"),
        ("http://", "not a valid address"), ("http:///a.jpg", "not a valid address"),
        ("camera:987", "no such camera"), ("rtsp://127.0.0.1:1/", "cannot be opened"),
        ("http://127.0.0.1:1/", "cannot be opened"),
        ("http://127.0.0.1:1/a.mp4", "cannot be opened"),
        ("http://127.0.0.1:1/a.jpg", "cannot be fetched: Connection refused"),
    ],
)  # fmt: skip
def test_a_stream_that_cannot_be_opened_is_an_error(name, reason):
    assert reason in failure(name)


def test_errors_and_sources_contain_no_secrets(caplog):
    names = ["http://eve:hunter2@/", "rtsp://eve:hunter2@host:hunter2/"]
    for scheme in ("rtsp", "http"):
        for path in ("", "a.jpg", "a.mp4", "password=hunter2/x"):
            names.append(f"{scheme}://eve:hunter2@127.0.0.1:1/{path}?channel=1&key=hunter2")
    caplog.set_level("DEBUG")
    with Sources(names) as sources:
        items = list(sources)
    texts = caplog.text
    for item in items:
        with pytest.raises(InputError) as caught:
            item.load()
        texts += f"{item.origin.source} {caught.value} {caught.value.hint} {caught.value.__cause__}"
    assert len(items) == len(names)
    assert "hunter2" not in texts
    assert "eve" not in texts
    assert "rtsp://127.0.0.1:1/?channel=1&key=***" in texts


def test_totals_grow_as_inputs_are_found(empty_folder):
    touch("in/a.jpg", "in/b.jpg", "in/x/c.jpg", "d.jpg")
    number_video.write(empty_folder / "v.mp4", 30)
    inputs = InputOptions(recursive=True, vid_stride=7)
    with Sources(["in", "v.mp4", "d*.jpg"], inputs) as sources:
        totals = [sources.progress.total]
        for _ in sources:
            totals.append(sources.progress.total)
    assert totals == [3, 4, 4, 5] + [9] * 6


def test_a_video_with_missing_frames_corrects_the_total(empty_folder):
    data = number_video.write(empty_folder / "v.avi", 60, code="MJPG").read_bytes()
    Path("v.avi").write_bytes(data[: len(data) // 2])
    with Sources(["v.avi"]) as sources:
        first = next(iter(sources))
        assert first.origin.frame == 0
        assert sources.progress.total == 60
        items = [first] + list(sources)
        assert sources.progress.total == len(items) < 60


@pytest.mark.usefixtures("empty_folder")
def test_a_closed_source_yields_nothing():
    touch("a.jpg", "b.jpg")
    sources = Sources(["a.jpg", "b.jpg"])
    assert next(iter(sources)).origin.source == "a.jpg"
    sources.close()
    sources.close()
    assert list(sources) == []


def test_closing_ends_another_thread_that_waits(empty_folder, monkeypatch):  # noqa: ARG001
    inlet, outlet = os.pipe()
    with os.fdopen(inlet) as stdin, os.fdopen(outlet, "wb"):
        monkeypatch.setattr(sys, "stdin", stdin)
        sources = Sources([], InputOptions(files_from="-"))
        reader = threading.Thread(target=list, args=[sources])
        reader.start()
        sources.close()
        reader.join(30)
        assert not reader.is_alive()


@pytest.mark.usefixtures("empty_folder")
def test_a_folder_is_not_read_before_it_is_reached():
    touch("a.jpg", "in/b.jpg")
    sources = iter(Sources(["a.jpg", "in"]))
    next(sources)
    touch("in/c.jpg")
    assert sources_of(sources) == ["in/b.jpg", "in/c.jpg"]


@pytest.fixture
def inputs(empty_folder):
    """Change to a folder with inputs."""
    touch("in/a.jpg", "in/b.jpg", "in/x.csv", "in/x[1].jpg", "in/deep/d.jpg", "in/v.mp4", "-")
    Path("link.jpg").symlink_to("in/a.jpg")
    Path("hard.jpg").hardlink_to("in/a.jpg")
    Path("out").mkdir()
    return empty_folder


GUARDED = {  # names: what is one of the inputs, and what is not
    "in/a.jpg": ("in/a.jpg out/../in/a.jpg link.jpg hard.jpg", "in/b.jpg a.jpg"),
    "link.jpg": ("in/a.jpg link.jpg", "in/b.jpg"),
    "in": (
        "in/a.jpg in/b.jpg link.jpg hard.jpg in/v.mp4",
        "in/x.csv out/a.jpg in/deep/d.jpg in/new.jpg",
    ),
    "in/*.jpg": ("in/a.jpg link.jpg", "in/c.jpg in/x.csv"),
    "in/*": ("in/a.jpg in/x.csv", "in/deep/d.jpg"),
    "**/*.jpg": ("in/a.jpg in/b.jpg in/deep/d.jpg", "in/x.csv"),
    "in/x[1].jpg": ("in/x[1].jpg", "in/a.jpg"),
    "-": ("", "- in/a.jpg"),
    "no.jpg": ("", "no.jpg in/a.jpg"),
    "a\0b.jpg *\0 in/a.jpg": ("in/a.jpg", "in/b.jpg"),
    "camera:0 rtsp://host/*": ("", "in/a.jpg"),
    "": ("", "in/a.jpg"),
}


@pytest.mark.usefixtures("inputs")
def test_the_guard_recognises_the_inputs():
    for names, (inside, outside) in GUARDED.items():
        guard = InputGuard(names.split(" ") if names else [])
        for name in inside.split():
            assert Path(name) in guard, names
        for name in outside.split():
            assert Path(name) not in guard, names
    assert "in/a.jpg" not in InputGuard(["in/a.jpg"])
    assert None not in InputGuard(["in/a.jpg"])


@pytest.mark.usefixtures("inputs")
def test_folders_count_only_as_deep_as_they_are_searched_with_their_links():
    assert Path("in/deep/d.jpg") in InputGuard(["in"], InputOptions(recursive=True))
    guard = InputGuard(["in"], InputOptions(recursive=True), [Path("in/deep")])
    assert Path("in/deep/d.jpg") not in guard
    touch("originals/a.jpg")
    Path("in/link.jpg").symlink_to("../originals/a.jpg")
    assert Path("originals/a.jpg") in InputGuard(["in"])


@pytest.mark.parametrize("files_from", ["list.txt", "-"])
def test_with_a_list_any_image_or_video_may_be_an_input(inputs, files_from):
    touch("list.txt", "old.parquet", "old")
    (inputs / "image.csv").symlink_to("in/b.jpg")
    os.mkfifo("pipe.jpg")
    guard = InputGuard(["in/x.csv"], InputOptions(files_from=files_from))
    for name in ("in/a.jpg", "in/v.mp4", "image.csv", "in/x.csv"):
        with pytest.raises(UsageError, match=f"{name} is one of the inputs"):
            guard.refuse([None, Path(name)])
    guard.refuse(map(Path, ("old.parquet", "old", "out/a.jpg", "pipe.jpg", "/dev/null")))
    assert (Path("list.txt") in guard) == (files_from == "list.txt")


@pytest.mark.usefixtures("inputs")
def test_without_a_list_only_inputs_are_refused():
    guard = InputGuard(["in/a.jpg", "s3://bucket/a.jsonl"])
    guard.refuse([None, Path("in/b.jpg"), Address.parse("s3://bucket/b.jsonl")])
    for output in (Path("link.jpg"), Address.parse("s3://bucket/a.jsonl")):
        with pytest.raises(UsageError, match="is one of the inputs"):
            guard.refuse([output])


@pytest.mark.usefixtures("inputs")
def test_a_new_file_needs_no_lookup(monkeypatch):
    def refuse(path):
        raise AssertionError(path)

    guard = InputGuard(["in", "in/*.jpg"], InputOptions(recursive=True))
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", refuse)
        assert Path("out/a.jpg") not in guard
        with pytest.raises(AssertionError):
            assert Path("in/a.jpg") in guard


@pytest.mark.usefixtures("empty_folder")
def test_files_that_have_records_are_no_items_but_count_as_inputs():
    touch("in/a.jpg", "in/b.jpg", "in/c.jpg", "in/d:e.jpg", "f.jpg", "g", "names.txt")
    Path("names.txt").write_text('f.jpg\ng\n{"path": "f.jpg"}\n')
    listed_paths = []

    def skip_file(path):
        listed_paths.append(path)
        return path != "in/b.jpg"

    with Sources(["in", "f.jpg"], InputOptions(files_from="names.txt")) as sources:
        sources.skip_file = skip_file
        items = list(sources)
    numbers = {}
    for index, item in enumerate(items):
        if item is not RECORDED:
            numbers[index] = item.origin.source, item.origin.input
    # Only image files can be skipped so: no lines of JSON, nor what may be an address or no image.
    assert listed_paths == ["in/a.jpg", "in/b.jpg", "in/c.jpg", "f.jpg", "f.jpg"]
    assert numbers == {1: ("in/b.jpg", 1), 3: ("in/d:e.jpg", 3), 6: ("g", 6), 7: ("f.jpg", 7)}
