"""External data: weights that a model keeps in files of its own, beside it or below.

A model file is somebody else's: what it names may be any path of this machine. So a name is judged
before anything is opened, and only a regular file inside the model's folder is opened at all.
"""

import os
import stat
from io import BufferedReader
from pathlib import Path, PureWindowsPath

from detcli.errors import ModelError

# Neither follows a link that was laid after the check, nor waits for the writer of a pipe.
CAREFULLY = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


def open_external(model: Path, location: str) -> BufferedReader:
    """Open a file of external data.

    Args:
        model: The model file, which has it beside itself or in a folder below.
        location: Its path, relative to the model's folder, as the model names it.

    Raises:
        ModelError: It is not there, no regular file, or outside the folder: then it is not opened.
    """
    missing = f"put {location} beside the model"
    try:
        file = _inside(model, location)
        if not stat.S_ISREG(file.stat().st_mode):
            raise external_error(model, f"{location}: it is no regular file", missing)
        return open(file, "rb", opener=lambda name, flags: os.open(name, flags | CAREFULLY))
    except OSError as error:
        why = f"{location}: {error.strerror or error}"
        raise external_error(model, why, missing) from error


def _inside(model: Path, location: str) -> Path:
    """The file that is meant, with all links on the way followed.

    Raises:
        ModelError: It is outside the model's folder.
    """
    # Windows' notation has all that POSIX' has, drives and backslashes besides. A model comes from
    # anywhere, and is to be refused everywhere.
    path = PureWindowsPath(location)
    if not location or "\0" in location or path.anchor or ".." in path.parts:
        raise external_error(
            model,
            f"'{location}' is no path below the model's folder",
            "export it again, with its weights in the same folder",
        )
    folder = Path(os.path.realpath(model.parent))
    file = Path(os.path.realpath(folder / location))
    if not file.is_relative_to(folder):
        raise external_error(
            model,
            f"{location}: a link leads out of the model's folder",
            "put the file itself beside the model, not a link to it; cp -L copies what is linked",
        )
    return file


def external_error(model: Path, why: str, hint: str) -> ModelError:
    """Build the error for external data that cannot be had."""
    return ModelError(f"the external data of {model} cannot be read: {why}", hint)
