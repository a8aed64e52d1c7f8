"""Standard input: one picture, or a stream of JPEG files, one behind the other."""

import itertools
from collections.abc import Iterable, Iterator
from functools import partial

from detcli.errors import DecodeError, InputError, SourceError
from detcli.record import Origin
from detcli.source import pipe
from detcli.source.decode import DecodeOptions, load_bytes
from detcli.source.item import Intake, Item, failed
from detcli.source.mjpeg import START, JpegSplitter

STDIN = "-"
"""The name that stands for standard input."""


def read_stdin(options: DecodeOptions, intake: Intake) -> Iterator[Item]:
    """Yield the picture on standard input, or the pictures of a stream as each is complete.

    The pictures of a stream are numbered. Whether there is more than one shows when the next one
    follows or a second has passed: so long the first one waits.

    Args:
        options: How they are decoded.
        intake: Told when there are more than one.
    """
    try:
        yield from _read(pipe.read_stdin(intake.stop), options, intake)
    except OSError as error:
        reason = f"cannot be read: {error.strerror or error}"
        yield failed(STDIN, SourceError(reason, "look at what writes to standard input"))
    except InputError as error:
        yield failed(STDIN, error)


def _read(chunks: Iterator[bytes], options: DecodeOptions, intake: Intake) -> Iterator[Item]:
    # More than any format takes for a picture of the greatest size, and its metadata.
    most_bytes = 8 * options.max_pixels + 2**24
    head = b""
    for chunk in chunks:
        head += chunk
        if len(head) >= len(START):
            break
    chunks = _chain(head, chunks)
    if head.startswith(START):
        yield from _split(chunks, options, most_bytes, intake)
    else:
        yield Item(Origin(STDIN), partial(load_bytes, _join(chunks, most_bytes), options))


def _chain(head: bytes, chunks: Iterable[bytes]) -> Iterator[bytes]:
    yield head
    yield from chunks


def _join(chunks: Iterable[bytes], most_bytes: int) -> bytes:
    """All that comes.

    Raises:
        DecodeError: It is too much.
    """
    data = bytearray()
    for chunk in chunks:
        data += chunk
        if len(data) > most_bytes:
            raise DecodeError(
                f"more than {most_bytes} bytes, and no stream of JPEG files",
                "raise --max-pixels if it is meant to be that large",
            )
    return bytes(data)


def _split(
    chunks: Iterable[bytes], options: DecodeOptions, most_bytes: int, intake: Intake
) -> Iterator[Item]:
    splitter = JpegSplitter(most_bytes)
    begin = bytearray()  # all that came until it is clear whether this is a stream
    parts: list[bytes | DecodeError] = []
    numbers = itertools.count()
    is_stream = False
    for chunk in chunks:
        parts += splitter.feed(chunk)
        if not is_stream:
            begin += chunk
            is_stream = len(parts) > 1 or (bool(parts) and (not chunk or len(begin) > most_bytes))
        if is_stream:
            intake.expect(None)
            yield from (_item(part, options, next(numbers)) for part in parts)
            parts.clear()
    parts += splitter.finish()
    if is_stream or (len(parts) > 1 and any(isinstance(part, bytes) for part in parts)):
        intake.expect(None)
        yield from (_item(part, options, next(numbers)) for part in parts)
    else:  # one file, which is the decoder's to judge, complete or not
        yield _item(bytes(begin), options)


def _item(part: bytes | DecodeError, options: DecodeOptions, frame: int | None = None) -> Item:
    if isinstance(part, DecodeError):
        return failed(STDIN, part, frame)
    return Item(Origin(STDIN, frame=frame), partial(load_bytes, part, options))
