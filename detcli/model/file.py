"""Reads a model file: its bytes, its external data, its graph, and what it promises.

`onnx` is imported only where a graph is parsed, since a warm start gets by with hashes.
"""

import contextlib
import hashlib
import json
import math
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from io import BufferedReader
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, Self

from detcli.cache import cached
from detcli.errors import DetcliError, ModelError
from detcli.model.contract import BoxFormat, Contract
from detcli.model.preprocessing import Sidecar, overridden
from detcli.model.zoo import has_no_sidecar

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto

    from detcli.model.recognise import Reading

# Neither follows a link that was laid after the check, nor waits for the writer of a pipe.
OPEN_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)

MAX_BYTES = (1 << 31) - 1
"""The most that protobuf can hold in one message, and so the most that a runtime can be given."""

NOT_A_DETECTOR = "no detector is that large; check what the file is"

BITS = {"BOOL": 8, "FLOAT": 32, "DOUBLE": 64}
"""Bits of the types whose names do not say them, as UINT4, BFLOAT16 and FLOAT8E5M2 do."""

MAX_PACKED = 16
"""The most elements that share an entry of a 32-bit list: those of the smallest type."""


@dataclass(frozen=True, slots=True)
class ExternalFile:
    """A file beside the model that holds some of its weights."""

    name: str  # its path, relative to the model's folder
    bytes: int  # its size
    sha256: str  # of its content

    @classmethod
    def read(cls, model: Path, name: str) -> Self:
        """Hash a file of external data.

        Raises:
            ModelError: The file is missing, not a regular file, or outside the model's folder.
        """
        with open_external(model, name) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return cls(name, file.tell(), digest)


@dataclass(frozen=True, eq=False)
class ModelFile:
    """A model file, read once; everything but its bytes is worked out when first asked for.

    What needs the graph raises ModelError if the file is not a complete ONNX model, see `load`.
    """

    path: Path  # as it was given
    content: bytes  # its bytes, without external data
    # the format of the box rows, where the caller knows better than the graph
    box_format: BoxFormat | None = None
    # parts of the preprocessing that the caller knows better, as text
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
    ) -> Self:
        """Read a file's bytes.

        Raises:
            ModelError: The file cannot be read.
        """
        problem, hint = f"cannot read the model {path}", "give the path of an ONNX file"
        try:
            with open(path, "rb", opener=_open_at_once) as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise ModelError(f"{problem}: it is not a regular file", hint)
                if status.st_size > MAX_BYTES:
                    raise ModelError(
                        f"{problem}: it is larger than 2 GiB, as no ONNX file is", hint
                    )
                content = file.read(status.st_size)
                return cls(path, content, box_format, preprocess, boxes_only)
        except OSError as error:
            raise ModelError(f"{problem}: {error.strerror}", hint) from error
        except MemoryError as error:
            raise ModelError(f"{problem}: it does not fit into memory", hint) from error

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the file's bytes."""
        return hashlib.sha256(self.content).hexdigest()

    @cached_property
    def _loaded(self) -> "tuple[ModelProto, list[str]]":
        return load(self.path, self.content)

    @property
    def original(self) -> "ModelProto":
        """The model as the file has it, with its weights."""
        return self._loaded[0]

    @cached_property
    def model(self) -> "ModelProto":
        """The model with its weights and, as far as they can be inferred, all shapes."""
        from detcli.model.editing import infer_shapes  # imports onnx

        original = self.original
        with damage_reported(self.path):
            return infer_shapes(original)

    @cached_property
    def external(self) -> tuple[ExternalFile, ...]:
        """The files beside the model that hold its weights."""
        return tuple(ExternalFile.read(self.path, name) for name in self._loaded[1])

    @cached_property
    def sidecar(self) -> Sidecar | None:
        """What lies beside the file, unless nothing there belongs to it, as for YOLOv10 by name.

        Other programs may fetch more of its repository into the same cache at any time.
        """
        return None if has_no_sidecar(self.path) else Sidecar.read(self.path)

    def files(self) -> dict[str, bytes]:
        """What the model consists of: contents by names relative to its folder.

        Raises:
            ModelError: The file is not a complete ONNX model, or what lies beside it cannot be
                read.
        """
        files = {self.path.name: self.content}
        for external in self.external:
            with open_external(self.path, external.name) as file:
                files[external.name] = file.read()
        return files | (self.sidecar.contents if self.sidecar else {})

    @cached_property
    def _reading(self) -> "Reading | ModelError":
        from detcli.model.recognise import read_graph  # imports onnx

        model = self.model
        with damage_reported(self.path):
            try:
                found = read_graph(
                    model,
                    self.path.name,
                    self.box_format,
                    self.sidecar,
                    boxes_only=self.boxes_only,
                )
            except ModelError as error:
                return error
        return replace(found, contract=overridden(found.contract, self.preprocess))

    @property
    def contract(self) -> Contract | None:
        """What the graph promises; None if it is not a detector that detcli knows."""
        return None if isinstance(self._reading, ModelError) else self._reading.contract

    @property
    def refusal(self) -> ModelError | None:
        """Why the graph is not a detector that detcli knows; None if it is."""
        return self._reading if isinstance(self._reading, ModelError) else None

    def detector(self) -> Contract:
        """What the graph promises as a detector.

        Raises:
            ModelError: The file is not a complete ONNX model, or not a detector.
        """
        return self.reading().contract

    def reading(self) -> "Reading":
        """What the graph promises, and what has to be added to it.

        Raises:
            ModelError: The file is not a complete ONNX model, or not a detector.
        """
        if isinstance(self._reading, ModelError):
            raise self._reading
        return self._reading

    @cached_property
    def selection(self) -> "Reading | None":
        """How to read what the graph selects itself; None where detcli does not cut that off.

        Raises:
            ModelError: The file is not a complete ONNX model, or not a detector.
        """
        from detcli.model.recognise import read_selection  # imports onnx

        reading, model = self.reading(), self.model
        with damage_reported(self.path):
            return read_selection(model, reading)

    def body(self) -> "ModelProto":
        """The part of the graph that runs: one input for pictures, the head its only output.

        Raises:
            ModelError: The file is not a complete ONNX model, or not a detector.
        """
        reading, model = self.reading(), self.model
        with damage_reported(self.path):
            return reading.body(model)


@contextlib.contextmanager
def damage_reported(path: Path) -> Iterator[None]:
    """Report what breaks on a damaged graph as a damaged file.

    Flipped bits make nodes without inputs, names that are not text, and impossible tensors, and
    what libraries raise then is not documented.

    Raises:
        ModelError: The graph is damaged.
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


def _open_at_once(name: str, flags: int) -> int:
    """Open a file, and never wait for the writer of a pipe."""
    return os.open(name, flags | getattr(os, "O_NONBLOCK", 0))


def open_external(model: Path, location: str) -> BufferedReader:
    """Open a file of external data.

    Args:
        model: The model file; the external data is beside it or in a folder below.
        location: Path of the external data, relative to the model's folder.

    Raises:
        ModelError: The file is missing, not a regular file, or outside the model's folder.
    """
    missing = f"put {location} beside the model"
    try:
        file = _inside(model, location)
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):
            raise external_error(model, f"{location}: it is not a regular file", missing)
        if status.st_size > MAX_BYTES:
            raise external_error(model, f"{location}: it is larger than 2 GiB", NOT_A_DETECTOR)
        return open(file, "rb", opener=lambda name, flags: os.open(name, flags | OPEN_FLAGS))
    except OSError as error:
        why = f"{location}: {error.strerror or error}"
        raise external_error(model, why, missing) from error


def _inside(model: Path, location: str) -> Path:
    """Resolve a location, following all links."""
    # Windows paths have all that POSIX paths have, and drives and backslashes besides. A model
    # that is refused on one system is to be refused on all.
    path = PureWindowsPath(location)
    if not location or "\0" in location or path.anchor or ".." in path.parts:
        raise external_error(
            model,
            f"'{location}' is not a path below the model's folder",
            "export it again, with its weights in the same folder",
        )
    folder = Path(os.path.realpath(model.parent))
    file = Path(os.path.realpath(folder / location))
    if not file.is_relative_to(folder):
        raise external_error(
            model,
            f"{location}: a link leads out of the model's folder",
            "put the file itself beside the model, not a link to it; cp -L copies what is linked",
        )
    return file


def external_error(model: Path, why: str, hint: str) -> ModelError:
    """Build the error for external data that cannot be read."""
    return ModelError(f"the external data of {model} cannot be read: {why}", hint)


def load(path: Path, content: bytes) -> "tuple[ModelProto, list[str]]":
    """Parse a model, with its weights.

    Args:
        path: The model file; external data is beside it.
        content: The file's bytes.

    Returns:
        The model, and the names of the external files that hold its weights.

    Raises:
        ModelError: The file is not a complete ONNX model, its graph cannot be walked (see
            `check_structure`), or its external data is missing, too short or outside the model's
            folder.
    """
    import onnx
    from google.protobuf.message import DecodeError

    from detcli.model.graph import check_structure

    with damage_reported(path):
        try:
            model = onnx.load_model_from_string(content)
        except DecodeError as error:
            model, reason = onnx.ModelProto(), f": {error}"
        else:
            # The graph is written first: a file cut off after it lacks the operator sets.
            reason = "" if model.opset_import or not content else ": it names no operator set"
        if not model.graph.node or reason:
            raise ModelError(
                f"{path} is not an ONNX model, or is truncated{reason}",
                "give a complete .onnx file; a PyTorch .pt file has to be exported first",
            )
        check_structure(model)
        return model, _load_external(model, path, MAX_BYTES - len(content))


def _load_external(model: "ModelProto", path: Path, limit: int) -> list[str]:
    """Move external data into the model; returns the names of its files.

    onnx has a function for this, but what it refuses depends on its version, it ignores sparse
    tensors, and it reads as much as a file claims.
    """
    from onnx import TensorProto

    from detcli.model.graph import model_tensors

    names = set()
    for tensor in model_tensors(model):
        if tensor.data_location != TensorProto.EXTERNAL:
            _check_size(tensor)
            continue
        limit -= _byte_size(tensor)
        if limit < 0:
            raise external_error(path, "it is more than 2 GiB", NOT_A_DETECTOR)
        names.add(_load_tensor(tensor, path))
        tensor.data_location = TensorProto.DEFAULT
    return sorted(names)


def _check_size(tensor: "TensorProto") -> None:
    """Check that a tensor has the elements that its shape promises, which libraries trust."""
    if tensor.HasField("raw_data"):
        there, wanted = len(tensor.raw_data), _byte_size(tensor)
        if there != wanted:
            raise ValueError(f"{tensor.name} takes {wanted} bytes and has {there}")
        return
    lists = (tensor.float_data, tensor.int32_data, tensor.string_data)
    there = sum(map(len, (*lists, tensor.int64_data, tensor.double_data, tensor.uint64_data)))
    if _count(tensor) > MAX_PACKED * there:
        raise ValueError(f"{tensor.name} of shape {list(tensor.dims)} has {there} entries")


def _load_tensor(tensor: "TensorProto", path: Path) -> str:
    """Move the data of one tensor into the model; returns the name of its file."""
    place: dict[str, str] = {entry.key: entry.value for entry in tensor.external_data}
    location = place.get("location", "")
    size, start = _byte_size(tensor), int(place.get("offset") or 0)
    stop = start + int(place.get("length") or size)
    if start < 0:
        raise ValueError(f"{tensor.name} begins at byte {start} of {location}")
    with open_external(path, location) as file:
        there = max(0, min(stop, os.fstat(file.fileno()).st_size) - start)
        if there != size:
            raise external_error(
                path,
                f"{location} is truncated or another model's: of {tensor.name}, "
                f"which takes {size} bytes, it has {there}",
                f"fetch {location} again, together with the model",
            )
        file.seek(start)
        tensor.raw_data = file.read(size)
    del tensor.external_data[:]
    return location


def _byte_size(tensor: "TensorProto") -> int:
    """Bytes that a tensor of this shape and type takes."""
    from onnx import TensorProto

    name = TensorProto.DataType.Name(tensor.data_type)
    number = re.search(r"\d+", name)
    bits = int(number[0]) if number else BITS.get(name)
    if bits is None:  # strings
        raise ValueError(f"{tensor.name} is of type {name.lower()}, which has no size")
    return -(-_count(tensor) * bits // 8)


def _count(tensor: "TensorProto") -> int:
    """Elements of a tensor."""
    if any(dim < 0 for dim in tensor.dims):
        raise ValueError(f"{tensor.name} is of shape {list(tensor.dims)}")
    return math.prod(tensor.dims)


VERSION = 19
"""Must be raised whenever `load`, `recognise` or `cut` gives another result."""


@dataclass(frozen=True, slots=True)
class PreparedModel:
    """A model that is ready to run."""

    name: str  # the name in records: that of the zoo, else the file's without its suffix
    contract: Contract  # what the graph promises
    graph: bytes  # serialised ONNX graph whose only output is the head


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
