"""Text that others wrote: its encoding, which a byte order mark shows, and lines of limited length.

Programs on Windows mark what they write: PowerShell's `>` and `Out-File` write UTF-16, Notepad and
Excel UTF-8 with a mark. Text without a mark is UTF-8.
"""

import codecs
import io
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, NamedTuple, cast

MAX_LINE_BYTES = 1 << 28
"""The maximum length of a line, in which an image may be embedded; a longer one is refused."""

MAX_TEXT_BYTES = (1 << 31) - 1
"""The maximum size of a text file that is read at once, decompressed."""

CHUNK = 1 << 16

ENCODINGS = {
    codecs.BOM_UTF32_LE: "utf-32-le",  # before UTF-16, whose mark it begins with
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
    codecs.BOM_UTF8: "utf-8",
}
"""What byte order marks say."""

ENOUGH = 1024  # bytes within which a text in UTF-16 has a zero, of an ASCII character


class LineTooLongError(ValueError):
    """A line is longer than any that a program writes."""

    def __init__(self) -> None:
        super().__init__(f"it is longer than {MAX_LINE_BYTES >> 20} MiB, the limit of a line")


class TooLargeError(ValueError):
    """The text is larger than what is read at once."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"it is larger than {(limit + 1) >> 20} MiB")


def mark_of(begin: bytes) -> bytes:
    """The byte order mark at the start of the text; empty if there is none."""
    for mark in ENCODINGS:
        if begin.startswith(mark):
            return mark
    return b""


def decoded(data: bytes) -> str:
    """The text, in the encoding that its mark shows; raises UnicodeDecodeError, a ValueError."""
    encoding = _encoding_of(data)
    return data[len(encoding.mark) :].decode(encoding.name)


def utf8_chunks(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Convert the bytes of a text file to UTF-8, as they come, without the byte order mark.

    A text in UTF-8, or without a mark, is passed on as it is, whatever bytes it has. Halves of
    surrogate pairs are kept, as names on Windows may have some.

    Args:
        chunks: The bytes of the text. An empty chunk says that nothing was written for a while. It
            is passed on, so that the caller can act meanwhile.

    Raises:
        ValueError: The text ends within a character; raised at its end.
    """
    # Collect chunks until they are enough to determine the encoding. The loop below reads the
    # others.
    remaining_chunks = iter(chunks)
    beginning = b""
    for chunk in remaining_chunks:
        beginning += chunk
        if _tells_encoding(beginning):
            break
        if not chunk:
            yield b""

    encoding = _encoding_of(beginning)
    beginning_without_mark = beginning[len(encoding.mark) :]
    unmarked_chunks = itertools.chain([beginning_without_mark], remaining_chunks)
    if encoding.name == "utf-8":
        yield from unmarked_chunks
    else:
        yield from _recoded_chunks(unmarked_chunks, encoding.name)


def _recoded_chunks(chunks: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    """Convert the chunks of a text file from an encoding to UTF-8, as they come.

    A character that is cut by the end of a chunk is yielded with the next one.

    Raises:
        ValueError: The text ends within a character; raised at its end.
    """
    decoder = codecs.getincrementaldecoder(encoding)("surrogatepass")
    for chunk in chunks:
        yield decoder.decode(chunk).encode("utf-8", "surrogatepass")
    decoder.decode(b"", final=True)  # raises an error if half a character is left


def _tells_encoding(begin: bytes) -> bool:
    """Whether the beginning of a text file is long enough to determine its encoding.

    It is not while it may be a part of a byte order mark. A mark of UTF-16 or UTF-32 alone is not
    enough either, since other data may begin with the same bytes: see `_encoding_of`.
    """
    for mark in ENCODINGS:
        if len(begin) < len(mark) and mark.startswith(begin):
            return False
    is_utf8 = ENCODINGS.get(mark_of(begin), "utf-8") == "utf-8"
    return is_utf8 or b"\0" in begin or len(begin) >= ENOUGH


class _Encoding(NamedTuple):
    """The encoding of a text file."""

    name: str
    mark: bytes  # the byte order mark with which the text begins, which may be empty


def _encoding_of(begin: bytes) -> _Encoding:
    """Find the encoding of a text file from its beginning.

    A mark of UTF-16 or UTF-32 is accepted only if zeros follow: these encodings have zeros in each
    ASCII character, while a list of file names, which may begin with any bytes, has none.
    """
    mark = mark_of(begin)
    name = ENCODINGS.get(mark, "utf-8")
    if name != "utf-8" and b"\0" not in begin:
        return _Encoding("utf-8", b"")
    return _Encoding(name, mark)


def utf8_file(file: BinaryIO, *, close: bool = True) -> BinaryIO:
    """Wrap a text file in any encoding as a file in UTF-8.

    Args:
        file: The file. Its encoding is that of its byte order mark, else UTF-8.
        close: Whether closing the returned file closes this one.

    Returns:
        A file whose reads raise ValueError where the text is not in the encoding of its mark.
    """
    # `read1` returns what has arrived, and does not wait for CHUNK bytes.
    read: Callable[[int], bytes] = getattr(file, "read1", file.read)
    chunks = iter(lambda: read(CHUNK), b"")  # until nothing is left
    file_to_close = file if close else None
    reader = ChunkReader(utf8_chunks(chunks), file_to_close)
    return cast("BinaryIO", io.BufferedReader(reader, CHUNK))


class ChunkReader(io.RawIOBase):
    """A file of bytes that come in chunks, which closes the file that they are from, if any."""

    def __init__(self, chunks: Iterator[bytes], source: BinaryIO | None = None) -> None:
        self._chunks = chunks
        self._source = source
        self._rest = b""  # of the last chunk, what has not been read yet

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - anything that takes bytes
        """Fill a buffer from the next chunk, or a part of it, and return the number of bytes."""
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._rest = chunk
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size

    def close(self) -> None:
        if self._source is not None:
            self._source.close()
        super().close()


def bounded_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file with their ends; raises LineTooLongError for a longer one."""
    while line := file.readline(MAX_LINE_BYTES + 1):
        require_within_limit(line)
        yield line


def require_within_limit(line: bytes) -> None:
    """Raise LineTooLongError for a line that nobody would read."""
    if len(line) > MAX_LINE_BYTES:
        raise LineTooLongError


def bounded_line(file: BinaryIO) -> bytes:
    """The next line of a file, empty at its end; raises as `bounded_lines` does."""
    return next(bounded_lines(file), b"")


def read_bounded(file: BinaryIO, limit: int) -> bytes:
    """Read all bytes of a file, or raise TooLargeError if they are more than a limit."""
    content = io.BytesIO()
    while chunk := file.read(CHUNK):
        content.write(chunk)
        if content.tell() > limit:
            raise TooLargeError(limit)
    return content.getvalue()
