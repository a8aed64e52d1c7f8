"""The errors and the warning that detcli raises.

Each error has a hint (what to do next) and the exit code of the command line:

    DetcliError                 1  something failed while running
    ├── UsageError              2  the request is invalid
    ├── InputError              3  an input cannot be used; the others go on
    │   ├── SourceError         3  the input cannot be found or read
    │   │   └── PlaceError      5  nothing can be read where it is, perhaps only for now
    │   ├── DecodeError         3  the input is not a complete image or video
    │   └── AlteredError        3  the input is not the one that was listed
    ├── ModelError              4  the model cannot be used
    ├── DeviceError             5  the requested device cannot be used
    ├── InferenceError          1  the network failed on an input
    │   └── DeviceMemoryError   1  the device has too little memory
    ├── CheckError              6  a requested check failed
    ├── OutputError             1  a result cannot be written
    ├── StoreError              5  a run in shards cannot read its folder or list its inputs
    └── DependencyError         1  a library is missing or cannot be loaded

Warnings are `DetcliWarning`: the result stands, but deserves a look.
"""

import contextlib
import errno
import logging
from collections.abc import Iterator
from typing import ClassVar, Self

from detcli.core.text import public_text

log = logging.getLogger(__name__)


MAX_MESSAGE = 8000
"""The maximum length of a message, as part of it may come from elsewhere; the rest is cut off."""


def _public(text: str) -> str:
    """Mask the secrets of addresses in a message, and cut it off if it is very long."""
    text = str(text)
    if len(text) > MAX_MESSAGE:
        text = f"{text[:MAX_MESSAGE]}..."
    if ":" not in text:
        return text
    return public_text(text)


class DetcliError(Exception):
    """Base of all errors; the message says what happened and why.

    Attributes:
        hint: What to do next, in one sentence; may be empty.
        exit_code: Exit code of the process that the error ends.
        outage_at: How many of these in a row are blamed on the place of the inputs, so that a run
            in shards publishes nothing; 0 for any number.
    """

    exit_code: ClassVar[int] = 1
    outage_at: ClassVar[int] = 0

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(_public(message))
        self.hint = _public(hint)


class UsageError(DetcliError):
    """The request is invalid."""

    exit_code = 2


class InputError(DetcliError):
    """An input cannot be used; the others go on."""

    exit_code = 3

    def about(self, source: str) -> Self:
        """The same error with the name of its input in front."""
        return type(self)(f"{source}: {self}", self.hint)


class SourceError(InputError):
    """The input cannot be found or read."""

    outage_at = 16


class AlteredError(InputError):
    """The input is not the one that was listed."""


class PlaceError(SourceError):
    """Nothing can be read where the input is, perhaps only for now: a network, a mount, a right."""

    exit_code = 5
    outage_at = 1


class DecodeError(InputError):
    """The input is not a complete image or video."""


class ModelError(DetcliError):
    """The model cannot be used."""

    exit_code = 4


class DeviceError(DetcliError):
    """The requested device cannot be used."""

    exit_code = 5


class InferenceError(DetcliError):
    """The network failed on an input."""


class DeviceMemoryError(InferenceError):
    """The device has too little memory."""


class CheckError(DetcliError):
    """A requested check failed."""

    exit_code = 6


class OutputError(DetcliError):
    """A result cannot be written."""


class StoreError(DetcliError):
    """A run in shards cannot read its folder, or list its inputs."""

    exit_code = 5


class DependencyError(DetcliError):
    """A library is missing or cannot be loaded."""


@contextlib.contextmanager
def loading(
    library: str, hint: str, error_type: type[DetcliError] = DependencyError
) -> Iterator[None]:
    """Turn the ImportError of a library into an error with a hint that says how to install it."""
    try:
        yield
    except ImportError as error:
        raise error_type(f"{library} does not load: {error}", hint) from error


OUT_OF_MEMORY = ("Insufficient memory", "can't start new thread", "failed to map segment")
"""Parts of the messages of OpenCV, of threads, and of libraries that are loaded."""


def as_error(error: BaseException) -> DetcliError:
    """Convert any exception to an error that can be reported, or that a record can hold.

    One that is not a DetcliError means that memory has run out, that a name is too long for a file,
    or that detcli has a bug.
    """
    if isinstance(error, DetcliError):
        return error
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return UsageError(
            f"{error.filename}: {error.strerror}", "shorten it: most disks take up to 255 bytes"
        )
    log.debug("%s", error, exc_info=error)
    if isinstance(error, MemoryError) or any(words in str(error) for words in OUT_OF_MEMORY):
        hint = "use smaller models or images, or a smaller --imgsz or --batch"
        return InferenceError(f"out of memory: {error}", hint)
    return InferenceError(
        f"this is a bug in detcli: {type(error).__name__}: {error}",
        "run it again with -vv, and report what it prints",
    )


def system_reason(error: Exception) -> str:
    """Return the system's message for an error, without the path, which ours already has."""
    return getattr(error, "strerror", None) or str(error)


class DetcliWarning(UserWarning):
    """The result stands, but deserves a look."""

    def __init__(self, message: str = "") -> None:
        super().__init__(_public(message))


class DetcliNote(DetcliWarning):
    """Something is assumed, since nothing specifies it."""
