"""H.264 in MP4, with the sound of its source, by PyAV: what browsers, phones and editors play."""

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
from detcli.data.geometry import Pixels
from detcli.sink.protocol import Stream
from detcli.storage.files import write_all

INSTALL = 'pip install "detcli[video]"'

with loading("PyAV", INSTALL):
    import av
    from av.video.reformatter import VideoReformatter

if TYPE_CHECKING:
    Packet = av.Packet[av.AudioStream]

# Codecs that MP4 holds and browsers play; sound in any other is encoded again, as AAC.
COPIED = frozenset({"aac", "flac", "mp3", "opus"})
MIN_MP3_RATE = 16_000  # samples per second; MP4 has no code for MP3 with fewer
AAC_RATES = (96000, 88200, 64000, 48000, 44100, 32000, 24000, 22050, 16000, 12000, 11025, 8000)
AAC_RATE = 48_000  # for sound with any other rate
MIN_SEEK_S = (
    5.0  # sound before a later start is skipped by a seek, before an earlier one by reading
)
SECONDS_BEFORE_SEEK = 1  # reading starts a little earlier: packets that come too early are dropped
TIMEOUTS_S = (10.0, 5.0)  # for opening an address, and for each read

# What PyAV raises for a damaged file. TypeError comes from missing times, ArithmeticError from
# numbers of more than 64 bits.
FAILURES = (av.FFmpegError, OSError, ValueError, TypeError, ArithmeticError)
DEFAULT_SCORE = 5_000_000  # FFmpeg prefers a default track to one with this many more pixels
SOUND_LEFT_OUT = "%s: its sound is left out: %s"  # a warning: the source, and why

METADATA_IS_LENIENT_FROM = 19
"""The major version of PyAV since which metadata need not be UTF-8, and no option is needed."""

IGNORES_METADATA: dict[str, Any] = {}
if int(av.__version__.partition(".")[0]) < METADATA_IS_LENIENT_FROM:
    IGNORES_METADATA["metadata_errors"] = "ignore"

log = logging.getLogger(__name__)


class Sound:
    """The sound of a source video, read in step with the frames of the annotated video.

    Its packets are written to the annotated video as they are, or decoded and encoded as AAC where
    MP4 cannot hold their codec. Times are counted from the first frame of the annotated video.
    """

    def __init__(
        self, name: str, source: av.container.InputContainer, track: av.AudioStream, start_s: float
    ) -> None:
        """Prepare to read the sound, starting at the time of a frame.

        Args:
            name: The name of the source in messages.
            source: The open source, which this object closes.
            track: Its audio track that is heard.
            start_s: The time in the source, from its first frame, at which the annotated video
                begins.
        """
        self._name = name
        self._source = source
        self._track = track
        self._codec_name = track.codec_context.codec.canonical_name
        self._sample_rate = track.codec_context.sample_rate
        # What is left to write: the next packet, and those after it, each with its time in seconds.
        self._next: tuple[float, Packet] | None = None
        self._packets: Iterator[tuple[float, Packet]] = iter(())
        # The timestamp in the file, in seconds, at which the annotated video begins.
        self._origin_s = _first_frame_s(source) + start_s

        self._discard_other_tracks()
        if start_s > MIN_SEEK_S:
            self._seek(self._origin_s - SECONDS_BEFORE_SEEK)

    def _discard_other_tracks(self) -> None:
        """Let FFmpeg skip the other tracks: a file with an index is read faster then."""
        for stream in self._source.streams:
            if stream is not self._track and hasattr(stream, "discard"):
                stream.discard = av.stream.Discard.all

    def _seek(self, timestamp_s: float) -> None:
        """Skip what comes before a timestamp in seconds; it is read instead if that fails."""
        with contextlib.suppress(*FAILURES):
            self._source.seek(int(timestamp_s * av.time_base))

    def begin(self, output: av.container.OutputContainer) -> bool:
        """Add an audio track for this sound to the container of the annotated video.

        Returns:
            Whether there will be sound. Where it cannot be read, a warning says so, and the source
            is closed.
        """
        try:
            if self._can_be_copied():
                copied_track = output.add_stream_from_template(self._track)
                self._packets = self._copied_packets(copied_track)
            else:
                self._packets = self._encoded_packets(self._add_aac(output))
                log.info("%s: sound in %s becomes AAC", self._name, self._codec_name)
        except FAILURES as error:
            log.warning(SOUND_LEFT_OUT, self._name, system_reason(error))
            self.close()
            return False
        self._advance()
        return True

    def _add_aac(self, output: av.container.OutputContainer) -> av.AudioStream:
        """Add an AAC track to the annotated video, with the sample rate and channels that fit."""
        rate = self._sample_rate if self._sample_rate in AAC_RATES else AAC_RATE
        layout = "mono" if self._track.codec_context.channels == 1 else "stereo"
        return output.add_stream("aac", rate=rate, layout=layout)

    def _can_be_copied(self) -> bool:
        """Return whether the packets of the sound can be written to MP4 without re-encoding.

        FFmpeg writes the header of an MP4 file after the last frame, and would refuse damaged
        settings of the codec only then. So the header is written to a file in memory first.
        """
        if self._codec_name not in COPIED:
            return False
        if self._codec_name == "mp3" and self._sample_rate < MIN_MP3_RATE:
            return False
        header_first = {"movflags": "empty_moov"}
        try:
            with av.open(io.BytesIO(), "w", format="mp4", options=header_first) as trial:
                trial.add_stream_from_template(self._track)
                trial.start_encoding()
        except FAILURES:
            return False
        return True

    def packets_until(self, end_s: float) -> "Iterator[Packet]":
        """Yield the packets that begin before a time and have not been yielded yet.

        Args:
            end_s: The time in seconds, from the first frame of the annotated video.
        """
        while self._next is not None:
            time_s, packet = self._next
            if time_s >= end_s:
                return
            yield packet
            self._advance()

    def close(self) -> None:
        """Close the source; no more packets come."""
        self._next = None
        self._packets = iter(())
        self._source.close()

    def _advance(self) -> None:
        """Read the next packet ahead; where it cannot be read, the sound ends with a warning."""
        try:
            self._next = next(self._packets, None)
        except FAILURES as error:
            log.warning("%s: its sound breaks off: %s", self._name, system_reason(error))
            self._next = None

    def _copied_packets(self, track: av.AudioStream) -> "Iterator[tuple[float, Packet]]":
        """Yield the source's audio packets without encoding them again, for the annotated video.

        Their timestamps are moved so that 0 is the first frame of the annotated video. Only the
        last of the packets that end before that is written.

        Args:
            track: The audio track of the annotated video, to which the packets will belong.

        Yields:
            The time in seconds at which a packet is heard, and the packet.
        """
        last_timestamp = None
        for packet in self._source.demux(self._track):
            if packet.pts is None or not packet.size:
                continue
            packet.pts -= round(self._origin_s / packet.time_base)
            packet.dts = packet.pts

            # MP4 takes no packet that is earlier than the previous one, as in a damaged source.
            is_later = last_timestamp is None or packet.pts > last_timestamp
            if not is_later:
                continue

            # Decoders need one packet before the first that is heard. So a packet is left out if
            # the next one, which is taken to be as long, ends before 0 as well.
            time_s = float(packet.pts * packet.time_base)
            duration_s = float((packet.duration or 0) * packet.time_base)
            next_packet_end_s = time_s + 2 * duration_s
            if next_packet_end_s < 0:
                continue

            last_timestamp = packet.pts
            packet.stream = track
            yield time_s, packet

    def _encoded_packets(self, track: av.AudioStream) -> "Iterator[tuple[float, Packet]]":
        """Decode the source's sound, and yield it encoded as packets of the annotated video.

        Args:
            track: The AAC track of the annotated video.

        Yields:
            The time in seconds at which a packet is heard, and the packet.
        """
        for frame in self._decoded_frames():
            yield from _with_times(track.encode(frame))
        yield from _with_times(track.encode(None))  # what the encoder has left

    def _decoded_frames(self) -> Iterator[av.AudioFrame]:
        """Decode the source's sound, starting at the first frame of the annotated video.

        A frame of sound is a block of samples. Timestamps are moved so that 0 is the first frame
        of the annotated video; blocks that are not later than the previous one are left out.
        """
        last_timestamp = None
        for frame in self._all_decoded_frames():
            if frame.pts is None or frame.time_base is None:
                continue
            frame.pts -= round(self._origin_s / frame.time_base)
            is_later = last_timestamp is None or frame.pts > last_timestamp
            is_heard = frame.pts * frame.time_base >= 0
            if is_later and is_heard:
                last_timestamp = frame.pts
                yield frame

    def _all_decoded_frames(self) -> Iterator[av.AudioFrame]:
        """Decode the source's sound; packets that cannot be decoded are left out."""
        for packet in self._source.demux(self._track):
            frames: list[av.AudioFrame] = []
            with contextlib.suppress(av.error.InvalidDataError):  # later packets may be readable
                frames = packet.decode()
            yield from frames


def _with_times(packets: "Iterable[Packet]") -> "Iterator[tuple[float, Packet]]":
    """Yield each packet of encoded sound with its time in seconds before it."""
    for packet in packets:
        yield float((packet.pts or 0) * packet.time_base), packet


def _first_frame_s(source: av.container.InputContainer) -> float:
    """Return the timestamp of a video's first frame in seconds; 0 if the file does not say.

    Frames and sound need not begin at 0, as in the recording of a broadcast.
    """
    stream = _choose_video_track(source.streams.video)
    if stream is None or not stream.start_time or not stream.time_base:
        return 0.0
    return float(stream.start_time * stream.time_base)


def _choose_video_track(streams: "Sequence[av.VideoStream]") -> "av.VideoStream | None":
    """Return the video track whose frames the run reads; None if there is no video track.

    A track that is marked as the default comes first, then the one with the largest frames; a cover
    image comes last. `choose_track` in `source/video_tracks.py` chooses by the same rules, which
    are those of FFmpeg.
    """

    def score(stream: "av.VideoStream") -> int:
        """Return a number that is higher for a better track."""
        if stream.disposition & av.stream.Disposition.attached_pic:
            return 1
        pixels = stream.height * stream.width
        if stream.disposition & av.stream.Disposition.default:
            return pixels + DEFAULT_SCORE
        return pixels

    return max(streams, key=score, default=None)


def open_sound(address: str, start_s: float) -> Sound | None:
    """Open the sound of a video; FFmpeg chooses one of several tracks.

    Args:
        address: The absolute path or the URL of the video.
        start_s: The time in the video at which the sound begins, in seconds from its first frame.

    Returns:
        None for a pipe, which cannot be read a second time; for a video without sound; and for
        sound that cannot be read, which a warning says.
    """
    path = Path(address)
    is_pipe = path.is_absolute() and not path.is_file()
    if is_pipe:
        return None
    try:
        return _open_audio_track(address, start_s)
    except FAILURES as error:
        log.warning(SOUND_LEFT_OUT, public_name(address), system_reason(error))
        return None


def _open_audio_track(address: str, start_s: float) -> Sound | None:
    """Open the best audio track of a video; None if it has none, or one of an unknown codec.

    The arguments are those of `open_sound`. Raises any of FAILURES if the video cannot be read.
    """
    name = public_name(address)
    source = av.open(address, timeout=TIMEOUTS_S, **IGNORES_METADATA)
    track = source.streams.best("audio")
    # A track of an unknown codec has no context, which PyAV's types do not say.
    if isinstance(track, av.AudioStream) and track.codec_context is not None:
        return Sound(name, source, track, start_s)
    source.close()
    if track is not None:
        log.warning(SOUND_LEFT_OUT, name, "unknown codec")
    return None


TICKS = 120_000  # in a second: frames of all usual rates, such as 24000/1001, come at whole ticks
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
    """Return the name of the best H.264 encoder that this build of PyAV has."""
    for name in OPTIONS:
        if name in av.codecs_available:
            return name
    raise DependencyError("this PyAV has no encoder for H.264", INSTALL)


ENCODER = _encoder_name()


class H264Encoder:
    """Encodes the frames of one annotated video as H.264, with the sound of its source."""

    def __init__(
        self,
        file: FileIO,
        shape: tuple[int, ...],
        rate: float,
        sound: str | None = None,
        start_s: float = 0.0,
        pixel_aspect: tuple[int, int] = (1, 1),
    ) -> None:
        """Open an encoder that writes MP4 to a file.

        Args:
            file: The file, which stays open.
            shape: `(height, width, 3)` of the frames. An odd last row or column is cut off.
            rate: Frames per second; each frame has its own time, but the last one lasts as long
                as the rate says.
            sound: The absolute path or URL of the video whose sound is heard; None for no sound.
            start_s: The time of the first frame in that video, in seconds.
            pixel_aspect: The ratio of width and height of a pixel as it is shown.

        Raises:
            OSError: The encoder does not take frames of this size, or this sound.
        """
        height, width, _ = shape
        self._height = height - height % 2
        self._width = width - width % 2
        self._frame_period_s = 1 / rate
        self._reformatter = VideoReformatter()

        self.count = 0  # frames that were written
        self._encoded_count = 0  # frames of these that have left the encoder
        self._last_timestamp = -1  # when the last frame begins, in ticks
        self._end_s = 0.0  # when the last frame ends
        # Size of the largest encoded frame; before the first, an estimate for a frame of noise.
        self._largest_frame_bytes = height * width

        self._file = Stream(partial(write_all, file), file.seek)
        self._sound: Sound | None = None
        if sound is not None:
            self._sound = open_sound(sound, start_s)
        self._begin_file(rate, pixel_aspect)

    def _begin_file(self, rate: float, pixel_aspect: tuple[int, int]) -> None:
        """Write the beginning of the MP4, with a track for the frames and one for the sound.

        Sound that does not fit into an MP4 is left out.

        Args:
            rate: Frames per second.
            pixel_aspect: The ratio of width and height of a pixel as it is shown.

        Raises:
            OSError: The encoder does not take frames of this size, or this sound.
        """
        exact_length = {"movie_timescale": str(TICKS)}  # otherwise it is in whole milliseconds
        self._container = av.open(self._file, "w", format="mp4", options=exact_length)
        with _ffmpeg_errors_as_oserror():
            self._stream = self._add_stream(rate, pixel_aspect)
            if self._sound is not None and not self._sound.begin(self._container):
                self._sound = None
            self._stream.codec_context.open()
            self._container.start_encoding()

    def _add_stream(self, rate: float, pixel_aspect: tuple[int, int]) -> av.VideoStream:
        """Add the video track to the container, and set up its encoder, which is not opened yet.

        Args:
            rate: Frames per second.
            pixel_aspect: The ratio of width and height of a pixel as it is shown.
        """
        exact_rate = Fraction(rate).limit_denominator(3600)
        stream = self._container.add_stream(ENCODER, rate=exact_rate)
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

    def write(self, image: Pixels, time_s: float) -> None:
        """Encode a frame, and write the sound that is heard before it.

        Args:
            image: `(height, width, 3)`, of the shape that the encoder was opened with.
            time_s: When the frame is shown, in seconds from the start of the video. A frame that is
                not later than the previous one is shown right after it.
        """
        with _ffmpeg_errors_as_oserror():
            frame = self._video_frame(image)
            self._last_timestamp = max(round(time_s * TICKS), self._last_timestamp + 1)
            frame.pts = self._last_timestamp
            frame.time_base = Fraction(1, TICKS)
            self._add_sound(time_s)
            # The encoder keeps frames for a while: these packets belong to earlier ones, or there
            # are none.
            packets = self._stream.encode(frame)
        self._mux(packets)
        self.count += 1
        self._count_encoded(packets)
        self._end_s = time_s + self._frame_period_s

    def _video_frame(self, image: Pixels) -> av.VideoFrame:
        """Convert an image to the colours of the video; an odd last row or column is cut off."""
        even_image = np.ascontiguousarray(image[: self._height, : self._width])
        bgr_frame = av.VideoFrame.from_numpy_buffer(even_image, "bgr24")
        return self._reformatter.reformat(bgr_frame, format="yuv420p", dst_colorspace=BT709)

    def _count_encoded(self, packets: Sequence["av.Packet[Any]"]) -> None:
        """Count the frames that have left the encoder, one per packet, and store the largest size.

        The first sizes replace the estimate that stands for them until then.
        """
        if not packets:
            return
        largest_bytes = max(packet.size for packet in packets)
        is_estimate = self._encoded_count == 0
        if is_estimate or largest_bytes > self._largest_frame_bytes:
            self._largest_frame_bytes = largest_bytes
        self._encoded_count += len(packets)

    @property
    def unwritten(self) -> int:
        """The number of bytes that the frames in the encoder may take on the disk.

        No more than this, if they are not larger than the frames before them; until the first
        frame is encoded, it is an estimate.
        """
        return (self.count - self._encoded_count) * self._largest_frame_bytes

    def finish(self) -> None:
        """Write the frames left in the encoder, the sound until the last one ends, and the index.

        The sound and the file are closed even if something cannot be written.

        Raises:
            OSError: Something could not be written, now or by an earlier call.
        """
        try:
            self._add_sound(self._end_s)
            with _ffmpeg_errors_as_oserror():
                packets = self._stream.encode(None)
            self._mux(packets)
        finally:
            if self._sound is not None:
                self._sound.close()
            with _ffmpeg_errors_as_oserror():
                self._container.close()  # closing writes the index
            self._raise_write_failure()

    def _add_sound(self, end_s: float) -> None:
        """Write the sound up to a time, in seconds from the start of the video."""
        if self._sound is not None:
            self._mux(self._sound.packets_until(end_s))

    def _mux(self, packets: Iterable["av.Packet[Any]"]) -> None:
        """Write packets to the container; one that FFmpeg refuses, of damaged sound, is left out.

        Raises:
            OSError: The file could not be written.
        """
        for packet in packets:
            try:
                self._container.mux(packet)
            except av.FFmpegError:  # of this packet, or of an earlier one that was still waiting
                log.debug("a packet is left out", exc_info=True)
            self._raise_write_failure()

    def _raise_write_failure(self) -> None:
        """Raise the error of a failed write to the file, which FFmpeg does not report itself."""
        if self._file.failure is not None:
            raise self._file.failure


@contextlib.contextmanager
def _ffmpeg_errors_as_oserror() -> Iterator[None]:
    """Raise FFmpeg's errors as OSError, with the same number and message."""
    try:
        yield
    except av.FFmpegError as error:
        raise OSError(error.errno, error.strerror) from error
