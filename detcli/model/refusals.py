"""Refuses graphs that are not detectors that detcli knows, and says why."""

from collections.abc import Sequence

import onnx

from detcli.core.errors import ModelError
from detcli.model.family import Family
from detcli.model.find_head import MIXED, SAY_WHICH
from detcli.model.graph import GraphIndex, shape, type_name
from detcli.model.heads import BOXES_ONLY, DETECTORS, Activation, BoxDecode, Head, Unrecognised
from detcli.model.heads.corners import Corners
from detcli.model.heads.layers import biases_of_layer
from detcli.model.heads.order import mixes_channels

EXPECTED = (
    "expected images [B, 3, H, W] or [B, H, W, 3] as input, and boxes and scores as output: "
    "[B, 4 + C, N], [B, N, 4 + C], [B, N, 4] with [B, N, C], or detections that the graph selects"
)
SAVED_BY_RUNTIME = "export it again, or save it with ONNX Runtime's basic optimisations only"
INLINE = "export it with dynamo=False, or apply onnx.inliner.inline_local_functions in Python"
MAX_LISTED = 8  # inputs and outputs in a message
NO_OBJECT_NAMES = frozenset({"", "__background__", "background", "n/a", "no object", "no-object"})
"""What files call the class that stands for no object, in lower case."""

HIGHEST_BIAS_OF_RARE_CLASS = -2.0  # a probability of 0.12
TASKS = {
    "classify": "it classifies whole images",
    "segment": "it segments objects",
    "pose": "it finds poses",
    "obb": "it finds oriented boxes",
}
"""What Ultralytics' metadata calls other tasks."""

COMPLETE_HINTS = {BOXES_ONLY, DETECTORS, SAY_WHICH}  # hints that EXPECTED adds nothing to
WITH_BOXES = {"segment", "pose"}  # tasks whose graphs output boxes too


def not_a_detector(
    model: onnx.ModelProto, index: GraphIndex, title: str, error: Unrecognised
) -> ModelError:
    """Build the error for a graph that is not recognised: why, its inputs and outputs, and hints.

    Args:
        model: The model.
        index: Its graph.
        title: The name of the model in the message.
        error: Why it was not recognised. Its arguments are the reason and perhaps a hint.
    """
    reason, *hints = error.args
    runtime_operators = _runtime_operators(model)
    if runtime_operators:
        listed = ", ".join(runtime_operators[:MAX_LISTED])
        are_operators = "is an operator" if len(runtime_operators) == 1 else "are operators"
        reason += f"; {listed} {are_operators} of ONNX Runtime's own"
        hints.append(SAVED_BY_RUNTIME)
    if model.functions:
        reason += "; its nodes are in functions of the file, as torch's dynamo exporter leaves them"
        hints.insert(0, INLINE)  # what to do first
    # EXPECTED lists the layouts that detcli knows. That does not help if the first hint says all
    # there is to say, as for a model of a task other than detection.
    is_complete = bool(hints) and hints[0] in COMPLETE_HINTS
    if not is_complete:
        hints.append(EXPECTED)

    inputs = _list_tensors(index.image_inputs())
    outputs = _list_tensors(index.graph.output)
    return ModelError(
        f"{title} is not a detector that detcli knows: {reason}. "
        f"Inputs: {inputs}. Outputs: {outputs}",
        "; ".join(hints),
    )


def _runtime_operators(model: onnx.ModelProto) -> list[str]:
    """List the operators of a graph that are ONNX Runtime's own, and not defined in the model."""
    defined = {(function.domain, function.name) for function in model.functions}
    operators = set()
    for node in model.graph.node:
        is_of_runtime = node.domain.startswith("com.microsoft")
        if is_of_runtime and (node.domain, node.op_type) not in defined:
            operators.add(node.op_type)
    return sorted(operators)


def check_names_leave_out_no_object(head: Head, family: Family, names: list[str] | None) -> None:
    """Refuse to read a head as DETR's if its file names a class for each of its scores.

    The last score of DETR stands for no object. Other detectors compute their scores by the same
    nodes, but have no such class. If they were read as DETR, their last class would be dropped, and
    the scores of the others would become shares of all classes in place of probabilities.

    Args:
        head: The head of the graph.
        family: The family of detectors that it seems to belong to.
        names: The class names in the file's metadata, if any.

    Raises:
        Unrecognised: All scores have names, and the name of the last is that of a class.
    """
    if not _drops_last_of_softmax(head, family):
        return
    if not names or len(names) != head.class_count:
        return  # Not every score has a name.
    if names[-1].lower() not in NO_OBJECT_NAMES:
        raise Unrecognised(
            f"it looks like {family.name}, whose last score stands for no object, but its metadata "
            f"names a class for each of its {len(names)} scores",
            f"if it is {family.name} all the same, {SAY_WHICH}",
        )


def _drops_last_of_softmax(head: Head, family: Family) -> bool:
    """True if detcli would read logits as DETR's: by a softmax whose last share is dropped."""
    return family.no_object == -1 and head.scores_are is Activation.LINEAR


def check_biases_are_of_softmax(
    index: GraphIndex, head: Head, family: Family, names: list[str] | None
) -> None:
    """Refuse to read a head as DETR's if the biases of its logits are not those of a softmax.

    The biases show how the scores were trained. With a sigmoid for each class, all biases begin at
    about -4.6, as every class is rare, and stay low. With a softmax, as in DETR, the class of no
    object is likely, so not all are low. A layer without any biases is not DETR's either.

    Nothing is checked if the head is not read as DETR's anyway, if the number of class names
    matches DETR, or if the biases cannot be read.

    Args:
        index: The graph.
        head: The head of the graph.
        family: The family of detectors that it seems to belong to.
        names: The class names in the file's metadata, if any.

    Raises:
        Unrecognised: All biases are low, or there are none, and the names do not show DETR.
    """
    if not _drops_last_of_softmax(head, family):
        return
    if names and head.class_count == len(names) + 1:
        return  # The file names a class for each score but the last, as DETR's do.

    biases = biases_of_layer(index, head.scores[0].tensor)
    if biases is None:
        return
    has_likely_class = (biases >= HIGHEST_BIAS_OF_RARE_CLASS).any()
    if has_likely_class:
        return

    difference = "the biases of its scores are those of a sigmoid for each class"
    if biases.size == 0:
        difference = "its scores have no biases"
    raise Unrecognised(
        f"it looks like {family.name}, whose scores are shares of all classes, but {difference}",
        f"if it is {family.name} all the same, {SAY_WHICH}",
    )


def check_head(model: onnx.ModelProto, index: GraphIndex, head: Head) -> None:
    """Refuse a head that cannot produce correct detections.

    Raises:
        Unrecognised: A Reshape has mixed its channels with its cells, or an operator that is not
            part of ONNX may have computed its scores.
    """
    if mixes_channels(index, head.tensors):
        raise Unrecognised(MIXED)
    # Whether such an operator has applied a sigmoid to the scores cannot be known.
    if head.scores_are is None and _runtime_operators(model):
        raise Unrecognised("it is not clear what makes its scores")


def check_task(task: str, *, boxes_only: bool) -> None:
    """Refuse a model whose metadata names a task other than detection, as Ultralytics' does.

    Raises:
        Unrecognised: It is for another task, and its boxes alone were not asked for.
    """
    if task == "detect" or (boxes_only and task in WITH_BOXES):
        return
    does = TASKS.get(task, "it is for something else")
    hint = BOXES_ONLY if task in WITH_BOXES else DETECTORS
    raise Unrecognised(f"{does}: its metadata says task '{task}'", hint)


def check_corners_are_clear(corners: Corners | None, head: Head, family: Family) -> None:
    """Refuse a graph if the order and unit of the corners of its boxes are not clear.

    Args:
        corners: The order and unit after all nodes that follow the decoding, if the decoding
            outputs x1, y1, x2, y2 in pixels. None if these nodes do not show what they do.
        head: The head of the graph.
        family: The family of detectors that it belongs to.

    Raises:
        Unrecognised: The nodes do not show order and unit, which they must in this family; or they
            show a different order from the family's.
    """
    reason = "the order and unit of the corners of its detections are not clear"
    if corners is None:
        if family.must_show_corners:
            raise Unrecognised(reason)
        return

    # Boxes that are decoded from distances are x1, y1, x2, y2 in pixels, unless a node after the
    # decoding changes that. If none does, x is first, although the family has y first.
    is_changed_by_nodes = corners.y_first or corners.fractions
    is_x_first = head.decodes(BoxDecode.DISTANCES) and not is_changed_by_nodes
    if family.y_first and is_x_first:
        raise Unrecognised(reason)


def _list_tensors(values: Sequence[onnx.ValueInfoProto]) -> str:
    """List inputs or outputs for a message, such as `images float[1, 3, 640, 640]`."""
    listed = ", ".join(_describe_tensor(value) for value in values[:MAX_LISTED])
    rest = len(values) - MAX_LISTED
    if rest > 0:
        return f"{listed} and {rest} more"
    return listed or "none"


def _describe_tensor(value: onnx.ValueInfoProto) -> str:
    """Format the name, type and shape of a tensor; `?` stands for an axis of unknown size."""
    dims = ", ".join("?" if dim is None else str(dim) for dim in shape(value))
    return f"{value.name} {type_name(value.type.tensor_type.elem_type)}[{dims}]"
