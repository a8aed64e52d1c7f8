"""`detcli predict --save` of videos: sound, and what leaves it out."""

import contextlib
import sys

import cv2
import numpy as np
import pytest
from colour_model import image_of
from json_lines import column_of, lines
from made_videos import record_film, rotate, watch
from PIL import Image, ImageSequence

import detcli.sink
from detcli.data.record import box_of
from detcli.storage.cache import warn_once

TIMES = [number / 25 for number in range(30)] + [2.0, 2.5]


@pytest.fixture
def annotate_video(predict, tmp_path):
    """Annotate a video with sound, and return what is written and said."""

    def annotate(*options):
        record_film(tmp_path / "a.mkv", TIMES, signal_s=0.4, sound="libopus")
        completed = predict("a.mkv --save out --max-det 1", options)
        return watch(tmp_path / "out/a.mp4"), completed

    return annotate


def test_a_video_keeps_its_times_and_its_sound(annotate_video):
    written, completed = annotate_video()
    assert written.codec == "h264"
    assert written.times == pytest.approx(TIMES, abs=1e-5)
    assert written.sound == "opus"
    assert written.heard_s == pytest.approx(0.4, abs=0.03)
    for record in completed.records:
        assert record["saved"] == ["out/a.mp4"]
    assert "wrote 1 file to" in completed.stderr


def test_a_voice_is_not_kept_where_a_face_is_hidden(annotate_video, caplog):
    warn_once.cache_clear()
    written, _ = annotate_video("--blur", "red")
    assert written.sound is None
    assert len(written.times) == len(TIMES)
    assert "annotated videos have no sound with --blur" in caplog.text


def test_a_mirrored_video_is_mirrored_in_all_that_is_made_of_it(
    predict, make_video, in_shards, tmp_path
):
    """The upper left is red, but is to be shown below."""
    rotate(make_video(frames=70, red_from=0), (1, 0, 0, -1))
    late = predict("clip.mp4 --conf 0.6 --start 6 --save out").records
    single_run, merged = in_shards("clip.mp4 --conf 0.6")
    single_run_records = lines(single_run)
    merged_records = lines(merged)
    assert len(late) == 10
    assert len(single_run_records) == 70
    assert len(merged_records) == 70
    for record in late + single_run_records + merged_records:
        assert record["detections"]
        for detection in record["detections"]:
            left, top, _, _ = box_of(detection)
            assert left < 32
            assert top >= 32
    green = cv2.VideoCapture(str(tmp_path / "out/clip.mp4")).read()[1][..., 1]
    assert green[34:62, 2:30].mean() < 50 < green[2:30, 2:30].mean()


@pytest.mark.parametrize("sides", [(64, 128), (128, 64)])
def test_a_stream_whose_size_changes_has_its_first_size_in_all_that_is_said(
    predict, tmp_path, sides
):
    """FFmpeg scales the other frames to it, so that is what was looked at."""
    with (tmp_path / "a.mjpeg").open("wb") as file:
        for side in sides:
            cells = range(side // 16)
            red = [("red", column, row) for column in cells for row in cells]
            _, jpeg = cv2.imencode(".jpg", image_of(red, size=(side, side)))
            for _ in range(5):
                file.write(jpeg)
    first = sides[0]
    records = predict("a.mjpeg --conf 0.6 --save out").records
    assert len(records) == 10
    for record in records:
        assert record["width"] == first
        assert record["height"] == first
        assert max(max(box_of(detection)) for detection in record["detections"]) == first / 2
    (video,) = tmp_path.glob("out/*.mp4")
    assert watch(video).size == (first, first)


def test_images_import_nothing_of_it(predict, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    assert "PyAV" not in predict("a.png --save out").stderr


NTSC = [number * 1001 / 30000 for number in range(150)]
SPARSE = [number / 25 for number in range(40)] + [3.7, 3.8, 4.2, 9.5, 9.6]


def chosen_by_ffmpeg(path, seconds):
    """The times of the first frame in each step of so many seconds."""
    import av

    with av.open(path) as file:
        graph = av.filter.Graph()
        stream = file.streams.video[0]
        step = f"floor({{}}/{seconds}+1e-9)"
        begins = f"gt({step.format('t')},{step.format('prev_selected_t')})"
        condition = f"isnan(prev_selected_t)+{begins}"
        graph.link_nodes(
            graph.add_buffer(template=stream),
            graph.add("select", f"expr='{condition}'"),
            graph.add("buffersink"),
        ).configure()
        times = []
        for image in list(file.decode(stream)) + [None]:
            graph.push(image)
            with contextlib.suppress(av.BlockingIOError, av.EOFError):
                while True:
                    times.append(graph.pull().time)
        return times


@pytest.mark.slow
@pytest.mark.parametrize("times", [NTSC, SPARSE])
@pytest.mark.parametrize(
    ("every", "seconds"), [("1s", 1), ("0.5s", 0.5), ("200ms", 0.2), ("2min", 120)]
)
def test_a_frame_each_second_is_that_which_ffmpeg_selects(predict, tmp_path, times, every, seconds):
    record_film(tmp_path / "a.mp4", times, ticks=30000)
    records = predict(f"a.mp4 --every {every} --save out").records
    expected = chosen_by_ffmpeg(tmp_path / "a.mp4", seconds)
    assert column_of(records, "time_s") == pytest.approx(expected, abs=1e-3)
    written = watch(tmp_path / "out/a.mp4")
    assert written.times == pytest.approx(expected, abs=1e-4)
    assert written.length_s >= expected[-1] + seconds - 0.01


def gif_of(path):
    """How long each frame of a GIF is shown, in milliseconds."""
    with Image.open(path) as file:
        return [shown.info["duration"] for shown in ImageSequence.Iterator(file)]


def test_a_gif_of_each_video_is_beside_it(predict, make_video, tmp_path):
    make_video("a.mp4", frames=40)
    make_video("b.mp4", frames=5)
    completed = predict("a.mp4 b.mp4 a.png --save out --gif 2s --max-det 1")
    assert sum(gif_of(tmp_path / "out/a.gif")) == 2000
    assert sum(gif_of(tmp_path / "out/b.gif")) == 500
    assert completed.records[0]["saved"] == ["out/a.mp4", "out/a.gif"]
    assert completed.records[39]["saved"] == ["out/a.mp4"]
    assert "wrote 5 files to out" in completed.stderr


def test_a_gif_of_a_frame_each_second(predict, make_video, tmp_path):
    make_video("a.mp4", frames=60)
    predict("a.mp4 --save out --gif 4s --every 1s")
    assert sum(gif_of(tmp_path / "out/a.gif")) == 4000


def test_a_gif_shows_the_box(predict, make_video, tmp_path):
    make_video("a.mp4", red_from=0)
    record = predict("a.mp4 --save out --gif 1s --max-det 1 --labels none").records[0]
    with Image.open(tmp_path / "out/a.gif") as file:
        pixels = np.array(file.convert("RGB")).astype(int)
    left, top, right, bottom = np.round(box_of(record["detections"][0]))
    _, middle = cv2.VideoCapture(str(tmp_path / "a.mp4")).read()
    differs = np.abs(pixels[..., ::-1] - middle).max(axis=2) > 60
    rows, columns = np.nonzero(differs)
    assert columns.min() == pytest.approx(left, abs=2)
    assert columns.max() == pytest.approx(right, abs=2)
    assert rows.min() == pytest.approx(top, abs=2)
    assert rows.max() == pytest.approx(bottom, abs=2)


def test_a_gif_of_images_is_none_and_one_line_says_so(predict, tmp_path, caplog):
    predict("a.png a.png --save out --gif 6s")
    assert caplog.messages == ["--gif: there were images but no video, so no GIF was written"]
    assert list(tmp_path.glob("out/*.gif")) == []


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ("--gif 6s", "--gif needs --save", "name a folder for it: --save DIR"),
        ("--save out --gif 0", "--gif: 0.0 is not in the range 0.1<=x<=30", ""),
        ("--save out --gif 1h", "--gif: 3600.0 is not in the range 0.1<=x<=30", ""),
        ("--save out --gif -3s", "--gif: '-3s' is not a time", "write 1s, 0.5s"),
        ("--save out --gif short", "--gif: 'short' is not a time", "write 1s, 0.5s"),
    ],
)
def test_a_gif_that_cannot_be_is_an_error(predict, options, message, hint):
    completed = predict(f"a.png {options}", code=2)
    assert message in completed.stderr
    assert hint in completed.stderr


def test_a_gif_without_pillow_is_an_error_before_the_model_is_opened(predict, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.delitem(sys.modules, "detcli.sink.gif", raising=False)
    monkeypatch.delattr(detcli.sink, "gif", raising=False)
    completed = predict("a.png --save out --gif 6s", code=1)
    assert "Pillow does not load" in completed.stderr
    assert 'pip install "detcli[video]"' in completed.stderr


def test_annotated_videos_load_no_pillow(predict, make_video, monkeypatch):
    make_video("a.mp4")
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert "Pillow" not in predict("a.mp4 --save out").stderr
