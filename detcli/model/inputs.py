"""Finds the input for images, and what the other inputs of a graph need."""

import math
from collections.abc import Iterable
from enum import StrEnum

import onnx
from onnx import NodeProto, ValueInfoProto

from detcli.core import frozen
from detcli.model.contract import Size
from detcli.model.graph import Dims, GraphIndex, image_size, known_size, shape
from detcli.model.heads import Unrecognised
from detcli.model.heads.class_ids import INTEGERS
from detcli.model.heads.layers import moved_inputs

DTYPES: dict[int, str] = {
    onnx.TensorProto.FLOAT: "float32",
    onnx.TensorProto.FLOAT16: "float16",
    onnx.TensorProto.UINT8: "uint8",
}
MAX_INPUT = 1 << 28  # pixels of a batch; as floats, 3 GiB
CHANNELS = 3


@frozen
class ImageInput:
    """The input of a graph that takes images."""

    name: str
    dtype: str  # float32, float16 or uint8
    batch: int | None  # B, or None where any batch is accepted
    size: Size | None  # height and width, or None where any are accepted
    channels_last: bool = False  # whether it is `[B, H, W, 3]` instead of `[B, 3, H, W]`
    single: bool = False  # whether it is an image without a batch, `[3, H, W]`

    @property
    def float_dtype(self) -> str:
        """The type of the images that detcli feeds, which is always a floating-point type."""
        if self.dtype == "float16":
            return "float16"
        return "float32"

    @property
    def is_unusual(self) -> bool:
        """True if nodes have to be put before it."""
        return self.channels_last or self.single or self.dtype == "uint8"


class Role(StrEnum):
    """What an input beside the image needs."""

    WIDTH_HEIGHT = "width and height of the input"
    HEIGHT_WIDTH = "height and width of the input"
    SCALE = "scale of the image"  # 1: the image is the input
    MASK = "which pixels are the image's"  # all of them


@frozen
class OtherInput:
    """An input that detcli feeds with what follows from the image."""

    name: str
    dtype: int  # as ONNX numbers it
    role: Role


def find_inputs(index: GraphIndex) -> tuple[ImageInput, tuple[OtherInput, ...]]:
    """Find the input of a graph that takes images, and determine what all other inputs are for.

    Raises:
        Unrecognised: No input, or more than one, takes images; or the use of another input is
            unclear.
    """
    inputs = index.image_inputs()
    images = []
    others = []
    for value in inputs:
        image = _describe_image_input(value)
        if image is None:
            others.append(value)
        else:
            images.append(image)
    if len(images) == 1:
        return images[0], tuple(_describe_other_input(index, value) for value in others)
    if len(inputs) != 1:
        raise Unrecognised(f"it has {len(inputs)} inputs, {len(images)} of them for images")
    if len(shape(inputs[0])) == 4 and inputs[0].type.tensor_type.elem_type not in DTYPES:
        raise Unrecognised("its input is neither float32, float16 nor uint8")
    raise Unrecognised("its input is not a batch of colour images")


def _describe_image_input(value: ValueInfoProto) -> ImageInput | None:
    """Describe an input that takes images, by its shape and type; None if it takes other data.

    Raises:
        Unrecognised: Only one of height and width is fixed, or the input is far too large.
    """
    dims = shape(value)
    dtype = DTYPES.get(value.type.tensor_type.elem_type)
    is_single = len(dims) == 3  # an image without a batch
    if is_single:
        dims = [1, *dims]
    if dtype is None or len(dims) != 4:
        return None
    channels_last = _has_channels_last(dims, accepts_symbol=not is_single)
    if channels_last is None:
        return None

    height, width = dims[1:3] if channels_last else dims[2:4]
    is_height_fixed = isinstance(height, int)
    is_width_fixed = isinstance(width, int)
    if is_height_fixed != is_width_fixed:
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


def _has_channels_last(dims: Dims, *, accepts_symbol: bool) -> bool | None:
    """Determine which axis of an input counts the three colours of images: the last or the second.

    Args:
        dims: The four axes of the input, of which the first is the batch.
        accepts_symbol: Whether the second axis may have a symbol or an unknown size in place of the
            3, as some exporters write it.

    Returns:
        True if it is the last axis, False if it is the second; None if it is neither.
    """
    _, second_dim, _, last_dim = dims
    if second_dim == CHANNELS:
        return False
    if last_dim == CHANNELS:
        return True
    may_be_channels = accepts_symbol and not isinstance(second_dim, int)
    if may_be_channels:
        return False
    return None


def _describe_other_input(index: GraphIndex, value: ValueInfoProto) -> OtherInput:
    """Determine what has to be fed to an input other than the image's, by its shape, type and use.

    It is one of these:

    - `pixel_mask` of DETR on Hugging Face: a whole number or boolean for each pixel, `[B, H, W]`
    - `orig_target_sizes` of RT-DETR and D-FINE: width and height as whole numbers, `[B, 2]`
    - `scale_factor` of PaddlePaddle's detectors: two decimals, by which boxes are divided
    - `im_shape` of PaddlePaddle's detectors: height and width as decimals

    Raises:
        Unrecognised: The input is none of these.
    """
    dims = shape(value)
    dtype = value.type.tensor_type.elem_type
    is_mask = len(dims) == 3 and dtype in INTEGERS | {onnx.TensorProto.BOOL}
    # Two numbers for each image; some exporters write a symbol in place of the 2.
    is_pair = len(dims) == 2 and (dims[1] == 2 or not isinstance(dims[1], int))
    is_pair_of_decimals = is_pair and dtype in {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16}

    if is_mask:
        role = Role.MASK
    elif is_pair and dtype in INTEGERS:
        role = Role.WIDTH_HEIGHT
    elif is_pair_of_decimals and _is_divisor(index, value.name):
        role = Role.SCALE
    elif is_pair_of_decimals:
        role = Role.HEIGHT_WIDTH
    else:
        raise Unrecognised(f"it is not clear what its input {value.name} is for")
    return OtherInput(value.name, dtype, role)


def _is_divisor(index: GraphIndex, tensor: str) -> bool:
    """True if some node divides by a tensor, directly or after its elements were moved.

    Nodes such as Gather and Reshape move elements without changing them.
    """
    divisors = {node.input[1] for node in index.graph.node if node.op_type == "Div"}
    if tensor in divisors:
        return True

    def inputs_with_same_elements(node: NodeProto, output: str) -> Iterable[str]:
        return moved_inputs(node, output) or ()

    # The search goes back from each divisor that depends on the tensor, through nodes that only
    # move elements. If it reaches the tensor, its elements are in the divisor.
    dependent_divisors = divisors & index.tensors_computed_from(tensor)
    for node, output in index.ancestors(dependent_divisors, inputs_with_same_elements):
        if tensor in inputs_with_same_elements(node, output):
            return True
    return False
