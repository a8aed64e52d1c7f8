"""Pictures without end, and what tells one set of them from another."""

import shutil

import cv2
import numpy as np
import pytest

from detcli.commands.bench.inputs import BUILT_IN, Feed, digest
from detcli.errors import DecodeError, SourceError, UsageError


def sizes(pictures):
    return [one.size for one in pictures]


def test_without_a_source_there_is_the_built_in_picture():
    with Feed(()) as feed:
        assert sizes(feed.take(3)) == [(640, 960)] * 3


def test_the_sources_come_again_and_again(make_picture):
    names = tuple(str(make_picture(f"{n}.png", size=(8 * n, 8))) for n in (1, 2, 3))
    with Feed(names) as feed:
        taken = sizes(feed.take(2)) + sizes(feed.take(5))
    assert [height // 8 for height, _ in taken] == [1, 2, 3, 1, 2, 3, 1]


def test_a_video_begins_again(tmp_path):
    path = tmp_path / "clip.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 10, (64, 64))
    for level in (0, 128, 255):
        writer.write(np.full((64, 64, 3), level, np.uint8))
    writer.release()
    with Feed((str(path),)) as feed:
        levels = [round(one.pixels.mean() / 128) for one in feed.take(7)]
    assert levels == [0, 1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize("name", ["-", "camera:0", "rtsp://example.org/stream"])
def test_what_can_be_read_only_once_is_refused(name):
    with pytest.raises(UsageError, match="again and again"):
        Feed((name,))


def test_a_source_that_fails_says_which(tmp_path, make_picture):
    torn = tmp_path / "torn.jpg"
    torn.write_bytes(b"\xff\xd8\xff torn")
    with Feed((str(make_picture("a.png")), str(torn))) as feed:
        feed.take(1)
        with pytest.raises(DecodeError, match=r"torn\.jpg: "):
            feed.take(1)
    with (
        Feed((str(tmp_path / "none.jpg"),)) as feed,
        pytest.raises(SourceError, match=r"none\.jpg"),
    ):
        feed.take(1)


def test_an_empty_folder_does_not_go_on_for_ever(tmp_path):
    with Feed((str(tmp_path),)) as feed, pytest.raises(SourceError, match="no pictures"):
        feed.take(1)


def test_the_digest_is_that_of_the_content(tmp_path, make_picture):
    first = make_picture("a/one.png", ("red", 1, 1))
    other = make_picture("a/two.png", ("blue", 1, 1))
    moved = tmp_path / "b.png"
    shutil.copy(first, moved)
    assert digest((str(first),)) == digest((str(moved),)) != digest((str(other),))
    assert digest(()) == digest((str(BUILT_IN),))
    pattern = str(tmp_path / "a/*.png")
    assert digest((pattern,)) == digest((str(first), str(other)))


def test_the_digest_of_a_folder_and_of_an_address(tmp_path, make_picture):
    make_picture("a/one.png", ("red", 1, 1))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert digest((str(tmp_path / "a"),)) == digest((str(tmp_path / "b"),))
    make_picture("b/two.png", size=(8, 8))
    assert digest((str(tmp_path / "a"),)) != digest((str(tmp_path / "b"),))
    assert digest(("http://a/x.jpg",)) != digest(("http://a/y.jpg",))
