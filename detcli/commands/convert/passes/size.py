"""Change the input size of a graph."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import onnx
from onnx import ModelProto, NodeProto

from detcli.backend.failures import RUN_TIMEOUT_S, run_with_timeout
from detcli.backend.runtime.session import CPU, open_session
from detcli.commands.convert.passes.batch import picture_input
from detcli.errors import ModelError
from detcli.model.editing import (
    add_constant,
    copied,
    drop_unused,
    renew_shapes,
    tensor_names,
    unused_name,
)
from detcli.model.graph import GraphIndex, known_size

STRIDES = (2, 4, 8, 16, 32, 64, 128, 256)  # those that a detector might have
Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Grid:
    """The anchor grid of an input size."""

    size: tuple[int, int]  # height and width of the input in pixels
    strides: tuple[int, ...]  # pixels per cell of each level, finest first

    @classmethod
    def of(cls, size: tuple[int, int], anchors: int) -> Self | None:
        """Find the grid of a size by its number of anchors; each stride is twice the one before."""
        for first, last in itertools.combinations_with_replacement(range(len(STRIDES)), 2):
            grid = cls(size, STRIDES[first : last + 1])
            if not any(side % STRIDES[last] for side in size) and grid.anchors == anchors:
                return grid
        return None

    @property
    def levels(self) -> list[tuple[int, int]]:
        """Rows and columns of cells at each stride."""
        height, width = self.size
        return [(height // stride, width // stride) for stride in self.strides]

    @property
    def anchors(self) -> int:
        """The number of anchors."""
        return sum(rows * columns for rows, columns in self.levels)

    def along(self, axis: int, offset: float) -> Array:
        """The row (axis 0) or column (axis 1) of each anchor's cell, plus an offset: (N,)."""
        return np.concatenate([np.indices(level)[axis].ravel() + offset for level in self.levels])

    def stride_of_each(self) -> Array:
        """The stride of each anchor: (N,)."""
        counts = [rows * columns for rows, columns in self.levels]
        return np.repeat(np.array(self.strides, np.float64), counts)


FIELDS: list[Callable[[Grid], Array]] = [
    lambda grid: grid.stride_of_each(),
    *(
        lambda grid, axis=axis, offset=offset, scaled=scaled: (
            grid.along(axis, offset) * (grid.stride_of_each() if scaled else 1)
        )
        for axis in (0, 1)
        for offset in (0.5, 0)
        for scaled in (False, True)
    ),
]
"""What a row of a grid constant may hold: strides, or coordinates in cells or pixels."""


def regenerated(constant: Array, old: Grid, new: Grid) -> Array | None:
    """Compute a constant of one grid for another.

    Args:
        constant: A constant of the old grid; one axis has an entry for each anchor.
        old: The grid that it belongs to.
        new: The grid to compute it for.

    Returns:
        The constant, of the same dtype and axes; None if a row of it is not a known field.
    """
    axis = constant.shape.index(old.anchors)
    rows = np.moveaxis(constant, axis, -1)  # (..., N)
    leading = rows.shape[:-1]
    made = []
    for row in rows.reshape(-1, old.anchors):
        field = next((f for f in FIELDS if np.array_equal(row, f(old).astype(row.dtype))), None)
        if field is None:
            return None
        made.append(field(new).astype(constant.dtype))
    return np.ascontiguousarray(np.moveaxis(np.reshape(made, (*leading, new.anchors)), -1, axis))


HINT = "export the model again with that imgsz, or with dynamic axes"


def set_image_size(model: ModelProto, size: int, anchors: int | None) -> ModelProto:
    """Make a graph take square pictures of another size.

    Dynamic axes become fixed. In a graph of a single size, the constants that depend on it are
    computed again: target shapes of Reshape and Resize, and the anchor grid if `Grid` knows it.

    Args:
        model: A graph that takes pictures.
        size: Height and width in pixels; a multiple of the model's stride.
        anchors: Anchors of its head; None if that depends on the size.

    Raises:
        ModelError: The graph does not take `[B, 3, H, W]`, or depends on its input size in another
            way too.
    """
    changed = copied(model)
    image = picture_input(changed.graph, "--imgsz")
    height, width = image.type.tensor_type.shape.dim[2:]
    old = known_size(height.dim_value), known_size(width.dim_value)
    if old == (size, size):
        return changed
    if old[0] is not None and old[1] is not None:
        before = Grid.of((old[0], old[1]), anchors or 0)
        if before is None:
            raise ModelError(
                f"the graph only takes {old[1]}x{old[0]} pictures, and its {anchors or 'unknown'} "
                "anchors do not form a grid of known strides",
                HINT,
            )
        _Resizing(changed, image.name, before, replace(before, size=(size, size))).run()
    height.dim_value = width.dim_value = size
    try:
        return renew_shapes(changed)
    except ValueError as error:
        raise ModelError(f"the graph cannot take {size}x{size} pictures: {error}", HINT) from error


class _Resizing:
    """Changes a graph for one size to another, in place."""

    def __init__(self, model: ModelProto, image: str, old: Grid, new: Grid) -> None:
        self.graph = model.graph
        self.old, self.new = old, new
        self.names = tensor_names(model.graph)
        self.computed = _reached(model, image)
        self.constants = _constants(model, self.computed)

    def run(self) -> None:
        for node in self.graph.node:
            if self.computed.isdisjoint(node.output):
                continue
            if (
                node.op_type == "Reshape"
                and (target := self.constants.get(node.input[1])) is not None
            ):
                self._replace(node, 1, self._target(target))
            elif node.op_type == "Resize" and len(node.input) > 3:  # data, regions, scales, sizes
                sizes = self.constants.get(node.input[3])
                if sizes is not None:
                    self._replace(node, 3, self._target(sizes))
            else:
                self._regenerate(node)
        for output in self.graph.output:
            for dim in output.type.tensor_type.shape.dim:
                if dim.dim_value == self.old.anchors:
                    dim.dim_value = self.new.anchors
        drop_unused(self.graph)

    def _regenerate(self, node: NodeProto) -> None:
        """Compute the parts of the anchor grid that a node reads for the new size."""
        for position, name in enumerate(node.input):
            constant = self.constants.get(name)
            if constant is None or self.old.anchors not in constant.shape:
                continue
            made = regenerated(constant, self.old, self.new)
            if made is None:
                raise ModelError(
                    f"the constant {name} depends on the size of the pictures, and is not an "
                    "anchor grid that detcli knows",
                    HINT,
                )
            self._replace(node, position, made)

    def _replace(self, node: NodeProto, position: int, value: Array) -> None:
        name = node.input[position]
        if not np.array_equal(value, self.constants[name]):
            new = unused_name(self.names, f"{node.output[0]}/{self.new.size[0]}")
            node.input[position] = add_constant(self.graph, new, value)

    def _target(self, target: Array) -> Array:
        """Translate a shape from the old size to the new.

        Either the last two axes are the cells of a level, or one axis is the cells of a level,
        flattened, or all anchors. The number of elements grows as that of pixels does.
        """
        growth = math.prod(self.new.size) / math.prod(self.old.size)
        wanted = -1 if -1 in target else round(math.prod(target.tolist()) * growth)
        levels = dict(zip(self.old.levels, self.new.levels, strict=True))
        if (cells := levels.get(tuple(target[-2:].tolist()))) is not None:
            changed = np.array([*target[:-2], *cells], np.int64)
            if wanted in {-1, math.prod(changed.tolist())}:
                return changed
        counts = {math.prod(before): math.prod(after) for before, after in levels.items()}
        counts[self.old.anchors] = self.new.anchors
        for axis in reversed(range(len(target))):
            changed = target.copy()
            changed[axis] = counts.get(int(target[axis]), target[axis])
            if wanted != -1 and math.prod(changed.tolist()) == wanted:
                return changed
        return target


def _reached(model: ModelProto, image: str) -> set[str]:
    """All tensors that depend on the input, or on its shape."""
    reached = {image}
    for node in model.graph.node:
        if not reached.isdisjoint(node.input):
            reached.update(node.output)
    return reached


def _constants(model: ModelProto, computed: set[str]) -> dict[str, Array]:
    """The constants, computed or not, that nodes read which depend on the input."""
    index = GraphIndex(model.graph)
    fixed = [node for node in model.graph.node if computed.isdisjoint(node.output)]
    made = {name for node in fixed for name in node.output if name}
    read = {
        name
        for node in model.graph.node
        if not computed.isdisjoint(node.output)
        for name in node.input
        if name and name not in computed
    }
    known = {name: value for name in read if (value := index.array(name)) is not None}
    wanted = sorted((read & made) - set(known))
    if not wanted:
        return known
    constants = onnx.helper.make_graph(
        fixed,
        "constants",
        [],
        [onnx.ValueInfoProto(name=name) for name in wanted],
        list(model.graph.initializer),
    )
    part = onnx.helper.make_model(
        constants, opset_imports=list(model.opset_import), ir_version=model.ir_version
    )
    session = open_session(part.SerializeToString(), CPU, "the constants")
    values = run_with_timeout(RUN_TIMEOUT_S, "the constants", lambda: session.run(None, {}))
    return known | dict(zip(wanted, values, strict=True))
