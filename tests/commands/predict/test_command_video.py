"""`detcli predict --save` of videos: sound, and what leaves it out."""

import json
import sys

import pytest
from made_videos import record_film, watch

from detcli.core.cache import warn_once

TIMES = (*(number / 25 for number in range(30)), 2.0, 2.5)


@pytest.fixture
def run(invoke, make_model, tmp_path):
    """Annotate a video with sound, and return what is written and said."""

    def annotate(*options):
        source = record_film(tmp_path / "a.mkv", TIMES, signal_s=0.4, sound="libopus")
        out = tmp_path / "out"
        done = invoke(
            "predict", source, "-m", make_model(), "--save", out, "--max-det", 1, *options
        )
        assert done.returncode == 0, done.stderr
        return watch(out / "a.mp4"), done

    return annotate


def test_a_video_keeps_its_times_and_its_sound(run):
    written, done = run()
    assert written.codec == "h264"
    assert written.times == pytest.approx(TIMES, abs=1e-5)
    assert (written.sound, written.heard_s) == ("opus", pytest.approx(0.4, abs=0.03))
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert all(record["saved"] == records[0]["saved"] for record in records)
    assert "wrote 1 file to" in done.stderr


def test_a_voice_is_not_kept_where_a_face_is_hidden(run, caplog):
    warn_once.cache_clear()
    written, _ = run("--blur", "red")
    assert written.sound is None
    assert len(written.times) == len(TIMES)
    assert "annotated videos have no sound with --blur" in caplog.text


def test_pictures_import_nothing_of_it(invoke, make_model, make_picture, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    picture = make_picture("a.png", ("red", 1, 1))
    done = invoke("predict", picture, "-m", make_model(), "--save", tmp_path / "out")
    assert done.returncode == 0
    assert "PyAV" not in done.stderr
