"""Pictures on standard input."""

import os
import sys
import threading
import tracemalloc

import cv2
import numpy as np
import pytest

from detcli.core.errors import DecodeError, SourceError
from detcli.core.record import Origin
from detcli.source import fetch as reading
from detcli.source import stdin as module
from detcli.source.decode import DecodeOptions
from detcli.source.loading import SourceProgress
from detcli.source.stdin import read_stdin


def encode(grey, suffix=".jpg"):
    """A uniformly grey picture file."""
    encoded, data = cv2.imencode(suffix, np.full((24, 32, 3), grey, np.uint8))
    assert encoded
    return data.tobytes()


def grey(item):
    """The grey of an item's picture, rounded to tens; or its error."""
    try:
        return int(round(item.load().pixels.mean(), -1))
    except DecodeError as error:
        return str(error)


class Writer:
    """Writes to standard input on a test's request."""

    def __init__(self, monkeypatch):
        inlet, self._outlet = os.pipe()
        self.stdin = os.fdopen(inlet)
        monkeypatch.setattr(sys, "stdin", self.stdin)

    def write(self, data):
        threading.Thread(target=self._write, args=[data]).start()

    def _write(self, data):
        try:
            while data:
                data = data[os.write(self._outlet, data) :]
        except BrokenPipeError:
            pass

    def close(self):
        os.close(self._outlet)


@pytest.fixture
def writer(monkeypatch):
    writer = Writer(monkeypatch)
    yield writer
    writer.stdin.close()


@pytest.fixture
def read(monkeypatch, tmp_path):
    """Frame number and grey of the pictures in some bytes, and the total."""

    def read(data, stride=1, **options):
        (tmp_path / "stdin").write_bytes(data)
        progress = SourceProgress(1)
        with (tmp_path / "stdin").open() as stdin:
            monkeypatch.setattr(sys, "stdin", stdin)
            items = list(read_stdin(DecodeOptions(**options), progress, stride))
        assert all(item.origin == Origin("-", frame=item.origin.frame) for item in items)
        return [(item.origin.frame, grey(item)) for item in items], progress.total

    return read


def test_every_nth_picture_of_a_stream_is_used_and_every_error(read):
    stream = b"".join(map(encode, (50, 60, 70, 80))) + encode(90)[:-2] + encode(100)
    pictures, _ = read(stream, stride=3)
    assert [(frame, isinstance(found, str)) for frame, found in pictures] == [
        *((0, False), (3, False), (4, True)),
    ]
    assert read(encode(50), stride=3) == ([(None, 50)], 1)


STREAMS = {
    "whole": (encode(50) + encode(100) + encode(150), [50, 100, 150]),
    "with damage": (
        encode(50) + b"junk" + encode(100) + encode(150)[:-9] + encode(200),
        [50, "4 bytes in the stream belong to no picture", 100, "incomplete picture", 200],
    ),
    "broken off": (encode(50) + encode(100)[:-9], [50, "the stream ends in it"]),
    "damaged at its start": (encode(50)[:100] + encode(100), ["incomplete picture", 100]),
}


@pytest.mark.parametrize(("stream", "expected"), STREAMS.values(), ids=STREAMS)
def test_pictures_and_errors_of_a_stream_are_numbered(read, stream, expected):
    parts, total = read(stream)
    assert total is None
    assert [frame for frame, _ in parts] == list(range(len(expected)))
    for (_, part), wanted in zip(parts, expected, strict=True):
        assert part == wanted or wanted in part


FILES = {
    "a JPEG": (encode(50), 50),
    "a WebP": (encode(50, ".webp"), 50),
    "bytes after it": (encode(50) + b"made by a phone", 50),
    "stray bytes between segments": (encode(50)[:20] + b"stray" + encode(50)[20:], 50),
    "too many pixels": (encode(50) + bytes(2**19), "too large"),
    "no picture, without an end": (bytes(2**25), "not in a known picture format"),
    "nothing": (b"", "empty"),
    "two bytes": (b"\xff\xd8", "not a picture"),
    "no picture": (b"hello" * 100, "not a picture"),
    "cut": (encode(50)[:-2], "damaged"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_single_file_has_no_number(read, name):
    data, expected = FILES[name]
    limit = 100 if expected == "too large" else 10_000
    ((frame, found),), total = read(data, max_pixels=limit)
    assert (frame, total) == (None, 1)
    assert found == expected or expected in found


@pytest.mark.parametrize("suffix", [".png", ".bmp", ".ppm"])
def test_a_stream_of_other_pictures_is_an_error(read, suffix):
    ((_, alone),), _ = read(encode(50, suffix))
    ((_, error),), _ = read(encode(50, suffix) + encode(60, suffix))
    assert (alone, "only JPEGs can be sent as a stream" in error) == (50, True)


def test_each_picture_comes_when_it_is_complete(writer):
    items = read_stdin(DecodeOptions(), SourceProgress())
    writer.write(encode(50) + encode(100) + encode(150)[:50])
    assert [grey(next(items)), grey(next(items))] == [50, 100]
    writer.write(encode(150)[50:])
    assert grey(next(items)) == 150
    writer.close()
    assert list(items) == []


def test_the_first_picture_does_not_wait_forever(writer, monkeypatch):
    monkeypatch.setattr(reading, "IDLE_S", 0.2)
    items = read_stdin(DecodeOptions(), SourceProgress())
    writer.write(encode(50))
    first = next(items)  # no more bytes come, but the pipe stays open
    assert (first.origin.frame, grey(first)) == (0, 50)
    writer.write(encode(100))
    second = next(items)
    assert (second.origin.frame, grey(second)) == (1, 100)
    writer.close()
    assert list(items) == []


def test_reading_can_be_stopped(writer):
    progress = SourceProgress()
    items = read_stdin(DecodeOptions(), progress)
    writer.write(encode(50) * 2)
    assert grey(next(items)) == 50
    progress.stop.set()
    assert len(list(items)) <= 1


def test_memory_does_not_grow_with_the_stream(monkeypatch):
    def peak(count):
        chunk = encode(50)
        monkeypatch.setattr(module, "stdin_chunks", lambda _: (chunk for _ in range(count)))
        tracemalloc.start()
        try:
            assert sum(1 for _ in read_stdin(DecodeOptions(), SourceProgress())) == count
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(2000) < peak(100) + 100_000  # the stream has more than a million bytes


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(5, "Input/output error"), "cannot be read: Input/output error"),
        (SourceError("standard input is closed", "open it"), "standard input is closed"),
    ],
)
def test_unreadable_input_is_an_error(monkeypatch, error, reason):
    def fail(stop):  # noqa: ARG001
        raise error
        yield

    monkeypatch.setattr(module, "stdin_chunks", fail)
    (item,) = read_stdin(DecodeOptions(), SourceProgress())
    assert item.origin.source == "-"
    with pytest.raises(SourceError, match=reason) as caught:
        item.load()
    assert caught.value.hint
