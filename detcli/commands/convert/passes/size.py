"""Fix the input size of a graph."""

from onnx import ModelProto

from detcli.commands.convert.passes.batch import picture_input
from detcli.errors import ModelError
from detcli.model.editing import copied, renew_shapes
from detcli.model.graph import known_size

HINT = "export the model again with that imgsz, or with dynamic axes"


def set_image_size(model: ModelProto, size: int) -> ModelProto:
    """Make a graph that takes pictures of any size take square ones of one size.

    Args:
        model: A graph that takes pictures.
        size: Height and width in pixels; a multiple of the model's stride.

    Raises:
        ModelError: The graph does not take `[B, 3, H, W]`, is for another size, or depends on its
            input size in another way.
    """
    changed = copied(model)
    height, width = picture_input(changed.graph, "--imgsz").type.tensor_type.shape.dim[2:]
    old = known_size(height.dim_value), known_size(width.dim_value)
    if old == (size, size):
        return changed
    if None not in old:
        raise ModelError(f"--imgsz: the graph only takes {old[1]}x{old[0]} pictures", HINT)
    height.dim_value = width.dim_value = size
    try:
        return renew_shapes(changed)
    except ValueError as error:
        raise ModelError(f"the graph cannot take {size}x{size} pictures: {error}", HINT) from error
