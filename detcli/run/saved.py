"""Reads records back: JSON Lines, an array, either behind gzip, or the parts of a run in shards."""

import os
from collections.abc import Iterator

from detcli.core.errors import CheckError
from detcli.core.text import is_object
from detcli.data.record import RecordJson
from detcli.data.record_file import read_file, read_standard_input
from detcli.source.loading import STDIN

SUFFIXES = (".jsonl", ".ndjson", ".json", ".jsonl.gz", ".ndjson.gz", ".json.gz")
"""Suffixes of saved records; a model's file never has them."""


def read_records(name: str) -> Iterator[RecordJson]:
    """Yield the records of a file, of standard input, or of a run in shards.

    Only the fields that a page shows are there for sure, and have the right types.

    Args:
        name: The path of a file of records; "-" for standard input; or the folder of a run in
            shards, on this machine or in a bucket.

    Raises:
        SourceError: It cannot be read.
        UsageError: It holds something else.
        CheckError: A part of the run is missing or damaged.
    """
    if name == STDIN:
        yield from read_standard_input()
    elif is_folder(name) or is_object(name):
        yield from _read_shards(name)
    else:
        yield from read_file(name)


def _read_shards(name: str) -> Iterator[RecordJson]:
    """Yield the records of a run that was cut into shards, in order, from the file of each shard.

    Args:
        name: The folder of the run, on this machine or in a bucket.

    Raises:
        CheckError: The file of a shard is missing or damaged.
    """
    from detcli.run.shards.manifest import Manifest
    from detcli.run.shards.parts import Merge
    from detcli.run.shards.store import open_store

    store = open_store(name)
    merge = Merge(store, Manifest(store))
    if not merge.faults:  # no file is missing
        yield from merge
    if merge.faults:  # reading may have found another one
        fault = merge.faults[0]
        raise CheckError(f"{fault.part}: {fault.reason}", "complete the run, or see merge")


def is_folder(name: str) -> bool:
    """Whether a name is that of a folder; a name that no file can have is not."""
    return os.path.isdir(name)  # noqa: PTH112 - raises nothing
