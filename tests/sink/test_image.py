"""Annotated pictures in a folder."""

import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
import sample_records
from nasty_names import NASTY
from small_disk import small_disk

from detcli.errors import OutputError
from detcli.geometry import Picture
from detcli.sink.draw import annotate
from detcli.sink.folder import OutputFolder
from detcli.sink.image import ImageSink
from detcli.source.sources import InputGuard


@pytest.fixture(autouse=True)
def _no_endless_search():
    """Fail a search for a free name that never ends, so that the other tests run."""
    signal.signal(signal.SIGALRM, lambda *_: pytest.fail("the search for a free name never ends"))
    signal.alarm(5)
    yield
    signal.alarm(0)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A temporary working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def picture(source, shade=114, size=(40, 60)):
    pixels = Picture.whole(np.full((*size, 3), shade, np.uint8))
    return replace(sample_records.picture(source), picture=pixels)


def save(folder, *records, inputs=()):
    """Names of the files in the folder afterwards."""
    sink = ImageSink(OutputFolder(Path(folder), InputGuard(inputs)))
    for one in records:
        sink.write(one)
    sink.close()
    return sorted(path.name for path in Path(folder).glob("[!.]*"))


def shade(path):
    """Grey of the corner, which identifies the picture."""
    return int(cv2.imread(str(path))[-1, -1, 0])


def test_an_empty_run_makes_an_empty_folder(here):
    assert save(here / "new" / "out") == []


def test_the_picture_is_the_annotated_one(here):
    record = picture("in/a.png")
    assert save("out", record) == ["a.png"]
    expected = annotate(record.picture.pixels, record.detections)
    np.testing.assert_array_equal(cv2.imread("out/a.png"), expected)
    assert (expected != 114).any()
    assert [path.name for path in here.iterdir()] == ["out"]


def test_the_input_is_not_drawn_on(here):
    record = picture("in/a.png")
    save(here / "out", record)
    assert (record.picture.pixels == 114).all()


def test_standard_input_has_a_name(here):
    assert save(here / "out", picture("-"), picture("-")) == ["stdin-2.jpg", "stdin.jpg"]


def test_jpegs_on_standard_input_are_numbered(here):
    piped = [sample_records.numbered(number) for number in range(2)]
    assert save(here / "out", *piped) == ["stdin_0.jpg", "stdin_1.jpg"]


def test_frames_of_a_video_are_left_to_it(here):
    assert save(here / "out", sample_records.frame(0)) == []


@pytest.mark.parametrize(
    ("first", "second", "saved"),
    [
        ("x/a.png", "y/a.png", "a-[0-9a-f]{8}.png"),
        ("x/a.png", "y/A.png", "A-[0-9a-f]{8}.png"),
        ("x/a.png", "x/a.PNG", "a-[0-9a-f]{8}.PNG"),
        ("x/a.png", "x/a.gif", "a-[0-9a-f]{8}.png"),
        ("x/É.png", "y/é.png", "é-[0-9a-f]{8}.png"),
        ("x/a.png", "x/a.jpg", "a.jpg"),
        ("x/a.png", "x/a.png", "a-2.png"),
    ],
)
def test_a_name_that_another_input_has_gets_a_hash(here, first, second, saved):
    names = {*save("out", picture(first, 10), picture(second, 90))}
    assert shade(here / "out" / Path(first).name) == 10
    (other,) = names - {Path(first).name}
    assert re.fullmatch(saved, other)
    assert abs(shade(here / "out" / other) - 90) < 3


def test_names_of_inputs_that_look_numbered_do_not_meet(here):
    sources = ["x/a.png", "x/a-2.png", "x/a.png", "x/a-2.png", "x/a.png"]
    save("out", *(picture(source, 10 * i) for i, source in enumerate(sources)))
    shades = {path.name: shade(path) for path in (here / "out").glob("[!.]*")}
    assert shades == {
        "a.png": 0,
        "a-2.png": 10,
        "a-3.png": 20,
        "a-2-2.png": 30,
        "a-4.png": 40,
    }


def test_an_input_is_never_overwritten(here, make_picture):
    inputs = ["in/a.png", "out/a.png", "out/a-2.png"]
    before = {name: make_picture(name).read_bytes() for name in inputs}
    save("out", *(picture(name, 10) for name in inputs), inputs=inputs)
    assert {name: (here / name).read_bytes() for name in inputs} == before
    assert len(list((here / "out").glob("[!.]*"))) == 2 + 3


@pytest.mark.parametrize("named", ["in", "in/*.png", "in/a.png", "./in/../in/a.png"])
def test_saving_beside_the_inputs_keeps_them(here, make_picture, named):
    before = make_picture("in/a.png").read_bytes()
    assert len(save("in", picture("in/a.png", 10), inputs=[named])) == 2
    assert (here / "in" / "a.png").read_bytes() == before


def test_a_link_to_an_input_is_not_written_through(here, make_picture):
    before = make_picture("in/a.png").read_bytes()
    (here / "out").mkdir()
    (here / "out" / "a.png").symlink_to("../in/a.png")
    save("out", picture("in/a.png", 10), inputs=["in/a.png"])
    assert (here / "in" / "a.png").read_bytes() == before


def test_what_a_linked_folder_of_inputs_points_to_is_kept(here, make_picture):
    before = make_picture("originals/a.png").read_bytes()
    (here / "in").mkdir()
    (here / "in" / "a.png").symlink_to("../originals/a.png")
    save("originals", picture("in/a.png", 10), inputs=["in"])
    assert (here / "originals" / "a.png").read_bytes() == before


def test_another_run_overwrites_earlier_output(here, make_picture):
    make_picture("in/a.png")
    save("out", picture("in/a.png", 10), inputs=["in"])
    assert save("out", picture("in/a.png", 90), inputs=["in"]) == ["a.png"]
    assert shade(here / "out" / "a.png") == 90


def test_an_error_writes_nothing(here):
    assert save(here / "out", sample_records.failure("a.png")) == []


@pytest.mark.parametrize(
    "name", ["a,b.png", 'q"uote.png', "猫.png", "\udcff.png", "-.png", "a.b.png"]
)
def test_odd_names_are_kept(here, name):
    assert save("out", picture(f"in/{name}", 10)) == [name]
    shutil.copy(here / "out" / name, here / "plain.png")  # OpenCV opens no surrogates
    assert shade(here / "plain.png") == 10


def test_any_name_is_saved_in_the_folder(here):
    for number, name in enumerate(NASTY):
        (saved,) = save(f"out{number}", picture(name), inputs=[])
        assert (here / f"out{number}" / saved).is_file(), name
    assert len(list(here.iterdir())) == len(NASTY)


def test_a_full_disk_is_an_output_error_and_leaves_what_was_there(here):
    noise = np.random.default_rng(0).integers(0, 255, (100, 100, 3), np.uint8)
    record = replace(picture("b.png"), picture=Picture.whole(noise))
    save("out", picture("a.png", 10))
    with small_disk(1000), pytest.raises(OutputError, match=r"out/b\.png"):
        save("out", record)
    assert [path.name for path in (here / "out").glob("[!.]*")] == ["a.png"]
    assert shade(here / "out" / "a.png") == 10


def test_a_removed_folder_is_an_output_error(here):
    sink = ImageSink(OutputFolder(here / "out"))
    shutil.rmtree(here / "out")
    with pytest.raises(OutputError, match="out"):
        sink.write(picture("a.png"))
