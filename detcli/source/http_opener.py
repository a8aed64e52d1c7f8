"""What opens addresses on web servers, with a user name and password if a server asks for them.

It is imported only when a file is fetched, as `urllib.request` is slow to import.
"""

from http.client import HTTPResponse
from urllib.parse import SplitResult, unquote
from urllib.request import (
    HTTPBasicAuthHandler,
    HTTPDigestAuthHandler,
    HTTPErrorProcessor,
    HTTPPasswordMgrWithDefaultRealm,
    OpenerDirector,
    Request,
    build_opener,
)


class ClosingProcessor(HTTPErrorProcessor):
    """Closes error responses, which a second request with a password would leave open."""

    def http_response(self, request: Request, response: HTTPResponse) -> HTTPResponse:
        """Close a response that is not a success, and handle it as urllib does."""
        is_success = 200 <= response.status < 300
        if not is_success:
            response.close()
        handled_response: HTTPResponse = super().http_response(request, response)
        return handled_response

    https_response = http_response


def opener_with_password(address: str, parts: SplitResult) -> OpenerDirector:
    """Build the opener for one address; it sends the password only if the server asks for it.

    Args:
        address: The address without a user name and password.
        parts: The parts of the same address, which may have them.
    """
    passwords = HTTPPasswordMgrWithDefaultRealm()
    if parts.username:
        user = unquote(parts.username)
        password = unquote(parts.password or "")
        passwords.add_password(None, address, user, password)
    return build_opener(
        ClosingProcessor,
        HTTPBasicAuthHandler(passwords),
        HTTPDigestAuthHandler(passwords),
    )
