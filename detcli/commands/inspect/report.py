"""The report of `detcli inspect`."""

from dataclasses import dataclass
from typing import Literal

from detcli.backend.runtime.survey import Placement
from detcli.model.contract import BoxFormat, Layout, ScoreForm
from detcli.model.inputs import Role
from detcli.model.loading import ExternalFile

TensorShape = tuple[int | str | None, ...]
"""For each axis a number, a symbol, or None if unknown."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """An input or output of the graph."""

    name: str
    dtype: str
    shape: TensorShape


@dataclass(frozen=True, slots=True)
class DynamicAxis:
    """An axis that may have any size.

    Attributes:
        name: Its symbol in the graph; "?" where it has none.
        places: Where it occurs, as tensor and axis number: "images[0]".
    """

    name: str
    places: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CutPoint:
    """Where detcli cuts a graph that selects boxes, in order to select them itself.

    Attributes:
        tensor: The tensor that is the head, or that holds its boxes where scores are apart.
        kept: The number of nodes that the head depends on.
        dropped: The other nodes, as a count per operator.
        most_detections: Detections that the graph's TopK nodes keep per image; None if computed.
    """

    tensor: str
    kept: int
    dropped: dict[str, int]
    most_detections: int | None


@dataclass(frozen=True, slots=True)
class FedInput:
    """An input beside the picture, which detcli feeds.

    Attributes:
        name: Its name.
        wants: What it is fed.
    """

    name: str
    wants: Role


@dataclass(frozen=True, slots=True)
class DetectorFacts:
    """What a graph promises, and what shows it.

    Attributes:
        family: The family that it was recognised as.
        layout: How the graph ends.
        layout_reason: Which of its nodes show it.
        head: The tensor of boxes and class scores that detections are selected from; where the
            graph has none, the one that detcli appends.
        heads: The tensors of the graph that the head is made of, boxes first.
        cut: Where the graph would be cut; None if it does not select boxes.
        other_inputs: Inputs beside the picture.
        box_format: Format of the head's box rows.
        box_format_reason: Which of its nodes show it.
        box_unit: What boxes are measured in: pixels of the input, or fractions of its sides.
        score_form: Whether the head's scores are final, or logits.
        score_reason: What they are made of.
        one_class: Only the best class of each anchor counts.
        needs_nms: Several boxes are given for an object, so it needs non-maximum suppression.
        conf: The confidence that the metadata recommends, if any.
        nms: The IoU that the metadata recommends for that, if any.
        preprocessing: How pictures become the input, as --preprocess names it.
        preprocessing_origins: What settled each part of that; others are unsettled.
        unsettled: Parts of the preprocessing that nothing settles.
        class_count: C.
        anchor_count: N, or None where it depends on the input size.
        batch: B, or None where any batch is accepted.
        input_size: Height and width, or None where any are accepted.
        default_size: Height and width that are used in that case.
        stride: Pixels that height and width must be multiples of.
        stride_origin: Where the stride comes from.
        names: Class names by class id.
        names_origin: Where the names come from.
    """

    family: str
    layout: Layout
    layout_reason: str
    head: TensorInfo
    heads: tuple[TensorInfo, ...]
    cut: CutPoint | None
    other_inputs: tuple[FedInput, ...]
    box_format: BoxFormat
    box_format_reason: str
    box_unit: Literal["pixels", "fractions"]
    score_form: ScoreForm
    score_reason: str
    one_class: bool
    needs_nms: bool
    conf: float | None
    nms: float | None
    preprocessing: str
    preprocessing_origins: dict[str, str]
    unsettled: tuple[str, ...]
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
            (integer operators), "dynamic" (scales computed at each run) or "weights" (only those).
        quantised: Convolutions and matrix products that compute in, or from, integers.
        total: All convolutions and matrix products.
    """

    form: Literal["QDQ", "QOperator", "dynamic", "weights"]
    quantised: int
    total: int


@dataclass(frozen=True, slots=True)
class NetworkPrecision:
    """The types that a network computes in and stores.

    Attributes:
        computes: Convolutions and matrix products per type of their result.
        weights: Parameters per type that they are stored in.
        quantisation: None for unquantised graphs.
    """

    computes: dict[str, int]
    weights: dict[str, int]
    quantisation: Quantisation | None


@dataclass(frozen=True, slots=True)
class Operations:
    """Operations of one run, counted as in papers on detectors.

    Attributes:
        flops: Two for each multiplication with its addition in a convolution or matrix product;
            nothing else is counted.
        by_operator: The same per operator.
        input_shape: The shape of the input.
        uncounted: Nodes per operator that could not be counted, which makes `flops` a lower
            bound.
    """

    flops: int
    by_operator: dict[str, int]
    input_shape: TensorShape
    uncounted: dict[str, int]


AdviceCode = Literal[
    "assumed-stride",
    "bare-transpose",
    "beside-the-model",
    "external-data",
    "invalid",
    "ir-too-new",
    "metadata-ignored",
    "names-fewer",
    "names-missing",
    "names-more",
    "one-to-many",
    "opset-too-new",
    "opset-too-old",
    "preprocessing-unknown",
    "sparse-weights",
    "top-k-cap",
    "weights-as-inputs",
    "weights-not-finite",
]
"""Kinds of advice, for programs."""


@dataclass(frozen=True, slots=True)
class ModelAdvice:
    """Something about a model that deserves attention.

    Attributes:
        code: Its kind, for programs.
        message: What and why.
        fix: What to do about it.
    """

    code: AdviceCode
    message: str
    fix: str


@dataclass(frozen=True, slots=True)
class ModelProblem:
    """Why a model cannot be used, and what to do about it."""

    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class Inspection:
    """What a model file is.

    Attributes:
        model: The path as it was given.
        bytes: Size of the file.
        sha256: SHA-256 of the file.
        external: Files beside it that hold its weights.
        producer: The program that wrote it, from the file.
        ir_version: Version of the file format.
        opsets: Version of each operator set by domain; that of ONNX is "ai.onnx".
        inputs: Inputs that a caller feeds.
        outputs: Outputs of the graph.
        dynamic_axes: Axes of the inputs and outputs without a fixed size.
        nodes: Nodes per operator, the most frequent first.
        parameters: The number of weights and biases.
        precision: The types that it computes in.
        operations: Operations of one run; None if the input size is unknown.
        metadata: Metadata that the exporter wrote.
        detector: What it promises; None if it is not a detector that detcli knows.
        problem: Why it cannot be used; None if it can.
        placements: Which nodes each provider of this ONNX Runtime takes, and OpenVINO if installed.
        warnings: What deserves attention.
    """

    model: str
    bytes: int
    sha256: str
    external: tuple[ExternalFile, ...]
    producer: str
    ir_version: int
    opsets: dict[str, int]
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    dynamic_axes: tuple[DynamicAxis, ...]
    nodes: dict[str, int]
    parameters: int
    precision: NetworkPrecision
    operations: Operations | None
    metadata: dict[str, str]
    detector: DetectorFacts | None
    problem: ModelProblem | None
    placements: tuple[Placement, ...]
    warnings: tuple[ModelAdvice, ...]
