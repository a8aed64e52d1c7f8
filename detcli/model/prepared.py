"""Prepared models: what a file promises and the graph to run, cached between runs.

Importing `onnx` and reading a graph with it takes longer than detecting. So what was found out
about a file is kept in the cache folder, and the usual start needs no `onnx`. Names are made of
the hash of the file's content and the version of the code that reads it:

    prepared/<key>.contract   the contract, as JSON
    prepared/<key>.graph      the network body, where the file's graph goes on behind it

Each entry begins with the SHA-256 of the rest; one that does not match is made anew. Where the
cache cannot be written to, the work is done at every start.
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
"""Raise it with any change to what `recognise` finds or `passes` make of a graph."""

DIGEST_SIZE = hashlib.sha256().digest_size

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PreparedModel:
    """A model that is ready to run.

    Attributes:
        name: What records call it: its name in the zoo, else the file's without its suffix.
        contract: What it promises.
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
        box_format: What the box rows are, where the caller knows better than the graph.
        name: What records call it, where that is not the file's name.

    Raises:
        ModelError: It cannot be read, or is no detector.
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
    """All that a warm start has to know about a file, as JSON."""
    contract = file.detector()
    with damage_reported(file.path):  # a name that is not text does not go into JSON
        described = {
            "contract": contract.to_json(),
            "output": file.model.graph.output[0].name,
            "external": [external.name for external in file.external],
        }
        return json.dumps(described).encode()


def _cut(file: ModelFile, head: str) -> bytes:
    """The part of a graph that makes its head, with all its weights."""
    from detcli.model.passes import cut  # imports onnx

    body: bytes = cut(file.model, head).SerializeToString(deterministic=True)
    return body


def _cached(name: str, build: Callable[[], bytes]) -> bytes:
    """Read an entry of the cache, or build it and store it."""
    try:
        path = cache_folder() / "prepared" / name
    except OutputError as error:
        log.info("nothing is cached: %s", error)
        return build()
    try:
        with path.open("rb") as file:
            digest, entry = file.read(DIGEST_SIZE), file.read()
    except OSError:
        log.info("%s is not cached: made now", name)
    else:
        if hashlib.sha256(entry).digest() == digest:
            return entry
        log.info("%s is damaged: made anew", name)
    entry = build()
    try:
        make_folder(path.parent)
        write_file(path, hashlib.sha256(entry).digest() + entry)
    except OutputError as error:
        log.info("%s is not cached: %s", name, error)
    return entry
