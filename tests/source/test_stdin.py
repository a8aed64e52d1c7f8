"""Images on standard input."""

import io
import itertools
import os
import sys
import threading
import tracemalloc
from types import SimpleNamespace

import cv2
import number_video
import numpy as np
import pytest

from detcli.config.inputs import InputOptions
from detcli.core.errors import DecodeError, SourceError
from detcli.data.record import Origin
from detcli.source import reading
from detcli.source import stdin as module
from detcli.source.decode import DecodeOptions
from detcli.source.loading import SourceProgress
from detcli.source.stdin import read_stdin


def encode(grey, suffix=".jpg"):
    """A uniformly grey image file."""
    encoded, data = cv2.imencode(suffix, np.full((24, 32, 3), grey, np.uint8))
    assert encoded
    return data.tobytes()


def grey(item):
    """The grey of an item's image, rounded to tens; or its error."""
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
def read_bytes(monkeypatch, tmp_path):
    """Frame number and grey of the images in some bytes, and the total."""

    def read(data, **inputs):
        (tmp_path / "stdin").write_bytes(data)
        progress = SourceProgress(1)
        with (tmp_path / "stdin").open() as stdin:
            monkeypatch.setattr(sys, "stdin", stdin)
            items = list(read_stdin(DecodeOptions(InputOptions(**inputs)), progress))
        images = []
        for item in items:
            assert item.origin == Origin("-", None, frame=item.origin.frame)
            images.append((item.origin.frame, grey(item)))
        return images, progress.total

    return read


def test_every_nth_image_of_a_stream_is_used_and_every_error(read_bytes):
    stream = b"".join(map(encode, (50, 60, 70, 80))) + encode(90)[:-2] + encode(100)
    images, _ = read_bytes(stream, vid_stride=3)
    frames_and_failures = []
    for frame, image in images:
        has_failed = isinstance(image, str)
        frames_and_failures.append((frame, has_failed))
    assert frames_and_failures == [(0, False), (3, False), (4, True)]
    assert read_bytes(encode(50), vid_stride=3) == ([(None, 50)], 1)


STREAMS = [
    (encode(50) + encode(100) + encode(150), [50, 100, 150]),
    (
        encode(50) + b"junk" + encode(100) + encode(150)[:-9] + encode(200),
        [50, "4 bytes in the stream belong to no image", 100, "incomplete image", 200],
    ),
    (encode(50) + encode(100)[:-9], [50, "the stream ends in it"]),
    (encode(50)[:100] + encode(100), ["incomplete image", 100]),
    (encode(50, ".png") + encode(100, ".png") + encode(150, ".png"), [50, 100, 150]),
    (encode(50, ".png")[:-12] + encode(100, ".png") * 2, ["chunks do not follow", 100, 100]),
    (encode(50, ".png")[:-20] + encode(100, ".png") * 2, ["chunks do not follow", 100, 100]),
    (encode(50, ".png")[:-30] + encode(100, ".png") * 2, ["chunks do not follow", 100, 100]),
    (
        encode(50, ".png")[:-20] + encode(100, ".png") + b"junk" + encode(150, ".png"),
        ["its chunks do not follow", 100, "4 bytes in the stream belong to no image", 150],
    ),
    (encode(50, ".ppm") + encode(100, ".ppm"), [50, 100]),
    (encode(50, ".ppm") + b"junk" + encode(100, ".ppm")[:-1], [50, "4 bytes", "stream ends in it"]),
    (b"P5 # by hand\n2\n# and\n1 65535\n" + 2 * b"\x99\0" + b"P5 1 1 255 \x32", [150, 50]),
    (b"P6 wide\n" + bytes(2000) + b"P6 1 1 255 222", ["its header has no size", 50]),
]


def test_images_and_errors_of_a_stream_are_numbered(read_bytes):
    for stream, expected in STREAMS:
        parts, total = read_bytes(stream)
        assert total is None
        pairs = zip(parts, expected, strict=True)  # type: ignore[call-overload]
        for number, ((frame, part), expected_part) in enumerate(pairs):
            assert frame == number
            assert part == expected_part or expected_part in part


FILES = {
    "a JPEG": (encode(50), 50),
    "a WebP": (encode(50, ".webp"), 50),
    "bytes after it": (encode(50) + b"made by a phone", 50),
    "stray bytes between segments": (encode(50)[:20] + b"stray" + encode(50)[20:], 50),
    "too many pixels": (encode(50) + bytes(2**19), "too large"),
    "no image, without an end": (bytes(2**25), "not in a known image format"),
    "nothing": (b"", "empty"),
    "two bytes": (b"\xff\xd8", "not an image"),
    "no image": (b"hello" * 100, "not an image"),
    "cut": (encode(50)[:-2], "cut off"),
}


def test_a_single_file_has_no_number(read_bytes):
    for name, (data, expected) in FILES.items():
        limit = 100 if expected == "too large" else 10_000
        ((frame, content),), total = read_bytes(data, max_pixels=limit)
        assert frame is None, name
        assert total == 1, name
        assert content == expected or expected in content, name
    for suffix in (".png", ".bmp", ".ppm"):
        assert read_bytes(encode(50, suffix)) == ([(None, 50)], 1)


@pytest.mark.parametrize(
    "pair",
    ["bmp bmp", "webp webp", "gif gif", "avif avif", "webp png", "png jpg", "jpg bmp",
     "png tiff", "ppm webp", "jpg avif"],
)  # fmt: skip
def test_no_image_behind_another_is_dropped(pair, read_bytes):
    first, second = pair.split()
    assert read_bytes(encode(50, f".{first}")) == ([(None, 50)], 1)
    ((_, error),), _ = read_bytes(encode(50, f".{first}") + encode(60, f".{second}"))
    assert "only JPEG, PNG or binary PNM can be a stream" in error


def test_what_is_within_an_image_or_attached_to_it_is_no_other(read_bytes):
    kinds, exif = (cv2.IMAGE_METADATA_EXIF,), np.frombuffer(b"II*\0\x08\0\0\0" + bytes(6), np.uint8)
    grey = np.full((24, 32, 3), 50, np.uint8)
    _, webp = cv2.imencodeWithMetadata(".webp", grey, kinds, exif[None])  # type: ignore[call-overload]
    assert b"II*\0" in webp.tobytes()
    phone = encode(50) + b"\0\0\0\x18ftypmp42" + bytes(99)
    for data in (webp.tobytes(), phone):
        assert read_bytes(data) == ([(None, 50)], 1)


@pytest.mark.parametrize(
    ("codec", "pixels"),
    [("mjpeg", "yuvj420p"), ("png", "rgb24"), ("ppm", "rgb24"), ("pgm", "gray")],
)
def test_what_ffmpeg_pipes_is_a_stream(codec, pixels, read_bytes):
    """With the muxer of `ffmpeg -f image2pipe`."""
    av = pytest.importorskip("av")
    pipe, expected = io.BytesIO(), [50, 100, 150]
    with av.open(pipe, "w", format="image2pipe") as muxer:
        stream = muxer.add_stream(codec, rate=25, width=32, height=24, pix_fmt=pixels)
        for image in expected:
            frame = av.VideoFrame.from_ndarray(np.full((24, 32, 3), image, np.uint8), "bgr24")
            muxer.mux(stream.encode(frame.reformat(format=pixels)))
        muxer.mux(stream.encode())
    assert read_bytes(pipe.getvalue()) == (list(enumerate(expected)), None)


def test_frames_have_times_where_their_rate_is_given(monkeypatch):
    stream = encode(50) + encode(60)[:-9] + encode(70)
    monkeypatch.setattr(module, "stdin_chunks", lambda _: iter([stream]))
    options = DecodeOptions(InputOptions(source=("-",), fps=29.97))
    items = list(read_stdin(options, SourceProgress()))
    assert len(items) == 3
    for number, item in enumerate(items):
        assert item.origin == Origin("-", None, frame=number, time_s=number / 29.97)


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".avi"])
def test_a_video_is_refused_with_what_makes_images_of_it(suffix, monkeypatch, tmp_path):
    path = tmp_path / f"clip{suffix}"
    video = number_video.open_writer(path, (32, 24))
    video.write(np.zeros((24, 32, 3), np.uint8))
    video.release()
    for data, reason, hint in (
        (path.read_bytes(), "a video, and ", "else: ffmpeg -i - -f image2pipe -c:v mjpeg "),
        (2 * encode(50, ".bmp"), "several images", "or send JPEGs: ffmpeg -i - -f image2pipe"),
        (bytes(32 * 24 * 3), "not in a known image format", "ffmpeg -f rawvideo -pix_fmt bgr24"),
    ):
        monkeypatch.setattr(module, "stdin_chunks", lambda _, data=data: iter([data]))
        (item,) = read_stdin(DecodeOptions(), SourceProgress())
        with pytest.raises(DecodeError, match=reason) as caught:
            item.load()
        assert hint in caught.value.hint


def test_each_image_comes_when_it_is_complete(writer, monkeypatch):
    monkeypatch.setattr(reading, "IDLE_S", 0.2)
    items = read_stdin(DecodeOptions(), SourceProgress())
    for number, part in enumerate((encode(50), encode(60) + encode(70)[:50], encode(70)[50:])):
        writer.write(part)  # and no more, but the pipe stays open
        item = next(items)
        assert item.origin.frame == number
        assert grey(item) == 50 + 10 * number
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
        monkeypatch.setattr(module, "stdin_chunks", lambda _: itertools.repeat(chunk, count))
        tracemalloc.start()
        try:
            image_count = 0
            for _ in read_stdin(DecodeOptions(), SourceProgress()):
                image_count += 1
            assert image_count == count
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(2000) < peak(100) + 100_000  # the stream has more than a million bytes


def test_unreadable_input_is_an_error(monkeypatch):
    for stdin, reason in (
        (None, "standard input is closed"),
        (SimpleNamespace(isatty=lambda: True), "is a terminal"),
        (OSError(5, "Input/output error"), "cannot be read: Input/output error"),
    ):
        monkeypatch.setattr(sys, "stdin", stdin)
        if isinstance(stdin, OSError):
            monkeypatch.setattr(module, "stdin_chunks", lambda _, error=stdin: throw(error))
        (item,) = read_stdin(DecodeOptions(), SourceProgress())
        assert item.origin.source == "-"
        with pytest.raises(SourceError, match=reason) as caught:
            item.load()
        assert caught.value.hint


def throw(error):
    raise error
    yield


def test_standard_input_may_be_replaced_by_another_object(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"abc")))
    assert list(module.stdin_chunks(threading.Event())) == [b"abc"]
