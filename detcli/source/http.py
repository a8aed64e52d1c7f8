"""Pictures at an HTTP address, fetched whole."""

import http.client
import urllib.request
from collections.abc import Iterator
from threading import Event
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from detcli.errors import SourceError
from detcli.geometry import Picture
from detcli.source.decode import DecodeOptions, load_bytes, too_slow
from detcli.source.reading import InputTimeoutError, gather, in_time

TIMEOUT_S = 10.0
_CHUNK = 65536
_LEGAL = "%/:=&?~+!$,;'@()*[]"
"""What an address may contain unescaped."""


def load_address(url: str, options: DecodeOptions, stop: Event) -> Picture:
    """Fetch a picture over HTTP and decode it.

    Raises:
        SourceError: The picture cannot be fetched.
        DecodeError: The picture is incomplete or too large, or not in a known format.
    """
    try:
        with _open(url) as answer:
            chunks = in_time(_chunks(answer, stop), options.timeout_s)
            data = gather(chunks, options.max_bytes)
    except InputTimeoutError:
        raise too_slow(options.timeout_s) from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise SourceError(
            f"cannot be fetched: {_reason(error)}",
            "check the address, user name and password",
        ) from None  # the cause names the address, which may contain a password
    return load_bytes(data, options)


def _chunks(answer: http.client.HTTPResponse, stop: Event) -> Iterator[bytes]:
    """Whatever has come, so that a server that drips is noticed."""
    while chunk := answer.read1(_CHUNK):
        yield chunk
        if stop.is_set():
            raise SourceError("interrupted")


def _open(url: str) -> http.client.HTTPResponse:
    """Send the request; the password goes to that server only, and only on request."""
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
    answer: http.client.HTTPResponse = opener.open(public, timeout=TIMEOUT_S)
    return answer


class _ErrorProcessor(urllib.request.HTTPErrorProcessor):
    """Closes error responses, which a second request with a password would leave open."""

    def http_response(
        self, request: urllib.request.Request, response: http.client.HTTPResponse
    ) -> http.client.HTTPResponse:
        """Return the response, or that of the request that answers it."""
        if not 200 <= response.status < 300:
            response.close()
        answer: http.client.HTTPResponse = super().http_response(request, response)
        return answer

    https_response = http_response


def _reason(error: Exception) -> str:
    """The reason without the address."""
    if isinstance(error, HTTPError):
        error.close()
        phrase = http.client.responses.get(error.code, "")
        return f"the server answers {error.code} {phrase}".strip()
    cause = error.reason if isinstance(error, URLError) else error
    return getattr(cause, "strerror", None) or type(cause).__name__
