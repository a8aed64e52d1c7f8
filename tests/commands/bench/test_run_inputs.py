"""The images over and over, and the digest that identifies them."""

import shutil
from itertools import islice

import number_video
import pytest
from made_jpegs import encode, image
from warned import messages_of

from detcli.commands.bench.run import TimeLimit, digest, repeat
from detcli.core.errors import DecodeError, DetcliWarning, SourceError
from detcli.source.decode import BUILT_IN


def load(count, *names):
    limit = TimeLimit()
    return [limit.load(item) for item in islice(repeat(tuple(map(str, names))), count)]


def test_sources_repeat(make_image):
    first = make_image("1.png", size=(8, 8))
    second = make_image("2.png", size=(16, 8))
    third = make_image("3.png", size=(24, 8))
    heights = [image.size[0] for image in load(7, first, second, third)]
    assert heights == [8, 16, 24, 8, 16, 24, 8]
    without_names = load(3)
    assert len(without_names) == 3
    for built_in_image in without_names:
        assert built_in_image.size == (640, 960)


def test_a_video_starts_over(tmp_path):
    number_video.write(tmp_path / "clip.mp4", frames=3)
    numbers = [number_video.number(frame.pixels) for frame in load(7, tmp_path / "clip.mp4")]
    assert numbers == [0, 1, 2, 0, 1, 2, 0]


def test_an_error_names_its_source(tmp_path, make_image):
    torn = tmp_path / "torn.jpg"
    torn.write_bytes(b"\xff\xd8\xff torn")
    with pytest.raises(DecodeError, match=r"torn\.jpg: "):
        load(2, make_image("a.png"), torn)
    (tmp_path / "empty").mkdir()
    for name, why in (("none.jpg", r"none\.jpg"), ("empty", "no images")):
        with pytest.raises(SourceError, match=why):
            load(1, tmp_path / name)


def test_damage_is_told_once(tmp_path):
    data = encode(image(256, 256))
    gutted = tmp_path / "gutted.jpg"
    gutted.write_bytes(data[: len(data) // 2] + b"\xff\xd9")
    with pytest.warns(DetcliWarning) as caught:
        load(3, gutted)
    message = f"{gutted}: damaged: premature end of data segment"
    assert messages_of(caught) == [message]


def test_the_digest_depends_on_the_content(tmp_path, make_image):
    first = str(make_image("a/one.png", ("red", 1, 1)))
    other_name = str(make_image("a/two.png", ("blue", 1, 1)))
    moved = shutil.copy(first, tmp_path / "b.png")
    assert digest((first,)) == digest((str(moved),)) != digest((other_name,))
    assert digest(()) == digest((str(BUILT_IN),))
    assert digest((str(tmp_path / "a/*.png"),)) == digest((first, other_name))
    assert digest(("http://a/x.jpg",)) != digest(("http://a/y.jpg",))


def test_the_digest_of_folders(tmp_path, make_image):
    make_image("a/one.png", ("red", 1, 1))
    folder = str(tmp_path / "a")
    copy = str(shutil.copytree(tmp_path / "a", tmp_path / "b"))
    before = digest((folder,))
    assert before == digest((copy,))
    make_image("b/two.png", size=(8, 8))
    assert before != digest((copy,))
    (tmp_path / "a/gone.png").symlink_to("nothing")
    assert digest((folder,)) != before
