"""Splitter: the images in a stream of JPEG, PNG or PNM files, one after the other.

A JPEG file consists of segments with a length, and of compressed data that contain only a few known
markers. Walking them finds the end of the file; a search for the end marker would find that of the
preview that cameras put into a segment. PNG consists of chunks with a length, and the header of a
binary PNM has its size.
"""

import re
import struct
from collections.abc import Generator, Iterator
from typing import NamedTuple

from detcli.core.errors import DecodeError
from detcli.source.segments import JPEG
from detcli.source.tiff_directory import CLASSIC, TiffField, tiff_fields

# Markers by their second byte.
_RESTARTS = frozenset({0x01, *range(0xD0, 0xD8)})  # includes TEM; they have no length
_START, _END, _SCAN, _APP2 = 0xD8, 0xD9, 0xDA, 0xE2
_PADDING = 0xFF  # more bytes 0xFF may precede a marker
_MIN_CODE = 0xC0
_MARKER_BYTES = 2  # 0xFF and the code
# Markers that may end compressed data; others are damage, which is left to the decoder.
_IN_SCAN = re.compile(rb"\xff[\xc4\xcc\xd8-\xfe]")

# A PNM's kind, width, height and highest value, with spaces and comments between them.
_PNM = re.compile(rb"P([56])" + 3 * rb"(?:\s|#[^\n]*\n)+(\d{1,9})" + rb"\s")
_PNM_HEADER = 1024  # maximum length of that header in bytes
_PNG = b"\x89PNG\r\n\x1a\n"
IMAGE_STARTS = (JPEG, _PNG, b"P5", b"P6")
"""The bytes with which each image begins in a stream of JPEG, PNG and binary PNM."""

_AFTER_START = 2
"""Where the search goes on after a start that no image follows, so as not to find it again."""

# In the Multi-Image Format, the tag of the list of images, and the size of an entry in it.
_MPF_ENTRIES = 0xB002
_MPF_ENTRY_BYTES = 16
_MPF_KIND = b"MPF\0"
"""How the content of the segment with the list begins; an index laid out as a TIFF follows."""

_CHUNK_HEADER = struct.Struct(">I4s")  # of a PNG: the length of the content, and the kind
_CHUNK_FRAME_BYTES = _CHUNK_HEADER.size + 4  # with the checksum after the content


class _Span(NamedTuple):
    """Where an image lies in the stream: the offsets of its first byte, and after its last."""

    begin: int
    end: int


class _BrokenError(Exception):
    """The image is incomplete; the next one may begin in its data at `resume` or later."""

    def __init__(self, reason: str, resume: int) -> None:
        super().__init__(reason)
        self.resume = resume


class Splitter:
    """Takes bytes as they come, and yields each image as soon as its last byte has arrived.

    An incomplete image gives one error, as does one of more than `max_bytes`, and the search
    continues where the next one may start. All are in one format. At most one image is held in
    memory.
    """

    def __init__(self, max_bytes: int, start: bytes = JPEG) -> None:
        """Prepare to split a stream of images of the same format.

        Args:
            max_bytes: The maximum number of bytes of an image.
            start: The bytes with which each image begins: those of a JPEG, a PNG or a binary PNM.
        """
        self._max_bytes = max_bytes
        self._start_bytes = start
        if start == JPEG:
            self._find_end = self._find_jpeg_end
        elif start == _PNG:
            self._find_end = self._find_png_end
        else:
            self._find_end = self._find_pnm_end
        self._data = bytearray()  # bytes of the stream that have not been yielded or dropped yet
        self._offset = 0  # of the first byte of the data, in the stream
        self._has_ended = False  # whether no more data come
        self._result_count = 0  # images and errors so far

        # Junk is what lies between two images. It is an error, except after a broken image: then
        # the error of that image stands for the junk as well.
        self._junk_bytes = 0
        self._is_junk_reported = False

        self._has_pixels = False  # whether the pixels of the current image have begun
        # Where in the stream the images are that a camera has appended to an earlier one.
        self._attached_spans: set[_Span] = set()
        self._results = self._split()  # the generator that `feed` resumes

    def feed(self, data: bytes) -> Iterator[bytes | DecodeError]:
        """Take more bytes; yield the images that they complete, and errors for broken ones."""
        self._data += data
        for result in self._results:
            if result is None:
                return
            yield result

    def finish(self) -> Iterator[bytes | DecodeError]:
        """Yield the rest when the stream ends."""
        self._has_ended = True
        yield from self.feed(b"")

    def _split(self) -> Iterator[bytes | DecodeError | None]:
        """Yield the images in the stream, and an error for each that is broken.

        It yields None where it needs more bytes to go on; `feed` adds them. Bytes between images
        are skipped, and reported as an error. An image that an index in the previous one names,
        such as the second of a stereo photo, belongs to that one and is not yielded.
        """
        while True:
            has_start = yield from self._go_to_next_start()
            if not has_start:
                break
            if self._junk_bytes > 0:
                yield self._report_junk()
            try:
                length = yield from self._image_length()
            except _BrokenError as broken:
                error = self._drop_broken_image(broken)
                if error is not None:
                    yield error
                continue
            image = self._take_image(length)
            if image is not None:
                yield image

        # The stream has ended. What follows a single image belongs to its file, and is not an
        # error.
        self._skip(len(self._data))
        if self._junk_bytes > 0 and self._result_count > 1:
            yield self._report_junk()

    def _go_to_next_start(self) -> Generator[None, None, bool]:
        """Skip what precedes the next image, so that the data begin with its first byte.

        It yields while it needs more bytes. The skipped bytes are counted as junk, unless they are
        padding before an image that a camera has attached to an earlier one.

        Returns:
            False if the stream has ended without another image.
        """
        image_start = self._data.find(self._start_bytes)
        while image_start < 0:
            # The last bytes stay: they may be the first ones of an image that goes on later.
            max_incomplete_bytes = len(self._start_bytes) - 1
            self._skip(max(len(self._data) - max_incomplete_bytes, 0))
            if self._has_ended:
                return False
            yield
            image_start = self._data.find(self._start_bytes)
        self._skip(image_start)
        is_attached = any(span.begin == self._offset for span in self._attached_spans)
        if is_attached:
            self._junk_bytes = 0  # padding, not junk
        return True

    def _image_length(self) -> Generator[None, None, int]:
        """Return the length of the image at the start of the data, once all of it has arrived.

        It yields None whenever it needs more bytes, and goes on when `feed` has added some.

        Raises:
            _BrokenError: The image is damaged or too large; the error says where to continue the
                search.
        """
        self._has_pixels = False  # until `_find_end` comes to the pixels of this image
        length = yield from self._find_end()
        if length > self._max_bytes:
            # If a JPEG comes in small pieces, `_wait_for` refuses it before this, while it waits
            # for the marker at the end of the image, and continues the search at this marker. The
            # search goes on at the same byte here, so that the size of the pieces makes no
            # difference.
            end_marker = length - _MARKER_BYTES
            raise _BrokenError(f"more than {self._max_bytes} bytes", resume=end_marker)
        return length

    def _take_image(self, length: int) -> bytes | None:
        """Remove the complete image at the start of the data, and return it.

        From now on, bytes between images are reported as junk. Spans of attached images that the
        stream has passed are forgotten.

        Returns:
            The bytes of the image file; None if it is attached to an earlier image, and so is not
            an input itself.
        """
        image = bytes(memoryview(self._data)[:length])
        image_span = _Span(self._offset, self._offset + length)
        self._drop(length)
        self._is_junk_reported = False

        is_attached = image_span in self._attached_spans
        self._attached_spans = {
            span for span in self._attached_spans if span.begin >= image_span.end
        }
        if is_attached:
            return None
        self._result_count += 1
        return image

    def _drop_broken_image(self, broken: _BrokenError) -> DecodeError | None:
        """Remove a broken image up to where the next one may begin, and return its error.

        The bytes after a broken image often look like the start of another one by chance, which
        would be broken as well. So the error of one broken image stands for all that follow it, up
        to one that has pixels.

        Args:
            broken: Why the image is broken, and the offset where the next one may begin.

        Returns:
            The error; None if that of an earlier broken image stands for this one.
        """
        # After a broken image, junk counts as reported until the next complete image.
        follows_broken_image = self._is_junk_reported
        self._drop(broken.resume)
        self._is_junk_reported = True
        if follows_broken_image and not self._has_pixels:
            return None
        return self._error(f"an incomplete image in the stream: {broken}")

    def _find_png_end(self) -> Generator[None, None, int]:
        """Find where the PNG at the start of the data ends, and return its length.

        After a signature, a PNG is a sequence of chunks: only the first is called IHDR, and the
        last is called IEND. Each has the length of its content in 4 bytes, its name in 4, the
        content, and a checksum in 4. It yields while it needs more bytes.

        Once its first chunk is sound, this is certainly an image, and not bytes of another one that
        look like it by chance. `_has_pixels` is set then, so that `_drop_broken_image` reports an
        error in it.

        Raises:
            _BrokenError: The chunks are damaged, the image is too large, or the stream ends in it.
        """
        chunk_start = len(_PNG)
        name = b""
        is_first_chunk = True
        while name != b"IEND":
            yield from self._wait_for(chunk_start + _CHUNK_FRAME_BYTES)
            content_bytes: int
            content_bytes, name = _CHUNK_HEADER.unpack_from(self._data, chunk_start)
            if is_first_chunk:
                is_in_order = name == b"IHDR"
            else:
                is_in_order = name != b"IHDR"
            if not name.isalpha() or not is_in_order:
                raise _BrokenError("its chunks do not follow one another", _AFTER_START)
            self._has_pixels = True
            is_first_chunk = False
            chunk_start += _CHUNK_FRAME_BYTES + content_bytes
        end = chunk_start
        yield from self._wait_for(end)
        return end

    def _find_pnm_end(self) -> Generator[None, None, int]:
        """Find where the binary PNM at the start of the data ends; return its length.

        The header is text: `P6 640 480 255` is an image in colour (P5 is grey), its width, its
        height and the highest value of a sample. The samples follow. It yields while it needs more
        bytes.

        Raises:
            _BrokenError: There is no header, the image is too large, or the stream ends in it.
        """
        header = _PNM.match(self._data)
        while header is None:
            if len(self._data) > _PNM_HEADER:
                raise _BrokenError("its header has no size", _AFTER_START)
            yield from self._wait_for(len(self._data) + 1)
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
        yield from self._wait_for(end)
        return end

    def _find_jpeg_end(self) -> Generator[None, None, int]:
        """Find where the JPEG at the start of the data ends, and return its length.

        A JPEG is a sequence of segments. Each begins with a marker, which is the byte 0xFF and a
        code; most then have a length. It yields None while it needs more bytes.

        Raises:
            _BrokenError: Something else is where a marker should be, or the next image begins.
        """
        marker_start = _MARKER_BYTES  # after the marker that starts the image
        last_segment_start = 0
        while True:
            # If no marker follows a segment, its length may be wrong. Then the next image may begin
            # anywhere in that segment, so it is searched for after the segment's own marker.
            after_last_marker = last_segment_start + _MARKER_BYTES
            yield from self._wait_for(
                marker_start + _MARKER_BYTES,
                resume_if_large=marker_start,
                resume_if_cut=after_last_marker,
            )
            code = self._marker_code(marker_start, resume_if_broken=after_last_marker)
            if code == _END:
                return marker_start + _MARKER_BYTES
            if code == _PADDING:
                marker_start += 1
            elif code in _RESTARTS:
                marker_start += _MARKER_BYTES
            else:
                segment_end = yield from self._pass_segment(
                    code, marker_start, resume_if_broken=after_last_marker
                )
                last_segment_start = marker_start
                marker_start = segment_end

    def _marker_code(self, marker_start: int, *, resume_if_broken: int) -> int:
        """Return the code of the marker at an offset of the data, which is its second byte.

        Args:
            marker_start: The offset of the marker.
            resume_if_broken: The offset from which to search for the next image if there is no
                marker.

        Raises:
            _BrokenError: There is no marker, an end before any pixels, or the start of the next
                image; the search for it then starts at this marker.
        """
        first_byte = self._data[marker_start]
        code = self._data[marker_start + 1]
        is_known_code = code >= _MIN_CODE or code in _RESTARTS
        is_end_without_pixels = code == _END and not self._has_pixels
        if first_byte != 0xFF or not is_known_code or is_end_without_pixels:
            raise _BrokenError("its segments do not follow one another", resume_if_broken)
        is_next_image = code == _START
        if is_next_image:
            raise _BrokenError("the next one begins before its end", resume=marker_start)
        return code

    def _pass_segment(
        self, code: int, marker_start: int, *, resume_if_broken: int
    ) -> Generator[None, None, int]:
        """Wait for a whole segment of a JPEG, and return the offset of the marker after it.

        A segment is a marker of 2 bytes, a length of 2 bytes that counts itself, and the content.
        The segment that begins a scan is followed by compressed data, which are passed as well. It
        yields None while it needs more bytes.

        A camera may append more images, and list them in a segment of this one. Their spans are
        added to `_attached_spans`.

        Args:
            code: The code of the segment's marker.
            marker_start: The offset of the marker in the data.
            resume_if_broken: The offset from which to search for the next image if the segment is
                cut or has no length.

        Raises:
            _BrokenError: The segment is cut or has no length, or the image is too large. If the
                image is too large, the search for the next one starts at this marker.
        """
        length_start = marker_start + _MARKER_BYTES
        content_start = length_start + 2
        yield from self._wait_for(
            content_start, resume_if_large=marker_start, resume_if_cut=resume_if_broken
        )
        length = int.from_bytes(self._data[length_start:content_start], "big")
        end = length_start + length
        if end < content_start:
            raise _BrokenError("a segment has no length", resume_if_broken)
        yield from self._wait_for(end, resume_if_large=marker_start, resume_if_cut=resume_if_broken)

        if code == _APP2:
            content = bytes(self._data[content_start:end])
            self._attached_spans |= _spans_in_segment(content, self._offset + content_start)
        if code == _SCAN:
            end = yield from self._pass_compressed_data(end, resume_if_cut=length_start)
        return end

    def _pass_compressed_data(
        self, start: int, *, resume_if_cut: int
    ) -> Generator[None, None, int]:
        """Wait for the end of compressed data, and return the offset of the marker after it.

        It yields None while it needs more bytes. The pixels of the image have begun, which is
        recorded in `_has_pixels`.

        Args:
            start: The offset of the compressed data.
            resume_if_cut: The offset from which to search for the next image if the stream ends
                before the compressed data end. If the image is too large, the search goes on from
                where this one stopped.
        """
        self._has_pixels = True
        data = self._data
        searched_until = start
        while True:
            marker = _IN_SCAN.search(data, searched_until)
            if marker is not None:
                return marker.start()
            # The last byte is searched again, as it may be the first one of a marker.
            searched_until = max(searched_until, len(data) - 1)
            yield from self._wait_for(
                len(data) + 1, resume_if_large=searched_until, resume_if_cut=resume_if_cut
            )

    def _wait_for(
        self,
        end: int,
        *,
        resume_if_large: int = _AFTER_START,
        resume_if_cut: int = _AFTER_START,
    ) -> Iterator[None]:
        """Yield until the data reach up to the offset `end`; `feed` adds bytes in between.

        Args:
            end: How many bytes are needed from the start of the image.
            resume_if_large: Where to search for the next image if this one exceeds the limit.
            resume_if_cut: Where to search for the next image if the stream ends in this one.

        Raises:
            _BrokenError: The image is larger than the limit, or the stream ends in it.
        """
        while len(self._data) < end:
            if len(self._data) > self._max_bytes:
                raise _BrokenError(f"more than {self._max_bytes} bytes", resume_if_large)
            if self._has_ended:
                raise _BrokenError("the stream ends in it", resume_if_cut)
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
        """Make the error for the bytes that belong to no image, and reset their count."""
        junk_bytes = self._junk_bytes
        self._junk_bytes = 0
        return self._error(f"{junk_bytes} bytes in the stream belong to no image")

    def _error(self, text: str) -> DecodeError:
        self._result_count += 1
        return DecodeError(text, "check the program that writes the stream")


def _spans_in_segment(segment: bytes, offset: int) -> set[_Span]:
    """Return where in the stream the images are that a camera has appended to its main image.

    Phones append a brightness map or a preview, which are not inputs. CIPA's Multi-Image Format
    lists them in an APP2 segment of the main image, in an index that is laid out as a small TIFF.

    Args:
        segment: The content of an APP2 segment of a JPEG, which may be of a different kind.
        offset: Where the content begins in the stream.

    Returns:
        The spans; none if the segment is of a different kind, or damaged.
    """
    index = segment[len(_MPF_KIND) :]
    is_index = segment.startswith(_MPF_KIND) and index[:4] in CLASSIC
    if not is_index:
        return set()
    try:
        for field in tiff_fields(index):
            if field.tag == _MPF_ENTRIES:
                return _index_spans(index, field, index_offset=offset + len(_MPF_KIND))
    except struct.error:
        pass  # damaged: an appended image then counts as an input
    return set()


def _index_spans(index: bytes, entries_field: TiffField, *, index_offset: int) -> set[_Span]:
    """Return the spans of the images that an index of the Multi-Image Format lists.

    The main image is left out. The entry of an image has 16 bytes: 4 with attributes, 4 with the
    length of the image, 4 with its offset from the index, and 4 with other things. The offset of
    the main image is 0.

    Args:
        index: The index, which begins as a TIFF does: with I for little-endian numbers.
        entries_field: The field of the index whose value is the position of the entries in it, and
            whose count is that of their bytes.
        index_offset: Where the index begins in the stream.

    Raises:
        struct.error: An entry is beyond the end of the index.
    """
    entry_format = struct.Struct(">4xII")  # without the last 4 bytes
    if index.startswith(b"I"):
        entry_format = struct.Struct("<4xII")
    spans = set()
    entry_count = entries_field.value_count // _MPF_ENTRY_BYTES
    for number in range(entry_count):
        entry_start = entries_field.value + number * _MPF_ENTRY_BYTES
        length, image_offset = entry_format.unpack_from(index, entry_start)
        is_main_image = image_offset == 0
        if not is_main_image:
            begin = index_offset + image_offset
            spans.add(_Span(begin, begin + length))
    return spans
