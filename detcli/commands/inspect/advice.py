"""What about a model deserves a look, each with its fix."""

from collections.abc import Callable, Iterator

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper

from detcli.backend.runtime.survey import refusal
from detcli.commands.inspect.report import Advice, Detector
from detcli.model.contract import Layout
from detcli.model.graph import bare_transposes
from detcli.model.loading import ExternalFile
from detcli.model.names import parse_names

OLDEST_OPSET = 7
"""ONNX Runtime promises nothing for operator sets before it."""

OLDEST_IR = 3
SURE_OPSET, SURE_IR = 17, 8  # taken by every version that detcli runs on


def newest_opset(own: int) -> int:
    """The newest version of ONNX' operators that the runtime takes, up to a model's own."""
    return _newest(own, OLDEST_OPSET, lambda version: _takes(SURE_IR, version))


def newest_ir(own: int) -> int:
    """The newest version of the file format that the runtime takes, up to a model's own."""
    return _newest(own, OLDEST_IR, lambda version: _takes(version, SURE_OPSET))


def _newest(own: int, oldest: int, takes: Callable[[int], bool]) -> int:
    """Bisect between a version that is taken and one that is refused."""
    if own <= oldest or takes(own):
        return own
    taken, refused = oldest, own
    while refused - taken > 1:
        middle = (taken + refused) // 2
        taken, refused = (middle, refused) if takes(middle) else (taken, middle)
    return taken


def _takes(ir: int, opset: int) -> bool:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "probe", [x], [y])
    opsets = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, ir_version=ir, opset_imports=opsets)
    return refusal(model.SerializeToString(), "probe") is None


FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE})


def advise_on_detector(detector: Detector, metadata: dict[str, str]) -> Iterator[Advice]:
    """What deserves a look in what a graph promises."""
    yield from _on_names(detector, metadata)
    if detector.layout is Layout.ONE_TO_MANY:
        yield Advice(
            "one-to-many",
            "its head gives several boxes for each object",
            "run it with --nms 0.45",
        )
    if detector.cut is not None:
        most = detector.cut.most_detections
        yield Advice(
            "top-k-cap",
            f"its own TopK nodes keep at most {most or 'a computed number of'} detections in a "
            "picture; detcli cuts the graph before them, other programs do not",
            "for those: detcli convert --cut, or --end-to-end with another --max-det",
        )
    if detector.input_size is None and not metadata.get("stride"):
        yield Advice(
            "assumed-stride",
            f"it takes pictures of any size, and does not say what their sides must be multiples "
            f"of: {detector.stride} is assumed",
            f"detcli convert --metadata stride={detector.stride}, with the right number",
        )


def _on_names(detector: Detector, metadata: dict[str, str]) -> Iterator[Advice]:
    """The names in the file itself; those that the user gives do not mend them."""
    fix = "--names FILE, or detcli convert --names FILE to write them into a copy"
    names = parse_names(metadata.get("names", ""))
    if names is None:
        lacks = "has class names that cannot be read" if metadata.get("names") else "names none"
        yield Advice("names-missing", f"it {lacks} of its {detector.class_count} classes", fix)
    elif len(names) != detector.class_count:
        fewer = "fewer" if len(names) < detector.class_count else "more"
        yield Advice(
            f"names-{fewer}",
            f"its metadata names {len(names)} classes, {fewer} than the {detector.class_count} of "
            "its graph",
            fix,
        )


def advise_on_graph(
    model: ModelProto, external: tuple[ExternalFile, ...], weights: list[TensorProto]
) -> Iterator[Advice]:
    """What deserves a look in the file itself, whether or not it is a detector."""
    for node in bare_transposes(model.graph):
        yield Advice(
            "bare-transpose",
            f"the Transpose {node.name or node.output[0]} feeds an output of the graph directly: "
            "some engines return the tensor as it was before",
            "detcli convert --guard-transpose",
        )
    yield from _on_versions(model)
    if external:
        yield Advice(
            "external-data",
            f"weights are in {', '.join(file.name for file in external)}: the model is useless "
            "without",
            "keep them together; detcli convert writes one file of them",
        )
    damaged = [tensor.name for tensor in weights if not _is_finite(tensor)]
    if damaged:
        yield Advice(
            "weights-not-finite",
            f"{len(damaged)} weights hold NaN or infinity, such as {damaged[0]}",
            "export it again; in float16, large weights overflow",
        )
    if sparse := len(model.graph.sparse_initializer):
        yield Advice(
            "sparse-weights",
            f"{sparse} of its constants are sparse tensors, which not every runtime reads, nor are "
            "they counted as parameters",
            "export it again with dense weights",
        )
    inputs = {value.name for value in model.graph.input}
    if listed := [tensor.name for tensor in weights if tensor.name in inputs]:
        yield Advice(
            "weights-as-inputs",
            f"{len(listed)} weights are listed as inputs, which keeps runtimes from preparing them",
            "export it again with a newer exporter",
        )
    yield from _on_validity(model)


def _on_versions(model: ModelProto) -> Iterator[Advice]:
    own = next((entry.version for entry in model.opset_import if not entry.domain), None)
    if own is not None and own < OLDEST_OPSET:
        yield Advice(
            "opset-too-old",
            f"opset {own}: ONNX Runtime promises support from {OLDEST_OPSET} on",
            "export it again with opset 13 or later",
        )
    elif own is not None and (newest := newest_opset(own)) < own:
        yield Advice(
            "opset-too-new",
            f"opset {own}: this ONNX Runtime takes up to {newest}",
            f"export it again with opset {newest} or lower, or upgrade onnxruntime",
        )
    if (newest := newest_ir(model.ir_version)) < model.ir_version:
        yield Advice(
            "ir-too-new",
            f"file format (IR) {model.ir_version}: this ONNX Runtime takes up to {newest}",
            "upgrade onnxruntime, or export it again with an older onnx",
        )


def _on_validity(model: ModelProto) -> Iterator[Advice]:
    try:
        onnx.checker.check_model(model)
    except (onnx.checker.ValidationError, ValueError) as error:
        said = " ".join(str(error).partition("==> Context")[0].split())
        yield Advice("invalid", f"the ONNX checker objects: {said}", "export it again")


def _is_finite(tensor: TensorProto) -> bool:
    if tensor.data_type not in FLOATS:
        return True
    return bool(np.isfinite(onnx.numpy_helper.to_array(tensor)).all())
