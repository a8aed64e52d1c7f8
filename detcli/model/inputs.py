"""Finds the input for pictures, and what the other inputs of a graph want."""

import math
from collections.abc import Iterable
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
    PREPROCESSING_STEPS,
    PREPROCESSOR,
    SIZE,
    Sidecar,
    changed,
    named_steps,
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
        """The floating-point type of the model input."""
        if self.dtype == "float16":
            return "float16"
        return "float32"

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
    images = []
    others = []
    for value in inputs:
        image = _image(value)
        if image is None:
            others.append(value)
        else:
            images.append(image)
    if len(images) == 1:
        return images[0], tuple(_other(index, value) for value in others)
    if len(inputs) != 1:
        raise Unrecognised(f"it has {len(inputs)} inputs, {len(images)} of them for pictures")
    if len(shape(inputs[0])) == 4 and inputs[0].type.tensor_type.elem_type not in DTYPES:
        raise Unrecognised("its input is neither float32, float16 nor uint8")
    raise Unrecognised("its input is not a batch of colour images")


def _image(value: ValueInfoProto) -> ImageInput | None:
    """An input for pictures; None if it is for something else."""
    dims = shape(value)
    dtype = DTYPES.get(value.type.tensor_type.elem_type)
    is_single = len(dims) == 3
    if is_single:
        dims = [1, *dims]
    if dtype is None or len(dims) != 4:
        return None

    has_three_channels = CHANNELS in {dims[1], dims[3]}
    if not has_three_channels and (is_single or isinstance(dims[1], int)):
        return None
    channels_last = dims[3] == CHANNELS and dims[1] != CHANNELS
    height, width = dims[1:3] if channels_last else dims[2:4]
    if isinstance(height, int) != isinstance(width, int):
        raise Unrecognised("its input fixes one side of the image but not the other")

    batch = known_size(dims[0])
    size = image_size(height, width)
    pixels = (batch or 1) * math.prod(size or (1, 1))
    if pixels > MAX_INPUT:
        raise Unrecognised(f"its input has {pixels} pixels")
    return ImageInput(
        value.name,
        dtype,
        batch=batch,
        size=size,
        channels_last=channels_last,
        single=is_single,
    )


def _other(index: GraphIndex, value: ValueInfoProto) -> OtherInput:
    """Tell what an input beside the picture wants, by its shape, type and use.

    `orig_target_sizes` of RT-DETR and D-FINE are whole numbers, width and height; Paddle's
    `scale_factor` is what boxes are divided by, its `im_shape` height and width; the `pixel_mask`
    of DETR on Hugging Face has an entry for each pixel.
    """
    dims = shape(value)
    dtype = value.type.tensor_type.elem_type
    is_pair = len(dims) == 2 and (dims[1] == 2 or not isinstance(dims[1], int))
    if len(dims) == 3 and dtype in INTEGERS | {onnx.TensorProto.BOOL}:
        role = Role.MASK
    elif is_pair and dtype in INTEGERS:
        role = Role.WIDTH_HEIGHT
    elif is_pair and dtype in {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16}:
        role = Role.SCALE if _divides(index, value.name) else Role.HEIGHT_WIDTH
    else:
        raise Unrecognised(f"it is not clear what its input {value.name} is for")
    return OtherInput(value.name, dtype, role)


def _divides(index: GraphIndex, tensor: str) -> bool:
    """True if something is divided by a tensor, or by what is cut out of it."""
    divisors = {node.input[1] for node in index.graph.node if node.op_type == "Div"}
    if tensor in divisors:
        return True

    def onward(node: NodeProto, name: str) -> Iterable[str]:
        return moved_inputs(node, name) or ()

    dependent_divisors = divisors & index.moved_from(tensor)
    for node, name in index.behind_all(dependent_divisors, onward):
        if tensor in onward(node, name):
            return True
    return False


WHITE = 255.0  # the largest uint8 value
TOLERANCE = 1e-4  # relative, for constants that were float16
NEAR_IMAGENET = 0.02  # of its means; their names are rounded to two or three digits
HANDED_ON = frozenset(
    {"Cast", "DequantizeLinear", "Dropout", "Identity", "QuantizeLinear", "Resize"}
)
MERELY_NAMED = frozenset({"Cast", "Identity"})
MAX_TENSORS = 200  # at the input; real graphs have twenty

TRACED_SIZE = (5, 7)  # of the pictures that are traced; no other axis is as long
Values = npt.NDArray[np.float64]
Traced = dict[str, Values]
"""What tensors hold where the input is black, red, green and blue: `[4, ...]`."""


class InputNodes(NamedTuple):
    """What a graph does with its input before the network begins."""

    # what each channel is multiplied by, in the order of the model input
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

        Networks take values that span 1 to 5, or 255 where they are uint8 values.
        """
        gain = abs(self.gains[0])
        if gain < 0.1:
            return WHITE
        if np.isclose(gain, 1, TOLERANCE):
            are_means_of_uint8 = np.abs(self._means()).max() > 2
            if are_means_of_uint8:
                return WHITE
            return 1.0
        if gain > 1:
            return 1.0
        return None

    @property
    def order(self) -> bool | None:
        """True if blue comes first, shown by ImageNet's means; None where they are not there."""
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
    traced, is_resized = _traced(index, image.name, _pictures_to_trace(image))
    first_inputs = set[str]()  # of the network
    for node in index.graph.node:
        is_traced = traced.keys() >= set(node.output)
        if node.op_type not in {"Shape", "Size"} and not is_traced:
            first_inputs |= traced.keys() & set(node.input)
    if len(first_inputs) != 1:
        return InputNodes()

    tensor = traced[first_inputs.pop()]
    picture_axes = [tensor.shape.index(length) for length in TRACED_SIZE]
    values = np.moveaxis(tensor, picture_axes, [-2, -1])
    colours = values[..., 0, 0].reshape(4, -1)

    black = colours[0]
    changes = colours[1:] - black
    shows = changes != 0  # `(colours, channels)`, in which channel a colour is seen
    if shows.shape != (3, 3) or (shows.sum(0) != 1).any() or (shows.sum(1) != 1).any():
        return InputNodes()

    channels = shows.argmax(1)
    return InputNodes(
        gains=tuple(changes[shows].tolist()),
        offsets=tuple(black[channels].tolist()),
        swaps=channels.tolist() == [2, 1, 0],
        resized=is_resized,
    )


def _pictures_to_trace(image: ImageInput) -> Values:
    """A black, a red, a green and a blue picture, each with the axes of the input: `[4, ...]`."""
    pictures = np.zeros((4, 3, *TRACED_SIZE))
    for channel in range(CHANNELS):
        pictures[channel + 1, channel] = 1
    if image.channels_last:
        pictures = np.moveaxis(pictures, 1, -1)
    if image.single:
        return pictures
    return pictures[:, np.newaxis]


def _traced(index: GraphIndex, image: str, pictures: Values) -> tuple[Traced, bool]:
    """All tensors that hold channels of the input, and whether one of them was resized."""
    traced: Traced = {image: pictures}
    is_resized = False
    for node in index.graph.node:  # in topological order
        if len(traced) > MAX_TENSORS or traced.keys().isdisjoint(node.input):
            continue
        try:
            with np.errstate(all="ignore"):
                results = _followed(index, node, traced)
        except (ValueError, IndexError, TypeError):  # such as axes that are not there
            continue
        if len(results) != len(node.output):
            continue
        if not all(_holds_whole_picture(result) for result in results):
            continue
        traced.update(zip(node.output, results, strict=True))
        if node.op_type == "Resize":
            # Scales that are constants multiply height and width.
            scales = node.input[2] if len(node.input) > 2 else ""
            is_resized |= not scales or index.constant_tensor(scales) is None
    return traced, is_resized


def _holds_whole_picture(result: Values) -> bool:
    """True if a result still holds up to three channels of the whole picture."""
    has_size = set(TRACED_SIZE) <= set(result.shape[1:])
    is_small = result.size <= 4 * CHANNELS * math.prod(TRACED_SIZE)
    return has_size and is_small and bool(np.isfinite(result).all())


def _followed(index: GraphIndex, node: NodeProto, traced: Traced) -> list[Values]:
    """What a node makes of traced tensors; empty where it does more than move and scale them."""
    tensors = [traced[name] for name in node.input if name in traced]
    tensor = tensors[0]
    is_first = node.input[0] in traced
    operator = node.op_type
    if operator in HANDED_ON:
        return [tensor]
    is_commutative = operator in {"Add", "Mul"}
    if operator in COMPUTED and len(tensors) == 1 and (is_first or is_commutative):
        factor = _factor(index, node.input[1 if is_first else 0], tensor)
        return [COMPUTED[operator](tensor, factor)]
    if operator == "Concat" and len(tensors) == len(node.input):
        axis = attribute(node, "axis", 0) % (tensor.ndim - 1) + 1
        return [np.concatenate(tensors, axis)]
    if is_first:
        return _moved(index, node, tensor)
    return []


def _moved(index: GraphIndex, node: NodeProto, tensor: Values) -> list[Values]:
    """What a node makes of its first input, whose first axis is the four colours."""
    rank = tensor.ndim - 1
    axis = attribute(node, "axis", 0) % rank + 1
    axes = index.axes(node) or []
    match node.op_type:
        case "BatchNormalization":
            return [_normalised(index, node, tensor)]
        case "Gather":
            indices = index.array(node.input[1])
            if indices is None:
                return []
            return [tensor.take(indices, axis)]
        case "Slice":
            return [_sliced(index, node, tensor)]
        case "Split":
            return np.split(tensor, len(node.output), axis)
        case "Transpose":
            order = integers(node, "perm") or list(reversed(range(rank)))
            return [tensor.transpose([0] + [number + 1 for number in order])]
        case "Squeeze":
            return [tensor.squeeze(tuple(number % rank + 1 for number in axes))]
        case "Unsqueeze":
            rank += len(axes)
            return [np.expand_dims(tensor, tuple(number % rank + 1 for number in axes))]
    return []


def _sliced(index: GraphIndex, node: NodeProto, tensor: Values) -> Values:
    """What a Slice along one axis makes of a tensor; a ValueError where it has several."""
    entries = []
    for name in node.input[1:5]:  # starts, ends, axes, steps
        (entry,) = index.constant(name) or []
        entries.append(entry)
    entries.append(1)  # the step, where there is none
    start, end, axis, step = entries[:4]
    axes_before = axis % (tensor.ndim - 1) + 1
    return tensor[(slice(None),) * axes_before + (slice(start, end, step),)]


def _normalised(index: GraphIndex, node: NodeProto, tensor: Values) -> Values:
    """What a BatchNormalization makes of a tensor."""
    channel_shape = [-1] + [1] * (tensor.ndim - 3)
    factors = [_factor(index, name, tensor).reshape(channel_shape) for name in node.input[1:5]]
    weight, bias, mean, variance = factors
    epsilon = 1e-5
    for entry in node.attribute:
        if entry.name == "epsilon":
            epsilon = entry.f
            break
    return (tensor - mean) * (weight / np.sqrt(variance + epsilon)) + bias


def _factor(index: GraphIndex, name: str, tensor: Values) -> Values:
    """A constant number, or one for each channel, of no more axes than a tensor."""
    array = index.array(index.behind(name, MERELY_NAMED))
    if array is None or array.size not in {1, 3} or array.ndim > tensor.ndim - 1:
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
    preprocessing = contract.preprocessing
    sources = dict(contract.preprocessing_sources)
    size = None
    if nodes.resized and image.size is None:
        preprocessing = changed(preprocessing, {"resize": Resize.NONE})
        sources["resize"] = NODES
        sources["interpolation"] = NODES

    if contract.preprocessing_sources and metadata.get("author") == EXPORTER:
        # The family's rule is that of Ultralytics' predictor, which always resizes by OpenCV.
        preprocessing = replace(preprocessing, interpolation=Interpolation.LINEAR)
        sources = dict.fromkeys(PREPROCESSING_STEPS, EXPORTED)
    elif sidecar is not None:
        steps, size = sidecar.settles(fixed=image.size is not None)
        for step, fields in steps.items():
            preprocessing = changed(preprocessing, fields)
            sources[step] = PREPROCESSOR
        if size:
            sources[SIZE] = PREPROCESSOR

    takes_uint8 = image.dtype == "uint8"
    preprocessing = _through_nodes(preprocessing, nodes, sources, takes_uint8=takes_uint8)
    text = metadata.get(METADATA_KEY)
    if text:
        preprocessing = _through_metadata(preprocessing, text, takes_uint8=takes_uint8)
        sources |= dict.fromkeys(named_steps(text), METADATA)

    contract = replace(contract, default_size=size or contract.default_size)
    try:
        return settle(contract, preprocessing, sources)
    except UsageError as error:
        raise ModelError(
            f"the preprocessing that the model names cannot be: {error}",
            "mend its metadata, or the file beside it",
        ) from error


def _through_metadata(
    preprocessing: Preprocessing, text: str, *, takes_uint8: bool
) -> Preprocessing:
    """A preprocessing with what the metadata's text names."""
    try:
        preprocessing = changed(preprocessing, parse(text))
        if takes_uint8:
            require_uint8_values(preprocessing, text)
    except UsageError as error:
        problem = str(error).replace("--preprocess", METADATA_KEY)
        raise ModelError(
            f"the metadata of the model is malformed: {problem}",
            f"export it again with another {METADATA_KEY}, or without",
        ) from error
    return preprocessing


def _through_nodes(
    trained: Preprocessing, nodes: InputNodes, sources: dict[str, str], *, takes_uint8: bool
) -> Preprocessing:
    """The model input for which the network behind the input nodes gets what it was trained on.

    `sources` is changed with it; `takes_uint8` is whether the input takes no other values.
    """
    bgr = trained.bgr != nodes.swaps
    if nodes.swaps and "channels" in sources:
        sources["channels"] = NODES
    shown_bgr = nodes.order
    if shown_bgr is not None:
        bgr = shown_bgr
        sources["channels"] = NODES

    model_input = replace(trained, bgr=bgr)
    if bgr != trained.bgr:
        model_input = replace(model_input, mean=trained.mean[::-1], std=trained.std[::-1])
    if not takes_uint8 and not nodes.computes:
        return model_input
    normalises = any(model_input.mean) or len(set(model_input.std)) > 1
    if not takes_uint8 and nodes.only_scales and normalises and "values" in sources:
        sources["values"] = NODES
        red, green, blue = model_input.std
        gain = nodes.gains[0]
        return replace(model_input, std=(red * gain, green * gain, blue * gain))

    white = WHITE if takes_uint8 else nodes.domain
    if white is None:
        sources.pop("values", None)
        return model_input
    sources["values"] = NODES
    return replace(model_input, scale=white / WHITE, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))


def first_weight(index: GraphIndex, image: str) -> float | None:
    """The mean absolute weight of the first convolution behind the pictures.

    A normalisation right behind it counts as part of it. Of several, the largest, so that the order
    of nodes does not matter. None where the weights are not clear.
    """
    before_convolutions = {image}
    means: list[float] = []
    for node in index.graph.node:
        if not node.input or before_convolutions.isdisjoint(node.input):
            continue
        if node.op_type not in CONVOLUTIONS:
            before_convolutions.update(node.output)
        elif node.input[0] in before_convolutions and len(node.input) > 1:
            mean = _mean_weight(index, node)
            if mean is None:
                return None
            means.append(mean)
    return max(means, default=None)


def _mean_weight(index: GraphIndex, convolution: NodeProto) -> float | None:
    """The mean absolute weight of a convolution, with the normalisation behind it."""
    weights = _dequantised(index, str(convolution.input[1]))
    if weights is None or not weights.size or weights.ndim < 2:
        return None
    weights = np.abs(weights.astype(np.float64))
    normalisation = _normalisation_behind(index, convolution)
    if normalisation is not None:
        gain = index.array(normalisation.input[1])
        variance = index.array(normalisation.input[4])
        if gain is None or variance is None or len(gain) != len(weights):
            return None
        factor = np.abs(gain.astype(np.float64)) / np.sqrt(variance.astype(np.float64) + 1e-5)
        weights *= factor.reshape([-1] + [1] * (weights.ndim - 1))
    mean = float(weights.mean())
    if math.isfinite(mean):
        return mean
    return None


def _normalisation_behind(index: GraphIndex, convolution: NodeProto) -> NodeProto | None:
    """The BatchNormalization that is the first node behind a convolution, if it is one."""
    output = convolution.output[0]
    nodes: Iterable[NodeProto] = index.graph.node
    for node in nodes:
        if output in node.input:
            is_normalisation = node.op_type == "BatchNormalization" and len(node.input) > 4
            return node if is_normalisation else None
    return None


def _dequantised(index: GraphIndex, tensor: str) -> npt.NDArray[Any] | None:
    """The elements of a constant, also of one in integers; None if it is computed."""
    tensor = index.behind(tensor, MERELY_NAMED)
    node = index.producers.get(tensor)
    if node is None or node.op_type != "DequantizeLinear":
        return index.array(tensor)
    stored = index.array(node.input[0])
    step = index.array(node.input[1])
    if stored is None or step is None:
        return None
    shifted = stored.astype(np.float64)
    zero = index.array(node.input[2]) if len(node.input) > 2 else None
    if zero is not None:
        shifted = shifted - _along(zero, stored, node)
    dequantised: npt.NDArray[Any] = shifted * _along(step, stored, node)
    return dequantised


def _along(values: npt.NDArray[Any], tensor: npt.NDArray[Any], node: NodeProto) -> npt.NDArray[Any]:
    """Values of single channels, shaped so that they count along the node's axis."""
    values = values.astype(np.float64)
    if values.size == 1:
        return values.reshape(())
    lengths = [1] * tensor.ndim
    lengths[attribute(node, "axis", 1) % tensor.ndim] = -1
    return values.reshape(lengths)
