"""Addresses of cameras and network streams."""

import re
from urllib.parse import urlsplit

from detcli.errors import SourceError
from detcli.source.folders import is_media

SCHEMES = ("http://", "https://", "rtsp://", "rtsps://")

_CAMERA = re.compile(r"camera:([0-9]{1,9})", re.IGNORECASE)


def is_address(name: str) -> bool:
    """Whether a name is an address."""
    return name.lower().startswith(SCHEMES)


def is_stream(name: str) -> bool:
    """Whether a name is the address of what can only be a stream, such as a camera's MJPEG."""
    if name.lower().startswith(("rtsp://", "rtsps://")):
        return True
    return is_address(name) and path_of(name).lower().endswith((".mjpeg", ".mjpg"))


def is_camera(name: str) -> bool:
    """Whether a name stands for a camera, as in `camera:0`; it may be malformed."""
    return name.lower().startswith("camera:")


def is_live(name: str) -> bool:
    """Whether a name stands for a camera or a stream, not for a picture or video file."""
    if is_address(name):
        return is_stream(name) or not is_media(path_of(name))
    return is_camera(name)


def camera_number(name: str) -> int:
    """The number in the name of a camera.

    Raises:
        SourceError: The name has no number.

    Examples:
        >>> camera_number("camera:1")
        1
    """
    if found := _CAMERA.fullmatch(name):
        return int(found[1])
    raise SourceError("not the name of a camera", "cameras are numbered from 0, as in camera:0")


def check_address(url: str) -> None:
    """Require a well-formed address.

    Raises:
        SourceError: The address has no host, or a wrong port.
    """
    try:
        host = urlsplit(url).hostname
        port_is_right = (urlsplit(url).port or 1) > 0
    except ValueError:
        host, port_is_right = None, False
    if not host or not port_is_right or not url.isprintable():
        raise SourceError("not a valid address", "write it as in rtsp://192.168.1.64:554/stream1")


def path_of(url: str) -> str:
    """The path in an address, whose suffix tells the type of the file."""
    try:
        return urlsplit(url).path
    except ValueError:
        return ""
