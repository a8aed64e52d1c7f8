"""Pictures at an address, fetched whole."""

import http.client
import urllib.request
from threading import Event
from typing import IO
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from detcli.errors import SourceError
from detcli.geometry import Picture
from detcli.source.decode import DecodeOptions, load_bytes

TIMEOUT_S = 10.0
_CHUNK = 65536
_LEGAL = "%/:=&?~+!$,;'@()*[]"
"""What an address may hold as it is."""


def load_address(url: str, options: DecodeOptions, stop: Event) -> Picture:
    """Fetch a picture over HTTP and decode it.

    Raises:
        SourceError: It cannot be fetched.
        DecodeError: It is no complete picture, or a too large one.
    """
    most_bytes = 8 * options.max_pixels + 2**24
    data = bytearray()
    try:
        with _open(url) as answer:
            while chunk := answer.read(_CHUNK):
                data += chunk
                if len(data) > most_bytes:
                    raise SourceError(f"more than {most_bytes} bytes", "see --max-pixels")
                if stop.is_set():
                    raise SourceError("interrupted")
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise SourceError(
            f"cannot be fetched: {_reason(error)}",
            "see whether the address, name and password are right",
        ) from None  # the cause tells the address, which may hold a password
    return load_bytes(bytes(data), options)


def _open(url: str) -> IO[bytes]:
    """Send the request; the password goes to that server only, and only if it asks."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    path, query = (quote(part, safe=_LEGAL) for part in (parts.path, parts.query))
    public = urlunsplit((parts.scheme, host, path, query, ""))
    passwords = urllib.request.HTTPPasswordMgrWithDefaultRealm()
    if parts.username:
        user, password = unquote(parts.username), unquote(parts.password or "")
        passwords.add_password(None, public, user, password)
    opener = urllib.request.build_opener(
        _ErrorProcessor,
        urllib.request.HTTPBasicAuthHandler(passwords),
        urllib.request.HTTPDigestAuthHandler(passwords),
    )
    answer: IO[bytes] = opener.open(public, timeout=TIMEOUT_S)
    return answer


class _ErrorProcessor(urllib.request.HTTPErrorProcessor):
    """Closes answers that nobody reads: asking again with a password would leave them open."""

    def http_response(
        self, request: urllib.request.Request, response: http.client.HTTPResponse
    ) -> http.client.HTTPResponse:
        """Pass an answer on, or what is to be done about it."""
        if not 200 <= response.status < 300:
            response.close()
        answer: http.client.HTTPResponse = super().http_response(request, response)
        return answer

    https_response = http_response


def _reason(error: Exception) -> str:
    """What happened, without the address."""
    if isinstance(error, HTTPError):
        error.close()
        return (
            f"the server answers {error.code} {http.client.responses.get(error.code, '')}".strip()
        )
    cause = error.reason if isinstance(error, URLError) else error
    return getattr(cause, "strerror", None) or type(cause).__name__
