"""Addresses of cameras and network streams, and their names without secrets."""

import re
from urllib.parse import urlsplit

from detcli.errors import SourceError
from detcli.source.folders import is_media

SCHEMES = ("http://", "https://", "rtsp://", "rtsps://")

# Keys that select a stream of a camera. Any other value may be a password or a token.
_HARMLESS = frozenset(
    "camera channel chn codec fps h height id profile quality resolution stream subtype track "
    "video w width".split()
)
_ASSIGNMENT = re.compile("[^/=]+=[^/]*")
_LIKE_AN_ADDRESS = re.compile(r"^([a-z][a-z0-9+.-]+:/+).*@", re.IGNORECASE | re.DOTALL)
_CAMERA = re.compile(r"camera:([0-9]{1,9})", re.IGNORECASE)


def is_address(name: str) -> bool:
    """Whether a name is an address."""
    return name.lower().startswith(SCHEMES)


def is_camera(name: str) -> bool:
    """Whether a name stands for a camera, as in `camera:0`; it may be malformed."""
    return name.lower().startswith("camera:")


def is_live(name: str) -> bool:
    """Whether a name stands for a camera or a stream, not for a picture or video file."""
    if is_address(name):
        return not (name.lower().startswith("http") and is_media(path_of(name)))
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


def public_name(name: str) -> str:
    """An address without user, password, and any value that may be a secret.

    Examples:
        >>> public_name("rtsp://admin:1234@10.0.0.7:554/cam?channel=1&token=abc")
        'rtsp://10.0.0.7:554/cam?channel=1&token=***'
    """
    if not is_address(name):
        return _LIKE_AN_ADDRESS.sub(r"\1***@", name)  # mistyped, or of an unsupported scheme
    scheme, _, rest = name.partition("://")
    if "@" in re.sub("^[^/?#]*", "", rest):
        return f"{scheme}://***"  # perhaps an unescaped password
    place, mark, query = rest.partition("#")[0].partition("?")
    host, slash, path = place.partition("/")
    host = host.rpartition("@")[2]
    before, _, port = host.rpartition(":")
    if before and not port.isdecimal() and not port.endswith("]"):
        host = before  # the beginning of a password without a host
    path = _ASSIGNMENT.sub(lambda found: _masked(found[0]), path)
    query = "&".join(map(_masked, re.split("[&;]", query)))
    return f"{scheme}://{host}{slash}{path}{mark}{query}"


def _masked(assignment: str) -> str:
    """One assignment of a query or path, without a value that may be a secret."""
    key, equals, _ = assignment.partition("=")
    if not assignment or key.lower() in _HARMLESS:
        return assignment
    return f"{key}=***" if equals else "***"
