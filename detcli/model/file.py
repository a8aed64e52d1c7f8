"""Reads a model file: its bytes, its external data, its graph, and what it promises.

`onnx` is imported only where a graph is parsed, since a warm start gets by with hashes.
"""

import contextlib
import hashlib
import json
import math
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from io import BufferedReader
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, Self

from detcli.config.values import BoxFormat
from detcli.core import frozen
from detcli.core.errors import DetcliError, ModelError
from detcli.model.contract import Contract
from detcli.model.preprocessing import Sidecar, overridden
from detcli.storage.cache import cached
from detcli.storage.files import (
    LFS_HINT,
    LFS_POINTER,
    LFS_REASON,
    NO_LINK,
    is_lfs_pointer,
    open_regular,
)

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto

    from detcli.model.coarse import Rounding
    from detcli.model.recognise import Reading

MAX_BYTES = (1 << 31) - 1
"""The most that protobuf can hold in one message, and so the most that a runtime can be given."""

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

BITS = {"BOOL": 8, "FLOAT": 32, "DOUBLE": 64}
"""Bits of the types whose names do not say them, as UINT4, BFLOAT16 and FLOAT8E5M2 do."""

MAX_PACKED = 16
"""The most elements that share an entry of a 32-bit list: those of the smallest type."""

WITHOUT_SIDECAR = re.compile("models--onnx-community--yolov10[nsmblx]")
"""Folders in a cache of Hugging Face where what lies beside a model does not describe it.

Other programs may fetch more of such a repository into the same cache at any time.
"""


class ChangedError(ModelError):
    """A file of a model was written while it was read."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} changed while it was read", "wait until it is complete")


@frozen
class ExternalFile:
    """A file beside the model that holds some of its weights."""

    name: str  # its path, relative to the model's folder
    bytes: int
    sha256: str  # of its content

    @classmethod
    def read(cls, model: Path, name: str) -> Self:
        """Hash a file of external data."""
        with open_external(model, name) as file:
            return cls.of(name, file)

    @classmethod
    def of(cls, name: str, file: BufferedReader) -> Self:
        """Hash an open file."""
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return cls(name, file.tell(), digest)


@dataclass(frozen=True)
class ModelFile:
    """A model that was found; what it holds is read and worked out when first asked for.

    What needs the graph raises ModelError if the file is not a complete ONNX model, see `load`.
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
        """A file with its bytes; `content` in place of those on the disk."""
        file = cls(path, path.stem, False, box_format, preprocess, boxes_only)  # noqa: FBT003
        if content is not None:
            file.__dict__["content"] = content
        file.content  # noqa: B018 - read now
        return file

    @cached_property
    def content(self) -> bytes:
        """The file's bytes, without external data."""
        problem, hint = f"cannot read the model {self.path}", "give the path of an ONNX file"
        try:
            with open_regular(self.path, MAX_BYTES) as file:
                return file.read()
        except OSError as error:
            raise ModelError(f"{problem}: {error.strerror}", hint) from error
        except MemoryError as error:
            raise ModelError(f"{problem}: it does not fit into memory", hint) from error

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the file's bytes."""
        return hashlib.sha256(self.content).hexdigest()

    @property
    def identity(self) -> str:
        """The hash of all that decides its answers, see `identity_of`."""
        return identity_of(self.sha256, self.external, self.sidecar)

    @cached_property
    def _loaded(self) -> "tuple[ModelProto, tuple[ExternalFile, ...]]":
        return load(self.path, self.content)

    @property
    def original(self) -> "ModelProto":
        """The model as the file has it, with its weights, and as `tidy` leaves it."""
        return self._read[0]

    @property
    def model(self) -> "ModelProto":
        """The model with its weights and, as far as they can be inferred, all shapes."""
        return self._read[1]

    @property
    def external(self) -> tuple[ExternalFile, ...]:
        """The files beside the model that hold its weights, as they were read."""
        return self._loaded[1]

    @cached_property
    def sidecar(self) -> Sidecar | None:
        """The description that lies beside the file, if it belongs to it."""
        alone = any(map(WITHOUT_SIDECAR.fullmatch, self.path.absolute().parts))
        return None if alone else Sidecar.read(self.path)

    def files(self) -> dict[str, bytes]:
        """What the model consists of: contents by names relative to its folder."""
        files = {self.path.name: self.content}
        for external in self.external:
            with open_external(self.path, external.name) as file:
                files[external.name] = file.read()
        return files | (self.sidecar.contents if self.sidecar else {})

    @cached_property
    def _read(self) -> "tuple[ModelProto, ModelProto, Reading | ModelError]":
        """The model with its weights, with its shapes as well, and what it promises."""
        from detcli.model.editing import copied  # imports onnx

        original = self._loaded[0]
        found = self._read_as(original, folds=False)
        if isinstance(found[2], ModelError):  # most graphs can be read as they are
            again = self._read_as(copied(original), folds=True)
            found = found if isinstance(again[2], ModelError) else again
        return self._read_before_coarse(*found)

    def _read_before_coarse(
        self, original: "ModelProto", model: "ModelProto", reading: "Reading | ModelError"
    ) -> "tuple[ModelProto, ModelProto, Reading | ModelError]":
        """What was read, again without what rounds its scores to nothing."""
        from detcli.model.coarse import coarse_roundings, take_out  # imports onnx
        from detcli.model.graph import GraphIndex

        if isinstance(reading, ModelError):
            return original, model, reading
        with damage_reported(self.path):
            head = reading.adaptation.head
            roundings = coarse_roundings(GraphIndex(model.graph), head)
            if not roundings:
                return original, model, reading
            take_out(original, roundings)
            self.__dict__["_roundings"] = tuple(roundings)
        mended, model, reading = self._read_as(original, folds=False)
        if isinstance(reading, ModelError):
            return mended, model, reading
        warnings = (*reading.contract.warnings, roundings[0].warning)
        contract = replace(reading.contract, warnings=warnings)
        return mended, model, replace(reading, contract=contract)

    @cached_property
    def roundings(self) -> "tuple[Rounding, ...]":
        """What the file does to its scores and is left out, see `detcli.model.coarse`."""
        self._read  # noqa: B018 - finds them
        found: tuple[Rounding, ...] = self.__dict__.get("_roundings", ())
        return found

    def _read_as(
        self, original: "ModelProto", *, folds: bool
    ) -> "tuple[ModelProto, ModelProto, Reading | ModelError]":
        from detcli.model.editing import is_valid, tidy  # imports onnx
        from detcli.model.recognise import read_graph

        with damage_reported(self.path):
            model, more = tidy(original, folds=folds), self.boxes_only
            try:
                found = read_graph(
                    model, self.path.name, self.box_format, self.sidecar, boxes_only=more
                )
            except ModelError as error:
                return original, model, error
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                if not is_valid(original):
                    raise
                return original, model, _not_understood(self.path, error)
        return original, model, replace(found, contract=overridden(found.contract, self.preprocess))

    @property
    def _reading(self) -> "Reading | ModelError":
        return self._read[2]

    @property
    def contract(self) -> Contract | None:
        """What the graph promises; None if it is not a detector that detcli knows."""
        return None if isinstance(self._reading, ModelError) else self._reading.contract

    @property
    def refusal(self) -> ModelError | None:
        """Why the graph is not a detector that detcli knows; None if it is."""
        return self._reading if isinstance(self._reading, ModelError) else None

    def detector(self) -> Contract:
        """What the graph promises as a detector."""
        return self.reading().contract

    def reading(self) -> "Reading":
        """What the graph promises, and what has to be added to it."""
        if isinstance(self._reading, ModelError):
            raise self._reading
        return self._reading

    @cached_property
    def selection(self) -> "Reading | None":
        """How to read what the graph selects itself; None where detcli does not cut that off."""
        from detcli.model.recognise import read_selection  # imports onnx

        reading, model = self.reading(), self.model
        with damage_reported(self.path):
            return read_selection(model, reading)

    def body(self) -> "ModelProto":
        """The part of the graph that runs: one input for pictures, the head its only output."""
        reading, model = self.reading(), self.model
        with damage_reported(self.path):
            return reading.body(model)


def identity_of(
    sha256: str, external: Iterable[ExternalFile] = (), sidecar: Sidecar | None = None
) -> str:
    """SHA-256 of a model: its file, the external data, and what lies beside it.

    A model in one file without anything beside it has the file's own.
    """
    parts = [sha256, *(f"{one.sha256} {one.name}" for one in external)]
    if sidecar is not None:
        parts.append(sidecar.sha256)
    return sha256 if len(parts) == 1 else hashlib.sha256("\n".join(parts).encode()).hexdigest()


@contextlib.contextmanager
def damage_reported(path: Path) -> Iterator[None]:
    """Report what breaks on a damaged graph as a damaged file.

    Flipped bits make nodes without inputs, names that are not text, and impossible tensors, and
    what libraries raise then is not documented.
    """
    hint = "fetch or copy the file again"
    try:
        yield
    except DetcliError:
        raise
    except MemoryError as error:
        raise ModelError(f"{path} needs more memory than there is", hint) from error
    except Exception as error:
        raise ModelError(
            f"{path} is damaged: {str(error) or type(error).__name__}", hint
        ) from error


def _not_understood(path: Path, error: Exception) -> ModelError:
    """The error of an intact graph that reading it was not prepared for."""
    return ModelError(
        f"{path.name} is not a detector that detcli knows: its graph is valid, but has a shape or "
        f"an attribute that was not expected ({str(error) or type(error).__name__})",
        "export it again with fixed shapes, or simplify it: onnxsim FILE NEW",
    )


def open_external(model: Path, location: str) -> BufferedReader:
    """Open a file of external data, which is beside a model or in a folder below."""
    # Windows paths have all that POSIX paths have, and drives and backslashes besides. A model
    # that is refused on one system is to be refused on all.
    parts = PureWindowsPath(location)
    if not location or "\0" in location or parts.anchor or ".." in parts.parts:
        raise _external_error(
            model,
            f"'{location}' is not a path below the model's folder",
            "export it again, with its weights in the same folder",
        )
    try:
        folder = Path(os.path.realpath(model.parent))
        file = Path(os.path.realpath(folder / location))
        if not file.is_relative_to(folder):
            raise _external_error(
                model,
                f"{location}: a link leads out of the model's folder",
                "put the file itself beside the model, not a link to it; cp -L copies what is "
                "linked",
            )
        # A link that was laid after this check is not followed.
        return open_regular(file, MAX_BYTES, NO_LINK)
    except OSError as error:
        why = f"{location}: {error.strerror or error}"
        raise _external_error(model, why, f"put {location} beside the model") from error


def _external_error(model: Path, why: str, hint: str) -> ModelError:
    return ModelError(f"the external data of {model} cannot be read: {why}", hint)


def load(path: Path, content: bytes) -> "tuple[ModelProto, tuple[ExternalFile, ...]]":
    """Parse a model, with its weights, and hash the files that hold them."""
    import onnx
    from google.protobuf.message import DecodeError

    from detcli.model.editing import put_in_order
    from detcli.model.graph import check_structure

    if is_lfs_pointer(content):
        raise ModelError(f"{path} is {LFS_REASON}", LFS_HINT)
    with damage_reported(path):
        try:
            model = onnx.load_model_from_string(content)
        except DecodeError as error:
            model, reason = onnx.ModelProto(), f": {error}"
        else:
            # The graph is written first: a file cut off after it lacks the operator sets.
            reason = "" if model.opset_import or not content else ": it names no operator set"
        if not model.graph.node or reason:
            if (foreign := FOREIGN.get(path.suffix.lower())) is not None:
                named = f'"{path}"' if " " in str(path) else path
                raise ModelError(f"{path} is not ONNX, but {foreign[0]}", foreign[1].format(named))
            raise ModelError(
                f"{path} is not an ONNX model, or is truncated{reason}",
                "give a complete .onnx file",
            )
        check_structure(model)
        put_in_order(model)
        return model, _load_external(model, path, MAX_BYTES - len(content))


def _load_external(model: "ModelProto", path: Path, limit: int) -> tuple[ExternalFile, ...]:
    """Move external data into the model; returns its files.

    onnx has a function for this, but what it refuses depends on its version, it ignores sparse
    tensors, and it reads as much as a file claims.
    """
    from onnx import TensorProto

    from detcli.model.graph import model_tensors

    beside = defaultdict[str, list["TensorProto"]](list)
    for tensor in model_tensors(model):
        if tensor.data_location != TensorProto.EXTERNAL:
            _check_size(tensor)
            continue
        limit -= _byte_size(tensor)
        if limit < 0:
            raise _external_error(path, "it is more than 2 GiB", "check what the file is")
        place = {entry.key: entry.value for entry in tensor.external_data}
        beside[place.get("location", "")].append(tensor)
    found = []
    for location, tensors in sorted(beside.items()):
        with open_external(path, location) as file:
            before = os.fstat(file.fileno())
            for tensor in tensors:
                _load_tensor(tensor, path, location, file)
                tensor.data_location = TensorProto.DEFAULT
            found.append(ExternalFile.of(location, file))
            after = os.fstat(file.fileno())
        if (before.st_mtime_ns, before.st_size) != (after.st_mtime_ns, after.st_size):
            raise ChangedError(path)
    return tuple(found)


def _check_size(tensor: "TensorProto") -> None:
    if tensor.HasField("raw_data"):
        there, wanted = len(tensor.raw_data), _byte_size(tensor)
        if there != wanted:
            raise ValueError(f"{tensor.name} takes {wanted} bytes and has {there}")
        return
    lists = (tensor.float_data, tensor.int32_data, tensor.string_data)
    there = sum(map(len, (*lists, tensor.int64_data, tensor.double_data, tensor.uint64_data)))
    if _count(tensor) > MAX_PACKED * there:
        raise ValueError(f"{tensor.name} of shape {list(tensor.dims)} has {there} entries")


def _load_tensor(tensor: "TensorProto", path: Path, location: str, file: BufferedReader) -> None:
    """Move the data of one tensor into the model."""
    place: dict[str, str] = {entry.key: entry.value for entry in tensor.external_data}
    size, start = _byte_size(tensor), int(place.get("offset") or 0)
    stop = start + int(place.get("length") or size)
    if start < 0:
        raise ValueError(f"{tensor.name} begins at byte {start} of {location}")
    there = max(0, min(stop, os.fstat(file.fileno()).st_size) - start)
    if there != size:
        file.seek(0)
        if is_lfs_pointer(file.read(len(LFS_POINTER))):
            raise _external_error(path, f"{location} is {LFS_REASON}", LFS_HINT)
        raise _external_error(
            path,
            f"{location} is truncated or another model's: of {tensor.name}, "
            f"which takes {size} bytes, it has {there}",
            f"fetch {location} again, together with the model",
        )
    file.seek(start)
    tensor.raw_data = file.read(size)
    del tensor.external_data[:]


def _byte_size(tensor: "TensorProto") -> int:
    from onnx import TensorProto

    name = TensorProto.DataType.Name(tensor.data_type)
    number = re.search(r"\d+", name)
    bits = int(number[0]) if number else BITS.get(name)
    if bits is None:  # strings
        raise ValueError(f"{tensor.name} is of type {name.lower()}, which has no size")
    return -(-_count(tensor) * bits // 8)


def _count(tensor: "TensorProto") -> int:
    if any(dim < 0 for dim in tensor.dims):
        raise ValueError(f"{tensor.name} is of shape {list(tensor.dims)}")
    return math.prod(tensor.dims)


VERSION = 36  # must be raised whenever `load`, `recognise` or `cut` gives another result

ATTEMPTS = 5  # how often a model is read that changes meanwhile


@frozen
class PreparedModel:
    """A model that is ready to run."""

    name: str  # the name in records: that of the zoo, else the file's without its suffix
    contract: Contract
    graph: bytes  # serialised ONNX graph whose only output is the head
    sha256: str = ""  # of all that decides its answers, as it was read; see `identity_of`
    half: bool = False  # the whole network computes in float16
    canvas: tuple[int, int] | None = None  # the most that its input will be, where that is known


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
    for attempt in range(1, ATTEMPTS + 1):
        file = ModelFile.read(path, box_format, boxes_only=boxes_only)
        try:
            prepared = _prepared(file)
            break
        except ChangedError:
            if attempt == ATTEMPTS:
                raise
    contract = overridden(prepared.contract, preprocess)
    return replace(prepared, name=name or path.stem, contract=contract)


def _prepared(file: ModelFile) -> PreparedModel:
    """Prepare a model, whose entries in the cache are named by all that they are made of.

    Raises:
        ChangedError: What an entry would be made of is not what it is named by.
    """

    def describe() -> bytes:  # all that a warm start needs to know, as JSON
        from detcli.model.graph import is_all_half  # imports onnx

        contract, outputs = file.detector(), file.model.graph.output
        with damage_reported(file.path):  # a name that is not text cannot be JSON
            described = {
                "contract": asdict(contract),
                "output": "" if file.roundings or len(outputs) != 1 else outputs[0].name,
                "half": is_all_half(file.model.graph),
                "external": [asdict(one) for one in file.external],
            }
            return json.dumps(described).encode()

    def with_these(build: Callable[[], bytes]) -> bytes:
        if file.external != external:
            raise ChangedError(file.path)
        return build()

    def body() -> bytes:
        serialised: bytes = file.body().SerializeToString(deterministic=True)
        return serialised

    beside = file.sidecar.sha256 if file.sidecar else None
    variant = [f"{VERSION}", file.box_format, beside, "boxes" if file.boxes_only else None]
    entry = "-".join(filter(None, variant))
    described = json.loads(cached(f"prepared/{file.sha256}-{entry}.contract", describe))
    noted = [ExternalFile(**one) for one in described["external"]]
    external = tuple(ExternalFile.read(file.path, one.name) for one in noted)
    weights = identity_of(file.sha256, external)  # which the cached graph holds
    if external != (*noted,):  # what the graph promises may depend on them
        described = json.loads(
            cached(f"prepared/{weights}-{entry}.contract", partial(with_these, describe))
        )
    contract = Contract.from_json(described["contract"])
    name = f"prepared/{weights}-{VERSION}.graph"
    whole = described["output"] == contract.head and not external  # no cut is needed
    graph = file.content if whole else cached(name, partial(with_these, body))
    identity = identity_of(file.sha256, external, file.sidecar)
    return PreparedModel(file.name, contract, graph, identity, half=described["half"])
