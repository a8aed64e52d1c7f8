"""The bytes of files and pipes: as they come, in time, and no more than an image can need."""

import contextlib
import os
import threading

import cv2
import numpy as np
import pytest

from detcli.config.inputs import InputOptions
from detcli.core.errors import DecodeError, SourceError
from detcli.source import reading as module
from detcli.source.decode import DecodeOptions
from detcli.source.reading import gather, load_file

IMAGE = cv2.imencode(".bmp", np.zeros((10, 20, 3), np.uint8))[1].tobytes()


@pytest.fixture
def pipe(tmp_path):
    """The path of a named pipe."""
    path = tmp_path / "pipe.jpg"
    os.mkfifo(path)
    return path


def test_available_bytes_come_at_once_and_after_a_silence_none(ends, monkeypatch):
    monkeypatch.setattr(module, "IDLE_S", 0.2)
    inlet, outlet = ends
    chunks = module.descriptor_chunks(inlet, threading.Event())
    assert next(chunks) == b""
    for part in (b"a", b"bc", b"d"):
        os.write(outlet, part)
        assert next(chunks) == part
    os.close(outlet)
    assert list(chunks) == []


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


class Zeros:
    """Chunks of zeros after a first chunk, and how many of them were read."""

    def __init__(self, size, count):
        self._size = size
        self._count = count
        self.chunks_read = 0

    def after(self, first_chunk):
        yield first_chunk
        for _ in range(self._count):
            self.chunks_read += 1
            yield bytes(self._size)


def test_what_cannot_be_an_image_is_refused_at_the_first_look():
    zeros = Zeros(2**16, 1000)
    with pytest.raises(DecodeError, match="not in a known image format"):
        gather(zeros.after(bytes(2**16)), 2**40)
    assert zeros.chunks_read == 0


def test_more_bytes_than_a_jpeg_can_need_are_refused():
    jpeg = cv2.imencode(".jpg", np.zeros((10, 20, 3), np.uint8))[1].tobytes()
    chunks = [jpeg, bytes(2**20), bytes(2**20)]
    with pytest.raises(DecodeError, match="536870912 bytes or more for 20x10 pixels"):
        gather(iter(chunks), 2**30, total=2**29)
    zeros = Zeros(2**20, 10_000)
    with pytest.raises(DecodeError, match="too large"):
        gather(zeros.after(jpeg), 2**40)
    assert zeros.chunks_read < 198


def test_a_long_file_of_many_images_is_read():
    """An animation or a document may go on for long after its first image."""
    gif = cv2.imencode(".gif", np.zeros((10, 20, 3), np.uint8))[1].tobytes()
    chunks = [gif] + ([bytes(2**20)] * 80)
    assert len(gather(chunks, 2**30)) == len(gif) + 80 * 2**20


def test_a_large_file_is_refused_by_its_size(tmp_path, monkeypatch):
    path = tmp_path / "d.jpg"
    with path.open("wb") as file:
        file.truncate(12 * 2**30)
    monkeypatch.setattr(os, "read", lambda *_: pytest.fail("it was read"))
    with pytest.raises(DecodeError, match="more than 1616777216 bytes") as caught:
        load_file(path)
    assert "--max-pixels" in caught.value.hint


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="no devices here")  # noqa: PTH110
def test_an_endless_device_is_refused(tmp_path):
    (tmp_path / "zero.jpg").symlink_to("/dev/zero")
    with pytest.raises(DecodeError, match="not in a known image format"):
        load_file(tmp_path / "zero.jpg")


def test_a_pipe_is_read_to_its_end(pipe):
    writer = threading.Thread(target=pipe.write_bytes, args=[IMAGE])
    writer.start()
    assert load_file(pipe).size == (10, 20)
    writer.join()


@pytest.mark.slow
def test_a_pipe_without_a_writer_or_that_drips_is_given_up(pipe):
    with pytest.raises(SourceError, match=r"not read and decoded after 0\.5 s") as caught:
        load_file(pipe, DecodeOptions(InputOptions(input_timeout=0.5)))
    assert "--input-timeout" in caught.value.hint
    is_over = threading.Event()

    def drip():
        with pipe.open("wb", buffering=0) as file, contextlib.suppress(BrokenPipeError):
            while not is_over.wait(0.05):
                file.write(b"\xff")

    writer = threading.Thread(target=drip)
    writer.start()
    with pytest.raises(SourceError, match=r"after 0\.5 s"):
        load_file(pipe, DecodeOptions(InputOptions(input_timeout=0.5)))
    is_over.set()
    writer.join()


def test_chunks_in_time_are_joined_and_late_ones_are_an_error(monkeypatch):
    for limit_s in (0, 10):
        assert gather([b"a", b"b"], 100, limit_s=limit_s) == b"ab"
    seconds = iter(range(100))
    monkeypatch.setattr("detcli.core.timing.time.monotonic", lambda: float(next(seconds)))
    with pytest.raises(SourceError, match="not read and decoded after 5 s"):
        gather([b"a"] * 50, 100, limit_s=5)
    assert next(seconds) == 7
