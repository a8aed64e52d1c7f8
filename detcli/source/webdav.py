"""Folders on web servers that speak WebDAV, as Nextcloud, Apache and nginx can."""

from base64 import b64encode
from collections.abc import Iterator
from urllib.parse import quote, unquote, urlsplit

from detcli.errors import SourceError
from detcli.object_store.credentials import client_settings
from detcli.object_store.failures import explained
from detcli.source.address import check_address
from detcli.source.folders import is_media


def search(url: str, *, recursive: bool) -> Iterator[list[str]]:
    """Yield the addresses of pictures and videos in a folder, then those of each folder in it.

    Names are sorted within a folder; those that begin with a dot are left out.

    Args:
        url: The folder, with `/` at its end.
        recursive: Whether to search the folders in it.

    Yields:
        Those in one folder.

    Raises:
        SourceError: It cannot be listed.
    """
    import obstore
    from obstore.exceptions import BaseError
    from obstore.store import HTTPStore

    check_address(url)
    parts = urlsplit(url)
    root = f"{parts.scheme}://{parts.netloc}/"
    user, _, host = parts.netloc.rpartition("@")
    settings = client_settings(root)
    if user:
        secret = b64encode(unquote(user).encode()).decode()
        settings["client_options"]["default_headers"] = {"Authorization": f"Basic {secret}"}
    waiting = [unquote(parts.path).strip("/")]
    try:
        store = HTTPStore.from_url(f"{parts.scheme}://{host}/", **settings)
        while waiting:
            folder = waiting.pop()
            found = obstore.list_with_delimiter(store, folder)
            files = sorted(entry["path"] for entry in found["objects"])
            yield [root + quote(path) for path in files if is_media(path) and _is_in(path, folder)]
            if recursive:
                folders = sorted(path for path in found["common_prefixes"] if _is_in(path, folder))
                waiting += reversed(folders)
    except (BaseError, ValueError, OSError) as error:
        raise SourceError(
            f"cannot be listed: {explained(error, parts.scheme)}",
            "its server has to speak WebDAV; else list its pictures in --files-from, "
            "and name a camera's stream without / or with ? at its end",
        ) from None  # the cause names the address, which may contain a password


def _is_in(path: str, folder: str) -> bool:
    """Whether something is directly in a folder, which servers list with itself, and not hidden."""
    place, _, name = path.rpartition("/")
    return place == folder and not name.startswith(".")
