"""H.264 in MP4, with the sound of its source: what browsers, phones and editors play. By PyAV."""

import contextlib
import io
import logging
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from functools import partial
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from detcli.core.errors import DependencyError, loading, system_reason
from detcli.core.text import public_name
from detcli.data.geometry import Image
from detcli.sink.protocol import Stream
from detcli.storage.files import write_all

INSTALL = 'pip install "detcli[video]"'

with loading("PyAV", INSTALL):
    import av
    from av.video.reformatter import VideoReformatter

if TYPE_CHECKING:
    Packet = av.Packet[av.AudioStream]

# Codecs that MP4 holds and browsers play; others become AAC.
COPIED = frozenset({"aac", "flac", "mp3", "opus"})
MIN_MP3_RATE = 16_000  # samples per second; MP4 has no word for MP3 with fewer
AAC_RATES = (96000, 88200, 64000, 48000, 44100, 32000, 24000, 22050, 16000, 12000, 11025, 8000)
AAC_RATE = 48_000  # for sound of any other rate
SEEK_FROM_S = 5.0
TIMEOUTS_S = (10.0, 5.0)  # for opening an address, and for each read

# Of PyAV, for a damaged file: also of numbers that are missing, or have more than 64 bits.
FAILURES = (av.FFmpegError, OSError, ValueError, TypeError, ArithmeticError)
DEFAULT_SCORE = 5_000_000  # what FFmpeg adds for a default track to the pixels of its frames
LEFT_OUT = "%s: its sound is left out: %s"

log = logging.getLogger(__name__)


class Sound:
    """The sound of a video, handed over in step with its pictures."""

    def __init__(
        self, name: str, source: av.container.InputContainer, track: av.AudioStream, start_s: float
    ) -> None:
        self._name = name
        self._input = source
        self._track = track
        self._codec = track.codec_context.codec.canonical_name
        self._rate = track.codec_context.sample_rate
        self._packets: Iterator[tuple[float, Packet]] = iter(())
        self._next: tuple[float, Packet] | None = None
        self._shift_s = _first_frame_s(source) + start_s

        for stream in source.streams:
            if stream is not track and hasattr(stream, "discard"):
                stream.discard = av.stream.Discard.all  # then an index saves reading it
        if start_s > SEEK_FROM_S:
            with contextlib.suppress(*FAILURES):
                source.seek(int((self._shift_s - 1) * av.time_base))

    def begin(self, output: av.container.OutputContainer) -> bool:
        """Add a track to a container; False, with a warning, if there will be no sound."""
        try:
            if self._fits():
                self._packets = self._copied(output.add_stream_from_template(self._track))
            else:
                self._packets = self._encoded(self._add_aac(output))
                log.info("%s: sound in %s becomes AAC", self._name, self._codec)
        except FAILURES as error:
            log.warning(LEFT_OUT, self._name, system_reason(error))
            self.close()
            return False
        self._advance()
        return True

    def _add_aac(self, output: av.container.OutputContainer) -> av.AudioStream:
        """Add a track of AAC to a container, with the rate and channels that fit best."""
        rate = self._rate if self._rate in AAC_RATES else AAC_RATE
        layout = "mono" if self._track.codec_context.channels == 1 else "stereo"
        return output.add_stream("aac", rate=rate, layout=layout)

    def _fits(self) -> bool:
        """Whether MP4 holds it as it is.

        A damaged header would fail with the last frame only, so it is written to a trial first.
        """
        if self._codec not in COPIED or (self._codec == "mp3" and self._rate < MIN_MP3_RATE):
            return False
        header_first = {"movflags": "empty_moov"}
        try:
            with av.open(io.BytesIO(), "w", format="mp4", options=header_first) as trial:
                trial.add_stream_from_template(self._track)
                trial.start_encoding()
        except FAILURES:
            return False
        return True

    def until(self, end_s: float) -> "Iterator[Packet]":
        """Yield what begins before a time of the pictures, as far as it was not yielded yet."""
        while self._next is not None and self._next[0] < end_s:
            yield self._next[1]
            self._advance()

    def close(self) -> None:
        """Close the source."""
        self._next = None
        self._packets = iter(())
        self._input.close()

    def _advance(self) -> None:
        """Look at the next packet; where it cannot be read, the sound ends."""
        try:
            self._next = next(self._packets, None)
        except FAILURES as error:
            log.warning("%s: its sound breaks off: %s", self._name, system_reason(error))
            self._next = None

    def _copied(self, track: av.AudioStream) -> "Iterator[tuple[float, Packet]]":
        """The packets as they are, each with its time among the pictures."""
        last = None
        for packet in self._input.demux(self._track):
            if packet.pts is None or not packet.size:
                continue
            packet.pts -= round(self._shift_s / packet.time_base)
            packet.dts = packet.pts
            if last is not None and packet.pts <= last:  # damage: MP4 knows no way back
                continue
            time_s = float(packet.pts * packet.time_base)
            # One packet more than is heard: decoders need it before the first.
            if time_s + 2 * float((packet.duration or 0) * packet.time_base) < 0:
                continue
            last = packet.pts
            packet.stream = track
            yield time_s, packet

    def _encoded(self, track: av.AudioStream) -> "Iterator[tuple[float, Packet]]":
        """The sound encoded anew, in packets with their times among the pictures."""
        for frame in self._decoded():
            yield from _timed(track.encode(frame))
        yield from _timed(track.encode(None))

    def _decoded(self) -> Iterator[av.AudioFrame]:
        """The sound as samples, from the first picture on, and never back in time."""
        last = None
        for packet in self._input.demux(self._track):
            frames: list[av.AudioFrame] = []
            with contextlib.suppress(av.error.InvalidDataError):  # the others may be heard
                frames = packet.decode()
            for frame in frames:
                if frame.pts is None or frame.time_base is None:
                    continue
                frame.pts -= round(self._shift_s / frame.time_base)
                if (last is None or frame.pts > last) and frame.pts * frame.time_base >= 0:
                    last = frame.pts
                    yield frame


def _timed(packets: "Iterable[Packet]") -> "Iterator[tuple[float, Packet]]":
    """Packets of encoded sound, each with its time in seconds."""
    for packet in packets:
        yield float((packet.pts or 0) * packet.time_base), packet


def _first_frame_s(source: av.container.InputContainer) -> float:
    """The time of the first frame, in the time of a file; 0 if it is not known."""
    stream = _largest(source.streams.video)
    if stream is None or not stream.start_time or not stream.time_base:
        return 0.0
    return float(stream.start_time * stream.time_base)


def _largest(streams: "Sequence[av.VideoStream]") -> "av.VideoStream | None":
    """The track whose frames are read, see `choose_track` in `source/containers.py`."""

    def score(stream: "av.VideoStream") -> int:
        if stream.disposition & av.stream.Disposition.attached_pic:
            return 1
        pixels = stream.height * stream.width
        if stream.disposition & av.stream.Disposition.default:
            return pixels + DEFAULT_SCORE
        return pixels

    return max(streams, key=score, default=None)


def open_sound(address: str, start_s: float) -> Sound | None:
    """Open the sound of a video; None if it has none, or with a warning if it cannot be read.

    Of several tracks, FFmpeg's choice: that with most channels, as a rule.
    """
    name = public_name(address)
    path = Path(address)
    if path.is_absolute() and not path.is_file():  # opening a pipe again would wait
        return None
    try:
        source = av.open(address, timeout=TIMEOUTS_S, metadata_errors="ignore")
        track = source.streams.best("audio")
        # The context is None without a codec, which PyAV's types do not say.
        if isinstance(track, av.AudioStream) and track.codec_context is not None:
            return Sound(name, source, track, start_s)
        source.close()
        if track is not None:
            log.warning(LEFT_OUT, name, "unknown codec")
    except FAILURES as error:
        log.warning(LEFT_OUT, name, system_reason(error))
    return None


TICKS = 120_000  # in a second: frames of all usual rates, as 24000/1001, come at whole ticks
THREADS = 4  # each holds a frame, and the network needs the processor as well
BT709 = 1  # the colours that a player assumes of a video in HD, as FFmpeg numbers them
LIMITED = 1  # the range of these colours

# By encoder: PyAV's wheels have the first; a build without code under the GPL may have the second.
# No B-frames: with them, FFmpeg's players take a video of a variable rate to be too short.
OPTIONS = {
    "libx264": {"preset": "veryfast", "crf": "23", "bf": "0"},
    "libopenh264": {"allow_skip_frames": "0"},
}


def _encoder_name() -> str:
    """The best encoder of H.264 that PyAV has."""
    for name in OPTIONS:
        if name in av.codecs_available:
            return name
    raise DependencyError("this PyAV has no encoder for H.264", INSTALL)


ENCODER = _encoder_name()


class H264Encoder:
    """Encodes the frames of one video, each at its time, and adds the sound beside them.

    Frames have a shape `(height, width, 3)`; the last one lasts as long as `rate`, in frames per
    second, says. Width and height of a pixel as it is shown have the ratio `pixel_aspect`.
    `sound` is the absolute path or URL of the video whose sound is heard, and
    `start_s` the time of the first frame in it. The file stays open.
    """

    def __init__(
        self,
        file: FileIO,
        shape: tuple[int, ...],
        rate: float,
        sound: str | None = None,
        start_s: float = 0.0,
        pixel_aspect: tuple[int, int] = (1, 1),
    ) -> None:
        self._height = shape[0] - shape[0] % 2
        self._width = shape[1] - shape[1] % 2
        self._file = Stream(partial(write_all, file), file.seek)
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
            self._stream = self._add_stream(rate, pixel_aspect)
            if self._sound is not None and not self._sound.begin(self._container):
                self._sound = None
            self._stream.codec_context.open()
            self._container.start_encoding()

    def _add_stream(self, rate: float, pixel_aspect: tuple[int, int]) -> av.VideoStream:
        """Add the track of the frames to the container, with the settings of its encoder."""
        fraction = Fraction(rate).limit_denominator(3600)
        stream = self._container.add_stream(ENCODER, rate=fraction)
        assert isinstance(stream, av.VideoStream)  # noqa: S101 - for the type checker
        context = stream.codec_context
        context.width = self._width
        context.height = self._height
        context.pix_fmt = "yuv420p"
        context.time_base = Fraction(1, TICKS)
        stream.time_base = Fraction(1, TICKS)
        context.colorspace = BT709
        context.color_primaries = BT709
        context.color_trc = BT709
        context.color_range = LIMITED
        context.sample_aspect_ratio = Fraction(*pixel_aspect)
        context.thread_count = THREADS
        context.thread_type = "FRAME"  # slices compress worse
        context.options = OPTIONS[ENCODER]
        return stream

    def write(self, picture: Image, time_s: float) -> None:
        """Write a frame, and the sound before it."""
        with _errors():
            even = np.ascontiguousarray(picture[: self._height, : self._width])
            bgr_frame = av.VideoFrame.from_numpy_buffer(even, "bgr24")
            frame = self._convert.reformat(bgr_frame, format="yuv420p", dst_colorspace=BT709)
            self._ticks = max(round(time_s * TICKS), self._ticks + 1)
            frame.pts = self._ticks
            frame.time_base = Fraction(1, TICKS)
            self._add_sound(time_s)
            packets = self._stream.encode(frame)
        self._mux(packets)
        self.count += 1
        if packets:
            sizes = [packet.size for packet in packets]
            if self._encoded:
                sizes.append(self._largest)
            self._largest = max(sizes)
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
            self._check()

    def _add_sound(self, end_s: float) -> None:
        if self._sound is not None:
            self._mux(self._sound.until(end_s))

    def _mux(self, packets: Iterable["av.Packet[Any]"]) -> None:
        for packet in packets:
            try:
                self._container.mux(packet)
            except av.FFmpegError:  # of damaged sound, of this packet or one before; that is lost
                log.debug("a packet is left out", exc_info=True)
            self._check()

    def _check(self) -> None:
        if self._file.failure is not None:
            raise self._file.failure


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """Raise FFmpeg's errors as errors of the system."""
    try:
        yield
    except av.FFmpegError as error:
        raise OSError(error.errno, error.strerror) from error
