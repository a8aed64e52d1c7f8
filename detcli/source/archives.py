"""Archives: tar files, as in WebDataset, and Parquet with the bytes of images.

Each is read once, as a stream, on a thread of its own; a member is an image with its own name. An
archive that ends early or is damaged ends with an item that has the error.
"""

import logging
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import BinaryIO, cast

from detcli.core.errors import DecodeError, DetcliError
from detcli.core.lines import ChunkReader
from detcli.data.record import Origin
from detcli.source.decode import DecodeOptions, load_bytes
from detcli.source.loading import Item, SourceProgress, failed_item
from detcli.source.names import PARQUET

log = logging.getLogger(__name__)

HINT = "fetch or copy the file again"

MAX_REASON = 200  # characters of what a library says about a damaged archive


def read_archive(
    public: str,
    chunks: Callable[[], Iterator[bytes]],
    options: DecodeOptions,
    progress: SourceProgress,
    *,
    stamp: str | None = None,
) -> Generator[Item]:
    """Yield the images of a tar or Parquet file as items, and an error where it is damaged.

    Args:
        public: The name of the archive in records. An image in it is called `public/name`.
        chunks: Opens the archive when it is called, and returns the bytes as they arrive.
        options: How images are decoded.
        progress: Learns that the number of images is unknown, and says when to stop.
        stamp: Size and time of the archive, by which a later change is noticed.
    """
    progress.expect(None)
    file = cast("BinaryIO", ChunkReader(_until_stop(chunks(), progress)))
    try:
        for name, content in _read_images(public, file, options):
            if isinstance(content, DecodeError):
                yield failed_item(f"{public}/{name}", content)
            else:
                origin = Origin(f"{public}/{name}", file_stamp=stamp)
                yield Item(origin, partial(load_bytes, content, options))
    except DetcliError:
        raise
    except Exception as error:  # whatever a stranger's file does to a parser
        log.debug("%s: %s", public, error, exc_info=error)
        yield failed_item(public, DecodeError(f"a damaged archive: {_reason(error)}", HINT))


def _until_stop(chunks: Iterator[bytes], progress: SourceProgress) -> Iterator[bytes]:
    """Yield the chunks until the run is to stop."""
    for chunk in chunks:
        if progress.stop.is_set():
            return
        yield chunk


def _read_images(
    public: str, file: BinaryIO, options: DecodeOptions
) -> Iterator[tuple[str, bytes | DecodeError]]:
    """Yield the name and the bytes of each image, or its error; the suffix gives the format."""
    if public.lower().endswith(PARQUET):
        from detcli.source.columns import read_parquet

        return read_parquet(file, options.max_bytes, options.inputs.column)
    from detcli.source.tar import read_tar

    return read_tar(file, options.max_bytes, public)


def _reason(error: Exception) -> str:
    """Return the message of an exception in a short line; the name of its class if it has none."""
    if isinstance(error, MemoryError):
        return "it takes more memory than there is"
    first_line = str(error).strip().partition("\n")[0]
    return first_line[:MAX_REASON] or type(error).__name__
