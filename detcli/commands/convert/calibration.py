"""Which values the tensors of a network take on real pictures."""

import itertools
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, TensorProto, helper

from detcli.backend.preprocess import to_batch
from detcli.backend.runtime.session import CPU, FAILURES, open_session, reason, run_error
from detcli.commands.bench.inputs import BUILT_IN
from detcli.errors import DetcliWarning, InputError
from detcli.geometry import Picture
from detcli.model.contract import Contract
from detcli.model.graph import GraphIndex
from detcli.model.passes.editing import copied
from detcli.record import Origin
from detcli.source.decode import load_file
from detcli.source.item import Item

MOST = 512
"""Pictures that ranges are taken from; more would hardly widen them."""

Tensor = npt.NDArray[Any]


def built_in() -> Item:
    """The picture that comes with detcli."""
    return Item(Origin(BUILT_IN.name), lambda: load_file(BUILT_IN))


def loaded(items: Iterable[Item], advance: Callable[[], None]) -> Iterator[Picture]:
    """The first MOST pictures that can be read; of the others there is a warning."""
    for item in itertools.islice(items, MOST):
        try:
            yield item.load()
        except InputError as error:
            warnings.warn(f"{item.origin.source}: {error}", DetcliWarning, stacklevel=2)
        advance()


def tensor_of(picture: Picture, contract: Contract) -> Tensor:
    """A picture as a batch of the network, `(B, 3, H, W)`, at each place of it."""
    return to_batch(picture, contract.canvas(), contract.input_dtype, contract.batch or 1)


Ranges = dict[str, tuple[float, float]]
"""The lowest and the highest value of tensors, by name."""


def float_tensors(model: ModelProto) -> list[str]:
    """The float32 tensors that nodes of a graph compute, in order; shapes must be inferred."""
    values = (*model.graph.value_info, *model.graph.output)
    floats = {v.name for v in values if v.type.tensor_type.elem_type == TensorProto.FLOAT}
    return [name for node in model.graph.node for name in node.output if name in floats]


def observe(
    model: ModelProto, tensors: Collection[str], batches: Iterable[npt.NDArray[Any]], title: str
) -> Ranges:
    """Run a network, and note the lowest and highest value of each tensor.

    The network itself reduces them: all its tensors at once would fill the memory.

    Args:
        model: Of one image input.
        tensors: Names of its float tensors, the input among them or not.
        batches: What to feed it, one after the other.
        title: What to call it in errors.

    Raises:
        ModelError: The runtime refuses the graph.
        InferenceError: It fails on a batch.
    """
    wanted = list(tensors)
    session = open_session(_reduced(model, wanted).SerializeToString(), CPU, title)
    image = GraphIndex(model.graph).image_inputs()[0].name
    lowest, highest = np.full(len(wanted), np.inf), np.full(len(wanted), -np.inf)
    for batch in batches:
        try:
            values = np.array(session.run(None, {image: batch}), np.float64)
        except FAILURES as error:
            raise run_error(batch.shape, reason(error)) from error
        lowest = np.minimum(lowest, values[: len(wanted)])
        highest = np.maximum(highest, values[len(wanted) :])
    return {name: (low, high) for name, low, high in zip(wanted, lowest, highest, strict=True)}


def _reduced(model: ModelProto, tensors: list[str]) -> ModelProto:
    """The model with the lowest, then the highest values of tensors as its outputs."""
    reduced = copied(model)
    graph = reduced.graph
    del graph.output[:]
    for operator in ("ReduceMin", "ReduceMax"):
        for name in tensors:
            output = f"{name}/{operator}"
            graph.node.append(helper.make_node(operator, [name], [output], keepdims=0))
            graph.output.append(helper.make_tensor_value_info(output, TensorProto.FLOAT, []))
    return reduced
