"""Runs a network to read any of its tensors."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy.typing as npt
import onnx

from detcli.backend import open_tensors
from detcli.backend.device import Device
from detcli.backend.preprocess import DEFAULT, place, to_batch
from detcli.backend.protocol import Tensors
from detcli.commands.shared.comparison import Precision
from detcli.commands.shared.sides import precision_of
from detcli.commands.verify.plan import SidePlan, image_input
from detcli.geometry import Picture
from detcli.model.editing import copied
from detcli.model.graph import GraphIndex, known_size, shape
from detcli.model.inputs import DTYPES

Tensor = npt.NDArray[Any]


class Probe:
    """Runs a network on pictures and returns any of its tensors."""

    def __init__(self, side: SidePlan, size: tuple[int, int], *, at_head: bool) -> None:
        """Prepare the graph; `fetch` loads it.

        Args:
            side: The model and its device.
            size: Height and width of the input.
            at_head: Cut the graph at the detector's head, if it has one.

        Raises:
            ModelError: The network does not take pictures.
        """
        file = side.file
        given = image_input(file)
        self.name = file.path.name
        self.half = precision_of(file.model) is Precision.FLOAT16  # at least in part
        self.contract = file.contract if at_head else None  # None for a whole graph
        self._preprocessing = file.contract.preprocessing if file.contract else DEFAULT
        model = file.body() if self.contract else file.model
        self.graph = model.graph  # all of it, or the part that makes the head
        self.index = GraphIndex(self.graph)
        self._model = copied(model)
        self._input = given.name
        self._dtype = DTYPES[given.type.tensor_type.elem_type]
        self._batch = known_size(shape(given)[0]) or 1
        self._size, self._device = size, side.device
        # As the backend does it: TensorRT runs a float16 model in float16.
        half = self.half and Device.parse(side.device).uses_tensorrt
        self._options = replace(side.options, half=side.options.half or half)
        self._session: tuple[tuple[str, ...], Tensors] | None = None

    @property
    def outputs(self) -> list[str]:
        """Names of the graph's outputs."""
        return [output.name for output in self.graph.output]

    def fetch(self, picture: Picture, names: Sequence[str]) -> dict[str, Tensor]:
        """Run the network on a picture and return tensors by name, without sequences and maps.

        Raises:
            DeviceError: The device cannot be used.
            InferenceError: The runtime failed.
            ModelError: The runtime refuses the graph.
        """
        wanted = tuple(dict.fromkeys(names))
        if self._session is None or self._session[0] != wanted:
            self._session = None  # frees its memory before the next one takes more
            self._session = wanted, self._open(wanted)
        letterbox = place(picture.size, self._size, self._preprocessing)
        fed = to_batch(picture, letterbox, self._preprocessing, self._dtype, self._batch)
        return self._session[1].run_watched(self._input, fed)

    def _open(self, names: Sequence[str]) -> Tensors:
        """Load the graph with these tensors as outputs; the runtime infers their types."""
        known = {value.name: value for value in self.graph.output}
        outputs = [known.get(name, onnx.ValueInfoProto(name=name)) for name in names]
        del self._model.graph.output[:]
        self._model.graph.output.extend(outputs)
        content = self._model.SerializeToString()
        return open_tensors(self._device, content, self.name, self._options)
