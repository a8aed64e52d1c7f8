"""Derives the stem, the folder and the hash in the names of output files from their input."""

import glob
import os
import re
from collections.abc import Iterable
from pathlib import PurePath, PurePosixPath

from detcli.data.record import Origin
from detcli.source.names import name_mark

STANDARD_INPUT = re.compile("-(:[0-9]+)?")
"""The name of standard input, or of a line in a list of inputs that it gives: `-:3`."""

CAMERA = re.compile("camera:[0-9]+")


def stem(source: str) -> str:
    """Derive the name of an output file, without a suffix, from the name of its input.

    Args:
        source: How the input is named in records: a path, `-` for standard input, `-:3` for line 3
            of a list of inputs there, `camera:0`, or an address such as `rtsp://host/path`.

    Examples:
        >>> stem("photos/bus.jpg"), stem("camera:0"), stem("rtsp://cam:554/live/1")
        ('bus', 'camera-0', 'cam-554-live-1')
        >>> stem("-"), stem("-:3")
        ('stdin', 'stdin-3')
    """
    if STANDARD_INPUT.fullmatch(source):
        return source.replace("-", "stdin").replace(":", "-")
    if CAMERA.fullmatch(source):
        return source.replace(":", "-")
    if "://" in source:
        return _stem_of_address(source)
    return PurePath(source).stem


def _stem_of_address(address: str) -> str:
    """Derive a file name from the host and the path of an address, without its query.

    Examples:
        >>> _stem_of_address("https://host/pics/a.jpg?size=2")
        'host-pics-a'
    """
    address_without_scheme = address.split("://", 1)[1]
    address_without_query = re.split(r"[?#]", address_without_scheme)[0]
    host, _, path = address_without_query.partition("/")
    path_without_suffix = ""
    if path.strip("/."):
        path_without_suffix = str(PurePosixPath(path).with_suffix(""))
    return re.sub(r"[/:]+", "-", f"{host}/{path_without_suffix}".strip("/"))


def beginnings_of_roots(roots: Iterable[str]) -> list[str]:
    """Return what the paths of inputs from folders and glob patterns begin with.

    The longest comes first: if folders are nested, the inner one decides.
    """
    beginnings = set()
    for root in roots:
        beginning = _common_beginning(root)
        if beginning is not None:
            beginnings.add(beginning)
    return sorted(beginnings, key=len, reverse=True)


def _common_beginning(root: str) -> str | None:
    """Return the common beginning of the paths of all inputs from a folder or a glob pattern.

    It is the folder, or the folders of the pattern before its first wildcard. A pattern without
    folders, such as `*.jpg`, has none, so the result is None.

    A file is treated like a folder: no path begins with `bus.jpg/`, not even `bus.jpg`.

    Examples:
        >>> _common_beginning("pics/*/a.jpg"), _common_beginning("pics")
        ('pics/', 'pics/')
        >>> _common_beginning("bus.jpg")
        'bus.jpg/'
    """
    # A file may have a wildcard in its name, such as `a[1].jpg`, and is not a pattern then.
    is_pattern = glob.has_magic(root) and not os.path.lexists(root)
    if not is_pattern:
        return os.path.join(root, "")  # noqa: PTH118 - as the search joins names
    if "/" not in root:
        return None
    beginning = ""
    for folder_name in root.split("/")[:-1]:
        if glob.has_magic(folder_name):
            break
        beginning += f"{folder_name}/"
    return beginning


def hash_of_input(origin: Origin) -> str:
    """Return a hash that tells an input from others with its name, the same in every run."""
    path = origin.source
    if origin.path is not None or "://" not in path:
        path = os.path.abspath(origin.path or path)  # noqa: PTH100 - keeps links
    return name_mark(path)
