"""Inputs and outputs of a graph, and their axes without a fixed size."""

from collections.abc import Iterable

from onnx import ValueInfoProto

from detcli.inspection.report import Axis, Tensor
from detcli.model.graph import dtype_name, known_size, shape

LONGEST_SYMBOL = 40  # characters; longer ones are whole formulas that an exporter derived


def describe_tensor(value: ValueInfoProto) -> Tensor:
    """Name, type and shape of a tensor."""
    dims = (
        None if isinstance(dim, str) and len(dim) > LONGEST_SYMBOL else dim for dim in shape(value)
    )
    return Tensor(value.name, dtype_name(value.type.tensor_type.elem_type), tuple(dims))


def dynamic_axes(tensors: Iterable[Tensor]) -> tuple[Axis, ...]:
    """Axes without a fixed size, by their symbols: those of one symbol are of one size."""
    places: dict[str, list[str]] = {}
    for tensor in tensors:
        for number, dim in enumerate(tensor.shape):
            if known_size(dim) is None:
                symbol = dim if isinstance(dim, str) else "?"
                places.setdefault(symbol, []).append(f"{tensor.name}[{number}]")
    return tuple(Axis(name, tuple(found)) for name, found in places.items())
