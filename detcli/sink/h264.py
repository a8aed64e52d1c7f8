"""H.264 in MP4, with the sound of its source: what browsers, phones and editors play. By PyAV."""

import contextlib
import logging
from collections.abc import Iterable, Iterator
from fractions import Fraction
from io import FileIO
from typing import Any

import numpy as np

from detcli.errors import DependencyError, loading
from detcli.files import write_all
from detcli.geometry import Image

INSTALL = "pip install 'detcli[video]'"

with loading("PyAV", INSTALL):
    import av
    from av.video.reformatter import VideoReformatter

    from detcli.sink.sound import SoundError, open_sound

TICKS = 120_000
"""Of the clock in a second: frames of all usual rates, as 24000/1001, come at whole ticks."""

ENCODERS = ("libx264", "libopenh264")
"""PyAV's wheels have the first; a build without code under the GPL may have the second."""

OPTIONS = {
    "libx264": {"preset": "veryfast", "crf": "23", "bf": "0"},
    "libopenh264": {"allow_skip_frames": "0"},
}
"""No B-frames: with them, FFmpeg's players take a video of a variable rate to be too short."""

THREADS = 4
"""Each holds a frame, and the network needs the processor as well."""

BT709, LIMITED = 1, 1
"""Of the colours, as FFmpeg numbers them: what a player assumes of a video in HD."""

ENCODER = next((name for name in ENCODERS if name in av.codecs_available), None)
if ENCODER is None:
    raise DependencyError("this PyAV has no encoder for H.264", INSTALL)

log = logging.getLogger(__name__)


class H264Encoder:
    """Encodes the frames of one video, each at its time, and adds the sound beside them.

    Args:
        file: What is written; it stays open.
        shape: Of the frames, `(height, width, 3)`.
        rate: Frames per second, about; the last frame lasts as long as that.
        sound: Absolute path or URL of the video whose sound is heard; None for silence.
        start_s: The time of the first frame in that video.
    """

    def __init__(
        self,
        file: FileIO,
        shape: tuple[int, ...],
        rate: float,
        sound: str | None = None,
        start_s: float = 0.0,
    ) -> None:
        self._height, self._width = (side - side % 2 for side in shape[:2])
        self._file = _File(file)
        self._sound = None if sound is None else open_sound(sound, start_s)
        self._ticks = -1  # of the last frame
        self._end_s = 0.0  # of the last frame
        self._period_s = 1 / rate
        self.count = 0  # frames
        self._encoded = 0  # of these
        self._largest = shape[0] * shape[1]  # bytes of a frame; at first, those of noise
        self._convert = VideoReformatter()
        exact = {"movie_timescale": str(TICKS)}  # or the length is in milliseconds
        self._container = av.open(self._file, "w", format="mp4", options=exact)
        with _errors():
            self._begin(rate)

    def _begin(self, rate: float) -> None:
        fraction = Fraction(rate).limit_denominator(1001)
        stream = self._container.add_stream(str(ENCODER), rate=fraction)
        assert isinstance(stream, av.VideoStream)  # noqa: S101 - for the type checker
        self._stream = stream
        context = stream.codec_context
        context.width, context.height, context.pix_fmt = self._width, self._height, "yuv420p"
        context.time_base = stream.time_base = Fraction(1, TICKS)
        context.colorspace = context.color_primaries = context.color_trc = BT709
        context.color_range = LIMITED
        context.thread_count, context.thread_type = THREADS, "FRAME"  # slices compress worse
        context.options = OPTIONS[str(ENCODER)]
        if self._sound is not None:
            try:
                self._sound.begin(self._container)
            except SoundError as error:
                self._sound.leave_out(error)
                self._sound = None
        context.open()
        self._container.start_encoding()

    def write(self, picture: Image, time_s: float) -> None:
        """Write a frame, and the sound before it.

        Args:
            picture: `(H, W, 3)` uint8 BGR.
            time_s: From the start of this video; later than that of the frame before.
        """
        with _errors():
            even = np.ascontiguousarray(picture[: self._height, : self._width])
            whole = av.VideoFrame.from_numpy_buffer(even, "bgr24")
            frame = self._convert.reformat(whole, format="yuv420p", dst_colorspace=BT709)
            frame.pts = self._ticks = max(round(time_s * TICKS), self._ticks + 1)
            frame.time_base = Fraction(1, TICKS)
            self._add_sound(time_s)
            packets = self._stream.encode(frame)
        self._mux(packets)
        self.count += 1
        if packets:
            most = max(packet.size for packet in packets)
            self._largest = max(most, self._largest) if self._encoded else most
            self._encoded += len(packets)
        self._end_s = time_s + self._period_s

    @property
    def unwritten(self) -> int:
        """Bytes of the frames that are in the encoder, at most; about, before the first one."""
        return (self.count - self._encoded) * self._largest

    def finish(self) -> None:
        """Write what is missing: frames in the encoder, sound until their end, the index."""
        try:
            self._add_sound(self._end_s)
            with _errors():
                packets = self._stream.encode(None)
            self._mux(packets)
        finally:
            if self._sound is not None:
                self._sound.close()
            with _errors():
                self._container.close()
            self._file.check()

    def _add_sound(self, end_s: float) -> None:
        if self._sound is not None:
            self._mux(self._sound.until(end_s))

    def _mux(self, packets: Iterable["av.Packet[Any]"]) -> None:
        for packet in packets:
            try:
                self._container.mux(packet)
            except av.FFmpegError:  # of damaged sound, of this packet or one before; that is lost
                log.debug("a packet is left out", exc_info=True)
            self._file.check()


class _File:
    """A file as PyAV wants it; a failed write is remembered, as PyAV may not report it."""

    def __init__(self, file: FileIO) -> None:
        self._file = file
        self._failure: OSError | None = None
        self.seek, self.tell = file.seek, file.tell

    def write(self, data: bytes) -> int:
        try:
            write_all(self._file, data)
        except OSError as error:
            self._failure = self._failure or error
            raise
        return len(data)

    def check(self) -> None:
        """Raise what a write has failed with."""
        if self._failure is not None:
            raise self._failure


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """Raise FFmpeg's errors as errors of the system."""
    try:
        yield
    except av.FFmpegError as error:
        raise OSError(error.errno, error.strerror) from error
