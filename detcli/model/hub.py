"""Fetches files from a Hugging Face hub: checked, resumed, and visible only when complete.

Metadata, addresses, credentials, offline mode and locks are left to `huggingface_hub`. Downloading
is done here, since `hf_hub_download` does not compare the content with the recorded hash, and
starts over after an interruption.
"""

import contextlib
import hashlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from detcli import __version__
from detcli.errors import ModelError, OutputError, system_reason
from detcli.files import sync
from detcli.model.hub_cache import COMMIT, SHA_256, HubFile, Show, sha256

ATTEMPTS = 3  # connections, each of which may break off or stall
LOCK_TIMEOUT_S = 600.0  # for another process that fetches the same file
LOCK_NOTICE_S = 0.5  # before saying so
HINT = (
    "give the path of an ONNX file; or use the bundled model 'codes'; or set HF_ENDPOINT to a hub "
    "that can be reached"
)

log = logging.getLogger(__name__)


class HubRecord(NamedTuple):
    """The hub's record of a file."""

    commit: str  # that the revision stands for
    digest: str  # SHA-256 of the content; of a small file, that git has, its name there
    size: int | None  # in bytes; None if the hub does not report it


class _Unusable(Exception):  # noqa: N818 - becomes a ModelError
    """Why a response of the hub cannot be used."""


def fetch(file: HubFile, title: str, licence: str, show: Show | None = None) -> Path:
    """Fetch a file into the cache, unless its content is there already.

    A partial download is kept, and the next call resumes it.

    Args:
        file: The file to fetch.
        title: What to call it in messages.
        licence: The licence to name in messages.
        show: Called with the progress of the download.

    Returns:
        Path of the file.

    Raises:
        ModelError: The hub cannot be reached, does not answer, does not have the file, or sends
            content that differs from its record.
        OutputError: The cache cannot be written to.
    """
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # read when huggingface_hub is imported
    try:
        from huggingface_hub import get_session

        get_session()
    except (ImportError, OSError, ValueError) as error:  # SOCKS, for example, needs another package
        raise ModelError(
            f"cannot fetch {title}: the connection settings in the environment do not work: "
            f"{error}",
            f"check HTTPS_PROXY, ALL_PROXY, SSL_CERT_FILE and the numbers in HF_*; or {HINT}",
        ) from error
    endpoint = _endpoint()
    with _reasons(f"cannot fetch {title} from {_shown(endpoint)}"):
        commit, digest, size = _ask(file, endpoint)
        content, part = file.blob(digest), file.partial(digest)
        lock = file.storage.parent / ".locks" / file.storage.name / f"{digest}.lock"
        for folder in (content.parent, lock.parent):
            folder.mkdir(parents=True, exist_ok=True)
        with _only_one(lock, title):
            if not file.is_cached(commit, digest):
                # A warning, so that it is shown by default.
                log.log(
                    logging.WARNING if SHA_256.fullmatch(digest) else logging.INFO,
                    "fetching %s: %s of %s at %s, %s, licence %s, from %s",
                    *(title, file.path, file.repository, commit[:10]),
                    *("of unknown size" if size is None else f"{size / 1e6:.1f} MB", licence),
                    _shown(endpoint),
                )
                address = _address(file, endpoint, commit)
                begun = part.exists()
                _download(address, part, size, show)
                if begun and _digest_of(part, digest) != digest:  # of an earlier run
                    part.unlink()
                    _download(address, part, size, show)
                if (received := _digest_of(part, digest)) != digest:
                    part.unlink()
                    kind = "SHA-256" if SHA_256.fullmatch(digest) else "git name"
                    raise _Unusable(f"the content has {kind} {received}, its record says {digest}")
                with part.open("rb+") as received_file:
                    sync(received_file.fileno())
                part.replace(content)
            return file.link(commit, digest)


def _digest_of(path: Path, like: str) -> str:
    """Hash a file with the function that made another hash."""
    if SHA_256.fullmatch(like):
        return sha256(path)
    content = path.read_bytes()
    named = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False)
    return named.hexdigest()


@contextlib.contextmanager
def _only_one(lock: Path, title: str) -> Iterator[None]:
    """Hold the lock of a file; say so if another process holds it."""
    from huggingface_hub.utils import (  # type: ignore[attr-defined] # lazily exported
        WeakFileLock,
    )

    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(WeakFileLock(lock, timeout=LOCK_NOTICE_S))
        except TimeoutError:
            log.warning("another process is fetching %s; waiting for it", title)
            stack.enter_context(WeakFileLock(lock, timeout=LOCK_TIMEOUT_S))
        yield


def _endpoint() -> str:
    """The hub's URL.

    Raises:
        ModelError: HF_ENDPOINT is not a valid URL.
    """
    from huggingface_hub import constants

    endpoint = (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")
    try:
        parts = urlsplit(endpoint)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ModelError(
            "HF_ENDPOINT is not the URL of a hub",
            "set it to a URL such as https://huggingface.co, or unset it",
        )
    return endpoint


def _shown(endpoint: str) -> str:
    """A URL without credentials."""
    parts = urlsplit(endpoint)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _address(file: HubFile, endpoint: str, revision: str) -> str:
    from huggingface_hub import hf_hub_url

    return hf_hub_url(file.repository, file.path, revision=revision, endpoint=endpoint)


def _ask(file: HubFile, endpoint: str) -> HubRecord:
    """The hub's record of a file."""
    from huggingface_hub import constants, get_hf_file_metadata

    metadata = get_hf_file_metadata(
        _address(file, endpoint, file.revision),
        timeout=constants.HF_HUB_ETAG_TIMEOUT,
        library_name="detcli",
        library_version=__version__,
        endpoint=endpoint,
    )
    commit, digest = metadata.commit_hash or "", metadata.etag or ""
    if not COMMIT.fullmatch(commit):
        raise _Unusable("the server is not a Hugging Face hub")
    in_git = file.path.endswith(".json") and COMMIT.fullmatch(digest)
    if not SHA_256.fullmatch(digest) and not in_git:
        raise _Unusable(f"it has no SHA-256 to check {file.path} against")
    if file.pinned and commit != file.revision:
        raise _Unusable(f"it has commit {commit} instead of {file.revision}")
    return HubRecord(commit, digest, metadata.size)


def _download(address: str, part: Path, size: int | None, show: Show | None) -> None:
    """Download a file, resuming where an earlier run broke off."""
    import httpx2

    broken: Exception = _Unusable("the connection broke off")
    for _ in range(ATTEMPTS):
        have = part.stat().st_size if part.exists() else 0
        if size is not None and have > size:  # an earlier run left other content
            have = 0
        if have and have == size:
            return
        if have:
            log.info("resuming after %.1f MB", have / 1e6)
        try:
            _receive(address, part, have, size, show)
        except httpx2.TransportError as error:
            broken = error
        else:
            if size is None or part.stat().st_size == size:
                return
    raise broken


def _receive(address: str, part: Path, have: int, size: int | None, show: Show | None) -> None:
    """Append the data of one connection to a file."""
    from huggingface_hub import constants, get_session
    from huggingface_hub.utils import (  # type: ignore[attr-defined] # lazily exported
        build_hf_headers,
        hf_raise_for_status,
    )

    headers = build_hf_headers(library_name="detcli", library_version=__version__)
    headers["Accept-Encoding"] = "identity"
    if have:
        headers["Range"] = f"bytes={have}-"
    # Credentials do not follow a redirect to another host.
    with get_session().stream(
        "GET",
        address,
        headers=headers,
        follow_redirects=True,
        timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT,
    ) as response:
        if have and response.status_code == 416:  # the file is already complete
            return
        hf_raise_for_status(response)
        resumed = response.status_code == 206  # partial content; else the file starts over
        with part.open("ab" if resumed else "wb") as file:
            for data in response.iter_raw():
                file.write(data)
                if size is not None and file.tell() > size:
                    raise _Unusable(f"it sends more than the recorded {size} bytes")
                if show is not None:
                    show(file.tell(), size)


@contextlib.contextmanager
def _reasons(problem: str) -> Iterator[None]:
    """Translate all errors of the hub.

    Messages of the libraries may contain URLs with passwords, so only those of connections, which
    do not, are passed on.
    """
    import httpx2
    from huggingface_hub.errors import (
        HfHubHTTPError,
        OfflineModeIsEnabled,
        RemoteEntryNotFoundError,
    )

    try:
        yield
    except _Unusable as error:
        raise ModelError(f"{problem}: {error}", HINT) from error
    except OfflineModeIsEnabled as error:
        raise ModelError(f"{problem}: HF_HUB_OFFLINE is set", HINT) from error
    except RemoteEntryNotFoundError as error:
        raise ModelError(f"{problem}: the repository has no such file", HINT) from error
    except HfHubHTTPError as error:
        answer = f"{error.response.status_code} {error.response.reason_phrase}"
        raise ModelError(f"{problem}: it answers {answer}", HINT) from error
    except httpx2.TimeoutException as error:
        raise ModelError(f"{problem}: it does not answer", HINT) from error
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise ModelError(f"{problem}: {error}", HINT) from error
    except UnicodeEncodeError as error:
        raise ModelError(f"{problem}: HF_TOKEN is not a valid token", HINT) from error
    except TimeoutError as error:
        raise ModelError(f"{problem}: another process holds the download lock", HINT) from error
    except OSError as error:
        raise OutputError(
            f"{problem}: cannot write to its cache: {system_reason(error)}",
            "check its permissions and the free disk space, or set HF_HOME to another folder",
        ) from error
