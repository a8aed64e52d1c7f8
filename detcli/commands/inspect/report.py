"""Inspection: what a model file is, as a report."""

from dataclasses import dataclass

from detcli.backend.runtime.survey import Placement
from detcli.model.contract import BoxFormat, Layout
from detcli.model.loading import ExternalFile

Shape = tuple[int | str | None, ...]
"""A number, a symbol, or None where nothing is known, for each axis."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output of the graph."""

    name: str
    dtype: str
    shape: Shape


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis that may have any size.

    Attributes:
        name: Its symbol in the graph; "?" where it has none.
        places: Tensors that have it and the axis' number there, such as "images[0]".
    """

    name: str
    places: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """Where detcli cuts an end-to-end graph, to select boxes itself.

    Attributes:
        tensor: The tensor that becomes the only output.
        kept: Nodes that it depends on.
        dropped: The other nodes: how many of each operator.
        most_detections: What the graph's own TopK nodes keep in a picture; None if it is computed.
    """

    tensor: str
    kept: int
    dropped: dict[str, int]
    most_detections: int | None


@dataclass(frozen=True, slots=True)
class Detector:
    """What a graph promises, and how that was found out.

    Attributes:
        layout: How the graph ends.
        layout_reason: Which of its nodes say so.
        head: The tensor of boxes and class scores that detections are selected from.
        cut: Where the graph would be cut; None if its output is the head.
        box_format: What the head's box rows are.
        box_format_reason: Which of its nodes say so.
        class_count: C.
        anchor_count: N, or None where it depends on the input size.
        batch: B, or None where any batch is accepted.
        input_size: Height and width, or None where any are accepted.
        default_size: Height and width that are used then.
        stride: What height and width must be multiples of.
        stride_origin: Where that comes from.
        names: Class names by class id.
        names_origin: Where they come from.
    """

    layout: Layout
    layout_reason: str
    head: Tensor
    cut: Cut | None
    box_format: BoxFormat
    box_format_reason: str
    class_count: int
    anchor_count: int | None
    batch: int | None
    input_size: tuple[int, int] | None
    default_size: tuple[int, int]
    stride: int
    stride_origin: str
    names: tuple[str, ...]
    names_origin: str


@dataclass(frozen=True, slots=True)
class Quantisation:
    """How a network is quantised.

    Attributes:
        form: "QDQ" (float operators between DequantizeLinear and QuantizeLinear), "QOperator"
            (integer operators), "dynamic" (scales are computed at each run) or "weights".
        quantised: Convolutions and matrix products that compute in, or from, integers.
        total: All of them.
    """

    form: str
    quantised: int
    total: int


@dataclass(frozen=True, slots=True)
class Precision:
    """What a network computes in.

    Attributes:
        computes: Types that convolutions and matrix products give, with how many of them do.
        weights: Types that parameters are kept in, with their number.
        quantisation: None if there is none.
    """

    computes: dict[str, int]
    weights: dict[str, int]
    quantisation: Quantisation | None


@dataclass(frozen=True, slots=True)
class Operations:
    """What one run of the network computes, counted as papers on detectors do.

    Attributes:
        flops: Two for each multiplication and addition of a convolution or matrix product;
            nothing else is counted.
        by_operator: The same by operator.
        input_shape: For an input of this shape.
        uncounted: Such operators with how many of them have no known shapes: then `flops` is what
            is certain, not all.
    """

    flops: int
    by_operator: dict[str, int]
    input_shape: Shape
    uncounted: dict[str, int]


@dataclass(frozen=True, slots=True)
class Advice:
    """Something about a model that deserves a look.

    Attributes:
        code: What it is about, for programs.
        message: What and why.
        fix: What to do about it.
    """

    code: str
    message: str
    fix: str


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a model cannot be used, and what to do about it."""

    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class Inspection:
    """What a model file is.

    Attributes:
        model: The path as it was given.
        bytes: Size of the file.
        sha256: Of the file.
        external: Files that belong to it.
        producer: What wrote it, as it says.
        ir_version: Version of the file format.
        opsets: Version of each operator set, by domain; ONNX' own is "ai.onnx".
        inputs: What a caller feeds.
        outputs: What the graph gives.
        dynamic_axes: Axes of these that have no fixed size.
        nodes: How many of each operator, the most frequent first.
        parameters: Weights and biases of the network.
        precision: What it computes in.
        operations: What a run costs; None where the input has no size.
        metadata: What the exporter wrote down.
        detector: What it promises; None if it is no detector that detcli knows.
        problem: Why it cannot be used; None if it can.
        placements: Which nodes each provider of this ONNX Runtime takes.
        warnings: What deserves a look.
    """

    model: str
    bytes: int
    sha256: str
    external: tuple[ExternalFile, ...]
    producer: str
    ir_version: int
    opsets: dict[str, int]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    dynamic_axes: tuple[Axis, ...]
    nodes: dict[str, int]
    parameters: int
    precision: Precision
    operations: Operations | None
    metadata: dict[str, str]
    detector: Detector | None
    problem: Problem | None
    placements: tuple[Placement, ...]
    warnings: tuple[Advice, ...]
