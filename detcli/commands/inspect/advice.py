"""What deserves attention in a model, each with its fix."""

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
from detcli.model.metadata import read_recommendations
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
    """Find the newest opset (version of ONNX's operators) that ONNX Runtime loads here.

    Args:
        opset: The opset of a model. Newer ones are not tried.
    """
    return _newest_loaded(opset, MIN_OPSET, lambda version: _is_loaded(SAFE_IR, version))


def newest_ir(ir: int) -> int:
    """Find the newest file format (IR version) that ONNX Runtime loads here.

    Args:
        ir: The IR version of a model. Newer ones are not tried.
    """
    return _newest_loaded(ir, MIN_IR, lambda version: _is_loaded(version, SAFE_OPSET))


def _newest_loaded(model_version: int, oldest: int, is_loaded: Callable[[int], bool]) -> int:
    """Find the newest version of opset or file format that ONNX Runtime loads.

    It loads all versions from the oldest to some newest one. To find that one, the range in which
    it lies is halved again and again, since each trial loads a graph.

    Args:
        model_version: The version of a model. Newer ones are not tried.
        oldest: A version that ONNX Runtime certainly loads.
        is_loaded: Tries whether ONNX Runtime loads a version.
    """
    if model_version <= oldest or is_loaded(model_version):
        return model_version
    newest_loaded = oldest
    oldest_refused = model_version
    while oldest_refused - newest_loaded > 1:
        middle = (newest_loaded + oldest_refused) // 2
        if is_loaded(middle):
            newest_loaded = middle
        else:
            oldest_refused = middle
    return newest_loaded


def _is_loaded(ir: int, opset: int) -> bool:
    """Try whether ONNX Runtime loads a graph of one node.

    Args:
        ir: The version of the graph's file format.
        opset: The version of the operators in it.
    """
    model = onnx.parser.parse_model(f"""
        <ir_version: {ir}, opset_import: ["": {opset}]>
        probe (float[1] x) => (float[1] y) {{ y = Identity(x) }}
    """)
    return refusal(model.SerializeToString(), "probe") is None


def advise_on_rounding(roundings: Sequence[Rounding]) -> Iterator[ModelAdvice]:
    """Yield advice if a graph of 8-bit integers rounds its scores.

    Such a graph joins boxes and scores to one tensor, whose 256 steps suit the boxes, up to some
    hundred pixels: then small scores become 0.

    Args:
        roundings: The nodes that round scores. Advice on the first one mends all.
    """
    if not roundings:
        return
    yield ModelAdvice(
        "coarse-scores",
        roundings[0].warning,
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
    yield from _advise_on_names(contract, metadata)
    yield from _advise_on_preprocessing(contract)
    recommendations = read_recommendations(metadata, contract.nms, contract.names)
    for problem in recommendations.ignored:
        yield ModelAdvice(
            "metadata-ignored", problem, "detcli convert --metadata KEY=VALUE, or KEY= to remove it"
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


def _advise_on_preprocessing(contract: Contract) -> Iterator[ModelAdvice]:
    """Yield advice if the model file does not say itself how images are prepared for it.

    Args:
        contract: How detcli reads the model, and what of that it knows from files beside it.
    """
    if contract.unknown_preprocessing:
        steps = ", ".join(contract.unknown_preprocessing)
        yield ModelAdvice(
            "preprocessing-unknown",
            f"nothing says how images are prepared for it: {steps}",
            "--preprocess, and detcli convert to write it into a copy",
        )
    files_beside = _files_beside(contract)
    if files_beside:
        yield ModelAdvice(
            "beside-the-model",
            f"what it promises is partly in {' and '.join(files_beside)} beside it",
            "keep the files together, or write it into a copy: detcli convert MODEL --metadata "
            "contract -o COPY",
        )


def _files_beside(contract: Contract) -> list[str]:
    """List the files beside a model on which its class names or its preprocessing depend.

    Models of Hugging Face come with configuration files, which describe what the ONNX file does
    not say itself.

    Returns:
        The names of these files, sorted; none if the ONNX file says everything.
    """
    origins = {contract.names_origin}
    for step, source in contract.preprocessing_sources:
        if step in PREPROCESSING_STEPS:
            origins.add(source)
    return sorted(origins & {CONFIG, PREPROCESSOR})


def _advise_on_names(contract: Contract, metadata: dict[str, str]) -> Iterator[ModelAdvice]:
    """Yield advice if a model file names none of its classes, or not as many as it has.

    There is no advice on missing names if a configuration file beside the model has them.

    Args:
        contract: What detcli has found out about the graph, with the number of its classes.
        metadata: The metadata in the file, whose entry "names" should name each class.
    """
    fix = "--names FILE, or detcli convert --names FILE to write them into a copy"
    text = metadata.get("names", "")
    names = parse_names(text)
    class_count = contract.class_count
    if names is None:
        problem = f"it names none of its {class_count} classes"
        if text:
            problem = "its class names cannot be read"
        if contract.names_origin != CONFIG:
            yield ModelAdvice("names-missing", problem, fix)
    elif len(names) != class_count:
        comparison = "more"
        if len(names) < class_count:
            comparison = "fewer"
        problem = (
            f"its metadata names {len(names)} classes, {comparison} than the {class_count} of its "
            "graph"
        )
        yield ModelAdvice(f"names-{comparison}", problem, fix)


def _advise_on_transposes(model: ModelProto) -> Iterator[ModelAdvice]:
    """Yield advice on Transposes that feed outputs of the graph, all of them in one sentence."""
    transposes = list(bare_transposes(model.graph))
    if not transposes:
        return
    first_name = transposes[0].name or transposes[0].output[0]
    if len(transposes) == 1:
        problem = (
            f"the Transpose {first_name} feeds an output of the graph directly: some engines "
            "return the tensor untransposed"
        )
    else:
        problem = (
            f"{len(transposes)} Transposes such as {first_name} feed outputs of the graph "
            "directly: some engines return the tensors untransposed"
        )
    yield ModelAdvice("bare-transpose", problem, "detcli convert --guard-transpose")


def advise_on_graph(
    model: ModelProto, external: tuple[ExternalFile, ...], weights: list[TensorProto]
) -> Iterator[ModelAdvice]:
    """Yield advice on what makes programs fail on a model file, whether or not it is a detector.

    That are versions, weights in other files, weights that are no numbers, and what the checker of
    ONNX objects to.

    Args:
        model: The graph.
        external: The files beside it that hold its weights.
        weights: Its weights.
    """
    yield from _advise_on_transposes(model)
    yield from _advise_on_versions(model)
    if external:
        files = ", ".join(file.name for file in external)
        yield ModelAdvice(
            "external-data",
            f"weights are in {files}: the model is useless without",
            "keep the files together; detcli convert writes a single file",
        )
    yield from _advise_on_values(weights)
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
        # The checker adds a "context", the node that it was looking at, which is left out.
        objection, _, _ = str(error).partition("==> Context")
        message = " ".join(objection.split())  # on one line
        yield ModelAdvice("invalid", f"the ONNX checker objects: {message}", "export it again")


def _advise_on_values(weights: list[TensorProto]) -> Iterator[ModelAdvice]:
    """Yield advice if weights of a model contain NaN or infinity, which spread to its outputs."""
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


def _advise_on_versions(model: ModelProto) -> Iterator[ModelAdvice]:
    """Yield advice if the installed ONNX Runtime does not support the versions of a model.

    A model has two: the opset, which is the version of the operators, and the IR version, which is
    that of the file format.
    """
    opset = MIN_OPSET
    for entry in model.opset_import:
        if not entry.domain:  # ONNX's own operators have an empty domain
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
