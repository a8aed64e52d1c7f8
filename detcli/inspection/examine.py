"""Reads a model file and says what it is."""

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from onnx import ModelProto

from detcli.backend.runtime.survey import Placement, survey
from detcli.errors import ModelError
from detcli.inspection.advice import advise_on_detector, advise_on_graph
from detcli.inspection.cost import count_operations
from detcli.inspection.ending import describe
from detcli.inspection.precision import describe_precision
from detcli.inspection.report import External, Inspection, Problem
from detcli.inspection.tensors import describe_tensor, dynamic_axes
from detcli.inspection.text import decoded
from detcli.model.contract import BoxFormat, Contract
from detcli.model.external import open_external
from detcli.model.graph import GraphIndex, known_size, shape
from detcli.model.loading import load
from detcli.model.names import read_names
from detcli.model.operators import parameters
from detcli.model.passes import cut, infer_shapes
from detcli.model.prepared import read_model
from detcli.model.recognise import recognise


@dataclass(frozen=True, slots=True)
class Question:
    """What a user adds to what a file says.

    Attributes:
        box_format: What the box rows are, where the graph does not show it.
        imgsz: Side length of the input to count operations for, for graphs with dynamic axes.
        names: A file with class names, in place of the model's own.
    """

    box_format: BoxFormat | None = None
    imgsz: int | None = None
    names: Path | None = None


def examine(path: Path, question: Question | None = None) -> Inspection:
    """Say what a model file is.

    Args:
        path: An ONNX file, with any external data beside it.
        question: What the user adds to it.

    Raises:
        ModelError: It cannot be read at all. What can be read, but not used, is reported.
        UsageError: What the user adds does not fit the model.
    """
    content = read_model(path)
    try:
        return decoded(_examine(path, content, question or Question()))
    except (IndexError, TypeError, ValueError) as error:  # as in `model.prepared`
        raise ModelError(f"{path} is damaged: {error}", "fetch or copy the file again") from error


def _examine(path: Path, content: bytes, question: Question) -> Inspection:
    model, names = load(path, content)
    external = tuple(_external(path, name) for name in names)
    model = infer_shapes(model)
    index = GraphIndex(model.graph)
    inputs = tuple(map(describe_tensor, index.image_inputs()))
    outputs = tuple(map(describe_tensor, model.graph.output))
    weights = parameters(index)
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    contract, problem = _contract(model, path, question)
    detector = describe(model, contract, question.box_format) if contract else None
    placements = survey(_graph_to_run(model, contract), path.name)
    warnings = [*advise_on_graph(model, external, weights)]
    if detector is not None:
        warnings[:0] = advise_on_detector(detector, metadata)
    return Inspection(
        model=str(path),
        bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        external=external,
        producer=f"{model.producer_name} {model.producer_version}".strip(),
        ir_version=model.ir_version,
        opsets={entry.domain or "ai.onnx": entry.version for entry in model.opset_import},
        inputs=inputs,
        outputs=outputs,
        dynamic_axes=dynamic_axes((*inputs, *outputs)),
        nodes=dict(Counter(node.op_type for node in model.graph.node).most_common()),
        parameters=sum(math.prod(tensor.dims) for tensor in weights),
        precision=describe_precision(index, weights),
        operations=count_operations(model, _input_shape(index, contract, question.imgsz)),
        metadata=metadata,
        detector=detector,
        problem=problem or _refusal(placements),
        placements=placements,
        warnings=tuple(warnings),
    )


def _contract(
    model: ModelProto, path: Path, question: Question
) -> tuple[Contract | None, Problem | None]:
    """What a graph promises, or why it is no detector."""
    try:
        contract = recognise(model, path.name, question.box_format)
    except ModelError as error:
        return None, Problem(str(error), error.hint)
    if question.names is not None:
        contract = contract.with_names(read_names(question.names), str(question.names))
    return contract, None


def _graph_to_run(model: ModelProto, contract: Contract | None) -> bytes:
    """The part of a graph that detcli runs; all of it where it is no detector."""
    part = model if contract is None else cut(model, contract.head)
    graph: bytes = part.SerializeToString()
    return graph


def _refusal(placements: Sequence[Placement]) -> Problem | None:
    """Why a graph runs nowhere; None if some provider takes it."""
    if any(placement.usable for placement in placements):
        return None
    return Problem(placements[-1].reason, placements[-1].hint)


def _external(path: Path, name: str) -> External:
    with open_external(path, name) as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return External(name, file.tell(), digest)


def _input_shape(
    index: GraphIndex, contract: Contract | None, imgsz: int | None
) -> tuple[int | None, ...]:
    """The input to count operations for: one picture, unless the graph wants more."""
    if contract is not None:
        return (contract.batch or 1, 3, *contract.canvas(imgsz))
    inputs = index.image_inputs()
    return tuple(map(known_size, shape(inputs[0]))) if len(inputs) == 1 else ()
