"""Merges the parts of a run: reads them from their folder, and writes one output."""

import os
from typing import TYPE_CHECKING

from detcli.commands.shared.formats import Format, open_record_sink, open_target, require_file
from detcli.commands.shared.messages import say
from detcli.commands.shared.progress import count, progress
from detcli.errors import CheckError, UsageError
from detcli.files import StandardOutput
from detcli.interrupts import interrupts
from detcli.record import OPTIONAL_FIELDS
from detcli.shards.manifest import NAME, PART, Manifest
from detcli.shards.merging import Merge
from detcli.shards.parts import DAMAGE, Stored
from detcli.shards.store import open_store

if TYPE_CHECKING:
    from detcli.commands.shared.formats import Target


def merge_parts(folder: str, chosen: Format, target: "Target | None", *, quiet: bool) -> None:
    """Write the records of all parts.

    Args:
        folder: The run's output.
        chosen: The format.
        target: What to write; None for standard output.
        quiet: Whether only fatal errors are printed.

    Raises:
        CheckError: A part is missing or damaged; a file is then left as it was.
        DependencyError: The library for the format is missing.
        UsageError: It is not the output of a run in shards.
        OutputError: The output cannot be written.
    """
    require_file(chosen, target)
    if target is not None and any(one.fullmatch(_last(target)) for one in (NAME, PART)):
        raise UsageError(
            f"--output {target} has the name of a manifest or a part", "choose another name"
        )
    store = open_store(folder if folder.endswith(("/", os.sep)) else f"{folder}/")
    manifest = Manifest(store)
    merge = Merge(store, manifest)
    _require_whole(merge, manifest)
    output = StandardOutput() if target is None else open_target(target)
    try:
        settings = manifest.header["settings"]
        optional = [column for column, setting in OPTIONAL_FIELDS.items() if settings.get(setting)]
        sink = open_record_sink(chosen, output, optional)
        shown = progress(lambda: manifest.names, wanted=not quiet and target is not None)
        records = iter(merge)
        try:
            with shown as advance:
                for record in records:
                    sink.write(Stored(record))
                    advance(record["source"])
        except DAMAGE:  # a record whose part may turn out to be changed
            for _ in records:
                pass
            _require_whole(merge, manifest)
            raise
        _require_whole(merge, manifest)
    except BaseException:
        if not isinstance(output, StandardOutput):
            output.discard()
        raise
    with interrupts.held():
        sink.close()
    if not quiet and target is not None:
        say(f"wrote {count(merge.count, 'record')} of {count(len(manifest), 'part')} to {target}")


def _last(target: "Target") -> str:
    """The last part of a path or a key."""
    return str(target).rpartition("/")[2]


def _require_whole(merge: Merge, manifest: Manifest) -> None:
    """List the missing and damaged parts, if any, and raise."""
    if not merge.faults:
        return
    for fault in merge.faults:
        say(f"{fault.part}: {fault.reason}")
    damaged = sum(not fault.missing for fault in merge.faults)
    names = sum(fault.names for fault in merge.faults)
    raise CheckError(
        f"{len(merge.faults)} of {count(len(manifest), 'part')}, with {count(names, 'name')}, "
        "missing or damaged",
        ("remove the damaged parts, then " if damaged else "")
        + "run the command that made the parts again; it makes only the missing ones",
    )
