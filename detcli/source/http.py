"""Pictures at an HTTP address, fetched whole."""

import contextlib
import http.client
import urllib.request
from collections.abc import Generator, Iterator
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from detcli.errors import SourceError

TIMEOUT_S = 10.0
_CHUNK = 65536
_LEGAL = "%/:=&?~+!$,;'@()*[]"
"""What an address may contain unescaped."""


def request(url: str) -> tuple[int, Generator[bytes]]:
    """Ask for a picture; returns its size, 0 for unknown, and its bytes as they come.

    Raises:
        SourceError: It cannot be fetched; or, while its bytes come, not to its end.
    """
    with _as_source_error():
        answer = _open(url)
    size, chunks = answer.length or 0, _chunks(answer)
    next(chunks)  # from here on, who drops them closes the connection
    return size, chunks


def _chunks(answer: http.client.HTTPResponse) -> Generator[bytes]:
    """Whatever has come, so that a server that drips is noticed."""
    with _as_source_error(), answer:
        yield b""
        while chunk := answer.read1(_CHUNK):
            yield chunk
        if answer.length:
            raise http.client.IncompleteRead(b"", answer.length)


@contextlib.contextmanager
def _as_source_error() -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise SourceError(
            f"cannot be fetched: {_reason(error)}",
            "check the address, user name and password",
        ) from None  # the cause names the address, which may contain a password


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
    if isinstance(error, http.client.IncompleteRead):
        return "the connection broke off"
    cause = error.reason if isinstance(error, URLError) else error
    return getattr(cause, "strerror", None) or type(cause).__name__
