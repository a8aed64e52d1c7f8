"""Fetches files from a Hugging Face hub: checked, resumed, and visible only when they are whole.

Asking the hub, its addresses, credentials, offline mode and locks are `huggingface_hub`'s.
Receiving is done here, since `hf_hub_download` compares no hash with the hub's record, and begins
anew after each interruption.
"""

import contextlib
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from detcli import __version__
from detcli.errors import ModelError, OutputError
from detcli.model.hub_cache import COMMIT, SHA_256, HubFile, Show, blob, has, link, partial, sha256

ATTEMPTS = 3  # at a connection that breaks off or stands still
LOCK_S = 600.0  # seconds to wait for another process that fetches the same file
SILENT_S = 0.5  # of them before that is said
WAYS_ON = (
    "give the path of an ONNX file; or use the bundled model 'codes'; or set HF_ENDPOINT to a hub "
    "that can be reached"
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HubRecord:
    """What the hub's record says about a file.

    Attributes:
        commit: The commit that the revision stands for.
        digest: SHA-256 of the content.
        size: Bytes; None if the hub does not say.
    """

    commit: str
    digest: str
    size: int | None


class _Unusable(Exception):  # noqa: N818 - a reason, which becomes a ModelError
    """Why what the hub sends cannot be used."""


def fetch(file: HubFile, title: str, licence: str, show: Show | None = None) -> Path:
    """Fetch a file into the cache, unless its content is there already.

    What was received before a break is kept, and the next call goes on behind it.

    Args:
        file: Which.
        title: What to call it in messages.
        licence: To be named in them.
        show: Told how far it is.

    Returns:
        Where it is.

    Raises:
        ModelError: The hub cannot be reached, does not answer, has no such file, or sends
            something else than its record says.
        OutputError: The cache cannot be written to.
    """
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # read when huggingface_hub is imported
    try:
        from huggingface_hub import get_session

        get_session()
    except (ImportError, OSError, ValueError) as error:  # SOCKS, say, takes another package
        raise ModelError(
            f"cannot fetch {title}: what the environment sets for connections does not work: "
            f"{error}",
            f"see HTTPS_PROXY, ALL_PROXY, SSL_CERT_FILE and the numbers in HF_*; or {WAYS_ON}",
        ) from error
    endpoint = _endpoint()
    with _reasons(f"cannot fetch {title} from {_shown(endpoint)}"):
        record = _ask(file, endpoint)
        content, part = blob(file, record.digest), partial(file, record.digest)
        lock = file.storage.parent / ".locks" / file.storage.name / f"{record.digest}.lock"
        for folder in (content.parent, lock.parent):
            folder.mkdir(parents=True, exist_ok=True)
        with _only_one(lock, title):
            if not has(file, record.commit, record.digest):
                _announce(file, title, licence, record, endpoint)
                address = _address(file, endpoint, record.commit)
                begun = part.exists()
                _download(address, part, record.size, show)
                if begun and sha256(part) != record.digest:  # an earlier run left something else
                    part.unlink()
                    _download(address, part, record.size, show)
                _check(part, record.digest)
                part.replace(content)
            return link(file, record.commit, record.digest)


@contextlib.contextmanager
def _only_one(lock: Path, title: str) -> Iterator[None]:
    """Keep other programs away from a file; say so where one is at it and this has to wait."""
    from huggingface_hub.utils import (  # type: ignore[attr-defined] # lazily exported
        WeakFileLock,
    )

    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(WeakFileLock(lock, timeout=SILENT_S))
        except TimeoutError:
            log.warning("another program fetches %s; waiting for it", title)
            stack.enter_context(WeakFileLock(lock, timeout=LOCK_S))
        yield


def _announce(file: HubFile, title: str, licence: str, record: HubRecord, endpoint: str) -> None:
    """Say what comes, from where, and under which terms: a warning, to be seen by default."""
    size = "of unknown size" if record.size is None else f"{record.size / 1e6:.1f} MB"
    log.warning(
        "fetching %s: %s of %s at %s, %s, licence %s, from %s",
        *(title, file.path, file.repository, record.commit[:10], size, licence, _shown(endpoint)),
    )


def _endpoint() -> str:
    """The hub's address.

    Raises:
        ModelError: HF_ENDPOINT is none.
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
            "HF_ENDPOINT is no address of a hub",
            "set it to one like https://huggingface.co, or unset it",
        )
    return endpoint


def _shown(endpoint: str) -> str:
    """An address without the password that it may hold."""
    parts = urlsplit(endpoint)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _address(file: HubFile, endpoint: str, revision: str) -> str:
    from huggingface_hub import hf_hub_url

    return hf_hub_url(file.repository, file.path, revision=revision, endpoint=endpoint)


def _ask(file: HubFile, endpoint: str) -> HubRecord:
    """The hub's record of a file."""
    from huggingface_hub import constants, get_hf_file_metadata

    told = get_hf_file_metadata(
        _address(file, endpoint, file.revision),
        timeout=constants.HF_HUB_ETAG_TIMEOUT,
        library_name="detcli",
        library_version=__version__,
        endpoint=endpoint,
    )
    commit, digest = told.commit_hash or "", told.etag or ""
    if not COMMIT.fullmatch(commit):
        raise _Unusable("what answers there is no Hugging Face hub")
    if not SHA_256.fullmatch(digest):
        raise _Unusable(f"it keeps no SHA-256 of {file.path}, which could not be checked")
    if file.pinned and commit != file.revision:
        raise _Unusable(f"it has commit {commit} in place of {file.revision}")
    return HubRecord(commit, digest, told.size)


def _download(address: str, part: Path, size: int | None, show: Show | None) -> None:
    """Receive a file until it is whole, behind what an earlier run has left of it."""
    import httpx2

    broken: Exception = _Unusable("the connection broke off")
    for _ in range(ATTEMPTS):
        have = part.stat().st_size if part.exists() else 0
        if size is not None and have > size:  # left by an earlier run, and not what it should be
            have = 0
        if have and have == size:
            return
        if have:
            log.info("going on behind the %.1f MB that are there", have / 1e6)
        try:
            _receive(address, part, have, size, show)
        except httpx2.TransportError as error:
            broken = error
        else:
            if size is None or part.stat().st_size == size:
                return
    raise broken


def _receive(address: str, part: Path, have: int, size: int | None, show: Show | None) -> None:
    """Append to a file what one connection brings."""
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
        if have and response.status_code == 416:  # nothing lies behind what is there
            return
        hf_raise_for_status(response)
        resumed = response.status_code == 206  # partial content; else it comes from the beginning
        with part.open("ab" if resumed else "wb") as file:
            for data in response.iter_raw():
                file.write(data)
                if size is not None and file.tell() > size:
                    raise _Unusable(f"it sends more than the {size} bytes of its record")
                if show is not None:
                    show(file.tell(), size)


def _check(part: Path, digest: str) -> None:
    """Remove what is not what the record says."""
    received = sha256(part)
    if received != digest:
        part.unlink()
        raise _Unusable(f"what came has SHA-256 {received}, its record says {digest}")


@contextlib.contextmanager
def _reasons(problem: str) -> Iterator[None]:
    """Translate what goes wrong with a hub, here and nowhere else.

    Messages of the libraries may hold addresses with passwords: none is handed on but those of
    connections, which hold none.
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
        raise ModelError(f"{problem}: {error}", WAYS_ON) from error
    except OfflineModeIsEnabled as error:
        raise ModelError(f"{problem}: HF_HUB_OFFLINE is set", WAYS_ON) from error
    except RemoteEntryNotFoundError as error:
        raise ModelError(f"{problem}: the repository has no such file", WAYS_ON) from error
    except HfHubHTTPError as error:
        status = error.response.status_code
        phrase = error.response.reason_phrase
        raise ModelError(f"{problem}: it answers {status} {phrase}", WAYS_ON) from error
    except httpx2.TimeoutException as error:
        raise ModelError(f"{problem}: it does not answer", WAYS_ON) from error
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise ModelError(f"{problem}: {error}", WAYS_ON) from error
    except UnicodeEncodeError as error:
        raise ModelError(f"{problem}: HF_TOKEN is no credential", WAYS_ON) from error
    except TimeoutError as error:
        raise ModelError(
            f"{problem}: another program is at it and does not end", WAYS_ON
        ) from error
    except OSError as error:
        raise OutputError(
            f"{problem}: cannot write to its cache: {error.strerror or error}",
            "check its permissions and the space on the disk, or set HF_HOME to another folder",
        ) from error
