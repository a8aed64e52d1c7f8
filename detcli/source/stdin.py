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
            self._find_end = self._find_jpeg_end
        elif start == _PNG:
            self._find_end = self._find_png_end
        else:
            self._find_end = self._find_pnm_end
        self._data = bytearray()
        self._offset = 0  # of the data in the stream
        self._ended = False  # whether no more data come
        self._junk_bytes = 0  # bytes since the last image
        self._is_junk_reported = False  # they follow an image whose error covers them
        self._count = 0  # images and errors so far
        self._has_pixels = False  # whether compressed data of this image have begun
        self._attached: set[tuple[int, int]] = set()  # spans in the stream, see _attached_spans
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
                self._junk_bytes = 0  # padding before an attached image
            if self._junk_bytes:
                yield self._report_junk()
            try:
                end = yield from self._image_end()
            except _BrokenError as broken:
                # Damage often looks like a start marker, but no compressed data follow.
                is_reported = self._has_pixels or not self._is_junk_reported
                self._drop(broken.resume)
                self._is_junk_reported = True
                if is_reported:
                    yield self._error(f"an incomplete image in the stream: {broken}")
                continue
            begin = self._offset
            image = bytes(memoryview(self._data)[:end])
            self._drop(end)
            self._is_junk_reported = False
            if (begin, self._offset) not in self._attached:
                self._count += 1
                yield image
            self._attached = {
                (begin, end) for begin, end in self._attached if begin >= self._offset
            }
        self._skip(len(self._data))
        if self._junk_bytes and self._count > 1:  # after a single image, it belongs to that file
            yield self._report_junk()

    def _image_end(self) -> Generator[None, None, int]:
        """Find where the image at the start of the data ends, and return its length.

        It yields while it needs more bytes.

        Raises:
            _BrokenError: The image is damaged or too large; the error says where to search on.
        """
        self._has_pixels = False
        end = yield from self._find_end()
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
            yield from self._wait_for(chunk_start + 12, resume_if_large=2, broken_segment=0)
            length, kind = struct.unpack_from(">I4s", self._data, chunk_start)
            is_header = kind == b"IHDR"
            is_first = chunk_start == len(_PNG)
            if not kind.isalpha() or is_header != is_first:
                raise _BrokenError("its chunks do not follow one another", 2)
            self._has_pixels = True
            chunk_start += 12 + length
        yield from self._wait_for(chunk_start, resume_if_large=2, broken_segment=0)
        return chunk_start

    def _find_pnm_end(self) -> Generator[None, None, int]:
        """Find where the binary PNM at the start of the data ends, and return its length.

        The header in text says the kind (6 is in colour), the width, the height and the highest
        value of a sample; the samples follow. It yields while it needs more bytes.
        """
        header = _PNM.match(self._data)
        while header is None:
            if len(self._data) > _PNM_HEADER:
                raise _BrokenError("its header has no size", 2)
            one_more_byte = len(self._data) + 1
            yield from self._wait_for(one_more_byte, resume_if_large=2, broken_segment=0)
            header = _PNM.match(self._data)
        self._has_pixels = True
        kind, width, height, max_value = (int(number) for number in header.groups())
        sample_count = width * height
        if kind == 6:  # in colour
            sample_count *= 3
        sample_bytes = 1
        if max_value >= 256:
            sample_bytes = 2
        end = header.end() + sample_count * sample_bytes
        yield from self._wait_for(end, resume_if_large=2, broken_segment=0)
        return end

    def _find_jpeg_end(self) -> Generator[None, None, int]:
        """Find where the JPEG at the start of the data ends, and return its length.

        A JPEG is a sequence of segments. Each begins with a marker, which is the byte 0xFF and a
        code; most then have a length. It yields while it needs more bytes.

        Raises:
            _BrokenError: Something else is where a marker should be, or the next image begins.
        """
        data = self._data
        position = 2  # behind the marker that starts the image
        last_segment = 0  # where the segment before `position` begins
        while True:
            yield from self._wait_for(
                position + 2, resume_if_large=position, broken_segment=last_segment
            )
            code = data[position + 1]
            is_marker = data[position] == 0xFF and (code >= _MIN_CODE or code in _RESTARTS)
            if not is_marker or (code == _END and not self._has_pixels):
                raise _BrokenError("its segments do not follow one another", last_segment + 2)
            if code == _END:
                return position + 2
            if code == _START:
                raise _BrokenError("the next one begins before its end", position)
            if code == 0xFF:  # padding
                position += 1
            elif code in _RESTARTS:
                position += 2
            else:
                segment_end = yield from self._pass_segment(code, position, last_segment)
                last_segment = position
                position = segment_end

    def _pass_segment(
        self, code: int, position: int, last_segment: int
    ) -> Generator[None, None, int]:
        """Return the offset behind a JPEG segment, and behind the compressed data that follow it.

        Only the header of a scan is followed by compressed data. The images that an index of a
        camera names are noted as attached. It yields while it needs more bytes.

        Args:
            code: The code of the segment's marker.
            position: The offset of the marker in the data.
            last_segment: The offset of the segment before it.
        """
        data = self._data
        content = position + 4  # behind two bytes of the marker, and two of the length
        yield from self._wait_for(content, resume_if_large=position, broken_segment=last_segment)
        # The length includes its own two bytes.
        end = position + 2 + int.from_bytes(data[position + 2 : content], "big")
        if end < content:
            raise _BrokenError("a segment has no length", last_segment + 2)
        yield from self._wait_for(end, resume_if_large=position, broken_segment=last_segment)
        if code == _APP2:
            self._attached |= _attached_spans(bytes(data[content:end]), self._offset + content)
        if code != _SCAN:
            return end

        self._has_pixels = True
        while True:
            marker = _IN_SCAN.search(data, end)
            if marker is not None:
                return marker.start()
            # The last byte may be the first one of a marker.
            end = max(end, len(data) - 1)
            yield from self._wait_for(len(data) + 1, resume_if_large=end, broken_segment=position)

    def _wait_for(self, end: int, *, resume_if_large: int, broken_segment: int) -> Iterator[None]:
        """Yield until the data reach up to the offset `end`.

        Args:
            end: How many bytes are needed from the start of the image.
            resume_if_large: Where the next image is searched if this one exceeds the limit.
            broken_segment: Where the segment begins that is incomplete if the stream ends; the
                next image is searched behind its two bytes of a marker.

        Raises:
            _BrokenError: The image is larger than the limit, or the stream ends in it.
        """
        while len(self._data) < end:
            if len(self._data) > self._max_bytes:
                raise _BrokenError(f"more than {self._max_bytes} bytes", resume_if_large)
            if self._ended:
                raise _BrokenError("the stream ends in it", broken_segment + 2)
            yield

    def _skip(self, count: int) -> None:
        """Remove bytes that belong to no image, and count them unless an error covers them."""
        if not self._is_junk_reported:
            self._junk_bytes += count
        self._drop(count)

    def _drop(self, count: int) -> None:
        """Remove bytes from the start of the data."""
        del self._data[:count]
        self._offset += count

    def _report_junk(self) -> DecodeError:
        count = self._junk_bytes
        self._junk_bytes = 0
        return self._error(f"{count} bytes in the stream belong to no image")

    def _error(self, text: str) -> DecodeError:
        self._count += 1
        return DecodeError(text, "check the program that writes the stream")


def _attached_spans(segment: bytes, offset: int) -> set[tuple[int, int]]:
    """Return where the images begin and end in a stream that a camera appended to its main one.

    Phones append a brightness map or a preview, which are not inputs. CIPA's Multi-Image Format
    lists them in an APP2 segment of the main image, as a small TIFF; its offsets count from that.

    Args:
        segment: The content of an APP2 segment of a JPEG, which may be of another kind.
        offset: Where the content begins in the stream.

    Returns:
        Pairs of a start and an end; none if the segment is of another kind, or damaged.
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
    """Read the list of images in an index of the Multi-Image Format, but for the main image.

    An entry has 16 bytes: 4 of attributes, 4 of a length, 4 of an offset, and 4 of others. The
    offset of the main image is 0.

    Args:
        index: The index, which begins as a TIFF does: with I for little-endian numbers.
        base: The position in the stream from which the offsets count.
        first: The offset of the first entry in the index.
        size: The size of all entries in bytes.

    Returns:
        Where each image begins and ends in the stream.
    """
    entry_format = ">4xII"
    if index.startswith(b"I"):
        entry_format = "<4xII"
    spans = set()
    last = first + size - _MPF_ENTRY_BYTES
    for entry_offset in range(first, last + 1, _MPF_ENTRY_BYTES):
        length, start = struct.unpack_from(entry_format, index, entry_offset)
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
            yield from _read_stream(chunks, options, progress, start)
        else:
            data = gather(chunks, options.max_bytes)
            if _holds_several_images(data):
                raise _several_images_error()
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
    """Return the bytes with which each image of a stream begins, as its first bytes show.

    They are empty if the format is none of those that can be a stream (JPEG, PNG, binary PNM).
    """
    for start in _STARTS:
        if head.startswith(start):
            return start
    return b""


def _holds_several_images(data: bytes) -> bool:
    """Return whether another image seems to follow the first one, in a format without streams.

    Args:
        data: All bytes of standard input, which begin with an image but no JPEG, PNG or binary PNM.
    """
    # Images of one program begin alike, so that a second one repeats the first bytes.
    if data.startswith(OTHERS) and data.find(data[:HEAD], HEAD) > 0:
        return True
    if data[:4] in CLASSIC | BIG:  # a TIFF of a camera may hold others
        return False
    return _NEXT.search(data, HEAD) is not None


def _several_images_error() -> DecodeError:
    """The error of images that follow one another, of which a decoder would take the first."""
    return DecodeError(
        "several images: only JPEG, PNG or binary PNM can be a stream, and one alone of these",
        f"name files, or send JPEGs: ffmpeg {TO_JPEGS}",
    )


def _refuse_videos(head: bytes) -> None:
    """Require that the first bytes of standard input are those of an image.

    Raises:
        DecodeError: They are those of a video file, or of no known format, as with raw frames. It
            says how ffmpeg makes images of these.
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
    """Yield the images of what may be a stream, or the single one that it turns out to be.

    It is a stream if a second image follows, or if nothing follows the first one for a second. A
    single file is passed to the decoder whole, with whatever is behind its image.

    Args:
        chunks: The bytes as they come; an empty chunk after each second of silence.
        options: How the images are decoded, and which of a stream are used.
        progress: Learns that the number of inputs is unknown if this is a stream.
        start: The bytes with which each image begins.
    """
    splitter = Splitter(options.max_bytes, start)
    frames = _StreamFrames(options)
    begin = bytearray()  # everything, until it is clear whether this is a stream
    parts: list[bytes | DecodeError] = []  # images and errors that are not yielded yet
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
        raise _several_images_error()
    yield _item(bytes(begin), options)


class _StreamFrames:
    """Numbers the images of a stream, and leaves out those between every Nth."""

    def __init__(self, options: DecodeOptions) -> None:
        self._options = options
        self._count = 0  # images and errors so far
        self._last_step = -1

    def items(self, parts: Iterable[bytes | DecodeError]) -> Iterator[Item]:
        """Yield the items of the next images of the stream that the options select.

        They may select every Nth image, or one for each span of seconds; the rate of the stream
        then tells the times. An error in place of an image is yielded always.
        """
        inputs = self._options.inputs
        for part in parts:
            number = self._count
            self._count += 1
            step = inputs.step(number, number / (inputs.fps or 1))
            if isinstance(part, DecodeError) or step > self._last_step:
                yield _item(part, self._options, number)
            self._last_step = max(step, self._last_step)


def _item(part: bytes | DecodeError, options: DecodeOptions, frame: int | None = None) -> Item:
    """Return the item of an image on standard input, or of the error in place of one.

    Args:
        part: The bytes of the image file, or the error.
        options: How the image is decoded; the rate of the stream gives it a time.
        frame: The number of the image in a stream; None for a single image.
    """
    rate = options.inputs.fps
    time_s = None
    if frame is not None and rate is not None:
        time_s = frame / rate
    if isinstance(part, DecodeError):
        return failed(STDIN, part, frame, time_s=time_s)
    return Item(Origin(STDIN, frame=frame, time_s=time_s), partial(load_bytes, part, options))
