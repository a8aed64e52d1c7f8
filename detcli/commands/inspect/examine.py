"""Examines a model file: what it contains, promises and needs."""

import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import fields, is_dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from detcli.backend import survey
from detcli.backend.libraries import Placement
from detcli.commands.inspect.advice import (
    ModelAdvice,
    advise_on_detector,
    advise_on_graph,
    advise_on_rounding,
)
from detcli.commands.inspect.detector import (
    DetectorFacts,
    TensorInfo,
    describe,
    describe_tensor,
)
from detcli.commands.inspect.network import (
    NetworkPrecision,
    Operations,
    count_operations,
    describe_precision,
)
from detcli.config.config import Settings
from detcli.core import frozen
from detcli.core.errors import ModelError
from detcli.model.contract import Contract, read_names
from detcli.model.external_data import ExternalFile
from detcli.model.file import ModelFile, damage_as_model_error
from detcli.model.graph import GraphIndex, known_size, parameters, shape

MAX_TEXT = 1 << 16  # characters of a name or a metadata entry in the report
MAX_ENTRIES = 1000  # of the metadata
CUT = re.compile(r"\.\.\. \((\d{1,18}) more characters\)\Z")


@frozen
class DynamicAxis:
    """An axis of inputs or outputs whose size the graph leaves open, such as the batch."""

    name: str  # its symbol in the graph; "?" where it has none
    places: tuple[str, ...]  # tensors and axis numbers: "images[0]"


@frozen
class ModelProblem:
    """Why a model file cannot be used, and what to do about it."""

    message: str
    hint: str


@frozen
class Inspection:
    """What a model file is."""

    model: str  # the path as it was given
    bytes: int  # size of the file
    sha256: str  # of the file
    external: tuple[ExternalFile, ...]  # files beside it that have its weights
    producer: str  # the exporter that it names
    ir_version: int
    opsets: dict[str, int]  # by domain; that of ONNX is "ai.onnx"
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    dynamic_axes: tuple[DynamicAxis, ...]  # axes of any size
    nodes: dict[str, int]  # by operator, the most frequent first
    parameters: int  # number of values in the weights
    precision: NetworkPrecision  # what it computes in
    operations: Operations | None  # None if the input size is unknown
    metadata: dict[str, str]  # strings that the file has
    detector: DetectorFacts | None  # None if it is not a detector that detcli knows
    problem: ModelProblem | None  # why it cannot be used
    placements: tuple[Placement, ...]  # where its nodes run, for each provider of ONNX Runtime
    warnings: tuple[ModelAdvice, ...]  # what may surprise, with what to do about it


def examine(path: Path, settings: Settings = Settings()) -> Inspection:
    """Examine a model file: what it contains, how detcli reads it, and where it runs.

    Args:
        path: The file.
        settings: How to read it, as for predict.

    Returns:
        The report. If detcli cannot use the file, its `problem` says why.

    Raises:
        ModelError: The file cannot be read, or is damaged.
    """
    file = ModelFile.read(
        path, settings.box_format, settings.preprocess, boxes_only=settings.boxes_only
    )
    with damage_as_model_error(path):  # raises the ModelError, since damage may show only here
        inspection = _inspect(path, file, settings)
        # Strings of the file may be bytes that are not UTF-8, or as long as the file.
        readable_inspection: Inspection = with_readable_texts(inspection)
    return readable_inspection


def _inspect(path: Path, file: ModelFile, settings: Settings) -> Inspection:
    """Collect everything that the report says about a model file.

    The strings in it are still as in the file: of any length, and bytes where they are not valid
    UTF-8.

    Args:
        path: The path as it was given.
        file: The file.
        settings: How to read it, as for predict.
    """
    model = file.model
    index = GraphIndex(model.graph)
    weights = parameters(index)
    images = index.image_inputs()
    inputs = tuple(describe_tensor(value) for value in images)
    outputs = tuple(describe_tensor(value) for value in model.graph.output)
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    warnings = list(advise_on_graph(model, file.external, weights))
    detector = None
    # The graph whose operations are counted: for a detector, what is left when it is cut.
    graph = model
    input_shape: tuple[int | None, ...] = ()
    contract = _contract_with_names(file.contract, settings)
    if contract is not None:
        graph = file.body()
        detector = describe(model, replace(file.reading(), contract=contract), settings.box_format)
        warnings = [
            *advise_on_rounding(file.roundings),
            *advise_on_detector(contract, metadata, detector.cut),
            *warnings,
        ]
        height, width = contract.input_shape(settings.imgsz)
        input_shape = (contract.batch or 1, 3, height, width)
    elif len(images) == 1:
        input_shape = tuple(known_size(dim) for dim in shape(images[0]))
    placements = survey(graph.SerializeToString(), path.name)
    return Inspection(
        model=str(path),
        bytes=len(file.content),
        sha256=file.sha256,
        external=file.external,
        producer=f"{model.producer_name} {model.producer_version}".strip(),
        ir_version=model.ir_version,
        opsets={entry.domain or "ai.onnx": entry.version for entry in model.opset_import},
        inputs=inputs,
        outputs=outputs,
        dynamic_axes=dynamic_axes((*inputs, *outputs)),
        nodes=dict(Counter(node.op_type for node in model.graph.node).most_common()),
        parameters=sum(math.prod(tensor.dims) for tensor in weights),
        precision=describe_precision(index, weights),
        operations=count_operations(graph, input_shape),
        metadata=_first_entries(metadata),
        detector=detector,
        problem=_why_unusable(file.refusal, placements),
        placements=placements,
        warnings=tuple(warnings),
    )


def _contract_with_names(contract: Contract | None, settings: Settings) -> Contract | None:
    """Put the class names of the option --names into what is known about a detector.

    Args:
        contract: What detcli has found out about the graph; None if it is not a detector.
        settings: The options.

    Returns:
        The contract with these names; unchanged without the option.
    """
    if contract is None or settings.names is None:
        return contract
    names = read_names(Path(settings.names))
    return contract.with_names(names, str(settings.names))


def _first_entries(metadata: dict[str, str]) -> dict[str, str]:
    """Shorten the metadata to MAX_ENTRIES entries, and add one that counts the others."""
    entries = dict(islice(metadata.items(), MAX_ENTRIES))
    if len(metadata) > len(entries):
        entries["..."] = f"{len(metadata) - len(entries)} more entries"
    return entries


def _why_unusable(
    refusal: ModelError | None, placements: tuple[Placement, ...]
) -> ModelProblem | None:
    """Explain why detcli cannot use a model file; None if it can.

    Args:
        refusal: Why the graph is not a detector; None if it is one.
        placements: For each execution provider of ONNX Runtime (the part that runs graphs on one
            kind of device), whether it accepts the graph. The CPU's comes last.
    """
    if refusal is not None:
        return ModelProblem(str(refusal), refusal.hint)
    if not any(placement.usable for placement in placements):
        return ModelProblem(placements[-1].reason, placements[-1].hint)
    return None


def dynamic_axes(tensors: Iterable[TensorInfo]) -> tuple[DynamicAxis, ...]:
    """Group the axes without a fixed size by their symbols, as all axes of a symbol are equal.

    A graph may name such an axis with a symbol, such as "batch". Axes without one are grouped as
    "?", although they need not be equal. Each group lists its axes, as in "images[0]".
    """
    axes_by_symbol: dict[str, list[str]] = {}
    for tensor in tensors:
        for axis, dim in enumerate(tensor.shape):
            if known_size(dim) is None:
                symbol = "?"
                if isinstance(dim, str):
                    symbol = dim
                axes_by_symbol.setdefault(symbol, []).append(f"{tensor.name}[{axis}]")
    groups = []
    for symbol, axes in axes_by_symbol.items():
        groups.append(DynamicAxis(symbol, tuple(axes)))
    return tuple(groups)


def shortened(text: str, length: int) -> str:
    """Cut off a long string, and state how many characters are left out.

    A string that was cut off before may be shortened further; the number then counts the characters
    that are left out already, too. For example, "abcd... (9 more characters)" becomes
    "abc... (10 more characters)" with a length of 3.

    Args:
        text: The text.
        length: How many characters to leave. The note about the others comes on top.
    """
    text_length = len(text)
    left_out_before = 0
    earlier_cut = CUT.search(text)
    if earlier_cut is not None:
        text_length = earlier_cut.start()
        left_out_before = int(earlier_cut[1])
    if text_length <= length:
        return text
    left_out = text_length - length + left_out_before
    return f"{text[:length]}... ({left_out} more characters)"


def with_readable_texts(value: Any) -> Any:  # noqa: ANN401 - a report, or any part of one
    """Copy a report with all its strings decoded, and shortened to MAX_TEXT characters.

    A damaged file may have strings that are not valid UTF-8, which protobuf returns as bytes, or
    that are as long as the file. The function calls itself for everything that a report contains:
    the fields of dataclasses, the entries of mappings and tuples.
    """
    match value:
        case bytes():
            return with_readable_texts(value.decode("utf-8", "backslashreplace"))
        case str():
            return shortened(value, MAX_TEXT)
        case dict():
            return {
                with_readable_texts(key): with_readable_texts(entry) for key, entry in value.items()
            }
        case tuple():
            return tuple(with_readable_texts(entry) for entry in value)
    if not is_dataclass(value) or isinstance(value, type):
        return value  # such as a number or None
    changes = {
        field.name: with_readable_texts(getattr(value, field.name)) for field in fields(value)
    }
    return replace(value, **changes)
