"""Prepared models: what a file promises and the graph to run, cached between runs.

Importing `onnx` and parsing a graph takes longer than a detection. So what was recognised is kept
in the cache folder, and a warm start does not need `onnx`. Entries are named by the hash of the
file's content and the version of the code that reads it:

    prepared/<key>.contract   the contract, as JSON
    prepared/<key>.graph      the network body, where the file's graph continues after it

Each entry begins with the SHA-256 of the rest; a damaged entry is made again. Without a writable
cache, the work is done at every start.
"""

import hashlib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from detcli.errors import OutputError
from detcli.files import cache_folder, make_folder, write_file
from detcli.model.contract import BoxFormat, Contract
from detcli.model.loading import ExternalFile, ModelFile, damage_reported

VERSION = 2
"""To be raised with any change to the results of `recognise` or `cut`."""

DIGEST_SIZE = hashlib.sha256().digest_size

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PreparedModel:
    """A model that is ready to run.

    Attributes:
        name: The name in records: that of the zoo, else the file's without its suffix.
        contract: What the graph promises.
        graph: Serialised ONNX graph whose only output is the head.
    """

    name: str
    contract: Contract
    graph: bytes


def prepare(
    path: Path, box_format: BoxFormat | None = None, name: str | None = None
) -> PreparedModel:
    """Read a model file, recognise it and cut its graph to the network body.

    Args:
        path: An ONNX file, with any external data beside it.
        box_format: Format of the box rows, where the caller knows better than the graph.
        name: The name in records, if not the file's.

    Raises:
        ModelError: The file cannot be read, or is not a detector.
    """
    file = ModelFile.read(path, box_format)
    key = f"{file.sha256}-{VERSION}"
    variant = f"{key}-{box_format}" if box_format else key
    described = json.loads(_cached(f"{variant}.contract", lambda: _describe(file)))
    hashes = {name: ExternalFile.read(path, name).sha256 for name in described["external"]}
    if hashes:  # the graph that is cached holds these weights
        key = hashlib.sha256(f"{key} {hashes}".encode()).hexdigest()
    contract = Contract.from_json(described["contract"])
    if described["output"] == contract.head and not hashes:
        return PreparedModel(name or path.stem, contract, file.content)  # no cut is needed
    graph = _cached(f"{key}.graph", lambda: _cut(file, contract.head))
    return PreparedModel(name or path.stem, contract, graph)


def _describe(file: ModelFile) -> bytes:
    """Everything that a warm start needs to know about a file, as JSON."""
    contract = file.detector()
    with damage_reported(file.path):  # a name that is not text cannot be JSON
        described = {
            "contract": contract.to_json(),
            "output": file.model.graph.output[0].name,
            "external": [external.name for external in file.external],
        }
        return json.dumps(described).encode()


def _cut(file: ModelFile, head: str) -> bytes:
    """The part of a graph that makes its head, with all its weights."""
    from detcli.model.editing import cut  # imports onnx

    body: bytes = cut(file.model, head).SerializeToString(deterministic=True)
    return body


def _cached(name: str, build: Callable[[], bytes]) -> bytes:
    """Read an entry of the cache, or build it and store it."""
    try:
        path = cache_folder() / "prepared" / name
    except OutputError as error:
        log.info("no cache: %s", error)
        return build()
    try:
        with path.open("rb") as file:
            digest, entry = file.read(DIGEST_SIZE), file.read()
    except OSError:
        log.info("%s is not in the cache: making it", name)
    else:
        if hashlib.sha256(entry).digest() == digest:
            return entry
        log.info("%s is damaged: making it again", name)
    entry = build()
    try:
        make_folder(path.parent)
        write_file(path, hashlib.sha256(entry).digest() + entry)
    except OutputError as error:
        log.info("cannot cache %s: %s", name, error)
    return entry
