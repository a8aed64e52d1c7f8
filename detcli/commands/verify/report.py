"""Reports of verifications, and certificates; `detcli schema verify` describes their JSON."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from detcli.commands.shared.comparison import DetectionsReport, Precision, Tolerance
from detcli.commands.verify.request import VerifyRequest

WORST = 10
"""Pictures that a table has, and that are kept of two saved runs though they agree."""


class SelectedBy(StrEnum):
    """What selects the detections from a network's head."""

    DETCLI = "detcli"
    GRAPH = "graph"


@dataclass(frozen=True, slots=True)
class SideReport:
    """One side of the comparison.

    Attributes:
        model: The model's file, as the user named it; of saved records the model's name.
        sha256: SHA-256 of the file; None if unknown.
        device: Where the network runs; None if unknown.
        selection: What selects the detections; None where only tensors are compared, and for
            saved records.
        precision: The lowest precision that the network computes in; None if unknown.
        records: The saved records that were compared; None where the model ran.
    """

    model: str
    sha256: str | None
    device: str | None
    selection: SelectedBy | None
    precision: Precision | None
    records: str | None = None


@dataclass(frozen=True, slots=True)
class TensorSide:
    """One of two tensors.

    Attributes:
        dtype: NumPy's name of its type.
        shape: Its shape.
        nan: Number of NaN values.
        infinite: Number of infinite values.
        least: Smallest finite value; None if no value is finite.
        greatest: Largest finite value; None if no value is finite.
    """

    dtype: str
    shape: tuple[int, ...]
    nan: int
    infinite: int
    least: float | None
    greatest: float | None


@dataclass(frozen=True, slots=True)
class TensorReport:
    """Two tensors that should be alike, compared where both are finite.

    Attributes:
        name: The tensor's name; "scores" and "boxes" for the parts of a detector's head.
        left: The tensor on the first side.
        right: On the second.
        max_absolute: Largest difference; None if shapes differ or no value is finite.
        max_relative: Largest difference of two values, as a share of the larger one.
        max_scaled: Largest difference, as a share of the largest magnitude on the first side; the
            tolerance limits this.
        cosine: Cosine of the angle between the two; 1 for the same direction.
        agrees: `max_scaled` is within the tolerance, and NaN and infinities are in the same places.
        source: The input with the largest difference, which these figures are of.
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
    """A node: its name, or that of its first output if it has none, and its operator."""

    name: str
    operator: str


@dataclass(frozen=True, slots=True)
class BisectReport:
    """The first node at which two graphs differ.

    Attributes:
        source: The input that both graphs ran on.
        node: The first node whose output differs although its inputs agree; None if no such node
            was found, for the reason in `finding`.
        finding: What differs about the node.
        output: Its output on both sides, or the next tensor that both graphs have.
        inputs: The nearest tensors before it that both graphs have; all agree.
        left_nodes: The nodes from those inputs to the output in the first graph.
        right_nodes: In the second graph.
        compared: Number of tensors compared.
        rounds: Number of runs of both graphs.
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
    """An input that could not be read, and why."""

    source: str
    error: str


@dataclass(frozen=True, slots=True)
class CertifiedPicture:
    """A file that was compared.

    Attributes:
        source: The input, as the user named it.
        sha256: SHA-256 of the file; None where there is none, or it is not found.
    """

    source: str
    sha256: str | None


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """Whether two sides agree.

    Attributes:
        agree: Something was compared, and all of it is within the tolerance.
        failures: What exceeds the tolerance, one sentence each.
        left: The first side.
        right: The second side.
        tolerance: How far the sides may differ.
        compared: Number of inputs compared.
        failed: Inputs that could not be read, or whose saved records are errors.
        unlike: Settings in which saved runs differ, and what they do not say, a sentence each.
        left_only: Inputs of which only the first of two saved runs has a record.
        right_only: Of which only the second has one.
        other_files: Inputs that are different files in two saved runs.
        detections: The comparison of detections; None if there was none.
        no_detections: Why detections were not compared; None if they were.
        tensors: The comparison of raw outputs; None unless asked for.
        bisect: The first node that differs; None unless asked for.
    """

    agree: bool
    failures: tuple[str, ...]
    left: SideReport
    right: SideReport
    tolerance: Tolerance
    compared: int
    failed: tuple[FailedInput, ...]
    unlike: tuple[str, ...] = ()
    left_only: tuple[str, ...] = ()
    right_only: tuple[str, ...] = ()
    other_files: tuple[str, ...] = ()
    detections: DetectionsReport | None = None
    no_detections: str | None = None
    tensors: tuple[TensorReport, ...] | None = None
    bisect: BisectReport | None = None


@dataclass(frozen=True, slots=True)
class CertifiedSide:
    """What a certificate says of one side, besides the report.

    Attributes:
        records_sha256: SHA-256 of the file of saved records; None where the model ran, and of runs
            in shards.
        settings: What the detections depend on; None if saved records do not say.
        provenance: Versions, processor, GPU and driver; None if saved records do not say.
    """

    records_sha256: str | None
    settings: dict[str, Any] | None
    provenance: dict[str, str | None] | None


@dataclass(frozen=True, slots=True)
class Certificate:
    """That two sides agree, or do not.

    Attributes:
        date: When it was written, UTC in ISO 8601.
        request: What was asked for, which `--check` asks for again.
        left: The first side.
        right: The second side.
        pictures: Each picture and video that was compared, with its hash.
        report: What was found, and the verdict.
    """

    date: str
    request: VerifyRequest
    left: CertifiedSide
    right: CertifiedSide
    pictures: tuple[CertifiedPicture, ...]
    report: VerifyReport


@dataclass(frozen=True, slots=True)
class CertificateChange:
    """Something that is not as a certificate says.

    Attributes:
        what: What it is.
        before: What the certificate says; None if it says nothing.
        now: What was found; None if it is gone.
        matters: Whether the certificate does not hold for that.
    """

    what: str
    before: str | None
    now: str | None
    matters: bool

    def __str__(self) -> str:
        return f"{self.what} was {self.before or 'not there'} and is {self.now or 'gone'}"


@dataclass(frozen=True, slots=True)
class CheckReport:
    """Whether a certificate holds when the same is compared again.

    Attributes:
        date: When the certificate was written.
        holds: The sides agree, and nothing changed that matters: models, saved records, settings,
            tolerance, files and verdict.
        changes: Everything that changed.
        report: What was found now.
    """

    date: str
    holds: bool
    changes: tuple[CertificateChange, ...]
    report: VerifyReport
