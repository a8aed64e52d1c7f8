"""Decoding on a GPU, with doubles of NVIDIA's libraries; and these, as far as they go without."""

import ctypes
import gc
import inspect
import re
import struct
import sys
import threading
from importlib import util
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from backend.cuda import nvdecode
from backend.cuda.doubles import open_on_host
from backend.cuda.nvdecode import Codec, Video
from colour_model import picture as colour_picture
from made_videos import record_film

from detcli import Letterbox
from detcli.backend.cpu import CpuBackend
from detcli.backend.cuda import decoder as module
from detcli.backend.cuda.decoder import CudaDecoder, sideways_jpeg
from detcli.backend.device import DeviceOptions
from detcli.errors import DecodeError, DependencyError, DeviceError, InferenceError
from detcli.geometry import alike
from detcli.model.prepared import prepare

SIZES = [(4, 6), (43, 61), (64, 64), (1, 1), (300, 17)]


def jpeg(image, *parameters):
    return cv2.imencode(".jpg", image, parameters)[1].tobytes()


def opencv(data):
    return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)


def noise(random, height, width):
    return random.integers(0, 256, (height, width, 3), np.uint8)


def turned(data, orientation, order="<"):
    """The JPEG with an EXIF orientation."""
    tag = struct.pack(f"{order}HHIHH", 0x112, 3, 1, orientation, 0)
    mark = b"II" if order == "<" else b"MM"
    exif = b"Exif\0\0" + struct.pack(f"{order}2sHIH", mark, 42, 8, 1) + tag + bytes(4)
    return data[:2] + struct.pack(">HH", 0xFFE1, len(exif) + 2) + exif + data[2:]


@pytest.fixture
def libraries(fake_gpu, monkeypatch):
    """The doubles in place of the libraries."""
    found = SimpleNamespace(codec=Codec(fake_gpu), video=Video(fake_gpu))
    monkeypatch.setitem(sys.modules, "nvidia.nvimgcodec", found.codec)
    monkeypatch.setitem(sys.modules, "PyNvVideoCodec", found.video)
    monkeypatch.setattr(util, "find_spec", lambda name: name == "PyNvVideoCodec" or None)
    return found


@pytest.fixture
def decoder(libraries, fake_gpu):  # noqa: ARG001 - are loaded
    opened = CudaDecoder(fake_gpu)
    yield opened
    opened.close()


def test_a_jpeg_stays_on_the_gpu_until_it_is_asked_for(decoder, fake_gpu, random):
    for height, width in SIZES:
        data = jpeg(noise(random, height, width))
        image = decoder.decode_jpeg(data)
        assert image.shape == (height, width, 3)
        rows = fake_gpu.pin(image.pitch * height)
        fake_gpu.copy(rows.address, image.address, rows.size)
        fake_gpu.record().wait()
        there = rows.array.reshape(height, image.pitch)[:, : 3 * width].reshape(image.shape).copy()
        rows.close()
        np.testing.assert_array_equal(there, opencv(data))
        np.testing.assert_array_equal(image.pixels, there)


@pytest.mark.usefixtures("decoder")
def test_the_cpu_never_decodes_in_place_of_the_gpu(libraries):
    (made,) = libraries.codec.decoders
    assert made.device_id == 0
    assert nvdecode.BackendKind.CPU_ONLY not in made.kinds
    assert set(made.kinds) == {*nvdecode.BackendKind} - {nvdecode.BackendKind.CPU_ONLY}


def test_what_the_decoder_does_not_take_is_left_to_others(decoder, libraries, random):
    data = jpeg(noise(random, 20, 30))
    libraries.codec.refused.add(data)
    assert decoder.decode_jpeg(data) is None
    assert decoder.decode_jpeg(b"\xff\xd8\xffraise") is None
    assert decoder.decode_jpeg(b"\xff\xd8\xff") is None
    assert decoder.decode_jpeg(jpeg(noise(random, 20, 30))) is not None
    assert len(libraries.codec.decoders) == 1  # all of them gave it back


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("buffer_kind", nvdecode.ImageBufferKind.STRIDED_HOST),
        ("dtype", np.dtype(np.uint16)),
        ("shape", (20, 30)),
        ("shape", (20, 30, 1)),
        ("strides", (3, 60, 1)),
    ],
)
def test_a_picture_that_the_letterbox_cannot_read_is_left_to_others(
    name, value, decoder, random, monkeypatch
):
    init = nvdecode.CodecImage.__init__

    def change(image, held):
        init(image, held)
        setattr(image, name, value)

    monkeypatch.setattr(nvdecode.CodecImage, "__init__", change)
    assert decoder.decode_jpeg(jpeg(noise(random, 20, 30))) is None


def test_a_picture_stays_until_the_letterbox_has_read_it(decoder, driver, make_model):
    pixels = colour_picture(("red", 1, 1), ("blue", 5, 5))
    model = prepare(make_model(batch=2))
    letterboxes = [Letterbox.fit((64, 64), (64, 64))] * 2
    backend = open_on_host(driver, model)
    images = [decoder.decode_jpeg(jpeg(pixels)), pixels]
    on_cpu = [opencv(jpeg(pixels)), pixels]
    expected = CpuBackend(model, DeviceOptions()).prepare(on_cpu, letterboxes)
    batch = backend.prepare(images, letterboxes)
    del images
    gc.collect()
    decoder.decode_jpeg(jpeg(255 - pixels))  # into memory that is free
    backend._gpu.synchronize()  # noqa: SLF001
    memory = (ctypes.c_uint8 * expected.nbytes).from_address(batch.tensor)
    got = np.frombuffer(memory, expected.dtype).reshape(expected.shape)
    np.testing.assert_array_equal(got, expected)
    backend.close()


def test_a_picture_that_cannot_be_copied_to_the_host_is_an_error(decoder, random, monkeypatch):
    image = decoder.decode_jpeg(jpeg(noise(random, 8, 8)))
    monkeypatch.setattr(nvdecode.CodecImage, "cpu", lambda _: None)
    with pytest.raises(InferenceError, match="cannot copy a picture"):
        image.pixels  # noqa: B018

    def fail(_):
        raise RuntimeError("Code: 5")

    monkeypatch.setattr(nvdecode.CodecImage, "cpu", fail)
    with pytest.raises(InferenceError, match="Code: 5"):
        image.pixels  # noqa: B018


@pytest.mark.usefixtures("libraries")
def test_a_first_picture_that_cannot_be_copied_is_a_gpu_that_cannot_decode(fake_gpu, monkeypatch):
    monkeypatch.setattr(nvdecode.CodecImage, "cpu", lambda _: None)
    with pytest.raises(DeviceError, match="cannot copy a picture"):
        CudaDecoder(fake_gpu)


def test_a_picture_keeps_the_stream_that_frees_it(decoder, fake_gpu, random):
    pixels = noise(random, 20, 30)
    image = decoder.decode_jpeg(jpeg(pixels))
    decoder.close()
    assert fake_gpu.stream  # raises once its stream is closed
    assert image.pixels.shape == pixels.shape
    assert any(one is fake_gpu for one in image.download.args)


def refuse(**_):
    raise RuntimeError("Could not create decoder. Code: 8")


def test_memory_for_another_decoder_may_be_missing(decoder, libraries, random):
    libraries.codec.Decoder = refuse
    decoder._idle.get()  # noqa: SLF001 - another thread has it
    assert decoder.decode_jpeg(jpeg(noise(random, 8, 8))) is None


def test_threads_share_no_decoder(decoder, libraries, random, monkeypatch):
    both = threading.Barrier(2, timeout=30)
    decode = nvdecode.CodecDecoder._decode  # noqa: SLF001

    def meet(self, *arguments):
        both.wait()
        return decode(self, *arguments)

    monkeypatch.setattr(nvdecode.CodecDecoder, "_decode", meet)
    files, found = [jpeg(noise(random, 8, 8)) for _ in range(4)], {}

    def work(mine):
        for data in mine:
            found[data] = decoder.decode_jpeg(data).pixels

    threads = [threading.Thread(target=work, args=[files[start::2]]) for start in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(libraries.codec.decoders) == 2
    for data in files:
        np.testing.assert_array_equal(found[data], opencv(data))


def test_the_proof_has_every_colour_and_lies_on_its_side():
    upright = opencv(sideways_jpeg())
    assert upright.shape == (64, 32, 3)
    corners = upright[[8, 8, 56, 56], [8, 24, 8, 24]].astype(int)
    wanted = [(255, 0, 0), (0, 0, 255), (255, 255, 255), (0, 255, 0)]
    assert np.abs(corners - wanted).max() < 20


@pytest.mark.parametrize(
    "wrong",
    [
        lambda pixels: pixels[..., ::-1],
        lambda pixels: pixels[::-1],
        np.rot90,
        lambda pixels: pixels // 2,
    ],
    ids=["channels", "upside down", "on its side", "dark"],
)
def test_a_library_that_decodes_to_something_else_is_refused(wrong, libraries, fake_gpu):
    libraries.codec.wrong = wrong
    with pytest.raises(DeviceError, match="to other colours than OpenCV") as caught:
        CudaDecoder(fake_gpu)
    assert "leave out --gpu-decode" in caught.value.hint


def test_a_gpu_without_a_decoder_is_refused(libraries, fake_gpu):
    libraries.codec.refused.add(sideways_jpeg())
    with pytest.raises(DeviceError, match="decodes nothing here"):
        CudaDecoder(fake_gpu)
    libraries.codec.Decoder = refuse
    with pytest.raises(DeviceError, match="Code: 8"):
        CudaDecoder(fake_gpu)


@pytest.mark.usefixtures("libraries")
def test_missing_libraries_are_named(fake_gpu, monkeypatch):
    monkeypatch.setattr(util, "find_spec", lambda _: None)
    with pytest.raises(DependencyError, match="PyNvVideoCodec is not installed") as caught:
        CudaDecoder(fake_gpu)
    assert "detcli[nvdecode]" in caught.value.hint
    monkeypatch.setitem(sys.modules, "nvidia.nvimgcodec", None)
    with pytest.raises(DependencyError, match="nvImageCodec does not load") as caught:
        CudaDecoder(fake_gpu)
    assert "detcli[nvdecode]" in caught.value.hint


def frames(decoder, path):
    return [(time_s, image.pixels) for time_s, image in decoder.decode_video(str(path))]


def shown(path):
    """Times and pixels of a video as FFmpeg shows it."""
    import av

    with av.open(str(path)) as file:
        return [(one.pts * one.time_base, one.to_ndarray(format="bgr24"))
                for one in file.decode(video=0)]  # fmt: skip


@pytest.mark.parametrize("size", [(48, 64), (50, 70)])
@pytest.mark.parametrize("rate", ["constant", "variable"])
def test_frames_come_in_order_with_their_times(rate, size, decoder, driver, tmp_path):
    pytest.importorskip("av")
    times = [n / 25 + (n % 3 * 0.007 if rate == "variable" else 0) for n in range(30)]
    path = record_film(tmp_path / "film.mp4", times, sound=None, signal_s=0.4, size=size)
    found, wanted = frames(decoder, path), shown(path)
    assert len(found) == len(wanted) == 30
    assert "bgr_from_rgb" in driver.launched
    assert [time_s for time_s, _ in found] == pytest.approx([float(at) for at, _ in wanted])
    for (_, pixels), (_, expected) in zip(found, wanted, strict=True):
        assert pixels.shape == (*size, 3)
        assert alike(pixels, expected)
    assert len({int(pixels.mean()) // 50 for _, pixels in found}) == 2  # dark and bright


def test_frames_that_an_edit_list_hides_are_not_shown(decoder, tmp_path):
    av = pytest.importorskip("av")
    whole = record_film(tmp_path / "whole.mp4", [n / 25 for n in range(40)], sound=None)
    path = tmp_path / "cut.mp4"
    with av.open(str(whole)) as source, av.open(str(path), "w") as output:
        stream = source.streams.video[0]
        copy = output.add_stream_from_template(stream)
        for packet in source.demux(stream):
            if packet.dts is not None:
                packet.pts -= round(0.5 / stream.time_base)
                packet.dts -= round(0.5 / stream.time_base)
                packet.stream = copy
                output.mux(packet)
    wanted = shown(path)
    assert 20 < len(wanted) < 40
    times = [time_s for time_s, _ in frames(decoder, path)]
    assert times == pytest.approx([float(at) for at, _ in wanted])


def test_memory_is_freed_with_the_picture(decoder, driver, fake_gpu, tmp_path, random):
    pytest.importorskip("av")
    path = record_film(tmp_path / "film.mp4", [n / 25 for n in range(12)], sound=None)
    fake_gpu.synchronize()
    before = driver.held
    kept = [image for _, image in decoder.decode_video(str(path))]
    kept.append(decoder.decode_jpeg(jpeg(noise(random, 20, 30))))
    assert driver.held > before
    del kept
    fake_gpu.synchronize()
    assert driver.held == before


def test_a_video_that_the_gpu_does_not_decode_is_an_error(decoder, libraries, tmp_path):
    pytest.importorskip("av")
    (tmp_path / "text.mp4").write_text("no video")
    with pytest.raises(DecodeError, match="the GPU does not decode it: CreateFormatContext"):
        frames(decoder, tmp_path / "text.mp4")
    path = record_film(tmp_path / "film.mp4", [n / 25 for n in range(12)], sound=None)
    libraries.video.fails_at = 8
    with pytest.raises(DecodeError, match=r"it: cuvidDecodePicture failed$") as caught:
        frames(decoder, path)
    assert caught.value.hint == "leave out --gpu-decode"
    libraries.video.fails_at = None
    libraries.video.wrong = lambda pixels: pixels[..., :1]
    with pytest.raises(DecodeError, match="a frame of 1 channels"):
        frames(decoder, path)


def test_a_driver_without_video_is_an_error_of_the_video(decoder, monkeypatch, random):
    monkeypatch.delitem(sys.modules, "PyNvVideoCodec")
    monkeypatch.setattr(module, "VIDEO_LIBRARY", "no_such_library")
    with pytest.raises(DecodeError, match="No module named 'no_such_library'"):
        frames(decoder, "film.mp4")
    assert decoder.decode_jpeg(jpeg(noise(random, 8, 8))) is not None


# The libraries themselves, as far as they go without a GPU.


def signatures(function):
    """The parameters of a function of pybind11: a list of names for each way to call it."""
    lines = re.findall(r"^(?:\d+\. )?\w+\((.*)\) -> ", function.__doc__, re.MULTILINE)
    found = []
    for line in lines:
        flat = re.sub(r"\[[^\[\]]*\]", "", re.sub(r"\[[^\[\]]*\]", "", line))
        names = [part.partition(":")[0].partition("=")[0].strip() for part in flat.split(",")]
        found.append([name for name in names if name not in {"self", "*", "/", ""}])
    return found


def parameters(function):
    return [name for name in inspect.signature(function).parameters if name != "self"]


@pytest.fixture
def real_codec(monkeypatch):
    monkeypatch.setenv("PYNVIMGCODEC_VERBOSITY", "0")
    return pytest.importorskip("nvidia.nvimgcodec", reason="nvImageCodec is not installed")


def test_the_double_of_nvimagecodec_has_its_parameters(real_codec):
    for name in ("Backend", "DecodeParams", "Decoder"):
        real, double = getattr(real_codec, name), getattr(Codec, name)
        wanted = parameters(double)
        assert any(found[: len(wanted)] == wanted for found in signatures(real.__init__)), name
    wanted = parameters(nvdecode.CodecDecoder.decode)
    assert wanted in signatures(real_codec.Decoder.decode)
    assert ["bytes", "bitstream_offset"] in signatures(real_codec.CodeStream.__init__)
    for kind in (nvdecode.SampleFormat, nvdecode.BackendKind, nvdecode.ImageBufferKind):
        assert {one.name for one in kind} <= set(getattr(real_codec, kind.__name__).__members__)
    double = {name for name in dir(nvdecode.CodecImage) if not name.startswith("_")}
    assert {*double, "shape", "strides", "__cuda_array_interface__"} <= {*dir(real_codec.Image)}


class HostImage:
    """A picture of nvImageCodec on the host, which the tests' driver takes for a GPU's memory."""

    buffer_kind = nvdecode.ImageBufferKind.STRIDED_DEVICE

    def __init__(self, image):
        self.cpu, self.dtype = image.cpu, image.dtype
        self.shape, self.strides = image.shape, image.strides
        data = np.asarray(image).__array_interface__["data"]
        self.__cuda_array_interface__ = {"data": data}


@pytest.fixture
def real_decoder(real_codec, libraries, fake_gpu):
    """nvImageCodec's own code for the CPU, which decodes JPEGs by libjpeg-turbo."""

    class CpuDecoder:
        def __init__(self, device_id, max_num_cpu_threads, backends):  # noqa: ARG002
            cpu = real_codec.NVIMGCODEC_DEVICE_CPU_ONLY
            kind = real_codec.Backend(real_codec.BackendKind.CPU_ONLY)
            self._decoder = real_codec.Decoder(cpu, max_num_cpu_threads, [kind])

        def decode(self, stream, *, params, cuda_stream):  # noqa: ARG002
            image = self._decoder.decode(stream, params=params)
            return image and HostImage(image)

    for name in ("SampleFormat", "DecodeParams", "CodeStream", "Backend", "BackendKind"):
        setattr(libraries.codec, name, getattr(real_codec, name))
    libraries.codec.Decoder = CpuDecoder
    decoder = CudaDecoder(fake_gpu)
    yield decoder
    decoder.close()


PLAIN, PROGRESSIVE = (), (cv2.IMWRITE_JPEG_PROGRESSIVE, 1)


@pytest.mark.parametrize("parameters", [PLAIN, PROGRESSIVE], ids=["baseline", "progressive"])
@pytest.mark.parametrize("grey", [False, True], ids=["colour", "grey"])
def test_nvimagecodec_turns_pictures_as_opencv_does(grey, parameters, real_decoder, random):
    image = cv2.resize(noise(random, 4, 6), (61, 43), interpolation=cv2.INTER_CUBIC)
    data = jpeg(image[..., 0] if grey else image, *parameters)
    for orientation in range(10):
        for order in "<>":
            file = turned(data, orientation, order)
            np.testing.assert_array_equal(real_decoder.decode_jpeg(file).pixels, opencv(file))


def test_nvimagecodec_decodes_nothing_from_damage(real_decoder, random):
    data = jpeg(noise(random, 40, 60))
    for damaged in (data[:2000], data[:3], b"", b"not a JPEG"):
        assert real_decoder.decode_jpeg(damaged) is None
    assert real_decoder.decode_jpeg(data) is not None


@pytest.fixture
def real_video(driver):  # noqa: ARG001 - what it is linked with
    """The compiled part of PyNvVideoCodec: the package itself asks for a driver with video."""
    if util.find_spec("PyNvVideoCodec") is None:
        pytest.skip("PyNvVideoCodec is not installed")
    folder = Path(util.find_spec("PyNvVideoCodec").submodule_search_locations[0])
    version = f"cpython-{sys.version_info.major}{sys.version_info.minor}-"
    path = next(folder.glob(f"PyNvVideoCodec_130.{version}*"), None)
    if path is None:
        pytest.skip("PyNvVideoCodec has no code for this Python")
    flags = sys.getdlopenflags()
    sys.setdlopenflags(1)  # lazily: the tests' driver lacks functions that are not called
    try:
        spec = util.spec_from_file_location("_PyNvVideoCodec", path)
        video = util.module_from_spec(spec)
        spec.loader.exec_module(video)
    finally:
        sys.setdlopenflags(flags)
    return video


def test_the_double_of_pynvvideocodec_has_its_parameters(real_video):
    assert parameters(Video.CreateDemuxer) in signatures(real_video.CreateDemuxer)
    wanted = parameters(Video.CreateDecoder)
    assert any(found[: len(wanted)] == wanted for found in signatures(real_video.CreateDecoder))
    for double, real in [
        (nvdecode.Demuxer, real_video.PyNvDemuxer),
        (nvdecode.VideoDecoder, real_video.PyNvDecoder),
    ]:
        used = {name for name in vars(double) if not name.startswith("_")}
        assert used
        assert used <= {*dir(real)}
    assert {"timestamp", "shape", "strides", "GetPtrToPlane"} <= {*dir(real_video.DecodedFrame)}
    assert {"pts", "discardable"} <= {*dir(real_video.PacketData)}
    assert {one.name for one in nvdecode.OutputColorType} <= {*dir(real_video.OutputColorType)}
    assert issubclass(real_video.PyNvVCException, Exception)


def test_the_double_reads_the_packets_that_pynvvideocodec_reads(real_video, tmp_path):
    pytest.importorskip("av")
    times = [n / 25 + n % 3 * 0.007 for n in range(20)]
    for suffix in ("mp4", "mkv", "ts"):
        path = str(record_film(tmp_path / f"film.{suffix}", times, sound="aac", signal_s=0.2))
        real, double = real_video.CreateDemuxer(filename=path), nvdecode.Demuxer(path)
        packets = [(packet.pts, packet.discardable) for packet in real]
        assert packets == [(packet.pts, packet.discardable) for packet in double]
        assert real.GetTimebaseNum() * double.GetTimebaseDen() == real.GetTimebaseDen()
