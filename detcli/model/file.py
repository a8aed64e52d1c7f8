"""Reads a model file: its bytes, its external data, its graph, and what it promises.

`onnx` is imported only where a graph is parsed, since a warm start gets by with hashes.
"""

import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from detcli.config.values import BoxFormat
from detcli.core import Fields, frozen
from detcli.core.errors import DetcliError, ModelError
from detcli.model.contract import Contract
from detcli.model.external_data import (
    MAX_BYTES,
    ChangedError,
    ExternalFile,
    load_external,
    open_external,
)
from detcli.model.preprocessing import overridden
from detcli.model.sidecar import Sidecar
from detcli.storage.cache import cached, is_cached
from detcli.storage.files import (
    LFS_HINT,
    LFS_REASON,
    is_lfs_pointer,
    open_regular,
)
from detcli.storage.hashes import FileChangedError, recorded_sha256

if TYPE_CHECKING:
    from onnx import ModelProto

    from detcli.model.coarse import Rounding
    from detcli.model.recognise import Reading

_FROM_TENSORFLOW = "python -m tf2onnx.convert"
FOREIGN = {
    ".pt": ("PyTorch's weights", "export it: yolo export model={} format=onnx"),
    ".pth": ("PyTorch's weights", "export it with the project that trained it: torch.onnx.export"),
    ".safetensors": (
        "weights without a network",
        "export its folder: optimum-cli export onnx --model FOLDER out",
    ),
    ".engine": (
        "an engine of TensorRT for one kind of GPU",
        "give the ONNX file that it was built from: --device tensorrt builds its own engine",
    ),
    ".tflite": (
        "a model of TensorFlow Lite",
        f"convert it: {_FROM_TENSORFLOW} --tflite {{}} --output model.onnx",
    ),
    ".pb": (
        "a model of TensorFlow",
        f"convert its folder: {_FROM_TENSORFLOW} --saved-model FOLDER --output model.onnx",
    ),
}
"""What other weights are, by their suffix, and the way from them to ONNX."""

WITHOUT_SIDECAR = re.compile("models--onnx-community--yolov10[nsmblx]")
"""Folders in a cache of Hugging Face where what lies beside a model does not describe it.

Other programs may fetch more of such a repository into the same cache at any time.
"""


class ReadModel(NamedTuple):
    """The graph of a model's file in two forms, and how it is read as a detector."""

    original: "ModelProto"  # simplified
    model: "ModelProto"  # the same with the shapes of all tensors
    reading: "Reading | ModelError"  # the error says why the graph is not a known detector
    roundings: "tuple[Rounding, ...]" = ()  # those that were removed from it


@dataclass(frozen=True)
class ModelFile:
    """The file of a model; its content is read, and its graph recognised, when first needed.

    Everything that needs the graph raises ModelError if the file is not a complete ONNX model.
    """

    path: Path  # as it was given
    name: str  # in records: that of the zoo, else the file's without its suffix
    half: bool = False  # it is the zoo's float16 file, which was asked for
    # Where the caller knows better than the graph: the format of its box rows, and parts of the
    # preprocessing, as text.
    box_format: BoxFormat | None = None
    preprocess: str | None = None
    boxes_only: bool = False  # the boxes of a graph that gives masks or keypoints too are wanted

    @classmethod
    def read(
        cls,
        path: Path,
        box_format: BoxFormat | None = None,
        preprocess: str | None = None,
        *,
        boxes_only: bool = False,
        content: bytes | None = None,
    ) -> Self:
        """Read the bytes of a model's file at once, and not only when they are needed.

        Args:
            path: The file.
            box_format: The format of its box rows, if the caller knows better than the graph.
            preprocess: Parts of the preprocessing that the caller knows better, as text.
            boxes_only: Whether the boxes of a graph that gives masks or keypoints are wanted.
            content: The bytes to use in place of those on the disk, if any.
        """
        file = cls(
            path=path,
            name=path.stem,
            box_format=box_format,
            preprocess=preprocess,
            boxes_only=boxes_only,
        )
        if content is not None:
            file.__dict__["content"] = content  # as if the cached property had read it
        file.content  # noqa: B018 - the first access reads the file
        return file

    @cached_property
    def content(self) -> bytes:
        """The file's bytes, without external data."""
        problem = f"cannot read the model {self.path}"
        hint = "give the path of an ONNX file"
        try:
            with open_regular(self.path, MAX_BYTES) as file:
                content = file.read()
        except OSError as error:
            raise ModelError(f"{problem}: {error.strerror}", hint) from error
        except MemoryError as error:
            raise ModelError(f"{problem}: it does not fit into memory", hint) from error
        looked_up_sha256 = vars(self).get("sha256")
        if looked_up_sha256 not in {None, hashlib.sha256(content).hexdigest()}:
            raise ChangedError(self.path)
        return content

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the file's bytes."""
        return hashlib.sha256(self.content).hexdigest()

    def look_up_sha256(self) -> None:
        """Take the hash from the cache if the file has not changed since it was computed.

        Then the file is not read before its content is needed.

        Raises:
            ChangedError: It was written while it was read.
        """
        try:
            sha256 = recorded_sha256(self.path, lambda: hashlib.sha256(self.content).hexdigest())
        except FileChangedError as error:
            raise ChangedError(self.path) from error
        self.__dict__["sha256"] = sha256  # as if the cached property had computed it

    @property
    def identity(self) -> str:
        """The hash of all files on which the model's detections depend, see `identity_of`."""
        return identity_of(self.sha256, self.external, self.sidecar)

    @cached_property
    def _loaded(self) -> "tuple[ModelProto, tuple[ExternalFile, ...]]":
        """The parsed model with its weights, and the files that hold these."""
        return load(self.path, self.content)

    @property
    def original(self) -> "ModelProto":
        """The model of the file, with its weights, simplified by `editing.tidy`."""
        return self._read_model.original

    @property
    def model(self) -> "ModelProto":
        """The same as `original`, with all intermediate shapes that can be inferred."""
        return self._read_model.model

    @property
    def external(self) -> tuple[ExternalFile, ...]:
        """The files beside the model that hold its weights, as they were read."""
        _, external = self._loaded
        return external

    @cached_property
    def sidecar(self) -> Sidecar | None:
        """What the configuration files beside the model say; None if there are none for it."""
        for folder in self.path.absolute().parts:
            if WITHOUT_SIDECAR.fullmatch(folder):
                return None
        return Sidecar.read(self.path)

    def files(self) -> dict[str, bytes]:
        """Return the contents of all files of the model, by name relative to its folder."""
        files = {self.path.name: self.content}
        for external in self.external:
            with open_external(self.path, external.name) as file:
                files[external.name] = file.read()
        if self.sidecar is not None:
            files |= self.sidecar.contents
        return files

    @cached_property
    def _read_model(self) -> ReadModel:
        """The graph, simplified, and how it is read as a detector."""
        from detcli.model.editing import copied  # imports onnx

        loaded, _ = self._loaded
        read_model = self._read_as(loaded, folds=False)
        if isinstance(read_model.reading, ModelError):
            # Some graphs are recognised only when what depends on constants alone is computed
            # (folded), which takes longer.
            folded = self._read_as(copied(loaded), folds=True)
            if not isinstance(folded.reading, ModelError):
                read_model = folded
        return self._without_coarse_roundings(read_model)

    def _without_coarse_roundings(self, read_model: ReadModel) -> ReadModel:
        """Remove nodes that round the scores of an 8-bit model too coarsely, and read it again.

        Some of these models round scores so coarsely that small ones become 0. A warning about it
        is added to the contract. Any other graph is returned unchanged.

        Args:
            read_model: The model, from which the nodes are removed in place.
        """
        from detcli.model.coarse import coarse_roundings, take_out  # imports onnx
        from detcli.model.graph import GraphIndex

        if isinstance(read_model.reading, ModelError):
            return read_model
        with damage_reported(self.path):
            head = read_model.reading.adaptation.head
            roundings = coarse_roundings(GraphIndex(read_model.model.graph), head)
            if not roundings:
                return read_model
            take_out(read_model.original, roundings)

        read_again = self._read_as(read_model.original, folds=False)
        reading = read_again.reading
        if not isinstance(reading, ModelError):
            warnings = (*reading.contract.warnings, roundings[0].warning)
            reading = replace(reading, contract=replace(reading.contract, warnings=warnings))
        return read_again._replace(reading=reading, roundings=tuple(roundings))

    @property
    def roundings(self) -> "tuple[Rounding, ...]":
        """The quantisations of its scores that were removed, see `detcli.model.coarse`."""
        return self._read_model.roundings

    def _read_as(self, original: "ModelProto", *, folds: bool) -> ReadModel:
        """Simplify a model and recognise the detector in it.

        Args:
            original: The model, which is simplified in place.
            folds: Whether to compute also what depends on constants alone, see `editing.tidy`.
        """
        from detcli.model.editing import is_valid, tidy  # imports onnx
        from detcli.model.recognise import read_graph

        with damage_reported(self.path):
            model = tidy(original, folds=folds)
            try:
                reading = read_graph(
                    model,
                    title=self.path.name,
                    box_format=self.box_format,
                    sidecar=self.sidecar,
                    boxes_only=self.boxes_only,
                )
            except ModelError as error:
                return ReadModel(original, model, error)
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                if not is_valid(original):  # `damage_reported` then says that it is damaged
                    raise
                return ReadModel(original, model, _not_understood(self.path, error))
        contract = overridden(reading.contract, self.preprocess)
        return ReadModel(original, model, replace(reading, contract=contract))

    @property
    def _reading(self) -> "Reading | ModelError":
        """How the graph is read as a detector, or the error that says why it cannot be."""
        return self._read_model.reading

    @property
    def contract(self) -> Contract | None:
        """What the graph takes and gives; None if it is not a detector that detcli knows."""
        if isinstance(self._reading, ModelError):
            return None
        return self._reading.contract

    @property
    def refusal(self) -> ModelError | None:
        """Why the graph is not a detector that detcli knows; None if it is."""
        if isinstance(self._reading, ModelError):
            return self._reading
        return None

    def detector(self) -> Contract:
        """Return what the detector takes and gives; raises ModelError if it is not known."""
        return self.reading().contract

    def reading(self) -> "Reading":
        """Return the contract of the detector, and the nodes that have to be added to run it.

        Raises:
            ModelError: The graph is not a detector that detcli knows.
        """
        if isinstance(self._reading, ModelError):
            raise self._reading
        return self._reading

    @cached_property
    def selection(self) -> "Reading | None":
        """How to read the detections that the graph selects itself, such as with a TopK.

        None if it selects nothing, or if detcli reads its selection anyway.
        """
        from detcli.model.recognise import read_selection  # imports onnx

        reading = self.reading()
        model = self.model
        with damage_reported(self.path):
            return read_selection(model, reading)

    def body(self) -> "ModelProto":
        """Return the graph that detcli runs: with one input, for images, and the head as output."""
        reading = self.reading()
        model = self.model
        with damage_reported(self.path):
            return reading.body(model)


def identity_of(
    sha256: str, external: Iterable[ExternalFile] = (), sidecar: Sidecar | None = None
) -> str:
    """Compute one SHA-256 for all files of a model.

    A model in one file, without any other, has the SHA-256 of that file.

    Args:
        sha256: The hash of the ONNX file.
        external: The files that hold its weights, if any.
        sidecar: The configuration files beside it, if any.
    """
    hashes = [sha256]
    for external_file in external:
        hashes.append(f"{external_file.sha256} {external_file.name}")
    if sidecar is not None:
        hashes.append(sidecar.sha256)
    if len(hashes) == 1:
        return sha256
    return hashlib.sha256("\n".join(hashes).encode()).hexdigest()


@contextlib.contextmanager
def damage_reported(path: Path) -> Iterator[None]:
    """Turn any exception in the block into a ModelError that says that the file is damaged.

    A damaged file may have nodes without inputs, names that are not text, and impossible tensors.
    Which exceptions libraries raise on these is not documented.
    """
    hint = "fetch or copy the file again"
    try:
        yield
    except DetcliError:
        raise
    except MemoryError as error:
        raise ModelError(f"{path} needs more memory than there is", hint) from error
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise ModelError(f"{path} is damaged: {reason}", hint) from error


def _not_understood(path: Path, error: Exception) -> ModelError:
    """Build the error for a valid graph on which an exception was raised while it was read."""
    return ModelError(
        f"{path.name} is not a detector that detcli knows: its graph is valid, but has a shape or "
        f"an attribute that was not expected ({str(error) or type(error).__name__})",
        "export it again with fixed shapes, or simplify it: onnxsim FILE NEW",
    )


def load(path: Path, content: bytes) -> "tuple[ModelProto, tuple[ExternalFile, ...]]":
    """Parse an ONNX model, check it, and load its weights.

    Args:
        path: The file, beside which external data lie.
        content: The bytes of the file.

    Returns:
        The model with its weights, and the files beside it that hold them, with their hashes.

    Raises:
        ModelError: The file is not a complete ONNX model, or is damaged.
    """
    import onnx
    from google.protobuf.message import DecodeError

    from detcli.model.editing import put_in_order
    from detcli.model.structure import check_structure

    if is_lfs_pointer(content):
        raise ModelError(f"{path} is {LFS_REASON}", LFS_HINT)
    with damage_reported(path):
        try:
            model = onnx.load_model_from_string(content)
        except DecodeError as error:
            raise _not_onnx(path, f": {error}") from error
        # Exporters write the graph before the operator sets, so a truncated file lacks them.
        if content and not model.opset_import:
            raise _not_onnx(path, ": it names no operator set")
        if not model.graph.node:
            raise _not_onnx(path, "")
        check_structure(model)
        put_in_order(model)
        return model, load_external(model, path, MAX_BYTES - len(content))


def _not_onnx(path: Path, reason: str) -> ModelError:
    """Build the error for a file that is not an ONNX model, or not a complete one.

    For a file of another framework, it names the command that exports it.
    """
    suffix = path.suffix.lower()
    if suffix in FOREIGN:
        description, command = FOREIGN[suffix]
        argument = str(path)
        if " " in argument:
            argument = f'"{path}"'
        return ModelError(f"{path} is not ONNX, but {description}", command.format(argument))
    return ModelError(
        f"{path} is not an ONNX model, or is truncated{reason}", "give a complete .onnx file"
    )


VERSION = 47  # must be raised whenever `load`, `recognise` or `cut` gives another result

ATTEMPTS = 5  # how often a model is read that changes meanwhile


class StoredGraph:
    """The graph that detcli runs, which is read when it is first needed.

    On the CPU, it is not needed where ONNX Runtime's own copy is in the cache, see
    `detcli.backend.optimised`.

    Attributes:
        identity: The hash of the files that the graph was made from, which names it in the cache;
            empty for a graph of no file.
    """

    def __init__(self, read: Callable[[], bytes], identity: str = "") -> None:
        """Note how the graph is read.

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
        """What the name of a cache entry has that depends on the graph.

        The graph is only read for it where it is of no file.
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
    sha256: str = ""  # of all that decides its answers, as it was read; see `identity_of`
    half: bool = False  # the whole network computes in float16
    canvas: tuple[int, int] | None = None  # the most that its input will be, where that is known
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
        boxes_only: Read the boxes of a graph that gives masks or keypoints too.

    Raises:
        ModelError: The file cannot be read, or is not a detector.
        UsageError: The preprocessing is malformed.
    """
    for attempt in range(1, ATTEMPTS + 1):  # again if the files change while they are read
        file = ModelFile(path=path, name=path.stem, box_format=box_format, boxes_only=boxes_only)
        try:
            file.look_up_sha256()
            prepared = _prepared(file)
            break
        except ChangedError:
            if attempt == ATTEMPTS:
                raise
    contract = overridden(prepared.contract, preprocess)
    return replace(prepared, name=name or path.stem, contract=contract)


def _prepared(file: ModelFile) -> PreparedModel:
    """Prepare a model to run, or take what was prepared earlier from the cache.

    The cache has two entries for a model: the description that `_describe` writes, and the graph
    that detcli runs. The name of an entry has the hashes and options that its content depends on.

    Raises:
        ChangedError: The files have changed since the name of an entry was computed.
    """
    first_description = _cached_description(file, file.sha256, lambda: _describe(file))
    described_files = _described_external_files(first_description)
    external = tuple(ExternalFile.read(file.path, described.name) for described in described_files)
    # The hash of the ONNX file and of the files with its weights: of all that the graph depends on.
    hash_with_weights = identity_of(file.sha256, external)

    description = first_description
    if external != described_files:
        # The first description is found by the ONNX file alone, and the weights beside it have
        # changed since it was written.
        description = _cached_description(
            file, hash_with_weights, lambda: _describe(_require_unchanged(file, external))
        )
    contract = Contract.from_json(description["contract"])
    runs_as_it_is = description["output"] == contract.head and not external
    if runs_as_it_is:
        graph = StoredGraph(lambda: file.content, hash_with_weights)
    else:
        graph = _graph_in_cache(file, external, hash_with_weights)
    return PreparedModel(
        name=file.name,
        contract=contract,
        stored_graph=graph,
        sha256=identity_of(file.sha256, external, file.sidecar),
        half=description["half"],
    )


def _cached_description(file: ModelFile, digest: str, describe: Callable[[], bytes]) -> Fields:
    """Return the description of a model, see `_describe`, from the cache if it is there.

    Args:
        file: The model.
        digest: The hash of the files that the description is of, which names it in the cache.
        describe: Writes the description if the cache does not have it.
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
    """Return the graph that is cut from a model, which the cache holds.

    Where it does not yet, it is made at once, since the files may change until it is needed.

    Args:
        file: The model.
        external: The files beside it with its weights.
        hash_with_weights: The hash of all of these.

    Raises:
        ChangedError: The files have changed since their hash was computed.
    """
    name = f"prepared/{hash_with_weights}-{VERSION}.graph"

    def read() -> bytes:
        return cached(name, lambda: _serialised_body(_require_unchanged(file, external)))

    graph = StoredGraph(read, hash_with_weights)
    if not is_cached(name):
        graph.content  # noqa: B018 - the first access makes it
    return graph


def _suffix_of_description(file: ModelFile) -> str:
    """Write the end of the name that the cached description of a model has.

    It contains all that decides the description besides the model file itself: the version of
    detcli's reading, options, and the configuration files beside the model.
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

    The keys are: "contract", what the detector takes and gives; "output", the name of the graph's
    only output, or empty if the graph has to be edited before it runs; "half", whether it is
    float16; and "external", the files that hold its weights.
    """
    from detcli.model.graph import is_all_half  # imports onnx

    contract = file.detector()
    outputs = file.model.graph.output
    with damage_reported(file.path):  # a name that is not text cannot be JSON
        output = ""
        is_edited = bool(file.roundings)
        if not is_edited and len(outputs) == 1:
            output = outputs[0].name
        description = {
            "contract": asdict(contract),
            "output": output,
            "half": is_all_half(file.model.graph),
            "external": [asdict(external_file) for external_file in file.external],
        }
        return json.dumps(description).encode()


def _require_unchanged(file: ModelFile, external: tuple[ExternalFile, ...]) -> ModelFile:
    """Return a model after checking that its weights are those that were read before.

    Args:
        file: The model.
        external: The files beside it with its weights, with their hashes as they were read before.

    Raises:
        ChangedError: The model was loaded with other weights.
    """
    if file.external != external:
        raise ChangedError(file.path)
    return file


def _serialised_body(file: ModelFile) -> bytes:
    """Return the graph that detcli runs as bytes."""
    serialised: bytes = file.body().SerializeToString(deterministic=True)
    return serialised
