"""Pictures that a GPU decodes, and those that it leaves to the CPU."""

import cv2
import numpy as np
import pytest
from gpu_decoder import FakeDecoder
from made_jpegs import encode, exif, insert, orientation, picture

from detcli.errors import DecodeError
from detcli.geometry import Decoder, DeviceImage
from detcli.source.decode import DecodeOptions, load_bytes


@pytest.fixture
def gpu():
    return FakeDecoder()


def load(data, gpu, **options):
    return load_bytes(data, DecodeOptions(gpu=gpu, **options))


def opencv(data):
    return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)


@pytest.mark.parametrize("options", [{}, {"PROGRESSIVE": 1}, {"RST_INTERVAL": 1}], ids=str)
@pytest.mark.parametrize("grey", [False, True])
def test_regular_jpegs_stay_on_the_gpu(grey, options, gpu):
    image = picture(17, 33)
    data = encode(image[..., 0].copy() if grey else image, **options)
    found = load(data, gpu)
    assert isinstance(found.image, DeviceImage)
    assert found.decoder is Decoder.GPU
    assert found.size == (17, 33)
    assert not found.warnings
    np.testing.assert_array_equal(found.pixels, opencv(data))
    assert found.pixels is found.pixels  # copied once


@pytest.mark.parametrize("value", range(10))
def test_a_turned_picture_has_the_size_of_the_cpus(value, gpu):
    data = insert(encode(picture(17, 33)), exif(orientation(value)))
    found, wanted = load(data, gpu), load_bytes(data)
    assert found.decoder is Decoder.GPU
    assert found.size == wanted.size
    np.testing.assert_array_equal(found.pixels, wanted.pixels)


def test_a_picture_of_another_size_is_left_to_the_cpu(gpu):
    gpu.change = lambda pixels: np.ascontiguousarray(np.rot90(pixels))
    found = load(encode(picture(17, 33)), gpu)
    assert found.decoder is Decoder.CPU
    assert found.size == (17, 33)


def test_the_cpu_decodes_the_rest_to_the_same_pixels_as_ever(gpu):
    jpeg = encode(picture(17, 33))
    gpu.refused.add(jpeg)
    odd = insert(encode(picture(17, 33)), exif(orientation(6), magic=43))
    twice = insert(encode(picture(17, 33)), exif(orientation(6)), exif(orientation(3)))
    others = [cv2.imencode(suffix, picture(17, 33))[1].tobytes() for suffix in (".png", ".bmp")]
    deep = cv2.imencode(".png", picture(17, 33).astype(np.uint16) * 257)[1].tobytes()
    for data in (jpeg, odd, twice, *others, deep):
        found, wanted = load(data, gpu), load_bytes(data)
        assert found.decoder is Decoder.CPU
        assert wanted.decoder is None
        assert isinstance(found.image, np.ndarray)
        assert found.size == wanted.size
        np.testing.assert_array_equal(found.pixels, wanted.pixels)
    assert not gpu.decoded


def test_what_the_cpu_refuses_is_refused(gpu):
    jpeg = encode(picture(17, 33))
    with pytest.raises(DecodeError, match="too large"):
        load(jpeg, gpu, max_pixels=17 * 33 - 1)
    for data in (b"", b"text", jpeg[: len(jpeg) // 2], jpeg[:-20]):
        with pytest.raises(DecodeError):
            load(data, gpu)
    assert not gpu.decoded


def test_a_file_that_neither_decodes_is_an_error(gpu):
    jpeg = encode(picture(17, 33))
    broken = jpeg[:2] + bytes(len(jpeg) - 4) + jpeg[-2:]
    gpu.refused.add(broken)
    with pytest.raises(DecodeError):
        load(broken, gpu)
