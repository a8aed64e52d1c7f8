"""Prepares a model to run, or takes what an earlier start has prepared from the cache."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Self

from detcli.config.values import BoxFormat
from detcli.core import Fields, frozen
from detcli.model.contract import Contract
from detcli.model.external_data import ChangedError, ExternalFile
from detcli.model.file import ModelFile, damage_as_model_error, identity_of
from detcli.model.preprocessing import with_user_preprocessing
from detcli.storage.cache import cached, is_cached

VERSION = 48  # must be raised whenever `load`, `recognise` or `cut` returns a different result

ATTEMPTS = 5  # how often to read a model that changes meanwhile


class StoredGraph:
    """The graph that detcli runs, which is read when it is first needed.

    On the CPU, it is not needed where ONNX Runtime's own copy is in the cache, see
    `detcli.backend.optimised`.

    Attributes:
        identity: The hash of the files that the graph was made from, which names it in the cache;
            empty for a graph of no file.
    """

    def __init__(self, read: Callable[[], bytes], identity: str = "") -> None:
        """Keep the function that reads the graph.

        Args:
            read: Returns it as a serialised ONNX model whose only output is the head.
            identity: The hash of the files that it was made from.
        """
        self._read = read
        self.identity = identity

    @classmethod
    def of(cls, content: bytes) -> Self:
        """Hold a graph that is in memory already, and that no file has."""
        return cls(lambda: content)

    @cached_property
    def content(self) -> bytes:
        """The graph, as a serialised ONNX model."""
        return self._read()

    @property
    def key(self) -> str:
        """The part of a cache entry's name that depends on the graph.

        The graph is read for it only if the graph does not come from a file.
        """
        if self.identity:
            return f"{self.identity}-{VERSION}"
        return hashlib.sha256(self.content).hexdigest()


@frozen
class PreparedModel:
    """A model that is ready to run."""

    name: str  # the name in records: that of the zoo, else the file's without its suffix
    contract: Contract
    stored_graph: StoredGraph
    sha256: str = ""  # of everything that determines its answers, as it was read; see `identity_of`
    half: bool = False  # the whole network computes in float16
    canvas: tuple[int, int] | None = None  # the maximum size of its input, where that is known
    narrows: bool = False  # whether narrow images have narrow inputs, and not the whole canvas
    usual_batch: int | None = None  # images in most batches, where that was chosen

    @property
    def graph(self) -> bytes:
        """The graph that detcli runs: a serialised ONNX model whose only output is the head."""
        return self.stored_graph.content


def prepare(
    path: Path,
    box_format: BoxFormat | None = None,
    name: str | None = None,
    preprocess: str | None = None,
    *,
    boxes_only: bool = False,
) -> PreparedModel:
    """Read a model file, recognise the detector in it, and make its graph ready to run.

    What can be prepared is kept in detcli's cache, so that the next start need not parse the graph.

    Args:
        path: An ONNX file, with any external data beside it.
        box_format: Format of the box rows, where the caller knows better than the graph.
        name: The name in records, if not the file's.
        preprocess: Parts of the preprocessing, where the caller knows better, as text.
        boxes_only: Read the boxes of a graph that also outputs masks or keypoints.

    Raises:
        ModelError: The file cannot be read, or is not a detector.
        UsageError: The preprocessing is malformed.
    """
    prepared = _prepare_unchanged(path, box_format, boxes_only=boxes_only)
    contract = with_user_preprocessing(prepared.contract, preprocess)
    return replace(prepared, name=name or path.stem, contract=contract)


def _prepare_unchanged(
    path: Path, box_format: BoxFormat | None, *, boxes_only: bool
) -> PreparedModel:
    """Prepare a model to run; start again if its files change while they are read.

    Args:
        path: An ONNX file, with any external data beside it.
        box_format: Format of the box rows, where the caller knows better than the graph.
        boxes_only: Read the boxes of a graph that also outputs masks or keypoints.

    Raises:
        ChangedError: The files have changed in each of `ATTEMPTS` attempts.
    """
    attempts_left = ATTEMPTS
    while True:
        file = ModelFile(path=path, name=path.stem, box_format=box_format, boxes_only=boxes_only)
        try:
            # The hash comes first: the content is checked against it when it is read later.
            file.look_up_sha256()
            return _prepare_with_cache(file)
        except ChangedError:
            attempts_left -= 1
            if attempts_left == 0:
                raise


def _prepare_with_cache(file: ModelFile) -> PreparedModel:
    """Prepare a model to run, or take what was prepared earlier from the cache.

    The cache has two entries for a model: the description that `_describe` returns, and the graph
    that detcli runs. The name of an entry has the hashes and options that its content depends on.

    Raises:
        ChangedError: The files have changed since the name of an entry was computed.
    """
    description, external = _description_and_weights(file)
    contract = Contract.from_json(description["contract"])

    # The graph depends on the ONNX file and the weights beside it. The answers depend on the
    # configuration files beside the model as well.
    hash_with_weights = identity_of(file.sha256, external)
    hash_of_all_files = identity_of(file.sha256, external, file.sidecar)

    # The file itself can run if nothing has to be cut off or added, and it holds its weights.
    is_head_only_output = description["output"] == contract.head
    runs_as_it_is = is_head_only_output and not external
    if runs_as_it_is:
        graph = StoredGraph(lambda: file.content, hash_with_weights)
    else:
        graph = _graph_in_cache(file, external, hash_with_weights)
    return PreparedModel(
        name=file.name,
        contract=contract,
        stored_graph=graph,
        sha256=hash_of_all_files,
        half=description["half"],
    )


def _description_and_weights(file: ModelFile) -> tuple[Fields, tuple[ExternalFile, ...]]:
    """Return the description of a model, and the files beside it that hold its weights.

    The cache may have two descriptions of a model. The first is stored under the hash of the ONNX
    file alone, since only a description tells which files hold the weights, and so which other
    hashes are needed. If one of these files has changed since the first description was written,
    it is ignored, and a second one is stored under the hashes of all files.

    Raises:
        ChangedError: A file has changed again meanwhile.
    """
    description = _cached_description(file, file.sha256, lambda: _describe(file))
    files_in_description = _described_external_files(description)
    present_files = tuple(
        ExternalFile.read(file.path, described.name) for described in files_in_description
    )
    if present_files == files_in_description:
        return description, present_files

    description_of_present_files = _cached_description(
        file,
        identity_of(file.sha256, present_files),
        lambda: _describe(_load_unchanged(file, present_files)),
    )
    return description_of_present_files, present_files


def _cached_description(file: ModelFile, digest: str, describe: Callable[[], bytes]) -> Fields:
    """Return the description of a model, see `_describe`, from the cache if it is stored there.

    Args:
        file: The model.
        digest: The hash of the files that are described, which names the description in the cache.
        describe: Returns the description; called if the cache does not have it.
    """
    content = cached(f"prepared/{digest}-{_suffix_of_description(file)}", describe)
    description: Fields = json.loads(content)
    return description


def _described_external_files(description: Fields) -> tuple[ExternalFile, ...]:
    """Return the files with a model's weights, as they were when its description was written."""
    return tuple(ExternalFile(**fields) for fields in description["external"])


def _graph_in_cache(
    file: ModelFile, external: tuple[ExternalFile, ...], hash_with_weights: str
) -> StoredGraph:
    """Return the graph that is cut from a model, which is read from the cache when it is needed.

    If the cache does not have it yet, it is cut and stored now. Later, when it is needed, the files
    of the model may have changed.

    Args:
        file: The model.
        external: The files beside it with its weights.
        hash_with_weights: The hash of all of these.

    Raises:
        ChangedError: The files have changed since their hash was computed.
    """
    entry_name = f"prepared/{hash_with_weights}-{VERSION}.graph"

    def cut_graph() -> bytes:
        return _serialised_body(_load_unchanged(file, external))

    def read_graph() -> bytes:
        return cached(entry_name, cut_graph)  # cuts the graph only if the cache does not have it

    graph = StoredGraph(read_graph, hash_with_weights)
    if not is_cached(entry_name):
        graph.content  # noqa: B018 - the first access calls `read_graph`
    return graph


def _suffix_of_description(file: ModelFile) -> str:
    """Return the end of the name of a cached description, such as "47-cxcywh-boxes.contract".

    It contains everything that determines the description besides the model file itself: the
    version of detcli's reading, options, and the configuration files beside the model.
    """
    variant = [str(VERSION)]
    if file.box_format:
        variant.append(file.box_format)
    if file.sidecar:
        variant.append(file.sidecar.sha256)
    if file.boxes_only:
        variant.append("boxes")
    return f"{'-'.join(variant)}.contract"


def _describe(file: ModelFile) -> bytes:
    """Describe a model in JSON, so that a later start can use it without reading its graph.

    The keys are: "contract", what the detector takes and outputs; "output", the name of the graph's
    only output, or empty if the graph has to be edited before it runs; "half", whether it is
    float16; and "external", the files that hold its weights.
    """
    from detcli.model.graph import is_all_half  # imports onnx

    contract = file.detector()
    outputs = file.model.graph.output
    has_to_be_edited = bool(file.roundings) or len(outputs) != 1
    with damage_as_model_error(file.path):  # a name that is not text cannot be JSON
        output = ""
        if not has_to_be_edited:
            output = outputs[0].name
        description = {
            "contract": asdict(contract),
            "output": output,
            "half": is_all_half(file.model.graph),
            "external": [asdict(external_file) for external_file in file.external],
        }
        return json.dumps(description).encode()


def _load_unchanged(file: ModelFile, external: tuple[ExternalFile, ...]) -> ModelFile:
    """Load a model with its weights, and check that these are the ones that were read before.

    Args:
        file: The model, which is loaded in place.
        external: The files beside it with its weights, with their hashes as they were read before.

    Returns:
        The model.

    Raises:
        ChangedError: The weights have changed.
    """
    loaded_external = file.external  # the first access loads the model
    if loaded_external != external:
        raise ChangedError(file.path)
    return file


def _serialised_body(file: ModelFile) -> bytes:
    """Return the graph that detcli runs as bytes."""
    serialised: bytes = file.body().SerializeToString(deterministic=True)
    return serialised
