"""Videos that a GPU decodes: the numbers, times and counts that the CPU's frames have."""

from functools import partial

import cv2
import numpy as np
import pytest
from gpu_decoder import FakeDecoder
from made_videos import record_film

from detcli.errors import DecodeError, InferenceError
from detcli.geometry import Decoder, DeviceImage, alike
from detcli.source.capture import GpuCapture, open_file
from detcli.source.decode import DecodeOptions
from detcli.source.item import SourceOptions, SourceProgress
from detcli.source.video import read_video

av = pytest.importorskip("av")


@pytest.fixture
def gpu():
    return FakeDecoder()


@pytest.fixture
def film(tmp_path):
    def record(rate="constant", name="film.mp4", **options):
        times = [n / 25 + (n % 3 * 0.007 if rate == "variable" else 0) for n in range(40)]
        return record_film(tmp_path / name, times, sound=None, **options)

    return record


def read(path, gpu, **options):
    """The items of a video; the final total is checked."""
    progress, name = SourceProgress(1), str(path)
    options = SourceOptions(decode=DecodeOptions(gpu=gpu), **options)
    items = list(read_video(name, partial(open_file, name), options, progress, name))
    assert progress.total in {len(items), None}
    return items


def places(items):
    return [(item.origin.frame, round(item.origin.time_s, 6)) for item in items]


def check(path, gpu, decoder=Decoder.GPU, **options):
    """The frames are those that the CPU finds."""
    found, wanted = read(path, gpu, **options), read(path, None, **options)
    assert places(found) == places(wanted)
    assert [item.origin.clip for item in found] == [item.origin.clip for item in wanted]
    for item, other in zip(found, wanted, strict=True):
        picture = item.load()
        assert picture.decoder is decoder
        assert alike(picture.pixels, other.load().pixels)
    return found


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "ts", "mov"])
@pytest.mark.parametrize("rate", ["constant", "variable"])
def test_frames_are_those_of_the_cpu(rate, suffix, gpu, film):
    assert len(check(film(rate, f"film.{suffix}"), gpu)) == 40


@pytest.mark.parametrize(
    "options", [{"stride": 3}, {"start_s": 0.5}, {"end_s": 0.8}, {"start_s": 0.3, "end_s": 1.1}]
)
def test_a_part_of_a_video(options, gpu, film):
    assert 0 < len(check(film(), gpu, **options)) < 40


def test_a_late_start_is_reached_without_seeking(gpu, tmp_path):
    path = record_film(tmp_path / "long.mp4", [n / 10 for n in range(80)], sound=None)
    assert len(check(path, gpu, start_s=6.0)) == 20


def test_a_video_that_the_gpu_refuses_is_decoded_by_the_cpu(gpu, film):
    path = film()
    gpu.refused.add(str(path))
    check(path, gpu, Decoder.CPU)
    check(path, gpu, Decoder.CPU, start_s=0.5)


@pytest.mark.parametrize("error", [MemoryError("none left"), InferenceError("a copy failed")])
def test_a_first_frame_that_cannot_be_copied_leaves_the_video_to_the_cpu(error, gpu, film):
    path = film()

    def broken(_):
        def fail():
            raise error

        yield 0.0, DeviceImage((240, 320, 3), 1 << 40, 960, fail)

    gpu.decode_video = broken
    check(path, gpu, Decoder.CPU)


@pytest.mark.parametrize(
    "change",
    [
        lambda pixels: 255 - pixels,
        lambda pixels: pixels[:-2],
        lambda pixels: np.ascontiguousarray(np.rot90(pixels)),
    ],
    ids=["other colours", "another size", "turned"],
)
def test_other_frames_than_the_cpus_are_not_used(change, gpu, film):
    gpu.change = change
    check(film(), gpu, Decoder.CPU)


def test_a_turned_video_is_for_the_cpu(gpu, film):
    path = film()
    capture = open_file(str(path))
    get = capture.get

    class Turned:
        def get(self, number):
            return 90.0 if number == cv2.CAP_PROP_ORIENTATION_META else get(number)

    with pytest.raises(DecodeError, match="need rotating"):
        GpuCapture(gpu, str(path), Turned())
    capture.release()


def test_a_failure_ends_the_video_with_an_error(gpu, film):
    gpu.fails_at = 12
    *frames, failed = read(film(), gpu)
    assert [item.origin.frame for item in frames] == list(range(12))
    with pytest.raises(DecodeError, match="the GPU does not decode it: error") as caught:
        failed.load()
    assert caught.value.hint == "leave out --gpu-decode"


def test_a_video_without_a_frame_is_an_error_of_the_cpu(gpu, tmp_path):
    (tmp_path / "empty.mp4").touch()
    (failed,) = read(tmp_path / "empty.mp4", gpu)
    with pytest.raises(DecodeError, match="empty"):
        failed.load()


def test_only_files_are_for_the_gpu(gpu, film):
    path = film()
    options = SourceOptions(decode=DecodeOptions(gpu=gpu))
    read = partial(read_video, "http://example.org/film.mp4", partial(open_file, str(path)))
    items = list(read(options, SourceProgress(1), "http://example.org/film.mp4"))
    assert {item.load().decoder for item in items} == {Decoder.CPU}
