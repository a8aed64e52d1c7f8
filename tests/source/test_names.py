"""Addresses; the files that folders and patterns stand for; lists of names."""

import glob
import itertools
import json
import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from origins import sources_of
from source_items import touch

from detcli.config.inputs import InputOptions
from detcli.core.errors import SourceError, UsageError
from detcli.source import reading
from detcli.source.loading import Item
from detcli.source.names import (
    MAX_NAME_BYTES,
    ListedInput,
    camera_number,
    check_address,
    check_list,
    identity,
    is_live,
    is_media,
    is_video,
    match,
    read_list,
    search,
)
from detcli.source.sources import Sources

LIVE = [
    "rtsp://host/a.mp4", "RTSPS://host/", "http://host/video.mjpg", "http://[1/a",
    "https://host/live.m3u8?x=a.jpg", "http://camera/mjpg/video.mjpg", "https://host/pics/",
    "http://camera/video.MJPEG?size=3", "camera:0", "camera:front", "http://host:8081/",
]  # fmt: skip
NOT_LIVE = [
    "http://host/a.mp4", "https://host/a.JPG?size=3", "video.mjpg", "a.jpg", "./camera:0",
    "ftp://host/a", "http:/host/a", "-", "",
]  # fmt: skip


def test_live_sources_are_recognised_by_name():
    assert list(filter(is_live, LIVE + NOT_LIVE)) == LIVE


def test_cameras_have_numbers():
    assert list(map(camera_number, ("camera:0", "Camera:12"))) == [0, 12]
    for name in ("camera:", "camera:-1", "camera:a", "camera:1 ", "camera:٣"):
        with pytest.raises(SourceError):
            camera_number(name)


def test_malformed_addresses_are_refused():
    for url in ("rtsp://h", "http://1.2.3.4:80/", "rtsp://[::1]:554/a", "http://ü.example/ä?ö=1"):
        check_address(url)
    for url in (
        "rtsp://",
        "rtsp://:554/",
        "http://user@/",
        "http://host:0x50/",
        "http://host:99999/",
        "http://[::1/",
        "http://host/a\0b",
        "http://host/a\r\nX: y",
        "http://host/\udcff",
    ):
        with pytest.raises(SourceError):
            check_address(url)


@pytest.mark.parametrize("scheme", ["http", "https", "rtsp", "rtsps"])
def test_an_address_with_port_0_is_refused(scheme):
    with pytest.raises(SourceError, match="not a valid address"):
        check_address(f"{scheme}://host:0/bus.jpg")


def test_suffixes_distinguish_images_and_videos():
    images, videos = ["a.jpg", "x.y/a.TIFF", "a.gif"], ["a.MP4", "a.b.webm", "a.mjpeg"]
    names = images + videos + ["a.jpg.txt", "jpg", "x.jpg/a", ""]
    assert list(filter(is_media, names)) == images + videos
    assert list(filter(is_video, names)) == videos


def test_each_folder_is_a_part_sorted(empty_folder):  # noqa: ARG001
    touch("in/b.jpg", "in/a.mp4", "in/y/c.png", "in/x/z/d.jpg", "in/x/e.txt")
    assert list(search("in")) == [["in/a.mp4", "in/b.jpg"]]
    assert list(search("in", recursive=True)) == [
        ["in/a.mp4", "in/b.jpg"],
        [],
        ["in/x/z/d.jpg"],
        ["in/y/c.png"],
    ]


def test_hidden_files_are_left_out(empty_folder):  # noqa: ARG001
    touch("in/.a.jpg", "in/._b.jpg", "in/.git/c.jpg")
    assert list(search("in", recursive=True)) == [[]]
    assert list(search("in/.git")) == [["in/.git/c.jpg"]]


def test_folders_are_listed_only_when_reached(empty_folder):  # noqa: ARG001
    touch("in/a.jpg", "in/x/b.jpg", "in/y/c.jpg")
    parts = search("in", recursive=True)
    assert next(parts) == ["in/a.jpg"]
    touch("in/y/d.jpg")
    assert list(parts) == [["in/x/b.jpg"], ["in/y/c.jpg", "in/y/d.jpg"]]


def test_links_are_followed_but_not_in_cycles(empty_folder):
    touch("in/a.jpg", "in/x/b.jpg", "other/c.jpg")
    for name, target in (
        ("x/up", ".."),
        ("self", "."),
        ("y", "x"),
        ("z", "../other"),
        ("loop", "loop"),
        ("loop.jpg", "loop.jpg"),
        ("c.jpg", "../other/c.jpg"),
        ("gone.jpg", "gone"),
    ):
        (empty_folder / "in" / name).symlink_to(target)
    os.mkfifo(empty_folder / "in" / "pipe.jpg")  # which is left out
    listed: list[str] = []
    for part in search("in", recursive=True):
        listed.extend(part)  # type: ignore[arg-type]
    assert listed == [
        "in/a.jpg",
        "in/c.jpg",
        "in/gone.jpg",
        "in/loop.jpg",
        "in/x/b.jpg",
        "in/z/c.jpg",
    ]


def test_folders_can_be_omitted(empty_folder):  # noqa: ARG001
    touch("in/a.jpg", "in/out/b.jpg", "in/x/c.jpg")
    parts = search("in", recursive=True, omit={identity("in/out"), identity("in/gone")})
    assert list(parts) == [["in/a.jpg"], ["in/x/c.jpg"]]


def test_an_unreadable_folder_does_not_hide_others(empty_folder, monkeypatch):  # noqa: ARG001
    touch("in/x/a.jpg", "in/y/b.jpg")
    scandir = os.scandir

    def refuse(path):
        if path == "in/x":
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    first, failure, last = search("in", recursive=True)
    assert first == []
    assert last == ["in/y/b.jpg"]
    assert isinstance(failure, Item)
    assert failure.origin.source == "in/x"
    with pytest.raises(SourceError, match="cannot list it: Permission denied"):
        failure.load()


def test_no_file_is_looked_at_while_a_folder_is_listed(empty_folder, monkeypatch):  # noqa: ARG001
    for number in range(20):
        touch(f"in/{number}.jpg")
    looked, stat = [], os.stat

    def look(path, **options):
        looked.append(path)
        return stat(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", look)
        (names,) = search("in")
    assert len(names) == 20  # type: ignore[arg-type]
    assert set(looked) == {"in"}


PATTERNS = [
    "**", "**/", "**/*", "**/*.jpg", "./**/*.jpg", "x/**", "x/**/c.jpg", "*/**/*.jpg",
    "**/x/**/*.jpg", "**/**/c*", "x**/*.jpg", "**x/*.jpg", "[x]/**/[[]1]/*", "gone/**/*",
    "{here}/**/*.jpg", "{here}/x/**//c.jpg", "x/../**/x/**/*.jpg", "a.jpg/**", ".g/**/*",
]  # fmt: skip


def test_patterns_match_what_glob_matches(empty_folder):
    touch("a.jpg", "x/c.jpg", "x/[1]/c.jpg", "x/y/x/c.jpg", "yx/d.png", ".g/h/e.jpg", "x/.f.jpg")
    for template in PATTERNS:
        pattern = template.format(here=empty_folder)
        matches = glob.glob(pattern, recursive=True)  # noqa: PTH207 - the yardstick
        files = sorted(set(filter(os.path.isfile, matches)))
        assert list(filter(os.path.isfile, match(pattern))) == files, pattern


def test_a_pattern_reaches_each_folder_once(empty_folder):
    touch("a/1.jpg", "elsewhere/2.jpg")
    for name, target in (("b", "a"), ("a/up", ".."), ("a/there", "../elsewhere"), ("loop", "loop")):
        (empty_folder / name).symlink_to(target)
    assert match("a/**/*.jpg") == ["a/1.jpg", "a/there/2.jpg"]
    assert match("**/*.jpg") == ["a/1.jpg", "elsewhere/2.jpg"]


def test_identity_is_of_the_file_not_of_its_name(empty_folder):
    touch("a", "b")
    (empty_folder / "link").symlink_to("a")
    assert identity("a") == identity("link") != identity("b")
    assert identity("gone") is identity("a\0") is None


@pytest.fixture
def read_written_list(tmp_path):
    """Write a list and read it."""

    def read(data, *, null_separated=False):
        (tmp_path / "list").write_bytes(data)
        stop = threading.Event()
        return list(read_list(str(tmp_path / "list"), stop, null_separated=null_separated))

    return read


LINES = {
    b"": [],
    b"a.jpg": ["a.jpg"],
    b"a.jpg\nb.jpg\n": ["a.jpg", "b.jpg"],
    b"a.jpg\r\nb.jpg\r\n\r\n": ["a.jpg", "b.jpg"],
    b"\n\na.jpg\n\n": ["a.jpg"],
    b" a b.jpg \n": [" a b.jpg "],
    b"\xef\xbb\xbfa.jpg\n\xef\xbb\xbfb.jpg\n": ["a.jpg", "\ufeffb.jpg"],
    b"\xff\xfe.jpg\n": ["\udcff\udcfe.jpg"],
    "猫.jpg\n".encode(): ["猫.jpg"],
    b"a\0b\n": ["a\0b"],
    b"#a.jpg\n": ["#a.jpg"],
}
ENDED = {
    b"a.jpg\0b.jpg\0": ["a.jpg", "b.jpg"],
    b"a.jpg\0b.jpg": ["a.jpg", "b.jpg"],
    b"new\nline.jpg\0\r\n\0\0": ["new\nline.jpg", "\r\n"],
    b"\xef\xbb\xbfa\0": ["\ufeffa"],
    b"\xff\0": ["\udcff"],
}


def test_each_line_is_a_name_or_each_name_ends_with_nul(read_written_list):
    for data, names in LINES.items():
        assert read_written_list(data) == names
    for data, names in ENDED.items():
        assert read_written_list(data, null_separated=True) == names


@given(names=st.lists(st.binary(min_size=1).filter(lambda name: b"\0" not in name)))
def test_any_bytes_can_be_a_name(tmp_path_factory, names):
    path = tmp_path_factory.mktemp("list") / "list"
    path.write_bytes(b"".join(name + b"\0" for name in names))
    listed = read_list(str(path), threading.Event(), null_separated=True)
    assert [os.fsencode(name) for name in listed] == names  # type: ignore[arg-type]


def test_names_may_span_chunks(read_written_list, monkeypatch):
    monkeypatch.setattr(reading, "CHUNK", 3)
    assert read_written_list(b"a.jpg\nlong name.jpg\r\n\nb\n") == ["a.jpg", "long name.jpg", "b"]


def test_a_name_that_is_too_long_is_an_error_between_others(read_written_list):
    long = b"x" * (3 * MAX_NAME_BYTES)
    first, error, last = read_written_list(b"a.jpg\n" + long + b"\nb.jpg\n")
    assert first == "a.jpg"
    assert last == "b.jpg"
    assert isinstance(error, SourceError)
    assert "-0" in error.hint


def test_a_list_that_breaks_off_is_an_error(read_written_list, monkeypatch):
    def break_off(name, stop):  # noqa: ARG001
        yield b"a.jpg\nb"
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("detcli.source.names.file_chunks", break_off)
    first, error = read_written_list(b"")
    assert first == "a.jpg"
    assert "Input/output error" in str(error)


def test_the_first_name_comes_before_the_list_ends(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    is_taken = threading.Event()

    def write():
        with fifo.open("wb", buffering=0) as file:
            file.write(b"a.jpg\nb.jpg\nc")
            assert is_taken.wait(60)
            file.write(b".jpg\n")

    writer = threading.Thread(target=write)
    writer.start()
    with Sources([], InputOptions(files_from=str(fifo))) as sources:
        items = iter(sources)
        first = sources_of(itertools.islice(items, 2))
        is_taken.set()
        assert first + sources_of(items) == ["a.jpg", "b.jpg", "c.jpg"]
    writer.join(60)


@pytest.mark.parametrize("name", ["gone", "folder", "a\0b", "forbidden"])
def test_a_list_that_cannot_be_read_is_refused(empty_folder, name, monkeypatch):  # noqa: ARG001
    touch("forbidden", "folder/a")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(UsageError) as caught:
        check_list(name)
    assert f"--files-from {name} cannot be read: " in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize("image", [5, None, ["aGVsbG8="]])
def test_an_image_that_is_no_string_is_none(image):
    line = json.dumps({"path": "a.png", "image": image})
    assert ListedInput.parse(line, "list:1") == ListedInput("a.png", image=None, meta=None)


def test_a_list_may_come_from_standard_input_if_there_is_one(monkeypatch, tmp_path):
    for stdin in (None, SimpleNamespace(isatty=lambda: True)):
        monkeypatch.setattr(sys, "stdin", stdin)
        with pytest.raises(UsageError, match="standard input is"):
            check_list("-")
    (tmp_path / "list").write_bytes(b"a.jpg\nb.jpg")
    with (tmp_path / "list").open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        check_list("-")
        assert list(read_list("-", threading.Event(), null_separated=False)) == ["a.jpg", "b.jpg"]


PEAK_MEMORY = """
import sys, tracemalloc
from detcli.config.inputs import InputOptions
from detcli.source.sources import Sources

items = Sources([], InputOptions(files_from=sys.argv[1]))
tracemalloc.start()
print(sum(1 for _ in items), tracemalloc.get_traced_memory()[1])
"""


@pytest.mark.slow
def test_a_long_list_is_never_all_in_memory(tmp_path):
    """Measured in its own process, because threads of other tests would count, too."""
    path = tmp_path / "list"
    with path.open("w") as file:
        for number in range(10_000):
            file.write(f"folder/image-{number:07}.jpg\n")
    command = [sys.executable, "-c", PEAK_MEMORY, path]
    process = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    count, peak = map(int, process.stdout.split())
    assert count == 10_000
    assert peak < 3e6  # all items would take 10 million
