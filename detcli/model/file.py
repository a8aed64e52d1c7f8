"""Reads a model file: its bytes, its external data, its graph, and what it promises.

`onnx` is imported only where a graph is parsed, since a warm start gets by with hashes.
"""

import contextlib
import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from detcli.config.values import BoxFormat
from detcli.core.errors import DetcliError, ModelError
from detcli.model.contract import Contract
from detcli.model.external_data import (
    MAX_BYTES,
    ChangedError,
    ExternalFile,
    load_external,
    open_external,
)
from detcli.model.preprocessing import with_user_preprocessing
from detcli.model.sidecar import Sidecar
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
    boxes_only: bool = False  # read the boxes of a graph that also outputs masks or keypoints

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
        """Return the model of a file, whose bytes are read now and not only when they are needed.

        Args:
            path: The file.
            box_format: The format of its box rows, if the caller knows better than the graph.
            preprocess: Parts of the preprocessing that the caller knows better, as text.
            boxes_only: Whether to read the boxes of a graph that also outputs masks or keypoints.
            content: The bytes to use in place of those on the disk, if any.
        """
        file = cls(
            path=path,
            name=path.stem,
            box_format=box_format,
            preprocess=preprocess,
            boxes_only=boxes_only,
        )
        if content is None:
            content = file.content  # reads the file
        # The attributes of a frozen dataclass cannot be assigned. But `content` is a cached
        # property, and these look for their value in `__dict__`.
        file.__dict__["content"] = content
        return file

    @cached_property
    def content(self) -> bytes:
        """The file's bytes, without external data.

        If the hash was looked up before (`look_up_sha256`), they have to have that hash.
        """
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
        """Set `sha256` from the cache if the file has not changed since its hash was computed.

        Then the file is not read before its content is needed. Otherwise it is read and hashed now.

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
        return self._model_and_reading.original

    @property
    def model(self) -> "ModelProto":
        """The same as `original`, with all intermediate shapes that can be inferred."""
        return self._model_and_reading.model

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
    def _model_and_reading(self) -> ReadModel:
        """The graph, simplified, and how it is read as a detector.

        For a graph that is not a known detector, an error that says why takes the place of the
        reading.
        """
        from detcli.model.editing import copied  # imports onnx

        loaded, _ = self._loaded
        read_model = self._simplify_and_read(loaded, folds_constants=False)
        is_refused = isinstance(read_model.reading, ModelError)
        if is_refused:
            # Some graphs are recognised only when what depends on constants alone is computed
            # (folded), which takes longer.
            folded_model = self._simplify_and_read(copied(loaded), folds_constants=True)
            if not isinstance(folded_model.reading, ModelError):
                read_model = folded_model
        return self._without_coarse_roundings(read_model)

    def _without_coarse_roundings(self, read_model: ReadModel) -> ReadModel:
        """Repair an 8-bit model that rounds its scores so coarsely that small ones become 0.

        The nodes that round are removed, and a warning about the first of them is added to the
        contract. Any other model is returned unchanged.

        Args:
            read_model: The model. The nodes are found in its copy with shapes, `model`, and are
                removed from its `original` in place. As a copy is of no use then, `original` is
                read again.
        """
        from detcli.model.coarse import coarse_roundings, remove_roundings  # imports onnx
        from detcli.model.graph import GraphIndex

        if isinstance(read_model.reading, ModelError):
            return read_model
        with damage_as_model_error(self.path):
            head = read_model.reading.adaptation.head
            roundings = coarse_roundings(GraphIndex(read_model.model.graph), head)
            if not roundings:
                return read_model
            remove_roundings(read_model.original, roundings)

        repaired_model = self._simplify_and_read(read_model.original, folds_constants=False)
        reading = repaired_model.reading
        if not isinstance(reading, ModelError):
            warnings = (*reading.contract.warnings, roundings[0].warning)
            contract = replace(reading.contract, warnings=warnings)
            reading = replace(reading, contract=contract)
        return repaired_model._replace(reading=reading, roundings=tuple(roundings))

    @property
    def roundings(self) -> "tuple[Rounding, ...]":
        """The quantisations of its scores that were removed, see `detcli.model.coarse`."""
        return self._model_and_reading.roundings

    def _simplify_and_read(self, original: "ModelProto", *, folds_constants: bool) -> ReadModel:
        """Simplify a model in place, and recognise the detector in it.

        Args:
            original: The model to simplify.
            folds_constants: Whether to also compute what depends on constants alone, see
                `editing.tidy`.

        Returns:
            The simplified model, a copy of it with shapes, and how it is read; or, if the graph is
            valid but no known detector, the error that says why.

        Raises:
            ModelError: The file is damaged.
        """
        from detcli.model.editing import is_valid, tidy  # imports onnx
        from detcli.model.recognise import read_graph

        with damage_as_model_error(self.path):
            model_with_shapes = tidy(original, folds_constants=folds_constants)
            try:
                reading = read_graph(
                    model_with_shapes,
                    title=self.path.name,
                    box_format=self.box_format,
                    sidecar=self.sidecar,
                    boxes_only=self.boxes_only,
                )
            except ModelError as error:
                return ReadModel(original, model_with_shapes, error)
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                if not is_valid(original):  # `damage_as_model_error` then says that it is damaged
                    raise
                return ReadModel(original, model_with_shapes, _unexpected_graph(self.path, error))

        contract = with_user_preprocessing(reading.contract, self.preprocess)
        return ReadModel(original, model_with_shapes, replace(reading, contract=contract))

    @property
    def _reading(self) -> "Reading | ModelError":
        """How the graph is read as a detector, or the error that says why it cannot be."""
        return self._model_and_reading.reading

    @property
    def contract(self) -> Contract | None:
        """What the graph takes and outputs; None if it is not a detector that detcli knows."""
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
        """Return what the detector takes and outputs; raises ModelError if it is not known."""
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
        with damage_as_model_error(self.path):
            return read_selection(model, reading)

    def body(self) -> "ModelProto":
        """Return the graph that detcli runs: with one input, for images, and the head as output."""
        reading = self.reading()
        model = self.model
        with damage_as_model_error(self.path):
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
def damage_as_model_error(path: Path) -> Iterator[None]:
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


def _unexpected_graph(path: Path, error: Exception) -> ModelError:
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
    with damage_as_model_error(path):
        try:
            model = onnx.load_model_from_string(content)
        except DecodeError as error:
            raise _not_onnx(path, str(error)) from error
        # Exporters write the graph before the operator sets, so a truncated file lacks them.
        if content and not model.opset_import:
            raise _not_onnx(path, "it names no operator set")
        if not model.graph.node:
            raise _not_onnx(path)
        check_structure(model)
        put_in_order(model)
        return model, load_external(model, path, MAX_BYTES - len(content))


def _not_onnx(path: Path, reason: str | None = None) -> ModelError:
    """Build the error for a file that is not an ONNX model, or not a complete one.

    For a file from another framework, it names the command that exports it.

    Args:
        path: The file.
        reason: What shows that, such as "it names no operator set", if there is more to say.
    """
    suffix = path.suffix.lower()
    if suffix in FOREIGN:
        description, command = FOREIGN[suffix]
        argument = str(path)
        if " " in argument:
            argument = f'"{path}"'
        return ModelError(f"{path} is not ONNX, but {description}", command.format(argument))

    problem = f"{path} is not an ONNX model, or is truncated"
    if reason is not None:
        problem += f": {reason}"
    return ModelError(problem, "give a complete .onnx file")
