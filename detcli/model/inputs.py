"""Finds the input for pictures, and what the other inputs of a graph want."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import onnx
from onnx import NodeProto, ValueInfoProto

from detcli.errors import ModelError, UsageError
from detcli.model.contract import Contract, Interpolation, Preprocessing, Resize
from detcli.model.graph import GraphIndex, attribute, integers, known_size, shape
from detcli.model.heads.decode import Unrecognised, moved_inputs
from detcli.model.heads.rows import INTEGERS
from detcli.model.preprocessing import (
    CONFIG,
    FAMILY,
    IMAGENET_MEAN,
    METADATA_KEY,
    PARTS,
    PREPROCESSOR,
    Sidecar,
    change,
    named_parts,
    require_levels,
)

DTYPES: dict[int, str] = {
    onnx.TensorProto.FLOAT: "float32",
    onnx.TensorProto.FLOAT16: "float16",
    onnx.TensorProto.UINT8: "uint8",
}
MAX_INPUT = 1 << 28  # pixels of a batch; as floats, 3 GiB
CHANNELS = 3


@dataclass(frozen=True, slots=True)
class ImageInput:
    """The input for pictures."""

    name: str  # its name
    dtype: str  # float32, float16 or uint8
    batch: int | None  # B, or None where any batch is accepted
    size: tuple[int, int] | None  # height and width, or None where any are accepted
    channels_last: bool = False  # whether it is `[B, H, W, 3]` instead of `[B, 3, H, W]`
    single: bool = False  # whether it is a picture without a batch, `[3, H, W]`

    @property
    def is_unusual(self) -> bool:
        """True if nodes have to be put before it."""
        return self.channels_last or self.single or self.dtype == "uint8"


class Role(StrEnum):
    """What an input beside the picture wants."""

    WIDTH_HEIGHT = "width and height of the input"
    HEIGHT_WIDTH = "height and width of the input"
    SCALE = "scale of the picture"  # 1: the picture is the input
    MASK = "which pixels are the picture's"  # all of them


@dataclass(frozen=True, slots=True)
class OtherInput:
    """An input that detcli feeds with what follows from the picture."""

    name: str  # its name
    dtype: int  # as ONNX numbers it
    role: Role  # what it wants


def find_inputs(index: GraphIndex) -> tuple[ImageInput, tuple[OtherInput, ...]]:
    """Find the input for pictures and the others."""
    inputs = index.image_inputs()
    images = [value for value in inputs if _may_be_image(value)]
    if len(images) != 1:
        if len(inputs) == 1:
            raise Unrecognised(_why_not(inputs[0]))
        raise Unrecognised(f"it has {len(inputs)} inputs, {len(images)} of them for pictures")
    others = tuple(_other(index, value) for value in inputs if value is not images[0])
    return _image(images[0]), others


def _may_be_image(value: ValueInfoProto) -> bool:
    dims = shape(value)
    if value.type.tensor_type.elem_type not in DTYPES:
        return False
    if len(dims) == 3:
        return CHANNELS in (dims[0], dims[2])
    return len(dims) == 4 and (dims[3] == CHANNELS or not _fixed_other(dims[1]))


def _fixed_other(channels: int | str | None) -> bool:
    return isinstance(channels, int) and channels != CHANNELS


def _why_not(value: ValueInfoProto) -> str:
    dims = shape(value)
    if value.type.tensor_type.elem_type not in DTYPES and len(dims) == 4:
        return "its input is neither float32, float16 nor uint8"
    return "its input is not a batch of colour images"


def _image(value: ValueInfoProto) -> ImageInput:
    """Read the input for pictures."""
    dims = shape(value)
    single = len(dims) == 3
    if single:
        dims = [1, *dims]
    last = dims[3] == CHANNELS and dims[1] != CHANNELS
    height, width = dims[1:3] if last else dims[2:4]
    if isinstance(height, int) != isinstance(width, int):
        raise Unrecognised("its input fixes one side of the image but not the other")
    sides = known_size(height), known_size(width)
    size = (sides[0], sides[1]) if sides[0] and sides[1] else None
    pixels = (known_size(dims[0]) or 1) * math.prod(size or (1, 1))
    if pixels > MAX_INPUT:
        raise Unrecognised(f"its input has {pixels} pixels")
    dtype = DTYPES[value.type.tensor_type.elem_type]
    return ImageInput(value.name, dtype, known_size(dims[0]), size, last, single)


def _other(index: GraphIndex, value: ValueInfoProto) -> OtherInput:
    """Tell what an input beside the picture wants, by its shape, type and use.

    `orig_target_sizes` of RT-DETR and D-FINE are whole numbers, width and height; Paddle's
    `scale_factor` is what boxes are divided by, its `im_shape` height and width; the `pixel_mask`
    of DETR on Hugging Face has an entry for each pixel.
    """
    dims, dtype = shape(value), value.type.tensor_type.elem_type
    if len(dims) == 3 and dtype in INTEGERS | {onnx.TensorProto.BOOL}:
        return OtherInput(value.name, dtype, Role.MASK)
    if len(dims) == 2 and (dims[1] == 2 or not isinstance(dims[1], int)):
        if dtype in INTEGERS:
            return OtherInput(value.name, dtype, Role.WIDTH_HEIGHT)
        if dtype in (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16):
            divides = _divides(index, value.name)
            return OtherInput(value.name, dtype, Role.SCALE if divides else Role.HEIGHT_WIDTH)
    raise Unrecognised(f"it is not clear what its input {value.name} is for")


def _divides(index: GraphIndex, tensor: str) -> bool:
    """True if something is divided by a tensor, or by what is cut out of it."""
    moved = index.moved_from(tensor)
    divisors = {n.input[1] for n in index.graph.node if n.op_type == "Div"} & moved
    return any(_only_moves(index, name, tensor) for name in divisors)


def _only_moves(index: GraphIndex, name: str, source: str) -> bool:
    """True if a tensor holds elements of another, moved only."""
    waiting = [name]
    for _ in range(16):
        if source in waiting:
            return True
        following: list[str] = []
        for entry in waiting:
            node = index.producer(entry)
            following += (node and moved_inputs(node, entry)) or []
        waiting = following
    return False


LEVELS = 255.0
TOLERANCE = 1e-4  # relative, for constants that were float16
NEAR_IMAGENET = 0.02  # of its means; their names are rounded to two or three digits
HANDED_ON = frozenset({"Cast", "Identity", "Dropout", "QuantizeLinear", "DequantizeLinear"})
MERELY_NAMED = frozenset({"Cast", "Identity"})
MAX_TENSORS = 200  # at the input; real graphs have twenty
WHOLE_NUMBERS = {onnx.TensorProto.UINT8, onnx.TensorProto.INT32, onnx.TensorProto.INT64}


class InputNodes(NamedTuple):
    """What a graph does with its input before the network begins."""

    # what each channel is multiplied by, in the order in which they are fed
    gains: tuple[float, float, float] = (1.0, 1.0, 1.0)
    offsets: tuple[float, float, float] = (0.0, 0.0, 0.0)  # what is added after that
    swaps: bool = False  # whether the order of the channels is reversed
    resized: bool = False  # whether the picture is resized
    any_size: bool = False  # whether the input takes pictures of any size
    integer: bool = False  # whether the input is of whole numbers

    @property
    def computes(self) -> bool:
        """True if values are changed."""
        return not (np.allclose(self.gains, 1, TOLERANCE) and np.allclose(self.offsets, 0))

    @property
    def only_scales(self) -> bool:
        """True if all that is done is one multiplication."""
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
        """True if blue is fed first, shown by ImageNet's means; None where they are not there."""
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
    """A tensor that holds channels of the input."""

    axis: int | None  # where its channels are; None for one channel without an axis
    rank: int  # number of its axes
    # for each channel: which one of the input it is, its gain, its offset
    channels: tuple[tuple[int, float, float], ...]


def read_input_nodes(index: GraphIndex, image: str) -> InputNodes:
    """Follow the input for pictures to where the network begins."""
    value = next(one for one in index.graph.input if one.name == image)
    dims = index.shapes[image]
    rank = len(dims)
    first = 1 if rank == 4 else 0
    axis = rank - 1 if rank and dims[-1] == 3 and dims[first] != 3 else first
    sides = [dim for number, dim in enumerate(dims) if number >= rank - 3 and number != axis]
    entry = InputNodes(
        any_size=not all(isinstance(side, int) for side in sides),
        integer=value.type.tensor_type.elem_type in WHOLE_NUMBERS,
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
    """True if a Resize does more than multiply the sides by a constant."""
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
    order = integers(node, "perm")
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


NODES = "nodes at the input"
EXPORTER = "Ultralytics"
EXPORTED = f"metadata of {EXPORTER}' exporter, and the family's rule"
METADATA = f"metadata {METADATA_KEY}"


@dataclass(frozen=True, slots=True)
class ResolvedPreprocessing:
    """How pictures become a graph's input."""

    preprocessing: Preprocessing  # what is fed; parts that nothing settles are as in a YOLO
    # parts that are settled, and what settled each: resize, interpolation, values, channels
    by: tuple[tuple[str, str], ...]
    unsettled: tuple[str, ...]  # parts that nothing settles
    # height and width of the input that a neighbour of the file gives
    size: tuple[int, int] | None = None


def resolve_preprocessing(
    index: GraphIndex,
    image: str,
    metadata: dict[str, str],
    sidecar: Sidecar | None,
    family: Preprocessing | None,
) -> ResolvedPreprocessing:
    """Resolve the preprocessing of a graph."""
    nodes = read_input_nodes(index, image)
    found, by, size = family or Preprocessing(), dict[str, str](), None
    if family is not None:
        by = dict.fromkeys(PARTS, FAMILY)
    if nodes.resized and nodes.any_size:
        found = replace(found, resize=Resize.NONE, longest=None, enlarge=None, edges=None)
        by["resize"] = by["interpolation"] = NODES
    if family is not None and metadata.get("author") == EXPORTER:
        # The family's rule is that of Ultralytics' predictor, which always resizes by OpenCV.
        found, by = (
            replace(found, interpolation=Interpolation.LINEAR),
            dict.fromkeys(PARTS, EXPORTED),
        )
    elif sidecar is not None and sidecar.path is not None:
        found, own, size = _with_sidecar(found, sidecar, fixed=not nodes.any_size)
        by |= dict.fromkeys(own, PREPROCESSOR)
    found, own = _through_nodes(found, nodes, by)
    by |= dict.fromkeys(own, NODES)
    if text := metadata.get(METADATA_KEY):
        try:
            found = change(found, text)
            if nodes.integer:
                require_levels(found, text)
            by |= dict.fromkeys(named_parts(text), METADATA)
        except UsageError as error:
            problem = str(error).replace("--preprocess", METADATA_KEY)
            raise ModelError(
                f"the metadata of the model is malformed: {problem}",
                f"export it again with another {METADATA_KEY}, or without",
            ) from error
    settled = tuple((part, by[part]) for part in PARTS if part in by)
    return ResolvedPreprocessing(
        found, settled, tuple(part for part in PARTS if part not in by), size
    )


def _with_sidecar(
    found: Preprocessing, sidecar: Sidecar, *, fixed: bool
) -> tuple[Preprocessing, list[str], tuple[int, int] | None]:
    """What preprocessor_config.json adds: the parts that it settles and the input's size."""
    own, size = list[str](), None
    if (values := sidecar.values) is not None:
        found = replace(found, scale=values.scale, mean=values.mean, std=values.std, bgr=values.bgr)
        own += ["values", "channels"]
    if sidecar.interpolation is not None:
        found = replace(found, interpolation=sidecar.interpolation)
        own.append("interpolation")
    way = sidecar.resizing
    # An input of a fixed size cannot follow the picture.
    if way is not None and not (fixed and way.resize in {Resize.SHORTEST_EDGE, Resize.NONE}):
        pad = found.pad
        if way.resize is Resize.CORNER and found.scale:
            # Transformers pad with 0 after the normalisation: the nearest level.
            pad = min(max(round(sum(found.mean) / 3 / found.scale), 0), 255)
        found = replace(
            found,
            resize=way.resize,
            edges=way.edges,
            multiple=way.multiple,
            longest=None,
            enlarge=None,
            pad=pad,
        )
        own.append("resize")
        size = way.size
    return found, own, size


def _through_nodes(
    wanted: Preprocessing, nodes: InputNodes, by: dict[str, str]
) -> tuple[Preprocessing, list[str]]:
    """What to feed so that the network behind the input nodes gets what it was trained on."""
    own = []
    bgr = wanted.bgr
    if nodes.swaps:
        bgr = not bgr
        own += ["channels"] if "channels" in by else []
    if (shown := nodes.order) is not None:
        bgr, own = shown, ["channels"]
    fed = replace(wanted, bgr=bgr)
    if bgr != wanted.bgr:
        fed = replace(fed, mean=wanted.mean[::-1], std=wanted.std[::-1])
    plain = replace(fed, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    if nodes.integer:
        return replace(plain, scale=1.0), [*own, "values"]
    if not nodes.computes:
        return fed, own
    normalises = any(fed.mean) or len(set(fed.std)) > 1
    if nodes.only_scales and normalises and "values" in by:
        gain = nodes.gains[0]
        red, green, blue = fed.std
        return replace(fed, std=(red * gain, green * gain, blue * gain)), [*own, "values"]
    domain = nodes.domain
    if domain is None:
        by.pop("values", None)
        return fed, own
    return replace(plain, scale=1.0 if domain == LEVELS else 1 / LEVELS), [*own, "values"]


def with_preprocessing(
    contract: Contract,
    index: GraphIndex,
    metadata: dict[str, str],
    sidecar: Sidecar | None,
    family: Preprocessing | None,
) -> Contract:
    """The contract of a graph with its preprocessing, and class names from beside the file.

    For the arguments see `resolve_preprocessing`.
    """
    found = resolve_preprocessing(index, contract.input_name, metadata, sidecar, family)
    contract = replace(
        contract,
        preprocessing=found.preprocessing,
        settled=(*contract.settled, *found.by),
        unsettled=found.unsettled,
        default_size=found.size or contract.default_size,
    )
    names = None if sidecar is None else sidecar.names
    if names is None or "names" in metadata:
        return contract
    if contract.counts_classes and len(names) != contract.class_count:
        return contract
    return contract.with_names(names, CONFIG)
