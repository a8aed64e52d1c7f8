"""Prepared models: what a file promises and the graph to run, cached between runs.

Importing `onnx` and parsing a graph takes longer than a detection. So what was recognised is kept
in the cache folder, and a warm start does not need `onnx`. Entries are named by the hash of the
file's content, of what lies beside it, and the version of the code that reads them:

    prepared/<key>.contract   the contract, as JSON
    prepared/<key>.graph      the network body, where the file's graph continues after it

Without a writable cache, the work is done at every start.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from detcli.cache import cached
from detcli.model.contract import BoxFormat, Contract
from detcli.model.loading import ExternalFile, ModelFile, damage_reported
from detcli.model.preprocessing import overridden

VERSION = 19
"""Must be raised whenever `load`, `recognise` or `cut` gives another result."""


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
    path: Path,
    box_format: BoxFormat | None = None,
    name: str | None = None,
    preprocess: str | None = None,
    *,
    boxes_only: bool = False,
) -> PreparedModel:
    """Read a model file, recognise it and cut its graph to the network body.

    Args:
        path: An ONNX file, with any external data beside it.
        box_format: Format of the box rows, where the caller knows better than the graph.
        name: The name in records, if not the file's.
        preprocess: Parts of the preprocessing, where the caller knows better, as text.
        boxes_only: Read the boxes of a graph that gives masks or keypoints too.

    Raises:
        ModelError: The file cannot be read, or is not a detector.
        UsageError: The preprocessing is malformed.
    """
    file = ModelFile.read(path, box_format, boxes_only=boxes_only)
    key = f"{file.sha256}-{VERSION}"
    beside = None if file.sidecar is None else file.sidecar.sha256
    variant = "-".join(filter(None, (key, box_format, beside, "boxes" if boxes_only else None)))
    described = json.loads(cached(f"prepared/{variant}.contract", lambda: _describe(file)))
    hashes = {name: ExternalFile.read(path, name).sha256 for name in described["external"]}
    if hashes:  # the graph that is cached holds these weights
        key = hashlib.sha256(f"{key} {hashes}".encode()).hexdigest()
    contract = overridden(Contract.from_json(described["contract"]), preprocess)
    if described["output"] == contract.head and not hashes:
        return PreparedModel(name or path.stem, contract, file.content)  # no cut is needed
    graph = cached(f"prepared/{key}.graph", lambda: _body(file))
    return PreparedModel(name or path.stem, contract, graph)


def _describe(file: ModelFile) -> bytes:
    """Everything that a warm start needs to know about a file, as JSON."""
    contract = file.detector()
    outputs = file.model.graph.output
    with damage_reported(file.path):  # a name that is not text cannot be JSON
        described = {
            "contract": asdict(contract),
            "output": outputs[0].name if len(outputs) == 1 else "",
            "external": [external.name for external in file.external],
        }
        return json.dumps(described).encode()


def _body(file: ModelFile) -> bytes:
    """The part of a graph that makes its head, with all its weights."""
    body: bytes = file.body().SerializeToString(deterministic=True)
    return body
