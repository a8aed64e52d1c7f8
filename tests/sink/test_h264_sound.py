"""Sound of annotated videos: heard when it is seen, in whatever the source is, and in Chromium."""

import logging

import numpy as np
import pytest
from annotated import annotate
from made_videos import play, record_film, watch
from thinning import thin

from detcli.config.inputs import InputOptions

pytestmark = pytest.mark.slow

TIMES = tuple(number / 25 for number in range(75))


@pytest.fixture
def make_film(tmp_path):
    """Write a source of 3 seconds, and return what becomes of it."""

    def run(suffix="mp4", sound="aac", *, signal_s=1.0, film=None, **options):
        path = tmp_path / f"a.{suffix}"
        source = record_film(path, TIMES, sound=sound, signal_s=signal_s, **(film or {}))
        return watch(source), watch(annotate(source, tmp_path / "out", **options))

    return run


SOUNDS = [
    ("mp4", "aac", {}, "aac"),
    ("mp4", "aac", {"layout": "stereo", "rate": 44100}, "aac"),
    ("ts", "aac", {}, "aac"),
    ("mp4", "libmp3lame", {"rate": 44100}, "mp3"),
    ("avi", "libmp3lame", {"codec": "mpeg4", "ticks": 25, "rate": 44100}, "mp3"),
    ("mkv", "libmp3lame", {"rate": 8000}, "aac"),
    ("mkv", "libopus", {}, "opus"),
    ("webm", "libopus", {"codec": "libvpx", "layout": "stereo"}, "opus"),
    ("mkv", "flac", {}, "flac"),
    ("mkv", "ac3", {"layout": "stereo"}, "aac"),
    ("ts", "mp2", {"layout": "stereo"}, "aac"),
    ("mov", "pcm_s16le", {}, "aac"),
    ("avi", "pcm_u8", {"codec": "mpeg4", "ticks": 25, "rate": 11025}, "aac"),
    ("mkv", "pcm_s16le", {"rate": 37000}, "aac"),
]


@pytest.mark.parametrize(
    ("suffix", "sound", "film", "expected"), thin("sounds of videos", SOUNDS, 7)
)
def test_it_is_heard_when_it_is_seen(make_film, suffix, sound, film, expected):
    source, written = make_film(suffix, sound, film=film)
    assert source.heard_s is not None
    assert written.sound == expected
    assert len(written.times) == len(TIMES)
    assert written.seen_s == pytest.approx(source.seen_s - source.times[0], abs=0.001)
    late = source.heard_s - source.seen_s  # by its encoder
    assert written.heard_s - written.seen_s == pytest.approx(late, abs=0.03)
    longest = 1152 / min(film.get("rate", 48_000), 48_000)  # that is encoded together
    assert -0.06 < written.heard_until_s - written.length_s < longest + 0.06


@pytest.mark.parametrize(("suffix", "sound"), [("mp4", "aac"), ("mkv", "libopus"), ("mkv", "flac")])
def test_it_is_copied_bit_for_bit(make_film, suffix, sound):
    source, written = make_film(suffix, sound)
    assert source.packets[: len(written.packets)] == written.packets
    assert len(source.packets) - len(written.packets) <= 3


@pytest.mark.parametrize(
    ("suffix", "sound", "start_s"),
    [("mp4", "aac", 0.5), ("mp4", "aac", 0.93), ("mov", "pcm_s16le", 0.93)],
)
def test_it_begins_where_the_images_do(make_film, suffix, sound, start_s):
    _, written = make_film(suffix, sound, inputs=InputOptions(start=start_s, end=2.0))
    assert written.seen_s == pytest.approx(1.0 - start_s, abs=0.041)
    assert written.heard_s == pytest.approx(written.seen_s, abs=0.03)
    assert written.heard_until_s == pytest.approx(written.length_s, abs=0.06)


def test_a_late_start_is_looked_up(tmp_path):
    times = [number / 25 for number in range(400)]
    source = record_film(tmp_path / "a.mp4", times, signal_s=14.0)
    written = watch(annotate(source, tmp_path / "out", inputs=InputOptions(start=12.0)))
    assert written.seen_s == pytest.approx(2.0, abs=0.001)
    assert written.heard_s == pytest.approx(2.0, abs=0.03)


def test_a_stride_leaves_it_whole(make_film):
    source, written = make_film(inputs=InputOptions(vid_stride=5))
    assert len(written.times) == 15
    assert written.heard_s == pytest.approx(source.heard_s, abs=0.001)


@pytest.mark.parametrize("options", [{"sound": None}, {"silent": True}, {"condensed": True}])
def test_there_may_be_none(make_film, options):
    _, written = make_film(**options)
    assert written.sound is None
    assert len(written.times) == 75


def test_sound_that_is_lost_meanwhile_costs_no_images(tmp_path, caplog):
    source = record_film(tmp_path / "a.mkv", TIMES)

    def spoil(record):
        if record.index == 0:
            source.unlink()
            source.write_bytes(b"\x1a\x45\xdf\xa3" + b"nothing" * 1000)

    with caplog.at_level(logging.WARNING):
        written = watch(annotate(source, tmp_path / "out", before_write=spoil))
    assert written.times
    assert written.sound is None
    assert "a.mkv: its sound is left out" in caplog.text


@pytest.mark.parametrize(
    ("suffix", "sound", "marker", "damaged"),
    [
        ("mov", "pcm_s16le", b"sowt", b"wots"),  # no codec has this name
        ("mkv", "libopus", b"OpusHead\x01\x01", b"OpusHead\x01\xff"),  # channels
        ("mkv", "libopus", b"\xa2\x93OpusHead", b"\x7f\x93OpusHead"),  # no header
        ("mp4", "aac", b"esds", b"abcd"),
        ("mkv", "flac", b"fLaC", b"CaLf"),
    ],
)
def test_damaged_sound_costs_no_images(tmp_path, suffix, sound, marker, damaged):
    source = record_film(tmp_path / f"a.{suffix}", TIMES[:10], sound=sound, signal_s=0.1)
    data = source.read_bytes()
    assert marker in data
    source.write_bytes(data.replace(marker, damaged))
    assert len(play(annotate(source, tmp_path / "out")).shades) == 10


UNEVEN = TIMES[:50] + (2.5, 2.6, 2.61, 2.9)
PAGE = """<!doctype html><html data-ready="true"><title>film</title>
<video src="a.mp4" muted preload="auto"></video>"""

PLAY = """
const done = arguments[0], film = document.querySelector("video"), times = [];
const next = (_, about) => { times.push(about.mediaTime); film.requestVideoFrameCallback(next); };
film.requestVideoFrameCallback(next);
film.onended = () => done({times, width: film.videoWidth, height: film.videoHeight,
  duration: film.duration, heard: film.webkitAudioDecodedByteCount});
film.onerror = () => done({error: film.error.message});
film.playbackRate = 2;
film.play();
"""


PLAYED = [("mp4", "aac"), ("mkv", "libopus"), ("mov", "pcm_s16le")]


@pytest.mark.parametrize(("suffix", "sound"), thin("sounds in a browser", PLAYED, 1))
def test_it_plays(chromium, tmp_path, suffix, sound):
    source = record_film(tmp_path / f"a.{suffix}", UNEVEN, sound=sound, layout="stereo")
    out = annotate(source, tmp_path / "out").parent
    (out / "index.html").write_text(PAGE)
    chromium.open(out)
    played = chromium.driver.execute_async_script(PLAY)
    assert "error" not in played
    assert played["width"] == 64
    assert played["height"] == 48
    assert played["duration"] == pytest.approx(2.94, abs=0.06)
    assert played["heard"] > 1000
    for time_s in played["times"]:  # no frame is shown at another time
        assert np.abs(np.subtract(UNEVEN, time_s)).min() <= 0.001
