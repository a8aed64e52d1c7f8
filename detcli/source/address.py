"""Addresses of cameras and network streams, and how to name them without giving secrets away."""

import re
from urllib.parse import urlsplit

from detcli.errors import SourceError
from detcli.source.folders import is_media

SCHEMES = ("http://", "https://", "rtsp://", "rtsps://")

# What tells the streams of a camera apart. Any other value may be a password or a token.
_HARMLESS = frozenset(
    "camera channel chn codec fps h height id profile quality resolution stream subtype track "
    "video w width".split()
)
_ASSIGNMENT = re.compile("[^/=]+=[^/]*")
_LIKE_AN_ADDRESS = re.compile(r"^([a-z][a-z0-9+.-]+:/+).*@", re.IGNORECASE | re.DOTALL)
_CAMERA = re.compile(r"camera:([0-9]{1,9})", re.IGNORECASE)


def is_address(name: str) -> bool:
    """Whether a name is that of a network stream."""
    return name.lower().startswith(SCHEMES)


def is_camera(name: str) -> bool:
    """Whether a name is that of a camera, as in `camera:0`; perhaps a wrong one."""
    return name.lower().startswith("camera:")


def is_live(name: str) -> bool:
    """Whether a name is that of a camera or a stream, not of a picture or video file."""
    if is_address(name):
        return not (name.lower().startswith("http") and is_media(path_of(name)))
    return is_camera(name)


def camera_number(name: str) -> int:
    """Number of a camera.

    Raises:
        SourceError: It is none.

    Examples:
        >>> camera_number("camera:1")
        1
    """
    if found := _CAMERA.fullmatch(name):
        return int(found[1])
    raise SourceError("no camera has such a name", "number them from 0, as in camera:0")


def check_address(url: str) -> None:
    """Look whether an address can be one.

    Raises:
        SourceError: It cannot.
    """
    try:
        host = urlsplit(url).hostname
        port_is_right = (urlsplit(url).port or 1) > 0
    except ValueError:
        host, port_is_right = None, False
    if not host or not port_is_right or not url.isprintable():
        raise SourceError("this is no address", "write it as in rtsp://192.168.1.64:554/stream1")


def path_of(url: str) -> str:
    """The path in an address, whose suffix tells what is there."""
    try:
        return urlsplit(url).path
    except ValueError:
        return ""


def public_name(name: str) -> str:
    """An address without credentials: user, password, and every value that may be one are out.

    Examples:
        >>> public_name("rtsp://admin:1234@10.0.0.7:554/cam?channel=1&token=abc")
        'rtsp://10.0.0.7:554/cam?channel=1&token=***'
    """
    if not is_address(name):
        return _LIKE_AN_ADDRESS.sub(r"\1***@", name)  # mistyped, or of a kind that is not read
    scheme, _, rest = name.partition("://")
    if "@" in re.sub("^[^/?#]*", "", rest):
        return f"{scheme}://***"  # a password that nobody has escaped, or none: who knows
    place, mark, query = rest.partition("#")[0].partition("?")
    host, slash, path = place.partition("/")
    host = host.rpartition("@")[2]
    before, _, port = host.rpartition(":")
    if before and not port.isdecimal() and not port.endswith("]"):
        host = before  # the beginning of a password, with no host behind it
    path = _ASSIGNMENT.sub(lambda found: _masked(found[0]), path)
    query = "&".join(map(_masked, re.split("[&;]", query)))
    return f"{scheme}://{host}{slash}{path}{mark}{query}"


def _masked(assignment: str) -> str:
    """A part of a query, or of a path, without a value that may be a secret."""
    key, equals, _ = assignment.partition("=")
    if not assignment or key.lower() in _HARMLESS:
        return assignment
    return f"{key}=***" if equals else "***"
