"""`detcli predict --save` of videos: sound, and what leaves it out."""

import sys

import pytest
from made_videos import record_film, watch

from detcli.core.cache import warn_once

TIMES = (*(number / 25 for number in range(30)), 2.0, 2.5)


@pytest.fixture
def run(predict, tmp_path):
    """Annotate a video with sound, and return what is written and said."""

    def annotate(*options):
        record_film(tmp_path / "a.mkv", TIMES, signal_s=0.4, sound="libopus")
        done = predict("a.mkv --save out --max-det 1", *options)
        return watch(tmp_path / "out/a.mp4"), done

    return annotate


def test_a_video_keeps_its_times_and_its_sound(run):
    written, done = run()
    assert written.codec == "h264"
    assert written.times == pytest.approx(TIMES, abs=1e-5)
    assert (written.sound, written.heard_s) == ("opus", pytest.approx(0.4, abs=0.03))
    assert all(record["saved"] == ["out/a.mp4"] for record in done.records)
    assert "wrote 1 file to" in done.stderr


def test_a_voice_is_not_kept_where_a_face_is_hidden(run, caplog):
    warn_once.cache_clear()
    written, _ = run("--blur", "red")
    assert written.sound is None
    assert len(written.times) == len(TIMES)
    assert "annotated videos have no sound with --blur" in caplog.text


def test_pictures_import_nothing_of_it(predict, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    assert "PyAV" not in predict("a.png --save out").stderr
