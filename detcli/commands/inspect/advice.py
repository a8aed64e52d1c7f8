"""What deserves attention in a model, each with its fix."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import onnx
from onnx import ModelProto, TensorProto

from detcli.backend.session import refusal
from detcli.core import frozen
from detcli.core.text import pluralize
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
    """Something about a model that deserves attention, and what to do about it."""

    code: str  # for programs; docs/output.md lists them
    message: str
    fix: str


@frozen
class CutPoint:
    """Where detcli cuts a graph that selects boxes, in order to select them itself."""

    tensor: str  # the head, or its boxes where scores are apart
    kept: int  # nodes that the head depends on
    dropped: dict[str, int]  # the other nodes by operator
    most_detections: int | None  # detections that TopK nodes keep per image; None if computed


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
    """Yield advice if an 8-bit graph rounds its scores too coarsely.

    An 8-bit tensor has 256 steps. If a graph joins boxes and scores to one tensor, these have to
    reach up to the hundreds of pixels of a box. Then a score is less than a step, and becomes 0.

    Args:
        roundings: The nodes that round scores. There is one piece of advice, as the fix for the
            first of them is a fix for all.
    """
    if not roundings:
        return
    yield ModelAdvice(
        code="coarse-scores",
        message=roundings[0].warning,
        fix="quantise it again without the node that joins boxes and scores, and what follows it",
    )


def advise_on_detector(
    contract: Contract, metadata: dict[str, str], cut: CutPoint | None
) -> Iterator[ModelAdvice]:
    """Yield advice on how a detector is read: its names, preprocessing, metadata and size.

    Args:
        contract: How detcli reads the model.
        metadata: The metadata in the file.
        cut: Where detcli cuts the graph; None if the graph does not select boxes.
    """
    yield from _advise_on_names(contract, metadata)
    yield from _advise_on_missing_information(contract)
    yield from _advise_on_recommendations(contract, metadata)
    if cut is not None:
        limit = cut.most_detections or "a computed number of"
        yield ModelAdvice(
            code="top-k-cap",
            message=f"its own TopK nodes keep at most {limit} "
            "detections an image; detcli cuts the graph before them, other programs do not",
            fix="for other programs: detcli convert --cut, or --end-to-end with another --max-det",
        )
    # With a free input size, --imgsz has to be a multiple of the stride.
    if contract.input_size is None and not metadata.get("stride"):
        yield ModelAdvice(
            code="assumed-stride",
            message="it takes images of any size but does not name its stride, which both sides "
            f"must be multiples of: {contract.stride} is assumed",
            fix=f"detcli convert --metadata stride={contract.stride}, with the right number",
        )


def _advise_on_recommendations(
    contract: Contract, metadata: dict[str, str]
) -> Iterator[ModelAdvice]:
    """Yield advice on each recommendation in the metadata that detcli cannot use."""
    recommendations = read_recommendations(metadata, contract.nms, contract.names)
    for problem in recommendations.ignored:
        yield ModelAdvice(
            code="metadata-ignored",
            message=problem,
            fix="detcli convert --metadata KEY=VALUE, or KEY= to remove it",
        )


def _advise_on_missing_information(contract: Contract) -> Iterator[ModelAdvice]:
    """Yield advice if the model file does not say itself everything that detcli needs to use it.

    A step of preprocessing may be unknown. A step or the class names may be known from the
    configuration files of Hugging Face beside the model, without which a copy of it is incomplete.

    Args:
        contract: How detcli reads the model, with the source of each step and of the names.
    """
    unknown_steps = contract.unknown_preprocessing
    if unknown_steps:
        yield ModelAdvice(
            code="preprocessing-unknown",
            message=f"nothing says how images are prepared for it: {', '.join(unknown_steps)}",
            fix="--preprocess, and detcli convert to write it into a copy",
        )
    files_beside = _files_beside(contract)
    if files_beside:
        files = " and ".join(files_beside)
        yield ModelAdvice(
            code="beside-the-model",
            message=f"part of what is needed to use it is in {files} beside it",
            fix="keep the files together, or write it into a copy: detcli convert MODEL --metadata "
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
        contract: How detcli reads the model, with the number of its classes.
        metadata: The metadata in the file, whose entry "names" should name each class.
    """
    fix = "--names FILE, or detcli convert --names FILE to write them into a copy"
    names_entry = metadata.get("names", "")
    names = parse_names(names_entry)
    class_count = contract.class_count
    if names is None:
        if contract.names_origin == CONFIG:
            return
        if names_entry:
            problem = "its class names cannot be read"
        elif class_count == 1:
            problem = "it does not name its class"
        else:
            problem = f"it names none of its {class_count} classes"
        yield ModelAdvice("names-missing", problem, fix=fix)
        return

    counts = f"its metadata names {pluralize(len(names), 'class')}"
    if len(names) > class_count:
        problem = f"{counts}, more than the {class_count} of its graph"
        yield ModelAdvice("names-more", problem, fix=fix)
    if len(names) < class_count:
        problem = f"{counts}, fewer than the {class_count} of its graph"
        yield ModelAdvice("names-fewer", problem, fix=fix)


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
    """Yield advice on what may make programs fail on a model file, whether it is a detector or not.

    Args:
        model: The graph.
        external: The files beside it that hold its weights.
        weights: Its weights.
    """
    yield from _advise_on_transposes(model)
    yield from _advise_on_versions(model)
    yield from _advise_on_external_data(external)
    yield from _advise_on_values(weights)
    yield from _advise_on_sparse_weights(model)
    yield from _advise_on_validity(model)


def _advise_on_external_data(external: tuple[ExternalFile, ...]) -> Iterator[ModelAdvice]:
    """Yield advice if weights of a model are in files beside it."""
    if external:
        files = ", ".join(file.name for file in external)
        yield ModelAdvice(
            code="external-data",
            message=f"weights are in {files}: the model cannot be loaded without them",
            fix="keep the files together; detcli convert writes a single file",
        )


def _advise_on_sparse_weights(model: ModelProto) -> Iterator[ModelAdvice]:
    """Yield advice if weights of a model are stored as sparse tensors."""
    sparse_count = len(model.graph.sparse_initializer)
    if sparse_count:
        yield ModelAdvice(
            code="sparse-weights",
            message=f"{sparse_count} of its constants are sparse tensors, which not every runtime "
            "reads; they are not counted as parameters",
            fix="export it again with dense weights",
        )


def _advise_on_validity(model: ModelProto) -> Iterator[ModelAdvice]:
    """Yield what ONNX's checker objects to in a model, if it does."""
    try:
        onnx.checker.check_model(model)
    except (onnx.checker.ValidationError, ValueError) as error:
        # The checker adds a "context", the node that it was looking at, which is left out.
        objection, _, _ = str(error).partition("==> Context")
        objection_in_one_line = " ".join(objection.split())
        yield ModelAdvice(
            code="invalid",
            message=f"the ONNX checker objects: {objection_in_one_line}",
            fix="export it again",
        )


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
            code="weights-not-finite",
            message=f"{len(names)} weights hold NaN or infinity, such as {names[0]}",
            fix="export it again; large weights overflow in float16",
        )


def _advise_on_versions(model: ModelProto) -> Iterator[ModelAdvice]:
    """Yield advice if the installed ONNX Runtime does not support the versions of a model.

    A model has two: the opset, which is the version of the operators, and the IR version, which is
    that of the file format.
    """
    opset = _opset_of_onnx(model)
    if opset is not None:
        yield from _advise_on_opset(opset)

    ir = model.ir_version
    supported_ir = newest_ir(ir)
    if supported_ir < ir:
        yield ModelAdvice(
            code="ir-too-new",
            message=f"file format (IR) {ir}: this ONNX Runtime supports up to {supported_ir}",
            fix="upgrade onnxruntime, or export it again with an older onnx",
        )


def _advise_on_opset(opset: int) -> Iterator[ModelAdvice]:
    """Yield advice if the installed ONNX Runtime does not support a version of ONNX's operators."""
    if opset < MIN_OPSET:
        yield ModelAdvice(
            code="opset-too-old",
            message=f"opset {opset}: ONNX Runtime supports {MIN_OPSET} and later",
            fix="export it again with opset 13 or later",
        )
        return
    supported_opset = newest_opset(opset)
    if supported_opset < opset:
        yield ModelAdvice(
            code="opset-too-new",
            message=f"opset {opset}: this ONNX Runtime supports up to {supported_opset}",
            fix=f"export it again with opset {supported_opset} or lower, or upgrade onnxruntime",
        )


def _opset_of_onnx(model: ModelProto) -> int | None:
    """Return the version of ONNX's operators in a model; None if it only has those of others."""
    for entry in model.opset_import:
        if not entry.domain:  # ONNX's operators have an empty domain
            version: int = entry.version
            return version
    return None
