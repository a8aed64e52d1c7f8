"""Finds the input for pictures, and what the other inputs of a graph want."""

import math
from dataclasses import replace
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
from onnx import NodeProto, ValueInfoProto

from detcli.core import frozen
from detcli.core.errors import ModelError, UsageError
from detcli.model.contract import Contract, Interpolation, Preprocessing, Resize, Size
from detcli.model.graph import (
    CONVOLUTIONS,
    GraphIndex,
    attribute,
    image_size,
    integers,
    known_size,
    shape,
)
from detcli.model.heads import Unrecognised
from detcli.model.heads.decode import moved_inputs
from detcli.model.heads.selected_in_graph import INTEGERS
from detcli.model.preprocessing import (
    IMAGENET_MEAN,
    METADATA_KEY,
    PARTS,
    PREPROCESSOR,
    SIZE,
    Sidecar,
    changed,
    named_parts,
    parse,
    require_uint8_values,
    settle,
)

DTYPES: dict[int, str] = {
    onnx.TensorProto.FLOAT: "float32",
    onnx.TensorProto.FLOAT16: "float16",
    onnx.TensorProto.UINT8: "uint8",
}
MAX_INPUT = 1 << 28  # pixels of a batch; as floats, 3 GiB
CHANNELS = 3


@frozen
class ImageInput:
    """The input for pictures."""

    name: str
    dtype: str  # float32, float16 or uint8
    batch: int | None  # B, or None where any batch is accepted
    size: Size | None  # height and width, or None where any are accepted
    channels_last: bool = False  # whether it is `[B, H, W, 3]` instead of `[B, 3, H, W]`
    single: bool = False  # whether it is a picture without a batch, `[3, H, W]`

    @property
    def floats(self) -> str:
        """The type that pictures are given in."""
        return "float16" if self.dtype == "float16" else "float32"

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


@frozen
class OtherInput:
    """An input that detcli feeds with what follows from the picture."""

    name: str
    dtype: int  # as ONNX numbers it
    role: Role


def find_inputs(index: GraphIndex) -> tuple[ImageInput, tuple[OtherInput, ...]]:
    """Find the input for pictures and the others."""
    inputs = index.image_inputs()
    images = {value.name: image for value in inputs if (image := _image(value)) is not None}
    if len(images) == 1:
        others = tuple(_other(index, value) for value in inputs if value.name not in images)
        return next(iter(images.values())), others
    if len(inputs) != 1:
        raise Unrecognised(f"it has {len(inputs)} inputs, {len(images)} of them for pictures")
    if len(shape(inputs[0])) == 4 and inputs[0].type.tensor_type.elem_type not in DTYPES:
        raise Unrecognised("its input is neither float32, float16 nor uint8")
    raise Unrecognised("its input is not a batch of colour images")


def _image(value: ValueInfoProto) -> ImageInput | None:
    """An input for pictures; None if it is for something else."""
    dims, dtype = shape(value), DTYPES.get(value.type.tensor_type.elem_type)
    single = len(dims) == 3
    if single:
        dims = [1, *dims]
    if dtype is None or len(dims) != 4:
        return None
    if CHANNELS not in {dims[1], dims[3]} and (single or isinstance(dims[1], int)):
        return None
    last = dims[3] == CHANNELS and dims[1] != CHANNELS
    height, width = dims[1:3] if last else dims[2:4]
    if isinstance(height, int) != isinstance(width, int):
        raise Unrecognised("its input fixes one side of the image but not the other")
    size = image_size(height, width)
    pixels = (known_size(dims[0]) or 1) * math.prod(size or (1, 1))
    if pixels > MAX_INPUT:
        raise Unrecognised(f"its input has {pixels} pixels")
    return ImageInput(value.name, dtype, known_size(dims[0]), size, last, single)


def _other(index: GraphIndex, value: ValueInfoProto) -> OtherInput:
    """Tell what an input beside the picture wants, by its shape, type and use.

    `orig_target_sizes` of RT-DETR and D-FINE are whole numbers, width and height; Paddle's
    `scale_factor` is what boxes are divided by, its `im_shape` height and width; the `pixel_mask`
    of DETR on Hugging Face has an entry for each pixel.
    """
    dims, dtype = shape(value), value.type.tensor_type.elem_type
    pairs = len(dims) == 2 and (dims[1] == 2 or not isinstance(dims[1], int))
    if len(dims) == 3 and dtype in INTEGERS | {onnx.TensorProto.BOOL}:
        role = Role.MASK
    elif pairs and dtype in INTEGERS:
        role = Role.WIDTH_HEIGHT
    elif pairs and dtype in {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16}:
        role = Role.SCALE if _divides(index, value.name) else Role.HEIGHT_WIDTH
    else:
        raise Unrecognised(f"it is not clear what its input {value.name} is for")
    return OtherInput(value.name, dtype, role)


def _divides(index: GraphIndex, tensor: str) -> bool:
    """True if something is divided by a tensor, or by what is cut out of it."""
    divisors = {n.input[1] for n in index.graph.node if n.op_type == "Div"}
    behind = index.behind_all(
        divisors & index.moved_from(tensor), lambda node, name: moved_inputs(node, name) or ()
    )
    sources = (moved_inputs(node, name) or () for node, name in behind)
    return tensor in divisors or any(tensor in inputs for inputs in sources)


LEVELS = 255.0
TOLERANCE = 1e-4  # relative, for constants that were float16
NEAR_IMAGENET = 0.02  # of its means; their names are rounded to two or three digits
HANDED_ON = frozenset(
    {"Cast", "DequantizeLinear", "Dropout", "Identity", "QuantizeLinear", "Resize"}
)
MERELY_NAMED = frozenset({"Cast", "Identity"})
MAX_TENSORS = 200  # at the input; real graphs have twenty

SIDES = (5, 7)  # of the pictures that are tried; no other axis is as long
Values = npt.NDArray[np.float64]
Traced = dict[str, Values]
"""What tensors hold where the input is black, red, green and blue: `[4, ...]`."""


class InputNodes(NamedTuple):
    """What a graph does with its input before the network begins."""

    # what each channel is multiplied by, in the order in which they are fed
    gains: tuple[float, ...] = (1.0, 1.0, 1.0)
    offsets: tuple[float, ...] = (0.0, 0.0, 0.0)  # what is added after that
    swaps: bool = False  # whether the order of the channels is reversed
    resized: bool = False

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
        gain = abs(self.gains[0])
        if gain < 0.1:
            return LEVELS
        if np.isclose(gain, 1, TOLERANCE):
            return LEVELS if np.abs(self._means()).max() > 2 else 1.0
        return 1.0 if gain > 1 else None

    @property
    def order(self) -> bool | None:
        """True if blue is fed first, shown by ImageNet's means; None where they are not there."""
        if self.domain is None:
            return None
        shares = self._means() / self.domain
        for bgr, expected in ((False, IMAGENET_MEAN), (True, IMAGENET_MEAN[::-1])):
            if np.abs(shares - expected).max() < NEAR_IMAGENET:
                return bgr
        return None

    def _means(self) -> Values:
        """Where each channel is zero."""
        return -np.array(self.offsets) / self.gains


def read_input_nodes(index: GraphIndex, image: ImageInput) -> InputNodes:
    """Follow the input for pictures to where the network begins."""
    pictures = np.zeros((4, 3, *SIDES))
    pictures[[1, 2, 3], [0, 1, 2]] = 1
    pictures = np.moveaxis(pictures, 1, -1) if image.channels_last else pictures
    traced, resized = _traced(
        index, image.name, pictures if image.single else pictures[:, np.newaxis]
    )
    taken = set[str]()  # by the network
    for node in index.graph.node:
        if node.op_type not in {"Shape", "Size"} and not traced.keys() >= {*node.output}:
            taken |= traced.keys() & {*node.input}
    if len(taken) != 1:
        return InputNodes()
    tensor = traced[taken.pop()]
    values = np.moveaxis(tensor, [tensor.shape.index(side) for side in SIDES], [-2, -1])
    black, *colours = values[..., 0, 0].reshape(4, -1)
    changes = np.array(colours) - black
    shown = changes != 0  # which channel a colour is seen in
    if shown.shape != (3, 3) or (shown.sum(0) != 1).any() or (shown.sum(1) != 1).any():
        return InputNodes()
    places = shown.argmax(1)
    gains, offsets = changes[shown].tolist(), black[places].tolist()
    return InputNodes(tuple(gains), tuple(offsets), places.tolist() == [2, 1, 0], resized)


def _traced(index: GraphIndex, image: str, pictures: Values) -> tuple[Traced, bool]:
    """All tensors that hold channels of the input, and whether one of them was resized."""
    traced: Traced = {image: pictures}
    resized = False
    for node in index.graph.node:  # in topological order
        if len(traced) > MAX_TENSORS or traced.keys().isdisjoint(node.input):
            continue
        try:
            with np.errstate(all="ignore"):
                results = _followed(index, node, traced)
        except (ValueError, IndexError, TypeError):  # such as axes that are not there
            continue
        if len(results) == len(node.output) and all(map(_is_followed, results)):
            traced.update(zip(node.output, results, strict=True))
            # Scales that are constants multiply the sides.
            scales = node.input[2] if len(node.input) > 2 else ""
            own = not scales or index.constant_tensor(scales) is None
            resized |= node.op_type == "Resize" and own
    return traced, resized


def _is_followed(result: Values) -> bool:
    """True if a result still holds up to three channels of the whole picture."""
    fits = {*SIDES} <= {*result.shape[1:]} and result.size <= 4 * 3 * math.prod(SIDES)
    return fits and bool(np.isfinite(result).all())


def _followed(index: GraphIndex, node: NodeProto, traced: Traced) -> list[Values]:
    """What a node makes of traced tensors; empty where it does more than move and scale them."""
    held = [traced[name] for name in node.input if name in traced]
    given, kind, first = held[0], node.op_type, node.input[0] in traced
    if kind in HANDED_ON:
        return [given]
    if kind in COMPUTED and len(held) == 1 and (first or kind in {"Add", "Mul"}):
        return [COMPUTED[kind](given, _factor(index, node.input[1 if first else 0], given))]
    if kind == "Concat" and len(held) == len(node.input):
        return [np.concatenate(held, attribute(node, "axis", 0) % (given.ndim - 1) + 1)]
    return _moved(index, node, given) if first else []


def _moved(index: GraphIndex, node: NodeProto, given: Values) -> list[Values]:
    rank, results = given.ndim - 1, list[Values]()
    axis = attribute(node, "axis", 0) % rank + 1
    axes = index.axes(node) or []
    match node.op_type:
        case "BatchNormalization":
            results = [_normalised(index, node, given)]
        case "Gather" if (chosen := index.array(node.input[1])) is not None:
            results = [given.take(chosen, axis)]
        case "Slice":
            results = [_sliced(index, node, given)]
        case "Split":
            results = np.split(given, len(node.output), axis)
        case "Transpose":
            order = integers(node, "perm") or range(rank)[::-1]
            results = [given.transpose(0, *(place + 1 for place in order))]
        case "Squeeze":
            results = [given.squeeze(tuple(one % rank + 1 for one in axes))]
        case "Unsqueeze":
            rank += len(axes)
            results = [np.expand_dims(given, tuple(one % rank + 1 for one in axes))]
    return results


def _sliced(index: GraphIndex, node: NodeProto, given: Values) -> Values:
    parts = [index.constant(name) or [] for name in node.input[1:5]]
    start, end, along, step = ([one for (one,) in parts] + [1])[:4]
    before = along % (given.ndim - 1) + 1
    return given[(slice(None),) * before + (slice(start, end, step),)]


def _normalised(index: GraphIndex, node: NodeProto, given: Values) -> Values:
    dims = [-1, *[1] * (given.ndim - 3)]
    factors = [_factor(index, name, given).reshape(dims) for name in node.input[1:5]]
    weight, bias, mean, variance = factors
    epsilon = next((entry.f for entry in node.attribute if entry.name == "epsilon"), 1e-5)
    return (given - mean) * (weight / np.sqrt(variance + epsilon)) + bias


def _factor(index: GraphIndex, name: str, given: Values) -> Values:
    """A constant number, or one for each channel, of no more axes than a tensor."""
    array = index.array(index.behind(name, MERELY_NAMED))
    if array is None or array.size not in {1, 3} or array.ndim > given.ndim - 1:
        raise ValueError(f"{name} is not a factor of channels")
    return array.astype(np.float64)


COMPUTED = {"Add": np.add, "Div": np.divide, "Mul": np.multiply, "Sub": np.subtract}

NODES = "nodes at the input"
EXPORTER = "Ultralytics"
EXPORTED = f"metadata of {EXPORTER}' exporter, and the family's rule"
METADATA = f"metadata {METADATA_KEY}"


def with_preprocessing(
    contract: Contract,
    index: GraphIndex,
    image: ImageInput,
    metadata: dict[str, str],
    sidecar: Sidecar | None,
) -> Contract:
    """The contract of a graph, with what changes the preprocessing of its family, if any."""
    nodes = read_input_nodes(index, image)
    found, by, size = contract.preprocessing, dict(contract.preprocessing_sources), None
    if nodes.resized and image.size is None:
        found = changed(found, {"resize": Resize.NONE})
        by["resize"] = by["interpolation"] = NODES
    if contract.preprocessing_sources and metadata.get("author") == EXPORTER:
        # The family's rule is that of Ultralytics' predictor, which always resizes by OpenCV.
        found = replace(found, interpolation=Interpolation.LINEAR)
        by = dict.fromkeys(PARTS, EXPORTED)
    elif sidecar is not None:
        parts, size = sidecar.settles(fixed=image.size is not None)
        for own in parts.values():
            found = changed(found, own)
        by |= dict.fromkeys((*parts, *[SIZE] * bool(size)), PREPROCESSOR)
    levels = image.dtype == "uint8"
    found = _through_nodes(found, nodes, by, levels=levels)
    if text := metadata.get(METADATA_KEY):
        found = _through_metadata(found, text, levels=levels)
        by |= dict.fromkeys(named_parts(text), METADATA)
    try:
        return settle(replace(contract, default_size=size or contract.default_size), found, by)
    except UsageError as error:
        raise ModelError(
            f"the preprocessing that the model names cannot be: {error}",
            "mend its metadata, or the file beside it",
        ) from error


def _through_metadata(found: Preprocessing, text: str, *, levels: bool) -> Preprocessing:
    try:
        found = changed(found, parse(text))
        if levels:
            require_uint8_values(found, text)
    except UsageError as error:
        problem = str(error).replace("--preprocess", METADATA_KEY)
        raise ModelError(
            f"the metadata of the model is malformed: {problem}",
            f"export it again with another {METADATA_KEY}, or without",
        ) from error
    return found


def _through_nodes(
    wanted: Preprocessing, nodes: InputNodes, by: dict[str, str], *, levels: bool
) -> Preprocessing:
    """What to feed so that the network behind the input nodes gets what it was trained on.

    `by` is changed with it; `levels` are all that the input takes.
    """
    bgr = wanted.bgr != nodes.swaps
    if nodes.swaps and "channels" in by:
        by["channels"] = NODES
    if (shown := nodes.order) is not None:
        bgr, by["channels"] = shown, NODES
    fed = replace(wanted, bgr=bgr)
    if bgr != wanted.bgr:
        fed = replace(fed, mean=wanted.mean[::-1], std=wanted.std[::-1])
    domain = LEVELS if levels else nodes.domain
    if not (levels or nodes.computes):
        return fed
    normalises = any(fed.mean) or len(set(fed.std)) > 1
    if not levels and nodes.only_scales and normalises and "values" in by:
        by["values"] = NODES
        red, green, blue = (one * nodes.gains[0] for one in fed.std)
        return replace(fed, std=(red, green, blue))
    if domain is None:
        by.pop("values", None)
        return fed
    by["values"] = NODES
    return replace(fed, scale=domain / LEVELS, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))


def first_weight(index: GraphIndex, image: str) -> float | None:
    """The mean absolute weight of the first convolution behind the pictures.

    A normalisation right behind it counts as part of it. Of several, the largest, so that the order
    of nodes does not matter. None where the weights are not clear.
    """
    reached, means = {image}, list[float]()
    for node in index.graph.node:
        if not node.input or not reached.intersection(node.input):
            continue
        if node.op_type not in CONVOLUTIONS:
            reached.update(node.output)
        elif node.input[0] in reached and len(node.input) > 1:
            mean = _mean_weight(index, node)
            if mean is None:
                return None
            means.append(mean)
    return max(means, default=None)


def _mean_weight(index: GraphIndex, convolution: NodeProto) -> float | None:
    weights = _dequantised(index, str(convolution.input[1]))
    if weights is None or not weights.size or weights.ndim < 2:
        return None
    weights = np.abs(weights.astype(np.float64))
    output = convolution.output[0]
    behind = next((node for node in index.graph.node if output in node.input), None)
    if behind is not None and behind.op_type == "BatchNormalization" and len(behind.input) > 4:
        gain, variance = index.array(behind.input[1]), index.array(behind.input[4])
        if gain is None or variance is None or len(gain) != len(weights):
            return None
        factor = np.abs(gain.astype(np.float64)) / np.sqrt(variance.astype(np.float64) + 1e-5)
        weights *= factor.reshape(-1, *[1] * (weights.ndim - 1))
    mean = float(weights.mean())
    return mean if math.isfinite(mean) else None


def _dequantised(index: GraphIndex, tensor: str) -> npt.NDArray[Any] | None:
    """The elements of a constant, also of one in integers; None if it is computed."""
    tensor = index.behind(tensor, frozenset({"Identity", "Cast"}))
    node = index.producers.get(tensor)
    if node is None or node.op_type != "DequantizeLinear":
        return index.array(tensor)
    stored, step = index.array(node.input[0]), index.array(node.input[1])
    if stored is None or step is None:
        return None
    zero = index.array(node.input[2]) if len(node.input) > 2 else None
    shifted = stored.astype(np.float64) - (0 if zero is None else _along(zero, stored, node))
    dequantised: npt.NDArray[Any] = shifted * _along(step, stored, node)
    return dequantised


def _along(values: npt.NDArray[Any], tensor: npt.NDArray[Any], node: NodeProto) -> npt.NDArray[Any]:
    """Values of single channels, shaped so that they count along the node's axis."""
    values = values.astype(np.float64)
    if values.size == 1:
        return values.reshape(())
    axis = attribute(node, "axis", 1) % tensor.ndim
    return values.reshape([-1 if number == axis else 1 for number in range(tensor.ndim)])
