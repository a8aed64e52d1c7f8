"""Lays out the report of a conversion as tables and text."""

from collections.abc import Iterator

from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from detcli.commands.convert.report import Conversion, Difference, File, Step
from detcli.commands.shared.reports import facts
from detcli.text import printable


def render(report: Conversion) -> Iterator[Table | Text]:
    """Lay out a report: the model, the passes, the difference, and what was written."""
    yield facts([("model", _file(report.model)), *map(_step, report.steps)])
    yield facts(_differences(report.difference))
    yield _verdict(report)


def _file(file: File) -> str:
    size = f"{file.size[1]}x{file.size[0]}" if file.size else "any size"
    batch = "any batch" if file.batch is None else f"batch {file.batch}"
    return f"{file.path}, {decimal(file.bytes)}, {size}, {batch} ({file.sha256[:12]})"


def _step(step: Step) -> tuple[str, str]:
    nothing = "" if step.changed else " (nothing to do)"
    return step.name, f"{step.finding}{nothing}; {step.nodes} nodes"


def _differences(found: Difference) -> list[tuple[str, str]]:
    rows = [
        ("compared on", found.source),
        (
            f"above {found.conf:g}",
            f"{found.old} boxes before, {found.new} after, {found.pairs} pairs",
        ),
        (
            "disagree",
            f"{found.missing} missing, {found.extra} extra, {found.over} beyond the tolerance"
            + (f"; {found.borderline} at the confidence threshold" if found.borderline else ""),
        ),
        ("score", f"differs by {found.largest_score:.3g} (allowed {found.score_tolerance:g})"),
        (
            "corners",
            f"differ by {found.largest_corner:.3g} pixels (allowed {found.corner_tolerance:g})",
        ),
    ]
    if found.batch is not None:
        rows.append(("in a batch", f"the output differs by {found.batch:.3g} of its largest value"))
    return rows


def _verdict(report: Conversion) -> Text:
    if report.written:
        return Text.assemble(("written: ", "green"), printable(_file(report.output)))
    reasons = "".join(f"\n  {printable(failure)}" for failure in report.failures)
    return Text.assemble(("not written: ", "red"), printable(report.output.path), reasons)
