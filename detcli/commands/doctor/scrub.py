"""Strings of the report without personal names, folders, and values of variables."""

import contextlib
import getpass
import os
import platform
import re
import sys
from pathlib import Path

from detcli.core.text import public_name, public_text

ABSOLUTE_FOLDER = re.compile(r"""(?:\b[A-Za-z]:|(?<![\w.~$\\/]))[\\/](?:[^\s\\/:'"`,;()]+[\\/])+""")
"""The folder of an absolute path, with the separator at its end; names with blanks do not match."""

MIN_SECRET_LENGTH = 8
"""A variable's value is removed if it has at least this many characters; shorter ones are common
words."""


def scrub(text: str) -> str:
    """Remove what may be personal from a library's message.

    This includes folders, the names of the user and of the machine, and the values of environment
    variables. Only the file name of a path is left: "/home/ann/models/a.onnx" becomes "a.onnx".
    """
    # The expression for folders does not match names with blanks. So the folders of this process,
    # which may have some, become "/_/" first, which it matches.
    for folder in _folders_to_hide():
        text = text.replace(folder + os.sep, f"{os.sep}_{os.sep}")
    text = ABSOLUTE_FOLDER.sub("", text)

    for value in os.environ.values():
        if len(value) >= MIN_SECRET_LENGTH:
            text = text.replace(value, "...")

    for user in _user_names():
        text = re.sub(rf"\b{re.escape(user)}\b", "USER", text)
    host = platform.node()
    if host:
        text = re.sub(rf"\b{re.escape(host)}\b", "HOST", text)
    return text.strip()


def _folders_to_hide() -> list[str]:
    """List the folders of this process that may have blanks in their names, the longest first.

    The expression ABSOLUTE_FOLDER matches only folders without blanks.
    """
    in_variables = os.pathsep.join(os.environ.values()).split(os.pathsep)
    names = {*sys.path, sys.prefix, *in_variables}
    with contextlib.suppress(OSError, RuntimeError):
        names |= {str(Path.home()), str(Path.cwd())}
    folders = {name.rstrip("/\\") for name in names if Path(name).is_absolute()}
    return sorted(folders - {""}, key=len, reverse=True)


def shorten(path: Path) -> str:
    """Format a path without personal names.

    In the home folder it begins with "~". Elsewhere, USER stands for a folder that is named after
    the user.
    """
    try:
        path_in_home = path.relative_to(Path.home())
    except (ValueError, RuntimeError):  # outside of the home folder, or there is none
        return _without_user_names(path)
    return str(Path("~") / path_in_home)


def _without_user_names(path: Path) -> str:
    """Format a path with USER in place of each part that is a name of the user."""
    user_names = _user_names()
    shortened = Path()
    for name in path.parts:
        if name in user_names:
            shortened /= "USER"
        else:
            shortened /= name
    return str(shortened)


def _user_names() -> set[str]:
    """Collect the user's names on this machine: from variables, the user ID and the home folder."""
    names = {os.environ.get(name, "") for name in ("USER", "LOGNAME", "USERNAME")}
    with contextlib.suppress(OSError, KeyError, ImportError):  # the user ID has no name
        names.add(getpass.getuser())
    with contextlib.suppress(RuntimeError):
        names.add(Path.home().name)
    return {name for name in names if len(name) > 1}  # a letter occurs in any string


def public_value(value: object) -> str:
    """Format an option's value without secrets in URLs, and without personal names in paths."""
    text = public_text(public_name(str(value)))
    if "/" in text and "://" not in text:
        return shorten(Path(text))
    return text
