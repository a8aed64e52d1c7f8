"""Inputs for `detcli predict`, and runs of it in shards."""

import cv2
import number_video
import optional
import pytest
from colour_model import image, image_of

RED_CORNER = [("red", column, row) for column in range(4) for row in range(4)]
"""The cells of a red square in the corner of a frame."""


@pytest.fixture(params=["cpu", "openvino"])
def each_device(request, monkeypatch):
    """The test runs on each of the processor's devices, as if it were the default."""
    if request.param == "openvino":
        optional.require("openvino")
    monkeypatch.setenv("DETCLI_DEVICE", request.param)
    return request.param


@pytest.fixture
def make_video(tmp_path):
    """Write a video whose frame N has a red cell from frame `red_from` on."""

    def make(name="clip.mp4", frames=20, red_from=10, size=(64, 64)):
        path = tmp_path / name
        writer = number_video.open_writer(path, size[::-1])
        grey_frame = image(size=size)
        red_frame = image_of(RED_CORNER, size=size)
        for number in range(frames):
            if number >= red_from:
                writer.write(red_frame)
            else:
                writer.write(grey_frame)
        writer.release()
        return path

    return make


@pytest.fixture(scope="session")
def long_video(tmp_path_factory):
    """2000 frames of red cells, for runs that are interrupted."""
    path = tmp_path_factory.mktemp("long") / "clip.mp4"
    writer = number_video.open_writer(path, (256, 256))
    frame = image_of(RED_CORNER, size=(256, 256))
    for _ in range(2000):
        writer.write(frame)
    writer.release()
    return path


@pytest.fixture
def make_images(tmp_path):
    """Write a folder of images, every third with a red square."""

    def make(count):
        folder = tmp_path / "pics"
        folder.mkdir()
        for number in range(count):
            squares = []
            if number % 3 == 0:
                squares.append(("red", number % 8, 1))
            cv2.imwrite(str(folder / f"{number:04}.png"), image_of(squares))
        return folder

    return make


@pytest.fixture
def stored(s3, make_images):
    """Put images onto the server; returns their folder on the disk."""

    def put(count):
        folder = make_images(count)
        for path in folder.iterdir():
            s3.put(f"pics/{path.name}", path.read_bytes())
        return folder

    return put


@pytest.fixture
def in_shards(predict, invoke, shards_here):  # noqa: ARG001 - it only has to be there
    """What one run of a command prints, and what its merged parts are."""

    def run(command, *options, code=0):
        predict(command, "-o", "parts/", options, code=code)
        merged = invoke("merge", "parts/")
        assert merged.returncode == code, merged.stderr
        return predict(command, code=code).stdout, merged.stdout

    return run
