"""The pictures over and over, and the digest that identifies them."""

import shutil

import cv2
import numpy as np
import pytest

from detcli.commands.bench.run import RepeatedInputs, TimeLimit, check_repeatable, digest
from detcli.core.errors import DecodeError, DetcliWarning, SourceError, UsageError
from detcli.source.decode import BUILT_IN


def sizes(pictures):
    return [one.size for one in pictures]


def test_the_built_in_picture_is_the_default():
    with RepeatedInputs((), TimeLimit()) as inputs:
        assert sizes(inputs.take(3)) == [(640, 960)] * 3


def test_sources_repeat(make_picture):
    names = tuple(str(make_picture(f"{n}.png", size=(8 * n, 8))) for n in (1, 2, 3))
    with RepeatedInputs(names, TimeLimit()) as inputs:
        taken = sizes(inputs.take(2)) + sizes(inputs.take(5))
    assert [height // 8 for height, _ in taken] == [1, 2, 3, 1, 2, 3, 1]


def test_a_video_starts_over(tmp_path):
    path = tmp_path / "clip.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 10, (64, 64))
    for level in (0, 128, 255):
        writer.write(np.full((64, 64, 3), level, np.uint8))
    writer.release()
    with RepeatedInputs((str(path),), TimeLimit()) as inputs:
        levels = [round(one.pixels.mean() / 128) for one in inputs.take(7)]
    assert levels == [0, 1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize("name", ["-", "camera:0", "rtsp://example.org/stream"])
def test_sources_that_can_be_read_only_once_are_refused(name):
    with pytest.raises(UsageError, match="again and again"):
        check_repeatable((name,))


def test_an_error_names_its_source(tmp_path, make_picture):
    torn = tmp_path / "torn.jpg"
    torn.write_bytes(b"\xff\xd8\xff torn")
    with RepeatedInputs((str(make_picture("a.png")), str(torn)), TimeLimit()) as inputs:
        inputs.take(1)
        with pytest.raises(DecodeError, match=r"torn\.jpg: "):
            inputs.take(1)
    (tmp_path / "empty").mkdir()
    for name, why in (("none.jpg", r"none\.jpg"), ("empty", "no pictures")):
        with (
            RepeatedInputs((str(tmp_path / name),), TimeLimit()) as inputs,
            pytest.raises(SourceError, match=why),
        ):
            inputs.take(1)


def test_damage_is_told_once(tmp_path):
    noise = np.random.default_rng(0).integers(0, 255, (32, 32, 3), np.uint8)
    data = cv2.imencode(".jpg", noise)[1].tobytes()
    gutted = tmp_path / "gutted.jpg"
    gutted.write_bytes(data[: len(data) // 2] + b"\xff\xd9")
    with (
        pytest.warns(DetcliWarning) as caught,
        RepeatedInputs((str(gutted),), TimeLimit()) as inputs,
    ):
        inputs.take(3)
    assert [str(one.message) for one in caught] == [
        f"{gutted}: damaged: premature end of data segment"
    ]


def test_the_digest_depends_on_the_content(tmp_path, make_picture):
    first = make_picture("a/one.png", ("red", 1, 1))
    other = make_picture("a/two.png", ("blue", 1, 1))
    moved = tmp_path / "b.png"
    shutil.copy(first, moved)
    assert digest((str(first),)) == digest((str(moved),)) != digest((str(other),))
    assert digest(()) == digest((str(BUILT_IN),))
    pattern = str(tmp_path / "a/*.png")
    assert digest((pattern,)) == digest((str(first), str(other)))


def test_the_digest_of_folders_and_addresses(tmp_path, make_picture):
    make_picture("a/one.png", ("red", 1, 1))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert digest((str(tmp_path / "a"),)) == digest((str(tmp_path / "b"),))
    make_picture("b/two.png", size=(8, 8))
    assert digest((str(tmp_path / "a"),)) != digest((str(tmp_path / "b"),))
    assert digest(("http://a/x.jpg",)) != digest(("http://a/y.jpg",))
    before = digest((str(tmp_path / "a"),))
    (tmp_path / "a/gone.png").symlink_to("nothing")
    assert digest((str(tmp_path / "a"),)) != before
