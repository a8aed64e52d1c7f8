"""Opens a run in shards: begins it, or continues one that was begun here or elsewhere."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from detcli.core.config import differences
from detcli.errors import UsageError
from detcli.shards.manifest import FIRST, PART, HeaderJson, Manifest, publish
from detcli.shards.names import Name, Names, only, source_of
from detcli.shards.store import Store
from detcli.source.sources import SourceEntry
from detcli.text import public_name

MAX_SHARD, MIN_SHARD, SHARDS = 1000, 16, 64
"""Most and fewest names in a shard, and the number of shards that a short run is cut into."""

EXAMPLES = 3
"""Names that an error shows."""


@dataclass(frozen=True, slots=True)
class OpenedRun:
    """A run in shards that workers can now work."""

    manifest: Manifest
    added: int = 0  # number of names that this call added to the manifest
    repeated: int = 0  # number of names that the inputs repeat; each counts once
    gone: int = 0  # number of names in the manifest that the inputs no longer have


def begin(
    store: Store,
    header: HeaderJson,
    entries: Iterable[SourceEntry] | None,
    *,
    shard_size: int | None = None,
    extend: bool = False,
) -> OpenedRun:
    """Write the manifest, or compare the existing one with what would be written now.

    Args:
        store: Where manifest and parts are.
        header: What records depend on; its shard size is set here.
        entries: What the sources stand for; None to take the manifest's names.
        shard_size: Names in a shard; None for the manifest's, or what suits the number of names.
        extend: Whether names that the manifest lacks become further shards.

    Raises:
        UsageError: The manifest was made with other settings or names; or there are parts without
            a manifest; or there are neither inputs nor a manifest.
        StoreError: The store cannot be read.
        OutputError: The manifest cannot be written.
    """
    if entries is None:
        if not store.exists(FIRST):
            raise UsageError(
                f"no inputs given, and {store} has no {FIRST} to go on with",
                "name pictures or videos, or use --files-from",
            )
        manifest = Manifest(store)
        _require_same(store, manifest.header, header, shard_size)
        return OpenedRun(manifest)
    with Names(_checked(entries)) as names:
        begun = not store.exists(FIRST)
        if begun:
            _require_no_parts(store)
            size = shard_size or max(MIN_SHARD, min(MAX_SHARD, -(-len(names) // SHARDS)))
            begun = publish(store, FIRST, _with_size(header, size), names)
        manifest = Manifest(store)
        _require_same(store, manifest.header, header, shard_size)
        if begun:
            return OpenedRun(manifest, added=len(names), repeated=names.repeated)
        return _go_on(store, manifest, names, extend=extend)


def _go_on(store: Store, manifest: Manifest, names: Names, *, extend: bool) -> OpenedRun:
    """Compare the names with the manifest's, and add the new ones if `extend` says so."""
    added = 0
    while not np.array_equal(names.hashes, manifest.hashes):
        new = np.setdiff1d(names.hashes, manifest.hashes, assume_unique=True)
        gone = np.setdiff1d(manifest.hashes, names.hashes, assume_unique=True)
        if (len(new) or len(gone)) and not extend:
            raise UsageError(
                f"{store} was begun with other names: "
                + "; ".join(
                    f"{len(hashes)} {what}: {_examples(which, len(hashes))}"
                    for hashes, what, which in (
                        (new, "new", only(names, new)),
                        (gone, "gone", only(manifest.all_names(), gone)),
                    )
                    if len(hashes)
                ),
                "name the same inputs, or make new ones further shards with --extend",
            )
        if not len(new):
            return OpenedRun(manifest, added, names.repeated, len(gone))
        added = len(new)
        if not publish(store, manifest.next_file, manifest.header, only(names, new), len(manifest)):
            added = 0  # another process has extended it meanwhile
        manifest = Manifest(store)
    return OpenedRun(manifest, added, names.repeated)


def _checked(entries: Iterable[SourceEntry]) -> Iterator[SourceEntry]:
    """Refuse addresses that hold a password or token, which the manifest would show."""
    for entry in entries:
        if (
            isinstance(entry, str)
            and ("://" in entry or "@" in entry)  # a glance, as there may be millions
            and public_name(entry) != entry
        ):
            raise UsageError(
                f"{public_name(entry)}: a manifest would show the password or token of its address",
                "name addresses without any; credentials belong into the environment",
            )
        yield entry


def _require_no_parts(store: Store) -> None:
    part = next(filter(PART.fullmatch, store.names()), None)
    if part is not None:
        raise UsageError(
            f"{store} has parts, such as {part}, but no {FIRST}",
            "restore it, or write to another folder",
        )


def _with_size(header: HeaderJson, size: int) -> HeaderJson:
    return {**header, "shard_size": size}


def _require_same(
    store: Store, earlier: HeaderJson, now: HeaderJson, shard_size: int | None
) -> None:
    """Refuse to go on with other settings."""
    now = _with_size(now, shard_size or earlier["shard_size"])
    if different := differences(_flat(earlier), _flat(now)):
        raise UsageError(
            f"{store} was begun with {', '.join(different)}",
            "use the same settings, or write to another folder",
        )


def _flat(header: HeaderJson) -> dict[str, Any]:
    """What records depend on, by name."""
    return {**header, "settings": None, "inputs": None, **header["settings"], **header["inputs"]}


def _examples(names: Iterator[Name], count: int) -> str:
    shown = [source_of(name) for name in islice(names, EXAMPLES)]
    return ", ".join(shown) + (", ..." if count > len(shown) else "")
