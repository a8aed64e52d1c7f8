"""Begins a run in shards or joins one: compares the inputs with its manifest, or writes that."""

import math
from collections.abc import Container, Iterable
from functools import partial

import numpy as np

from detcli.core import Fields, frozen
from detcli.core.errors import UsageError
from detcli.run.shards.manifest import (
    FIRST_MANIFEST,
    MANIFEST_NAME,
    PART_NAME,
    HeaderJson,
    Manifest,
    publish,
    shortened,
)
from detcli.run.shards.parts import Merge
from detcli.run.shards.store import Store
from detcli.source.listing import HASH, Hashes, Name, Names, contains, hash_of, stamp_in
from detcli.source.sources import SourceEntry

MAX_SHARD_SIZE = 1000
"""The maximum number of names in a shard, unless --shard-size sets a different one."""

MIN_SHARD_SIZE = 16
"""The minimum number of names in a shard, unless --shard-size sets a different one."""

SHARDS_OF_SHORT_RUN = 64
"""The number of shards that a run is cut into, if their sizes are between these."""


@frozen
class OpenedRun:
    """A run in shards whose manifest exists, and how the inputs compare with the manifest."""

    manifest: Manifest
    added: int = 0  # names that this call added to the manifest
    repeated: int = 0  # names that the inputs repeat; each counts once
    gone: int = 0  # names in the manifest that the inputs no longer have
    # Hashes of the names whose files have a different size or time by now.
    changed: frozenset[bytes] = frozenset()


def begin_or_join(
    store: Store,
    header: HeaderJson,
    entries: Iterable[SourceEntry] | None,
    shard_size: int | None = None,
    *,
    implied: Container[str] = (),
    extend: bool = False,
) -> OpenedRun:
    """Write the manifest of a run in shards, or check that the existing one matches the inputs.

    The manifest is the file with the settings of the run and the names of all its inputs. If it
    exists, an earlier call or another process has begun the run, and this call joins in.

    Args:
        store: The folder with the manifest and the parts.
        header: The settings of the run; its shard size is filled in here.
        entries: The inputs as the sources list them; None to take the manifest's names.
        shard_size: Names in a shard; None for the manifest's, or what suits the number of names.
        implied: Names of settings that follow from other settings, which are not compared.
        extend: Whether names that the manifest lacks become additional shards.

    Raises:
        UsageError: The manifest was made with different settings or names; or there are parts
            without a manifest; or there are neither inputs nor a manifest.
        StoreError: The store cannot be read.
        OutputError: The manifest cannot be written.
    """
    with Names(entries or (), stamped=extend) as names:
        is_new_run = False
        if not store.exists(FIRST_MANIFEST):
            _require_no_parts(store)
            if entries is None:
                raise UsageError(
                    f"no inputs given, and {store} has no {FIRST_MANIFEST} to continue from",
                    "name images or videos, or use --files-from",
                )
            size = shard_size or _default_shard_size(len(names))
            is_new_run = publish(store, FIRST_MANIFEST, {**header, "shard_size": size}, names)

        manifest = Manifest(store)
        size = shard_size or manifest.header["shard_size"]
        compared_fields: Fields = {**header, "shard_size": size}
        # Manifests of earlier versions have no names of classes, which the model decides anyway.
        compared_fields.pop("class_names", None)
        manifest.require_same(implied, **compared_fields)

        if entries is None or is_new_run:
            return OpenedRun(manifest, added=len(names), repeated=names.repeated)
        if extend:
            return _extend_manifest(store, manifest, names)
        return _compare_with_manifest(store, manifest, names)


def _require_no_parts(store: Store) -> None:
    """Refuse a folder that has files of a run in shards, but not the first manifest of the run.

    Such files are parts, which hold the records, and the manifests that --extend adds. If the first
    manifest has come meanwhile, another process has begun the run, and nothing is wrong.

    Raises:
        UsageError: The folder has such a file.
    """
    files_of_run = []
    for name in store.names():
        if MANIFEST_NAME.fullmatch(name) or PART_NAME.fullmatch(name):
            files_of_run.append(name)
    if files_of_run and not store.exists(FIRST_MANIFEST):
        example = min(files_of_run)  # the same in each call, as a store lists names in any order
        raise UsageError(
            f"{store} has {example}, but no {FIRST_MANIFEST}",
            "restore it, or write to another folder; a run of an earlier version can be "
            "merged, but not continued",
        )


def _default_shard_size(name_count: int) -> int:
    """Choose how many inputs each shard gets, from the number of inputs in the run."""
    size = math.ceil(name_count / SHARDS_OF_SHORT_RUN)
    return max(MIN_SHARD_SIZE, min(MAX_SHARD_SIZE, size))


def _extend_manifest(store: Store, manifest: Manifest, names: Names) -> OpenedRun:
    """Add the inputs that the manifest lacks to the run, as shards of an additional manifest.

    Names are compared by their hashes. Here a hash also covers the stamp of the name's file, which
    is its size and time of change, so a file that has changed counts as new.

    Args:
        store: The folder of the run.
        manifest: Its manifest so far.
        names: The names of the inputs.
    """
    added_count = 0
    manifest_hashes = manifest.hashes(names.hash_of)
    new_hashes = _hashes_in_first_only(names.hashes, manifest_hashes)
    while len(new_hashes):
        new_names = names.only(new_hashes, names)  # the names that have one of these hashes
        is_published = publish(store, manifest.next_file, manifest.header, new_names, len(manifest))
        if is_published:
            added_count = len(new_hashes)
        # Otherwise another process, which also extends the run, was first. Either way the manifest
        # is read again, and compared until it lacks nothing.
        manifest = Manifest(store)
        manifest_hashes = manifest.hashes(names.hash_of)
        new_hashes = _hashes_in_first_only(names.hashes, manifest_hashes)

    gone_count = 0
    if len(_hashes_in_first_only(manifest_hashes, names.hashes)):
        gone_count = _count_gone_names(manifest, names)
    return OpenedRun(manifest, added=added_count, repeated=names.repeated, gone=gone_count)


def _count_gone_names(manifest: Manifest, names: Names) -> int:
    """Count the names in a manifest that the inputs no longer have, whatever their stamps.

    A file that has changed is in the manifest with its earlier stamp, too. Its name is not gone, so
    names are compared by hashes that do not cover stamps.
    """
    input_hashes = np.fromiter((hash_of(name) for name in names), HASH)
    gone_hashes = np.setdiff1d(manifest.hashes(hash_of), input_hashes)
    return len(gone_hashes)


def _hashes_in_first_only(first: Hashes, second: Hashes) -> Hashes:
    """Return the hashes of the first array that the second lacks; each array has no duplicates."""
    return np.setdiff1d(first, second, assume_unique=True)


def _compare_with_manifest(store: Store, manifest: Manifest, names: Names) -> OpenedRun:
    """Continue a run whose manifest has the same names as the inputs.

    Raises:
        UsageError: The names of the inputs differ from those in the manifest.
    """
    manifest_hashes = manifest.hashes(names.hash_of)
    new_hashes = _hashes_in_first_only(names.hashes, manifest_hashes)
    gone_hashes = _hashes_in_first_only(manifest_hashes, names.hashes)

    differences = []
    if len(new_hashes):
        examples = shortened(names.only(new_hashes, names), len(new_hashes))
        differences.append(f"{len(new_hashes)} new: {examples}")
    if len(gone_hashes):
        examples = shortened(names.only(gone_hashes, manifest.all_names()), len(gone_hashes))
        differences.append(f"{len(gone_hashes)} gone: {examples}")
    if differences:
        raise UsageError(
            f"{store} was begun with other inputs: {'; '.join(differences)}",
            "name the same inputs, or add the new ones as further shards with --extend",
        )
    changed_hashes = _find_changed_files(store, manifest, names)
    return OpenedRun(manifest, repeated=names.repeated, changed=changed_hashes)


def _find_changed_files(
    store: Store, manifest: Manifest, names: Iterable[Name]
) -> frozenset[bytes]:
    """Find the inputs whose files have changed since the run processed them.

    A name may have a stamp, which is the size and the time of change of its file. A name that has
    no stamp now or had none then, such as a URL, cannot be compared, and counts as unchanged.

    Returns:
        Hashes of the names, without their stamps.
    """
    differing_names = _names_with_other_stamps(manifest, names)
    if not differing_names:
        return frozenset()

    # If --retry-failed has processed a name again, the stamp that its file had then is used, and
    # not the one in the manifest. It is None if the name had none.
    retry_stamps = Merge(store, manifest).stamps_of_retried_inputs()
    changed_hashes = set()
    for name in differing_names:
        name_hash = hash_of(name)
        if name_hash in retry_stamps:
            retry_stamp = retry_stamps[name_hash]
            if retry_stamp is None or retry_stamp == stamp_in(name):
                continue
        changed_hashes.add(name_hash)
    return frozenset(changed_hashes)


def _names_with_other_stamps(manifest: Manifest, names: Iterable[Name]) -> list[Name]:
    """List the names whose files have changed since the manifest was written.

    The stamp of a file, its size and time, shows this. The manifest has a hash for each name: of
    the name and its stamp, or of the name alone if its file had no stamp then. A name without a
    stamp in the manifest counts as unchanged.
    """
    hash_with_stamp = partial(hash_of, stamped=True)
    manifest_hashes = manifest.hashes(hash_with_stamp)
    differing_names: list[Name] = []
    for name in names:
        if stamp_in(name) is None:
            continue
        had_no_stamp = contains(manifest_hashes, hash_of(name))
        if had_no_stamp:
            continue
        has_same_stamp = contains(manifest_hashes, hash_with_stamp(name))
        if not has_same_stamp:
            differing_names.append(name)
    return differing_names
