"""Standard input, read as it comes: one image, or a stream of concatenated JPEG, PNG or PNM.

A JPEG file consists of segments with a length, and of compressed data that contain only a few known
markers. Walking them finds the end of the file; a search for the end marker would find that of the
preview that cameras put into a segment. PNG consists of chunks with a length, and the header of a
binary PNM has its size.
"""

import itertools
import re
import struct
from collections.abc import Generator, Iterable, Iterator
from functools import partial

from detcli.core.errors import DecodeError, InputError, SourceError, system_reason
from detcli.data.record import Origin
from detcli.source.decode import DecodeOptions, format_of, load_bytes
from detcli.source.loading import STDIN, Item, SourceProgress, failed
from detcli.source.reading import gather, stdin_chunks
from detcli.source.segments import JPEG
from detcli.source.tiff import BIG, CLASSIC, tiff_fields

# Markers by their second byte.
_RESTARTS = frozenset({0x01, *range(0xD0, 0xD8)})  # with TEM; they have no length
_START, _END, _SCAN, _APP2 = 0xD8, 0xD9, 0xDA, 0xE2
_MIN_CODE = 0xC0
# Markers that may end compressed data; others are damage, which is left to the decoder.
_IN_SCAN = re.compile(rb"\xff[\xc4\xcc\xd8-\xfe]")

# A PNM's kind, width, height and highest value, with spaces and comments between them.
_PNM = re.compile(rb"P([56])" + 3 * rb"(?:\s|#[^\n]*\n)+(\d{1,9})" + rb"\s")
_PNM_HEADER = 1024  # bytes within which it ends
_PNG = b"\x89PNG\r\n\x1a\n"
_STARTS = (JPEG, _PNG, b"P5", b"P6")

# In the Multi-Image Format, the tag of the list of images, and the size of an entry in it.
_MPF_ENTRIES = 0xB002
_MPF_ENTRY_BYTES = 16


class _BrokenError(Exception):
    """The image is incomplete; the next one may begin from `resume` on."""

    def __init__(self, reason: str, resume: int) -> None:
        super().__init__(reason)
        self.resume = resume


class Splitter:
    """Takes bytes as they come, and yields each image as soon as its last byte is there.

    An incomplete image gives one error, as does one of more than `max_bytes`, and the search
    continues where the next one may start. All are in one format. At most one image is held in
    memory.
    """

    def __init__(self, max_bytes: int, start: bytes = JPEG) -> None:
        """Each image has at most `max_bytes`, and begins with the bytes in `start`."""
        self._max_bytes = max_bytes
        self._start = start
        if start == JPEG:
            self._find = self._find_jpeg_end
        elif start == _PNG:
            self._find = self._find_png_end
        else:
            self._find = self._find_pnm_end
        self._data = bytearray()
        self._offset = 0  # of the data in the stream
        self._ended = False  # whether no more data come
        self._junk = 0  # bytes since the last image
        self._forget_junk = False  # they follow an image that was reported
        self._count = 0  # images and errors so far
        self._has_pixels = False  # whether compressed data of this image have begun
        self._attached: set[tuple[int, int]] = set()  # spans in the stream, see _read_index
        self._parts = self._split()

    def feed(self, data: bytes) -> Iterator[bytes | DecodeError]:
        """Take more bytes; yield the images that they complete, and errors for broken ones."""
        self._data += data
        for part in self._parts:
            if part is None:
                return
            yield part

    def finish(self) -> Iterator[bytes | DecodeError]:
        """Yield the rest when the stream ends."""
        self._ended = True
        yield from self.feed(b"")

    def _split(self) -> Iterator[bytes | DecodeError | None]:
        """Yield the images in the stream, and an error for each that is broken.

        It yields None where it needs more bytes to go on; `feed` adds them. Bytes between images
        are skipped, and reported as an error. An image that an index in the one before it names,
        such as the second of a stereo photo, belongs to that one and is not yielded.
        """
        while True:
            start = self._data.find(self._start)
            if start < 0:
                # The last bytes may be the first ones of an image.
                self._skip(max(len(self._data) - len(self._start) + 1, 0))
                if self._ended:
                    break
                yield None
                continue
            self._skip(start)
            is_attached = any(begin == self._offset for begin, _ in self._attached)
            if is_attached:
                self._junk = 0  # padding before an attached image
            if self._junk:
                yield self._report_junk()
            try:
                end = yield from self._find_end()
            except _BrokenError as broken:
                # Damage often looks like a start marker, but no compressed data follow.
                is_reported = self._has_pixels or not self._forget_junk
                self._drop(broken.resume)
                self._forget_junk = True
                if is_reported:
                    yield self._error(f"an incomplete image in the stream: {broken}")
                continue
            begin = self._offset
            image = bytes(memoryview(self._data)[:end])
            self._drop(end)
            self._forget_junk = False
            if (begin, self._offset) not in self._attached:
                self._count += 1
                yield image
            self._attached = {
                (begin, end) for begin, end in self._attached if begin >= self._offset
            }
        self._skip(len(self._data))
        if self._junk and self._count > 1:  # after a single image, it belongs to that file
            yield self._report_junk()

    def _find_end(self) -> Generator[None, None, int]:
        """Find where the image at the start of the data ends, and return its length.

        It yields while it needs more bytes.

        Raises:
            _BrokenError: The image is damaged or too large; the error says where to search on.
        """
        self._has_pixels = False
        end = yield from self._find()
        if end > self._max_bytes:
            raise _BrokenError(f"more than {self._max_bytes} bytes", end - 2)
        return end

    def _find_png_end(self) -> Generator[None, None, int]:
        """Find where the PNG at the start of the data ends, and return its length.

        Behind a signature, a PNG is a sequence of chunks from IHDR to IEND. Each has 4 bytes of
        length, 4 of its kind, the content and a checksum of 4. It yields while it needs more bytes.
        """
        chunk_start = len(_PNG)
        kind = b""
        while kind != b"IEND":
            yield from self._wait_for(chunk_start + 12, 2, 0)
            length, kind = struct.unpack_from(">I4s", self._data, chunk_start)
            is_header = kind == b"IHDR"
            is_first = chunk_start == len(_PNG)
            if not kind.isalpha() or is_header != is_first:
                raise _BrokenError("its chunks do not follow one another", 2)
            self._has_pixels = True
            chunk_start += 12 + length
        yield from self._wait_for(chunk_start, 2, 0)
        return chunk_start

    def _find_pnm_end(self) -> Generator[None, None, int]:
        """The length of the PNM at the start of the data, as its header says."""
        while (header := _PNM.match(self._data)) is None:
            if len(self._data) > _PNM_HEADER:
                raise _BrokenError("its header has no size", 2)
            yield from self._wait_for(len(self._data) + 1, 2, 0)
        self._has_pixels = True
        kind, width, height, max_value = (int(number) for number in header.groups())
        sample_count = width * height
        if kind == 6:  # in colour
            sample_count *= 3
        sample_bytes = 1
        if max_value >= 256:
            sample_bytes = 2
        end = header.end() + sample_count * sample_bytes
        yield from self._wait_for(end, 2, 0)
        return end

    def _find_jpeg_end(self) -> Generator[None, None, int]:
        """Go through the segments at the start of the data; returns their length."""
        data = self._data
        at = 2  # the next byte to read
        segment = 0  # where the segment before it begins
        while True:
            yield from self._wait_for(at + 2, at, segment)
            code = data[at + 1]
            is_marker = data[at] == 0xFF and (code >= _MIN_CODE or code in _RESTARTS)
            if not is_marker or (code == _END and not self._has_pixels):
                raise _BrokenError("its segments do not follow one another", segment + 2)
            if code == _END:
                break
            if code == _START:
                raise _BrokenError("the next one begins before its end", at)
            if code == 0xFF:  # padding
                at += 1
            elif code in _RESTARTS:
                at += 2
            else:
                end = yield from self._pass_segment(code, at, segment)
                segment = at
                at = end
        return at + 2

    def _pass_segment(self, code: int, at: int, before: int) -> Generator[None, None, int]:
        """Where the segment ends that begins at a byte, with compressed data behind it."""
        data = self._data
        yield from self._wait_for(at + 4, at, before)
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        if end < at + 4:
            raise _BrokenError("a segment has no length", before + 2)
        yield from self._wait_for(end, at, before)
        if code == _APP2:
            self._attached |= _read_index(bytes(data[at + 4 : end]), self._offset + at + 4)
        if code != _SCAN:
            return end
        self._has_pixels = True
        while (marker := _IN_SCAN.search(data, end)) is None:
            end = max(end, len(data) - 1)
            yield from self._wait_for(len(data) + 1, end, at)
        return marker.start()

    def _wait_for(self, end: int, at: int, segment: int) -> Iterator[None]:
        """Wait until there are data up to `end`."""
        while len(self._data) < end:
            if len(self._data) > self._max_bytes:
                raise _BrokenError(f"more than {self._max_bytes} bytes", at)
            if self._ended:
                raise _BrokenError("the stream ends in it", segment + 2)
            yield

    def _skip(self, count: int) -> None:
        if not self._forget_junk:
            self._junk += count
        self._drop(count)

    def _drop(self, count: int) -> None:
        del self._data[:count]
        self._offset += count

    def _report_junk(self) -> DecodeError:
        count = self._junk
        self._junk = 0
        return self._error(f"{count} bytes in the stream belong to no image")

    def _error(self, text: str) -> DecodeError:
        self._count += 1
        return DecodeError(text, "check the program that writes the stream")


def _read_index(segment: bytes, offset: int) -> set[tuple[int, int]]:
    """Start and end in the stream of the images that a camera appended to the main one.

    Phones append a brightness map or a preview, which are not inputs. CIPA's Multi-Image Format
    lists them in an APP2 segment, with offsets relative to it.
    """
    index = segment[4:]
    if not segment.startswith(b"MPF\0") or index[:4] not in CLASSIC:
        return set()
    try:
        for tag, _, size, where in tiff_fields(index):
            if tag == _MPF_ENTRIES:
                return _index_spans(index, offset + 4, where, size)
    except struct.error:
        pass  # damaged: an appended image then counts as an input
    return set()


def _index_spans(index: bytes, base: int, first: int, size: int) -> set[tuple[int, int]]:
    """Start and end of the images in a list of `size` bytes that begins at `first`.

    The offsets in the list count from `base`; that of the main image is 0, and left out.
    """
    entry_format = ">4xII"
    if index.startswith(b"I"):
        entry_format = "<4xII"
    spans = set()
    for at in range(first, first + size - _MPF_ENTRY_BYTES + 1, _MPF_ENTRY_BYTES):
        length, start = struct.unpack_from(entry_format, index, at)
        if start:
            spans.add((base + start, base + start + length))
    return spans


# How images begin that cannot be told apart in a stream: BMP, and PNM in text.
OTHERS = (b"BM", b"P")
HEAD = 12  # bytes at their beginning that no single one of them repeats
_NEXT = re.compile(rb"(?s)\x89PNG\r\n\x1a\n|RIFF....WEBP|GIF8[79]a|....ftypavi[fs]")

# How videos begin: MP4 and MOV but not AVIF and HEIF, Matroska, AVI, FLV, MPEG's streams.
_VIDEO = re.compile(
    rb"(?s)....ftyp(?!avi|mif|msf|hei|hev)|\x1aE\xdf\xa3|RIFF....AVI|FLV|\0\0\x01\xba|G@"
)
TO_JPEGS = "-i - -f image2pipe -c:v mjpeg -q:v 2 - | detcli predict -"


def read_stdin(options: DecodeOptions, progress: SourceProgress) -> Iterator[Item]:
    """Yield the image on standard input, or the images of a stream as each is complete.

    The images of a stream are numbered, and every Nth is used, as of a video. The first one waits
    until the next one follows or a second has passed, because only then is it clear whether this is
    a stream, whose total is unknown.
    """
    try:
        chunks = stdin_chunks(progress.stop)
        head = b""
        for chunk in chunks:
            head += chunk
            if len(head) >= HEAD:
                break
        _refuse_videos(head)
        chunks = itertools.chain([head], chunks)
        start = _stream_start(head)
        if start:
            yield from _split(chunks, options, progress, start)
        else:
            data = gather(chunks, options.max_bytes)
            if _holds_several(data):
                raise _several()
            yield Item(Origin(STDIN), partial(load_bytes, data, options))
    except OSError as error:
        unreadable = SourceError(
            f"cannot be read: {system_reason(error)}",
            "check the program that writes to standard input",
        )
        yield failed(STDIN, unreadable)
    except InputError as error:
        yield failed(STDIN, error)


def _stream_start(head: bytes) -> bytes:
    """How each image of a stream begins, as the first does; empty if it cannot be a stream."""
    for start in _STARTS:
        if head.startswith(start):
            return start
    return b""


def _holds_several(data: bytes) -> bool:
    """Whether another image follows the first, in a format that cannot be a stream."""
    if data.startswith(OTHERS) and data.find(data[:HEAD], HEAD) > 0:
        return True
    if data[:4] in CLASSIC | BIG:  # a TIFF of a camera may hold others
        return False
    return _NEXT.search(data, HEAD) is not None


def _several() -> DecodeError:
    """The error of images that follow one another, of which a decoder would take the first."""
    return DecodeError(
        "several images: only JPEG, PNG or binary PNM can be a stream, and one alone of these",
        f"name files, or send JPEGs: ffmpeg {TO_JPEGS}",
    )


def _refuse_videos(head: bytes) -> None:
    """Say how ffmpeg makes images of a video that begins like this, encoded or raw."""
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


def _split(
    chunks: Iterable[bytes], options: DecodeOptions, progress: SourceProgress, start: bytes
) -> Iterator[Item]:
    """Yield the images of what may be a stream, or the single one that it turns out to be."""
    splitter = Splitter(options.max_bytes, start)
    frames = _StreamFrames(options)
    begin = bytearray()  # everything, until it is clear whether this is a stream
    parts: list[bytes | DecodeError] = []
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
    behind = b""
    if images:
        behind = bytes(begin[len(images[0]) :])
    if format_of(behind) and not _VIDEO.match(behind):  # which phones attach
        raise _several()
    yield _item(bytes(begin), options)


class _StreamFrames:
    """Numbers the images of a stream, and leaves out those between every Nth."""

    def __init__(self, options: DecodeOptions) -> None:
        self._options = options
        self._count = 0  # images and errors so far
        self._last_step = -1

    def items(self, parts: Iterable[bytes | DecodeError]) -> Iterator[Item]:
        """Yield the items of those that are used; an error always is."""
        inputs = self._options.inputs
        for part in parts:
            number = self._count
            self._count += 1
            step = inputs.step(number, number / (inputs.fps or 1))
            if isinstance(part, DecodeError) or step > self._last_step:
                yield _item(part, self._options, number)
            self._last_step = max(step, self._last_step)


def _item(part: bytes | DecodeError, options: DecodeOptions, frame: int | None = None) -> Item:
    """The item of an image or an error; `frame` is its number in a stream."""
    rate = options.inputs.fps
    time_s = None
    if frame is not None and rate is not None:
        time_s = frame / rate
    if isinstance(part, DecodeError):
        return failed(STDIN, part, frame, time_s=time_s)
    return Item(Origin(STDIN, frame=frame, time_s=time_s), partial(load_bytes, part, options))
