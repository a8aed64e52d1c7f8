# mypy: disable-error-code=arg-type
"""What a program may give a detector as an image: arrays, bytes, files, and a confidence of it."""

import io
import tempfile
import zipfile

import cv2
import numpy as np
import pytest
from colour_model import NAMES, image
from PIL import Image as PillowImage

from detcli import Detector, Settings, Tiling
from detcli.core.errors import DecodeError, SourceError, UsageError
from detcli.run.images import to_image

PIXELS = image(("red", 2, 3), ("blue", 5, 5))
PNG = cv2.imencode(".png", PIXELS)[1].tobytes()


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, io.BytesIO])
def test_the_bytes_of_a_file_are_read(kind):
    assert np.array_equal(to_image(kind(PNG)).pixels, PIXELS)


def test_open_files_are_read(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(PNG)
    with path.open("rb") as file:
        assert np.array_equal(to_image(file).pixels, PIXELS)
    with path.open("rb", buffering=0) as file:
        assert np.array_equal(to_image(file).pixels, PIXELS)
    with tempfile.SpooledTemporaryFile() as upload:
        upload.write(PNG)
        upload.seek(0)
        assert np.array_equal(to_image(upload).pixels, PIXELS)


def test_a_file_within_a_zip_is_read(tmp_path):
    path = tmp_path / "images.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.png", PNG)
    with zipfile.ZipFile(path) as archive, archive.open("a.png") as file:
        assert np.array_equal(to_image(file).pixels, PIXELS)


def test_a_file_is_read_from_where_it_is():
    file = io.BytesIO(b"a header" + PNG)
    file.seek(len(b"a header"))
    assert np.array_equal(to_image(file).pixels, PIXELS)
    with pytest.raises(DecodeError, match="BytesIO: nothing is left to read") as caught:
        to_image(file)
    assert "seek(0)" in caught.value.hint


def test_bytes_are_turned_upright_as_a_file_is():
    exif = PillowImage.Exif()
    exif[0x0112] = 6
    buffer = io.BytesIO()
    PillowImage.fromarray(np.rot90(PIXELS[..., ::-1])).save(buffer, "PNG", exif=exif)
    assert np.array_equal(to_image(buffer.getvalue()).pixels, PIXELS)


@pytest.mark.parametrize("damaged", [b"", b"no image", PNG[:-40], PNG[:8]])
def test_bytes_that_are_no_image_are_refused(damaged):
    with pytest.raises(DecodeError, match=r"^image bytes: ") as caught:
        to_image(damaged)
    assert caught.value.hint


def test_a_file_that_is_open_as_text_is_refused(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("no image")
    with path.open() as file, pytest.raises(UsageError, match="bytes, not str") as caught:
        to_image(file)
    assert 'open(path, "rb")' in caught.value.hint


def test_a_camera_is_no_file():
    with pytest.raises(UsageError, match="gives bytes, not tuple"):
        to_image(cv2.VideoCapture())


def test_a_closed_file_is_refused():
    file = io.BytesIO(PNG)
    file.close()
    with pytest.raises(SourceError, match="BytesIO: cannot be read: I/O operation on closed file"):
        to_image(file)


def test_an_endless_file_is_refused():
    class Zeros:
        """A file without an end, which is none of an image."""

        def read(self, size):
            return bytes(size)

    with pytest.raises(DecodeError, match="Zeros: not an image"):
        to_image(Zeros())


@pytest.mark.parametrize("name", ["a.png", None, 3])
def test_a_file_is_called_by_its_name(name):
    file = io.BytesIO(b"no image")
    file.name = name
    expected_name = "BytesIO"
    if name == "a.png":
        expected_name = "a.png"
    with pytest.raises(DecodeError, match=f"^{expected_name}: not an image"):
        to_image(file)


def test_arrays_of_red_green_and_blue(make_model):
    rgb = PIXELS[..., ::-1]
    with Detector(make_model(), "cpu", conf=0.6) as detector:
        expected = detector(PIXELS)
        assert expected.class_name.tolist() == ["red", "blue"]
        assert detector(rgb, channels="rgb") == expected
        assert detector(np.ascontiguousarray(rgb), channels="rgb") == expected
        assert detector(PIXELS, channels="bgr") == expected
        assert detector(np.stack([rgb, rgb]), channels="rgb") == [expected, expected]
        assert detector([rgb, PNG], channels="rgb") == [expected, expected]
        assert detector(PillowImage.fromarray(rgb), channels="rgb") == expected


@pytest.mark.parametrize("channels", ["RGB", "gbr", "", None, 3, ["rgb"]])
def test_channels_of_another_order_are_refused(make_model, channels):
    with (
        Detector(make_model(), "cpu") as detector,
        pytest.raises(UsageError, match="channels is") as caught,
    ):
        detector(PIXELS, channels=channels)
    assert caught.value.hint == 'use "bgr" or "rgb"'


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        Settings(),
        Settings(conf=0.9),
        Settings(conf=0.1),
        Settings(conf=0.5, class_conf={"blue": 0.99}),
        Settings(tile=Tiling(32)),
        Settings(tile=Tiling(32, crowd=2)),
        Settings(classes=("blue",), max_det=3),
        Settings(region="0,0,1,0.9"),
    ],
    ids=["default", "high", "low", "class", "tiles", "crowd", "classes", "region"],
)
@pytest.mark.parametrize("conf", [0, 0.44, 0.6])
def test_a_call_with_a_confidence_is_as_a_detector_with_it(make_model, settings, conf):
    with (
        Detector(make_model(), "cpu", settings=settings) as detector,
        Detector(make_model(), "cpu", settings=settings, conf=conf) as other,
    ):
        before = detector(PIXELS)
        assert detector(PIXELS, conf=conf) == other(PIXELS)
        assert detector([PIXELS, PNG], conf=conf) == other([PIXELS, PNG])
        assert detector(PIXELS) == before
        if settings.conf is not None:
            assert other(PIXELS, conf=settings.conf) == before


def test_a_confidence_replaces_those_that_the_model_recommends(make_model):
    metadata = {"names": str(dict(enumerate(NAMES))), "detcli.conf": "0.3,red=0.4"}
    recommended = make_model(metadata=metadata)
    with Detector(recommended, "cpu") as detector, Detector(recommended, "cpu", conf=0.6) as other:
        assert detector(PIXELS, conf=0.6) == other(PIXELS)
        assert detector.conf == 0.3


@pytest.mark.parametrize("conf", ["0.4", True, 2, -0.1, float("nan"), [0.4]])
def test_a_confidence_of_a_call_is_checked(make_model, conf):
    with (
        Detector(make_model(), "cpu") as detector,
        pytest.raises(UsageError, match=r"^conf is ") as caught,
    ):
        detector(PIXELS, conf=conf)
    assert caught.value.hint


def test_a_clone_takes_a_confidence_too(make_model):
    with Detector(make_model(), "cpu") as detector, detector.clone() as clone:
        assert clone(PIXELS, conf=0.6) == detector(PIXELS, conf=0.6)
