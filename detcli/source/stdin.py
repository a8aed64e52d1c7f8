"""Standard input, read as it comes: one picture, or a stream of concatenated JPEG files.

Lists of names are read by the same functions. They yield bytes as soon as they arrive, and check
regularly whether the run has been stopped.
"""

import itertools
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from io import UnsupportedOperation
from threading import Event

from detcli.errors import DecodeError, InputError, SourceError, system_reason
from detcli.record import Origin
from detcli.source.decode import DecodeOptions, load_bytes
from detcli.source.decode_jpeg import START
from detcli.source.item import STDIN, Item, SourceProgress, failed
from detcli.source.mjpeg import JpegSplitter
from detcli.source.reading import CHUNK, descriptor_chunks, gather

OTHERS = (b"\x89PNG", b"BM", b"P")
"""How pictures begin that programs send one after the other, besides JPEG: PNG, BMP and PNM."""

HEAD = 12
"""Bytes at their beginning that no single one of them repeats."""


def stdin_chunks(stop: Event) -> Iterator[bytes]:
    """Yield the bytes of standard input, see `reading.descriptor_chunks`.

    Raises:
        SourceError: Standard input is closed, or a terminal.
        OSError: It cannot be read.
    """
    hint = "pipe a picture in, as in: detcli predict - ... < bus.jpg"
    if sys.stdin is None:
        raise SourceError("standard input is closed", hint)
    if sys.stdin.isatty():
        raise SourceError("standard input is a terminal", hint)
    try:
        descriptor = sys.stdin.fileno()
    except UnsupportedOperation:  # replaced by an object without a file
        yield from iter(lambda: sys.stdin.buffer.read(CHUNK), b"")
    else:
        yield from descriptor_chunks(descriptor, stop)


def read_stdin(options: DecodeOptions, progress: SourceProgress, stride: int = 1) -> Iterator[Item]:
    """Yield the picture on standard input, or the pictures of a stream as each is complete.

    The pictures of a stream are numbered. The first one waits until the next one follows or a
    second has passed, because only then is it clear whether this is a stream.

    Args:
        options: How the pictures are decoded.
        progress: Its total becomes unknown for a stream.
        stride: Of a stream, every stride-th picture is used, from the first one on.
    """
    try:
        chunks = stdin_chunks(progress.stop)
        head = b""
        for chunk in chunks:
            head += chunk
            if len(head) >= len(START):
                break
        chunks = itertools.chain([head], chunks)
        if head.startswith(START):
            yield from _split(chunks, options, progress, stride)
        else:
            data = gather(chunks, options.max_bytes)
            _require_one(data)
            yield Item(Origin(STDIN), partial(load_bytes, data, options))
    except OSError as error:
        hint = "check the program that writes to standard input"
        yield failed(STDIN, SourceError(f"cannot be read: {system_reason(error)}", hint))
    except InputError as error:
        yield failed(STDIN, error)


def _require_one(data: bytes) -> None:
    """Refuse a stream of pictures other than JPEGs, of which decoders take the first.

    Raises:
        DecodeError: There are several.
    """
    if data.startswith(OTHERS) and data.find(data[:HEAD], HEAD) > 0:
        raise DecodeError(
            "several pictures, but only JPEGs can be sent as a stream",
            "send JPEGs, with ffmpeg -c:v mjpeg, or name files",
        )


def _split(
    chunks: Iterable[bytes], options: DecodeOptions, progress: SourceProgress, stride: int
) -> Iterator[Item]:
    splitter = JpegSplitter(options.max_bytes)
    begin = bytearray()  # everything, until it is clear whether this is a stream
    parts: list[bytes | DecodeError] = []
    numbers = itertools.count()
    is_stream = False

    def chosen(parts: Iterable[bytes | DecodeError]) -> Iterator[Item]:
        for part, number in zip(parts, numbers, strict=False):
            if isinstance(part, DecodeError) or number % stride == 0:
                yield _item(part, options, number)

    for chunk in chunks:
        parts += splitter.feed(chunk)
        if not is_stream:
            begin += chunk
            long = not chunk or len(begin) > options.max_bytes
            is_stream = len(parts) > 1 or (bool(parts) and long)
        if is_stream:
            progress.expect(None)
            yield from chosen(parts)
            parts.clear()
    parts += splitter.finish()
    if is_stream or (len(parts) > 1 and any(isinstance(part, bytes) for part in parts)):
        progress.expect(None)
        yield from chosen(parts)
    else:  # a single file, whether complete or not, is left to the decoder
        yield _item(bytes(begin), options)


def _item(part: bytes | DecodeError, options: DecodeOptions, frame: int | None = None) -> Item:
    if isinstance(part, DecodeError):
        return failed(STDIN, part, frame)
    return Item(Origin(STDIN, frame=frame), partial(load_bytes, part, options))
