"""Archives: tar files, as WebDataset has them, and Parquet with the bytes of pictures.

Each is read once, as a stream, on a thread of its own; a member is a picture of its own name. An
archive that ends early or is damaged ends with an item that has the error.
"""

import io
import tarfile
import zlib
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Any, BinaryIO, Self, cast

from detcli.core.errors import DecodeError, DeviceError, loading
from detcli.core.files import temporary
from detcli.core.record import Origin
from detcli.source.decode import LARGER, DecodeOptions, load_bytes
from detcli.source.loading import Item, SourceProgress, failed
from detcli.source.names import PARQUET, is_media, is_video

CHUNK = 1 << 20

MAX_HEADER = 1 << 20  # bytes of a long name and the like in a tar file, which are read at once
ROWS = 16  # how many rows of Parquet are read at once

HINT = "fetch or copy the file again"


def read_archive(
    public: str,
    chunks: Callable[[], Iterator[bytes]],
    options: DecodeOptions,
    progress: SourceProgress,
    *,
    stamp: str | None = None,
) -> Generator[Item]:
    """Yield the pictures of an archive, whose bytes come in chunks; `stamp` is that of its file."""
    progress.expect(None)
    file = io.BufferedReader(_Chunks(chunks()), CHUNK)
    read = _of_parquet if public.lower().endswith(PARQUET) else _of_tar
    try:
        for name, content in read(cast("BinaryIO", file), options.max_bytes):
            if isinstance(content, DecodeError):
                yield failed(f"{public}/{name}", content)
            else:
                origin = Origin(f"{public}/{name}", file_stamp=stamp)
                yield Item(origin, partial(load_bytes, content, options))
    except (tarfile.TarError, zlib.error, EOFError, ValueError, LookupError, OSError) as error:
        yield failed(public, DecodeError(f"a damaged archive: {error}", HINT))


class _Chunks(io.RawIOBase):
    """A file of bytes that come in chunks."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._rest = chunks, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - anything that takes bytes
        while not self._rest:
            if (chunk := next(self._chunks, None)) is None:
                return 0
            self._rest = chunk
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


class _Member(tarfile.TarInfo):
    """A header, or an error: tarfile takes a damaged one for the end, and any size for a name."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        try:
            found = super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if type(error).__name__ == "EOFHeaderError":  # two blocks of zeros
                raise
            raise tarfile.ReadError(f"it breaks off: {error}") from error
        if found.type in {b"x", b"g", b"L", b"K", b"X"} and found.size > MAX_HEADER:
            raise tarfile.ReadError(f"a name of {found.size} bytes")
        return found


def _of_tar(file: BinaryIO, most: int) -> Iterator[tuple[str, bytes | DecodeError]]:
    with tarfile.open(fileobj=file, mode="r|*", tarinfo=_Member) as tar:
        for member in tar:
            if not (member.isfile() and is_media(member.name)) or is_video(member.name):
                continue
            if member.size > most:
                yield member.name, DecodeError(f"too large: more than {most} bytes", LARGER)
            elif (content := tar.extractfile(member)) is not None:
                yield member.name, content.read()
            tar.members.clear()  # type: ignore[attr-defined] # which it would keep


def _of_parquet(file: BinaryIO, most: int) -> Iterator[tuple[str, bytes | DecodeError]]:
    """Those of the first column that has bytes and a path, as Hugging Face writes pictures."""
    with loading("pyarrow", 'pip install "detcli[parquet]"', DeviceError):
        from pyarrow import ArrowException, parquet, types
    number = 0
    with temporary() as whole:  # it is read from its end
        while chunk := file.read(CHUNK):
            whole.write(chunk)
        try:
            reader = parquet.ParquetFile(whole)
            columns = [
                one.name
                for one in reader.schema_arrow
                if types.is_struct(one.type) and one.type.get_field_index("bytes") >= 0
            ]
            for batch in reader.iter_batches(ROWS, columns=columns[:1]) if columns else ():
                for row in batch.column(0).to_pylist():
                    content = (row or {}).get("bytes")
                    name = (row or {}).get("path") or str(number)
                    number += 1
                    if content is None or len(content) > most:
                        reason = "it has no bytes" if content is None else "too large"
                        yield name, DecodeError(reason, "see how the file was made")
                    else:
                        yield name, content
        except ArrowException as error:
            raise ValueError(str(error)) from error
    if not columns:
        hint = "name a file with a column of structs that have bytes, as Hugging Face writes them"
        raise DecodeError("no column has the bytes of pictures", hint)
