"""Finds the input for pictures, and what the other inputs of a graph want."""

import math
from dataclasses import dataclass
from enum import StrEnum

import onnx
from onnx import ValueInfoProto

from detcli.model.graph import GraphIndex, known_size, shape
from detcli.model.heads.decode import moved_inputs
from detcli.model.heads.head import Unrecognised
from detcli.model.heads.rows import INTEGERS

DTYPES: dict[int, str] = {
    onnx.TensorProto.FLOAT: "float32",
    onnx.TensorProto.FLOAT16: "float16",
    onnx.TensorProto.UINT8: "uint8",
}
MAX_INPUT = 1 << 28  # pixels of a batch; as floats, 3 GiB
CHANNELS = 3


@dataclass(frozen=True, slots=True)
class ImageInput:
    """The input for pictures.

    Attributes:
        name: Its name.
        dtype: float32, float16 or uint8.
        batch: B, or None where any batch is accepted.
        size: Height and width, or None where any are accepted.
        channels_last: Whether it is `[B, H, W, 3]` instead of `[B, 3, H, W]`.
        single: Whether it is a picture without a batch, `[3, H, W]`.
    """

    name: str
    dtype: str
    batch: int | None
    size: tuple[int, int] | None
    channels_last: bool = False
    single: bool = False

    @property
    def is_unusual(self) -> bool:
        """Whether nodes have to be put before it."""
        return self.channels_last or self.single or self.dtype == "uint8"


class Role(StrEnum):
    """What an input beside the picture wants."""

    WIDTH_HEIGHT = "width and height of the input"
    HEIGHT_WIDTH = "height and width of the input"
    SCALE = "scale of the picture"  # 1: the picture is the input
    MASK = "which pixels are the picture's"  # all of them


@dataclass(frozen=True, slots=True)
class OtherInput:
    """An input that detcli feeds with what follows from the picture.

    Attributes:
        name: Its name.
        dtype: As ONNX numbers it.
        role: What it wants.
    """

    name: str
    dtype: int
    role: Role


def find_inputs(index: GraphIndex) -> tuple[ImageInput, tuple[OtherInput, ...]]:
    """Find the input for pictures and the others.

    Raises:
        Unrecognised: There is not one for pictures, or what another wants is not clear.
    """
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
    """Read the input for pictures.

    Raises:
        Unrecognised: It fixes one side only, or is too large.
    """
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

    Raises:
        Unrecognised: It is none of these.
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
    """Whether something is divided by a tensor, or by what is cut out of it."""
    moved = index.moved_from(tensor)
    divisors = {n.input[1] for n in index.graph.node if n.op_type == "Div"} & moved
    return any(_only_moves(index, name, tensor) for name in divisors)


def _only_moves(index: GraphIndex, name: str, source: str) -> bool:
    """Whether a tensor holds elements of another, moved only."""
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
