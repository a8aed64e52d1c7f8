"""What verify finds, as JSON, and certificates of it."""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

from detcli.cli.report import to_json
from detcli.compare.detections import (
    DetectionsReport,
    tolerance_for,
)
from detcli.config.values import Tolerance
from detcli.core import frozen
from detcli.model.precision import Precision

MAX_SHOWN = 80  # characters of a certificate's value that is shown

FileCounts = Counter[tuple[str, str | None]]

FIGURES = {
    "left": "boxes on the left",
    "right": "boxes on the right",
    "pairs": "pairs",
    "over": "pairs beyond the tolerance",
    "borderline": "borderline",
    "missing": "missing boxes",
    "extra": "extra boxes",
    "largest_score_difference": "largest score difference",
    "largest_corner_difference": "largest corner difference",
    "reordered": "images with pairs in another order",
    "disagreeing": "share of disagreeing boxes",
}
"""Numbers that may change while the verdict stays, and their names in a check."""


class SelectedBy(StrEnum):
    DETCLI = "detcli"
    GRAPH = "graph"


@frozen
class SideReport:
    """One side of the comparison; None is what is unknown."""

    model: str  # the file, as the user named it; of saved records the model's name
    sha256: str | None = None
    device: str | None = None
    selection: SelectedBy | None = None  # None where only tensors are compared, and for records
    precision: Precision | None = None  # the lowest one that the network computes in
    records: str | None = None  # the saved records; None where the model ran


def tolerance_of(sides: Iterable[SideReport], requested: Mapping[str, float] | None) -> Tolerance:
    """What is allowed between two sides, where the user does not say: it depends on both."""
    precisions = {side.precision or Precision.FLOAT32 for side in sides}
    return tolerance_for(precisions, requested or {})


@frozen
class TensorSide:
    """A tensor as one side has computed it: its type, its shape and the range of its values."""

    dtype: str
    shape: tuple[int, ...]
    nan: int
    infinite: int
    least: float | None  # of the finite values
    greatest: float | None

    @property
    def not_finite(self) -> int:
        """How many values are NaN or infinite."""
        return self.nan + self.infinite

    def describe_not_finite(self) -> str:
        return f"{self.nan} NaN and {self.infinite} infinities"


@frozen
class TensorReport:
    """Two tensors that should be alike, compared where both are finite.

    The figures are None if the shapes differ or no value is finite.
    """

    name: str  # for detectors, "scores" or "boxes"
    left: TensorSide
    right: TensorSide
    max_absolute: float | None
    max_relative: float | None  # as a share of the larger of two values
    max_scaled: float | None  # of the largest magnitude on the left; the tolerance limits it
    cosine: float | None
    agrees: bool  # within the tolerance, with NaN and infinities in the same places
    source: str  # the input with the largest difference; the figures are for it

    def failures(self, limit: float) -> Iterator[str]:
        """Yield a sentence about why the two tensors do not agree; nothing if they do.

        Tensors with the same NaN and infinities agree. But if they have nothing else, that says
        nothing about the networks, and counts as a failure.

        Args:
            limit: How much they may differ, as a share of the largest magnitude on the left.
        """
        left = self.left
        right = self.right
        if self.agrees:
            has_finite_values = self.max_absolute is not None
            if left.not_finite and not has_finite_values:
                yield f"{self.name}: no value is finite on either side"
            return

        if left.shape != right.shape:
            yield f"{self.name}: {list(left.shape)} and {list(right.shape)}"
        elif self.max_scaled is not None and self.max_scaled > limit:
            yield (
                f"{self.name}: differs by {self.max_scaled:.3g} of its largest magnitude "
                f"({limit:g} allowed)"
            )
        else:  # the finite values agree, so others are NaN or infinite in one tensor only
            on_left = left.describe_not_finite()
            on_right = right.describe_not_finite()
            yield f"{self.name}: {on_left} on the left, {on_right} on the right"


@frozen
class NodeReport:
    """A node; without a name it has that of its first output."""

    name: str
    operator: str

    def __str__(self) -> str:
        return f"{self.operator} {self.name}"


@frozen
class BisectReport:
    """The first node whose output differs although its inputs agree."""

    source: str  # the input that both graphs ran on
    node: NodeReport | None  # None if there is none, for the reason in `finding`
    finding: str  # what differs about it
    output: TensorReport | None = None  # its output, or the next tensor that both graphs have
    inputs: tuple[TensorReport, ...] = ()  # the nearest common tensors before it; all agree
    left_nodes: tuple[NodeReport, ...] = ()  # between the two in the first graph
    right_nodes: tuple[NodeReport, ...] = ()
    compared: int = 0  # tensors
    rounds: int = 0  # runs of both graphs


@frozen
class FailedInput:
    """An input that could not be compared, and why."""

    source: str
    error: str


@dataclass(slots=True, kw_only=True)
class VerifyReport:
    """How two sides compare; it is filled in as they are compared, then judged."""

    schema_version: ClassVar[int] = 2
    agree: bool = False  # something was compared, and all of it is within the tolerance
    failures: list[str] = field(default_factory=list)  # what exceeds it, one sentence each
    left: SideReport
    right: SideReport
    tolerance: Tolerance
    compared: int = 0  # inputs
    failed: list[FailedInput] = field(default_factory=list)  # or whose saved records are errors
    unlike: list[str] = field(default_factory=list)  # how saved runs differ, and what they hide
    left_only: list[str] = field(default_factory=list)  # inputs of one saved run
    right_only: list[str] = field(default_factory=list)
    other_files: list[str] = field(default_factory=list)  # different files in two saved runs
    detections: DetectionsReport | None = None
    no_detections: str | None = None  # why they were not compared
    tensors: tuple[TensorReport, ...] | None = None  # None unless asked for
    bisect: BisectReport | None = None

    def judge(self, more_failures: Iterable[str] = ()) -> None:
        """Decide whether the two sides agree: set `agree`, and add each difference to `failures`.

        Two sides on which nothing was found prove nothing: without a single box, or a tensor with
        finite values, they do not agree.

        Args:
            more_failures: What differs besides detections and tensors, one sentence each.
        """
        has_evidence = False
        if self.detections is not None:
            self.failures += self.detections.failures(self.tolerance)
            has_evidence = _count_boxes(self.detections) > 0

        for tensor in self.tensors or ():
            self.failures += tensor.failures(self.tolerance.tensor)
            has_finite_values = tensor.max_absolute is not None
            if has_finite_values:
                has_evidence = True

        if self.bisect is not None and self.bisect.node is not None:
            self.failures.append(
                f"{self.bisect.node} is the first node that differs: {self.bisect.finding}"
            )
        self.failures += more_failures
        self.agree = has_evidence and not self.failures

    @property
    def verdict(self) -> list[str]:
        """The verdict on both sides: a sentence for each thing that differs, or a single one."""
        if self.failures:
            return [f"differs: {failure}" for failure in self.failures]
        if self.agree:
            return ["the two sides agree"]
        return ["nothing was compared"]


def _count_boxes(detections: DetectionsReport) -> int:
    """Count the boxes and pairs of boxes that were compared."""
    unpaired = detections.missing + detections.extra
    return detections.pairs + detections.borderline + unpaired


@frozen
class CertifiedSide:
    """What a certificate says about one side, besides the report."""

    records_sha256: str | None = None  # of the file of saved records
    settings: dict[str, Any] | None = None  # what the detections depend on
    provenance: dict[str, str | None] | None = None  # versions, processor, GPU and driver


@frozen
class CertifiedImage:
    """An image that a certificate names, with the hash of its file."""

    source: str
    sha256: str | None  # of the record, else of the file; None where it is not found either
    found: bool = True  # whether the file existed to be looked at


@dataclass(slots=True)
class Certificate:
    """What was compared, with what, and what came of it."""

    schema_version: ClassVar[int] = 2
    date: str  # UTC in ISO 8601
    request: dict[str, Any]  # used again by `--check`
    left: CertifiedSide
    right: CertifiedSide
    pictures: list[CertifiedImage]
    report: VerifyReport


@frozen
class CertificateChange:
    """Something that differs from a certificate."""

    what: str
    before: str | None
    now: str | None
    matters: bool  # the certificate does not hold for that

    def __str__(self) -> str:
        return f"{self.what} was {self.before or 'not there'} and is {self.now or 'gone'}"


@frozen
class CheckReport:
    """Whether a certificate holds when the same is compared again."""

    schema_version: ClassVar[int] = 2
    date: str  # of the certificate
    holds: bool  # the sides agree, and nothing changed that matters
    changes: tuple[CertificateChange, ...]
    report: VerifyReport


SETTINGS_OF_LATER_VERSIONS = {"unique"}
"""Settings that certificates of earlier versions lack; they follow from the other settings."""

OPTIONAL_SETTINGS = ("ignore", "ignore_share")
"""Settings that records have only if the user set their options."""


def check(before: dict[str, Any], certificate: Certificate) -> CheckReport:
    """List what differs from a certificate, now that the same was compared again."""
    changes = tuple(_Recheck(before, to_json(certificate)).changes())
    report = certificate.report
    holds = report.agree and not any(change.matters for change in changes)
    date = before.get("date")
    if not isinstance(date, str):
        date = "unknown"
    return CheckReport(date, holds, changes, report)


@frozen
class _Recheck:
    """A certificate, and the certificate of the same comparison made again, both as JSON.

    The earlier certificate may come from a stranger, so its values may have any type.
    """

    certified: dict[str, Any]
    repeated: dict[str, Any]

    def changes(self) -> Iterator[CertificateChange]:
        """Yield what changed since the certificate was issued, the verdict first.

        Values of the two JSON documents are compared by the keys that lead to them.
        """
        yield from self._compare("verdict", "report", "agree", matters=True)
        for side in ("left", "right"):
            yield from self._changes_of_side(side)
        for name in self.repeated["report"]["tolerance"]:
            yield from self._compare(
                f"tolerance of {name}", "report", "tolerance", name, matters=True
            )
        yield from _image_changes(self.certified.get("pictures"), self.repeated["pictures"])
        yield from self._compare("confidence", "report", "detections", "conf", matters=True)
        yield from self._compare(
            "IoU of a match", "report", "detections", "least_iou", matters=True
        )

        # Numbers may change while the verdict stays.
        yield from self._compare("images compared", "report", "compared")
        for name, title in FIGURES.items():
            yield from self._compare(title, "report", "detections", name)

    def _changes_of_side(self, side: str) -> Iterator[CertificateChange]:
        """Yield what changed in one side of the comparison since the certificate was written.

        The certificate does not hold if a file or a setting changed that detections depend on. It
        still holds on another device, with a renamed file, or with other versions of libraries.

        Args:
            side: "left" or "right", each with a model or saved records, a device and settings.
        """
        # The arguments after the title are the keys that lead to a value in the JSON.
        yield from self._compare(f"{side} model sha256", "report", side, "sha256", matters=True)
        yield from self._compare(f"{side} precision", "report", side, "precision", matters=True)
        for name in ("device", "model", "selection", "records"):
            yield from self._compare(f"{side} {name}", "report", side, name)
        yield from self._compare(f"{side} records sha256", side, "records_sha256", matters=True)

        for name in self._comparable_settings(side):
            yield from self._compare(f"{side} setting {name}", side, "settings", name, matters=True)

        for name in self.repeated[side]["provenance"] or ():
            if name != "begun":  # the time when the run began is never the same
                yield from self._compare(f"{side} {name}", side, "provenance", name)

    def _comparable_settings(self, side: str) -> list[str]:
        """List the settings of a side whose values are compared in the two certificates.

        A setting that only one of the certificates has is left out if that is due to the version of
        detcli that wrote it, as its value has not changed then.

        Args:
            side: "left" or "right".
        """
        certified_settings = _value_at(self.certified, (side, "settings"))
        certified_names: Collection[str] = ()
        if isinstance(certified_settings, dict):
            certified_names = certified_settings.keys()
        current_names = self.repeated[side]["settings"] or ()

        comparable_names = []
        for name in current_names:
            is_of_later_version = name in SETTINGS_OF_LATER_VERSIONS and name not in certified_names
            if not is_of_later_version:
                comparable_names.append(name)

        # Settings that are missing now were left out by this version of detcli, except for these:
        # they are missing if the user no longer sets them, which is a change.
        for name in OPTIONAL_SETTINGS:
            if name in certified_names and name not in current_names:
                comparable_names.append(name)
        return comparable_names

    def _compare(
        self, title: str, *path: str, matters: bool = False
    ) -> Iterator[CertificateChange]:
        """Yield a change if a value differs between the certificates.

        Args:
            title: What the change calls the value.
            path: The keys that lead to the value.
            matters: Whether the certificate does not hold after this change.
        """
        certified_value = _value_at(self.certified, path)
        current_value = _value_at(self.repeated, path)
        if certified_value != current_value:
            yield CertificateChange(
                what=title,
                before=_shown(certified_value),
                now=_shown(current_value),
                matters=matters,
            )


def _value_at(document: object, path: Iterable[str]) -> object:
    """Return the value at a path of keys; None where the path leads nowhere."""
    value = document
    for key in path:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def _image_changes(certified: object, images: list[dict[str, Any]]) -> Iterator[CertificateChange]:
    """Yield the inputs whose files changed, are gone, or are new since the certificate.

    Args:
        certified: The images of the certificate, as in its JSON: a list of objects with `source`
            and `sha256`, unless somebody has changed it.
        images: The images of the same comparison now, in the same form.
    """
    certified_hashes = _hashes(certified)
    current_hashes = _hashes(_comparable_images(certified, images))
    # Subtracting a Counter leaves what the other one lacks: files that are on one side only.
    hash_before = _hash_by_source(certified_hashes - current_hashes)
    hash_now = _hash_by_source(current_hashes - certified_hashes)
    for source in hash_now | hash_before:
        before = hash_before.get(source)
        now = hash_now.get(source)
        yield CertificateChange(f"input {source}", before, now, matters=True)


def _comparable_images(certified: object, images: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Select the images of a new comparison whose hashes can be compared with a certificate.

    An image is left out if its file is gone now, but was there when the certificate was issued: its
    hash is then only what records say, or unknown. If the file was missing at that time as well, as
    for saved runs of another machine, both hashes are from records and are compared.

    Args:
        certified: The images of the certificate, as in its JSON: a list of objects with `source`
            and `found`, unless somebody has changed it.
        images: The images of the new comparison; `found` says whether the file exists.
    """
    sources_with_file = set()
    for entry in _images(certified):
        if entry.get("found") is True:
            sources_with_file.add(entry["source"])

    comparable = []
    for image in images:
        is_gone_now = not image["found"] and image["source"] in sources_with_file
        if not is_gone_now:
            comparable.append(image)
    return comparable


def _hash_by_source(hashes: FileCounts) -> dict[str, str | None]:
    """Return the hash of each input, from counted pairs of an input and its hash."""
    return dict(hashes.elements())


def _hashes(images: object) -> FileCounts:
    """Count the pairs of an input and its file's hash; an input may occur several times."""
    return Counter((image["source"], _shown(image.get("sha256"))) for image in _images(images))


def _images(images: object) -> list[dict[str, Any]]:
    """Select the images of a certificate that name their source."""
    if not isinstance(images, list):
        return []
    named_images = []
    for image in images:
        if isinstance(image, dict) and isinstance(image.get("source"), str):
            named_images.append(image)
    return named_images


def _shown(value: object) -> str | None:
    """Format a value of a certificate; None for None."""
    if value is None:
        return None
    if isinstance(value, str):
        return shortened(value)
    return shortened(json.dumps(value))


def shortened(text: str) -> str:
    """Shorten a string that a stranger may have chosen to a length that can be shown."""
    if len(text) <= MAX_SHOWN:
        return text
    return text[:MAX_SHOWN] + "..."
