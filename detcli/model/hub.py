"""Files of a Hugging Face hub, in the cache that all programs share.

`hf_hub_download` fetches them, without comparing what it gets with the hub's record, so that is
done here. What is cached is found without `huggingface_hub`, whose import takes longer than a
detection; https://huggingface.co/docs/hub/local-cache specifies the layout:

    models--<owner>--<name>/
        blobs/<SHA-256>                 a file's content
        snapshots/<commit>/<file>       a link to it
        refs/main                       the commit of the branch when it was last fetched
"""

import contextlib
import functools
import logging
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from detcli import __version__
from detcli.core import frozen
from detcli.core.errors import ModelError, OutputError, system_reason
from detcli.storage.cache import cache_folder, warn_once, why_untrusted
from detcli.storage.files import sha256

COMMIT = re.compile(r"[0-9a-f]{40}")
SHA_256 = re.compile(r"[0-9a-f]{64}")
MAX_REF = 1000  # characters that are read of a file that names a commit
HINT = (
    "give the path of an ONNX file; or use the bundled model 'codes'; or set HF_ENDPOINT to a hub "
    "that can be reached"
)

Show = Callable[[int, int | None], None]
"""Called with the bytes fetched so far and the size of the file, None if unknown."""

log = logging.getLogger(__name__)


class _Unusable(Exception):  # noqa: N818 - becomes a ModelError
    """Why a response of the hub cannot be used."""


@frozen
class _HubRecord:
    """What the hub has recorded of a file."""

    commit: str  # of the revision that was asked for
    digest: str  # the SHA-256 of the content or, for a small file, git's hash
    size: int | None  # in bytes; None if the hub does not say it


@frozen
class HubFile:
    """A file of a model repository."""

    repository: str  # owner and name, such as "onnx-community/yolov10n"
    path: str  # within the repository, with slashes
    revision: str  # a commit, which never changes, or a branch

    @property
    def pinned(self) -> bool:
        """Whether the revision is a commit, so that the file never changes."""
        return COMMIT.fullmatch(self.revision) is not None

    @property
    def folder(self) -> str:
        """Name of its repository's folder in a cache."""
        return f"models--{self.repository.replace('/', '--')}"

    @property
    def storage(self) -> Path:
        """The folder for the repository of the file, in the cache that all programs share.

        If other users could write to that cache, it is in a cache of detcli's own, with a warning.

        Raises:
            OutputError: Other users could write to detcli's own cache too.
        """
        shared_cache = hub_folder()
        reason = why_folder_untrusted(shared_cache, self.folder)
        if not reason:
            return shared_cache / self.folder

        private_cache = cache_folder() / "hub"
        warn_once(
            f"the Hugging Face cache is not used, since {reason}; models are in {private_cache} "
            "instead"
        )
        reason = why_folder_untrusted(private_cache, self.folder)
        if reason:
            raise OutputError(
                f"no place for models: {reason}", "set HF_HOME to a folder that only you write to"
            )
        return private_cache / self.folder

    def cached(self) -> Path | None:
        """Return the path of the cached file; None if it has to be fetched.

        For a branch, this is the file of the commit that the branch had when it was last fetched.
        """
        commit: str | None = self.revision
        if not self.pinned:
            commit = _commit_in(self.storage / "refs" / self.revision)
        if not commit:
            return None
        path = self._snapshot(commit)
        is_file = os.path.isfile(path)  # noqa: PTH113 - False without permission
        if is_file:
            return path
        return None

    def commit_of(self, path: Path) -> str:
        """Return the commit to which a path in the cache belongs."""
        return path.relative_to(self.storage / "snapshots").parts[0]

    def _snapshot(self, commit: str) -> Path:
        """Return the path that the file of a commit has in the cache, whether it exists or not."""
        return self.storage / "snapshots" / commit / self.path

    def fetch(self, title: str, licence: str, show: Show | None = None) -> Path:
        """Fetch the file into the cache that all programs share, and check its hash.

        The hub is asked for its record of the file in any case. The content is only downloaded if
        it is not in the cache yet.

        Args:
            title: How messages refer to the file.
            licence: The licence that the message about the download names.
            show: Called with the progress of the download.

        Returns:
            The path of the file in the cache.

        Raises:
            ModelError: The hub cannot be reached, or its answer cannot be used.
            OutputError: The cache cannot be written to.
        """
        # huggingface_hub reads these variables when it is imported.
        for name in ("TELEMETRY", "XET", "SYMLINKS_WARNING"):
            os.environ.setdefault(f"HF_HUB_DISABLE_{name}", "1")
        with _settings_errors_translated(title):
            from huggingface_hub import constants, get_session, hf_hub_download

            get_session()
        endpoint = (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")
        public_endpoint = _without_credentials(endpoint)
        with _hub_errors_translated(f"cannot fetch {title} from {public_endpoint}"):
            record = self._read_record(endpoint)
            content = self.storage / "blobs" / record.digest
            # On a system without links, the content is in the snapshot.
            is_cached = content.exists() or self._snapshot(record.commit).is_file()
            if not is_cached:
                self._log_download(record, title, licence, public_endpoint)
            # hf_hub_download asks for a class like tqdm, but only calls it.
            reporter_class: Any = functools.partial(_ProgressReporter, record.size, show)
            path = Path(
                hf_hub_download(
                    self.repository,
                    self.path,
                    revision=self.revision,
                    cache_dir=self.storage.parent,
                    tqdm_class=reporter_class,
                    library_name="detcli",
                    library_version=__version__,
                    endpoint=endpoint,
                )
            )
            _discard_unless_hash_matches(path, content, record.digest)
        return path

    def _log_download(self, record: _HubRecord, title: str, licence: str, endpoint: str) -> None:
        """Log that the file will be downloaded, from where and with which licence.

        The download of a model is a warning, so that it is shown by default; that of a small
        configuration file is not.

        Args:
            record: What the hub has recorded of the file.
            title: How messages refer to the file.
            licence: The name of its licence.
            endpoint: The URL of the hub, without credentials.
        """
        is_large_file = SHA_256.fullmatch(record.digest)  # Git LFS uses it; Git itself, SHA-1.
        level = logging.INFO
        if is_large_file:
            level = logging.WARNING
        size = "of unknown size"
        if record.size is not None:
            size = f"{record.size / 1e6:.1f} MB"
        log.log(
            level,
            "fetching %s: %s of %s at %s, %s, licence %s, from %s",
            title,
            self.path,
            self.repository,
            record.commit[:10],
            size,
            licence,
            endpoint,
        )

    def _read_record(self, endpoint: str) -> _HubRecord:
        """Ask the hub for its record of the file, and check that the file can be fetched by it.

        Args:
            endpoint: The URL of the hub, which may contain credentials.

        Raises:
            _Unusable: The answer is not that of a hub, has no hash, or belongs to a different
                commit.
        """
        from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url

        metadata = get_hf_file_metadata(
            hf_hub_url(self.repository, self.path, revision=self.revision, endpoint=endpoint),
            timeout=constants.HF_HUB_ETAG_TIMEOUT,
            library_name="detcli",
            library_version=__version__,
            endpoint=endpoint,
        )
        commit = metadata.commit_hash or ""
        digest = metadata.etag or ""
        if not COMMIT.fullmatch(commit):
            raise _Unusable("the server is not a Hugging Face hub")
        # For small files the hub returns git's hash, which has the form of a commit. It is accepted
        # for configuration files only.
        has_hash_of_git = self.path.endswith(".json") and COMMIT.fullmatch(digest)
        if not SHA_256.fullmatch(digest) and not has_hash_of_git:
            raise _Unusable(f"it has no SHA-256 to check {self.path} against")
        if self.pinned and commit != self.revision:
            raise _Unusable(f"it has commit {commit} instead of {self.revision}")
        return _HubRecord(commit, digest, metadata.size)

    def forget(self) -> int:
        """Remove all revisions of the file from the cache; other files of the repository stay.

        Contents that no file links to any more are removed, and so are branches whose commit has
        no files left, and empty folders.

        Returns:
            The number of bytes that were freed.

        Raises:
            OutputError: Something cannot be removed.
        """
        freed_bytes = 0
        try:
            for path in self.storage.glob(f"snapshots/*/{self.path}"):
                freed_bytes += self._remove(path)
            for ref in _files(self.storage / "refs"):
                commit = _commit_in(ref)
                if commit and not any(_files(self.storage / "snapshots" / commit)):
                    ref.unlink()
            for folder, _, _ in os.walk(self.storage, topdown=False):
                with contextlib.suppress(OSError):  # not empty
                    Path(folder).rmdir()
        except OSError as error:
            raise OutputError(
                f"cannot remove {error.filename or self.path}: {system_reason(error)}",
                "check the permissions of the Hugging Face cache",
            ) from error
        return freed_bytes

    def _remove(self, path: Path) -> int:
        """Remove a file of a snapshot, and its content if no other file links to it.

        Args:
            path: The file, which is a link to its content on most systems.

        Returns:
            The number of bytes that were freed.
        """
        content = path.resolve()
        size = 0
        if content.exists():
            size = content.stat().st_size
        path.unlink()
        contents_in_use = {file.resolve() for file in _files(self.storage / "snapshots")}
        if content in contents_in_use:
            return 0
        content.unlink(missing_ok=True)  # already gone if the path was not a link
        return size


def hub_folder() -> Path:
    """Return the folder of the Hugging Face cache.

    As for all programs that use it, HF_HUB_CACHE, HF_HOME and XDG_CACHE_HOME can move it.
    """
    environment = os.environ
    folder = environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE")
    if not folder:
        caches = environment.get("XDG_CACHE_HOME") or "~/.cache"
        home = environment.get("HF_HOME") or str(Path(caches, "huggingface"))
        folder = str(Path(home, "hub"))
    return Path(os.path.expandvars(os.path.expanduser(folder)))  # noqa: PTH111 - keeps a `~` without a home


def why_folder_untrusted(hub: Path, name: str) -> str:
    """Explain why a repository in the cache cannot be trusted: other users can write to it.

    Args:
        hub: The folder of the cache.
        name: The repository's folder in it, which is checked with all folders and files below.

    Returns:
        A reason that names the first such folder or file; empty if there is none.
    """
    paths = [hub, hub / name]
    for folder, folders, files in os.walk(hub / name):
        paths.extend(Path(folder, entry) for entry in folders + files)
    for path in paths:
        reason = why_untrusted(path)
        if reason:
            return reason
    return ""


def is_intact(path: Path) -> bool:
    """Check whether a cached file still has the content that was fetched.

    In the cache it is a link to a file whose name is the SHA-256 of the content, as the hub
    recorded it. Where the name is not a SHA-256, there is nothing to compare with, and the file
    counts as intact.

    Raises:
        ModelError: The file cannot be read.
    """
    recorded = path.resolve().name
    if not SHA_256.fullmatch(recorded):
        return True
    try:
        return sha256(path) == recorded
    except OSError as error:
        raise ModelError(
            f"cannot read {path}: {error.strerror}", "check its permissions"
        ) from error


def _commit_in(ref: Path) -> str | None:
    """Read the commit of a branch from the file of the cache that records it.

    Returns:
        The commit; None if the file does not exist, cannot be read, or contains anything else.
    """
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if ref.is_file():  # a pipe would be waited for
            with ref.open(encoding="utf-8") as file:
                commit = file.read(MAX_REF).strip()
            if COMMIT.fullmatch(commit):
                return commit
    return None


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files and links below a folder, on any level."""
    for path in folder.rglob("*"):
        if path.is_symlink() or path.is_file():
            yield path


def _digest_of(path: Path, recorded: str) -> str:
    """Compute the hash of a file in the same way as a recorded hash: SHA-256 or git's.

    Git hashes the content with a header in front, which names its type and length.
    """
    if SHA_256.fullmatch(recorded):
        return sha256(path)
    import hashlib  # imported late, as `detcli --help` does not need it

    content = path.read_bytes()
    git_object = b"blob %d\0" % len(content) + content
    return hashlib.sha1(git_object, usedforsecurity=False).hexdigest()


def _discard_unless_hash_matches(path: Path, content_path: Path, recorded_hash: str) -> None:
    """Check that a fetched file has the recorded hash, and remove it with its content if not.

    Args:
        path: The file in the snapshot of its commit.
        content_path: The file with the content, which it links to.
        recorded_hash: The hash that the hub recorded: SHA-256, or git's hash of the content.

    Raises:
        _Unusable: The file has a different hash.
    """
    actual_hash = _digest_of(path, recorded_hash)
    if actual_hash == recorded_hash:
        return
    content_path.unlink(missing_ok=True)
    path.unlink(missing_ok=True)
    hash_name = "git name"
    if SHA_256.fullmatch(recorded_hash):
        hash_name = "SHA-256"
    raise _Unusable(f"the content has {hash_name} {actual_hash}, its record says {recorded_hash}")


def _without_credentials(endpoint: str) -> str:
    """Return the hub's URL without user name and password, to be shown in messages.

    Raises:
        ModelError: It is not the URL of a server.
    """
    with contextlib.suppress(ValueError):
        url = urlsplit(endpoint)
        if url.scheme in {"http", "https"} and url.hostname and url.port != 0:
            _, _, host_and_port = url.netloc.rpartition("@")
            return url._replace(netloc=host_and_port).geturl()
    raise ModelError(
        "HF_ENDPOINT is not the URL of a hub",
        "set it to a URL such as https://huggingface.co, or unset it",
    )


class _ProgressReporter:
    """Reports the progress of a download; has what `hf_hub_download` uses of a tqdm bar.

    Args:
        size: The size that the hub recorded for the file, in bytes; a longer download is stopped.
        show: Called with the bytes received so far and the size.
        initial: Bytes that an earlier attempt has received.
    """

    def __init__(
        self, size: int | None, show: Show | None, *, initial: int = 0, **_: object
    ) -> None:
        self._size = size
        self._show = show
        self._received = initial

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def update(self, count: int) -> None:
        """Count bytes that were just received."""
        self._received += count
        if self._size is not None and self._received > self._size:
            raise _Unusable(f"it sends more than the recorded {self._size} bytes")
        if self._show is not None:
            self._show(self._received, self._size)


@contextlib.contextmanager
def _settings_errors_translated(title: str) -> Iterator[None]:
    """Turn errors of importing and setting up `huggingface_hub` into ModelError.

    The package reads variables of the environment, and fails if their values make no sense or, as
    for a SOCKS proxy, need another package.

    Args:
        title: How the message refers to the file to fetch.
    """
    try:
        yield
    except (ImportError, OSError, ValueError) as error:
        raise ModelError(
            f"cannot fetch {title}: the connection settings in the environment do not work: "
            f"{error}",
            f"check HTTPS_PROXY, ALL_PROXY, SSL_CERT_FILE and the numbers in HF_*; or {HINT}",
        ) from error


@contextlib.contextmanager
def _hub_errors_translated(problem: str) -> Iterator[None]:
    """Turn the errors of fetching from the hub, or of writing to its cache, into detcli's errors.

    The messages of `huggingface_hub` may contain URLs with passwords. So detcli writes its own for
    each kind of error; only the messages of failed connections, which have no URL, are passed on.
    What the library logs is dropped.

    Args:
        problem: What the messages begin with, such as "cannot fetch yolo from https://...".

    Raises:
        ModelError: The hub cannot be reached, or its answer cannot be used.
        OutputError: The cache cannot be written to.
    """
    import httpx2
    from huggingface_hub.errors import (
        HfHubHTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RemoteEntryNotFoundError,
    )

    hub_log = logging.getLogger("huggingface_hub")
    level = hub_log.level
    hub_log.setLevel(logging.CRITICAL)
    try:
        yield
    except (_Unusable, httpx2.HTTPError, httpx2.InvalidURL, UnicodeEncodeError, OSError) as error:
        # The more specific classes come first: several of these are kinds of OSError.
        match error:
            case OfflineModeIsEnabled():
                reason = "HF_HUB_OFFLINE is set"
            case RemoteEntryNotFoundError():
                reason = "the repository has no such file"
            case HfHubHTTPError(response=response):
                reason = f"it answers {response.status_code} {response.reason_phrase}"
            case httpx2.TimeoutException() | LocalEntryNotFoundError():
                reason = "it does not answer"
            case UnicodeEncodeError():
                reason = "HF_TOKEN is not a valid token"
            case OSError(errno=None):  # fewer bytes than recorded
                reason = "the content is incomplete"
            case OSError():
                raise OutputError(
                    f"{problem}: cannot write to its cache: {system_reason(error)}",
                    "check its permissions and the free disk space, or set HF_HOME to another "
                    "folder",
                ) from error
            case _:
                reason = str(error)
        raise ModelError(f"{problem}: {reason}", HINT) from error
    finally:
        hub_log.setLevel(level)
