"""Standard input, read as it comes: one image, or a stream of concatenated JPEG, PNG or PNM."""

import itertools
import re
from collections.abc import Iterable, Iterator
from functools import partial

from detcli.core.errors import DecodeError, InputError, SourceError, system_reason
from detcli.data.record import Origin
from detcli.source.decode import DecodeOptions, format_of, load_bytes
from detcli.source.loading import STDIN, Item, SourceProgress, failed_item
from detcli.source.reading import gather, stdin_chunks
from detcli.source.splitter import IMAGE_STARTS, Splitter
from detcli.source.tiff_directory import BIG, CLASSIC

_BMP_OR_TEXT_PNM = (b"BM", b"P")
"""How images whose end cannot be found in a stream begin."""

HEAD = 12
"""Bytes at the beginning of such an image that are not repeated within it."""

# How an image of a different format begins, anywhere in the data.
_NEXT_IMAGE = re.compile(rb"(?s)\x89PNG\r\n\x1a\n|RIFF....WEBP|GIF8[79]a|....ftypavi[fs]")

# How videos begin: MP4 and MOV but not AVIF and HEIF, Matroska, AVI, FLV, MPEG's streams.
_VIDEO = re.compile(
    rb"(?s)....ftyp(?!avi|mif|msf|hei|hev)|\x1aE\xdf\xa3|RIFF....AVI|FLV|\0\0\x01\xba|G@"
)
TO_JPEGS = "-i - -f image2pipe -c:v mjpeg -q:v 2 - | detcli predict -"


def read_stdin(options: DecodeOptions, progress: SourceProgress) -> Iterator[Item]:
    """Yield the image on standard input, or the images of a stream as each is complete.

    The images of a stream are numbered, and every Nth is used, as in a video. The first one waits
    until the next one follows or a second has passed, because only then is it clear whether this is
    a stream, whose total is unknown.
    """
    try:
        yield from _read_images(options, progress)
    except OSError as error:
        unreadable = SourceError(
            f"cannot be read: {system_reason(error)}",
            "check the program that writes to standard input",
        )
        yield failed_item(STDIN, unreadable)
    except InputError as error:
        yield failed_item(STDIN, error)


def _read_images(options: DecodeOptions, progress: SourceProgress) -> Iterator[Item]:
    """Yield what is on standard input, as `read_stdin` does.

    Raises:
        OSError: Standard input cannot be read.
        InputError: It is closed, or holds something other than an image or a stream of images.
    """
    chunks = stdin_chunks(progress.stop)
    head = b""  # the first bytes, which identify the format
    for chunk in chunks:
        head += chunk
        if len(head) >= HEAD:
            break
    _require_image(head)
    all_chunks = itertools.chain([head], chunks)

    start = _stream_start(head)
    if start is not None:  # the format may be that of a stream
        yield from _read_stream(all_chunks, options, progress, start)
        return
    data = gather(all_chunks, options.max_bytes)
    if _holds_several_images(data):
        raise _several_images_error()
    yield Item(Origin(STDIN), partial(load_bytes, data, options))


def _stream_start(head: bytes) -> bytes | None:
    """Return the bytes with which each image of a stream begins, judging by its first bytes.

    It is None if the format is none of those that can be a stream (JPEG, PNG, binary PNM).
    """
    for start in IMAGE_STARTS:
        if head.startswith(start):
            return start
    return None


def _holds_several_images(data: bytes) -> bool:
    """Return whether another image seems to follow the first one, in a format without streams.

    Args:
        data: All bytes of standard input, which begin with an image other than a JPEG, PNG or
            binary PNM.
    """
    if data.startswith(_BMP_OR_TEXT_PNM):
        # Images from the same program begin alike, so a second one repeats the first bytes.
        repeats_beginning = data.find(data[:HEAD], HEAD) > 0
        if repeats_beginning:
            return True
    is_tiff = data[:4] in CLASSIC | BIG
    if is_tiff:  # a camera's TIFF may hold images of other formats
        return False
    return _NEXT_IMAGE.search(data, HEAD) is not None


def _several_images_error() -> DecodeError:
    """Make the error for several images in a row, as a decoder would take only the first."""
    return DecodeError(
        "several images: only JPEG, PNG or binary PNM can be a stream, and one alone of these",
        f"name files, or send JPEGs: ffmpeg {TO_JPEGS}",
    )


def _require_image(head: bytes) -> None:
    """Require that the first bytes of standard input are those of an image.

    Without any bytes there is no error here: decoding says that standard input is empty.

    Raises:
        DecodeError: They are those of a video file, or of no known format, as raw frames are. The
            hint is a command with which ffmpeg turns these into images.
    """
    if _VIDEO.match(head):
        raise DecodeError(
            "a video, and standard input takes images, one after the other",
            f"name its file, as an MP4 with its index at the end needs; else: ffmpeg {TO_JPEGS}",
        )
    if head and not format_of(head):
        raise DecodeError(
            "not an image (not in a known image format)",
            f"raw video: ffmpeg -f rawvideo -pix_fmt bgr24 -s 640x480 {TO_JPEGS}",
        )


def _read_stream(
    chunks: Iterable[bytes], options: DecodeOptions, progress: SourceProgress, start: bytes
) -> Iterator[Item]:
    """Yield the images of standard input, which may be a stream or a single image.

    It is a stream if a second image follows, or if nothing follows the first one for a second. A
    single file is passed to the decoder whole, with whatever follows its image.

    Args:
        chunks: The bytes as they come; an empty chunk after each second of silence.
        options: How the images are decoded, and which of a stream are used.
        progress: Learns that the number of inputs is unknown if this is a stream.
        start: The bytes with which each image begins.
    """
    splitter = Splitter(options.max_bytes, start)
    frames = _StreamFrames(options)
    begin = bytearray()  # everything, until it is clear whether this is a stream
    parts: list[bytes | DecodeError] = []  # images and errors that have not been yielded yet
    is_stream = False

    for chunk in chunks:
        parts += splitter.feed(chunk)
        if not is_stream:
            begin += chunk
            is_silent = not chunk
            is_too_long = len(begin) > options.max_bytes
            is_stream = len(parts) > 1 or (len(parts) == 1 and (is_silent or is_too_long))
        if is_stream:
            progress.expect(None)
            yield from frames.items(parts)
            parts.clear()

    parts += splitter.finish()
    images = [part for part in parts if isinstance(part, bytes)]
    if is_stream or (len(parts) > 1 and images):
        progress.expect(None)
        yield from frames.items(parts)
        return

    # A single file, whether complete or not, is left to the decoder.
    bytes_after_image = b""
    if images:
        bytes_after_image = bytes(begin[len(images[0]) :])
    if format_of(bytes_after_image) and not _VIDEO.match(bytes_after_image):  # phones attach videos
        raise _several_images_error()
    yield _item_of_part(bytes(begin), options)


class _StreamFrames:
    """Numbers the images of a stream, and selects every Nth."""

    def __init__(self, options: DecodeOptions) -> None:
        self._options = options
        self._count = 0  # images and errors so far
        self._last_step = -1  # highest step of the images so far, see `InputOptions.step`

    def items(self, parts: Iterable[bytes | DecodeError]) -> Iterator[Item]:
        """Yield the items of the next images of the stream that the options select.

        They select the first image of each step: of every N images, or of each span of seconds,
        where the rate of the stream gives the times. An error in place of an image is always
        yielded.

        Args:
            parts: The bytes of image files, and errors in place of broken images.
        """
        inputs = self._options.inputs
        rate = inputs.fps or 1  # without a rate, no option asks for times
        for part in parts:
            number = self._count
            self._count += 1
            step = inputs.step(number, time_s=number / rate)
            is_of_new_step = step > self._last_step
            if is_of_new_step or isinstance(part, DecodeError):
                yield _item_of_part(part, self._options, number)
            self._last_step = max(step, self._last_step)


def _item_of_part(
    part: bytes | DecodeError, options: DecodeOptions, frame: int | None = None
) -> Item:
    """Return the item of an image on standard input, or of the error in place of one.

    Args:
        part: The bytes of the image file, or the error.
        options: How the image is decoded; the rate of the stream gives it a time.
        frame: The index of the image in a stream; None for a single image.
    """
    rate = options.inputs.fps
    time_s = None
    if frame is not None and rate is not None:
        time_s = frame / rate
    if isinstance(part, DecodeError):
        return failed_item(STDIN, part, frame, time_s=time_s)
    return Item(Origin(STDIN, frame=frame, time_s=time_s), partial(load_bytes, part, options))
