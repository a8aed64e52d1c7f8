"""What a verification found, as values; detcli/schemas/verify.json describes their JSON."""

from dataclasses import dataclass
from enum import StrEnum

from detcli.commands.shared.comparison import DetectionsReport, Precision, Tolerance


class SelectedBy(StrEnum):
    """Who chooses the detections from a network's head."""

    DETCLI = "detcli"
    GRAPH = "graph"


@dataclass(frozen=True, slots=True)
class SideReport:
    """One of the two ways of running.

    Attributes:
        model: The file, as it was named.
        sha256: Of its content.
        device: Where the network runs.
        selection: Who chooses the detections; None where only tensors are compared.
        precision: The least that the network computes in.
    """

    model: str
    sha256: str
    device: str
    selection: SelectedBy | None
    precision: Precision


@dataclass(frozen=True, slots=True)
class TensorSide:
    """One of two tensors that are compared.

    Attributes:
        dtype: NumPy's name of it.
        shape: Its shape.
        nan: How many entries are NaN.
        infinite: How many are infinite.
        least: Least finite entry; None if there is none.
        greatest: Greatest finite entry.
    """

    dtype: str
    shape: tuple[int, ...]
    nan: int
    infinite: int
    least: float | None
    greatest: float | None


@dataclass(frozen=True, slots=True)
class TensorReport:
    """Two tensors that should be alike, over the entries that are finite in both.

    Attributes:
        name: Of the tensor; "scores" and "boxes" are the two parts of a detector's head.
        left: On the first side.
        right: On the second.
        max_absolute: Largest difference; None if shapes differ or nothing is finite.
        max_relative: Largest difference of two entries, as a share of the larger one of them.
        max_scaled: Largest difference as a share of the largest magnitude on the first side,
            which is what the tolerance is for.
        cosine: Of the angle between the two; 1 is the same direction.
        agrees: `max_scaled` is within the tolerance, and NaN and infinities are in the same places.
        source: The input that these figures are of, the worst of all.
    """

    name: str
    left: TensorSide
    right: TensorSide
    max_absolute: float | None
    max_relative: float | None
    max_scaled: float | None
    cosine: float | None
    agrees: bool
    source: str

    @property
    def sides(self) -> tuple[TensorSide, TensorSide]:
        """Both sides."""
        return self.left, self.right


@dataclass(frozen=True, slots=True)
class NodeReport:
    """A node: its name, or the tensor it makes where it has none, and its operator."""

    name: str
    operator: str


@dataclass(frozen=True, slots=True)
class BisectReport:
    """Where two graphs begin to differ.

    Attributes:
        source: The input they ran on.
        node: The first node whose output differs though what it reads agrees; None if there is
            none, and `finding` says why.
        finding: What is different about it.
        output: Its output on both sides, or the nearest behind it that both graphs have.
        inputs: The tensors before it that both graphs have; all agree.
        left_nodes: The nodes between those and the output in the first graph.
        right_nodes: In the second graph.
        compared: Tensors that were compared.
        rounds: How often both graphs ran for that.
    """

    source: str
    node: NodeReport | None
    finding: str
    output: TensorReport | None
    inputs: tuple[TensorReport, ...]
    left_nodes: tuple[NodeReport, ...]
    right_nodes: tuple[NodeReport, ...]
    compared: int
    rounds: int


@dataclass(frozen=True, slots=True)
class FailedInput:
    """An input that could not be used, and why."""

    source: str
    error: str


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """Whether two ways of running agree.

    Attributes:
        agree: Something was compared, and all of it is within the tolerance.
        failures: What is not, a sentence each.
        left: The first way.
        right: The second.
        tolerance: How far they may be apart.
        compared: How many inputs were.
        failed: Those that could not be used.
        detections: What the comparison of detections gave; None if there was none.
        no_detections: Why there was none.
        tensors: The networks' raw outputs; None if they were not asked for.
        bisect: Where the networks begin to differ; None if that was not asked for.
    """

    agree: bool
    failures: tuple[str, ...]
    left: SideReport
    right: SideReport
    tolerance: Tolerance
    compared: int
    failed: tuple[FailedInput, ...]
    detections: DetectionsReport | None
    no_detections: str | None
    tensors: tuple[TensorReport, ...] | None
    bisect: BisectReport | None
