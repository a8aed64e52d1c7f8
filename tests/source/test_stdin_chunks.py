"""Bytes of standard input and files, as they come."""

import contextlib
import io
import os
import sys
import threading
from types import SimpleNamespace

import pytest

from detcli.errors import SourceError
from detcli.source import stdin as module


@pytest.fixture
def ends():
    """Both ends of a pipe, as descriptors; closed after the test."""
    inlet, outlet = os.pipe()
    yield inlet, outlet
    for end in (inlet, outlet):
        with contextlib.suppress(OSError):
            os.close(end)


def test_available_bytes_come_at_once(ends):
    inlet, outlet = ends
    chunks = module.descriptor_chunks(inlet, threading.Event())
    for part in (b"a", b"bc", b"d"):
        os.write(outlet, part)
        assert next(chunks) == part
    os.close(outlet)
    assert list(chunks) == []


def test_a_silence_gives_an_empty_chunk(ends, monkeypatch):
    monkeypatch.setattr(module, "IDLE_S", 0.2)
    inlet, outlet = ends
    chunks = module.descriptor_chunks(inlet, threading.Event())
    assert next(chunks) == b""
    os.write(outlet, b"a")
    assert next(chunks) == b"a"


def test_waiting_can_be_stopped(ends):
    stop = threading.Event()
    threading.Timer(0.1, stop.set).start()
    assert b"".join(module.descriptor_chunks(ends[0], stop)) == b""
    assert stop.is_set()


def test_a_file_is_read_to_its_end(tmp_path):
    data = bytes(range(256)) * 1000
    (tmp_path / "file").write_bytes(data)
    chunks = list(module.file_chunks(str(tmp_path / "file"), threading.Event()))
    assert b"".join(chunks) == data
    assert max(map(len, chunks)) <= module.CHUNK


def test_a_missing_file_is_an_error():
    with pytest.raises(FileNotFoundError):
        next(module.file_chunks("gone", threading.Event()))


def test_standard_input_is_read(ends, monkeypatch):
    inlet, outlet = ends
    os.write(outlet, b"abc")
    os.close(outlet)
    with os.fdopen(os.dup(inlet)) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert list(module.stdin_chunks(threading.Event())) == [b"abc"]


def test_standard_input_may_be_replaced_by_another_object(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"abc")))
    assert list(module.stdin_chunks(threading.Event())) == [b"abc"]


@pytest.mark.parametrize(
    ("stdin", "reason"),
    [(None, "closed"), (SimpleNamespace(isatty=lambda: True), "is a terminal")],
)
def test_a_closed_input_or_a_terminal_is_an_error(monkeypatch, stdin, reason):
    monkeypatch.setattr(sys, "stdin", stdin)
    with pytest.raises(SourceError, match=reason):
        next(module.stdin_chunks(threading.Event()))
