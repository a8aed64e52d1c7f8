"""Graphs whose tensors are looked at: model files, and what runs them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy.typing as npt
import onnx

from detcli.backend import open_tensors
from detcli.backend.device import DeviceOptions
from detcli.backend.preprocess import to_batch
from detcli.backend.runtime.tensors import TensorSession
from detcli.commands.shared.comparison import Precision
from detcli.commands.shared.sides import precision_of
from detcli.errors import ModelError
from detcli.geometry import Picture
from detcli.model.graph import GraphIndex, known_size, shape
from detcli.model.loading import ModelFile
from detcli.model.passes import cut
from detcli.model.recognise import DTYPES

Tensor = npt.NDArray[Any]

DEFAULT_SIZE = (640, 640)


def common_size(files: Sequence[ModelFile], wanted: int | None) -> tuple[int, int]:
    """Height and width of the input that all of them take.

    Raises:
        ModelError: There is none.
        UsageError: The size that is wanted is not possible.
    """
    fixed = {size for file in files if (size := _image_input(file)[1]) is not None}
    if len(fixed) > 1:
        texts = " and ".join(f"{width}x{height}" for height, width in sorted(fixed))
        raise ModelError(
            f"the models take inputs of {texts}: their tensors have nothing in common",
            "compare their detections, without --tensors and --bisect",
        )
    contracts = [file.contract for file in files if file.contract is not None]
    if fixed:
        size = fixed.pop()
    elif wanted is not None:
        size = (wanted, wanted)
    else:
        size = contracts[0].default_size if contracts else DEFAULT_SIZE
    for contract in contracts:
        if wanted is not None:
            contract.canvas(wanted)  # refuses what does not fit
    return size


def _image_input(file: ModelFile) -> tuple[onnx.ValueInfoProto, tuple[int, int] | None]:
    """The input for pictures, and its height and width, None where they are free.

    Raises:
        ModelError: It has none, or others besides.
    """
    inputs = GraphIndex(file.model.graph).image_inputs()
    dims = shape(inputs[0]) if inputs else []
    number = inputs[0].type.tensor_type.elem_type if inputs else 0
    if len(inputs) != 1 or len(dims) != 4 or dims[1] not in {3, None} or number not in DTYPES:
        raise ModelError(
            f"{file.path.name} does not take a picture: it should have one input [B, 3, H, W] of "
            "float32 or float16",
            "see its inputs with detcli inspect",
        )
    height, width = known_size(dims[2]), known_size(dims[3])
    return inputs[0], (height, width) if height and width else None


class Probe:
    """Runs a network on pictures and hands out any of its tensors.

    Attributes:
        graph: The whole graph, or the part of it that makes the head.
        index: Lookups in it.
        name: What to call the model.
        half: Some of it is float16.
    """

    def __init__(
        self,
        file: ModelFile,
        head: str | None,
        device: str,
        size: tuple[int, int],
        options: DeviceOptions,
    ) -> None:
        """Prepare; the network is loaded when it is run.

        Args:
            file: The model.
            head: Where its graph is cut; None for the whole.
            device: "cpu", "cuda:N" or "tensorrt:N".
            size: Height and width of its input.
            options: How to use the device.

        Raises:
            ModelError: It does not take pictures.
        """
        image_input, _ = _image_input(file)
        self.name = file.path.name
        self.half = precision_of(file.model) is Precision.FLOAT16
        model = file.model if head is None else cut(file.model, head)
        self.graph = model.graph
        self.index = GraphIndex(self.graph)
        self._model = onnx.ModelProto()
        self._model.CopyFrom(model)
        self._input = image_input.name
        self._dtype = DTYPES[image_input.type.tensor_type.elem_type]
        self._batch = known_size(shape(image_input)[0]) or 1
        self._size, self._device = size, device
        # As the backend does it: TensorRT runs a float16 model in float16.
        self._options = replace(options, half=options.half or self.half)
        self._session: tuple[tuple[str, ...], TensorSession] | None = None

    @property
    def outputs(self) -> list[str]:
        """Names of the network's own outputs."""
        return [output.name for output in self.graph.output]

    def fetch(self, picture: Picture, names: Sequence[str]) -> dict[str, Tensor]:
        """Run the network on a picture and return tensors by name; what is no tensor is left out.

        Raises:
            DeviceError: The device cannot be used.
            InferenceError: The runtime failed.
            ModelError: It refuses the graph.
        """
        wanted = tuple(dict.fromkeys(names))
        if self._session is None or self._session[0] != wanted:
            self._session = None  # its memory, before the next one takes more
            self._session = wanted, self._open(wanted)
        fed = to_batch(picture, self._size, self._dtype, self._batch)  # (B, 3, H, W)
        return self._session[1].run(self._input, fed)

    def _open(self, names: Sequence[str]) -> TensorSession:
        """A session whose outputs are these tensors; the runtime knows their types."""
        known = {value.name: value for value in self.graph.output}
        del self._model.graph.output[:]
        self._model.graph.output.extend(
            known.get(name, onnx.ValueInfoProto(name=name)) for name in names
        )
        graph = self._model.SerializeToString()
        return open_tensors(self._device, graph, self.name, self._options)
