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
class HubFile:
    """A file of a model repository."""

    repository: str  # owner and name, such as "onnx-community/yolov10n"
    path: str  # within the repository, with slashes
    revision: str  # a commit, which never changes, or a branch

    @property
    def pinned(self) -> bool:
        """True if the revision is a commit, so that the file never changes."""
        return COMMIT.fullmatch(self.revision) is not None

    @property
    def folder(self) -> str:
        """Name of its repository's folder in a cache."""
        return f"models--{self.repository.replace('/', '--')}"

    @property
    def storage(self) -> Path:
        """The cache folder of its repository."""
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
        """Path of the cached file; None if it has to be fetched."""
        commit: str | None = self.revision
        if not self.pinned:
            commit = _branch(self.storage / "refs" / self.revision)
        if not commit:
            return None
        path = self._snapshot(commit)
        is_file = os.path.isfile(path)  # noqa: PTH113 - False without permission
        if is_file:
            return path
        return None

    def commit_of(self, path: Path) -> str:
        """The commit that a cached path belongs to."""
        return path.relative_to(self.storage / "snapshots").parts[0]

    def _snapshot(self, commit: str) -> Path:
        return self.storage / "snapshots" / commit / self.path

    def fetch(self, title: str, licence: str, show: Show | None = None) -> Path:
        """Fetch the file into the cache, unless its content is there already.

        Messages name it by its title, with its licence.
        """
        for name in ("TELEMETRY", "XET", "SYMLINKS_WARNING"):  # read at its import
            os.environ.setdefault(f"HF_HUB_DISABLE_{name}", "1")
        try:
            from huggingface_hub import constants, get_session, hf_hub_download

            get_session()
        except (ImportError, OSError, ValueError) as error:  # SOCKS needs another package
            raise ModelError(
                f"cannot fetch {title}: the connection settings in the environment do not work: "
                f"{error}",
                f"check HTTPS_PROXY, ALL_PROXY, SSL_CERT_FILE and the numbers in HF_*; or {HINT}",
            ) from error
        endpoint = (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")
        public_endpoint = _without_credentials(endpoint)
        with _reasons(f"cannot fetch {title} from {public_endpoint}"):
            commit, digest, size = self._record(endpoint)
            content = self.storage / "blobs" / digest
            # On a system without links, the content is in the snapshot.
            if not content.exists() and not self._snapshot(commit).is_file():
                # A warning, so that it is shown by default.
                log.log(
                    logging.WARNING if SHA_256.fullmatch(digest) else logging.INFO,
                    "fetching %s: %s of %s at %s, %s, licence %s, from %s",
                    title,
                    self.path,
                    self.repository,
                    commit[:10],
                    "of unknown size" if size is None else f"{size / 1e6:.1f} MB",
                    licence,
                    public_endpoint,
                )

            bar: Any = functools.partial(_Bar, size, show)  # which is only called
            path = Path(
                hf_hub_download(
                    self.repository,
                    self.path,
                    revision=self.revision,
                    cache_dir=self.storage.parent,
                    tqdm_class=bar,
                    library_name="detcli",
                    library_version=__version__,
                    endpoint=endpoint,
                )
            )
            _require_digest(path, content, digest)
        return path

    def _record(self, endpoint: str) -> tuple[str, str, int | None]:
        """The hub's record of the file: commit, hash and size, None where it does not say.

        The hash is the SHA-256, or of a small file the name of its content in git.
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
        in_git = self.path.endswith(".json") and COMMIT.fullmatch(digest)
        if not SHA_256.fullmatch(digest) and not in_git:
            raise _Unusable(f"it has no SHA-256 to check {self.path} against")
        if self.pinned and commit != self.revision:
            raise _Unusable(f"it has commit {commit} instead of {self.revision}")
        return commit, digest, metadata.size

    def forget(self) -> int:
        """Remove all revisions of the file; files of other programs stay."""
        freed = 0
        try:
            for path in self.storage.glob(f"snapshots/*/{self.path}"):
                content = path.resolve()
                size = content.stat().st_size if content.exists() else 0
                path.unlink()
                contents_in_use = {file.resolve() for file in _files(self.storage / "snapshots")}
                if content not in contents_in_use:
                    content.unlink(missing_ok=True)  # already gone if the name was not a link
                    freed += size
            for ref in _files(self.storage / "refs"):
                commit = _branch(ref)
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
        return freed


def hub_folder() -> Path:
    """The cache's folder; HF_HUB_CACHE, HF_HOME and XDG_CACHE_HOME move it."""
    environment = os.environ
    folder = environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE")
    if not folder:
        caches = environment.get("XDG_CACHE_HOME") or "~/.cache"
        home = environment.get("HF_HOME") or str(Path(caches, "huggingface"))
        folder = str(Path(home, "hub"))
    return Path(os.path.expandvars(os.path.expanduser(folder)))  # noqa: PTH111 - keeps a `~` without a home


def why_folder_untrusted(hub: Path, name: str) -> str:
    """Why a repository's folder in a cache, or a file in it, is not trusted; empty if all are."""
    paths = [hub, hub / name]
    for folder, folders, files in os.walk(hub / name):
        paths.extend(Path(folder, entry) for entry in folders + files)
    for path in paths:
        reason = why_untrusted(path)
        if reason:
            return reason
    return ""


def is_intact(path: Path) -> bool:
    """True if a cached file has the recorded SHA-256; True if none is recorded."""
    recorded = path.resolve().name
    try:
        return SHA_256.fullmatch(recorded) is None or sha256(path) == recorded
    except OSError as error:
        raise ModelError(
            f"cannot read {path}: {error.strerror}", "check its permissions"
        ) from error


def _branch(ref: Path) -> str | None:
    """The commit that a file of refs names; None if it names none."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if ref.is_file():  # a pipe would be waited for
            with ref.open(encoding="utf-8") as file:
                commit = file.read(MAX_REF).strip()
            if COMMIT.fullmatch(commit):
                return commit
    return None


def _files(folder: Path) -> Iterator[Path]:
    """The files and links below a folder."""
    for path in folder.rglob("*"):
        if path.is_symlink() or path.is_file():
            yield path


def _digest_of(path: Path, recorded: str) -> str:
    """The hash of a file, of the same kind as the recorded: SHA-256, or git's of its content."""
    if SHA_256.fullmatch(recorded):
        return sha256(path)
    import hashlib  # `--help` needs none

    content = path.read_bytes()
    git_object = b"blob %d\0" % len(content) + content
    return hashlib.sha1(git_object, usedforsecurity=False).hexdigest()


def _require_digest(path: Path, content: Path, recorded: str) -> None:
    """Check that a fetched file has the recorded hash; else remove it and its content."""
    received = _digest_of(path, recorded)
    if received != recorded:
        content.unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        kind = "SHA-256" if SHA_256.fullmatch(recorded) else "git name"
        raise _Unusable(f"the content has {kind} {received}, its record says {recorded}")


def _without_credentials(endpoint: str) -> str:
    """The hub's URL as messages show it."""
    with contextlib.suppress(ValueError):
        parts = urlsplit(endpoint)
        if parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0:
            return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    raise ModelError(
        "HF_ENDPOINT is not the URL of a hub",
        "set it to a URL such as https://huggingface.co, or unset it",
    )


class _Bar:
    """What `hf_hub_download` uses of tqdm."""

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
        self._received += count
        if self._size is not None and self._received > self._size:
            raise _Unusable(f"it sends more than the recorded {self._size} bytes")
        if self._show is not None:
            self._show(self._received, self._size)


@contextlib.contextmanager
def _reasons(problem: str) -> Iterator[None]:
    """Translate all errors of the hub.

    Messages of the libraries may contain URLs with passwords, so only those of connections, which
    do not, are passed on, and what they log is dropped.
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
