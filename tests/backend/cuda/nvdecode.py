"""nvImageCodec and PyNvVideoCodec without a GPU: their functions, as far as detcli calls them.

JPEGs are decoded by OpenCV, videos by PyAV. `test_decoder.py` compares names and parameters with
the libraries themselves where those are installed.
"""
# ruff: noqa: ARG002, FBT002, N802, N803, PLR0913, PLR0917 - the libraries' names and parameters

import itertools
from enum import Enum
from types import SimpleNamespace

import cv2
import numpy as np

PITCH = 128  # rows of decoded pictures begin at multiples of this many bytes

LATENCY = 4  # packets that a decoder of videos takes before it gives the first frame


class OnDevice:
    """Pixels in the memory of a GPU, which come there when its stream has done its work."""

    def __init__(self, gpu, pixels):
        self._gpu = gpu
        height, width, self._channels = pixels.shape
        self.pitch = -(-width * self._channels // PITCH) * PITCH
        self.memory = gpu.allocate(height * self.pitch)
        rows = np.zeros((height, self.pitch), np.uint8)
        rows[:, : width * self._channels] = pixels.reshape(height, -1)
        self._staging = gpu.pin(rows.size)
        self._staging.array[:] = rows.reshape(-1)
        gpu.copy(self.memory.address, self._staging.address, rows.size)
        self.shape = pixels.shape

    def read(self):
        """A copy on the host."""
        staging = self._gpu.pin(self.memory.size)
        self._gpu.copy(staging.address, self.memory.address, self.memory.size)
        self._gpu.record().wait()
        height, width, channels = self.shape
        rows = staging.array.reshape(height, self.pitch)[:, : width * channels].copy()
        staging.close()
        return rows.reshape(self.shape)

    def close(self):
        self.memory.close()
        self._staging.close()


class SampleFormat(Enum):
    I_RGB = 1
    I_BGR = 2


class BackendKind(Enum):
    CPU_ONLY = 1
    GPU_ONLY = 2
    HYBRID_CPU_GPU = 3
    HW_GPU_ONLY = 4


class ImageBufferKind(Enum):
    STRIDED_DEVICE = 1
    STRIDED_HOST = 2


class Backend:
    def __init__(self, backend_kind):
        self.backend_kind = backend_kind


class DecodeParams:
    def __init__(
        self,
        apply_exif_orientation=True,
        color_spec=None,
        allow_any_depth=False,
        sample_format=None,
    ):
        self.apply_exif_orientation = apply_exif_orientation
        self.sample_format = sample_format


class CodeStream:
    def __init__(self, data):
        assert type(data) is bytes
        self.data = data


class Codec:
    """The module `nvidia.nvimgcodec`.

    Args:
        gpu: Has the memory, and the stream.

    Attributes:
        decoders: All that were made.
        refused: Files that the decoder does not take.
        wrong: What it does to pictures, as a library with an error in it.
    """

    SampleFormat, BackendKind, ImageBufferKind = SampleFormat, BackendKind, ImageBufferKind
    Backend, DecodeParams, CodeStream = Backend, DecodeParams, CodeStream

    def __init__(self, gpu):
        self.gpu = gpu
        self.decoders, self.refused = [], set()
        self.wrong = None

    def Decoder(self, device_id=-1, max_num_cpu_threads=0, backends=None, options=""):
        decoder = CodecDecoder(self, device_id, [one.backend_kind for one in backends])
        self.decoders.append(decoder)
        return decoder


class CodecDecoder:
    def __init__(self, codec, device_id, kinds):
        self.codec, self.device_id, self.kinds = codec, device_id, kinds
        self.busy = False

    def decode(self, src, *, image=None, params=None, cuda_stream=0):
        assert not self.busy, "two threads decode with one decoder"
        self.busy = True
        try:
            return self._decode(src.data, params, cuda_stream)
        finally:
            self.busy = False

    def _decode(self, data, params, cuda_stream):
        assert cuda_stream, "nobody waits for the default stream"
        if data in self.codec.refused:
            return None
        if b"raise" in data:
            raise RuntimeError("no memory")
        ignore = 0 if params.apply_exif_orientation else cv2.IMREAD_IGNORE_ORIENTATION
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR | ignore)
        if pixels is None:
            return None
        if params.sample_format is SampleFormat.I_RGB:
            pixels = pixels[..., ::-1]
        if self.codec.wrong is not None:
            pixels = self.codec.wrong(pixels)
        return CodecImage(OnDevice(self.codec.gpu, pixels))


class CodecImage:
    """A decoded picture; of a kind on the host in `test_decoder.py`."""

    buffer_kind = ImageBufferKind.STRIDED_DEVICE
    dtype = np.dtype(np.uint8)

    def __init__(self, held):
        self._held = held
        self.shape = held.shape
        self.strides = (held.pitch, held.shape[2], 1)

    @property
    def __cuda_array_interface__(self):
        data = self._held.memory.address, False
        return {"shape": self.shape, "strides": self.strides, "typestr": "|u1", "data": data}

    def cpu(self):
        return self._held.read()

    def __del__(self):
        self._held.close()


class OutputColorType(Enum):
    NATIVE = 0
    RGB = 1


class PyNvVCException(Exception):  # noqa: N818 - its name
    pass


class Video:
    """The module `PyNvVideoCodec`.

    Attributes:
        fails_at: Number of the packet with which the decoder fails.
        wrong: What it does to frames.
    """

    OutputColorType, PyNvVCException = OutputColorType, PyNvVCException

    def __init__(self, gpu):
        self.gpu = gpu
        self.fails_at = None
        self.wrong = None

    def CreateDemuxer(self, filename):
        import av

        try:
            return Demuxer(filename)
        except av.FFmpegError as error:
            raise PyNvVCException(f"CreateFormatContext :\n{error}") from error

    def CreateDecoder(
        self,
        gpuid=0,
        codec=None,
        cudacontext=0,
        cudastream=0,
        usedevicememory=False,
        maxwidth=0,
        maxheight=0,
        outputColorType=OutputColorType.NATIVE,
    ):
        assert usedevicememory
        assert outputColorType is OutputColorType.RGB
        return VideoDecoder(self, codec)


class Demuxer:
    """Packets in the order of the file, and an empty one at the end."""

    def __init__(self, filename):
        import av

        self._file = av.open(filename)
        self._stream = self._file.streams.video[0]

    def __iter__(self):
        for packet in self._file.demux(self._stream):
            if packet.dts is not None or packet.size:
                yield SimpleNamespace(
                    pts=packet.pts, discardable=int(packet.is_discard), packet=packet
                )
        yield SimpleNamespace(pts=0, discardable=0, packet=None)

    def GetNvCodecId(self):
        return self._stream.codec_context

    def GetTimebaseNum(self):
        return self._stream.time_base.numerator

    def GetTimebaseDen(self):
        return self._stream.time_base.denominator


class VideoDecoder:
    """Gives frames in the order in which they are shown, some packets late, edit lists ignored.

    What a call gave is overwritten by the next call.
    """

    def __init__(self, video, codec):
        import av

        self._video = video
        self._codec = av.CodecContext.create(codec.codec.name, "r")
        self._codec.extradata = codec.extradata
        self._decoded, self._given, self._numbers = [], [], itertools.count()

    def Decode(self, packet):
        import av

        if next(self._numbers) == self._video.fails_at:
            raise PyNvVCException("cuvidDecodePicture failed\nat line 1")
        for frame in self._given:
            frame.overwrite()
        self._given = []
        if packet.packet is None:
            self._decoded += self._codec.decode(None)
            ready, self._decoded = self._decoded, []
        else:
            copy = av.Packet(bytes(packet.packet))
            copy.pts, copy.dts = packet.packet.pts, packet.packet.dts
            self._decoded += self._codec.decode(copy)
            ready = self._decoded[:-LATENCY]
            self._decoded = self._decoded[len(ready) :]
        self._given = [Frame(self._video, frame) for frame in ready]
        return self._given

    def SyncOnCUStream(self):
        self._video.gpu.record().wait()


class Frame:
    def __init__(self, video, frame):
        pixels = frame.to_ndarray(format="rgb24")
        if video.wrong is not None:
            pixels = video.wrong(pixels)
        self._video, self._held = video, OnDevice(video.gpu, pixels)
        self.timestamp = frame.pts
        self.shape = list(pixels.shape)
        self.strides = [self._held.pitch, 3, 1]

    def GetPtrToPlane(self, plane):
        assert plane == 0
        return self._held.memory.address

    def overwrite(self):
        """Put something else into the memory, and give it back."""
        gpu, memory = self._video.gpu, self._held.memory
        gpu.clear(memory.address, memory.size)
        self._held.close()
