"""Decoding on a GPU: JPEGs by nvImageCodec, videos by PyNvVideoCodec.

Pictures stay in the GPU's memory. Their pixels are not those of `cv2.imdecode`: the inverse cosine
transform and the upsampling of colours are rounded differently. Whatever a decoder does not take is
left to the CPU.
"""

import contextlib
import importlib
import importlib.util
import logging
import os
import queue
import struct
import weakref
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from detcli.errors import DecodeError, DependencyError, DeviceError, InferenceError, loading
from detcli.geometry import DeviceImage, Image, alike
from detcli.opencv import cv2

if TYPE_CHECKING:
    from detcli.backend.cuda.driver import DeviceMemory, Gpu

EXTRA = "pip install 'detcli[nvdecode]'; or leave out --gpu-decode"

VIDEO_LIBRARY = "PyNvVideoCodec"

BLOCK = 256  # threads of bgr_from_rgb, along a row

log = logging.getLogger(__name__)


class CudaDecoder:
    """Decodes pictures and videos into the memory of a GPU.

    Thread-safe: each thread that decodes a JPEG has a decoder of nvImageCodec for itself meanwhile.
    """

    def __init__(self, gpu: "Gpu") -> None:
        """Load nvImageCodec, and decode a small JPEG.

        PyNvVideoCodec is loaded with the first video: it needs a part of NVIDIA's driver that some
        containers lack.

        Args:
            gpu: Becomes the decoder's, which closes it.

        Raises:
            DependencyError: A library is not installed.
            DeviceError: nvImageCodec does not work with this driver or GPU.
        """
        self._gpu = gpu
        self._codec = _jpeg_library()
        if importlib.util.find_spec(VIDEO_LIBRARY) is None:
            raise DependencyError(f"{VIDEO_LIBRARY} is not installed", EXTRA)
        on_gpu = ("HW_GPU_ONLY", "GPU_ONLY", "HYBRID_CPU_GPU")  # the CPU decodes with OpenCV
        kinds = [getattr(self._codec.BackendKind, kind) for kind in on_gpu]
        self._idle: queue.SimpleQueue[Any] = queue.SimpleQueue()  # decoders
        try:
            self._backends = [self._codec.Backend(kind) for kind in kinds]
            self._parameters = self._codec.DecodeParams(
                apply_exif_orientation=True, sample_format=self._codec.SampleFormat.I_BGR
            )
            self._idle.put(self._new_decoder())
            self._prove()
        except (RuntimeError, TypeError, InferenceError) as error:  # of a driver, an older version
            raise _useless(str(error)) from error

    def _new_decoder(self) -> Any:  # noqa: ANN401 - a type of nvImageCodec
        # With more threads it would decode batches in parallel; here threads decode one each.
        return self._codec.Decoder(
            device_id=self._gpu.ordinal, max_num_cpu_threads=1, backends=self._backends
        )

    def _prove(self) -> None:
        """Require the picture that OpenCV finds in a JPEG on its side.

        Raises:
            DeviceError: It is another one: channels or the orientation are wrong.
        """
        data = sideways_jpeg()
        wanted = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
        image = self.decode_jpeg(data)
        if image is None:
            raise _useless("nvImageCodec decodes nothing here")
        if not alike(image.pixels, np.asarray(wanted, np.uint8)):
            raise _useless("nvImageCodec decodes a small JPEG to other colours than OpenCV")

    def decode_jpeg(self, data: bytes) -> DeviceImage | None:
        """Decode a JPEG, and wait for it.

        Args:
            data: The whole file.

        Returns:
            The upright picture; None if the GPU's decoder does not take the file.
        """
        try:
            with self._lent_decoder() as decoder:
                image = decoder.decode(
                    self._codec.CodeStream(data),
                    params=self._parameters,
                    cuda_stream=self._gpu.stream,
                )
                self._gpu.record().wait()
        except (RuntimeError, ValueError, MemoryError) as error:
            log.info("nvImageCodec: %s", error)
            return None
        kind = self._codec.ImageBufferKind.STRIDED_DEVICE
        if image is None or image.buffer_kind != kind or image.dtype != np.uint8:
            return None
        if len(image.shape) != 3 or image.shape[2] != 3 or tuple(image.strides[1:]) != (3, 1):
            return None
        address, _ = image.__cuda_array_interface__["data"]
        shape = (image.shape[0], image.shape[1], 3)
        # The library frees the picture on the GPU's stream, which is to exist until then.
        return DeviceImage(shape, address, image.strides[0], partial(_downloaded, self._gpu, image))

    @contextlib.contextmanager
    def _lent_decoder(self) -> Iterator[Any]:
        """A decoder of nvImageCodec that no other thread uses."""
        try:
            decoder = self._idle.get_nowait()
        except queue.Empty:
            decoder = self._new_decoder()
        try:
            yield decoder
        finally:
            self._idle.put(decoder)

    def decode_video(self, path: str) -> Iterator[tuple[float, DeviceImage]]:
        """Decode the frames of a video file, in the order in which they are shown.

        Args:
            path: The file's.

        Yields:
            A time in seconds, from an origin that all frames share, and the frame, which is as it
            was stored: a rotation in the file's metadata is not applied.

        Raises:
            DecodeError: The GPU's decoder does not take the file, or fails.
        """
        try:
            video = importlib.import_module(VIDEO_LIBRARY)
            demuxer = video.CreateDemuxer(filename=path)
            decoder = video.CreateDecoder(
                gpuid=self._gpu.ordinal,
                codec=demuxer.GetNvCodecId(),
                usedevicememory=True,
                outputColorType=video.OutputColorType.RGB,
            )
            tick_s = demuxer.GetTimebaseNum() / demuxer.GetTimebaseDen()
            hidden = set()  # times of frames that an edit list leaves out
            for packet in demuxer:
                if packet.discardable:
                    hidden.add(packet.pts)
                for frame in decoder.Decode(packet):
                    if frame.timestamp not in hidden:
                        decoder.SyncOnCUStream()
                        yield frame.timestamp * tick_s, self._keep(frame)
        except Exception as error:  # its own type is not known before it is loaded
            reason, _, _ = str(error).strip().partition("\n")
            raise DecodeError(
                f"the GPU does not decode it: {reason or type(error).__name__}",
                "leave out --gpu-decode",
            ) from error

    def _keep(self, frame: Any) -> DeviceImage:  # noqa: ANN401 - a type of PyNvVideoCodec
        """Copy a frame out of the decoder's memory, and wait for it."""
        height, width, channels = frame.shape
        if channels != 3:
            raise ValueError(f"a frame of {channels} channels")
        gpu, size = self._gpu, height * width * 3
        memory = gpu.allocate(size)
        grid = (-(-width // BLOCK), height, 1)
        source, pitch = frame.GetPtrToPlane(0), np.uint32(frame.strides[0])
        gpu.launch("bgr_from_rgb", grid, BLOCK, source, pitch, memory.address, np.uint32(width))
        gpu.record().wait()
        shape = (height, width, 3)
        image = DeviceImage(shape, memory.address, 3 * width, partial(_copied, gpu, memory, shape))
        weakref.finalize(image, gpu.call, memory.close).atexit = False
        return image

    def close(self) -> None:
        """Close the decoders; pictures that were decoded stay, and the GPU's streams with them."""
        while not self._idle.empty():
            self._idle.get()
        self._gpu.synchronize()


def _downloaded(_: "Gpu", image: Any) -> Image:  # noqa: ANN401 - a type of nvImageCodec
    """A picture of nvImageCodec, copied to the host without gaps; the GPU is only kept."""
    try:
        on_host = image.cpu()
    except RuntimeError as error:
        raise InferenceError(f"nvImageCodec cannot copy a picture: {error}") from error
    if on_host is None:
        raise InferenceError("nvImageCodec cannot copy a picture from the GPU")
    return np.array(on_host, np.uint8)  # which may be drawn on


def _copied(gpu: "Gpu", memory: "DeviceMemory", shape: tuple[int, int, int]) -> Image:
    """A picture without gaps, copied to the host."""
    staging = gpu.pin(memory.size)
    gpu.copy(staging.address, memory.address, memory.size)
    gpu.record().wait()
    pixels = staging.array.reshape(shape).copy()
    staging.close()
    return pixels


def _jpeg_library() -> Any:  # noqa: ANN401 - it has no types
    """Import nvImageCodec, which otherwise prints a line for each picture that it does not take."""
    os.environ.setdefault("PYNVIMGCODEC_VERBOSITY", "0")
    with loading("nvImageCodec", EXTRA):
        return importlib.import_module("nvidia.nvimgcodec")


def _useless(reason: str) -> DeviceError:
    return DeviceError(
        f"this GPU cannot decode pictures: {reason}",
        "update NVIDIA's driver and nvidia-nvimgcodec, or leave out --gpu-decode",
    )


def sideways_jpeg() -> bytes:
    """A JPEG of four colours that has to be turned by 90 degrees."""
    quarters = [[(0, 0, 255), (0, 255, 0)], [(255, 0, 0), (255, 255, 255)]]
    image = np.array(quarters, np.uint8).repeat(16, axis=0).repeat(32, axis=1)
    data = cv2.imencode(".jpg", image)[1].tobytes()
    orientation = struct.pack("<HHIHH", 0x112, 3, 1, 6, 0)  # a tag, its type, its count and value
    exif = b"Exif\0\0" + struct.pack("<2sHIH", b"II", 42, 8, 1) + orientation + bytes(4)
    return data[:2] + struct.pack(">HH", 0xFFE1, len(exif) + 2) + exif + data[2:]
