"""GIFs of annotated videos, read back by Pillow, OpenCV and FFmpeg."""

import importlib
import sys
from dataclasses import replace
from typing import NamedTuple

import cv2
import numpy as np
import pytest
from folders import visible_names
from made_videos import DOOR, YARD, film, live_frames
from PIL import Image as PillowImage
from PIL import ImageSequence
from sample_records import Film, failed_frame, failure, feed_all, frame, image
from thinning import thin

import detcli.sink
from detcli.core.errors import DependencyError
from detcli.data.geometry import Image
from detcli.sink import gif
from detcli.sink.draw import annotate
from detcli.sink.folder import OutputFolder
from detcli.sink.gif import GifSink, LoopFrame, encode_loop

TOLERANCE = 4  # shades that the palette is wrong by
FAST = Film("in/film.avi", 30.0)


class Loop(NamedTuple):
    """A GIF as Pillow shows it."""

    images: list  # (H, W, 3) BGR each
    durations_ms: list
    repeats: int | None  # 0 for ever, None for once

    @property
    def shades(self):
        return [round(float(pixels.mean())) for pixels in self.images]

    @property
    def size(self):
        return self.images[0].shape[:2]


def read_loop(path):
    images = []
    durations_ms = []
    with PillowImage.open(path) as file:
        for shown in ImageSequence.Iterator(file):
            images.append(np.array(shown.convert("RGB"))[..., ::-1])
            durations_ms.append(shown.info["duration"])
        return Loop(images, durations_ms, file.info.get("loop"))


@pytest.fixture
def write_loops(tmp_path):
    """Write records and return the GIFs by name."""
    out = tmp_path / "out"

    def write(records, seconds=6.0, *, condensed=False, **options):
        sink = GifSink(OutputFolder(out, **options), seconds, condensed=condensed)
        feed_all(sink, records)
        return {path.name: read_loop(path) for path in sorted(out.glob("*.gif"))}

    return write


def shades(expected):
    return pytest.approx(list(expected), abs=TOLERANCE)


def loop_frames(images, rate=10):
    """Frames of a loop, `rate` a second."""
    return [LoopFrame(pixels, number / rate) for number, pixels in enumerate(images)]


def noise(count, size=(120, 160), darkest=0, brightest=255, rate=10):
    """Frames of a loop whose pixels have nothing in common."""
    random = np.random.default_rng(0)
    images = []
    for _ in range(count):
        images.append(random.integers(darkest, brightest, size + (3,), np.uint8, endpoint=True))
    return loop_frames(images, rate)


def test_the_first_seconds_at_ten_frames_a_second(write_loops):
    (loop,) = write_loops(film(100, FAST, step=2), seconds=2).values()
    assert loop.shades == shades(range(0, 120, 6))
    assert loop.durations_ms == [100] * 20
    assert loop.repeats == 0


@pytest.mark.parametrize("rate", [7, 12.5, 23.976, 25, 30000 / 1001, 59.94, 120])
def test_a_loop_has_the_speed_of_its_video_in_equal_steps(write_loops, rate):
    records = []
    for number in range(round(rate * 5)):
        records.append(frame(number, Film("a.mp4", rate), shade=10 * number % 250))
    (loop,) = write_loops(records, seconds=4).values()
    assert sum(loop.durations_ms) == 4000
    assert len(loop.images) <= 50
    complete_durations = loop.durations_ms[:-1]
    assert max(complete_durations) - min(complete_durations) <= 10  # a tick


def test_frames_far_apart_are_shown_for_as_long(write_loops):
    sparse = Film("a.mp4", 0.5)  # as with --every 2s
    (loop,) = write_loops(film(6, sparse, step=40)).values()
    assert loop.shades == shades([0, 40, 80])
    assert loop.durations_ms == [2000] * 3


def test_a_shorter_video_is_shown_to_its_end(write_loops):
    (loop,) = write_loops(film(7, step=30)).values()
    assert loop.shades == shades([0, 30, 60, 90, 120, 150, 180])
    assert loop.durations_ms == [100] * 7


def test_a_single_frame_is_a_loop(write_loops):
    (loop,) = write_loops(film(1)).values()
    assert loop.shades == shades([0])


def test_frames_that_are_left_out_on_purpose_leave_no_gaps(write_loops):
    records = [frame(number, shade=number) for number in (0, 50, 90, 200)]
    (loop,) = write_loops(records, condensed=True).values()
    assert loop.shades == shades([0, 50, 90, 200])
    assert loop.durations_ms == [100] * 4


def test_a_failed_frame_is_the_one_before_for_longer(write_loops):
    records = film(6, step=30)
    for number in (0, 3, 4):
        records[number] = failed_frame(number)
    (loop,) = write_loops(records).values()
    assert loop.shades == shades([30, 60, 150])
    assert loop.durations_ms == [100, 300, 100]


def test_failed_frames_alone_make_no_loop(write_loops, caplog):
    assert write_loops([failed_frame(0), failed_frame(1)]) == {}
    assert caplog.messages == []


def test_images_make_no_loop_and_one_warning(write_loops, caplog):
    assert write_loops([image(), image("b.jpg"), failure()]) == {}
    assert caplog.messages == ["--gif: there were images but no video, so no GIF was written"]


def test_images_beside_a_video_are_no_matter(write_loops, caplog):
    assert list(write_loops([image()] + film(2))) == ["film.gif"]
    assert caplog.messages == []


def test_each_video_has_a_loop(write_loops):
    other = Film("b.mp4", 25.0)
    loops = write_loops(film(3, step=50) + film(4, other, step=20))
    assert loops["film.gif"].shades == shades([0, 50, 100])
    # Every second frame of 25 a second.
    assert loops["b.gif"].shades == shades([0, 40])


def test_cameras_have_a_loop_each_as_soon_as_it_is_complete(tmp_path):
    sink = GifSink(OutputFolder(tmp_path), 1.0)
    ticks = range(0, 45, 3)  # of 30 a second
    frames_of_door = live_frames(ticks, DOOR, step=10)
    frames_of_yard = live_frames(ticks, YARD, step=12)
    for of_door, of_yard in zip(frames_of_door, frames_of_yard, strict=True):
        sink.write(of_door)
        sink.write(of_yard)
    assert read_loop(tmp_path / "camera-0.gif").durations_ms == [100] * 10
    assert read_loop(tmp_path / "camera-1.gif").shades == shades(range(0, 120, 12))
    sink.close()


def test_frames_of_a_camera_are_shown_by_their_time(write_loops):
    (loop,) = write_loops(live_frames([0, 30, 36, 90], film=DOOR)).values()
    assert loop.durations_ms == [1000, 200, 1800, 30]


def test_a_loop_ends_where_frames_get_another_size(write_loops):
    larger = [frame(2, shade=200, size=(80, 120)), frame(3, shade=200, size=(80, 120))]
    loops = write_loops(film(2, step=50) + larger)
    assert list(loops) == ["film.gif"]
    assert loops["film.gif"].shades == shades([0, 50])


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((40, 60), (40, 60)),
        ((1080, 1920), (270, 480)),
        ((1920, 1080), (480, 270)),
        ((1, 999), (1, 480)),
    ],
)
def test_no_side_is_longer_than_480_pixels(write_loops, size, expected):
    (loop,) = write_loops([frame(size=size)]).values()
    assert loop.size == expected


def test_pixels_that_are_not_square_become_square(write_loops):
    record = frame(size=(100, 100))
    wide_pixels = replace(record.origin.video, pixel_aspect=(2, 1))
    record = replace(record, origin=replace(record.origin, video=wide_pixels))
    (loop,) = write_loops([record]).values()
    assert loop.size == (100, 200)


def test_boxes_are_where_they_are_in_the_annotated_video(write_loops):
    moved = []
    for number in range(3):
        record = frame(number, count=1, shade=90, size=(540, 960))
        boxes = np.array([[100 + 200 * number, 150, 300 + 200 * number, 400]], np.float32)
        moved.append(replace(record, detections=replace(record.detections, xyxy=boxes)))
    (loop,) = write_loops(moved).values()
    for record, shown in zip(moved, loop.images, strict=True):
        annotated = annotate(record.picture.pixels, record.detections)
        expected = cv2.resize(annotated, (480, 270), interpolation=cv2.INTER_AREA)
        assert np.abs(shown.astype(int) - expected).mean() < TOLERANCE
        is_box = np.abs(expected.astype(int) - 90).max(axis=2) > 40
        # The colour of the box is in the palette, although its lines have few pixels.
        assert np.abs(shown.astype(int) - expected)[is_box].mean() < 12


def test_colours_that_are_rare_are_shown_as_they_are():
    grey_row = np.arange(160, dtype=np.uint8)
    grey = np.broadcast_to(grey_row[:, np.newaxis], (120, 160, 3)).copy()
    with_patch = grey.copy()
    with_patch[50:60, 50:60] = (20, 40, 220)
    images = [grey] * 30
    images[20] = with_patch
    shown = _shown(encode_loop(loop_frames(images), 3.0))
    assert len(shown) > 1
    (reddest,) = [pixels for pixels in shown if pixels[55, 55, 2] > 200]
    assert reddest[55, 55].astype(int) == pytest.approx([20, 40, 220], abs=12)
    assert np.array_equal(shown[0], shown[-1])


def _shown(data):
    """The images of an encoded GIF."""
    array = np.frombuffer(data, np.uint8)
    is_read, animation = cv2.imdecodeanimation(array)
    assert is_read
    return [pixels[..., :3] for pixels in animation.frames]


def test_noise_does_not_flicker():
    frames = noise(20, darkest=118, brightest=122)
    shown = _shown(encode_loop(frames, 2.0))
    for pixels in shown[1:]:
        assert np.array_equal(pixels, shown[0])


def test_a_slow_change_is_followed(write_loops):
    (loop,) = write_loops(film(60, step=1)).values()
    assert loop.shades[-1] == pytest.approx(59, abs=gif.STILL + TOLERANCE)
    assert sum(loop.durations_ms) == 6000


def count_palettes(data):
    """Count the palettes for all frames, and those of single ones, in a GIF."""
    flags = data[10]
    global_count = flags >> 7
    position = 13 + global_count * 3 * 2 ** ((flags & 7) + 1)
    local_count = 0
    while data[position] != ord(";"):
        if data[position] == ord("!"):
            position += 2
        else:
            assert data[position] == ord(",")
            local_count += data[position + 9] >> 7
            position += 11
        while data[position]:
            position += 1 + data[position]
        position += 1
    return global_count, local_count


def test_all_frames_have_one_palette():
    assert count_palettes(encode_loop(noise(5), 0.5)) == (1, 0)


@pytest.mark.parametrize(
    "max_bytes", thin("limits of the size of a loop", [70_000, 250_000, 450_000], 1)
)
def test_a_loop_that_is_too_large_has_fewer_or_smaller_frames(monkeypatch, max_bytes):
    frames = noise(6, size=(270, 480))
    assert len(encode_loop(frames, 1.2)) > 900_000
    monkeypatch.setattr(gif, "MAX_BYTES", max_bytes)
    data = encode_loop(frames, 1.2)
    assert max_bytes / 4 < len(data) < max_bytes
    is_read, animation = cv2.imdecodeanimation(np.frombuffer(data, np.uint8))
    assert is_read
    assert sum(animation.durations) == 1200


def test_the_smallest_form_of_the_longest_loop_is_small_enough(monkeypatch):
    monkeypatch.setattr(gif, "FORMS", gif.FORMS[-1:])
    eight = len(encode_loop(noise(8, (96, 96), rate=12.5), 1.0))
    assert eight / 4 * 188 < gif.MAX_BYTES  # as every second frame is left out


def test_the_same_frames_give_the_same_file():
    assert encode_loop(noise(3), 0.3) == encode_loop(noise(3), 0.3)


def test_other_readers_see_the_same_frames(tmp_path):
    av = pytest.importorskip("av")
    data = encode_loop(noise(6, darkest=60, brightest=200), 0.77)
    path = tmp_path / "a.gif"
    path.write_bytes(data)
    by_pillow = read_loop(path)
    by_opencv = _shown(data)
    with av.open(str(path)) as file:
        by_ffmpeg = [decoded.to_ndarray(format="bgr24") for decoded in file.decode(video=0)]
    assert len(by_pillow.images) == len(by_opencv) == len(by_ffmpeg) == 6
    for pillow, opencv, ffmpeg in zip(by_pillow.images, by_opencv, by_ffmpeg, strict=True):
        assert np.array_equal(pillow, opencv)
        assert np.array_equal(pillow, ffmpeg)
    assert sum(by_pillow.durations_ms) == 770


def test_frames_behind_the_end_are_not_drawn(tmp_path, monkeypatch):
    drawn = []

    def count(pixels, *arguments):
        drawn.append(pixels)
        return annotate(pixels, *arguments)

    monkeypatch.setattr(gif, "annotate", count)
    feed_all(GifSink(OutputFolder(tmp_path), 0.5), film(100, step=1))
    assert len(drawn) == 5


def test_records_name_the_loops_that_they_are_in(tmp_path):
    records = film(8)
    feed_all(GifSink(OutputFolder(tmp_path), 0.5), records)
    named = ["saved" in record.to_json() for record in records]
    assert named == [True] * 5 + [False] * 3
    assert records[0].to_json()["saved"] == [str(tmp_path / "film.gif")]


def test_an_interrupt_leaves_no_half_file_and_closing_writes_it(tmp_path, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    sink = GifSink(OutputFolder(tmp_path), 0.5)
    for record in film(5, step=20):
        sink.write(record)
    with monkeypatch.context() as patch:
        patch.setattr(gif, "_encode", interrupt)
        with pytest.raises(KeyboardInterrupt):
            sink.write(frame(5))
    assert visible_names(tmp_path) == []
    sink.close()
    assert visible_names(tmp_path) == ["film.gif"]
    assert read_loop(tmp_path / "film.gif").shades == shades([0, 20, 40, 60, 80])


def test_a_resumed_run_keeps_the_loop_of_the_beginning(write_loops):
    write_loops(film(3, step=50))
    later_frames = [frame(3, shade=200), frame(4, shade=200)]
    loops = write_loops(later_frames + film(2, Film("b.mp4", 10.0)), resumed=True)
    assert list(loops) == ["b.gif", "film.gif"]
    assert loops["film.gif"].shades == shades([0, 50, 100])


def test_what_is_missing_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.delitem(sys.modules, "detcli.sink.gif")
    monkeypatch.delattr(detcli.sink, "gif")
    with pytest.raises(DependencyError, match="Pillow does not load") as caught:
        importlib.import_module("detcli.sink.gif")
    assert caught.value.hint == 'pip install "detcli[video]"'


@pytest.mark.slow
def test_a_real_video_is_below_five_megabytes(tmp_path, shared):
    source = shared("data/videos/car-detection.mp4")
    capture = cv2.VideoCapture(str(source))
    rate = capture.get(cv2.CAP_PROP_FPS)
    sink = GifSink(OutputFolder(tmp_path), 6.0)
    for number in range(80):
        is_read, pixels = capture.read()
        assert is_read
        record = frame(number, Film("car.mp4", rate), count=1)
        feed_record = replace(record, picture=Image.whole(np.asarray(pixels, np.uint8)))
        sink.write(feed_record)
    sink.close()
    path = tmp_path / "car.gif"
    assert path.stat().st_size < 5_000_000
    loop = read_loop(path)
    assert loop.size == (270, 480)
    assert sum(loop.durations_ms) == 6000
