"""What deserves attention in a model, each with its fix."""

import bisect
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import onnx
from onnx import ModelProto, TensorProto

from detcli.backend.session import refusal
from detcli.core import frozen
from detcli.model.coarse import Rounding
from detcli.model.contract import Contract, parse_names
from detcli.model.external_data import ExternalFile
from detcli.model.graph import bare_transposes
from detcli.model.metadata import recommended
from detcli.model.preprocessing import PREPROCESSING_STEPS
from detcli.model.sidecar import CONFIG, PREPROCESSOR

MIN_OPSET = 7  # the oldest that ONNX Runtime supports
MIN_IR = 3
SAFE_OPSET, SAFE_IR = 17, 8  # loaded by every version that detcli runs on
FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE})


@frozen
class ModelAdvice:
    code: str  # for programs; docs/output.md lists them
    message: str
    fix: str


@frozen
class CutPoint:
    """Where detcli cuts a graph that selects boxes, in order to select them itself."""

    tensor: str  # the head, or its boxes where scores are apart
    kept: int  # nodes that the head depends on
    dropped: dict[str, int]  # the other nodes by operator
    most_detections: int | None  # that TopK nodes keep of an image; None if computed


def newest_opset(opset: int) -> int:
    """The newest opset that the runtime loads, up to that of a model."""
    return _newest(opset, MIN_OPSET, lambda version: _takes(SAFE_IR, version))


def newest_ir(ir: int) -> int:
    """The newest file format (IR version) that the runtime loads, up to that of a model."""
    return _newest(ir, MIN_IR, lambda version: _takes(version, SAFE_OPSET))


def _newest(models_version: int, oldest: int, takes: Callable[[int], bool]) -> int:
    """Find the newest version that the runtime loads, up to that of a model.

    The runtime loads all versions from the oldest to some newest one, which is searched for by
    halving the versions between.

    Args:
        models_version: The version of the model.
        oldest: A version that the runtime certainly loads.
        takes: Tells whether the runtime loads a version.
    """
    if models_version <= oldest or takes(models_version):
        return models_version
    versions_between = range(oldest + 1, models_version)
    # By the key "is not loaded", 0 or 1, they are in ascending order. The place where the first 1
    # is, is the number of versions that are loaded.
    loaded_count = bisect.bisect_left(versions_between, 1, key=lambda version: not takes(version))
    return oldest + loaded_count


def _takes(ir: int, opset: int) -> bool:
    """Whether the runtime loads a graph of one node in these versions."""
    model = onnx.parser.parse_model(f"""
        <ir_version: {ir}, opset_import: ["": {opset}]>
        probe (float[1] x) => (float[1] y) {{ y = Identity(x) }}
    """)
    return refusal(model.SerializeToString(), "probe") is None


def advise_on_rounding(roundings: Sequence[Rounding]) -> Iterator[ModelAdvice]:
    """Advise on scores that a graph rounds to nothing."""
    for rounding in roundings[:1]:
        yield ModelAdvice(
            "coarse-scores",
            rounding.warning,
            "quantise it again without the node that joins boxes and scores, and what follows it",
        )


def advise_on_detector(
    contract: Contract, metadata: dict[str, str], cut: CutPoint | None
) -> Iterator[ModelAdvice]:
    """Yield advice on how a detector is read: its names, preprocessing, metadata and size.

    Args:
        contract: What detcli has found out about the graph.
        metadata: The metadata in the file.
        cut: Where detcli cuts the graph, if it selects boxes itself.
    """
    yield from _on_names(contract, metadata)
    if contract.unknown_preprocessing:
        steps = ", ".join(contract.unknown_preprocessing)
        yield ModelAdvice(
            "preprocessing-unknown",
            f"nothing says how images are prepared for it: {steps}",
            "--preprocess, and detcli convert to write it into a copy",
        )
    origins = {contract.names_origin}
    for step, source in contract.preprocessing_sources:
        if step in PREPROCESSING_STEPS:
            origins.add(source)
    files_beside = sorted(origins & {CONFIG, PREPROCESSOR})
    if files_beside:
        yield ModelAdvice(
            "beside-the-model",
            f"what it promises is partly in {' and '.join(files_beside)} beside it",
            "keep the files together, or write it into a copy: detcli convert MODEL --metadata "
            "contract -o COPY",
        )
    for ignored in recommended(metadata, contract.nms, contract.names)[-1]:
        yield ModelAdvice(
            "metadata-ignored", ignored, "detcli convert --metadata KEY=VALUE, or KEY= to remove it"
        )
    if cut is not None:
        yield ModelAdvice(
            "top-k-cap",
            f"its own TopK nodes keep at most {cut.most_detections or 'a computed number of'} "
            "detections an image; detcli cuts the graph before them, other programs do not",
            "for other programs: detcli convert --cut, or --end-to-end with another --max-det",
        )
    if contract.input_size is None and not metadata.get("stride"):
        yield ModelAdvice(
            "assumed-stride",
            "it takes images of any size but does not name its stride, which both sides must be "
            f"multiples of: {contract.stride} is assumed",
            f"detcli convert --metadata stride={contract.stride}, with the right number",
        )


def _on_names(contract: Contract, metadata: dict[str, str]) -> Iterator[ModelAdvice]:
    """Yield advice if the class names in the file are missing, or too few or too many."""
    text = metadata.get("names", "")
    class_count = contract.class_count
    names = parse_names(text)
    if names is None:
        if contract.names_origin == CONFIG:
            return
        code = "names-missing"
        problem = f"it names none of its {class_count} classes"
        if text:
            problem = "its class names cannot be read"
    elif len(names) == class_count:
        return
    else:
        comparison = "more"
        if len(names) < class_count:
            comparison = "fewer"
        code = f"names-{comparison}"
        problem = (
            f"its metadata names {len(names)} classes, {comparison} than the {class_count} of its "
            "graph"
        )
    fix = "--names FILE, or detcli convert --names FILE to write them into a copy"
    yield ModelAdvice(code, problem, fix)


def advise_on_graph(
    model: ModelProto, external: tuple[ExternalFile, ...], weights: list[TensorProto]
) -> Iterator[ModelAdvice]:
    """Yield advice on a file, whether or not it is a detector.

    It is about what makes other programs fail, or give wrong results: versions, weights in other
    files, weights that are no numbers, and what the checker of ONNX objects to.

    Args:
        model: The graph.
        external: The files beside it that hold its weights.
        weights: Its weights.
    """
    for node in bare_transposes(model.graph):
        yield ModelAdvice(
            "bare-transpose",
            f"the Transpose {node.name or node.output[0]} feeds an output of the graph directly: "
            "some engines return the tensor untransposed",
            "detcli convert --guard-transpose",
        )
    yield from _on_versions(model)
    if external:
        yield ModelAdvice(
            "external-data",
            f"weights are in {', '.join(file.name for file in external)}: the model is useless "
            "without",
            "keep the files together; detcli convert writes a single file",
        )
    yield from _on_values(weights)
    sparse_count = len(model.graph.sparse_initializer)
    if sparse_count:
        yield ModelAdvice(
            "sparse-weights",
            f"{sparse_count} of its constants are sparse tensors, which not every runtime reads; "
            "they are not counted as parameters",
            "export it again with dense weights",
        )
    try:
        onnx.checker.check_model(model)
    except (onnx.checker.ValidationError, ValueError) as error:
        message = " ".join(str(error).partition("==> Context")[0].split())
        yield ModelAdvice("invalid", f"the ONNX checker objects: {message}", "export it again")


def _on_values(weights: list[TensorProto]) -> Iterator[ModelAdvice]:
    """Yield advice if weights hold NaN or infinity."""
    names = []
    for tensor in weights:
        if tensor.data_type in FLOATS:
            array = onnx.numpy_helper.to_array(tensor)
            if not np.isfinite(array).all():
                names.append(tensor.name)
    if names:
        yield ModelAdvice(
            "weights-not-finite",
            f"{len(names)} weights hold NaN or infinity, such as {names[0]}",
            "export it again; large weights overflow in float16",
        )


def _on_versions(model: ModelProto) -> Iterator[ModelAdvice]:
    """Yield advice on an opset or a file format that this ONNX Runtime does not support."""
    opset = MIN_OPSET
    for entry in model.opset_import:
        if not entry.domain:  # that of ONNX itself
            opset = entry.version
            break
    if opset < MIN_OPSET:
        yield ModelAdvice(
            "opset-too-old",
            f"opset {opset}: ONNX Runtime supports {MIN_OPSET} and later",
            "export it again with opset 13 or later",
        )
    else:
        supported_opset = newest_opset(opset)
        if supported_opset < opset:
            yield ModelAdvice(
                "opset-too-new",
                f"opset {opset}: this ONNX Runtime supports up to {supported_opset}",
                f"export it again with opset {supported_opset} or lower, or upgrade onnxruntime",
            )
    supported_ir = newest_ir(model.ir_version)
    if supported_ir < model.ir_version:
        yield ModelAdvice(
            "ir-too-new",
            f"file format (IR) {model.ir_version}: this ONNX Runtime supports up to {supported_ir}",
            "upgrade onnxruntime, or export it again with an older onnx",
        )
