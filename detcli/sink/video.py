"""Annotated videos in a folder: one per input video, of the same size, with its frame times."""

import contextlib
import logging
import os
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

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
MIN_RATE, MAX_RATE = 1 / 3600, 1000.0  # frames per second; other rates are measurement errors
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
        begin = partial(AnnotatedVideo, folder, style=style, condensed=condensed, silent=silent)
        super().__init__(begin, AnnotatedVideo.close)

    def write(self, record: Record) -> None:
        if record.origin.video is not None and record.origin.frame is not None:
            self.of(record).write(record)


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
            from detcli.sink.h264 import open_sound

            if (sound := open_sound(self._sound, 0.0)) is not None:
                sound.close()
                warn_once("annotated videos have no sound with --blur or --only-detections")
            self._sound = None
        self._now_s = 0.0  # of the last frame, in all files together
        self._source_s: float | None = None  # of the last frame, in the source
        self._began: tuple[float, float] | None = None  # both, of the first frame of this file
        self._file: VideoFile | None = None
        self._path = Path()  # of this file

    def write(self, record: Record) -> None:
        if (now := self._advance(record.origin)) is None:
            return
        began = self._began = self._began or now
        if record.picture is None or record.detections is None:
            if self._file is not None:
                self._file.repeat(now[0] - began[0])
            return
        picture = annotate(record.picture.pixels, record.detections, self._style, record.overlay)
        if self._file is not None and self._file.shape != picture.shape:
            self.close()
            began = self._began = now
        if self._file is None:
            self._path = self._folder.video_of(record, SUFFIX)
            path = self._folder.real(self._path)
            part = AtomicFile(path, suffix=path.suffix)
            try:
                encoder = self._encoder(part, picture.shape, began[1])
                self._file = VideoFile(part, encoder, picture.shape)
            except BaseException:
                part.discard()
                raise
            if now > began:
                self._file.repeat(0.0)
        self._file.append(picture, now[0] - began[0])
        record.saved.append(self._path)

    def close(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            file.close()

    def _encoder(
        self, part: AtomicFile, shape: tuple[int, ...], start_s: float
    ) -> "H264Encoder | Mpeg4Encoder":
        """The best encoder that takes frames of this size, with this sound or else without."""
        if self._h264:
            from detcli.sink.h264 import H264Encoder

            for sound in dict.fromkeys((self._sound, None)):
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
                    what = "H.264" if sound is None else "H.264 with this sound"
                    log.warning("%s: cannot be %s: %s", self._path, what, error)
        if self._pixel_aspect != (1, 1):
            warn_once(SQUARE_PIXELS)
        return Mpeg4Encoder(part.written, shape, self._rate)

    def _advance(self, origin: Origin) -> tuple[float, float] | None:
        """When a frame is shown, in all files together, and its time in the source.

        None for one that a live source had before the last one.
        """
        source_s, last_s = origin.time_s or 0.0, self._source_s
        if last_s is not None:
            step = source_s - last_s
            if self._live and step <= 0:
                return None
            if self._live:
                step = min(step, MAX_GAP_S)
            else:
                step = 1 / self._rate if self._even or step <= 0 else min(step, MAX_FRAME_S)
            self._now_s += step
        self._source_s = source_s
        return self._now_s, source_s


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
        # Of the index; 0 if the video cannot be read. As bytes, as odd names would crash OpenCV.
        written: str = os.fsencode(self._part.written)  # type: ignore[assignment]
        readable = cv2.VideoCapture(written, cv2.CAP_FFMPEG).get(cv2.CAP_PROP_FRAME_COUNT)
        readable = max(0, int(readable))
        if readable == 0:
            self._part.discard()
        else:
            self._part.commit()
        if readable < self._encoder.count:
            raise OutputError(
                f"{self._part.path} is not complete: "
                f"{readable} of {self._encoder.count} frames were written",
                "check the free disk space, and the limit on the size of files",
            )


class Mpeg4Encoder:
    """Encodes MPEG-4 part 2, by OpenCV: without PyAV, and for sides beyond those of H.264.

    The rate is constant, and each frame has the place of its time. A place without a frame repeats
    the one before, and of several for one place the first is taken. The path is absolute, as no
    library takes that for an address.
    """

    def __init__(self, path: Path, shape: tuple[int, ...], rate: float) -> None:
        height, width = shape[:2]
        try:
            str(path).encode()
        except UnicodeEncodeError as error:  # OpenCV would end the process
            raise OutputError(
                f"cannot write a video in {path.parent}: the folder's name is not Unicode",
                "name another folder",
            ) from error
        for codec in CODECS:
            fourcc = cv2.VideoWriter.fourcc(*codec)
            self._writer = cv2.VideoWriter(str(path), fourcc, rate, (width, height))
            if self._writer.isOpened():
                break
        else:
            raise OutputError(
                f"cannot write a video of {width}x{height} pixels in {path.parent}",
                "leave out --save",
            )
        self._rate = rate
        self._last: Image = np.zeros(shape, np.uint8)
        self.count = 0  # frames, with those that were added
        self.unwritten = 0  # bytes in the encoder

    def write(self, picture: Image, time_s: float) -> None:
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
