"""Annotated videos in a folder: one per input video, of the same size, with its frame times."""

import contextlib
import logging
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from detcli.core.errors import DependencyError, OutputError
from detcli.core.opencv import cv2
from detcli.data.geometry import Pixels
from detcli.data.per_video import PerVideo
from detcli.data.record import Record, Video, notes_of
from detcli.sink.draw import DEFAULT_STYLE, Style, annotate
from detcli.sink.folder import OutputFolder
from detcli.sink.frame_clock import FrameClock, FrameTime
from detcli.storage.cache import warn_once
from detcli.storage.files import AtomicFile, writing

if TYPE_CHECKING:
    from detcli.sink.h264 import H264Encoder

SUFFIX = ".mp4"
CODECS = ("mp4v", "MJPG")  # in every build of OpenCV; only the second takes sides over 8191 pixels
DISK_RESERVE = 1 << 20  # bytes that other programs may take up while a video is finished
INDEX_ENTRY = 96  # bytes of the index for a frame and its sound, which are written at the end

SQUARE_PIXELS = (
    "annotated videos have square pixels, although a video has others: "
    'pip install "detcli[video]" keeps their shape'
)

log = logging.getLogger(__name__)


class VideoSink(PerVideo["AnnotatedVideo"]):
    """Writes the frames of each video, with their detections drawn, to a video named after it.

    Each frame has its time in the source, live or not; one that failed repeats the previous one, or
    is black. With PyAV it is H.264 with the source's sound. Without, it is MPEG-4 part 2 without
    sound, at a constant rate.

    Where frames are left out on purpose (`condensed`), those that come follow one another at the
    rate of the source, without sound. Images are left to ImageSink.
    """

    def __init__(
        self,
        folder: OutputFolder,
        style: Style = DEFAULT_STYLE,
        *,
        condensed: bool = False,
        silent: bool = False,
    ) -> None:
        """Prepare to write videos; each begins with the first of its frames.

        Args:
            folder: Where the videos are written.
            style: How detections are drawn.
            condensed: Whether frames are left out on purpose.
            silent: Whether the sound of the sources is left out.
        """

        def begin(first: Record) -> AnnotatedVideo:
            return AnnotatedVideo(folder, first, style, condensed=condensed, silent=silent)

        super().__init__(begin, end=AnnotatedVideo.close)

    def write(self, record: Record) -> None:
        if record.origin.video is not None and record.origin.frame is not None:
            self.state_of(record).write(record)


class AnnotatedVideo:
    """Writes the annotated frames of one source: a file, or several if their size changes."""

    def __init__(
        self, folder: OutputFolder, first: Record, style: Style, *, condensed: bool, silent: bool
    ) -> None:
        """Prepare to write the annotated frames; the file begins with the first of them.

        Args:
            folder: Where the files are written.
            first: The record of the first frame, which says what is known about the source.
            style: How detections are drawn.
            condensed: Whether frames are left out on purpose, so that those that come follow one
                another at the rate of the source.
            silent: Whether the sound of the source is left out.
        """
        self._folder = folder
        self._style = style
        video = first.origin.video or Video(0.0)
        self._pixel_aspect = video.pixel_aspect
        self._has_h264 = _has_h264()
        self._clock = FrameClock(video, is_constant_rate=condensed or not self._has_h264)
        self._sound_address: str | None = None
        if self._has_h264:
            self._sound_address = _audible_address(video, is_silent=silent or condensed)
        # The time of the first frame of the current file, even of one that could not be read.
        self._first_time: FrameTime | None = None
        self._file: VideoFile | None = None  # the current file; None before its first image
        self._path = Path()  # of the current file

    def write(self, record: Record) -> None:
        """Write the annotated frame of a record.

        In place of a frame that could not be read, the previous one is shown again; a video that
        begins with such frames begins with a black one. If the size of frames changes, a new file
        begins.
        """
        frame_time = self._clock.advance(record.origin)
        if frame_time is None:  # a frame of a live source that is not later than the previous one
            return
        if self._first_time is None:
            self._first_time = frame_time

        if record.picture is None or record.detections is None:
            if self._file is not None:
                self._file.repeat(frame_time.shown_s - self._first_time.shown_s)
            return

        image = annotate(record.picture.pixels, record.detections, self._style, record.overlay)
        has_other_size = self._file is not None and self._file.shape != image.shape
        if has_other_size:
            self.close()
            self._first_time = frame_time

        video_file = self._file
        if video_file is None:
            video_file = self._open_file(record, image.shape, self._first_time.source_s)
            # A first time before this frame is that of a frame that could not be read.
            begins_with_unreadable_frames = frame_time > self._first_time
            if begins_with_unreadable_frames:
                video_file.repeat(0.0)  # a black frame, which is shown until this one
        video_file.append(image, frame_time.shown_s - self._first_time.shown_s)
        notes_of(record).saved.append(self._path)

    def _open_file(self, record: Record, shape: tuple[int, ...], start_s: float) -> "VideoFile":
        """Open a file for the annotated video, which becomes the current one.

        Args:
            record: The record of its first frame. The file is named after the record's source.
            shape: `(height, width, 3)` of its frames.
            start_s: The time in the source at which the sound begins, in seconds.
        """
        self._path = self._folder.video_of(record, SUFFIX)
        # Records name the path in the folder that the user typed, which may be a link.
        resolved_path = self._folder.real(self._path)
        unfinished_file = AtomicFile(resolved_path, suffix=resolved_path.suffix)
        try:
            encoder = self._open_encoder(unfinished_file, shape, start_s)
            self._file = VideoFile(unfinished_file, encoder, shape)
        except BaseException:
            unfinished_file.discard()
            raise
        return self._file

    def close(self) -> None:
        """Finish the file, if there is one."""
        if self._file is not None:
            file = self._file
            self._file = None
            file.close()

    def _open_encoder(
        self, file: AtomicFile, shape: tuple[int, ...], start_s: float
    ) -> "H264Encoder | Mpeg4Encoder":
        """Open the best encoder that takes frames of this size.

        H.264 with the sound of the source comes first, then H.264 without sound, as an encoder may
        refuse either; MPEG-4 part 2 takes everything. A warning says what is lost.

        Args:
            file: Where the encoder writes.
            shape: `(height, width, 3)` of the frames.
            start_s: The time in the source at which the sound begins, in seconds.
        """
        encoder = None
        if self._sound_address is not None:
            encoder = self._open_h264(file, shape, self._sound_address, start_s)
        if encoder is None and self._has_h264:
            encoder = self._open_h264(file, shape, None, start_s)
        if encoder is not None:
            return encoder
        if self._pixel_aspect != (1, 1):
            warn_once(SQUARE_PIXELS)
        return Mpeg4Encoder(file.temporary_path, shape, self._clock.rate)

    def _open_h264(
        self, file: AtomicFile, shape: tuple[int, ...], sound_address: str | None, start_s: float
    ) -> "H264Encoder | None":
        """Open an encoder of H.264.

        Args:
            file: Where the encoder writes, which is emptied first.
            shape: `(height, width, 3)` of the frames.
            sound_address: The path or address of the video whose sound is heard; None for no sound.
            start_s: The time in that video at which the sound begins, in seconds.

        Returns:
            The encoder; None if it does not take the frames or the sound, which a warning says.
        """
        from detcli.sink.h264 import H264Encoder

        file.file.seek(0)
        file.file.truncate()  # what an encoder wrote that failed
        try:
            return H264Encoder(
                file.file,
                shape,
                self._clock.rate,
                sound=sound_address,
                start_s=start_s,
                pixel_aspect=self._pixel_aspect,
            )
        except OSError as error:
            format_name = "H.264 with this sound"
            if sound_address is None:
                format_name = "H.264"
            log.warning("%s: cannot be %s: %s", self._path, format_name, error)
            return None


class VideoFile:
    """One video, which appears under its name when it is closed.

    Frames have the shape `(height, width, 3)`; an odd last row or column is cut off, as colours
    are stored for squares of 2x2 pixels.
    """

    def __init__(
        self, file: AtomicFile, encoder: "H264Encoder | Mpeg4Encoder", shape: tuple[int, ...]
    ) -> None:
        self.shape = shape
        self._file = file
        self._encoder = encoder
        self._last_image: Pixels = np.zeros(shape, np.uint8)

    def append(self, image: Pixels, time_s: float) -> None:
        """Write a frame.

        Args:
            image: `(height, width, 3)`.
            time_s: When it is shown, in seconds from the start of the video.

        Raises:
            OutputError: The disk has no room for the frame and the end of the video, or the frame
                could not be written.
        """
        index_bytes = INDEX_ENTRY * self._encoder.count
        needed_bytes = DISK_RESERVE + index_bytes + self._encoder.unwritten + image.nbytes
        if shutil.disk_usage(self._file.temporary_path.parent).free < needed_bytes:
            end = "ends here, and can be played" if self._encoder.count else "has no frame"
            raise OutputError(
                f"cannot write {self._file.path}: no space left", f"make room; the video {end}"
            )
        with writing(self._file.path):
            self._encoder.write(image, time_s)
        self._last_image = image

    def repeat(self, time_s: float) -> None:
        """Write the last frame again at a time, or a black one if there is none."""
        self.append(self._last_image, time_s)

    def close(self) -> None:
        """Finish the video and move it into place, if a frame of it can be read.

        Raises:
            OutputError: Frames are missing.
        """
        with contextlib.suppress(OSError):  # then frames are missing, which is noticed below
            self._encoder.finish()
        frame_count = self._count_readable_frames()
        if frame_count == 0:
            self._file.discard()
        else:
            self._file.commit()
        if frame_count < self._encoder.count:
            raise OutputError(
                f"{self._file.path} is not complete: "
                f"{frame_count} of {self._encoder.count} frames were written",
                "check the free disk space, and the limit on the size of files",
            )

    def _count_readable_frames(self) -> int:
        """Return the number of frames in the file's index; 0 if the video cannot be read."""
        # As bytes, as odd names would crash OpenCV.
        path: str = os.fsencode(self._file.temporary_path)  # type: ignore[assignment]
        capture = cv2.VideoCapture(path, cv2.CAP_FFMPEG)
        return max(0, int(capture.get(cv2.CAP_PROP_FRAME_COUNT)))


class Mpeg4Encoder:
    """Encodes MPEG-4 part 2, by OpenCV: without PyAV, and for sides beyond those of H.264.

    Its videos have a constant rate. So a frame that is shown for longer is written several times,
    and if several frames fall on the same position, the first is written.
    """

    def __init__(self, path: Path, shape: tuple[int, ...], rate: float) -> None:
        """Open an encoder that writes to a file.

        Args:
            path: The file; absolute, as OpenCV might take a relative one for an address.
            shape: `(height, width, 3)` of the frames.
            rate: Frames per second.

        Raises:
            OutputError: OpenCV cannot write to this path, or frames of this size.
        """
        _require_unicode(path)
        self._writer = _open_writer(path, shape, rate)
        self._rate = rate
        self._last_image: Pixels = np.zeros(shape, np.uint8)
        self.count = 0  # frames that were written, repeated ones included
        self.unwritten = 0  # bytes in the encoder, which keeps no frames

    def write(self, image: Pixels, time_s: float) -> None:
        """Write a frame at the position of its time, after repeating the previous one up to there.

        Args:
            image: `(height, width, 3)`.
            time_s: When it is shown, in seconds from the start of the video.
        """
        frame_position = round(time_s * self._rate)
        while self.count < frame_position:
            self._writer.write(self._last_image)
            self.count += 1
        if self.count == frame_position:
            self._writer.write(image)
            self.count += 1
        self._last_image = image

    def finish(self) -> None:
        """Write the end of the file, and close it."""
        self._writer.release()


def _require_unicode(path: Path) -> None:
    """Refuse a path that is not Unicode, with which OpenCV would end the process."""
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise OutputError(
            f"cannot write a video in {path.parent}: the folder's name is not Unicode",
            "name another folder",
        ) from error


def _open_writer(path: Path, shape: tuple[int, ...], rate: float) -> cv2.VideoWriter:
    """Open OpenCV's video writer with the first of CODECS that takes frames of this size.

    Args:
        path: The file.
        shape: `(height, width, 3)` of the frames.
        rate: Frames per second.

    Raises:
        OutputError: No codec takes them.
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
    """Warn that an annotated video is without sound, if the video at an address has any."""
    from detcli.sink.h264 import open_sound

    sound = open_sound(address, 0.0)
    if sound is not None:
        sound.close()
        warn_once("annotated videos have no sound with --blur or --only-detections")


def _audible_address(video: Video, *, is_silent: bool) -> str | None:
    """Return the address of a video whose sound is heard; None if it has none, or is silent.

    If sound is left out that could be heard, a warning says so.
    """
    if video.address is None or not is_silent:
        return video.address
    _warn_if_heard(video.address)
    return None


def _has_h264() -> bool:
    """Return whether H.264 can be encoded; if not, a warning says which package is missing."""
    try:
        import detcli.sink.h264  # noqa: F401
    except DependencyError as error:
        warn_once(
            f"annotated videos have no sound, and browsers do not play them: {error}; "
            f"{error.hint} makes them H.264 with sound"
        )
        return False
    return True
