"""What an ONNX file promises: its input, head and classes; its name is not taken into account.

A detector ends in a head: one tensor with four box rows and C class scores for each of N anchors.

| layout          | graph output                     | the head                                |
| --------------- | -------------------------------- | --------------------------------------- |
| end-to-end      | `[B, K, 6]` from two TopK stages | the tensor that feeds the first of them |
| body            | `[B, 4 + C, N]`                  | the output                              |
| transposed body | `[B, N, 4 + C]`                  | the output                              |
| one-to-many     | as a body, either way round      | the output; it needs NMS                |
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Self

from detcli.errors import UsageError


class Layout(StrEnum):
    """How a graph ends."""

    END_TO_END = "end-to-end"
    BODY = "body"
    TRANSPOSED_BODY = "transposed body"
    ONE_TO_MANY = "one-to-many"


class BoxFormat(StrEnum):
    """Format of the four box rows of a head, in pixels of the letterboxed input."""

    XYXY = "xyxy"
    CXCYWH = "cxcywh"


@dataclass(frozen=True, slots=True)
class Contract:
    """What a graph promises: how to feed it an image and how to read its head.

    Attributes:
        layout: How the file's graph ends.
        head: Name of the head tensor; a graph output, or where an end-to-end graph is cut.
        anchors_first: Whether the head is `[B, N, 4 + C]` instead of `[B, 4 + C, N]`.
        box_format: Format of the box rows.
        class_count: C.
        anchor_count: N, or None where it depends on the input size.
        input_name: Name of the image input, `[B, 3, H, W]`, RGB from 0 to 1.
        input_dtype: "float32" or "float16".
        batch: B, or None where any batch is accepted.
        input_size: Height and width in pixels, or None where the graph accepts any.
        default_size: Height and width to use in that case.
        stride: Pixels that height and width must be a multiple of.
        names: Class names by class id, C of them.
        names_origin: Where the names came from.
        warnings: What deserves attention, one sentence each.
    """

    layout: Layout
    head: str
    anchors_first: bool
    box_format: BoxFormat
    class_count: int
    anchor_count: int | None
    input_name: str
    input_dtype: str
    batch: int | None
    input_size: tuple[int, int] | None
    default_size: tuple[int, int]
    stride: int
    names: tuple[str, ...]
    names_origin: str
    warnings: tuple[str, ...] = ()

    def canvas(self, image_size: int | None = None) -> tuple[int, int]:
        """Height and width to letterbox to.

        Args:
            image_size: The side length that the user asked for, if any.

        Raises:
            UsageError: The graph cannot run at that size.
        """
        if image_size is None:
            return self.input_size or self.default_size
        if self.input_size is not None and self.input_size != (image_size, image_size):
            height, width = self.input_size
            raise UsageError(
                f"imgsz {image_size}: this graph takes {width}x{height} pictures only",
                "leave imgsz out, or export the model with dynamic axes",
            )
        if image_size % self.stride:
            lower = max(image_size // self.stride, 1) * self.stride
            raise UsageError(
                f"imgsz {image_size} is not a multiple of the model's stride, {self.stride}",
                f"use {lower} or {lower + self.stride}",
            )
        return image_size, image_size

    def with_names(self, names: tuple[str, ...], origin: str) -> Self:
        """Return the contract with other class names.

        Raises:
            UsageError: The number of names is not C.
        """
        if len(names) != self.class_count:
            raise UsageError(
                f"{origin} has {len(names)} names, the model has {self.class_count} classes",
                "give one name for each class id, in order",
            )
        return replace(self, names=names, names_origin=origin)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Self:
        """Read what `dataclasses.asdict` gives, back from JSON."""
        size = fields["input_size"]
        return cls(
            **{
                **fields,
                "layout": Layout(fields["layout"]),
                "box_format": BoxFormat(fields["box_format"]),
                "input_size": tuple(size) if size else None,
                "default_size": tuple(fields["default_size"]),
                "names": tuple(fields["names"]),
                "warnings": tuple(fields["warnings"]),
            }
        )
