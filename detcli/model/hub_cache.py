"""The Hugging Face cache, shared with all other programs that use it.

https://huggingface.co/docs/hub/local-cache specifies the layout. It is read here without
`huggingface_hub`, whose import takes longer than a detection:

    models--<owner>--<name>/
        blobs/<SHA-256>                 a file's content
        snapshots/<commit>/<file>       a link to it
        refs/main                       the commit of the branch when it was last fetched
"""

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from detcli.cache import cache_folder
from detcli.errors import ModelError, OutputError, system_reason
from detcli.files import make_folder, write_file
from detcli.trust import warn_once, why_untrusted

COMMIT = re.compile(r"[0-9a-f]{40}")
MAX_REF = 1000
"""Characters that are read of a file that names a commit."""

SHA_256 = re.compile(r"[0-9a-f]{64}")

Show = Callable[[int, int | None], None]
"""Called with the bytes fetched so far and the size of the file, None if unknown."""


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a model repository.

    Attributes:
        repository: Owner and name, such as "onnx-community/yolov10n".
        path: Path within the repository, with slashes.
        revision: A commit, which never changes, or a branch.
    """

    repository: str
    path: str
    revision: str

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
        """The cache folder of its repository.

        Raises:
            OutputError: Others can write to it, and to detcli's own cache.
        """
        shared = hub_folder()
        if not (reason := why_folder_untrusted(shared, self.folder)):
            return shared / self.folder
        own = cache_folder() / "hub"
        warn_once(
            f"the Hugging Face cache is not used, since {reason}; models are in {own} instead"
        )
        if reason := why_folder_untrusted(own, self.folder):
            raise OutputError(
                f"no place for models: {reason}", "set HF_HOME to a folder that only you write to"
            )
        return own / self.folder

    def cached(self) -> Path | None:
        """Path of the cached file; None if it has to be fetched."""
        commit: str | None = self.revision
        if not self.pinned:
            commit = _branch(self.storage / "refs" / self.revision)
        path = self._snapshot(commit) if commit else None
        return path if path and os.path.isfile(path) else None  # noqa: PTH113 - False without permission

    def commit_of(self, path: Path) -> str:
        """The commit that a cached path belongs to."""
        return path.relative_to(self.storage / "snapshots").parts[0]

    def blob(self, digest: str) -> Path:
        """Path of the content with this SHA-256."""
        return self.storage / "blobs" / digest

    def partial(self, digest: str) -> Path:
        """Path of the content while it is incomplete."""
        return self.storage / "blobs" / f"{digest}.detcli.incomplete"

    def is_cached(self, commit: str, digest: str) -> bool:
        """Whether the content is cached; on a system without links, the file of this commit."""
        named = self._snapshot(commit)
        return self.blob(digest).exists() or (named.is_file() and not named.is_symlink())

    def link(self, commit: str, digest: str) -> Path:
        """Link content under its name in a commit, and record the commit of the branch.

        To be called with the file's lock.

        Returns:
            Path of the file.

        Raises:
            OSError: The cache cannot be written to.
            OutputError: The same, of the branch.
        """
        source, path = self.blob(digest), self._snapshot(commit)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink() or not path.exists():
            new = path.with_name(f".{path.name}.detcli")  # the lock keeps others from it
            new.unlink(missing_ok=True)  # of a killed process
            try:
                new.symlink_to(os.path.relpath(source, path.parent))
            except OSError:  # a system without links: move the content itself
                new = source
            new.replace(path)
        if not self.pinned:
            ref = self.storage / "refs" / self.revision
            write_file(make_folder(ref.parent) / ref.name, commit.encode())
        return path

    def forget(self) -> int:
        """Remove all revisions of the file, complete or not; files of other programs stay.

        Returns:
            The number of bytes freed.

        Raises:
            OutputError: The cache cannot be written to.
        """
        try:
            return self._remove_revisions() + self._tidy()
        except OSError as error:
            raise OutputError(
                f"cannot remove {error.filename or self.path}: {system_reason(error)}",
                "check the permissions of the Hugging Face cache",
            ) from error

    def _snapshot(self, commit: str) -> Path:
        return self.storage / "snapshots" / commit / self.path

    def _remove_revisions(self) -> int:
        freed = 0
        for path in self.storage.glob(f"snapshots/*/{self.path}"):
            content = path.resolve()
            size = content.stat().st_size if content.exists() else 0
            path.unlink()
            if content not in {other.resolve() for other in _files(self.storage / "snapshots")}:
                content.unlink(missing_ok=True)  # already gone if the name was not a link
                freed += size
        return freed

    def _tidy(self) -> int:
        """Remove incomplete files, references to commits without files, and empty folders."""
        freed = 0
        for path in self.storage.glob("blobs/*.detcli.incomplete"):
            freed += path.stat().st_size
            path.unlink()
        for ref in _files(self.storage / "refs"):
            commit = _branch(ref)
            if commit and not any(_files(self.storage / "snapshots" / commit)):
                ref.unlink()
        for folder, _, _ in os.walk(self.storage, topdown=False):
            with contextlib.suppress(OSError):  # not empty
                Path(folder).rmdir()
        return freed


def hub_folder() -> Path:
    """The cache's folder; HF_HUB_CACHE, HF_HOME and XDG_CACHE_HOME move it."""
    get = os.environ.get
    home = get("HF_HOME") or str(Path(get("XDG_CACHE_HOME") or "~/.cache", "huggingface"))
    folder = get("HF_HUB_CACHE") or get("HUGGINGFACE_HUB_CACHE") or str(Path(home, "hub"))
    return Path(os.path.expandvars(os.path.expanduser(folder)))  # noqa: PTH111 - keeps a `~` without a home


def why_folder_untrusted(hub: Path, name: str) -> str:
    """Why a repository's folder in a cache, or a file in it, is not trusted; empty if all are."""
    paths = [hub, hub / name]
    for folder, folders, files in os.walk(hub / name):
        paths.extend(Path(folder, entry) for entry in (*folders, *files))
    return next(filter(None, map(why_untrusted, paths)), "")


def _branch(ref: Path) -> str | None:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if ref.is_file():  # a pipe would be waited for
            with ref.open(encoding="utf-8") as file:
                commit = file.read(MAX_REF).strip()
            if COMMIT.fullmatch(commit):
                return commit
    return None


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_symlink() or path.is_file())


def is_intact(path: Path) -> bool:
    """Whether a cached file has the recorded SHA-256; True if none is recorded.

    Raises:
        ModelError: The file cannot be read.
    """
    recorded = path.resolve().name
    try:
        return SHA_256.fullmatch(recorded) is None or sha256(path) == recorded
    except OSError as error:
        raise ModelError(
            f"cannot read {path}: {error.strerror}", "check its permissions"
        ) from error


def sha256(path: Path) -> str:
    """Hash a file."""
    import hashlib  # `--help` needs none

    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
