"""Reads what a graph does with its input before the network begins.

Many exporters put a part of the preprocessing into the graph: a division by 255, mean and standard
deviation, another order of channels. The input is followed through nodes that only move, scale and
shift its channels, however they do it: with one node for all channels or with one for each.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import onnx
from onnx import NodeProto

from detcli.model.graph import GraphIndex, attribute
from detcli.model.sidecar import IMAGENET_MEAN

LEVELS = 255.0
TOLERANCE = 1e-4  # relative, for constants that were float16
NEAR_IMAGENET = 0.02  # of its means; their names are rounded to two or three digits
HANDED_ON = frozenset({"Cast", "Identity", "Dropout", "QuantizeLinear", "DequantizeLinear"})
MERELY_NAMED = frozenset({"Cast", "Identity"})
MAX_TENSORS = 200  # at the input; real graphs have twenty
INTEGERS = {onnx.TensorProto.UINT8, onnx.TensorProto.INT32, onnx.TensorProto.INT64}


class InputNodes(NamedTuple):
    """What a graph does with its input before the network begins.

    Attributes:
        gains: What each channel is multiplied by, in the order in which they are fed.
        offsets: What is added after that.
        swaps: Whether the order of the channels is reversed.
        resized: Whether the picture is resized.
        any_size: Whether the input takes pictures of any size.
        integer: Whether the input is of whole numbers.
    """

    gains: tuple[float, float, float] = (1.0, 1.0, 1.0)
    offsets: tuple[float, float, float] = (0.0, 0.0, 0.0)
    swaps: bool = False
    resized: bool = False
    any_size: bool = False
    integer: bool = False

    @property
    def computes(self) -> bool:
        """Whether values are changed."""
        return not (np.allclose(self.gains, 1, TOLERANCE) and np.allclose(self.offsets, 0))

    @property
    def only_scales(self) -> bool:
        """Whether all that is done is one multiplication."""
        return bool(np.allclose(self.gains, self.gains[0]) and np.allclose(self.offsets, 0))

    @property
    def domain(self) -> float | None:
        """What white is, 255 or 1; None where the nodes do not show it.

        Networks are fed values that span 1 to 5, or 255 where they are levels.
        """
        gain, mean = abs(self.gains[0]), self._means()
        if gain < 0.1:
            return LEVELS
        if np.isclose(gain, 1, TOLERANCE):
            return LEVELS if max(map(abs, mean)) > 2 else 1.0
        return 1.0 if gain > 1 else None

    @property
    def order(self) -> bool | None:
        """Whether blue is fed first, shown by ImageNet's means; None where they are not there."""
        if self.domain is None:
            return None
        shares = np.array(self._means()) / self.domain
        for bgr in (False, True):
            expected = IMAGENET_MEAN[::-1] if bgr else IMAGENET_MEAN
            if np.abs(shares - expected).max() < NEAR_IMAGENET:
                return bgr
        return None

    def _means(self) -> tuple[float, float, float]:
        """Where each channel is zero."""
        return _three(-b / a for a, b in zip(self.gains, self.offsets, strict=True))


def _three(numbers: Iterable[float]) -> tuple[float, float, float]:
    first, second, third = numbers
    return first, second, third


class _Traced(NamedTuple):
    """A tensor that holds channels of the input.

    Attributes:
        axis: Where its channels are; None for one channel without an axis.
        rank: Number of its axes.
        channels: For each channel: which one of the input it is, its gain, its offset.
    """

    axis: int | None
    rank: int
    channels: tuple[tuple[int, float, float], ...]


def read_input_nodes(index: GraphIndex, image: str) -> InputNodes:
    """Follow the input for pictures to where the network begins."""
    value = next(one for one in index.graph.input if one.name == image)
    dims = index.shapes.get(image, [])
    rank = len(dims)
    first = 1 if rank == 4 else 0
    axis = rank - 1 if rank and dims[-1] == 3 and dims[first] != 3 else first
    sides = [dim for number, dim in enumerate(dims) if number >= rank - 3 and number != axis]
    entry = InputNodes(
        any_size=not all(isinstance(side, int) for side in sides),
        integer=value.type.tensor_type.elem_type in INTEGERS,
    )
    if rank not in {3, 4}:
        return entry
    start = _Traced(axis, rank, tuple((number, 1.0, 0.0) for number in range(3)))
    traced, resized = _trace(index, image, start)
    last = _beginning(index, traced)
    if last is None:
        return entry
    by_channel = {source: (gain, offset) for source, gain, offset in traced[last].channels}
    if any(gain == 0 for gain, _ in by_channel.values()):
        return entry
    return entry._replace(
        gains=_three(by_channel[number][0] for number in range(3)),
        offsets=_three(by_channel[number][1] for number in range(3)),
        swaps=[source for source, _, _ in traced[last].channels] == [2, 1, 0],
        resized=resized,
    )


def _trace(index: GraphIndex, image: str, start: _Traced) -> tuple[dict[str, _Traced], bool]:
    """All tensors that hold channels of the input, and whether one of them was resized."""
    traced, resized = {image: start}, False
    for node in index.graph.node:  # in topological order
        if len(traced) > MAX_TENSORS or not any(name in traced for name in node.input):
            continue
        for name, found in _followed(index, node, traced).items():
            traced[name] = found
            resized |= node.op_type == "Resize" and _to_its_own_size(index, node)
    return traced, resized


def _to_its_own_size(index: GraphIndex, resize: NodeProto) -> bool:
    """Whether a Resize does more than multiply the sides by a constant."""
    scales = resize.input[2] if len(resize.input) > 2 else ""
    return not scales or index.constant_tensor(scales) is None


def _beginning(index: GraphIndex, traced: dict[str, _Traced]) -> str | None:
    """The one tensor of three channels that the network takes; None if there is not one."""
    taken = {
        name
        for node in index.graph.node
        if node.op_type not in {"Shape", "Size"} and not traced.keys() >= set(node.output)
        for name in node.input
        if name in traced
    }
    whole = [n for n in taken if sorted(source for source, _, _ in traced[n].channels) == [0, 1, 2]]
    return whole[0] if len(whole) == len(taken) == 1 else None


def _followed(index: GraphIndex, node: NodeProto, traced: dict[str, _Traced]) -> dict[str, _Traced]:
    """What a node makes of traced tensors; empty where it does more than move and scale them."""
    given = traced.get(node.input[0]) if node.input else None
    kind = node.op_type
    if kind in {"Add", "Sub", "Mul", "Div"}:
        result = _computed(index, node, traced)
    elif kind == "Concat":
        result = _joined(node, traced)
    elif given is None:
        result = None
    elif kind in HANDED_ON or kind == "Resize":
        result = given
    elif kind == "Split":
        return _split(node, given)
    elif kind == "Transpose":
        result = _transposed(node, given)
    elif kind in READERS:
        result = READERS[kind](index, node, given)
    else:
        result = None
    return {} if result is None else {node.output[0]: result}


def _constants(index: GraphIndex, name: str, given: _Traced) -> list[float] | None:
    """A constant's value for each channel of a tensor; None if it differs along another axis."""
    tensor = index.constant_tensor(index.behind(name, MERELY_NAMED))
    if tensor is None or math.prod(tensor.dims) not in {1, len(given.channels)}:
        return None
    array = np.asarray(index.array(index.behind(name, MERELY_NAMED)))
    if array.ndim > given.rank:
        return None
    if array.size > 1:
        along = given.rank - array.ndim  # axes that a constant lacks at the front
        if given.axis is None or given.axis < along or array.shape[given.axis - along] == 1:
            return None
    values = [float(value) for value in array.ravel()]
    if not all(map(math.isfinite, values)):
        return None
    return values * (len(given.channels) // len(values))


def _computed(index: GraphIndex, node: NodeProto, traced: dict[str, _Traced]) -> _Traced | None:
    """A sum, difference, product or quotient with a constant."""
    first, second = node.input
    turned = first not in traced
    given = traced.get(second if turned else first)
    numbers = None if given is None else _constants(index, first if turned else second, given)
    if given is None or numbers is None:
        return None
    kind = node.op_type
    if (turned and kind in {"Sub", "Div"}) or (kind == "Div" and 0 in numbers):
        return None
    channels = []
    for (source, gain, offset), number in zip(given.channels, numbers, strict=True):
        if kind in {"Add", "Sub"}:
            channels.append((source, gain, offset + (number if kind == "Add" else -number)))
        else:
            factor = number if kind == "Mul" else 1 / number
            channels.append((source, gain * factor, offset * factor))
    return given._replace(channels=tuple(channels))


def _normalised(index: GraphIndex, node: NodeProto, given: _Traced) -> _Traced | None:
    """A batch normalisation with constant statistics."""
    parts = [_constants(index, name, given._replace(axis=0, rank=1)) for name in node.input[1:5]]
    if given.axis != 1 or len(parts) != 4 or any(part is None for part in parts):
        return None
    epsilon = next((entry.f for entry in node.attribute if entry.name == "epsilon"), 1e-5)
    channels = []
    known = [part for part in parts if part is not None]
    for (source, gain, offset), weight, bias, mean, variance in zip(
        given.channels, *known, strict=True
    ):
        if variance + epsilon <= 0:
            return None
        factor = weight / math.sqrt(variance + epsilon)
        channels.append((source, gain * factor, (offset - mean) * factor + bias))
    return given._replace(channels=tuple(channels))


def _transposed(node: NodeProto, given: _Traced) -> _Traced | None:
    order = next((list(a.ints) for a in node.attribute if a.name == "perm"), [])
    order = order or list(range(given.rank))[::-1]
    if given.axis is None or sorted(order) != list(range(given.rank)):
        return None
    return given._replace(axis=order.index(given.axis))


def _with_axis(index: GraphIndex, node: NodeProto, given: _Traced) -> _Traced | None:
    """An axis more; where one channel has none, it is that of the channels."""
    axes = index.axes(node)
    if axes is None or len(axes) != 1:
        return None
    place = axes[0] % (given.rank + 1)
    axis = place if given.axis is None else given.axis + (place <= given.axis)
    return _Traced(axis, given.rank + 1, given.channels)


def _without_axis(index: GraphIndex, node: NodeProto, given: _Traced) -> _Traced | None:
    """An axis less, which may be that of a single channel."""
    axes = index.axes(node)
    if axes is None or len(axes) != 1 or given.axis is None:
        return None
    place = axes[0] % given.rank
    if place == given.axis:
        return _Traced(None, given.rank - 1, given.channels) if len(given.channels) == 1 else None
    return _Traced(given.axis - (place < given.axis), given.rank - 1, given.channels)


def _gathered(index: GraphIndex, node: NodeProto, given: _Traced) -> _Traced | None:
    """Channels by their numbers."""
    tensor, numbers = index.array(node.input[1]), index.constant(node.input[1])
    if tensor is None or numbers is None or given.axis is None or tensor.ndim > 1:
        return None
    on_channels = attribute(node, "axis", 0) % given.rank == given.axis
    count = len(given.channels)
    if not on_channels or not all(-count <= number < count for number in numbers):
        return None
    kept = tuple(given.channels[number] for number in numbers)
    if tensor.ndim == 0:
        return _Traced(None, given.rank - 1, kept)
    return given._replace(channels=kept)


def _sliced(index: GraphIndex, node: NodeProto, given: _Traced) -> _Traced | None:
    """Channels from one to another, or backwards."""
    parts = [index.constant(name) for name in node.input[1:5]]
    numbers = [part[0] for part in parts if part is not None and len(part) == 1]
    if len(numbers) != len(parts) or len(numbers) < 3 or given.axis is None:
        return None
    start, end, axis, step = [*numbers, 1][:4]
    if axis % given.rank != given.axis or step == 0:
        return None
    last = _end(end, len(given.channels), step)
    return given._replace(channels=given.channels[start:last:step])


def _end(end: int, count: int, step: int) -> int | None:
    """The end of a slice as Python has it: before the first is None, not -1."""
    return None if step < 0 and end < -count else end


def _split(node: NodeProto, given: _Traced) -> dict[str, _Traced]:
    """Each of the channels alone."""
    if given.axis is None or attribute(node, "axis", 0) % given.rank != given.axis:
        return {}
    if len(node.output) != len(given.channels):
        return {}
    return {
        name: given._replace(channels=(channel,))
        for name, channel in zip(node.output, given.channels, strict=True)
    }


def _joined(node: NodeProto, traced: dict[str, _Traced]) -> _Traced | None:
    """Channels side by side."""
    parts = [traced[name] for name in node.input if name in traced]
    if len(parts) != len(node.input) or len({(part.axis, part.rank) for part in parts}) != 1:
        return None
    axis, rank, _ = parts[0]
    if axis is None or attribute(node, "axis", 0) % rank != axis:
        return None
    channels = tuple(channel for part in parts for channel in part.channels)
    return _Traced(axis, rank, channels) if len(channels) <= 3 else None


READERS = {
    "BatchNormalization": _normalised,
    "Gather": _gathered,
    "Slice": _sliced,
    "Squeeze": _without_axis,
    "Unsqueeze": _with_axis,
}
