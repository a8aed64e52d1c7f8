"""Annotated videos in a folder: one per input video, of the same size, with its frame times."""

import contextlib
import logging
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from detcli.core.errors import DependencyError, OutputError
from detcli.core.opencv import cv2
from detcli.data.geometry import Image
from detcli.data.per_video import PerVideo
from detcli.data.record import Origin, Record, Video
from detcli.sink.draw import DEFAULT_STYLE, Style, annotate
from detcli.sink.folder import OutputFolder
from detcli.storage.cache import warn_once
from detcli.storage.files import AtomicFile, writing

if TYPE_CHECKING:
    from detcli.sink.h264 import H264Encoder

SUFFIX = ".mp4"
CODECS = ("mp4v", "MJPG")  # in every build of OpenCV; only the second takes sides over 8191 pixels
MIN_RATE = 1 / 3600  # frames per second; other rates are measurement errors
MAX_RATE = 1000.0
LIVE_RATE = 30.0  # frames per second of a live source, which has no rate of its own
MAX_GAP_S = 10.0  # a live source that was away for longer is shown as if for this long
MAX_FRAME_S = 3600.0  # for which one frame of a file is shown; more is damage
DISK_RESERVE = 1 << 20  # bytes that other programs may take while a video is finished
INDEX_ENTRY = 96  # bytes of the index for a frame and its sound, which are written at the end

SQUARE_PIXELS = (
    "annotated videos have square pixels, although a video has others: "
    'pip install "detcli[video]" keeps their shape'
)

log = logging.getLogger(__name__)


class VideoSink(PerVideo["AnnotatedVideo"]):
    """Writes the frames of each video, with their detections drawn, to a video of its name.

    Each frame has its time in the source, live or not; one that failed repeats the one before, or
    is black. With PyAV it is H.264 with the source's sound. Without, it is MPEG-4 part 2 without
    sound, at a constant rate.

    Where frames are left out on purpose (`condensed`), those that come follow one another at the
    rate of the source, without sound. Pictures are left to ImageSink.
    """

    def __init__(
        self,
        folder: OutputFolder,
        style: Style = DEFAULT_STYLE,
        *,
        condensed: bool = False,
        silent: bool = False,
    ) -> None:
        super().__init__(
            lambda first: AnnotatedVideo(folder, first, style, condensed=condensed, silent=silent),
            AnnotatedVideo.close,
        )

    def write(self, record: Record) -> None:
        if record.origin.video is not None and record.origin.frame is not None:
            self.of(record).write(record)


class FrameTime(NamedTuple):
    """When a frame is seen."""

    shown_s: float  # in all annotated videos of its source together
    source_s: float  # in the source


class AnnotatedVideo:
    """Writes the annotated frames of one source: a file, or several if their size changes."""

    def __init__(
        self, folder: OutputFolder, first: Record, style: Style, *, condensed: bool, silent: bool
    ) -> None:
        self._folder = folder
        self._style = style
        video = first.origin.video or Video(0.0)
        rate = video.frames_per_second
        self._rate = rate if MIN_RATE <= rate <= MAX_RATE else LIVE_RATE
        self._live = video.live
        self._pixel_aspect = video.pixel_aspect
        self._h264 = _has_h264()
        self._even = not self._live and (condensed or not self._h264)
        self._sound = video.address if self._h264 else None
        if self._sound is not None and (silent or condensed):
            _warn_if_heard(self._sound)
            self._sound = None
        self._shown_s = 0.0  # when the last frame is shown, in all files together
        self._source_s: float | None = None  # of the last frame, in the source
        self._first: FrameTime | None = None  # of the first frame of this file
        self._file: VideoFile | None = None
        self._path = Path()  # of this file

    def write(self, record: Record) -> None:
        """Write a frame; one that failed repeats the one before."""
        time = self._advance(record.origin)
        if time is None:
            return
        if self._first is None:
            self._first = time
        if record.picture is None or record.detections is None:
            if self._file is not None:
                self._file.repeat(time.shown_s - self._first.shown_s)
            return

        picture = annotate(record.picture.pixels, record.detections, self._style, record.overlay)
        if self._file is not None and self._file.shape != picture.shape:
            self.close()
            self._first = time
        file = self._file
        if file is None:
            file = self._open(record, picture.shape, self._first.source_s)
            if time > self._first:
                file.repeat(0.0)
        file.append(picture, time.shown_s - self._first.shown_s)
        record.saved.append(self._path)

    def _open(self, record: Record, shape: tuple[int, ...], start_s: float) -> "VideoFile":
        """Begin a file with frames of a shape, from a time of the source on."""
        self._path = self._folder.video_of(record, SUFFIX)
        path = self._folder.real(self._path)
        part = AtomicFile(path, suffix=path.suffix)
        try:
            encoder = self._encoder(part, shape, start_s)
            self._file = VideoFile(part, encoder, shape)
        except BaseException:
            part.discard()
            raise
        return self._file

    def close(self) -> None:
        """Finish the file, if there is one."""
        if self._file is not None:
            file = self._file
            self._file = None
            file.close()

    def _encoder(
        self, part: AtomicFile, shape: tuple[int, ...], start_s: float
    ) -> "H264Encoder | Mpeg4Encoder":
        """The best encoder that takes frames of this size, with this sound or else without."""
        if self._h264:
            from detcli.sink.h264 import H264Encoder

            sounds = [None] if self._sound is None else [self._sound, None]
            for sound in sounds:
                part.file.seek(0)
                part.file.truncate()
                try:
                    return H264Encoder(
                        part.file,
                        shape,
                        self._rate,
                        sound=sound,
                        start_s=start_s,
                        pixel_aspect=self._pixel_aspect,
                    )
                except OSError as error:
                    format_name = "H.264" if sound is None else "H.264 with this sound"
                    log.warning("%s: cannot be %s: %s", self._path, format_name, error)
        if self._pixel_aspect != (1, 1):
            warn_once(SQUARE_PIXELS)
        return Mpeg4Encoder(part.written, shape, self._rate)

    def _advance(self, origin: Origin) -> FrameTime | None:
        """When the next frame is seen; None for one that a live source had before the last one."""
        source_s = origin.time_s or 0.0
        if self._source_s is not None:
            step_s = self._step_s(source_s - self._source_s)
            if step_s is None:
                return None
            self._shown_s += step_s
        self._source_s = source_s
        return FrameTime(self._shown_s, source_s)

    def _step_s(self, source_step_s: float) -> float | None:
        """How long a frame is shown, from its time in the source; None if it is not."""
        if self._live:
            if source_step_s <= 0:
                return None
            return min(source_step_s, MAX_GAP_S)
        if self._even or source_step_s <= 0:
            return 1 / self._rate
        return min(source_step_s, MAX_FRAME_S)


class VideoFile:
    """One video, which appears under its name when it is closed.

    Frames have the shape `(height, width, 3)`; an odd last row or column is cut off, as colours
    are stored for squares of 2x2 pixels.
    """

    def __init__(
        self, part: AtomicFile, encoder: "H264Encoder | Mpeg4Encoder", shape: tuple[int, ...]
    ) -> None:
        self.shape = shape
        self._part = part
        self._encoder = encoder
        self._last: Image = np.zeros(shape, np.uint8)

    def append(self, picture: Image, time_s: float) -> None:
        """Write a frame at a time from the start of the video."""
        needed = DISK_RESERVE + INDEX_ENTRY * self._encoder.count + self._encoder.unwritten
        if shutil.disk_usage(self._part.written.parent).free < needed + picture.nbytes:
            end = "ends here, and can be played" if self._encoder.count else "has no frame"
            raise OutputError(
                f"cannot write {self._part.path}: no space left", f"make room; the video {end}"
            )
        with writing(self._part.path):
            self._encoder.write(picture, time_s)
        self._last = picture

    def repeat(self, time_s: float) -> None:
        """Write the last frame again, or a black one if there is none."""
        self.append(self._last, time_s)

    def close(self) -> None:
        """Finish the video and move it into place."""
        with contextlib.suppress(OSError):  # frames are then missing
            self._encoder.finish()
        frame_count = self._readable_frames()
        if frame_count == 0:
            self._part.discard()
        else:
            self._part.commit()
        if frame_count < self._encoder.count:
            raise OutputError(
                f"{self._part.path} is not complete: "
                f"{frame_count} of {self._encoder.count} frames were written",
                "check the free disk space, and the limit on the size of files",
            )

    def _readable_frames(self) -> int:
        """The number of frames in the index of the file; 0 if the video cannot be read."""
        # As bytes, as odd names would crash OpenCV.
        written: str = os.fsencode(self._part.written)  # type: ignore[assignment]
        capture = cv2.VideoCapture(written, cv2.CAP_FFMPEG)
        return max(0, int(capture.get(cv2.CAP_PROP_FRAME_COUNT)))


class Mpeg4Encoder:
    """Encodes MPEG-4 part 2, by OpenCV: without PyAV, and for sides beyond those of H.264.

    The rate is constant, and each frame has the place of its time. A place without a frame repeats
    the one before, and of several for one place the first is taken. The path is absolute, as no
    library takes that for an address.
    """

    def __init__(self, path: Path, shape: tuple[int, ...], rate: float) -> None:
        try:
            str(path).encode()
        except UnicodeEncodeError as error:  # OpenCV would end the process
            raise OutputError(
                f"cannot write a video in {path.parent}: the folder's name is not Unicode",
                "name another folder",
            ) from error
        self._writer = _open_writer(path, shape, rate)
        self._rate = rate
        self._last: Image = np.zeros(shape, np.uint8)
        self.count = 0  # frames, with those that were added
        self.unwritten = 0  # bytes in the encoder

    def write(self, picture: Image, time_s: float) -> None:
        """Write a frame at the place of its time, and what is missing before it."""
        index = round(time_s * self._rate)
        while self.count < index:
            self._writer.write(self._last)
            self.count += 1
        if self.count == index:
            self._writer.write(picture)
            self.count += 1
        self._last = picture

    def finish(self) -> None:
        self._writer.release()


def _open_writer(path: Path, shape: tuple[int, ...], rate: float) -> cv2.VideoWriter:
    """OpenCV's writer with the first codec that takes frames of a shape.

    Raises:
        OutputError: None does.
    """
    height, width = shape[:2]
    for codec in CODECS:
        fourcc = cv2.VideoWriter.fourcc(*codec)
        writer = cv2.VideoWriter(str(path), fourcc, rate, (width, height))
        if writer.isOpened():
            return writer
    raise OutputError(
        f"cannot write a video of {width}x{height} pixels in {path.parent}",
        "leave out --save",
    )


def _warn_if_heard(address: str) -> None:
    """Warn that the sound of a video is left out, if it has any."""
    from detcli.sink.h264 import open_sound

    sound = open_sound(address, 0.0)
    if sound is not None:
        sound.close()
        warn_once("annotated videos have no sound with --blur or --only-detections")


def _has_h264() -> bool:
    """Whether H.264 can be encoded; a warning says what is missing."""
    try:
        import detcli.sink.h264  # noqa: F401
    except DependencyError as error:
        warn_once(
            f"annotated videos have no sound, and browsers do not play them: {error}; "
            f"{error.hint} makes them H.264 with sound"
        )
        return False
    return True
