"""Bytes as they come."""

import contextlib
import io
import os
import sys
import threading
from types import SimpleNamespace

import pytest

from detcli.errors import SourceError
from detcli.source import pipe


@pytest.fixture
def ends():
    """Both ends of a pipe, as descriptors; what the test has left open is closed."""
    inlet, outlet = os.pipe()
    yield inlet, outlet
    for end in (inlet, outlet):
        with contextlib.suppress(OSError):
            os.close(end)


def test_what_is_there_comes_at_once(ends):
    inlet, outlet = ends
    chunks = pipe.read_descriptor(inlet, threading.Event())
    for part in (b"a", b"bc", b"d"):
        os.write(outlet, part)
        assert next(chunks) == part
    os.close(outlet)
    assert list(chunks) == []


def test_a_silence_is_told(ends, monkeypatch):
    monkeypatch.setattr(pipe, "PATIENCE_S", 0.2)
    inlet, outlet = ends
    chunks = pipe.read_descriptor(inlet, threading.Event())
    assert next(chunks) == b""
    os.write(outlet, b"a")
    assert next(chunks) == b"a"


def test_a_wait_can_be_ended(ends):
    stop = threading.Event()
    threading.Timer(0.1, stop.set).start()
    assert b"".join(pipe.read_descriptor(ends[0], stop)) == b""
    assert stop.is_set()


def test_a_file_is_read_to_its_end(tmp_path):
    data = bytes(range(256)) * 1000
    (tmp_path / "file").write_bytes(data)
    chunks = list(pipe.read_file(str(tmp_path / "file"), threading.Event()))
    assert b"".join(chunks) == data
    assert max(map(len, chunks)) <= pipe.CHUNK


def test_a_file_that_is_not_there_is_an_error():
    with pytest.raises(FileNotFoundError):
        next(pipe.read_file("gone", threading.Event()))


def test_standard_input_is_read(ends, monkeypatch):
    inlet, outlet = ends
    os.write(outlet, b"abc")
    os.close(outlet)
    with os.fdopen(os.dup(inlet)) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert list(pipe.read_stdin(threading.Event())) == [b"abc"]


def test_another_object_may_stand_for_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"abc")))
    assert list(pipe.read_stdin(threading.Event())) == [b"abc"]


@pytest.mark.parametrize(
    ("stdin", "reason"),
    [(None, "closed"), (SimpleNamespace(isatty=lambda: True), "is a terminal")],
)
def test_nothing_to_read_is_an_error(monkeypatch, stdin, reason):
    monkeypatch.setattr(sys, "stdin", stdin)
    with pytest.raises(SourceError, match=reason):
        next(pipe.read_stdin(threading.Event()))
