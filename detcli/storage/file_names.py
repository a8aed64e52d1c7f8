"""Names of files: those that every file system takes, and those that were probably meant."""

import itertools
import os
import re
import sys

from detcli.core.text import closest, public_name

MAX_NAME_BYTES = 220  # length of a name without numbers and suffix; file systems allow 255 in all

# Strings, which `re` compiles when they are first used: that takes long.
NOT_TEXT = r"[\ud800-\udc7f\udd00-\udfff]"  # surrogates that do not stand for a byte
# Separators, control characters and changes of direction. Windows forbids more, common elsewhere.
FORBIDDEN = r"[/\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]"
FORBIDDEN_ON_WINDOWS = r'[<>:"/\\|?*\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\udc80-\udcff]'
DEVICES = frozenset(
    ["con", "prn", "aux", "nul", "conin$", "conout$"]
    + [port + number for port in ("com", "lpt") for number in "0123456789¹²³"]
)  # on Windows they exist in every folder, with any suffix


MAX_COMPARED = 200  # entries of a folder; in a larger one, no similar name is looked for


def similar_file(path: str | os.PathLike[str]) -> str:
    """Find the file that was probably meant by a mistyped path, which does not exist.

    Returns:
        The path of a file or folder beside it with a similar name; an empty string if there is
        none, or if the folder cannot be read or has more than MAX_COMPARED entries.
    """
    folder, name = os.path.split(os.fsdecode(path))
    file_names = []
    try:
        with os.scandir(folder or ".") as entries:
            for entry in itertools.islice(entries, MAX_COMPARED + 1):
                file_names.append(entry.name)
    except (OSError, ValueError):
        return ""
    similar_name = ""
    if len(file_names) <= MAX_COMPARED:
        similar_name = closest(name, sorted(file_names))
    if not similar_name:
        return ""
    return os.path.join(folder, similar_name)  # noqa: PTH118 - a Path would change the folder


def did_you_mean(path: str | os.PathLike[str]) -> str:
    """Return a question such as "did you mean bus.jpg? " to begin a hint; empty if none fits."""
    file = similar_file(path)
    if not file:
        return ""
    return f"did you mean {public_name(file)}? "


def safe(name: str, *, windows: bool = os.name == "nt") -> str:
    """Make a name valid as a file name without its suffix; most names stay as they are.

    Forbidden characters become `_`, names of Windows devices get a `_` before them, and a name that
    is too long is cut and ends with a hash of the whole.

    Args:
        name: The name that the file should have, for example that of a class or of an input.
        windows: Whether the characters that Windows forbids are replaced, too.

    Examples:
        >>> safe("traffic light"), safe("../a/b"), safe("aux"), safe("..")
        ('traffic light', '.._a_b', '_aux', '_')
    """
    # Escaped bytes may form a valid character together, which is what the file system sees. Where
    # the locale has no such character, its bytes are written all the same.
    text = _as_read_back(re.sub(NOT_TEXT, "_", name))
    forbidden = FORBIDDEN_ON_WINDOWS if windows else FORBIDDEN
    valid_name = re.sub(forbidden, "_", text).rstrip(". ")
    if valid_name.split(".")[0].rstrip().casefold() in DEVICES:
        valid_name = f"_{valid_name}"
    return _shortened(valid_name) or "_"


def _shortened(name: str) -> str:
    """Return a name, or if it is longer than MAX_NAME_BYTES its beginning and a hash of it."""
    name_bytes = os.fsencode(name)
    if len(name_bytes) <= MAX_NAME_BYTES:
        return name
    import hashlib

    digest = hashlib.sha256(name_bytes).hexdigest()[:16]
    beginning_length = MAX_NAME_BYTES - len(f"-{digest}")
    beginning = name_bytes[:beginning_length].decode("utf-8", "ignore")
    return f"{_as_read_back(beginning)}-{digest}"


def _as_read_back(name: str) -> str:
    """Return a name as the system would read it from a folder after it was written in UTF-8."""
    return os.fsdecode(name.encode("utf-8", sys.getfilesystemencodeerrors()))
