"""A folder in which the commands of the documentation run."""

import functools
import os
import shutil
import sys
from pathlib import Path

import convolution_model
import cv2
import hub_server
import number_video
import pytest
from colour_model import image


@pytest.fixture(scope="session")
def fetched(tmp_path_factory):
    """A model, and the folder of a library that has fetched it as `yolov10n`."""
    names = {0: "person", 1: "bus", 2: "car"}
    model = convolution_model.build(
        "ultralytics", size=640, keep=300, metadata={"names": str(names)}
    )
    content, folder = model.SerializeToString(), tmp_path_factory.mktemp("fetched")
    hub_server.fetch("yolov10n", content, folder)
    return content, folder


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """A folder with the images and the video that the documentation names."""
    folder = tmp_path_factory.mktemp("pictures")
    paint = functools.partial(image, size=(640, 640), grey=40)
    images = {
        "street.jpg": paint(("red", 2, 3)),
        "detcli/pictures/street.jpg": paint(("red", 2, 3)),
        "pics/person.jpg": paint(("red", 2, 3), ("blue", 0, 0), ("green", 7, 7)),
        "pics/car.jpg": paint(("blue", 5, 5)),
    }
    for name, pixels in images.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(folder / name), pixels, [cv2.IMWRITE_JPEG_QUALITY, 100])
    video = number_video.open_writer(folder / "street.mp4", (640, 640))
    empty, bus = paint(), paint(("green", 40, 40))
    for number in range(21):  # a bus in the last second
        video.write(bus if number > 10 else empty)
    video.release()
    (folder / "pics/torn.jpg").write_bytes(b"\xff\xd8\xff torn")
    return folder


@pytest.fixture
def workplace(tmp_path, hub, fetched, images, warm_detcli, monkeypatch):
    """A folder of this test alone with those images; `yolov10n` was fetched before."""
    content, folder = fetched
    shutil.copytree(images, tmp_path, dirs_exist_ok=True)
    shutil.copytree(folder, tmp_path / ".cache/huggingface", symlinks=True)
    hub.add("yolov10n", content, half=content)
    hub.add("yolov10s", content)
    hub.main = hub_server.NEWER  # `hf` tells repositories apart by their commits
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / ".cache/huggingface"))  # as in a home folder
    path = [warm_detcli, Path(sys.executable).parent, os.environ["PATH"]]
    monkeypatch.setenv("PATH", os.pathsep.join(map(str, path)))
    return tmp_path
