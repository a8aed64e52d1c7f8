"""The command `detcli inspect`."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from detcli.cli.command import MODEL_ARGUMENT, command
from detcli.cli.console import download_progress, set_verbosity
from detcli.cli.report import REPORT_FORMAT, ReportFormat, facts_table, write_report
from detcli.config.config import Config, Verbosity
from detcli.core.errors import ModelError
from detcli.core.text import escape_unprintable

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from detcli.backend.libraries import Placement
    from detcli.commands.inspect.advice import CutPoint
    from detcli.commands.inspect.examine import (
        DetectorFacts,
        Inspection,
        NetworkPrecision,
        Operations,
        TensorInfo,
    )


@command(*(MODEL_ARGUMENT, "imgsz", "box_format", "preprocess", "boxes_only", "names"), Verbosity)
def inspect(config: Config, report_format: ReportFormat | None = REPORT_FORMAT) -> None:
    """Describe a model: layout, classes, size, where it runs, what deserves attention.

    A file that cannot be used is reported as far as it can be read, and the exit code is 4.
    Nothing is opened but the model's folder and, for one in onnx/, Hugging Face's JSON above it.
    """
    set_verbosity(quiet=config.verbosity.quiet, verbose=config.verbosity.verbose)
    from detcli.commands.inspect.examine import examine
    from detcli.run import locate

    with download_progress() as show:
        model = locate(config, show)
    inspection = examine(model.path, config.settings)
    write_report(inspection, report_format, render)
    if inspection.problem is not None:
        raise ModelError(inspection.problem.message, inspection.problem.hint)


MAX_NAMES = 8
MAX_OPERATORS = 6
MAX_ROWS = 20  # of one kind
MAX_CELL = 2000  # characters
MAX_ENTRY = 96  # characters of a metadata entry
MAX_KEY = 24  # characters of its key; a long one would leave no room for the values


def render(inspection: "Inspection") -> "Iterator[Table | Text]":
    """Lay out a report: facts first, then why it cannot be used, then what deserves attention."""
    from rich.text import Text

    from detcli.commands.inspect.examine import shortened

    yield Text(escape_unprintable(inspection.model), style="bold")
    yield facts_table((title, shortened(value, MAX_CELL)) for title, value in _facts(inspection))
    entries = [("warning: ", one.message, one.fix, "yellow") for one in inspection.warnings]
    if (problem := inspection.problem) is not None:
        entries.insert(0, ("cannot be used: ", problem.message, problem.hint, "red"))
    for kind, message, fix, style in entries:
        text = Text.assemble((kind, style), escape_unprintable(shortened(message, MAX_CELL)))
        yield text.append(f"\n  fix: {escape_unprintable(fix)}", style="dim") if fix else text


def _facts(inspection: "Inspection") -> Iterator[tuple[str, str]]:
    from rich.filesize import decimal

    from detcli.commands.inspect.examine import shortened

    yield "file", decimal(inspection.bytes)
    yield "sha256", inspection.sha256
    for file in inspection.external:
        yield "external data", f"{file.name}, {decimal(file.bytes)}"
    yield "written by", f"{inspection.producer or 'unknown'} (IR {inspection.ir_version})"
    opsets = (f"{domain} {version}" for domain, version in inspection.opsets.items())
    yield "operator sets", ", ".join(opsets)
    if inspection.detector is not None:
        yield from _promises(inspection.detector)
    axes = [f"{axis.name}: {', '.join(axis.places)}" for axis in inspection.dynamic_axes]
    for title, values in (
        ("input", [_signature(tensor) for tensor in inspection.inputs]),
        ("output", [_signature(tensor) for tensor in inspection.outputs]),
        ("dynamic axis", axes),
    ):
        yield from ((title, value) for value in values[:MAX_ROWS])
        if len(values) > MAX_ROWS:
            yield title, f"{len(values) - MAX_ROWS} more"
    yield "precision", _precision(inspection.precision)
    yield "parameters", f"{inspection.parameters:,}"
    yield "operations", _operations(inspection.operations)
    yield "nodes", f"{sum(inspection.nodes.values())}: {_counts(inspection.nodes)}"
    for placement in inspection.placements:
        yield f"on {_short(placement.provider)}", _placement(placement)
    entries = [entry for entry in inspection.metadata.items() if entry[0] != "names"]
    for key, value in entries[:MAX_ROWS]:
        title = key if len(key) <= MAX_KEY else f"{key[: MAX_KEY - 3]}..."
        yield f"metadata {title}", shortened(value, MAX_ENTRY)
    if len(entries) > MAX_ROWS:
        yield "metadata", f"{len(entries) - MAX_ROWS} more"


def _promises(detector: "DetectorFacts") -> Iterator[tuple[str, str]]:
    from detcli.model.preprocessing import PREPROCESSING_STEPS

    yield "family", detector.family
    yield "layout", f"{detector.layout}: {detector.layout_reason}"
    made = ", ".join(map(_signature, detector.heads))
    head = _signature(detector.head)
    yield "head", head if head == made else f"{head}, made of {made}"
    if detector.cut is not None:
        yield "cut", _cut(detector.cut, detector.heads)
    for fed in detector.other_inputs:
        yield "fed", f"{fed.name}: {fed.wants}"
    boxes = f"{detector.box_format}: {detector.box_format_reason}"
    yield "boxes", f"{boxes}; in {detector.box_unit} of the input"
    counted = "the best of each anchor" if detector.one_class else "every class of an anchor"
    yield "scores", f"{detector.score_form}: {detector.score_reason}; {counted} counts"
    if detector.nms is not None:
        yield "duplicates", "several boxes for each object"
        yield "NMS", f"an IoU of {detector.nms:g} is recommended, and used unless --nms is given"
    single = [f"{detector.names[one]}={least:g}" for one, least in detector.class_conf.items()]
    if said := ([] if detector.conf is None else [f"{detector.conf:g}"]) + single:
        yield "confidence", f"{','.join(said)} is recommended, and used unless --conf is given"
    if detector.tile is not None:
        yield "tiles", f"{detector.tile} is recommended, and used unless --tile is given"
    yield "preprocessing", detector.preprocessing
    origins = dict.fromkeys(PREPROCESSING_STEPS, "unsettled; --preprocess says it")
    for part, origin in (origins | detector.preprocessing_origins).items():
        yield f"  {part}", origin
    yield "anchors", str(detector.anchor_count or "unknown; depends on the input size")
    yield "stride", f"{detector.stride}, {detector.stride_origin}"
    if detector.input_size is None:
        yield "input size", _free_size(detector)
    yield from (("assumed", what) for what in detector.assumed.values())
    names = ", ".join(detector.names[:MAX_NAMES])
    more = ", ..." if len(detector.names) > MAX_NAMES else ""
    yield "classes", f"{detector.class_count} ({detector.names_origin}): {names}{more}"


def _free_size(detector: "DetectorFacts") -> str:
    """What decides the size of an input that may have any."""
    from detcli.model.contract import FOLLOWING
    from detcli.model.preprocessing import parse

    preprocessing = parse(detector.preprocessing)
    if preprocessing["resize"] not in FOLLOWING:
        height, width = detector.default_size
        return f"any; {width}x{height} unless --imgsz says otherwise"
    multiple = preprocessing.get("multiple", 1)
    sides = "" if multiple == 1 else f", its sides multiples of {multiple}"
    return f"any; it follows each picture{sides}"


def _cut(cut: "CutPoint", heads: "tuple[TensorInfo, ...]") -> str:
    dropped, places = sum(cut.dropped.values()), " and ".join(head.name for head in heads)
    return (
        f"at {places}: the {dropped} of {cut.kept + dropped} nodes after "
        f"{'it' if len(heads) == 1 else 'them'} select boxes, "
        f"which detcli does itself ({_counts(cut.dropped)})"
    )


def _signature(tensor: "TensorInfo") -> str:
    sizes = ("?" if size is None else str(size) for size in tensor.shape)
    return f"{tensor.name} {tensor.dtype} [{', '.join(sizes)}]"


def _precision(precision: "NetworkPrecision") -> str:
    computes = " and ".join(precision.computes) or "nothing is multiplied"
    parts = [f"computes in {computes}" if precision.computes else computes]
    if precision.weights:
        parts.append(f"weights in {' and '.join(precision.weights)}")
    if (how := precision.quantisation) is not None:
        parts.append(f"quantised ({how.form}): {how.quantised} of {how.total} multiplying nodes")
    return ", ".join(parts)


def _operations(operations: "Operations | None") -> str:
    if operations is None:
        return "not counted: the input size is unknown"
    size = "x".join(str(size) for size in operations.input_shape)
    line = f"{operations.flops / 1e9:.2f} GFLOPs for an input of {size}"
    if operations.uncounted:
        return f"at least {line}; not counted: {_counts(operations.uncounted)}"
    return line


def _placement(placement: "Placement") -> str:
    if not placement.usable:
        return f"no: {placement.reason} ({placement.hint})"
    if placement.taken is None or placement.left is None:
        return "takes it; this ONNX Runtime does not report which nodes"
    taken, left = placement.taken.values(), placement.left
    line = f"takes {sum(taken)} of {sum(taken) + len(left)} nodes"
    if not left:
        return line
    operators = Counter(f"{node.operator} ({_short(node.provider)})" for node in left)
    return f"{line}, leaves {_counts(operators)}, such as {left[0].name or left[0].operator}"


def _short(provider: str) -> str:
    """The name of a provider's device in detcli."""
    return provider.removesuffix("ExecutionProvider").lower()


def _counts(operators: Mapping[str, int]) -> str:
    """The most frequent operators with their counts."""
    parts = [f"{count} {operator}" for operator, count in operators.items()]
    rest = len(parts) - MAX_OPERATORS
    shown = parts[:MAX_OPERATORS] + ([f"{rest} other operators"] if rest > 0 else [])
    return ", ".join(shown)
