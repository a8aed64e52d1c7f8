"""Annotated videos in a browser: Chromium plays them."""

import pytest
from annotated import annotate
from made_videos import record_film

TIMES = (*(number / 25 for number in range(50)), 2.5, 2.6, 2.61, 2.9)
PAGE = """<!doctype html><html data-ready="true"><title>film</title>
<video src="a.mp4" muted preload="auto"></video>"""

PLAY = """
const done = arguments[0], film = document.querySelector("video"), times = [];
const next = (_, about) => { times.push(about.mediaTime); film.requestVideoFrameCallback(next); };
film.requestVideoFrameCallback(next);
film.onended = () => done({times, width: film.videoWidth, height: film.videoHeight,
  duration: film.duration, heard: film.webkitAudioDecodedByteCount});
film.onerror = () => done({error: film.error.message});
film.play();
"""


@pytest.mark.parametrize(
    ("suffix", "sound"), [("mp4", "aac"), ("mkv", "libopus"), ("mov", "pcm_s16le")]
)
def test_it_plays(chromium, tmp_path, suffix, sound):
    source = record_film(tmp_path / f"a.{suffix}", TIMES, sound=sound, layout="stereo")
    out = annotate(source, tmp_path / "out").parent
    (out / "index.html").write_text(PAGE)
    chromium.open(out)
    played = chromium.driver.execute_async_script(PLAY)
    assert "error" not in played
    assert (played["width"], played["height"]) == (64, 48)
    assert played["duration"] == pytest.approx(2.94, abs=0.06)
    assert played["heard"] > 1000
    seen = [min(TIMES, key=lambda one: abs(one - time_s)) for time_s in played["times"]]
    assert played["times"] == pytest.approx(seen, abs=0.001)  # none is shown at another time
