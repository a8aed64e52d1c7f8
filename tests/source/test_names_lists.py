"""Lists of names."""

import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detcli.core.errors import SourceError, UsageError
from detcli.source import fetch
from detcli.source.loading import SourceOptions
from detcli.source.names import MAX_NAME_BYTES, check_list, read_list
from detcli.source.sources import Sources


@pytest.fixture
def read(tmp_path):
    """Write a list and read it."""

    def read(data, *, null_separated=False):
        (tmp_path / "list").write_bytes(data)
        stop = threading.Event()
        return list(read_list(str(tmp_path / "list"), stop, null_separated=null_separated))

    return read


@pytest.mark.parametrize(
    ("data", "names"),
    [
        (b"", []),
        (b"a.jpg", ["a.jpg"]),
        (b"a.jpg\nb.jpg\n", ["a.jpg", "b.jpg"]),
        (b"a.jpg\r\nb.jpg\r\n\r\n", ["a.jpg", "b.jpg"]),
        (b"\n\na.jpg\n\n", ["a.jpg"]),
        (b" a b.jpg \n", [" a b.jpg "]),
        (b"\xef\xbb\xbfa.jpg\n\xef\xbb\xbfb.jpg\n", ["a.jpg", "\ufeffb.jpg"]),
        (b"\xff\xfe.jpg\n", ["\udcff\udcfe.jpg"]),
        ("猫.jpg\n".encode(), ["猫.jpg"]),
        (b"a\0b\n", ["a\0b"]),
        (b"#a.jpg\n", ["#a.jpg"]),
    ],
)
def test_each_line_is_a_name(read, data, names):
    assert read(data) == names


@pytest.mark.parametrize(
    ("data", "names"),
    [
        (b"a.jpg\0b.jpg\0", ["a.jpg", "b.jpg"]),
        (b"a.jpg\0b.jpg", ["a.jpg", "b.jpg"]),
        (b"new\nline.jpg\0\r\n\0\0", ["new\nline.jpg", "\r\n"]),
        (b"\xef\xbb\xbfa\0", ["\ufeffa"]),
        (b"\xff\0", ["\udcff"]),
    ],
)
def test_names_may_end_with_nul(read, data, names):
    assert read(data, null_separated=True) == names


@given(names=st.lists(st.binary(min_size=1).filter(lambda name: b"\0" not in name)))
def test_any_bytes_can_be_a_name(tmp_path_factory, names):
    path = tmp_path_factory.mktemp("list") / "list"
    path.write_bytes(b"".join(name + b"\0" for name in names))
    found = read_list(str(path), threading.Event(), null_separated=True)
    assert [os.fsencode(name) for name in found] == names


def test_names_may_span_chunks(read, monkeypatch):
    monkeypatch.setattr(fetch, "CHUNK", 3)
    assert read(b"a.jpg\nlong name.jpg\r\n\nb\n") == ["a.jpg", "long name.jpg", "b"]


def test_a_name_that_is_too_long_is_an_error_between_others(read):
    long = b"x" * (3 * MAX_NAME_BYTES)
    first, error, last = read(b"a.jpg\n" + long + b"\nb.jpg\n")
    assert (first, last) == ("a.jpg", "b.jpg")
    assert isinstance(error, SourceError)
    assert "-0" in error.hint


def test_a_list_that_breaks_off_is_an_error(read, monkeypatch):
    def break_off(name, stop):  # noqa: ARG001
        yield b"a.jpg\nb"
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("detcli.source.names.file_chunks", break_off)
    first, error = read(b"")
    assert first == "a.jpg"
    assert "Input/output error" in str(error)


def test_the_first_name_comes_before_the_list_ends(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    taken = threading.Event()

    def write():
        with fifo.open("wb", buffering=0) as file:
            file.write(b"a.jpg\nb.jpg\nc")
            assert taken.wait(60)
            file.write(b".jpg\n")

    writer = threading.Thread(target=write)
    writer.start()
    with Sources([], SourceOptions(files_from=str(fifo))) as sources:
        items = iter(sources)
        first = [next(items).origin.source for _ in range(2)]
        taken.set()
        assert [*first, *(item.origin.source for item in items)] == ["a.jpg", "b.jpg", "c.jpg"]
    writer.join(60)


@pytest.mark.parametrize("name", ["gone", "folder", "a\0b", "forbidden"])
def test_a_list_that_cannot_be_read_is_refused(tmp_path, name, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "forbidden").touch()
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(UsageError) as caught:
        check_list(name)
    assert f"--files-from {name} cannot be read: " in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize("stdin", [None, SimpleNamespace(isatty=lambda: True)])
def test_a_list_on_closed_standard_input_is_refused(monkeypatch, stdin):
    monkeypatch.setattr(sys, "stdin", stdin)
    with pytest.raises(UsageError, match="standard input is"):
        check_list("-")


def test_a_list_may_come_from_standard_input(monkeypatch, tmp_path):
    (tmp_path / "list").write_bytes(b"a.jpg\nb.jpg")
    with (tmp_path / "list").open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        check_list("-")
        assert list(read_list("-", threading.Event(), null_separated=False)) == ["a.jpg", "b.jpg"]


PEAK_MEMORY = """
import sys, tracemalloc
from detcli.source.loading import SourceOptions
from detcli.source.sources import Sources

items = Sources([], SourceOptions(files_from=sys.argv[1]))
tracemalloc.start()
print(sum(1 for _ in items), tracemalloc.get_traced_memory()[1])
"""


def test_a_long_list_is_never_all_in_memory(tmp_path):
    """Measured in its own process, because threads of other tests would count, too."""
    path = tmp_path / "list"
    with path.open("w") as file:
        file.writelines(f"folder/picture-{number:07}.jpg\n" for number in range(20_000))
    command = [sys.executable, "-c", PEAK_MEMORY, path]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    count, peak = map(int, done.stdout.split())
    assert count == 20_000
    assert peak < 3e6  # all items would take 20 million
