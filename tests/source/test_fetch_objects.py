"""Images in object stores are items like others, fetched ahead of their turn."""

import sys

import cv2
import numpy as np
import pytest
from origins import frames_of, sources_of

from detcli.config.inputs import InputOptions
from detcli.core.errors import DecodeError, DeviceError, SourceError
from detcli.source.sources import Sources
from detcli.storage.object_errors import ObjectKeyError

PNG = cv2.imencode(".png", np.full((24, 32, 3), 50, np.uint8))[1].tobytes()


def items(*names, max_pixels=10**6, **inputs):
    """The items of sources that stay open, as an item is loaded while they are."""
    sources = Sources(names, InputOptions(max_pixels=max_pixels, **inputs))
    listed = list(sources)
    if sources.progress.total is not None:
        assert sources.progress.total == len(listed)
    return listed


def names(*sources, **options):
    return sources_of(items(*sources, **options))


@pytest.fixture
def object_tree(s3):
    keys = ["pics/b.png", "pics/a.JPG", "pics/note.txt", "pics/.hidden.png", "pics/clip.mp4"]
    keys += ["pics/sub/c.png", "pics/sub/.trash/d.png", "pics2/e.png", "pics/", "top.png"]
    for key in keys:
        s3.put(key, PNG)
    return s3


@pytest.mark.usefixtures("object_tree")
def test_a_folder_has_its_images_in_the_order_of_their_names():
    for name in ("s3://photos/pics/", "s3://photos/pics", "S3://photos/pics/"):
        root = name.rstrip("/")
        listed = names(name, recursive=True)
        assert names(name) == listed[:-1]
        assert listed[:2] == [f"{root}/a.JPG", f"{root}/b.png"]
        assert listed[3:] == [f"{root}/sub/c.png"]  # behind the video, which is none
    for bucket in ("s3://photos", "s3://photos/"):
        assert names(bucket) == ["s3://photos/top.png"]
        assert len(names(bucket, recursive=True)) == 6


def failure(*sources, **options):
    (item,) = items(*sources, **options)
    with pytest.raises((SourceError, DecodeError)) as caught:
        item.load()
    assert caught.value.hint
    return item.origin.source, str(caught.value)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("s3://photos/gone/", "no images or videos in this folder"),
        ("s3://photos/text/", "no images or videos in this folder"),
        ("s3://photos/text", "no images or videos in this folder"),
        ("s3://photos/gone.png", "cannot be fetched: there is no such object"),
        ("s3://photos/gone", "cannot be fetched: there is no such object"),
        ("s3://gone/a.png", "cannot be fetched: there is no such bucket"),
        ("s3://gone/pics/", "cannot be listed: there is no such bucket"),
        ("s3://", "cannot be fetched: not a valid address"),
        ("s3://photos//a.png", f"cannot be fetched: {ObjectKeyError()}"),
    ],
)
def test_what_is_not_there_is_an_item_with_an_error(s3, name, reason):
    s3.put("text/note.txt")
    assert failure(name) == (name, reason)


def test_credentials_in_an_address_are_refused_and_not_shown(s3):
    source, reason = failure(f"s3://{s3.key}:{s3.secret}@photos/a.png")
    assert s3.secret not in source + reason
    assert reason == "cannot be fetched: not a valid address"


def test_a_list_may_hold_addresses(s3, tmp_path, make_image):
    s3.put("a.png", PNG)
    local = make_image("local.png")
    lines = [
        "s3://photos/a.png",
        str(local),
        "s3://photos/pics/",
        "s3://gone/b.png",
        "s3://photos/a.png",
    ]
    (tmp_path / "list").write_text("\n".join(lines))
    listed = items(files_from=str(tmp_path / "list"))
    assert sources_of(listed) == lines
    assert listed[0].load().size == listed[4].load().size == (24, 32)
    assert listed[1].load().size == (64, 64)
    with pytest.raises(SourceError, match="a folder, where an image is expected"):
        listed[2].load()


def test_what_is_no_image_or_video_is_an_error(s3):
    s3.put("a.png", b"<html>")
    assert "not an image" in failure("s3://photos/a.png")[1]
    assert failure("s3://photos/gone.mp4")[1].startswith("cannot be opened")


def test_videos_are_read_too(s3, video):
    s3.put("clip.mp4", video("mp4", frames=5).read_bytes())
    with Sources(["s3://photos/clip.mp4"]) as sources:
        items_of_video = list(sources)
    assert frames_of(items_of_video) == [0, 1, 2, 3, 4]
    assert set(sources_of(items_of_video)) == {"s3://photos/clip.mp4"}


def test_without_the_library_nothing_begins(monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(DeviceError, match="obstore") as caught:
        Sources(["s3://photos/a.png"])
    assert caught.value.hint == 'pip install "detcli[cloud]"'
