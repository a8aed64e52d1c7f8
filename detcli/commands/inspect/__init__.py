"""The command `detcli inspect`."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    from detcli.commands.inspect.detector import DetectorFacts, TensorInfo
    from detcli.commands.inspect.examine import Inspection
    from detcli.commands.inspect.network import NetworkPrecision, Operations


@command(
    MODEL_ARGUMENT,
    "imgsz",
    "box_format",
    "preprocess",
    "boxes_only",
    "names",
    Verbosity,
)
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
    """Lay out the report on a model file for a terminal.

    It yields the name of the file and a table of facts, then why the file cannot be used, if it
    cannot, and then each warning with its fix.
    """
    from rich.text import Text

    from detcli.commands.inspect.examine import shortened

    yield Text(escape_unprintable(inspection.model), style="bold")
    yield facts_table((title, shortened(value, MAX_CELL)) for title, value in _facts(inspection))
    problem = inspection.problem
    if problem is not None:
        yield _note("cannot be used: ", problem.message, problem.hint, "red")
    for warning in inspection.warnings:
        yield _note("warning: ", warning.message, warning.fix, "yellow")


def _note(kind: str, message: str, fix: str, style: str) -> "Text":
    """Lay out a problem or a warning of the report, with its fix on a line of its own, if any.

    Args:
        kind: What the text begins with: "cannot be used: " or "warning: ".
        message: What is wrong.
        fix: What to do about it; may be empty.
        style: The style of `kind`, such as "red".
    """
    from rich.text import Text

    from detcli.commands.inspect.examine import shortened

    text = Text.assemble((kind, style), escape_unprintable(shortened(message, MAX_CELL)))
    if fix:
        text.append(f"\n  fix: {escape_unprintable(fix)}", style="dim")
    return text


def _facts(inspection: "Inspection") -> Iterator[tuple[str, str]]:
    """Yield labels and values for the table of facts, in its order."""
    yield from _file_facts(inspection)
    if inspection.detector is not None:
        yield from _detector_facts(inspection.detector)
    yield from _tensor_facts(inspection)
    yield "precision", _precision(inspection.precision)
    yield "parameters", f"{inspection.parameters:,}"
    yield "operations", _operations(inspection.operations)
    yield "nodes", f"{sum(inspection.nodes.values())}: {_counts(inspection.nodes)}"
    yield from _placement_facts(inspection.placements)
    yield from _metadata_facts(inspection.metadata)


def _placement_facts(placements: "Sequence[Placement]") -> Iterator[tuple[str, str]]:
    """Yield labels and values about where the graph runs: "on cuda", and how many nodes it takes.

    Devices that cannot be used for the same reason share a row, "on cuda, tensorrt".

    Args:
        placements: What each execution provider of ONNX Runtime makes of the graph.
    """
    unusable_devices: dict[str, list[str]] = {}  # by the text that says why
    for placement in placements:
        if not placement.usable:
            devices = unusable_devices.setdefault(_placement_text(placement), [])
            devices.append(_device_name(placement.provider))

    for placement in placements:
        text = _placement_text(placement)
        if placement.usable:
            yield f"on {_device_name(placement.provider)}", text
        elif text in unusable_devices:  # the first device of the row, which names all of them
            devices = unusable_devices.pop(text)
            yield f"on {', '.join(devices)}", text


def _file_facts(inspection: "Inspection") -> Iterator[tuple[str, str]]:
    """Yield labels and values about the file and the files beside it."""
    from rich.filesize import decimal

    yield "file", decimal(inspection.bytes)
    yield "sha256", inspection.sha256
    for file in inspection.external:
        yield "external data", f"{file.name}, {decimal(file.bytes)}"
    yield "written by", f"{inspection.producer or 'unknown'} (IR {inspection.ir_version})"
    opsets = []
    for domain, version in inspection.opsets.items():
        opsets.append(f"{domain} {version}")
    yield "operator sets", ", ".join(opsets)


def _tensor_facts(inspection: "Inspection") -> Iterator[tuple[str, str]]:
    """Yield labels and values about the inputs, the outputs and the axes without a fixed size."""
    yield from _first_rows("input", _signatures(inspection.inputs))
    yield from _first_rows("output", _signatures(inspection.outputs))
    axes = []
    for axis in inspection.dynamic_axes:
        axes.append(f"{axis.name}: {', '.join(axis.places)}")
    yield from _first_rows("dynamic axis", axes)


def _first_rows(title: str, texts: list[str]) -> Iterator[tuple[str, str]]:
    """Yield a row of the table for each of the first MAX_ROWS values, and one that counts the rest.

    Args:
        title: The label of all these rows.
        texts: The values beside it.
    """
    for text in texts[:MAX_ROWS]:
        yield title, text
    if len(texts) > MAX_ROWS:
        yield title, f"{len(texts) - MAX_ROWS} more"


def _metadata_facts(metadata: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield labels and values about the entries of the metadata, with long ones shortened.

    The class names are left out: they are in the row "classes".
    """
    from detcli.commands.inspect.examine import shortened

    entries = dict(metadata)
    entries.pop("names", None)
    for key, value in list(entries.items())[:MAX_ROWS]:
        title = key
        if len(key) > MAX_KEY:
            title = f"{key[: MAX_KEY - 3]}..."
        yield f"metadata {title}", shortened(value, MAX_ENTRY)
    if len(entries) > MAX_ROWS:
        yield "metadata", f"{len(entries) - MAX_ROWS} more"


def _detector_facts(detector: "DetectorFacts") -> Iterator[tuple[str, str]]:
    """Yield labels and values about how detcli reads a detector, in the order of the table.

    Rows for what a model does not have, such as a cut, are left out.
    """
    yield "family", detector.family
    yield "layout", f"{detector.layout}: {detector.layout_reason}"
    yield "head", _head(detector)
    if detector.cut is not None:
        yield "cut", _cut_text(detector.cut, detector.heads)
    # Inputs besides the image, such as its size, which detcli feeds to the graph.
    for other_input in detector.other_inputs:
        yield "fed", f"{other_input.name}: {other_input.wants}"

    box_format = f"{detector.box_format}: {detector.box_format_reason}"
    yield "boxes", f"{box_format}; in {detector.box_unit} of the input"
    yield "scores", _scores(detector)
    yield from _recommendations(detector)
    yield from _preprocessing_facts(detector)

    yield "anchors", str(detector.anchor_count or "unknown; depends on the input size")
    yield "stride", f"{detector.stride}, {detector.stride_origin}"
    if detector.input_size is None:
        yield "input size", _free_size(detector)
    for assumption in detector.assumed.values():
        yield "assumed", assumption
    yield "classes", _classes(detector)


def _preprocessing_facts(detector: "DetectorFacts") -> Iterator[tuple[str, str]]:
    """Yield labels and values about how an image is prepared, and how detcli knows each step.

    Several steps are often known from the same origin, such as the metadata. The steps with the
    most common origin share the last row; each of the others has a row.
    """
    from detcli.model.preprocessing import PREPROCESSING_STEPS

    yield "preprocessing", detector.preprocessing
    origins = {}
    for step in PREPROCESSING_STEPS:
        origins[step] = detector.preprocessing_origins.get(step, "not known; --preprocess sets it")
    most_common_origin, step_count = Counter(origins.values()).most_common(1)[0]
    is_shared = step_count > 1

    for step, origin in origins.items():
        is_in_last_row = is_shared and origin == most_common_origin
        if not is_in_last_row:
            yield f"  {step}", origin

    if step_count == len(origins):
        yield "  known from", most_common_origin
    elif is_shared:
        yield "  other steps", most_common_origin


def _head(detector: "DetectorFacts") -> str:
    """Describe the head, which is the tensor with boxes and scores that detcli selects from.

    If detcli computes it from several tensors of the graph, those are named too.
    """
    head = _signature(detector.head)
    sources = ", ".join(_signatures(detector.heads))
    if head == sources:
        return head
    return f"{head}, made of {sources}"


def _scores(detector: "DetectorFacts") -> str:
    """Describe what the scores are, and which of an anchor's scores can become detections.

    An anchor has a box and a score for each class. In some models each of these scores can give a
    detection, in others only the best one.
    """
    counted_scores = "every class of an anchor"
    if detector.one_class:
        counted_scores = "the best of each anchor"
    return f"{detector.score_form}: {detector.score_reason}; {counted_scores} counts"


def _recommendations(detector: "DetectorFacts") -> Iterator[tuple[str, str]]:
    """Yield labels and values about what the model file, or its family, recommends.

    That can be an IoU for non-maximum suppression, confidence thresholds, and tiles to cut large
    images into. Options on the command line take precedence.
    """
    if detector.nms is not None:
        yield "duplicates", "several boxes for each object"
        yield "NMS", f"an IoU of {detector.nms:g} is recommended, and used unless --nms is given"
    thresholds = []
    if detector.conf is not None:
        thresholds.append(f"{detector.conf:g}")
    for class_id, conf in detector.class_conf.items():
        thresholds.append(f"{detector.names[class_id]}={conf:g}")
    if thresholds:
        yield (
            "confidence",
            f"{','.join(thresholds)} is recommended, and used unless --conf is given",
        )
    if detector.tile is not None:
        yield "tiles", f"{detector.tile} is recommended, and used unless --tile is given"


def _classes(detector: "DetectorFacts") -> str:
    """Describe how many classes there are, where their names are from, and the first of these."""
    names = ", ".join(detector.names[:MAX_NAMES])
    if len(detector.names) > MAX_NAMES:
        names += ", ..."
    return f"{detector.class_count} ({detector.names_origin}): {names}"


def _free_size(detector: "DetectorFacts") -> str:
    """Describe which size detcli gives to images, for a graph that takes images of any size."""
    from detcli.model.contract import FOLLOWING
    from detcli.model.preprocessing import parse

    preprocessing = parse(detector.preprocessing)
    # With some ways of resizing, the size of the input follows from that of each image.
    follows_image = preprocessing["resize"] in FOLLOWING
    if not follows_image:
        height, width = detector.default_size
        return f"any; {width}x{height} unless --imgsz says otherwise"
    multiple = preprocessing.get("multiple", 1)
    if multiple == 1:
        return "any; it follows each image"
    return f"any; it follows each image, its sides multiples of {multiple}"


def _cut_text(cut: "CutPoint", heads: "tuple[TensorInfo, ...]") -> str:
    """Describe where detcli cuts a graph that selects boxes, and which nodes it leaves out.

    Args:
        cut: How many nodes are before the cut, and which are after it.
        heads: The tensors with boxes and scores, where the graph is cut.
    """
    dropped_count = sum(cut.dropped.values())
    node_count = cut.kept + dropped_count
    tensors = " and ".join(head.name for head in heads)
    pronoun = "them"
    if len(heads) == 1:
        pronoun = "it"
    return (
        f"at {tensors}: the {dropped_count} of {node_count} nodes after {pronoun} select boxes, "
        f"which detcli does itself ({_counts(cut.dropped)})"
    )


def _signatures(tensors: "Iterable[TensorInfo]") -> list[str]:
    """Format the name, dtype and shape of each tensor."""
    return [_signature(tensor) for tensor in tensors]


def _signature(tensor: "TensorInfo") -> str:
    """Format a tensor's name, dtype and shape, as in "images float32 [1, 3, ?, ?]"."""
    sizes = []
    for size in tensor.shape:
        if size is None:
            sizes.append("?")
        else:
            sizes.append(str(size))
    return f"{tensor.name} {tensor.dtype} [{', '.join(sizes)}]"


def _precision(precision: "NetworkPrecision") -> str:
    """Describe the number types that the network computes in, and how it is quantised."""
    statements = []
    if precision.computes:
        statements.append(f"computes in {' and '.join(precision.computes)}")
    else:
        statements.append("nothing is multiplied")
    if precision.weights:
        statements.append(f"weights in {' and '.join(precision.weights)}")
    quantisation = precision.quantisation
    if quantisation is not None:
        share = f"{quantisation.quantised} of {quantisation.total} multiplying nodes"
        statements.append(f"quantised ({quantisation.form}): {share}")
    return ", ".join(statements)


def _operations(operations: "Operations | None") -> str:
    """Describe how many operations one run takes, in GFLOPs (billions of operations).

    Some nodes cannot be counted. Then the number is a lower bound, and these are listed.
    """
    if operations is None:
        return "not counted: the input size is unknown"
    size = "x".join(str(size) for size in operations.input_shape)
    line = f"{operations.flops / 1e9:.2f} GFLOPs for an input of {size}"
    if operations.uncounted:
        return f"at least {line}; not counted: {_counts(operations.uncounted)}"
    return line


def _placement_text(placement: "Placement") -> str:
    """Describe how many nodes an execution provider runs, and which it leaves to others.

    An execution provider is a part of ONNX Runtime that runs nodes on one kind of device. Nodes
    that it does not support run on another device, mostly the CPU, which costs time.

    Example:
        "takes 290 of 293 nodes, leaves 2 TopK (cpu), 1 Gather (cpu), such as /model/TopK"
    """
    if not placement.usable:
        return f"no: {placement.reason} ({placement.hint})"
    nodes_of_others = placement.left  # the nodes that it leaves to other providers
    if placement.taken is None or nodes_of_others is None:
        return "takes it; this ONNX Runtime does not report which nodes"

    taken_count = sum(placement.taken.values())
    node_count = taken_count + len(nodes_of_others)
    taken_text = f"takes {taken_count} of {node_count} nodes"
    if not nodes_of_others:
        return taken_text

    counts_of_others: Counter[str] = Counter()  # by operator and device, such as "TopK (cpu)"
    for node in nodes_of_others:
        counts_of_others[f"{node.operator} ({_device_name(node.provider)})"] += 1
    example = nodes_of_others[0].name or nodes_of_others[0].operator
    return f"{taken_text}, leaves {_counts(counts_of_others)}, such as {example}"


def _device_name(provider: str) -> str:
    """Name an execution provider as its device: "cpu" for "CPUExecutionProvider"."""
    return provider.removesuffix("ExecutionProvider").lower()


def _counts(operators: Mapping[str, int]) -> str:
    """List the first operators with their counts, as in "3 TopK, 2 Gather", and count the rest."""
    counts = []
    for operator, count in operators.items():
        counts.append(f"{count} {operator}")
    other_count = len(counts) - MAX_OPERATORS
    if other_count > 0:
        counts = counts[:MAX_OPERATORS]
        counts.append(f"{other_count} other operators")
    return ", ".join(counts)
