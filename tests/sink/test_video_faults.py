"""Faults while annotated videos are written: the rest can be played."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from folders import visible_names
from made_videos import YARD, film, live_frames, play
from sample_records import feed, feed_all, frame
from small_disk import small_disk

from detcli.core.errors import OutputError
from detcli.data.geometry import Image
from detcli.data.record import notes_of
from detcli.sink import h264, video
from detcli.sink.folder import OutputFolder
from detcli.sink.video import VideoSink


def test_a_folder_that_opencv_cannot_open_or_an_odd_size_is_an_output_error(tmp_path, monkeypatch):
    out = tmp_path / "\udcff"
    with pytest.raises(OutputError, match="1x1 pixels"):
        feed(VideoSink(OutputFolder(tmp_path)), frame(0, size=(1, 1)))
    feed_all(VideoSink(OutputFolder(out)), film(3))  # PyAV writes into any
    assert (out / "film.mp4").stat().st_size > 1000
    monkeypatch.setattr(video, "_has_h264", lambda: False)
    with pytest.raises(OutputError, match="not Unicode"):
        feed(VideoSink(OutputFolder(out)), frame(0))
    assert visible_names(tmp_path) == [out.name]
    assert visible_names(out) == ["film.mp4"]


@pytest.mark.parametrize(("frames", "hint"), [(5, "can be played"), (0, "the video has no frame")])
def test_before_the_disk_is_full_the_video_ends(frames, hint, tmp_path, monkeypatch):
    sink = VideoSink(OutputFolder(tmp_path))
    free = iter([10**9] * frames)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=next(free, 0)))
    for record in film(frames):
        sink.write(record)
    with pytest.raises(OutputError, match=r"film\.mp4: no space") as caught:
        sink.write(frame(frames))
    sink.close()
    assert caught.value.hint.endswith(hint)
    frame_counts = [len(play(path).shades) for path in tmp_path.glob("[!.]*")]
    assert frame_counts == ([frames] if frames else [])


def noise(random, count, size=(40, 60)):
    for record in film(count, step=0):
        pixels = random.integers(0, 255, size + (3,), np.uint8)
        yield replace(record, picture=Image.whole(pixels))


def test_a_video_that_could_not_be_finished_is_an_output_error(tmp_path, random):
    OutputFolder(tmp_path).video_of(frame(0), ".mp4")  # by an earlier run
    (tmp_path / "film.mp4").write_text("earlier")
    sink = VideoSink(OutputFolder(tmp_path))

    def write():
        for record in noise(random, 500):
            sink.write(record)

    with small_disk(5000):
        with pytest.raises(OutputError, match=r"cannot write .*film\.mp4: File too large"):
            write()
        with pytest.raises(OutputError, match=r"film\.mp4 is not complete: 0 of \d+ frames"):
            sink.close()
    assert visible_names(tmp_path) == ["film.mp4"]
    assert (tmp_path / "film.mp4").read_text() == "earlier"


def test_opencv_that_could_not_finish_is_an_output_error(tmp_path, random, monkeypatch):
    monkeypatch.setattr(video, "_has_h264", lambda: False)
    sink = VideoSink(OutputFolder(tmp_path))
    with small_disk(5000):
        for record in noise(random, 50):
            sink.write(record)
        with pytest.raises(OutputError, match=r"film\.mp4 is not complete: 0 of 50 frames"):
            sink.close()
    assert list(tmp_path.glob("[!.]*")) == []


def test_a_video_that_cannot_be_finished_does_not_keep_the_others(tmp_path, monkeypatch):
    sink = VideoSink(OutputFolder(tmp_path))
    for record in list(live_frames([0, 1])) + list(live_frames([0, 1, 2], film=YARD)):
        sink.write(record)
    finish = h264.H264Encoder.finish

    def fail(encoder):
        if encoder.count == 3:
            raise OSError(errno.EIO, "broken")
        finish(encoder)

    monkeypatch.setattr(h264.H264Encoder, "finish", fail)
    with pytest.raises(OutputError, match=r"camera-1\.mp4 is not complete: 0 of 3"):
        sink.close()
    assert len(play(tmp_path / "camera-0.mp4").shades) == 2
    assert not (tmp_path / "camera-1.mp4").exists()


def test_a_disk_that_fills_up(tmp_path, random):
    """A real disk of 3 MiB, if this user may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = shutil.which("mount")
    unmount = shutil.which("umount")
    is_mounted = False
    if mount:
        command = [mount, "-t", "tmpfs", "-o", "size=3m", "none", str(disk)]
        is_mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    if not is_mounted:
        pytest.skip("a small disk cannot be mounted here")
    try:
        records = list(noise(random, 300, (240, 320)))
        with pytest.raises(OutputError, match=r"film\.mp4: no space left"):
            feed_all(VideoSink(OutputFolder(disk)), records)
        written = [record for record in records if notes_of(record).saved]
        assert len(written) > 10
        assert len(play(disk / "film.mp4").shades) == len(written)
        assert visible_names(disk) == ["film.mp4"]
    finally:
        subprocess.run([unmount, str(disk)], check=True)


INTERRUPTED = """if True:
    import contextlib, signal, sys
    from pathlib import Path
    sys.path.insert(0, sys.argv[2])
    from sample_records import frame
    from detcli.sink.folder import OutputFolder
    from detcli.sink.video import VideoSink
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in background jobs
    with contextlib.closing(VideoSink(OutputFolder(Path(sys.argv[1])))) as sink:
        for number in range(10**9):
            sink.write(frame(number))
            print(number, flush=True)"""


@pytest.mark.slow
def test_an_interrupted_run_leaves_a_video_that_plays(tmp_path):
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path), str(Path(__file__).parents[1])]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:  # type: ignore[call-overload]
        while int(process.stdout.readline()) < 20:
            pass
        os.kill(process.pid, signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in stderr
    assert visible_names(tmp_path) == ["film.mp4"]
    assert len(play(tmp_path / "film.mp4").shades) > 20
