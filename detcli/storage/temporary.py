"""Temporary: files without a name, in memory while they are small, and then on the disk."""

import contextlib
import tempfile
from collections.abc import Iterator
from typing import BinaryIO, cast

from detcli.storage.files import unwritable

IN_MEMORY = 8 << 20  # bytes of a temporary file that are kept in memory


def temporary() -> BinaryIO:
    """An unnamed file, gone if the process dies; use it within `temporary_file_errors`."""
    return cast("BinaryIO", tempfile.SpooledTemporaryFile(IN_MEMORY))


@contextlib.contextmanager
def temporary_file_errors() -> Iterator[None]:
    """Raise an OSError as one that names the folder for temporary files, not the store."""
    try:
        yield
    except OSError as error:
        raise unwritable(tempfile.gettempdir(), error) from error
