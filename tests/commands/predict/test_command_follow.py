"""`detcli predict --follow`: what comes into folders while they are watched."""

import contextlib
import os
import signal
import subprocess
import time

import cv2
import optional
import pytest
from colour_model import image
from folders import names_in
from json_lines import column_of, lines, records_with

pytestmark = pytest.mark.slow

RED = image(("red", 2, 3))


@pytest.fixture
def follow(warm_detcli, make_model, tmp_path):
    """Watch folders until the block ends; gives a function that waits for the record of a name."""
    command = [str(warm_detcli / "detcli"), "predict", "-m", str(make_model()), "--conf", "0.6"]

    @contextlib.contextmanager
    def running(options):
        with subprocess.Popen(
            command + ["--follow"] + options, cwd=tmp_path, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                yield lambda name: reach(tmp_path / "run.jsonl", name)
            finally:
                process.send_signal(signal.SIGINT)
                _, errors = process.communicate(timeout=30)
        assert process.returncode == 130, errors
        assert "Traceback" not in errors
        assert "interrupted after" not in errors  # Ctrl-C is how it ends

    return running


def reach(path, name):
    """The sources of all records, a few looks after there is one of this name."""
    deadline = time.monotonic() + 30
    while not (path.exists() and f'/{name}"' in path.read_text()):
        assert time.monotonic() < deadline, f"no record of {name} in {path}"
        time.sleep(0.02)
    time.sleep(0.4)  # in which there could be more
    return column_of(lines(path.read_text()), "source")


def save(path, *, old=False):
    path.parent.mkdir(exist_ok=True)
    cv2.imwrite(str(path), RED)
    if old:
        os.utime(path, (1e9, 1e9))


def test_each_image_counts_once_when_it_is_complete(follow, tmp_path):
    folder = tmp_path / "in"
    save(folder / "old.png", old=True)
    save(tmp_path / "b.png")
    complete_jpeg = cv2.imencode(".jpg", cv2.resize(RED, (640, 640)))[1].tobytes()
    options = ["in", "-r", "--resume", "run.jsonl", "--save", "in/out"]
    with follow(options) as seen_records:
        assert seen_records("old.png") == ["in/old.png"]
        (folder / "slow.jpg").write_bytes(complete_jpeg[: len(complete_jpeg) // 2])
        (folder / "gone.png").write_bytes(b"")
        (folder / "b.txt").write_text("none")
        (tmp_path / "b.png").rename(folder / "b.png")
        save(folder / "later/c.png")
        assert sorted(seen_records("c.png")) == ["in/b.png", "in/later/c.png", "in/old.png"]
        (folder / "gone.png").unlink()
        with (folder / "slow.jpg").open("ab") as file:
            file.write(complete_jpeg[len(complete_jpeg) // 2 :])
        assert len(seen_records("slow.jpg")) == 4
        (folder / "torn.jpg").write_bytes(complete_jpeg[:300])
        os.utime(folder / "torn.jpg", (1e9, 1e9))
        assert len(seen_records("torn.jpg")) == 5
    records = lines((tmp_path / "run.jsonl").read_text())
    assert column_of(records_with(records, "error"), "source") == ["in/torn.jpg"]
    assert records_with(records, "warnings") == []
    (folder / "torn.jpg").unlink()
    save(folder / "d.png")
    with follow(options) as seen_records:
        expected = ["in/b.png", "in/d.png", "in/later/c.png", "in/old.png", "in/slow.jpg"]
        assert sorted(seen_records("d.png")) == expected
    assert set(names_in(folder / "out")) >= {"old.png", "slow.jpg", "d.png"}


def test_objects_are_found_as_they_appear(follow, s3):
    data = cv2.imencode(".png", RED)[1].tobytes()
    s3.put("a.png", data)
    with follow(["s3://photos/new/", "-o", "run.jsonl"]) as seen_records:
        s3.put("new/a.png", data)
        assert seen_records("a.png") == ["s3://photos/new/a.png"]
        s3.put("new/b.png", data)
        assert seen_records("b.png") == ["s3://photos/new/a.png", "s3://photos/new/b.png"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("a.png", "a.png is not one"),
        ("none", "none is not one"),
        ("camera:0", "camera:0 is not one"),
        pytest.param("s3://photos/a.png", "a.png is not one", marks=optional.needs("obstore")),
        ("pics --save pics", "what is written to pics for new inputs"),
        ("pics -o boxes/", "--follow does not go with a run in shards"),
    ],
)
def test_what_cannot_be_followed_is_refused(predict, make_images, line, says):
    make_images(1)
    predict(f"{line} --follow", code=2, says=says)
