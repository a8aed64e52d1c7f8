"""What runs in shards write down of the shards in their hands, and what is left of it."""

import json
import os
import time

import pytest
from folders import names_matching


@pytest.fixture
def shards_of_six_images(predict, make_images, tmp_path, shards_here):  # noqa: ARG001 - it only has to be there
    """Run in shards of two, over a folder of six images."""
    make_images(6)

    def run(line="", code=0):
        return predict(f"pics -o boxes/ --conf 0.5 --shard-size 2 {line}", code=code)

    run.folder = tmp_path / "boxes"  # type: ignore[attr-defined]
    return run


@pytest.fixture
def note(shards_of_six_images):
    """Write down that a run has shards in hand, as one that is killed now leaves it."""

    def write(name, *numbers):
        path = shards_of_six_images.folder / f"_working-{name}.json"
        path.write_text(json.dumps(numbers))
        return path

    return write


def notes(shards):
    return names_matching(shards.folder, "_working-*")


def test_notes_of_killed_runs_are_gone_when_the_run_has_finished(shards_of_six_images, note):
    shards_of_six_images()
    (shards_of_six_images.folder / "part-00001.jsonl").unlink()
    note("killed", 1)
    note("killed-long-before", 0, 2)
    shards_of_six_images()
    assert notes(shards_of_six_images) == []


def test_a_finished_folder_is_tidied_up_too(shards_of_six_images, note):
    shards_of_six_images()
    note("killed", 0, 1)
    shards_of_six_images()
    assert notes(shards_of_six_images) == []


def test_a_note_of_a_run_that_is_at_work_stays(shards_of_six_images, note):
    """Of another share, whose shard is not done."""
    shards_of_six_images("--shards 1/3")
    note("alive", 1)
    note("killed", 0)
    shards_of_six_images("--shards 3/3")
    assert notes(shards_of_six_images) == ["_working-alive.json"]
    shards_of_six_images()
    assert notes(shards_of_six_images) == []


@pytest.mark.parametrize("content", [b"[]", b"", b"{", b"7", b'["a"]', b"null"])
def test_a_note_that_names_no_shard_goes_after_a_minute(shards_of_six_images, content, monkeypatch):
    """Also if that is over only when the run ends."""
    from detcli.run.shards.workers import Workers

    shards_of_six_images()
    path = shards_of_six_images.folder / "_working-other.json"
    path.write_bytes(content)
    shards_of_six_images()
    assert notes(shards_of_six_images) == [path.name]
    run = Workers.run

    def wait_a_minute(workers, schedule):
        yield from run(workers, schedule)
        os.utime(path, (time.time() - 61,) * 2)

    monkeypatch.setattr(Workers, "run", wait_a_minute)
    shards_of_six_images()
    assert notes(shards_of_six_images) == []


def test_an_interrupted_run_leaves_the_notes_of_others(shards_of_six_images, note, monkeypatch):
    from detcli.run.shards.workers import Workers

    shards_of_six_images()
    note("killed", 0)

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Workers, "run", interrupt)
    shards_of_six_images(code=130)
    assert notes(shards_of_six_images) == ["_working-killed.json"]
