"""Keeps names of people and values of the environment out of a report that will be published.

What libraries say is full of paths, and a path begins with whose it is. Of each only the file's
name stays.
"""

import contextlib
import getpass
import os
import platform
import re
import sys
from pathlib import Path

ABSOLUTE = re.compile(r"""(?:\b[A-Za-z]:|(?<![\w.~$\\/]))[\\/](?:[^\s\\/:'"`,;()]+[\\/])+""")

SHORTEST_NAME = 2
SHORTEST_VALUE = 8  # shorter ones are words that anything may say

RELEVANT = re.compile(
    r"CUDA_.*|NVIDIA_.*|ORT_.*|OMP_.*|MKL_.*|OPENBLAS_.*|OPENCV_.*|QT_.*|PYTHON.*|DETCLI_.*"
    r"|LD_LIBRARY_PATH|LD_PRELOAD|MALLOC_.*|DISPLAY|WAYLAND_DISPLAY|XDG_CACHE_HOME|TERM|COLORTERM"
    r"|NO_COLOR|FORCE_COLOR|COLUMNS|LINES|LANG|LC_.*|VIRTUAL_ENV|CONDA_PREFIX"
)


def scrub(text: str) -> str:
    """What a library said, without folders, names of user and machine, values of variables."""
    for folder in _known_folders():
        text = text.replace(folder + os.sep, f"{os.sep}_{os.sep}")  # without blanks by now
    text = ABSOLUTE.sub("", text)
    for name, value in os.environ.items():
        if len(value) >= SHORTEST_VALUE or (value and name in {"DISPLAY", "WAYLAND_DISPLAY"}):
            text = text.replace(value, f"${name}" if RELEVANT.fullmatch(name) else "...")
    for user in _user_names():
        text = re.sub(rf"\b{re.escape(user)}\b", "USER", text)
    if host := platform.node():
        text = re.sub(rf"\b{re.escape(host)}\b", "HOST", text)
    return text.strip()


def shorten(path: Path) -> str:
    """A folder with "~" for the home folder, and no name of a person in the rest."""
    with contextlib.suppress(ValueError, RuntimeError):
        return str(Path("~") / path.relative_to(Path.home()))
    users = _user_names()
    return str(Path(*("USER" if part in users else part for part in path.parts)))


def relevant_variables() -> tuple[str, ...]:
    """Names of the variables that change what detcli or its libraries do, as far as they are set.

    Only names that are known: others may be a person's.
    """
    return tuple(sorted(name for name in os.environ if RELEVANT.fullmatch(name)))


def _known_folders() -> list[str]:
    """Folders whose names may hold blanks, which a pattern would not find; the longest first."""
    folders = {*sys.path, sys.prefix}
    with contextlib.suppress(OSError, RuntimeError):
        folders |= {str(Path.home()), str(Path.cwd())}
    for value in os.environ.values():
        folders.update(value.split(os.pathsep))
    absolute = {folder.rstrip("/\\") for folder in folders if Path(folder).is_absolute()}
    return sorted(absolute - {""}, key=len, reverse=True)


def _user_names() -> set[str]:
    """What the user is called here."""
    names = {os.environ.get(name, "") for name in ("USER", "LOGNAME", "USERNAME")}
    with contextlib.suppress(OSError, KeyError, ImportError):  # nobody has this number
        names.add(getpass.getuser())
    with contextlib.suppress(RuntimeError):
        names.add(Path.home().name)
    return {name for name in names if len(name) >= SHORTEST_NAME}
