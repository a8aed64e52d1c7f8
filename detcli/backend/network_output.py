"""The output of a network for a batch: whether it is as declared, and the part of each image."""

import numpy as np

from detcli.backend.postprocess import HeadArray
from detcli.core.errors import ModelError
from detcli.model.contract import Contract, Layout


def split_by_image(output: HeadArray, count: int, contract: Contract) -> list[HeadArray]:
    """Split the network's output for a batch of images into the output for each image.

    Args:
        output: `(B, 4 + C, N)`, `(B, N, 4 + C)` or `(B, R, 6)`, as the contract says.
        count: B, the number of images in the batch.
        contract: What the model says about its output.

    Returns:
        B views of the output, one for each image, as `detect` takes them.

    Raises:
        ModelError: The output does not have the shape that the graph declares.
    """
    declared_sizes = _declared_output_sizes(count, contract)
    output_sizes = list(np.shape(output))
    if not _has_declared_sizes(output_sizes, declared_sizes):
        declared = ", ".join("any" if size is None else str(size) for size in declared_sizes)
        raise ModelError(
            f"the network gave an output of shape {output_sizes}, though its graph declares "
            f"[{declared}]",
            "export the model again; its file does not say what it does",
        )
    return list(output)


def _declared_output_sizes(count: int, contract: Contract) -> list[int | None]:
    """Return the size of each axis of the output for `count` images; None may be any size."""
    if contract.layout is Layout.ROWS:
        return [count, contract.anchor_count, 6]
    if contract.anchors_first:
        return [count, contract.anchor_count, 4 + contract.class_count]
    return [count, 4 + contract.class_count, contract.anchor_count]


def _has_declared_sizes(sizes: list[int], declared_sizes: list[int | None]) -> bool:
    """True if the sizes of an output's axes are as declared, where None is any size."""
    if len(sizes) != len(declared_sizes):
        return False
    for size, declared in zip(sizes, declared_sizes, strict=True):
        if declared not in {None, size}:
            return False
    return True
