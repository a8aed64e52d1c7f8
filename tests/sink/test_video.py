"""Annotated videos."""

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from nasty_names import NASTY
from sample_records import FILM, failed_frame, failure, frame, picture
from small_disk import small_disk

from detcli.draw import annotate
from detcli.errors import OutputError
from detcli.geometry import Picture
from detcli.record import Clip
from detcli.sink.folder import OutputFolder
from detcli.sink.video import LIVE_RATE, LONGEST_PAUSE_S, VideoSink

DOOR, YARD = Clip("camera:0", 0.0, live=True), Clip("camera:1", 0.0, live=True)
TOLERANCE = 6  # shades that the codec is wrong by


def play(path):
    """The shades of a video's frames, its rate and its size as (height, width)."""
    # Names that are no Unicode crash OpenCV.
    link = path.with_name("link.mp4")
    link.symlink_to(path.name)
    video = cv2.VideoCapture(str(link))
    link.unlink()
    assert video.isOpened(), path
    shades = []
    while True:
        more, pixels = video.read()
        if not more:
            break
        shades.append(round(float(pixels.mean())))
        size = pixels.shape[:2]
    rate = video.get(cv2.CAP_PROP_FPS)
    assert len(shades) == video.get(cv2.CAP_PROP_FRAME_COUNT)
    return SimpleNamespace(shades=shades, rate=rate, size=size)


@pytest.fixture
def save(tmp_path):
    """Write records and return the videos by name."""
    out = tmp_path / "out"

    def write(*records, **options):
        sink = VideoSink(OutputFolder(out, **options))
        for record in records:
            sink.write(record)
        sink.close()
        return {path.name: play(path) for path in sorted(out.iterdir(), reverse=True)}

    return write


def film(count, clip=FILM, step=10):
    """Frames that become brighter."""
    return [frame(number, clip, number * step) for number in range(count)]


def alike(shades, *expected):
    assert shades == pytest.approx(list(expected), abs=TOLERANCE)
    return True


def test_an_empty_run_makes_an_empty_folder(save):
    assert save() == {}


def test_pictures_are_left_to_the_image_sink(save):
    assert save(picture(), failure(), replace(picture("-"), frame=0)) == {}


def test_a_frame_a_frame_in_order(save):
    (video,) = save(*film(20)).values()
    assert alike(video.shades, *range(0, 200, 10))
    assert video.size == (40, 60)


def test_the_video_is_called_after_its_source_and_is_there_when_it_is_finished(tmp_path):
    out = tmp_path / "out"
    sink = VideoSink(OutputFolder(out))
    for record in film(3):
        sink.write(record)
        assert not (out / "film.mp4").exists()
    sink.close()
    assert [path.name for path in out.iterdir()] == ["film.mp4"]


@pytest.mark.parametrize("rate", [0.5, 1, 12.5, 12.5 / 3, 23.976, 30000 / 1001, 30, 59.94, 240])
def test_the_rate_is_the_clips(save, rate):
    (video,) = save(*film(5, Clip("a.mp4", rate))).values()
    assert video.rate == pytest.approx(rate, rel=2e-4)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf"), 90_000.0, 1e-9])
def test_a_rate_that_is_none_becomes_the_usual(save, rate):
    (video,) = save(*film(5, Clip("a.mp4", rate))).values()
    assert video.rate == LIVE_RATE
    assert len(video.shades) == 5


@pytest.mark.parametrize("size", [(2, 2), (16, 16), (360, 640), (64, 8190), (1080, 1920)])
def test_the_size_is_the_frames(save, size):
    (video,) = save(*(frame(number, size=size) for number in range(2))).values()
    assert video.size == size


def test_an_odd_last_row_and_column_are_not_written(save):
    (video,) = save(frame(0, size=(41, 61))).values()
    assert video.size == (40, 60)


def test_frames_too_large_for_the_usual_codec_are_written(save):
    (video,) = save(frame(0, shade=90, size=(16, 9000))).values()
    assert (video.size, len(video.shades)) == ((16, 9000), 1)


def test_detections_are_drawn(tmp_path):
    record = frame(0, count=1, shade=90, size=(200, 300))
    sink = VideoSink(OutputFolder(tmp_path))
    sink.write(record)
    sink.close()
    _, pixels = cv2.VideoCapture(str(tmp_path / "film.mp4")).read()
    expected = annotate(record.picture.pixels, record.detections)
    assert np.abs(pixels.astype(int) - expected).mean() < TOLERANCE
    assert (record.picture.pixels == 90).all()


def test_each_video_has_a_file(save):
    other, same = Clip("b.mp4", 25.0), Clip("elsewhere/film.mov", 5.0)
    videos = save(*film(3), *film(4, other), *film(5, same))
    assert {name: (len(one.shades), one.rate) for name, one in videos.items()} == {
        "film.mp4": (3, 10),
        "b.mp4": (4, 25),
        "film-2.mp4": (5, 5),
    }


def test_the_same_video_once_more_has_another_file(save):
    assert list(save(*film(2), *film(2))) == ["film.mp4", "film-2.mp4"]


def test_a_failed_frame_shows_the_one_before(save):
    records = film(6, step=30)
    records[2:4] = [failed_frame(2), failed_frame(3)]
    records[5] = failed_frame(5)
    (video,) = save(*records).values()
    assert alike(video.shades, 0, 30, 30, 30, 120, 120)


def test_what_failed_before_the_first_frame_is_black(save):
    (video,) = save(failed_frame(0), failed_frame(1), frame(2, shade=200)).values()
    assert alike(video.shades, 0, 0, 200)


def test_a_video_of_which_every_frame_failed_has_no_file(save):
    assert save(failed_frame(0), failed_frame(1)) == {}


def test_a_stride_leaves_no_gaps(save):
    records = [frame(number, Clip("a.avi", 2.0), number * 5) for number in (0, 5, 10, 15)]
    (video,) = save(*records).values()
    assert alike(video.shades, 0, 25, 50, 75)


def test_a_change_of_size_begins_a_new_file(save):
    small = film(3, step=30)
    large = [frame(number, shade=number * 30, size=(80, 120)) for number in (4, 5)]
    videos = save(*small, failed_frame(3), *large)
    assert alike(videos["film.mp4"].shades, 0, 30, 60, 60)
    assert alike(videos["film-2.mp4"].shades, 120, 150)
    assert videos["film-2.mp4"].size == (80, 120)


def live(*times, clip=DOOR, step=20):
    """Frames of a camera, at these frames of the video."""
    return [
        frame(number, clip, number * step, time_s=time / LIVE_RATE)
        for number, time in enumerate(times)
    ]


@pytest.mark.parametrize(
    ("times", "shown"),
    [
        ((0, 1, 2, 3), (0, 20, 40, 60)),
        ((0, 0.9, 2.2, 2.8), (0, 20, 40, 60)),
        ((0, 3, 4), (0, 0, 0, 20, 40)),
        ((0, 0.3, 1, 1.2, 2), (0, 40, 80)),
        ((100, 101, 102), (0, 20, 40)),
        ((5, 3, 6), (0, 40)),
    ],
)
def test_live_frames_are_placed_by_their_time(save, times, shown):
    (video,) = save(*live(*times)).values()
    assert alike(video.shades, *shown)
    assert video.rate == LIVE_RATE


def test_a_live_frame_that_failed_shows_the_one_before(save):
    records = live(0, 1, 2, 3)
    records[1] = failed_frame(1, DOOR, time_s=1 / LIVE_RATE)
    (video,) = save(*records).values()
    assert alike(video.shades, 0, 0, 40, 60)


def test_a_long_pause_of_a_live_source_is_shortened(save):
    day = 24 * 3600 * LIVE_RATE
    (video,) = save(*live(0, 1, day, day + 1, day + 3)).values()
    pause = round(LONGEST_PAUSE_S * LIVE_RATE)
    assert alike(video.shades, 0, *[20] * pause, 40, 60, 60, 80)


def test_live_sources_that_come_together_have_a_file_each(save):
    mixed = [
        record
        for pair in zip(live(0, 1, 2), live(0, 1, 2, clip=YARD, step=5), strict=True)
        for record in pair
    ]
    videos = save(*mixed)
    assert alike(videos["camera-0.mp4"].shades, 0, 20, 40)
    assert alike(videos["camera-1.mp4"].shades, 0, 5, 10)


def test_an_input_is_never_written_over(save, tmp_path):
    mine = tmp_path / "out" / "film.mp4"
    save(*film(2))
    before = mine.read_bytes()
    save(*film(5), inputs={mine})
    assert mine.read_bytes() == before
    assert len(play(tmp_path / "out" / "film-2.mp4").shades) == 5


def test_another_run_writes_over_its_own_output(save):
    save(*film(2))
    assert len(save(*film(5))["film.mp4"].shades) == 5


@pytest.mark.parametrize("name", NASTY)
def test_any_name_is_saved_in_the_folder(save, tmp_path, name):
    assert len(save(frame(0, Clip(name, 5.0)))) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("name", ["%03d", "new\nline", "concat:x", "猫 é", "a|b", "[x]*"])
def test_any_folder_will_do(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    sink = VideoSink(OutputFolder(Path(name)))
    sink.write(frame(0))
    sink.close()
    shutil.copy(tmp_path / name / "film.mp4", tmp_path / "film.mp4")
    assert len(play(tmp_path / "film.mp4").shades) == 1


def test_a_folder_that_opencv_cannot_open_is_an_output_error(tmp_path):
    sink = VideoSink(OutputFolder(tmp_path / "\udcff"))
    with pytest.raises(OutputError, match="no Unicode"):
        sink.write(frame(0))
    sink.close()
    assert list((tmp_path / "\udcff").iterdir()) == []


def test_a_size_that_no_codec_takes_is_an_output_error(tmp_path):
    sink = VideoSink(OutputFolder(tmp_path))
    with pytest.raises(OutputError, match="1x1 pixels"):
        sink.write(frame(0, size=(1, 1)))
    sink.close()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_goes_is_an_output_error(tmp_path):
    sink = VideoSink(OutputFolder(tmp_path / "out"))
    (tmp_path / "out").rmdir()
    with pytest.raises(OutputError, match=r"film\.mp4"):
        sink.write(frame(0))


def test_before_the_disk_is_full_the_video_ends_and_can_be_played(tmp_path, monkeypatch):
    sink = VideoSink(OutputFolder(tmp_path))
    free = iter([10**9] * 5)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=next(free, 0)))
    for record in film(5):
        sink.write(record)
    with pytest.raises(OutputError, match=r"film\.mp4: no space"):
        sink.write(frame(5))
    sink.close()
    assert len(play(tmp_path / "film.mp4").shades) == 5


def test_a_video_that_could_not_be_finished_is_an_output_error(tmp_path, random):
    (tmp_path / "film.mp4").write_text("kept")
    sink = VideoSink(OutputFolder(tmp_path))
    with small_disk(5000):
        for record in film(50, step=1):
            noise = random.integers(0, 255, (40, 60, 3), np.uint8)
            sink.write(replace(record, picture=Picture.whole(noise)))
        with pytest.raises(OutputError, match=r"film\.mp4 is not complete: 0 of 50 frames"):
            sink.close()
    assert [path.name for path in tmp_path.iterdir()] == ["film.mp4"]
    assert (tmp_path / "film.mp4").read_text() == "kept"


def test_a_video_that_cannot_be_finished_does_not_keep_the_others(tmp_path, monkeypatch):
    sink = VideoSink(OutputFolder(tmp_path))
    for record in (*live(0, 1), *live(0, 1, clip=YARD)):
        sink.write(record)
    sink.write(failed_frame(2, YARD, time_s=2 / LIVE_RATE))  # is owed: the frame before, once more
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    with pytest.raises(OutputError, match=r"camera-1\.mp4"):
        sink.close()
    assert len(play(tmp_path / "camera-0.mp4").shades) == 2
    assert len(play(tmp_path / "camera-1.mp4").shades) == 2


FULL_DISK = """if True:
    import sys
    from pathlib import Path
    sys.path.insert(0, sys.argv[2])
    import numpy as np
    from dataclasses import replace
    from sample_records import frame
    from detcli.errors import OutputError
    from detcli.geometry import Picture
    from detcli.sink.folder import OutputFolder
    from detcli.sink.video import VideoSink
    sink, written = VideoSink(OutputFolder(Path(sys.argv[1]))), 0
    noise = np.random.default_rng(0).integers(0, 255, (240, 320, 3), np.uint8)
    try:
        for number in range(2000):
            moved = Picture.whole(np.roll(noise, number * 7, axis=1))
            sink.write(replace(frame(number), picture=moved))
            written += 1
    except OutputError as error:
        print(written, error)
    sink.close()
"""


def test_a_disk_that_fills_up(tmp_path):
    """A real one, of 3 MiB, where this user may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount, unmount = map(shutil.which, ("mount", "umount"))
    options = ["-t", "tmpfs", "-o", "size=3m", "none", str(disk)]
    if not mount or subprocess.run([mount, *options], capture_output=True, check=False).returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        tests = str(Path(__file__).parents[1])
        run = [sys.executable, "-c", FULL_DISK, str(disk), tests]
        done = subprocess.run(run, capture_output=True, text=True, check=True)
        written, message = done.stdout.split(maxsplit=1)
        assert "film.mp4: no space left" in message
        assert len(play(disk / "film.mp4").shades) == int(written) > 10
        assert [path.name for path in disk.iterdir()] == ["film.mp4"]
    finally:
        subprocess.run([unmount, str(disk)], check=True)


def test_an_interrupted_run_leaves_a_video_that_plays(tmp_path):
    code = """if True:
        import contextlib, sys
        from pathlib import Path
        sys.path.insert(0, sys.argv[2])
        from sample_records import frame
        from detcli.sink.folder import OutputFolder
        from detcli.sink.video import VideoSink
        with contextlib.closing(VideoSink(OutputFolder(Path(sys.argv[1])))) as sink:
            for number in range(10**9):
                sink.write(frame(number))
                print(number, flush=True)"""
    run = [sys.executable, "-c", code, str(tmp_path), str(Path(__file__).parents[1])]
    with subprocess.Popen(
        run, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        while int(process.stdout.readline()) < 20:
            pass
        os.kill(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in said
    assert [path.name for path in tmp_path.iterdir()] == ["film.mp4"]
    assert len(play(tmp_path / "film.mp4").shades) > 20


@pytest.mark.parametrize("name", ["car-detection.mp4", "bottle-detection.mp4"])
def test_a_real_video_keeps_size_rate_and_frames(tmp_path, shared, name):
    source = shared(f"data/videos/{name}")
    video = cv2.VideoCapture(str(source))
    clip = Clip(str(source), video.get(cv2.CAP_PROP_FPS))
    sink = VideoSink(OutputFolder(tmp_path))
    count = 0
    while (read := video.read())[0]:
        record = replace(frame(count, clip, count=1), picture=Picture.whole(read[1]))
        sink.write(record)
        count += 1
    sink.close()
    written = play(tmp_path / name)
    assert len(written.shades) == count == video.get(cv2.CAP_PROP_FRAME_COUNT)
    assert written.rate == pytest.approx(clip.frames_per_second, rel=1e-3)
    assert written.size == read_size(video)


def read_size(video):
    return (int(video.get(cv2.CAP_PROP_FRAME_HEIGHT)), int(video.get(cv2.CAP_PROP_FRAME_WIDTH)))
