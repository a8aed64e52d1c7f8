"""Every error that detcli raises on purpose.

Each carries a hint (what to do next) and the exit code of the command line:

    DetcliError                 1  something failed while running
    ├── UsageError              2  the request itself makes no sense
    ├── InputError              3  an input could not be used; the others go on
    │   ├── SourceError         3  nothing to read there
    │   └── DecodeError         3  read, but it is no complete picture
    ├── ModelError              4  the model cannot be used
    ├── DeviceError             5  the device that was asked for cannot be used
    ├── InferenceError          1  the network failed on an input
    │   └── DeviceMemoryError   1  it does not fit into the device's memory
    ├── CheckError              6  a check that was asked for failed
    ├── OutputError             1  a result could not be written
    └── DependencyError         1  an installed library does not load

Warnings are `DetcliWarning`, a UserWarning: the answer stands, but look at it.
"""

from typing import ClassVar


class DetcliError(Exception):
    """Base of all errors; `str()` says what happened and why.

    Attributes:
        hint: What to do next, as one sentence; empty when there is nothing to advise.
        exit_code: What the process returns when the error ends it.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(DetcliError):
    """The request itself makes no sense."""

    exit_code = 2


class InputError(DetcliError):
    """An input could not be used; the others go on."""

    exit_code = 3


class SourceError(InputError):
    """Nothing to read there."""


class DecodeError(InputError):
    """Read, but it is no complete picture."""


class ModelError(DetcliError):
    """The model cannot be used."""

    exit_code = 4


class DeviceError(DetcliError):
    """The device that was asked for cannot be used."""

    exit_code = 5


class InferenceError(DetcliError):
    """The network failed on an input."""


class DeviceMemoryError(InferenceError):
    """It does not fit into the device's memory."""


class CheckError(DetcliError):
    """A check that was asked for failed."""

    exit_code = 6


class OutputError(DetcliError):
    """A result could not be written."""


class DependencyError(DetcliError):
    """An installed library does not load."""


class DetcliWarning(UserWarning):
    """The answer stands, but something about it deserves a look."""
